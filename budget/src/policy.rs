//! What one dependency may spend: the validated numbers, and their compiled form [`Numbers`] that a ledger computes
//! with and that a script receives.

use std::fmt::Display;

mod classes;
mod fields;
mod judge;
mod numbers;
mod value;

use crate::units::{InvalidNumber, MICROS_PER_TOKEN, PPM, Rate};
pub(crate) use classes::{keep, keep_permits, needed};
pub use fields::{FIELDS, Field, Spec};
pub use numbers::{BucketNumbers, LeaseNumbers, Numbers};
pub use value::{Form, Value};

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
        for field in FIELDS {
            field.judge(&spec)?;
        }
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
        self.spec.fallback_originals()
    }
}

impl From<InvalidNumber> for String {
    fn from(error: InvalidNumber) -> Self {
        error.to_string()
    }
}

#[cfg(test)]
mod tests;
