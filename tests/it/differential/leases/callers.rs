//! Holders, mostly honest.

use budget::{
    ids::UnitId,
    lease::{
        Amounts, Curve, EPOCH_NUMBER_MAX, Epoch, Grant, HolderId, Incarnation, LeaseName, Presented, SyncAnswer,
        SyncAsk, UnitAmounts, Usage,
    },
    policy::{CurveStep, Numbers},
    units::PPM,
};
use budget_tests::rng::Rng;

use super::super::worlds::Source;

const NAMES: [&str; 7] = ["a", "b", "holder three", "d", "é{}%", "zz", "long long long long long long long long long"];
/// What one holder may have been granted in another store: anything that passes the wire.
const VALUES: [i64; 6] = [0, 1, 999_999, 3_000_000, 250_000_000, 1_000_000_000_000_000];

/// All holders of one world.
#[derive(Debug)]
pub(super) struct Callers {
    rng: Rng,
    lives: Vec<Life>,
}

/// One incarnation.
#[derive(Clone, Debug)]
struct Life {
    name: HolderId,
    incarnation: Incarnation,
    last: Option<SyncAsk>,
    sequence: i64,
    epoch: Epoch,
    lease: Option<(Grant, i64)>,
    usage: Usage,
    counted: Usage,
    weight: i64,
}

// === impl Callers ===

impl Callers {
    pub(super) fn new(rng: Rng) -> Self {
        Self { rng, lives: Vec::new() }
    }

    pub(super) fn name(&mut self) -> HolderId {
        // Mostly the first, so that it has more lives than are kept.
        let name: &str = if self.rng.chance(2, 5) { NAMES[0] } else { self.rng.pick::<&str>(&NAMES) };
        HolderId::new(name).expect("a name")
    }

    fn mint(&mut self) -> usize {
        let life = Life {
            name: self.name(),
            incarnation: Incarnation(std::array::from_fn(|_| u8::try_from(self.rng.below(256)).expect("a byte"))),
            last: None,
            sequence: 0,
            epoch: Epoch::default(),
            lease: None,
            usage: Usage::default(),
            counted: Usage::default(),
            weight: *self.rng.pick(&[1, 1, 1, 3, 1_000]),
        };
        if self.lives.len() >= 12 {
            let at = usize::try_from(self.rng.below(12)).expect("small");
            self.lives.swap_remove(at);
        }
        self.lives.push(life);
        self.lives.len() - 1
    }

    /// An ask of one of them. `epoch` is the ledger's, which the holder may or may not know.
    pub(super) fn ask(&mut self, source: &mut Source, numbers: &Numbers, epoch: Epoch, now_ms: i64) -> SyncAsk {
        let at = if self.lives.is_empty() || self.rng.chance(4, 100) {
            self.mint()
        } else {
            usize::try_from(self.rng.below(self.lives.len() as u64)).expect("an index")
        };
        let kind = self.rng.below(100);
        if let Some(last) = self.lives[at].last.clone() {
            match kind {
                0..10 => return last,
                10..12 => return SyncAsk { nonce: last.nonce + 1, ..last },
                12 => return SyncAsk { sequence: (last.sequence - 1).max(1), ..last },
                _ => {}
            }
        }
        self.advance(at, source, numbers);
        if self.lives[at].epoch.number == 0 && self.rng.chance(1, 2) {
            self.lives[at].epoch = epoch;
        }
        let mut ask = self.lives[at].next(now_ms, i64::try_from(self.rng.below(1 << 52)).expect("52 bits"));
        let forged = |rng: &mut Rng| -> Presented {
            let number = if rng.chance(1, 2) { epoch } else { Epoch { number: 1, id: 77 } };
            let amount = |rng: &mut Rng| *rng.pick(&VALUES);
            let units = ["in", "usd", "gone"].map(|name| UnitAmounts {
                unit: UnitId::of(name).expect("a unit"),
                rate: amount(rng).min(4_000_000_000_000),
                burst: amount(rng),
            });
            let steps = [
                vec![CurveStep { part_ppm: PPM, duration_ms: 3_000 }],
                vec![
                    CurveStep { part_ppm: 700_001, duration_ms: 1_000 },
                    CurveStep { part_ppm: 333_333, duration_ms: 5_000 },
                ],
            ];
            Presented {
                name: LeaseName { epoch: number, generation: rng.between(1, 40) },
                value: Amounts {
                    rate: amount(rng).min(4_000_000_000_000),
                    burst: amount(rng),
                    retry_burst: amount(rng),
                    slots: amount(rng).min(1_000_000),
                    units: units[..usize::try_from(rng.below(4)).expect("small")].into(),
                },
                curve: Curve(rng.pick(&steps).as_slice().into()),
                position_ms: rng.between(0, 7_000),
            }
        };
        match kind {
            13 => ask.usage.asked = ask.usage.asked.saturating_sub(5).max(0),
            14 => ask.usage.units_asked = Box::default(),
            15..19 => ask.lease = Some(forged(&mut self.rng)),
            19 => ask.lease = None,
            20 => ask.leave = true,
            21..23 => ask.epoch = Epoch { number: (epoch.number - 1).max(0), id: epoch.id },
            23 if self.rng.chance(1, 8) => {
                let far = if self.rng.chance(1, 8) { EPOCH_NUMBER_MAX } else { self.rng.between(0, 3) };
                ask.epoch = Epoch { number: epoch.number.saturating_add(far).min(EPOCH_NUMBER_MAX), id: 5 };
            }
            24 => ask.sequence += self.rng.between(1, 1_000),
            25 => ask.weight = self.rng.between(1, 1_000),
            26..28 => {
                if let Some(lease) = &mut ask.lease {
                    lease.name.generation += self.rng.between(-2, 3);
                    lease.name.generation = lease.name.generation.max(0);
                }
            }
            28 => ask.counted = Usage::default(),
            _ => {}
        }
        self.lives[at].sequence = ask.sequence;
        self.lives[at].last = Some(ask.clone());
        ask
    }

