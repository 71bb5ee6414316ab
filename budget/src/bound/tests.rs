use super::*;
use crate::policy::{EarnOn, FallbackOriginals, FallbackRetries, Mode, Spec, UnitLimit};

fn limit(rate: &str, burst_tokens: i64) -> Limit {
    Limit { rate: Rate::parse(rate).unwrap(), burst_tokens }
}

/// The worked example of the documentation.
fn example() -> Spec {
    let mut spec = Spec {
        admission: Some(limit("10000/s", 2_000)),
        floor: Rate::parse("10/s").unwrap(),
        retry_burst_tokens: 1_000,
        ..Spec::default()
    };
    spec.lease.enabled = true;
    spec
}

const FLEET: Fleet = Fleet { holders: 200, replicas: 0 };

fn bound_of(spec: Spec, fleet: Fleet, window_ms: i64, causes: &Causes) -> Bound {
    Bound::new(&Policy::new(spec).unwrap(), &Timing::default(), fleet, window_ms, causes)
}

fn bound(causes: &Causes) -> Bound {
    bound_of(example(), FLEET, 10_000, causes)
}

fn outage(spec: Spec, fleet: Fleet) -> Outage {
    Outage::new(&Policy::new(spec).unwrap(), &Timing::default(), fleet)
}

fn warnings(spec: Spec, holders: i64) -> Vec<String> {
    let policy = Policy::new(spec).unwrap();
    let all = Warning::all(&policy, &Timing::default(), Fleet { holders, replicas: 0 });
    all.iter().map(ToString::to_string).collect()
}

/// Formulas and values of the one term.
fn term(spec: Spec, causes: &Causes) -> Vec<(Quantity, String, Most)> {
    let bound = bound_of(spec, FLEET, 10_000, causes);
    assert!(bound.terms.len() <= 1, "{:?}", bound.terms);
    let parts = bound.terms.into_iter().flat_map(|term| term.parts);
    parts.map(|part| (part.quantity, part.formula, part.most)).collect()
}

fn row(quantity: Quantity, formula: &str, most: i64) -> (Quantity, String, Most) {
    (quantity, formula.to_owned(), Most::Count(most))
}

#[test]
fn the_worked_example() {
    let healthy = bound(&Causes::default());
    assert!(healthy.terms.is_empty());
    assert_eq!(healthy.most(&Quantity::Admissions), Most::Count(102_110));
    let parts = |quantity| -> Vec<_> {
        let base: &Base = healthy.base(&quantity).unwrap();
        base.parts.iter().map(|part| (part.name, part.most)).collect()
    };
    let count = Most::Count;
    let admissions = [("burst", count(2_000)), ("rate", count(100_100)), ("rounding", count(10))];
    assert_eq!(parts(Quantity::Admissions), admissions);
    assert_eq!(parts(Quantity::Retries), [("burst", count(1_000)), ("ratio", count(10_211)), ("floor", count(101))]);
    assert_eq!(healthy.most(&Quantity::Retries), count(1_000 + 10_211 + 101));

    let dark = outage(example(), FLEET);
    let share = &dark.share;
    assert_eq!((share.rate, share.burst, share.retry_burst), (38_000_000, 7_600_000, 3_800_000));
    let steps: Vec<_> = dark.steps.iter().map(|step| (step.from_ms, step.until_ms, step.admissions)).collect();
    let flow = |tokens: i64| Flow::PerSecond(tokens * 1_000_000);
    let curve = [(0, Some(20_000), flow(7_600)), (20_000, Some(120_000), flow(3_800)), (120_000, None, flow(1_000))];
    assert_eq!(steps, curve);
    assert!(dark.steps.iter().all(|step| step.retries));
    assert_eq!(
        (dark.wait_ms, dark.quarantine_ms, dark.returned_ms, dark.leased_again_ms),
        (0, 123_000, 123_000, 137_000)
    );
    assert_eq!(dark.direct, flow(2_000));

    let third = bound(&Causes { beyond: 67, ..Causes::default() });
    assert_eq!(third.excess(&Quantity::Admissions), Most::Count(3_685));
    assert_eq!(third.excess(&Quantity::Retries), Most::Count(67));
    assert_eq!(third.terms[0].parts[0].formula, "67 x (5/s x 10s + 5)");
    assert_eq!(third.most(&Quantity::Admissions), Most::Count(102_110 + 3_685));
    // By what was admitted, not by what might have been.
    let policy = Policy::new(example()).unwrap();
    assert_eq!(third.retries(&policy, 5_001), Most::Count(1_000 + 501 + 101 + 67));
}

