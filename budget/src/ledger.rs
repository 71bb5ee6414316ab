//! The ledger of one dependency, coordinator side.

use crate::ids::{PolicyVersion, UnitId};

/// What happened since the ledger's state began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Originals admitted, would-be refusals of shadow mode not counted.
    pub originals_admitted: i64,
    /// Retries admitted, likewise.
    pub retries_admitted: i64,
    /// Originals refused.
    pub originals_denied: i64,
    /// Retries refused.
    pub retries_denied: i64,
    /// Handed back unsent.
    pub not_sent: i64,
    /// Permits that ended by time.
    pub permits_expired: i64,
    /// Retry tokens deposited by traffic.
    pub deposited_micros: i64,
    /// Settlements beyond a unit's debt limit.
    pub overuse_micros: i64,
    /// Outcomes of class account.
    pub account_signals: i64,
    /// Admitted only because the policy is in shadow mode.
    pub would_be_denied: i64,
}

/// A ledger as it stands at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Version of the policies it was last decided with.
    pub version: PolicyVersion,
    /// Absent where admission is unlimited.
    pub admission_balance_micros: Option<i64>,
    /// Retry tokens.
    pub retry_balance_micros: i64,
    /// Balances of the cost units.
    pub units: Vec<(UnitId, i64)>,
    /// Permits taken.
    pub in_flight: i64,
    /// Totals.
    pub counters: Counters,
}
