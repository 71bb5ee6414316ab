//! One budget for the whole fleet (Q1): what several replicas admit together is what one would.

use std::{sync::Arc, time::Duration};

use budget::{
    decision::{Answer, Attempt, Cause, DenyReason, OperationAsk, Outcome, Release, ReleaseResult, Reserve, Step},
    ids::{Fingerprint, OperationId},
    units::MICROS_PER_TOKEN,
};
use budget_client::{Decision, Dependency};
use budget_tests::{
    daemon::Daemon,
    redis_server::{Flavour, RedisServer},
    security,
};
use budgetd::clock::Clock;
use tokio::task::JoinSet;

use crate::redis_world::{Replica, fresh_id, is_admitted, original, patient, retry};

const CLIENTS: usize = 64;

async fn two_replicas(server: &RedisServer, clock: &Clock) -> [Arc<Replica>; 2] {
    let settings = patient(&server.unix_url());
    let first = Replica::start(&settings, clock.clone()).await;
    first
        .put(
            "shared",
            "admission = { rate = \"100/s\", burst = 50 }\nretry = { ratio = 0.3, floor = \"7/s\", burst = 1000 }",
        )
        .await;
    let second = Replica::start(&settings, clock.clone()).await;
    [Arc::new(first), Arc::new(second)]
}

/// 64 clients on two replicas ask until refused after every step of the clock, while scripts are flushed: the admitted
/// are the policy's, to the token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q1_two_replicas_admit_exactly_the_policy() {
    const STEPS: i64 = 40;
    let server = RedisServer::start(Flavour::Redis7);
    let (clock, hands) = Clock::manual(1_000_000);
    let replicas = two_replicas(&server, &clock).await;
    let (mut originals, mut retries) = (0_i64, 0_i64);
    for step in 0..STEPS {
        if step % 8 == 3 {
            server.cli(&["SCRIPT", "FLUSH"]);
        }
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let replica = Arc::clone(&replicas[client % 2]);
            clients.spawn(async move {
                let mut admitted = (0, 0);
                // A refused retry may be followed by an admitted original, which earns: so both until both are refused.
                loop {
                    let id = fresh_id();
                    let first = is_admitted(&replica.answer("shared", original(id)).await);
                    if first {
                        assert_eq!(replica.release("shared", id).await, ReleaseResult::Applied);
                    }
                    if !first {
                        return admitted;
                    }
                    admitted.0 += 1;
                    if is_admitted(&replica.answer("shared", retry(fresh_id())).await) {
                        admitted.1 += 1;
                    }
                }
            });
        }
        while let Some(client) = clients.join_next().await {
            let (more_originals, more_retries) = client.expect("a client");
            originals += more_originals;
            retries += more_retries;
        }
        hands.advance(100);
    }
    let view = replicas[1].view("shared").await.expect("state");
    // What clients saw is what the ledger counted.
    assert_eq!((view.counters.originals_admitted, view.counters.retries_admitted), (originals, retries));
    // One token to begin with and ten in each of the steps between; a retry takes one as well.
    let elapsed_ms = STEPS * 100;
    let earned = MICROS_PER_TOKEN + elapsed_ms * 100_000;
    assert_eq!(view.admission_balance_micros, Some(earned - (originals + retries) * MICROS_PER_TOKEN));
    assert_eq!(originals + retries, 1 + (STEPS - 1) * 10, "everything was asked for");
    assert_eq!(view.counters.deposited_micros, originals * 300_000);
    let retry_tokens = originals * 300_000 + elapsed_ms * 7_000 - retries * MICROS_PER_TOKEN;
    assert_eq!(view.retry_balance_micros, retry_tokens);
}

