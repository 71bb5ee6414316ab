//! What the simulator looks at, and how it copies a process: both as no owner of a holder could.

use std::sync::{Mutex, OnceLock, atomic::Ordering::Relaxed};

use super::{
    Holder, Outstanding, Share,
    segment::{Cells, Slot, UnitCell, UnitSlot},
    share::{Counters, Hot},
    spent::Spent,
    word::Tag,
};
use crate::lease::{Amounts, LeaseName};

/// Steps of a lease that are looked at.
const STEPS_MAX: usize = 16;

impl Holder {
    /// A second process with all that this one has in memory.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self {
            share: std::sync::Arc::new(self.share.copy()),
            id: self.id.clone(),
            incarnation: self.incarnation,
            weight: self.weight,
            timing: std::sync::Arc::clone(&self.timing),
            jitter: self.jitter.clone(),
            state: self.state,
            epoch: self.epoch,
            name: self.name,
            holds: self.holds,
            sequence: self.sequence,
            outstanding: self.outstanding.as_ref().map(|outstanding| {
                Box::new(Outstanding { ask: outstanding.ask.clone(), sent: outstanding.sent.clone(), ..**outstanding })
            }),
            due_ns: self.due_ns,
            acknowledged_at_once: self.acknowledged_at_once,
            asked_anew_at_once: self.asked_anew_at_once,
            unanswered: self.unanswered,
            counted: self.counted.clone(),
            leaving: self.leaving,
            lender: self.lender.clone(),
        }
    }

    /// The name of the last lease that was applied.
    #[must_use]
    pub const fn name(&self) -> LeaseName {
        self.name
    }
}

impl Spent {
    /// What admitting it has deposited, in micro-tokens.
    #[must_use]
    pub fn deposited_micros(&self) -> i64 {
        self.deposit.into()
    }
}

impl Share {
    /// What it may spend from now on, as it computes it: until when, and how much.
    #[must_use]
    pub fn steps(&self, now_ns: i64) -> Vec<(i64, Amounts)> {
        let mut control = self.lock();
        self.turn_locked(&mut control, now_ns);
        let mut steps = Vec::new();
        let mut at_ns = now_ns;
        while let Some((part, end_ns)) = control.part_at(at_ns) {
            steps.push((end_ns, part));
            at_ns = end_ns;
            if steps.len() >= STEPS_MAX {
                break;
            }
        }
        steps
    }

    fn copy(&self) -> Self {
        let control = self.lock();
        let tag = Tag::of(control.segment());
        let copied = Self {
            hot: Hot {
                admission: self.hot.admission.copy(),
                retry: self.hot.retry.copy(),
                flight: self.hot.flight.copy(),
                admitted: self.hot.admitted.copy(),
            },
            even: Slot::default(),
            odd: Slot::default(),
            lanes: self.lanes.copy(),
            cells: OnceLock::new(),
            counters: Counters {
                collisions: self.counters.collisions.load(Relaxed).into(),
                successes: self.counters.successes.load(Relaxed).into(),
                overflow: self.counters.overflow.load(Relaxed).into(),
                short: self.counters.short.load(Relaxed).into(),
                originals_denied: self.counters.originals_denied.load(Relaxed).into(),
                retries_denied: self.counters.retries_denied.load(Relaxed).into(),
                not_sent: self.counters.not_sent.load(Relaxed).into(),
                overuse: self.counters.overuse.load(Relaxed).into(),
            },
            control: Mutex::new(control.clone()),
        };
        copied.even.publish(&self.even.read());
        copied.odd.publish(&self.odd.read());
        if let Some(cells) = self.cells.get() {
            let cells: Cells = std::array::from_fn(|at| {
                let copy = UnitCell::new(tag);
                cells.get(at).map_or(copy, |cell| {
                    let copy = UnitCell {
                        level: cell.level.copy(),
                        asked: cell.asked.load(Relaxed).into(),
                        even: UnitSlot::default(),
                        odd: UnitSlot::default(),
                    };
                    copy.even.publish(&cell.even.read());
                    copy.odd.publish(&cell.odd.read());
                    copy
                })
            });
            let _ = copied.cells.set(Box::new(cells));
        }
        copied
    }
}
