//! What one dependency may spend: the validated numbers, and their compiled form [`Numbers`] that a ledger computes
//! with and that a script receives.

use std::fmt::Display;

use crate::{
    decision::{Cause, Priority},
    ids::UnitId,
    units::{
        BURST_MICROS_MAX, DURATION_MS_MAX, EXACT_MAX, InvalidNumber, MICROS_PER_TOKEN, PPM, Rate, checked_div,
        div_ceil, format_duration_ms,
    },
};

/// Most cost units of one policy.
pub const UNITS_MAX: usize = 8;
/// Most permits of one dependency, and the limit where a policy sets none.
pub const IN_FLIGHT_MAX: u32 = 1_000_000;
/// Longest permit.
pub const PERMIT_TTL_MS_MAX: i64 = 3_600_000;
/// Longest `max_wait`.
pub const MAX_WAIT_MS_MAX: i64 = 3_600_000;
/// Longest lease curve in total.
pub const CURVE_MS_MAX: i64 = 3_600_000;
/// Most steps of a lease curve.
pub const CURVE_STEPS_MAX: usize = 8;
/// Most attempts of one operation.
pub const ATTEMPTS_MAX: u32 = 100;
/// Highest retry ratio: 100 retries per original.
pub const RATIO_PPM_MAX: i64 = 100 * PPM;
/// Highest cost of one retry, in tokens; the lowest is 1, since less would break the bound.
pub const RETRY_COST_TOKENS_MAX: i64 = 1000;
/// State of a dependency that no policy names lives at least this long where admission or cost is limited.
const IDLE_TTL_MS_MIN_LIMITED: i64 = 24 * 3_600_000;

/// Whether refusals bite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Refusals are refusals.
    #[default]
    Enforce,
    /// A would-be refusal by the policy's numbers is admitted, counted, and stored with zero charge.
    Shadow,
}

/// When an operation earns its retry tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarnOn {
    /// When its original is admitted.
    #[default]
    Admitted,
    /// At its first success.
    Success,
}

/// A rate and a burst in whole tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Refill.
    pub rate: Rate,
    /// The most the bucket holds.
    pub burst_tokens: i64,
}

/// One further unit of cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitLimit {
    /// The unit's name.
    pub name: String,
    /// Its bucket.
    pub limit: Limit,
}

/// Part of the share that a lease carries for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurveStep {
    /// Part of the share, parts per million.
    pub part_ppm: i64,
    /// For this long.
    pub duration_ms: i64,
}

/// Leases of this dependency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Whether leases are permitted.
    pub enabled: bool,
    /// At most this part of each quota is leased, parts per million.
    pub part_ppm: i64,
    /// Decreasing steps.
    pub curve: Vec<CurveStep>,
}

/// What happens to originals without lease and store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackOriginals {
    /// Refuse them.
    Deny,
    /// Admit them all.
    Allow,
    /// This rate for each process.
    Rate(Rate),
    /// This part of the admission rate, divided among the processes, parts per million.
    Part(i64),
}

/// What happens to retries without lease and store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FallbackRetries {
    /// Refuse them.
    Deny,
    /// `ratio` of the originals admitted meanwhile, at most one token held, no floor.
    #[default]
    Earned,
}

