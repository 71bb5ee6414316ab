//! The fallback.

use super::*;
use crate::{
    decision::{Answer, Reserve},
    fallback::Fallback,
    ids::ReservationId,
    policy::{FallbackOriginals, Limit, Policy, Spec},
    units::Rate,
};

fn beyond(rules: &Rules) -> Share {
    let share = leased(rules, &amounts(10, 8, 4), &amounts(0, 8, 4));
    assert_eq!(share.reserve(T0 + 120 * SECOND, &LocalAsk::ORIGINAL), Local::Short);
    share
}

const END: i64 = T0 + 120 * SECOND;

fn many(share: &Share, now_ns: i64, ask: &LocalAsk<'_>) -> i64 {
    (0..).take_while(|_| matches!(share.reserve_beyond(now_ns, ask), Local::Admitted(_))).count() as i64
}

#[test]
fn a_lease_in_force_is_never_helped_out() {
    let share = leased(&rules(), &amounts(10, 2, 2), &amounts(0, 1, 0));
    assert_eq!(many(&share, T0, &LocalAsk::ORIGINAL), 1);
    let Local::Denied(denied) = share.reserve_beyond(T0, &LocalAsk::ORIGINAL) else { panic!("admitted") };
    assert_eq!((denied.reason, denied.retry_after_ms), (DenyReason::Admission, Some(101)));
    assert_eq!(super::denied(share.reserve_beyond(T0, &retry())), DenyReason::RetryBudget);
    let usage = share.usage();
    assert_eq!((usage.originals_denied, usage.retries_denied, usage.fallback_originals), (2, 1, 0));
}

#[test]
fn it_starts_empty_and_holds_a_second() {
    let share = beyond(&rules());
    assert_eq!(many(&share, END, &LocalAsk::ORIGINAL), 0);
    assert_eq!(many(&share, END + 200 * MS, &LocalAsk::ORIGINAL), 1);
    assert_eq!(many(&share, END + 10 * SECOND, &LocalAsk::ORIGINAL), 5);
    assert_eq!(share.usage().fallback_originals, 6);
    assert_eq!(super::denied(share.reserve_beyond(END + 10 * SECOND, &LocalAsk::ORIGINAL)), DenyReason::Fallback);
}

#[test]
fn its_level_stays_from_one_episode_to_the_next() {
    let share = beyond(&rules());
    assert_eq!(many(&share, END + 200 * MS, &LocalAsk::ORIGINAL), 1);
    let again = END + 400 * MS;
    renew(&share, again, again, &rules(), &amounts(10, 8, 4), &amounts(0, 0, 0));
    assert_eq!(share.levels(again), (0, 0, vec![]), "its tokens never enter a lease");
    let end = again + 120 * SECOND;
    assert_eq!(many(&share, end, &LocalAsk::ORIGINAL), 0, "nor did it earn meanwhile");
    assert_eq!(many(&share, end + 200 * MS, &LocalAsk::ORIGINAL), 1);
}

#[test]
fn retries_are_earned_one_at_a_time_or_denied() {
    let share = beyond(&rules());
    assert_eq!(many(&share, END + SECOND, &LocalAsk::ORIGINAL), 5);
    assert_eq!(many(&share, END + 2 * SECOND, &retry()), 0);
    assert_eq!(many(&share, END + 2 * SECOND, &LocalAsk::ORIGINAL), 5);
    assert_eq!(many(&share, END + 3 * SECOND, &LocalAsk::retry(2, Cause::Timeout)), 0, "more than one token");
    assert_eq!(many(&share, END + 3 * SECOND, &retry()), 1);
    for second in 4..10 {
        assert_eq!(many(&share, END + second * SECOND, &LocalAsk::ORIGINAL), 5);
    }
    assert_eq!(many(&share, END + 10 * SECOND, &retry()), 1, "at most one held");
    let rules = Rules { fallback: fallback(LocalOriginals::Allow, false), ..rules() };
    let share = beyond(&rules);
    for _ in 0..100 {
        share.settle(
            admitted(share.reserve_beyond(END, &LocalAsk::ORIGINAL)),
            END,
            crate::decision::Outcome::Success,
            &[],
        );
    }
    assert_eq!(super::denied(share.reserve_beyond(END, &retry())), DenyReason::Fallback);
}

#[test]
fn on_success_it_earns_by_success_too() {
    let rules = Rules { earn_on_success: true, fallback: fallback(LocalOriginals::Allow, true), ..rules() };
    let share = beyond(&rules);
    let open: Vec<_> = (0..10).map(|_| admitted(share.reserve_beyond(END, &LocalAsk::ORIGINAL))).collect();
    assert_eq!(many(&share, END, &retry()), 0);
    for spent in open {
        share.settle(spent, END, crate::decision::Outcome::Success, &[]);
    }
    assert_eq!(many(&share, END, &retry()), 1);
}

