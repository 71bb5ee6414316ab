//! Everything a run needs, as processes of its own: the dependency, Redis, replicas of budgetd, an agent, and callers.

mod faults;
mod process;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use axum::http::Method;
use budget_client::{Client, Dependency, boot_time_ns};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::{client::legacy::Client as HttpClient, rt::TokioExecutor};
use tempfile::TempDir;

pub(crate) use faults::{Done, Faults};
pub(crate) use process::Process;

use crate::{
    Error,
    caller::{Task, Told, Word},
    dependency::{ADDRESSES_SEPARATOR, Counts},
    deployment::Deployment,
    proxy::{Proxy, Upstream},
    redis_server::RedisServer,
    scenario::{DEPENDENCY, Fault, Scenario, StoreSpec, Strategy},
};

/// How long a process may take to say where it listens, or that it is ready.
const START_PATIENCE: Duration = Duration::from_secs(90);
/// Between the last preparation and the first arrival.
const HEAD_START_NS: i64 = 150_000_000;
/// For an answer of the dependency's own door.
const COUNTS_PATIENCE: Duration = Duration::from_secs(20);
/// What a busy machine may take longer than the load and the last deadline.
const END_SLACK: Duration = Duration::from_secs(30);

/// One run of one strategy.
#[derive(Clone, Debug)]
pub(crate) struct Cast<'a> {
    pub(crate) scenario: &'a Scenario,
    /// As it was read.
    pub(crate) text: &'a str,
    pub(crate) strategy: Strategy,
    pub(crate) clients: u32,
    pub(crate) seed: u64,
    pub(crate) quick: bool,
    /// Each replica has all to itself: what must not be.
    pub(crate) broken: bool,
    pub(crate) redis_server: &'a Path,
    /// Asked instead of a fleet of its own.
    pub(crate) deployment: Option<&'a Deployment>,
}

/// A replica of budgetd and how it is started again.
#[derive(Debug)]
pub(crate) struct Replica {
    number: usize,
    process: Process,
    address: SocketAddr,
    store: String,
}

/// What everybody counted.
#[derive(Debug)]
pub(crate) struct Gathered {
    pub(crate) counts: Counts,
    pub(crate) told: Vec<Told>,
    /// Settled beyond the limit of debt, as budgetd counted it.
    pub(crate) overuse_micros: i64,
}

/// What runs during a run; dropped, all of it ends.
pub(crate) struct World<'a> {
    cast: Cast<'a>,
    scratch: TempDir,
    dependency: Process,
    dependency_grpc: String,
    dependency_http: String,
    redis: Vec<RedisServer>,
    /// The way of the last replica to its store, where that may change.
    store_proxy: Option<Proxy>,
    replicas: Vec<Replica>,
    /// For each process of callers that may be cut off: its own ways to the replicas.
    ways: Vec<Vec<Proxy>>,
    /// One for everybody where the strategy says so; else one on each of the first hosts.
    agents: Vec<Replica>,
    pub(crate) callers: Vec<Process>,
    pub(crate) redis_version: Option<String>,
}

// === impl World ===

impl<'a> World<'a> {
    /// Starts all but the callers.
    pub(crate) async fn start(cast: Cast<'a>) -> Result<Self, Error> {
        let scratch = TempDir::with_prefix("loadtest-")?;
        let path = |name: &str| scratch.path().join(name);
        fs::write(path("scenario.toml"), cast.text)?;
        fs::write(path("policies.toml"), &cast.scenario.policy)?;
        fs::write(path("budgetd.toml"), settings(cast.scenario))?;
        fs::write(path("clock"), "0")?;
        let seed = cast.seed.to_string();
        let scenario = path("scenario.toml").display().to_string();
        let arguments = ["serve-dependency", "--scenario", &scenario, "--seed", &seed];
        let mut dependency = Process::start("dependency", arguments, scratch.path())?;
        let line = dependency.line(START_PATIENCE).await?;
        let (grpc, http) = line.split_once(ADDRESSES_SEPARATOR).ok_or("the dependency has no two addresses")?;
        let mut world = Self {
            dependency_grpc: grpc.to_owned(),
            dependency_http: http.to_owned(),
            cast,
            scratch,
            dependency,
            redis: Vec::new(),
            store_proxy: None,
            replicas: Vec::new(),
            ways: Vec::new(),
            agents: Vec::new(),
            callers: Vec::new(),
            redis_version: None,
        };
        if world.cast.strategy.has_budgetd() {
            world.start_budgetd().await?;
        }
        Ok(world)
    }

