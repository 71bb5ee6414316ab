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
    policy::{CurveStep, LeaseNumbers, Numbers},
    units::EXACT_MAX,
};
use deadpool_redis::redis::{Cmd, Value};

use super::{Apply, Defaults, Items, Packing, Unexpected};
use crate::store::redis::{
    layout::{
        Item,
        constants::{answer, sync},
        lending::{
            ASK, AmountsRecord, AskedRecord, GroundRecord, PositionRecord, REVOKED, ReportRecord, StepRecord,
            TermsRecord, UnitAmountsRecord,
        },
    },
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
    let [sheddable, default, critical] = numbers.priority_ppm;
    let lease = numbers.lease.as_ref();
    let of = |value: fn(&LeaseNumbers) -> i64| lease.map_or(0, value);
    let mut packing = Packing::default();
    TermsRecord {
        some: lease.is_some().into(),
        slots_limited: numbers.slots_limited.into(),
        sheddable,
        default,
        critical,
        part: of(|lease| lease.part_ppm),
        widest: of(|lease| lease.widest_part_ppm),
        longest: of(|lease| lease.longest_curve_ms),
        margin: of(|lease| lease.margin_ms),
        overlap: of(|lease| lease.overlap_ms),
        step_max: of(|lease| lease.step_max_ms),
    }
    .pack(&mut packing.bytes);
    packing.curve(lease.map_or(&[], |lease| &lease.curve.0));
    packing.bytes
}

fn pack_ground(ground: &Ground, also: Also<'_>) -> Vec<u8> {
    let mut packing = Packing::default();
    let (boot, clock) = ground.beat.unwrap_or_default();
    GroundRecord {
        identity: ground.identity,
        number: ground.remembered.number,
        id: ground.remembered.id,
        fresh_id: ground.fresh_id,
        fresh_store: ground.fresh_store.into(),
        has_beat: ground.beat.is_some().into(),
        boot,
        clock,
        asks: match also {
            Also::Nothing => 0,
            Also::Syncs(_) => 1,
            Also::Revoke(_) => 2,
        },
    }
    .pack(&mut packing.bytes);
    match also {
        Also::Nothing => {}
        Also::Syncs(asks) => {
            debug_assert!(asks.len() <= ASKS_MAX, "{} asks", asks.len());
            packing.byte(count(asks.len()));
            for ask in asks {
                packing.ask(ask);
            }
        }
        Also::Revoke(holder) => REVOKED.pack(&[Item::Bytes(holder.as_str().as_bytes())], &mut packing.bytes),
    }
    packing.bytes
}

fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Packing<'_> {
    fn curve(&mut self, steps: &[CurveStep]) {
        self.byte(count(steps.len()));
        for step in steps {
            StepRecord { part: step.part_ppm, duration: step.duration_ms }.pack(&mut self.bytes);
        }
    }

    fn amounts(&mut self, amounts: &Amounts) {
        let Amounts { rate, burst, retry_burst, slots, .. } = *amounts;
        AmountsRecord { rate, burst, retry_burst, slots, units: count(amounts.units.len()) }.pack(&mut self.bytes);
        for unit in &amounts.units {
            UnitAmountsRecord { unit: unit.unit.raw(), rate: unit.rate, burst: unit.burst }.pack(&mut self.bytes);
        }
    }

    fn usage(&mut self, usage: &Usage) {
        ReportRecord {
            asked: usage.asked,
            originals_admitted: usage.originals_admitted,
            retries_admitted: usage.retries_admitted,
            originals_denied: usage.originals_denied,
            retries_denied: usage.retries_denied,
            not_sent: usage.not_sent,
            fallback_originals: usage.fallback_originals,
            fallback_retries: usage.fallback_retries,
            deposited: usage.deposited_micros,
            overuse: usage.overuse_micros,
            units: count(usage.units_asked.len()),
        }
        .pack(&mut self.bytes);
        for (unit, asked) in &usage.units_asked {
            AskedRecord { unit: unit.raw(), amount: *asked }.pack(&mut self.bytes);
        }
    }

    /// The length of all of it, then itself.
    fn ask(&mut self, ask: &SyncAsk) {
        let from = self.bytes.len();
        let name = ask.lease.as_ref().map_or_else(LeaseName::default, |lease| lease.name);
        let items = [
            // Its length, known at the end.
            Item::Int(0),
            Item::Bytes(ask.holder.as_str().as_bytes()),
            Item::Bytes(&ask.incarnation.0),
            Item::Int(ask.sequence),
            Item::Int(ask.nonce),
            Item::Int(ask.epoch.number),
            Item::Int(ask.epoch.id),
            Item::Int(ask.weight),
            Item::Int(ask.leave.into()),
            Item::Int(ask.lease.is_some().into()),
            Item::Int(name.epoch.number),
            Item::Int(name.epoch.id),
            Item::Int(name.generation),
        ];
        ASK.pack(&items, &mut self.bytes);
        self.usage(&ask.usage);
        self.usage(&ask.counted);
        // A lease of the epoch that the ask quotes proves nothing: only its name is looked at.
        if let Some(lease) = ask.lease.as_ref().filter(|lease| lease.name.epoch != ask.epoch) {
            PositionRecord { position: lease.position_ms }.pack(&mut self.bytes);
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
        Also::Syncs(asks) => AlsoAnswer::Syncs(asks.iter().map(|_| items.sync_answer()).collect::<Result<_, _>>()?),
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

    fn sync_answer(&mut self) -> Result<Option<SyncAnswer>, Unexpected> {
        self.packed("answer to a sync", Packed::sync_answer)
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

    fn sync_answer(&mut self) -> Option<Option<SyncAnswer>> {
        Some(Some(match self.byte()? {
            sync::GRANTED => SyncAnswer::Granted(Grant {
                name: LeaseName { epoch: self.epoch()?, generation: self.amount::<7>()? },
                position_ms: self.amount::<7>()?,
                value: self.amounts()?,
                moved: self.amounts()?,
                curve: self.curve()?,
            }),
            sync::OTHER_EPOCH => SyncAnswer::Epoch(self.epoch()?),
            sync::WAIT => SyncAnswer::Wait(self.amount::<7>()?),
            sync::DEAD => SyncAnswer::Dead,
            sync::FENCED => SyncAnswer::Fenced,
            sync::NOT_LEASED => SyncAnswer::NotLeased(match self.byte()? {
                1 => NotLeased::NotPermitted,
                2 => NotLeased::TooManyHolders,
                _ => return None,
            }),
            sync::INVALID => SyncAnswer::Invalid(match self.byte()? {
                1 => InvalidSync::UsageBackwards,
                2 => InvalidSync::UnknownGeneration,
                _ => return None,
            }),
            sync::LEFT => SyncAnswer::Left,
            sync::UNREADABLE => return Some(None),
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
