//! How budgetd is started: the only file that knows more of budgetd's library than its clock.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use budgetd::{
    Server,
    clock::Clock,
    config::{Config, Listen, LogFormat, Secret, ServerLimits, Settings, Span},
    grpc_server, telemetry,
};
use tokio::{net::TcpListener, runtime, time};
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

/// How often a clock that is set by a file is moved.
const CLOCK_ROUND: Duration = Duration::from_millis(2);

/// Where other work stalls the machine, a slow answer of Redis shall show as latency, and not stop the benchmark as an
/// outage of the store.
const REDIS_RESPONSE_TIMEOUT: Span = Span(Duration::from_secs(2));

/// Many times as often as by default, so that each slice of a benchmark has some of it.
const OTLP_INTERVAL: Span = Span(Duration::from_millis(500));

/// How a replica is started. All settings are the defaults but these, the time-out of Redis, and the ports.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    /// `memory`, or a URL.
    pub(crate) store: &'a str,
    /// Answer from leases held on the store.
    pub(crate) lease: bool,
    pub(crate) policies: Option<PathBuf>,
    /// Any free port unless given.
    pub(crate) listen: Option<SocketAddr>,
    /// A settings file, for time limits of leases.
    pub(crate) config: Option<&'a Path>,
    /// As a holder of leases; a random name unless given.
    pub(crate) holder_id: Option<String>,
    pub(crate) no_leases_out: bool,
    /// Ledgers live by a clock that is ahead by the milliseconds in this file.
    pub(crate) clock: Option<PathBuf>,
    /// Where metrics and traces are sent; none: nowhere.
    pub(crate) otlp_endpoint: Option<String>,
}

/// Runs a replica until `shutdown` ends; metrics are on, logs are at info.
pub(crate) async fn run(
    start: Start<'_>,
    announce: impl FnOnce(&str) -> io::Result<()>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    let written = match start.config {
        Some(path) => Settings::parse(&fs::read_to_string(path)?)?,
        None => Settings::default(),
    };
    let upstream = start.store.starts_with("grpc://");
    let config = Config::judge(Settings {
        listen: Some(Listen::Tcp(start.listen.unwrap_or(LOOPBACK))),
        http: Some(LOOPBACK),
        store: Some(Secret::new(start.store)),
        lease: Some(start.lease || upstream),
        redis_response_timeout: written.redis_response_timeout.or(Some(REDIS_RESPONSE_TIMEOUT)),
        policy: start.policies,
        holder_id: start.holder_id,
        no_leases_out: Some(start.no_leases_out),
        otlp_endpoint: start.otlp_endpoint,
        otlp_interval: Some(OTLP_INTERVAL),
        ..written
    })?;
    telemetry::init_logs(LogFormat::Json, "info")?;
    let mut server = Server::bind(config).await?;
    if let Some(file) = start.clock {
        server = server.with_clock(clock_ahead(file));
    }
    announce(&server.addresses().grpc.to_string())?;
    Ok(server.serve(shutdown).await?)
}

/// A clock that goes as fast as the machine's and is set forward by what a file says.
fn clock_ahead(file: PathBuf) -> Clock {
    let machine = Clock::system();
    let (clock, hands) = Clock::manual(machine.now_ms());
    let shown = clock.clone();
    tokio::spawn(async move {
        let mut rounds = time::interval(CLOCK_ROUND);
        let (mut last_ms, mut ahead_ms) = (machine.boot_ms(), 0);
        loop {
            rounds.tick().await;
            let now_ms = machine.boot_ms();
            hands.advance(now_ms - last_ms);
            last_ms = now_ms;
            let told_ms = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
            if told_ms != ahead_ms {
                hands.set(shown.now_ms() + told_ms - ahead_ms);
                ahead_ms = told_ms;
            }
        }
    });
    clock
}
