//! The kill switch: who may rely on it, and when it ends.

use std::sync::{Arc, atomic::Ordering::SeqCst};

use super::fake::{FIVE, Fake, TestFile, replica, state};
use crate::{
    clock::{Clock, Hands},
    config::LeaseTiming,
    policies::{By, HISTORY_MAX, Policies, PoliciesError, Switching},
};

const START_MS: i64 = 1_000_000;
const MINUTE_MS: i64 = 60_000;

/// A replica whose own clock says something else than the store's.
async fn skewed(fake: &Arc<Fake>, wall_ms: i64) -> (Policies, Hands) {
    let (clock, hands) = Clock::manual(wall_ms);
    let policies = Policies::start_timed(Arc::clone(fake), None, LeaseTiming::default(), clock).await.unwrap();
    (policies, hands)
}

fn off(target: &str, minutes: i64) -> Switching {
    let by = By { who: "ann@ops".to_owned(), why: "incident 42".to_owned() };
    Switching { target: target.to_owned(), enabled: false, for_ms: Some(minutes * MINUTE_MS), by }
}

/// Seen to fail with the wall clock of a replica instead of the store's.
#[tokio::test]
async fn q13_a_switch_ends_by_the_stores_clock_whatever_replicas_think() {
    let fake = Fake::new();
    fake.clock_ms.store(START_MS, SeqCst);
    let replicas = [skewed(&fake, START_MS + 3_600_000).await, skewed(&fake, 0).await];
    let pass = async |ms: i64| {
        fake.clock_ms.fetch_add(ms, SeqCst);
        for (policies, hands) in &replicas {
            hands.advance(ms);
            policies.poll().await;
        }
    };
    let switched = replicas[0].0.switch(off("d", 30)).await.unwrap();
    assert_eq!((switched.until_ms, switched.pending), (Some(START_MS + 30 * MINUTE_MS), false));
    for _ in 0..29 {
        pass(MINUTE_MS).await;
        assert!(replicas.iter().all(|(policies, _)| state(policies, "d").1));
    }
    let snapshot = replicas[1].0.snapshot();
    let (target, switch) = snapshot.switch_of(&budget::ids::DependencyId::new("d").unwrap()).unwrap();
    assert_eq!((target, switch.by.who.as_str(), switch.by.why.as_str()), ("d", "ann@ops", "incident 42"));
    assert_eq!((switch.at_ms, switch.until_ms), (START_MS, Some(START_MS + 30 * MINUTE_MS)));
    pass(MINUTE_MS).await;
    pass(500).await;
    assert!(replicas.iter().all(|(policies, _)| !state(policies, "d").1));
    assert_eq!(replicas[0].0.snapshot().version(), replicas[1].0.snapshot().version());
    let (history, ..) = replicas[1].0.history().await;
    let told: Vec<_> = history.iter().map(|change| (change.by.who.as_str(), change.what.as_str())).collect();
    assert_eq!(
        told,
        [("budgetd", "retries on for d"), ("ann@ops", "retries off for \"d\" until 1970-01-01T00:46:40Z")]
    );
}

/// Seen to fail without `show_switches` in `poll`, and without `thrown` in `due`.
#[tokio::test]
async fn a15_with_the_store_away_a_switch_holds_where_it_was_thrown_and_everywhere_once_it_is_back() {
    let fake = Fake::new();
    fake.clock_ms.store(START_MS, SeqCst);
    let ((first, hands), (second, _)) = (skewed(&fake, START_MS).await, skewed(&fake, START_MS).await);
    first.set_retries("other", false).await.unwrap();
    second.refresh().await.unwrap();
    fake.away.store(true, SeqCst);
    let version = first.snapshot().version();
    let switched = first.switch(off("d", 30)).await.unwrap();
    assert_eq!((switched.pending, switched.version), (true, version));
    assert!(
        first
            .switch(Switching { target: "other".into(), enabled: true, ..Switching::default() })
            .await
            .unwrap()
            .pending
    );
    assert_eq!((state(&first, "d").1, state(&first, "other").1), (true, false));
    assert_eq!((state(&second, "d").1, state(&second, "other").1), (false, true));
    first.poll().await;
    assert!(state(&first, "d").1, "a poll in vain changes nothing");
    // Back again: one poll of each.
    fake.away.store(false, SeqCst);
    first.poll().await;
    second.poll().await;
    for policies in [&first, &second] {
        assert_eq!((state(policies, "d").1, state(policies, "other").1), (true, false));
    }
    // It ends in time though the store is away again.
    fake.away.store(true, SeqCst);
    hands.advance(30 * MINUTE_MS);
    first.poll().await;
    assert!(!state(&first, "d").1);
    fake.away.store(false, SeqCst);
    fake.clock_ms.fetch_add(30 * MINUTE_MS, SeqCst);
    first.poll().await;
    second.poll().await;
    assert!(!state(&second, "d").1);
    let (history, ..) = second.history().await;
    assert_eq!(history.iter().count(), 4);
}

