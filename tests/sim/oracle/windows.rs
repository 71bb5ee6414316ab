//! T1 and T2 over all windows at once, in one pass over what really happened.
//!
//! What is admitted beyond the curve is judged incarnation by incarnation, each against its own fallback: that is the
//! bound's first term with its numbers. All else is judged against the policy and the other terms.

use std::collections::HashMap;

use budget::lease::{LocalOriginals, Rules};

use crate::{
    history::{Admission, History, Quota, Source},
    time::{MS, S},
};

/// Millionths of clock drift: d.
const DRIFT_PPM: i128 = 1_000;

/// What one incarnation may admit beyond its curve.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beyond {
    /// Micro-tokens per second.
    pub rate: i64,
    /// Everything.
    pub all: bool,
    /// One token at most is held.
    pub ratio: i64,
    pub earned: bool,
}

impl Beyond {
    /// What a reply tells; the largest counts.
    pub(crate) fn learn(&mut self, rules: &Rules) {
        self.ratio = self.ratio.max(rules.deposit_micros);
        self.earned |= rules.fallback.retries_earned;
        match rules.fallback.originals {
            LocalOriginals::Deny => {}
            LocalOriginals::Allow => self.all = true,
            LocalOriginals::Rate(rate) => self.rate = self.rate.max(rate),
        }
    }
}

/// A level that drains at the rate and fills with what is admitted: the excess of the worst window that ends now.
struct Excess {
    /// Millionths of micro-tokens.
    level: i128,
    /// The largest burst since it was last empty.
    burst: i64,
    /// When it was last empty.
    since: i64,
}

/// Micro-tokens per second over nanoseconds, in millionths of micro-tokens, with drift.
fn refill(rate: i64, from: i64, to: i64) -> i128 {
    i128::from(rate) * i128::from(to - from) * (1_000_000 + DRIFT_PPM) / i128::from(S)
}

const FINE: i128 = 1_000_000;

impl Excess {
    const fn new() -> Self {
        Self { level: 0, burst: 0, since: 0 }
    }

    fn drain(&mut self, amount: i128, now: i64) {
        self.level -= amount;
        if self.level <= 0 {
            self.level = 0;
            self.burst = 0;
            self.since = now;
        }
    }

    fn micros(&self) -> i64 {
        i64::try_from(self.level / FINE).unwrap_or(i64::MAX)
    }
}

