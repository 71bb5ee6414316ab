//! What leases given under earlier policies may still be out.
//!
//! A ledger whose state is lost does not know what it lent: it charges what may be out by the policy of the moment. Where
//! that policy has just shortened the curve, lowered the part, or forbidden leases, this tells it what held before, for as
//! long as such a lease can last. Each replica remembers for itself.

use std::{collections::HashMap, sync::Arc};

use budget::{
    lease::Timing,
    policy::{Numbers, Policy},
};

use super::set::{DEFAULTS, PolicySet};

/// Of leases that ended being given at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    curve_ms: i64,
    part_ppm: i64,
    /// None is out any more by then.
    until_ms: i64,
}

/// By rule of the present set. Only rules that have more to fear than what they permit themselves are here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Former(HashMap<Arc<str>, Terms>);

// === impl Terms ===

impl Terms {
    /// Of leases that a policy permits until now.
    fn of(policy: &Policy, timing: &Timing, now_ms: i64) -> Option<Self> {
        let lease = &policy.spec().lease;
        lease.enabled.then(|| {
            let curve_ms = lease.curve.iter().map(|step| step.duration_ms).sum::<i64>();
            let until_ms = now_ms + curve_ms + timing.margin_ms + timing.overlap_ms;
            Self { curve_ms, part_ppm: lease.part_ppm, until_ms }
        })
    }

    fn or(self, other: Self) -> Self {
        Self {
            curve_ms: self.curve_ms.max(other.curve_ms),
            part_ppm: self.part_ppm.max(other.part_ppm),
            until_ms: self.until_ms.max(other.until_ms),
        }
    }
}

fn join(a: Option<Terms>, b: Option<Terms>) -> Option<Terms> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.or(b)),
        (a, b) => a.or(b),
    }
}

// === impl Former ===

impl Former {
    /// What is remembered when `new` takes the place of `old`, which remembered `self`.
    pub(super) fn succeeded(&self, old: &PolicySet, new: &PolicySet, now_ms: i64) -> Self {
        let lends = |policy: &Policy| policy.spec().lease.enabled;
        if self.0.is_empty() && !lends(old.defaults()) && !old.rules().any(|(_, rule)| lends(&rule.policy)) {
            // Nothing can be out; looking at each rule would take long where there are many.
            return Self::default();
        }
        let was = |rule: &str| self.was(old, rule, now_ms);
        let mut terms = HashMap::new();
        for (name, _) in new.rules().filter(|(name, _)| ***name != *DEFAULTS) {
            let known = match name.strip_suffix('*') {
                None => was(&governing(old, name)),
                Some(prefix) => {
                    let covered = |other: &str| match other.strip_suffix('*') {
                        Some(other) => other.starts_with(prefix) || prefix.starts_with(other),
                        None => other.starts_with(prefix) && new.rule(other).is_none(),
                    };
                    let above = governing(old, prefix);
                    rules(old).filter(|other| covered(other)).map(was).fold(was(&above), join)
                }
            };
            if let Some(known) = known {
                terms.insert(Arc::clone(name), known);
            }
        }
        let gone = rules(old).filter(|name| new.rule(name).is_none());
        if let Some(known) = gone.map(was).fold(was(DEFAULTS), join) {
            terms.insert(DEFAULTS.into(), known);
        }
        Self(terms)
    }

    /// What may be out under a rule of the set that is succeeded.
    fn was(&self, old: &PolicySet, rule: &str, now_ms: i64) -> Option<Terms> {
        let policy = if rule == DEFAULTS { Some(old.defaults()) } else { old.rule(rule).map(|rule| &rule.policy) };
        let own = policy.and_then(|policy| Terms::of(policy, &old.timing().limits, now_ms));
        join(own, self.0.get(rule).copied().filter(|terms| terms.until_ms > now_ms))
    }

    /// Numbers of a rule that remember what may be out.
    pub(super) fn remember(&self, rule: &str, policy: &Policy, timing: &Timing, numbers: Numbers) -> Numbers {
        match self.0.get(rule) {
            Some(terms) => numbers.with_former_leases(policy, timing, terms.curve_ms, terms.part_ppm),
            None => numbers,
        }
    }
}

fn rules(set: &PolicySet) -> impl Iterator<Item = &str> {
    set.rules().map(|(name, _)| &**name).filter(|name| *name != DEFAULTS)
}

/// The rule that a name fell under.
fn governing(set: &PolicySet, name: &str) -> String {
    if set.rule(name).is_some() {
        return name.to_owned();
    }
    let families = rules(set).filter(|rule| rule.strip_suffix('*').is_some_and(|prefix| name.starts_with(prefix)));
    families.max_by_key(|rule| rule.len()).unwrap_or(DEFAULTS).to_owned()
}
