//! What one dependency may spend: the validated numbers, and their compiled form [`Numbers`] that a ledger computes
//! with and that a script receives.

use std::fmt::Display;

mod classes;
mod judge;
mod numbers;

use crate::units::{InvalidNumber, MICROS_PER_TOKEN, PPM, Rate};
pub(crate) use classes::{keep, keep_permits, needed};
pub use numbers::{BucketNumbers, LeaseNumbers, Numbers};

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
/// Highest rate that may be leased, in micro-tokens per second.
pub const LEASED_RATE_MICROS_MAX: i64 = 4_000_000 * MICROS_PER_TOKEN;
/// Most steps of a lease curve.
pub const CURVE_STEPS_MAX: usize = 8;
/// Most attempts of one operation.
pub const ATTEMPTS_MAX: u32 = 100;
/// Highest retry ratio: 100 retries per original.
pub const RATIO_PPM_MAX: i64 = 100 * PPM;
/// Highest cost of one retry, in tokens; the lowest is 1, since less would break the bound.
pub const RETRY_COST_TOKENS_MAX: i64 = 1000;

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
    /// Retry tokens (micro) one retry costs, by [`Cause`](crate::decision::Cause).
    pub retry_cost_micros: [i64; 5],
    /// Attempts of one operation, the first included.
    pub max_attempts: u32,
    /// How long a tracked operation is remembered after its time.
    pub retention_ms: i64,
    /// Part of each bucket a class may drain, by [`Priority`](crate::decision::Priority), parts per million.
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

// === impl Policy ===

impl Policy {
    /// Judges every field.
    ///
    /// # Errors
    /// The first field that breaks its rule.
    pub fn new(spec: Spec) -> Result<Self, InvalidPolicy> {
        judge::judge(&spec)?;
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
}

impl From<InvalidNumber> for String {
    fn from(error: InvalidNumber) -> Self {
        error.to_string()
    }
}

#[cfg(test)]
mod tests;