#[test]
fn holders_beyond_their_curve() {
    let causes = Causes { beyond: 3, ..Causes::default() };
    let with =
        |originals, retries| Spec { fallback_originals: Some(originals), fallback_retries: retries, ..example() };
    let retries = row(Quantity::Retries, "3 x 1", 3);
    let rate = FallbackOriginals::Rate(Rate::parse("30/min").unwrap());
    let admissions = row(Quantity::Admissions, "3 x (0.5/s x 10s + 1)", 18);
    assert_eq!(term(with(rate, FallbackRetries::Deny), &causes), std::slice::from_ref(&admissions));
    assert_eq!(term(with(rate, FallbackRetries::Earned), &causes), [admissions, retries.clone()]);
    assert_eq!(term(with(FallbackOriginals::Deny, FallbackRetries::Earned), &causes), []);
    let unbounded = (Quantity::Admissions, "fallback \"allow\"".to_owned(), Most::Unbounded);
    assert_eq!(term(with(FallbackOriginals::Allow, FallbackRetries::Earned), &causes), [unbounded, retries]);
    // A part is shared by holders and replicas, rounded against nobody.
    let fleet = Fleet { holders: 200, replicas: 3 };
    let bound = bound_of(example(), fleet, 10_000, &causes);
    assert_eq!(bound.terms[0].parts[0].formula, "3 x (4.927/s x 10s + 4.927)");
    assert_eq!(bound.excess(&Quantity::Admissions), Most::Count(163));
    // Without a limit nothing can be exceeded.
    let open = Spec { admission: None, ..example() };
    assert_eq!(term(open, &causes), [row(Quantity::Retries, "3 x 1", 3)]);
}

#[test]
fn processes_that_never_learnt_the_policy() {
    let causes = Causes { untold: Some((4, Rate::parse("5/s").unwrap())), ..Causes::default() };
    assert_eq!(term(example(), &causes), [row(Quantity::Admissions, "4 x (5/s x 10s + 5)", 220)]);
    let bound = bound_of(with_unit(), FLEET, 10_000, &causes);
    assert_eq!(bound.most(&Quantity::Unit("kb".to_owned())), Most::Unbounded);
}

fn with_unit() -> Spec {
    let units = vec![UnitLimit { name: "kb".to_owned(), limit: limit("6000/min", 50) }];
    Spec { units, max_in_flight: Some(300), ..example() }
}

#[test]
fn a_clock_that_jumps_forward() {
    let once = [
        row(Quantity::Admissions, "min(10,000/s x 2s, 2,000)", 2_000),
        row(Quantity::Retries, "min(10/s x 2s, 1,000)", 20),
        row(Quantity::Unit("kb".to_owned()), "min(6,000/min x 2s, 50)", 50),
    ];
    assert_eq!(term(with_unit(), &Causes { clock_jumps: 1, ..Causes::default() }), once);
    let thrice = term(example(), &Causes { clock_jumps: 3, ..Causes::default() });
    assert_eq!(thrice[1], row(Quantity::Retries, "3 x min(10/s x 2s, 1,000)", 60));
}

#[test]
fn a_clone_of_a_running_holder() {
    let share = outage(with_unit(), FLEET).share;
    assert!(share.is_zero(), "50 kB of burst cannot be shared among 200");
    let mut spec = with_unit();
    spec.units[0].limit.burst_tokens = 1_000;
    let share = outage(spec.clone(), FLEET).share;
    let expected = [
        row(Quantity::Admissions, "7.6 + 38/s x 6s", 236),
        row(Quantity::Retries, "2 x 3.8", 8),
        row(Quantity::Unit("kb".to_owned()), "3.8 + 0.38/s x 6s", 7),
        row(Quantity::InFlight, "1", 1),
    ];
    assert_eq!(term(spec, &Causes { clones: vec![(share, 6_000)], ..Causes::default() }), expected);
}

