//! Single decisions.

use super::*;
use crate::decision::Outcome;

#[test]
fn without_a_lease_everything_is_short() {
    let share = Share::new(fallback(LocalOriginals::Allow, true), T0);
    assert_eq!(share.reserve(T0, &LocalAsk::ORIGINAL), Local::Short);
    assert_eq!(share.reserve(T0 + SECOND, &retry()), Local::Short);
    assert_eq!(share.usage().asked, 2);
}

#[test]
fn what_was_moved_can_be_spent_and_what_is_earned() {
    let share = leased(&rules(), &amounts(10, 5, 3), &amounts(0, 2, 1));
    assert_eq!(drain(&share, T0, &LocalAsk::ORIGINAL), 2);
    assert_eq!(share.reserve(T0 + 99 * MS, &LocalAsk::ORIGINAL), Local::Short);
    assert_eq!(drain(&share, T0 + 100 * MS, &LocalAsk::ORIGINAL), 1);
    assert_eq!(drain(&share, T0 + 10 * SECOND, &LocalAsk::ORIGINAL), 5, "clipped at the burst");
}

#[test]
fn originals_earn_retries_up_to_the_burst() {
    let share = leased(&rules(), &amounts(1_000, 100, 3), &amounts(0, 100, 0));
    assert_eq!(share.reserve(T0, &retry()), Local::Short);
    for _ in 0..9 {
        admitted(share.reserve(T0, &LocalAsk::ORIGINAL)).use_up(&share);
    }
    assert_eq!(share.reserve(T0, &retry()), Local::Short);
    admitted(share.reserve(T0, &LocalAsk::ORIGINAL)).use_up(&share);
    assert_eq!(drain(&share, T0, &retry()), 1);
    assert_eq!(drain(&share, T0, &LocalAsk::ORIGINAL), 89);
    assert_eq!(drain(&share, T0 + SECOND, &retry()), 3, "89 deposits of a tenth, clipped at 3");
    let usage = share.usage();
    assert_eq!((usage.originals_admitted, usage.retries_admitted), (99, 4));
    assert_eq!(usage.deposited_micros, 4 * TOKEN);
}

#[test]
fn a_retry_costs_by_its_cause_and_an_admission_token() {
    let share = leased(&rules(), &amounts(0, 3, 5), &amounts(0, 3, 5));
    admitted(share.reserve(T0, &LocalAsk::retry(2, Cause::Timeout))).use_up(&share);
    assert_eq!(share.levels(T0), (2 * TOKEN, 3 * TOKEN, vec![]));
    admitted(share.reserve(T0, &LocalAsk::retry(3, Cause::Hedge))).use_up(&share);
    admitted(share.reserve(T0, &LocalAsk::ORIGINAL)).use_up(&share);
    assert_eq!(share.reserve(T0, &retry()), Local::Short);
    assert_eq!(share.levels(T0), (0, 2 * TOKEN + 100_000, vec![]), "a refusal changes nothing");
}

#[test]
fn success_earns_where_the_policy_says_so() {
    let rules = Rules { earn_on_success: true, ..rules() };
    let share = leased(&rules, &amounts(0, 100, 5), &amounts(0, 100, 0));
    let mut open: Vec<_> = (0..20).map(|_| admitted(share.reserve(T0, &LocalAsk::ORIGINAL))).collect();
    assert_eq!(share.reserve(T0, &retry()), Local::Short);
    for spent in open.drain(..10) {
        share.settle(spent, T0, Outcome::Success, &[]);
    }
    for spent in open {
        share.settle(spent, T0, Outcome::Transient, &[]);
    }
    assert_eq!(drain(&share, T0, &retry()), 1);
}

#[test]
fn the_kill_switch_and_the_attempt_limit_are_final() {
    let rules = Rules { retries_off: true, ..rules() };
    let share = leased(&rules, &amounts(0, 10, 5), &amounts(0, 10, 5));
    assert_eq!(denied(share.reserve(T0, &retry())), DenyReason::RetriesOff);
    let fourth = LocalAsk { attempt: Attempt { number: 4, cause: None }, ..LocalAsk::ORIGINAL };
    assert_eq!(denied(share.reserve(T0, &fourth)), DenyReason::AttemptLimit);
    let spent = admitted(share.reserve(T0, &LocalAsk::ORIGINAL));
    assert_eq!(spent.attempts_left(), 2);
    spent.use_up(&share);
    let usage = share.usage();
    assert_eq!((usage.asked, usage.originals_denied, usage.retries_denied), (2, 1, 1));
}

