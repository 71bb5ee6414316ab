//! Renewals: many holders of leases on many dependencies, each renewing all of them in one message at the usual pace, and
//! what that costs budgetd and Redis, as a part of one core.
//!
//! The messages are a holder's: they quote the epoch, present the lease with its position, and report what was asked.

use std::{
    fmt,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use budget_proto::pb;
use pb::{retry_budget_client::RetryBudgetClient, sync_answer::Answer};
use serde::Serialize;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{self, Instant},
};
use tonic::transport::{Channel, Endpoint};

use crate::{
    Error,
    policies::{RENEWED, name},
    redis_server::RedisServer,
    server_process::ServerProcess,
    stats::{OrNa, ratio},
    wire::Ids,
};

/// Between two renewals of one holder, as holders do it: 4 to 6 s.
const INTERVAL_MS: u64 = 5_000;
const JITTER_MS: u64 = 1_000;
/// Rounds of all holders before anything is measured: a store without state lends nothing for the length of a curve, then
/// shares settle.
const WARM_UP_ROUNDS: u32 = 6;
/// Answers that take longer are late: a holder sends again after a second.
const LATE: Duration = Duration::from_secs(1);
const CALL_PATIENCE: Duration = Duration::from_secs(4);
const CONNECTIONS: usize = 8;
/// Messages unanswered at once; more than that wait, and are late.
const UNANSWERED_MAX: usize = 2_000;
/// The most of one core that Redis may use.
const REDIS_CORES_MAX: f64 = 0.5;

/// How many, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) holders: usize,
    pub(crate) dependencies: usize,
    pub(crate) measured: Duration,
}

/// What was found.
#[derive(Debug, Serialize)]
pub(crate) struct Renewals {
    holders: usize,
    dependencies: usize,
    seconds: f64,
    renewals_per_second: f64,
    /// Answered with a lease, of those that were due.
    renewed_share: Option<f64>,
    late_share: Option<f64>,
    redis_cores: Option<f64>,
    server_cores: Option<f64>,
    client_cores: Option<f64>,
    redis_micros_per_renewal: Option<f64>,
    server_micros_per_renewal: Option<f64>,
    script_calls_per_renewal: Option<f64>,
    redis_cores_max: f64,
    reached: bool,
}

/// Counts of what was due while they were on.
#[derive(Default)]
struct Counts {
    on: AtomicBool,
    due: AtomicU64,
    renewed: AtomicU64,
    late: AtomicU64,
}

/// One holder's side of one lease.
#[derive(Clone, Default)]
struct Lease {
    sequence: u64,
    epoch: Option<pb::Epoch>,
    grant: Option<(pb::Grant, Instant)>,
    usage: pb::Usage,
    counted: Option<pb::Usage>,
}

struct Holder {
    name: String,
    incarnation: [u8; 16],
    leases: Vec<Lease>,
    ids: Ids,
}

/// Runs it with servers of its own.
pub(crate) async fn measure(
    size: Size,
    redis_program: &Path,
    policy_file: &Path,
    scratch: &Path,
) -> Result<Renewals, Error> {
    let mut redis = RedisServer::start(redis_program, scratch, "renewals-redis").await?;
    let policies = policy_file.to_str().ok_or("a path is not UTF-8")?.to_owned();
    let arguments = ["serve-daemon", "--store", redis.url(), "--policies", &policies].map(ToOwned::to_owned);
    let mut process = ServerProcess::start("renewals", arguments, scratch).await?;
    let found = run(size, &mut redis, &process).await.map_err(|error| process.blame(&error))?;
    process.end().await?;
    redis.end().await?;
    Ok(found)
}

