//! Quantities of a run.

use budgetd::policies::PolicySet;

use super::is_useful;
use crate::{
    Error,
    caller::{End, Ended, Told, Via},
    engine::{Outcome, count, ratio},
    scenario::{Accept, DEPENDENCY, Gauge, Scenario},
};

/// A quantity and what it is of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) says: String,
    /// None where there is nothing to divide by.
    pub(super) value: Option<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
pub(super) fn measure(scenario: &Scenario, accept: &Accept, outcome: &Outcome) -> Measured {
    let counts = &outcome.counts;
    let exactly = |value: u64| Some(value as f64);
    let operations = within(scenario, accept, outcome);
    let ended = |end: End| count(operations.iter().filter(|operation| operation.end == end));
    let offered = count(operations.iter());
    let useful = count(operations.iter().filter(|operation| is_useful(operation.end)));
    let (says, value) = match accept.gauge {
        Gauge::Amplification | Gauge::AmplificationSpread => {
            ("attempts at the dependency for each original", outcome.amplification())
        }
        Gauge::UsefulShare => ("share of operations with an accepted result", ratio(useful, offered)),
        Gauge::Useful => ("operations with an accepted result", exactly(useful)),
        Gauge::AttemptsMax => ("most attempts for one operation", exactly(counts.attempts_max)),
        Gauge::ConcurrencyMax => ("most calls at once at the dependency", exactly(counts.in_flight_max)),
        Gauge::QueueMax => ("most calls waiting at the dependency", exactly(counts.queue_max)),
        Gauge::DuplicatesPer1000 => ("duplicates for each 1,000 operations", ratio(counts.duplicates * 1_000, offered)),
        Gauge::Retries => ("retries at the dependency", exactly(counts.received.saturating_sub(counts.keys))),
        Gauge::UnknownPer1000 => {
            ("unknown outcomes for each 1,000 operations", ratio(ended(End::OutcomeUnknown) * 1_000, offered))
        }
        Gauge::Resumed => {
            let resumed = outcome.told.iter().map(|told| told.resumed).sum();
            ("operations with attempts sent that another process went on with", exactly(resumed))
        }
        Gauge::Incomplete => ("operations that ended incomplete", exactly(ended(End::Incomplete))),
        Gauge::Admitted => {
            let admitted = outcome.told.iter().map(|told| admitted_within(accept, told).count()).sum::<usize>();
            ("attempts that were admitted", exactly(u64::try_from(admitted).unwrap_or(u64::MAX)))
        }
        Gauge::LeasedShare => {
            let of_process = |told: &Told| {
                let by_lease = count(admitted_within(accept, told).filter(|via| *via == Via::Lease));
                // Who is admitted nothing has nothing by its lease.
                ratio(by_lease, count(admitted_within(accept, told))).unwrap_or(0.0)
            };
            let least = outcome.told.iter().map(of_process).reduce(f64::min);
            ("part of admitted attempts that a lease decided, in the process where it is least", least)
        }
        Gauge::Cost => ("cost of all that was executed", exactly(counts.cost)),
        Gauge::CostPerUseful => ("cost for each accepted result", ratio(counts.cost, useful)),
    };
    let mut says = says.to_owned();
    if let Some(load) = &accept.load {
        says = format!("{says}, load {load}");
    }
    if !accept.range.is_all() {
        let (from, until, skip) = (accept.range.begin_ms(), accept.range.end_ms(), accept.range.skip);
        let by = if accept.gauge.is_of_asks() { "decided" } else { "due" };
        says.push_str(&format!(", {by} from {} s", seconds(from)));
        if until < u64::MAX {
            says.push_str(&format!(" to {} s", seconds(until)));
        }
        if skip > 0 {
            says.push_str(&format!(", after {skip} further arrivals"));
        }
    }
    Measured { says, value }
}

#[expect(clippy::cast_precision_loss, reason = "times are small")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

/// The operations that an acceptance is about.
fn within(scenario: &Scenario, accept: &Accept, outcome: &Outcome) -> Vec<Ended> {
    let ms = |due_ns: i64| u64::try_from(due_ns / 1_000_000).unwrap_or(0);
    let range = &accept.range;
    let load = accept.load.as_ref().and_then(|name| scenario.load.iter().position(|load| load.name == *name));
    let due = |operation: &Ended| (range.begin_ms()..range.end_ms()).contains(&ms(operation.due_ns));
    let of_load = |operation: &Ended| load.is_none_or(|load| usize::from(operation.load) == load);
    let due = outcome.operations().into_iter().filter(due).skip(range.skip);
    due.filter(of_load).collect()
}

/// Who admitted what a process sent, by when it did.
fn admitted_within<'a>(accept: &'a Accept, told: &'a Told) -> impl Iterator<Item = Via> + 'a {
    let range = &accept.range;
    let at = |ns: i64| (range.begin_ms()..range.end_ms()).contains(&u64::try_from(ns / 1_000_000).unwrap_or(0));
    told.asks.iter().filter(move |ask| ask.via.admitted() && at(ask.until_ns)).map(|ask| ask.via)
}

/// What the policy's retry budget allows of amplification, in a run that was offered so much for so long.
#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
pub(super) fn allowed_amplification(scenario: &Scenario, outcome: &Outcome) -> Result<Option<(f64, String)>, Error> {
    let set = PolicySet::parse_timed("policy", &scenario.policy, scenario.timing()?);
    let set = set.map_err(|error| error.to_string())?;
    let rule = set.rule(DEPENDENCY).ok_or("the policy names no such dependency")?;
    let spec = rule.policy.spec();
    let ratio_part = spec.ratio_ppm as f64 / 1e6;
    // The last attempts may come as late as the last operation's deadline.
    let lasts_s = (outcome.duration + scenario.call.deadline()).as_secs_f64();
    let floor = spec.floor.micros_per_second() as f64 / 1e6;
    let constant = spec.retry_burst_tokens as f64 + floor * lasts_s;
    let originals = outcome.originals();
    Ok((originals > 0).then(|| {
        let allowed = 1.0 + ratio_part + constant / originals as f64;
        (allowed, format!("1 + {ratio_part} + ({} + {floor} × {lasts_s} s) / {originals}", spec.retry_burst_tokens))
    }))
}