#[test]
fn a_process_that_was_never_told_has_its_own_setting() {
    let share = Share::new(fallback(LocalOriginals::Rate(5 * TOKEN), false), T0);
    assert_eq!(many(&share, T0, &LocalAsk::ORIGINAL), 0);
    assert_eq!(many(&share, T0 + SECOND, &LocalAsk::ORIGINAL), 5);
    assert_eq!(super::denied(share.reserve_beyond(T0 + SECOND, &retry())), DenyReason::Fallback);
    let share = Share::new(fallback(LocalOriginals::Deny, false), T0);
    assert_eq!(many(&share, T0 + SECOND, &LocalAsk::ORIGINAL), 0);
}

#[test]
fn nothing_of_it_is_handed_back() {
    let share = beyond(&rules());
    let spent = admitted(share.reserve_beyond(END + 200 * MS, &LocalAsk::ORIGINAL));
    assert!(spent.is_beyond());
    share.hand_back(spent, END + 200 * MS);
    assert_eq!(many(&share, END + 200 * MS, &LocalAsk::ORIGINAL), 0);
    assert_eq!(share.usage().not_sent, 1);
}

#[test]
fn units_have_their_own_part() {
    let unit =
        FallbackRules { units: [(tokens(), 10 * TOKEN)].into(), ..fallback(LocalOriginals::Rate(100 * TOKEN), true) };
    let rules = Rules { units: [tokens()].into(), fallback: unit, ..rules() };
    let share = beyond(&rules);
    assert_eq!(many(&share, END, &costing(&cost(1))), 0);
    assert_eq!(many(&share, END + SECOND, &costing(&cost(4))), 2);
    let Local::Denied(denied) = share.reserve_beyond(END + SECOND, &costing(&cost(11))) else { panic!("admitted") };
    assert!(denied.impossible);
}

#[test]
fn shadow_mode_admits_and_tells() {
    let rules = Rules { shadow: true, fallback: fallback(LocalOriginals::Deny, false), ..rules() };
    let share = beyond(&rules);
    let spent = admitted(share.reserve_beyond(END, &LocalAsk::ORIGINAL));
    assert_eq!(spent.would_be_denied(), Some(DenyReason::Fallback));
    share.hand_back(spent, END);
}

/// Seen to fail while the holder's fallback let anything through in shadow mode.
#[test]
fn the_kill_switch_holds_in_shadow_mode_too() {
    let rules = Rules { shadow: true, retries_off: true, fallback: fallback(LocalOriginals::Allow, true), ..rules() };
    let share = beyond(&rules);
    assert_eq!(super::denied(share.reserve_beyond(END, &retry())), DenyReason::RetriesOff);
}

/// One rule: what a replica and a holder decide of the same policy differs in nothing, waits included.
#[test]
fn a_replica_decides_alike() {
    let rate = |text: &str| Rate::parse(text).unwrap();
    let spec = Spec {
        admission: Some(Limit { rate: rate("50/s"), burst_tokens: 100 }),
        ratio_ppm: 300_000,
        retry_cost_micros: [TOKEN, TOKEN, 2 * TOKEN, TOKEN, TOKEN],
        priority_ppm: [300_000, 700_000, PPM],
        fallback_originals: Some(FallbackOriginals::Rate(rate("5/s"))),
        ..Spec::default()
    };
    let policy = Policy::new(spec).unwrap();
    let numbers = policy.numbers(false, true);
    let share = beyond(&Rules::of(&policy, &numbers, PolicyVersion { number: 2, id: 1 }, 1));
    let mut replica = Fallback::new(END / MS);
    let (mut now_ns, mut random, mut admitted) = (END, 1_u64, [0, 0]);
    let mut below = |most: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % most
    };
    for _ in 0..20_000 {
        now_ns += below(200) as i64 * MS;
        let attempt = match below(3) {
            0 => Attempt::retry(2 + below(3) as u32, Cause::ALL[below(5) as usize]),
            _ => Attempt::ORIGINAL,
        };
        let priority = Priority::ALL[below(3) as usize];
        let ask = Reserve { priority, ..Reserve::new(ReservationId([0; 16]), attempt) };
        let decided = replica.reserve(&policy, &numbers, 1, now_ns / MS, &ask);
        match (share.reserve_beyond(now_ns, &LocalAsk { attempt, priority, costs: &[] }), decided) {
            (Local::Admitted(spent), Answer::Admitted(_)) => {
                admitted[usize::from(attempt.is_retry())] += 1;
                share.settle(spent, now_ns, crate::decision::Outcome::Success, &[]);
            }
            (Local::Denied(of_holder), Answer::Denied(of_replica)) => assert_eq!(of_holder, of_replica),
            other => panic!("{attempt:?} {priority:?}: {other:?}"),
        }
    }
    assert!(admitted.iter().all(|count| *count > 1_000), "{admitted:?}");
}
