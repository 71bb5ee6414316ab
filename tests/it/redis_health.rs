//! The store's health as others see it: true within bounds, told apart from the daemon's own, and calm under flapping.

use std::{sync::Arc, time::Duration};

use budget_tests::{
    eventually::eventually,
    proxy::{Proxy, Upstream},
    redis_server::{Flavour, RedisServer},
};
use budgetd::{
    clock::Clock,
    store::{
        Store, StoreError,
        fallback::WithFallback,
        redis::{Settings, State},
    },
};

use crate::redis_world::{BOUND, Replica, dependency, fresh_id, original, soon};

fn settings(url: String) -> Settings {
    Settings { url, ..Settings::default() }
}

async fn becomes(replica: &Replica, state: State) -> String {
    eventually(BOUND, state.name(), async || replica.state() == state).await;
    replica.redis.health().borrow().reason.to_string()
}

/// Nobody calls: contact alone notices. Seen to fail with contact's failures not counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a27_every_kind_of_outage_shows_without_calls_and_ends() {
    let mut server = RedisServer::start(Flavour::Redis7);
    let replica = Replica::start(&settings(server.url()), Clock::system()).await;
    assert_eq!(becomes(&replica, State::Up).await, "");

    server.freeze();
    let reason = becomes(&replica, State::Down).await;
    assert!(reason.contains("time"), "{reason}");
    server.thaw();
    becomes(&replica, State::Up).await;

    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let reason = becomes(&replica, State::Down).await;
    assert!(reason.contains("READONLY"), "{reason}");
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    becomes(&replica, State::Up).await;

    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let reason = becomes(&replica, State::Down).await;
    assert!(reason.contains("OOM"), "{reason}");
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    becomes(&replica, State::Up).await;

    server.cli(&["ACL", "SETUSER", "budgetd", "-evalsha"]);
    let reason = becomes(&replica, State::Down).await;
    assert!(reason.contains("NOPERM"), "{reason}");
    server.cli(&["ACL", "SETUSER", "budgetd", "+evalsha"]);
    becomes(&replica, State::Up).await;

    server.kill();
    let reason = becomes(&replica, State::Down).await;
    assert!(reason.contains("connection"), "{reason}");
    server.restart();
    becomes(&replica, State::Up).await;
    assert!(replica.admits("a", fresh_id()).await);
    assert!(replica.redis.down_time() > Duration::ZERO);
}

/// Seen to fail with calls sent while the store is down, each failure an outage of its own: 6,007 outages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a27_flapping_is_told_once_for_each_change() {
    const FLAPS: usize = 6;
    let server = RedisServer::start(Flavour::Redis7);
    let proxy = Proxy::start(Upstream::Tcp(server.address())).await;
    let replica = Arc::new(Replica::start(&settings(proxy.redis_url()), Clock::system()).await);
    let mut health = replica.redis.health();
    let changes = tokio::spawn(async move {
        let mut states = vec![health.borrow_and_update().state];
        while health.changed().await.is_ok() {
            let state = health.borrow_and_update().state;
            if states.last() != Some(&state) {
                states.push(state);
            }
        }
        states
    });
    for _ in 0..FLAPS {
        proxy.refuse().await;
        proxy.cut().await;
        while replica.state() == State::Up {
            assert!(replica.step("a", original(fresh_id())).await.is_err());
        }
        for _ in 0..1_000 {
            assert!(replica.step("a", original(fresh_id())).await.is_err());
        }
        proxy.accept().await;
        becomes(&replica, State::Up).await;
        assert!(replica.admits("a", fresh_id()).await);
    }
    assert_eq!(replica.metrics().outages.load(std::sync::atomic::Ordering::Relaxed), FLAPS as u64);
    drop(replica);
    let states = changes.await.unwrap();
    assert_eq!(states.len(), 1 + 2 * FLAPS, "{states:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_never_reached_gives_no_fallback_and_is_found_later() {
    let mut server = RedisServer::start(Flavour::Redis7);
    let url = server.url();
    server.kill();
    let replica = Replica::start(&settings(url), Clock::system()).await;
    let policies = Arc::clone(&replica.policies);
    let inner = Replica::start(&settings(server.url()), Clock::system()).await;
    let inner_store = Arc::into_inner(inner.store).unwrap();
    let store = WithFallback::new(inner_store, policies, Arc::clone(&replica.sharers), Clock::system());
    let failed = store.step(&dependency("a"), original(fresh_id()), soon()).await;
    assert!(matches!(failed, Err(StoreError::NeverReached(_))), "{failed:?}");
    server.restart();
    eventually(BOUND, "it is found", async || {
        store.step(&dependency("a"), original(fresh_id()), soon()).await.is_ok_and(|answered| !answered.degraded)
    })
    .await;
    becomes(&replica, State::Up).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_answered_by_the_fallback_and_marked() {
    let mut server = RedisServer::start(Flavour::Redis7);
    let replica = Replica::start(&settings(server.url()), Clock::system()).await;
    replica.put("a", "fallback = { originals = \"allow\" }").await;
    let Replica { redis, policies, sharers, store } = replica;
    let store = WithFallback::new(Arc::into_inner(store).unwrap(), policies, sharers, Clock::system());
    let ask = async || store.step(&dependency("a"), original(fresh_id()), soon()).await.unwrap().degraded;
    assert!(!ask().await);
    server.kill();
    assert!(ask().await, "from the first call on");
    for _ in 0..100 {
        assert!(ask().await);
    }
    server.restart();
    eventually(BOUND, "normal again", async || !ask().await).await;
    assert_eq!(redis.health().borrow().state, State::Up);
}
