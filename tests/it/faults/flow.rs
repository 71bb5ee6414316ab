//! Budgets in time: asked faster than they refill, lowered below their use, and gone with the store's data.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use budget::decision::{Attempt, Cause, DenyReason, Outcome, Release, ReleaseResult, Reserve};
use budget_client::{Decision, DependencyStatus, Mode};
use budget_tests::eventually::eventually;
use budgetd::clock::Clock;
use futures::future::join_all;
use tokio::task::JoinSet;

use super::ground::{BOUND, Caller, Ground, On, Verdict, fresh_id, original};

const TOKEN: i64 = 1_000_000;

/// What was granted or is left after asking without pause from several tasks for a while, and the shortest and longest time
/// that can have brought it.
async fn poll(caller: &Caller, ask: fn() -> Reserve, left: fn(&DependencyStatus) -> i64) -> (f64, Duration, Duration) {
    // What was saved up is taken first.
    let mut before = Clock::instant();
    while caller.ask(&ask()).await.admitted() {
        before = Clock::instant();
    }
    let start = Clock::instant();
    let mut pollers = JoinSet::new();
    for _ in 0..4 {
        let caller = caller.clone();
        pollers.spawn(async move {
            let mut granted = 0_u32;
            while Clock::instant() - start < Duration::from_secs(2) {
                granted += u32::from(caller.ask(&ask()).await.admitted());
            }
            granted
        });
    }
    let granted: u32 = pollers.join_all().await.into_iter().sum();
    let shortest = Clock::instant() - start;
    let left = left(&caller.status().await) as f64 / TOKEN as f64;
    (f64::from(granted) + left, shortest, Clock::instant() - before)
}

/// Seen to fail with each refill of less than a token lost (both copies): whoever polls faster than that is never served.
async fn a11_polling_neither_delays_nor_adds_to_the_refill(on: On) {
    let ground = Ground::new(on, "");
    let paced = ground.caller("paced");
    // Bursts that are not reached, however long a busy machine lets nobody ask.
    paced.put("admission = { rate = \"20/s\", burst = 500 }").await;
    // A small caller: five originals earn next to nothing, so the floor is what it gets, and no more.
    let small = ground.caller("small");
    small.put("retry = { ratio = 0.01, floor = \"10/s\", burst = 500 }").await;
    assert_eq!(small.admitted_of(5).await, 5);
    let retry = || Reserve::new(fresh_id(), Attempt::retry(2, Cause::Transient));
    let (by_rate, by_floor) = tokio::join!(
        poll(&paced, original, |status| status.admission.unwrap().balance_micros),
        poll(&small, retry, |status| status.retry.balance_micros)
    );
    for ((granted, shortest, longest), rate) in [(by_rate, 20.0), (by_floor, 10.0)] {
        let (least, most) = (rate * shortest.as_secs_f64(), rate * longest.as_secs_f64());
        // What was left of a token at first.
        assert!((least - 0.1..=most + 1.1).contains(&granted), "granted {granted}, earned {least} to {most}");
    }
}
on_each_store!(a11_polling_neither_delays_nor_adds_to_the_refill);

/// Seen to fail with permits forgotten at a change, and with `adopt` filling the bucket to the new burst (both copies).
async fn a12_limits_may_fall_below_what_is_in_use(on: On) {
    let ground = Ground::new(on, "");
    let pay = ground.caller("pay");
    let policy = |rate: &str, burst: u32, permits: u32| {
        format!(
            "admission = {{ rate = \"{rate}\", burst = {burst}, max_in_flight = {permits} }}\n\
             retry = {{ floor = \"{rate}\", burst = 1 }}\n"
        )
    };
    pay.filled(&policy("1M/s", 1000, 100), &policy("1/d", 1000, 100)).await;
    let held: Vec<_> = join_all((0..80).map(|_| pay.original())).await.into_iter().flatten().collect();
    assert_eq!(held.len(), 80);
    pay.put(&policy("1/d", 50, 50)).await;
    let refused = pay.ask(&original()).await;
    assert!(matches!(&refused, Decision::Denied(denied) if denied.reason == DenyReason::InFlight), "{refused:?}");
    let low = pay.status().await;
    assert_eq!((low.in_flight, low.max_in_flight), (80, Some(50)));
    let admission = low.admission.unwrap();
    assert_eq!((admission.balance_micros / TOKEN, admission.burst_micros), (50, 50 * TOKEN));
    for id in &held[..31] {
        assert_eq!(pay.succeed(*id).await, ReleaseResult::Applied);
    }
    assert_eq!(pay.status().await.in_flight, 49);
    assert_eq!(pay.admitted_of(3).await, 1);
    // Raising acts at once, and refills nothing.
    pay.put(&policy("1/d", 1000, 100)).await;
    assert_eq!(pay.admitted_of(60).await, 49, "one token and one permit were taken of 50");
    let raised = pay.status().await;
    assert_eq!((raised.in_flight, raised.admission.unwrap().balance_micros / TOKEN), (99, 0));
}
on_each_store!(a12_limits_may_fall_below_what_is_in_use);

