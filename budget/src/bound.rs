//! The documented bound: how much a window of any length may hold under a policy, and what each fault may add.
//!
//! Without faults, any window of length `W` holds at most `A + R·W` admissions and `B + ratio·originals + floor·W`
//! retries, a thousandth of the rate for clocks that drift and a millisecond for counting in whole ones added. Each fault
//! that may break this has a term of its own, zero unless its cause happens: the [`Causes`] that the caller names. Their
//! sum is the documented maximum overshoot. Everything is rounded up.

pub mod checker;
pub mod formula;
mod outage;
mod terms;
#[cfg(test)]
mod tests;
mod warnings;

pub use outage::{Flow, Outage, OutageStep, Sharing};
pub use warnings::Warning;

use crate::{
    lease::{Amounts, Timing},
    policy::{Limit, Policy},
    units::{Decimal, MICROS_PER_TOKEN, PPM, Period, Rate},
};
use formula::{duration, rate};

/// Originals per second that a process admits which nobody ever told the policy, unless it is set otherwise.
pub const UNTOLD_TOKENS_PER_SECOND: u32 = 5;

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// All attempts.
    Admissions,
    /// Attempts after the first.
    Retries,
    /// A cost unit.
    Unit(String),
    /// Permits at one moment.
    InFlight,
}

/// An upper limit in whole attempts, tokens of a unit or permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Most {
    /// At most so many.
    Count(i64),
    /// No limit.
    Unbounded,
}

/// One summand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Of what.
    pub quantity: Quantity,
    /// The field of the policy it comes from, such as `burst`; empty in a term.
    pub name: &'static str,
    /// How it comes about, with its numbers.
    pub formula: String,
    /// At most.
    pub most: Most,
}

/// What holds without faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// Of what.
    pub quantity: Quantity,
    /// Its summands.
    pub parts: Vec<Part>,
    /// Retries only: so many more for each original, parts per million, where originals are not limited and have no part.
    pub per_original_ppm: i64,
}

/// Why there may be more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Holders are beyond their curve, or were never leased, while nobody answers.
    Beyond,
    /// Processes that were never told the policy run under their own settings.
    Untold,
    /// The store's clock jumps forward.
    ClockJump,
    /// A running holder is cloned, by a snapshot of its machine or an undetected fork.
    Clone,
    /// Two masters of the store live side by side for longer than is allowed for.
    TwoMasters,
    /// Attempts are counted where they arrive instead of where they are admitted.
    Arrival,
    /// The store loses its state.
    StateLost,
    /// Attempts cost more than was estimated, up to the limit of a unit's debt.
    Underestimated,
    /// And beyond that limit.
    Overuse,
}

/// What one cause may add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Why.
    pub cause: Cause,
    /// The cause with its numbers, one sentence without a full stop.
    pub text: String,
    /// How much of what; quantities that cannot grow are left out.
    pub parts: Vec<Part>,
}

/// Who shares the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// Processes that hold leases, at equal demand.
    pub holders: i64,
    /// Replicas of budgetd that answer Reserve by the fallback while the store is away.
    pub replicas: i64,
}

/// What goes wrong. By default nothing does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Causes {
    /// Most incarnations at once that are beyond their curve, or never had a lease, while nobody answers.
    pub beyond: i64,
    /// As above, but never told the policy: with their own rate of originals, and no retries.
    pub untold: Option<(i64, Rate)>,
    /// Lives of the store's state in which its clock jumped forward, however often: one, and one more for each loss.
    pub clock_jumps: i64,
    /// Clones of running holders, each with the share it has and how long it lives before it is fenced.
    pub clones: Vec<(Amounts, i64)>,
    /// How long two masters live side by side.
    pub overlap_ms: i64,
    /// Longest delay from the admission to the arrival, where arrivals are counted.
    pub arrival_delay_ms: i64,
    /// Attempts admitted and not yet sent by holders that are paused: originals, retries.
    pub unsent: (i64, i64),
    /// Losses of state: in the window where leases are not permitted; and within one permit's life.
    pub losses: i64,
    /// Estimates may be too low.
    pub underestimated: bool,
    /// Settlements beyond a unit's debt limit: unit, micro-tokens.
    pub overuse: Vec<(String, i64)>,
}

/// The bound of one policy for windows of one length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Length of the window.
    pub window_ms: i64,
    /// What holds without faults: admissions if limited, retries, units, permits if limited.
    pub bases: Vec<Base>,
    /// What each cause may add.
    pub terms: Vec<Term>,
}

