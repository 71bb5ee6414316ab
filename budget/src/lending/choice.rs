//! How much a holder is granted: a share by its demand, clipped to what is free.
//!
//! [`chosen`] is the rule, of numbers alone; whoever lends gives what it shares out as a [`Pool`], and what else is taken of
//! it as [`Beside`].

use super::{Record, Side, Table};
use crate::{
    guard::{Guard, on},
    ids::UnitId,
    lease::{Amounts, Curve, NEWCOMERS_SHARE, SHARE_ONE, SyncAsk, Usage},
    policy::CurveStep,
    units::{MICROS_PER_TOKEN, PPM, checked_div, div_ceil},
};

/// Demand is measured over at least this long.
pub const MEASURE_MS_MIN: i64 = 1_000;

/// What is shared out.
#[derive(Clone, Copy)]
pub(crate) struct Pool<'a> {
    pub(crate) side: Side,
    /// What demand is a part of.
    pub(crate) quota: &'a Amounts,
    /// What may be lent of it.
    pub(crate) lendable: &'a Amounts,
    /// Of each grant.
    pub(crate) curve: &'a Curve,
    pub(crate) needs: Needs,
    /// Whether anything may be lent now.
    pub(crate) permitted: bool,
}

/// Of which kinds a lease must hold a whole token, or slot, to be of use; units always.
#[derive(Clone, Copy)]
pub(crate) struct Needs {
    pub(crate) admission: bool,
    pub(crate) retries: bool,
    pub(crate) slots: bool,
}

/// What is taken of a pool beside its holders.
pub(crate) struct Beside<'a> {
    /// Perhaps lent, by whom is not known.
    pub(crate) unknown: &'a Amounts,
    /// Permits that direct callers hold.
    pub(crate) in_flight: i64,
    /// Direct callers have booked the admission bucket ahead, which needs its rate.
    pub(crate) booked: bool,
}

/// What had been asked for of [`Usage`], and when: demand is measured from there.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) since_ms: i64,
    pub(crate) attempts: i64,
    pub(crate) units: Box<[(UnitId, i64)]>,
}

/// A share as it was chosen, in parts of [`SHARE_ONE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// What it is.
    part: i64,
    /// What must be left of all when it is given: where there is less for each holder than is of use, as many are served as
    /// fit, and not one of them keeps out who is due a lease.
    left: i64,
}

/// Who a share is chosen for.
struct Asker {
    weight: i64,
    demand: i64,
    /// Renewals in a row without a single ask.
    idle: i64,
    /// The share before.
    share: i64,
    /// Nothing is known of it yet, or it may soon leave behind what it is lent.
    guessed: bool,
}

/// The sums over all who share, this one among them.
struct Sums {
    weight: i64,
    demand: i64,
    /// The most that one unit of weight gets; none if all demands fit.
    level: Option<i64>,
}

// === impl Measured ===

impl Measured {
    pub(crate) fn new(usage: &Usage, now_ms: i64) -> Self {
        Self { since_ms: now_ms, attempts: usage.asked, units: usage.units_asked.clone() }
    }

    /// The demand since the last measurement, and whether nothing was asked for at all; none if that was a moment ago.
    pub(crate) fn measure(&mut self, quota: &Amounts, usage: &Usage, now_ms: i64) -> Option<(i64, bool)> {
        let elapsed_ms = now_ms.saturating_sub(self.since_ms);
        if elapsed_ms < MEASURE_MS_MIN {
            return None;
        }
        let before = std::mem::replace(self, Self::new(usage, now_ms));
        Some((demand(quota, &before, usage, elapsed_ms), usage.asked == before.attempts))
    }
}

// === impl Table ===

