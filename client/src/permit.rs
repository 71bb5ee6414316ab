//! The right to send one attempt, as a value that can be used once.

use std::fmt;

use budget::{
    decision::{Cost, DenyReason, Outcome, Release, Sent as SentReport, Use},
    holder::Spent,
    ids::ReservationId,
};

use crate::{clock::boot_time_ns, leased::Handle};

/// The right to send one attempt. Dropped before [`Permit::sent`], it is handed back, once.
///
/// Call [`Permit::sent`] right before the first byte goes out, not earlier: a permit whose time has passed meanwhile is
/// taken back there.
#[must_use = "a permit that is dropped is handed back"]
pub struct Permit {
    /// None once it is sent.
    unsent: Option<(Handle, Right)>,
    facts: Facts,
}

/// An attempt that may have reached the dependency. Nothing of it is ever handed back.
///
/// Dropped without [`InFlight::finish`], it counts as abandoned: remote work may go on, so its slot stays taken until the
/// permit's life ends.
#[must_use = "an attempt that is not finished counts as abandoned"]
pub struct InFlight {
    /// None once it is finished.
    sent: Option<(Handle, Right)>,
}

/// A permit that may not be sent any more: it was handed back. Ask anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the permit's time has passed: ask for another one")]
pub struct PermitExpired;

/// What is known of a permit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) attempts_left: i64,
    pub(crate) start_after_ms: i64,
    pub(crate) would_be_denied: Option<DenyReason>,
    pub(crate) source: Source,
}

/// Who admitted an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The lease held here, without communication.
    Lease,
    /// A coordinator, exactly.
    Coordinator,
    /// A coordinator whose store is away.
    Degraded,
    /// The policy's fallback here, no coordinator answering and no lease in force.
    Fallback,
}

#[derive(Debug)]
pub(crate) enum Right {
    /// Paid for here.
    Local(Spent),
    /// Paid for at a coordinator.
    Direct { id: ReservationId, until_ns: i64 },
}

// === impl Permit ===

impl Permit {
    pub(crate) const fn new(handle: Handle, right: Right, facts: Facts) -> Self {
        Self { unsent: Some((handle, right)), facts }
    }

    /// The attempt is about to be sent: commits it.
    ///
    /// # Errors
    /// If its time has passed: it is handed back then.
    pub fn sent(mut self) -> Result<InFlight, PermitExpired> {
        let now_ns = boot_time_ns();
        let good = match &self.unsent {
            Some((handle, Right::Local(spent))) => handle.share().check(spent, now_ns),
            Some((_, Right::Direct { until_ns, .. })) => now_ns < *until_ns,
            None => false,
        };
        if !good {
            return Err(PermitExpired);
        }
        Ok(InFlight { sent: self.unsent.take() })
    }

    /// Attempts that the operation has left after this one.
    #[must_use]
    pub const fn attempts_left(&self) -> i64 {
        self.facts.attempts_left
    }

    /// The attempt may start after so many milliseconds, not before; 0 unless waiting was offered.
    #[must_use]
    pub const fn start_after_ms(&self) -> i64 {
        self.facts.start_after_ms
    }

    /// Shadow mode: what would have been refused.
    #[must_use]
    pub const fn would_be_denied(&self) -> Option<DenyReason> {
        self.facts.would_be_denied
    }

    /// Who admitted it.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.facts.source
    }
}

/// A permit that is not sent is handed back.
impl Drop for Permit {
    fn drop(&mut self) {
        match self.unsent.take() {
            Some((handle, Right::Local(spent))) => handle.share().hand_back(spent, boot_time_ns()),
            Some((handle, Right::Direct { id, .. })) => handle.release_later(Release::not_sent(id)),
            None => {}
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("facts", &self.facts).finish_non_exhaustive()
    }
}

// === impl InFlight ===

impl InFlight {
    /// Records how the attempt ended. Never waits.
    pub fn finish(self, outcome: Outcome) {
        self.finish_with(outcome, &[]);
    }

    /// The same with what it really cost; a unit left out keeps its estimate.
    pub fn finish_with(mut self, outcome: Outcome, costs: &[Cost]) {
        self.end(outcome, costs);
    }

    fn end(&mut self, outcome: Outcome, costs: &[Cost]) {
        match self.sent.take() {
            Some((handle, Right::Local(spent))) => {
                // Only cost units look at the time.
                let now_ns = if costs.is_empty() { spent.until_ns() } else { boot_time_ns() };
                handle.share().settle(spent, now_ns, outcome, costs);
            }
            Some((handle, Right::Direct { id, .. })) => {
                let sent = SentReport { outcome, costs: costs.to_vec(), terminal: None, result_ref: None };
                handle.release_later(Release { id, used: Use::Sent(sent), operation: None });
            }
            None => {}
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.end(Outcome::Abandoned, &[]);
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").finish_non_exhaustive()
    }
}