/// How long a policy may go on to count after another has replaced it, where no epoch is opened meanwhile: a lease
/// granted at its last moment, the margin, and an overlap of masters. As long lasts the quarantine of a lost state.
#[must_use]
pub fn horizon_ms(policy: &Policy, timing: &Timing) -> i64 {
    let curve = policy.spec().lease.curve.iter();
    let curve_ms = curve.fold(0_i64, |sum, step| sum.saturating_add(step.duration_ms));
    curve_ms.saturating_add(timing.margin_ms).saturating_add(timing.overlap_ms)
}

/// All limits with a rate and a burst: admissions if limited, retries by their floor, units.
fn limits(policy: &Policy) -> Vec<(Quantity, Limit)> {
    let spec = policy.spec();
    let admission = spec.admission.map(|limit| (Quantity::Admissions, limit));
    let retry = (Quantity::Retries, Limit { rate: spec.floor, burst_tokens: spec.retry_burst_tokens });
    let units = spec.units.iter().map(|unit| (Quantity::Unit(unit.name.clone()), unit.limit));
    admission.into_iter().chain([retry]).chain(units).collect()
}

/// Micro-tokens that a rate brings in a time, rounded up.
fn brings(rate: Rate, ms: i64) -> i128 {
    brings_ppm(rate, ms, PPM)
}

/// As [`brings`], by a clock that drifts a thousandth.
fn brings_drifting(rate: Rate, ms: i64) -> i128 {
    brings_ppm(rate, ms, PPM.saturating_add(PPM.div_euclid(1_000)))
}

fn brings_ppm(rate: Rate, ms: i64, ppm: i64) -> i128 {
    let (num, den) = rate.fraction();
    let product = i128::from(num).saturating_mul(ms.max(0).into()).saturating_mul(ppm.into());
    ceil_div(product, i128::from(den).saturating_mul(PPM.into()))
}

/// Division rounded up, of a dividend that is not negative by a positive divisor.
fn ceil_div(dividend: i128, divisor: i128) -> i128 {
    dividend.saturating_add(divisor).saturating_sub(1).checked_div(divisor).unwrap_or(0)
}

// === impl Quantity ===

impl Quantity {
    /// `admissions`, `retries`, `in flight`, or the unit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Admissions => "admissions",
            Self::Retries => "retries",
            Self::Unit(name) => name,
            Self::InFlight => "in flight",
        }
    }
}

// === impl Cause ===

impl Cause {
    /// A short name, for documents and labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Beyond => "beyond_curve",
            Self::Untold => "never_told",
            Self::ClockJump => "clock_jump",
            Self::Clone => "clone",
            Self::TwoMasters => "two_masters",
            Self::Arrival => "arrival",
            Self::StateLost => "state_lost",
            Self::Underestimated => "underestimated",
            Self::Overuse => "overuse",
        }
    }
}

// === impl Causes ===

impl Causes {
    /// One of each, to show what each would add: all processes but `beyond` of them keep their leases; one process that
    /// never learnt the policy; a clone that lives until its next renewal; masters that overlap for a second more than is
    /// allowed for; arrivals a tenth of a second late; one loss of state; estimates that are too low.
    #[must_use]
    pub fn one_of_each(policy: &Policy, timing: &Timing, fleet: Fleet, beyond: i64) -> Self {
        let share = outage::equal_share(policy, fleet.holders);
        Self {
            beyond,
            untold: Rate::new(UNTOLD_TOKENS_PER_SECOND, Period::Second).ok().map(|rate| (1, rate)),
            clock_jumps: 1,
            clones: if share.is_zero() { Vec::new() } else { vec![(share, timing.renew_max_ms)] },
            overlap_ms: timing.overlap_ms.saturating_sub(2_000).max(0).saturating_add(1_000),
            arrival_delay_ms: 100,
            unsent: (0, 0),
            losses: 1,
            underestimated: true,
            overuse: Vec::new(),
        }
    }
}

// === impl Most ===

impl Most {
    /// Nothing.
    pub const ZERO: Self = Self::Count(0);

    fn of_micros(micros: i128) -> Self {
        Self::of(ceil_div(micros.max(0), MICROS_PER_TOKEN.into()))
    }

    /// What is beyond all counting is unbounded.
    fn of(count: i128) -> Self {
        i64::try_from(count).map_or(Self::Unbounded, Self::Count)
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Count(one), Self::Count(other)) => one.checked_add(other).map_or(Self::Unbounded, Self::Count),
            (Self::Unbounded, _) | (_, Self::Unbounded) => Self::Unbounded,
        }
    }

    /// Whether it allows so many.
    #[must_use]
    pub fn allows(self, count: i64) -> bool {
        match self {
            Self::Count(most) => count <= most,
            Self::Unbounded => true,
        }
    }

    /// So much of it, rounded up.
    fn part(self, ppm: i64) -> Self {
        match self {
            Self::Count(count) => Self::of(ceil_div(i128::from(count).saturating_mul(ppm.into()), PPM.into())),
            Self::Unbounded if ppm == 0 => Self::ZERO,
            Self::Unbounded => Self::Unbounded,
        }
    }
}

