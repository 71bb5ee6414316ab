//! Verdicts on runs that are made up.

use std::time::Duration;

use super::*;
use crate::{
    caller::{Ask, Ended, Told, Via},
    dependency::Counts,
    scenario::{Strategy, find},
};

const MS: i64 = 1_000_000;

/// Ten operations a second for five seconds, each with one attempt, all answered.
fn outcome(strategy: Strategy, clients: u32) -> Outcome {
    let operation = |number: i64| Ended {
        due_ns: number * 100 * MS,
        ended_ns: number * 100 * MS + 10 * MS,
        load: 0,
        sent: 1,
        end: End::Completed,
    };
    let operations: Vec<Ended> = (0..50).map(operation).collect();
    let ask = |operation: &Ended| Ask {
        from_ns: operation.due_ns,
        until_ns: operation.due_ns + MS,
        is_retry: false,
        cost_micros: 0,
        via: Via::Coordinator,
    };
    let asks = if strategy.has_budgetd() { operations.iter().map(ask).collect() } else { Vec::new() };
    let told = Told { operations, asks, sent: 50, ..Told::default() };
    let counts = Counts { received: 50, keys: 50, attempts_max: 1, ..Counts::default() };
    Outcome {
        strategy,
        clients,
        variant: format!("{clients} clients"),
        duration: Duration::from_secs(5),
        counts,
        told: vec![told],
        done: Vec::new(),
        overuse_micros: 0,
    }
}

fn scenario(name: &str) -> Scenario {
    find(name).expect("the library has it").0
}

fn verdict<'a>(verdicts: &'a [Verdict], says: &str) -> &'a Verdict {
    let found = verdicts.iter().find(|verdict| verdict.says.contains(says));
    found.unwrap_or_else(|| panic!("no {says} in {verdicts:?}"))
}

fn judged(scenario: &Scenario, outcomes: &[Outcome]) -> Vec<Verdict> {
    let Judged { promises, accepted, .. } = judge(scenario, outcomes).expect("can be judged");
    promises.into_iter().chain(accepted).collect()
}

#[test]
fn amplification_is_judged_by_the_budget_of_the_policy() {
    let scenario = scenario("amplification");
    let mut outcomes = vec![outcome(Strategy::Exact, 1), outcome(Strategy::Exact, 1000)];
    // Ten of burst, one a second for the run and the last deadline, and a tenth of fifty: 22.
    outcomes[0].counts.received = 72;
    outcomes[1].counts.received = 73;
    for outcome in &mut outcomes {
        outcome.told[0].sent = outcome.counts.received;
    }
    let verdicts = judged(&scenario, &outcomes);
    let one = verdict(&verdicts, "exact, 1 clients: attempts at the dependency for each original");
    assert!(one.passed && one.wanted.contains("1 + 0.1 + (10 + 1 × 7 s) / 50"), "{one:?}");
    assert!(!verdict(&verdicts, "exact, 1000 clients: attempts at the dependency").passed);
    assert!(verdict(&verdicts, "amplification from 1 clients to 1000 clients").passed);
}

#[test]
fn what_was_sent_without_being_admitted_is_found() {
    let scenario = scenario("amplification");
    let mut run = outcome(Strategy::Leased, 1);
    assert!(judged(&scenario, &[outcome(Strategy::Leased, 1)])[0].passed);
    run.told[0].sent = 51;
    let verdicts = judged(&scenario, &[run]);
    assert!(!verdicts[0].passed && verdicts[0].seen.contains("51 sent of 50 admitted"), "{:?}", verdicts[0]);
    let mut run = outcome(Strategy::Naive, 1);
    run.counts.received = 51;
    assert!(!judged(&scenario, &[run])[0].passed);
    let mut run = outcome(Strategy::Naive, 1);
    run.told[0].unended = 1;
    assert!(!judged(&scenario, &[run])[0].passed);
}

