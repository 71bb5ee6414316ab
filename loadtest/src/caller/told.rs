//! What a process of callers saw, as it tells the engine afterwards.

use serde::{Deserialize, Serialize};

/// All of it. Times are nanoseconds since the start of the load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) operations: Vec<Ended>,
    /// Asks of a budget; where there is none to ask, none.
    pub(crate) asks: Vec<Ask>,
    /// Attempts sent, and those after the first of an operation, by cause.
    pub(crate) sent: u64,
    pub(crate) retries_by_cause: [u64; 3],
    /// Retries that an own budget of the process refused.
    pub(crate) refused_locally: u64,
    /// The longest time after it was due that an operation began.
    pub(crate) late_max_ns: i64,
    /// The longest time from before an ask to the answer of the dependency: an attempt arrived no later than that.
    pub(crate) arrival_max_ns: i64,
    /// Operations that had not ended when the process gave up waiting.
    pub(crate) unended: u64,
    /// Operations with attempts sent that an earlier process had not ended when it was killed.
    pub(crate) resumed: u64,
    /// Of a client with leases.
    pub(crate) releases_lost: u64,
    /// Of a holder that was copied.
    pub(crate) cloned: Option<Cloned>,
}

/// A copy of a running holder: what each of both had, micro-tokens and permits, and how long it was not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cloned {
    pub(crate) rate: i64,
    pub(crate) burst: i64,
    pub(crate) retry_burst: i64,
    pub(crate) slots: i64,
    pub(crate) alive_ms: i64,
    /// One of both has learnt that there is another.
    pub(crate) fenced: bool,
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) due_ns: i64,
    pub(crate) ended_ns: i64,
    /// Its stream of load.
    pub(crate) load: u8,
    /// Attempts that were sent.
    pub(crate) sent: u32,
    pub(crate) end: End,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum End {
    /// With an accepted result.
    Completed,
    Failed,
    DeadlineExceeded,
    AdmissionDenied,
    RetryBudgetExhausted,
    /// The last attempt's answer did not come: it may have happened.
    OutcomeUnknown,
    /// A stream broke after partial output.
    Incomplete,
    /// budgetd did not decide.
    Undecided,
}

/// An ask for an attempt, and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ask {
    /// Right before it was asked.
    pub(crate) from_ns: i64,
    /// Right after it was sent, or refused.
    pub(crate) until_ns: i64,
    pub(crate) is_retry: bool,
    /// Estimated cost, micro-tokens, where the load has one.
    pub(crate) cost_micros: i64,
    pub(crate) via: Via,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Via {
    Lease,
    Coordinator,
    Degraded,
    Fallback,
    Refused,
    /// Nobody: an error.
    Error,
}

// === impl End ===

impl End {
    /// As in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::AdmissionDenied => "admission_denied",
            Self::RetryBudgetExhausted => "retry_budget_exhausted",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Incomplete => "incomplete",
            Self::Undecided => "undecided",
        }
    }
}

// === impl Via ===

impl Via {
    /// Whether it was admitted.
    pub(crate) const fn admitted(self) -> bool {
        match self {
            Self::Lease | Self::Coordinator | Self::Degraded | Self::Fallback => true,
            Self::Refused | Self::Error => false,
        }
    }
}