#[test]
fn retries_that_their_budget_refuses_are_no_demand() {
    let rules = Rules { units: [tokens()].into(), ..rules() };
    let value = with_unit(amounts(0, 3, 1), 10, 100);
    let share = leased(&rules, &value, &value);
    let cost = [Cost { unit: tokens(), amount_micros: TOKEN }];
    let retry = LocalAsk { costs: &cost, ..retry() };
    admitted(share.reserve(T0, &retry)).use_up(&share);
    for _ in 0..5 {
        assert_eq!(share.reserve(T0, &retry), Local::Short);
    }
    let asked = |share: &Share| (share.usage().asked, share.usage().units_asked[0].1 / TOKEN);
    assert_eq!(asked(&share), (1, 1));
    // Nor while the coordinator is away.
    assert_eq!(denied(share.reserve_beyond(T0, &retry)), DenyReason::RetryBudget);
    assert_eq!(asked(&share), (1, 1));
    // What the rate refuses is.
    assert_eq!(drain(&share, T0, &LocalAsk::ORIGINAL), 2);
    assert_eq!(asked(&share), (4, 1));
}

#[test]
fn shadow_mode_lets_final_refusals_through_uncharged() {
    let rules = Rules { shadow: true, retries_off: true, ..rules() };
    let share = leased(&rules, &amounts(0, 10, 5), &amounts(0, 1, 5));
    let spent = admitted(share.reserve(T0, &retry()));
    assert_eq!(spent.would_be_denied(), Some(DenyReason::RetriesOff));
    share.hand_back(spent, T0);
    assert_eq!(share.levels(T0), (TOKEN, 5 * TOKEN, vec![]));
    assert_eq!(drain(&share, T0, &LocalAsk::ORIGINAL), 1);
    let spent = admitted(share.reserve_beyond(T0, &LocalAsk::ORIGINAL));
    assert_eq!(spent.would_be_denied(), Some(DenyReason::Admission));
    spent.use_up(&share);
    assert_eq!(share.levels(T0).0, 0);
}

#[test]
fn classes_leave_whole_tokens_but_never_a_full_bucket() {
    let rules = Rules { priority_ppm: [500_000, 900_000, PPM], ..rules() };
    let share = leased(&rules, &amounts(0, 15, 5), &amounts(0, 15, 5));
    let of = |priority| LocalAsk { priority, ..LocalAsk::ORIGINAL };
    assert_eq!(drain(&share, T0, &of(Priority::Sheddable)), 8);
    assert_eq!(drain(&share, T0, &of(Priority::Default)), 6);
    assert_eq!(drain(&share, T0, &of(Priority::Critical)), 1);
    let of = |priority| LocalAsk { priority, ..retry() };
    let share = leased(&rules, &amounts(0, 15, 4), &amounts(0, 15, 4));
    assert_eq!(drain(&share, T0, &of(Priority::Sheddable)), 2);
    assert_eq!(drain(&share, T0, &of(Priority::Critical)), 2);
    let share = leased(&rules, &amounts(1, 1, 1), &amounts(0, 1, 1));
    assert_eq!(drain(&share, T0, &of(Priority::Sheddable)), 1, "a burst of one serves every class");
}

#[test]
fn less_than_a_token_of_burst_admits_nothing() {
    let half = Amounts { burst: TOKEN / 2, ..amounts(10, 0, 0) };
    let share = leased(&rules(), &half, &half);
    assert_eq!(drain(&share, T0 + 10 * SECOND, &LocalAsk::ORIGINAL), 0);
}

#[test]
fn unlimited_admission_is_counted_and_earns() {
    let rules = Rules { limited: false, ..rules() };
    let share = leased(&rules, &amounts(0, 0, 2), &amounts(0, 0, 0));
    for _ in 0..25 {
        admitted(share.reserve(T0, &LocalAsk::ORIGINAL)).use_up(&share);
    }
    assert_eq!(drain(&share, T0, &retry()), 2);
    assert_eq!(share.usage().originals_admitted, 25);
    let spent = admitted(share.reserve(T0, &LocalAsk::ORIGINAL));
    share.hand_back(spent, T0);
    assert_eq!(share.reserve(T0 + 120 * SECOND, &LocalAsk::ORIGINAL), Local::Short, "beyond the curve");
}