impl Table {
    /// The holder's fair share by its demand.
    pub(crate) fn choose(&mut self, record: &mut Record, ask: &SyncAsk, pool: &Pool<'_>, now_ms: i64) -> Share {
        let smallest: Vec<_> = pool.curve.0.iter().map(|step| smallest_share(pool, step)).collect();
        let Some(life) = record.life_mut(ask.incarnation) else { return Share::default() };
        let fresh = life.answered == 0;
        let measured = if fresh { None } else { life.measured.measure(pool.quota, &ask.usage, now_ms) };
        self.shares.remove(record.demand, record.weight);
        record.weight = ask.weight;
        if let Some((demand, silent)) = measured {
            record.idle = if silent { record.idle.saturating_add(1) } else { 0 };
            record.demand = if silent && on(Guard::IdleShrinks) { 0 } else { raised(demand, record.demand) };
        } else if fresh && record.share == 0 {
            // Nothing is known of a newcomer: its fair part, at most a quarter.
            let weight = self.shares.weight.saturating_add(record.weight);
            let fair = checked_div(SHARE_ONE.saturating_mul(record.weight), weight);
            record.demand = fair.min(SHARE_ONE / 4);
        }
        self.shares.add(record.demand, record.weight);
        let restarted = record.restarted_until_ms > now_ms;
        let asker = Asker {
            weight: record.weight,
            demand: record.demand,
            idle: if on(Guard::IdleShrinks) { record.idle } else { 0 },
            share: record.share,
            guessed: fresh || restarted,
        };
        let level = self.shares.level(AVAILABLE);
        let sums = Sums { weight: self.shares.weight, demand: self.shares.demand, level };
        let mut share = chosen(&asker, &sums, &smallest);
        if !pool.permitted || (record.is_revoked(now_ms) && on(Guard::RevokedIsNotLent)) {
            share.part = 0;
        }
        record.share = share.part;
        share
    }

    /// Rule 3, and what else limits a grant: the other incarnations of the same holder, and what is taken beside.
    pub(crate) fn clip(
        &self,
        record: &mut Record,
        ask: &SyncAsk,
        share: Share,
        pool: &Pool<'_>,
        beside: &Beside<'_>,
        now_ms: i64,
    ) -> Amounts {
        let less = |left: i64, taken: i64| left.saturating_sub(taken).max(0);
        let of_holder = record.charge();
        let life = record.life_mut(ask.incarnation);
        let (own, own_slots) = life.map(|life| (life.charge.clone(), life.slots)).unwrap_or_default();
        let siblings = of_holder.zip(&own, i64::saturating_sub);
        let others = self.charged.zip(&own, i64::saturating_sub);
        let mut value = pool.lendable.scaled(share.part, SHARE_ONE);
        if on(Guard::OneShareById) {
            value = value.zip(&siblings, less);
        }
        let first = pool.curve.0.first();
        if pool.side.on(Guard::WithinFree, Guard::SubleaseWithinParent) {
            let mut free = pool.lendable.zip(&others, less).zip(beside.unknown, less);
            // Slots that direct callers have in flight are charged already, so that they come free one by one and a later
            // request finds them; else direct callers would take them again for ever. What the holder has is in flight
            // with it, not with them: while others wait for theirs, it stays.
            let slots = value.slots.min(free.slots);
            let direct_slots = less(less(less(pool.quota.slots, others.slots), beside.unknown.slots), beside.in_flight);
            free.slots = free.slots.min(direct_slots.max(own_slots));
            if slots > free.slots
                && let Some(life) = record.life_mut(ask.incarnation)
            {
                let first_ms = first.map_or(0, |step| step.duration_ms);
                life.lingering.add(slots, now_ms.saturating_add(first_ms));
            }
            if beside.booked {
                free.rate = free.rate.min(own.rate);
                free.burst = free.burst.min(own.burst);
            }
            let free = free.zip(&pool.lendable.scaled(share.left, SHARE_ONE), less);
            value = value.zip(&free, i64::min);
        }
        let at_first = first.map_or_else(|| value.clone(), |step| value.step(step));
        if is_too_small(&at_first, pool.needs) { value.map(|_| 0) } else { value }
    }
}

/// Of what may be lent, so much is shared out.
const AVAILABLE: i64 = SHARE_ONE - NEWCOMERS_SHARE;

