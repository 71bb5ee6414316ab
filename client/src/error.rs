//! Why a call has no answer. A denial is an answer and never an error.

use std::{error::Error as StdError, sync::Arc};

use budget_proto::InvalidMessage;
use tonic::{Code, ConnectError, Status, TimeoutExpired};

/// A failed call.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// This client refuses to send it.
    #[error("{0}")]
    Unsendable(InvalidMessage),
    /// The client was made outside of a tokio runtime.
    #[error("a client must be made inside of a tokio runtime")]
    NoRuntime,
    /// The operating system gave no random bytes for a reservation id.
    #[error("no random bytes for a reservation id: {0}")]
    NoRandomness(String),
    /// No connection: the call was not sent.
    #[error("budgetd was not reached: {0}")]
    Unreachable(Arc<str>),
    /// The deadline passed before the call was sent.
    #[error("deadline passed before the call was sent")]
    DeadlinePassed,
    /// The call was sent and not answered in time: it may have been applied.
    #[error("no answer within the deadline")]
    DeadlineExceeded,
    /// The connection broke after the call was sent: it may have been applied.
    #[error("outcome unknown, the connection broke: {0}")]
    OutcomeUnknown(Arc<str>),
    /// The session had ended: the call was not sent.
    #[error("session has ended: {0}")]
    SessionEnded(Arc<str>),
    /// budgetd did not reach its store.
    #[error("store is unavailable: {0}")]
    Unavailable(String),
    /// budgetd refused a field; the text names it, its value and the rule.
    #[error("{0}")]
    InvalidArgument(String),
    /// The policies refuse this dependency; the text names the rule.
    #[error("{0}")]
    NotFound(String),
    /// The policies have changed since the expected version.
    #[error("{0}")]
    Conflict(String),
    /// budgetd itself is overloaded: the call was not applied.
    #[error("budgetd is overloaded: {0}")]
    Overloaded(String),
    /// No or wrong credentials.
    #[error("not authenticated: {0}")]
    Unauthenticated(String),
    /// The credentials do not permit this call.
    #[error("not permitted: {0}")]
    PermissionDenied(String),
    /// The answer breaks the protocol.
    #[error("unexpected answer: {0}")]
    UnexpectedAnswer(InvalidMessage),
    /// Anything else budgetd answered.
    #[error("budgetd failed with {code:?}: {message}")]
    Failed {
        /// The gRPC status.
        code: Code,
        /// Its text.
        message: String,
    },
}

// === impl Error ===

impl Error {
    /// Whether a Reserve may be sent again under its reservation id: budgetd was not reached or its answer was lost.
    pub(crate) const fn answer_was_lost(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::OutcomeUnknown(_) | Self::Unavailable(_) => true,
            Self::Unsendable(_)
            | Self::NoRuntime
            | Self::NoRandomness(_)
            | Self::DeadlinePassed
            | Self::DeadlineExceeded
            | Self::SessionEnded(_)
            | Self::InvalidArgument(_)
            | Self::NotFound(_)
            | Self::Conflict(_)
            | Self::Overloaded(_)
            | Self::Unauthenticated(_)
            | Self::PermissionDenied(_)
            | Self::UnexpectedAnswer(_)
            | Self::Failed { .. } => false,
        }
    }

    /// Whether the call may have changed something at budgetd.
    #[must_use]
    pub const fn may_have_been_applied(&self) -> bool {
        match self {
            Self::DeadlineExceeded
            | Self::OutcomeUnknown(_)
            | Self::Unavailable(_)
            | Self::UnexpectedAnswer(_)
            | Self::Failed { .. } => true,
            Self::Unsendable(_)
            | Self::NoRuntime
            | Self::NoRandomness(_)
            | Self::Unreachable(_)
            | Self::DeadlinePassed
            | Self::SessionEnded(_)
            | Self::InvalidArgument(_)
            | Self::NotFound(_)
            | Self::Conflict(_)
            | Self::Overloaded(_)
            | Self::Unauthenticated(_)
            | Self::PermissionDenied(_) => false,
        }
    }

    /// A status that budgetd sent, or that the transport made up because nothing was sent.
    pub(crate) fn from_status(status: Status) -> Self {
        match status.source() {
            // Only the transport on this side knows a source.
            Some(source) => Self::from_transport(&status, source),
            None => Self::from_answer(status),
        }
    }

    fn from_transport(status: &Status, source: &(dyn StdError + 'static)) -> Self {
        let mut cause = Some(source);
        let mut innermost = source;
        while let Some(error) = cause {
            if error.is::<TimeoutExpired>() {
                return Self::DeadlineExceeded;
            }
            if let Some(connect) = error.downcast_ref::<ConnectError>() {
                return Self::Unreachable(innermost_text(connect).into());
            }
            innermost = error;
            cause = error.source();
        }
        Self::OutcomeUnknown(format!("{}: {innermost}", status.message()).into())
    }

    fn from_answer(status: Status) -> Self {
        let message = status.message().to_owned();
        match status.code() {
            Code::InvalidArgument => Self::InvalidArgument(message),
            Code::NotFound => Self::NotFound(message),
            Code::Aborted => Self::Conflict(message),
            Code::ResourceExhausted => Self::Overloaded(message),
            Code::Unauthenticated => Self::Unauthenticated(message),
            Code::PermissionDenied => Self::PermissionDenied(message),
            Code::Unavailable => Self::Unavailable(message),
            // Servers built like budgetd answer CANCELLED where grpc-timeout ends a call.
            Code::DeadlineExceeded | Code::Cancelled => Self::DeadlineExceeded,
            code @ (Code::Ok
            | Code::Unknown
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Internal
            | Code::DataLoss) => Self::Failed { code, message },
        }
    }
}

/// The last link says what the operating system said.
fn innermost_text(error: &(dyn StdError + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

impl From<InvalidMessage> for Error {
    fn from(invalid: InvalidMessage) -> Self {
        Self::Unsendable(invalid)
    }
}