#[test]
fn what_is_handed_back_can_be_spent_again() {
    let share = leased(&rules(), &amounts(0, 3, 3), &amounts(0, 3, 1));
    let spent = admitted(share.reserve(T0, &retry()));
    assert_eq!(share.levels(T0), (2 * TOKEN, 0, vec![]));
    share.hand_back(spent, T0);
    assert_eq!(share.levels(T0), (3 * TOKEN, TOKEN, vec![]));
    assert_eq!(share.usage().not_sent, 1);
}

#[test]
fn all_is_back_whether_the_first_or_the_last_comes_first() {
    for last_first in [false, true] {
        let share = leased(&rules(), &amounts(0, 5, 5), &amounts(0, 5, 5));
        let mut open: Vec<_> = (0..5).map(|_| admitted(share.reserve(T0, &retry()))).collect();
        if last_first {
            open.reverse();
        }
        for spent in open {
            share.hand_back(spent, T0);
        }
        assert_eq!(share.levels(T0), (5 * TOKEN, 5 * TOKEN, vec![]));
    }
}

#[test]
fn a_deposit_that_is_spent_becomes_debt() {
    let share = leased(&rules(), &amounts(0, 100, 3), &amounts(0, 100, 0));
    let open: Vec<_> = (0..10).map(|_| admitted(share.reserve(T0, &LocalAsk::ORIGINAL))).collect();
    admitted(share.reserve(T0, &retry())).use_up(&share);
    for spent in open {
        share.hand_back(spent, T0);
    }
    assert_eq!(share.levels(T0).1, -TOKEN);
    assert_eq!(drain(&share, T0, &LocalAsk::ORIGINAL), 99);
    assert_eq!(share.levels(T0).1, 3 * TOKEN, "paid by later deposits");
}

#[test]
fn deposits_that_found_a_full_bucket_are_not_taken_back() {
    let share = leased(&rules(), &amounts(0, 100, 3), &amounts(0, 100, 3));
    let open: Vec<_> = (0..50).map(|_| admitted(share.reserve(T0, &LocalAsk::ORIGINAL))).collect();
    for spent in open {
        share.hand_back(spent, T0);
    }
    assert_eq!(share.levels(T0).1, 3 * TOKEN);
}

#[test]
fn a_token_held_for_long_is_not_worth_two() {
    let share = leased(&rules(), &amounts(10, 5, 3), &amounts(0, 5, 0));
    let open: Vec<_> = (0..5).map(|_| admitted(share.reserve(T0, &LocalAsk::ORIGINAL))).collect();
    let later = T0 + SECOND;
    assert_eq!(drain(&share, later, &LocalAsk::ORIGINAL), 5);
    for spent in open {
        share.hand_back(spent, later);
    }
    assert_eq!(drain(&share, later, &LocalAsk::ORIGINAL), 0, "the bucket had filled up again meanwhile");
}

#[test]
fn units_are_estimated_and_settled() {
    let rules = Rules { units: [tokens()].into(), ..rules() };
    let value = with_unit(amounts(0, 100, 3), 10, 100);
    let share = leased(&rules, &value, &value);
    let level = |at| share.levels(at).2[0].1 / TOKEN;
    let spent = admitted(share.reserve(T0, &costing(&cost(60))));
    assert_eq!(level(T0), 40);
    assert_eq!(share.reserve(T0, &costing(&cost(41))), Local::Short);
    share.settle(spent, T0, Outcome::Success, &cost(20));
    assert_eq!(level(T0), 80);
    let spent = admitted(share.reserve(T0, &costing(&cost(10))));
    share.settle(spent, T0, Outcome::Success, &cost(150));
    assert_eq!(level(T0), -70);
    assert_eq!(level(T0 + SECOND), -60, "debt is paid by refill");
    let spent = admitted(share.reserve(T0, &LocalAsk::ORIGINAL));
    share.settle(spent, T0, Outcome::Unknown, &cost(50));
    assert_eq!(level(T0), -100);
    let usage = share.usage();
    assert_eq!(usage.overuse_micros, 20 * TOKEN);
    assert_eq!(usage.units_asked, [(tokens(), 111 * TOKEN)].into());
    let other = [Cost { unit: UnitId::of("other").unwrap(), amount_micros: 1 }];
    assert_eq!(share.reserve(T0, &costing(&other)), Local::Short);
    assert_eq!(share.reserve(T0, &costing(&cost(101))), Local::Short, "above the burst");
}