#[test]
fn two_masters_side_by_side() {
    let timing = Timing { overlap_ms: 6_000, ..Timing::default() };
    let policy = Policy::new(example()).unwrap();
    let parts = |overlap_ms| {
        let causes = Causes { overlap_ms, ..Causes::default() };
        let terms = Bound::new(&policy, &timing, FLEET, 10_000, &causes).terms;
        terms.into_iter().flat_map(|term| term.parts).map(|part| (part.formula, part.most)).collect::<Vec<_>>()
    };
    assert_eq!(parts(4_000), []);
    let admissions = ("10,000/s x (5s - 6s + 2s) + 2,000".to_owned(), Most::Count(12_000));
    let retries = ("10/s x (5s - 6s + 2s) + 1,000".to_owned(), Most::Count(1_010));
    assert_eq!(parts(5_000), [admissions, retries]);
}

#[test]
fn counted_at_arrival() {
    let causes = Causes { arrival_delay_ms: 100, unsent: (5, 2), ..Causes::default() };
    let expected = [
        row(Quantity::Admissions, "10,000/s x 100ms x 1.001 + 7 unsent", 1_008),
        row(Quantity::Retries, "10/s x 100ms x 1.001 + 0.1 x 1,008 + 2 unsent", 2 + 101 + 2),
    ];
    assert_eq!(term(example(), &causes), expected);
    let open = Spec { admission: None, ..example() };
    assert_eq!(term(open, &causes), [row(Quantity::Retries, "10/s x 100ms x 1.001 + 2 unsent", 4)]);
}

#[test]
fn a_store_that_loses_its_state() {
    let causes = Causes { losses: 2, ..Causes::default() };
    assert_eq!(term(example(), &causes), [], "quarantine");
    let in_flight = row(Quantity::InFlight, "2 x 300 within a permit's life", 600);
    assert_eq!(term(with_unit(), &causes), std::slice::from_ref(&in_flight));
    let mut spec = with_unit();
    spec.lease.enabled = false;
    assert_eq!(term(spec, &causes), [row(Quantity::Admissions, "2 x 1", 2), in_flight]);
    let bound = bound_of(with_unit(), FLEET, 10_000, &causes);
    assert_eq!(bound.most(&Quantity::InFlight), Most::Count(900));
}

#[test]
fn costs_above_their_estimates() {
    let kb = || Quantity::Unit("kb".to_owned());
    let causes = Causes { underestimated: true, ..Causes::default() };
    assert_eq!(term(with_unit(), &causes), [row(kb(), "one burst of debt", 50)]);
    assert_eq!(term(example(), &causes), []);
    let causes = Causes { overuse: vec![("kb".to_owned(), 1_500_001)], ..Causes::default() };
    assert_eq!(term(with_unit(), &causes), [row(kb(), "1.501", 2)]);
    let bound = bound_of(with_unit(), FLEET, 10_000, &causes);
    assert_eq!(bound.most(&kb()), Most::Count(50 + 1_001 + 1 + 2));
}

#[test]
fn causes_add_up() {
    let causes = Causes { beyond: 67, clock_jumps: 1, ..Causes::default() };
    let bound = bound(&causes);
    assert_eq!(bound.terms.iter().map(|term| term.cause).collect::<Vec<_>>(), [Cause::Beyond, Cause::ClockJump]);
    assert_eq!(bound.excess(&Quantity::Admissions), Most::Count(3_685 + 2_000));
    assert_eq!(bound.excess(&Quantity::Retries), Most::Count(67 + 20));
}

#[test]
fn unlimited_admission_has_a_bound_for_retries_only() {
    let open = Spec { admission: None, ..example() };
    let bound = bound_of(open.clone(), FLEET, 10_000, &Causes::default());
    assert_eq!(bound.base(&Quantity::Admissions), None);
    assert_eq!(bound.most(&Quantity::Admissions), Most::Unbounded);
    let retries = bound.base(&Quantity::Retries).unwrap();
    assert_eq!((retries.most(), retries.per_original_ppm), (Most::Count(1_101), 100_000));
    assert_eq!(bound.retries(&Policy::new(open.clone()).unwrap(), 1_000), Most::Count(1_201));
    let flows: Vec<_> = outage(open, FLEET).steps.iter().map(|step| step.admissions).collect();
    assert_eq!(flows, [Flow::Unlimited; 3]);
}

