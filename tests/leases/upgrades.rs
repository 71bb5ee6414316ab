//! Replicas of two releases serve one fleet from one store while those of the older one leave: leased clients under their
//! bound, and callers of Reserve whose every answer is counted.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
    },
};

use budget::{
    decision::{
        Attempt, Cause, DenyReason, Extend, ExtendResult, OperationAsk, Outcome, Release, ReleaseResult, Reserve, Sent,
        TerminalState, Use,
    },
    ids::{Fingerprint, OperationId, ReservationId},
    units::MICROS_PER_TOKEN,
};
use budget_client::{Client, Decision, Dependency, How, Mode, PolicyEdit, StoreFormat, boot_time_ns, reservation_id};
use budget_tests::{
    daemon::Daemon,
    eventually::{eventually, eventually_some},
    redis_server::{Flavour, RedisServer},
    released,
    rng::Rng,
    security,
};
use deadpool_redis::redis;
use tokio::{sync::RwLock, task::JoinSet};

use super::{
    fleet::Fleet,
    judge::Case,
    outages::nothing_blocks,
    pace::Pace,
    redis::alone,
    setting::{CALL, Setting, pass_ms},
};

const RATE: i64 = 100;
const MEMBERS: usize = 6;
const WORKERS: u64 = 8;
/// What each original earns: half a token, and there is room for all.
const DEPOSIT_MICROS: i64 = 500_000;

/// Callers of Reserve, Extend and Release, each call at any replica, and what they were told.
struct Callers {
    /// Held while calls are under way.
    replicas: RwLock<Vec<Client>>,
    dependency: Dependency,
    told: Told,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct Told {
    originals: AtomicI64,
    retries: AtomicI64,
    not_sent: AtomicI64,
    retries_refused: AtomicI64,
    rounds: AtomicI64,
}

// === impl Callers ===

impl Callers {
    fn of(daemons: &[&Daemon]) -> Arc<Self> {
        let replicas = daemons.iter().map(|daemon| security::client(&daemon.endpoint())).collect();
        let dependency = Dependency::new("exact").unwrap();
        Arc::new(Self { replicas: RwLock::new(replicas), dependency, told: Told::default(), stop: false.into() })
    }

    fn start(self: &Arc<Self>) -> JoinSet<()> {
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            let callers = Arc::clone(self);
            workers.spawn(async move {
                let mut rng = Rng::new(worker + 1);
                while !callers.stop.load(Relaxed) {
                    match rng.below(4) {
                        0 => callers.plainly(&mut rng).await,
                        1 => callers.unsent(&mut rng).await,
                        2 => callers.retrying(&mut rng).await,
                        _ => callers.tracked(&mut rng).await,
                    }
                    callers.told.rounds.fetch_add(1, Relaxed);
                }
            });
        }
        workers
    }

    /// Waits until so many more rounds are over.
    async fn go_on(&self, rounds: i64, pace: Pace) {
        let until = self.told.rounds.load(Relaxed) + rounds;
        let what = format!("{rounds} rounds");
        eventually(pace.bound(), &what, async || self.told.rounds.load(Relaxed) >= until).await;
    }

    /// From now on nobody calls the first replica; what was under way has ended.
    async fn leave_first(&self) {
        self.replicas.write().await.remove(0);
    }

    async fn reserve(&self, rng: &mut Rng, ask: &Reserve) -> Decision {
        let replicas = self.replicas.read().await;
        let reserved = rng.pick(&replicas).reserve(&self.dependency, ask, CALL).await;
        let reserved = reserved.unwrap_or_else(|error| panic!("{ask:?}: {error}"));
        assert_eq!(reserved.mode, Mode::Exact, "{ask:?}: {reserved:?}");
        reserved.decision
    }

    /// A new admission.
    async fn admitted(&self, rng: &mut Rng, ask: &Reserve) {
        let decision = self.reserve(rng, ask).await;
        let Decision::Admitted(admitted) = &decision else { panic!("{ask:?}: {decision:?}") };
        assert!(!admitted.replayed, "{ask:?}: {decision:?}");
        let counter = if ask.attempt.number == 1 { &self.told.originals } else { &self.told.retries };
        counter.fetch_add(1, Relaxed);
    }

