//! Seeded schedules on one thread, beside a slow exact model of the same lease, and a checker of all windows that knows
//! nothing of either.

use super::*;
use crate::{decision::Outcome, holder::jitter::Jitter};

/// Levels in billionths of a micro-token, refilled step by step.
struct Exact {
    now_ns: i64,
    start_ns: i64,
    value: Amounts,
    admission: i128,
    retry: i128,
    /// Segments so far, and the end of the present one: each rounds down by less than a micro-token.
    segments: i128,
    end_ns: i64,
}

const BILLION: i128 = 1_000_000_000;

impl Exact {
    fn part(&self) -> Option<(Amounts, i64)> {
        let curve = curve();
        let (step, end_ms) = curve.at((self.now_ns - self.start_ns).div_euclid(MS))?;
        Some((self.value.step(step), self.start_ns + end_ms * MS))
    }

    fn clip(&mut self) {
        let part = self.part().map(|(part, _)| part).unwrap_or_default();
        self.admission = self.admission.min(i128::from(part.burst) * BILLION);
        self.retry = self.retry.min(i128::from(part.retry_burst) * BILLION);
    }

    fn advance(&mut self, to_ns: i64) {
        while self.now_ns < to_ns {
            let Some((part, end_ns)) = self.part() else {
                self.now_ns = to_ns;
                break;
            };
            let until_ns = end_ns.min(to_ns);
            self.admission += i128::from(part.rate) * i128::from(until_ns - self.now_ns);
            self.admission = self.admission.min(i128::from(part.burst) * BILLION);
            self.now_ns = until_ns;
            if until_ns == end_ns {
                self.segments += 1;
                self.clip();
            }
        }
        self.end_ns = self.part().map_or(i64::MAX, |(_, end_ns)| end_ns);
    }

    fn renew(&mut self, value: &Amounts, moved: &Amounts, start_ns: i64) {
        self.value = value.clone();
        self.start_ns = start_ns;
        self.segments += 1;
        self.clip();
        self.admission += i128::from(moved.burst) * BILLION;
        self.retry += i128::from(moved.retry_burst) * BILLION;
        self.clip();
    }
}

/// A lease of some share, and what comes with it.
fn some_lease(random: &mut Jitter) -> (Amounts, Amounts) {
    let value = Amounts {
        rate: random.between(0, 200) * TOKEN + random.between(0, TOKEN),
        burst: random.between(1, 50) * TOKEN + random.between(0, TOKEN),
        retry_burst: random.between(1, 10) * TOKEN + random.between(0, TOKEN),
        ..Amounts::default()
    };
    let moved = Amounts {
        burst: random.between(0, value.burst),
        retry_burst: random.between(0, value.retry_burst),
        ..Amounts::default()
    };
    (value, moved)
}

#[test]
fn every_level_is_that_of_the_exact_model_rounded_down() {
    for seed in 0..200 {
        let mut random = Jitter::new(seed);
        let (value, moved) = some_lease(&mut random);
        let rules = rules();
        let share = leased(&rules, &value, &moved);
        let mut exact =
            Exact { now_ns: T0, start_ns: T0, value: value.clone(), admission: 0, retry: 0, segments: 0, end_ns: 0 };
        exact.renew(&value, &moved, T0);
        let mut now = T0;
        let (mut asked, mut admitted_count) = (0, 0);
        for _ in 0..2_000 {
            now += match random.between(0, 99) {
                0 => random.between(0, 150 * SECOND),
                1..=9 => random.between(0, 2 * SECOND),
                _ => random.between(0, 20 * MS),
            };
            exact.advance(now);
            if random.between(0, 199) == 0 {
                let (value, moved) = some_lease(&mut random);
                let start = now - random.between(0, 30) * SECOND / 10;
                renew(&share, now, start, &rules, &value, &moved);
                exact.renew(&value, &moved, start);
                exact.advance(now);
            }
            let is_retry = random.between(0, 3) == 0;
            let cause = if random.between(0, 1) == 0 { Cause::Timeout } else { Cause::Transient };
            let ask = if is_retry { LocalAsk::retry(2, cause) } else { LocalAsk::ORIGINAL };
            let cost = if is_retry { rules.retry_cost_micros[cause.index()] } else { 0 };
            let leased = exact.part().is_some();
            let part = exact.part().map(|(part, _)| part).unwrap_or_default();
            let covered =
                exact.admission + BILLION >= i128::from(TOKEN) * BILLION && exact.retry >= i128::from(cost) * BILLION;
            asked += i64::from(leased && covered && part.burst >= TOKEN);
            match share.reserve(now, &ask) {
                Local::Admitted(spent) => {
                    assert!(leased && covered, "seed {seed}: more than the exact model has");
                    share.settle(spent, now, Outcome::Unknown, &[]);
                    admitted_count += 1;
                    exact.admission -= i128::from(TOKEN) * BILLION;
                    if is_retry {
                        exact.retry -= i128::from(cost) * BILLION;
                    } else {
                        exact.retry += i128::from(rules.deposit_micros) * BILLION;
                        exact.clip();
                    }
                }
                Local::Short => {}
                denied @ Local::Denied(_) => panic!("seed {seed}: {denied:?}"),
            }
            if leased {
                let (admission, retry, _) = share.levels(now);
                let floor = exact.admission.div_euclid(BILLION);
                // A bucket that runs over loses what the exact clock has beyond a whole micro-token; ours loses none of
                // that, but each segment's rest.
                assert!(
                    (floor - exact.segments - 1..=floor + 1).contains(&i128::from(admission)),
                    "seed {seed}: admission {admission}, exact {}",
                    exact.admission
                );
                assert_eq!(i128::from(retry), exact.retry.div_euclid(BILLION), "seed {seed}");
            }
        }
        assert!(admitted_count * 100 >= asked * 99, "seed {seed}: {admitted_count} of {asked}");
    }
}

