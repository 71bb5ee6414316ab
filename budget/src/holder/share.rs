//! The hot part: local decisions of one dependency, by any number of threads.

mod ending;
mod lanes;
mod look;

use std::sync::{
    Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{
        AtomicI64, AtomicU32,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
};

use super::{
    control::Control,
    segment::{Cells, EARN_ON_SUCCESS, LEASED, LIMITED, SHADOW, SLOTS, Slot},
    spent::{self, Spent, UnitSpent},
    word::{CLOCK_MAX, Flight, Level, Missed, Tag},
};
use crate::{
    decision::{Attempt, Cause, Cost, Denied, Priority},
    ids::UnitId,
    lease::{FallbackRules, Usage},
    units::MICROS_PER_TOKEN,
};

pub(super) use lanes::{Admitted, Lanes};
pub(super) use look::find;
use look::{final_refusal, look_at_unit};

/// A thread that finds the words between two segments this often leaves the decision to the coordinator.
const TRIES: usize = 16;

/// An ask for one attempt, to be decided here and now.
#[derive(Clone, Copy, Debug)]
pub struct LocalAsk<'a> {
    /// Number and cause.
    pub attempt: Attempt,
    /// Its class.
    pub priority: Priority,
    /// Estimates, each unit at most once.
    pub costs: &'a [Cost],
}

/// A local decision.
#[derive(Debug, PartialEq, Eq)]
pub enum Local {
    /// The right to send one attempt.
    Admitted(Spent),
    /// A rule that no coordinator would decide otherwise; or, beyond the lease, the fallback's refusal.
    Denied(Denied),
    /// The local share does not cover it: ask the coordinator, and if that is away [`Share::reserve_beyond`].
    Short,
}

/// What a process may spend of one dependency, and what it has spent. All times are readings of one clock that goes on in
/// suspend, in nanoseconds; a reading older than what other threads have acted on decides nothing.
///
/// Decisions take no lock, but at the end of a step.
#[derive(Debug)]
#[repr(C)]
pub struct Share {
    pub(super) hot: Hot,
    pub(super) even: Slot,
    pub(super) odd: Slot,
    pub(super) lanes: Lanes,
    pub(super) cells: OnceLock<Box<Cells>>,
    pub(super) counters: Counters,
    pub(super) control: Mutex<Control>,
}

/// What decisions write, side by side.
#[derive(Debug)]
pub(super) struct Hot {
    pub(super) admission: Level,
    pub(super) retry: Level,
    pub(super) flight: Flight,
    /// Of all threads, until they are in each other's way.
    pub(super) admitted: Admitted,
}

/// What refusals and later steps write.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Of threads that admitted at the same time, within this segment.
    pub(super) collisions: AtomicU32,
    pub(super) successes: AtomicI64,
    /// Deposits that a full retry bucket could not take, counted when a retry finds it full.
    pub(super) overflow: AtomicI64,
    pub(super) short: AtomicI64,
    pub(super) originals_denied: AtomicI64,
    pub(super) retries_denied: AtomicI64,
    pub(super) not_sent: AtomicI64,
    pub(super) overuse: AtomicI64,
}

/// What a retry takes of its bucket.
struct RetryLook {
    clock: i64,
    burst: i64,
    needed: i64,
    cost: u32,
    /// Deposits that a full bucket could not take.
    lost: i64,
}

// With the rest of a handle it stays below a kilobyte.
const _: () = assert!(size_of::<Share>() <= 528);

// === impl LocalAsk ===

impl LocalAsk<'_> {
    /// A first attempt of the default class without costs.
    pub const ORIGINAL: LocalAsk<'static> =
        LocalAsk { attempt: Attempt::ORIGINAL, priority: Priority::Default, costs: &[] };

    /// A retry of the default class without costs.
    #[must_use]
    pub const fn retry(number: u32, cause: Cause) -> LocalAsk<'static> {
        LocalAsk { attempt: Attempt::retry(number, cause), priority: Priority::Default, costs: &[] }
    }
}

#[inline]
fn attempts_left(left: u32) -> u16 {
    u16::try_from(left).unwrap_or(u16::MAX)
}

fn bump(counter: &AtomicI64) {
    counter.fetch_add(1, Relaxed);
}

// === impl Share ===