    async fn start_budgetd(&mut self) -> Result<(), Error> {
        if let Some(deployment) = self.cast.deployment {
            if self.cast.strategy == Strategy::Agent {
                self.start_agent(0, deployment.store()).await?;
            }
            return Ok(());
        }
        let fleet = &self.cast.scenario.fleet;
        let servers = match fleet.store {
            StoreSpec::Memory => 0,
            StoreSpec::Redis => 1,
            StoreSpec::TwoRedis => 2,
        };
        for number in 0..servers {
            let name = format!("redis-{number}");
            self.redis.push(RedisServer::start(self.cast.redis_server, self.scratch.path(), &name).await?);
        }
        self.redis_version = self.redis.first().map(|server| server.version().to_owned());
        let replicas = fleet.replicas;
        for number in 0..replicas {
            let store = self.store_of(number, replicas).await?;
            let first_word = store == "memory";
            let (process, address) = self.start_replica(number, &store, None, first_word).await?;
            self.replicas.push(Replica { number, process, address, store });
        }
        let hosts: Vec<String> = self.replicas.iter().map(|replica| replica.address.to_string()).collect();
        let agents = match self.cast.strategy {
            Strategy::Agent => 1,
            Strategy::Leased => usize::try_from(fleet.agents)?,
            Strategy::Exact | Strategy::Single | Strategy::Naive | Strategy::Tower => 0,
        };
        for number in replicas..replicas + agents {
            self.start_agent(number, format!("grpc://{}", hosts.join(","))).await?;
        }
        if fleet.proxied {
            for process in 0..self.cast.scenario.processes {
                let mut ways = Vec::new();
                for address in self.addresses(process) {
                    ways.push(Proxy::start(Upstream::Tcp(address)).await?);
                }
                self.ways.push(ways);
            }
        }
        Ok(())
    }

    async fn start_agent(&mut self, number: usize, store: String) -> Result<(), Error> {
        let (process, address) = self.start_replica(number, &store, None, false).await?;
        self.agents.push(Replica { number, process, address, store });
        Ok(())
    }

    /// Where a replica's ledgers live.
    async fn store_of(&mut self, number: usize, replicas: usize) -> Result<String, Error> {
        let Some(server) = self.redis.first().filter(|_| !self.cast.broken) else { return Ok("memory".to_owned()) };
        if self.redis.len() < 2 || number + 1 < replicas {
            return Ok(server.url().to_owned());
        }
        let proxy = Proxy::start(Upstream::Unix(server.socket().to_owned())).await?;
        let url = format!("redis://{}", proxy.address());
        self.store_proxy = Some(proxy);
        Ok(url)
    }

    /// Starts a replica, or an agent where the store says so.
    async fn start_replica(
        &self,
        number: usize,
        store: &str,
        listen: Option<SocketAddr>,
        first: bool,
    ) -> Result<(Process, SocketAddr), Error> {
        let path = |name: &str| self.scratch.path().join(name).display().to_string();
        let mut arguments: Vec<String> = ["serve-daemon", "--store", store].map(str::to_owned).to_vec();
        arguments.extend(["--config".to_owned(), path("budgetd.toml")]);
        if store.starts_with("grpc://") {
            // Kept over its restarts.
            arguments.extend(["--holder-id".to_owned(), format!("{}-agent-{number}", self.tag())]);
        } else {
            arguments.extend(["--policies".to_owned(), path("policies.toml")]);
        }
        if let Some(listen) = listen {
            arguments.extend(["--listen".to_owned(), listen.to_string()]);
        }
        if first {
            arguments.push("--no-leases-out".to_owned());
        }
        if store == "memory" && self.cast.scenario.faults.iter().any(|fault| fault.by_ms() != 0) {
            arguments.extend(["--clock".to_owned(), path("clock")]);
        }
        let mut process = Process::start(format!("budgetd-{number}"), arguments, self.scratch.path())?;
        let address = process.line(START_PATIENCE).await?.parse()?;
        Ok((process, address))
    }

