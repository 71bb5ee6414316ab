//! What ledger and holder say to each other about leases: pure values, no behaviour but arithmetic.
//!
//! A lease carves a part out of a dependency's quotas for a *curve*: decreasing steps, then nothing. The holder spends
//! its part with no communication; the ledger charges the same curve, each step ending a margin later. Both sides
//! compute a step with [`Amounts::scaled`], so they round alike.

mod rules;
mod timing;

pub use timing::Timing;

use crate::{
    ids::{PolicyVersion, UnitId},
    policy::CurveStep,
    units::{PPM, scale_down},
};

/// Most grants of one incarnation that the ledger keeps charged; a further one waits until an older one is quoted away.
pub const GRANTS_MAX: usize = 4;
/// Most incarnations of one holder id that are charged at once.
pub const INCARNATIONS_MAX: usize = 4;
/// Most holders of one dependency; later ones are told to use Reserve.
pub const HOLDERS_MAX: usize = 20_000;
/// Most dependencies in one sync message.
pub const SYNC_BATCH_MAX: usize = 1_000;
/// Highest epoch number accepted from outside.
pub const EPOCH_NUMBER_MAX: i64 = 1 << 52;
/// Longest holder id in bytes.
pub const HOLDER_ID_BYTES_MAX: usize = 128;
/// The whole of what may be leased, in the unit of shares: products with any quota stay exact in a double.
pub const SHARE_ONE: i64 = 10_000_000;
/// Of what may be leased, so much is kept for newcomers.
pub const NEWCOMERS_SHARE: i64 = SHARE_ONE / 20;

/// One life of a ledger's state. What a lost state granted is unknown, so leases of another epoch are proofs only.
///
/// Ordered by number; an equal number with another id is *different*, and never lower (see [`Epoch::supersedes`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// Rises with every loss of state; 0: none seen.
    pub number: i64,
    /// 52 random bits, telling apart equal numbers made by two masters.
    pub id: i64,
}

/// One process start of a holder: 128 random bits, new in a forked child.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub [u8; 16]);

/// The name of a holder, kept over restarts: its incarnations share one fair share.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(std::sync::Arc<str>);

/// Parts of all quotas of one dependency.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Admission rate in micro-tokens per second; 0 where admission is unlimited.
    pub rate: i64,
    /// Admission burst in micro-tokens; 0 where admission is unlimited.
    pub burst: i64,
    /// Retry burst in micro-tokens. The floor is never leased.
    pub retry_burst: i64,
    /// Permits, where the policy limits them; else 0.
    pub slots: i64,
    /// The cost units in the policy's order.
    pub units: Box<[UnitAmounts]>,
}

/// A part of one cost unit's quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitAmounts {
    /// Which unit.
    pub unit: UnitId,
    /// Micro-tokens per second.
    pub rate: i64,
    /// Micro-tokens.
    pub burst: i64,
}

/// Decreasing steps of one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve(pub std::sync::Arc<[CurveStep]>);

/// Which grant a holder lives by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseName {
    /// The ledger's epoch when it was granted.
    pub epoch: Epoch,
    /// Rises with every grant of an epoch.
    pub generation: i64,
}

/// The lease a holder lives by, as it presents it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presented {
    /// Which one.
    pub name: LeaseName,
    /// Its full value, before the curve.
    pub value: Amounts,
    /// Its curve.
    pub curve: Curve,
    /// How far along the curve the holder was when it sent this request.
    pub position_ms: i64,
}

/// Cumulative counters of one incarnation for one dependency. Late, lost and repeated reports are harmless.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Attempts asked for, admitted or not, but for retries that were refused for lack of retry tokens or by the policy: a
    /// larger share would not admit them.
    pub asked: i64,
    /// Originals admitted from the lease.
    pub originals_admitted: i64,
    /// Retries admitted from the lease.
    pub retries_admitted: i64,
    /// Originals refused locally.
    pub originals_denied: i64,
    /// Retries refused locally.
    pub retries_denied: i64,
    /// Handed back unsent.
    pub not_sent: i64,
    /// Originals admitted by the fallback.
    pub fallback_originals: i64,
    /// Retries admitted by the fallback.
    pub fallback_retries: i64,
    /// Retry tokens deposited by local traffic.
    pub deposited_micros: i64,
    /// Micro-tokens of each unit asked for by these.
    pub units_asked: Box<[(UnitId, i64)]>,
    /// Settlements beyond a unit's debt limit.
    pub overuse_micros: i64,
}

