//! From one segment of a lease to the next: the only part that takes a lock.

use std::{array, sync::atomic::Ordering::Relaxed};

use super::{
    agent::parted,
    beyond::Beyond,
    homes::{homes, settle_in},
    segment::{LEASED, LIMITED, SHADOW, SLOTS, Segment, UnitCell, UnitSegment, by_class, longest_ns, needed},
    share::{Local, LocalAsk, Share, find},
    spent::Spent,
    word::Tag,
};
use crate::{
    decision::{Denied, DenyReason},
    guard::{Guard, on},
    ids::{PolicyVersion, UnitId},
    lease::{Amounts, Curve, FallbackRules, Rules, Usage},
    policy::CurveStep,
    units::{MICROS_PER_TOKEN, PPM, div_ceil},
};

const NANOS_PER_MS: i64 = 1_000_000;

/// A lease that is in force along its curve.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) value: Amounts,
    pub(super) curve: Curve,
    pub(super) start_ns: i64,
}

/// What changes under the lock.
#[derive(Clone, Debug)]
pub(super) struct Control {
    /// Counts segments from 1.
    segment: u64,
    pub(super) lease: Option<Running>,
    pub(super) rules: Rules,
    beyond: Beyond,
    /// Deposits into segments that are over.
    deposited: i64,
    /// What was told before: counters never go back.
    told: Usage,
    /// Counters when this incarnation began.
    base: Usage,
    pub(super) gone: Vec<(UnitId, i64)>,
}

/// How a segment follows another.
pub(super) struct Turn<'a> {
    /// Levels are clipped and clocks begin here.
    pub(super) at_ns: i64,
    /// The decision that found the segment over.
    pub(super) now_ns: i64,
    /// A new lease, with what comes with it.
    pub(super) moved: Option<&'a Amounts>,
}

// === impl Control ===

impl Control {
    pub(super) fn new(fallback: FallbackRules, now_ns: i64) -> Self {
        Self {
            segment: 1,
            lease: None,
            rules: Rules {
                version: PolicyVersion::default(),
                shadow: false,
                retries_off: false,
                limited: false,
                slots_limited: false,
                deposit_micros: 0,
                earn_on_success: false,
                retry_cost_micros: [MICROS_PER_TOKEN; 5],
                max_attempts: 3,
                permit_ttl_ms: 60_000,
                priority_ppm: [PPM; 3],
                units: Box::default(),
                fallback,
            },
            beyond: Beyond::new(now_ns),
            deposited: 0,
            told: Usage::default(),
            base: Usage::default(),
            gone: Vec::new(),
        }
    }

    pub(super) const fn segment(&self) -> u64 {
        self.segment
    }

    pub(super) fn reserve_beyond(&mut self, now_ns: i64, ask: &LocalAsk<'_>) -> Local {
        self.beyond.reserve(&self.rules, now_ns, ask)
    }

    pub(super) fn earn_beyond(&mut self) {
        self.beyond.deposit(self.rules.deposit_micros);
    }

    /// The part of the lease at a time, and until when; none beyond its curve.
    pub(super) fn part_at(&self, at_ns: i64) -> Option<(Amounts, i64)> {
        let lease = self.lease.as_ref()?;
        let position_ms = at_ns.saturating_sub(lease.start_ns).div_euclid(NANOS_PER_MS);
        let (step, end_ms) = match lease.curve.at(position_ms) {
            Some(found) => found,
            None if on(Guard::EndWithCurve) => return None,
            None => (lease.curve.0.last()?, i64::MAX.div_euclid(NANOS_PER_MS).div_euclid(4)),
        };
        let mut part = if on(Guard::RoundDown) { lease.value.step(step) } else { stepped_up(&lease.value, step) };
        if !on(Guard::ClipHolder) {
            part = Amounts { burst: lease.value.burst, retry_burst: lease.value.retry_burst, ..part };
        }
        let end_ns = lease.start_ns.saturating_add(end_ms.saturating_mul(NANOS_PER_MS));
        let end_ns = end_ns.min(at_ns.saturating_add(longest_ns(&part)));
        Some((part, end_ns))
    }
}

