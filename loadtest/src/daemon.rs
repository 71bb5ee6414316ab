//! How budgetd is started: the only file that knows more of budgetd's library than its clock.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use budgetd::{
    Server,
    config::{Config, Listen, LogFormat, Secret, ServerLimits, Settings, Span},
    grpc_server, telemetry,
};
use tokio::{net::TcpListener, runtime};
use tonic::transport::{self, server::TcpIncoming};

use crate::Error;

/// Any free port.
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// The runtime of budgetd's binary, which is that of `#[tokio::main]`.
pub(crate) fn runtime() -> io::Result<runtime::Runtime> {
    runtime::Builder::new_multi_thread().enable_all().build()
}

/// A bare server with budgetd's bounds.
pub(crate) fn bare_server() -> transport::Server {
    grpc_server(&ServerLimits::default())
}

/// Where the bare server listens.
pub(crate) async fn bare_listener() -> io::Result<TcpListener> {
    TcpListener::bind(LOOPBACK).await
}

/// Accepts for the bare server, with the socket options of budgetd.
pub(crate) fn bare_incoming(listener: TcpListener) -> TcpIncoming {
    TcpIncoming::from(listener).with_nodelay(Some(true))
}

/// Where other work stalls the machine, a slow answer of Redis shall show as latency, and not stop the benchmark as an
/// outage of the store.
const REDIS_RESPONSE_TIMEOUT: Span = Span(Duration::from_secs(2));

/// Runs a replica until `shutdown` ends: all settings are the defaults but store, its time-out, policies and free ports;
/// metrics are on, logs are at info.
pub(crate) async fn run(
    store: &str,
    lease: bool,
    policies: PathBuf,
    announce: impl FnOnce(&str) -> io::Result<()>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    let config = Config::judge(Settings {
        listen: Some(Listen::Tcp(LOOPBACK)),
        http: Some(LOOPBACK),
        store: Some(Secret::new(store)),
        lease: Some(lease),
        redis_response_timeout: Some(REDIS_RESPONSE_TIMEOUT),
        policy: Some(policies),
        ..Settings::default()
    })?;
    telemetry::init_logs(LogFormat::Json, "info")?;
    let server = Server::bind(config).await?;
    announce(&server.addresses().grpc.to_string())?;
    Ok(server.serve(shutdown).await?)
}
