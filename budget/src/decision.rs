//! What is asked of a ledger and what it answers. A denial is a decision; errors are elsewhere.

use crate::ids::{Fingerprint, OperationId, PolicyVersion, ReservationId, UnitId};

/// Why a retry is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// A transient failure.
    Transient = 1,
    /// The dependency throttled.
    Throttled = 2,
    /// No answer in time.
    Timeout = 3,
    /// A further attempt beside one still running.
    Hedge = 4,
    /// An attempt at another dependency, charged there.
    Failover = 5,
}

/// Which work is shed first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Priority {
    /// First.
    Sheddable = 1,
    /// Second.
    #[default]
    Default = 2,
    /// Last.
    Critical = 3,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// It worked.
    Success = 1,
    /// It failed in a way that may pass.
    Transient = 2,
    /// The dependency throttled.
    Throttled = 3,
    /// It failed for good.
    Permanent = 4,
    /// 401, 402, quota used up: an alert.
    Account = 5,
    /// The answer was lost; it may have happened.
    Unknown = 6,
    /// The caller gave up; remote work may go on, so the permit stays until its time ends.
    Abandoned = 7,
    /// A stream ended after partial output.
    Incomplete = 8,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TerminalState {
    /// With a result.
    Completed = 1,
    /// Failed for good.
    Failed = 2,
    /// Out of time.
    DeadlineExceeded = 3,
    /// Not admitted.
    AdmissionDenied = 4,
    /// No retry tokens.
    RetryBudgetExhausted = 5,
    /// It may have happened; must be resolved.
    OutcomeUnknown = 6,
}

/// Why an ask is refused. The order of the budget's rules is the order of checking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DenyReason {
    /// The kill switch.
    RetriesOff = 1,
    /// The deadline has passed, or would pass before the start.
    NoTimeLeft = 2,
    /// The operation has used its attempts.
    AttemptLimit = 3,
    /// The retry bucket does not cover the cause's cost.
    RetryBudget = 4,
    /// No permit for this priority.
    InFlight = 5,
    /// A cost unit is exhausted.
    Cost = 6,
    /// The admission bucket is exhausted.
    Admission = 7,
    /// This reservation was released, or its time ended.
    AlreadyReleased = 8,
    /// The operation has an attempt in flight under another reservation.
    InProgress = 9,
    /// The operation is finished.
    Completed = 10,
    /// Same operation id, other fingerprint.
    Conflict = 11,
    /// The operation's outcome is unknown.
    OutcomeUnknown = 12,
    /// Not the next attempt number, or the operation's time is over.
    OutOfOrder = 13,
    /// The store is away and the fallback has nothing left.
    Fallback = 14,
    /// The store is away and tracked operations need it.
    OperationStoreAway = 15,
}

macro_rules! codes {
    ($type:ident { $($variant:ident = $code:literal $name:literal),+ $(,)? }) => {
        impl $type {
            /// All values in the order of their codes, which start at 1.
            pub const ALL: [Self; [$($code),+].len()] = [$(Self::$variant),+];

            /// The code used on the wire and in scripts.
            #[must_use]
            pub const fn code(self) -> i64 {
                match self { $(Self::$variant => $code),+ }
            }

            /// From a code.
            #[must_use]
            pub const fn from_code(code: i64) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }

            /// The name in policies, logs and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// Position in [`Self::ALL`].
            #[must_use]
            pub const fn index(self) -> usize {
                match self { $(Self::$variant => $code - 1),+ }
            }
        }
    };
}

