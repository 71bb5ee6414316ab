//! What in a policy is likely to surprise once it is leased.

use std::fmt;

use super::{
    Fleet,
    formula::{count, duration, per_second, rate, tokens},
    outage::{Sharing, admits, equal_share},
    terms::{Alone, alone},
};
use crate::{
    decision::Cause,
    lease::{HOLDERS_MAX, Timing},
    policy::{EarnOn, FallbackOriginals, FallbackRetries, Mode, Policy},
    units::{Decimal, MICROS_PER_TOKEN, PPM, Rate},
};

/// One thing to look at. Shown as what is so, what follows, and what would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Nothing is refused.
    Shadow,
    /// `fallback.originals` is `allow` although admission is limited.
    FallbackAllows,
    /// The fallback of all processes exceeds the rate: theirs in sum, micro-tokens per second, and the policy's.
    FallbackAboveRate(i64, Rate),
    /// The fallback of all processes exceeds the burst: theirs in sum, tokens, and the policy's.
    FallbackAboveBurst(i64, i64),
    /// A quota cannot be leased to so many holders: what can be, how many there are, and the value that would do.
    TooSmall(Sharing, i64, i64),
    /// From this time of the curve on, a share admits nothing.
    StepAdmitsNothing(i64),
    /// From this time of the curve on, a share admits no retry: it holds so many micro-tokens.
    StepRetriesNothing(i64, i64),
    /// A retry of this cause costs more (micro-tokens) than a share holds: every one asks budgetd.
    CostAboveShare(Cause, i64, i64),
    /// Retries of this cause cost more (micro-tokens) than the one token that the fallback holds.
    CostAboveFallback(Cause, i64),
    /// One original or more may be followed by a retry each.
    Ratio(i64),
    /// Retries are earned by successes.
    EarnedBySuccess,
    /// Holders earn nothing.
    NoRatio,
    /// All may be leased.
    WholeLeased,
    /// The margin is too short for the curve: it is, and must be.
    Margin(i64, i64),
    /// Masters may overlap for longer than the first step lasts: the step, and the overlap.
    FirstStep(i64, i64),
    /// More holders than a ledger knows.
    TooManyHolders(i64),
}

impl Warning {
    /// All that apply to a policy that permits leases.
    #[must_use]
    pub fn all(policy: &Policy, timing: &Timing, fleet: Fleet) -> Vec<Self> {
        let spec = policy.spec();
        let mut all = Vec::new();
        if spec.mode == Mode::Shadow {
            all.push(Self::Shadow);
        }
        fallback(policy, fleet, &mut all);
        if fleet.holders > i64::try_from(HOLDERS_MAX).unwrap_or(i64::MAX) {
            all.push(Self::TooManyHolders(fleet.holders));
        }
        sharing(policy, fleet, &mut all);
        if spec.ratio_ppm >= PPM {
            all.push(Self::Ratio(spec.ratio_ppm));
        }
        if spec.ratio_ppm == 0 && spec.retry_burst_tokens > 0 {
            all.push(Self::NoRatio);
        }
        if spec.earn_on == EarnOn::Success && spec.ratio_ppm > 0 {
            all.push(Self::EarnedBySuccess);
        }
        if spec.lease.part_ppm == PPM {
            all.push(Self::WholeLeased);
        }
        let curve_ms = spec.lease.curve.iter().fold(0_i64, |sum, step| sum.saturating_add(step.duration_ms));
        let margin_ms = Timing::margin_ms_min(curve_ms);
        if timing.margin_ms < margin_ms {
            all.push(Self::Margin(timing.margin_ms, margin_ms));
        }
        if let Some(first) = spec.lease.curve.first().filter(|first| first.duration_ms <= timing.overlap_ms) {
            all.push(Self::FirstStep(first.duration_ms, timing.overlap_ms));
        }
        all
    }
}

fn fallback(policy: &Policy, fleet: Fleet, all: &mut Vec<Warning>) {
    let spec = policy.spec();
    let Some(limit) = spec.admission else { return };
    if policy.fallback_originals() == FallbackOriginals::Allow {
        all.push(Warning::FallbackAllows);
    }
    let processes = fleet.holders.saturating_add(fleet.replicas);
    if let Alone::Bucket(own) = alone(policy, processes) {
        let sum = own.rate.saturating_mul(processes);
        if sum > limit.rate.micros_per_second().saturating_add(processes) {
            all.push(Warning::FallbackAboveRate(sum, limit.rate));
        }
        let bursts = own.burst.saturating_mul(processes).div_euclid(MICROS_PER_TOKEN);
        if bursts > limit.burst_tokens {
            all.push(Warning::FallbackAboveBurst(bursts, limit.burst_tokens));
        }
    }
}

