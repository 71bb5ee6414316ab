//! Scenarios made from seeds: random ones, and families that aim at one rule each.

pub(crate) mod agents;
pub(crate) mod directed;
pub(crate) mod jumps;
pub(crate) mod lost;
pub(crate) mod random;
pub(crate) mod useful;

use budget::{
    lease::Timing,
    policy::{CurveStep, Spec},
};

use crate::{
    net::Net,
    rng::Rng,
    scenario::{Asker, Fault, Scenario, spec},
};

/// Curves in percent and milliseconds. Short ones let a run see many ends.
pub(crate) const CURVES: [&[(i64, i64)]; 4] = [
    &[(100, 20_000), (50, 100_000)],
    &[(100, 8_000), (50, 22_000)],
    &[(100, 10_000), (60, 10_000), (25, 20_000)],
    &[(100, 12_000)],
];

/// One of them.
pub(crate) fn any_curve(rng: &mut Rng) -> &'static [(i64, i64)] {
    CURVES[usize::try_from(rng.below(4)).unwrap()]
}

/// A policy of some size.
pub(crate) fn any_spec(rng: &mut Rng) -> Spec {
    let rate = u32::try_from(rng.between(8, 60)).unwrap();
    let burst = rng.between(i64::from(rate) / 3 + 4, i64::from(rate) * 3);
    let ratio_ppm = *rng.pick(&[50_000, 100_000, 200_000, 500_000]);
    let retry_burst = rng.between(6, 40);
    let floor = u32::try_from(rng.between(0, 2)).unwrap();
    let mut spec = spec(rate, burst, ratio_ppm, retry_burst, floor, any_curve(rng));
    spec.lease.part_ppm = *rng.pick(&[800_000, 800_000, 500_000, 1_000_000]);
    spec
}

/// Askers that together want so many times the rate of the policy, in originals.
pub(crate) fn askers(rng: &mut Rng, count: usize, spec: &Spec, times: f64) -> Vec<Asker> {
    let rate = spec.admission.map_or(0, |limit| limit.rate.micros_per_second()) as f64 / 1e6;
    let parts: Vec<f64> = (0..count).map(|_| rng.between(1, 4) as f64).collect();
    let whole: f64 = parts.iter().sum();
    (parts.iter().enumerate())
        .map(|(index, part)| Asker {
            name: format!("holder-{index}"),
            weight: if rng.chance(1, 4) { 2 } else { 1 },
            originals: rate * times * part / whole,
            starts: true,
            endpoint: None,
            lends: false,
            agent: None,
        })
        .collect()
}

/// An uneventful scenario: demand is twice the policy, retries are asked for at three times the ratio.
pub(crate) fn plain(family: &'static str, rng: &mut Rng, spec: Spec, holders: usize) -> Scenario {
    let askers = askers(rng, holders, &spec, 2.0);
    let rate = spec.admission.map_or(0, |limit| limit.rate.micros_per_second()) as f64 / 1e6;
    Scenario {
        family,
        timing: Timing::default(),
        retries: spec.ratio_ppm as f64 * 3.0 / 1e6,
        policies: vec![spec],
        askers,
        replicas: 2,
        direct: rate * 0.3,
        reserves_in: None,
        asks_apart_ms: None,
        late_send_ms: 50,
        hold_ms: 2_000,
        cost: 0,
        net: Net::GOOD,
        fresh: true,
        faults: Vec::new(),
        duration_ms: 60_000,
        calm_from_ms: None,
        work: Vec::new(),
    }
}

/// Ends a scenario: at `at_ms` all that can be healed is, and there is calm for long enough to judge the return.
pub(crate) fn heal(scenario: &mut Scenario, at_ms: i64) {
    // Nothing may go wrong later.
    let at_ms = scenario.faults.iter().map(|(at_ms, _)| at_ms + 1).max().unwrap_or(0).max(at_ms);
    scenario.at(at_ms, Fault::Weather(Net::GOOD));
    for replica in 0..scenario.replicas {
        scenario.at(at_ms, Fault::CutReplica(replica, false));
        scenario.at(at_ms, Fault::Replica(replica, true));
    }
    scenario.at(at_ms, Fault::ContinueStore);
    for process in 0..scenario.askers.len() {
        scenario.at(at_ms, Fault::CutProcess(process, false));
        scenario.at(at_ms, Fault::Pause(process, false));
        scenario.at(at_ms, Fault::Start(process));
        scenario.at(at_ms, Fault::Demand(process, 100));
    }
    scenario.calm_from_ms = Some(at_ms);
    // Who was told that leases are not permitted asks again after six intervals.
    let forbidden = scenario.policies.iter().any(|policy| !policy.lease.enabled);
    // What an agent lends it must have itself first, and what the dead had must be back with it.
    let lent = scenario.askers.iter().any(|asker| asker.lends);
    let renewals = if forbidden { 8 } else { 2 } + if lent { 5 } else { 0 };
    scenario.duration_ms = at_ms + scenario.all_back_ms() + renewals * scenario.timing.renew_max_ms + 3_000;
}

pub(crate) fn cut(scenario: &mut Scenario, processes: &[usize], at_ms: i64, cut: bool) {
    for process in processes {
        scenario.at(at_ms, Fault::CutProcess(*process, cut));
    }
}

pub(crate) fn spec_with(mut spec: Spec, curve: &[(i64, i64)]) -> Spec {
    let step =
        |(percent, duration_ms): &(i64, i64)| CurveStep { part_ppm: percent * 10_000, duration_ms: *duration_ms };
    spec.lease.curve = curve.iter().map(step).collect();
    spec
}

/// A policy whose retries matter as much as its admissions.
pub(crate) fn even(rng: &mut Rng, curve: &[(i64, i64)]) -> Spec {
    let rate = u32::try_from(rng.between(10, 40)).unwrap();
    spec(rate, i64::from(rate), 100_000, 20, 1, curve)
}

/// A policy of which so many holders have several tokens each, at every step.
pub(crate) fn ample(rng: &mut Rng, holders: usize) -> Spec {
    let rate = u32::try_from(holders).unwrap() * u32::try_from(rng.between(4, 10)).unwrap();
    let burst = i64::from(rate) * rng.between(2, 4);
    let curve = any_curve(rng);
    spec(rate, burst, 100_000, burst, 1, curve)
}

pub(crate) fn anyhow(rng: &mut Rng) -> Spec {
    let curve = any_curve(rng);
    even(rng, curve)
}
