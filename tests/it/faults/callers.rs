//! Callers that go away, and callers that are too late.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use budget::decision::{DenyReason, ReleaseResult, Reserve};
use budget_client::{Decision, Error};
use budget_proto::pb::{self, retry_budget_client::RetryBudgetClient};
use budget_tests::{
    daemon,
    eventually::eventually,
    process::{Gone, Process},
    proxy::{Proxy, Upstream},
    redis_server::{Flavour, RedisServer},
    rng::Rng,
    security,
};
use futures::future::join_all;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::timeout,
};
use tonic::Code;

use super::ground::{BOUND, CALL, Caller, Ground, Metrics, On, Verdict, original, timed};

const ROUNDS: usize = 1000;
const CALLERS: usize = 8;

/// One caller that comes to some end. How many reservations it has released.
async fn live_and_die(caller: &Caller, endpoint: &str, rng: &mut Rng) -> i64 {
    match rng.below(51) {
        // Gives up at a random moment.
        0..15 => {
            let patience = Duration::from_micros(rng.below(2_000));
            drop(timeout(patience, caller.reserve(&original())).await);
        }
        // Its stream ends with calls unanswered.
        15..25 => {
            let session = caller.client.session(CALL).await.unwrap();
            let asks = [original(), original(), original()];
            let unanswered = join_all(asks.iter().map(|ask| session.reserve(&caller.dependency, ask, CALL)));
            drop(timeout(Duration::from_micros(rng.below(1_000)), unanswered).await);
        }
        // Dies after it was admitted.
        25..35 => drop(caller.original().await),
        // Says something senseless after that, then dies.
        35..42 => {
            let Some(id) = caller.original().await else { return 0 };
            let channel = security::channel(endpoint).await;
            let senseless = pb::ReleaseRequest {
                dependency: caller.dependency.id().to_string(),
                reservation_id: id.0[..15].to_vec(),
                r#use: None,
                operation_id: None,
            };
            let refused = RetryBudgetClient::new(channel).release(senseless).await.unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument);
        }
        // Is killed, wherever it stands.
        42 => {
            let (name, flags) = (caller.dependency.id().to_string(), security::flags(endpoint));
            let patience = Duration::from_millis(rng.below(100));
            spawn_blocking(move || {
                let mut command = Command::new(daemon::binary());
                command.args(["reserve", &name]).args(flags);
                let mut process = Process::spawn("a caller", command);
                let ended = process.wait_until(patience, |_| None::<()>);
                assert!(matches!(ended, Err(Gone::TooSlow | Gone::Exited(_))));
                process.kill();
            })
            .await
            .unwrap();
        }
        _ => {
            let Some(id) = caller.original().await else { return 0 };
            let answer = caller.succeed(id).await;
            // Late on a busy machine: its time has ended, or its record has gone since, after two permit lives.
            assert_ne!(answer, ReleaseResult::AlreadyReleased);
            return i64::from(answer == ReleaseResult::Applied);
        }
    }
    0
}