/// One dependency's part of a sync: what a holder tells and asks. A re-send is identical.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncAsk {
    /// The holder's name.
    pub holder: HolderId,
    /// Its life.
    pub incarnation: Incarnation,
    /// Rises by one with every new request of this incarnation for this dependency, from 1.
    pub sequence: i64,
    /// 52 random bits that tell a re-send from the request of a clone.
    pub nonce: i64,
    /// The highest epoch seen; `Epoch::default()` before the first.
    pub epoch: Epoch,
    /// The lease it lives by; absent before the first and after the end of one.
    pub lease: Option<Presented>,
    /// Its cumulative use.
    pub usage: Usage,
    /// What `usage` was in the last request that was answered: the base where the ledger remembers nothing.
    pub counted: Usage,
    /// Permits in flight now.
    pub in_flight: i64,
    /// Its weight among holders, 1 to 1,000.
    pub weight: i64,
    /// It stops: nothing of its lease will be spent any more.
    pub leave: bool,
}

/// A lease as granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Higher than that of any lease granted before.
    pub name: LeaseName,
    /// How far along its curve it was when the reply was made.
    pub position_ms: i64,
    /// Before the curve; all zero: use Reserve.
    pub value: Amounts,
    /// What comes with it out of the central levels, put into the grown caps: rates are 0, bursts are levels.
    pub moved: Amounts,
    /// Its curve.
    pub curve: Curve,
}

/// What a holder needs of a policy to decide by itself; told with every answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Of the policies these come from.
    pub version: PolicyVersion,
    /// Would-be refusals are admitted and counted.
    pub shadow: bool,
    /// The kill switch.
    pub retries_off: bool,
    /// Whether admission is limited; if not, the lease's rate and burst of admission say nothing.
    pub limited: bool,
    /// Whether permits are limited; if not, the lease's slots say nothing.
    pub slots_limited: bool,
    /// Deposit per original or success, micro-tokens.
    pub deposit_micros: i64,
    /// Deposit at success instead of admission.
    pub earn_on_success: bool,
    /// Micro-tokens by cause.
    pub retry_cost_micros: [i64; 5],
    /// Attempts of one operation.
    pub max_attempts: i64,
    /// Life of a permit.
    pub permit_ttl_ms: i64,
    /// Part of each bucket a class may drain, parts per million.
    pub priority_ppm: [i64; 3],
    /// The cost units of the policy: an ask that names another is a mistake.
    pub units: Box<[UnitId]>,
    /// Beyond the curve.
    pub fallback: FallbackRules,
}

/// What a holder may admit beyond its curve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallbackRules {
    /// Originals.
    pub originals: LocalOriginals,
    /// Retries earned by its own originals, at most one token held; otherwise none.
    pub retries_earned: bool,
    /// Each unit's rate in micro-tokens per second where `originals` is a rate; none for a unit means unlimited.
    pub units: Box<[(UnitId, i64)]>,
}

/// Originals beyond the curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalOriginals {
    /// None.
    Deny,
    /// All.
    Allow,
    /// So many micro-tokens per second, with one second's worth as burst, at least one token.
    Rate(i64),
}

/// The answer to one [`SyncAsk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncAnswer {
    /// A lease. Applied only if it answers the outstanding request and its name is higher than the current one.
    Granted(Grant),
    /// The current epoch, which the request did not quote: ask anew.
    Epoch(Epoch),
    /// State was lost a moment ago and another master may still lend: ask anew after this many milliseconds.
    Wait(i64),
    /// What the request was answered with has ended or was overtaken: ask anew under a new sequence.
    Dead,
    /// Another process lives under this incarnation: mint a new one and start without a lease.
    Fenced,
    /// Leases are not permitted, or there are too many holders: use Reserve, ask again later.
    NotLeased(NotLeased),
    /// The request contradicts what the ledger knows.
    Invalid(InvalidSync),
    /// The farewell of a holder was taken note of.
    Left,
}