fn stepped_up(value: &Amounts, step: &CurveStep) -> Amounts {
    value.map(|amount| div_ceil(amount.saturating_mul(step.part_ppm), PPM))
}

// === impl Share ===

impl Share {
    /// Brings the segment to `now_ns`, step by step: each clips at its end.
    #[cold]
    pub(super) fn turn(&self, now_ns: i64) {
        let mut control = self.lock();
        self.turn_locked(&mut control, now_ns);
    }

    pub(super) fn turn_locked(&self, control: &mut Control, now_ns: i64) {
        let mut current = self.current(control);
        while now_ns >= current.end_ns {
            let at_ns = current.end_ns;
            if control.part_at(at_ns).is_none() {
                self.over(control, at_ns);
            }
            self.shift(control, &Turn { at_ns, now_ns, moved: None });
            current = self.current(control);
        }
        if current.flags & SLOTS != 0 {
            self.hot.flight.turn(now_ns, current.permit_ns);
        }
    }

    pub(super) fn current(&self, control: &Control) -> Segment {
        self.slot(Tag::of(control.segment)).read()
    }

    fn over(&self, control: &mut Control, at_ns: i64) {
        control.lease = None;
        let level = self.admission_level(control, at_ns);
        control.beyond.begin(&control.rules, at_ns, level);
    }

    /// A new lease, or the same with other rules.
    pub(super) fn install(
        &self,
        control: &mut Control,
        now_ns: i64,
        lease: Running,
        moved: &Amounts,
        rules: Option<&Rules>,
    ) {
        self.turn_locked(control, now_ns);
        let now_ns = now_ns.max(self.current(control).start_ns);
        if let Some(rules) = rules {
            control.rules = rules.clone();
        }
        control.lease = Some(lease);
        if control.part_at(now_ns).is_none() {
            return self.withdraw(control, now_ns);
        }
        self.shift(control, &Turn { at_ns: now_ns, now_ns, moved: Some(moved) });
    }

    /// Other rules for the lease in force.
    pub(super) fn adopt(&self, control: &mut Control, now_ns: i64, rules: &Rules) {
        if control.rules == *rules {
            return;
        }
        self.turn_locked(control, now_ns);
        let now_ns = now_ns.max(self.current(control).start_ns);
        control.rules = rules.clone();
        self.shift(control, &Turn { at_ns: now_ns, now_ns, moved: None });
    }

    /// Ends the lease now.
    pub(super) fn withdraw(&self, control: &mut Control, now_ns: i64) {
        self.turn_locked(control, now_ns);
        let now_ns = now_ns.max(self.current(control).start_ns);
        if control.lease.is_some() {
            self.over(control, now_ns);
        }
        self.shift(control, &Turn { at_ns: now_ns, now_ns, moved: None });
    }

    /// A new life: counters and fallback begin anew.
    pub(super) fn reincarnate(&self, control: &mut Control, now_ns: i64) {
        self.withdraw(control, now_ns);
        control.beyond = Beyond::new(now_ns);
        control.base = self.counted(control);
        control.told = Usage::default();
    }

    /// Sets the retry bucket's clock back before it leaves its range.
    #[cold]
    pub(super) fn rewind(&self, tag: Tag) {
        let mut control = self.lock();
        if Tag::of(control.segment) == tag {
            // Admission goes on from where it is: its clock is the time.
            let at_ns = self.current(&control).start_ns;
            self.shift(&mut control, &Turn { at_ns, now_ns: at_ns, moved: None });
        }
    }

    /// Publishes the next segment and moves every bucket into it. The admission word comes last: until then originals are
    /// decided by the old segment, and all who meet a word that has moved wait for the lock.
    fn shift(&self, control: &mut Control, turn: &Turn<'_>) {
        let _none = self.shift_lending(control, turn, &Amounts::default());
    }

