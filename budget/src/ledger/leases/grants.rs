//! How much a holder is granted: a share by its demand, clipped to what is free.

use super::{
    Leases,
    holders::{Asked, Record},
};
use crate::{
    guard::{Guard, on},
    lease::{Amounts, NEWCOMERS_SHARE, SHARE_ONE, SyncAsk, Usage},
    policy::{CurveStep, Numbers},
    units::{MICROS_PER_TOKEN, PPM, checked_div, div_ceil},
};

/// Demand is measured over at least this long.
const MEASURE_MS_MIN: i64 = 1_000;

/// A share as it was chosen, in parts of [`SHARE_ONE`].
#[derive(Clone, Copy, Default)]
pub(super) struct Share {
    /// What it is.
    part: i64,
    /// What must be left of all when it is given: where there is less for each holder than is of use, as many are served as
    /// fit, and not one of them keeps out who is due a lease.
    left: i64,
}

// === impl Leases ===

impl Leases {
    /// The holder's fair share by its demand.
    pub(super) fn choose_share(&mut self, record: &mut Record, ask: &SyncAsk, now_ms: i64) -> Share {
        let permitted = self.whole.leases_permitted();
        let leasable = self.leasable();
        let smallest = |step: &CurveStep| smallest_share(&leasable, &self.whole, step);
        let smallest: Vec<_> = self.terms.curve.0.iter().map(smallest).collect();
        let least = smallest.first().map_or(1, |share| *share);
        let quota = self.whole.quota();
        let Some(life) = record.life_mut(ask.incarnation) else { return Share::default() };
        let elapsed_ms = now_ms.saturating_sub(life.measured_ms);
        let fresh = life.answered == 0;
        let mut measured = None;
        if !fresh && elapsed_ms >= MEASURE_MS_MIN {
            measured = Some((
                demand(&quota, &life.measured, &ask.usage, elapsed_ms),
                ask.usage.asked == life.measured.attempts,
            ));
            life.measured = Asked::of(&ask.usage);
            life.measured_ms = now_ms;
        }
        self.shares.remove(record.demand, record.weight);
        record.weight = ask.weight;
        let others = self.shares.weight;
        if let Some((demand, silent)) = measured {
            let raised = demand.saturating_add(checked_div(demand, 4));
            record.demand = raised.max(record.demand.saturating_sub(checked_div(record.demand, 4))).min(SHARE_ONE);
            record.idle = if silent { record.idle.saturating_add(1) } else { 0 };
            if silent && on(Guard::IdleShrinks) {
                record.demand = 0;
            }
        } else if fresh && record.share == 0 {
            // Nothing is known of a newcomer: its fair part, at most a quarter.
            let weight = others.saturating_add(record.weight);
            let fair = checked_div(SHARE_ONE.saturating_mul(record.weight), weight);
            record.demand = fair.min(SHARE_ONE / 4);
        }
        self.shares.add(record.demand, record.weight);
        let available = SHARE_ONE.saturating_sub(NEWCOMERS_SHARE);
        let level = self.shares.level(available);
        let fair = checked_div(available.saturating_mul(record.weight), self.shares.weight.max(1));
        // Half its part of all there is is its own even if it does not ask for it: more would lie idle.
        let own = record.demand.max(checked_div(fair, 2));
        // What it should have, what it may have without others missing it, and what it may have at most.
        let (wanted, part, most) = match level {
            Some(level) => {
                let most = level.saturating_mul(record.weight);
                (record.demand.min(most), own.min(most), most)
            }
            None => {
                let spare = checked_div(record.demand.saturating_mul(available), self.shares.demand.max(1));
                let room = available.saturating_sub(self.shares.demand).saturating_add(record.demand);
                // What nobody asks for is spread over those who ask, but a guess is not doubled, nor what may be left
                // behind by the next crash.
                let guessed = fresh || record.restarted_until_ms > now_ms;
                let doubled = if guessed { record.demand } else { record.demand.saturating_mul(2) };
                (doubled.min(spare), own.min(room), room)
            }
        };
        // Twice its part at most, and only who surely uses it: retries are asked for in vain, and demand is rounded up.
        let surely = checked_div(record.demand, 2);
        let crowded = least > most && least <= most.saturating_mul(2).min(surely);
        let smallest = match smallest.iter().rev().find(|share| **share <= part) {
            Some(share) => *share,
            None if least <= most || crowded => least,
            None => 0,
        };
        let idle = record.idle > 0 && on(Guard::IdleShrinks);
        let mut share = match (idle, record.idle) {
            (true, 1) => smallest.max(least).min(record.share),
            (true, _) => 0,
            (false, _) => wanted.max(smallest),
        };
        // Small changes are not worth a message, unless there is not enough for all: what one keeps another lacks.
        let change = share.saturating_sub(record.share).saturating_abs();
        let matters = level.is_some() && share < record.share;
        if !idle && !matters && change <= checked_div(record.share, 8) {
            share = record.share;
        }
        if !permitted || least > SHARE_ONE || share < least || record.revoked_until_ms > now_ms {
            share = 0;
        }
        record.share = share;
        Share { part: share, left: if crowded { least } else { 0 } }
    }

