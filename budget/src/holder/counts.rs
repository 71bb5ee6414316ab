//! What is reported: cumulative counters of one incarnation.

use std::sync::atomic::Ordering::Relaxed;

use super::{
    control::Control,
    segment::LEASED,
    share::{Share, find},
    word::Tag,
};
use crate::{ids::UnitId, lease::Usage};

/// What a report begins from, and what the next one may not be below.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// Counters when this incarnation began, if it is not the first.
    base: Option<Box<Usage>>,
    /// Deposits. Other counters only rise by themselves.
    deposited: i64,
    units: Option<Box<Units>>,
}

/// Counters of cost units that are not in their cells.
#[derive(Clone, Debug, Default)]
struct Units {
    /// Of units that the policy dropped.
    gone: Vec<(UnitId, i64)>,
    told: Box<[(UnitId, i64)]>,
}

fn of(units: &[(UnitId, i64)], unit: UnitId) -> i64 {
    units.iter().find(|(id, _)| *id == unit).map_or(0, |(_, asked)| *asked)
}

// === impl Told ===

impl Told {
    /// A new life begins with these counters.
    pub(super) fn begin_at(&mut self, counted: Usage) {
        self.base = Some(Box::new(counted));
        self.deposited = 0;
        if let Some(units) = &mut self.units {
            units.told = Box::default();
        }
    }

    /// Counters of units that the policy dropped.
    pub(super) fn gone(&mut self) -> &mut Vec<(UnitId, i64)> {
        &mut self.units.get_or_insert_default().gone
    }

    /// What to report where the share has counted so much.
    fn tell(&mut self, counted: &Usage) -> Usage {
        let none = Usage::default();
        let base = self.base.as_deref().unwrap_or(&none);
        let since = |get: fn(&Usage) -> i64| get(counted).saturating_sub(get(base));
        let told = self.units.as_ref().map_or(&[][..], |units| &units.told);
        let unit = |(unit, asked): &(UnitId, i64)| {
            (*unit, asked.saturating_sub(of(&base.units_asked, *unit)).max(of(told, *unit)))
        };
        let usage = Usage {
            asked: since(|usage| usage.asked),
            originals_admitted: since(|usage| usage.originals_admitted),
            retries_admitted: since(|usage| usage.retries_admitted),
            originals_denied: since(|usage| usage.originals_denied),
            retries_denied: since(|usage| usage.retries_denied),
            not_sent: since(|usage| usage.not_sent),
            // The fallback's own counters begin with the incarnation.
            fallback_originals: counted.fallback_originals,
            fallback_retries: counted.fallback_retries,
            deposited_micros: since(|usage| usage.deposited_micros).max(self.deposited),
            units_asked: counted.units_asked.iter().map(unit).collect(),
            overuse_micros: since(|usage| usage.overuse_micros),
        };
        self.deposited = usage.deposited_micros;
        if !usage.units_asked.is_empty() || self.units.is_some() {
            self.units.get_or_insert_default().told = usage.units_asked.clone();
        }
        usage
    }
}

// === impl Share ===

impl Share {
    pub(super) fn usage_locked(&self, control: &mut Control) -> Usage {
        let counted = self.counted(control);
        control.told.tell(&counted)
    }

    /// All counters since the share began.
    pub(super) fn counted(&self, control: &Control) -> Usage {
        let load = |counter: &std::sync::atomic::AtomicI64| counter.load(Relaxed);
        let counters = &self.counters;
        let beyond = control.beyond.counts();
        let (denied, retries_denied) = (load(&counters.originals_denied), load(&counters.retries_denied));
        let originals_admitted = self.originals();
        let retries_admitted = self.retries();
        let segment = self.current(control);
        let clock = segment.retry_clock(self.earned(segment.flags));
        let pending = clock.saturating_sub(self.hot.retry.read().1).saturating_sub(segment.retry_burst).max(0);
        let now_deposited = if segment.flags & LEASED == 0 { 0 } else { clock.saturating_sub(pending) };
        let odd = Tag::of(control.segment()).is_odd();
        let cells = self.cells.get();
        Usage {
            // What the retry budget refuses, or the policy, needs no rate.
            asked: [originals_admitted, retries_admitted, denied, load(&counters.short)]
                .iter()
                .fold(0, |sum, count| sum.saturating_add(*count)),
            originals_admitted,
            retries_admitted,
            originals_denied: denied.saturating_add(beyond.originals_denied),
            retries_denied: retries_denied.saturating_add(beyond.retries_denied),
            not_sent: load(&counters.not_sent),
            fallback_originals: beyond.originals_admitted,
            fallback_retries: beyond.retries_admitted,
            deposited_micros: (control.deposited.saturating_add(now_deposited))
                .saturating_sub(load(&self.counters.overflow)),
            units_asked: (control.rules.units.iter())
                .map(|unit| {
                    let cell = cells.and_then(|cells| find(cells, odd, *unit));
                    (*unit, cell.map_or(0, |(cell, _)| load(&cell.asked)))
                })
                .collect(),
            overuse_micros: load(&counters.overuse),
        }
    }
}
