//! What a holder admits beyond its curve, or before its first lease, while no coordinator can be asked: its
//! [fallback](crate::fallback), which earns only while there is no lease, and what it counts.

use super::{
    NANOS_PER_MS,
    share::{Local, LocalAsk},
    spent::Spent,
};
use crate::{
    fallback::{Ask, Fallback, Limits},
    guard::{Guard, on},
    lease::Rules,
    units::div_ceil,
};

/// The fallback of one incarnation.
#[derive(Clone, Debug)]
pub(super) struct Beyond {
    /// It earns from here.
    from_ms: i64,
    /// From the first time that it is asked.
    used: Option<Box<Used>>,
}

/// A fallback that was asked, and its counters.
#[derive(Clone, Debug)]
struct Used {
    fallback: Fallback,
    counts: Counts,
}

/// What the fallback admitted, and what was refused since no coordinator could be asked, cumulative.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) originals_admitted: i64,
    pub(super) retries_admitted: i64,
    pub(super) originals_denied: i64,
    pub(super) retries_denied: i64,
}

// === impl Beyond ===

impl Beyond {
    pub(super) fn new(now_ns: i64) -> Self {
        Self { from_ms: div_ceil(now_ns, NANOS_PER_MS), used: None }
    }

    fn used(&mut self) -> &mut Used {
        let used = || Box::new(Used { fallback: Fallback::new(self.from_ms), counts: Counts::default() });
        self.used.get_or_insert_with(used)
    }

    /// A lease is over: the fallback earns from here. `left` is what the lease did not spend.
    pub(super) fn begin(&mut self, rules: &Rules, at_ns: i64, left: i64) {
        self.from_ms = self.from_ms.max(div_ceil(at_ns, NANOS_PER_MS));
        let untouched = self.used.is_none() && on(Guard::FallbackApart) && on(Guard::FallbackKeepsLevel);
        if !untouched {
            let from_ms = self.from_ms;
            self.used().fallback.begin(&Limits::told(rules), from_ms, left);
        }
    }

    pub(super) fn level(&self) -> i64 {
        self.used.as_ref().map_or(0, |used| used.fallback.level())
    }

    pub(super) fn counts(&self) -> Counts {
        self.used.as_ref().map(|used| used.counts).unwrap_or_default()
    }

    pub(super) fn count_refusal(&mut self, is_retry: bool) {
        let counts = &mut self.used().counts;
        let count = if is_retry { &mut counts.retries_denied } else { &mut counts.originals_denied };
        *count = count.saturating_add(1);
    }

    pub(super) fn deposit(&mut self, micros: i64) {
        self.used().fallback.deposit(micros);
    }

    pub(super) fn reserve(&mut self, rules: &Rules, now_ns: i64, ask: &LocalAsk<'_>) -> Local {
        let limits = Limits::told(rules);
        let LocalAsk { attempt, priority, costs } = *ask;
        let until_ns = now_ns.saturating_add(rules.permit_ttl_ms.saturating_mul(NANOS_PER_MS));
        let Used { fallback, counts } = self.used();
        let asked = Ask { attempt, priority, costs, time_left_ms: None };
        match fallback.decide(&limits, now_ns.div_euclid(NANOS_PER_MS), &asked) {
            Ok(None) => {
                let is_original = !attempt.is_retry();
                let count = if is_original { &mut counts.originals_admitted } else { &mut counts.retries_admitted };
                *count = count.saturating_add(1);
                let left = u16::try_from(limits.attempts_left(attempt)).unwrap_or(0);
                Local::Admitted(Spent::beyond(until_ns, left, is_original, rules.earn_on_success))
            }
            Ok(Some(reason)) => Local::Admitted(Spent::shadow(until_ns, reason, ask)),
            Err(denied) => Local::Denied(denied),
        }
    }
}
