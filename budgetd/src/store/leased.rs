//! A store that answers from leases it holds on the store inside, and asks that one only for what they do not cover.
//!
//! What is decided here is known here only: elsewhere a Release finds nothing, and a Reserve sent again is decided afresh
//! (wasteful, inside the bound). Operations, longer permits and booking ahead are the inner store's. While that is away
//! the lease decides alone along its curve, and then the policy's fallback.

mod coordinator;
mod records;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use budget::{
    decision::{
        Admitted, Answer, Denied, DenyReason, Extend, ExtendResult, Release, ReleaseResult, Reserve, Step, Use,
    },
    holder::{Local, LocalAsk, Spent},
    ids::{DependencyId, PolicyVersion},
    lease::{HolderId, SyncAsk, Synced},
    ledger::{HolderView, View},
};
use budget_client::{
    Dependency, Error, boot_time_ns,
    leasing::{Leased, Leasing},
};
use budget_proto::convert::SyncReply;

use super::{Answered, Store, StoreError, fallback::WithFallback};
use crate::{
    clock::Clock,
    policies::{Policies, Resolved},
};
pub use coordinator::Lender;
use records::{Closed, Records};

const NANOS_PER_MS: i64 = 1_000_000;
/// How long a holder waits that asks an agent for a dependency which that has no lease of yet.
const FIRST_LEASE_TIMEOUT: Duration = Duration::from_millis(500);

/// Answers from leases where a policy permits them.
pub struct WithLeases<S> {
    inner: Arc<WithFallback<S>>,
    policies: Arc<Policies>,
    leasing: Leasing,
    records: Records,
    scope: Scope,
}

/// Which dependencies are leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those whose policy permits it, as far as it is known here.
    Permitted,
    /// All that are named: another budgetd knows the policies. Parts of these leases are lent on.
    All,
}

// === impl WithLeases ===

impl<S: Store> WithLeases<S> {
    /// Stands before `inner`. `leasing` holds leases on the store inside that one.
    pub fn new(inner: Arc<WithFallback<S>>, policies: Arc<Policies>, leasing: Leasing, scope: Scope) -> Self {
        Self { inner, policies, leasing, records: Records::default(), scope }
    }

    /// The leases held.
    pub const fn leasing(&self) -> &Leasing {
        &self.leasing
    }

    /// The lease of a dependency; none where its policy, as far as it is known here, permits none.
    fn lease(&self, dependency: &DependencyId, resolved: Option<&Resolved>) -> Option<Arc<Leased>> {
        if self.scope == Scope::Permitted && !resolved?.numbers.leases_permitted() {
            return None;
        }
        let found = self.leasing.find(dependency);
        found.or_else(|| self.leasing.dependency(&Dependency::from(dependency.clone())).ok())
    }

