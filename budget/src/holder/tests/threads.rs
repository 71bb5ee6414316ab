//! Several threads on one share, with a clock that they move themselves: readings are old by the time they are used.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};

use super::{
    model::{Counted, check_all_windows},
    *,
};
use crate::{decision::Outcome, holder::jitter::Jitter};

const RUN: i64 = if cfg!(miri) { 60 } else { 60_000 };

/// Decisions of one thread until the clock has gone far enough.
fn spend(share: &Share, clock: &AtomicI64, seed: u64, hand_back: bool, decisions: i64) -> Vec<Counted> {
    let mut random = Jitter::new(seed);
    let mut seen = Vec::new();
    for _ in 0..decisions {
        let now = clock.fetch_add(random.between(0, 200_000), SeqCst);
        if random.between(0, 20) == 0 {
            std::thread::yield_now();
        }
        let is_retry = random.between(0, 2) == 0;
        let Local::Admitted(spent) = share.reserve(now, &if is_retry { retry() } else { LocalAsk::ORIGINAL }) else {
            continue;
        };
        let handed_back = hand_back && random.between(0, 3) == 0;
        seen.push(Counted { at_ns: now, is_retry, handed_back });
        if handed_back {
            share.hand_back(spent, clock.load(SeqCst));
        } else {
            share.settle(spent, now, Outcome::Success, &[]);
        }
    }
    seen
}

fn race(
    share: &Share,
    clock: &AtomicI64,
    threads: u64,
    hand_back: bool,
    beside: impl Fn(&AtomicBool) + Sync,
) -> Vec<Counted> {
    let over = AtomicBool::new(false);
    let mut seen: Vec<Counted> = std::thread::scope(|scope| {
        let beside = scope.spawn(|| beside(&over));
        let spenders: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || spend(share, clock, thread, hand_back, RUN))).collect();
        let seen = spenders.into_iter().flat_map(|spender| spender.join().unwrap()).collect();
        over.store(true, SeqCst);
        beside.join().unwrap();
        seen
    });
    seen.sort_by_key(|one| one.at_ns);
    seen
}

fn totals(seen: &[Counted]) -> (i64, i64) {
    let retries = seen.iter().filter(|one| one.is_retry).count() as i64;
    (seen.len() as i64 - retries, retries)
}

#[test]
fn threads_together_spend_no_more_than_one_lease() {
    for threads in 2..=4 {
        let value = amounts(2_000, 50, 5);
        let share = leased(&rules(), &value, &value);
        let clock = AtomicI64::new(T0);
        let seen = race(&share, &clock, threads, false, |_| {});
        let (originals, retries) = totals(&seen);
        let usage = share.usage();
        assert_eq!((usage.originals_admitted, usage.retries_admitted), (originals, retries), "every one is counted");
        // Windows of admissions by stamp; retries in sum, since a stamp may be older than the deposit it spends.
        check_all_windows(&seen, &Amounts { retry_burst: i64::MAX / 2, ..value.clone() }, 100_000);
        assert!(retries * TOKEN <= value.retry_burst + originals * 100_000);
        let elapsed = clock.load(SeqCst) - T0;
        if elapsed < 20 * SECOND && !cfg!(miri) {
            let exact = 50 + 2_000 * elapsed / SECOND;
            let demand = i64::try_from(threads).unwrap() * RUN;
            assert!((originals + retries) * 100 >= exact.min(demand / 2) * 95, "{originals} + {retries} of {exact}");
        }
    }
}

#[test]
fn threads_that_hand_back_meet_steps_and_renewals() {
    for threads in 2..=3 {
        let most = amounts(2_000, 50, 5);
        let share = leased(&rules(), &most, &most);
        let clock = AtomicI64::new(T0);
        let moved = AtomicI64::new(most.retry_burst);
        // A grown rate holds from the time the renewal was given, which others may have passed before it was applied.
        let stale_ns = AtomicI64::new(0);
        let seen = race(&share, &clock, threads, true, |over| {
            let mut random = Jitter::new(77);
            while !over.load(SeqCst) {
                let now = clock.fetch_add(random.between(0, 400 * MS), SeqCst);
                if random.between(0, 30) == 0 {
                    share.withdraw(&mut share.lock(), now);
                }
                let part = most.scaled(random.between(1, 10), 10);
                let with = amounts(0, 0, random.between(0, 1));
                moved.fetch_add(with.retry_burst, SeqCst);
                renew(&share, now, now - random.between(0, 25) * SECOND, &rules(), &part, &with);
                stale_ns.fetch_max(clock.load(SeqCst) - now, SeqCst);
                let _ = share.usage();
                std::thread::yield_now();
            }
        });
        let (originals, _) = totals(&seen);
        let kept = seen.iter().filter(|one| one.is_retry && !one.handed_back).count() as i64;
        assert_eq!(share.usage().originals_admitted, originals);
        let late = most.rate / 1_000 * stale_ns.into_inner() / MS;
        // Of two decisions at once, one may be handed back when the other has the older reading.
        let burst = most.burst + late + i64::try_from(threads).unwrap() * TOKEN;
        check_all_windows(&seen, &Amounts { burst, retry_burst: i64::MAX / 2, ..most.clone() }, 100_000);
        assert!(kept * TOKEN <= moved.load(SeqCst) + originals * 100_000);
        let (admission, retry, _) = share.levels(clock.load(SeqCst));
        assert!(admission <= most.burst && retry <= most.retry_burst);
    }
}

#[test]
fn permits_of_threads_never_exceed_the_slots() {
    let rules = Rules { slots_limited: true, permit_ttl_ms: 3_600_000, ..rules() };
    let value = Amounts { slots: 3, ..amounts(1_000_000, 1_000_000, 5) };
    let share = leased(&rules, &value, &value);
    let (out, most) = (AtomicI64::new(0), AtomicI64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..RUN / 3 {
                    if let Local::Admitted(spent) = share.reserve(T0 + 1, &LocalAsk::ORIGINAL) {
                        most.fetch_max(out.fetch_add(1, SeqCst) + 1, SeqCst);
                        std::thread::yield_now();
                        out.fetch_sub(1, SeqCst);
                        share.settle(spent, T0 + 1, Outcome::Success, &[]);
                    }
                }
            });
        }
    });
    assert!((1..=3).contains(&most.into_inner()));
    assert_eq!(share.in_flight(), 0);
}

/// Parts of the lease are lent while threads spend it: no token goes both ways.
#[test]
fn what_is_lent_is_not_spent_here() {
    let (parts, each) = (if cfg!(miri) { 5 } else { 200 }, if cfg!(miri) { 10 } else { 1_000 });
    let whole = parts * each;
    let share = leased(&rules(), &amounts(1, whole, whole), &amounts(0, whole, whole));
    let (lent, spent) = std::thread::scope(|scope| {
        let spenders: Vec<_> = (0..3).map(|_| scope.spawn(|| drain(&share, T0, &LocalAsk::ORIGINAL))).collect();
        let lent: i64 = (1..=parts)
            .map(|part| share.lend(T0, &amounts(1, whole - part * each, whole), &amounts(0, each, 0), 0).0.burst)
            .sum();
        (lent, spenders.into_iter().map(|spender| spender.join().unwrap()).sum::<i64>())
    });
    assert!(spent * TOKEN + lent <= whole * TOKEN, "{spent} and {lent}");
    assert_eq!(drain(&share, T0, &LocalAsk::ORIGINAL), 0);
}
