//! What each cause may add.

use super::{
    Cause, Causes, Fleet, Most, Part, Quantity, Term, brings, brings_drifting, ceil_div,
    formula::{count, duration, per_second, rate, tokens},
    limits,
};
use crate::{
    lease::{Amounts, Timing},
    policy::{FallbackOriginals, FallbackRetries, Limit, Policy, UnitLimit},
    units::{Decimal, MICROS_PER_TOKEN, PPM, Rate, checked_div, div_ceil},
};

/// The time that is waited for after a fail-over is the longest overlap that is allowed for and so much more.
const OVERLAP_SLACK_MS: i64 = 2_000;

/// A bucket that a process has for itself while nobody answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Own {
    /// Micro-tokens per second, rounded up.
    pub(super) rate: i64,
    /// Micro-tokens.
    pub(super) burst: i64,
}

/// What the fallback admits of one quantity in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alone {
    Nothing,
    Everything,
    Bucket(Own),
}

/// Collects the terms that have parts.
struct Terms(Vec<Term>);

pub(super) fn terms(policy: &Policy, timing: &Timing, fleet: Fleet, window_ms: i64, causes: &Causes) -> Vec<Term> {
    let mut terms = Terms(Vec::new());
    if causes.beyond > 0 {
        let text = format!("{} beyond the curve or never leased, and nobody answers", holders(causes.beyond));
        terms.add(Cause::Beyond, text, beyond(policy, fleet, window_ms, causes.beyond));
    }
    if let Some((untold, rate)) = causes.untold.filter(|(untold, _)| *untold > 0) {
        let text = format!("{} that never learnt the policy, and nobody answers", holders(untold));
        terms.add(Cause::Untold, text, never_told(policy, window_ms, untold, rate));
    }
    if causes.clock_jumps > 0 {
        let times = if causes.clock_jumps == 1 {
            String::new()
        } else {
            format!(", {} lives of its state", causes.clock_jumps)
        };
        let text = format!("the store's clock jumps forward, any number of times{times}");
        terms.add(Cause::ClockJump, text, clock_jumps(policy, timing, causes.clock_jumps));
    }
    for (share, alive_ms) in &causes.clones {
        let text = format!("a running holder is cloned, and the clone lives for {}", duration(*alive_ms));
        terms.add(Cause::Clone, text, clone(policy, share, *alive_ms));
    }
    if causes.overlap_ms > 0 {
        let text = format!("two masters of the store live side by side for {}", duration(causes.overlap_ms));
        terms.add(Cause::TwoMasters, text, two_masters(policy, timing, causes.overlap_ms));
    }
    if causes.arrival_delay_ms > 0 || causes.unsent != (0, 0) {
        let text =
            format!("counted at arrival instead of admission, sent up to {} later", duration(causes.arrival_delay_ms));
        terms.add(Cause::Arrival, text, arrival(policy, causes.arrival_delay_ms, causes.unsent));
    }
    if causes.losses > 0 {
        let losses = if causes.losses == 1 { "once".to_owned() } else { format!("{} times", count(causes.losses)) };
        terms.add(Cause::StateLost, format!("the store loses its state {losses}"), state_lost(policy, causes.losses));
    }
    if causes.underestimated {
        let text = "attempts cost more than was estimated".to_owned();
        terms.add(Cause::Underestimated, text, underestimated(policy));
    }
    if !causes.overuse.is_empty() {
        let overuse = causes.overuse.iter().map(|(unit, micros)| Part {
            quantity: Quantity::Unit(unit.clone()),
            name: "",
            formula: tokens(*micros),
            most: Most::of_micros((*micros).into()),
        });
        terms.add(Cause::Overuse, "settled beyond the limit of debt".to_owned(), overuse.collect());
    }
    terms.0
}

fn holders(number: i64) -> String {
    if number == 1 { "1 process".to_owned() } else { format!("{} processes", count(number)) }
}

fn part(quantity: &Quantity, formula: String, most: Most) -> Part {
    Part { quantity: quantity.clone(), name: "", formula, most }
}

/// What one process admits of originals while nobody answers; `sharers` share a percentage.
pub(super) fn alone(policy: &Policy, sharers: i64) -> Alone {
    let (num, den) = match (policy.fallback_originals(), policy.spec().admission) {
        (FallbackOriginals::Deny, _) => return Alone::Nothing,
        (FallbackOriginals::Allow, _) => return Alone::Everything,
        (FallbackOriginals::Rate(rate), _) => rate.fraction(),
        (FallbackOriginals::Part(ppm), Some(limit)) => limit.rate.part_fraction(ppm, sharers),
        (FallbackOriginals::Part(_), None) => return Alone::Nothing,
    };
    Alone::Bucket(Own::of_fraction(num, den, MICROS_PER_TOKEN))
}

