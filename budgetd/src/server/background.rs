//! What goes on beside the calls: following the policies, looking at ledgers for the metrics.

use std::{path::PathBuf, sync::Arc, time::Duration};

use budget::ids::DependencyId;
use opentelemetry::KeyValue;
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::Connections;
use crate::{
    clock::Clock,
    policies::{DEFAULTS, LOOK_EVERY, Policies, PolicyFileError},
    security::{LOOK_EVERY as FILES_EVERY, Security},
    service::Core,
    store::Store,
    telemetry::{Ledgers, Telemetry, WATCHED_MAX},
};

/// How often the stored policies are looked at: a kill switch holds everywhere within a second.
const POLICIES_EVERY: Duration = Duration::from_millis(500);
/// How often replicas tell each other which policies are in force.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Holders of which replicas tell each other in one go.
const HOLDERS_AT_ONCE: usize = 500;
/// How often ledgers are looked at.
const LEDGERS_EVERY: Duration = Duration::from_secs(5);

pub(super) fn spawn<S: Store>(
    core: &Arc<Core<S>>,
    policy: Option<PathBuf>,
    telemetry: &Arc<Telemetry>,
    tasks: &mut JoinSet<()>,
) {
    let policies = Arc::clone(&core.policies);
    tasks.spawn(every(POLICIES_EVERY, move || {
        let policies = Arc::clone(&policies);
        async move { policies.poll().await }
    }));
    let telling = Arc::clone(core);
    tasks.spawn(every(TELL_EVERY, move || {
        let core = Arc::clone(&telling);
        async move { tell(&core).await }
    }));
    if let Some(path) = policy {
        let policies = Arc::clone(&core.policies);
        tasks.spawn(watch(policies, path));
    }
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
    let policies = Arc::clone(&core.policies);
    let switches = move || u64::try_from(policies.snapshot().switches().len()).unwrap_or(0);
    telemetry.gauge("budgetd_retries_off", "Kill switches thrown: dependencies, patterns, or everywhere.", switches);
    register_files(&core.policies, telemetry);
}

fn register_files(policies: &Arc<Policies>, telemetry: &Telemetry) {
    let source = Arc::clone(policies);
    telemetry
        .meter()
        .u64_observable_gauge("budgetd_policy_file_error")
        .with_description("1 for what is wrong with the policy files now, 0 for all else; the last good policies stay.")
        .with_callback(move |observer| {
            let now = source.source_error();
            for kind in PolicyFileError::KINDS {
                let is_so = now.as_ref().is_some_and(|error| error.kind == kind);
                observer.observe(is_so.into(), &[KeyValue::new("reason", kind)]);
            }
        })
        .build();
    let source = Arc::clone(policies);
    telemetry
        .meter()
        .u64_observable_counter("budgetd_policy_file_reads")
        .with_description("Times that the policy files were found changed, and good or refused.")
        .with_callback(move |observer| {
            let (good, refused) = source.source_reads();
            observer.observe(good, &[KeyValue::new("result", "good")]);
            observer.observe(refused, &[KeyValue::new("result", "refused")]);
        })
        .build();
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
    tasks.spawn(every(FILES_EVERY, move || {
        let security = Arc::clone(&security);
        async move {
            let _ended = tokio::task::spawn_blocking(move || security.look()).await;
        }
    }));
}

async fn watch(policies: Arc<Policies>, path: PathBuf) {
    let mut watch = policies.watch(path);
    let mut turns = interval(LOOK_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        watch.look(&policies).await;
    }
}

async fn every<F: Future<Output = ()>>(period: Duration, mut turn: impl FnMut() -> F) {
    let mut turns = interval(period);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        turn().await;
    }
}

/// Tells the other replicas what is in force here, and what holders were told. A store that is away is told at its next turn.
async fn tell<S: Store>(core: &Core<S>) {
    let _away = core.policies.tell().await;
    loop {
        let told = core.sight.take_unshared(HOLDERS_AT_ONCE);
        if told.is_empty() {
            return;
        }
        if core.policies.tell_holders(&told).await.is_err() {
            return core.sight.put_back(told);
        }
    }
}

/// Looks at the ledgers of dependencies that a rule names. What cannot be seen is not shown.
async fn look<S: Store>(core: &Core<S>, ledgers: &Ledgers) {
    let snapshot = core.policies.snapshot();
    let names = snapshot.set().rules().filter(|(name, _)| ***name != *DEFAULTS);
    let names: Vec<_> = names.filter_map(|(name, _)| DependencyId::new(name).ok()).take(WATCHED_MAX).collect();
    let views = core.store.views(&names, Clock::instant() + core.limits.call_timeout).await;
    let looked_at: Vec<_> = names.into_iter().zip(views).filter_map(|(name, view)| Some((name, view.ok()?))).collect();
    let seen = looked_at.iter().filter_map(|(name, view)| Some((name.clone(), view.clone()?)));
    let views: Vec<_> = seen.collect();
    let names: Vec<_> = views.iter().map(|(name, _)| name.clone()).collect();
    let received = core.store.received(&names, Clock::instant() + core.limits.call_timeout).await.unwrap_or_default();
    core.sight.remember(&core.decisions, &views, &received, core.clock.monotonic_ms());
    let under_policies = looked_at.into_iter().filter_map(|(name, view)| {
        let policy = Arc::clone(&snapshot.resolve(&name).ok()?.policy);
        Some((name, policy, view))
    });
    ledgers.show(under_policies.collect());
}