    async fn reserve(
        &self,
        dependency: &DependencyId,
        ask: Reserve,
        deadline: Instant,
    ) -> Result<Answered, StoreError> {
        let snapshot = self.policies.snapshot();
        let version = snapshot.version();
        if !ask.no_release
            && let Some(known) = self.records.find(ask.id, boot_time_ns())
        {
            return Ok(answered(known.replayed(), version));
        }
        let resolved = snapshot.resolve(dependency).ok();
        drop(snapshot);
        let Some(leased) = self.lease(dependency, resolved.as_deref()) else {
            return self.reserve_unleased(dependency, ask, deadline).await;
        };
        // The kill switch holds at once, not only when the lease's rules are told anew. As far as it is known here: what
        // others switch an agent learns with its leases.
        let is_off =
            ask.attempt.is_retry() && resolved.is_some_and(|resolved| resolved.retries_off && !resolved.numbers.shadow);
        if is_off && is_local(&ask) {
            return Ok(answered(Answer::Denied(Denied::because(DenyReason::RetriesOff)), version));
        }
        let local = LocalAsk { attempt: ask.attempt, priority: ask.priority, costs: &ask.costs };
        if is_local(&ask) && (ask.no_release || self.records.has_room(ask.id)) {
            match leased.reserve(&local) {
                Local::Admitted(spent) => return Ok(self.admitted(&leased, &ask, spent, version)),
                Local::Denied(denied) => return Ok(answered(Answer::Denied(denied), version)),
                Local::Short => {}
            }
        }
        // The rest of the time is for deciding without an answer: the caller hears a decision, not a time-out.
        let now = Clock::instant();
        let answered_by = now + deadline.saturating_duration_since(now) * 3 / 4;
        match self.inner.inner().step(dependency, Step::Reserve(ask.clone()), answered_by).await {
            // Nobody waits for what would be decided now, so it must take nothing.
            Err(error @ (StoreError::Away(_) | StoreError::Lost(_))) if Clock::instant() >= deadline => {
                Err(error.too_late())
            }
            Err(StoreError::Away(_) | StoreError::Lost(_)) => {
                let refused = |denied| Answered { degraded: true, ..answered(Answer::Denied(denied), version) };
                if ask.operation.is_some() {
                    return Ok(refused(Denied::because(DenyReason::OperationStoreAway)));
                }
                if is_off {
                    return Ok(refused(Denied::because(DenyReason::RetriesOff)));
                }
                Ok(match leased.reserve_beyond(&local) {
                    Local::Admitted(spent) => {
                        Answered { degraded: true, ..self.admitted(&leased, &ask, spent, version) }
                    }
                    Local::Denied(denied) => refused(denied),
                    Local::Short => refused(Denied::because(DenyReason::Fallback)),
                })
            }
            decided => decided,
        }
    }

    async fn reserve_unleased(
        &self,
        dependency: &DependencyId,
        ask: Reserve,
        deadline: Instant,
    ) -> Result<Answered, StoreError> {
        if self.scope == Scope::Permitted {
            return self.inner.step(dependency, Step::Reserve(ask), deadline).await;
        }
        // Nothing is known here of the policy, so there is no fallback either.
        self.inner.inner().step(dependency, Step::Reserve(ask), deadline).await
    }

    fn admitted(&self, leased: &Arc<Leased>, ask: &Reserve, spent: Spent, version: PolicyVersion) -> Answered {
        let now_ns = boot_time_ns();
        let admitted = Admitted {
            start_after_ms: 0,
            permit_ttl_ms: leased.permit_ttl_ms(),
            attempts_left: spent.attempts_left().into(),
            replayed: false,
            would_be_denied: spent.would_be_denied(),
        };
        if !ask.no_release {
            let until_ns = now_ns.saturating_add(admitted.permit_ttl_ms.saturating_mul(NANOS_PER_MS));
            self.records.open(ask.id, Arc::clone(leased), spent, admitted, until_ns, now_ns);
        }
        Answered { shadow: leased.is_shadow(), ..answered(Answer::Admitted(admitted), version) }
    }

    async fn release(
        &self,
        dependency: &DependencyId,
        release: Release,
        deadline: Instant,
    ) -> Result<Answered, StoreError> {
        let now_ns = boot_time_ns();
        let result = match self.records.close(release.id, now_ns) {
            None => return self.inner.step(dependency, Step::Release(release), deadline).await,
            Some(Closed::Before) => ReleaseResult::AlreadyReleased,
            Some(Closed::Expired) => ReleaseResult::Expired,
            Some(Closed::Now(leased, spent)) => {
                match &release.used {
                    Use::NotSent => leased.share().hand_back(spent, now_ns),
                    Use::Sent(sent) => leased.share().settle(spent, now_ns, sent.outcome, &sent.costs),
                }
                ReleaseResult::Applied
            }
        };
        Ok(answered(Answer::Released(result), self.policies.snapshot().version()))
    }

