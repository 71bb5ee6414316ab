//! What lies in Redis: how long keys live, and what becomes of foreign, missing and forged ones.

use budget::decision::{Attempt, Cause, Extend, Outcome, Release, ReleaseResult, Reserve, TerminalState, Use};
use budget_client::{Error, Mode};
use budget_tests::{eventually::eventually, redis_server::RedisServer, rng::Rng};
use budgetd::clock::Clock;
use deadpool_redis::redis::{Value, from_redis_value};
use futures::future::join_all;

use super::ground::{BOUND, CALL, Caller, Ground, On, PATIENT, Verdict, fresh_id, operation, original};

const TOKEN: i64 = 1_000_000;

/// A key as Redis shows it.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) pttl_ms: i64,
}

/// All keys of a server.
pub(crate) fn keys(redis: &RedisServer) -> Vec<Key> {
    let script = "local out = {} for _, key in ipairs(redis.call('KEYS', '*')) do out[#out + 1] = key \
                  out[#out + 1] = redis.call('PTTL', key) end return out";
    let pairs: Vec<(Vec<u8>, i64)> = from_redis_value(redis.cli(&["EVAL", script, "0"])).unwrap();
    let key = |(name, pttl_ms): (Vec<u8>, i64)| Key { name: String::from_utf8_lossy(&name).into_owned(), pttl_ms };
    pairs.into_iter().map(key).collect()
}

/// Only the policies of the namespace, which are one key, and the format it is written in may stay for ever.
pub(crate) fn assert_no_key_stays(redis: &RedisServer, prefix: &str) {
    let may = [format!("{prefix}:policies"), format!("{prefix}:format")];
    let stay: Vec<_> = keys(redis).into_iter().filter(|key| key.pttl_ms < 0 && !may.contains(&key.name)).collect();
    assert!(stay.is_empty(), "{stay:?}");
}

/// One random step, as callers of all kinds make them.
async fn random_step(caller: &Caller, rng: &mut Rng) {
    let tracked = rng.chance(1, 3).then(|| operation(&format!("op {}", rng.below(50))));
    let number = if rng.chance(1, 4) { 2 } else { 1 };
    let attempt = Attempt { number, cause: (number > 1).then_some(Cause::Timeout) };
    let costs = if rng.chance(1, 3) {
        vec![caller.dependency.cost("tokens", rng.between(0, 9) * TOKEN).unwrap()]
    } else {
        vec![]
    };
    let ask = Reserve {
        operation: tracked.clone(),
        costs,
        max_wait_ms: if rng.chance(1, 3) { 5_000 } else { 0 },
        permit_ttl_ms: rng.chance(1, 3).then(|| rng.between(1, 3_600_000)),
        no_release: tracked.is_none() && rng.chance(1, 5),
        ..Reserve::new(fresh_id(), attempt)
    };
    if rng.chance(1, 10) {
        let patience = std::time::Duration::from_micros(rng.below(2_000));
        drop(tokio::time::timeout(patience, caller.reserve(&ask)).await);
        return;
    }
    drop(caller.reserve(&ask).await);
    let named = tracked.map(|operation| operation.id);
    let release = match rng.below(6) {
        0 => Release::not_sent(ask.id),
        1 => Release::sent(ask.id, Outcome::Success),
        2 => Release::sent(ask.id, Outcome::Abandoned),
        3 => Release::not_sent(fresh_id()),
        4 => {
            let extend = Extend { id: ask.id, permit_ttl_ms: rng.between(1, 3_600_000) };
            drop(caller.client.extend(&caller.dependency, extend, CALL).await);
            return;
        }
        _ => return,
    };
    let mut release = Release { operation: named, ..release };
    if let (Use::Sent(sent), Some(_)) = (&mut release.used, &release.operation) {
        sent.terminal = rng.chance(1, 2).then_some(TerminalState::Completed);
    }
    drop(caller.client.release(&caller.dependency, &release, CALL).await);
}