async fn run(size: Size, redis: &mut RedisServer, process: &ServerProcess) -> Result<Renewals, Error> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let channel = Endpoint::from_shared(format!("http://{}", process.address()))?.connect().await?;
        clients.push(RetryBudgetClient::new(channel));
    }
    let (counts, unanswered) = (Arc::new(Counts::default()), Arc::new(Semaphore::new(UNANSWERED_MAX)));
    let names: Arc<[String]> = (0..size.dependencies).map(|index| name(RENEWED, index)).collect();
    let failed = Arc::new(Mutex::new(None));
    let mut holders = JoinSet::new();
    let begin = Instant::now();
    for number in 0..size.holders {
        let holder = Holder::new(number, size.dependencies);
        let client = clients[number % CONNECTIONS].clone();
        let (names, counts, unanswered) = (Arc::clone(&names), Arc::clone(&counts), Arc::clone(&unanswered));
        let first = begin + Duration::from_millis(INTERVAL_MS * number as u64 / size.holders.max(1) as u64);
        let failed = Arc::clone(&failed);
        holders.spawn(async move {
            if let Err(error) = holder.live(client, &names, &counts, &unanswered, first).await {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        });
    }
    time::sleep(Duration::from_millis(INTERVAL_MS) * WARM_UP_ROUNDS).await;

    let cpu = || [redis.cpu_micros(), process.cpu_micros(), crate::server_process::cpu_micros(std::process::id())];
    let (before, started) = (cpu(), Instant::now());
    let scripts = redis.script_calls().await?;
    counts.on.store(true, Relaxed);
    time::sleep(size.measured).await;
    counts.on.store(false, Relaxed);
    let (after, seconds) = (
        [redis.cpu_micros(), process.cpu_micros(), crate::server_process::cpu_micros(std::process::id())],
        started.elapsed().as_secs_f64(),
    );
    let scripts = redis.script_calls().await?.saturating_sub(scripts);
    // What is under way is counted as well.
    time::sleep(CALL_PATIENCE.min(LATE * 2)).await;
    holders.shutdown().await;
    if let Some(error) = failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(error);
    }

    let micros = |at: usize| Some(after[at]?.saturating_sub(before[at]?) as f64);
    let cores = |at: usize| micros(at).and_then(|micros| ratio(micros / 1e6, seconds));
    let (due, renewed) = (counts.due.load(Relaxed) as f64, counts.renewed.load(Relaxed) as f64);
    let renewed_share = ratio(renewed, due);
    let redis_cores = cores(0);
    Ok(Renewals {
        holders: size.holders,
        dependencies: size.dependencies,
        seconds,
        renewals_per_second: due / seconds,
        renewed_share,
        late_share: ratio(counts.late.load(Relaxed) as f64, due),
        redis_cores,
        server_cores: cores(1),
        client_cores: cores(2),
        redis_micros_per_renewal: micros(0).and_then(|micros| ratio(micros, due)),
        server_micros_per_renewal: micros(1).and_then(|micros| ratio(micros, due)),
        script_calls_per_renewal: ratio(scripts as f64, due),
        redis_cores_max: REDIS_CORES_MAX,
        reached: redis_cores.is_some_and(|cores| cores < REDIS_CORES_MAX)
            && renewed_share.is_some_and(|share| share >= 0.99),
    })
}

// === impl Holder ===

impl Holder {
    fn new(number: usize, dependencies: usize) -> Self {
        let mut ids = Ids::new(7, number as u64);
        let incarnation = ids.id();
        Self { name: format!("holder-{number}"), incarnation, leases: vec![Lease::default(); dependencies], ids }
    }

    /// Renews until it is ended.
    async fn live(
        mut self,
        mut client: RetryBudgetClient<Channel>,
        names: &[String],
        counts: &Counts,
        unanswered: &Semaphore,
        mut due: Instant,
    ) -> Result<(), Error> {
        loop {
            time::sleep_until(due).await;
            let counted = counts.on.load(Relaxed);
            let sent = Instant::now();
            let request = self.request(names, sent);
            let answers = {
                let _permit = unanswered.acquire().await?;
                time::timeout(CALL_PATIENCE, client.sync(request)).await
            };
            let mut renewed = 0;
            let mut again = false;
            if let Ok(answered) = answers {
                for (lease, answer) in self.leases.iter_mut().zip(answered?.into_inner().answers) {
                    match lease.hear(answer, sent) {
                        Heard::Renewed => renewed += 1,
                        Heard::Epoch => again = true,
                        Heard::Nothing => {}
                    }
                }
            }
            if counted {
                counts.due.fetch_add(names.len() as u64, Relaxed);
                counts.renewed.fetch_add(renewed, Relaxed);
                if due.elapsed() > LATE {
                    counts.late.fetch_add(names.len() as u64, Relaxed);
                }
            }
            if !again {
                let jitter = self.ids.bits() % (2 * JITTER_MS);
                due += Duration::from_millis(INTERVAL_MS - JITTER_MS + jitter);
            }
        }
    }