/// One decision as a dependency would count it.
pub(super) struct Counted {
    pub(super) at_ns: i64,
    pub(super) is_retry: bool,
    pub(super) handed_back: bool,
}

/// Whether no window has more admissions than `burst + rate · length`, nor more retries of cost 1 than
/// `retry_burst + ratio · originals`, by one pass each. Two micro-tokens are for the roundings at both ends of a window.
pub(super) fn check_all_windows(seen: &[Counted], most: &Amounts, deposit: i64) {
    let (mut level, mut last_ns) = (0_i128, 0_i64);
    for one in seen.iter().filter(|one| !one.handed_back) {
        let earned = i128::from(most.rate) * i128::from(one.at_ns - last_ns);
        level = (level - earned).max(0) + i128::from(TOKEN) * BILLION;
        last_ns = one.at_ns;
        assert!(level <= i128::from(most.burst + 2) * BILLION, "admissions at {}: {level}", one.at_ns);
    }
    let mut retries = 0_i64;
    for one in seen {
        if !one.is_retry {
            retries = (retries - deposit).max(0);
        } else if !one.handed_back {
            retries += TOKEN;
            assert!(retries <= most.retry_burst + 2, "retries at {}: {retries}", one.at_ns);
        }
    }
}

#[test]
fn no_window_exceeds_the_lease_whatever_is_handed_back() {
    for seed in 0..200 {
        let mut random = Jitter::new(1_000 + seed);
        let most = amounts(random.between(1, 200), random.between(1, 40), random.between(1, 6));
        let rules = rules();
        let share = leased(&rules, &most, &most);
        let mut now = T0;
        let mut open: Vec<(Spent, usize)> = Vec::new();
        let mut seen: Vec<Counted> = Vec::new();
        let patience = random.between(1, 400);
        for _ in 0..3_000 {
            let longest = if random.between(0, 50) == 0 { 2 * SECOND } else { 10 * MS };
            now += random.between(0, longest);
            if random.between(0, 299) == 0 {
                // Renewed with less or equal, and the most that could have been moved.
                let part = most.scaled(random.between(1, 10), 10);
                renew(&share, now, now - random.between(0, 10) * MS, &rules, &part, &amounts(0, 0, 0));
            }
            match random.between(0, 9) {
                0..=3 if !open.is_empty() => {
                    let at = random.between(0, open.len() as i64 - 1) as usize;
                    let (spent, index) = open.swap_remove(at);
                    if random.between(0, 1) == 0 {
                        share.hand_back(spent, now);
                        seen[index].handed_back = true;
                    } else {
                        share.settle(spent, now, Outcome::Unknown, &[]);
                    }
                }
                kind => {
                    let is_retry = kind % 2 == 0;
                    let ask = if is_retry { retry() } else { LocalAsk::ORIGINAL };
                    if let Local::Admitted(spent) = share.reserve(now, &ask) {
                        open.push((spent, seen.len()));
                        seen.push(Counted { at_ns: now, is_retry, handed_back: false });
                    }
                }
            }
            if open.len() as i64 > patience {
                let (spent, _) = open.remove(0);
                share.settle(spent, now, Outcome::Unknown, &[]);
            }
        }
        check_all_windows(&seen, &most, rules.deposit_micros);
    }
}

#[test]
fn seeded_units_and_permits_stay_within_their_parts() {
    for seed in 0..100 {
        let mut random = Jitter::new(9_000 + seed);
        let rules = Rules { units: [tokens()].into(), slots_limited: true, permit_ttl_ms: 1_000_000, ..rules() };
        let slots = random.between(1, 8);
        let value = Amounts { slots, ..with_unit(amounts(1_000, 1_000, 5), random.between(1, 50), 100) };
        let part = value.unit(tokens()).copied().unwrap();
        let share = leased(&rules, &value, &value);
        let mut now = T0;
        let mut open: Vec<(Spent, i64)> = Vec::new();
        let mut used = 0_i128;
        for _ in 0..1_000 {
            now += random.between(0, 10 * MS);
            let estimate = random.between(0, 60);
            let asked = cost(estimate);
            if random.between(0, 1) == 0 {
                if let Local::Admitted(spent) = share.reserve(now, &costing(&asked)) {
                    open.push((spent, estimate));
                }
            } else if !open.is_empty() {
                let at = random.between(0, open.len() as i64 - 1) as usize;
                let (spent, estimate) = open.swap_remove(at);
                let actual = random.between(0, estimate);
                share.settle(spent, now, Outcome::Success, &cost(actual));
                used += i128::from(actual * TOKEN);
            }
            assert_eq!(share.in_flight(), open.len() as i64);
            assert!(open.len() as i64 <= slots);
            let outstanding: i128 = open.iter().map(|(_, estimate)| i128::from(estimate * TOKEN)).sum();
            let earned = i128::from(part.rate) * i128::from(now - T0) / BILLION;
            assert!(used + outstanding <= i128::from(part.burst) + earned, "seed {seed}");
            if now >= T0 + 20 * SECOND {
                break;
            }
        }
        assert_eq!(share.usage().overuse_micros, 0);
    }
}