impl Share {
    /// Without a lease. `fallback` holds until a policy is told.
    #[must_use]
    pub fn new(fallback: FallbackRules, now_ns: i64) -> Self {
        let control = Control::new(fallback, now_ns);
        let tag = Tag::of(control.segment());
        let hot = Hot {
            admission: Level::new(tag),
            retry: Level::new(tag),
            flight: Flight::default(),
            admitted: Admitted::default(),
        };
        let share = Self {
            hot,
            even: Slot::default(),
            odd: Slot::default(),
            lanes: Lanes::default(),
            cells: OnceLock::new(),
            counters: Counters::default(),
            control: Mutex::new(control),
        };
        let mut control = share.lock();
        share.withdraw(&mut control, now_ns);
        drop(control);
        share
    }

    /// Decides by the lease alone.
    #[inline]
    pub fn reserve(&self, now_ns: i64, ask: &LocalAsk<'_>) -> Local {
        let seen = self.hot.admission.seen();
        let tag = seen.tag();
        let slot = self.slot(tag);
        let flags = slot.flags.load(Relaxed);
        // The common case: an original where admission is limited and nothing else.
        if ask.attempt.cause.is_none()
            && flags & (LEASED | LIMITED | SLOTS) == LEASED | LIMITED
            && ask.costs.is_empty()
            && let Some(left) = slot.attempts.load(Relaxed).checked_sub(ask.attempt.number)
        {
            let start_ns = slot.start_ns.load(Relaxed);
            let end_ns = slot.end_ns.load(Relaxed);
            if (start_ns..end_ns).contains(&now_ns) {
                let burst = slot.burst.load(Relaxed);
                let clock = slot.pace().at(now_ns.wrapping_sub(start_ns));
                let needed = slot.need(ask.priority);
                let collided = || self.collided();
                let taken = self.hot.admission.take_from(seen, clock, burst, needed, MICROS_PER_TOKEN, collided);
                if let Ok(after) = taken {
                    self.admitted().originals.fetch_add(1, AcqRel);
                    let until_ns = end_ns.min(now_ns.saturating_add(slot.permit_ns.load(Relaxed)));
                    let deposit = slot.deposit.load(Relaxed);
                    return Local::Admitted(Spent::original(tag, until_ns, after, deposit, attempts_left(left), flags));
                }
            }
        }
        self.reserve_slowly(now_ns, ask)
    }

    #[inline(never)]
    fn reserve_slowly(&self, now_ns: i64, ask: &LocalAsk<'_>) -> Local {
        let decided = self.decide(now_ns, ask);
        match &decided {
            Ok(Local::Admitted(spent)) if spent.would_be_denied().is_none() => {}
            Ok(_) => bump(match ask.attempt.cause {
                None => &self.counters.originals_denied,
                Some(_) => &self.counters.retries_denied,
            }),
            Err(Missed::Unearned) => {}
            Err(Missed::Short | Missed::Moved) => bump(&self.counters.short),
        }
        // A retry that its budget refuses is no demand: a rate lent for it would lie idle.
        if !ask.costs.is_empty() && !matches!(decided, Ok(Local::Denied(_)) | Err(Missed::Unearned)) {
            self.note_asked(ask.costs);
        }
        decided.unwrap_or(Local::Short)
    }

    /// As [`Self::reserve`] without counting what is refused, and with what the lease lacks.
    fn decide(&self, now_ns: i64, ask: &LocalAsk<'_>) -> Result<Local, Missed> {
        for _ in 0..TRIES {
            let tag = self.hot.admission.tag();
            let slot = self.slot(tag);
            if now_ns >= slot.end_ns.load(Relaxed) {
                self.turn(now_ns);
                continue;
            }
            let flags = slot.flags.load(Relaxed);
            if flags & LEASED == 0 || now_ns < slot.start_ns.load(Relaxed) {
                return Err(Missed::Short);
            }
            if let Some(denied) = final_refusal(ask, flags, slot.attempts.load(Relaxed)) {
                if flags & SHADOW == 0 {
                    return Ok(Local::Denied(denied));
                }
                let until_ns = now_ns.saturating_add(slot.permit_ns.load(Relaxed));
                return Ok(Local::Admitted(Spent::shadow(until_ns, denied.reason, ask)));
            }
            match self.take(now_ns, ask, tag, slot, flags) {
                Ok(spent) => return Ok(Local::Admitted(spent)),
                Err(Missed::Moved) => self.turn(now_ns),
                Err(lacks) => return Err(lacks),
            }
        }
        Err(Missed::Moved)
    }

