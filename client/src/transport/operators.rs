//! What operators ask, on the wire.

use budget::{
    ids::{DependencyId, PolicyVersion},
    lease::HolderId,
    ledger::Counters,
};
use budget_proto::{
    InvalidMessage,
    convert::{Mode, deny_reason, exact, holder, lending, policy_version},
    pb,
};
use tokio::time::{Instant, timeout_at};
use tonic::Streaming;

use super::{Transport, call};
use crate::{
    About, Balance, By, DependencyStatus, Error, HistoryPage, HolderPage, How, KillSwitch, PolicyChange, PolicyEdit,
    PolicyOverride, PolicyPage, PolicyRule, PolicyView, Recent, Refusals, ReplicaStatus, RetrySwitch, StatusPage,
    StoreFormat, Switched, Tally, Trial, TrialState, UnitStatus, Window,
};

/// Dependencies of one page of status.
const STATUS_PAGE: u32 = 1_000;

/// Pages of status, one after the other.
#[derive(Debug)]
pub(crate) struct StatusAnswers(Streaming<pb::GetStatusResponse>);

/// How a trial goes.
#[derive(Debug)]
pub(crate) struct TrialAnswers(Streaming<pb::TryPoliciesResponse>);

// === impl StatusAnswers ===

impl StatusAnswers {
    /// The next page; none at the end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<StatusPage>, Error> {
        self.0.message().await.map_err(Error::from_status)?.map(status_page).transpose()
    }
}

// === impl TrialAnswers ===

impl TrialAnswers {
    /// What was found so far; none at the end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<TrialState>, Error> {
        let Some(response) = self.0.message().await.map_err(Error::from_status)? else { return Ok(None) };
        let trials = response.trials.into_iter().map(trial).collect::<Result<_, _>>();
        Ok(Some(TrialState {
            elapsed_ms: response.elapsed_ms,
            finished: response.finished,
            trials: trials.map_err(Error::UnexpectedAnswer)?,
            left_out: response.left_out,
        }))
    }
}

// === impl Transport ===

impl Transport {
    pub(crate) async fn get_policy(&self, dependency: &DependencyId, deadline: Instant) -> Result<PolicyView, Error> {
        let message = pb::GetPolicyRequest { dependency: dependency.as_str().to_owned() };
        let mut client = self.admin.clone();
        let response = call(message, deadline, |request| async move { client.get_policy(request).await }).await?;
        Ok(PolicyView {
            version: received_version(response.version)?,
            rule: response.rule,
            source_toml: response.source_toml,
            effective_toml: response.effective_toml,
            retries_off: response.retries_off,
            kill_switch: response.kill_switch.map(kill_switch).transpose().map_err(Error::UnexpectedAnswer)?,
            file: response.file,
            over: response.policy_override.map(over).transpose().map_err(Error::UnexpectedAnswer)?,
        })
    }

    pub(crate) async fn list_policies(
        &self,
        at: Option<i64>,
        page: Option<String>,
        deadline: Instant,
    ) -> Result<PolicyPage, Error> {
        let version_number = at.map(|number| u64::try_from(number).unwrap_or_default());
        let message = pb::ListPoliciesRequest { page_size: None, page_token: page, version_number };
        let mut client = self.admin.clone();
        let response = call(message, deadline, |request| async move { client.list_policies(request).await }).await?;
        let rule = |pb::PolicyRule { name, source_toml, .. }| PolicyRule { name, source_toml };
        Ok(PolicyPage {
            version: received_version(response.version)?,
            rules: response.rules.into_iter().map(rule).collect(),
            retries_off: response.retries_off,
            next: response.next_page_token,
        })
    }

    pub(crate) async fn edit_policy(&self, edit: PolicyEdit, deadline: Instant) -> Result<PolicyVersion, Error> {
        let PolicyEdit { name, source_toml, expected, how, by: By { who, why } } = edit;
        let (expected_version, (override_for_ms, take_over)) = (Some(expected.into()), how.wire());
        let mut client = self.admin.clone();
        match source_toml {
            Some(source_toml) => {
                let message =
                    pb::PutPolicyRequest { name, source_toml, expected_version, who, why, override_for_ms, take_over };
                let response = call(message, deadline, |request| async move { client.put_policy(request).await });
                received_version(response.await?.version)
            }
            None => {
                let message = pb::DeletePolicyRequest { name, expected_version, who, why, override_for_ms, take_over };
                let response = call(message, deadline, |request| async move { client.delete_policy(request).await });
                received_version(response.await?.version)
            }
        }
    }