    async fn released(&self, rng: &mut Rng, id: ReservationId, used: Use, operation: Option<&OperationId>) {
        let release = Release { id, used, operation: operation.cloned() };
        for expected in [ReleaseResult::Applied, ReleaseResult::AlreadyReleased] {
            let replicas = self.replicas.read().await;
            let released = rng.pick(&replicas).release(&self.dependency, &release, CALL).await;
            let released = released.unwrap_or_else(|error| panic!("{release:?}: {error}"));
            assert_eq!(released.result, expected, "{release:?}");
        }
    }

    async fn extended(&self, rng: &mut Rng, id: ReservationId) {
        let replicas = self.replicas.read().await;
        let extend = Extend { id, permit_ttl_ms: 200_000 };
        let extended = rng.pick(&replicas).extend(&self.dependency, extend, CALL).await;
        assert!(matches!(extended, Ok(ExtendResult::Extended(200_000))), "{extended:?}");
    }

    async fn plainly(&self, rng: &mut Rng) {
        let id = reservation_id().unwrap();
        self.admitted(rng, &Reserve::new(id, Attempt::ORIGINAL)).await;
        if rng.chance(1, 2) {
            self.extended(rng, id).await;
        }
        self.released(rng, id, sent(Outcome::Success, None), None).await;
    }

    async fn unsent(&self, rng: &mut Rng) {
        let id = reservation_id().unwrap();
        self.admitted(rng, &Reserve::new(id, Attempt::ORIGINAL)).await;
        self.told.not_sent.fetch_add(1, Relaxed);
        self.released(rng, id, Use::NotSent, None).await;
    }

    async fn retrying(&self, rng: &mut Rng) {
        let ask = Reserve::new(reservation_id().unwrap(), Attempt::retry(2, Cause::Transient));
        match self.reserve(rng, &ask).await {
            Decision::Admitted(_) => {
                self.told.retries.fetch_add(1, Relaxed);
                self.released(rng, ask.id, sent(Outcome::Transient, None), None).await;
            }
            Decision::Denied(denied) => {
                assert_eq!(denied.reason, DenyReason::RetryBudget, "{denied:?}");
                self.told.retries_refused.fetch_add(1, Relaxed);
            }
        }
    }

    /// An operation whose attempts, copies and ends go to any replica.
    async fn tracked(&self, rng: &mut Rng) {
        let [first, copy, late] = [(); 3].map(|()| reservation_id().unwrap());
        let operation = OperationId::new(&format!("order-{:x}", u128::from_be_bytes(first.0))).unwrap();
        let ask = |id| Reserve {
            operation: Some(OperationAsk {
                id: operation.clone(),
                fingerprint: Fingerprint::from_slice(&[9; 16]).unwrap(),
                expires_in_ms: None,
            }),
            ..Reserve::new(id, Attempt::ORIGINAL)
        };
        self.admitted(rng, &ask(first)).await;
        let replayed = self.reserve(rng, &ask(first)).await;
        assert!(matches!(&replayed, Decision::Admitted(admitted) if admitted.replayed), "{replayed:?}");
        self.refused(rng, &ask(copy), DenyReason::InProgress).await;
        self.released(rng, first, sent(Outcome::Success, Some(TerminalState::Completed)), Some(&operation)).await;
        self.refused(rng, &ask(late), DenyReason::Completed).await;
    }

    async fn refused(&self, rng: &mut Rng, ask: &Reserve, reason: DenyReason) {
        let decision = self.reserve(rng, ask).await;
        assert!(matches!(&decision, Decision::Denied(denied) if denied.reason == reason), "{ask:?}: {decision:?}");
    }

    /// All that was told, and nothing else, is in the ledger.
    async fn assert_exact(&self) {
        let replicas = self.replicas.read().await;
        let ids = [self.dependency.id().clone()];
        let page = replicas[0].get_status(&ids, None, CALL).await.unwrap();
        let ledger = &page.dependencies[0];
        let [originals, retries, not_sent] =
            [&self.told.originals, &self.told.retries, &self.told.not_sent].map(|told| told.load(Relaxed));
        println!("{:?}; the ledger {:?}", self.told, ledger.counters);
        let counted = [ledger.counters.originals_admitted, ledger.counters.retries_admitted, ledger.counters.not_sent];
        assert_eq!((counted, ledger.in_flight), ([originals, retries, not_sent], 0));
        assert_eq!(ledger.counters.deposited_micros, originals * DEPOSIT_MICROS);
        let balance_micros = (originals - not_sent) * DEPOSIT_MICROS - retries * MICROS_PER_TOKEN;
        assert_eq!(ledger.retry.balance_micros, balance_micros);
        assert_eq!(ledger.counters.permits_expired, 0);
    }
}

