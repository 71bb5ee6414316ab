//! What is asked: Reserve, Release and Extend, in both directions.

use budget::{
    decision::{Attempt, Cause, Cost, Extend, Invalid, OperationAsk, Priority, Release, Reserve, Sent, Step, Use},
    ids::{DependencyId, Fingerprint, OperationId, RESULT_REF_BYTES_MAX},
    policy::{MAX_WAIT_MS_MAX, PERMIT_TTL_MS_MAX, UNITS_MAX},
    units::{DURATION_MS_MAX, EXACT_MAX},
};

use super::{dependency, known, not_negative, optional, reservation_id, unit, wire, within};
use crate::{InvalidMessage, UnitNames, pb};

/// Highest attempt number; far above what any policy admits.
pub const ATTEMPT_NUMBER_MAX: u32 = 1_000_000;
/// Longest life of a tracked operation: 30 days, the longest retention of a policy.
pub const OPERATION_EXPIRES_IN_MS_MAX: i64 = 30 * 86_400_000;

/// Most attempts that one report may count.
const REPORTED_MAX: i64 = 1_000_000_000;

/// A request that obeys every rule a message can be judged by alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Whose ledger.
    pub dependency: DependencyId,
    /// What to do there.
    pub step: Step,
    /// What the answer may have to name.
    pub echo: Echo,
}

/// What an answer may have to name of its request and a [`Step`] no longer carries once a store has taken it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Echo {
    units: UnitNames,
    operation_id: Option<OperationId>,
    expires_in_ms: Option<i64>,
}

// === impl Received ===

impl TryFrom<pb::ReserveRequest> for Received {
    type Error = InvalidMessage;

    fn try_from(request: pb::ReserveRequest) -> Result<Self, InvalidMessage> {
        let dependency = dependency("dependency", &request.dependency)?;
        let id = reservation_id(&request.reservation_id)?;
        let attempt = attempt(request.attempt)?;
        let time_left_ms = optional(request.time_left_ms, |ms| within("time_left_ms", ms, 0, DURATION_MS_MAX))?;
        let max_wait_ms = within("max_wait_ms", request.max_wait_ms.unwrap_or(0), 0, MAX_WAIT_MS_MAX)?;
        let permit_ttl_ms = optional(request.permit_ttl_ms, |ms| within("permit_ttl_ms", ms, 1, PERMIT_TTL_MS_MAX))?;
        let priority = optional(request.priority, |code| known("priority", code))?.unwrap_or(Priority::Default);
        let (costs, units) = costs(["costs", "costs.unit", "costs.amount_micros"], request.costs)?;
        let operation = optional(request.operation, operation)?;
        if request.no_release && operation.is_some() {
            let rule = "must not be set together with operation, whose attempts are recorded";
            return Err(InvalidMessage::number("no_release", true, rule));
        }
        let expires_in_ms = operation.as_ref().and_then(|operation| operation.expires_in_ms);
        let reserve = Reserve {
            id,
            attempt,
            time_left_ms,
            max_wait_ms,
            permit_ttl_ms,
            priority,
            costs,
            operation,
            no_release: request.no_release,
        };
        let echo = Echo { units, operation_id: None, expires_in_ms };
        Ok(Self { dependency, step: Step::Reserve(reserve), echo })
    }
}

impl TryFrom<pb::ReleaseRequest> for Received {
    type Error = InvalidMessage;

    fn try_from(request: pb::ReleaseRequest) -> Result<Self, InvalidMessage> {
        let dependency = dependency("dependency", &request.dependency)?;
        let id = reservation_id(&request.reservation_id)?;
        let (used, units) = match request.r#use {
            None => return Err(InvalidMessage::absent("use", "must be one of not_sent, sent")),
            Some(pb::release_request::Use::NotSent(pb::NotSent {})) => (Use::NotSent, UnitNames::default()),
            Some(pb::release_request::Use::Sent(report)) => {
                let (sent, units) = sent(report)?;
                (Use::Sent(sent), units)
            }
        };
        let operation = optional(request.operation_id, |id| operation_id("operation_id", &id))?;
        if let (Use::Sent(Sent { terminal: Some(state), .. }), None) = (&used, &operation) {
            let rule = "needs operation_id, only a tracked operation can be finished";
            return Err(InvalidMessage::number("sent.terminal_state", state.name(), rule));
        }
        let echo = Echo { units, operation_id: operation.clone(), expires_in_ms: None };
        Ok(Self { dependency, step: Step::Release(Release { id, used, operation }), echo })
    }
}

impl TryFrom<pb::ExtendRequest> for Received {
    type Error = InvalidMessage;

    fn try_from(request: pb::ExtendRequest) -> Result<Self, InvalidMessage> {
        let dependency = dependency("dependency", &request.dependency)?;
        let id = reservation_id(&request.reservation_id)?;
        let permit_ttl_ms = within("permit_ttl_ms", request.permit_ttl_ms, 1, PERMIT_TTL_MS_MAX)?;
        Ok(Self { dependency, step: Step::Extend(Extend { id, permit_ttl_ms }), echo: Echo::default() })
    }
}

