//! How much of its lease an agent lends to whom: by demand, as a ledger does, from running sums.
//!
//! What callers take of the agent's own part counts like one more sub-lessee. Safety depends on [`clip`](Lender::clip) alone.

use super::{Lender, ms};
use crate::{
    guard::{Guard, on},
    lease::{Amounts, NEWCOMERS_SHARE, Rules, SHARE_ONE, SyncAsk, Usage},
    policy::CurveStep,
    units::{MICROS_PER_TOKEN, PPM, checked_div, div_ceil},
};

/// Demand is measured over at least this long.
const MEASURE_MS_MIN: i64 = 1_000;
/// Most tokens that are asked for between two measurements.
const ASKED_MAX: i64 = 1_000_000_000;

/// The agent's own callers.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    /// In parts of [`SHARE_ONE`] of the lease in force.
    demand: i64,
    measured_ms: i64,
    measured: Usage,
}

// === impl Own ===

impl Own {
    /// Whether it is measured for the first time.
    fn is_new(&self) -> bool {
        self.measured_ms == 0
    }
}

// === impl Lender ===

impl Lender {
    /// Chooses what a sub-lessee gets of the parent in force. `own` is what the agent's own callers did; `in_flight` the
    /// permits they hold.
    pub(in crate::holder) fn choose(&mut self, now_ns: i64, ask: &SyncAsk, own: &Usage, in_flight: i64) -> Amounts {
        let now_ms = ms(now_ns);
        let whole = self.whole();
        self.measure_own(&whole, own, now_ms);
        let share = self.choose_share(&whole, ask, now_ms);
        let part_ppm = self.part_ppm(now_ns);
        let (value, wanted_slots) = self.clip(&whole, share, ask, in_flight, part_ppm);
        let first_ms = self.latest().and_then(|parent| parent.curve.0.first()).map_or(0, |step| step.duration_ms);
        if wanted_slots > value.slots {
            // Slots that the agent's own callers have in flight are charged already, so that they come free one by one and
            // a later request finds them; else these callers would take them again for ever.
            self.change(ask, now_ns, |life| life.wait_for(wanted_slots, now_ms.saturating_add(first_ms)));
        }
        let Some(parent) = self.latest() else { return value.map(|_| 0) };
        let first = parent.curve.0.first().map_or_else(|| value.clone(), |step| value.step(step));
        let limited = self.rules.as_ref().is_none_or(|rules| rules.limited);
        let useless = needed(&whole, &first, self.rules.as_ref()).any(|(_, held, least)| held < least);
        if useless || (limited && value.rate == 0) { value.map(|_| 0) } else { value }
    }

    fn part_ppm(&self, now_ns: i64) -> i64 {
        let parent = self.latest();
        parent.and_then(|parent| parent.curve.at(parent.position_ms(now_ns))).map_or(0, |(step, _)| step.part_ppm)
    }

    fn measure_own(&mut self, whole: &Amounts, usage: &Usage, now_ms: i64) {
        let elapsed_ms = now_ms.saturating_sub(self.own.measured_ms);
        if elapsed_ms < MEASURE_MS_MIN {
            return;
        }
        let before = self.own.demand;
        let measured = if self.own.is_new() { 0 } else { demand(whole, &self.own.measured, usage, elapsed_ms) };
        self.shares.remove(before, 1);
        self.own = Own { demand: raised(measured, before), measured_ms: now_ms, measured: usage.clone() };
        self.shares.add(self.own.demand, 1);
    }