#[test]
fn all_or_nothing() {
    let rules = Rules { units: [tokens()].into(), slots_limited: true, ..rules() };
    let value = Amounts { slots: 2, ..with_unit(amounts(0, 3, 3), 0, 10) };
    let share = leased(&rules, &value, &value);
    let ask = LocalAsk { costs: &cost(11), ..retry() };
    assert_eq!(share.reserve(T0, &ask), Local::Short);
    assert_eq!(share.levels(T0), (3 * TOKEN, 3 * TOKEN, vec![(tokens(), 10 * TOKEN)]));
    assert_eq!(share.in_flight(), 0);
    let one = admitted(share.reserve(T0, &LocalAsk { costs: &cost(4), ..retry() }));
    let two = admitted(share.reserve(T0, &LocalAsk { costs: &cost(4), ..retry() }));
    assert_eq!(share.in_flight(), 2);
    assert_eq!(share.reserve(T0, &LocalAsk { costs: &cost(1), ..retry() }), Local::Short);
    assert_eq!(share.levels(T0), (TOKEN, TOKEN, vec![(tokens(), 2 * TOKEN)]));
    share.hand_back(one, T0);
    share.hand_back(two, T0);
    assert_eq!(share.levels(T0), (3 * TOKEN, 3 * TOKEN, vec![(tokens(), 10 * TOKEN)]));
    assert_eq!(share.in_flight(), 0);
}

#[test]
fn permits_end_with_an_outcome_or_with_their_time() {
    let rules = Rules { slots_limited: true, permit_ttl_ms: 5_000, ..rules() };
    let value = Amounts { slots: 4, ..amounts(100, 100, 3) };
    let share = leased(&rules, &value, &value);
    let mut open: Vec<_> = (0..4).map(|_| admitted(share.reserve(T0, &LocalAsk::ORIGINAL))).collect();
    assert_eq!(share.reserve(T0, &LocalAsk::ORIGINAL), Local::Short);
    share.settle(open.pop().unwrap(), T0, Outcome::Success, &[]);
    share.settle(open.pop().unwrap(), T0, Outcome::Abandoned, &[]);
    assert_eq!(share.in_flight(), 3);
    // The others are leaked: they end within two lives, and not before one.
    assert_eq!(drain(&share, T0 + 4_999 * MS, &LocalAsk::ORIGINAL), 1);
    assert_eq!(drain(&share, T0 + 5_000 * MS, &LocalAsk::ORIGINAL), 0);
    assert_eq!(drain(&share, T0 + 10_000 * MS, &LocalAsk::ORIGINAL), 4);
    // A late end of one that is over frees no second slot.
    share.settle(open.pop().unwrap(), T0 + 10_000 * MS, Outcome::Success, &[]);
    assert_eq!(share.in_flight(), 4);
}

#[test]
fn a_permit_is_void_after_its_step_and_after_its_life() {
    let share = leased(&rules(), &amounts(10, 5, 3), &amounts(0, 5, 0));
    let spent = admitted(share.reserve(T0, &LocalAsk::ORIGINAL));
    assert!(share.check(&spent, T0 + 20 * SECOND - 1));
    assert!(!share.check(&spent, T0 + 20 * SECOND));
    let rules = Rules { permit_ttl_ms: 1_000, ..rules() };
    let share = leased(&rules, &amounts(10, 5, 3), &amounts(0, 5, 0));
    let spent = admitted(share.reserve(T0, &LocalAsk::ORIGINAL));
    assert!(share.check(&spent, T0 + SECOND - 1));
    assert!(!share.check(&spent, T0 + SECOND));
}

#[test]
fn a_reading_older_than_the_step_decides_nothing() {
    let share = leased(&rules(), &amounts(10, 5, 3), &amounts(0, 5, 0));
    assert_eq!(share.reserve(T0 - 1, &LocalAsk::ORIGINAL), Local::Short);
    assert_eq!(drain(&share, T0, &LocalAsk::ORIGINAL), 5);
    assert_eq!(drain(&share, T0 + SECOND, &LocalAsk::ORIGINAL), 5);
    assert_eq!(drain(&share, T0 + 500 * MS, &LocalAsk::ORIGINAL), 0, "a step back refills nothing");
    assert_eq!(drain(&share, T0 + 1_100 * MS, &LocalAsk::ORIGINAL), 1);
}

impl Spent {
    /// Sent, and over without a word on its outcome.
    fn use_up(self, share: &Share) {
        share.settle(self, T0, Outcome::Unknown, &[]);
    }
}
