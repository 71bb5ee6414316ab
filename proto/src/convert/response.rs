//! What is answered: to Reserve, Release and Extend, in both directions.

use budget::{
    decision::{Admitted, Answer, Denied, ExtendResult, OperationState, ReleaseResult},
    ids::{PolicyVersion, RESULT_REF_BYTES_MAX},
    policy::PERMIT_TTL_MS_MAX,
    units::EXACT_MAX,
};
use tonic::Status;

use super::{Coded, Echo, Mode, known, policy_version, unit, unsigned, wire, within};
use crate::{InvalidMessage, pb};

/// A ledger's answer and what it was decided with, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The answer.
    pub answer: Answer,
    /// How it was come by.
    pub mode: Mode,
    /// With which policies.
    pub version: PolicyVersion,
}

/// The answer to a Reserve: both are answers, neither is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The attempt may be sent.
    Admitted(Admitted),
    /// It must not; nothing was charged.
    Denied(Denied),
}

/// The answer to a Reserve and what it was decided with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Whether the attempt may be sent.
    pub decision: Decision,
    /// How it was come by.
    pub mode: Mode,
    /// With which policies.
    pub version: PolicyVersion,
}

/// The answer to a Release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// What became of it.
    pub result: ReleaseResult,
    /// How it was come by.
    pub mode: Mode,
}

// === impl Decided ===

impl Decided {
    /// The answer to a Reserve; `echo` comes from its request.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the ledger found the caller's mistake; INTERNAL if this answers something else.
    pub fn reserve(self, echo: &Echo) -> Result<pb::ReserveResponse, Status> {
        let decision = match self.answer {
            Answer::Admitted(admitted) => pb::reserve_response::Decision::Admitted(admitted.into()),
            Answer::Denied(denied) => pb::reserve_response::Decision::Denied(denied_message(denied, echo)),
            Answer::Invalid(invalid) => return Err(echo.explain(&invalid).into()),
            Answer::Released(_) | Answer::Extended(_) => return Err(mismatch("Reserve")),
        };
        Ok(pb::ReserveResponse {
            decision: Some(decision),
            mode: self.mode.wire(),
            policy_version: Some(self.version.into()),
        })
    }

    /// The answer to a Release; `echo` comes from its request.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub fn release(self, echo: &Echo) -> Result<pb::ReleaseResponse, Status> {
        match self.answer {
            Answer::Released(result) => Ok(pb::ReleaseResponse { result: wire(result), mode: self.mode.wire() }),
            Answer::Invalid(invalid) => Err(echo.explain(&invalid).into()),
            Answer::Admitted(_) | Answer::Denied(_) | Answer::Extended(_) => Err(mismatch("Release")),
        }
    }

    /// The answer to an Extend; `echo` comes from its request.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub fn extend(self, echo: &Echo) -> Result<pb::ExtendResponse, Status> {
        match self.answer {
            Answer::Extended(result) => Ok(result.into()),
            Answer::Invalid(invalid) => Err(echo.explain(&invalid).into()),
            Answer::Admitted(_) | Answer::Denied(_) | Answer::Released(_) => Err(mismatch("Extend")),
        }
    }

    /// The answer to any of them, as a session carries it.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the ledger found the caller's mistake.
    pub fn session(self, echo: &Echo) -> Result<pb::session_response::Answer, Status> {
        use pb::session_response::Answer as Carried;
        match self.answer {
            Answer::Admitted(_) | Answer::Denied(_) => self.reserve(echo).map(Carried::Reserve),
            Answer::Released(_) => self.release(echo).map(Carried::Release),
            Answer::Extended(_) => self.extend(echo).map(Carried::Extend),
            Answer::Invalid(invalid) => Err(echo.explain(&invalid).into()),
        }
    }
}

fn mismatch(call: &str) -> Status {
    Status::internal(format!("the ledger answered a {call} with something else"))
}

impl From<Admitted> for pb::Admitted {
    fn from(admitted: Admitted) -> Self {
        Self {
            start_after_ms: unsigned(admitted.start_after_ms),
            permit_ttl_ms: unsigned(admitted.permit_ttl_ms),
            attempts_left: Some(count(admitted.attempts_left)),
            replayed: admitted.replayed,
            would_be_denied: admitted.would_be_denied.map(wire),
        }
    }
}

fn denied_message(denied: Denied, echo: &Echo) -> pb::Denied {
    pb::Denied {
        reason: wire(denied.reason),
        unit: denied.unit.and_then(|unit| echo.units().name(unit)).map(str::to_owned),
        retry_after_ms: denied.retry_after_ms.map(|ms| unsigned(ms.max(1))),
        impossible: denied.impossible,
        operation: denied.operation.map(|state| pb::OperationState {
            attempts_used: count(state.attempts_used),
            last_outcome: state.last_outcome.map(wire),
            terminal_state: state.terminal.map(wire),
            result_ref: state.result_ref.map(<[u8]>::into_vec),
        }),
    }
}

