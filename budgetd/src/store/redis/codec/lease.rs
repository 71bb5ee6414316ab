//! Calls of the script for ledgers that lend, and its replies. The layout is written at the heads of `lending.lua` and
//! `asks.lua`.

use std::vec;

use budget::{
    decision::{Answer, Step},
    ids::{PolicyVersion, UnitId},
    lease::{
        Amounts, Curve, Epoch, Grant, Ground, HOLDER_ID_BYTES_MAX, HolderId, Incarnation, InvalidSync, LeaseName,
        NotLeased, SyncAnswer, SyncAsk, UnitAmounts, Usage,
    },
    ledger::{HolderView, Lending},
    policy::{CurveStep, Numbers},
    units::EXACT_MAX,
};
use deadpool_redis::redis::{Cmd, Value};

use super::{Apply, Defaults, Items, Packing, Unexpected};
use crate::store::redis::{
    layout::constants::answer,
    scripts::{By, LEND},
};

/// Longest packed value in a reply: amounts with the most units there can be, twice, and a curve.
const PACKED_BYTES_MAX: usize = 16_384;
/// Most asks of one call.
pub const ASKS_MAX: usize = 64;

/// A call of the script for ledgers that lend, but for its steps.
#[derive(Clone, Copy, Debug)]
pub struct Lend<'a> {
    /// As for a ledger that does not.
    pub apply: Apply<'a>,
    /// What [`pack_terms`] gave.
    pub terms: &'a [u8],
    /// What the caller knows of the store.
    pub ground: &'a Ground,
}

/// What such a call does beside steps.
#[derive(Clone, Copy, Debug)]
pub enum Also<'a> {
    /// Nothing; with a heartbeat in its ground it is one.
    Nothing,
    /// Answers holders, one after the other: at most [`ASKS_MAX`].
    Syncs(&'a [&'a SyncAsk]),
    /// Takes a holder's lease away.
    Revoke(&'a HolderId),
}

/// A reply of that script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LendReply {
    /// Everything was done.
    Done(Box<Lent>),
    /// Nothing was done: the ledger has newer numbers.
    Stale {
        /// The ledger's.
        version: PolicyVersion,
    },
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lent {
    /// The ledger's.
    pub version: PolicyVersion,
    /// Its policy only watches.
    pub shadow: bool,
    /// In the order of the steps; none: state was lost a moment ago, and nothing is decided yet.
    pub answers: Vec<Option<Answer>>,
    /// Number 0: it does not lend.
    pub epoch: Epoch,
    /// Holders of leases.
    pub holders: i64,
    /// Ledger time needs heartbeats.
    pub needs_beats: bool,
    /// If so, how long nobody had called it.
    pub quiet_ms: i64,
    /// To [`Also`].
    pub also: AlsoAnswer,
}

/// The answer to [`Also`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AlsoAnswer {
    /// To nothing.
    Nothing,
    /// To each sync, in the order of the asks; none: what is kept of this holder cannot be read.
    Syncs(Vec<Option<SyncAnswer>>),
    /// Whether there is such a holder.
    Revoked(bool),
}

// === impl Lend ===

impl Lend<'_> {
    /// The command that applies steps, as [`Apply::command`] does, and more.
    #[must_use]
    pub fn command<'s>(
        &self,
        by: By,
        steps: impl ExactSizeIterator<Item = (&'s Step, i64)> + Clone,
        also: Also<'_>,
    ) -> Cmd {
        let lending = self.apply.keys.of_lending();
        let mut command = self.apply.command_of(&LEND, by, steps, &lending);
        command.arg(self.terms).arg(pack_ground(self.ground, also));
        command
    }
}

/// Packs what a policy says of leases, permitted or not.
#[must_use]
pub fn pack_terms(numbers: &Numbers) -> Vec<u8> {
    let mut packing = Packing::default();
    packing.byte(numbers.lease.is_some().into());
    packing.byte(numbers.slots_limited.into());
    for part in numbers.priority_ppm {
        packing.int::<4>(part);
    }
    let terms = numbers.lease.as_ref();
    packing.int::<4>(terms.map_or(0, |terms| terms.part_ppm));
    packing.int::<4>(terms.map_or(0, |terms| terms.widest_part_ppm));
    packing.int::<4>(terms.map_or(0, |terms| terms.longest_curve_ms));
    packing.int::<4>(terms.map_or(0, |terms| terms.margin_ms));
    packing.int::<4>(terms.map_or(0, |terms| terms.overlap_ms));
    packing.int::<4>(terms.map_or(0, |terms| terms.step_max_ms));
    packing.curve(terms.map_or(&[], |terms| &terms.curve.0));
    packing.bytes
}

