//! Where generated types and the types of the `budget` crate meet.
//!
//! A message is judged when it is received, by either side, and by the same rules: the types of the `budget` crate are
//! stricter than protobuf's. What goes out has been judged already; only a unit whose name the caller did not give, and
//! a negative amount that a caller put into a [`Step`](budget::decision::Step), stop a request on its way out.

mod holders;
mod lease;
mod request;
mod response;
mod rules;
mod session;
mod sync;

use budget::{
    decision::{Cause, DenyReason, Outcome, Priority, ReleaseResult, TerminalState},
    ids::{DependencyId, PolicyVersion, ReservationId, UnitId},
    units::EXACT_MAX,
};

pub use holders::{Named, holder, holder_id, holder_message, lending, lending_message};
pub use request::{
    ATTEMPT_NUMBER_MAX, Echo, OPERATION_EXPIRES_IN_MS_MAX, Received, extend_request, release_request, report_received,
    reserve_request,
};
pub use response::{Decided, Decision, Released, Reserved};
pub use session::{Reply, session_call, session_reply, session_response};
pub use sync::{AskName, Asking, SyncAnswered, SyncReply, sync_answer, sync_asks, sync_replies, sync_requests};

use crate::{InvalidMessage, pb};

/// How an answer was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// Decided on the ledger.
    Exact = 1,
    /// Decided from a lease.
    Leased = 2,
    /// Decided by the fallback, the store being away.
    Degraded = 3,
    /// The policy only watches.
    Shadow = 4,
}

/// An enum whose codes on the wire are its codes in the `budget` crate.
trait Coded: Copy + 'static {
    const VALUES: &'static [Self];
    fn value_code(self) -> i64;
    fn value_name(self) -> &'static str;
}

macro_rules! coded {
    ($($type:ty),+) => {
        $(impl Coded for $type {
            const VALUES: &'static [Self] = &<$type>::ALL;
            fn value_code(self) -> i64 {
                self.code()
            }
            fn value_name(self) -> &'static str {
                self.name()
            }
        })+
    };
}

coded!(Cause, Priority, Outcome, TerminalState, DenyReason, ReleaseResult, Mode);

// === impl Mode ===

impl Mode {
    /// All values in the order of their codes, which start at 1.
    pub const ALL: [Self; 4] = [Self::Exact, Self::Leased, Self::Degraded, Self::Shadow];

    /// The code on the wire.
    #[must_use]
    pub const fn code(self) -> i64 {
        match self {
            Self::Exact => 1,
            Self::Leased => 2,
            Self::Degraded => 3,
            Self::Shadow => 4,
        }
    }

    /// The name in logs, tables and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Leased => "leased",
            Self::Degraded => "degraded",
            Self::Shadow => "shadow",
        }
    }

    /// As sent.
    #[must_use]
    pub fn wire(self) -> i32 {
        wire(self)
    }

    /// Judges what was received.
    ///
    /// # Errors
    /// If it is none of the known values.
    pub fn received(field: &'static str, code: i32) -> Result<Self, InvalidMessage> {
        known(field, code)
    }
}

/// Judges the name of a dependency.
///
/// # Errors
/// If it breaks a rule of [`DependencyId::new`].
pub fn dependency(field: &'static str, name: &str) -> Result<DependencyId, InvalidMessage> {
    DependencyId::new(name).map_err(|rule| InvalidMessage::text(field, name, rule.to_string()))
}

/// Judges a version of the policies.
///
/// # Errors
/// If it is absent, or one of its numbers exceeds 2^53 - 1.
pub fn policy_version(
    field: &'static str,
    version: Option<pb::PolicyVersion>,
) -> Result<PolicyVersion, InvalidMessage> {
    let pb::PolicyVersion { number, id } = version.ok_or_else(|| InvalidMessage::absent(field, "is required"))?;
    Ok(PolicyVersion { number: within(field, number, 0, EXACT_MAX)?, id: within(field, id, 0, EXACT_MAX)? })
}

impl From<PolicyVersion> for pb::PolicyVersion {
    fn from(version: PolicyVersion) -> Self {
        Self { number: unsigned(version.number), id: unsigned(version.id) }
    }
}

/// Judges a count or amount that must stay exact everywhere.
///
/// # Errors
/// If it exceeds 2^53 - 1.
pub fn exact(field: &'static str, value: u64) -> Result<i64, InvalidMessage> {
    within(field, value, 0, EXACT_MAX)
}

/// Judges a reason for a refusal.
///
/// # Errors
/// If it is none of the known values.
pub fn deny_reason(field: &'static str, code: i32) -> Result<DenyReason, InvalidMessage> {
    known(field, code)
}

fn reservation_id(bytes: &[u8]) -> Result<ReservationId, InvalidMessage> {
    ReservationId::from_slice(bytes).map_err(|rule| InvalidMessage::bytes("reservation_id", bytes, rule.to_string()))
}

fn unit(field: &'static str, name: &str) -> Result<UnitId, InvalidMessage> {
    UnitId::of(name).map_err(|rule| InvalidMessage::text(field, name, rule.to_string()))
}

fn optional<T, U>(
    value: Option<T>,
    judge: impl FnOnce(T) -> Result<U, InvalidMessage>,
) -> Result<Option<U>, InvalidMessage> {
    value.map(judge).transpose()
}

fn not_negative(field: &'static str, value: i64) -> Result<u64, InvalidMessage> {
    u64::try_from(value).map_err(|_| InvalidMessage::number(field, value, "must not be negative"))
}

fn within(field: &'static str, value: u64, min: i64, max: i64) -> Result<i64, InvalidMessage> {
    match i64::try_from(value) {
        Ok(inside) if (min..=max).contains(&inside) => Ok(inside),
        Ok(_) | Err(_) => Err(InvalidMessage::number(field, value, format!("must be between {min} and {max}"))),
    }
}

fn known<E: Coded>(field: &'static str, code: i32) -> Result<E, InvalidMessage> {
    E::VALUES.iter().copied().find(|value| value.value_code() == i64::from(code)).ok_or_else(|| {
        let names: Vec<_> =
            E::VALUES.iter().map(|value| format!("{} {}", value.value_code(), value.value_name())).collect();
        InvalidMessage::number(field, code, format!("must be one of {}", names.join(", ")))
    })
}

fn wire<E: Coded>(value: E) -> i32 {
    i32::try_from(value.value_code()).unwrap_or_default()
}

/// Numbers of ours that are never negative where they are sent.
fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}
