//! E8: a dependency counts what it receives, and what nobody asked for is seen.

use std::time::Duration;

use budget::decision::Reserve;
use budget_client::{Client, Dependency, Received, Window};
use budget_tests::{
    daemon::Daemon,
    eventually::eventually,
    redis_server::{Flavour, RedisServer},
    security,
};

use crate::faults::ground::{CALL, PATIENT, original};

/// Ledgers are looked at every 5 s, and two looks make a window.
const BOUND: Duration = Duration::from_secs(60);
const ASKED: u64 = 40;
const RECEIVED: u64 = 120;

struct Ground {
    daemons: Vec<Daemon>,
    _redis: Option<RedisServer>,
    _policy: tempfile::NamedTempFile,
}

// === impl Ground ===

impl Ground {
    /// `pay` is named by a rule.
    fn start(redis: Option<RedisServer>, replicas: usize) -> Self {
        let policy = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(policy.path(), "[dependency.pay]\nretry.ratio = 0.1\n").unwrap();
        let url = redis.as_ref().map_or_else(|| "memory".to_owned(), RedisServer::unix_url);
        let path = policy.path().to_string_lossy().into_owned();
        let arguments = [&["--store", &*url, "--policy", &*path][..], &PATIENT].concat();
        let daemons = (0..replicas).map(|_| Daemon::start(&arguments)).collect();
        Self { daemons, _redis: redis, _policy: policy }
    }

    fn client(&self, replica: usize) -> Client {
        security::client(&self.daemons[replica].endpoint())
    }

    async fn ask(&self, asks: u64) {
        let (client, pay) = (self.client(0), pay());
        for _ in 0..asks {
            client.reserve(&pay, &Reserve { no_release: true, ..original() }, CALL).await.unwrap();
        }
    }

    /// Waits until the longest window of the fleet, as this replica sees it, holds so much.
    async fn shows(&self, replica: usize, what: &str, is_so: impl Fn(&Window) -> bool) {
        let (client, pay) = (self.client(replica), pay());
        eventually(BOUND, what, async || {
            let page = client.get_status(&[pay.id().clone()], None, CALL).await.unwrap();
            page.dependencies[0].recent.fleet.last().is_some_and(&is_so)
        })
        .await;
    }
}

fn pay() -> Dependency {
    Dependency::new("pay").unwrap()
}

/// Waits for a window in which nothing has happened: then what follows is in the windows as a whole.
async fn a_hidden_layer_is_seen(ground: &Ground) {
    let last = ground.daemons.len() - 1;
    // There is nothing to compare with before anybody has asked.
    assert!(!ground.client(0).report_received(&pay(), 5, CALL).await.unwrap());
    ground.ask(1).await;
    for replica in 0..=last {
        ground.shows(replica, "the ledger is looked at", |_| true).await;
    }
    // The dependency tells another replica than callers ask.
    let received = Received::start(ground.client(last), pay(), Duration::from_millis(50)).unwrap();
    received.add(RECEIVED / 2);
    ground.ask(ASKED).await;
    received.add(RECEIVED / 2);
    for replica in 0..=last {
        let is_so = |window: &Window| window.received == Some(RECEIVED) && window.originals_admitted == ASKED;
        ground.shows(replica, "what was received and admitted", is_so).await;
        let daemon = &ground.daemons[replica];
        let shown = daemon.run(&["status", "pay"]).stdout;
        let expected = format!("RECEIVED {RECEIVED} where {ASKED} were admitted");
        assert!(shown.contains(&expected), "{shown}");
        let explained = daemon.run(&["explain", "pay"]).stdout;
        assert!(explained.contains(&expected) && explained.contains("retries by itself"), "{explained}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e8_a_layer_that_retries_without_asking_is_seen_on_memory() {
    a_hidden_layer_is_seen(&Ground::start(None, 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e8_a_layer_that_retries_without_asking_is_seen_at_every_replica() {
    a_hidden_layer_is_seen(&Ground::start(Some(RedisServer::start(Flavour::Redis7)), 2)).await;
}