    /// Takes all or nothing.
    fn take(&self, now_ns: i64, ask: &LocalAsk<'_>, tag: Tag, slot: &Slot, flags: u32) -> Result<Spent, Missed> {
        let start_ns = slot.start_ns.load(Relaxed);
        let until_ns = slot.end_ns.load(Relaxed).min(now_ns.saturating_add(slot.permit_ns.load(Relaxed)));
        let mut spent = Spent::empty(tag, until_ns, flags);
        spent.attempts_left = attempts_left(slot.attempts.load(Relaxed).saturating_sub(ask.attempt.number));
        let elapsed_ns = now_ns.wrapping_sub(start_ns);
        let taken = self.take_parts(now_ns, elapsed_ns, ask, tag, slot, flags, &mut spent);
        if let Err(missed) = taken {
            self.put_back(&spent, now_ns);
            return Err(missed);
        }
        if ask.attempt.is_retry() {
            self.admitted().retries.fetch_add(1, Relaxed);
        } else {
            self.admitted().originals.fetch_add(1, AcqRel);
            spent.flags |= spent::ORIGINAL;
            spent.deposit = if flags & EARN_ON_SUCCESS == 0 { slot.deposit.load(Relaxed) } else { 0 };
        }
        Ok(spent)
    }

    #[expect(clippy::too_many_arguments, reason = "one function in two, so that what was taken can be put back")]
    fn take_parts(
        &self,
        now_ns: i64,
        elapsed_ns: i64,
        ask: &LocalAsk<'_>,
        tag: Tag,
        slot: &Slot,
        flags: u32,
        spent: &mut Spent,
    ) -> Result<(), Missed> {
        let burst = slot.burst.load(Relaxed);
        let clock = slot.pace().at(elapsed_ns);
        let admission_needed = slot.need(ask.priority);
        let retry = match ask.attempt.cause {
            Some(cause) => Some(self.look_at_retry(tag, slot, flags, ask.priority, cause)?),
            None => None,
        };
        // Looked at first, taken last: a refusal by an empty bucket disturbs nobody.
        if flags & LIMITED != 0 && self.hot.admission.lacks(tag, clock, burst, admission_needed) {
            return Err(Missed::Short);
        }
        if flags & SLOTS != 0 {
            if self.hot.flight.is_due(now_ns) {
                return Err(Missed::Moved);
            }
            spent.slot = self.hot.flight.take(slot.slots(ask.priority)).ok_or(Missed::Short)?;
            spent.flags |= spent::PERMIT;
        }
        if !ask.costs.is_empty() {
            self.take_units(tag, elapsed_ns, ask, spent)?;
        }
        if let Some(retry) = retry {
            let receipt = self.hot.retry.take(tag, retry.clock, retry.burst, retry.needed, retry.cost.into())?;
            if retry.lost > 0 {
                self.counters.overflow.fetch_add(retry.lost, Relaxed);
            }
            spent.retry = receipt;
            spent.retry_cost = retry.cost;
        }
        if flags & LIMITED != 0 {
            let receipt = self.hot.admission.take(tag, clock, burst, admission_needed, MICROS_PER_TOKEN)?;
            spent.admission = receipt;
            spent.flags |= spent::ADMISSION;
        } else if self.hot.admission.tag() != tag {
            return Err(Missed::Moved);
        }
        Ok(())
    }

    fn look_at_retry(
        &self,
        tag: Tag,
        slot: &Slot,
        flags: u32,
        priority: Priority,
        cause: Cause,
    ) -> Result<RetryLook, Missed> {
        let burst = slot.retry_burst.load(Relaxed);
        let clock = self.retry_clock(slot, flags);
        if clock >= CLOCK_MAX {
            self.rewind(tag);
            return Err(Missed::Moved);
        }
        let cost = slot.retry_cost(cause);
        let needed = slot.retry_needed(cost, priority);
        let (found, mark) = self.hot.retry.read();
        if found != tag {
            return Err(Missed::Moved);
        }
        let level = clock.saturating_sub(mark);
        if level.min(burst) < needed {
            return Err(Missed::Unearned);
        }
        Ok(RetryLook { clock, burst, needed, cost, lost: level.saturating_sub(burst) })
    }

