//! What callers may make a daemon and its store hold: names without end.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use budget::decision::Reserve;
use budget_client::{Dependency, Error};
use budget_tests::{
    eventually::eventually,
    redis_server::{Flavour, RedisServer},
    security,
};
use tokio::task::JoinSet;

use super::ground::{BOUND, CALL, Footprint, Ground, Metrics, On, PATIENT, Verdict, operation, original};

/// A debug build gets through fewer in the same time.
const HOSTILE_NAMES: u64 = if cfg!(debug_assertions) { 60_000 } else { 200_000 };
const NAMES: u64 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
/// As README says.
const UNNAMED_MAX: u64 = 10_000;
const SESSIONS: u64 = 4;
const AT_A_TIME: u64 = 64;

/// Asks for an original of each of these dependencies once; how many were admitted, denied, refused for want of room,
/// and failed otherwise.
async fn flood(endpoint: &str, names: Range<u64>, ask: fn(u64) -> (String, Reserve)) -> [u64; 4] {
    let client = security::client(endpoint);
    let mut tasks = JoinSet::new();
    let next = Arc::new(AtomicU64::new(names.start));
    for _ in 0..SESSIONS {
        let session = client.session(CALL).await.unwrap();
        for _ in 0..AT_A_TIME {
            let (session, next, end) = (session.clone(), Arc::clone(&next), names.end);
            tasks.spawn(async move {
                let mut seen = [0; 4];
                loop {
                    let at = next.fetch_add(1, Relaxed);
                    if at >= end {
                        return seen;
                    }
                    let (name, ask) = ask(at);
                    match session.reserve(&Dependency::new(&name).unwrap(), &ask, 3 * BOUND).await {
                        Ok(answer) => seen[usize::from(!answer.decision.admitted())] += 1,
                        Err(Error::NotFound(text)) => {
                            assert!(text.contains("no policy names it"), "{text}");
                            seen[2] += 1;
                        }
                        Err(_) => seen[3] += 1,
                    }
                }
            });
        }
    }
    tasks.join_all().await.into_iter().fold([0; 4], |sum, seen| std::array::from_fn(|at| sum[at] + seen[at]))
}

/// A name of 4 to 256 bytes with all that a metric, a log or a key could stumble over, and an operation likewise.
fn hostile(at: u64) -> (String, Reserve) {
    let odd = [
        "\"",
        "\\",
        "{",
        "}",
        "%7B",
        ",",
        "=",
        "é",
        "\u{202e}",
        "😀",
        " ",
        ":",
        "budgetd_",
        "le=\"+Inf\"",
        "other",
        "\u{2028}",
    ];
    let length = usize::try_from(at % 25).unwrap();
    let part = odd[usize::try_from(at % 16).unwrap()];
    let name = format!("{part}{at}{}", part.repeat(length));
    let operation = at.is_multiple_of(50).then(|| operation(&format!("{part}{at}")));
    let ask = Reserve { operation, ..original() };
    (name, ask)
}

/// Seen to fail with all known ledgers shown, not those that a policy names, and without the bound on unnamed
/// dependencies.
async fn a29_hostile_names_make_no_series(on: On) {
    let mut ground = Ground::new(on, "[dependency.pay]\n[dependency.\"fam/*\"]\n");
    let pay = ground.caller("pay");
    for name in ["pay", "fam/1", "unknown"] {
        assert!(pay.of(name).original().await.is_some());
    }
    let endpoint = ground.daemon().endpoint();
    let warm = flood(&endpoint, 0..2 * UNNAMED_MAX, hostile).await;
    assert!(warm[0] > UNNAMED_MAX / 2 && warm[2] > 0 && warm[3] == 0, "{warm:?}");
    let ledgers_are_shown = async || Metrics::of(ground.daemon()).await.0.contains("budgetd_in_flight{");
    eventually(BOUND, "ledgers have been looked at", ledgers_are_shown).await;
    let (before, text_before) = (Footprint::of(ground.daemon()), Metrics::of(ground.daemon()).await.0);
    let seen = flood(&endpoint, 2 * UNNAMED_MAX..HOSTILE_NAMES, hostile).await;
    assert_eq!((seen[2], seen[3]), (HOSTILE_NAMES - 2 * UNNAMED_MAX, 0), "{seen:?}");
    let (after, text_after) = (Footprint::of(ground.daemon()), Metrics::of(ground.daemon()).await.0);
    assert!(text_after.len() < text_before.len() + 1024, "{} bytes, then {}", text_before.len(), text_after.len());
    assert_eq!(text_after.lines().count(), text_before.lines().count(), "{text_after}");
    for line in text_after.lines() {
        let label = line.split("dependency=\"").nth(1).and_then(|rest| rest.split('"').next());
        assert!(label.is_none_or(|label| ["pay", "fam/*", "other"].contains(&label)), "{line}");
    }
    assert!(after.resident_kib < before.resident_kib + 8 * 1024, "{before:?}, then {after:?}");
    assert!(
        after.threads <= before.threads + 2 && after.open_files <= before.open_files + 4,
        "{before:?}, then {after:?}"
    );
    // The configured ones are told apart still.
    let metrics = Metrics(text_after);
    for label in ["dependency=\"pay\"", "dependency=\"fam/*\"", "dependency=\"other\""] {
        assert!(metrics.sum("budgetd_decisions_total", &[label]) > 0.5, "{label}");
    }
    assert!(pay.original().await.is_some(), "named ones always find room");
    ground.all_live();
}
on_each_store!(a29_hostile_names_make_no_series);