/// Seen to fail with permits forgotten at a change (both copies): their releases take in flight below 0.
async fn a12_limits_change_under_traffic(on: On) {
    let mut ground = Ground::with(on, "", 2, &super::ground::PATIENT);
    let stop = Arc::new(AtomicBool::new(false));
    let admitted = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    for at in 0..16 {
        let caller = ground.caller_at(at % ground.daemons.len(), "pay");
        let (stop, admitted) = (Arc::clone(&stop), Arc::clone(&admitted));
        callers.spawn(async move {
            while !stop.load(Relaxed) {
                if let Some(id) = caller.original().await {
                    admitted.fetch_add(1, Relaxed);
                    assert_eq!(caller.succeed(id).await, ReleaseResult::Applied);
                }
            }
        });
    }
    let pay = ground.caller("pay");
    for round in 0..40 {
        let (burst, permits) = [(1000, 100), (1, 1), (50, 8)][round % 3];
        pay.put(&format!("admission = {{ rate = \"10k/s\", burst = {burst}, max_in_flight = {permits} }}")).await;
        let seen = pay.status().await;
        assert!((0..=16).contains(&seen.in_flight) && seen.max_in_flight == Some(permits), "{seen:?}");
    }
    pay.put("admission = { rate = \"10k/s\", burst = 1000, max_in_flight = 100 }").await;
    let before = admitted.load(Relaxed);
    eventually(BOUND, "calls go on", async || admitted.load(Relaxed) > before + 50).await;
    stop.store(true, Relaxed);
    callers.join_all().await;
    let seen = pay.status().await;
    assert_eq!((seen.in_flight, seen.counters.permits_expired), (0, 0));
    assert_eq!(u64::try_from(seen.counters.originals_admitted).unwrap(), admitted.load(Relaxed));
    // No permit was lost or won on the way.
    assert_eq!(pay.admitted_of(120).await, 100);
    ground.all_live();
}
on_each_store!(a12_limits_change_under_traffic);

/// Seen to fail with a Release of an unknown reservation counting as one permit less (both copies).
async fn a08_late_releases_of_lost_state_change_nothing(on: On) {
    let mut ground = Ground::new(on, "[defaults]\nadmission.max_in_flight = 20\n");
    let pay = ground.caller("pay");
    let held: Vec<_> = join_all((0..30).map(|_| pay.original())).await.into_iter().flatten().collect();
    assert_eq!(held.len(), 20);
    match on {
        On::Memory => ground.daemon_mut().restart(),
        On::Redis7 => drop(ground.redis().cli(&["FLUSHALL"])),
    }
    let releases = held.iter().flat_map(|id| {
        let handed_back = Release::not_sent(*id);
        [handed_back, Release::sent(*id, Outcome::Success), Release::sent(*id, Outcome::Abandoned)]
    });
    let pay = &pay;
    let late = releases.map(|release| async move { pay.release(&release).await });
    for answer in join_all(late).await {
        assert_eq!(answer, ReleaseResult::Unknown);
    }
    if on == On::Redis7 {
        super::keys::assert_no_key_stays(ground.redis(), "budgetd");
    }
    let next = join_all((0..50).map(|_| pay.original())).await;
    assert_eq!(next.into_iter().flatten().count(), 20);
    assert_eq!(pay.status().await.in_flight, 20);
    if on == On::Redis7 {
        super::keys::assert_no_key_stays(ground.redis(), "budgetd");
    }
}
on_each_store!(a08_late_releases_of_lost_state_change_nothing);

/// Seen to fail with the refill's time rounded down to seconds (both copies): next to nothing is admitted; and with a
/// rate that fills the burst within a millisecond taken for no limit.
async fn a04_very_fast_policies_still_limit(on: On) {
    let ground = Ground::new(on, "");
    let mut rates = Vec::new();
    for (rate, per_ms) in [("1000/s", 1), ("20k/s", 1), ("1M/s", 1), ("500/s", 2)] {
        rates.push((ground.caller(rate), rate, per_ms));
    }
    for (caller, rate, ms_per_token) in &rates {
        caller.put(&format!("admission = {{ rate = \"{rate}\", burst = 1 }}")).await;
        let start = Clock::instant();
        let (mut admitted, mut refused) = (0, 0);
        for _ in 0..20 {
            let asks: Vec<Reserve> = (0..64).map(|_| Reserve { no_release: true, ..original() }).collect();
            for answer in join_all(asks.iter().map(|ask| caller.reserve(ask))).await {
                let answer = answer.unwrap();
                assert_eq!(answer.mode, Mode::Exact);
                if answer.decision.admitted() { admitted += 1 } else { refused += 1 }
            }
        }
        // A clock of whole milliseconds may turn once more than this many went by.
        let most = 2 + (Clock::instant() - start).as_millis() / ms_per_token;
        assert!(admitted <= most, "{rate}: {admitted} admitted, at most {most}");
        assert!(admitted >= 20 / 2 && refused > 0, "{rate}: {admitted} admitted, {refused} refused");
    }
}
on_each_store!(a04_very_fast_policies_still_limit);