impl From<ExtendResult> for pb::ExtendResponse {
    fn from(result: ExtendResult) -> Self {
        let (result, permit_ttl_ms) = match result {
            ExtendResult::Extended(ms) => (pb::ExtendResult::Extended, Some(unsigned(ms))),
            ExtendResult::AlreadyReleased => (pb::ExtendResult::AlreadyReleased, None),
            ExtendResult::Expired => (pb::ExtendResult::Expired, None),
            ExtendResult::Unknown => (pb::ExtendResult::Unknown, None),
        };
        Self { result: result.into(), permit_ttl_ms }
    }
}

fn count(value: i64) -> u32 {
    u32::try_from(value.max(0)).unwrap_or(u32::MAX)
}

// === impl Decision ===

impl From<Decision> for Answer {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Admitted(admitted) => Self::Admitted(admitted),
            Decision::Denied(denied) => Self::Denied(denied),
        }
    }
}

// Inward: what a client receives.

impl TryFrom<pb::ReserveResponse> for Reserved {
    type Error = InvalidMessage;

    fn try_from(response: pb::ReserveResponse) -> Result<Self, InvalidMessage> {
        let decision = match response.decision {
            None => return Err(InvalidMessage::absent("decision", "must be one of admitted, denied")),
            Some(pb::reserve_response::Decision::Admitted(admitted)) => Decision::Admitted(admitted.try_into()?),
            Some(pb::reserve_response::Decision::Denied(denied)) => Decision::Denied(denied.try_into()?),
        };
        Ok(Self {
            decision,
            mode: known("mode", response.mode)?,
            version: policy_version("policy_version", response.policy_version)?,
        })
    }
}

impl TryFrom<pb::ReleaseResponse> for Released {
    type Error = InvalidMessage;

    fn try_from(response: pb::ReleaseResponse) -> Result<Self, InvalidMessage> {
        Ok(Self { result: known("result", response.result)?, mode: known("mode", response.mode)? })
    }
}

impl TryFrom<pb::ExtendResponse> for ExtendResult {
    type Error = InvalidMessage;

    fn try_from(response: pb::ExtendResponse) -> Result<Self, InvalidMessage> {
        match pb::ExtendResult::try_from(response.result) {
            Ok(pb::ExtendResult::Extended) => {
                let ms =
                    response.permit_ttl_ms.ok_or_else(|| InvalidMessage::absent("permit_ttl_ms", "is required"))?;
                within("permit_ttl_ms", ms, 0, EXACT_MAX).map(Self::Extended)
            }
            Ok(pb::ExtendResult::AlreadyReleased) => Ok(Self::AlreadyReleased),
            Ok(pb::ExtendResult::Expired) => Ok(Self::Expired),
            Ok(pb::ExtendResult::Unknown) => Ok(Self::Unknown),
            Ok(pb::ExtendResult::Unspecified) | Err(_) => {
                let rule = "must be one of 1 extended, 2 already_released, 3 expired, 4 unknown";
                Err(InvalidMessage::number("result", response.result, rule))
            }
        }
    }
}

impl TryFrom<pb::Admitted> for Admitted {
    type Error = InvalidMessage;

    fn try_from(admitted: pb::Admitted) -> Result<Self, InvalidMessage> {
        Ok(Self {
            start_after_ms: within("admitted.start_after_ms", admitted.start_after_ms, 0, EXACT_MAX)?,
            permit_ttl_ms: within("admitted.permit_ttl_ms", admitted.permit_ttl_ms, 0, PERMIT_TTL_MS_MAX)?,
            attempts_left: admitted.attempts_left.unwrap_or(0).into(),
            replayed: admitted.replayed,
            would_be_denied: optional_known("admitted.would_be_denied", admitted.would_be_denied)?,
        })
    }
}

impl TryFrom<pb::Denied> for Denied {
    type Error = InvalidMessage;

    fn try_from(denied: pb::Denied) -> Result<Self, InvalidMessage> {
        let retry_after = |ms| within("denied.retry_after_ms", ms, 1, EXACT_MAX);
        Ok(Self {
            reason: known("denied.reason", denied.reason)?,
            unit: denied.unit.map(|name| unit("denied.unit", &name)).transpose()?,
            retry_after_ms: denied.retry_after_ms.map(retry_after).transpose()?,
            impossible: denied.impossible,
            operation: denied.operation.map(operation_state).transpose()?.map(Box::new),
        })
    }
}

fn operation_state(state: pb::OperationState) -> Result<OperationState, InvalidMessage> {
    let result_ref = state.result_ref.map(Vec::into_boxed_slice);
    if let Some(reference) = result_ref.as_ref().filter(|reference| reference.len() > RESULT_REF_BYTES_MAX) {
        let rule = format!("must have at most {RESULT_REF_BYTES_MAX} bytes");
        return Err(InvalidMessage::bytes("denied.operation.result_ref", reference, rule));
    }
    Ok(OperationState {
        attempts_used: state.attempts_used.into(),
        last_outcome: optional_known("denied.operation.last_outcome", state.last_outcome)?,
        terminal: optional_known("denied.operation.terminal_state", state.terminal_state)?,
        result_ref,
    })
}

fn optional_known<E: Coded>(field: &'static str, code: Option<i32>) -> Result<Option<E>, InvalidMessage> {
    code.map(|code| known(field, code)).transpose()
}
