//! How budgetd is started: the only file that knows budgetd's library beyond its clock.

use std::{io, path::PathBuf};

use tokio::{net::TcpListener, runtime};
use tonic::transport::{Server, server::TcpIncoming};

use crate::Error;

/// What a replica is started with.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// `memory`, or the URL of a Redis.
    pub(crate) store: String,
    pub(crate) policies: PathBuf,
}

/// The runtime budgetd's binary uses.
pub(crate) fn runtime() -> io::Result<runtime::Runtime> {
    runtime::Builder::new_multi_thread().enable_all().build()
}

/// The server builder budgetd uses.
pub(crate) fn server_builder() -> Server {
    Server::builder()
}

/// Accepts as budgetd does.
pub(crate) fn incoming(listener: TcpListener) -> TcpIncoming {
    TcpIncoming::from(listener).with_nodelay(Some(true))
}

/// Runs a replica until `shutdown` ends.
pub(crate) async fn run(
    plan: Plan,
    grpc: TcpListener,
    http: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    drop((plan, grpc, http, shutdown));
    Err("budgetd cannot be started as a library yet".into())
}
