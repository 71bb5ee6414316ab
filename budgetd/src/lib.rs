//! budgetd: the daemon, as a library so that tests and the load test can start it.
//!
//! ```text
//! server ── binds, serves, ends in time        config, shutdown, telemetry, http
//!    │     └─ security ── who may do what
//!    └─ service ── gRPC calls: judged, timed, counted
//!          ├─ policies ── name → numbers
//!          └─ store ── one atomic step on one ledger (budget::ledger)
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests"))]

pub mod cli;
pub mod clock;
pub mod config;
pub mod http;
pub mod policies;
pub mod security;
pub mod server;
pub mod service;
pub mod shutdown;
pub mod store;
pub mod telemetry;

pub use server::{ServeError, Server, grpc_server};

/// Of the package, and what it was built from: `0.1.0 (commit 0123456789ab)`, where that is not known
/// `0.1.0 (commit unknown)`, and `0.1.0 (debug build)`.
pub const VERSION: &str = env!("BUDGETD_VERSION");

/// Binds and serves until `shutdown` ends and all calls are finished, or the time for that is over.
///
/// # Errors
/// If the daemon cannot begin to serve.
pub async fn run(config: config::Config, shutdown: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
    Server::bind(config).await?.serve(shutdown).await
}
