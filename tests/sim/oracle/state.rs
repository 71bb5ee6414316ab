//! T3, at every event: what is held, what direct callers share and what is unknown fit into the policy together, and no
//! level is above its cap.

use budget::lease::{Amounts, SyncAnswer};

use crate::{history::Quota, world::World};

/// The parts that are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub rate: i64,
    pub burst: i64,
    pub retry_burst: i64,
    pub slots: i64,
    pub unit_rate: i64,
    pub unit_burst: i64,
}

/// A lease as its holder uses it: until when by its clock, and what.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub steps: Vec<(i64, Part)>,
}

/// Two processes that live under one incarnation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Twins {
    pub since: i64,
    /// One was fenced, or what they had at first is over.
    pub until: i64,
    pub lease: Part,
    /// The last request made before there were two: both send it again, and both live by what it brings.
    pub sequence: i64,
    /// Which widening of the bound.
    pub widening: usize,
    /// How long after one is fenced those live by it that it lent to.
    pub heard_ms: i64,
}

// === impl Part ===

impl Part {
    pub(crate) fn of(amounts: &Amounts) -> Self {
        let unit = amounts.units.first();
        Self {
            rate: amounts.rate,
            burst: amounts.burst,
            retry_burst: amounts.retry_burst,
            slots: amounts.slots,
            unit_rate: unit.map_or(0, |unit| unit.rate),
            unit_burst: unit.map_or(0, |unit| unit.burst),
        }
    }

    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            rate: self.rate + other.rate,
            burst: self.burst + other.burst,
            retry_burst: self.retry_burst + other.retry_burst,
            slots: self.slots + other.slots,
            unit_rate: self.unit_rate + other.unit_rate,
            unit_burst: self.unit_burst + other.unit_burst,
        }
    }

    pub(crate) fn most(self, other: Self) -> Self {
        Self {
            rate: self.rate.max(other.rate),
            burst: self.burst.max(other.burst),
            retry_burst: self.retry_burst.max(other.retry_burst),
            slots: self.slots.max(other.slots),
            unit_rate: self.unit_rate.max(other.unit_rate),
            unit_burst: self.unit_burst.max(other.unit_burst),
        }
    }

    const fn within(self, quota: Quota) -> bool {
        self.rate <= quota.rate
            && self.burst <= quota.burst
            && self.retry_burst <= quota.retry_burst
            && self.slots <= quota.slots
            && self.unit_rate <= quota.unit_rate
            && self.unit_burst <= quota.unit_burst
    }
}

// === impl Held ===

impl Held {
    /// A lease as its holder computes it.
    pub(crate) fn new(steps: &[(i64, Amounts)]) -> Self {
        Self { steps: steps.iter().map(|(end, amounts)| (*end, Part::of(amounts))).collect() }
    }

    /// What it carries at a reading of the holder's clock, and until when.
    pub(crate) fn at(&self, tau: i64) -> Option<(i64, Part)> {
        self.steps.iter().find(|(end, _)| tau < *end).copied()
    }
}

// === impl World ===

impl World {
    /// What a process may use now.
    pub(crate) fn held_now(&self, index: usize) -> Part {
        let process = &self.processes[index];
        let tau = process.clock.read(self.now);
        process.held.as_ref().and_then(|held| held.at(tau)).map_or_else(Part::default, |(_, part)| part)
    }

    /// What all processes may use now.
    pub(crate) fn all_held(&self) -> Part {
        (0..self.processes.len()).fold(Part::default(), |sum, index| sum.plus(self.held_now(index)))
    }

    fn twins_allowed(&self) -> Part {
        let now = self.now;
        self.twins.iter().filter(|case| case.until >= now).fold(Part::default(), |sum, case| sum.plus(case.lease))
    }

    /// Judges the levels of the ledgers against their caps.
    pub(crate) fn check_levels(&mut self) {
        for master in self.coordinators.deciding() {
            let Some(probe) = master.ledger.as_ref().and_then(|ledger| ledger.probe()) else { continue };
            let (admission, retry) = probe.levels;
            if admission > probe.direct.burst || retry > probe.direct.retry_burst {
                self.history.violated(self.now, "T3", || {
                    format!("central levels {:?} exceed {:?}", probe.levels, probe.direct)
                });
                return;
            }
        }
    }

    /// Nothing is granted that the policy of the moment does not have: it was lowered for all requests after that.
    pub(crate) fn check_grant(&mut self, replica: usize, answer: &SyncAnswer) {
        let SyncAnswer::Granted(grant) = answer else { return };
        let Some(quota) = self.coordinators.decides_by(replica) else { return };
        let value = Part::of(&grant.value);
        if !value.within(quota) {
            self.history.violated(self.now, "T3", || format!("granted {value:?} of {quota:?}"));
        }
    }

    /// Judges the sums. Cheap: it runs after every event that could change one.
    pub(crate) fn check_state(&mut self) {
        if self.now <= self.two_until {
            return;
        }
        let held = self.all_held();
        let bound = self.history.bound();
        let copies = self.twins_allowed();
        let mut direct = Part::default();
        for master in self.coordinators.deciding() {
            let Some(probe) = master.ledger.as_ref().and_then(|ledger| ledger.probe()) else { continue };
            let part = Part::of(&probe.direct);
            direct = direct.plus(part);
        }
        let sum = held.plus(direct);
        let allowed = Quota {
            rate: bound.rate + copies.rate,
            burst: bound.burst + copies.burst,
            retry_burst: bound.retry_burst + copies.retry_burst,
            slots: bound.slots + copies.slots,
            unit_rate: bound.unit_rate + copies.unit_rate,
            unit_burst: bound.unit_burst + copies.unit_burst,
            ..bound
        };
        if !sum.within(allowed) {
            self.history.violated(self.now, "T3", || format!("held {held:?} + direct {direct:?} exceed {allowed:?}"));
        }
    }
}