codes!(Cause { Transient = 1 "transient", Throttled = 2 "throttled", Timeout = 3 "timeout", Hedge = 4 "hedge", Failover = 5 "failover" });
codes!(Priority { Sheddable = 1 "sheddable", Default = 2 "default", Critical = 3 "critical" });
codes!(Outcome {
    Success = 1 "success", Transient = 2 "transient", Throttled = 3 "throttled", Permanent = 4 "permanent",
    Account = 5 "account", Unknown = 6 "unknown", Abandoned = 7 "abandoned", Incomplete = 8 "incomplete",
});
codes!(TerminalState {
    Completed = 1 "completed", Failed = 2 "failed", DeadlineExceeded = 3 "deadline_exceeded",
    AdmissionDenied = 4 "admission_denied", RetryBudgetExhausted = 5 "retry_budget_exhausted",
    OutcomeUnknown = 6 "outcome_unknown",
});
codes!(DenyReason {
    RetriesOff = 1 "retries_off", NoTimeLeft = 2 "no_time_left", AttemptLimit = 3 "attempt_limit",
    RetryBudget = 4 "retry_budget", InFlight = 5 "in_flight", Cost = 6 "cost", Admission = 7 "admission",
    AlreadyReleased = 8 "already_released", InProgress = 9 "in_progress", Completed = 10 "completed",
    Conflict = 11 "conflict", OutcomeUnknown = 12 "outcome_unknown", OutOfOrder = 13 "out_of_order",
    Fallback = 14 "fallback", OperationStoreAway = 15 "operation_store_away",
});
codes!(ReleaseResult { Applied = 1 "applied", AlreadyReleased = 2 "already_released", Expired = 3 "expired", Unknown = 4 "unknown" });

/// The number of an attempt and, for a retry, its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// From 1.
    pub number: u32,
    /// Absent for an original.
    pub cause: Option<Cause>,
}

/// An amount of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The unit.
    pub unit: UnitId,
    /// Not negative.
    pub amount_micros: i64,
}

/// The operation an ask belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationAsk {
    /// Its id.
    pub id: OperationId,
    /// Its input.
    pub fingerprint: Fingerprint,
    /// No attempt is admitted later than this after the first ask; absent: the policy's retention.
    pub expires_in_ms: Option<i64>,
}

/// An ask for one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Equal on every re-send.
    pub id: ReservationId,
    /// Number and cause.
    pub attempt: Attempt,
    /// Until the caller's deadline.
    pub time_left_ms: Option<i64>,
    /// The caller's patience.
    pub max_wait_ms: i64,
    /// 1 to [`crate::policy::PERMIT_TTL_MS_MAX`]; absent: the policy's.
    pub permit_ttl_ms: Option<i64>,
    /// Its class.
    pub priority: Priority,
    /// Estimates, each unit at most once.
    pub costs: Vec<Cost>,
    /// Its tracked operation; never together with `no_release`.
    pub operation: Option<OperationAsk>,
    /// No record, no permit.
    pub no_release: bool,
}

/// What became of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// Not one byte went out.
    NotSent,
    /// It may have reached the dependency.
    Sent(Sent),
}

/// The report of a sent attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// How it ended.
    pub outcome: Outcome,
    /// Actual costs; a unit left out keeps its estimate.
    pub costs: Vec<Cost>,
    /// Finishes the operation.
    pub terminal: Option<TerminalState>,
    /// Kept with the terminal state, at most [`crate::ids::RESULT_REF_BYTES_MAX`] bytes.
    pub result_ref: Option<Box<[u8]>>,
}

/// The end of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Which.
    pub id: ReservationId,
    /// How it was used.
    pub used: Use,
    /// The operation named at Reserve.
    pub operation: Option<OperationId>,
}

/// A longer permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extend {
    /// Which.
    pub id: ReservationId,
    /// From now.
    pub permit_ttl_ms: i64,
}

/// One atomic step on a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask for an attempt.
    Reserve(Reserve),
    /// End one.
    Release(Release),
    /// Prolong one.
    Extend(Extend),
}

/// The right to send one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Not before.
    pub start_after_ms: i64,
    /// The permit ends this long after the start.
    pub permit_ttl_ms: i64,
    /// Attempts the operation has left; negative never.
    pub attempts_left: i64,
    /// Given before; nothing charged now.
    pub replayed: bool,
    /// Shadow mode: what would have been refused.
    pub would_be_denied: Option<DenyReason>,
}

/// What is stored of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationState {
    /// Attempts admitted.
    pub attempts_used: i64,
    /// Of the latest release.
    pub last_outcome: Option<Outcome>,
    /// Once finished.
    pub terminal: Option<TerminalState>,
    /// Stored with the terminal state.
    pub result_ref: Option<Box<[u8]>>,
}

