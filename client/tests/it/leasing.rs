//! Leases held by the background task, granted by a real ledger in the same process.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use budget::{
    decision::{Cause, DenyReason, Outcome},
    holder::{Local, LocalAsk},
    ids::{DependencyId, PolicyVersion},
    lease::{Ground, HolderId, Rules, Timing},
    ledger::{Ledger, Start},
    policy::{CurveStep, Lease, Limit, Numbers, Policy, Spec},
    units::{MICROS_PER_TOKEN, Rate},
};
use budget_client::{
    Dependency, Error, Standing, boot_time_ns,
    leasing::{Asked, Coordinator, Leasing, LeasingOptions},
};
use budget_proto::{UnitNames, convert::SyncReply};

use crate::LONG;

/// Short enough for tests, long enough for a slow machine.
const TIMING: Timing = Timing {
    margin_ms: 200,
    overlap_ms: 0,
    renew_min_ms: 40,
    renew_max_ms: 60,
    resend_min_ms: 20,
    resend_max_ms: 40,
    heartbeat_ms: 50,
    step_max_ms: 2_000,
};

struct World {
    policy: Policy,
    numbers: Arc<Numbers>,
    ledgers: Mutex<HashMap<DependencyId, Ledger>>,
    away: AtomicBool,
    messages: AtomicUsize,
    asks: AtomicUsize,
}

#[derive(Clone)]
struct InProcess(Arc<World>);

impl InProcess {
    fn new(curve: &[(i64, i64)]) -> Self {
        let curve =
            curve.iter().map(|(part_ppm, duration_ms)| CurveStep { part_ppm: *part_ppm, duration_ms: *duration_ms });
        let policy = Policy::new(Spec {
            admission: Some(Limit { rate: Rate::parse("10000/s").unwrap(), burst_tokens: 1_000 }),
            retry_burst_tokens: 100,
            floor: Rate::parse("1000/s").unwrap(),
            lease: Lease { enabled: true, part_ppm: 800_000, curve: curve.collect() },
            ..Spec::default()
        })
        .unwrap();
        let numbers = Arc::new(policy.numbers_timed(false, true, &TIMING));
        let world = World {
            policy,
            numbers,
            ledgers: Mutex::default(),
            away: AtomicBool::new(false),
            messages: AtomicUsize::new(0),
            asks: AtomicUsize::new(0),
        };
        Self(Arc::new(world))
    }

    fn with_ledger<R>(&self, act: impl FnOnce(&mut Ledger, &Ground) -> R) -> R {
        self.with_ledger_of(&DependencyId::new("a").unwrap(), act)
    }

    fn with_ledger_of<R>(&self, dependency: &DependencyId, act: impl FnOnce(&mut Ledger, &Ground) -> R) -> R {
        let world = &self.0;
        let now_ms = boot_time_ns() / 1_000_000;
        let mut ledgers = world.ledgers.lock().unwrap();
        let ledger = ledgers.entry(dependency.clone()).or_insert_with(|| {
            Ledger::new(PolicyVersion { number: 1, id: 1 }, Arc::clone(&world.numbers), Start::Empty, now_ms)
        });
        let ground = Ground { identity: 1, fresh_id: 5, fresh_store: true, ..Ground::default() };
        let version = PolicyVersion { number: 1, id: 1 };
        ledger.begin(version, &world.numbers, false, now_ms, &ground).unwrap();
        act(ledger, &ground)
    }
}

