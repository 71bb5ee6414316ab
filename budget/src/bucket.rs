//! A token bucket in integers: refill from a rate, deposits from traffic, withdrawals, debt.
//!
//! The continuous form of the token bucket (refill on read, no timer) as in the leaky bucket as a meter of ITU-T I.371;
//! what is below one micro-token is carried in a remainder, so polling never changes what is granted. The script
//! `bucket.lua` is its only other copy.

use crate::{
    decision::Priority,
    policy::{BucketNumbers, needed},
    units::{checked_div, div_ceil},
};

/// The state of one bucket. What it may hold is in [`BucketNumbers`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Negative while in debt or booked ahead.
    pub balance_micros: i64,
    /// Of the refill's division, below its denominator.
    pub remainder: i64,
}

/// Why a withdrawal is not possible now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// The cost exceeds the burst.
    Impossible,
    /// So long until the rate alone will have filled enough; none if the rate is 0.
    Wait(Option<i64>),
}

// === impl Bucket ===

impl Bucket {
    /// Adds what `elapsed_ms` earn, up to the burst.
    pub fn refill(&mut self, numbers: &BucketNumbers, elapsed_ms: i64) {
        if numbers.num > 0 && elapsed_ms > 0 {
            let elapsed_ms = elapsed_ms.min(numbers.elapsed_ms_max);
            let total = numbers.num.saturating_mul(elapsed_ms).saturating_add(self.remainder);
            let earned = checked_div(total, numbers.den);
            self.remainder = total.saturating_sub(earned.saturating_mul(numbers.den));
            self.balance_micros = self.balance_micros.saturating_add(earned);
        }
        if self.balance_micros >= numbers.burst {
            *self = Self { balance_micros: numbers.burst, remainder: 0 };
        }
    }

    /// Whether `cost` may be withdrawn by a class, which leaves `min(keep, burst − cost)` untouched.
    ///
    /// # Errors
    /// How long to wait, or that waiting never helps.
    pub fn covers(&self, numbers: &BucketNumbers, priority: Priority, cost: i64) -> Result<(), Short> {
        let [sheddable, default, critical] = numbers.keep;
        let keep = match priority {
            Priority::Sheddable => sheddable,
            Priority::Default => default,
            Priority::Critical => critical,
        };
        let needed = needed(numbers.burst, cost, keep).ok_or(Short::Impossible)?;
        let missing = needed.saturating_sub(self.balance_micros);
        if missing <= 0 {
            return Ok(());
        }
        if numbers.num == 0 {
            return Err(Short::Wait(None));
        }
        let units = missing.saturating_mul(numbers.den).saturating_sub(self.remainder);
        Err(Short::Wait(Some(div_ceil(units, numbers.num).max(1))))
    }

    /// Takes `cost`; the caller has asked [`Self::covers`] or books ahead.
    pub fn withdraw(&mut self, cost: i64) {
        self.balance_micros = self.balance_micros.saturating_sub(cost);
    }

    /// Adds up to `amount` without exceeding the burst and returns what was added.
    pub fn deposit(&mut self, numbers: &BucketNumbers, amount: i64) -> i64 {
        let room = numbers.burst.saturating_sub(self.balance_micros).max(0);
        let added = amount.min(room);
        self.balance_micros = self.balance_micros.saturating_add(added);
        added
    }

    /// Takes up to `amount`, going into debt of at most one burst, and returns what could not be taken.
    pub fn charge(&mut self, numbers: &BucketNumbers, amount: i64) -> i64 {
        let room = self.balance_micros.saturating_add(numbers.burst).max(0);
        let taken = amount.min(room);
        self.balance_micros = self.balance_micros.saturating_sub(taken);
        amount.saturating_sub(taken)
    }

    /// Fits the state to numbers that may have changed: clips, drops the remainder, never refills.
    pub fn adopt(&mut self, numbers: &BucketNumbers) {
        self.remainder = 0;
        self.balance_micros = self.balance_micros.min(numbers.burst).max(numbers.debt_max.saturating_neg());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::Limit,
        units::{MICROS_PER_TOKEN, PPM, Rate},
    };

    fn numbers(rate: &str, burst_tokens: i64) -> BucketNumbers {
        BucketNumbers::new(Limit { rate: Rate::parse(rate).unwrap(), burst_tokens }, [PPM; 3])
    }

    #[test]
    fn a_rate_is_granted_exactly_whether_polled_or_not() {
        for rate in ["100/h", "270/min", "7/d", "3/s"] {
            let numbers = numbers(rate, 1_000_000);
            let day_ms = 86_400_000;
            let mut polled = Bucket::default();
            let mut at = 0;
            let mut step = 1;
            while at < day_ms {
                let next = (at + step).min(day_ms);
                polled.refill(&numbers, next - at);
                at = next;
                step = step % 997 + 13;
            }
            let mut once = Bucket::default();
            once.refill(&numbers, day_ms);
            assert_eq!(polled, once, "{rate}");
            assert_eq!(
                i128::from(once.balance_micros),
                i128::from(numbers.num) * i128::from(day_ms) / i128::from(numbers.den)
            );
        }
    }

