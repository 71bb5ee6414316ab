//! Sync: every dependency of a message decided by itself, side by side, and answered in order.

use budget::{
    ids::DependencyId,
    lease::{Rules, SyncAsk},
};
use budget_proto::{
    UnitNames,
    convert::{AskName, SyncAnswered, SyncReply, sync_answer, sync_asks},
    pb,
};
use futures::{StreamExt, stream};
use tonic::{Request, Status};

use super::{Core, deadline::TimeLimit};
use crate::{
    clock::Clock,
    policies::Resolved,
    security::{Access, Role},
    store::Store,
    telemetry::{Call, syncs::Reported},
};

/// Dependencies of one message that wait for the store at a time.
const SYNCS_AT_ONCE: usize = 128;

// === impl Core ===

impl<S: Store> Core<S> {
    /// Judges a message and has each of its asks decided, within its time.
    pub(super) async fn sync(&self, request: Request<pb::SyncRequest>) -> Result<pb::SyncResponse, Status> {
        let limit = TimeLimit::of(request.metadata(), Clock::instant())?;
        let access = Access::of(request.extensions());
        let access = &access;
        let asks = sync_asks(request.into_inner())?;
        let (in_progress, _entered) = self.decisions.enter();
        self.judge_load(in_progress)?;
        let deadline = limit.until(self.call_timeout())?;
        let answers = stream::iter(asks)
            .map(|(dependency, ask)| async move {
                let name = AskName::of(&ask);
                match self.sync_one(&dependency, ask, deadline, access).await {
                    Ok((answered, units)) => sync_answer(name, Ok(answered), &units),
                    Err(status) => {
                        self.decisions.failed(Call::Sync, status.code());
                        sync_answer(name, Err(status), &UnitNames::default())
                    }
                }
            })
            .buffered(SYNCS_AT_ONCE)
            .collect()
            .await;
        Ok(pb::SyncResponse { answers })
    }

    async fn sync_one(
        &self,
        dependency: &DependencyId,
        ask: SyncAsk,
        deadline: std::time::Instant,
        access: &Access,
    ) -> Result<(SyncAnswered, UnitNames), Status> {
        access.permit(Role::Reserve, dependency.as_str())?;
        let (reported, holder) = (Reported::of(&ask), ask.holder.clone());
        if let Some(lent) = self.store.sublease(dependency, &ask, deadline).await {
            let SyncReply { answer, rules, units } = lent.map_err(|error| self.failure(&error, dependency))?;
            let snapshot = self.policies.snapshot();
            let resolved = snapshot.resolve(dependency).map_err(Status::not_found)?;
            self.decisions.count_sync(&snapshot, resolved.label_index, &reported, &answer);
            self.sight.tell(dependency, holder, rules.version, self.clock.monotonic_ms());
            return Ok((SyncAnswered { answer, rules }, units));
        }
        let synced = self.store.sync(dependency, ask, deadline).await;
        let synced = synced.map_err(|error| self.failure(&error, dependency))?;
        if self.policies.snapshot().version() < synced.version {
            // What the grant was made by is told with it. Where the policies cannot be read, the older ones are told; the
            // holder learns the newer ones at its next sync.
            let _tried = tokio::time::timeout_at(deadline.into(), self.policies.refresh()).await;
        }
        let snapshot = self.policies.snapshot();
        let resolved = snapshot.resolve(dependency).map_err(Status::not_found)?;
        self.decisions.count_sync(&snapshot, resolved.label_index, &reported, &synced.answer);
        self.sight.tell(dependency, holder, resolved.version, self.clock.monotonic_ms());
        let sharers = self.sharers.get().saturating_add(synced.holders);
        let rules = Rules::of(&resolved.policy, &resolved.numbers, resolved.version, sharers);
        Ok((SyncAnswered { answer: synced.answer, rules }, unit_names(&resolved)))
    }
}

/// Names of the units of a policy.
pub(super) fn unit_names(resolved: &Resolved) -> UnitNames {
    let units = &resolved.policy.spec().units;
    if units.is_empty() {
        return UnitNames::default();
    }
    // A policy's names are valid.
    UnitNames::new(units.iter().map(|unit| unit.name.as_str())).unwrap_or_default()
}
