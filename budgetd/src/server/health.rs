//! grpc.health.v1: the daemon as a whole and its services are as `/readyz` says; `store` is the store.

use budget_proto::pb::{budget_admin_server::BudgetAdminServer, retry_budget_server::RetryBudgetServer};
use tokio::sync::watch;
use tonic::server::NamedService;
use tonic_health::{
    ServingStatus,
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};

use crate::{http::is_ready, shutdown::Stop, telemetry::StoreState};

/// The name under which the store's health is asked for.
const STORE: &str = "store";
/// Names that are healthy while the daemon is ready.
const DAEMON: [&str; 3] =
    ["", <RetryBudgetServer<()> as NamedService>::NAME, <BudgetAdminServer<()> as NamedService>::NAME];

/// Reports health.
#[derive(Clone, Debug)]
pub(super) struct Health(HealthReporter);

// === impl Health ===

impl Health {
    /// Says how things are before anybody can ask.
    pub(super) async fn starting(state: StoreState, stop: &Stop) -> Self {
        let health = Self(HealthReporter::new());
        health.tell(state, stop).await;
        health
    }

    pub(super) fn service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.0.clone()))
    }

    /// Tells whoever watches each change of the store, until the end begins.
    pub(super) async fn follow(self, mut store: watch::Receiver<StoreState>, stop: Stop) {
        let mut begun = std::pin::pin!(stop.begun());
        loop {
            let state = *store.borrow_and_update();
            self.tell(state, &stop).await;
            tokio::select! {
                () = &mut begun => return,
                changed = store.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Tells all watchers that nothing is served any more, and ends their streams.
    pub(super) async fn stop(&self) {
        self.set(&DAEMON, false).await;
        self.set(&[STORE], false).await;
        let mut reporter = self.0.clone();
        for name in DAEMON.into_iter().chain([STORE]) {
            reporter.clear_service_status(name).await;
        }
    }

    async fn tell(&self, state: StoreState, stop: &Stop) {
        self.set(&DAEMON, is_ready(state, stop)).await;
        self.set(&[STORE], state.up).await;
    }

    async fn set(&self, names: &[&str], serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in names {
            self.0.set_service_status(name, status).await;
        }
    }
}