/// The rule. `smallest`: for each step of the curve the smallest share of which it leaves what is of use.
fn chosen(asker: &Asker, sums: &Sums, smallest: &[i64]) -> Share {
    let demand = asker.demand;
    let least = smallest.first().map_or(1, |share| *share);
    let fair = checked_div(AVAILABLE.saturating_mul(asker.weight), sums.weight.max(1));
    // Half its part of all there is is its own even if it does not ask for it: more would lie idle.
    let own = demand.max(checked_div(fair, 2));
    // What it should have, what it may have without others missing it, and what it may have at most.
    let (wanted, part, most) = match sums.level {
        Some(level) => {
            let most = level.saturating_mul(asker.weight);
            (demand.min(most), own.min(most), most)
        }
        None => {
            let spare = checked_div(demand.saturating_mul(AVAILABLE), sums.demand.max(1));
            let room = AVAILABLE.saturating_sub(sums.demand).saturating_add(demand);
            // What nobody asks for is spread over those who ask, but a guess is not doubled, nor what may be left behind by
            // the next crash.
            let doubled = if asker.guessed { demand } else { demand.saturating_mul(2) };
            (doubled.min(spare), own.min(room), room)
        }
    };
    // Twice its part at most, and only who surely uses it: retries are asked for in vain, and demand is rounded up.
    let surely = checked_div(demand, 2);
    let crowded = least > most && least <= most.saturating_mul(2).min(surely) && on(Guard::CrowdedAreServed);
    let smallest = match smallest.iter().rev().find(|share| **share <= part) {
        Some(share) => *share,
        None if least <= most || crowded => least,
        None => 0,
    };
    let mut part = match asker.idle {
        0 => wanted.max(smallest),
        1 => smallest.max(least).min(asker.share),
        _ => 0,
    };
    // Small changes are not worth a message, unless there is not enough for all: what one keeps another lacks.
    let change = part.saturating_sub(asker.share).saturating_abs();
    let matters = sums.level.is_some() && part < asker.share;
    if asker.idle == 0 && !matters && change <= checked_div(asker.share, 8) {
        part = asker.share;
    }
    if least > SHARE_ONE || part < least {
        part = 0;
    }
    Share { part, left: if crowded { least } else { 0 } }
}

/// Demand as it is reckoned with: somewhat more than was measured, and it falls slowly.
pub(crate) fn raised(measured: i64, before: i64) -> i64 {
    let raised = measured.saturating_add(checked_div(measured, 4));
    raised.max(before.saturating_sub(checked_div(before, 4))).min(SHARE_ONE)
}

/// The bursts of which a lease must hold a whole token (or slot) to be of use, and that.
fn needed(amounts: &Amounts, needs: Needs) -> impl Iterator<Item = (i64, i64)> + '_ {
    let admission = needs.admission.then_some((amounts.burst, MICROS_PER_TOKEN));
    let retry = needs.retries.then_some((amounts.retry_burst, MICROS_PER_TOKEN));
    let slots = needs.slots.then_some((amounts.slots, 1));
    let units = amounts.units.iter().map(|unit| (unit.burst, MICROS_PER_TOKEN));
    admission.into_iter().chain(retry).chain(slots).chain(units)
}

fn is_too_small(value: &Amounts, needs: Needs) -> bool {
    needed(value, needs).any(|(held, least)| held < least) || (needs.admission && value.rate == 0)
}

/// The smallest share of which a step leaves what is of use; above [`SHARE_ONE`] if there is none. A step below a hundredth
/// counts as one.
fn smallest_share(pool: &Pool<'_>, step: &CurveStep) -> i64 {
    let part_ppm = step.part_ppm.max(PPM / 100);
    let share = |(whole, least): (i64, i64)| {
        let least = div_ceil(least.saturating_mul(PPM), part_ppm);
        if whole < least { SHARE_ONE.saturating_add(1) } else { div_ceil(least.saturating_mul(SHARE_ONE), whole) }
    };
    needed(pool.lendable, pool.needs).map(share).max().unwrap_or(1).max(1)
}

/// The largest part of a quota that was asked for per second, in parts of [`SHARE_ONE`].
fn demand(quota: &Amounts, before: &Measured, now: &Usage, elapsed_ms: i64) -> i64 {
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