    /// As [`Self::shift`]; takes out of the levels what goes into caps that grow elsewhere, and returns that. Each level
    /// is parted in the same step in which its bucket moves, so nobody spends here what is spent there.
    pub(super) fn shift_lending(&self, control: &mut Control, turn: &Turn<'_>, growth: &Amounts) -> Amounts {
        let mut lent = growth.map(|_| 0);
        let old = self.current(control);
        let old_odd = Tag::of(control.segment).is_odd();
        let part = control.part_at(turn.at_ns);
        let end_ns = part.as_ref().map_or(i64::MAX, |(_, end_ns)| *end_ns);
        let part = part.map(|(part, _)| part);
        control.segment = control.segment.wrapping_add(1);
        let tag = Tag::of(control.segment);
        let earns_alike = (old.flags ^ if control.rules.earn_on_success { super::segment::EARN_ON_SUCCESS } else { 0 })
            & super::segment::EARN_ON_SUCCESS
            == 0;
        let earned_old = self.earned(old.flags);
        let mut new = Segment::new(&control.rules, part.as_ref(), turn.at_ns, end_ns, earned_old);
        if !earns_alike {
            new.retry_base = self.earned(new.flags);
        }
        self.slot(tag).publish(&new);
        let levels_at_ns = if on(Guard::RefillPiecewise) { turn.at_ns } else { turn.now_ns };
        let start_full = turn.moved.is_some() && !on(Guard::RenewalKeepsLevels);
        let moved = turn.moved;
        let carry = |level: i64, moved: i64, burst: i64| {
            if start_full { burst } else { level.min(burst).saturating_add(moved).min(burst) }
        };
        let growing = (growth, &mut lent);
        self.shift_units(control, &old, &new, old_odd, tag, part.as_ref(), levels_at_ns, moved, growing, &carry);

        let retry_clock = old.retry_clock(earned_old);
        let mut lost = 0;
        self.hot.retry.turn(tag, |mark| {
            lost = retry_clock.saturating_sub(mark).saturating_sub(old.retry_burst).max(0);
            let level = retry_clock.saturating_sub(mark).min(old.retry_burst);
            let (out, level) = parted(level, growth.retry_burst, new.retry_burst);
            lent.retry_burst = out;
            carry(level, moved.map_or(0, |moved| moved.retry_burst), new.retry_burst).saturating_neg()
        });
        if old.flags & LEASED != 0 {
            control.deposited = control.deposited.saturating_add(retry_clock).saturating_sub(lost);
        }

        let mut extra = 0;
        if turn.moved.is_some() && !on(Guard::FallbackApart) {
            extra = control.beyond.level();
        }
        let clock = old.pace().at(levels_at_ns.saturating_sub(old.start_ns));
        self.hot.admission.turn(tag, |mark| {
            let level = clock.saturating_sub(mark).min(old.burst);
            let (out, level) = parted(level, growth.burst, new.burst);
            lent.burst = out;
            let moved = moved.map_or(0, |moved| moved.burst).saturating_add(extra);
            carry(level, moved, new.burst).saturating_neg()
        });
        lent
    }

    #[expect(clippy::too_many_arguments, reason = "a part of shift")]
    fn shift_units(
        &self,
        control: &mut Control,
        old: &Segment,
        new: &Segment,
        old_odd: bool,
        tag: Tag,
        part: Option<&Amounts>,
        levels_at_ns: i64,
        moved: Option<&Amounts>,
        (growth, lent): (&Amounts, &mut Amounts),
        carry: &dyn Fn(i64, i64, i64) -> i64,
    ) {
        if control.rules.units.is_empty() && self.cells.get().is_none() {
            return;
        }
        let before = Tag::of(control.segment.wrapping_sub(1));
        let cells = self.cells.get_or_init(|| Box::new(array::from_fn(|_| UnitCell::new(before))));
        let homes = homes(cells, old_odd, &control.rules.units);
        for (cell, home) in cells.iter().zip(homes) {
            let was = cell.slot(old_odd).read();
            let next = home.map_or_else(UnitSegment::default, |unit| {
                UnitSegment::new(&control.rules, unit, part.and_then(|part| part.unit(unit)), was.debt)
            });
            cell.slot(tag.is_odd()).publish(&next);
            let stays = was.id == next.id;
            if !stays {
                settle_in(control, cell, &was, &next);
            }
            let clock = was.pace().at(levels_at_ns.saturating_sub(old.start_ns));
            let with = moved.zip(home).and_then(|(moved, unit)| moved.unit(unit)).map_or(0, |unit| unit.burst);
            let grows = home.and_then(|unit| growth.unit(unit)).map_or(0, |unit| unit.burst);
            let mut taken = 0;
            cell.level.turn(tag, |mark| {
                let level = if stays { clock.saturating_sub(mark).min(was.burst) } else { 0 };
                let (out, level) = parted(level, grows, next.burst);
                taken = out;
                carry(level, with, next.burst).saturating_neg()
            });
            if let Some(unit) = lent.units.iter_mut().find(|unit| home == Some(unit.unit)) {
                unit.burst = taken;
            }
        }
        debug_assert!(new.end_ns >= new.start_ns);
    }

