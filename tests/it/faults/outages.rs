//! Redis forgets its scripts, stands still, refuses, is demoted, or is slow.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use budget::decision::{DenyReason, Outcome, Release};
use budget_client::{Decision, Error, Mode};
use budget_tests::{
    eventually::eventually,
    proxy::{Proxy, Upstream},
    redis_server::{Flavour, RedisServer},
    rng::Rng,
};
use budgetd::clock::Clock;
use futures::future::join_all;
use tokio::{task::JoinSet, time::timeout};

use super::{
    ground::{BOUND, CALL, Caller, Footprint, Ground, Metrics, On, PATIENT, Verdict, get, original, timed},
    load::Load,
};

/// No call takes longer while Redis is away, however busy the machine; the time-outs add up to 0.65 s, and callers would wait
/// for a minute.
const ANSWER: Duration = BOUND;
/// Three ways to do without the store.
const FALLBACKS: &str = "[defaults]\nadmission = { rate = \"1M/s\", burst = 1000 }\n\
                         [dependency.closed]\nfallback.originals = \"deny\"\n\
                         [dependency.open]\nfallback.originals = \"allow\"\n\
                         [dependency.part]\nfallback.originals = \"5/s\"\n";

/// Seen to fail with NOSCRIPT taken for an error (callers fail), with answered calls sent again now and then (more loads
/// than flushes explain), and with scripts always sent by their text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a01_flushed_scripts_cost_no_call_and_change_no_count() {
    const BURST: i64 = 1500;
    const FLUSHES: u64 = 60;
    let mut ground = Ground::with(On::Redis7, "", 2, &PATIENT);
    let pay = ground.caller("pay");
    let policy = |rate: &str| {
        format!("admission = {{ rate = \"{rate}\", burst = {BURST} }}\nretry = {{ floor = \"{rate}\", burst = 1 }}\n")
    };
    pay.filled(&policy("1M/s"), &policy("1/d")).await;
    let before = pay.status().await.counters.originals_admitted;
    ground.redis().cli(&["CONFIG", "RESETSTAT"]);
    let load = Load::start([ground.caller_at(0, "pay"), ground.caller_at(1, "pay")], 16);
    for _ in 0..FLUSHES {
        ground.redis().cli(&["SCRIPT", "FLUSH"]);
        load.goes_on(40).await;
    }
    while load.tally.answered() < 2 * BURST {
        load.goes_on(1).await;
    }
    let seen = load.end().await;
    assert_eq!((seen.failed.load(Relaxed), seen.shed.load(Relaxed), seen.degraded.load(Relaxed)), (0, 0, 0));
    assert_eq!(seen.admitted.load(Relaxed), BURST, "{seen:?}");
    let counted = pay.status().await;
    assert_eq!(counted.counters.originals_admitted, before + BURST);
    assert_eq!((counted.in_flight, counted.counters.permits_expired), (0, 0));
    let calls = |command: &str| ground.redis().info("commandstats", &format!("cmdstat_{command}"), "calls");
    // One dependency: one lane of each daemon loads its script once for each flush; views and contact send theirs.
    assert!((1..=2 * FLUSHES + 2).contains(&calls("script|load")), "{} loads", calls("script|load"));
    let mut reloads = 0.0;
    for daemon in &ground.daemons {
        reloads += Metrics::of(daemon).await.sum("budgetd_store_noscript_reloads_total", &[]);
    }
    assert!((reloads - f64::from(u32::try_from(calls("script|load")).unwrap())).abs() < 2.5, "{reloads} are shown");
    assert!(calls("eval") <= 8 * FLUSHES, "{} scripts sent by their text", calls("eval"));
    // A restarted Redis knows neither scripts nor budgets.
    ground.redis_mut().restart();
    for replica in 0..2 {
        ground.caller_at(replica, "other").decided_exactly_within(BOUND).await;
    }
    ground.all_live();
}

