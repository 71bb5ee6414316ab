//! `loadtest bench`: starts the servers, warms them up, alternates slices over the rounds, and reports.

mod peers;
mod renewals;
mod report;

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io::{IsTerminal, stderr},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use peers::Peer;
use report::{Report, Row};
use tempfile::TempDir;
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
};

use crate::{
    Error, bytes_per_item,
    comparisons::{self, COMPARISONS, Comparison, Load, Server},
    driver::{Dependencies, Driver, Slice},
    policies,
    redis_server::RedisServer,
    server_process::{ServerProcess, cpu_micros},
};

/// The names under which `--only` knows the measurements of memory per item.
const BYTES_REDIS: &str = "bytes_redis";
const BYTES_MEMORY: &str = "bytes_memory";
/// And that of renewals.
const RENEWALS: &str = "renewals";
const RENEWED_DEPENDENCIES: usize = 10;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Write the results to this file as well.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Times every comparison is repeated.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Connections to each server.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// Unanswered calls, over all connections.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    concurrency: u16,
    /// Length of one slice.
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = parse_seconds)]
    seconds_per_slice: Duration,
    /// Length of the warm-up of every loop.
    #[arg(long, value_name = "SECONDS", default_value = "1.0", value_parser = parse_seconds)]
    warm_up_seconds: Duration,
    /// Run only these, separated by commas; `bytes_redis` and `bytes_memory` weigh what the stores keep.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_name)]
    only: Vec<String>,
    /// Holders that renew leases on ten dependencies each; 10,000 is the number for which Redis is to stay below half a
    /// core.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    renewing_holders: u32,
    /// Length of the measurement of renewals.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    renewals_seconds: Duration,
    /// redis-server or valkey-server to start.
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    redis_server: PathBuf,
    /// Compare with this running server too, which speaks Envoy's RateLimitService on an address of this machine. In its
    /// domain `bench` it must have a limit for the descriptor key `dependency`, far above what is asked. May be repeated.
    #[arg(long, value_name = "NAME=ADDRESS:PORT", value_parser = peers::parse)]
    peer: Vec<Peer>,
    /// Exit with 1 if a number to reach is missed.
    #[arg(long)]
    check: bool,
}

/// A server and the loop that drives it.
struct Running {
    /// Absent where it is not ours.
    process: Option<ServerProcess>,
    driver: Driver,
}

/// What is running; dropped in this order.
#[derive(Default)]
struct Servers {
    echo: Option<Running>,
    memory: Option<Running>,
    redis: Option<Running>,
    leased: Option<Running>,
    sending: Option<Running>,
    collector: Option<ServerProcess>,
    peers: Vec<Running>,
    redis_server: Option<RedisServer>,
}

/// One slice of one side of a comparison.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Side {
    pub(crate) slice: Slice,
    pub(crate) server_cpu_micros: Option<u64>,
    pub(crate) client_cpu_micros: Option<u64>,
    pub(crate) redis_cpu_micros: Option<u64>,
    pub(crate) script_calls: Option<u64>,
}

/// Both sides, in whichever order they ran.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) baseline: Side,
    pub(crate) subject: Side,
}

/// Runs the benchmark, or ends early on SIGINT or SIGTERM; either way the servers are gone afterwards.
pub(crate) fn main(options: &Options) -> Result<ExitCode, Error> {
    runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            code = run(options) => code,
            _ = interrupted.recv() => Err("interrupted".into()),
            _ = terminated.recv() => Err("terminated".into()),
        }
    })
}