fn sent(outcome: Outcome, terminal: Option<TerminalState>) -> Use {
    Use::Sent(Sent { outcome, costs: Vec::new(), terminal, result_ref: None })
}

/// The format of the store, as a replica tells it.
async fn format(client: &Client) -> StoreFormat {
    client.get_status(&[], None, CALL).await.unwrap().about.store_format.unwrap()
}

/// Replicas of the first release, by what they say of themselves.
fn first_release(server: &RedisServer) -> Vec<String> {
    let mut said: Vec<String> =
        redis::from_redis_value(server.cli(&["ZRANGE", "budgetd:replicas", "0", "-1"])).unwrap();
    said.retain(|said| !said.contains(' '));
    said
}

/// As if two minutes had gone by: those that live are back within a second.
fn forget_first_release(server: &RedisServer) {
    for name in first_release(server) {
        server.cli(&["ZREM", "budgetd:replicas", &name]);
    }
}

/// Where every call is admitted but retries beyond what originals have earned.
fn exact(permit_ttl_s: usize) -> String {
    format!(
        "admission = {{ max_in_flight = 100000, permit_ttl = \"{permit_ttl_s}s\" }}\n\
         retry = {{ ratio = 0.5, floor = \"0/s\", burst = 1000000 }}\n"
    )
}

/// Each replica in turn changes a policy; all others learn of it.
async fn change_policies(clients: &[Client], round: usize) {
    for (at, client) in clients.iter().enumerate() {
        let expected = client.list_policies(None, CALL).await.unwrap().version;
        let source_toml = Some(exact(60 + 10 * round + at));
        let edit =
            PolicyEdit { name: "exact".to_owned(), source_toml, expected, how: How::TakeOver, ..PolicyEdit::default() };
        client.edit_policy(edit, CALL).await.unwrap_or_else(|error| panic!("policy: {error}"));
        let version = client.list_policies(None, CALL).await.unwrap().version;
        for other in clients {
            eventually(CALL, "all have it", async || other.list_policies(None, CALL).await.unwrap().version >= version)
                .await;
        }
    }
}

/// Switched off at one replica, retries are off at the other, and come back.
async fn switch_retries(at: &Client, seen_at: &Client) {
    let name = Dependency::new("switched").unwrap();
    for enabled in [false, true] {
        at.set_retries("switched", enabled, "a test", CALL).await.unwrap();
        eventually(CALL, "the switch is seen", async || {
            let ask = Reserve::new(reservation_id().unwrap(), Attempt::retry(2, Cause::Transient));
            let ask = Reserve { no_release: true, ..ask };
            match seen_at.reserve(&name, &ask, CALL).await.unwrap().decision {
                Decision::Denied(denied) => (denied.reason == DenyReason::RetriesOff) != enabled,
                Decision::Admitted(_) => enabled,
            }
        })
        .await;
    }
}

struct Releases {
    old: PathBuf,
    setting: Setting,
    arguments: Vec<String>,
}

// === impl Releases ===

impl Releases {
    fn new(pace: Pace, policy: &str) -> Self {
        let old = released::binary(released::FORMAT_1);
        let redis = RedisServer::start(Flavour::Redis7);
        let url = redis.unix_url();
        let setting = Setting::bare(pace, Some(redis), policy);
        let mut arguments = setting.stored(&url);
        // A call that is late is decided degraded, and what is exact is not seen.
        for (at, argument) in arguments.clone().iter().enumerate() {
            if argument == "--redis-wait-timeout" || argument == "--redis-response-timeout" {
                arguments[at + 1] = "10s".to_owned();
            }
        }
        Self { old, setting, arguments }
    }

    fn redis(&self) -> &RedisServer {
        self.setting.redis.as_ref().unwrap()
    }