    fn choose_share(&mut self, whole: &Amounts, ask: &SyncAsk, now_ms: i64) -> i64 {
        let available = SHARE_ONE.saturating_sub(NEWCOMERS_SHARE);
        let smallest = self.smallest(whole);
        let Some(lessee) = self.lessees.get_mut(&ask.holder) else { return 0 };
        let weight_before = std::mem::replace(&mut lessee.weight, ask.weight);
        self.shares.remove(lessee.demand, weight_before);
        let others = self.shares.weight;
        let Some(life) = lessee.lives.iter_mut().find(|life| life.incarnation == ask.incarnation) else {
            self.shares.add(lessee.demand, lessee.weight);
            return 0;
        };
        let fresh = life.answered == 0;
        let elapsed_ms = now_ms.saturating_sub(life.measured_ms);
        if !fresh && elapsed_ms >= MEASURE_MS_MIN {
            let measured = demand(whole, &life.measured, &ask.usage, elapsed_ms);
            let silent = ask.usage.asked == life.measured.asked;
            life.measured = ask.usage.clone();
            life.measured_ms = now_ms;
            lessee.idle = if silent { lessee.idle.saturating_add(1) } else { 0 };
            lessee.demand = if silent { 0 } else { raised(measured, lessee.demand) };
        } else if fresh && lessee.share == 0 {
            // Nothing is known of a newcomer: its fair part, at most a quarter.
            let fair = checked_div(SHARE_ONE.saturating_mul(lessee.weight), others.saturating_add(lessee.weight));
            lessee.demand = fair.min(SHARE_ONE / 4);
        }
        self.shares.add(lessee.demand, lessee.weight);
        let level = self.shares.level(available);
        let fair = checked_div(available.saturating_mul(lessee.weight), self.shares.weight.max(1));
        // Half its part of all there is is its own even if it does not ask for it: more would lie idle.
        let own = lessee.demand.max(checked_div(fair, 2));
        let (wanted, most) = match level {
            Some(level) => (lessee.demand, level.saturating_mul(lessee.weight)),
            None => {
                let spare = checked_div(lessee.demand.saturating_mul(available), self.shares.demand.max(1));
                let room = available.saturating_sub(self.shares.demand).saturating_add(lessee.demand);
                // What nobody asks for is spread over those who ask, but a guess is not doubled.
                let doubled = if fresh { lessee.demand } else { lessee.demand.saturating_mul(2) };
                (doubled.min(spare), room)
            }
        };
        let least = smallest.first().map_or(SHARE_ONE, |share| *share);
        let of_use = smallest.iter().rev().find(|share| **share <= own.min(most)).copied();
        let of_use = of_use.or_else(|| (least <= most).then_some(least)).unwrap_or(0);
        let mut share = match lessee.idle {
            0 => wanted.min(most).max(of_use),
            1 => of_use.max(least).min(lessee.share),
            _ => 0,
        };
        // Small changes are not worth a message, unless there is not enough for all.
        let change = share.saturating_sub(lessee.share).saturating_abs();
        let matters = level.is_some() && share < lessee.share;
        if lessee.idle == 0 && !matters && change <= checked_div(lessee.share, 8) {
            share = lessee.share;
        }
        if share < least || (lessee.is_revoked(now_ms) && on(Guard::RevokedIsNotLent)) {
            share = 0;
        }
        lessee.share = share;
        share
    }

    /// The smallest share of which each step leaves what is of use; above [`SHARE_ONE`] if there is none.
    fn smallest(&self, whole: &Amounts) -> Vec<i64> {
        let steps = self.latest().map_or(&[][..], |parent| &parent.curve.0);
        let share = |step: &CurveStep| {
            let part_ppm = step.part_ppm.max(PPM / 100);
            let of = |(whole, _, least): (i64, i64, i64)| {
                let least = div_ceil(least.saturating_mul(PPM), part_ppm);
                if whole < least {
                    SHARE_ONE.saturating_add(1)
                } else {
                    div_ceil(least.saturating_mul(SHARE_ONE), whole)
                }
            };
            needed(whole, whole, self.rules.as_ref()).map(of).max().unwrap_or(1).max(1)
        };
        steps.iter().map(share).collect()
    }