/// Seen to fail with PEXPIRE left out of `reservations.lua` and `operations.lua` for each place in turn, and with `SET` of the ledger without PX.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a04_every_key_of_an_unnamed_dependency_expires() {
    let fields = "admission = { rate = \"200/s\", burst = 50, max_in_flight = 40, permit_ttl = \"100ms\", \
                  max_wait = \"10s\" }\noperation = { retention = \"20m\" }\n";
    let unit = "cost.tokens = { rate = \"100/s\", burst = 100 }\n";
    let policy = format!("[defaults]\n{fields}{unit}[dependency.named]\n[dependency.\"fam/*\"]\nretry.ratio = 0.5\n");
    let mut ground = Ground::with(On::Redis7, &policy, 2, &PATIENT);
    let mut rng = Rng::seeded("a04");
    for round in 0..400 {
        if round == 200 {
            // In the middle of whatever it is doing, then back again.
            let caller = ground.caller_at(1, "last words").costing(&["tokens"]);
            let mut rng = rng.fork();
            let last = tokio::spawn(async move { random_step(&caller, &mut rng).await });
            ground.daemons[1].kill();
            last.await.unwrap();
            ground.daemons[1].restart();
            ground.redis().cli(&["SCRIPT", "FLUSH"]);
        }
        let names = ["named", "fam/a", "fam/b", "other", "another", "a{b}"];
        let caller = ground.caller_at(round % 2, names[rng.below(6) as usize]).costing(&["tokens"]);
        random_step(&caller, &mut rng).await;
    }
    // Two retentions and a minute.
    let longest_ms = 24 * 3_600_000;
    let seen = keys(ground.redis());
    assert!(seen.len() > 50, "{seen:?}");
    let of_store = ["budgetd:policies", "budgetd:known", "budgetd:replicas", "budgetd:probe"];
    for key in &seen {
        let lives = match key.name.as_str() {
            // As many as a policy has names, and as many as there are namespaces.
            "budgetd:{named}:s" | "budgetd:policies" | "budgetd:format" => key.pttl_ms == -1,
            name if of_store.contains(&name) => key.pttl_ms > 0,
            _ => (1..=longest_ms + 60_000).contains(&key.pttl_ms),
        };
        assert!(lives, "{key:?}");
    }
    // A key that has lost its time gets one at the next touch.
    let ledgers: Vec<_> = seen.iter().filter(|key| key.name.ends_with("}:s") && key.pttl_ms > 0).collect();
    assert!(ledgers.len() >= 5, "{ledgers:?}");
    for key in &ledgers {
        assert_eq!(ground.redis().cli(&["PERSIST", &key.name]), Value::Int(1));
    }
    for name in ["fam/a", "fam/b", "other", "another", "a{b}", "last words"] {
        let _any = ground.caller(name).original().await;
    }
    let lost: Vec<_> =
        keys(ground.redis()).into_iter().filter(|key| key.pttl_ms < 0 && key.name.ends_with("}:s")).collect();
    assert!(lost.iter().all(|key| key.name == "budgetd:{named}:s"), "{lost:?}");
    ground.all_live();
}

/// A dependency with state in all of its keys.
async fn furnished(ground: &Ground, name: &str) -> (Caller, [budget::ids::ReservationId; 3]) {
    let caller = ground.caller(name);
    let tracked = Reserve { operation: Some(operation("job")), ..original() };
    let long = Reserve { permit_ttl_ms: Some(3_000_000), ..original() };
    let plain = original();
    for ask in [&plain, &long, &tracked] {
        assert!(caller.ask(ask).await.admitted());
    }
    let ids = [plain.id, long.id, tracked.id];
    (caller, ids)
}

const PARTS: [&str; 6] = ["s", "a", "b", "l", "z", "o:job"];

/// Whatever can be asked; how many of the answers were errors, each of which must say which dependency is corrupt.
async fn ask_everything(caller: &Caller, ids: &[budget::ids::ReservationId; 3]) -> usize {
    let name = format!("{:?}", caller.dependency.id().as_str());
    let tracked = Reserve { operation: Some(operation("job")), ..original() };
    let mut failed = Vec::new();
    for ask in [original(), Reserve { permit_ttl_ms: Some(3_000_000), ..original() }, tracked] {
        failed.extend(caller.reserve(&ask).await.err());
    }
    for id in ids {
        failed.extend(
            caller.client.extend(&caller.dependency, Extend { id: *id, permit_ttl_ms: 50_000 }, CALL).await.err(),
        );
        for release in [
            Release::not_sent(*id),
            Release { operation: Some(operation("job").id), ..Release::sent(*id, Outcome::Success) },
        ] {
            failed.extend(caller.client.release(&caller.dependency, &release, CALL).await.err());
        }
    }
    failed.extend(caller.try_status().await.err());
    for error in &failed {
        let corrupt = matches!(error, Error::Failed { message, .. }
            if message.contains("corrupt") && message.contains(&name));
        // The operation named is not the one of the reservation, or what is damaged is how long operations are kept.
        let of_operation = |text: &str| text.contains("operation_id") || text.contains("operation.retention");
        // What was damaged is the byte of the format: then it looks like what a newer release has written.
        let newer = matches!(error, Error::Unavailable(text) if text.contains("NEWER") && text.contains("of format"));
        let clear = corrupt || newer || matches!(error, Error::InvalidArgument(text) if of_operation(text));
        assert!(clear, "{error:?}");
    }
    failed.iter().filter(|error| !matches!(error, Error::InvalidArgument(_))).count()
}

