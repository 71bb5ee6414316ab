//! The HTTP side: `/metrics`, `/livez` and `/readyz`.

use std::sync::Arc;

use axum::{
    Router,
    extract::{ConnectInfo, State, connect_info::Connected},
    http::{
        HeaderMap, StatusCode,
        header::{CONTENT_TYPE, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
    routing::get,
    serve::IncomingStream,
};
use serde::Serialize;
use tokio::sync::Mutex;

use crate::{
    security::{Guard, Peer, Refused},
    server::incoming::Door,
    shutdown::Stop,
    store::redis::format::too_new,
    telemetry::{self, StoreState, Telemetry},
};

/// What the answers are made of.
#[derive(Clone, Debug)]
pub struct Http {
    /// Metrics, and the store's health.
    telemetry: Arc<Telemetry>,
    /// Which store.
    store_kind: &'static str,
    /// No longer ready from its beginning.
    stop: Stop,
    scraping: Arc<Mutex<()>>,
    /// Says who may see the metrics.
    guard: Arc<Guard>,
    /// What is wrong with them is told.
    policies: Option<Policies>,
}

/// Who asks.
#[derive(Clone, Debug)]
pub struct Asker(Peer);

/// Does not concern readiness, but whoever looks there wants to know.
#[derive(Clone)]
struct Policies(Arc<crate::policies::Policies>);

/// The answer of `/readyz`.
#[derive(Debug, Serialize)]
struct Readiness {
    /// From the first contact with the store until shutdown.
    ready: bool,
    store: StoreHealth,
    /// Why the policies in force may not be those written last.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_error: Option<String>,
}

#[derive(Debug, Serialize)]
struct StoreHealth {
    kind: &'static str,
    up: bool,
    /// Calls are answered without the store.
    degraded: bool,
    /// Why it is left alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl std::fmt::Debug for Policies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Policies")
    }
}

// === impl Http ===

impl Http {
    /// Of a daemon with this store.
    #[must_use]
    pub fn new(telemetry: Arc<Telemetry>, store_kind: &'static str, stop: Stop, guard: Arc<Guard>) -> Self {
        Self { telemetry, store_kind, stop, scraping: Arc::default(), guard, policies: None }
    }

    /// Tells of these policies as well.
    #[must_use]
    pub fn with_policies(self, policies: Arc<crate::policies::Policies>) -> Self {
        Self { policies: Some(Policies(policies)), ..self }
    }
}

/// Ready from the first contact with the store until shutdown: a store that is away later makes answers degraded, and
/// taking all replicas out then would help nobody. Not so one that is too old for what the others have written.
#[must_use]
pub fn is_ready(store: StoreState, stop: &Stop) -> bool {
    store.contacted && store.too_new.is_none() && !stop.has_begun()
}

/// The routes.
pub fn router(http: Http) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(http)
}

async fn readyz(State(http): State<Http>) -> Response {
    let state = http.telemetry.store.state();
    let ready = is_ready(state, &http.stop);
    let error = state.too_new.map(too_new);
    let store = StoreHealth { kind: http.store_kind, up: state.up, degraded: state.is_degraded(), error };
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let policy_error = http.policies.as_ref().and_then(|policies| policies.0.written_wrong());
    match serde_json::to_string(&Readiness { ready, store, policy_error }) {
        Ok(body) => (status, [(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Thousands of series take a while: beside the calls, and for one asker at a time.
async fn metrics(State(http): State<Http>, ConnectInfo(asker): ConnectInfo<Asker>, headers: HeaderMap) -> Response {
    if let Err(refused) = http.guard.judge_metrics(&headers, &asker.0) {
        return refusal(&refused);
    }
    let turn = Arc::clone(&http.scraping).lock_owned().await;
    let scraped = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        http.telemetry.scrape()
    });
    let failed = |error: &dyn ToString| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
    match scraped.await {
        Ok(Ok(text)) => ([(CONTENT_TYPE, telemetry::CONTENT_TYPE)], text).into_response(),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error),
    }
}

fn refusal(refused: &Refused) -> Response {
    let text = format!("{refused}\n");
    match refused {
        Refused::Unauthenticated(_) => (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], text).into_response(),
        Refused::Denied(_) => (StatusCode::FORBIDDEN, text).into_response(),
    }
}

impl Connected<IncomingStream<'_, Door>> for Asker {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        Self(stream.remote_addr().clone())
    }
}