impl std::iter::Sum for Most {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::ZERO, Self::plus)
    }
}

// === impl Base ===

impl Base {
    /// The sum of its parts; for each original, [`Self::per_original_ppm`] beside it.
    #[must_use]
    pub fn most(&self) -> Most {
        self.parts.iter().map(|part| part.most).sum()
    }

    fn limit(quantity: &Quantity, limit: Limit, window_ms: i64) -> Self {
        let part = |name, formula, most| Part { quantity: quantity.clone(), name, formula, most };
        let (shown, window) = (rate(limit.rate), duration(window_ms));
        let parts = vec![
            part("burst", String::new(), Most::Count(limit.burst_tokens)),
            part(
                "rate",
                format!("{shown} x {window} x 1.001"),
                Most::of_micros(brings_drifting(limit.rate, window_ms)),
            ),
            part("rounding", format!("{shown} x 1ms"), Most::of_micros(brings(limit.rate, 1))),
        ];
        Self { quantity: quantity.clone(), parts, per_original_ppm: 0 }
    }

    /// `originals`: the most there can be, if they are limited.
    fn retries(policy: &Policy, window_ms: i64, originals: Option<Most>) -> Self {
        let spec = policy.spec();
        let part = |name, formula, most| Part { quantity: Quantity::Retries, name, formula, most };
        let mut parts = vec![part("burst", String::new(), Most::Count(spec.retry_burst_tokens))];
        if let Some(originals) = originals {
            let formula = format!("{} x {} originals", Decimal(spec.ratio_ppm), formula::most(originals));
            parts.push(part("ratio", formula, originals.part(spec.ratio_ppm)));
        }
        let floor = brings_drifting(spec.floor, window_ms).saturating_add(brings(spec.floor, 1));
        let formula = format!("{} x ({} x 1.001 + 1ms)", rate(spec.floor), duration(window_ms));
        parts.push(part("floor", formula, Most::of_micros(floor)));
        let per_original_ppm = if originals.is_none() { spec.ratio_ppm } else { 0 };
        Self { quantity: Quantity::Retries, parts, per_original_ppm }
    }

    fn in_flight(most: u32) -> Self {
        let most = Most::Count(most.into());
        let part = Part { quantity: Quantity::InFlight, name: "max_in_flight", formula: String::new(), most };
        Self { quantity: Quantity::InFlight, parts: vec![part], per_original_ppm: 0 }
    }
}

// === impl Bound ===

impl Bound {
    /// What windows of `window_ms` may hold, and what `causes` may add.
    #[must_use]
    pub fn new(policy: &Policy, timing: &Timing, fleet: Fleet, window_ms: i64, causes: &Causes) -> Self {
        let mut bases: Vec<Base> = Vec::new();
        for (quantity, limit) in limits(policy) {
            let base = match quantity {
                Quantity::Retries => Base::retries(policy, window_ms, bases.first().map(Base::most)),
                Quantity::Admissions | Quantity::Unit(_) | Quantity::InFlight => {
                    Base::limit(&quantity, limit, window_ms)
                }
            };
            bases.push(base);
        }
        bases.extend(policy.spec().max_in_flight.map(Base::in_flight));
        Self { window_ms, bases, terms: terms::terms(policy, timing, fleet, window_ms, causes) }
    }

    /// What holds without faults.
    #[must_use]
    pub fn base(&self, quantity: &Quantity) -> Option<&Base> {
        self.bases.iter().find(|base| base.quantity == *quantity)
    }

    /// E: all that the causes may add, the documented maximum overshoot.
    #[must_use]
    pub fn excess(&self, quantity: &Quantity) -> Most {
        let parts = self.terms.iter().flat_map(|term| &term.parts);
        parts.filter(|part| part.quantity == *quantity).map(|part| part.most).sum()
    }

    /// The whole bound: T1 for admissions, likewise for units and permits.
    #[must_use]
    pub fn most(&self, quantity: &Quantity) -> Most {
        self.base(quantity).map_or(Most::Unbounded, Base::most).plus(self.excess(quantity))
    }

    /// The whole bound for retries, given the originals of the window: T2.
    #[must_use]
    pub fn retries(&self, policy: &Policy, originals: i64) -> Most {
        let base = Base::retries(policy, self.window_ms, Some(Most::Count(originals)));
        base.most().plus(self.excess(&Quantity::Retries))
    }
}