fn sharing(policy: &Policy, fleet: Fleet, all: &mut Vec<Warning>) {
    let spec = policy.spec();
    let small = Sharing::all(policy).into_iter().filter(|sharing| sharing.holders < fleet.holders);
    all.extend(small.map(|sharing| {
        let needed = sharing.needed(fleet.holders);
        Warning::TooSmall(sharing, fleet.holders, needed)
    }));
    let share = equal_share(policy, fleet.holders);
    if share.is_zero() {
        return;
    }
    let mut from_ms = 0_i64;
    let mut retries = spec.retry_burst_tokens > 0;
    for step in &spec.lease.curve {
        let amounts = share.step(step);
        if !admits(policy, &amounts) {
            all.push(Warning::StepAdmitsNothing(from_ms));
            break;
        }
        if retries && amounts.retry_burst < MICROS_PER_TOKEN {
            all.push(Warning::StepRetriesNothing(from_ms, amounts.retry_burst));
            retries = false;
        }
        from_ms = from_ms.saturating_add(step.duration_ms);
    }
    for (cause, cost) in Cause::ALL.into_iter().zip(spec.retry_cost_micros) {
        if cost > share.retry_burst && spec.retry_burst_tokens > 0 {
            all.push(Warning::CostAboveShare(cause, cost, share.retry_burst));
        }
        if cost > MICROS_PER_TOKEN && spec.fallback_retries == FallbackRetries::Earned {
            all.push(Warning::CostAboveFallback(cause, cost));
        }
    }
}

fn too_small(sharing: &Sharing, holders: i64, needed: i64) -> String {
    format!(
        "{} = {} serves at most {} holders ({} at equal demand), there are {}: the others ask budgetd for every attempt; \
         raise it to {} or more",
        sharing.field,
        count(sharing.value),
        count(sharing.holders_most),
        count(sharing.holders),
        count(holders),
        count(needed)
    )
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shadow => f.write_str("mode is \"shadow\": nothing is refused, so no bound holds"),
            Self::FallbackAllows => f.write_str(
                "fallback.originals is \"allow\": beyond the curve admissions are unbounded; a rate or a part bounds them",
            ),
            Self::FallbackAboveRate(sum, limit) => write!(
                f,
                "fallback.originals admits {} in sum, more than admission.rate {}; lower it, or give a part such as \"10%\"",
                per_second(*sum),
                rate(*limit)
            ),
            Self::FallbackAboveBurst(sum, burst) => write!(
                f,
                "beyond the curve all processes together may admit {} at once, more than admission.burst {}: each holds \
                 one second of its rate, at least 1",
                count(*sum),
                count(*burst)
            ),
            Self::TooSmall(sharing, holders, needed) => f.write_str(&too_small(sharing, *holders, *needed)),
            Self::StepAdmitsNothing(from_ms) => write!(
                f,
                "{} after the last renewal a holder's burst is below 1, so it admits nothing; raise admission.burst or \
                 max_in_flight, or end the curve there",
                duration(*from_ms)
            ),
            Self::StepRetriesNothing(from_ms, micros) => write!(
                f,
                "{} after the last renewal a holder's retry burst is {}, below 1, so it admits no retries; raise \
                 retry.burst",
                duration(*from_ms),
                tokens((*micros).min(999_000))
            ),
            Self::CostAboveShare(cause, cost, share) => write!(
                f,
                "retry_cost.{} is {}, a holder's retry burst {}: such retries ask budgetd every time",
                cause.name(),
                Decimal(*cost),
                tokens(*share)
            ),
            Self::CostAboveFallback(cause, cost) => write!(
                f,
                "retry_cost.{} is {}, the fallback holds 1: beyond the curve there are no such retries",
                cause.name(),
                Decimal(*cost)
            ),
            Self::Ratio(ratio) => write!(
                f,
                "retry.ratio is {}: retries may be as many as originals, or more; 0.1 is usual",
                Decimal(*ratio)
            ),
            Self::EarnedBySuccess => f.write_str(
                "retry.earn_on is \"success\": retries are bounded by successes; the figures take each original for one",
            ),
            Self::NoRatio => f.write_str(
                "retry.ratio is 0: holders earn nothing, their retries wait for the floor, which budgetd keeps",
            ),
            Self::WholeLeased => f.write_str(
                "lease.part is 1: while all of it is leased, callers of Reserve get nothing, and nothing is left after \
                 a loss of state",
            ),
            Self::Margin(is, must) => write!(
                f,
                "the margin is {}, for this curve it must be {} at least; set it, or shorten lease.curve",
                duration(*is),
                duration(*must)
            ),
            Self::FirstStep(step, overlap) => write!(
                f,
                "the first step of lease.curve lasts {}, holders may wait {} after a fail-over; make it longer",
                duration(*step),
                duration(*overlap)
            ),
            Self::TooManyHolders(holders) => write!(
                f,
                "{} holders are too many, a dependency leases to {}; the others ask budgetd for every attempt",
                count(*holders),
                count(i64::try_from(HOLDERS_MAX).unwrap_or(i64::MAX))
            ),
        }
    }
}