    /// Rule 3, and what else limits a grant: the other incarnations of the same holder, permits in flight centrally, and
    /// an admission bucket that is booked ahead and needs its rate.
    pub(super) fn clip(
        &self,
        record: &mut Record,
        ask: &SyncAsk,
        share: Share,
        (in_flight, booked): (i64, bool),
        now_ms: i64,
    ) -> Amounts {
        let leasable = self.leasable();
        let unknown = if on(Guard::UnknownInGrants) { self.unknown(now_ms) } else { Amounts::default() };
        let whole_slots = self.whole.quota().slots;
        let of_holder = record.charge();
        let life = record.life_mut(ask.incarnation);
        let (own, own_slots) = life.map(|life| (life.charge.clone(), life.slots)).unwrap_or_default();
        let siblings = of_holder.zip(&own, i64::saturating_sub);
        let others = self.charged.zip(&own, i64::saturating_sub);
        let less = |left: i64, taken: i64| left.saturating_sub(taken).max(0);
        let mut value = leasable.scaled(share.part, SHARE_ONE);
        if on(Guard::OneShareById) {
            value = value.zip(&siblings, less);
        }
        if on(Guard::WithinFree) {
            let mut free = leasable.zip(&others, less).zip(&unknown, less);
            // Slots that direct callers have in flight are charged already, so that they come free one by one and a later
            // request finds them; else direct callers would take them again for ever. What the holder has is in flight
            // with it, not with them: while others wait for theirs, it stays.
            let slots = value.slots.min(free.slots);
            let direct_slots = less(less(less(whole_slots, others.slots), unknown.slots), in_flight);
            free.slots = free.slots.min(direct_slots.max(own_slots));
            let step_ms = self.terms.curve.0.first().map_or(0, |step| step.duration_ms);
            if slots > free.slots
                && let Some(life) = record.life_mut(ask.incarnation)
            {
                life.lingering.add(slots, now_ms.saturating_add(step_ms));
            }
            if booked {
                free.rate = free.rate.min(own.rate);
                free.burst = free.burst.min(own.burst);
            }
            let free = free.zip(&leasable.scaled(share.left, SHARE_ONE), less);
            value = value.zip(&free, i64::min);
        }
        let first = self.terms.curve.0.first().map_or_else(|| value.clone(), |step| value.step(step));
        if is_too_small(&first, &self.whole) { value.map(|_| 0) } else { value }
    }
}

/// The bursts of which a lease must hold a whole token (or slot) to be of use, quota and part.
fn needed<'a>(amounts: &'a Amounts, numbers: &'a Numbers) -> impl Iterator<Item = (i64, i64)> + 'a {
    let admission = numbers.admission.is_some().then_some((amounts.burst, MICROS_PER_TOKEN));
    let retry = (numbers.retry.burst > 0).then_some((amounts.retry_burst, MICROS_PER_TOKEN));
    let slots = numbers.slots_limited.then_some((amounts.slots, 1));
    let units = amounts.units.iter().map(|unit| (unit.burst, MICROS_PER_TOKEN));
    admission.into_iter().chain(retry).chain(slots).chain(units)
}

fn is_too_small(value: &Amounts, numbers: &Numbers) -> bool {
    needed(value, numbers).any(|(held, least)| held < least) || (numbers.admission.is_some() && value.rate == 0)
}

/// The smallest share of which a step leaves what is of use; above [`SHARE_ONE`] if there is none. A step below a hundredth
/// counts as one.
fn smallest_share(leasable: &Amounts, numbers: &Numbers, step: &CurveStep) -> i64 {
    let part_ppm = step.part_ppm.max(PPM / 100);
    let share = |(whole, least): (i64, i64)| {
        let least = div_ceil(least.saturating_mul(PPM), part_ppm);
        if whole < least { SHARE_ONE.saturating_add(1) } else { div_ceil(least.saturating_mul(SHARE_ONE), whole) }
    };
    needed(leasable, numbers).map(share).max().unwrap_or(1).max(1)
}

/// The largest part of a quota that was asked for per second, in parts of [`SHARE_ONE`].
fn demand(quota: &Amounts, before: &Asked, now: &Usage, elapsed_ms: i64) -> i64 {
    let part = |asked_micros: i64, rate: i64| {
        if rate == 0 {
            return 0;
        }
        // Below 2^53 throughout: 10^9 tokens, 4·10^12 micro-tokens per second.
        let per_ms = checked_div(asked_micros, elapsed_ms).min(checked_div(rate, 1_000).saturating_add(1));
        let per_second = per_ms.saturating_mul(1_000).min(rate);
        let unit = div_ceil(rate, 100_000_000);
        checked_div(checked_div(per_second, unit).saturating_mul(SHARE_ONE), checked_div(rate, unit).max(1))
    };
    let more = |now: i64, then: i64| now.saturating_sub(then).clamp(0, 1_000_000_000);
    let attempts = more(now.asked, before.attempts).saturating_mul(MICROS_PER_TOKEN);
    let admission = if quota.rate > 0 { part(attempts, quota.rate) } else { SHARE_ONE / 16 };
    let units = now.units_asked.iter().map(|(unit, asked)| {
        let then = before.units.iter().find(|(id, _)| id == unit).map_or(0, |(_, asked)| *asked);
        let asked = asked.saturating_sub(then).clamp(0, crate::units::BURST_MICROS_MAX);
        part(asked, quota.unit(*unit).map_or(0, |unit| unit.rate))
    });
    units.fold(admission, i64::max).min(SHARE_ONE)
}
