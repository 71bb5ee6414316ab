use super::*;
use crate::{
    bucket::Bucket,
    decision::Priority,
    policy::{Limit, Spec},
    units::Rate,
};

const MS: i64 = 1_000_000;

/// Splitmix64, seeded.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as i64
    }
}

/// Tokens per second, tokens.
fn slope(rate: i64, burst: i64) -> Slope {
    Slope { num: rate * 1_000, den: 1, burst_micros: burst * 1_000_000 }
}

fn law(rate: i64, burst: i64, ratio_ppm: i64, floor: i64, retry_burst: i64) -> Law {
    Law { admission: Some(slope(rate, burst)), retry: slope(floor, retry_burst), ratio_ppm }
}

/// Excess in tokens, rounded up, of windows under one policy: 10/s and 5 at once; 10%, 1/s, 2 retries at once.
fn judged(events: &[(i64, Event)]) -> (Option<i64>, Option<i64>) {
    let events = events.iter().map(|(at_ms, event)| (at_ms * MS, *event)).collect();
    let all = AllWindows::of(100_000, 0, law(10, 5, 100_000, 1, 2), events);
    let tokens = |excess: Excess| -(-excess.micros).div_euclid(1_000_000);
    (all.admissions().map(tokens), all.retries().map(tokens))
}

#[test]
fn a_burst_and_the_rate_keep_the_bound() {
    let burst = vec![(0, Event::Original); 5];
    assert_eq!(judged(&burst), (Some(0), None));
    let paced: Vec<_> = (1..=100).map(|nth| (nth * 100, Event::Original)).collect();
    assert_eq!(judged(&[burst.clone(), paced].concat()), (Some(0), None));
    let one_more = vec![(0, Event::Original); 6];
    assert_eq!(judged(&one_more), (Some(1), None));
    // Late in a long quiet history, in the middle of a window that is fine as a whole.
    let late: Vec<_> = (1..=9).map(|_| (90_000, Event::Original)).collect();
    assert_eq!(judged(&[burst, late].concat()), (Some(4), None));
}

#[test]
fn retries_are_earned_by_originals_only() {
    // Two at once, and one more for ten originals.
    let mut events = vec![(0, Event::Original); 10];
    events.extend([(0, Event::Retry); 3]);
    assert_eq!(judged(&events), (Some(8), Some(1)), "what was earned before a window does not count in it");
    let mut events = vec![(0, Event::Retry); 2];
    events.extend([(1, Event::Earning); 10]);
    events.push((2, Event::Retry));
    assert_eq!(judged(&events), (Some(-2), Some(0)));
    events.push((3, Event::Admission));
    events.push((4, Event::Retry));
    assert_eq!(judged(&events), (Some(0), Some(1)));
}

#[test]
fn the_worst_window_is_named() {
    let mut all = AllWindows::new(100_000, 0, law(10, 5, 0, 0, 1));
    assert_eq!((all.admissions(), all.retries()), (None, None));
    for at_ms in [0, 50_000, 50_001, 50_001, 50_001, 50_001, 50_001, 50_002, 90_000] {
        all.feed(at_ms * MS, &Event::Retry);
    }
    let Excess { micros, from_ns, until_ns } = all.admissions().unwrap();
    // Seven in 2 ms, less 5, the millisecond of counting, and two more with drift.
    assert_eq!((micros, from_ns / MS, until_ns / MS), (7_000_000 - 5_000_000 - 10_000 - 20_020, 50_000, 50_002));
    let Excess { micros, from_ns, until_ns } = all.retries().unwrap();
    assert_eq!((micros, from_ns, until_ns / MS), (8_000_000, 0, 90_000));
}

#[test]
fn a_lowered_policy_counts_for_one_horizon_and_one_more_for_each_epoch() {
    let (high, low) = (law(100, 50, 0, 0, 0), law(10, 5, 0, 0, 0));
    let excess = |losses_ms: &[i64], at_ms: i64| {
        let mut events = vec![(1_000 * MS, Event::Policy(low))];
        events.extend(losses_ms.iter().map(|at_ms| (at_ms * MS, Event::Epoch)));
        events.extend([(at_ms * MS, Event::Admission); 50]);
        AllWindows::of(10_000, 0, high, events).admissions().unwrap().micros > 0
    };
    assert!(!excess(&[], 10_999));
    assert!(excess(&[], 11_000));
    assert!(!excess(&[10_500], 20_999));
    assert!(excess(&[10_500], 21_000));
    assert!(!excess(&[2_000, 10_500], 30_999));
    assert!(excess(&[2_000, 10_500], 31_000));
    // A window that began under the higher policy is allowed its burst, one that began later is not.
    let mut events = vec![(1_000 * MS, Event::Policy(low))];
    events.extend([(10_999 * MS, Event::Admission); 50]);
    events.extend([(11_001 * MS, Event::Admission); 5]);
    assert_eq!(AllWindows::of(10_000, 0, high, events.clone()).admissions().unwrap().micros.div_euclid(1_000_000), 4);
    events.extend([(11_001 * MS, Event::Admission); 1]);
    assert!(AllWindows::of(10_000, 0, high, events).admissions().unwrap().micros > 0);
}