async fn run(options: &Options) -> Result<ExitCode, Error> {
    let scratch = TempDir::with_prefix("loadtest-")?;
    let policy_file = scratch.path().join("policies.toml");
    fs::write(&policy_file, policies::toml())?;

    let peers: Vec<Comparison> =
        options.peer.iter().enumerate().map(|(number, peer)| comparisons::peer(number, &peer.name)).collect();
    let wanted: Vec<&Comparison> =
        COMPARISONS.iter().filter(|comparison| options.wants(&comparison.name)).chain(&peers).collect();
    let mut report = Report::default();
    if !wanted.is_empty() {
        let mut servers = Servers::start(options, &wanted, scratch.path(), &policy_file).await?;
        report.redis = servers.redis_server.as_ref().map(|server| server.version().to_owned());
        // A holder that idles gives its share up, and it would idle while the others are measured.
        let (leased, others): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|one| one.uses(Server::Leased));
        for together in [others, leased] {
            report.rows.extend(compare(options, &together, &mut servers).await?);
        }
        servers.end().await?;
    }
    if options.wants(BYTES_REDIS) {
        progress("memory per item on Redis");
        let program = &options.redis_server;
        bytes_per_item::measure_redis(&mut report.bytes, program, &policy_file, scratch.path()).await?;
    }
    if options.wants(BYTES_MEMORY) {
        progress("memory per item on the memory store");
        bytes_per_item::measure_memory(&mut report.bytes, &policy_file, scratch.path()).await?;
    }
    if options.wants(RENEWALS) {
        progress("renewals");
        let holders = options.renewing_holders as usize;
        let size = renewals::Size { holders, dependencies: RENEWED_DEPENDENCIES, measured: options.renewals_seconds };
        let program = &options.redis_server;
        report.renewals = Some(renewals::measure(size, program, &policy_file, scratch.path()).await?);
    }

    print!("{report}");
    if let Some(path) = &options.json {
        fs::write(path, report.to_json()?).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let failed = report.asks_refused() || (options.check && report.goals_missed());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn compare(options: &Options, wanted: &[&Comparison], servers: &mut Servers) -> Result<Vec<Row>, Error> {
    let dependencies: Vec<Dependencies> = wanted
        .iter()
        .map(|comparison| Dependencies::new(comparison.subject.family, comparison.subject.dependencies))
        .collect();

    progress("warming up");
    let mut warm: Vec<Load> = Vec::new();
    for (comparison, dependencies) in wanted.iter().zip(&dependencies) {
        for load in [comparison.baseline, comparison.subject] {
            if !warm.contains(&load) {
                warm.push(load);
                servers.slice(load, dependencies, options.warm_up_seconds.max(load.warm_up_min())).await?;
            }
        }
    }

    let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); wanted.len()];
    for number in 0..options.rounds as usize {
        progress(&format!("round {} of {}", number + 1, options.rounds));
        // The place within a round and the order within a pair move on, so that neither favours anyone.
        for place in 0..wanted.len() {
            let index = (place + number) % wanted.len();
            let Comparison { baseline, subject, .. } = *wanted[index];
            let dependencies = &dependencies[index];
            let length = options.seconds_per_slice;
            let round = if (number + place).is_multiple_of(2) {
                let baseline = servers.slice(baseline, dependencies, length).await?;
                Round { baseline, subject: servers.slice(subject, dependencies, length).await? }
            } else {
                let subject = servers.slice(subject, dependencies, length).await?;
                Round { baseline: servers.slice(baseline, dependencies, length).await?, subject }
            };
            rounds[index].push(round);
        }
    }
    Ok(wanted.iter().zip(&rounds).map(|(comparison, rounds)| Row::new(comparison, rounds)).collect())
}

fn progress(what: &str) {
    if stderr().is_terminal() {
        eprintln!("{what}");
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text} is not a number of seconds"))?;
    if (0.01..=60.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("{text} is out of range, must be 0.01 to 60 seconds"))
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    let mut names: Vec<&str> = COMPARISONS.iter().map(|comparison| &*comparison.name).collect();
    names.extend([BYTES_REDIS, BYTES_MEMORY, RENEWALS]);
    if names.contains(&text) { Ok(text.to_owned()) } else { Err(format!("must be one of {}", names.join(", "))) }
}

// === impl Options ===

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

// === impl Servers ===

impl Servers {
    /// Starts what the comparisons need.
    async fn start(
        options: &Options,
        wanted: &[&Comparison],
        scratch: &Path,
        policy_file: &Path,
    ) -> Result<Self, Error> {
        let needs = |server| wanted.iter().any(|comparison| comparison.uses(server));
        let mut servers = Self::default();
        if needs(Server::Echo) {
            let process = ServerProcess::start("echo", ["serve-echo"], scratch).await?;
            servers.echo = Some(Running::connect(process, options).await?);
        }
        if needs(Server::Memory) {
            let process = ServerProcess::start_daemon("memory", "memory", policy_file, scratch).await?;
            servers.memory = Some(Running::connect(process, options).await?);
        }
        if needs(Server::Sending) {
            let collector = ServerProcess::start("collector", ["serve-collector"], scratch).await?;
            let process = ServerProcess::start_sending("sending", collector.address(), policy_file, scratch).await?;
            servers.sending = Some(Running::connect(process, options).await?);
            servers.collector = Some(collector);
        }
        if needs(Server::Redis) || needs(Server::Leased) {
            let redis_server = RedisServer::start(&options.redis_server, scratch, "bench-redis").await?;
            let url = redis_server.url().to_owned();
            servers.redis_server = Some(redis_server);
            if needs(Server::Redis) {
                let process = ServerProcess::start_daemon("redis", &url, policy_file, scratch).await?;
                servers.redis = Some(Running::connect(process, options).await?);
            }
            if needs(Server::Leased) {
                let process = ServerProcess::start_leased("leased", &url, policy_file, scratch).await?;
                servers.leased = Some(Running::connect(process, options).await?);
            }
        }
        for peer in &options.peer {
            servers.peers.push(Running::peer(peer, options).await?);
        }
        Ok(servers)
    }

