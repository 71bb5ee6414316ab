//! What holds between two changes of a lease: the numbers local decisions are made with.
//!
//! Numbers of a segment are written before any word gets its tag, into one of two slots by the tag's parity. A thread that
//! reads a slot while it is written anew for a later segment computes nonsense, but its tag is of the past by then, so
//! nothing comes of it.

use std::sync::atomic::{
    AtomicI64, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use super::word::{CLOCK_MAX, Level, Pace};
use crate::{
    decision::Priority,
    ids::UnitId,
    lease::{Amounts, Rules, UnitAmounts},
    policy::UNITS_MAX,
    units::{MICROS_PER_TOKEN, PPM, checked_div},
};

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// Decided locally at all.
pub(super) const LEASED: u32 = 1;
/// Admission is limited.
pub(super) const LIMITED: u32 = 2;
/// Permits are limited.
pub(super) const SLOTS: u32 = 4;
/// Refusals do not bite.
pub(super) const SHADOW: u32 = 8;
/// The kill switch.
pub(super) const RETRIES_OFF: u32 = 16;
/// The retry bucket's clock counts successes instead of originals.
pub(super) const EARN_ON_SUCCESS: u32 = 32;

/// Declares the numbers of a segment twice: plain, and as the atomics they are published in.
macro_rules! published {
    ($(#[$doc:meta])* $plain:ident / $slot:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $atomic:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub(super) struct $plain { $($(#[$field_doc])* pub(super) $field: $type),+ }

        #[derive(Debug, Default)]
        pub(super) struct $slot { $(pub(super) $field: $atomic),+ }

        impl $slot {
            pub(super) fn publish(&self, plain: &$plain) {
                $(self.$field.store(plain.$field, Release);)+
            }

            pub(super) fn read(&self) -> $plain {
                $plain { $($field: self.$field.load(Acquire)),+ }
            }
        }
    };
}

published! {
    /// The numbers of one segment but for its cost units.
    Segment / Slot {
        start_ns: i64 = AtomicI64,
        end_ns: i64 = AtomicI64,
        permit_ns: i64 = AtomicI64,
        /// Micro-tokens per second.
        rate: i64 = AtomicI64,
        flags: u32 = AtomicU32,
        burst: i64 = AtomicI64,
        retry_burst: i64 = AtomicI64,
        /// The earning counter's reading at which the retry bucket's clock is 0.
        retry_base: i64 = AtomicI64,
        /// Micro-tokens per count of the earning counter.
        deposit: u32 = AtomicU32,
        attempts: u32 = AtomicU32,
        /// Level at which each class is admitted, micro-tokens.
        need_sheddable: i64 = AtomicI64,
        need_default: i64 = AtomicI64,
        need_critical: i64 = AtomicI64,
        /// Whole tokens or permits that the classes leave.
        retry_keep_sheddable: u32 = AtomicU32,
        retry_keep_default: u32 = AtomicU32,
        retry_keep_critical: u32 = AtomicU32,
        slots: u32 = AtomicU32,
        slots_keep_sheddable: u32 = AtomicU32,
        slots_keep_default: u32 = AtomicU32,
        slots_keep_critical: u32 = AtomicU32,
        /// Micro-tokens by cause.
        cost_transient: u32 = AtomicU32,
        cost_throttled: u32 = AtomicU32,
        cost_timeout: u32 = AtomicU32,
        cost_hedge: u32 = AtomicU32,
        cost_failover: u32 = AtomicU32,
    }
}

published! {
    /// The numbers of one cost unit in one segment.
    UnitSegment / UnitSlot {
        /// 0: none lives here.
        id: i64 = AtomicI64,
        /// Micro-tokens per second.
        rate: i64 = AtomicI64,
        burst: i64 = AtomicI64,
        /// Deepest debt.
        debt: i64 = AtomicI64,
        keep_sheddable: u32 = AtomicU32,
        keep_default: u32 = AtomicU32,
        keep_critical: u32 = AtomicU32,
    }
}

/// A cost unit's bucket.
#[derive(Debug)]
pub(super) struct UnitCell {
    pub(super) level: Level,
    pub(super) asked: AtomicI64,
    pub(super) even: UnitSlot,
    pub(super) odd: UnitSlot,
}

/// Where the cost units live, once a policy has one. A unit stays in its cell as long as the policy has it.
pub(super) type Cells = [UnitCell; UNITS_MAX];

/// The whole tokens a class leaves of a bucket.
fn keep(burst: i64, rules: &Rules) -> [u32; 3] {
    rules.priority_ppm.map(|share| {
        let kept = i128::from(burst)
            .saturating_mul(i128::from(PPM.saturating_sub(share)))
            .checked_div(i128::from(PPM).saturating_mul(i128::from(MICROS_PER_TOKEN)))
            .unwrap_or(0);
        u32::try_from(kept).unwrap_or(u32::MAX)
    })
}

/// The permits a class leaves: never all.
fn keep_slots(slots: i64, rules: &Rules) -> [u32; 3] {
    rules.priority_ppm.map(|share| {
        let kept = checked_div(slots.saturating_mul(PPM.saturating_sub(share)), PPM);
        u32::try_from(kept.min(slots.saturating_sub(1)).max(0)).unwrap_or(u32::MAX)
    })
}

fn micros(amount: i64) -> u32 {
    u32::try_from(amount).unwrap_or(u32::MAX)
}

/// The level needed to take `cost`: with what a class leaves, but never more than a full bucket. None is enough for a cost
/// above the burst.
#[inline]
pub(super) fn needed(burst: i64, cost: i64, keep_tokens: u32) -> i64 {
    if cost > burst {
        return i64::MAX;
    }
    let keep = i64::from(keep_tokens).saturating_mul(MICROS_PER_TOKEN);
    cost.saturating_add(keep.min(burst.saturating_sub(cost)))
}

/// The longest time whose clock stays in range.
pub(super) fn longest_ns(amounts: &Amounts) -> i64 {
    let fastest = amounts.units.iter().map(|unit| unit.rate).fold(amounts.rate, i64::max).max(1);
    let ns = i128::from(CLOCK_MAX).saturating_mul(i128::from(NANOS_PER_SECOND)).checked_div(fastest.into());
    ns.and_then(|ns| i64::try_from(ns).ok()).unwrap_or(i64::MAX)
}

// === impl Segment ===

impl Segment {
    /// A step of a lease; without amounts the time when there is none.
    pub(super) fn new(rules: &Rules, amounts: Option<&Amounts>, start_ns: i64, end_ns: i64, retry_base: i64) -> Self {
        let mut flags = 0;
        for (flag, set) in [
            (LEASED, amounts.is_some()),
            (LIMITED, rules.limited),
            (SLOTS, rules.slots_limited),
            (SHADOW, rules.shadow),
            (RETRIES_OFF, rules.retries_off),
            (EARN_ON_SUCCESS, rules.earn_on_success),
        ] {
            flags |= if set { flag } else { 0 };
        }
        let nothing = Amounts::default();
        let amounts = amounts.unwrap_or(&nothing);
        let [need_sheddable, need_default, need_critical] =
            keep(amounts.burst, rules).map(|keep| needed(amounts.burst, MICROS_PER_TOKEN, keep));
        let [retry_keep_sheddable, retry_keep_default, retry_keep_critical] = keep(amounts.retry_burst, rules);
        let [slots_keep_sheddable, slots_keep_default, slots_keep_critical] = keep_slots(amounts.slots, rules);
        let [cost_transient, cost_throttled, cost_timeout, cost_hedge, cost_failover] =
            rules.retry_cost_micros.map(micros);
        Self {
            start_ns,
            end_ns,
            permit_ns: rules.permit_ttl_ms.saturating_mul(1_000_000),
            rate: amounts.rate,
            flags,
            burst: amounts.burst,
            retry_burst: amounts.retry_burst,
            retry_base,
            deposit: micros(rules.deposit_micros),
            attempts: micros(rules.max_attempts),
            need_sheddable,
            need_default,
            need_critical,
            retry_keep_sheddable,
            retry_keep_default,
            retry_keep_critical,
            slots: micros(amounts.slots),
            slots_keep_sheddable,
            slots_keep_default,
            slots_keep_critical,
            cost_transient,
            cost_throttled,
            cost_timeout,
            cost_hedge,
            cost_failover,
        }
    }

    /// The admission bucket's clock, not beyond the segment's end.
    pub(super) fn clock(&self, now_ns: i64) -> i64 {
        self.pace().at(now_ns.min(self.end_ns).saturating_sub(self.start_ns))
    }

    pub(super) const fn pace(&self) -> Pace {
        Pace(self.rate)
    }

    /// The retry bucket's clock at a reading of the earning counter.
    pub(super) fn retry_clock(&self, earned: i64) -> i64 {
        earned.saturating_sub(self.retry_base).max(0).saturating_mul(self.deposit.into())
    }
}

impl UnitSegment {
    pub(super) fn new(rules: &Rules, id: UnitId, part: Option<&UnitAmounts>, debt: i64) -> Self {
        let (rate, burst) = part.map_or((0, 0), |part| (part.rate, part.burst));
        let [keep_sheddable, keep_default, keep_critical] = keep(burst, rules);
        Self {
            id: id.raw(),
            rate,
            burst,
            debt: if part.is_some() { burst } else { debt },
            keep_sheddable,
            keep_default,
            keep_critical,
        }
    }

    pub(super) const fn pace(&self) -> Pace {
        Pace(self.rate)
    }
}

/// Picks by class.
#[inline]
pub(super) fn by_class<'a, T>(priority: Priority, sheddable: &'a T, default: &'a T, critical: &'a T) -> &'a T {
    match priority {
        Priority::Sheddable => sheddable,
        Priority::Default => default,
        Priority::Critical => critical,
    }
}

