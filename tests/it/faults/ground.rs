//! What the scenarios stand on: daemons on one store, callers, and what daemons show of themselves.

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use budget::{
    decision::{Attempt, OperationAsk, Outcome, Release, ReleaseResult, Reserve},
    ids::{DependencyId, Fingerprint, OperationId, ReservationId},
};
use budget_client::{
    Client, Decision, Dependency, DependencyStatus, Error, How, Mode, PolicyEdit, Reserved, reservation_id,
};
use budget_tests::{
    daemon::Daemon,
    eventually::eventually,
    redis_server::{Flavour, RedisServer},
    security,
};
use budgetd::clock::Clock;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

/// For what must happen at all: more than it ever takes.
pub(crate) const BOUND: Duration = Duration::from_secs(20);
/// For a call when nothing is wrong.
pub(crate) const CALL: Duration = Duration::from_secs(10);
/// A busy machine must not look like an outage where none is meant.
pub(crate) const PATIENT: [&str; 6] =
    ["--redis-connect-timeout", "5s", "--redis-wait-timeout", "5s", "--redis-response-timeout", "5s"];

/// Where ledgers live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Memory,
    Redis7,
}

/// Daemons that share one store and one policy file.
pub(crate) struct Ground {
    pub(crate) daemons: Vec<Daemon>,
    pub(crate) redis: Option<RedisServer>,
    directory: TempDir,
}

/// Calls one dependency at one daemon.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) client: Client,
    pub(crate) dependency: Dependency,
}

/// The metrics of a daemon at one moment.
#[derive(Debug)]
pub(crate) struct Metrics(pub(crate) String);

/// What the kernel says of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Footprint {
    pub(crate) resident_kib: u64,
    pub(crate) threads: u64,
    pub(crate) open_files: usize,
    /// Processor time so far.
    pub(crate) busy: Duration,
}

// === impl Ground ===

impl Ground {
    /// One daemon under these policies, whose time-outs no busy machine reaches.
    pub(crate) fn new(on: On, policy: &str) -> Self {
        Self::with(on, policy, 1, &PATIENT)
    }

    /// Several; on memory only one, since each would have a store of its own.
    pub(crate) fn with(on: On, policy: &str, replicas: usize, arguments: &[&str]) -> Self {
        match on {
            On::Memory => Self::start(None, "memory", policy, 1, arguments),
            On::Redis7 => Self::on(RedisServer::start(Flavour::Redis7), policy, replicas, arguments),
        }
    }

    /// Daemons on a server that is there.
    pub(crate) fn on(redis: RedisServer, policy: &str, replicas: usize, arguments: &[&str]) -> Self {
        let url = redis.unix_url();
        Self::start(Some(redis), &url, policy, replicas, arguments)
    }

    /// Daemons that reach the server by another way, such as a proxy.
    pub(crate) fn by(redis: RedisServer, url: &str, policy: &str, arguments: &[&str]) -> Self {
        Self::start(Some(redis), url, policy, 1, arguments)
    }

    fn start(redis: Option<RedisServer>, store: &str, policy: &str, replicas: usize, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut ground = Self { daemons: Vec::new(), redis, directory };
        fs::write(ground.policy_file(), policy).expect("a policy file");
        for _ in 0..replicas {
            ground.add(store, arguments);
        }
        ground
    }

    /// One more daemon.
    pub(crate) fn add(&mut self, store: &str, arguments: &[&str]) {
        let path = self.policy_file();
        let policy = path.to_string_lossy();
        let fixed = ["--store", store, "--policy", &policy];
        self.daemons.push(Daemon::start(&[&fixed, arguments].concat()));
    }

    pub(crate) fn policy_file(&self) -> PathBuf {
        self.directory.path().join("policy.toml")
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        &self.daemons[0]
    }

    pub(crate) fn daemon_mut(&mut self) -> &mut Daemon {
        &mut self.daemons[0]
    }

