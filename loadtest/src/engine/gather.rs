//! Makes the record of a run from what its processes counted.

use std::collections::BTreeMap;

use super::{Outcome, count};
use crate::{
    caller::{End, Ended},
    record::{Latency, Series, StrategyRun, Totals},
    scenario::Scenario,
};

const NANOS_PER_MS: i64 = 1_000_000;

pub(super) fn strategy_run(scenario: &Scenario, outcome: &Outcome) -> StrategyRun {
    let operations = outcome.operations();
    StrategyRun {
        name: outcome.strategy.name().to_owned(),
        label: outcome.strategy.label(scenario.call.attempts),
        variant: outcome.variant.clone(),
        totals: totals(scenario, outcome, &operations),
        latency: latency(&operations),
        series: series(scenario, outcome, &operations),
    }
}

fn totals(scenario: &Scenario, outcome: &Outcome, operations: &[Ended]) -> Totals {
    let counts = &outcome.counts;
    let mut ended = BTreeMap::new();
    for operation in operations {
        *ended.entry(operation.end.name().to_owned()).or_default() += 1;
    }
    let asks = || outcome.asks();
    let by_cause = outcome.told.iter().fold([0; 3], |mut sum: [u64; 3], told| {
        for (sum, of) in sum.iter_mut().zip(told.retries_by_cause) {
            *sum += of;
        }
        sum
    });
    let named = ["transient", "throttled", "timeout"].into_iter().zip(by_cause);
    let unended: u64 = outcome.told.iter().map(|told| told.unended).sum();
    let unit = scenario.load.iter().find_map(|load| load.cost.as_ref());
    Totals {
        offered: count(operations.iter()) + unended,
        started: count(operations.iter()) + unended,
        late_max_ms: late_max_ms(outcome),
        admitted: outcome.originals(),
        refused: count(operations.iter().filter(|operation| operation.end == End::AdmissionDenied)),
        errors: count(asks().filter(|ask| ask.via == crate::caller::Via::Error)),
        retries_refused: count(asks().filter(|ask| ask.is_retry && ask.via == crate::caller::Via::Refused))
            + outcome.told.iter().map(|told| told.refused_locally).sum::<u64>(),
        sent: outcome.sent(),
        retries: by_cause.iter().sum(),
        received: counts.received,
        executed: counts.executed,
        duplicates: counts.duplicates,
        concurrency_max: counts.in_flight_max,
        queue_max: counts.queue_max,
        useful: count(operations.iter().filter(|operation| operation.end == End::Completed)),
        ended,
        retries_by_cause: named.filter(|(_, of)| *of > 0).map(|(name, of)| (name.to_owned(), of)).collect(),
        cost: unit.map(|unit| (unit.unit.clone(), counts.cost)).into_iter().collect(),
    }
}

fn late_max_ms(outcome: &Outcome) -> u64 {
    let late_ns = outcome.told.iter().map(|told| told.late_max_ns).max().unwrap_or(0);
    u64::try_from(late_ns / NANOS_PER_MS).unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a run are far below 2^52")]
fn latency(operations: &[Ended]) -> Latency {
    let mut taken: Vec<i64> = operations.iter().map(|operation| operation.ended_ns - operation.due_ns).collect();
    taken.sort_unstable();
    let at = |per_mille: usize| {
        let rank = (taken.len() * per_mille).div_ceil(1_000).max(1);
        taken.get(rank - 1).map(|ns| *ns as f64 / NANOS_PER_MS as f64)
    };
    Latency { p50: at(500), p90: at(900), p99: at(990), p999: at(999), max: at(1_000) }
}

fn series(scenario: &Scenario, outcome: &Outcome, operations: &[Ended]) -> Series {
    let bin_ns = i64::try_from(scenario.bin_ms()).unwrap_or(i64::MAX).saturating_mul(NANOS_PER_MS);
    let whole = outcome.duration + scenario.call.deadline();
    let bins = usize::try_from(whole.as_millis() / u128::from(scenario.bin_ms())).unwrap_or(0) + 1;
    let binned = |times: &mut dyn Iterator<Item = i64>| {
        let mut counts = vec![0; bins];
        for at_ns in times {
            let at = usize::try_from(at_ns.max(0) / bin_ns).unwrap_or(usize::MAX).min(bins - 1);
            counts[at] += 1;
        }
        counts
    };
    let budgeted = outcome.strategy.has_budgetd();
    let sent = operations.iter().filter(|operation| !budgeted && operation.sent > 0).map(|operation| operation.due_ns);
    let admitted = outcome.asks().filter(|ask| !ask.is_retry && ask.via.admitted()).map(|ask| ask.until_ns);
    let refused = |is_retry| {
        let of = move |ask: &&crate::caller::Ask| ask.is_retry == is_retry && ask.via == crate::caller::Via::Refused;
        outcome.asks().filter(of).map(|ask| ask.until_ns)
    };
    let useful = operations.iter().filter(|operation| operation.end == End::Completed);
    let of_bins = |value: fn(&crate::dependency::Bin) -> u64| {
        let mut values: Vec<u64> = outcome.counts.bins.iter().map(value).collect();
        values.resize(bins, 0);
        values
    };
    Series {
        offered: binned(&mut operations.iter().map(|operation| operation.due_ns)),
        admitted: binned(&mut sent.chain(admitted)),
        refused: binned(&mut refused(false)),
        retries_refused: binned(&mut refused(true)),
        received: of_bins(|bin| bin.received),
        retries: of_bins(|bin| bin.retries),
        useful: binned(&mut useful.map(|operation| operation.ended_ns)),
        queue_age_ms: of_bins(|bin| bin.queue_age_ms),
        in_flight: of_bins(|bin| bin.in_flight),
    }
}
