//! The end of a daemon, whatever its callers and its store do.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use budget_client::Error;
use budget_tests::{
    daemon,
    eventually::eventually,
    process::Process,
    proxy::{Proxy, Upstream},
    redis_server::{Flavour, RedisServer},
    security,
};
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet};

use super::ground::{BOUND, Caller, Ground, On, get, original, timed};

/// More than the limit of 2 s and what comes after it, on a busy machine.
const END: Duration = BOUND;

/// Reserves and releases without pause until the daemon is gone. Errors but for that are counted.
fn load(ground: &Ground, callers: usize) -> (JoinSet<()>, Arc<AtomicU64>, Arc<AtomicU64>) {
    let (done, wrong) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let caller = ground.caller("pay");
        let (done, wrong) = (Arc::clone(&done), Arc::clone(&wrong));
        tasks.spawn(async move {
            loop {
                match caller.reserve(&original()).await {
                    Ok(_) => done.fetch_add(1, Relaxed),
                    // Not sent: it has closed its door.
                    Err(Error::Unreachable(_)) => return,
                    Err(error) => {
                        eprintln!("a call in flight failed: {error:?}");
                        wrong.fetch_add(1, Relaxed);
                        return;
                    }
                };
            }
        });
    }
    (tasks, done, wrong)
}

/// Connections that say nothing, or only half of a greeting.
async fn silent(daemon: &daemon::Daemon) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for at in 0..60 {
        let mut stream = TcpStream::connect(if at % 3 == 0 { daemon.http() } else { daemon.grpc() }).await.unwrap();
        if at % 3 == 1 {
            stream.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
        }
        streams.push(stream);
    }
    streams
}

/// The preface of HTTP/2 and empty settings: a client that goes on to ignore everything, as a stopped process does.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Seen to fail with no limit on the wait for the gRPC server, and with `process::exit` in place of that wait, by answers
/// that were applied and never given.
async fn a26_sigterm_under_load_ends_in_time_and_loses_no_answer(on: On) {
    let limit = [&super::ground::PATIENT[..], &["--shutdown-timeout", "2s"]].concat();
    let mut ground = Ground::with(on, "", 2, &limit);
    let quiet = silent(ground.daemon()).await;
    let session = ground.caller("pay").client.session(BOUND).await.unwrap();
    let mut watching = Command::new(daemon::binary());
    watching.args(["status", "--watch"]).args(ground.daemon().flags());
    let mut watching = Process::spawn("a client", watching);
    watching.wait_until(BOUND, |client| (!client.log().is_empty()).then_some(())).unwrap();
    watching.freeze();
    let (tasks, done, wrong) = load(&ground, 8);
    eventually(BOUND, "calls are answered", async || done.load(Relaxed) > 200).await;
    ground.daemon_mut().terminate();
    let (status, took) = timed(async { ground.daemon_mut().wait(BOUND) }).await;
    assert!(status.success(), "{status}; {}", ground.daemon().process().tail());
    assert!(took < END, "{took:?}");
    tasks.join_all().await;
    assert_eq!(wrong.load(Relaxed), 0);
    if on == On::Redis7 {
        // What the ledger admitted, the callers know of.
        let seen = ground.caller_at(1, "pay").status().await;
        assert_eq!(u64::try_from(seen.counters.originals_admitted).unwrap(), done.load(Relaxed));
    }
    assert!(session.ended().is_some());
    drop(quiet);
}
on_each_store!(a26_sigterm_under_load_ends_in_time_and_loses_no_answer);

/// Seen to fail as [`a26_sigterm_under_load_ends_in_time_and_loses_no_answer`], and with `/readyz` blind to the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a26_sigterm_while_redis_is_away_ends_in_time() {
    let redis = RedisServer::start(Flavour::Redis7);
    let proxy = Proxy::start(Upstream::Unix(redis.socket())).await;
    let arguments = ["--redis-response-timeout", "60s", "--redis-connect-timeout", "60s", "--shutdown-timeout", "2s"];
    let mut ground = Ground::by(redis, &proxy.redis_url(), "", &arguments);
    let pay = ground.caller("pay");
    pay.decided_exactly_within(BOUND).await;
    proxy.hold_requests();
    let held_before = proxy.counts().requests_held;
    let waiting = tokio::spawn(async move { pay.client.reserve(&pay.dependency, &original(), 2 * BOUND).await });
    eventually(BOUND, "a call waits for Redis", async || proxy.counts().requests_held > held_before).await;
    ground.daemon_mut().terminate();
    let http = ground.daemon().http();
    eventually(BOUND, "readiness drops while the call waits", async || {
        TcpStream::connect(http).await.is_ok() && get(http, "/readyz").await.0 == 503
    })
    .await;
    assert!(!waiting.is_finished());
    assert!(Caller::new(&ground.daemon().endpoint(), "pay").reserve(&original()).await.is_err());
    let (status, took) = timed(async { ground.daemon_mut().wait(BOUND) }).await;
    assert!(status.success() && took < END, "{status} after {took:?}; {}", ground.daemon().process().tail());
    assert!(waiting.await.unwrap().is_err());

    // And with no Redis at all.
    proxy.pass();
    ground.daemon_mut().restart();
    ground.redis_mut().kill();
    proxy.cut().await;
    let pay = ground.caller("pay");
    drop(pay.reserve(&original()).await);
    ground.daemon_mut().terminate();
    let (status, took) = timed(async { ground.daemon_mut().wait(BOUND) }).await;
    assert!(status.success() && took < END, "{status} after {took:?}; {}", ground.daemon().process().tail());
}

/// Seen to fail, the daemon going on to wait for a minute, with the second signal not listened for.
async fn a26_a_second_sigterm_ends_at_once(on: On) {
    let mut ground = Ground::with(on, "", 1, &["--shutdown-timeout", "60s"]);
    let mut stopped = security::connect(ground.daemon().grpc(), "h2").await.unwrap();
    stopped.write_all(HELLO).await.unwrap();
    assert!(ground.caller("pay").original().await.is_some());
    ground.daemon_mut().terminate();
    eventually(BOUND, "it waits", async || ground.daemon().process().logged("a second signal ends at once")).await;
    assert!(ground.daemon_mut().process_mut().exited().is_none(), "nothing holds it up: this test tests nothing");
    let (status, took) = timed(async {
        ground.daemon_mut().terminate();
        ground.daemon_mut().wait(BOUND)
    })
    .await;
    assert_eq!(status.code(), Some(143), "{}", ground.daemon().process().tail());
    assert!(took < END, "{took:?}");
    drop(stopped);
}
on_each_store!(a26_a_second_sigterm_ends_at_once);
