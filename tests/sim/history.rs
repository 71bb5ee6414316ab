//! What really happened in a run, for the oracles: decisions, policies in force, epochs, and what widens the bound.

use budget::policy::Numbers;

use crate::time::{MS, S};

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Lease,
    Direct,
    /// Beyond the curve.
    Fallback,
}

/// One decision that admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    pub at: i64,
    /// Retry tokens it cost, in millionths; 0: an original.
    pub retry_micros: i64,
    pub source: Source,
    /// Which incarnation.
    pub stream: u32,
    /// It was handed back.
    pub unsent: bool,
    /// Micro-tokens of the cost unit.
    pub cost: i64,
}

/// Quotas and what else bounds a dependency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quota {
    /// Micro-tokens per second.
    pub rate: i64,
    pub burst: i64,
    pub retry_burst: i64,
    /// Micro-tokens per original.
    pub ratio: i64,
    /// Micro-tokens per second.
    pub floor: i64,
    pub slots: i64,
    /// The cost unit, where the policy has one.
    pub unit_rate: i64,
    pub unit_burst: i64,
    pub curve_ms: i64,
}

/// A cause that widens the bound, and by how much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Widening {
    pub at: i64,
    pub admissions: i64,
    pub retries: i64,
}

/// Everything the oracles need.
pub(crate) struct History {
    pub admissions: Vec<Admission>,
    /// Policies and when a living store decided by them.
    in_force: Vec<(usize, i64, i64)>,
    quotas: Vec<Quota>,
    /// When epochs opened, but for the first.
    epochs: Vec<i64>,
    /// What bounds from a time on: X* of every X.
    pub bounds: Vec<(i64, Quota)>,
    pub widenings: Vec<Widening>,
    /// Forward jumps of a store's clock, with how many epochs had opened before. All those of one epoch together are one cause.
    pub jumps: Vec<(usize, Widening)>,
    /// Margin and overlap.
    late_ms: i64,
    /// Permits: from, to.
    pub permits: Vec<(i64, i64)>,
    pub permit_ttl_ms: i64,
    /// Micro-tokens per second that leases carried, from time to time.
    pub held: Vec<(i64, i64)>,
    /// The first thing that went wrong.
    pub violation: Option<String>,
}

// === impl Quota ===

impl Quota {
    pub(crate) fn of(numbers: &Numbers) -> Self {
        let quota = numbers.quota();
        Self {
            rate: quota.rate,
            burst: quota.burst,
            retry_burst: quota.retry_burst,
            ratio: numbers.deposit_micros,
            floor: numbers.retry.num * 1_000 / numbers.retry.den,
            slots: quota.slots,
            unit_rate: quota.units.first().map_or(0, |unit| unit.rate),
            unit_burst: quota.units.first().map_or(0, |unit| unit.burst),
            curve_ms: numbers.lease.as_ref().map_or(0, |lease| lease.curve.total_ms()),
        }
    }

    fn most(self, other: Self) -> Self {
        Self {
            rate: self.rate.max(other.rate),
            burst: self.burst.max(other.burst),
            retry_burst: self.retry_burst.max(other.retry_burst),
            ratio: self.ratio.max(other.ratio),
            floor: self.floor.max(other.floor),
            slots: self.slots.max(other.slots),
            unit_rate: self.unit_rate.max(other.unit_rate),
            unit_burst: self.unit_burst.max(other.unit_burst),
            curve_ms: self.curve_ms.max(other.curve_ms),
        }
    }
}

// === impl History ===

impl History {
    pub(crate) const fn new(quotas: Vec<Quota>, late_ms: i64) -> Self {
        Self {
            admissions: Vec::new(),
            in_force: Vec::new(),
            quotas,
            epochs: Vec::new(),
            bounds: Vec::new(),
            widenings: Vec::new(),
            jumps: Vec::new(),
            late_ms,
            permits: Vec::new(),
            permit_ttl_ms: 0,
            held: Vec::new(),
            violation: None,
        }
    }

    /// A store decides by this policy from now on; returns the index to say so again.
    pub(crate) fn adopts(&mut self, policy: usize, now: i64) -> usize {
        self.in_force.push((policy, now, now));
        self.note_bound(now);
        self.in_force.len() - 1
    }

    /// It still does.
    pub(crate) fn keeps(&mut self, interval: usize, now: i64) {
        self.in_force[interval].2 = now;
    }

    pub(crate) fn opens(&mut self, now: i64) {
        self.epochs.push(now);
        self.note_bound(now);
    }

    /// A store's clock goes forward.
    pub(crate) fn jumps(&mut self, now: i64, step_max_ms: i64) {
        let bound = self.bound();
        let most = |rate: i64, burst: i64| (rate / 1_000 * step_max_ms).min(burst);
        let widening = Widening {
            at: now,
            admissions: most(bound.rate, bound.burst),
            retries: most(bound.floor, bound.retry_burst),
        };
        self.jumps.push((self.epochs.len(), widening));
    }

    /// What all causes in a stretch of time widen the bound by.
    pub(crate) fn widened(&self, from: i64, to: i64) -> (i64, i64) {
        let within = |cause: &Widening| (from..=to).contains(&cause.at);
        let (mut admissions, mut retries) = (0, 0);
        for cause in self.widenings.iter().filter(|cause| within(cause)) {
            admissions += cause.admissions;
            retries += cause.retries;
        }
        let mut counted = None;
        for (epoch, cause) in self.jumps.iter().filter(|(_, cause)| within(cause)) {
            if counted != Some(*epoch) {
                counted = Some(*epoch);
                admissions += cause.admissions;
                retries += cause.retries;
            }
        }
        (admissions, retries)
    }

    pub(crate) fn epochs_between(&self, from: i64, to: i64) -> i64 {
        let count = self.epochs.iter().filter(|at| (from..=to).contains(*at)).count();
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    /// How long before `now` a policy still matters: (curve + m + σ)·(1 + epochs opened in that time).
    fn horizon(&self, now: i64) -> i64 {
        let curve_ms = self.in_force.iter().map(|(policy, ..)| self.quotas[*policy].curve_ms).max().unwrap_or(0);
        let one = (curve_ms + self.late_ms) * MS;
        let mut horizon = one;
        loop {
            let wider = one * (1 + self.epochs_between(now - horizon, now));
            if wider <= horizon {
                return horizon;
            }
            horizon = wider;
        }
    }

    /// What bounds now.
    pub(crate) fn note_bound(&mut self, now: i64) {
        let from = now - self.horizon(now);
        let recent = self.in_force.iter().filter(|(_, _, to)| *to >= from);
        let bound = recent.fold(Quota::default(), |most, (policy, ..)| most.most(self.quotas[*policy]));
        if self.bounds.last().is_none_or(|(_, last)| *last != bound) {
            self.bounds.push((now, bound));
        }
    }

    /// The bound as last noted.
    pub(crate) fn bound(&self) -> Quota {
        self.bounds.last().map_or_else(Quota::default, |(_, bound)| *bound)
    }

    /// Tokens that leases carried in a stretch of time.
    pub(crate) fn held_between(&self, from: i64, to: i64) -> i64 {
        let steps = self.held.iter().zip(self.held.iter().skip(1));
        let within = steps.filter(|((at, _), (next, _))| *at >= from && *next <= to);
        within.map(|((at, rate), (next, _))| rate / 1_000 * ((next - at) / MS) / 1_000_000).sum()
    }

    pub(crate) fn violated(&mut self, now: i64, oracle: &str, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(format!("{oracle} at {}.{:03} s: {}", now / S, now % S / MS, what()));
        }
    }
}