    /// A permit of a lease lives as long as the policy says: it is told what is left of that.
    async fn extend(
        &self,
        dependency: &DependencyId,
        extend: Extend,
        deadline: Instant,
    ) -> Result<Answered, StoreError> {
        let now_ns = boot_time_ns();
        match self.records.find(extend.id, now_ns) {
            None => self.inner.step(dependency, Step::Extend(extend), deadline).await,
            Some(known) => {
                let result = match known.left_ms {
                    Some(left_ms) => ExtendResult::Extended(left_ms),
                    None if known.expired => ExtendResult::Expired,
                    None => ExtendResult::AlreadyReleased,
                };
                Ok(answered(Answer::Extended(result), self.policies.snapshot().version()))
            }
        }
    }
}

/// What is decided here.
const fn answered(answer: Answer, version: PolicyVersion) -> Answered {
    Answered { answer, version, shadow: false, degraded: false, leased: true }
}

impl<S: Store> Store for WithLeases<S> {
    async fn step(&self, dependency: &DependencyId, step: Step, deadline: Instant) -> Result<Answered, StoreError> {
        match step {
            Step::Reserve(ask) => self.reserve(dependency, ask, deadline).await,
            Step::Release(release) => self.release(dependency, release, deadline).await,
            Step::Extend(extend) => self.extend(dependency, extend, deadline).await,
        }
    }

    async fn view(&self, dependency: &DependencyId, deadline: Instant) -> Result<Option<View>, StoreError> {
        self.inner.view(dependency, deadline).await
    }

    async fn views(&self, dependencies: &[DependencyId], deadline: Instant) -> Vec<Result<Option<View>, StoreError>> {
        self.inner.views(dependencies, deadline).await
    }

    async fn report_received(
        &self,
        dependency: &DependencyId,
        attempts: i64,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        self.inner.report_received(dependency, attempts, deadline).await
    }

    async fn received(&self, dependencies: &[DependencyId], deadline: Instant) -> Result<Vec<Option<i64>>, StoreError> {
        self.inner.received(dependencies, deadline).await
    }

    async fn known(
        &self,
        after: Option<&str>,
        limit: usize,
        deadline: Instant,
    ) -> Result<Vec<DependencyId>, StoreError> {
        self.inner.known(after, limit, deadline).await
    }

    async fn sync(&self, dependency: &DependencyId, ask: SyncAsk, deadline: Instant) -> Result<Synced, StoreError> {
        self.inner.sync(dependency, ask, deadline).await
    }

    async fn sublease(
        &self,
        dependency: &DependencyId,
        ask: &SyncAsk,
        deadline: Instant,
    ) -> Option<Result<SyncReply, StoreError>> {
        if self.scope == Scope::Permitted {
            return None;
        }
        let within = deadline.saturating_duration_since(Clock::instant()).min(FIRST_LEASE_TIMEOUT);
        let lent = self.leasing.lend(&Dependency::from(dependency.clone()), ask.clone(), within).await;
        Some(lent.map_err(|error| {
            if matches!(error, Error::Overloaded(_)) {
                return StoreError::Overloaded;
            }
            StoreError::Away(error.to_string())
        }))
    }

    async fn list_holders(
        &self,
        dependency: &DependencyId,
        after: Option<&HolderId>,
        limit: usize,
        deadline: Instant,
    ) -> Result<Vec<HolderView>, StoreError> {
        if self.scope == Scope::All {
            return Ok(self.leasing.lessees(dependency, after, limit).await);
        }
        self.inner.list_holders(dependency, after, limit, deadline).await
    }

    async fn revoke(
        &self,
        dependency: &DependencyId,
        holder: &HolderId,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        if self.scope == Scope::All {
            return Ok(self.leasing.revoke_lessee(dependency, holder).await);
        }
        self.inner.revoke(dependency, holder, deadline).await
    }
}

/// Whether a lease can decide it: operations, other lives of permits and late callers are the inner store's.
const fn is_local(ask: &Reserve) -> bool {
    ask.operation.is_none() && ask.permit_ttl_ms.is_none() && !matches!(ask.time_left_ms, Some(0))
}

impl<S> fmt::Debug for WithLeases<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithLeases").field("leasing", &self.leasing).finish_non_exhaustive()
    }
}