    fn start_old(&self) -> Daemon {
        Daemon::start_of(&self.old, &self.arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn start_new(&self) -> Daemon {
        Daemon::start(&self.arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

fn leave(daemon: &mut Daemon) {
    daemon.terminate();
    assert!(daemon.wait(CALL * 3).success(), "{}", daemon.process().tail());
    let log = daemon.process().log();
    assert!(!log.iter().any(|line| line.contains("corrupt") || line.contains("CORRUPT")), "{log:#?}");
}

/// For the longer list: builds the first release once, and takes about a minute then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_q26_a_fleet_of_two_releases_serves_through_the_switch_and_loses_nothing() {
    let (_alone, pace) = alone().await;
    let releases = Releases::new(pace, &pace.policy(RATE, 75, 75));
    let mut old = Vec::from([releases.start_old(), releases.start_old()]);
    let new = vec![releases.start_new(), releases.start_new()];
    let clients: Vec<Client> = old.iter().chain(&new).map(|daemon| security::client(&daemon.endpoint())).collect();
    eventually(CALL, "both old ones are seen", async || format(&clients[2]).await.held_back_by.len() == 2).await;
    assert_eq!(format(&clients[3]).await.written, 1);
    change_policies(&clients, 0).await;

    let start_ns = boot_time_ns();
    let mut fleet = Fleet::paced(pace, RATE);
    let endpoints: Vec<String> = old.iter().chain(&new).map(Daemon::endpoint).collect();
    for member in 0..MEMBERS {
        // Beginning at each of them.
        let mut turned = endpoints.clone();
        turned.rotate_left(member % endpoints.len());
        fleet.add(&turned, None, super::fleet::Demand::plenty_at(pace, RATE, MEMBERS));
    }
    let callers = Callers::of(&old.iter().chain(&new).collect::<Vec<_>>());
    let mut workers = callers.start();
    fleet.all_leased(pace.return_ms(), "first leases of a mixed fleet").await;
    callers.go_on(200, pace).await;
    change_policies(&clients, 1).await;
    switch_retries(&clients[0], &clients[3]).await;
    switch_retries(&clients[2], &clients[1]).await;
    callers.go_on(200, pace).await;

    // One after the other leaves, while the load goes on.
    callers.leave_first().await;
    leave(&mut old[0]);
    forget_first_release(releases.redis());
    eventually(CALL, "one holds it back", async || format(&clients[3]).await.held_back_by.len() == 1).await;
    assert_eq!(format(&clients[2]).await.written, 1);
    callers.go_on(200, pace).await;
    change_policies(&clients[1..], 2).await;
    callers.leave_first().await;
    leave(&mut old[1]);
    forget_first_release(releases.redis());
    for client in &clients[2..] {
        let written = async || Some(format(client).await).filter(|format| format.written == 2);
        let format = eventually_some(CALL * 6, "the new format is written", written).await;
        assert!(format.held_back_by.is_empty(), "{format:?}");
    }
    callers.go_on(400, pace).await;
    change_policies(&clients[2..], 3).await;
    switch_retries(&clients[2], &clients[3]).await;
    fleet.all_leased(pace.return_ms(), "leases in the new format").await;
    pass_ms(pace.ms(2_000)).await;
    let from_ns = boot_time_ns();
    pass_ms(pace.ms(1_000)).await;
    fleet.assert_useful(from_ns, boot_time_ns(), 0.5 * fleet.rate as f64, "in the new format");

    // A straggler of the first release: whatever it answers, the ledgers stay as they are or change as it says.
    straggler(&releases, &callers).await;
    callers.go_on(200, pace).await;
    callers.stop.store(true, Relaxed);
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
    callers.assert_exact().await;
    nothing_blocks(&fleet);
    for daemon in &new {
        assert!(!daemon.process().logged("corrupt"), "{}", daemon.process().tail());
    }
    let mut case = Case::of(&releases.setting, MEMBERS, 4, start_ns);
    // Whose replica has just left may be without a lease for a moment.
    case.all_beyond();
    case.assert(&*fleet.end().await);
}

/// A replica of the first release on a namespace that is written in the next format.
async fn straggler(releases: &Releases, callers: &Callers) {
    let mut old = releases.start_old();
    let client = security::client(&old.endpoint());
    let mut answers = Vec::new();
    for _ in 0..20 {
        let ask = Reserve { no_release: true, ..Reserve::new(reservation_id().unwrap(), Attempt::ORIGINAL) };
        let answer = client.reserve(&callers.dependency, &ask, CALL).await;
        if let Ok(reserved) = &answer
            && matches!(reserved.decision, Decision::Admitted(_))
            && reserved.mode == Mode::Exact
        {
            // It could read the ledger after all.
            callers.told.originals.fetch_add(1, Relaxed);
        }
        answers.push(answer.map(|reserved| reserved.mode).map_err(|error| error.to_string()));
    }
    answers.dedup();
    println!("the straggler: {answers:?}");
    old.terminate();
    let _status = old.wait(CALL * 3);
    let mut log = old.process().log();
    log.retain(|line| line.contains("WARN") || line.contains("ERROR"));
    println!("the straggler logged {log:#?}");
    forget_first_release(releases.redis());
}