    /// Whom a process of callers asks.
    fn addresses(&self, process: u32) -> Vec<SocketAddr> {
        let host = if self.cast.strategy == Strategy::Agent { 0 } else { process };
        match usize::try_from(host).ok().and_then(|host| self.agents.get(host)) {
            Some(agent) => vec![agent.address],
            None => self.replicas.iter().map(|replica| replica.address).collect(),
        }
    }

    /// Starts the callers, waits until all are ready, and says when the load begins.
    pub(crate) async fn start_callers(&mut self) -> Result<i64, Error> {
        let scenario = self.cast.scenario;
        let untold = scenario.bound.as_ref().map_or(0, |bound| bound.untold);
        for process in 0..scenario.processes {
            let untold = process >= scenario.processes.saturating_sub(untold);
            let ways = usize::try_from(process).ok().and_then(|at| self.ways.get(at));
            if untold && let Some(ways) = ways {
                ways.iter().for_each(|way| way.lead(Upstream::Nowhere));
            }
            let addresses: Vec<SocketAddr> = match ways {
                Some(ways) => ways.iter().map(Proxy::address).collect(),
                None => self.addresses(process),
            };
            let budgetd = match self.cast.deployment {
                Some(deployment) if self.agents.is_empty() => deployment.urls(),
                Some(_) | None => addresses.iter().map(|address| format!("http://{address}")).collect(),
            };
            let deployment = self.cast.deployment;
            let task = Task {
                named: deployment.map(|deployment| deployment.dependency.to_string()),
                policy: deployment.map(|_| scenario.policy.clone()),
                tag: self.tag(),
                strategy: self.cast.strategy,
                seed: self.cast.seed,
                quick: self.cast.quick,
                clients: self.cast.clients,
                process,
                budgetd,
                untold,
                dependency: (self.dependency_grpc.clone(), self.dependency_http.clone()),
                told: self.told_path(process),
                journal: scenario.restarts().then(|| self.scratch.path().join(format!("journal-{process}"))),
            };
            let path = self.scratch.path().join(format!("task-{process}.json"));
            fs::write(&path, serde_json::to_vec(&task)?)?;
            self.callers.push(self.start_caller(process)?);
        }
        for caller in &mut self.callers {
            until_ready(caller).await?;
        }
        let at_ns = boot_time_ns() + HEAD_START_NS;
        self.dependency_says(Method::POST, &format!("/start?at_ns={at_ns}")).await?;
        let word = serde_json::to_string(&Word::Start { at_ns })?;
        for caller in &mut self.callers {
            caller.tell(&word).await?;
        }
        Ok(at_ns)
    }

    /// By its task, which is written already.
    fn start_caller(&self, process: u32) -> Result<Process, Error> {
        let path = |name: &str| self.scratch.path().join(name).display().to_string();
        let (scenario, task) = (path("scenario.toml"), path(&format!("task-{process}.json")));
        let arguments = ["serve-callers", "--scenario", &scenario, "--task", &task];
        Process::start(format!("callers-{process}"), arguments, self.scratch.path())
    }

    /// Kills processes of callers; others take their place, and go on with the load that began at this time.
    async fn restart_callers(&mut self, fault: &Fault, start_ns: i64) -> Result<(), Error> {
        let word = serde_json::to_string(&Word::Start { at_ns: start_ns })?;
        for process in (0..self.cast.scenario.processes).filter(|process| fault.hits(*process)) {
            let at = usize::try_from(process)?;
            self.callers[at].kill().await?;
            let mut caller = self.start_caller(process)?;
            until_ready(&mut caller).await?;
            caller.tell(&word).await?;
            self.callers[at] = caller;
        }
        Ok(())
    }