#[test]
fn nothing_is_exceeded_where_nothing_is_limited() {
    let open = Law { admission: None, ..law(1, 1, 0, 0, 0) };
    let mut events = vec![(0, Event::Admission); 1_000];
    events.push((5 * MS, Event::Policy(law(10, 5, 0, 0, 0))));
    events.extend([(9 * MS, Event::Admission); 1_000]);
    let all = AllWindows::of(10, 0, open, events.clone());
    assert_eq!(all.admissions(), None);
    events.extend([(15 * MS, Event::Admission); 6]);
    assert!(AllWindows::of(10, 0, open, events).admissions().unwrap().micros > 0);
}

#[test]
fn extremes_stay_in_range() {
    let huge = Slope { num: 1_000_000_000_000, den: 1, burst_micros: 1_000_000_000_000_000 };
    let most = Law { admission: Some(huge), retry: huge, ratio_ppm: i64::MAX };
    let events = vec![(0, Event::Retry), (i64::MAX, Event::Original), (i64::MAX, Event::Retry)];
    let all = AllWindows::of(i64::MAX, i64::MIN, most, events);
    assert!(all.admissions().unwrap().micros < 0 && all.retries().unwrap().micros < 0);
}

/// A ledger that counts in whole milliseconds, asked at any nanosecond and as often as can be, keeps the bound, and comes
/// within a token of it.
#[test]
fn a_bucket_keeps_the_bound_and_uses_it_up() {
    let (admission, retry) = (limit("97/min", 4), limit("11/s", 2));
    let mut most_retries = i64::MIN;
    for seed in 0..50 {
        let mut rng = Rng(seed);
        let limited = seed % 2 == 0;
        let spec = Spec {
            admission: limited.then_some(admission),
            floor: retry.rate,
            retry_burst_tokens: retry.burst_tokens,
            ratio_ppm: 300_000,
            ..Spec::default()
        };
        let policy = Policy::new(spec).unwrap();
        let numbers = policy.numbers(false, true);
        let full = |tokens: i64| Bucket { balance_micros: tokens * 1_000_000, remainder: 0 };
        let (mut admissions, mut retries) = (full(4), full(2));
        let mut all = AllWindows::new(1, 0, Law::of(&policy));
        let (mut at, mut ledger_ms) = (0, 0);
        for _ in 0..2_000 {
            at += [0, rng.below(MS), rng.below(200 * MS)][rng.below(3) as usize];
            let elapsed_ms = at / MS - ledger_ms;
            ledger_ms = at / MS;
            retries.refill(&numbers.retry, elapsed_ms);
            if let Some(bucket) = &numbers.admission {
                admissions.refill(bucket, elapsed_ms);
                if admissions.covers(bucket, Priority::Critical, 1_000_000).is_err() {
                    continue;
                }
            }
            let is_retry = rng.below(2) == 0;
            if is_retry && retries.covers(&numbers.retry, Priority::Critical, 1_000_000).is_err() {
                continue;
            }
            admissions.withdraw(1_000_000);
            if is_retry {
                retries.withdraw(1_000_000);
            } else {
                retries.deposit(&numbers.retry, numbers.deposit_micros);
            }
            all.feed(at, if is_retry { &Event::Retry } else { &Event::Original });
        }
        let close = |excess: Excess| (-1_000_000..=0).contains(&excess.micros);
        // Where admission is short, retries do not use up what they may.
        let retries = all.retries().unwrap();
        assert!(if limited { retries.micros <= 0 } else { close(retries) }, "seed {seed}: {all:?}");
        assert!(all.admissions().is_none_or(close), "seed {seed}: {all:?}");
        most_retries = most_retries.max(retries.micros);
    }
    // A millisecond of the floor is 0.011: without it the bound would be broken.
    assert!((-10_999..=0).contains(&most_retries), "{most_retries}");
}

fn limit(rate: &str, burst_tokens: i64) -> Limit {
    Limit { rate: Rate::parse(rate).unwrap(), burst_tokens }
}

/// What the definition says, window by window.
struct Naive {
    horizon: i64,
    laws: Vec<(i64, Law)>,
    epochs: Vec<i64>,
}

impl Naive {
    /// The largest number in force in the time that counts at `at`.
    fn star(&self, at: i64, number: impl Fn(&Law) -> Option<(i64, i64)>) -> Option<i128> {
        let mut horizons = 1;
        // "One horizon for each epoch opened in that time": the longest time of which this is true.
        for candidate in 1..=self.epochs.len() as i64 + 1 {
            let reach = self.horizon * candidate;
            let opened = self.epochs.iter().filter(|epoch| **epoch <= at && at - **epoch < reach).count();
            if opened as i64 >= candidate - 1 {
                horizons = candidate;
            }
        }
        let mut largest = Some(0);
        for (nth, (start, law)) in self.laws.iter().enumerate() {
            let end = self.laws.get(nth + 1).map_or(i64::MAX, |(start, _)| *start);
            if *start > at || (end <= at && at - end >= self.horizon * horizons) {
                continue;
            }
            let value = number(law).map(|(num, den)| i128::from(num) * i128::from(DEN_MULTIPLE / den));
            largest = largest.zip(value).map(|(largest, value)| largest.max(value));
        }
        largest
    }

