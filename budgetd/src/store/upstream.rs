//! Another budgetd as the store: what the agent of a host forwards to.
//!
//! The agent knows no policies. Names of cost units are learned from the answers to its syncs: an ask that names a unit
//! before that is refused as if the store were away, and so decided by the fallback.

use std::time::{Duration, Instant};

use budget::{
    decision::{Answer, Step},
    ids::{DependencyId, PolicyVersion},
    lease::{HolderId, SyncAsk, Synced},
    ledger::{HolderView, View},
};
use budget_client::{Coordinators, Decision, Dependency, Error, Mode, leasing::Leasing};

use super::{Answered, Store, StoreError};
use crate::clock::Clock;

/// Forwards to whichever of several budgetd answers.
#[derive(Debug)]
pub struct Upstream {
    coordinators: Coordinators,
    /// Knows the names of units.
    leasing: Leasing,
}

// === impl Upstream ===

impl Upstream {
    /// `leasing` holds the agent's leases at the same coordinators.
    #[must_use]
    pub const fn new(coordinators: Coordinators, leasing: Leasing) -> Self {
        Self { coordinators, leasing }
    }

    fn named(&self, dependency: &DependencyId) -> Dependency {
        let bare = Dependency::from(dependency.clone());
        self.leasing.dependency(&bare).map_or(bare, |leased| leased.known())
    }
}

impl Store for Upstream {
    async fn step(&self, dependency: &DependencyId, step: Step, deadline: Instant) -> Result<Answered, StoreError> {
        let within = left(deadline)?;
        let named = self.named(dependency);
        let (answer, mode, version) = match &step {
            Step::Reserve(ask) => {
                let reserved = self.coordinators.reserve(&named, ask, within).await.map_err(error)?;
                let answer = match reserved.decision {
                    Decision::Admitted(admitted) => Answer::Admitted(admitted),
                    Decision::Denied(denied) => Answer::Denied(denied),
                };
                (answer, reserved.mode, reserved.version)
            }
            Step::Release(release) => {
                let released = self.coordinators.release(&named, release, within).await.map_err(error)?;
                (Answer::Released(released.result), released.mode, PolicyVersion::default())
            }
            Step::Extend(extend) => {
                let extended = self.coordinators.extend(&named, *extend, within).await.map_err(error)?;
                (Answer::Extended(extended), Mode::Exact, PolicyVersion::default())
            }
        };
        Ok(Answered {
            answer,
            version,
            shadow: mode == Mode::Shadow,
            degraded: mode == Mode::Degraded,
            leased: mode == Mode::Leased,
        })
    }

    async fn view(&self, _: &DependencyId, _: Instant) -> Result<Option<View>, StoreError> {
        // Ledgers are the coordinators'; ask them.
        Ok(None)
    }

    async fn known(&self, after: Option<&str>, limit: usize, _: Instant) -> Result<Vec<DependencyId>, StoreError> {
        let mut names: Vec<_> = (self.leasing.dependencies().iter())
            .map(|leased| leased.dependency().id().clone())
            .filter(|name| after.is_none_or(|after| name.as_str() > after))
            .collect();
        names.sort_unstable();
        names.truncate(limit);
        Ok(names)
    }

    async fn sync(&self, _: &DependencyId, _: SyncAsk, _: Instant) -> Result<Synced, StoreError> {
        // Leases are held above this; parts of them are lent there.
        Err(StoreError::Refused("the leases of an agent are its own to lend".to_owned()))
    }

    async fn list_holders(
        &self,
        _: &DependencyId,
        _: Option<&HolderId>,
        _: usize,
        _: Instant,
    ) -> Result<Vec<HolderView>, StoreError> {
        Ok(Vec::new())
    }

    async fn revoke(&self, _: &DependencyId, _: &HolderId, _: Instant) -> Result<bool, StoreError> {
        Ok(false)
    }
}

fn left(deadline: Instant) -> Result<Duration, StoreError> {
    let left = deadline.saturating_duration_since(Clock::instant());
    if left.is_zero() { Err(StoreError::DeadlinePassed) } else { Ok(left) }
}

fn error(error: Error) -> StoreError {
    let text = error.to_string();
    match error {
        Error::NotFound(why) => StoreError::UnknownDependency(why),
        Error::InvalidArgument(why) => StoreError::Refused(why),
        Error::Overloaded(_) => StoreError::Overloaded,
        Error::DeadlinePassed => StoreError::DeadlinePassed,
        Error::DeadlineExceeded
        | Error::OutcomeUnknown(_)
        | Error::Unavailable(_)
        | Error::UnexpectedAnswer(_)
        | Error::Failed { .. } => StoreError::Lost(text),
        // Nothing was sent, or it was not let in.
        Error::Unsendable(_)
        | Error::NoRuntime
        | Error::NoRandomness(_)
        | Error::Unreachable(_)
        | Error::SessionEnded(_)
        | Error::Conflict(_)
        | Error::Unauthenticated(_)
        | Error::PermissionDenied(_) => StoreError::Away(text),
    }
}