#[test]
fn extremes_do_not_overflow() {
    let year_ms = crate::units::DURATION_MS_MAX;
    for (rate, burst) in [("1G/s", 1_000_000_000), ("4M/s", 1_000_000_000), ("0.000001/d", 1)] {
        let mut spec = Spec { retry_burst_tokens: burst, ratio_ppm: 100_000_000, ..with_unit() };
        spec.lease.enabled = rate != "1G/s";
        if rate != "0.000001/d" {
            spec.floor = Rate::parse(rate).unwrap();
        }
        spec.admission = Some(limit(rate, burst));
        spec.units[0].limit = limit(rate, burst);
        let share = outage(spec.clone(), FLEET).share;
        let causes = Causes {
            beyond: i64::MAX,
            untold: Some((i64::MAX, Rate::parse("1G/s").unwrap())),
            clock_jumps: i64::MAX,
            clones: vec![(share, i64::MAX)],
            overlap_ms: i64::MAX,
            arrival_delay_ms: i64::MAX,
            unsent: (i64::MAX, i64::MAX),
            losses: i64::MAX,
            underestimated: true,
            overuse: vec![("kb".to_owned(), i64::MAX)],
        };
        for fleet in [FLEET, Fleet { holders: i64::MAX, replicas: i64::MAX }, Fleet { holders: 0, replicas: 0 }] {
            for window_ms in [0, 1, year_ms, i64::MAX] {
                let bound = bound_of(spec.clone(), fleet, window_ms, &causes);
                assert_eq!(bound.terms.len(), 9);
                let healthy = bound_of(spec.clone(), fleet, window_ms, &Causes::default());
                let most = healthy.most(&Quantity::Admissions);
                assert!(most.allows(burst), "{most:?}");
                assert!(window_ms == i64::MAX || !most.allows(i64::MAX), "{most:?}");
                assert_eq!(bound.most(&Quantity::Admissions), Most::Unbounded);
            }
            let _never_panics = (outage(spec.clone(), fleet), warnings(spec.clone(), fleet.holders));
        }
    }
    // Beyond all counting is unbounded, not a number that is too low.
    assert_eq!(Most::Count(i64::MAX).plus(Most::Count(1)), Most::Unbounded);
    assert_eq!(Most::of_micros(i128::MAX), Most::Unbounded);
    assert_eq!(Most::of_micros(1), Most::Count(1));
}

#[test]
fn a_quota_is_shared_among_as_many_as_it_has_tokens() {
    let among = |spec: Spec| -> Vec<_> {
        let all = Sharing::all(&Policy::new(spec).unwrap());
        all.into_iter().map(|sharing| (sharing.field, sharing.holders, sharing.holders_most)).collect()
    };
    let mut defaults = Spec::default();
    defaults.lease.enabled = true;
    assert_eq!(among(defaults), [("retry.burst".to_owned(), 7, 8)]);
    let expected = [
        ("admission.burst".to_owned(), 1_520, 1_600),
        ("retry.burst".to_owned(), 760, 800),
        ("cost.kb.burst".to_owned(), 38, 40),
        // Shares are whole parts of ten million: one less than 228 and 240.
        ("admission.max_in_flight".to_owned(), 227, 239),
    ];
    assert_eq!(among(with_unit()), expected);
    let small = Spec { retry_burst_tokens: 1, ..example() };
    assert_eq!(among(small)[1], ("retry.burst".to_owned(), 0, 0));

    // What a warning says would do does, and one less does not.
    for (value, part_ppm, holders) in [(10, 800_000, 8), (10, 800_000, 200), (1, 1_000_000, 3), (5, 10_000, 777)] {
        let mut spec = Spec { retry_burst_tokens: value, max_in_flight: Some(1), ..example() };
        spec.lease.part_ppm = part_ppm;
        let all = Sharing::all(&Policy::new(spec.clone()).unwrap());
        let needed: Vec<_> = all[1..].iter().map(|sharing| sharing.needed(holders)).collect();
        let enough = |less: i64| {
            let permits = u32::try_from(needed[1] - less).unwrap();
            let spec = Spec { retry_burst_tokens: needed[0] - less, max_in_flight: Some(permits), ..spec.clone() };
            let all = Sharing::all(&Policy::new(spec).unwrap());
            all[1..].iter().map(|sharing| sharing.holders >= holders).collect::<Vec<_>>()
        };
        assert_eq!((enough(0), enough(1)), (vec![true; 2], vec![false; 2]), "{value} {part_ppm} {holders}");
    }
}

