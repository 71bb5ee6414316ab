//! X*: the largest value of each number in force now and for a time before, as the bound counts it.

use super::{DEN_MULTIPLE, Law, PER_MICRO, Slope};
use crate::units::checked_div;

const NS_PER_MS: i64 = 1_000_000;

/// Policies and epochs so far.
#[derive(Clone, Debug)]
pub(super) struct History {
    horizon_ns: i64,
    /// In the order of time, with the time at which the next one replaced it.
    past: Vec<(Law, i64)>,
    now: Law,
    /// In the order of time.
    epochs_ns: Vec<i64>,
}

/// The largest numbers that count now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Star {
    /// None: unlimited.
    pub(super) admission: Option<Line>,
    pub(super) retry: Line,
    /// By one original.
    pub(super) earned: i128,
    /// When it is to be computed again.
    pub(super) until_ns: Option<i64>,
}

/// A bucket's burst and rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    burst: i128,
    /// What a nanosecond brings.
    rate: i128,
}

// === impl History ===

impl History {
    pub(super) fn new(horizon_ms: i64, law: Law) -> Self {
        Self { horizon_ns: horizon_ms.saturating_mul(NS_PER_MS), past: Vec::new(), now: law, epochs_ns: Vec::new() }
    }

    pub(super) fn change(&mut self, law: Law, at_ns: i64) {
        let before = std::mem::replace(&mut self.now, law);
        if before != law {
            self.past.push((before, at_ns));
        }
    }

    pub(super) fn open_epoch(&mut self, at_ns: i64) {
        self.epochs_ns.push(at_ns);
    }

    /// The time before now that counts is one horizon, and one more for each epoch opened in that time: with the k-th
    /// latest epoch, k + 1 horizons, if they reach back to it.
    pub(super) fn star(&self, at_ns: i64) -> Star {
        let mut counted_ns = self.horizon_ns;
        let mut until_ns: Option<i64> = None;
        let mut sooner = |candidate_ns: i64| until_ns = Some(until_ns.map_or(candidate_ns, |ns| ns.min(candidate_ns)));
        let mut reach_ns = self.horizon_ns;
        for epoch_ns in self.epochs_ns.iter().rev() {
            reach_ns = reach_ns.saturating_add(self.horizon_ns);
            if at_ns.saturating_sub(*epoch_ns) < reach_ns {
                counted_ns = reach_ns;
                sooner(epoch_ns.saturating_add(reach_ns));
            }
        }
        let mut star = Star::of(&self.now);
        for (law, end_ns) in &self.past {
            let counts_until_ns = end_ns.saturating_add(counted_ns);
            if counts_until_ns > at_ns {
                sooner(counts_until_ns);
                star = star.or(&Star::of(law));
            }
        }
        Star { until_ns, ..star }
    }
}

// === impl Star ===

impl Star {
    fn of(law: &Law) -> Self {
        Self {
            admission: law.admission.as_ref().map(Line::of),
            retry: Line::of(&law.retry),
            earned: i128::from(law.ratio_ppm).saturating_mul(PER_MICRO),
            until_ns: None,
        }
    }

    fn or(self, other: &Self) -> Self {
        Self {
            admission: self.admission.zip(other.admission).map(|(one, other)| one.or(other)),
            retry: self.retry.or(other.retry),
            earned: self.earned.max(other.earned),
            until_ns: None,
        }
    }
}

// === impl Line ===

impl Line {
    fn of(slope: &Slope) -> Self {
        let multiple = checked_div(DEN_MULTIPLE, slope.den);
        Self {
            burst: i128::from(slope.burst_micros).saturating_mul(PER_MICRO),
            rate: i128::from(slope.num).saturating_mul(multiple.into()).saturating_mul(1_000),
        }
    }

    fn or(self, other: Self) -> Self {
        Self { burst: self.burst.max(other.burst), rate: self.rate.max(other.rate) }
    }

    /// The burst, and a millisecond of the rate: ledgers count in whole ones.
    pub(super) const fn level(&self) -> i128 {
        self.burst.saturating_add(self.rate.saturating_mul(1_000_000))
    }

    /// What a nanosecond brings where clocks drift by a thousandth.
    pub(super) fn drain(&self) -> i128 {
        self.rate.saturating_add(self.rate.div_euclid(1_000))
    }
}