#[test]
fn nothing_to_divide_by_is_not_available_and_does_not_pass() {
    let scenario = scenario("amplification");
    let mut run = outcome(Strategy::Naive, 1);
    (run.told, run.counts) = (vec![Told::default()], Counts::default());
    let verdicts = judged(&scenario, &[run]);
    let amplification = verdict(&verdicts, "naive, 1 clients: attempts at the dependency");
    assert!(!amplification.passed && amplification.seen == "n/a", "{amplification:?}");
}

#[test]
fn ranges_count_operations_by_when_they_were_due_and_skip_arrivals() {
    let scenario = scenario("metastable");
    let accept = scenario.accept[0].clone();
    assert_eq!((accept.range.begin_ms(), accept.range.skip), (3_000, 1_000));
    let mut run = outcome(Strategy::Leased, 1);
    assert_eq!(gauge::measure(&scenario, &accept, &run).value, None, "fewer than a thousand are due after it");
    // Twenty times as many, of which the last hundred fail.
    run.told[0].operations = (0..2_000)
        .map(|number| {
            let due_ns = number * 5 * MS;
            let end = if number < 1_900 { End::Completed } else { End::Failed };
            Ended { due_ns, ended_ns: due_ns, load: 0, sent: 1, end }
        })
        .collect();
    // Due from 3 s: 1,400; a thousand are skipped.
    assert_eq!(gauge::measure(&scenario, &accept, &run).value, Some(0.75));
}

#[test]
fn what_leases_decide_is_that_of_the_process_where_it_is_least() {
    let scenario = scenario("agents");
    let measured = |gauge, run: &Outcome| {
        let accept = scenario.accept.iter().find(|accept| accept.gauge == gauge).expect("it has one");
        gauge::measure(&scenario, accept, run)
    };
    let mut run = outcome(Strategy::Leased, 60);
    let ask = |at_ms: i64, via| Ask { from_ns: at_ms * MS, until_ns: at_ms * MS, is_retry: false, cost_micros: 0, via };
    // In its range: three, of which one is refused and does not count.
    run.told[0].asks = vec![ask(9_900, Via::Lease), ask(10_000, Via::Coordinator), ask(10_001, Via::Refused)];
    assert_eq!(measured(Gauge::LeasedShare, &run).value, Some(0.5));
    run.told.push(Told { asks: vec![ask(10_000, Via::Fallback), ask(12_000, Via::Lease)], ..Told::default() });
    assert_eq!(measured(Gauge::LeasedShare, &run).value, Some(0.0));
    run.told[1].asks.clear();
    assert_eq!(measured(Gauge::LeasedShare, &run).value, Some(0.0), "who is admitted nothing has no lease");
    run.told[0].asks = (0..4_000).map(|at_ms| ask(at_ms, Via::Lease)).collect();
    let admitted = measured(Gauge::Admitted, &run);
    assert_eq!(admitted.value, Some(2_500.0));
    assert!(admitted.says.ends_with("decided from 1.5 s to 4 s"), "{}", admitted.says);
}

/// The checker is the one of `budget`; that it is fed with all of a run is shown here.
#[test]
fn a_window_beyond_the_bound_fails_and_its_terms_are_explained() {
    let scenario = scenario("redis_stopped");
    let spec = scenario.bound.as_ref().expect("it is judged by the bound");
    let keeps = |per_second: i64| {
        let mut run = outcome(Strategy::Leased, 60);
        run.told[0].asks = (0..4 * per_second)
            .map(|number| {
                let until_ns = number * 1_000 * MS / per_second;
                Ask { from_ns: until_ns - MS, until_ns, is_retry: false, cost_micros: 0, via: Via::Lease }
            })
            .collect();
        let Judged { promises, bound: lines, .. } = bound::judge(&scenario, spec, &run).expect("can be judged");
        assert!(lines.iter().any(|line| line.term == "beyond_curve" && line.allowed > Some(0.0)), "{lines:?}");
        verdict(&promises, "admissions of every window").passed
    };
    // 100/s and a tenth for those beyond their curves.
    assert!(keeps(105));
    assert!(!keeps(150));
}

#[test]
fn numbers_are_short() {
    assert_eq!([0.5, 2.0, 1.2346, 12_345.6].map(shown), ["0.5", "2", "1.235", "12346"]);
}
