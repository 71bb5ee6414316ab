//! What operators see of leases: holders, and how lending stands, in both directions.

use budget::{
    lease::{HolderId, Incarnation, SHARE_ONE},
    ledger::{HolderView, Lending},
    units::{EXACT_MAX, PPM},
};

use super::{lease, unsigned, within};
use crate::{InvalidMessage, UnitNames, pb};

/// Shares are counted in ten-millionths, on the wire in millionths.
const SHARE_PER_PPM: i64 = SHARE_ONE / PPM;
/// Largest weight that is shown.
const WEIGHT_MAX: i64 = 1_000;

/// Something whose amounts name units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<T> {
    /// As received.
    pub value: T,
    /// Names of its units.
    pub units: UnitNames,
}

/// A holder as it is sent. A unit that has no name in `names` is left out.
#[must_use]
pub fn holder_message(view: &HolderView, names: &UnitNames) -> pb::Holder {
    let narrow = |value: i64| u32::try_from(value).unwrap_or_default();
    pb::Holder {
        holder_id: view.holder.as_str().to_owned(),
        incarnation: view.incarnation.0.to_vec(),
        weight: narrow(view.weight),
        demand_ppm: narrow(view.demand / SHARE_PER_PPM),
        value: Some(lease::amounts_message(&view.value, names)),
        charged: Some(lease::amounts_message(&view.charged, names)),
        generation: unsigned(view.generation),
        expires_in_ms: unsigned(view.expires_in_ms),
        usage: Some(lease::report_message(&view.usage, names)),
        revoked: view.revoked,
        version: None,
    }
}

/// Judges the name of a holder.
///
/// # Errors
/// If it breaks a rule of [`HolderId::new`].
pub fn holder_id(field: &'static str, name: &str) -> Result<HolderId, InvalidMessage> {
    HolderId::new(name).map_err(|rule| InvalidMessage::text(field, name, rule.to_string()))
}

pub(super) fn incarnation(field: &'static str, bytes: &[u8]) -> Result<Incarnation, InvalidMessage> {
    let rule = || format!("has {} bytes, must have 16", bytes.len());
    <[u8; 16]>::try_from(bytes).map(Incarnation).map_err(|_| InvalidMessage::bytes(field, bytes, rule()))
}

/// A holder as it is received.
///
/// # Errors
/// The first field that breaks its rule.
pub fn holder(holder: pb::Holder) -> Result<Named<HolderView>, InvalidMessage> {
    let mut units = UnitNames::default();
    let value = HolderView {
        holder: holder_id("holders.holder_id", &holder.holder_id)?,
        incarnation: incarnation("holders.incarnation", &holder.incarnation)?,
        weight: within("holders.weight", holder.weight.into(), 1, WEIGHT_MAX)?,
        demand: within("holders.demand_ppm", holder.demand_ppm.into(), 0, PPM)? * SHARE_PER_PPM,
        value: lease::amounts(&lease::HOLDER_VALUE, holder.value, &mut units)?,
        charged: lease::amounts(&lease::HOLDER_CHARGED, holder.charged, &mut units)?,
        generation: within("holders.generation", holder.generation, 0, EXACT_MAX)?,
        expires_in_ms: within("holders.expires_in_ms", holder.expires_in_ms, 0, EXACT_MAX)?,
        usage: lease::usage(&lease::HOLDER_USAGE, holder.usage, &mut units)?,
        revoked: holder.revoked,
    };
    Ok(Named { value, units })
}

/// Lending as it is sent. A unit that has no name in `names` is left out.
#[must_use]
pub fn lending_message(lending: &Lending, names: &UnitNames) -> pb::Lending {
    pb::Lending {
        epoch: Some(lending.epoch.into()),
        holders: unsigned(lending.holders),
        charged: Some(lease::amounts_message(&lending.charged, names)),
        unknown: Some(lease::amounts_message(&lending.unknown, names)),
        quarantine_left_ms: unsigned(lending.quarantine_left_ms),
        wait_left_ms: unsigned(lending.wait_left_ms),
        clock_debt_ms: unsigned(lending.clock_debt_ms),
    }
}

/// Lending as it is received.
///
/// # Errors
/// The first field that breaks its rule.
pub fn lending(lending: pb::Lending) -> Result<Named<Lending>, InvalidMessage> {
    let mut units = UnitNames::default();
    let value = Lending {
        epoch: lease::epoch(&lease::LENDING_EPOCH, lending.epoch)?,
        holders: within("lending.holders", lending.holders, 0, EXACT_MAX)?,
        charged: lease::amounts(&lease::LENDING_CHARGED, lending.charged, &mut units)?,
        unknown: lease::amounts(&lease::LENDING_UNKNOWN, lending.unknown, &mut units)?,
        quarantine_left_ms: within("lending.quarantine_left_ms", lending.quarantine_left_ms, 0, EXACT_MAX)?,
        wait_left_ms: within("lending.wait_left_ms", lending.wait_left_ms, 0, EXACT_MAX)?,
        clock_debt_ms: within("lending.clock_debt_ms", lending.clock_debt_ms, 0, EXACT_MAX)?,
    };
    Ok(Named { value, units })
}