    /// A share of the parent, as far as it is free: not charged to another sub-lessee, nor to other incarnations of the
    /// same one, which share one share; and of slots none that the agent's own callers have in flight. With the slots that
    /// it would get without these.
    fn clip(&self, whole: &Amounts, share: i64, ask: &SyncAsk, in_flight: i64, part_ppm: i64) -> (Amounts, i64) {
        let less = |left: i64, taken: i64| left.saturating_sub(taken).max(0);
        let life = self.life(ask);
        let own = life.map(|life| life.charge.clone()).unwrap_or_default();
        let of_lessee = self.lessees.get(&ask.holder).map(|lessee| lessee.charge().0).unwrap_or_default();
        let siblings = super::joined(&of_lessee, &own, less);
        let others = super::joined(&self.charged, &own, less);
        let mut value = whole.scaled(share.min(SHARE_ONE), SHARE_ONE).zip(&siblings, less);
        if on(Guard::SubleaseWithinParent) {
            value = value.zip(&whole.zip(&others, less), i64::min);
        }
        let wanted_slots = value.slots;
        // At the step in force as many slots stay as are taken; what the sub-lessee has is in flight with it.
        let taken = div_ceil(in_flight.saturating_mul(PPM), part_ppm.max(1));
        let held = life.map_or(0, |life| life.slots);
        value.slots = value.slots.min(less(less(whole.slots, others.slots), taken).max(held));
        (value, wanted_slots)
    }
}

/// Demand as it is reckoned with: somewhat more than was measured, and it falls slowly.
fn raised(measured: i64, before: i64) -> i64 {
    let raised = measured.saturating_add(checked_div(measured, 4));
    raised.max(before.saturating_sub(checked_div(before, 4))).min(SHARE_ONE)
}

/// The bursts of which a lease must hold a whole token (or slot) to be of use: of the whole, of a part, and that.
fn needed<'a>(
    whole: &'a Amounts,
    part: &'a Amounts,
    rules: Option<&'a Rules>,
) -> impl Iterator<Item = (i64, i64, i64)> + 'a {
    let limited = rules.is_none_or(|rules| rules.limited);
    let admission = limited.then_some((whole.burst, part.burst, MICROS_PER_TOKEN));
    let retry = (whole.retry_burst > 0).then_some((whole.retry_burst, part.retry_burst, MICROS_PER_TOKEN));
    let slots = rules.is_some_and(|rules| rules.slots_limited).then_some((whole.slots, part.slots, 1));
    let units = whole
        .units
        .iter()
        .map(|unit| (unit.burst, part.unit(unit.unit).map_or(0, |part| part.burst), MICROS_PER_TOKEN));
    admission.into_iter().chain(retry).chain(slots).chain(units)
}

/// The largest part of what there is that was asked for per second, in parts of [`SHARE_ONE`].
fn demand(whole: &Amounts, before: &Usage, now: &Usage, elapsed_ms: i64) -> i64 {
    let part = |asked_micros: i64, rate: i64| {
        let per_second = i128::from(asked_micros).saturating_mul(1_000).checked_div(elapsed_ms.max(1).into());
        let part = per_second.unwrap_or(0).saturating_mul(SHARE_ONE.into()).checked_div(rate.into()).unwrap_or(0);
        i64::try_from(part).unwrap_or(SHARE_ONE).min(SHARE_ONE)
    };
    let attempts = now.asked.saturating_sub(before.asked).clamp(0, ASKED_MAX).saturating_mul(MICROS_PER_TOKEN);
    let admission = if whole.rate > 0 { part(attempts, whole.rate) } else { SHARE_ONE / 16 };
    let units = now.units_asked.iter().map(|(unit, asked)| {
        let then = before.units_asked.iter().find(|(id, _)| id == unit).map_or(0, |(_, asked)| *asked);
        let asked = asked.saturating_sub(then).clamp(0, crate::units::BURST_MICROS_MAX);
        part(asked, whole.unit(*unit).map_or(0, |unit| unit.rate))
    });
    units.fold(admission, i64::max)
}