fn pack_ground(ground: &Ground, also: Also<'_>) -> Vec<u8> {
    let mut packing = Packing::default();
    packing.int::<7>(ground.identity);
    packing.epoch(ground.remembered);
    packing.int::<7>(ground.fresh_id);
    packing.byte(ground.fresh_store.into());
    packing.byte(ground.beat.is_some().into());
    let (boot, clock_ms) = ground.beat.unwrap_or_default();
    packing.int::<7>(boot);
    packing.int::<7>(clock_ms);
    match also {
        Also::Nothing => packing.byte(0),
        Also::Syncs(asks) => {
            debug_assert!(asks.len() <= ASKS_MAX, "{} asks", asks.len());
            packing.byte(1);
            packing.count(asks.len());
            for ask in asks {
                packing.ask(ask);
            }
        }
        Also::Revoke(holder) => {
            packing.byte(2);
            packing.text(holder.as_str().as_bytes());
        }
    }
    packing.bytes
}

impl Packing<'_> {
    fn epoch(&mut self, epoch: Epoch) {
        self.int::<7>(epoch.number);
        self.int::<7>(epoch.id);
    }

    fn count(&mut self, count: usize) {
        self.byte(i64::try_from(count).unwrap_or(i64::MAX));
    }

    fn curve(&mut self, steps: &[CurveStep]) {
        self.count(steps.len());
        for step in steps {
            self.int::<4>(step.part_ppm);
            self.int::<4>(step.duration_ms);
        }
    }

    fn amounts(&mut self, amounts: &Amounts) {
        for amount in [amounts.rate, amounts.burst, amounts.retry_burst, amounts.slots] {
            self.int::<7>(amount);
        }
        self.count(amounts.units.len());
        for unit in &amounts.units {
            self.int::<7>(unit.unit.raw());
            self.int::<7>(unit.rate);
            self.int::<7>(unit.burst);
        }
    }

    fn usage(&mut self, usage: &Usage) {
        for counter in usage.counters() {
            self.int::<7>(counter);
        }
        self.count(usage.units_asked.len());
        for (unit, asked) in &usage.units_asked {
            self.int::<7>(unit.raw());
            self.int::<7>(*asked);
        }
    }

    /// The length of all of it, then itself.
    fn ask(&mut self, ask: &SyncAsk) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.text(ask.holder.as_str().as_bytes());
        self.bytes.extend_from_slice(&ask.incarnation.0);
        self.int::<7>(ask.sequence);
        self.int::<7>(ask.nonce);
        self.epoch(ask.epoch);
        self.int::<4>(ask.weight);
        self.byte(ask.leave.into());
        self.byte(ask.lease.is_some().into());
        let name = ask.lease.as_ref().map_or_else(LeaseName::default, |lease| lease.name);
        self.epoch(name.epoch);
        self.int::<7>(name.generation);
        self.usage(&ask.usage);
        self.usage(&ask.counted);
        // A lease of the epoch that the ask quotes proves nothing: only its name is looked at.
        if let Some(lease) = ask.lease.as_ref().filter(|lease| lease.name.epoch != ask.epoch) {
            self.int::<7>(lease.position_ms);
            self.amounts(&lease.value);
            self.curve(&lease.curve.0);
        }
        let length = self.bytes.len().saturating_sub(from).saturating_sub(2);
        if let Some((place, _)) = self.bytes.get_mut(from..).and_then(<[u8]>::split_first_chunk_mut) {
            *place = u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
        }
    }
}