    pub(crate) async fn roll_back(
        &self,
        to: i64,
        expected: PolicyVersion,
        how: How,
        By { who, why }: By,
        deadline: Instant,
    ) -> Result<PolicyVersion, Error> {
        let (override_for_ms, take_over) = how.wire();
        let message = pb::RollbackPoliciesRequest {
            version_number: u64::try_from(to).unwrap_or_default(),
            expected_version: Some(expected.into()),
            who,
            why,
            override_for_ms,
            take_over,
        };
        let mut client = self.admin.clone();
        let response = call(message, deadline, |request| async move { client.rollback_policies(request).await });
        received_version(response.await?.version)
    }

    pub(crate) async fn policy_history(&self, page: Option<String>, deadline: Instant) -> Result<HistoryPage, Error> {
        let message = pb::PolicyHistoryRequest { page_size: None, page_token: page };
        let mut client = self.admin.clone();
        let response = call(message, deadline, |request| async move { client.policy_history(request).await }).await?;
        let changes = response.changes.into_iter().map(change).collect::<Result<_, _>>();
        Ok(HistoryPage {
            version: received_version(response.version)?,
            changes: changes.map_err(Error::UnexpectedAnswer)?,
            next: response.next_page_token,
        })
    }

    pub(crate) async fn switch_retries(&self, switch: RetrySwitch, deadline: Instant) -> Result<Switched, Error> {
        let RetrySwitch { target, enabled, for_ms, by: By { who, why } } = switch;
        let for_ms = for_ms.map(|ms| u64::try_from(ms).unwrap_or_default());
        let message = pb::SetRetriesRequest { target, enabled, why, who, for_ms };
        let mut client = self.admin.clone();
        let response = call(message, deadline, |request| async move { client.set_retries(request).await }).await?;
        Ok(Switched {
            version: received_version(response.version)?,
            pending: response.pending,
            until_ms: response.until_ms.map(|ms| exact("until_ms", ms)).transpose().map_err(Error::UnexpectedAnswer)?,
            still_off_by: response.still_off_by,
        })
    }

    /// The deadline is that of opening; the stream itself has none.
    pub(crate) async fn watch_status(
        &self,
        dependencies: &[DependencyId],
        every_ms: u64,
        deadline: Instant,
    ) -> Result<StatusAnswers, Error> {
        let message = pb::WatchStatusRequest {
            dependencies: dependencies.iter().map(ToString::to_string).collect(),
            page_size: Some(STATUS_PAGE),
            every_ms: Some(every_ms),
        };
        let mut client = self.admin.clone();
        match timeout_at(deadline, client.watch_status(message)).await {
            Err(_) => Err(Error::DeadlineExceeded),
            Ok(Err(status)) => Err(Error::from_status(status)),
            Ok(Ok(response)) => Ok(StatusAnswers(response.into_inner())),
        }
    }

    /// As for [`Self::watch_status`].
    pub(crate) async fn try_policies(
        &self,
        rules: Vec<PolicyRule>,
        for_ms: u64,
        deadline: Instant,
    ) -> Result<TrialAnswers, Error> {
        let rule = |PolicyRule { name, source_toml }| pb::PolicyRule { name, source_toml, ..Default::default() };
        let message = pb::TryPoliciesRequest { rules: rules.into_iter().map(rule).collect(), for_ms };
        let mut client = self.admin.clone();
        match timeout_at(deadline, client.try_policies(message)).await {
            Err(_) => Err(Error::DeadlineExceeded),
            Ok(Err(status)) => Err(Error::from_status(status)),
            Ok(Ok(response)) => Ok(TrialAnswers(response.into_inner())),
        }
    }

    pub(crate) async fn list_holders(
        &self,
        dependency: &DependencyId,
        page: Option<String>,
        deadline: Instant,
    ) -> Result<HolderPage, Error> {
        let dependency = dependency.as_str().to_owned();
        let message = pb::ListHoldersRequest { dependency, page_size: None, page_token: page };
        let mut client = self.admin.clone();
        let response = call(message, deadline, |request| async move { client.list_holders(request).await }).await?;
        let versions = response.holders.iter().map(|holder| version_of(holder.version)).collect::<Result<_, _>>();
        let holders = response.holders.into_iter().map(holder).collect::<Result<_, _>>();
        Ok(HolderPage {
            holders: holders.map_err(Error::UnexpectedAnswer)?,
            versions: versions.map_err(Error::UnexpectedAnswer)?,
            next: response.next_page_token,
        })
    }

