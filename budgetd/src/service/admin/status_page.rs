//! GetStatus: how ledgers stand.

use std::{collections::BTreeSet, sync::Arc};

use budget::{
    ids::{DependencyId, UnitId},
    ledger::{Counters, Ledger, View},
    policy::Numbers,
};
use budget_proto::{
    InvalidMessage,
    convert::{self, Mode},
    pb,
};
use tonic::Status;

use super::{
    Admin, PAGE_BYTES_MAX, PAGE_SIZE_MAX, page_size, page_token,
    policies::{kill_switch, kill_switch_of, moment, origin},
};
use crate::{
    clock::Clock,
    policies::{
        DEFAULTS, Resolved, Snapshot,
        repository::{Replica, StoredFormat},
    },
    service::{status::of_store, sync::unit_names},
    store::{Store, StoreError},
};

/// Replicas and kill switches of one answer.
const REPLICAS_SHOWN: usize = 1_000;
const SWITCHES_SHOWN: usize = 1_000;
/// Ledgers looked at in one go.
const VIEWS_AT_ONCE: usize = 128;

// === impl Admin ===

impl<S: Store> Admin<S> {
    pub(super) async fn status(&self, request: &pb::GetStatusRequest) -> Result<pb::GetStatusResponse, Status> {
        let size = page_size(request.page_size)?;
        let after = page_token(request.page_token.as_deref())?;
        let snapshot = self.0.policies.snapshot();
        let (names, next_page_token) = if request.dependencies.is_empty() {
            self.known(&snapshot, after, size).await?
        } else {
            (asked(&request.dependencies)?, None)
        };
        let listed = request.dependencies.is_empty();
        let (mut dependencies, mut bytes, mut next_page_token) = (Vec::with_capacity(names.len()), 0, next_page_token);
        'page: for some in names.chunks(VIEWS_AT_ONCE) {
            let views = self.0.store.views(some, Clock::instant() + self.0.call_timeout()).await;
            for (name, view) in some.iter().zip(views) {
                let Some(row) = self.dependency(&snapshot, name, listed, view)? else { continue };
                bytes += row_bytes(&row);
                if let Some(last) = dependencies.last().filter(|_| listed && bytes > PAGE_BYTES_MAX) {
                    let last: &pb::DependencyStatus = last;
                    next_page_token = Some(last.name.clone());
                    break 'page;
                }
                dependencies.push(row);
            }
        }
        let (replicas, store_format, kill_switches) = if after.is_none() {
            let (replicas, format) = tokio::join!(self.replicas(), self.format());
            (replicas, format, snapshot.switches().iter().take(SWITCHES_SHOWN))
        } else {
            (Vec::new(), None, snapshot.switches().iter().take(0))
        };
        Ok(pb::GetStatusResponse {
            replica_id: self.0.policies.replica().to_owned(),
            replicas,
            kill_switches: kill_switches.map(|(target, switch)| kill_switch(target, switch)).collect(),
            policy_error: self.0.policies.written_wrong(),
            now_ms: moment(self.0.policies.now_ms()),
            version: Some(snapshot.version().into()),
            store: self.0.store_kind.name.to_owned(),
            store_up: self.0.store_health.state().up,
            dependencies,
            next_page_token,
            store_format,
        })
    }

    /// None while the store is away.
    async fn format(&self) -> Option<pb::StoreFormat> {
        let deadline = Clock::instant() + self.0.call_timeout();
        let format = tokio::time::timeout_at(deadline.into(), self.0.policies.format()).await;
        let StoredFormat { written, readable, mut held_back_by } = format.ok()?.ok()??;
        held_back_by.truncate(REPLICAS_SHOWN);
        Some(pb::StoreFormat { written: written.into(), readable: readable.into(), held_back_by })
    }

    /// Empty while the store is away.
    async fn replicas(&self) -> Vec<pb::ReplicaStatus> {
        let deadline = Clock::instant() + self.0.call_timeout();
        let replicas = tokio::time::timeout_at(deadline.into(), self.0.policies.replicas()).await;
        let message = |replica: Replica| pb::ReplicaStatus {
            replica_id: replica.id,
            version: Some(replica.presence.version.into()),
            age_ms: moment(replica.age_ms),
            policy_error: replica.presence.is_stale,
        };
        replicas.ok().and_then(Result::ok).into_iter().flatten().take(REPLICAS_SHOWN).map(message).collect()
    }

    /// Names in a policy and names with state, in name order.
    async fn known(
        &self,
        snapshot: &Snapshot,
        after: Option<&str>,
        size: usize,
    ) -> Result<(Vec<DependencyId>, Option<String>), Status> {
        let is_after = |name: &str| after.is_none_or(|after| name > after);
        let configured = snapshot.set().rules().filter(|(name, _)| ***name != *DEFAULTS && is_after(name));
        let configured = configured.filter_map(|(name, _)| DependencyId::new(name).ok()).take(size + 1);
        let mut names: BTreeSet<DependencyId> = configured.collect();
        match self.0.store.known(after, size + 1, Clock::instant() + self.0.call_timeout()).await {
            Ok(known) => names.extend(known),
            Err(error) if is_away(&error) => {}
            Err(error) => return Err(Status::internal(error.to_string())),
        }
        let more = names.len() > size;
        let names: Vec<_> = names.into_iter().take(size).collect();
        let token = names.last().filter(|_| more).map(ToString::to_string);
        Ok((names, token))
    }

    /// None: a listed name that the policies refuse by now.
    fn dependency(
        &self,
        snapshot: &Snapshot,
        name: &DependencyId,
        listed: bool,
        view: Result<Option<View>, StoreError>,
    ) -> Result<Option<pb::DependencyStatus>, Status> {
        let resolved = match snapshot.resolve(name) {
            Ok(resolved) => resolved,
            Err(_) if listed => return Ok(None),
            Err(rule) => return Err(Status::not_found(rule)),
        };
        let (view, away) = match view {
            Ok(view) => (view, false),
            Err(error) if is_away(&error) => (None, true),
            Err(error) if listed => {
                tracing::warn!(dependency = %name, %error, "no status");
                (None, false)
            }
            Err(error) => return Err(of_store(&error, name)),
        };
        Ok(Some(self.row(name, snapshot, &resolved, view, away)))
    }

    fn row(
        &self,
        name: &DependencyId,
        snapshot: &Snapshot,
        resolved: &Resolved,
        view: Option<View>,
        away: bool,
    ) -> pb::DependencyStatus {
        let ledger_version = view.as_ref().map(|view| view.version.into());
        let numbers = &resolved.numbers;
        // Without state it is as it would begin.
        let view = view.unwrap_or_else(|| {
            let now_ms = self.0.clock.now_ms();
            Ledger::new(resolved.version, Arc::clone(numbers), self.0.store_kind.start, now_ms).view(now_ms)
        });
        let mode = match (away, view.shadow) {
            (true, _) => Mode::Degraded,
            (false, true) => Mode::Shadow,
            (false, false) => Mode::Exact,
        };
        let spec = resolved.policy.spec();
        let (file, policy_override) = origin(snapshot.managed(), &resolved.rule);
        let answered = self.0.decisions.tally(resolved.label_index);
        let answered = answered.map(|now| self.0.sight.answered(&resolved.label, &now, self.0.clock.monotonic_ms()));
        pb::DependencyStatus {
            fleet: self.0.sight.fleet(name),
            replica: answered.unwrap_or_default(),
            kill_switch: kill_switch_of(snapshot, name),
            file,
            policy_override,
            policy_version: Some(resolved.version.into()),
            name: name.to_string(),
            rule: resolved.rule.to_string(),
            retries_off: resolved.retries_off,
            mode: mode.wire(),
            admission_balance_micros: view.admission_balance_micros,
            admission_burst_micros: numbers.admission.map(|bucket| unsigned(bucket.burst)),
            retry_balance_micros: view.retry_balance_micros,
            retry_burst_micros: unsigned(numbers.retry.burst),
            units: (view.units.iter())
                .filter_map(|(id, balance_micros)| {
                    let unit = spec.units.iter().find(|unit| UnitId::of(&unit.name).ok() == Some(*id))?;
                    let burst_micros = unit_burst(numbers, *id);
                    Some(pb::UnitStatus { unit: unit.name.clone(), balance_micros: *balance_micros, burst_micros })
                })
                .collect(),
            in_flight: unsigned(view.in_flight),
            max_in_flight: spec.max_in_flight.map(u64::from),
            counters: Some(counters(&view.counters)),
            ledger_version,
            lending: view.lending.map(|lending| convert::lending_message(&lending, &unit_names(resolved))),
        }
    }
}