    /// Ends those that are ours.
    async fn end(self) -> Result<(), Error> {
        let ours = [self.echo, self.memory, self.redis, self.leased, self.sending].into_iter().flatten();
        for process in ours.filter_map(|running| running.process).chain(self.collector) {
            process.end().await?;
        }
        match self.redis_server {
            Some(server) => server.end().await,
            None => Ok(()),
        }
    }

    async fn slice(&mut self, load: Load, dependencies: &Dependencies, length: Duration) -> Result<Side, Error> {
        let (running, mut redis_server) = match load.server {
            Server::Echo => (self.echo.as_mut(), None),
            Server::Memory => (self.memory.as_mut(), None),
            Server::Redis => (self.redis.as_mut(), self.redis_server.as_mut()),
            Server::Leased => (self.leased.as_mut(), self.redis_server.as_mut()),
            Server::Sending => (self.sending.as_mut(), None),
            Server::Peer(number) => (self.peers.get_mut(number), None),
        };
        let Running { process, driver } = running.ok_or("a server is driven that was not started")?;

        let server_cpu = |process: &Option<ServerProcess>| process.as_ref().and_then(ServerProcess::cpu_micros);
        let server_cpu_before = server_cpu(process);
        let client_cpu_before = cpu_micros(std::process::id());
        let redis_cpu_before = redis_server.as_deref().and_then(RedisServer::cpu_micros);
        let scripts_before = script_calls(redis_server.as_deref_mut()).await?;
        let slice = match (driver.slice(load.shape, dependencies, length).await, process.as_mut()) {
            (Ok(slice), _) => slice,
            (Err(error), Some(process)) => return Err(process.blame(&error)),
            (Err(error), None) => return Err(format!("a peer: {error}").into()),
        };
        Ok(Side {
            slice,
            server_cpu_micros: growth(server_cpu_before, server_cpu(process)),
            client_cpu_micros: growth(client_cpu_before, cpu_micros(std::process::id())),
            script_calls: growth(scripts_before, script_calls(redis_server.as_deref_mut()).await?),
            redis_cpu_micros: growth(redis_cpu_before, redis_server.as_deref().and_then(RedisServer::cpu_micros)),
        })
    }
}

async fn script_calls(redis_server: Option<&mut RedisServer>) -> Result<Option<u64>, Error> {
    match redis_server {
        Some(server) => Ok(Some(server.script_calls().await?)),
        None => Ok(None),
    }
}

fn growth(before: Option<u64>, after: Option<u64>) -> Option<u64> {
    Some(after?.saturating_sub(before?))
}

// === impl Running ===

impl Running {
    async fn connect(mut process: ServerProcess, options: &Options) -> Result<Self, Error> {
        let (connections, concurrency) = (usize::from(options.connections), usize::from(options.concurrency));
        // Random per process: a second run against the same store must not replay reservations.
        let run = RandomState::new().hash_one(process.address());
        match Driver::connect(process.address(), connections, concurrency, run).await {
            Ok(driver) => Ok(Self { process: Some(process), driver }),
            Err(error) => Err(process.blame(&error)),
        }
    }

    async fn peer(peer: &Peer, options: &Options) -> Result<Self, Error> {
        let (connections, concurrency) = (usize::from(options.connections), usize::from(options.concurrency));
        match Driver::connect(&peer.address.to_string(), connections, concurrency, 0).await {
            Ok(driver) => Ok(Self { process: None, driver }),
            Err(error) => Err(format!("peer {} at {}: {error}", peer.name, peer.address).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "61", "NaN", "inf", "x", ""] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_takes_known_names() {
        assert_eq!(parse_name("redis_1000"), Ok("redis_1000".to_owned()));
        assert_eq!(parse_name("bytes_redis"), Ok("bytes_redis".to_owned()));
        assert!(parse_name("redis_2000").is_err_and(|text| text.contains("redis_1000")));
    }
}