    fn take_units(&self, tag: Tag, elapsed_ns: i64, ask: &LocalAsk<'_>, spent: &mut Spent) -> Result<(), Missed> {
        let cells = self.cells.get().ok_or(Missed::Short)?;
        let asked = || ask.costs.iter().filter(|cost| cost.amount_micros > 0);
        for cost in asked() {
            look_at_unit(cells, tag, elapsed_ns, ask.priority, cost)?;
        }
        let mut units = Vec::with_capacity(ask.costs.len());
        for cost in asked() {
            let taken =
                look_at_unit(cells, tag, elapsed_ns, ask.priority, cost).and_then(|(cell, clock, burst, needed)| {
                    cell.level.take(tag, clock, burst, needed, cost.amount_micros)
                });
            match taken {
                Ok(receipt) => {
                    units.push(UnitSpent { unit: cost.unit, estimate_micros: cost.amount_micros, receipt });
                }
                Err(missed) => {
                    spent.units = Some(units.into_boxed_slice());
                    return Err(missed);
                }
            }
        }
        spent.units = (!units.is_empty()).then(|| units.into_boxed_slice());
        Ok(())
    }

    /// What the coordinator cannot be asked for: the lease decides alone while a step of it is in force, else the
    /// policy's fallback.
    pub fn reserve_beyond(&self, now_ns: i64, ask: &LocalAsk<'_>) -> Local {
        let local = match self.decide(now_ns, ask) {
            Err(_) => {
                let mut control = self.lock();
                self.turn_locked(&mut control, now_ns);
                if self.current(&control).flags & LEASED != 0 {
                    self.refuse_short(&control, now_ns, ask)
                } else {
                    control.reserve_beyond(now_ns, ask)
                }
            }
            Ok(decided) => decided,
        };
        let refused = match &local {
            Local::Admitted(spent) => spent.would_be_denied().is_some(),
            Local::Denied(_) | Local::Short => true,
        };
        if refused {
            self.lock().count_refusal_beyond(ask.attempt.is_retry());
        }
        local
    }

    /// Cumulative counters of this incarnation.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut control = self.lock();
        self.usage_locked(&mut control)
    }

    /// Permits in flight, where they are limited.
    #[must_use]
    pub fn in_flight(&self) -> i64 {
        self.hot.flight.count()
    }

    /// Levels of admission and retry bucket and of the cost units, in micro-tokens: a look that disturbs nobody.
    #[must_use]
    pub fn levels(&self, now_ns: i64) -> (i64, i64, Vec<(UnitId, i64)>) {
        let control = self.lock();
        self.levels_locked(&control, now_ns)
    }

    // --- parts ---

    #[inline]
    pub(super) fn slot(&self, tag: Tag) -> &Slot {
        if tag.is_odd() { &self.odd } else { &self.even }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Control> {
        // A panic elsewhere leaves words and numbers consistent: each step of a turn is.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn earned(&self, flags: u32) -> i64 {
        if flags & EARN_ON_SUCCESS == 0 { self.originals() } else { self.counters.successes.load(Acquire) }
    }

    /// Originals admitted from the lease. A reading is never more than what a later one sums up to.
    pub(super) fn originals(&self) -> i64 {
        self.lanes.sum(&self.hot.admitted, |admitted| admitted.originals.load(Acquire))
    }

    pub(super) fn retries(&self) -> i64 {
        self.lanes.sum(&self.hot.admitted, |admitted| admitted.retries.load(Relaxed))
    }

    /// Where this thread counts what it admits.
    #[inline]
    pub(super) fn admitted(&self) -> &Admitted {
        self.lanes.own().unwrap_or(&self.hot.admitted)
    }

    /// Another thread admitted in the same moment.
    #[cold]
    #[inline(never)]
    fn collided(&self) {
        self.lanes.collided(&self.counters.collisions);
    }

    fn retry_clock(&self, slot: &Slot, flags: u32) -> i64 {
        let earned = self.earned(flags).saturating_sub(slot.retry_base.load(Relaxed)).max(0);
        earned.saturating_mul(slot.deposit.load(Relaxed).into())
    }

    fn note_asked(&self, costs: &[Cost]) {
        let Some(cells) = self.cells.get() else { return };
        let odd = self.hot.admission.tag().is_odd();
        for cost in costs {
            if let Some((cell, _)) = find(cells, odd, cost.unit) {
                cell.asked.fetch_add(cost.amount_micros.max(0), Relaxed);
            }
        }
    }
}
