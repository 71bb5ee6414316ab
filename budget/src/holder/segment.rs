//! What holds between two changes of a lease: the numbers local decisions are made with.
//!
//! Numbers of a segment are written before any word gets its tag, into one of two slots by the tag's parity. A thread that
//! reads a slot while it is written anew for a later segment computes nonsense, but its tag is of the past by then, so
//! nothing comes of it.

use std::sync::atomic::{
    AtomicI64, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use super::word::{CLOCK_MAX, Level, Pace};
use crate::{
    decision::Priority,
    ids::UnitId,
    lease::{Amounts, Rules, UnitAmounts},
    policy::{self, UNITS_MAX, keep, keep_permits},
    units::{MICROS_PER_TOKEN, PPM, checked_div},
};

const NANOS_PER_SECOND: i64 = 1_000_000_000;
/// Of a class's share in parts per million.
const SHARE_BITS: u32 = 20;
const SHARE_MASK: u64 = (1 << SHARE_BITS) - 1;

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
        /// Level at which the default class is admitted, micro-tokens.
        need_default: i64 = AtomicI64,
        /// What each class may drain, parts per million in [`SHARE_BITS`] bits each: the sheddable one's are the lowest.
        classes: u64 = AtomicU64,
        slots: u32 = AtomicU32,
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

/// Whole tokens that are left of a bucket by a class which may drain `share_ppm` of it.
#[inline]
fn keep_tokens(burst: i64, share_ppm: i64) -> u32 {
    let kept = checked_div(keep(burst, share_ppm), MICROS_PER_TOKEN);
    u32::try_from(kept).unwrap_or(u32::MAX)
}

/// Shares of the classes in one word.
fn packed(shares_ppm: [i64; 3]) -> u64 {
    shares_ppm.iter().rev().fold(0, |word, share| (word << SHARE_BITS) | share.clamp(&0, &PPM).unsigned_abs())
}

#[inline]
fn share_of(classes: u64, priority: Priority) -> i64 {
    let shift = match priority {
        Priority::Sheddable => 0,
        Priority::Default => SHARE_BITS,
        Priority::Critical => SHARE_BITS << 1,
    };
    ((classes >> shift) & SHARE_MASK).cast_signed()
}

fn micros(amount: i64) -> u32 {
    u32::try_from(amount).unwrap_or(u32::MAX)
}

/// The level needed to take `cost`, for a class that leaves so many tokens. None is enough for a cost above the burst.
#[inline]
pub(super) fn needed(burst: i64, cost: i64, keep_tokens: u32) -> i64 {
    policy::needed(burst, cost, i64::from(keep_tokens).saturating_mul(MICROS_PER_TOKEN)).unwrap_or(i64::MAX)
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
        let classes = packed(rules.priority_ppm);
        let keep_default = keep_tokens(amounts.burst, share_of(classes, Priority::Default));
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
            need_default: needed(amounts.burst, MICROS_PER_TOKEN, keep_default),
            classes,
            slots: micros(amounts.slots),
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
        let [keep_sheddable, keep_default, keep_critical] = rules.priority_ppm.map(|share| keep_tokens(burst, share));
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

const _: () = assert!(PPM.unsigned_abs() <= SHARE_MASK && size_of::<Slot>() <= 112);

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

    /// Level at which an attempt of a class is admitted.
    #[inline]
    pub(super) fn need(&self, priority: Priority) -> i64 {
        match priority {
            Priority::Default => self.need_default.load(Relaxed),
            Priority::Sheddable | Priority::Critical => self.needed(&self.burst, MICROS_PER_TOKEN, priority),
        }
    }

    /// Level at which a class may take a retry's cost.
    #[inline]
    pub(super) fn retry_needed(&self, cost: u32, priority: Priority) -> i64 {
        self.needed(&self.retry_burst, cost.into(), priority)
    }

    fn needed(&self, burst: &AtomicI64, cost: i64, priority: Priority) -> i64 {
        let burst = burst.load(Relaxed);
        needed(burst, cost, keep_tokens(burst, share_of(self.classes.load(Relaxed), priority)))
    }

    /// Permits that a class may take.
    pub(super) fn slots(&self, priority: Priority) -> i64 {
        let slots = i64::from(self.slots.load(Relaxed));
        slots.saturating_sub(keep_permits(slots, share_of(self.classes.load(Relaxed), priority)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_classes_are_found_again() {
        let classes = packed([1, 500_000, PPM]);
        let shares = Priority::ALL.map(|priority| share_of(classes, priority));
        assert_eq!(shares, [1, 500_000, PPM]);
    }
}
