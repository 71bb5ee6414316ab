//! Steps of a curve, renewals, ends.

use super::*;

#[test]
fn a_step_slows_down_and_clips_at_its_end() {
    let share = leased(&rules(), &amounts(10, 8, 4), &amounts(0, 8, 4));
    // Nothing is asked for until long after the step: 8 held are clipped to 4 before anything is spent.
    assert_eq!(drain(&share, T0 + 20 * SECOND, &LocalAsk::ORIGINAL), 4);
    assert_eq!(drain(&share, T0 + 20 * SECOND + 200 * MS, &LocalAsk::ORIGINAL), 1, "half the rate");
    assert_eq!(drain(&share, T0 + 20 * SECOND + 399 * MS, &LocalAsk::ORIGINAL), 0);
    assert_eq!(share.levels(T0 + 20 * SECOND).1, 2 * TOKEN);
}

#[test]
fn refill_is_piecewise() {
    let share = leased(&rules(), &amounts(10, 20, 4), &amounts(0, 0, 0));
    // 1 s before the end of the step: 10 more until its end, 5 after it in the second that follows.
    assert_eq!(drain(&share, T0 + 19 * SECOND, &LocalAsk::ORIGINAL), 20);
    assert_eq!(share.levels(T0 + 20 * SECOND - 1).0, 10 * TOKEN - 1, "exact, rounded down");
    let refused = share.reserve(T0 + 20 * SECOND + 500 * MS, &LocalAsk::retry(9, Cause::Transient));
    assert_eq!(denied(refused), DenyReason::AttemptLimit);
    assert_eq!(share.levels(T0 + 20 * SECOND + 500 * MS).0, 10 * TOKEN, "clipped at the new burst");
    assert_eq!(drain(&share, T0 + 20 * SECOND + 500 * MS, &LocalAsk::ORIGINAL), 10);
    assert_eq!(drain(&share, T0 + 21 * SECOND + 500 * MS, &LocalAsk::ORIGINAL), 5);
}

#[test]
fn beyond_the_curve_there_is_nothing() {
    let share = leased(&rules(), &amounts(10, 8, 4), &amounts(0, 8, 4));
    assert_eq!(drain(&share, T0 + 120 * SECOND - 1, &LocalAsk::ORIGINAL), 4);
    assert_eq!(drain(&share, T0 + 120 * SECOND, &LocalAsk::ORIGINAL), 0);
    // Suspended for a day in the middle of it: judged by the clock alone.
    let share = leased(&rules(), &amounts(10, 8, 4), &amounts(0, 8, 4));
    assert_eq!(drain(&share, T0 + 86_400 * SECOND, &LocalAsk::ORIGINAL), 0);
}

#[test]
fn a_renewal_adds_what_was_moved_and_nothing_else() {
    let share = leased(&rules(), &amounts(10, 8, 4), &amounts(0, 2, 0));
    let now = T0 + 100 * MS;
    renew(&share, now, T0, &rules(), &amounts(20, 16, 8), &amounts(0, 5, 2));
    assert_eq!(share.levels(now), (8 * TOKEN, 2 * TOKEN, vec![]));
    assert_eq!(drain(&share, now, &LocalAsk::ORIGINAL), 8);
    assert_eq!(drain(&share, now + 100 * MS, &LocalAsk::ORIGINAL), 2, "the new rate");
    // And at most a full bucket.
    renew(&share, now + SECOND, now, &rules(), &amounts(20, 16, 8), &amounts(0, 16, 8));
    assert_eq!(share.levels(now + SECOND), (16 * TOKEN, 8 * TOKEN, vec![]));
}

