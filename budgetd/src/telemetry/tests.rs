//! Labels are bounded and follow the policies, and no count is lost by that.
#![allow(clippy::unwrap_used, reason = "tests")]

use budget::{
    decision::{Admitted, Answer, Attempt, Cause, Denied, DenyReason, Priority, Reserve, Step},
    ids::{DependencyId, PolicyVersion, ReservationId},
    ledger::{Counters, Ledger, Start, View},
};
use budget_proto::convert::{Echo, Mode, Received};

use opentelemetry_sdk::trace::SpanData;
use tonic::metadata::MetadataMap;

use super::{decisions::Asked, traces::Parent, *};
use crate::policies::{PolicySet, Snapshot, Switches};

fn snapshot(number: i64, names: &[String]) -> Snapshot {
    let text: String = names.iter().map(|name| format!("[dependency.\"{name}\"]\n")).collect();
    let set = PolicySet::parse("test", &text).unwrap();
    Snapshot::new(PolicyVersion { number, id: 1 }, Arc::new(set), Switches::default())
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn label(snapshot: &Snapshot, name: &str) -> usize {
    snapshot.labels().iter().position(|label| **label == *name).unwrap()
}

fn ask(attempt: Attempt, priority: Priority) -> Asked {
    Asked::of(&Step::Reserve(Reserve { priority, ..Reserve::new(ReservationId([1; 16]), attempt) }))
}

const ADMITTED: Answer = Answer::Admitted(Admitted {
    start_after_ms: 0,
    permit_ttl_ms: 1,
    attempts_left: 0,
    replayed: false,
    would_be_denied: None,
});

/// Dependency and value of all series of decisions.
fn series(telemetry: &Telemetry) -> Vec<(String, f64)> {
    let text = String::from_utf8(telemetry.scrape().unwrap()).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("budgetd_decisions_total{"));
    lines
        .map(|line| {
            let dependency = line.split("dependency=\"").nth(1).unwrap().split('"').next().unwrap();
            (dependency.to_owned(), line.rsplit(' ').next().unwrap().parse().unwrap())
        })
        .collect()
}

#[test]
fn labels_follow_the_policies() {
    let telemetry = Telemetry::new().unwrap();
    let count = |snapshot: &Snapshot, name: &str| {
        let cell = ask(Attempt::ORIGINAL, Priority::Default).answered(&ADMITTED);
        telemetry.decisions.count(snapshot, label(snapshot, name), cell, Mode::Exact);
    };
    let first = snapshot(1, &names(&["a", "b"]));
    ["a", "b", "other"].iter().for_each(|name| count(&first, name));
    let second = snapshot(2, &names(&["b", "c"]));
    ["b", "c"].iter().for_each(|name| count(&second, name));
    let series_of = |telemetry: &Telemetry| {
        let mut series = series(telemetry);
        series.sort_by(|a, b| a.0.cmp(&b.0));
        series
    };
    let owned = |list: &[(&str, f64)]| list.iter().map(|(name, count)| (name.to_string(), *count)).collect::<Vec<_>>();
    assert_eq!(series_of(&telemetry), owned(&[("b", 2.0), ("c", 1.0), ("other", 1.0)]));
    // Stragglers that were decided under the first version.
    ["a", "b"].iter().for_each(|name| count(&first, name));
    assert_eq!(series_of(&telemetry), owned(&[("b", 3.0), ("c", 1.0), ("other", 2.0)]));
}

#[test]
fn every_verdict_has_a_series_of_its_own() {
    let telemetry = Telemetry::new().unwrap();
    let snapshot = snapshot(1, &names(&["a"]));
    let replayed = |answer: &Answer| match answer {
        Answer::Admitted(admitted) => Answer::Admitted(Admitted { replayed: true, ..*admitted }),
        Answer::Denied(_) | Answer::Released(_) | Answer::Extended(_) | Answer::Invalid(_) => panic!(),
    };
    let mut answers = vec![ADMITTED, replayed(&ADMITTED)];
    for reason in DenyReason::ALL {
        answers.push(Answer::Denied(Denied::because(reason)));
        let Answer::Admitted(admitted) = ADMITTED else { panic!() };
        answers.push(Answer::Admitted(Admitted { would_be_denied: Some(reason), ..admitted }));
    }
    for attempt in [Attempt::ORIGINAL, Attempt::retry(2, Cause::Hedge)] {
        for priority in Priority::ALL {
            for answer in &answers {
                let cell = ask(attempt, priority).answered(answer);
                telemetry.decisions.count(&snapshot, 1, cell, Mode::Shadow);
            }
        }
    }
    let series = series(&telemetry);
    assert_eq!(series.len(), 2 * 3 * (2 + 2 * DenyReason::ALL.len()));
    assert!(series.iter().all(|(name, count)| name == "a" && *count == 1.0), "{series:?}");
    let text = String::from_utf8(telemetry.scrape().unwrap()).unwrap();
    let labels = "dependency=\"a\",kind=\"retry\",priority=\"critical\"";
    assert!(text.contains(&format!("{{decision=\"would_be_denied\",{labels},reason=\"retry_budget\"}} 1")), "{text}");
    assert!(text.contains("budgetd_answers_total{dependency=\"a\",mode=\"shadow\"} 192"));
}

