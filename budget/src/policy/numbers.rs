//! Policies compiled to the integers a ledger computes with.

use super::{
    EarnOn, IN_FLIGHT_MAX, Limit, Mode, PERMIT_TTL_MS_MAX, Policy,
    classes::{keep, keep_permits},
};
use crate::{
    ids::UnitId,
    lease::{Amounts, Curve, Timing, UnitAmounts},
    units::{DURATION_MS_MAX, EXACT_MAX, MICROS_PER_TOKEN, checked_div, div_ceil},
};

/// State of a dependency that no policy names lives at least this long where admission or cost is limited.
const IDLE_TTL_MS_MIN_LIMITED: i64 = 24 * 3_600_000;

/// A bucket's numbers, ready for integer arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketNumbers {
    /// Refill in micro-tokens per millisecond: numerator.
    pub num: i64,
    /// Denominator, at least 1.
    pub den: i64,
    /// Most micro-tokens held.
    pub burst: i64,
    /// Longest time whose refill is computed exactly; always enough to fill the bucket from its deepest debt.
    pub elapsed_ms_max: i64,
    /// Deepest debt that is computed exactly; reached only by shrinking a policy a million-fold while in debt, or where a burst of
    /// millions of tokens is leased, whose rates are counted in thousandths: then 0.
    pub debt_max: i64,
    /// What each priority leaves untouched, whole tokens in micro-tokens.
    pub keep: [i64; 3],
}

/// A policy compiled for one ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Would-be refusals are admitted with zero charge.
    pub shadow: bool,
    /// The kill switch.
    pub retries_off: bool,
    /// None: admission is unlimited.
    pub admission: Option<BucketNumbers>,
    /// Most permits.
    pub max_in_flight: i64,
    /// Permits each priority leaves untouched.
    pub keep_in_flight: [i64; 3],
    /// Default life of a permit.
    pub permit_ttl_ms: i64,
    /// Booking ahead.
    pub max_wait_ms: i64,
    /// The retry bucket; its rate is the floor.
    pub retry: BucketNumbers,
    /// Deposit per original or success in micro-tokens, which is the ratio in parts per million.
    pub deposit_micros: i64,
    /// Deposit at success instead of admission.
    pub earn_on_success: bool,
    /// Micro-tokens by cause.
    pub retry_cost_micros: [i64; 5],
    /// Attempts of one operation.
    pub max_attempts: i64,
    /// Memory of tracked operations.
    pub retention_ms: i64,
    /// Admission balance of a ledger that has no state, in micro-tokens.
    pub absent_admission_micros: i64,
    /// Part of each bucket a class may drain, parts per million.
    pub priority_ppm: [i64; 3],
    /// Permits are limited by the policy, not only by [`IN_FLIGHT_MAX`].
    pub slots_limited: bool,
    /// Where leases are permitted.
    pub lease: Option<LeaseNumbers>,
    /// Idle state may go after this time; 0: never, the policy names the dependency.
    pub idle_ttl_ms: i64,
    /// Further units in the policy's order.
    pub units: Box<[(UnitId, BucketNumbers)]>,
}

/// What a ledger needs to know to lend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseNumbers {
    /// At most this part of each quota is leased, parts per million. 0: leases were permitted a moment ago and may still
    /// be out, but none is given any more.
    pub part_ppm: i64,
    /// The largest part of which any lease that may still be out was given, as far as the caller knows; at least
    /// `part_ppm`. What a lost ledger lent is unknown up to this part.
    pub widest_part_ppm: i64,
    /// Steps of each lease.
    pub curve: Curve,
    /// The longest curve of any lease that may still be out, as far as the caller knows; at least that of `curve`.
    pub longest_curve_ms: i64,
    /// How much later than the holder the ledger ends each step.
    pub margin_ms: i64,
    /// Longest overlap of two masters plus 2 s; 0 where only one can exist.
    pub overlap_ms: i64,
    /// Most milliseconds by which one call advances ledger time.
    pub step_max_ms: i64,
}

// === impl Policy ===