    fn advance(&mut self, at: usize, source: &mut Source, numbers: &Numbers) {
        let life = &mut self.lives[at];
        let more = |rng: &mut Rng, most: i64| if rng.chance(1, 2) { 0 } else { rng.between(0, most) };
        let rng = &mut self.rng;
        let busy = *rng.pick(&[0, 1, 20, 2_000, 3_000_000_000]);
        let usage = &mut life.usage;
        usage.asked += more(rng, busy);
        for counter in [
            &mut usage.originals_admitted,
            &mut usage.retries_admitted,
            &mut usage.originals_denied,
            &mut usage.retries_denied,
            &mut usage.not_sent,
            &mut usage.fallback_originals,
            &mut usage.fallback_retries,
            &mut usage.deposited_micros,
            &mut usage.overuse_micros,
        ] {
            *counter =
                if rng.chance(1, 20_000) { (1 << 53) - 1 } else { (*counter + more(rng, busy)).min((1 << 53) - 1) };
        }
        let mut asked: Vec<(UnitId, i64)> = usage.units_asked.to_vec();
        for (unit, _) in &numbers.units {
            if !asked.iter().any(|(id, _)| id == unit) && asked.len() < 8 {
                asked.push((*unit, 0));
            }
        }
        for (_, amount) in &mut asked {
            *amount = (*amount + more(rng, busy.saturating_mul(1_000))).min((1 << 53) - 1);
        }
        usage.units_asked = asked.into();
        if source.chance(5) {
            life.weight = rng.between(1, 5);
        }
    }

    /// What an honest holder does with an answer; some never hear of it.
    pub(super) fn answered(&mut self, ask: &SyncAsk, answer: &SyncAnswer, now_ms: i64) {
        let unheard = self.rng.chance(10, 100);
        let Some(life) = self.lives.iter_mut().find(|life| life.incarnation == ask.incarnation) else { return };
        let outstanding =
            life.last.as_ref().is_some_and(|last| (last.sequence, last.nonce) == (ask.sequence, ask.nonce));
        if unheard || !outstanding {
            return;
        }
        match answer {
            SyncAnswer::Granted(grant) => {
                if life.lease.as_ref().is_none_or(|(held, _)| held.name < grant.name) {
                    life.lease = Some((grant.clone(), now_ms - grant.position_ms));
                    life.counted = ask.usage.clone();
                }
            }
            SyncAnswer::Epoch(epoch) => life.epoch = *epoch,
            SyncAnswer::Fenced | SyncAnswer::Left => {
                life.incarnation =
                    Incarnation(std::array::from_fn(|_| u8::try_from(self.rng.below(256)).expect("a byte")));
                (life.sequence, life.lease, life.last) = (0, None, None);
                (life.usage, life.counted) = (Usage::default(), Usage::default());
            }
            SyncAnswer::Wait(_) | SyncAnswer::Dead | SyncAnswer::NotLeased(_) | SyncAnswer::Invalid(_) => {}
        }
    }
}

// === impl Life ===

impl Life {
    fn next(&mut self, now_ms: i64, nonce: i64) -> SyncAsk {
        let lease = self.lease.as_ref().and_then(|(grant, since_ms)| {
            let position_ms = (now_ms - since_ms).max(0);
            (position_ms < grant.curve.total_ms()).then(|| Presented {
                name: grant.name,
                value: grant.value.clone(),
                curve: grant.curve.clone(),
                position_ms,
            })
        });
        SyncAsk {
            holder: self.name.clone(),
            incarnation: self.incarnation,
            sequence: self.sequence + 1,
            nonce,
            epoch: self.epoch,
            lease,
            usage: self.usage.clone(),
            counted: self.counted.clone(),
            in_flight: 0,
            weight: self.weight,
            leave: false,
        }
    }
}
