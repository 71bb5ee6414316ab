//! What leases may do to a fleet, rule by rule: the bound, an outage, and what is likely to surprise. Computed here, shown
//! by [`text`](LeaseReport::text) and [`json`](LeaseReport::json).

mod json;
mod text;

use budget::{
    bound::{Bound, Causes, Fleet, Outage, Sharing, Warning},
    lease::Timing,
    policy::Policy,
};

use super::{set::DEFAULTS, snapshot::Snapshot};

/// Who shares a policy, and for what windows its bound is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Holders and replicas.
    pub fleet: Fleet,
    /// How many of them live beyond their curve at once.
    pub beyond: i64,
    /// Length of the window.
    pub window_ms: i64,
}

/// What leases of one rule may do.
#[derive(Clone, Debug)]
pub struct LeaseReport {
    /// `defaults`, a dependency, or a family ending in `*`, of which each member has a bound of its own.
    pub rule: String,
    /// What was asked.
    pub question: Question,
    /// The bound, with one of each cause.
    pub bound: Bound,
    /// With everything down, and afterwards.
    pub outage: Outage,
    /// Among how many holders each quota can be shared.
    pub sharing: Vec<Sharing>,
    /// What to look at.
    pub warnings: Vec<Warning>,
    /// Parts of the curve's steps, parts per million.
    curve_ppm: Vec<i64>,
}

// === impl LeaseReport ===

impl LeaseReport {
    /// Of each rule that permits leases, the defaults first.
    #[must_use]
    pub fn all(snapshot: &Snapshot, question: Question) -> Vec<Self> {
        let set = snapshot.set();
        let timing = &set.timing().limits;
        let rules = set.rules().filter(|(name, _)| ***name != *DEFAULTS);
        let rules = rules.map(|(name, rule)| (&**name, &*rule.policy));
        std::iter::once((DEFAULTS, &**set.defaults()))
            .chain(rules)
            .filter(|(_, policy)| policy.spec().lease.enabled)
            .map(|(rule, policy)| Self::new(rule, policy, timing, question))
            .collect()
    }

    /// Of one policy that permits leases.
    #[must_use]
    pub fn new(rule: &str, policy: &Policy, timing: &Timing, question: Question) -> Self {
        let Question { fleet, beyond, window_ms } = question;
        let causes = Causes::one_of_each(policy, timing, fleet, beyond);
        Self {
            rule: rule.to_owned(),
            question,
            bound: Bound::new(policy, timing, fleet, window_ms, &causes),
            outage: Outage::new(policy, timing, fleet),
            sharing: Sharing::all(policy),
            warnings: Warning::all(policy, timing, fleet),
            curve_ppm: policy.spec().lease.curve.iter().map(|step| step.part_ppm).collect(),
        }
    }
}
