//! How a permit ends: checked before it is sent, handed back unsent, or settled by what became of it.

use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use super::{Share, TRIES, bump, find};
use crate::{
    decision::{Cost, Outcome},
    guard::{Guard, on},
    holder::{
        segment::{Cells, Segment},
        spent::{self, Spent, UnitSpent},
        word::{CLOCK_MAX, Level, Tag},
    },
    ids::UnitId,
    units::MICROS_PER_TOKEN,
};

impl Share {
    /// Whether a permit may still be sent: its step of its lease is not over, nor its life.
    #[must_use]
    #[inline]
    pub fn check(&self, spent: &Spent, now_ns: i64) -> bool {
        now_ns < spent.until_ns || !on(Guard::CheckBeforeSending)
    }

    /// Takes back a permit of which not one byte went out. What it took goes to the same step of the same lease only, as
    /// far as that has not earned it anew; the deposit of an original is taken back, into debt if it is spent.
    pub fn hand_back(&self, spent: Spent, now_ns: i64) {
        bump(&self.counters.not_sent);
        if spent.is(spent::FALLBACK) {
            return;
        }
        self.put_back(&spent, now_ns);
        if spent.deposit > 0 && on(Guard::HandBackTakesDeposit) {
            // A step that is over clips first, or what it clips would pay for the deposit.
            if now_ns >= self.slot(self.hot.retry.tag()).end_ns.load(Relaxed) {
                self.turn(now_ns);
            }
            self.take_deposit_back(spent.deposit.into());
        }
    }

    /// Records how a sent attempt ended, and what it cost: a unit left out keeps its estimate.
    #[inline]
    pub fn settle(&self, spent: Spent, now_ns: i64, outcome: Outcome, actual: &[Cost]) {
        if spent.is(spent::PERMIT) && outcome != Outcome::Abandoned {
            self.hot.flight.give(spent.slot);
        }
        if outcome == Outcome::Success && spent.is(spent::EARNS) {
            self.earn(&spent);
        }
        if !actual.is_empty() && !spent.is(spent::FALLBACK | spent::SHADOW) {
            self.settle_units(&spent, now_ns, actual);
        }
    }

    /// Undoes the withdrawals of a permit and frees its slot.
    pub(super) fn put_back(&self, spent: &Spent, now_ns: i64) {
        if spent.is(spent::PERMIT) {
            self.hot.flight.give(spent.slot);
        }
        let tag = spent.tag;
        if now_ns >= spent.until_ns && on(Guard::HandBackToSameLease) {
            return;
        }
        let slot = self.slot(tag);
        let segment = slot.read();
        let line = |line: i64| if on(Guard::HandBackToSameLease) { line } else { i64::MIN };
        let to = |level: &Level| if on(Guard::HandBackToSameLease) { tag } else { level.tag() };
        if spent.is(spent::ADMISSION) {
            let full = segment.clock(now_ns).saturating_sub(segment.burst);
            self.hot.admission.give(to(&self.hot.admission), line(full), spent.admission, MICROS_PER_TOKEN);
        }
        if spent.retry_cost > 0 {
            let full = segment.retry_clock(self.earned(segment.flags)).saturating_sub(segment.retry_burst);
            self.hot.retry.give(to(&self.hot.retry), line(full), spent.retry, spent.retry_cost.into());
        }
        for unit in spent.units.iter().flat_map(|units| units.iter()) {
            self.refund(tag, &segment, now_ns, unit, unit.estimate_micros);
        }
    }

    fn refund(&self, tag: Tag, segment: &Segment, now_ns: i64, unit: &UnitSpent, amount: i64) {
        let Some((cell, slot)) = self.cells.get().and_then(|cells| find(cells, tag.is_odd(), unit.unit)) else {
            return;
        };
        let part = slot.read();
        let clock = part.pace().at(now_ns.min(segment.end_ns).saturating_sub(segment.start_ns));
        cell.level.give(tag, clock.saturating_sub(part.burst), unit.receipt, amount);
    }

    /// Lowers the retry level by a deposit, into debt of at most one burst.
    fn take_deposit_back(&self, deposit: i64) {
        for _ in 0..TRIES {
            let (tag, _) = self.hot.retry.read();
            let segment = self.slot(tag).read();
            let deepest = segment.retry_clock(self.earned(segment.flags)).saturating_add(segment.retry_burst);
            let change = |mark: i64| mark.max(mark.saturating_add(deposit).min(deepest.min(CLOCK_MAX)));
            if self.hot.retry.change(tag, change).is_ok() {
                return;
            }
        }
    }

    fn earn(&self, spent: &Spent) {
        if spent.is(spent::FALLBACK) {
            self.lock().earn_beyond();
        } else {
            self.counters.successes.fetch_add(1, AcqRel);
        }
    }

    fn settle_units(&self, spent: &Spent, now_ns: i64, actual: &[Cost]) {
        let Some(cells) = self.cells.get() else { return };
        for cost in actual {
            let estimated = spent.units.iter().flat_map(|units| units.iter()).find(|unit| unit.unit == cost.unit);
            let more = cost.amount_micros.saturating_sub(estimated.map_or(0, |unit| unit.estimate_micros));
            if more > 0 {
                self.charge(cells, now_ns, cost.unit, more);
            } else if let (Some(unit), true) = (estimated, now_ns < spent.until_ns) {
                let segment = self.slot(spent.tag).read();
                self.refund(spent.tag, &segment, now_ns, unit, more.saturating_neg());
            }
        }
    }

    /// Takes `amount`, into debt of at most one burst of the lease; what exceeds that is overuse.
    fn charge(&self, cells: &Cells, now_ns: i64, unit: UnitId, amount: i64) {
        let mut left = amount;
        for _ in 0..TRIES {
            let tag = self.hot.admission.tag();
            let Some((cell, slot)) = find(cells, tag.is_odd(), unit) else { break };
            let segment = self.slot(tag).read();
            if now_ns >= segment.end_ns {
                self.turn(now_ns);
                continue;
            }
            let part = slot.read();
            let clock = part.pace().at(now_ns.saturating_sub(segment.start_ns));
            let deepest = clock.saturating_add(part.debt);
            let mut taken = 0;
            let changed = cell.level.change(tag, |mark| {
                let mark = mark.max(clock.saturating_sub(part.burst));
                taken = amount.min(deepest.saturating_sub(mark).max(0));
                mark.saturating_add(taken)
            });
            if changed.is_ok() {
                left = amount.saturating_sub(taken);
                break;
            }
            self.turn(now_ns);
        }
        if left > 0 {
            self.counters.overuse.fetch_add(left, Relaxed);
        }
    }
}