/// A worker that was started twice, and a call that was sent twice, on either replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q9_a_duplicate_worker_is_never_admitted_and_a_resend_never_charged() {
    let server = RedisServer::start(Flavour::Redis7);
    let (clock, hands) = Clock::manual(1_000_000);
    let replicas = two_replicas(&server, &clock).await;
    hands.advance(10_000);
    for round in 0..50 {
        hands.advance(200);
        let ask = |id| Reserve {
            operation: Some(OperationAsk {
                id: OperationId::new(&format!("order-{round}")).unwrap(),
                fingerprint: Fingerprint::from_slice(&[9; 16]).unwrap(),
                expires_in_ms: None,
            }),
            ..Reserve::new(id, Attempt::ORIGINAL)
        };
        let before = replicas[0].view("shared").await.map_or(0, |view| view.counters.originals_admitted);
        let mut workers = JoinSet::new();
        let ids = [fresh_id(), fresh_id()];
        for worker in 0..8_usize {
            let replica = Arc::clone(&replicas[worker % 2]);
            // Four sends of each of two workers, spread over both replicas.
            let ask = ask(ids[worker / 4]);
            workers.spawn(async move { (worker / 4, replica.answer("shared", Step::Reserve(ask)).await) });
        }
        let mut admitted = [0, 0];
        let mut fresh = 0;
        while let Some(worker) = workers.join_next().await {
            let (worker, answer) = worker.unwrap();
            match answer {
                Answer::Admitted(answer) => {
                    admitted[worker] += 1;
                    fresh += i32::from(!answer.replayed);
                }
                Answer::Denied(denied) => assert_eq!(denied.reason, DenyReason::InProgress),
                other @ (Answer::Released(_) | Answer::Extended(_) | Answer::Invalid(_)) => panic!("{other:?}"),
            }
        }
        assert!(admitted == [4, 0] || admitted == [0, 4], "{admitted:?}");
        assert_eq!(fresh, 1);
        let after = replicas[1].view("shared").await.unwrap().counters.originals_admitted;
        assert_eq!(after, before + 1);
    }
}

struct Tally {
    originals: i64,
    retries: i64,
    lost: i64,
}

async fn hammer(endpoint: String, name: &'static str, calls: usize) -> Tally {
    let client = security::client(&endpoint);
    let dependency = Dependency::new(name).expect("a name");
    let within = Duration::from_secs(5);
    let mut tally = Tally { originals: 0, retries: 0, lost: 0 };
    for call in 0..calls {
        let is_retry = call % 4 == 3;
        let attempt = if is_retry { Attempt::retry(2, Cause::Transient) } else { Attempt::ORIGINAL };
        let ask = Reserve::new(fresh_id(), attempt);
        match client.reserve(&dependency, &ask, within).await {
            Ok(reserved) => {
                if let Decision::Admitted(_) = reserved.decision {
                    if is_retry {
                        tally.retries += 1;
                    } else {
                        tally.originals += 1;
                    }
                    let release = Release::sent(ask.id, Outcome::Success);
                    let _ = client.release(&dependency, &release, within).await;
                }
            }
            // Whether it was charged is not known.
            Err(_) => tally.lost += 1,
        }
    }
    tally
}

/// One of two daemons dies under 64 clients and comes back, scripts are flushed: the ledger is exact, and differs from
/// what the clients saw only by calls whose answer was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q1_a_killed_replica_and_flushed_scripts_lose_no_token() {
    const CALLS: usize = 60;
    let server = RedisServer::start(Flavour::Redis7);
    let policy = tempfile::NamedTempFile::new().unwrap();
    let text = "[dependency.\"shared\"]\nretry = { ratio = 0.05, floor = \"0/s\", burst = 1000000 }\n";
    std::fs::write(policy.path(), text).unwrap();
    let url = server.unix_url();
    let arguments = ["--store", url.as_str(), "--policy", policy.path().to_str().unwrap()];
    let first = Daemon::start(&arguments);
    let mut second = Daemon::start(&arguments);
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let endpoint = if client % 2 == 0 { first.endpoint() } else { second.endpoint() };
        clients.spawn(hammer(endpoint, "shared", CALLS));
    }
    let mut total = Tally { originals: 0, retries: 0, lost: 0 };
    let mut ended = 0;
    while let Some(tally) = clients.join_next().await {
        let tally = tally.unwrap();
        total.originals += tally.originals;
        total.retries += tally.retries;
        total.lost += tally.lost;
        ended += 1;
        match ended {
            1 => {
                server.cli(&["SCRIPT", "FLUSH"]);
                second.kill();
                second.restart();
                for _ in 0..CLIENTS / 2 {
                    clients.spawn(hammer(second.endpoint(), "shared", CALLS));
                }
            }
            20 | 40 => {
                server.cli(&["SCRIPT", "FLUSH"]);
            }
            _ => {}
        }
    }
    let replica = Replica::connect(&server.unix_url()).await;
    let view = replica.view("shared").await.expect("state");
    let (originals, retries) = (view.counters.originals_admitted, view.counters.retries_admitted);
    println!("ledger {originals} + {retries}, clients {} + {}, lost {}", total.originals, total.retries, total.lost);
    assert_eq!(view.counters.deposited_micros, originals * 50_000);
    assert_eq!(view.retry_balance_micros, originals * 50_000 - retries * MICROS_PER_TOKEN);
    let seen = total.originals + total.retries;
    assert!((seen..=seen + total.lost).contains(&(originals + retries)));
    assert!(view.counters.retries_denied > 0 && retries > 0 && total.originals > 0);
}