#[test]
fn a29_ten_thousand_rules_stay_below_the_bound_and_lose_no_count() {
    let telemetry = Telemetry::new().unwrap();
    let all: Vec<String> = (0..10_000).map(|number| format!("rule-{number:05}")).collect();
    let snapshot = snapshot(1, &all);
    let mut counted = 0.0;
    for index in 0..snapshot.labels().len() {
        for priority in Priority::ALL {
            for reason in DenyReason::ALL {
                let cell = ask(Attempt::ORIGINAL, priority).answered(&Answer::Denied(Denied::because(reason)));
                telemetry.decisions.count(&snapshot, index, cell, Mode::Exact);
                counted += 1.0;
            }
        }
    }
    let series = series(&telemetry);
    assert!(series.len() <= SERIES_MAX, "{} series", series.len());
    assert!(series.len() > SERIES_MAX / 2);
    assert_eq!(series.iter().map(|(_, count)| count).sum::<f64>(), counted);
    let text = telemetry.scrape().unwrap();
    assert!(!String::from_utf8(text).unwrap().contains("overflow"));
}

#[test]
fn the_store_is_contacted_once_and_up_or_not() {
    let telemetry = Telemetry::new().unwrap();
    let watch = telemetry.store.watch();
    telemetry.store.set_up(false);
    assert!(!watch.has_changed().unwrap());
    assert_eq!(telemetry.store.state(), StoreState::default());
    telemetry.store.set_up(true);
    telemetry.store.set_up(false);
    telemetry.store.set_up(false);
    assert!(telemetry.store.state().is_degraded());
    let text = String::from_utf8(telemetry.scrape().unwrap()).unwrap();
    assert!(text.contains("budgetd_store_outages_total 1\n") && text.contains("budgetd_store_up 0\n"));
}

fn received() -> Received {
    let step = Step::Reserve(Reserve::new(ReservationId([1; 16]), Attempt::ORIGINAL));
    Received { dependency: DependencyId::new("a").unwrap(), step, echo: Echo::default() }
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    span.attributes.iter().find(|own| own.key.as_str() == name).map(|own| own.value.to_string())
}

#[test]
fn e3_a_span_that_is_not_ended_says_that_its_call_was_cancelled() {
    let (traces, mut spans) = Traces::new(1.0);
    drop(traces.begin(&Parent::default(), &received()).unwrap());
    let failed = tonic::Status::resource_exhausted("too many");
    traces.begin(&Parent::default(), &received()).unwrap().end(Err(&failed));
    let (cancelled, failed) = (spans.try_recv().unwrap(), spans.try_recv().unwrap());
    assert_eq!(attribute(&cancelled, "rpc.grpc.status_code").as_deref(), Some("1"));
    assert_eq!(attribute(&failed, "rpc.grpc.status_code").as_deref(), Some("8"));
    assert_eq!(failed.status, opentelemetry::trace::Status::error("too many"));
    assert!(spans.try_recv().is_err(), "each once");
}

#[test]
fn e3_spans_without_room_are_counted_and_cost_no_memory() {
    let (traces, mut spans) = Traces::new(1.0);
    for _ in 0..5_000 {
        drop(traces.begin(&Parent::default(), &received()).unwrap());
    }
    let mut kept = 0;
    while spans.try_recv().is_ok() {
        kept += 1;
    }
    assert_eq!((kept, traces.dropped()), (2_048, 5_000 - 2_048));
}

#[test]
fn e3_the_share_of_traces_holds_and_none_means_none() {
    let begun = |share: f64| {
        let (traces, _spans) = Traces::new(share);
        let parent = traces.parent(&MetadataMap::new());
        (0..100_000).filter(|_| traces.begin(&parent, &received()).is_some()).count()
    };
    assert_eq!((begun(0.0), begun(1.0)), (0, 100_000));
    // Ten standard deviations.
    assert!((700..1_300).contains(&begun(0.01)));
    assert!(Traces::default().begin(&Parent::default(), &received()).is_none());
}

#[test]
fn a_ledger_that_falls_has_lost_its_state() {
    let ledgers = Ledgers::default();
    let set = PolicySet::parse("test", "[dependency.a]\n").unwrap();
    let snapshot = Snapshot::new(PolicyVersion { number: 1, id: 1 }, Arc::new(set), Switches::default());
    let resolved = snapshot.resolve(&DependencyId::new("a").unwrap()).unwrap();
    let ledger = Ledger::new(resolved.version, Arc::clone(&resolved.numbers), Start::Full, 0);
    let resets = || ledgers.resets().first().copied();
    let look = |counters: Option<Counters>| {
        let view = counters.map(|counters| View { counters, ..ledger.view(0) });
        ledgers.show(vec![(DependencyId::new("a").unwrap(), Arc::clone(&resolved.policy), view)]);
        resets().unwrap()
    };
    let admitted = |originals_admitted| Some(Counters { originals_admitted, ..Counters::default() });
    let seen = [None, admitted(5), admitted(7), None, admitted(7), admitted(3), admitted(9), None, admitted(1)];
    assert_eq!(seen.map(look), [0, 0, 0, 0, 0, 1, 1, 1, 2]);
    ledgers.show(Vec::new());
    assert_eq!(resets(), None, "no rule names it any more");
}
