//! What goes on beside the calls: following the policies, looking at ledgers for the metrics.

use std::{sync::Arc, time::Duration};

use budget::ids::DependencyId;
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::Connections;
use crate::{
    clock::Clock,
    policies::DEFAULTS,
    security::{LOOK_EVERY, Security},
    service::Core,
    store::Store,
    telemetry::{Ledgers, Telemetry, WATCHED_MAX},
};

/// How often the stored policies are looked at.
const POLICIES_EVERY: Duration = Duration::from_secs(1);
/// How often ledgers are looked at.
const LEDGERS_EVERY: Duration = Duration::from_secs(5);

pub(super) fn spawn<S: Store>(core: &Arc<Core<S>>, telemetry: &Arc<Telemetry>, tasks: &mut JoinSet<()>) {
    let policies = Arc::clone(&core.policies);
    tasks.spawn(every(POLICIES_EVERY, move || {
        let policies = Arc::clone(&policies);
        async move { policies.poll().await }
    }));
    let (looking, telemetry_of_ledgers) = (Arc::clone(core), Arc::clone(telemetry));
    tasks.spawn(every(LEDGERS_EVERY, move || {
        let (core, ledgers) = (Arc::clone(&looking), Arc::clone(&telemetry_of_ledgers.ledgers));
        async move { look(&core, &ledgers).await }
    }));
    let policies = Arc::clone(&core.policies);
    let version = move || u64::try_from(policies.snapshot().version().number).unwrap_or(0);
    telemetry.gauge("budgetd_policy_version", "Version of the policies in force.", version);
    let policies = Arc::clone(&core.policies);
    let stale = move || policies.last_error().is_some().into();
    telemetry.gauge("budgetd_policy_error", "Whether the policies in force are not those written last.", stale);
}

pub(super) fn register_connections(telemetry: &Telemetry, connections: &Connections) {
    let open = connections.clone();
    let count = move || u64::try_from(open.count()).unwrap_or(0);
    telemetry.gauge("budgetd_connections", "Open gRPC connections.", count);
    let refused = connections.clone();
    let count = move || u64::try_from(refused.refused()).unwrap_or(0);
    telemetry.counter("budgetd_connections_refused", "gRPC connections closed since too many were open.", count);
}

/// Follows the files of certificates and roles, and tells how that goes.
pub(super) fn secure(
    security: &Arc<Security>,
    telemetry: &Telemetry,
    connections: &Connections,
    tasks: &mut JoinSet<()>,
) {
    let guard = Arc::clone(security.guard());
    let count = move || guard.refused().0;
    telemetry.counter("budgetd_unauthenticated", "Requests without credentials that are known.", count);
    let guard = Arc::clone(security.guard());
    let count = move || guard.refused().1;
    telemetry.counter("budgetd_permission_denied", "Requests that the role of the asker does not permit.", count);
    let open = connections.clone();
    let count = move || open.handshakes_failed();
    telemetry.counter(
        "budgetd_tls_handshakes_failed",
        "gRPC connections whose TLS handshake failed or took too long.",
        count,
    );
    let open = connections.clone();
    let count = move || open.gave_way();
    telemetry.counter("budgetd_connections_gave_way", "Silent gRPC connections cut because newer ones came.", count);
    if !security.has_files() {
        return;
    }
    let names = [
        ("budgetd_tls_files_failing", "budgetd_tls_files_refused"),
        ("budgetd_auth_file_failing", "budgetd_auth_file_refused"),
    ];
    for (at, (failing, failures)) in names.into_iter().enumerate() {
        let source = Arc::clone(security);
        let read = move || source.failing()[at];
        telemetry.gauge(failing, "Whether the files are refused and the former are in force.", read);
        let source = Arc::clone(security);
        let read = move || source.failures()[at];
        telemetry.counter(failures, "Changed files that were refused.", read);
    }
    let security = Arc::clone(security);
    tasks.spawn(every(LOOK_EVERY, move || {
        let security = Arc::clone(&security);
        async move {
            let _ended = tokio::task::spawn_blocking(move || security.look()).await;
        }
    }));
}

async fn every<F: Future<Output = ()>>(period: Duration, mut turn: impl FnMut() -> F) {
    let mut turns = interval(period);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        turn().await;
    }
}

/// Looks at the ledgers of dependencies that a rule names. What cannot be seen is not shown.
async fn look<S: Store>(core: &Core<S>, ledgers: &Ledgers) {
    let snapshot = core.policies.snapshot();
    let names = snapshot.set().rules().filter(|(name, _)| ***name != *DEFAULTS);
    let names: Vec<_> = names.filter_map(|(name, _)| DependencyId::new(name).ok()).take(WATCHED_MAX).collect();
    let mut views = Vec::new();
    for name in names {
        let Ok(view) = core.store.view(&name, Clock::instant() + core.limits.call_timeout).await else { break };
        views.extend(view.map(|view| (name, view)));
    }
    ledgers.show(views);
}