/// What one process admits of a unit while nobody answers: the same part of it as of originals.
fn unit_alone(policy: &Policy, limit: Limit, sharers: i64) -> Alone {
    let (part_ppm, sharers) = match (policy.fallback_originals(), policy.spec().admission) {
        (FallbackOriginals::Deny, _) => return Alone::Nothing,
        (FallbackOriginals::Allow, _) => return Alone::Everything,
        (FallbackOriginals::Part(ppm), _) => (ppm, sharers),
        (FallbackOriginals::Rate(rate), Some(admission)) => {
            let of = admission.rate.micros_per_second().max(1);
            let ppm = ceil_div(i128::from(rate.micros_per_second()).saturating_mul(PPM.into()), of.into());
            (i64::try_from(ppm).unwrap_or(PPM).min(PPM), 1)
        }
        (FallbackOriginals::Rate(_), None) => (PPM.div_euclid(10), sharers),
    };
    let (num, den) = limit.rate.part_fraction(part_ppm, sharers);
    let burst = ceil_div(i128::from(limit.burst_tokens).saturating_mul(part_ppm.into()), sharers.max(1).into());
    let own = Own::of_fraction(num, den, MICROS_PER_TOKEN);
    Alone::Bucket(Own { burst: own.burst.max(i64::try_from(burst).unwrap_or(i64::MAX)), ..own })
}

/// `n x (5/s x 10s + 5)`.
fn alone_part(quantity: &Quantity, alone: Alone, number: i64, window_ms: i64) -> Option<Part> {
    let own = match alone {
        Alone::Nothing => return None,
        Alone::Everything => return Some(part(quantity, "fallback \"allow\"".to_owned(), Most::Unbounded)),
        Alone::Bucket(own) => own,
    };
    let brought = ceil_div(i128::from(own.rate).saturating_mul(window_ms.into()), 1_000);
    let each = brought.saturating_add(own.burst.into());
    let formula =
        format!("{} x ({} x {} + {})", count(number), per_second(own.rate), duration(window_ms), tokens(own.burst));
    Some(part(quantity, formula, Most::of_micros(each.saturating_mul(number.into()))))
}

fn beyond(policy: &Policy, fleet: Fleet, window_ms: i64, number: i64) -> Vec<Part> {
    let sharers = fleet.holders.saturating_add(fleet.replicas);
    let originals = alone(policy, sharers);
    let mut parts = Vec::new();
    if policy.spec().admission.is_some() {
        parts.extend(alone_part(&Quantity::Admissions, originals, number, window_ms));
    }
    if policy.spec().fallback_retries == FallbackRetries::Earned && originals != Alone::Nothing {
        parts.push(part(&Quantity::Retries, format!("{} x 1", count(number)), Most::Count(number)));
    }
    for unit in &policy.spec().units {
        let quantity = Quantity::Unit(unit.name.clone());
        parts.extend(alone_part(&quantity, unit_alone(policy, unit.limit, sharers), number, window_ms));
    }
    parts
}

fn never_told(policy: &Policy, window_ms: i64, number: i64, rate: Rate) -> Vec<Part> {
    let (num, den) = rate.fraction();
    let own = Alone::Bucket(Own::of_fraction(num, den, MICROS_PER_TOKEN));
    let mut parts = Vec::new();
    if policy.spec().admission.is_some() {
        parts.extend(alone_part(&Quantity::Admissions, own, number, window_ms));
    }
    // It has never heard of any unit.
    let units = policy.spec().units.iter().map(|unit| Quantity::Unit(unit.name.clone()));
    parts.extend(units.map(|unit| part(&unit, "units it has not heard of".to_owned(), Most::Unbounded)));
    parts
}

/// Ledger time gains a step at most in any window, however often the clock jumps: what it has gained is paid by standing
/// still before it can gain more. A state that is lost takes with it what is known of that.
fn clock_jumps(policy: &Policy, timing: &Timing, lives: i64) -> Vec<Part> {
    let step_ms = timing.step_max_ms;
    let jump = |(quantity, limit): (Quantity, Limit)| {
        let burst = i128::from(limit.burst_tokens).saturating_mul(MICROS_PER_TOKEN.into());
        let least = brings(limit.rate, step_ms).min(burst).saturating_mul(lives.into());
        let times = if lives == 1 { String::new() } else { format!("{} x ", count(lives)) };
        let (rate, burst) = (rate(limit.rate), count(limit.burst_tokens));
        part(&quantity, format!("{times}min({rate} x {}, {burst})", duration(step_ms)), Most::of_micros(least))
    };
    limits(policy).into_iter().map(jump).collect()
}