/// A refusal: nothing was charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The first rule that failed.
    pub reason: DenyReason,
    /// Which unit, for [`DenyReason::Cost`].
    pub unit: Option<UnitId>,
    /// Waiting this long helps; at least 1.
    pub retry_after_ms: Option<i64>,
    /// The ask exceeds what the policy can ever give.
    pub impossible: bool,
    /// For reasons that concern an operation.
    pub operation: Option<Box<OperationState>>,
}

/// Answers to a Release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseResult {
    /// Done.
    Applied,
    /// Done before.
    AlreadyReleased,
    /// The permit had ended.
    Expired,
    /// No record.
    Unknown,
}

/// Answers to an Extend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtendResult {
    /// The permit now ends after this time.
    Extended(i64),
    /// Released before.
    AlreadyReleased,
    /// The permit had ended.
    Expired,
    /// No record.
    Unknown,
}

/// An ask that contradicts the ledger's policy or state: the caller's mistake, nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The policy has no such unit.
    #[error("costs.unit: the policy has no such unit")]
    UnknownUnit(UnitId),
    /// Longer than the policy's retention.
    #[error("operation.expires_in_ms: must be at most the policy's operation.retention")]
    ExpiresInTooLong,
    /// The reservation names another operation, or none.
    #[error("operation_id: must be the operation named at Reserve")]
    OperationMismatch,
}

/// The answer to one [`Step`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To a Reserve.
    Admitted(Admitted),
    /// To a Reserve.
    Denied(Denied),
    /// To a Release.
    Released(ReleaseResult),
    /// To an Extend.
    Extended(ExtendResult),
    /// The caller's mistake.
    Invalid(Invalid),
}

/// The numbers of the call are older than the ledger's: re-read the policies and send once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// What the ledger has.
    pub ledger_version: PolicyVersion,
}

// === impl Attempt ===

impl Attempt {
    /// The first attempt of an operation.
    pub const ORIGINAL: Self = Self { number: 1, cause: None };

    /// A retry with its number and cause.
    #[must_use]
    pub const fn retry(number: u32, cause: Cause) -> Self {
        Self { number, cause: Some(cause) }
    }

    /// Whether it costs retry tokens.
    #[must_use]
    pub const fn is_retry(self) -> bool {
        self.cause.is_some()
    }
}

// === impl DenyReason ===

impl DenyReason {
    /// What a policy's numbers refuse is admitted in shadow mode. The kill switch is an operator's word and an
    /// operation's state is a fact: both hold in any mode.
    pub(crate) const fn yields_to_shadow(self) -> bool {
        match self {
            Self::NoTimeLeft
            | Self::AttemptLimit
            | Self::RetryBudget
            | Self::InFlight
            | Self::Cost
            | Self::Admission
            | Self::Fallback => true,
            Self::RetriesOff
            | Self::AlreadyReleased
            | Self::InProgress
            | Self::Completed
            | Self::Conflict
            | Self::OutcomeUnknown
            | Self::OutOfOrder
            | Self::OperationStoreAway => false,
        }
    }
}

// === impl Reserve ===

impl Reserve {
    /// A plain ask: default priority, no costs, no operation.
    #[must_use]
    pub const fn new(id: ReservationId, attempt: Attempt) -> Self {
        Self {
            id,
            attempt,
            time_left_ms: None,
            max_wait_ms: 0,
            permit_ttl_ms: None,
            priority: Priority::Default,
            costs: Vec::new(),
            operation: None,
            no_release: false,
        }
    }
}

// === impl Denied ===

impl Denied {
    /// A refusal that neither waiting nor anything else is known to help.
    #[must_use]
    pub const fn because(reason: DenyReason) -> Self {
        Self { reason, unit: None, retry_after_ms: None, impossible: false, operation: None }
    }
}

// === impl Release ===

impl Release {
    /// Hands a reservation back.
    #[must_use]
    pub const fn not_sent(id: ReservationId) -> Self {
        Self { id, used: Use::NotSent, operation: None }
    }

    /// Reports an outcome.
    #[must_use]
    pub const fn sent(id: ReservationId, outcome: Outcome) -> Self {
        let sent = Sent { outcome, costs: Vec::new(), terminal: None, result_ref: None };
        Self { id, used: Use::Sent(sent), operation: None }
    }
}