/// What each fallback answers while the store is away, each call within its bound.
async fn assert_fallbacks(ground: &Ground) {
    let part = ground.caller("part");
    let (granted, took) = timed(async {
        let all = ["closed", "open"].map(|name| ground.caller(name));
        let mut granted = 0;
        for round in 0..10_u64 {
            // A caller's own deadline may come first, or hardly ever.
            let within = if round % 2 == 0 { CALL } else { 3 * BOUND };
            let ask = original();
            let calls =
                all.iter().chain([&part]).map(|caller| timed(caller.client.reserve(&caller.dependency, &ask, within)));
            let answers = join_all(calls).await;
            for (answer, took) in &answers {
                assert!(*took < ANSWER, "{took:?}: {answer:?}");
                assert_eq!(answer.as_ref().unwrap().mode, Mode::Degraded);
            }
            let decided = |at: usize| answers[at].0.as_ref().unwrap().decision.clone();
            assert!(matches!(decided(0), Decision::Denied(denied) if denied.reason == DenyReason::Fallback));
            assert!(decided(1).admitted());
            granted += u32::from(decided(2).admitted());
        }
        granted
    })
    .await;
    assert!(f64::from(granted) <= 6.0 + 5.0 * took.as_secs_f64(), "{granted} in {took:?}");
    // Only the ledger knows what a release ends.
    let release = Release::sent(original().id, Outcome::Success);
    let (answer, took) = timed(part.client.release(&part.dependency, &release, 3 * BOUND)).await;
    assert!(matches!(answer, Err(Error::Unavailable(_))) && took < ANSWER, "{took:?}: {answer:?}");
}

async fn all_exact(ground: &Ground) {
    for name in ["closed", "open", "part"] {
        ground.caller(name).decided_exactly_within(BOUND).await;
    }
}

/// Seen to fail with no response time-out on connections: the first call takes the caller's whole minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a02_a_frozen_redis_is_answered_for_by_the_fallback() {
    let mut ground = Ground::with(On::Redis7, FALLBACKS, 1, &[]);
    all_exact(&ground).await;
    let before = Footprint::of(ground.daemon());
    for _ in 0..2 {
        ground.redis_mut().freeze();
        assert_fallbacks(&ground).await;
        ground.redis_mut().thaw();
        all_exact(&ground).await;
    }
    let after = Footprint::of(ground.daemon());
    assert!(after.threads <= before.threads + 1 && after.open_files <= before.open_files + 8, "{before:?}, {after:?}");
    assert!(after.resident_kib < before.resident_kib + 8 * 1024, "{before:?}, {after:?}");
    ground.all_live();
}

/// Packets vanish, connections stay; then connections are refused. Seen to fail as with a frozen Redis, and with probes
/// that pause for a millisecond: hundreds of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a02_a_black_hole_costs_neither_time_nor_processor() {
    let redis = RedisServer::start(Flavour::Redis7);
    let proxy = Proxy::start(Upstream::Unix(redis.socket())).await;
    let mut ground = Ground::by(redis, &proxy.redis_url(), FALLBACKS, &[]);
    all_exact(&ground).await;
    proxy.blackhole();
    assert_fallbacks(&ground).await;
    let (before, accepted) = (Footprint::of(ground.daemon()), proxy.counts().accepted);
    let (_, took) = timed(eventually(BOUND, "six more probes", async || proxy.counts().accepted >= accepted + 6)).await;
    let after = Footprint::of(ground.daemon());
    assert!(took > Duration::from_millis(600), "probes without pause: {took:?}");
    assert!(after.busy - before.busy < took / 3, "{before:?}, {after:?} in {took:?}");
    assert!(after.threads <= before.threads && after.open_files <= before.open_files + 4, "{before:?}, {after:?}");
    proxy.pass();
    proxy.cut().await;
    all_exact(&ground).await;

    proxy.refuse().await;
    proxy.cut().await;
    assert_fallbacks(&ground).await;
    let probes = async || Metrics::of(ground.daemon()).await.sum("budgetd_store_errors_total", &["kind=\"connect\""]);
    let (probed, before, start) = (probes().await, Footprint::of(ground.daemon()), Clock::instant());
    eventually(BOUND, "time goes by", async || Clock::instant() - start > Duration::from_secs(1)).await;
    eventually(BOUND, "a probe", async || probes().await > probed).await;
    let (probed, after) = (probes().await - probed, Footprint::of(ground.daemon()));
    let took = Clock::instant() - start;
    assert!(probed <= 10.0 * took.as_secs_f64() + 1.0, "{probed} probes in {took:?}, with pauses of 100 to 500 ms");
    assert!(after.busy - before.busy < took / 2, "{before:?}, {after:?} in {took:?}");
    proxy.accept().await;
    all_exact(&ground).await;
    ground.all_live();
}