/// Seen to fail with generations of reservations that end without handing their permits back (both copies): after a few
/// rounds nobody is admitted any more.
async fn a09_permits_of_callers_that_died_come_back(on: On) {
    let policy = "[dependency.pay]\nadmission = { max_in_flight = 4, permit_ttl = \"150ms\" }\n";
    let mut ground = Ground::new(on, policy);
    let (pay, endpoint) = (ground.caller("pay"), ground.daemon().endpoint());
    let released = Arc::new(AtomicI64::new(0));
    let mut rng = Rng::seeded("a09");
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (pay, endpoint, released, mut rng) = (pay.clone(), endpoint.clone(), Arc::clone(&released), rng.fork());
        callers.spawn(async move {
            for _ in 0..ROUNDS / CALLERS {
                released.fetch_add(live_and_die(&pay, &endpoint, &mut rng).await, Relaxed);
            }
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    eventually(BOUND, "all permits are back", async || pay.status().await.in_flight == 0).await;
    let again = join_all((0..20).map(|_| pay.original())).await.into_iter().flatten().count();
    assert_eq!(again, 4);
    let counters = pay.status().await.counters;
    // How many depends on how fast the machine is: the callers may be done within a few lives of a permit.
    assert!(counters.permits_expired > 0, "{counters:?}");
    assert_eq!(counters.originals_admitted, released.load(Relaxed) + counters.permits_expired + 4, "{counters:?}");
    eventually(BOUND, "a metric counts what expired", async || {
        let shown = Metrics::of(ground.daemon()).await.sum("budgetd_permits_expired_total", &["dependency=\"pay\""]);
        shown >= f64::from(i32::try_from(counters.permits_expired).unwrap())
    })
    .await;
    let metrics = Metrics::of(ground.daemon()).await;
    assert!(metrics.sum("budgetd_calls_in_progress", &[]) < 0.5 && metrics.sum("budgetd_sessions", &[]) < 0.5);
    ground.all_live();
}
on_each_store!(a09_permits_of_callers_that_died_come_back);

/// Seen to fail with `time_left_ms` ignored by the booking (both copies): the ask is admitted for a time after its
/// deadline.
async fn a24_an_ask_that_would_start_too_late_takes_nothing(on: On) {
    let ground = Ground::new(on, "");
    let pay = ground.caller("pay");
    pay.put("admission = { rate = \"1/min\", burst = 1, max_wait = \"1h\" }").await;
    assert!(pay.original().await.is_some());
    let before = pay.status().await;
    let patient = Reserve { max_wait_ms: 3_600_000, ..original() };
    for ask in [patient.clone(), Reserve { time_left_ms: Some(0), ..patient.clone() }] {
        let answer = pay.client.reserve(&pay.dependency, &ask, Duration::from_secs(5)).await.unwrap().decision;
        assert!(matches!(&answer, Decision::Denied(denied) if denied.reason == DenyReason::NoTimeLeft), "{answer:?}");
    }
    let after = pay.status().await;
    assert_eq!(after.counters.originals_admitted, before.counters.originals_admitted);
    assert!(after.admission.unwrap().balance_micros >= before.admission.unwrap().balance_micros);
    // With time enough it books ahead.
    assert!(
        pay.client.reserve(&pay.dependency, &patient, Duration::from_secs(3600)).await.unwrap().decision.admitted()
    );
    assert!(pay.status().await.admission.unwrap().balance_micros < 0);
}
on_each_store!(a24_an_ask_that_would_start_too_late_takes_nothing);

/// Seen to fail without a bound of the server's own on pending resets: callers that share a connection cut each other
/// off (`too_many_resets`). And with the record of an admission not kept: what is sent again is charged again.
async fn a24_tiny_deadlines_under_load_are_kept(on: On) {
    let mut ground = Ground::new(on, "");
    let pay = ground.caller("pay");
    assert!(pay.original().await.is_some());
    let mut callers = JoinSet::new();
    for _ in 0..64 {
        let caller = pay.clone();
        callers.spawn(async move {
            let mut late = 0;
            for round in 0..30 {
                let (ask, within) = (original(), Duration::from_millis(1 + round % 3));
                let (answer, took) = timed(caller.client.reserve(&caller.dependency, &ask, within)).await;
                assert!(took < within + CALL, "{took:?}");
                match answer {
                    Ok(answer) if answer.decision.admitted() => continue,
                    // It may have been taken, or it was seen to be too late.
                    Ok(_) | Err(Error::DeadlineExceeded | Error::DeadlinePassed) => late += 1,
                    Err(error) => panic!("{error:?}"),
                }
                // Whatever became of it: sent again, it is admitted, and counted once.
                assert!(caller.ask(&ask).await.admitted());
            }
            late
        });
    }
    let late: u32 = callers.join_all().await.into_iter().sum();
    assert!(late > 0, "nobody was late: this test tests nothing");
    assert_eq!(pay.status().await.counters.originals_admitted, 1 + 64 * 30);
    eventually(BOUND, "no call is left", async || {
        Metrics::of(ground.daemon()).await.sum("budgetd_calls_in_progress", &[]) < 0.5
    })
    .await;
    ground.all_live();
}
on_each_store!(a24_tiny_deadlines_under_load_are_kept);

/// Seen to fail with `Waiting::claim` taking steps whose deadline has passed and the time in the queue not taken off what
/// the ledger is told (either alone suffices): 401 are admitted instead of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a24_calls_that_expire_in_the_queue_take_nothing() {
    let redis = RedisServer::start(Flavour::Redis7);
    let proxy = Proxy::start(Upstream::Unix(redis.socket())).await;
    let ground = Ground::by(
        redis,
        &proxy.redis_url(),
        "",
        &["--redis-response-timeout", "60s", "--redis-connect-timeout", "60s"],
    );
    // Such a name makes a script call the largest request by far, so that its own can be waited for.
    let pay = ground.caller(&"long".repeat(64));
    pay.decided_exactly_within(BOUND).await;
    let before = pay.status().await.counters.originals_admitted;
    proxy.hold_requests();
    let held = proxy.counts().requests_held;
    let first = pay.clone();
    let first = tokio::spawn(async move { first.client.reserve(&first.dependency, &original(), 3 * BOUND).await });
    eventually(BOUND, "a script call is under way", async || proxy.counts().requests_held > held + 1_200).await;
    let session = pay.client.session(CALL).await.unwrap();
    let late = (0..200).map(|at| {
        let (pay, session) = (pay.clone(), session.clone());
        async move {
            // Long enough for all to arrive at a busy machine.
            let within = Duration::from_millis(5_000 + at % 40);
            let (ask, on_session) = (original(), original());
            let unary = pay.client.reserve(&pay.dependency, &ask, within);
            let in_session = session.reserve(&pay.dependency, &on_session, within);
            let ((unary, in_session), took) = timed(async { tokio::join!(unary, in_session) }).await;
            assert!(took < within + CALL, "{took:?}");
            for answer in [unary, in_session] {
                assert!(matches!(answer, Err(Error::DeadlineExceeded | Error::DeadlinePassed)), "{answer:?}");
            }
        }
    });
    // The way to the daemon is not counted: a call that arrives when its caller has given up has its own time then.
    let in_progress = async |calls: f64| {
        eventually(BOUND, &format!("{calls} calls wait"), async || {
            (Metrics::of(ground.daemon()).await.sum("budgetd_calls_in_progress", &[]) - calls).abs() < 0.5
        })
        .await;
    };
    tokio::join!(join_all(late), in_progress(401.0));
    in_progress(1.0).await;
    assert!(!first.is_finished());
    proxy.pass();
    assert!(first.await.unwrap().unwrap().decision.admitted());
    assert_eq!(pay.status().await.counters.originals_admitted, before + 1);
}