    #[test]
    fn hundred_per_hour_is_2400_a_day() {
        let numbers = numbers("100/h", 1);
        let mut bucket = Bucket::default();
        let mut granted = 0;
        for _ in 0..86_400 {
            bucket.refill(&numbers, 1_000);
            if bucket.covers(&numbers, Priority::Default, MICROS_PER_TOKEN).is_ok() {
                bucket.withdraw(MICROS_PER_TOKEN);
                granted += 1;
            }
        }
        assert_eq!(granted, 2_400);
    }

    #[test]
    fn idleness_neither_overflows_nor_overfills() {
        let numbers = numbers("1G/s", 1_000_000_000);
        let mut bucket = Bucket { balance_micros: -1_000_000_000 * MICROS_PER_TOKEN, remainder: 0 };
        bucket.refill(&numbers, i64::MAX);
        assert_eq!(bucket, Bucket { balance_micros: numbers.burst, remainder: 0 });
    }

    #[test]
    fn time_that_goes_back_takes_nothing() {
        let mut bucket = Bucket { balance_micros: 5, remainder: 3 };
        bucket.refill(&numbers("100/h", 1), -3_600_000);
        assert_eq!(bucket, Bucket { balance_micros: 5, remainder: 3 });
    }

    #[test]
    fn the_wait_is_exactly_enough() {
        let numbers = numbers("100/h", 5);
        for start in [-3_000_000, -1, 0, 1, 999_999, 1_500_000] {
            for cost in [1, 27, 28, 1_000_000, 5_000_000] {
                let bucket = Bucket { balance_micros: start, remainder: 3 };
                let Err(Short::Wait(Some(wait))) = bucket.covers(&numbers, Priority::Default, cost) else { continue };
                let after = |ms| {
                    let mut later = bucket;
                    later.refill(&numbers, ms);
                    later.covers(&numbers, Priority::Default, cost)
                };
                assert_eq!(after(wait), Ok(()), "start {start} cost {cost}");
                assert!(after(wait - 1).is_err(), "start {start} cost {cost}");
            }
        }
    }

    #[test]
    fn a_burst_of_one_serves_every_class() {
        let limit = Limit { rate: Rate::parse("1/s").unwrap(), burst_tokens: 1 };
        let numbers = BucketNumbers::new(limit, [0, PPM / 2, PPM]);
        let full = Bucket { balance_micros: MICROS_PER_TOKEN, remainder: 0 };
        for priority in Priority::ALL {
            assert_eq!(full.covers(&numbers, priority, MICROS_PER_TOKEN), Ok(()));
        }
    }

    #[test]
    fn classes_leave_whole_tokens_untouched() {
        let limit = Limit { rate: Rate::parse("1/s").unwrap(), burst_tokens: 15 };
        let numbers = BucketNumbers::new(limit, [PPM / 2, 900_000, PPM]);
        assert_eq!(numbers.keep, [7 * MICROS_PER_TOKEN, MICROS_PER_TOKEN, 0]);
        let at = |tokens: i64| Bucket { balance_micros: tokens * MICROS_PER_TOKEN, remainder: 0 };
        for (tokens, priority, allowed) in [
            (8, Priority::Sheddable, true),
            (7, Priority::Sheddable, false),
            (2, Priority::Default, true),
            (1, Priority::Default, false),
            (1, Priority::Critical, true),
            (0, Priority::Critical, false),
        ] {
            assert_eq!(
                at(tokens).covers(&numbers, priority, MICROS_PER_TOKEN).is_ok(),
                allowed,
                "{tokens} {priority:?}"
            );
        }
    }

    #[test]
    fn debt_stops_at_one_burst() {
        let numbers = numbers("1/s", 10);
        let mut bucket = Bucket { balance_micros: 3_000_000, remainder: 0 };
        assert_eq!(bucket.charge(&numbers, 8_000_000), 0);
        assert_eq!(bucket.balance_micros, -5_000_000);
        assert_eq!(bucket.charge(&numbers, 8_000_000), 3_000_000);
        assert_eq!(bucket.balance_micros, -10_000_000);
        assert_eq!(bucket.charge(&numbers, 1), 1);
    }

    #[test]
    fn deposits_clip_and_tell() {
        let numbers = numbers("0/s", 1);
        let mut bucket = Bucket { balance_micros: 950_000, remainder: 0 };
        assert_eq!(bucket.deposit(&numbers, 100_000), 50_000);
        assert_eq!(bucket.deposit(&numbers, 100_000), 0);
        assert_eq!(bucket.covers(&numbers, Priority::Default, 1_000_001), Err(Short::Impossible));
        bucket.withdraw(1);
        assert_eq!(bucket.covers(&numbers, Priority::Default, 1_000_000), Err(Short::Wait(None)));
    }
}