/// Seen to fail with the store's address logged as it was given.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a02_a_wrong_password_is_an_outage_until_it_is_right() {
    let redis = RedisServer::start(Flavour::Redis7);
    redis.cli(&["ACL", "SETUSER", "daemon", "on", ">s3cret-one", "~*", "&*", "+@all"]);
    let url = format!("redis://daemon:s3cret-one@{}", redis.address());
    let mut ground = Ground::by(redis, &url, FALLBACKS, &[]);
    all_exact(&ground).await;
    ground.redis().cli(&["ACL", "SETUSER", "daemon", "resetpass", ">another"]);
    ground.redis().cli(&["CLIENT", "KILL", "USER", "daemon"]);
    eventually(BOUND, "the store counts as away", async || {
        ground.caller("open").reserve(&original()).await.is_ok_and(|seen| seen.mode == Mode::Degraded)
    })
    .await;
    assert_fallbacks(&ground).await;
    // One that never had the right one gives no fallback: nobody knows how many share it.
    ground.add(&url, &[]);
    let late = ground.caller_at(1, "open");
    let (answer, took) = timed(late.client.reserve(&late.dependency, &original(), 3 * BOUND)).await;
    assert!(matches!(answer, Err(Error::Unavailable(_))) && took < ANSWER, "{took:?}: {answer:?}");
    assert_eq!(get(ground.daemons[1].http(), "/readyz").await.0, 503);
    ground.redis().cli(&["ACL", "SETUSER", "daemon", ">s3cret-one"]);
    all_exact(&ground).await;
    late.decided_exactly_within(BOUND).await;
    assert_eq!(get(ground.daemons[1].http(), "/readyz").await.0, 200);
    for daemon in &ground.daemons {
        assert!(!daemon.process().logged("s3cret-one"), "{}", daemon.process().tail());
        assert!(!Metrics::of(daemon).await.0.contains("s3cret-one"));
    }
    ground.all_live();
}

/// Seen to fail with READONLY taken for the state of one dependency: each call is an error for ever, and the store up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a03_a_demoted_redis_is_used_again_when_it_is_promoted() {
    let mut ground = Ground::with(On::Redis7, FALLBACKS, 1, &PATIENT);
    all_exact(&ground).await;
    for _ in 0..3 {
        let counted = ground.caller("open").status().await.counters.originals_admitted;
        ground.redis().cli(&["REPLICAOF", "127.0.0.1", "1"]);
        assert_fallbacks(&ground).await;
        ground.redis().cli(&["REPLICAOF", "NO", "ONE"]);
        all_exact(&ground).await;
        let since = ground.caller("open").status().await.counters.originals_admitted - counted;
        assert!((1..=2).contains(&since), "what was admitted without the store is not in the ledger: {since}");
    }
    ground.all_live();
}

/// Seen to fail with a step not sent again after its connection broke (callers fail, or are answered without the store).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a03_killed_connections_are_replaced_under_load() {
    let mut ground = Ground::with(On::Redis7, "", 2, &PATIENT);
    let loads = [0, 1].map(|replica| Load::start([ground.caller_at(replica, "pay")], 8));
    for _ in 0..30 {
        // Each has been through more than the round that was cut, so no call meets two cuts.
        for load in &loads {
            load.goes_on(30).await;
        }
        ground.redis().cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    let mut admitted = 0;
    for load in loads {
        load.goes_on(50).await;
        let seen = load.end().await;
        assert_eq!((seen.failed.load(Relaxed), seen.degraded.load(Relaxed)), (0, 0), "{seen:?}");
        admitted += seen.admitted.load(Relaxed);
    }
    assert_eq!(ground.caller("pay").status().await.counters.originals_admitted, admitted);
    ground.all_live();
}

