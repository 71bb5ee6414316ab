//! Where ledgers live. A store applies one [`Step`] atomically and knows nothing of gRPC.

pub mod fallback;
pub mod ground;
pub mod leased;
pub mod memory;
pub mod redis;
pub mod upstream;

use std::{future::Future, time::Instant};

use budget::{
    decision::{Answer, Step},
    ids::{DependencyId, PolicyVersion},
    lease::{HolderId, SyncAsk, Synced},
    ledger::{HolderView, View},
};
use budget_proto::convert::SyncReply;

/// An answer and what it was decided with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The ledger's answer.
    pub answer: Answer,
    /// Version of the policies the ledger decided with.
    pub version: PolicyVersion,
    /// The policy only watches.
    pub shadow: bool,
    /// Decided by the fallback, the store being away.
    pub degraded: bool,
    /// Decided from a lease.
    pub leased: bool,
}

/// Where the metrics count a dependency: the position of its label under some version of the policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelAt {
    /// Of the policies.
    pub version: PolicyVersion,
    /// In the labels of that version's snapshot.
    pub index: usize,
}

/// Why a store did not answer. None of these is a decision.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The policies refuse this dependency (unknown, or too many of them).
    #[error("{0}")]
    UnknownDependency(String),
    /// The store is away: the step was certainly not applied.
    #[error("store is away: {0}")]
    Away(String),
    /// The store did not answer in time or the connection broke: the step may have been applied.
    #[error("store did not answer: {0}")]
    Lost(String),
    /// The store was never reached since start.
    #[error("store has never been reached: {0}")]
    NeverReached(String),
    /// budgetd's own queue is full: the step was not applied.
    #[error("too many calls are waiting")]
    Overloaded,
    /// The caller's deadline passed before the step was sent: it was not applied.
    #[error("deadline passed while waiting")]
    DeadlinePassed,
    /// The caller's deadline passed while the step was at the store: it may have been applied.
    #[error("deadline passed while waiting for the store")]
    Late,
    /// What is asked for breaks a rule that only the store knows.
    #[error("{0}")]
    Refused(String),
    /// State of this dependency cannot be read; only it is affected.
    #[error("state of this dependency is corrupt: {0}")]
    Corrupt(String),
}

// === impl StoreError ===

impl StoreError {
    /// What to tell a caller whose deadline has passed: that, and not how the store was when it did.
    #[must_use]
    pub fn too_late(self) -> Self {
        match self {
            Self::Away(_) => Self::DeadlinePassed,
            Self::Lost(_) => Self::Late,
            Self::UnknownDependency(_)
            | Self::NeverReached(_)
            | Self::Overloaded
            | Self::DeadlinePassed
            | Self::Late
            | Self::Refused(_)
            | Self::Corrupt(_) => self,
        }
    }
}

/// Keeps the ledgers of all dependencies.
pub trait Store: Send + Sync + 'static {
    /// Applies one step, or fails by `deadline` at the latest. Dropping the future never leaves half a step.
    fn step(
        &self,
        dependency: &DependencyId,
        step: Step,
        deadline: Instant,
    ) -> impl Future<Output = Result<Answered, StoreError>> + Send;

    /// As [`Self::step`], with the dependency's label if the store has it at hand: looking it up costs more than counting.
    fn step_labelled(
        &self,
        dependency: &DependencyId,
        step: Step,
        deadline: Instant,
    ) -> impl Future<Output = Result<(Answered, Option<LabelAt>), StoreError>> + Send {
        let answered = self.step(dependency, step, deadline);
        async move { Ok((answered.await?, None)) }
    }

    /// What the ledger of a dependency looks like now; none if it has no state. Changes nothing.
    fn view(
        &self,
        dependency: &DependencyId,
        deadline: Instant,
    ) -> impl Future<Output = Result<Option<View>, StoreError>> + Send;

    /// As [`Self::view`], of several at once, each with a result of its own, in their order.
    fn views(
        &self,
        dependencies: &[DependencyId],
        deadline: Instant,
    ) -> impl Future<Output = Vec<Result<Option<View>, StoreError>>> + Send {
        async move {
            let mut views = Vec::with_capacity(dependencies.len());
            for dependency in dependencies {
                views.push(self.view(dependency, deadline).await);
            }
            views
        }
    }

    /// Names of known dependencies after `after` in name order, at most `limit`.
    fn known(
        &self,
        after: Option<&str>,
        limit: usize,
        deadline: Instant,
    ) -> impl Future<Output = Result<Vec<DependencyId>, StoreError>> + Send;

    /// Decides what one holder tells and asks about a dependency, or fails by `deadline` at the latest. It carries a
    /// sequence of its own: after [`StoreError::Lost`] the same ask may be sent again.
    fn sync(
        &self,
        dependency: &DependencyId,
        ask: SyncAsk,
        deadline: Instant,
    ) -> impl Future<Output = Result<Synced, StoreError>> + Send;

    /// As [`Self::sync`] where a part of a lease held here is lent on, with the rules that came with it. None: the ledgers
    /// of this store lend, by the policies known here.
    fn sublease(
        &self,
        dependency: &DependencyId,
        ask: &SyncAsk,
        deadline: Instant,
    ) -> impl Future<Output = Option<Result<SyncReply, StoreError>>> + Send {
        let _unused = (dependency, ask, deadline);
        async { None }
    }

    /// Holders of a dependency after `after` in the order of their names, at most `limit`. Changes nothing.
    fn list_holders(
        &self,
        dependency: &DependencyId,
        after: Option<&HolderId>,
        limit: usize,
        deadline: Instant,
    ) -> impl Future<Output = Result<Vec<HolderView>, StoreError>> + Send;

    /// Counts attempts that a dependency's own side received. False: it has no ledger to compare them with.
    fn report_received(
        &self,
        dependency: &DependencyId,
        attempts: i64,
        deadline: Instant,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let _not_here = (dependency, attempts, deadline);
        let rule = "what dependencies receive is not counted here: report it to the budgetd that keeps the ledgers";
        std::future::ready(Err(StoreError::Refused(rule.to_owned())))
    }

    /// What was counted so in the last day, of several, in their order.
    fn received(
        &self,
        dependencies: &[DependencyId],
        deadline: Instant,
    ) -> impl Future<Output = Result<Vec<Option<i64>>, StoreError>> + Send {
        let _not_here = deadline;
        std::future::ready(Ok(vec![None; dependencies.len()]))
    }

    /// Takes a holder's lease away from its next sync on. False if no such holder is known.
    fn revoke(
        &self,
        dependency: &DependencyId,
        holder: &HolderId,
        deadline: Instant,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
}