/// Seen to fail with WRONGTYPE and CORRUPT counted as an outage of the store: all others degrade.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a06_foreign_values_harm_their_dependency_only() {
    let mut ground = Ground::new(On::Redis7, "[defaults]\nadmission.max_in_flight = 1000\n");
    let mut rng = Rng::seeded("a06");
    let sane = ground.caller("sane");
    let foreign: [&[&[u8]]; 9] = [
        &[b"SET", b"KEY", b"text"],
        &[b"SET", b"KEY", b""],
        &[b"SET", b"KEY", b"12345"],
        &[b"RPUSH", b"KEY", b"x"],
        &[b"SADD", b"KEY", b"x"],
        &[b"ZADD", b"KEY", b"1", b"x"],
        &[b"HSET", b"KEY", b"x", b"y"],
        &[b"XADD", b"KEY", b"*", b"x", b"y"],
        &[b"HSET", b"KEY", b"0123456789abcdef", b"\0\0\0"],
    ];
    for (at, part) in PARTS.iter().enumerate() {
        for (of, value) in foreign.iter().enumerate() {
            let name = format!("victim {at} {of}");
            let (victim, ids) = furnished(&ground, &name).await;
            let key = format!("budgetd:{{{name}}}:{part}");
            ground.redis().cli(&["DEL", &key]);
            let command: Vec<&[u8]> =
                value.iter().map(|word| if *word == b"KEY" { key.as_bytes() } else { word }).collect();
            ground.redis().cli(&command);
            let failed = ask_everything(&victim, &ids).await;
            assert!(*part != "s" || failed > 5, "{name}: a ledger that cannot be read is said to be so");
            let other = sane.reserve(&original()).await.unwrap();
            assert!(other.mode == Mode::Exact && other.decision.admitted());
            // It recovers when the foreign value goes.
            ground.redis().cli(&["DEL", &key]);
            assert_eq!(ask_everything(&victim, &ids).await, 0, "{name}, {part}");
        }
    }
    // Bytes that look like ours, and are not.
    for round in 0..150 {
        let name = format!("garbled {}", round % 3);
        let (victim, ids) = furnished(&ground, &name).await;
        let key = format!("budgetd:{{{name}}}:{}", *rng.pick(&["s", "o:job"]));
        let mut bytes: Vec<u8> = from_redis_value(ground.redis().cli(&["GET", &key])).unwrap();
        for _ in 0..=rng.below(4) {
            let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap();
            bytes[at] = rng.bytes::<1>()[0];
        }
        if rng.chance(1, 4) {
            bytes.truncate(usize::try_from(rng.below(bytes.len() as u64)).unwrap());
        }
        ground.redis().cli(&[b"SET".as_slice(), key.as_bytes(), &bytes]);
        let _any = ask_everything(&victim, &ids).await;
        assert_eq!(sane.reserve(&original()).await.unwrap().mode, Mode::Exact);
        for part in PARTS {
            ground.redis().cli(&["DEL", &format!("budgetd:{{{name}}}:{part}")]);
        }
    }
    ground.all_live();
}

/// Seen to fail with records that outlived their ledger left where they were: released under the next ledger, each gave
/// back a permit it had not taken, and in flight fell below 0.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a30_half_evicted_state_neither_crashes_nor_gives_permits_away() {
    let policy = "[defaults]\nadmission = { max_in_flight = 4, permit_ttl = \"10m\" }\n";
    let mut ground = Ground::new(On::Redis7, policy);
    for lost in 1_u32..(1 << PARTS.len()) {
        let name = format!("halved {lost}");
        let (victim, ids) = furnished(&ground, &name).await;
        let gone = PARTS.iter().enumerate().filter(|(at, _)| lost & (1 << at) != 0);
        let gone: Vec<String> = gone.map(|(_, part)| format!("budgetd:{{{name}}}:{part}")).collect();
        ground.redis().cli(&[&["UNLINK".to_owned()], gone.as_slice()].concat());
        // Without its ledger nothing is known and all permits are there; with it, those of the three are taken.
        let without_ledger = lost % 2 == 1;
        let mut free = if without_ledger { 4 } else { 1 };
        assert!(victim.original().await.is_some());
        free -= 1;
        for (at, id) in ids.iter().enumerate() {
            let named = (at == 2).then(|| operation("job").id);
            let answer = victim.release(&Release { operation: named, ..Release::not_sent(*id) }).await;
            if answer == ReleaseResult::Applied && !without_ledger {
                free += 1;
            } else {
                assert_eq!(answer, ReleaseResult::Unknown, "{gone:?}");
            }
        }
        let more = join_all((0..10).map(|_| victim.original())).await.into_iter().flatten().count();
        let seen = victim.status().await;
        assert_eq!((more, seen.in_flight), (free, 4), "{gone:?}: {seen:?}");
        assert_eq!(ask_everything(&victim, &ids).await, 0, "{gone:?}");
        assert!((0..=4).contains(&victim.status().await.in_flight), "{gone:?}");
    }
    ground.all_live();
}