    /// Why the lease does not cover an ask, in the order of the rules.
    pub(super) fn refuse_short(&self, control: &Control, now_ns: i64, ask: &LocalAsk<'_>) -> Local {
        let segment = self.current(control);
        let tag = Tag::of(control.segment);
        let slot = self.slot(tag);
        let mut found: Option<Denied> = None;
        if let Some(cause) = ask.attempt.cause {
            let cost = slot.retry_cost(cause).into();
            let (_, mark) = self.hot.retry.read();
            let level = segment.retry_clock(self.earned(segment.flags)).saturating_sub(mark).min(segment.retry_burst);
            let needed = needed(segment.retry_burst, cost, slot.retry_keep(ask.priority));
            found = short(DenyReason::RetryBudget, level, needed, 0);
        }
        if found.is_none() && segment.flags & SLOTS != 0 && self.hot.flight.count() >= slot.slots(ask.priority) {
            found = Some(Denied::because(DenyReason::InFlight));
        }
        for cost in ask.costs.iter().filter(|cost| cost.amount_micros > 0) {
            if found.is_some() {
                break;
            }
            found = self.unit_short(control, &segment, now_ns, ask, cost);
        }
        if found.is_none() && segment.flags & LIMITED != 0 {
            let (_, mark) = self.hot.admission.read();
            let level = segment.clock(now_ns).saturating_sub(mark).min(segment.burst);
            found = short(DenyReason::Admission, level, slot.need(ask.priority), control.rate(now_ns));
        }
        // What was short a moment ago may be covered now; the caller asks again when it wants.
        let denied = found.unwrap_or(Denied { retry_after_ms: Some(1), ..Denied::because(DenyReason::Admission) });
        if segment.flags & SHADOW != 0 {
            let until_ns = now_ns.saturating_add(segment.permit_ns);
            return Local::Admitted(Spent::shadow(until_ns, denied.reason, ask));
        }
        Local::Denied(denied)
    }

    fn unit_short(
        &self,
        control: &Control,
        segment: &Segment,
        now_ns: i64,
        ask: &LocalAsk<'_>,
        cost: &crate::decision::Cost,
    ) -> Option<Denied> {
        let because = |denied: Denied| Denied { unit: Some(cost.unit), ..denied };
        let odd = Tag::of(control.segment).is_odd();
        let Some((cell, slot)) = self.cells.get().and_then(|cells| find(cells, odd, cost.unit)) else {
            return Some(because(Denied::because(DenyReason::Cost)));
        };
        let part = slot.read();
        let clock = part.pace().at(now_ns.min(segment.end_ns).saturating_sub(segment.start_ns));
        let level = clock.saturating_sub(cell.level.read().1).min(part.burst);
        let keep = by_class(ask.priority, &part.keep_sheddable, &part.keep_default, &part.keep_critical);
        let rate = control.part_at(now_ns).and_then(|(part, _)| part.unit(cost.unit).map(|unit| unit.rate));
        short(DenyReason::Cost, level, needed(part.burst, cost.amount_micros, *keep), rate.unwrap_or(0)).map(because)
    }

    fn admission_level(&self, control: &Control, now_ns: i64) -> i64 {
        let segment = self.current(control);
        segment.clock(now_ns).saturating_sub(self.hot.admission.read().1).min(segment.burst)
    }

