//! What one process may admit while the store is away, by the policy's `fallback`.
//!
//! A bucket of its own that starts empty and keeps its level from one episode to the next; its tokens never mix with
//! the ledger's. Nothing is remembered of a reservation, so a re-send is decided afresh and nothing can be handed back.

use crate::{
    bucket::{Bucket, Short},
    decision::{Admitted, Answer, Cost, Denied, DenyReason, Reserve},
    ids::UnitId,
    policy::{BucketNumbers, FallbackOriginals, FallbackRetries, Numbers, Policy},
    units::{MICROS_PER_TOKEN, PPM, checked_div, div_ceil},
};

/// The fallback of one dependency in one process.
#[derive(Clone, Debug)]
pub struct Fallback {
    clock_ms: i64,
    originals: Bucket,
    units: Vec<(UnitId, Bucket)>,
    /// Earned by originals admitted here, at most one token.
    retry_micros: i64,
}

// === impl Fallback ===

impl Fallback {
    /// Empty, from `clock_ms` on.
    #[must_use]
    pub const fn new(clock_ms: i64) -> Self {
        Self { clock_ms, originals: Bucket { balance_micros: 0, remainder: 0 }, units: Vec::new(), retry_micros: 0 }
    }

    /// Decides an ask at `clock_ms`, a reading of any clock that does not go back. `sharers` is the number of processes
    /// that share a percentage, at least 1. A policy in shadow mode lets through what it would refuse, and charges
    /// nothing for it.
    pub fn reserve(
        &mut self,
        policy: &Policy,
        numbers: &Numbers,
        sharers: i64,
        clock_ms: i64,
        ask: &Reserve,
    ) -> Answer {
        let originals = policy.fallback_originals();
        let bucket = originals_numbers(policy, originals, sharers);
        let units: Vec<_> =
            ask.costs.iter().map(|cost| (cost, unit_numbers(policy, originals, sharers, cost.unit))).collect();
        self.refill(clock_ms, bucket.as_ref(), policy, originals, sharers);
        let judged = judge(numbers, ask)
            .and_then(|()| self.judge_buckets(policy, originals, bucket.as_ref(), numbers, &units, ask));
        let would_be_denied = match judged {
            Ok(()) => None,
            Err(denied) if numbers.shadow && denied.reason.yields_to_shadow() => Some(denied.reason),
            Err(denied) => return Answer::Denied(denied),
        };
        if would_be_denied.is_none() {
            self.charge(bucket.is_some(), numbers, &units, ask);
        }
        Answer::Admitted(Admitted {
            start_after_ms: 0,
            permit_ttl_ms: ask.permit_ttl_ms.unwrap_or(numbers.permit_ttl_ms),
            attempts_left: numbers.max_attempts.saturating_sub(ask.attempt.number.into()).max(0),
            replayed: false,
            would_be_denied,
        })
    }

    fn judge_buckets(
        &mut self,
        policy: &Policy,
        originals: FallbackOriginals,
        bucket: Option<&BucketNumbers>,
        numbers: &Numbers,
        units: &[(&Cost, Option<BucketNumbers>)],
        ask: &Reserve,
    ) -> Result<(), Denied> {
        let short = match (retry_cost(numbers, ask), policy.spec().fallback_retries) {
            (Some(_), FallbackRetries::Deny) => Some(Short::Wait(None)),
            (Some(cost), FallbackRetries::Earned) if cost > MICROS_PER_TOKEN => Some(Short::Impossible),
            (Some(cost), FallbackRetries::Earned) if cost > self.retry_micros => Some(Short::Wait(None)),
            (Some(_), FallbackRetries::Earned) | (None, _) => None,
        };
        let short = short.or_else(|| match bucket {
            Some(bucket) => self.originals.covers(bucket, ask.priority, MICROS_PER_TOKEN).err(),
            None if originals == FallbackOriginals::Deny => Some(Short::Wait(None)),
            None => None,
        });
        let short = short.or_else(|| {
            units.iter().find_map(|(cost, unit)| {
                let unit = unit.as_ref().filter(|_| cost.amount_micros > 0)?;
                self.unit_mut(cost.unit).covers(unit, ask.priority, cost.amount_micros).err()
            })
        });
        let denied = Denied::because(DenyReason::Fallback);
        match short {
            None => Ok(()),
            Some(Short::Impossible) => Err(Denied { impossible: true, ..denied }),
            Some(Short::Wait(retry_after_ms)) => Err(Denied { retry_after_ms, ..denied }),
        }
    }

    fn charge(&mut self, is_limited: bool, numbers: &Numbers, units: &[(&Cost, Option<BucketNumbers>)], ask: &Reserve) {
        if is_limited {
            self.originals.withdraw(MICROS_PER_TOKEN);
        }
        for (cost, unit) in units {
            if unit.is_some() {
                self.unit_mut(cost.unit).withdraw(cost.amount_micros);
            }
        }
        match retry_cost(numbers, ask) {
            Some(cost) => self.retry_micros = self.retry_micros.saturating_sub(cost),
            None => {
                self.retry_micros = self.retry_micros.saturating_add(numbers.deposit_micros).min(MICROS_PER_TOKEN);
            }
        }
    }