impl Coordinator for InProcess {
    async fn sync(&self, asks: &[Asked]) -> Vec<Result<SyncReply, Error>> {
        self.0.messages.fetch_add(1, Ordering::Relaxed);
        self.0.asks.fetch_add(asks.len(), Ordering::Relaxed);
        if self.0.away.load(Ordering::Relaxed) {
            return asks.iter().map(|_| Err(Error::Unreachable("away".into()))).collect();
        }
        asks.iter()
            .map(|asked| {
                let answer =
                    self.with_ledger_of(asked.dependency.id(), |ledger, ground| ledger.sync(&asked.ask, ground));
                let version = PolicyVersion { number: 1, id: 1 };
                let rules = Rules::of(&self.0.policy, &self.0.numbers, version, 2);
                Ok(SyncReply { answer, rules, units: UnitNames::default() })
            })
            .collect()
    }
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + LONG;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn start(coordinator: &InProcess) -> Leasing {
    let options = LeasingOptions {
        holder_id: Some(HolderId::new("test").unwrap()),
        timing: TIMING,
        sync_timeout: Duration::from_millis(500),
        ..LeasingOptions::default()
    };
    Leasing::start(coordinator.clone(), options).unwrap()
}

fn admitted(local: Local) -> bool {
    matches!(local, Local::Admitted(_))
}

#[tokio::test]
async fn a_dependency_is_leased_soon_after_it_is_named_and_decides_by_itself() {
    let coordinator = InProcess::new(&[(1_000_000, 60_000)]);
    let leasing = start(&coordinator);
    let leased = leasing.dependency(&Dependency::new("a").unwrap()).unwrap();
    assert_eq!(leased.reserve(&LocalAsk::ORIGINAL), Local::Short);
    eventually("a lease", || leased.standing() == Standing::Leased).await;
    eventually("an admission", || admitted(leased.reserve(&LocalAsk::ORIGINAL))).await;
    // Ten originals earn one retry. Nothing is awaited meanwhile, so that no renewal brings what the floor has earned.
    let retried = || admitted(leased.reserve(&LocalAsk::retry(2, Cause::Transient)));
    let deadline_ns = boot_time_ns() + i64::try_from(LONG.as_nanos()).unwrap();
    let (_, mut earned_micros, _) = leased.share().levels(boot_time_ns());
    while earned_micros < MICROS_PER_TOKEN {
        assert!(!retried(), "a retry with {earned_micros} earned");
        assert!(boot_time_ns() < deadline_ns, "no admission");
        let Local::Admitted(spent) = leased.reserve(&LocalAsk::ORIGINAL) else { continue };
        leased.share().settle(spent, boot_time_ns(), Outcome::Transient, &[]);
        earned_micros += MICROS_PER_TOKEN / 10;
    }
    // It needs a token of admission too.
    while !retried() {
        assert!(boot_time_ns() < deadline_ns, "no retry with {earned_micros} earned");
    }
    let Local::Denied(denied) = leased.reserve(&LocalAsk::retry(4, Cause::Transient)) else { panic!() };
    assert_eq!(denied.reason, DenyReason::AttemptLimit);
    eventually("the ledger hears of it", || {
        coordinator.with_ledger(|ledger, _| ledger.view(boot_time_ns() / 1_000_000).counters.retries_admitted) >= 1
    })
    .await;
}

#[tokio::test]
async fn all_dependencies_of_a_client_share_messages() {
    let coordinator = InProcess::new(&[(1_000_000, 60_000)]);
    let leasing = start(&coordinator);
    for n in 0..50 {
        leasing.dependency(&Dependency::new(&format!("d{n}")).unwrap()).unwrap();
    }
    eventually("rounds", || coordinator.0.asks.load(Ordering::Relaxed) > 1_000).await;
    let messages = coordinator.0.messages.load(Ordering::Relaxed);
    assert!(messages < 200, "{messages} messages for 1,000 asks");
}

#[tokio::test]
async fn q11_with_the_coordinator_away_the_lease_goes_on_along_its_curve_and_then_the_fallback_decides() {
    let coordinator = InProcess::new(&[(1_000_000, 300), (500_000, 300)]);
    let leasing = start(&coordinator);
    let leased = leasing.dependency(&Dependency::new("a").unwrap()).unwrap();
    eventually("an admission", || admitted(leased.reserve(&LocalAsk::ORIGINAL))).await;
    coordinator.0.away.store(true, Ordering::Relaxed);
    eventually("degraded", || leased.standing() == Standing::Degraded).await;
    eventually("still deciding", || admitted(leased.reserve(&LocalAsk::ORIGINAL))).await;
    eventually("beyond the curve", || leased.standing() == Standing::Fallback).await;
    assert_eq!(leased.reserve(&LocalAsk::ORIGINAL), Local::Short);
    eventually("the fallback admits", || admitted(leased.reserve_beyond(&LocalAsk::ORIGINAL))).await;
    coordinator.0.away.store(false, Ordering::Relaxed);
    eventually("leased again", || leased.standing() == Standing::Leased).await;
    eventually("deciding again", || admitted(leased.reserve(&LocalAsk::ORIGINAL))).await;
}

#[tokio::test]
async fn leaving_gives_everything_back_at_once() {
    let coordinator = InProcess::new(&[(1_000_000, 60_000)]);
    let leasing = start(&coordinator);
    let leased = leasing.dependency(&Dependency::new("a").unwrap()).unwrap();
    eventually("an admission", || admitted(leased.reserve(&LocalAsk::ORIGINAL))).await;
    assert!(leasing.leave(LONG).await);
    assert_eq!(leased.reserve(&LocalAsk::ORIGINAL), Local::Short);
    assert_eq!(coordinator.with_ledger(|ledger, _| ledger.holders()), 0);
}

#[tokio::test]
async fn a_copy_of_a_running_process_is_fenced_and_starts_anew() {
    let coordinator = InProcess::new(&[(1_000_000, 60_000)]);
    let leasing = start(&coordinator);
    let leased = leasing.dependency(&Dependency::new("a").unwrap()).unwrap();
    eventually("a lease", || leased.standing() == Standing::Leased).await;
    let first = coordinator.with_ledger(|ledger, _| ledger.list_holders(None, 1)).pop().unwrap();
    // A clone has gone ahead under the same incarnation.
    let mut ask = budget::lease::SyncAsk {
        holder: first.holder.clone(),
        incarnation: first.incarnation,
        sequence: 1_000_000,
        nonce: 1,
        epoch: coordinator.with_ledger(|ledger, _| ledger.epoch()),
        lease: None,
        usage: first.usage,
        counted: budget::lease::Usage::default(),
        in_flight: 0,
        weight: 1,
        leave: false,
    };
    ask.usage.asked += 1_000;
    coordinator.with_ledger(|ledger, ground| ledger.sync(&ask, ground));
    eventually("another incarnation", || {
        let holders = coordinator.with_ledger(|ledger, _| ledger.list_holders(None, 1));
        holders.first().is_some_and(|holder| holder.incarnation != first.incarnation)
    })
    .await;
}

#[tokio::test]
async fn dependencies_are_bounded_and_need_a_runtime() {
    let coordinator = InProcess::new(&[(1_000_000, 60_000)]);
    let options = LeasingOptions { dependencies_max: 2, ..LeasingOptions::default() };
    let leasing = Leasing::start(coordinator, options).unwrap();
    let named = |name: &str| leasing.dependency(&Dependency::new(name).unwrap());
    assert!(named("a").is_ok() && named("b").is_ok() && named("a").is_ok());
    assert!(named("c").unwrap_err().to_string().contains("2 dependencies"));
}

#[tokio::test]
async fn dependencies_that_nobody_uses_are_given_back_and_forgotten() {
    let coordinator = InProcess::new(&[(1_000_000, 60_000)]);
    let options = LeasingOptions {
        holder_id: Some(HolderId::new("test").unwrap()),
        timing: TIMING,
        dependencies_max: 2,
        forget_after: Duration::from_millis(200),
        ..LeasingOptions::default()
    };
    let leasing = Leasing::start(coordinator.clone(), options).unwrap();
    let named = |name: &str| leasing.dependency(&Dependency::new(name).unwrap());
    let holders = |name: &str| {
        coordinator.with_ledger_of(&DependencyId::new(name).unwrap(), |ledger, _| ledger.list_holders(None, 1))
    };
    let (kept, dropped) = (named("kept").unwrap(), named("dropped").unwrap());
    eventually("leases", || [&kept, &dropped].iter().all(|leased| leased.standing() == Standing::Leased)).await;
    let (of_kept, of_dropped) = (holders("kept")[0].incarnation, holders("dropped")[0].incarnation);
    assert!(named("third").is_err());
    drop(dropped);
    eventually("room for another", || named("third").is_ok()).await;
    eventually("its lease is given back", || holders("dropped").first().is_none_or(|holder| holder.charged.rate == 0))
        .await;
    assert_eq!((kept.standing(), holders("kept")[0].incarnation), (Standing::Leased, of_kept), "a handle is kept");
    // The third is forgotten too, for the first to come back in another life.
    eventually("it comes back", || named("dropped").is_ok()).await;
    eventually("it is leased again", || {
        let _used = named("dropped").map(|leased| leased.reserve(&LocalAsk::ORIGINAL));
        holders("dropped").iter().any(|holder| holder.incarnation != of_dropped && holder.charged.rate > 0)
    })
    .await;
}