/// Reads a reply to these steps and [`Also`], which were sent with these numbers of this version.
///
/// # Errors
/// If it is not one the script gives to them.
pub fn read_lend_reply<'a>(
    reply: Value,
    version: PolicyVersion,
    numbers: &Numbers,
    steps: impl Iterator<Item = &'a Step>,
    also: Also<'_>,
) -> Result<LendReply, Unexpected> {
    let mut items = Items::of(reply)?;
    let Some((version, shadow, defaults)) = items.status(version, numbers)? else {
        let version = items.version()?;
        items.end()?;
        return Ok(LendReply::Stale { version });
    };
    let answers = steps.map(|step| items.answer_or_away(step, defaults)).collect::<Result<_, _>>()?;
    let epoch = Epoch { number: items.amount("epoch")?, id: items.amount("epoch's id")? };
    let holders = items.amount("holders")?;
    // 0: no; else the time since the last call and 1.
    let beats = items.amount("whether heartbeats are needed")?;
    let (needs_beats, quiet_ms) = (beats > 0, beats.saturating_sub(1).max(0));
    let also = match also {
        Also::Nothing => AlsoAnswer::Nothing,
        Also::Syncs(asks) => {
            AlsoAnswer::Syncs(asks.iter().map(|ask| items.sync_answer(ask)).collect::<Result<_, _>>()?)
        }
        Also::Revoke(_) => AlsoAnswer::Revoked(items.flag("whether there is such a holder")?),
    };
    items.end()?;
    Ok(LendReply::Done(Box::new(Lent { version, shadow, answers, epoch, holders, needs_beats, quiet_ms, also })))
}

/// Reads a reply of `holders.lua`.
///
/// # Errors
/// If it is not one the script gives.
pub(in crate::store::redis) fn read_holders(reply: Value) -> Result<Vec<HolderView>, Unexpected> {
    let mut items = Items::of(reply)?;
    let mut holders = Vec::new();
    while items.left() > 0 {
        let name = items.bytes("holder", HOLDER_ID_BYTES_MAX)?;
        let holder = std::str::from_utf8(&name).ok().and_then(|name| HolderId::new(name).ok()).ok_or_else(|| {
            Unexpected::Field { what: "holder", found: format!("{} bytes", name.len()), rule: "a name" }
        })?;
        let incarnation = items.bytes("incarnation", 16)?;
        let incarnation = <[u8; 16]>::try_from(&*incarnation).map(Incarnation).map_err(|_| Unexpected::Field {
            what: "incarnation",
            found: format!("{} bytes", incarnation.len()),
            rule: "16 bytes",
        })?;
        holders.push(HolderView {
            holder,
            incarnation,
            weight: items.amount("weight")?,
            demand: items.amount("demand")?,
            generation: items.amount("generation")?,
            expires_in_ms: items.amount("expires_in")?,
            revoked: items.flag("revoked")?,
            value: items.packed("value", Packed::amounts)?,
            charged: items.packed("charged", Packed::amounts)?,
            usage: items.packed("usage", Packed::usage)?,
        });
    }
    Ok(holders)
}

impl Items {
    /// None: nothing was decided for this step, since state was lost a moment ago.
    fn answer_or_away(&mut self, step: &Step, defaults: Defaults) -> Result<Option<Answer>, Unexpected> {
        if matches!(step, Step::Reserve(_)) && self.0.as_slice().first() == Some(&Value::Int(answer::AWAY)) {
            self.int("answer")?;
            return Ok(None);
        }
        self.answer(step, defaults).map(Some)
    }

    pub(super) fn lending(&mut self) -> Result<Lending, Unexpected> {
        Ok(Lending {
            epoch: Epoch { number: self.amount("epoch")?, id: self.amount("epoch's id")? },
            holders: self.amount("holders")?,
            quarantine_left_ms: self.amount("rest of the quarantine")?,
            wait_left_ms: self.amount("rest of the wait")?,
            clock_debt_ms: self.amount("clock debt")?,
            charged: self.packed("charged", Packed::amounts)?,
            unknown: self.packed("unknown", Packed::amounts)?,
        })
    }

    fn sync_answer(&mut self, ask: &SyncAsk) -> Result<Option<SyncAnswer>, Unexpected> {
        self.packed("answer to a sync", |packed| packed.sync_answer(ask.epoch))
    }

    fn packed<T>(&mut self, what: &'static str, read: impl Fn(&mut Packed) -> Option<T>) -> Result<T, Unexpected> {
        let bytes = self.bytes(what, PACKED_BYTES_MAX)?;
        let found = format!("{} bytes", bytes.len());
        let mut packed = Packed(bytes.into_iter());
        let value = read(&mut packed).filter(|_| packed.0.as_slice().is_empty());
        value.ok_or(Unexpected::Field { what, found, rule: "packed as expected" })
    }
}