    fn refill(
        &mut self,
        clock_ms: i64,
        bucket: Option<&BucketNumbers>,
        policy: &Policy,
        originals: FallbackOriginals,
        sharers: i64,
    ) {
        let elapsed_ms = clock_ms.saturating_sub(self.clock_ms).max(0);
        self.clock_ms = self.clock_ms.max(clock_ms);
        if let Some(bucket) = bucket {
            fit(&mut self.originals, bucket);
            self.originals.refill(bucket, elapsed_ms);
        }
        for (unit, state) in &mut self.units {
            if let Some(numbers) = unit_numbers(policy, originals, sharers, *unit) {
                fit(state, &numbers);
                state.refill(&numbers, elapsed_ms);
            }
        }
        // A unit is known from the first ask that names it; its time starts then.
        for unit in &policy.spec().units {
            if let Ok(id) = UnitId::of(&unit.name) {
                self.unit_mut(id);
            }
        }
        self.units.retain(|(id, _)| policy.spec().units.iter().any(|unit| UnitId::of(&unit.name) == Ok(*id)));
    }

    fn unit_mut(&mut self, id: UnitId) -> &mut Bucket {
        let at = self.units.iter().position(|(unit, _)| *unit == id).unwrap_or_else(|| {
            self.units.push((id, Bucket::default()));
            self.units.len().saturating_sub(1)
        });
        #[expect(clippy::indexing_slicing, reason = "the position was just found or pushed")]
        &mut self.units[at].1
    }
}

/// What needs no bucket.
fn judge(numbers: &Numbers, ask: &Reserve) -> Result<(), Denied> {
    if ask.operation.is_some() {
        return Err(Denied::because(DenyReason::OperationStoreAway));
    }
    if ask.attempt.is_retry() && numbers.retries_off {
        return Err(Denied::because(DenyReason::RetriesOff));
    }
    if ask.time_left_ms == Some(0) {
        return Err(Denied::because(DenyReason::NoTimeLeft));
    }
    if i64::from(ask.attempt.number) > numbers.max_attempts {
        return Err(Denied { impossible: true, ..Denied::because(DenyReason::AttemptLimit) });
    }
    Ok(())
}

/// None for an original.
fn retry_cost(numbers: &Numbers, ask: &Reserve) -> Option<i64> {
    ask.attempt.cause.and_then(|cause| numbers.retry_cost_micros.get(cause.index()).copied())
}

/// A remainder of another denominator would mint a micro-token.
fn fit(bucket: &mut Bucket, numbers: &BucketNumbers) {
    if bucket.remainder >= numbers.den {
        bucket.remainder = 0;
    }
}

/// The bucket of originals: the rate for this process, and one second of it, at least one token, as burst. None where
/// there is no bucket: everything is admitted or nothing.
pub(crate) fn originals_numbers(policy: &Policy, originals: FallbackOriginals, sharers: i64) -> Option<BucketNumbers> {
    let (num, den) = match (originals, policy.spec().admission) {
        (FallbackOriginals::Deny | FallbackOriginals::Allow, _) => return None,
        (FallbackOriginals::Rate(rate), _) => rate.fraction(),
        (FallbackOriginals::Part(ppm), Some(limit)) => limit.rate.part_fraction(ppm, sharers),
        (FallbackOriginals::Part(_), None) => (0, 1),
    };
    let second = checked_div(num.saturating_mul(1000), den);
    Some(numbers_of(num, den, second.max(MICROS_PER_TOKEN), policy))
}

/// A unit's bucket: the same part of its rate and burst as originals get of theirs. None: not limited by the fallback.
pub(crate) fn unit_numbers(
    policy: &Policy,
    originals: FallbackOriginals,
    sharers: i64,
    unit: UnitId,
) -> Option<BucketNumbers> {
    let limit = policy.spec().units.iter().find(|limit| UnitId::of(&limit.name) == Ok(unit))?.limit;
    let (part_ppm, sharers) = match (originals, policy.spec().admission) {
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
    Some(numbers_of(num, den, i64::try_from(burst).unwrap_or(0), policy))
}

fn numbers_of(num: i64, den: i64, burst: i64, policy: &Policy) -> BucketNumbers {
    let keep = policy.spec().priority_ppm.map(|share| {
        let kept = checked_div(checked_div(burst, PPM).saturating_mul(PPM.saturating_sub(share)), PPM);
        kept.saturating_mul(MICROS_PER_TOKEN)
    });
    BucketNumbers { num, den, burst, elapsed_ms_max: i64::MAX.div_euclid(4).div_euclid(num.max(1)), debt_max: 0, keep }
}

#[cfg(test)]
mod tests;