/// Judges a run. `beyond` tells the fallback of each incarnation.
pub(crate) fn judge(history: &History, beyond: &[Beyond]) -> Result<(), String> {
    let mut admissions = Excess::new();
    let mut retries = Excess::new();
    let mut costs = Excess::new();
    let mut bounds = history.bounds.iter().peekable();
    let mut bound = Quota::default();
    let mut at = 0;
    let mut fallbacks: HashMap<u32, Fallback> = HashMap::new();
    for admission in &history.admissions {
        // Between two changes of the bound and this admission.
        while let Some((from, next)) = bounds.next_if(|(from, _)| *from <= admission.at) {
            pass(&mut admissions, &mut retries, &mut costs, bound, at, *from);
            at = (*from).max(at);
            bound = *next;
            admissions.burst = admissions.burst.max(bound.burst);
            retries.burst = retries.burst.max(bound.retry_burst);
            costs.burst = costs.burst.max(bound.unit_burst);
        }
        pass(&mut admissions, &mut retries, &mut costs, bound, at, admission.at);
        at = admission.at;
        admissions.burst = admissions.burst.max(bound.burst);
        retries.burst = retries.burst.max(bound.retry_burst);
        costs.burst = costs.burst.max(bound.unit_burst);
        if admission.source == Source::Fallback {
            let rules = beyond.get(usize::try_from(admission.stream).unwrap_or(0)).copied().unwrap_or_default();
            fallbacks.entry(admission.stream).or_insert_with(|| Fallback::new(admission.at)).judge(admission, rules)?;
            continue;
        }
        if !admission.unsent {
            admissions.level += 1_000_000 * FINE;
            costs.level += i128::from(admission.cost) * FINE;
        }
        if admission.retry_micros == 0 {
            retries.drain(i128::from(bound.ratio) * FINE, at);
        } else if !admission.unsent {
            retries.level += i128::from(admission.retry_micros) * FINE;
        }
        let (more, more_retries) = widened(history, admissions.since, retries.since, at, bound);
        let allowed = admissions.burst + bound.rate / 1_000 + 1 + more;
        if admissions.micros() > allowed {
            return Err(format!(
                "T1 at {} ms: admissions in the window from {} ms exceed rate·time by {} micro-tokens, allowed are {allowed} ({more} of them named terms)",
                at / MS,
                admissions.since / MS,
                admissions.micros(),
            ));
        }
        // A jump of the clock, or a copied process, may spend as much more of each unit as of admissions.
        let more_costs = if more == 0 { 0 } else { i64::MAX / 4 };
        if costs.micros() > costs.burst + bound.unit_rate / 1_000 + 1 + more_costs {
            return Err(format!(
                "T1 at {} ms: costs in the window from {} ms exceed rate·time by {} micro-tokens, allowed are {}",
                at / MS,
                costs.since / MS,
                costs.micros(),
                costs.burst,
            ));
        }
        // As with admissions, a millisecond more: ledgers count in whole ones.
        let allowed = retries.burst + bound.floor / 1_000 + 1 + more_retries;
        if retries.micros() > allowed {
            return Err(format!(
                "T2 at {} ms: retries in the window from {} ms exceed ratio and floor by {} micro-tokens, allowed are {allowed} ({more_retries} of them named terms)",
                at / MS,
                retries.since / MS,
                retries.micros(),
            ));
        }
    }
    Ok(())
}

fn pass(admissions: &mut Excess, retries: &mut Excess, costs: &mut Excess, bound: Quota, from: i64, to: i64) {
    if to > from {
        admissions.drain(refill(bound.rate, from, to), to);
        retries.drain(refill(bound.floor, from, to), to);
        costs.drain(refill(bound.unit_rate, from, to), to);
    }
}

/// The sum of the named terms whose cause falls into the windows, or into the curve before them.
fn widened(history: &History, since: i64, retries_since: i64, now: i64, bound: Quota) -> (i64, i64) {
    let curve = bound.curve_ms * MS;
    let (admissions, _) = history.widened(since - curve, now);
    let (_, retries) = history.widened(retries_since - curve, now);
    (admissions, retries)
}

/// One incarnation beyond its curve.
struct Fallback {
    at: i64,
    admissions: i128,
    retries: i128,
}

impl Fallback {
    const fn new(at: i64) -> Self {
        Self { at, admissions: 0, retries: 0 }
    }

    fn judge(&mut self, admission: &Admission, rules: Beyond) -> Result<(), String> {
        let rate = rules.rate;
        self.admissions = (self.admissions - refill(rate, self.at, admission.at)).max(0) + 1_000_000 * FINE;
        self.at = admission.at;
        let burst = rate.max(1_000_000);
        if !rules.all && self.admissions > i128::from(burst + rate / 1_000 + 1) * FINE {
            return Err(format!(
                "T1 at {} ms: incarnation {} exceeds its fallback of {rate} micro-tokens per second: {} micro-tokens",
                admission.at / MS,
                admission.stream,
                self.admissions / FINE
            ));
        }
        if admission.retry_micros == 0 {
            self.retries = (self.retries - i128::from(rules.ratio) * FINE).max(0);
        } else {
            self.retries += i128::from(admission.retry_micros) * FINE;
            if !rules.earned || self.retries > 1_000_001 * FINE {
                return Err(format!(
                    "T2 at {} ms: incarnation {} exceeds the retries its fallback earned: {} micro-tokens",
                    admission.at / MS,
                    admission.stream,
                    self.retries / FINE
                ));
            }
        }
        Ok(())
    }
}