    pub(super) fn levels_locked(&self, control: &Control, now_ns: i64) -> (i64, i64, Vec<(UnitId, i64)>) {
        let segment = self.current(control);
        let retry_clock = segment.retry_clock(self.earned(segment.flags));
        let retry = retry_clock.saturating_sub(self.hot.retry.read().1).min(segment.retry_burst);
        let odd = Tag::of(control.segment).is_odd();
        let elapsed_ns = now_ns.min(segment.end_ns).saturating_sub(segment.start_ns);
        let units = self.cells.get().into_iter().flat_map(|cells| cells.iter());
        let units = units.map(|cell| (cell, cell.slot(odd).read())).filter(|(_, part)| part.id != 0);
        let units = units.map(|(cell, part)| {
            let level = part.pace().at(elapsed_ns).saturating_sub(cell.level.read().1).min(part.burst);
            (UnitId::from_raw(part.id), level)
        });
        (self.admission_level(control, now_ns), retry, units.collect())
    }

    // --- counters ---

    /// All counters since the share began.
    fn counted(&self, control: &Control) -> Usage {
        let load = |counter: &std::sync::atomic::AtomicI64| counter.load(Relaxed);
        let counters = &self.counters;
        let (denied, retries_denied) = (load(&counters.originals_denied), load(&counters.retries_denied));
        let originals_admitted = self.originals();
        let retries_admitted = self.retries();
        let segment = self.current(control);
        let clock = segment.retry_clock(self.earned(segment.flags));
        let pending = clock.saturating_sub(self.hot.retry.read().1).saturating_sub(segment.retry_burst).max(0);
        let now_deposited = if segment.flags & LEASED == 0 { 0 } else { clock.saturating_sub(pending) };
        let odd = Tag::of(control.segment).is_odd();
        let cells = self.cells.get();
        Usage {
            // What the retry budget refuses, or the policy, needs no rate.
            asked: [originals_admitted, retries_admitted, denied, load(&counters.short)]
                .iter()
                .fold(0, |sum, count| sum.saturating_add(*count)),
            originals_admitted,
            retries_admitted,
            originals_denied: denied.saturating_add(load(&counters.originals_denied_beyond)),
            retries_denied: retries_denied.saturating_add(load(&counters.retries_denied_beyond)),
            not_sent: load(&counters.not_sent),
            fallback_originals: control.beyond.originals_admitted,
            fallback_retries: control.beyond.retries_admitted,
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

    pub(super) fn usage_locked(&self, control: &mut Control) -> Usage {
        let (all, base, told) = (self.counted(control), &control.base, &control.told);
        let since = |get: fn(&Usage) -> i64| get(&all).saturating_sub(get(base)).max(get(told));
        let of = |usage: &Usage, unit: UnitId| {
            usage.units_asked.iter().find(|(id, _)| *id == unit).map_or(0, |(_, asked)| *asked)
        };
        let usage = Usage {
            asked: since(|usage| usage.asked),
            originals_admitted: since(|usage| usage.originals_admitted),
            retries_admitted: since(|usage| usage.retries_admitted),
            originals_denied: since(|usage| usage.originals_denied),
            retries_denied: since(|usage| usage.retries_denied),
            not_sent: since(|usage| usage.not_sent),
            // The fallback's own counters begin with the incarnation.
            fallback_originals: all.fallback_originals,
            fallback_retries: all.fallback_retries,
            deposited_micros: since(|usage| usage.deposited_micros),
            units_asked: (all.units_asked.iter())
                .map(|(unit, asked)| (*unit, asked.saturating_sub(of(base, *unit)).max(of(told, *unit))))
                .collect(),
            overuse_micros: since(|usage| usage.overuse_micros),
        };
        control.told = usage.clone();
        usage
    }
}

impl Control {
    fn rate(&self, now_ns: i64) -> i64 {
        self.part_at(now_ns).map_or(0, |(part, _)| part.rate)
    }
}

/// A refusal, if the level is too low: waiting helps where there is a rate.
fn short(reason: DenyReason, level: i64, needed: i64, rate: i64) -> Option<Denied> {
    if level >= needed {
        return None;
    }
    let impossible = needed == i64::MAX;
    let missing = i128::from(needed.saturating_sub(level)).saturating_mul(1_000);
    let wait_ms = missing.checked_div(rate.max(0).into()).and_then(|ms| i64::try_from(ms).ok());
    let retry_after_ms = wait_ms.filter(|_| !impossible).map(|ms| ms.saturating_add(1));
    Some(Denied { retry_after_ms, impossible, ..Denied::because(reason) })
}