/// Packed numbers, one behind the other. None: they end, or one is out of range.
struct Packed(vec::IntoIter<u8>);

impl Packed {
    fn byte(&mut self) -> Option<u8> {
        self.0.next()
    }

    fn amount<const N: usize>(&mut self) -> Option<i64> {
        let value = (0..N).try_fold(0_u64, |value, _| Some((value << 8) | u64::from(self.byte()?)))?;
        i64::try_from(value).ok().filter(|value| *value <= EXACT_MAX)
    }

    fn epoch(&mut self) -> Option<Epoch> {
        Some(Epoch { number: self.amount::<7>()?, id: self.amount::<7>()? })
    }

    /// asked: the epoch that the ask quotes.
    fn sync_answer(&mut self, asked: Epoch) -> Option<Option<SyncAnswer>> {
        Some(Some(match self.byte()? {
            0 => {
                let generation = self.amount::<6>()?;
                // When it was granted, and how long permits live: the ledger's own.
                let _ = (self.amount::<7>()?, self.amount::<7>()?);
                SyncAnswer::Granted(Grant {
                    name: LeaseName { epoch: asked, generation },
                    position_ms: 0,
                    value: self.amounts()?,
                    moved: self.amounts()?,
                    curve: self.curve()?,
                })
            }
            1 => SyncAnswer::Granted(Grant {
                name: LeaseName { epoch: self.epoch()?, generation: self.amount::<7>()? },
                position_ms: self.amount::<7>()?,
                value: self.amounts()?,
                moved: self.amounts()?,
                curve: self.curve()?,
            }),
            2 => SyncAnswer::Epoch(self.epoch()?),
            3 => SyncAnswer::Wait(self.amount::<7>()?),
            4 => SyncAnswer::Dead,
            5 => SyncAnswer::Fenced,
            6 => SyncAnswer::NotLeased(match self.byte()? {
                1 => NotLeased::NotPermitted,
                2 => NotLeased::TooManyHolders,
                _ => return None,
            }),
            7 => SyncAnswer::Invalid(match self.byte()? {
                1 => InvalidSync::UsageBackwards,
                2 => InvalidSync::UnknownGeneration,
                _ => return None,
            }),
            8 => SyncAnswer::Left,
            9 => return Some(None),
            _ => return None,
        }))
    }

    fn amounts(&mut self) -> Option<Amounts> {
        let (rate, burst, retry_burst, slots) =
            (self.amount::<7>()?, self.amount::<7>()?, self.amount::<7>()?, self.amount::<7>()?);
        let unit = |packed: &mut Self| {
            let unit = UnitId::from_raw(packed.amount::<7>()?);
            Some(UnitAmounts { unit, rate: packed.amount::<7>()?, burst: packed.amount::<7>()? })
        };
        let units = (0..self.byte()?).map(|_| unit(self)).collect::<Option<_>>()?;
        Some(Amounts { rate, burst, retry_burst, slots, units })
    }

    fn curve(&mut self) -> Option<Curve> {
        let step =
            |packed: &mut Self| Some(CurveStep { part_ppm: packed.amount::<4>()?, duration_ms: packed.amount::<4>()? });
        (0..self.byte()?).map(|_| step(self)).collect::<Option<Vec<_>>>().map(|steps| Curve(steps.into()))
    }

    fn usage(&mut self) -> Option<Usage> {
        let mut counters = [0; 10];
        for counter in &mut counters {
            *counter = self.amount::<7>()?;
        }
        let [
            asked,
            originals_admitted,
            retries_admitted,
            originals_denied,
            retries_denied,
            not_sent,
            fallback_originals,
            fallback_retries,
            deposited_micros,
            overuse_micros,
        ] = counters;
        let unit = |packed: &mut Self| Some((UnitId::from_raw(packed.amount::<7>()?), packed.amount::<7>()?));
        Some(Usage {
            asked,
            originals_admitted,
            retries_admitted,
            originals_denied,
            retries_denied,
            not_sent,
            fallback_originals,
            fallback_retries,
            deposited_micros,
            overuse_micros,
            units_asked: (0..self.byte()?).map(|_| unit(self)).collect::<Option<_>>()?,
        })
    }
}