impl Policy {
    /// Compiles the policy. `named`: a policy names this dependency itself, so its state never expires.
    #[must_use]
    pub fn numbers(&self, retries_off: bool, named: bool) -> Numbers {
        self.numbers_timed(retries_off, named, &Timing::default())
    }

    /// As [`Self::numbers`], with other time limits of the lease protocol.
    #[must_use]
    pub fn numbers_timed(&self, retries_off: bool, named: bool, timing: &Timing) -> Numbers {
        let spec = &self.spec;
        let shares = spec.priority_ppm;
        let admission = spec.admission.map(|limit| BucketNumbers::new(limit, shares));
        let max_in_flight = i64::from(spec.max_in_flight.unwrap_or(IN_FLIGHT_MAX));
        let units: Box<[_]> = (spec.units.iter())
            .filter_map(|unit| Some((UnitId::of(&unit.name).ok()?, BucketNumbers::new(unit.limit, shares))))
            .collect();
        let absent = match admission {
            Some(bucket) if !spec.lease.enabled => bucket.burst.min(MICROS_PER_TOKEN),
            Some(_) | None => 0,
        };
        Numbers {
            shadow: spec.mode == Mode::Shadow,
            retries_off,
            admission,
            max_in_flight,
            keep_in_flight: shares.map(|share| keep_permits(max_in_flight, share)),
            permit_ttl_ms: spec.permit_ttl_ms,
            max_wait_ms: spec.max_wait_ms,
            retry: BucketNumbers::new(Limit { rate: spec.floor, burst_tokens: spec.retry_burst_tokens }, shares),
            deposit_micros: spec.ratio_ppm,
            earn_on_success: spec.earn_on == EarnOn::Success,
            retry_cost_micros: spec.retry_cost_micros,
            max_attempts: spec.max_attempts.into(),
            retention_ms: spec.retention_ms,
            absent_admission_micros: absent,
            priority_ppm: shares,
            slots_limited: spec.max_in_flight.is_some(),
            lease: spec.lease.enabled.then(|| self.lease_numbers(timing)),
            idle_ttl_ms: if named { 0 } else { self.idle_ttl_ms(admission.as_ref(), &units) },
            units,
        }
    }

    fn lease_numbers(&self, timing: &Timing) -> LeaseNumbers {
        let lease = &self.spec.lease;
        let curve = Curve(lease.curve.as_slice().into());
        LeaseNumbers {
            part_ppm: lease.part_ppm,
            widest_part_ppm: lease.part_ppm,
            longest_curve_ms: curve.total_ms(),
            curve,
            margin_ms: timing.margin_ms,
            overlap_ms: timing.overlap_ms,
            step_max_ms: timing.step_max_ms,
        }
    }

    /// Long enough that state which has gone is never better than state that stayed: full buckets, ended permits,
    /// forgotten operations, past leases.
    fn idle_ttl_ms(&self, admission: Option<&BucketNumbers>, units: &[(UnitId, BucketNumbers)]) -> i64 {
        let spec = &self.spec;
        let curve_ms = spec.lease.curve.iter().fold(0_i64, |sum, step| sum.saturating_add(step.duration_ms));
        let longest = units.iter().map(|(_, bucket)| bucket).chain(admission).fold(0, |longest, bucket| {
            let fill = div_ceil(bucket.burst.saturating_mul(2).saturating_mul(bucket.den), bucket.num.max(1));
            fill.saturating_add(spec.max_wait_ms).max(longest)
        });
        let limited = admission.is_some() || !units.is_empty();
        longest
            .max(if limited { IDLE_TTL_MS_MIN_LIMITED } else { 0 })
            .max(PERMIT_TTL_MS_MAX.saturating_mul(2).saturating_add(spec.max_wait_ms))
            .max(spec.retention_ms.saturating_mul(2))
            .max(if spec.lease.enabled { curve_ms.saturating_mul(2) } else { 0 })
            .min(DURATION_MS_MAX)
    }
}

// === impl BucketNumbers ===