/// So slow that calls queue up, but not too slow to answer.
///
/// Seen to fail without the bound on calls: everybody waits, nobody is shed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a25_a_slow_redis_sheds_calls_and_recovers_at_once() {
    let redis = RedisServer::start(Flavour::Redis7);
    let proxy = Proxy::start(Upstream::Unix(redis.socket())).await;
    let bounds = [&PATIENT[..], &["--redis-pool-size", "2", "--max-concurrent", "64"]].concat();
    let mut ground = Ground::by(redis, &proxy.redis_url(), "", &bounds);
    let pay = ground.caller("pay");
    pay.decided_exactly_within(BOUND).await;
    let before = pay.status().await.counters.originals_admitted;
    proxy.delay(Duration::from_millis(50));
    let load = Load::start([pay.clone()], 500);
    load.goes_on(400).await;
    for _ in 0..10 {
        let answer = pay.reserve(&original()).await;
        assert!(matches!(answer, Ok(_) | Err(Error::Overloaded(_))), "{answer:?}");
    }
    let seen = load.end().await;
    assert!(seen.shed.load(Relaxed) > 100 && seen.failed.load(Relaxed) == 0, "{seen:?}");
    assert_eq!(seen.degraded.load(Relaxed), 0, "overload must not loosen a budget");
    proxy.pass();
    for _ in 0..20 {
        assert!(pay.original().await.is_some());
    }
    let counted = pay.status().await.counters.originals_admitted - before;
    // The ten calls in between may have been admitted as well.
    let known = seen.admitted.load(Relaxed) + 20;
    assert!((known..=known + 10).contains(&counted), "{counted} of {known}");
    let clients = ground.redis().info("clients", "connected_clients", "");
    assert!(clients <= 12, "{clients} connections for a pool of two and what else there is");
    ground.all_live();
}

/// Slower than the response time-out. Seen to fail with no time-out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a25_a_redis_slower_than_its_time_out_is_an_outage() {
    let redis = RedisServer::start(Flavour::Redis7);
    let proxy = Proxy::start(Upstream::Unix(redis.socket())).await;
    let mut ground = Ground::by(redis, &proxy.redis_url(), FALLBACKS, &["--redis-pool-size", "2"]);
    all_exact(&ground).await;
    proxy.delay(Duration::from_millis(200));
    let load = Load::start([ground.caller("open"), ground.caller("closed")], 50);
    eventually(BOUND, "calls are answered without the store", async || load.tally.degraded.load(Relaxed) > 200).await;
    let seen = load.end().await;
    assert_eq!(seen.failed.load(Relaxed), 0, "{seen:?}");
    assert_fallbacks(&ground).await;
    proxy.pass();
    all_exact(&ground).await;
    ground.all_live();
}

/// Seen to fail with the places of callers that went not given back: everything is overload in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a25_cancelled_calls_leave_no_place_taken() {
    const CALLS: usize = if cfg!(debug_assertions) { 3_000 } else { 10_000 };
    let bounds = [&PATIENT[..], &["--redis-pool-size", "2", "--max-concurrent", "256"]].concat();
    let mut ground = Ground::with(On::Redis7, "", 1, &bounds);
    let mut rng = Rng::seeded("a25");
    let mut callers = JoinSet::new();
    for at in 0..32 {
        let (caller, mut rng): (Caller, Rng) = (ground.caller(["a", "b", "c"][at % 3]), rng.fork());
        callers.spawn(async move {
            for _ in 0..CALLS / 32 {
                let patience = Duration::from_micros(rng.below(3_000));
                let call = async {
                    let answer = caller.reserve(&original()).await;
                    assert!(answer.is_ok(), "{answer:?}");
                    caller.try_status().await.map(drop)
                };
                if let Ok(answer) = timeout(patience, call).await {
                    answer.unwrap();
                }
            }
        });
    }
    callers.join_all().await;
    eventually(BOUND, "no call is left", async || {
        Metrics::of(ground.daemon()).await.sum("budgetd_calls_in_progress", &[]) < 0.5
    })
    .await;
    for name in ["a", "b", "c"] {
        let caller = ground.caller(name);
        let asks = join_all((0..100).map(|_| caller.original())).await;
        assert!(asks.iter().all(Option::is_some), "{name}");
        let seen = caller.status().await;
        assert!(seen.counters.originals_admitted >= 100 && seen.in_flight == seen.counters.originals_admitted);
    }
    assert!(ground.redis().info("clients", "connected_clients", "") <= 12);
    ground.all_live();
}