#[test]
fn a_shrink_clips() {
    let share = leased(&rules(), &amounts(10, 8, 4), &amounts(0, 8, 4));
    renew(&share, T0 + 5, T0, &rules(), &amounts(10, 3, 1), &amounts(0, 0, 0));
    assert_eq!(share.levels(T0 + 5), (3 * TOKEN, TOKEN, vec![]));
    renew(&share, T0 + 6, T0, &rules(), &amounts(10, 8, 4), &amounts(0, 0, 0));
    assert_eq!(share.levels(T0 + 6), (3 * TOKEN, TOKEN, vec![]), "what was clipped does not come back");
}

#[test]
fn debt_survives_renewal_shrink_and_the_end_of_a_lease() {
    let rules = Rules { units: [tokens()].into(), ..rules() };
    let value = with_unit(amounts(0, 100, 3), 0, 100);
    let share = leased(&rules, &value, &value);
    let spent = admitted(share.reserve(T0, &costing(&cost(100))));
    share.settle(spent, T0, crate::decision::Outcome::Success, &cost(180));
    let unit = |at| share.levels(at).2[0].1 / TOKEN;
    assert_eq!(unit(T0), -80);
    let none = with_unit(amounts(0, 0, 0), 0, 0);
    renew(&share, T0 + 1, T0, &rules, &value, &none);
    assert_eq!(unit(T0 + 1), -80);
    renew(&share, T0 + 2, T0, &rules, &with_unit(amounts(0, 100, 3), 10, 10), &none);
    assert_eq!(unit(T0 + 2), -80);
    assert_eq!(share.reserve(T0 + 121 * SECOND, &costing(&cost(1))), Local::Short);
    let end = unit(T0 + 121 * SECOND);
    assert!((-80..0).contains(&end) || end == 0, "{end}");
}

#[test]
fn tokens_of_a_former_lease_are_not_taken_back() {
    let share = leased(&rules(), &amounts(10, 8, 4), &amounts(0, 8, 4));
    let spent = admitted(share.reserve(T0, &retry()));
    renew(&share, T0 + 5, T0, &rules(), &amounts(10, 8, 4), &amounts(0, 0, 0));
    share.hand_back(spent, T0 + 6);
    assert_eq!(share.levels(T0 + 5), (7 * TOKEN, 3 * TOKEN, vec![]));
    // But the deposit of an original goes back from wherever it lies.
    let spent = admitted(share.reserve(T0 + 5, &LocalAsk::ORIGINAL));
    renew(&share, T0 + 7, T0, &rules(), &amounts(10, 8, 4), &amounts(0, 0, 0));
    assert_eq!(share.levels(T0 + 7).1, 3 * TOKEN + 100_000);
    share.hand_back(spent, T0 + 7);
    assert_eq!(share.levels(T0 + 7).1, 3 * TOKEN);
}

/// Found by the simulator: agents 300976.
#[test]
fn what_a_step_clips_pays_for_no_deposit() {
    let share = leased(&rules(), &amounts(10, 8, 4), &amounts(0, 8, 4));
    let spent = admitted(share.reserve(T0, &LocalAsk::ORIGINAL));
    let later = T0 + 20 * SECOND;
    share.hand_back(spent, later);
    assert_eq!(share.levels(later).1, 2 * TOKEN - 100_000);
}

#[test]
fn the_highest_rate_and_burst_stay_in_range() {
    let most = Amounts { rate: 4_000_000 * TOKEN, ..amounts(0, 1_000_000_000, 1_000_000_000) };
    let share = leased(&rules(), &most, &amounts(0, 0, 0));
    let mut got = 0_i128;
    for second in [1, 19, 20, 119] {
        let spent = admitted(share.reserve(T0 + second * SECOND, &LocalAsk::ORIGINAL));
        share.settle(spent, T0, crate::decision::Outcome::Unknown, &[]);
        got += 1;
    }
    let level = share.levels(T0 + 119 * SECOND).0;
    let earned = 4_000_000_i128 * i128::from(TOKEN) * 20 + 2_000_000 * i128::from(TOKEN) * 99;
    let lost = earned - i128::from(level) - got * i128::from(TOKEN);
    assert_eq!(lost, 0);
}

