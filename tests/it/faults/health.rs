//! What probes, load balancers and operators are told while Redis fails in one way after the other.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use budget_tests::{
    eventually::eventually,
    redis_server::{Flavour, RedisServer},
    security,
};
use tonic::transport::Channel;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use super::ground::{BOUND, Ground, Metrics, get, original};

struct Probes {
    http: SocketAddr,
    health: HealthClient<Channel>,
}

// === impl Probes ===

impl Probes {
    async fn of(ground: &Ground) -> Self {
        let channel = security::channel(&ground.daemon().endpoint()).await;
        Self { http: ground.daemon().http(), health: HealthClient::new(channel) }
    }

    async fn check(&self, service: &str) -> ServingStatus {
        let request = HealthCheckRequest { service: service.to_owned() };
        self.health.clone().check(request).await.unwrap().into_inner().status()
    }

    /// All that is said of the daemon, and of the store.
    async fn assert(&self, store_up: bool) {
        assert_eq!(get(self.http, "/livez").await, (200, "ok\n".to_owned()));
        let store = format!(r#"{{"kind":"redis","up":{store_up},"degraded":{}}}"#, !store_up);
        assert_eq!(get(self.http, "/readyz").await, (200, format!(r#"{{"ready":true,"store":{store}}}"#)));
        for service in ["", "retrybudget.v1.RetryBudget", "retrybudget.v1.BudgetAdmin"] {
            assert_eq!(self.check(service).await, ServingStatus::Serving, "{service}");
        }
        let of_store = if store_up { ServingStatus::Serving } else { ServingStatus::NotServing };
        assert_eq!(self.check("store").await, of_store);
    }

    /// Waits for the store's health while calls are made, as there would be.
    async fn store_becomes(&self, ground: &Ground, what: &str, up: bool) {
        let caller = ground.caller("pay");
        let expected = if up { ServingStatus::Serving } else { ServingStatus::NotServing };
        let what = format!("{what}: the store is {}", if up { "up" } else { "away" });
        eventually(BOUND, &what, async || {
            drop(caller.reserve(&original()).await);
            self.check("store").await == expected
        })
        .await;
    }

    /// Counts what a watcher of the store's health is told.
    async fn watch(&self) -> Arc<AtomicUsize> {
        let request = HealthCheckRequest { service: "store".to_owned() };
        let mut told = self.health.clone().watch(request).await.unwrap().into_inner();
        let count = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&count);
        tokio::spawn(async move {
            let mut last = None;
            while let Ok(Some(status)) = told.message().await {
                assert_ne!(last.replace(status.status()), Some(status.status()), "told twice");
                counted.fetch_add(1, Relaxed);
            }
        });
        count
    }
}

/// A way to fail and to come back.
type Outage = (&'static str, fn(&mut RedisServer), fn(&mut RedisServer));

const OUTAGES: [Outage; 5] = [
    ("killed", |redis| redis.kill(), |redis| redis.restart_with_user()),
    ("frozen", |redis| redis.freeze(), |redis| redis.thaw()),
    (
        "read-only",
        |redis| drop(redis.cli(&["REPLICAOF", "127.0.0.1", "1"])),
        |redis| drop(redis.cli(&["REPLICAOF", "NO", "ONE"])),
    ),
    (
        "out of memory",
        |redis| drop(redis.cli(&["CONFIG", "SET", "maxmemory", "1"])),
        |redis| drop(redis.cli(&["CONFIG", "SET", "maxmemory", "0"])),
    ),
    (
        "wrong password",
        |redis| {
            redis.cli(&["ACL", "SETUSER", "daemon", "resetpass", ">other"]);
            redis.cli(&["CLIENT", "KILL", "USER", "daemon"]);
        },
        |redis| redis.set_user(),
    ),
];

trait WithUser {
    fn set_user(&self);
    fn restart_with_user(&mut self);
}

impl WithUser for RedisServer {
    fn set_user(&self) {
        self.cli(&["ACL", "SETUSER", "daemon", "on", ">right", "~*", "&*", "+@all"]);
    }

    fn restart_with_user(&mut self) {
        self.restart();
        self.set_user();
    }
}

fn with_user() -> Ground {
    let redis = RedisServer::start(Flavour::Redis7);
    redis.set_user();
    let url = format!("redis://daemon:right@{}", redis.address());
    Ground::by(redis, &url, "", &[])
}

/// Seen to fail with `is_ready` asking for a store that is up (all replicas would leave the load balancer at once), and, at
/// "read-only" and "out of memory", with a probe that only sends PING.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a27_an_outage_shows_at_the_store_and_nowhere_else() {
    let mut ground = with_user();
    let probes = Probes::of(&ground).await;
    probes.store_becomes(&ground, "at first", true).await;
    let told = probes.watch().await;
    for (what, fail, recover) in OUTAGES {
        probes.assert(true).await;
        fail(ground.redis_mut());
        probes.store_becomes(&ground, what, false).await;
        probes.assert(false).await;
        // It stays away, however often it is probed.
        let failures = async || Metrics::of(ground.daemon()).await.sum("budgetd_store_errors_total", &[]);
        let before = failures().await;
        eventually(BOUND, "three more probes fail", async || failures().await >= before + 2.5).await;
        probes.assert(false).await;
        let metrics = Metrics::of(ground.daemon()).await;
        assert!(metrics.sum("budgetd_store_up", &[]) < 0.5, "{what}");
        recover(ground.redis_mut());
        probes.store_becomes(&ground, what, true).await;
    }
    probes.assert(true).await;
    eventually(BOUND, "all changes are told", async || told.load(Relaxed) > 2 * OUTAGES.len()).await;
    assert_eq!(told.load(Relaxed), 1 + 2 * OUTAGES.len());
    let outages = Metrics::of(ground.daemon()).await.sum("budgetd_store_outages_total", &[]);
    assert!((outages - 5.0).abs() < 0.5, "{outages}");
    ground.all_live();
}

/// Seen to fail with each failed probe told and counted as an outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a27_flapping_makes_no_storm() {
    const FLAPS: usize = 8;
    let mut ground = with_user();
    let probes = Probes::of(&ground).await;
    probes.store_becomes(&ground, "at first", true).await;
    let told = probes.watch().await;
    let outages = async || Metrics::of(ground.daemon()).await.sum("budgetd_store_outages_total", &[]);
    let before = outages().await;
    for _ in 0..FLAPS {
        ground.redis().cli(&["REPLICAOF", "127.0.0.1", "1"]);
        probes.store_becomes(&ground, "demoted", false).await;
        let failures = async || Metrics::of(ground.daemon()).await.sum("budgetd_store_errors_total", &[]);
        let before = failures().await;
        eventually(BOUND, "two more probes fail", async || failures().await >= before + 1.5).await;
        ground.redis().cli(&["REPLICAOF", "NO", "ONE"]);
        probes.store_becomes(&ground, "promoted", true).await;
    }
    eventually(BOUND, "all changes are told", async || told.load(Relaxed) > 2 * FLAPS).await;
    assert_eq!(told.load(Relaxed), 1 + 2 * FLAPS);
    let outages = Metrics::of(ground.daemon()).await.sum("budgetd_store_outages_total", &[]) - before;
    assert!((outages - 8.0).abs() < 0.5, "{outages}");
    let logged = ground.daemon().process().log().iter().filter(|line| line.contains("store is down")).count();
    assert!(logged <= FLAPS, "{logged} lines");
    ground.all_live();
}