/// The policy of one dependency before validation, every field with its default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Whether refusals bite.
    pub mode: Mode,
    /// Limit of all attempts; none means unlimited.
    pub admission: Option<Limit>,
    /// Most permits at once; none means [`IN_FLIGHT_MAX`].
    pub max_in_flight: Option<u32>,
    /// When a permit ends by itself.
    pub permit_ttl_ms: i64,
    /// How far admission may be booked ahead.
    pub max_wait_ms: i64,
    /// Retry tokens per original (or success), parts per million.
    pub ratio_ppm: i64,
    /// Retry tokens per time for the whole fleet, whatever the traffic.
    pub floor: Rate,
    /// Most retry tokens held.
    pub retry_burst_tokens: i64,
    /// When the ratio is deposited.
    pub earn_on: EarnOn,
    /// Retry tokens (micro) one retry costs, by [`Cause`].
    pub retry_cost_micros: [i64; 5],
    /// Attempts of one operation, the first included.
    pub max_attempts: u32,
    /// How long a tracked operation is remembered after its time.
    pub retention_ms: i64,
    /// Part of each bucket a class may drain, by [`Priority`], parts per million.
    pub priority_ppm: [i64; 3],
    /// Further units.
    pub units: Vec<UnitLimit>,
    /// Leases.
    pub lease: Lease,
    /// Originals without lease and store; none means 10%, or allow where admission is unlimited.
    pub fallback_originals: Option<FallbackOriginals>,
    /// Retries without lease and store.
    pub fallback_retries: FallbackRetries,
}

/// A refused policy: which field, what stood there, and the rule it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}: {rule}")]
pub struct InvalidPolicy {
    /// The field as it is written in a file, e.g. `retry.ratio`.
    pub field: String,
    /// The value given.
    pub value: String,
    /// What is required.
    pub rule: String,
}

/// A validated policy. Only [`Policy::new`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    spec: Spec,
}

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
    /// Deepest debt that is computed exactly; reached only by shrinking a policy a million-fold while in debt.
    pub debt_max: i64,
    /// What each priority leaves untouched, whole tokens in micro-tokens.
    pub keep: [i64; 3],
}

/// A policy compiled for one ledger. The order of [`Numbers::to_list`] is the one scripts read.
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
    /// Leases are not permitted, so a store of a single node may start full.
    pub may_start_full: bool,
    /// Idle state may go after this time; 0: never, the policy names the dependency.
    pub idle_ttl_ms: i64,
    /// Further units in the policy's order.
    pub units: Box<[(UnitId, BucketNumbers)]>,
}

// === impl Spec ===

impl Default for Spec {
    fn default() -> Self {
        Self {
            mode: Mode::Enforce,
            admission: None,
            max_in_flight: None,
            permit_ttl_ms: 60_000,
            max_wait_ms: 0,
            ratio_ppm: PPM.div_euclid(10),
            floor: Rate::parse("1/s").unwrap_or(Rate::ZERO),
            retry_burst_tokens: 10,
            earn_on: EarnOn::Admitted,
            retry_cost_micros: [MICROS_PER_TOKEN; 5],
            max_attempts: 3,
            retention_ms: 600_000,
            priority_ppm: [PPM; 3],
            units: Vec::new(),
            lease: Lease::default(),
            fallback_originals: None,
            fallback_retries: FallbackRetries::Earned,
        }
    }
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            enabled: false,
            part_ppm: 800_000,
            curve: vec![
                CurveStep { part_ppm: PPM, duration_ms: 20_000 },
                CurveStep { part_ppm: 500_000, duration_ms: 100_000 },
            ],
        }
    }
}

// === impl InvalidPolicy ===

impl InvalidPolicy {
    /// Names field, value and rule.
    pub fn new(field: impl Into<String>, value: impl Display, rule: impl Into<String>) -> Self {
        Self { field: field.into(), value: value.to_string(), rule: rule.into() }
    }
}

fn within(field: impl Into<String>, value: i64, min: i64, max: i64) -> Result<(), InvalidPolicy> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(InvalidPolicy::new(field, value, format!("must be between {min} and {max}")))
}

fn duration_within(field: &str, ms: i64, min: i64, max: i64) -> Result<(), InvalidPolicy> {
    if (min..=max).contains(&ms) {
        return Ok(());
    }
    let rule = format!("must be between {} and {}", format_duration_ms(min), format_duration_ms(max));
    Err(InvalidPolicy::new(field, format_duration_ms(ms), rule))
}