#[test]
fn a_long_curve_at_the_highest_rate_is_cut_into_segments() {
    let curve = Curve([CurveStep { part_ppm: PPM, duration_ms: 3_600_000 }].into());
    let value = Amounts { rate: 4_000_000 * TOKEN, ..amounts(0, 1_000_000, 10) };
    let share = Share::new(fallback(LocalOriginals::Deny, false), T0);
    let lease = Lease { value, curve, start_ns: T0 };
    share.install(&mut share.lock(), T0, lease, &amounts(0, 0, 0), Some(&rules()));
    let mut at = T0;
    while at < T0 + 3_600 * SECOND {
        assert!(matches!(share.reserve(at + MS, &LocalAsk::ORIGINAL), Local::Admitted(_)), "{at}");
        at += 97 * SECOND;
    }
    assert_eq!(share.reserve(T0 + 3_600 * SECOND, &LocalAsk::ORIGINAL), Local::Short);
}

#[test]
fn more_deposits_than_the_clock_counts() {
    let rules = Rules { deposit_micros: 100 * TOKEN, limited: false, ..rules() };
    let share = leased(&rules, &amounts(0, 0, 2), &amounts(0, 0, 0));
    share.admitted().originals.fetch_add(1 << 40, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(drain(&share, T0, &retry()), 2);
    assert_eq!(drain(&share, T0, &LocalAsk { attempt: Attempt { number: 4, cause: None }, ..LocalAsk::ORIGINAL }), 0);
    admitted(share.reserve(T0, &LocalAsk::ORIGINAL)).settled(&share);
    assert_eq!(drain(&share, T0, &retry()), 2);
}

impl Spent {
    fn settled(self, share: &Share) {
        share.settle(self, T0, crate::decision::Outcome::Transient, &[]);
    }
}

#[test]
fn units_come_and_go_with_the_policy() {
    let named = |names: &[&str]| names.iter().map(|name| UnitId::of(name).unwrap()).collect::<Box<[_]>>();
    let value = |names: &[&str], burst: i64| Amounts {
        units: named(names).iter().map(|unit| UnitAmounts { unit: *unit, rate: 0, burst: burst * TOKEN }).collect(),
        ..amounts(0, 100, 3)
    };
    let with = |names: &[&str]| Rules { units: named(names), ..rules() };
    let share = leased(&with(&["a", "b"]), &value(&["a", "b"], 10), &value(&["a", "b"], 10));
    let ask = |name: &str| [Cost { unit: UnitId::of(name).unwrap(), amount_micros: 4 * TOKEN }];
    assert_eq!(drain(&share, T0, &costing(&ask("a"))), 2);
    renew(&share, T0, T0, &with(&["b", "c"]), &value(&["b", "c"], 10), &value(&["b", "c"], 0));
    assert_eq!(share.reserve(T0, &costing(&ask("a"))), Local::Short);
    assert_eq!(drain(&share, T0, &costing(&ask("b"))), 2);
    assert_eq!(drain(&share, T0, &costing(&ask("c"))), 0, "a new unit starts empty");
    renew(&share, T0, T0, &with(&["a", "b"]), &value(&["a", "b"], 10), &value(&["a"], 10));
    assert_eq!(drain(&share, T0, &costing(&ask("a"))), 2);
    let asked = share.usage().units_asked;
    assert_eq!(asked[0], (UnitId::of("a").unwrap(), 6 * 4 * TOKEN), "counters never go back");
    // Eight at most have a home; a forged ninth is short.
    let many = ["1", "2", "3", "4", "5", "6", "7", "8", "9"];
    renew(&share, T0, T0, &with(&many), &value(&many, 10), &value(&many, 10));
    assert_eq!(drain(&share, T0, &costing(&ask("8"))), 2);
    assert_eq!(drain(&share, T0, &costing(&ask("9"))), 0);
}
