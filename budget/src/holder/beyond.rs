//! What a holder admits beyond its curve, or before its first lease, while no coordinator can be asked.
//!
//! A bucket of its own that starts empty with each incarnation and earns only while there is no lease; what is left
//! waits for the next time. Its tokens never enter a lease, nor a lease's tokens it.

use super::{
    share::{Local, LocalAsk},
    spent::Spent,
};
use crate::{
    decision::{Denied, DenyReason, Priority},
    guard::{Guard, on},
    ids::UnitId,
    lease::{LocalOriginals, Rules},
    units::{MICROS_PER_TOKEN, PPM, checked_div},
};

const NANOS_PER_SECOND: i128 = 1_000_000_000;

/// The fallback of one incarnation.
#[derive(Clone, Debug)]
pub(super) struct Beyond {
    /// Earned up to here.
    at_ns: i64,
    /// From the first time that it is asked.
    used: Option<Box<Used>>,
}

/// Levels and counters of a fallback that was asked.
#[derive(Clone, Debug, Default)]
struct Used {
    originals: Rationed,
    units: Vec<(UnitId, Rationed)>,
    /// Earned by originals admitted here, at most one token.
    retry_micros: i64,
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

/// A bucket of one second's worth.
#[derive(Clone, Copy, Debug, Default)]
struct Rationed {
    micros: i64,
    /// Of the refill's division by 10⁹.
    remainder: i64,
}

// === impl Rationed ===

/// One second's worth, at least one token.
const fn burst(rate: i64) -> i64 {
    if rate > MICROS_PER_TOKEN { rate } else { MICROS_PER_TOKEN }
}

impl Rationed {
    fn refill(&mut self, rate: i64, elapsed_ns: i64) {
        let total = i128::from(rate).saturating_mul(elapsed_ns.into()).saturating_add(self.remainder.into());
        let earned = total.checked_div(NANOS_PER_SECOND).unwrap_or(0);
        self.remainder = total.checked_rem(NANOS_PER_SECOND).and_then(|rest| i64::try_from(rest).ok()).unwrap_or(0);
        self.micros = self.micros.saturating_add(i64::try_from(earned).unwrap_or(i64::MAX));
        if self.micros >= burst(rate) {
            *self = Self { micros: burst(rate), remainder: 0 };
        }
    }

    /// None: covered. Else how long to wait; none if that never helps.
    fn short(&self, rules: &Rules, rate: i64, priority: Priority, cost: i64) -> Option<Denied> {
        let burst = burst(rate);
        let fallback = Denied::because(DenyReason::Fallback);
        if cost > burst {
            return Some(Denied { impossible: true, ..fallback });
        }
        let share = rules.priority_ppm.get(priority.index()).copied().unwrap_or(PPM);
        let kept = checked_div(checked_div(burst, PPM).saturating_mul(PPM.saturating_sub(share)), PPM);
        let keep = kept.saturating_mul(MICROS_PER_TOKEN).min(burst.saturating_sub(cost));
        let missing = cost.saturating_add(keep).saturating_sub(self.micros);
        if missing <= 0 {
            return None;
        }
        let wait_ms = missing.saturating_mul(1_000).checked_div(rate).map(|ms| ms.saturating_add(1));
        Some(Denied { retry_after_ms: wait_ms, ..fallback })
    }
}

// === impl Beyond ===

impl Beyond {
    pub(super) const fn new(now_ns: i64) -> Self {
        Self { at_ns: now_ns, used: None }
    }

    fn used(&mut self) -> &mut Used {
        self.used.get_or_insert_default()
    }

    /// A lease is over: the fallback earns from here. `left` is what the lease did not spend.
    pub(super) fn begin(&mut self, rules: &Rules, at_ns: i64, left: i64) {
        self.at_ns = self.at_ns.max(at_ns);
        if !on(Guard::FallbackApart) {
            let originals = &mut self.used().originals;
            originals.micros = originals.micros.saturating_add(left.max(0));
        }
        if let (LocalOriginals::Rate(rate), false) = (rules.fallback.originals, on(Guard::FallbackKeepsLevel)) {
            self.used().originals.micros = burst(rate);
            self.used().retry_micros = MICROS_PER_TOKEN;
        }
    }

    pub(super) fn level(&self) -> i64 {
        self.used.as_ref().map_or(0, |used| used.originals.micros.max(0))
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
        self.used().deposit(micros);
    }