/// A dependency, and how many attempts its own side has received.
///
/// # Errors
/// What is wrong with the message.
pub fn report_received(request: &pb::ReportReceivedRequest) -> Result<(DependencyId, i64), InvalidMessage> {
    let dependency = dependency("dependency", &request.dependency)?;
    Ok((dependency, within("attempts", request.attempts, 0, REPORTED_MAX)?))
}

fn attempt(attempt: Option<pb::Attempt>) -> Result<Attempt, InvalidMessage> {
    let pb::Attempt { number, cause } = attempt.ok_or_else(|| InvalidMessage::absent("attempt", "is required"))?;
    within("attempt.number", number.into(), 1, ATTEMPT_NUMBER_MAX.into())?;
    let cause = optional(cause, |code| known::<Cause>("attempt.cause", code))?;
    match cause {
        None if number > 1 => {
            let rule = format!("is required from attempt number 2 on, and the number is {number}");
            Err(InvalidMessage::absent("attempt.cause", rule))
        }
        Some(cause) if number == 1 && cause != Cause::Failover => {
            let rule = "must be absent or failover for attempt number 1";
            Err(InvalidMessage::number("attempt.cause", cause.name(), rule))
        }
        None | Some(_) => Ok(Attempt { number, cause }),
    }
}

fn costs(
    [list, unit_field, amount_field]: [&'static str; 3],
    costs: Vec<pb::Cost>,
) -> Result<(Vec<Cost>, UnitNames), InvalidMessage> {
    if costs.len() > UNITS_MAX {
        return Err(InvalidMessage::number(
            list,
            format!("{} units", costs.len()),
            format!("must be at most {UNITS_MAX}"),
        ));
    }
    let mut names = UnitNames::default();
    let mut judged = Vec::with_capacity(costs.len());
    for pb::Cost { unit: name, amount_micros } in costs {
        let unit = unit(unit_field, &name)?;
        if names.name(unit).is_some() {
            return Err(InvalidMessage::text(unit_field, &name, "must be named at most once"));
        }
        judged.push(Cost { unit, amount_micros: within(amount_field, amount_micros, 0, EXACT_MAX)? });
        names.insert(unit, name);
    }
    Ok((judged, names))
}

fn operation_id(field: &'static str, id: &str) -> Result<OperationId, InvalidMessage> {
    OperationId::new(id).map_err(|rule| InvalidMessage::text(field, id, rule.to_string()))
}

fn operation(operation: pb::Operation) -> Result<OperationAsk, InvalidMessage> {
    let pb::Operation { id, fingerprint, expires_in_ms, parent_id } = operation;
    let id = operation_id("operation.id", &id)?;
    let fingerprint = Fingerprint::from_slice(&fingerprint)
        .map_err(|rule| InvalidMessage::bytes("operation.fingerprint", &fingerprint, rule.to_string()))?;
    let expires_in_ms =
        optional(expires_in_ms, |ms| within("operation.expires_in_ms", ms, 1, OPERATION_EXPIRES_IN_MS_MAX))?;
    if let Some(parent) = parent_id {
        return Err(InvalidMessage::text(
            "operation.parent_id",
            &parent,
            "is reserved and must be absent in this version",
        ));
    }
    Ok(OperationAsk { id, fingerprint, expires_in_ms })
}

fn sent(report: pb::Sent) -> Result<(Sent, UnitNames), InvalidMessage> {
    let pb::Sent { outcome, costs: actual, hold_ms, hold_scope, terminal_state, result_ref } = report;
    let reserved = "is reserved and must be absent in this version";
    let outcome = known("sent.outcome", outcome)?;
    let (costs, units) = costs(["sent.costs", "sent.costs.unit", "sent.costs.amount_micros"], actual)?;
    if let Some(ms) = hold_ms {
        return Err(InvalidMessage::number("sent.hold_ms", ms, reserved));
    }
    if let Some(scope) = hold_scope {
        return Err(InvalidMessage::number("sent.hold_scope", scope, reserved));
    }
    let terminal = optional(terminal_state, |code| known("sent.terminal_state", code))?;
    if let Some(reference) = &result_ref {
        if terminal.is_none() {
            return Err(InvalidMessage::bytes("sent.result_ref", reference, "must come with terminal_state"));
        }
        if reference.len() > RESULT_REF_BYTES_MAX {
            let rule = format!("must have at most {RESULT_REF_BYTES_MAX} bytes");
            return Err(InvalidMessage::bytes("sent.result_ref", reference, rule));
        }
    }
    Ok((Sent { outcome, costs, terminal, result_ref: result_ref.map(Vec::into_boxed_slice) }, units))
}

// === impl Echo ===

impl Echo {
    /// The names of the units the request spoke of; needed to pass it on.
    #[must_use]
    pub const fn units(&self) -> &UnitNames {
        &self.units
    }

    /// The caller's mistake that only the ledger could see, named like those seen in the message.
    #[must_use]
    pub fn explain(&self, invalid: &Invalid) -> InvalidMessage {
        match invalid {
            Invalid::UnknownUnit(unit) => {
                let name = self.units.name(*unit).unwrap_or("(unnamed)");
                InvalidMessage::text("costs.unit", name, "must be a unit of the dependency's policy")
            }
            Invalid::ExpiresInTooLong => {
                let rule = "must be at most the policy's operation.retention";
                InvalidMessage::number("operation.expires_in_ms", self.expires_in_ms.unwrap_or_default(), rule)
            }
            Invalid::OperationMismatch => {
                let rule = "must be the operation named at Reserve";
                match &self.operation_id {
                    Some(id) => InvalidMessage::text("operation_id", id.as_str(), rule),
                    None => InvalidMessage::absent("operation_id", rule),
                }
            }
        }
    }
}

// Outward.

/// A Reserve as it is sent.
///
/// # Errors
/// If a unit has no name in `units`, or a number is negative.
pub fn reserve_request(
    dependency: &DependencyId,
    reserve: &Reserve,
    units: &UnitNames,
) -> Result<pb::ReserveRequest, InvalidMessage> {
    let max_wait_ms = (reserve.max_wait_ms != 0).then_some(reserve.max_wait_ms);
    let priority = (reserve.priority != Priority::Default).then(|| wire(reserve.priority));
    Ok(pb::ReserveRequest {
        dependency: dependency.as_str().to_owned(),
        reservation_id: reserve.id.0.to_vec(),
        attempt: Some(pb::Attempt { number: reserve.attempt.number, cause: reserve.attempt.cause.map(wire) }),
        time_left_ms: optional(reserve.time_left_ms, |ms| not_negative("time_left_ms", ms))?,
        max_wait_ms: optional(max_wait_ms, |ms| not_negative("max_wait_ms", ms))?,
        permit_ttl_ms: optional(reserve.permit_ttl_ms, |ms| not_negative("permit_ttl_ms", ms))?,
        priority,
        costs: named_costs(["costs.unit", "costs.amount_micros"], &reserve.costs, units)?,
        operation: optional(reserve.operation.as_ref(), |operation| {
            Ok(pb::Operation {
                id: operation.id.as_str().to_owned(),
                fingerprint: operation.fingerprint.as_slice().to_vec(),
                expires_in_ms: optional(operation.expires_in_ms, |ms| not_negative("operation.expires_in_ms", ms))?,
                parent_id: None,
            })
        })?,
        no_release: reserve.no_release,
    })
}

/// A Release as it is sent.
///
/// # Errors
/// If a unit has no name in `units`, or a number is negative.
pub fn release_request(
    dependency: &DependencyId,
    release: &Release,
    units: &UnitNames,
) -> Result<pb::ReleaseRequest, InvalidMessage> {
    let used = match &release.used {
        Use::NotSent => pb::release_request::Use::NotSent(pb::NotSent {}),
        Use::Sent(sent) => pb::release_request::Use::Sent(pb::Sent {
            outcome: wire(sent.outcome),
            costs: named_costs(["sent.costs.unit", "sent.costs.amount_micros"], &sent.costs, units)?,
            hold_ms: None,
            hold_scope: None,
            terminal_state: sent.terminal.map(wire),
            result_ref: sent.result_ref.as_ref().map(|reference| reference.to_vec()),
        }),
    };
    Ok(pb::ReleaseRequest {
        dependency: dependency.as_str().to_owned(),
        reservation_id: release.id.0.to_vec(),
        r#use: Some(used),
        operation_id: release.operation.as_ref().map(|id| id.as_str().to_owned()),
    })
}

/// An Extend as it is sent.
///
/// # Errors
/// If the time is negative.
pub fn extend_request(dependency: &DependencyId, extend: Extend) -> Result<pb::ExtendRequest, InvalidMessage> {
    Ok(pb::ExtendRequest {
        dependency: dependency.as_str().to_owned(),
        reservation_id: extend.id.0.to_vec(),
        permit_ttl_ms: not_negative("permit_ttl_ms", extend.permit_ttl_ms)?,
    })
}

fn named_costs(
    [unit_field, amount_field]: [&'static str; 2],
    costs: &[Cost],
    units: &UnitNames,
) -> Result<Vec<pb::Cost>, InvalidMessage> {
    let named = |cost: &Cost| {
        let name = units.name(cost.unit).ok_or_else(|| {
            InvalidMessage::number(unit_field, cost.unit.raw(), "has no name: name the units of the dependency first")
        })?;
        Ok(pb::Cost { unit: name.to_owned(), amount_micros: not_negative(amount_field, cost.amount_micros)? })
    };
    costs.iter().map(named).collect()
}