fn fraction_within(field: impl Into<String>, ppm: i64, min_ppm: i64, max_ppm: i64) -> Result<(), InvalidPolicy> {
    use crate::units::Decimal;
    if (min_ppm..=max_ppm).contains(&ppm) {
        return Ok(());
    }
    let rule = format!("must be between {} and {}", Decimal(min_ppm), Decimal(max_ppm));
    Err(InvalidPolicy::new(field, Decimal(ppm), rule))
}

/// `(burst + debt)·den + num + den` must stay exact in a double.
fn judge_exact(field: &str, limit: Limit, debt_micros: i64) -> Result<(), InvalidPolicy> {
    let (num, den) = limit.rate.fraction();
    let burst = limit.burst_tokens.saturating_mul(MICROS_PER_TOKEN);
    let largest = i128::from(burst)
        .saturating_add(i128::from(debt_micros))
        .saturating_add(i128::from(num))
        .saturating_mul(i128::from(den))
        .saturating_add(i128::from(num).saturating_mul(2))
        .saturating_add(i128::from(den).saturating_mul(2));
    if largest < i128::from(EXACT_MAX) {
        return Ok(());
    }
    let rule = format!("burst and waiting time are too large for the exact arithmetic at rate {}", limit.rate);
    Err(InvalidPolicy::new(format!("{field}.burst"), limit.burst_tokens, rule))
}

// === impl Policy ===

impl Policy {
    /// Judges every field.
    ///
    /// # Errors
    /// The first field that breaks its rule.
    pub fn new(spec: Spec) -> Result<Self, InvalidPolicy> {
        let burst_tokens_max = checked_div(BURST_MICROS_MAX, MICROS_PER_TOKEN);
        if let Some(admission) = spec.admission {
            judge_rate("admission.rate", admission.rate)?;
            within("admission.burst", admission.burst_tokens, 1, burst_tokens_max)?;
            judge_exact("admission", admission, booked_micros(admission.rate, spec.max_wait_ms))?;
        }
        if let Some(max) = spec.max_in_flight {
            within("admission.max_in_flight", max.into(), 1, IN_FLIGHT_MAX.into())?;
        }
        duration_within("admission.permit_ttl", spec.permit_ttl_ms, 1, PERMIT_TTL_MS_MAX)?;
        duration_within("admission.max_wait", spec.max_wait_ms, 0, MAX_WAIT_MS_MAX)?;
        fraction_within("retry.ratio", spec.ratio_ppm, 0, RATIO_PPM_MAX)?;
        within("retry.burst", spec.retry_burst_tokens, 0, burst_tokens_max)?;
        let retry_limit = Limit { rate: spec.floor, burst_tokens: spec.retry_burst_tokens };
        judge_exact("retry", retry_limit, spec.retry_burst_tokens.saturating_mul(MICROS_PER_TOKEN))?;
        for (cause, cost) in Cause::ALL.into_iter().zip(spec.retry_cost_micros) {
            let most = RETRY_COST_TOKENS_MAX.saturating_mul(PPM);
            fraction_within(format!("retry_cost.{}", cause.name()), cost, PPM, most)?;
        }
        within("operation.max_attempts", spec.max_attempts.into(), 1, ATTEMPTS_MAX.into())?;
        duration_within("operation.retention", spec.retention_ms, 1_000, 30 * 86_400_000)?;
        if spec.retention_ms < spec.permit_ttl_ms {
            let rule =
                format!("must not be shorter than admission.permit_ttl, {}", format_duration_ms(spec.permit_ttl_ms));
            return Err(InvalidPolicy::new("operation.retention", format_duration_ms(spec.retention_ms), rule));
        }
        judge_priorities(&spec)?;
        judge_units(&spec.units, burst_tokens_max)?;
        judge_lease(&spec.lease)?;
        judge_fallback(&spec)?;
        Ok(Self { spec })
    }

    /// The fields.
    #[must_use]
    pub const fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The rule for originals without store, the default filled in.
    #[must_use]
    pub fn fallback_originals(&self) -> FallbackOriginals {
        self.spec.fallback_originals.unwrap_or(match self.spec.admission {
            Some(_) => FallbackOriginals::Part(PPM.div_euclid(10)),
            None => FallbackOriginals::Allow,
        })
    }