/// About.
fn row_bytes(row: &pb::DependencyStatus) -> usize {
    let texts = row.name.len() + row.rule.len() + row.file.as_ref().map_or(0, String::len);
    let windows = row.fleet.iter().chain(&row.replica);
    let refusals = windows.map(|window| window.refusals.len() + window.would_be_refusals.len()).sum::<usize>();
    512 + texts + 96 * row.units.len() + 20 * refusals
}

macro_rules! counters_message {
    ($($(#[$doc:meta])+ $name:ident, $note:literal, $metric:literal, $help:literal;)+) => {
        fn counters(counters: &Counters) -> pb::Counters {
            pb::Counters { $($name: unsigned(counters.$name)),+ }
        }
    };
}

budget::with_counters!(counters_message);

pub(super) fn asked(names: &[String]) -> Result<Vec<DependencyId>, InvalidMessage> {
    if names.len() > usize::try_from(PAGE_SIZE_MAX).unwrap_or(0) {
        let rule = format!("must be at most {PAGE_SIZE_MAX} names");
        return Err(InvalidMessage::number("dependencies", names.len(), rule));
    }
    names.iter().map(|name| convert::dependency("dependencies", name)).collect()
}

fn unit_burst(numbers: &Numbers, id: UnitId) -> u64 {
    numbers.unit(id).map_or(0, |bucket| unsigned(bucket.burst))
}

const fn is_away(error: &StoreError) -> bool {
    match error {
        StoreError::Away(_)
        | StoreError::Lost(_)
        | StoreError::NeverReached(_)
        | StoreError::DeadlinePassed
        | StoreError::Refused(_)
        | StoreError::Late => true,
        StoreError::Overloaded | StoreError::Corrupt(_) | StoreError::UnknownDependency(_) => false,
    }
}

/// Counters and sizes of ours are never negative.
fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