    pub(crate) async fn revoke_lease(
        &self,
        dependency: &DependencyId,
        holder: &HolderId,
        why: &str,
        deadline: Instant,
    ) -> Result<bool, Error> {
        let (dependency, holder_id) = (dependency.as_str().to_owned(), holder.as_str().to_owned());
        let message = pb::RevokeLeaseRequest { dependency, holder_id, why: why.to_owned() };
        let mut client = self.admin.clone();
        let response = call(message, deadline, |request| async move { client.revoke_lease(request).await }).await?;
        Ok(response.revoked)
    }

    pub(crate) async fn get_status(
        &self,
        dependencies: &[DependencyId],
        page: Option<String>,
        deadline: Instant,
    ) -> Result<StatusPage, Error> {
        let message = pb::GetStatusRequest {
            dependencies: dependencies.iter().map(ToString::to_string).collect(),
            page_size: Some(STATUS_PAGE),
            page_token: page,
        };
        let mut client = self.admin.clone();
        let response = call(message, deadline, |request| async move { client.get_status(request).await }).await?;
        status_page(response)
    }
}

fn status_page(response: pb::GetStatusResponse) -> Result<StatusPage, Error> {
    let judge = |status| dependency_status(status).map_err(Error::UnexpectedAnswer);
    let replicas = response.replicas.into_iter().map(replica).collect::<Result<_, _>>();
    let kill_switches = response.kill_switches.into_iter().map(kill_switch).collect::<Result<_, _>>();
    Ok(StatusPage {
        version: received_version(response.version)?,
        store: response.store,
        store_up: response.store_up,
        dependencies: response.dependencies.into_iter().map(judge).collect::<Result<_, _>>()?,
        next: response.next_page_token,
        about: About {
            replica_id: response.replica_id,
            replicas: replicas.map_err(Error::UnexpectedAnswer)?,
            kill_switches: kill_switches.map_err(Error::UnexpectedAnswer)?,
            policy_error: response.policy_error,
            now_ms: exact("now_ms", response.now_ms).map_err(Error::UnexpectedAnswer)?,
            store_format: response.store_format.map(|format| StoreFormat {
                written: format.written,
                readable: format.readable,
                held_back_by: format.held_back_by,
            }),
        },
    })
}

fn received_version(version: Option<pb::PolicyVersion>) -> Result<PolicyVersion, Error> {
    policy_version("version", version).map_err(Error::UnexpectedAnswer)
}

fn dependency_status(status: pb::DependencyStatus) -> Result<DependencyStatus, InvalidMessage> {
    let burst = |field, burst_micros| exact(field, burst_micros);
    let admission = match (status.admission_balance_micros, status.admission_burst_micros) {
        (Some(balance_micros), Some(micros)) => {
            Some(Balance { balance_micros, burst_micros: burst("admission_burst_micros", micros)? })
        }
        (None, _) | (_, None) => None,
    };
    let unit = |pb::UnitStatus { unit, balance_micros, burst_micros }| {
        Ok(UnitStatus {
            unit,
            bucket: Balance { balance_micros, burst_micros: burst("units.burst_micros", burst_micros)? },
        })
    };
    Ok(DependencyStatus {
        name: status.name,
        rule: status.rule,
        retries_off: status.retries_off,
        mode: Mode::received("mode", status.mode)?,
        admission,
        retry: Balance {
            balance_micros: status.retry_balance_micros,
            burst_micros: burst("retry_burst_micros", status.retry_burst_micros)?,
        },
        units: status.units.into_iter().map(unit).collect::<Result<_, _>>()?,
        in_flight: exact("in_flight", status.in_flight)?,
        max_in_flight: status.max_in_flight.map(|max| exact("max_in_flight", max)).transpose()?,
        counters: counters(status.counters.ok_or_else(|| InvalidMessage::absent("counters", "is required"))?)?,
        ledger_version: version_of(status.ledger_version)?,
        lending: status.lending.map(lending).transpose()?.map(|named| named.value),
        recent: Recent {
            fleet: status.fleet.into_iter().map(window).collect::<Result<_, _>>()?,
            replica: status.replica.into_iter().map(window).collect::<Result<_, _>>()?,
            kill_switch: status.kill_switch.map(kill_switch).transpose()?,
            file: status.file,
            over: status.policy_override.map(over).transpose()?,
            policy_version: version_of(status.policy_version)?,
        },
    })
}