fn plain(at: u64) -> (String, Reserve) {
    (format!("name-{at}"), original())
}

/// Seen to fail without the bound on unnamed dependencies: all of them are admitted, and kept.
async fn a30_names_used_once_do_not_add_up(on: On) {
    let mut ground = Ground::new(on, "");
    let endpoint = ground.daemon().endpoint();
    assert_eq!(flood(&endpoint, 0..UNNAMED_MAX, plain).await, [UNNAMED_MAX, 0, 0, 0]);
    let before = Footprint::of(ground.daemon());
    let seen = flood(&endpoint, UNNAMED_MAX..NAMES, plain).await;
    assert_eq!(seen, [0, 0, NAMES - UNNAMED_MAX, 0]);
    let after = Footprint::of(ground.daemon());
    assert!(after.resident_kib < before.resident_kib + 8 * 1024, "{before:?}, then {after:?}");
    // Those that found room go on.
    assert!(ground.caller("name-0").original().await.is_some());
    let page = ground.caller("name-0").client.get_status(&[], None, CALL).await.unwrap();
    assert!(page.next.is_some() && page.dependencies.len() <= 1_000);
    if on == On::Redis7 {
        let keys = super::keys::keys(ground.redis());
        // Ledger, one or two generations; then known, replicas, policies, probe.
        assert!(keys.len() as u64 <= 3 * UNNAMED_MAX + 4, "{} keys", keys.len());
        super::keys::assert_no_key_stays(ground.redis(), "budgetd");
    }
    ground.all_live();
}
on_each_store!(a30_names_used_once_do_not_add_up);

/// Seen to fail with the answer OOM taken for the state of one dependency (an error for every call, and the store is never
/// down), and with a script that frees memory as its first write: Redis stops it no more, and ledgers grow without room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a30_a_small_store_is_survived_whatever_it_evicts() {
    const CALLS: u64 = if cfg!(debug_assertions) { 6_000 } else { 9_000 };
    for eviction in ["noeviction", "volatile-lru", "allkeys-lru", "allkeys-random", "volatile-ttl"] {
        let redis = RedisServer::start_with(Flavour::Redis7, &["--maxmemory-policy", eviction]);
        let policy = "[dependency.pay]\nadmission.max_in_flight = 3\n";
        let mut ground = Ground::on(redis, policy, 1, &PATIENT);
        let pay = ground.caller("pay");
        assert!(pay.original().await.is_some());
        let warned = ground.daemon().process().logged("maxmemory-policy is");
        assert_eq!(warned, eviction != "noeviction", "{eviction}: {}", ground.daemon().process().tail());
        let room = ground.redis().info("memory", "used_memory", "") + 700_000;
        ground.redis().cli(&["CONFIG", "SET", "maxmemory", &room.to_string()]);
        let seen = flood(&ground.daemon().endpoint(), 0..CALLS, plain).await;
        assert_eq!((seen[1], seen[3]), (0, 0), "{eviction}: {seen:?}");
        let evicted = ground.redis().info("stats", "evicted_keys", "");
        let outages = Metrics::of(ground.daemon()).await.sum("budgetd_store_outages_total", &[]);
        // Either it made room, or it was away: then answers came without it.
        assert!(
            if eviction == "noeviction" { outages > 0.5 } else { evicted > 100 },
            "{eviction}: {evicted}, {outages}, {seen:?}"
        );
        // Releases find half of what they need, or nothing.
        let again = flood(&ground.daemon().endpoint(), 0..CALLS / 4, plain).await;
        assert_eq!((again[1], again[3]), (0, 0), "{eviction}: {again:?}");
        ground.redis().cli(&["CONFIG", "SET", "maxmemory", "0"]);
        pay.decided_exactly_within(BOUND).await;
        assert!(pay.admitted_of(10).await <= 3, "{eviction}");
        assert_eq!(pay.status().await.rule, "pay", "{eviction}: an evicted policy is written again");
        ground.all_live();
    }
}