    pub(super) fn reserve(&mut self, rules: &Rules, now_ns: i64, ask: &LocalAsk<'_>) -> Local {
        let elapsed_ns = now_ns.saturating_sub(self.at_ns).max(0);
        self.at_ns = self.at_ns.max(now_ns);
        let used = self.used();
        used.refill(rules, elapsed_ns);
        used.reserve(rules, now_ns, ask)
    }
}

// === impl Used ===

impl Used {
    fn deposit(&mut self, micros: i64) {
        self.retry_micros = self.retry_micros.saturating_add(micros.max(0)).min(MICROS_PER_TOKEN);
    }

    fn refill(&mut self, rules: &Rules, elapsed_ns: i64) {
        if let LocalOriginals::Rate(rate) = rules.fallback.originals {
            self.originals.refill(rate, elapsed_ns);
            for (unit, rate) in &rules.fallback.units {
                match self.units.iter_mut().find(|(id, _)| id == unit) {
                    Some((_, state)) => state.refill(*rate, elapsed_ns),
                    // A unit's time starts when the fallback first hears of it.
                    None => self.units.push((*unit, Rationed::default())),
                }
            }
            self.units.retain(|(id, _)| rules.fallback.units.iter().any(|(unit, _)| unit == id));
        }
        if !on(Guard::FloorIsCentral) {
            let earned = elapsed_ns.div_euclid(1_000);
            self.retry_micros = self.retry_micros.saturating_add(earned).min(MICROS_PER_TOKEN);
        }
    }

    fn reserve(&mut self, rules: &Rules, now_ns: i64, ask: &LocalAsk<'_>) -> Local {
        let permit_ns = rules.permit_ttl_ms.saturating_mul(1_000_000);
        let until_ns = now_ns.saturating_add(permit_ns);
        let left = rules.max_attempts.saturating_sub(ask.attempt.number.into());
        if let Some(denied) = self.refusal(rules, ask, left) {
            if rules.shadow {
                return Local::Admitted(Spent::shadow(until_ns, denied.reason, ask));
            }
            return Local::Denied(denied);
        }
        if let LocalOriginals::Rate(_) = rules.fallback.originals {
            self.originals.micros = self.originals.micros.saturating_sub(MICROS_PER_TOKEN);
            for cost in ask.costs {
                if let Some((_, state)) = self.units.iter_mut().find(|(id, _)| *id == cost.unit) {
                    state.micros = state.micros.saturating_sub(cost.amount_micros.max(0));
                }
            }
        }
        match ask.attempt.cause.and_then(|cause| rules.retry_cost_micros.get(cause.index())) {
            Some(cost) => {
                self.retry_micros = self.retry_micros.saturating_sub(*cost);
                self.counts.retries_admitted = self.counts.retries_admitted.saturating_add(1);
            }
            None => {
                self.counts.originals_admitted = self.counts.originals_admitted.saturating_add(1);
                if !rules.earn_on_success {
                    self.deposit(rules.deposit_micros);
                }
            }
        }
        let left = u16::try_from(left).unwrap_or(0);
        Local::Admitted(Spent::beyond(until_ns, left, !ask.attempt.is_retry(), rules.earn_on_success))
    }

    fn refusal(&self, rules: &Rules, ask: &LocalAsk<'_>, left: i64) -> Option<Denied> {
        let fallback = Denied::because(DenyReason::Fallback);
        if ask.attempt.is_retry() && rules.retries_off {
            return Some(Denied::because(DenyReason::RetriesOff));
        }
        if left < 0 {
            return Some(Denied { impossible: true, ..Denied::because(DenyReason::AttemptLimit) });
        }
        if let Some(cost) = ask.attempt.cause.and_then(|cause| rules.retry_cost_micros.get(cause.index())) {
            if !rules.fallback.retries_earned {
                return Some(fallback);
            }
            if *cost > self.retry_micros {
                return Some(Denied { impossible: *cost > MICROS_PER_TOKEN, ..fallback });
            }
        }
        match rules.fallback.originals {
            LocalOriginals::Deny => Some(fallback),
            LocalOriginals::Allow => None,
            LocalOriginals::Rate(rate) => {
                self.originals.short(rules, rate, ask.priority, MICROS_PER_TOKEN).or_else(|| {
                    ask.costs.iter().filter(|cost| cost.amount_micros > 0).find_map(|cost| {
                        let (_, rate) = rules.fallback.units.iter().find(|(id, _)| *id == cost.unit)?;
                        let state = self.units.iter().find(|(id, _)| *id == cost.unit).map(|(_, state)| *state);
                        state.unwrap_or_default().short(rules, *rate, ask.priority, cost.amount_micros)
                    })
                })
            }
        }
    }
}