    /// Unlike that of any other run against the same deployment.
    fn tag(&self) -> String {
        match self.cast.deployment {
            Some(_) => format!("loadtest-{}-{}-{}", std::process::id(), self.cast.strategy.name(), self.cast.clients),
            None => "callers".to_owned(),
        }
    }

    fn told_path(&self, process: u32) -> PathBuf {
        self.scratch.path().join(format!("told-{process}.json"))
    }

    /// Received by the dependency so far.
    pub(crate) async fn received(&self) -> Result<u64, Error> {
        let body = self.dependency_says(Method::GET, "/received").await?;
        Ok(std::str::from_utf8(&body)?.parse()?)
    }

    /// What everybody counted, once all callers have ended.
    pub(crate) async fn gather(&mut self) -> Result<Gathered, Error> {
        let patience = END_SLACK.saturating_add(self.cast.scenario.call.deadline());
        for caller in &mut self.callers {
            caller.ended(patience).await?;
        }
        let counts = serde_json::from_slice(&self.dependency_says(Method::GET, "/counts").await?)?;
        let mut told = Vec::new();
        for process in 0..self.cast.scenario.processes {
            told.push(serde_json::from_slice(&fs::read(self.told_path(process))?)?);
        }
        Ok(Gathered { counts, told, overuse_micros: self.overuse_micros().await? })
    }

    /// What budgetd counted beyond its limits, where the scenario is about that.
    async fn overuse_micros(&self) -> Result<i64, Error> {
        let asked = self.cast.scenario.bound.as_ref().is_some_and(|bound| bound.overuse);
        let Some(replica) = self.replicas.first().filter(|_| asked) else { return Ok(0) };
        let client = Client::new(&format!("http://{}", replica.address))?;
        let named = Dependency::new(DEPENDENCY)?;
        let page = client.get_status(std::slice::from_ref(named.id()), None, COUNTS_PATIENCE).await?;
        Ok(page.dependencies.iter().map(|dependency| dependency.counters.overuse_micros).sum())
    }

    /// Ends all and waits for it: the next run must not share the machine with this one.
    pub(crate) async fn end(mut self) -> Result<(), Error> {
        for caller in &mut self.callers {
            caller.kill().await?;
        }
        for replica in self.agents.iter_mut().chain(&mut self.replicas) {
            replica.process.kill().await?;
        }
        for server in &mut self.redis {
            server.kill().await?;
        }
        self.dependency.kill().await
    }

    async fn dependency_says(&self, method: Method, path: &str) -> Result<Bytes, Error> {
        let client = HttpClient::builder(TokioExecutor::new()).build_http();
        let uri = format!("http://{}{path}", self.dependency_http);
        let request = axum::http::Request::builder().method(method).uri(uri).body(Empty::<Bytes>::new())?;
        let asked = async {
            let response = client.request(request).await?;
            let status = response.status();
            if !status.is_success() {
                return Err(format!("the dependency answers {status} to {path}").into());
            }
            Ok::<Bytes, Error>(response.into_body().collect().await?.to_bytes())
        };
        tokio::time::timeout(COUNTS_PATIENCE, asked).await.map_err(|_| "the dependency does not answer")?
    }
}

async fn until_ready(caller: &mut Process) -> Result<(), Error> {
    let line = caller.line(START_PATIENCE).await?;
    if serde_json::from_str::<Word>(&line)? == Word::Ready {
        Ok(())
    } else {
        Err(format!("callers said {line}").into())
    }
}

/// A settings file: time limits of leases, and patience with Redis, so that a busy machine does not look like an outage.
fn settings(scenario: &Scenario) -> String {
    let faulty = scenario.faults.iter().any(|fault| fault.takes_budgetd_away());
    let response = if faulty { "1s" } else { "2s" };
    format!(
        "redis_connect_timeout = \"2s\"\nredis_wait_timeout = \"1s\"\nredis_response_timeout = \"{response}\"\n{}",
        scenario.timing_toml()
    )
}