#[test]
fn an_outage_of_a_fleet_that_is_too_large_to_lease() {
    // No leases: the fallback from the first moment.
    let spec = Spec { retry_burst_tokens: 10, ..example() };
    let dark = outage(spec, FLEET);
    assert_eq!(dark.steps.len(), 1);
    assert_eq!((dark.steps[0].from_ms, dark.steps[0].leased), (0, false));
    // A burst that is cut below one token admits nothing.
    let mut spec = example();
    spec.admission = Some(limit("10000/s", 300));
    let steps = outage(spec, FLEET).steps;
    assert_eq!(steps[0].admissions, Flow::PerSecond(7_600_000_000));
    assert_eq!((steps[1].admissions, steps[1].retries), (Flow::PerSecond(0), false));
    // Under the fallback's word.
    let deny = Spec { fallback_originals: Some(FallbackOriginals::Deny), ..example() };
    let last = outage(deny, FLEET).steps.pop().unwrap();
    assert_eq!((last.admissions, last.retries), (Flow::PerSecond(0), false));
    let allow = Spec { fallback_originals: Some(FallbackOriginals::Allow), ..example() };
    assert_eq!(outage(allow, FLEET).steps.pop().unwrap().admissions, Flow::Unlimited);
    let replicas = outage(example(), Fleet { holders: 190, replicas: 10 });
    assert_eq!(replicas.reserve, Flow::PerSecond(50_000_000));
}

#[test]
fn nothing_surprises_in_the_worked_example() {
    assert_eq!(warnings(example(), 200), [] as [&str; 0]);
}

#[test]
fn each_surprise_has_a_warning() {
    let warns = |spec: Spec, holders: i64, expected: &str| {
        let all = warnings(spec, holders);
        assert!(all.iter().any(|warning| warning.contains(expected)), "{expected:?} is not in {all:#?}");
    };
    let small = Spec { retry_burst_tokens: 10, ..example() };
    warns(
        small,
        200,
        "retry.burst = 10 serves at most 8 holders (7 at equal demand), there are 200: the others ask budgetd for every \
         attempt; raise it to 264 or more",
    );
    let allow = Spec { fallback_originals: Some(FallbackOriginals::Allow), ..example() };
    warns(allow, 200, "admissions are unbounded");
    let each = Spec { fallback_originals: Some(FallbackOriginals::Rate(Rate::parse("60/s").unwrap())), ..example() };
    warns(each.clone(), 200, "admits 12,000/s in sum, more than admission.rate 10,000/s");
    warns(each, 200, "may admit 12,000 at once, more than admission.burst 2,000");
    warns(Spec { mode: Mode::Shadow, ..example() }, 200, "no bound holds");
    warns(Spec { ratio_ppm: 1_500_000, ..example() }, 200, "retry.ratio is 1.5");
    warns(Spec { ratio_ppm: 0, ..example() }, 200, "holders earn nothing");
    warns(Spec { earn_on: EarnOn::Success, ..example() }, 200, "bounded by successes");
    warns(
        Spec { retry_cost_micros: [4_000_000; 5], ..example() },
        200,
        "retry_cost.timeout is 4, a holder's retry burst 3.8",
    );
    warns(Spec { retry_cost_micros: [4_000_000; 5], ..example() }, 200, "retry_cost.hedge is 4, the fallback holds 1");
    warns(example(), 500, "20s after the last renewal a holder's retry burst is 0.76, below 1");
    let mut spec = example();
    spec.admission = Some(limit("10000/s", 300));
    warns(spec, 200, "20s after the last renewal a holder's burst is below 1");
    let mut spec = example();
    spec.lease.part_ppm = PPM;
    warns(spec, 200, "lease.part is 1");
    let mut spec = example();
    spec.lease.curve[1].duration_ms = 1_000_000;
    warns(spec, 200, "the margin is 3s, for this curve it must be 3270ms at least");
    warns(example(), 30_000, "30,000 holders are too many");
    let timing = Timing { overlap_ms: 20_000, ..Timing::default() };
    let all = Warning::all(&Policy::new(example()).unwrap(), &timing, FLEET);
    assert_eq!(all, [Warning::FirstStep(20_000, 20_000)]);
}
