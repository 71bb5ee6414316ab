//! What holders asked, were answered, and reported.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use budget::lease::{Amounts, SyncAnswer, SyncAsk};
use opentelemetry::{KeyValue, metrics::Meter};

use super::Decisions;

pub(super) const SYNCS: &str = "budgetd_syncs";
pub(super) const REPORTED: &str = "budgetd_reported";

/// Grants that took nothing away, grants with less of something, grants of nothing, then the other answers.
const ANSWERS: [&str; 10] =
    ["granted", "shrunk", "nothing", "other_epoch", "wait", "dead", "fenced", "not_leased", "invalid", "left"];
/// In the order of [`budget::lease::Usage::counters`], as far as they count attempts.
const KINDS: [&str; 8] = [
    "asked",
    "originals_admitted",
    "retries_admitted",
    "originals_denied",
    "retries_denied",
    "not_sent",
    "fallback_originals",
    "fallback_retries",
];

/// Counters of one label.
#[derive(Debug)]
pub(super) struct SyncBlock {
    answers: [AtomicU64; ANSWERS.len()],
    reported: [AtomicU64; KINDS.len()],
}

/// What has to be remembered of an ask to count its answer.
#[derive(Clone, Debug)]
pub(crate) struct Reported {
    /// What happened since the last answer.
    more: [u64; KINDS.len()],
    held: Option<Amounts>,
}

// === impl Reported ===

impl Reported {
    pub(crate) fn of(ask: &SyncAsk) -> Self {
        let mut more = [0; KINDS.len()];
        let counters = ask.usage.counters().into_iter().zip(ask.counted.counters());
        for (more, (now, then)) in more.iter_mut().zip(counters) {
            *more = u64::try_from(now.saturating_sub(then)).unwrap_or(0);
        }
        Self { more, held: ask.lease.as_ref().map(|lease| lease.value.clone()) }
    }

    /// Position of the answer, and whether it is the first one to this ask.
    fn answered(&self, answer: &SyncAnswer) -> (usize, bool) {
        match answer {
            SyncAnswer::Granted(grant) => {
                let lower = |held: i64, granted: i64| i64::from(granted < held);
                let shrunk = self.held.as_ref().is_some_and(|held| !held.zip(&grant.value, lower).is_zero());
                let at = if grant.value.is_zero() { 2 } else { usize::from(shrunk) };
                // A repeated answer tells how far the lease has come.
                (at, grant.position_ms == 0)
            }
            SyncAnswer::Epoch(_) => (3, false),
            SyncAnswer::Wait(_) => (4, false),
            SyncAnswer::Dead => (5, false),
            SyncAnswer::Fenced => (6, false),
            SyncAnswer::NotLeased(_) => (7, false),
            SyncAnswer::Invalid(_) => (8, false),
            SyncAnswer::Left => (9, true),
        }
    }
}

// === impl SyncBlock ===

impl SyncBlock {
    pub(super) fn new() -> Self {
        let zero = |_| AtomicU64::new(0);
        Self { answers: std::array::from_fn(zero), reported: std::array::from_fn(zero) }
    }

    pub(super) fn count(&self, reported: &Reported, answer: &SyncAnswer) {
        let (at, first) = reported.answered(answer);
        if let Some(counter) = self.answers.get(at) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if first {
            for (counter, more) in self.reported.iter().zip(reported.more) {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
    }
}

pub(super) fn register(decisions: &Arc<Decisions>, meter: &Meter) {
    let all = Arc::clone(decisions);
    meter
        .u64_observable_counter(SYNCS)
        .with_description("Answers to holders, by dependency as configured.")
        .with_callback(move |observer| {
            all.each(
                |block| &block.syncs.answers,
                |count, dependency, at| {
                    let answer = ANSWERS.get(at).copied().unwrap_or("");
                    let dependency = KeyValue::new("dependency", dependency.clone());
                    observer.observe(count, &[KeyValue::new("answer", answer), dependency]);
                },
            );
        })
        .build();
    let all = Arc::clone(decisions);
    meter
        .u64_observable_counter(REPORTED)
        .with_description("Attempts that holders decided by themselves and reported here, by dependency and kind.")
        .with_callback(move |observer| {
            all.each(
                |block| &block.syncs.reported,
                |count, dependency, at| {
                    let kind = KINDS.get(at).copied().unwrap_or("");
                    let dependency = KeyValue::new("dependency", dependency.clone());
                    observer.observe(count, &[dependency, KeyValue::new("kind", kind)]);
                },
            );
        })
        .build();
}