    /// All times at which something may change.
    fn changes(&self) -> Vec<i64> {
        let times = self.laws.iter().map(|(at, _)| *at).chain(self.epochs.iter().copied());
        let mut changes: Vec<i64> =
            times.flat_map(|at| (0..=self.epochs.len() as i64 + 1).map(move |k| at + k * self.horizon)).collect();
        changes.sort_unstable();
        changes
    }

    /// The largest excess of all windows from one of `spends` to another, in the checker's unit. `events`: time, tokens
    /// spent, originals that earn.
    fn excess(&self, events: &[(i64, i128, i128)], line: impl Fn(&Law) -> Option<Slope>, ratio: bool) -> Option<i128> {
        let changes = self.changes();
        let rate = |at| self.star(at, |law| line(law).map(|slope| (slope.num, slope.den)));
        let burst = |at| self.star(at, |law| line(law).map(|slope| (slope.burst_micros, 1)));
        let mut worst: Option<i128> = None;
        for (first, (from, ..)) in events.iter().enumerate().filter(|(_, event)| event.1 > 0) {
            let mut window = 0;
            for (last, (until, spent, earning)) in events.iter().enumerate().skip(first) {
                window += spent * PER_TOKEN;
                if ratio && last > first {
                    let ratio = self.star(*until, |law| Some((law.ratio_ppm, 1))).unwrap();
                    window -= earning * ratio / i128::from(DEN_MULTIPLE) * PER_MICRO;
                }
                if *spent == 0 {
                    continue;
                }
                let inside: Vec<i64> = changes.iter().copied().filter(|at| from < at && at <= until).collect();
                let points = [vec![*from], inside, vec![*until]].concat();
                let stars: Option<Vec<_>> = points.iter().map(|at| Some((rate(*at)?, burst(*at)?))).collect();
                let Some(stars) = stars else { continue };
                let drained: i128 = points
                    .windows(2)
                    .zip(&stars)
                    .map(|(ends, star)| star.0 * 1_001 * i128::from(ends[1] - ends[0]))
                    .sum();
                let level =
                    stars.iter().map(|(rate, burst)| burst * 1_000_000_000 + rate * 1_000_000_000).max().unwrap();
                let excess = window - drained - level;
                worst = Some(worst.map_or(excess, |worst| worst.max(excess)));
            }
        }
        worst
    }
}

/// Two separate ways to judge a history agree to the last digit.
#[test]
fn one_pass_says_what_all_pairs_of_windows_say() {
    for seed in 0..3_000 {
        let mut rng = Rng(seed);
        let horizon_ms = 1 + rng.below(40);
        let some_law = |rng: &mut Rng| {
            let dens = [1, 9, 60, 1_440];
            let mut slope = |most: i64| Slope {
                num: rng.below(most) * 1_000,
                den: dens[rng.below(4) as usize],
                burst_micros: rng.below(6) * 1_000_000,
            };
            let (admission, retry) = (slope(400), slope(200));
            Law { admission: (rng.below(12) > 0).then_some(admission), retry, ratio_ppm: rng.below(600_000) }
        };
        let first = some_law(&mut rng);
        let mut naive = Naive { horizon: horizon_ms * MS, laws: vec![(0, first)], epochs: Vec::new() };
        let (mut events, mut attempts, mut retries) = (Vec::new(), Vec::new(), Vec::new());
        let mut at = 0;
        for _ in 0..(5 + rng.below(40)) {
            at += [0, 1, rng.below(3 * MS), rng.below(30 * MS)][rng.below(4) as usize];
            let event = match rng.below(20) {
                0 | 1 => Event::Policy(some_law(&mut rng)),
                2 => Event::Epoch,
                3 => Event::Earning,
                4 => Event::Admission,
                5..=11 => Event::Original,
                _ => Event::Retry,
            };
            events.push((at, event));
        }
        let all = AllWindows::of(horizon_ms, 0, first, events.clone());
        events.sort_by_key(|(at, event)| (*at, event.rank()));
        for (at, event) in events {
            match event {
                Event::Policy(law) => naive.laws.push((at, law)),
                Event::Epoch => naive.epochs.push(at),
                Event::Original => {
                    attempts.push((at, 1, 0));
                    retries.push((at, 0, 1));
                }
                Event::Admission => attempts.push((at, 1, 0)),
                Event::Earning => retries.push((at, 0, 1)),
                Event::Retry => {
                    attempts.push((at, 1, 0));
                    retries.push((at, 1, 0));
                }
            }
        }
        let admissions = naive.excess(&attempts, |law| law.admission, false);
        let retried = naive.excess(&retries, |law| Some(law.retry), true);
        assert_eq!(all.admissions.worst.map(|worst| worst.0), admissions, "admissions, seed {seed}");
        assert_eq!(all.retries.worst.map(|worst| worst.0), retried, "retries, seed {seed}");
    }
}