/// Why there is no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NotLeased {
    /// The policy does not permit leases.
    NotPermitted = 1,
    /// [`HOLDERS_MAX`] or [`INCARNATIONS_MAX`] is reached.
    TooManyHolders = 2,
}

/// A forged or mistaken request: nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum InvalidSync {
    /// A counter is below what was reported before.
    #[error("usage: a cumulative counter must never go backwards")]
    UsageBackwards = 1,
    /// The lease names the current epoch but a generation that was never granted to this incarnation.
    #[error("lease.generation: was never granted to this incarnation")]
    UnknownGeneration = 2,
}

/// What every call on a ledger carries where leases are permitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ground {
    /// The store's identity, 52 bits of a hash of Redis's `run_id`; equal as long as state cannot have been lost.
    pub identity: i64,
    /// The highest epoch of this dependency that the calling replica remembers.
    pub remembered: Epoch,
    /// Random, for the id of an epoch that this call opens.
    pub fresh_id: i64,
    /// An operator's word that no lease is out: a ledger without state opens without quarantine.
    pub fresh_store: bool,
    /// Boot id (52 bits) and time since boot of the calling host, with a heartbeat.
    pub beat: Option<(i64, i64)>,
}

// === impl Epoch ===

impl Epoch {
    /// Whether somebody who knows `self` must not accept `known` any more: a higher number, or an equal one with another
    /// id.
    #[must_use]
    pub const fn supersedes(self, known: Self) -> bool {
        self.number > known.number || (self.number == known.number && self.id != known.id)
    }
}

// === impl Incarnation ===

impl std::fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

// === impl HolderId ===