/// Where the ledger's string holds the clock's reading at its last call: seven bytes, big-endian. Before it are format, parts,
/// and the policy's version.
const CLOCK_AT: usize = 16;

/// Makes the ledger believe that its last call was this long after (before, if negative) the present.
fn forge_clock(redis: &RedisServer, name: &str, offset_ms: Option<i64>) {
    let key = format!("budgetd:{{{name}}}:s");
    let ledger: Vec<u8> = from_redis_value(redis.cli(&["GET", &key])).unwrap();
    let stored = ledger[CLOCK_AT..CLOCK_AT + 7].iter().fold(0_i64, |sum, byte| (sum << 8) | i64::from(*byte));
    let now = Clock::system().now_ms();
    assert!((now - stored).abs() < 60_000, "the ledger is laid out in another way now: no clock at {CLOCK_AT}");
    let forged = offset_ms.map_or(0, |offset_ms| now + offset_ms).to_be_bytes();
    let at = CLOCK_AT.to_string();
    redis.cli(&[b"SETRANGE".as_slice(), key.as_bytes(), at.as_bytes(), &forged[1..]]);
}

const YEAR_MS: i64 = 365 * 24 * 3_600_000;

/// Seen to fail with the refill not cut at the burst: a year's tokens are there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a07_after_a_long_time_there_is_one_burst_and_no_more() {
    let ground = Ground::new(On::Redis7, "");
    for (at, rate) in ["10/h", "1/d", "999999/d"].into_iter().enumerate() {
        for (of, past) in [None, Some(-YEAR_MS), Some(-20 * YEAR_MS)].into_iter().enumerate() {
            let pay = ground.caller(&format!("past {at} {of}"));
            let name = pay.dependency.id().to_string();
            // Slow ones refill nothing while the test runs; fast ones are looked at only.
            pay.put(&format!(
                "admission = {{ rate = \"{rate}\", burst = 100 }}\nretry = {{ floor = \"10/h\", burst = 5 }}"
            ))
            .await;
            let _any = pay.original().await;
            forge_clock(ground.redis(), &name, past);
            let seen = pay.status().await;
            assert_eq!((seen.admission.unwrap().balance_micros, seen.retry.balance_micros), (100 * TOKEN, 5 * TOKEN));
            if at < 2 {
                let retry =
                    || Reserve { no_release: true, ..Reserve::new(fresh_id(), Attempt::retry(2, Cause::Timeout)) };
                let asks: Vec<Reserve> = (0..50).map(|_| retry()).collect();
                let retries = join_all(asks.iter().map(|ask| pay.ask(ask))).await;
                assert_eq!(retries.iter().filter(|answer| answer.admitted()).count(), 5, "{name}");
                let originals = join_all((0..1000).map(|_| pay.original())).await;
                assert_eq!(originals.into_iter().flatten().count(), 95, "{name}");
            }
        }
    }
    let fast = ground.caller("fast");
    fast.put("admission = { rate = \"1G/s\", burst = 1000000 }").await;
    let _any = fast.original().await;
    for past in [None, Some(-YEAR_MS)] {
        forge_clock(ground.redis(), "fast", past);
        assert!(fast.original().await.is_some());
        assert!(fast.status().await.admission.unwrap().balance_micros <= 1_000_000 * TOKEN);
    }
}

/// Seen to fail with a negative elapsed time passed on to the refill: the level falls below zero.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a07_after_a_stamp_of_the_future_the_level_stays_and_refills_from_now() {
    let ground = Ground::new(On::Redis7, "");
    let pay = ground.caller("pay");
    let policy = |rate: &str| {
        format!("admission = {{ rate = \"{rate}\", burst = 100 }}\nretry = {{ floor = \"{rate}\", burst = 1 }}")
    };
    pay.filled(&policy("1M/s"), &policy("1/d")).await;
    assert_eq!(pay.admitted_of(40).await, 40);
    forge_clock(ground.redis(), "pay", Some(YEAR_MS));
    assert_eq!(pay.status().await.admission.unwrap().balance_micros / TOKEN, 60);
    assert_eq!(join_all((0..200).map(|_| pay.original())).await.into_iter().flatten().count(), 60);
    pay.put(&policy("20/s")).await;
    forge_clock(ground.redis(), "pay", Some(YEAR_MS));
    eventually(BOUND, "tokens come again", async || pay.original().await.is_some()).await;
}