    /// Compiles the policy. `named`: a policy names this dependency itself, so its state never expires.
    #[must_use]
    pub fn numbers(&self, retries_off: bool, named: bool) -> Numbers {
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
            keep_in_flight: shares.map(|share| kept(max_in_flight, share).min(max_in_flight.saturating_sub(1))),
            permit_ttl_ms: spec.permit_ttl_ms,
            max_wait_ms: spec.max_wait_ms,
            retry: BucketNumbers::new(Limit { rate: spec.floor, burst_tokens: spec.retry_burst_tokens }, shares),
            deposit_micros: spec.ratio_ppm,
            earn_on_success: spec.earn_on == EarnOn::Success,
            retry_cost_micros: spec.retry_cost_micros,
            max_attempts: spec.max_attempts.into(),
            retention_ms: spec.retention_ms,
            absent_admission_micros: absent,
            may_start_full: !spec.lease.enabled,
            idle_ttl_ms: if named { 0 } else { self.idle_ttl_ms(admission.as_ref(), &units) },
            units,
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

fn judge_rate(field: &str, rate: Rate) -> Result<(), InvalidPolicy> {
    if rate.is_zero() {
        return Err(InvalidPolicy::new(field, rate, "must be above 0"));
    }
    Ok(())
}

fn judge_priorities(spec: &Spec) -> Result<(), InvalidPolicy> {
    for (priority, share) in Priority::ALL.into_iter().zip(spec.priority_ppm) {
        fraction_within(format!("priority.{}", priority.name()), share, 0, PPM)?;
    }
    let [sheddable, default, critical] = spec.priority_ppm;
    if sheddable > default || default > critical {
        use crate::units::Decimal;
        let value = format!("{}, {}, {}", Decimal(sheddable), Decimal(default), Decimal(critical));
        return Err(InvalidPolicy::new("priority", value, "must not decrease from sheddable over default to critical"));
    }
    Ok(())
}

fn judge_units(units: &[UnitLimit], burst_tokens_max: i64) -> Result<(), InvalidPolicy> {
    if units.len() > UNITS_MAX {
        return Err(InvalidPolicy::new(
            "cost",
            format!("{} units", units.len()),
            format!("must be at most {UNITS_MAX}"),
        ));
    }
    let mut ids = Vec::new();
    for unit in units {
        let field = format!("cost.{}", unit.name);
        let id = UnitId::of(&unit.name)
            .map_err(|rule| InvalidPolicy::new(field.as_str(), "a unit name", rule.to_string()))?;
        if ids.contains(&id) {
            return Err(InvalidPolicy::new(field, "a unit", "collides with another unit of the same name or hash"));
        }
        ids.push(id);
        judge_rate(&format!("{field}.rate"), unit.limit.rate)?;
        within(format!("{field}.burst"), unit.limit.burst_tokens, 1, burst_tokens_max)?;
        judge_exact(&field, unit.limit, unit.limit.burst_tokens.saturating_mul(MICROS_PER_TOKEN))?;
    }
    Ok(())
}

fn judge_lease(lease: &Lease) -> Result<(), InvalidPolicy> {
    fraction_within("lease.part", lease.part_ppm, 1, PPM)?;
    if lease.curve.is_empty() || lease.curve.len() > CURVE_STEPS_MAX {
        let rule = format!("must have between 1 and {CURVE_STEPS_MAX} steps");
        return Err(InvalidPolicy::new("lease.curve", format!("{} steps", lease.curve.len()), rule));
    }
    let mut above = PPM;
    let mut total_ms = 0_i64;
    for step in &lease.curve {
        fraction_within("lease.curve", step.part_ppm, 1, PPM)?;
        duration_within("lease.curve", step.duration_ms, 1, CURVE_MS_MAX)?;
        if step.part_ppm > above {
            return Err(InvalidPolicy::new("lease.curve", "a rising step", "must never rise"));
        }
        above = step.part_ppm;
        total_ms = total_ms.saturating_add(step.duration_ms);
    }
    duration_within("lease.curve", total_ms, 1, CURVE_MS_MAX)
}

fn judge_fallback(spec: &Spec) -> Result<(), InvalidPolicy> {
    match spec.fallback_originals {
        Some(FallbackOriginals::Part(ppm)) => {
            fraction_within("fallback.originals", ppm, 0, PPM)?;
            if spec.admission.is_none() {
                let rule = "a percentage needs an admission limit; use \"deny\", \"allow\" or a rate";
                return Err(InvalidPolicy::new("fallback.originals", "a percentage", rule));
            }
            Ok(())
        }
        Some(FallbackOriginals::Deny | FallbackOriginals::Allow | FallbackOriginals::Rate(_)) | None => Ok(()),
    }
}

fn booked_micros(rate: Rate, max_wait_ms: i64) -> i64 {
    let (num, den) = rate.fraction();
    div_ceil(num.saturating_mul(max_wait_ms), den)
}

/// What a class leaves untouched: `⌊(1 − share)·burst⌋`.
fn kept(burst: i64, share_ppm: i64) -> i64 {
    let kept = i128::from(burst)
        .saturating_mul(i128::from(PPM.saturating_sub(share_ppm)))
        .checked_div(i128::from(PPM))
        .unwrap_or(0);
    i64::try_from(kept).unwrap_or(burst)
}

// === impl BucketNumbers ===

impl BucketNumbers {
    /// Compiles a limit; `shares` is the part each priority may drain.
    #[must_use]
    pub fn new(limit: Limit, shares: [i64; 3]) -> Self {
        let (num, den) = limit.rate.fraction();
        let burst = limit.burst_tokens.saturating_mul(MICROS_PER_TOKEN);
        Self {
            num,
            den,
            burst,
            elapsed_ms_max: checked_div(EXACT_MAX.saturating_sub(den.saturating_mul(2)), num.max(1)),
            debt_max: checked_div(EXACT_MAX.saturating_sub(num.saturating_add(den).saturating_mul(2)), den)
                .saturating_sub(burst),
            keep: shares.map(|share| kept(limit.burst_tokens, share).saturating_mul(MICROS_PER_TOKEN)),
        }
    }

    fn push(&self, list: &mut Vec<i64>) {
        list.extend([self.num, self.den, self.burst, self.elapsed_ms_max, self.debt_max]);
        list.extend(self.keep);
    }
}

// === impl Numbers ===

impl Numbers {
    /// All numbers as one list of integers, each below 2^53, in the order `bucket.lua` reads them.
    #[must_use]
    pub fn to_list(&self) -> Vec<i64> {
        let mut list = vec![i64::from(self.shadow), i64::from(self.retries_off), i64::from(self.admission.is_some())];
        self.admission.unwrap_or_default().push(&mut list);
        list.push(self.max_in_flight);
        list.extend(self.keep_in_flight);
        list.extend([self.permit_ttl_ms, self.max_wait_ms]);
        self.retry.push(&mut list);
        list.extend([self.deposit_micros, i64::from(self.earn_on_success)]);
        list.extend(self.retry_cost_micros);
        list.extend([self.max_attempts, self.retention_ms, self.absent_admission_micros, self.idle_ttl_ms]);
        for (unit, bucket) in &self.units {
            list.push(unit.raw());
            bucket.push(&mut list);
        }
        list
    }

    /// The bucket of a unit.
    #[must_use]
    pub fn unit(&self, unit: UnitId) -> Option<&BucketNumbers> {
        self.units.iter().find(|(id, _)| *id == unit).map(|(_, bucket)| bucket)
    }
}

impl From<InvalidNumber> for String {
    fn from(error: InvalidNumber) -> Self {
        error.to_string()
    }
}