impl BucketNumbers {
    /// Compiles a limit; `shares` is the part each priority may drain.
    #[must_use]
    pub fn new(limit: Limit, shares: [i64; 3]) -> Self {
        let (num, den) = limit.rate.fraction();
        Self::of_fraction(num, den, limit.burst_tokens.saturating_mul(MICROS_PER_TOKEN), shares)
    }

    /// What it is refilled by, whole micro-tokens per second.
    pub(crate) fn per_second(&self) -> i64 {
        checked_div(self.num.saturating_mul(1_000), self.den)
    }

    /// A bucket of whole micro-tokens per second.
    fn of_second(rate: i64, burst: i64, shares: [i64; 3]) -> Self {
        Self::of_fraction(rate, 1_000, burst, shares)
    }

    fn of_fraction(num: i64, den: i64, burst: i64, shares: [i64; 3]) -> Self {
        Self {
            num,
            den,
            burst,
            elapsed_ms_max: checked_div(
                EXACT_MAX.saturating_sub(den.saturating_mul(2)).saturating_sub(num),
                num.max(1),
            ),
            debt_max: checked_div(EXACT_MAX.saturating_sub(num.saturating_add(den).saturating_mul(2)), den)
                .saturating_sub(burst)
                .max(0),
            keep: shares.map(|share| keep(burst, share)),
        }
    }
}

// === impl Numbers ===

impl Numbers {
    /// Whether new leases may be given.
    #[must_use]
    pub fn leases_permitted(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.part_ppm > 0)
    }

    /// These numbers where leases with a longer curve or of a larger part were permitted until a moment ago: what a lost
    /// ledger lent of them is unknown for longer, or more. Where leases are not permitted any more, none is given.
    #[must_use]
    pub fn with_former_leases(self, policy: &Policy, timing: &Timing, curve_ms: i64, part_ppm: i64) -> Self {
        let lease = self.lease.unwrap_or_else(|| LeaseNumbers { part_ppm: 0, ..policy.lease_numbers(timing) });
        let lease = LeaseNumbers {
            longest_curve_ms: lease.longest_curve_ms.max(curve_ms),
            widest_part_ppm: if lease.part_ppm == 0 { part_ppm } else { lease.widest_part_ppm.max(part_ppm) },
            ..lease
        };
        Self { lease: Some(lease), absent_admission_micros: 0, ..self }
    }

    /// All quotas, in the units of leases: whole micro-tokens per second, rounded down. The floor is none of them.
    #[must_use]
    pub fn quota(&self) -> Amounts {
        Amounts {
            rate: self.admission.as_ref().map_or(0, BucketNumbers::per_second),
            burst: self.admission.map_or(0, |bucket| bucket.burst),
            retry_burst: self.retry.burst,
            slots: if self.slots_limited { self.max_in_flight } else { 0 },
            units: (self.units.iter())
                .map(|(unit, bucket)| UnitAmounts { unit: *unit, rate: bucket.per_second(), burst: bucket.burst })
                .collect(),
        }
    }

    /// These numbers with only `amounts` of the quotas: what direct callers share while the rest is leased.
    #[must_use]
    pub fn within(&self, amounts: &Amounts) -> Self {
        let shares = self.priority_ppm;
        let max_in_flight = if self.slots_limited { amounts.slots } else { self.max_in_flight };
        Self {
            admission: self.admission.map(|_| BucketNumbers::of_second(amounts.rate, amounts.burst, shares)),
            retry: BucketNumbers::of_fraction(self.retry.num, self.retry.den, amounts.retry_burst, shares),
            units: (self.units.iter())
                .map(|(unit, _)| {
                    let part = amounts.unit(*unit).copied();
                    let (rate, burst) = part.map_or((0, 0), |part| (part.rate, part.burst));
                    (*unit, BucketNumbers::of_second(rate, burst, shares))
                })
                .collect(),
            max_in_flight,
            keep_in_flight: shares.map(|share| keep_permits(max_in_flight, share)),
            ..self.clone()
        }
    }

    /// The bucket of a unit.
    #[must_use]
    pub fn unit(&self, unit: UnitId) -> Option<&BucketNumbers> {
        self.units.iter().find(|(id, _)| *id == unit).map(|(_, bucket)| bucket)
    }
}