impl HolderId {
    /// Judges a name.
    ///
    /// # Errors
    /// If it is empty, longer than [`HOLDER_ID_BYTES_MAX`] bytes or has a control character.
    pub fn new(name: &str) -> Result<Self, crate::ids::InvalidId> {
        crate::ids::judge_name(name, HOLDER_ID_BYTES_MAX)?;
        Ok(Self(name.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for HolderId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Usage ===

impl Usage {
    /// Whether any counter is below that of an earlier report.
    #[must_use]
    pub fn is_below(&self, earlier: &Self) -> bool {
        self.counters().iter().zip(earlier.counters()).any(|(now, then)| *now < then)
            || earlier.units_asked.iter().any(|(id, asked)| self.asked_of(*id) < *asked)
    }

    /// Micro-tokens asked for of one unit.
    #[must_use]
    pub fn asked_of(&self, unit: UnitId) -> i64 {
        self.units_asked.iter().find(|(id, _)| *id == unit).map_or(0, |(_, asked)| *asked)
    }

    /// Each counter joined by `f` with its peer in `other`. Units of `self` decide which there are.
    #[must_use]
    pub fn zip(&self, other: &Self, f: impl Fn(i64, i64) -> i64) -> Self {
        let units = self.units_asked.iter().map(|(unit, asked)| (*unit, f(*asked, other.asked_of(*unit))));
        Self {
            asked: f(self.asked, other.asked),
            originals_admitted: f(self.originals_admitted, other.originals_admitted),
            retries_admitted: f(self.retries_admitted, other.retries_admitted),
            originals_denied: f(self.originals_denied, other.originals_denied),
            retries_denied: f(self.retries_denied, other.retries_denied),
            not_sent: f(self.not_sent, other.not_sent),
            fallback_originals: f(self.fallback_originals, other.fallback_originals),
            fallback_retries: f(self.fallback_retries, other.fallback_retries),
            deposited_micros: f(self.deposited_micros, other.deposited_micros),
            units_asked: units.collect(),
            overuse_micros: f(self.overuse_micros, other.overuse_micros),
        }
    }

    /// All counters but those of units, in the order of the fields.
    #[must_use]
    pub const fn counters(&self) -> [i64; 10] {
        [
            self.asked,
            self.originals_admitted,
            self.retries_admitted,
            self.originals_denied,
            self.retries_denied,
            self.not_sent,
            self.fallback_originals,
            self.fallback_retries,
            self.deposited_micros,
            self.overuse_micros,
        ]
    }
}

// === impl Amounts ===

impl Amounts {
    /// Whether there is nothing.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.rate == 0
            && self.burst == 0
            && self.retry_burst == 0
            && self.slots == 0
            && self.units.iter().all(|unit| unit.rate == 0 && unit.burst == 0)
    }

    /// `⌊amount · numerator / denominator⌋` of each, exact for a numerator up to [`SHARE_ONE`].
    #[must_use]
    pub fn scaled(&self, numerator: i64, denominator: i64) -> Self {
        self.map(|amount| scale_down(amount, numerator, denominator))
    }

    /// The part that a step carries.
    #[must_use]
    pub fn step(&self, step: &CurveStep) -> Self {
        self.scaled(step.part_ppm, PPM)
    }

    /// Each amount changed by `f`.
    #[must_use]
    pub fn map(&self, f: impl Fn(i64) -> i64) -> Self {
        Self {
            rate: f(self.rate),
            burst: f(self.burst),
            retry_burst: f(self.retry_burst),
            slots: f(self.slots),
            units: (self.units.iter())
                .map(|unit| UnitAmounts { unit: unit.unit, rate: f(unit.rate), burst: f(unit.burst) })
                .collect(),
        }
    }

    /// Each amount joined by `f` with its peer in `other`. Units of `self` decide which there are; one that `other` lacks
    /// counts 0 there.
    #[must_use]
    pub fn zip(&self, other: &Self, f: impl Fn(i64, i64) -> i64) -> Self {
        Self {
            rate: f(self.rate, other.rate),
            burst: f(self.burst, other.burst),
            retry_burst: f(self.retry_burst, other.retry_burst),
            slots: f(self.slots, other.slots),
            units: (self.units.iter())
                .map(|unit| {
                    let (rate, burst) = other.unit(unit.unit).map_or((0, 0), |peer| (peer.rate, peer.burst));
                    UnitAmounts { unit: unit.unit, rate: f(unit.rate, rate), burst: f(unit.burst, burst) }
                })
                .collect(),
        }
    }

    /// As [`Self::zip`], over the units of both.
    #[must_use]
    pub fn join(&self, other: &Self, f: impl Fn(i64, i64) -> i64) -> Self {
        let mut both = self.zip(other, &f);
        let more = other.units.iter().filter(|unit| self.unit(unit.unit).is_none());
        let more = more.map(|unit| UnitAmounts { unit: unit.unit, rate: f(0, unit.rate), burst: f(0, unit.burst) });
        both.units = both.units.iter().copied().chain(more).collect();
        both
    }

    /// The part of one unit.
    #[must_use]
    pub fn unit(&self, unit: UnitId) -> Option<&UnitAmounts> {
        self.units.iter().find(|part| part.unit == unit)
    }
}

// === impl Curve ===

impl Curve {
    /// How long it lasts.
    #[must_use]
    pub fn total_ms(&self) -> i64 {
        self.0.iter().fold(0_i64, |sum, step| sum.saturating_add(step.duration_ms))
    }

    /// The step at a position, and the position of its end; none beyond the curve. A negative position is the start.
    #[must_use]
    pub fn at(&self, position_ms: i64) -> Option<(&CurveStep, i64)> {
        let mut end_ms = 0_i64;
        for step in self.0.iter() {
            end_ms = end_ms.saturating_add(step.duration_ms);
            if position_ms < end_ms {
                return Some((step, end_ms));
            }
        }
        None
    }
}

/// A sync as the ledger decided it, and the version it decided with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    /// The answer.
    pub answer: SyncAnswer,
    /// Version of the policies in force.
    pub version: PolicyVersion,
    /// The ledger's epoch, to be remembered by the replica.
    pub epoch: Epoch,
    /// Holders of this dependency: known to the ledger now, or to the replica within about one curve.
    pub holders: i64,
}