    fn request(&mut self, names: &[String], now: Instant) -> pb::SyncRequest {
        let asks = self.leases.iter_mut().zip(names).map(|(lease, name)| lease.ask(name, self.ids.bits() >> 12, now));
        pb::SyncRequest {
            holder_id: self.name.clone(),
            incarnation: self.incarnation.to_vec(),
            weight: None,
            asks: asks.collect(),
        }
    }
}

/// What an answer was.
enum Heard {
    Renewed,
    /// The epoch is known now: ask anew.
    Epoch,
    Nothing,
}

// === impl Lease ===

impl Lease {
    fn ask(&mut self, dependency: &str, nonce: u64, now: Instant) -> pb::SyncAsk {
        self.sequence += 1;
        self.usage.asked += 50;
        self.usage.originals_admitted += 40;
        self.usage.retries_admitted += 4;
        self.usage.deposited_micros += 4_000_000;
        let lease = self.grant.as_ref().map(|(grant, since)| pb::PresentedLease {
            epoch: grant.epoch,
            generation: grant.generation,
            value: grant.value.clone(),
            curve: grant.curve.clone(),
            position_ms: u64::try_from(now.saturating_duration_since(*since).as_millis()).unwrap_or(u64::MAX),
        });
        pb::SyncAsk {
            dependency: dependency.to_owned(),
            sequence: self.sequence,
            nonce,
            epoch: self.epoch,
            lease,
            usage: Some(self.usage.clone()),
            counted: self.counted.clone(),
            in_flight: 0,
            leave: false,
        }
    }

    fn hear(&mut self, answer: pb::SyncAnswer, sent: Instant) -> Heard {
        match answer.answer {
            Some(Answer::Granted(grant)) => {
                self.counted = Some(self.usage.clone());
                let leased = !grant.curve.is_empty();
                let since = sent.checked_sub(Duration::from_millis(grant.position_ms)).unwrap_or(sent);
                self.grant = leased.then_some((grant, since));
                Heard::Renewed
            }
            Some(Answer::OtherEpoch(epoch)) => {
                self.epoch = Some(epoch);
                Heard::Epoch
            }
            _ => Heard::Nothing,
        }
    }
}

impl fmt::Display for Renewals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let two = |value: Option<f64>| OrNa(value.map(|value| format!("{value:.2}")));
        let one = |value: Option<f64>| OrNa(value.map(|value| format!("{value:.1}")));
        let percent = |value: Option<f64>| OrNa(value.map(|value| format!("{:.1}%", value * 100.0)));
        writeln!(
            f,
            "renewals: {} holders x {} dependencies, {:.0} per second; renewed {}, later than 1 s {}",
            self.holders,
            self.dependencies,
            self.renewals_per_second,
            percent(self.renewed_share),
            percent(self.late_share),
        )?;
        writeln!(
            f,
            "  cores: Redis {}, budgetd {}, holders {}; cpu µs per renewal: Redis {}, budgetd {}; scripts per renewal {}; \
             target: Redis <{} {}",
            two(self.redis_cores),
            two(self.server_cores),
            two(self.client_cores),
            one(self.redis_micros_per_renewal),
            one(self.server_micros_per_renewal),
            two(self.script_calls_per_renewal),
            self.redis_cores_max,
            if self.reached { "ok" } else { "MISSED" },
        )
    }
}

// === impl Renewals ===

impl Renewals {
    pub(crate) const fn reached(&self) -> bool {
        self.reached
    }
}