fn clone(policy: &Policy, share: &Amounts, alive_ms: i64) -> Vec<Part> {
    let spends = |quantity: &Quantity, rate: i64, burst: i64| {
        let brought = ceil_div(i128::from(rate).saturating_mul(alive_ms.into()), 1_000);
        let formula = format!("{} + {} x {}", tokens(burst), per_second(rate), duration(alive_ms));
        part(quantity, formula, Most::of_micros(brought.saturating_add(burst.into())))
    };
    let mut parts = Vec::new();
    if policy.spec().admission.is_some() {
        parts.push(spends(&Quantity::Admissions, share.rate, share.burst));
    }
    let twice = i128::from(share.retry_burst).saturating_mul(2);
    parts.push(part(&Quantity::Retries, format!("2 x {}", tokens(share.retry_burst)), Most::of_micros(twice)));
    for (unit, amounts) in policy.spec().units.iter().zip(&share.units) {
        parts.push(spends(&Quantity::Unit(unit.name.clone()), amounts.rate, amounts.burst));
    }
    if policy.spec().max_in_flight.is_some() {
        parts.push(part(&Quantity::InFlight, count(share.slots), Most::Count(share.slots)));
    }
    parts
}

/// Beyond what the quarantine waits for, both refill; and both may have been full.
fn two_masters(policy: &Policy, timing: &Timing, overlap_ms: i64) -> Vec<Part> {
    let excess_ms = overlap_ms.saturating_sub(timing.overlap_ms).saturating_add(OVERLAP_SLACK_MS);
    if excess_ms <= 0 {
        return Vec::new();
    }
    let double = |(quantity, limit): (Quantity, Limit)| {
        let burst = i128::from(limit.burst_tokens).saturating_mul(MICROS_PER_TOKEN.into());
        let (overlap, allowed) = (duration(overlap_ms), duration(timing.overlap_ms));
        let formula = format!("{} x ({overlap} - {allowed} + 2s) + {}", rate(limit.rate), count(limit.burst_tokens));
        part(&quantity, formula, Most::of_micros(brings(limit.rate, excess_ms).saturating_add(burst)))
    };
    limits(policy).into_iter().map(double).collect()
}

/// Attempts that arrive within a window were admitted within a longer one.
fn arrival(policy: &Policy, delay_ms: i64, unsent: (i64, i64)) -> Vec<Part> {
    let (originals, retries) = unsent;
    let delay = duration(delay_ms);
    let mut parts: Vec<Part> = Vec::new();
    for (quantity, limit) in limits(policy) {
        let mut formula = format!("{} x {delay} x 1.001", rate(limit.rate));
        let mut most = Most::of_micros(brings_drifting(limit.rate, delay_ms));
        let waiting = match quantity {
            Quantity::Admissions => originals.saturating_add(retries),
            Quantity::Retries => retries,
            Quantity::Unit(_) | Quantity::InFlight => 0,
        };
        if quantity == Quantity::Retries
            && let Some(earlier) = parts.first()
            && policy.spec().ratio_ppm > 0
        {
            formula.push_str(&format!(
                " + {} x {}",
                Decimal(policy.spec().ratio_ppm),
                super::formula::most(earlier.most)
            ));
            most = most.plus(earlier.most.part(policy.spec().ratio_ppm));
        }
        if waiting > 0 {
            formula.push_str(&format!(" + {} unsent", count(waiting)));
            most = most.plus(Most::Count(waiting));
        }
        parts.push(part(&quantity, formula, most));
    }
    parts
}

/// State that is lost is taken as empty, but for one token where no lease can be out; permits are forgotten.
fn state_lost(policy: &Policy, losses: i64) -> Vec<Part> {
    let spec = policy.spec();
    let mut parts = Vec::new();
    if !spec.lease.enabled && spec.admission.is_some() {
        parts.push(part(&Quantity::Admissions, format!("{} x 1", count(losses)), Most::Count(losses)));
    }
    if let Some(permits) = spec.max_in_flight {
        let most = Most::of(i128::from(permits).saturating_mul(losses.into()));
        let formula = format!("{} x {} within a permit's life", count(losses), count(permits.into()));
        parts.push(part(&Quantity::InFlight, formula, most));
    }
    parts
}

fn underestimated(policy: &Policy) -> Vec<Part> {
    let debt = |unit: &UnitLimit| {
        let burst = unit.limit.burst_tokens;
        part(&Quantity::Unit(unit.name.clone()), "one burst of debt".to_owned(), Most::Count(burst))
    };
    policy.spec().units.iter().map(debt).collect()
}

// === impl Own ===

impl Own {
    /// A rate in micro-tokens per millisecond, with one second of it as burst, at least `least`.
    fn of_fraction(num: i64, den: i64, least: i64) -> Self {
        let rate = div_ceil(num.saturating_mul(1_000), den);
        Self { rate, burst: checked_div(num.saturating_mul(1_000), den).max(least) }
    }
}

// === impl Terms ===

impl Terms {
    fn add(&mut self, cause: Cause, text: String, parts: Vec<Part>) {
        if !parts.is_empty() {
            self.0.push(Term { cause, text, parts });
        }
    }
}
