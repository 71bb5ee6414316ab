//! What a fallback decides by. A replica takes it from the policy; a holder from the rules it was told, where rates are
//! whole micro-tokens per second and a unit's burst is one second of its rate.

use super::Ask;
use crate::{
    decision::{Attempt, Denied, DenyReason},
    ids::UnitId,
    lease::{LocalOriginals, Rules},
    policy::{self, BucketNumbers, FallbackOriginals, FallbackRetries, Numbers, Policy, UnitLimit},
    units::{MICROS_PER_TOKEN, PPM, checked_div, div_ceil},
};

/// The rules for one process.
pub(crate) struct Limits {
    pub(crate) shadow: bool,
    retries_off: bool,
    max_attempts: i64,
    retry_cost_micros: [i64; 5],
    pub(crate) retries_earned: bool,
    /// For each original admitted.
    pub(crate) deposit_micros: i64,
    pub(crate) originals: Originals,
    /// Those that are limited.
    pub(crate) units: Vec<(UnitId, BucketNumbers)>,
}

/// Originals, and how many.
pub(crate) enum Originals {
    /// None.
    Deny,
    /// All, whatever they cost.
    Allow,
    /// As a bucket has tokens for.
    Limited(BucketNumbers),
}

// === impl Limits ===

impl Limits {
    /// Of a policy, where `sharers` processes share a percentage. A replica does not learn of successes: it earns by
    /// admission.
    pub(crate) fn of(policy: &Policy, numbers: &Numbers, sharers: i64) -> Self {
        let unit = |unit: &UnitLimit| Some((UnitId::of(&unit.name).ok()?, unit_numbers(policy, sharers, unit)?));
        Self {
            shadow: numbers.shadow,
            retries_off: numbers.retries_off,
            max_attempts: numbers.max_attempts,
            retry_cost_micros: numbers.retry_cost_micros,
            retries_earned: policy.spec().fallback_retries == FallbackRetries::Earned,
            deposit_micros: numbers.deposit_micros,
            originals: originals(policy, sharers),
            units: policy.spec().units.iter().filter_map(unit).collect(),
        }
    }

    /// Of what a holder was told.
    pub(crate) fn told(rules: &Rules) -> Self {
        let bucket = |rate| second_of(rate, 1_000, rules.priority_ppm);
        Self {
            shadow: rules.shadow,
            retries_off: rules.retries_off,
            max_attempts: rules.max_attempts,
            retry_cost_micros: rules.retry_cost_micros,
            retries_earned: rules.fallback.retries_earned,
            deposit_micros: if rules.earn_on_success { 0 } else { rules.deposit_micros },
            originals: match rules.fallback.originals {
                LocalOriginals::Deny => Originals::Deny,
                LocalOriginals::Allow => Originals::Allow,
                LocalOriginals::Rate(rate) => Originals::Limited(bucket(rate)),
            },
            units: rules.fallback.units.iter().map(|(unit, rate)| (*unit, bucket(*rate))).collect(),
        }
    }

    pub(crate) fn attempts_left(&self, attempt: Attempt) -> i64 {
        self.max_attempts.saturating_sub(attempt.number.into()).max(0)
    }

    /// None for an original.
    pub(super) fn retry_cost(&self, attempt: Attempt) -> Option<i64> {
        attempt.cause.and_then(|cause| self.retry_cost_micros.get(cause.index()).copied())
    }

    pub(super) fn unit(&self, unit: UnitId) -> Option<&BucketNumbers> {
        self.units.iter().find(|(id, _)| *id == unit).map(|(_, numbers)| numbers)
    }

    /// What needs no bucket.
    pub(super) fn judge(&self, ask: &Ask<'_>) -> Result<(), Denied> {
        if ask.attempt.is_retry() && self.retries_off {
            return Err(Denied::because(DenyReason::RetriesOff));
        }
        if ask.time_left_ms == Some(0) {
            return Err(Denied::because(DenyReason::NoTimeLeft));
        }
        if i64::from(ask.attempt.number) > self.max_attempts {
            return Err(Denied { impossible: true, ..Denied::because(DenyReason::AttemptLimit) });
        }
        Ok(())
    }
}

/// The rate for this process, and one second of it as burst.
fn originals(policy: &Policy, sharers: i64) -> Originals {
    let (num, den) = match (policy.fallback_originals(), policy.spec().admission) {
        (FallbackOriginals::Deny, _) => return Originals::Deny,
        (FallbackOriginals::Allow, _) => return Originals::Allow,
        (FallbackOriginals::Rate(rate), _) => rate.fraction(),
        (FallbackOriginals::Part(ppm), Some(limit)) => limit.rate.part_fraction(ppm, sharers),
        (FallbackOriginals::Part(_), None) => (0, 1),
    };
    Originals::Limited(second_of(num, den, policy.spec().priority_ppm))
}

/// A unit's bucket: the same part of its rate and burst as originals get of theirs. None: not limited by the fallback.
fn unit_numbers(policy: &Policy, sharers: i64, unit: &UnitLimit) -> Option<BucketNumbers> {
    let limit = unit.limit;
    let (part_ppm, sharers) = match (policy.fallback_originals(), policy.spec().admission) {
        (FallbackOriginals::Allow, _) => return None,
        (FallbackOriginals::Deny, _) => (0, 1),
        (FallbackOriginals::Part(ppm), _) => (ppm, sharers),
        (FallbackOriginals::Rate(rate), Some(admission)) => {
            let of = div_ceil(admission.rate.micros_per_second(), MICROS_PER_TOKEN).max(1);
            (checked_div(rate.micros_per_second(), of).min(PPM), 1)
        }
        // A rate says nothing about cost where admission is unlimited: the default part.
        (FallbackOriginals::Rate(_), None) => (PPM.div_euclid(10), sharers),
    };
    let (num, den) = limit.rate.part_fraction(part_ppm, sharers);
    let burst =
        i128::from(limit.burst_tokens.saturating_mul(part_ppm)).checked_div(i128::from(sharers.max(1))).unwrap_or(0);
    Some(numbers_of(num, den, i64::try_from(burst).unwrap_or(0), policy.spec().priority_ppm))
}

/// A bucket of one second's worth, at least one token.
fn second_of(num: i64, den: i64, shares: [i64; 3]) -> BucketNumbers {
    let second = checked_div(num.saturating_mul(1_000), den);
    numbers_of(num, den, second.max(MICROS_PER_TOKEN), shares)
}

/// Part of a rate may have a larger denominator than a policy's; only here it is reckoned with, so its products need not
/// stay exact in a script.
fn numbers_of(num: i64, den: i64, burst: i64, shares: [i64; 3]) -> BucketNumbers {
    let keep = shares.map(|share| policy::keep(burst, share));
    BucketNumbers { num, den, burst, elapsed_ms_max: i64::MAX.div_euclid(4).div_euclid(num.max(1)), debt_max: 0, keep }
}