// === impl Slot ===

impl Slot {
    #[inline]
    pub(super) fn pace(&self) -> Pace {
        Pace(self.rate.load(Relaxed))
    }

    #[inline]
    pub(super) fn need(&self, priority: Priority) -> i64 {
        by_class(priority, &self.need_sheddable, &self.need_default, &self.need_critical).load(Relaxed)
    }

    #[inline]
    pub(super) fn retry_keep(&self, priority: Priority) -> u32 {
        by_class(priority, &self.retry_keep_sheddable, &self.retry_keep_default, &self.retry_keep_critical)
            .load(Relaxed)
    }

    /// Permits that a class may take.
    pub(super) fn slots(&self, priority: Priority) -> i64 {
        let keep = by_class(priority, &self.slots_keep_sheddable, &self.slots_keep_default, &self.slots_keep_critical);
        i64::from(self.slots.load(Relaxed)).saturating_sub(keep.load(Relaxed).into())
    }

    /// What a retry costs.
    #[inline]
    pub(super) fn retry_cost(&self, cause: crate::decision::Cause) -> u32 {
        use crate::decision::Cause;
        match cause {
            Cause::Transient => &self.cost_transient,
            Cause::Throttled => &self.cost_throttled,
            Cause::Timeout => &self.cost_timeout,
            Cause::Hedge => &self.cost_hedge,
            Cause::Failover => &self.cost_failover,
        }
        .load(Relaxed)
    }
}

impl UnitCell {
    pub(super) fn new(tag: super::word::Tag) -> Self {
        Self { level: Level::new(tag), asked: AtomicI64::new(0), even: UnitSlot::default(), odd: UnitSlot::default() }
    }

    #[inline]
    pub(super) fn slot(&self, odd: bool) -> &UnitSlot {
        if odd { &self.odd } else { &self.even }
    }
}
