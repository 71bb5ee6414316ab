//! How the counters of calls are shown.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

use budget::decision::{Outcome, Priority, ReleaseResult, TerminalState};
use budget_proto::convert::Mode;
use opentelemetry::{KeyValue, metrics::Meter};
use tonic::Code;

use super::{
    Block, CALLS, DECISIONS, Decisions, EXTEND_RESULTS, EXTENDS, KINDS, MODES, OPERATIONS, RELEASES, VERDICTS, verdict,
};

pub(in crate::telemetry) fn register(decisions: &Arc<Decisions>, meter: &Meter) {
    let label = |key: &'static str, value: &'static str| KeyValue::new(key, value);
    show(
        decisions,
        meter,
        (DECISIONS, "Answers to Reserve, by dependency as configured, kind of attempt, priority, decision, reason."),
        |block| &block.decisions,
        move |at| {
            let (decision, reason) = verdict(at % VERDICTS);
            let priority = Priority::ALL.get(at / VERDICTS % Priority::ALL.len()).map_or("", |p| p.name());
            let kind = KINDS.get(at / VERDICTS / Priority::ALL.len()).copied().unwrap_or("");
            vec![label("decision", decision), label("kind", kind), label("priority", priority), label("reason", reason)]
        },
    );
    show(
        decisions,
        meter,
        (MODES, "Answers to Reserve, by dependency as configured and by how they were come by."),
        |block| &block.modes,
        move |at| vec![label("mode", Mode::ALL.get(at).map_or("", |mode| mode.name()))],
    );
    show(
        decisions,
        meter,
        (RELEASES, "Answers to Release, by dependency as configured, outcome reported, and result."),
        |block| &block.releases,
        move |at| {
            let results = ReleaseResult::ALL;
            let sent = (at / results.len()).checked_sub(1).and_then(|outcome| Outcome::ALL.get(outcome));
            let outcome = sent.map_or("not_sent", |outcome| outcome.name());
            let result = results.get(at % results.len()).map_or("", |result| result.name());
            vec![label("outcome", outcome), label("result", result)]
        },
    );
    show(
        decisions,
        meter,
        (EXTENDS, "Answers to Extend, by dependency as configured and result."),
        |block| &block.extends,
        move |at| vec![label("result", EXTEND_RESULTS.get(at).copied().unwrap_or(""))],
    );
    show(
        decisions,
        meter,
        (OPERATIONS, "Operations that ended, by dependency as configured and terminal state."),
        |block| &block.operations,
        move |at| vec![label("state", TerminalState::ALL.get(at).map_or("", |state| state.name()))],
    );
    register_failures(decisions, meter);
    register_gauges(decisions, meter);
}

/// A counter with a series for each cell of each dependency; `labels` has the others of a cell.
fn show<const CELLS: usize>(
    decisions: &Arc<Decisions>,
    meter: &Meter,
    (name, description): (&'static str, &'static str),
    cells: fn(&Block) -> &[AtomicU64; CELLS],
    labels: impl Fn(usize) -> Vec<KeyValue> + Send + Sync + 'static,
) {
    let all = Arc::clone(decisions);
    meter
        .u64_observable_counter(name)
        .with_description(description)
        .with_callback(move |observer| {
            all.each(cells, |count, dependency, at| {
                let mut labels = labels(at);
                labels.push(KeyValue::new("dependency", dependency.clone()));
                observer.observe(count, &labels);
            });
        })
        .build();
}

fn register_gauges(decisions: &Arc<Decisions>, meter: &Meter) {
    type Read = fn(&Decisions) -> &AtomicI64;
    let gauges: [(&str, &str, Read); 2] = [
        ("budgetd_calls_in_progress", "Calls that wait for the store.", |all| &all.in_progress),
        ("budgetd_sessions", "Open Session streams.", |all| &all.sessions),
    ];
    for (name, description, gauge) in gauges {
        let all = Arc::clone(decisions);
        meter
            .i64_observable_gauge(name)
            .with_description(description)
            .with_callback(move |observer| observer.observe(gauge(&all).load(Ordering::Relaxed), &[]))
            .build();
    }
}

fn register_failures(decisions: &Arc<Decisions>, meter: &Meter) {
    let all = Arc::clone(decisions);
    meter
        .u64_observable_counter("budgetd_failures")
        .with_description("Calls that failed, by call and gRPC status code.")
        .with_callback(move |observer| {
            for ((_, call), codes) in CALLS.iter().zip(&all.failures) {
                for (code, count) in codes.iter().enumerate() {
                    let count = count.load(Ordering::Relaxed);
                    if count > 0 {
                        let code = i32::try_from(code).map_or(Code::Unknown, Code::from_i32);
                        observer.observe(
                            count,
                            &[KeyValue::new("call", *call), KeyValue::new("code", format!("{code:?}"))],
                        );
                    }
                }
            }
        })
        .build();
}