    pub(crate) fn redis(&self) -> &RedisServer {
        self.redis.as_ref().expect("this ground has a Redis")
    }

    pub(crate) fn redis_mut(&mut self) -> &mut RedisServer {
        self.redis.as_mut().expect("this ground has a Redis")
    }

    /// A caller at the first daemon.
    pub(crate) fn caller(&self, dependency: &str) -> Caller {
        self.caller_at(0, dependency)
    }

    pub(crate) fn caller_at(&self, replica: usize, dependency: &str) -> Caller {
        Caller::new(&self.daemons[replica].endpoint(), dependency)
    }

    /// No daemon has ended by itself.
    pub(crate) fn all_live(&mut self) {
        for daemon in &mut self.daemons {
            let process = daemon.process_mut();
            assert!(process.exited().is_none(), "{}", process.tail());
        }
    }
}

// === impl Caller ===

impl Caller {
    pub(crate) fn new(endpoint: &str, dependency: &str) -> Self {
        Self { client: security::client(endpoint), dependency: Dependency::new(dependency).expect("a name") }
    }

    /// The same with cost units.
    pub(crate) fn costing(self, units: &[&'static str]) -> Self {
        let dependency = self.dependency.with_units(units.iter().copied()).expect("units");
        Self { dependency, ..self }
    }

    pub(crate) fn of(&self, dependency: &str) -> Self {
        Self { client: self.client.clone(), dependency: Dependency::new(dependency).expect("a name") }
    }

    pub(crate) fn id(&self) -> DependencyId {
        self.dependency.id().clone()
    }

    pub(crate) async fn reserve(&self, reserve: &Reserve) -> Result<Reserved, Error> {
        self.client.reserve(&self.dependency, reserve, CALL).await
    }

    /// An ask, which must be answered.
    pub(crate) async fn ask(&self, reserve: &Reserve) -> Decision {
        let name = self.dependency.id().as_str();
        self.reserve(reserve).await.unwrap_or_else(|error| panic!("{name}: {error}")).decision
    }

    /// The id of an original, if it is admitted.
    pub(crate) async fn original(&self) -> Option<ReservationId> {
        let ask = original();
        self.ask(&ask).await.admitted().then_some(ask.id)
    }

    /// How many of so many originals, asked one after the other, are admitted.
    pub(crate) async fn admitted_of(&self, asks: usize) -> usize {
        let mut admitted = 0;
        for _ in 0..asks {
            admitted += usize::from(self.original().await.is_some());
        }
        admitted
    }

    pub(crate) async fn release(&self, release: &Release) -> ReleaseResult {
        let name = self.dependency.id().as_str();
        let released = self.client.release(&self.dependency, release, CALL).await;
        released.unwrap_or_else(|error| panic!("{name}: {error}")).result
    }

    pub(crate) async fn succeed(&self, id: ReservationId) -> ReleaseResult {
        self.release(&Release::sent(id, Outcome::Success)).await
    }

    pub(crate) async fn try_status(&self) -> Result<DependencyStatus, Error> {
        let page = self.client.get_status(&[self.id()], None, CALL).await?;
        Ok(page.dependencies.into_iter().next().expect("what was asked for"))
    }

    pub(crate) async fn status(&self) -> DependencyStatus {
        self.try_status().await.unwrap_or_else(|error| panic!("status: {error}"))
    }

    /// Writes the policy of this dependency.
    pub(crate) async fn try_put(&self, toml: &str) -> Result<(), Error> {
        let expected = self.client.list_policies(None, CALL).await?.version;
        let (name, source_toml, how) = (self.dependency.id().to_string(), Some(toml.to_owned()), How::TakeOver);
        let edit = PolicyEdit { name, source_toml, expected, how, ..PolicyEdit::default() };
        self.client.edit_policy(edit, CALL).await.map(drop)
    }

    pub(crate) async fn put(&self, toml: &str) {
        self.try_put(toml).await.unwrap_or_else(|error| panic!("policy: {error}"));
    }

    /// Fills all buckets under one policy, then puts another into force whose buckets stay as full, as far as its bursts
    /// allow. A ledger begins empty in a store that replicas share.
    pub(crate) async fn filled(&self, fast: &str, slow: &str) {
        self.put(fast).await;
        self.ask(&Reserve { no_release: true, ..original() }).await;
        eventually(BOUND, "the buckets are full", async || {
            let status = self.status().await;
            let units = status.units.iter().map(|unit| unit.bucket);
            units
                .chain(status.admission)
                .chain([status.retry])
                .all(|bucket| bucket.balance_micros == bucket.burst_micros)
        })
        .await;
        self.put(slow).await;
    }

    /// Waits until the store decides again, at most so long.
    pub(crate) async fn decided_exactly_within(&self, bound: Duration) {
        eventually(bound, "the store decides", async || {
            self.reserve(&Reserve { no_release: true, ..original() }).await.is_ok_and(|seen| seen.mode == Mode::Exact)
        })
        .await;
    }
}

/// Whether an answer is an admission.
pub(crate) trait Verdict {
    fn admitted(&self) -> bool;
}

impl Verdict for Decision {
    fn admitted(&self) -> bool {
        matches!(self, Self::Admitted(_))
    }
}

/// An id nobody has used.
pub(crate) fn fresh_id() -> ReservationId {
    reservation_id().expect("randomness")
}

/// A plain ask under a fresh id.
pub(crate) fn original() -> Reserve {
    Reserve::new(fresh_id(), Attempt::ORIGINAL)
}

/// A tracked operation.
pub(crate) fn operation(id: &str) -> OperationAsk {
    let id = OperationId::new(id).expect("an id");
    OperationAsk { id, fingerprint: Fingerprint::from_slice(&[7; 16]).expect("16 bytes"), expires_in_ms: None }
}

/// How long something took.
pub(crate) async fn timed<T>(what: impl Future<Output = T>) -> (T, Duration) {
    let start: Instant = Clock::instant();
    let done = what.await;
    (done, Clock::instant() - start)
}

/// Status and body of a GET.
pub(crate) async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let answer = timeout(BOUND, async {
        let mut stream = security::connect(address, "http/1.1").await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    });
    let answer = answer.await.expect("an answer in time").unwrap_or_else(|error| panic!("{path}: {error}"));
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{answer}"));
    (status, answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
}

// === impl Metrics ===

impl Metrics {
    pub(crate) async fn of(daemon: &Daemon) -> Self {
        let (status, text) = get(daemon.http(), "/metrics").await;
        assert_eq!(status, 200, "{text}");
        Self(text)
    }

    /// The sum over all series of this name that bear all these labels, such as `decision="admitted"`.
    pub(crate) fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let series = self.0.lines().filter(of_name).filter(|line| labels.iter().all(|label| line.contains(label)));
        series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

// === impl Footprint ===

impl Footprint {
    pub(crate) fn of(daemon: &Daemon) -> Self {
        let directory = PathBuf::from(format!("/proc/{}", daemon.process().id()));
        let status = fs::read_to_string(directory.join("status")).expect("a status");
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let word = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            word.unwrap_or_else(|| panic!("no {name} in {status}"))
        };
        // User and system time are the 14th and 15th field, in hundredths of a second; the second one may hold spaces.
        let stat = fs::read_to_string(directory.join("stat")).expect("a stat");
        let after_name = stat.rsplit_once(')').expect("a name").1;
        let ticks: u64 =
            after_name.split_whitespace().skip(11).take(2).filter_map(|word| word.parse::<u64>().ok()).sum();
        Self {
            resident_kib: number("VmRSS"),
            threads: number("Threads"),
            open_files: fs::read_dir(directory.join("fd")).expect("open files").count(),
            busy: Duration::from_millis(ticks * 10),
        }
    }
}