#[tokio::test]
async fn a_later_word_elsewhere_beats_one_that_waited() {
    let fake = Fake::new();
    fake.clock_ms.store(START_MS, SeqCst);
    let ((first, _), (second, hands)) = (skewed(&fake, START_MS).await, skewed(&fake, START_MS).await);
    fake.away.store(true, SeqCst);
    first.switch(Switching { target: "d".into(), enabled: true, ..Switching::default() }).await.unwrap();
    hands.advance(MINUTE_MS);
    fake.clock_ms.fetch_add(MINUTE_MS, SeqCst);
    fake.away.store(false, SeqCst);
    second.switch(off("d", 30)).await.unwrap();
    first.poll().await;
    first.poll().await;
    second.poll().await;
    assert!(state(&first, "d").1 && state(&second, "d").1);
}

#[tokio::test]
async fn times_of_switches_are_bounded_and_what_cannot_be_read_is_left_alone() {
    let fake = Fake::new();
    let policies = replica(&fake, Some(&TestFile::new(FIVE))).await;
    for for_ms in [0, -1, 30 * 24 * 60 * MINUTE_MS + 1] {
        let error = policies.switch(Switching { for_ms: Some(for_ms), ..off("d", 1) }).await.unwrap_err();
        assert_eq!(error.to_string(), format!("for_ms is {for_ms}: must be between 1 ms and 30 days"));
    }
    // To throw it again with another end is a change; with the same words it is none.
    let first = policies.set_retries("d", false).await.unwrap();
    assert_eq!(policies.set_retries("d", false).await.unwrap().version, first.version);
    assert!(policies.switch(off("d", 5)).await.unwrap().version > first.version);
}

#[tokio::test]
async fn the_history_is_bounded() {
    let fake = Fake::new();
    let policies = replica(&fake, None).await;
    let huge = format!("# {}\nretry.burst = 1", "x".repeat(700_000));
    for number in 0..4_i64 {
        policies.put("d", &format!("{huge}{number}"), policies.snapshot().version()).await.unwrap();
    }
    let (history, ..) = policies.history().await;
    assert!(history.iter().count() < 4, "by its bytes");
    for _ in 0..HISTORY_MAX {
        for burst in [5, 6] {
            let text = format!("retry.burst = {burst}");
            policies.put("d", &text, policies.snapshot().version()).await.unwrap();
        }
    }
    let (history, set, current) = policies.history().await;
    assert_eq!(history.iter().count(), HISTORY_MAX);
    let before = history.rules_at(current.number - 1, &set, current).unwrap();
    assert_eq!(before["d"], "retry.burst = 5");
    assert_eq!(history.rules_at(current.number, &set, current).unwrap()["d"], "retry.burst = 6");
    for number in [current.number + 1, current.number - i64::try_from(HISTORY_MAX).unwrap(), 0] {
        let error = history.rules_at(number, &set, current).unwrap_err();
        assert!(error.contains("which is what the history holds"), "{error}");
    }
    let rollback = crate::policies::Rollback { to: 1, expected: current, ..Default::default() };
    assert!(matches!(policies.roll_back(rollback).await, Err(PoliciesError::Range { .. })));
}