macro_rules! counters_received {
    ($($(#[$doc:meta])+ $name:ident, $note:literal, $metric:literal, $help:literal;)+) => {
        fn counters(counters: pb::Counters) -> Result<Counters, InvalidMessage> {
            Ok(Counters { $($name: exact(concat!("counters.", stringify!($name)), counters.$name)?),+ })
        }
    };
}

budget::with_counters!(counters_received);

fn version_of(version: Option<pb::PolicyVersion>) -> Result<Option<PolicyVersion>, InvalidMessage> {
    match version {
        None => Ok(None),
        version => policy_version("version", version).map(Some),
    }
}

fn replica(replica: pb::ReplicaStatus) -> Result<ReplicaStatus, InvalidMessage> {
    Ok(ReplicaStatus {
        replica_id: replica.replica_id,
        version: policy_version("replicas.version", replica.version)?,
        age_ms: exact("replicas.age_ms", replica.age_ms)?,
        policy_error: replica.policy_error,
    })
}

fn kill_switch(switch: pb::KillSwitch) -> Result<KillSwitch, InvalidMessage> {
    Ok(KillSwitch {
        target: switch.target,
        since_ms: exact("kill_switch.since_ms", switch.since_ms)?,
        until_ms: switch.until_ms.map(|ms| exact("kill_switch.until_ms", ms)).transpose()?,
        by: By { who: switch.who, why: switch.why },
    })
}

fn over(over: pb::PolicyOverride) -> Result<PolicyOverride, InvalidMessage> {
    let until_ms = exact("policy_override.until_ms", over.until_ms)?;
    Ok(PolicyOverride { until_ms, by: By { who: over.who, why: over.why } })
}

fn change(change: pb::PolicyChange) -> Result<PolicyChange, InvalidMessage> {
    Ok(PolicyChange {
        version: policy_version("changes.version", change.version)?,
        at_ms: exact("changes.at_ms", change.at_ms)?,
        by: By { who: change.who, why: change.why },
        what: change.what,
        rules: change.rules,
        rules_count: change.rules_count,
    })
}

fn window(window: pb::Window) -> Result<Window, InvalidMessage> {
    Ok(Window {
        length_ms: window.length_ms,
        originals_admitted: window.originals_admitted,
        retries_admitted: window.retries_admitted,
        originals_denied: window.originals_denied,
        retries_denied: window.retries_denied,
        would_be_denied: window.would_be_denied,
        amplification_ppm: window.amplification_ppm,
        refusals: refusals(window.refusals)?,
        would_be_refusals: refusals(window.would_be_refusals)?,
        received: window.received,
    })
}

fn refusals(all: Vec<pb::Refusals>) -> Result<Vec<Refusals>, InvalidMessage> {
    let each = |pb::Refusals { reason, originals, retries }| {
        Ok(Refusals { reason: deny_reason("refusals.reason", reason)?, originals, retries })
    };
    all.into_iter().map(each).collect()
}

fn trial(trial: pb::Trial) -> Result<Trial, InvalidMessage> {
    Ok(Trial {
        dependency: trial.dependency,
        real: tally(trial.real)?,
        present: tally(trial.present)?,
        candidate: tally(trial.candidate)?,
    })
}

fn tally(tally: Option<pb::Tally>) -> Result<Tally, InvalidMessage> {
    let tally = tally.unwrap_or_default();
    Ok(Tally {
        originals_admitted: tally.originals_admitted,
        retries_admitted: tally.retries_admitted,
        refusals: refusals(tally.refusals)?,
    })
}

// === impl How ===

impl How {
    /// As sent: for how long rules are overridden, and whether they are taken over.
    fn wire(self) -> (Option<u64>, bool) {
        match self {
            Self::Plain => (None, false),
            Self::OverrideForMs(ms) => (Some(u64::try_from(ms).unwrap_or_default()), false),
            Self::TakeOver => (None, true),
        }
    }
}
