//! Everything at once, at random.

use budget::policy::{FallbackOriginals, FallbackRetries, Limit, UnitLimit};
use budget::units::{Period, Rate};

use super::{any_spec, heal, plain};
use crate::{
    net::Net,
    rng::Rng,
    scenario::{Fault, Scenario, UNIT},
};

/// A random scenario: one to three times the usual amount of faults.
pub(crate) fn scenario(rng: &mut Rng) -> Scenario {
    let first = any_spec(rng);
    let holders = usize::try_from(rng.between(2, 8)).unwrap();
    let mut scenario = plain("random", rng, first, holders);
    scenario.timing.overlap_ms = if rng.chance(1, 2) { 6_000 } else { 0 };
    scenario.fresh = rng.chance(3, 4);
    scenario.net = if rng.chance(1, 2) { Net::GOOD } else { Net::random(rng) };
    scenario.replicas = usize::try_from(rng.between(1, 3)).unwrap();
    scenario.late_send_ms = *rng.pick(&[5, 50, 5_000]);
    fallback(rng, &mut scenario);
    if rng.chance(1, 6) {
        limit_permits(rng, &mut scenario);
    }
    policies(rng, &mut scenario);
    if rng.chance(1, 4) {
        cost_unit(rng, &mut scenario);
    }
    let storm_ms = rng.between(60_000, 180_000);
    let times = rng.between(1, 3);
    for _ in 0..times * storm_ms / 15_000 {
        let at_ms = rng.between(3_000, storm_ms);
        fault(rng, &mut scenario, at_ms);
    }
    heal(&mut scenario, storm_ms + 30_000);
    scenario
}

pub(super) fn fallback(rng: &mut Rng, scenario: &mut Scenario) {
    let originals = match rng.below(4) {
        0 => FallbackOriginals::Deny,
        1 => FallbackOriginals::Allow,
        2 => FallbackOriginals::Rate(Rate::new(2, Period::Second).unwrap()),
        _ => FallbackOriginals::Part(100_000),
    };
    let retries = if rng.chance(1, 4) { FallbackRetries::Deny } else { FallbackRetries::Earned };
    for policy in &mut scenario.policies {
        policy.fallback_originals = Some(originals);
        policy.fallback_retries = retries;
    }
}

pub(super) fn limit_permits(rng: &mut Rng, scenario: &mut Scenario) {
    let slots = u32::try_from(rng.between(10, 60)).unwrap();
    for policy in &mut scenario.policies {
        policy.max_in_flight = Some(slots);
        policy.permit_ttl_ms = 5_000;
    }
    scenario.hold_ms = rng.between(200, 6_000);
}

/// Attempts cost something of a further unit, which is about as scarce as admissions.
pub(super) fn cost_unit(rng: &mut Rng, scenario: &mut Scenario) {
    scenario.cost = rng.between(1, 4);
    for policy in &mut scenario.policies {
        let rate = policy.admission.map_or(1, |limit| limit.rate.micros_per_second() / 1_000_000);
        let rate = u32::try_from(rate * rng.between(1, scenario.cost + 1)).unwrap();
        let limit = Limit { rate: Rate::new(rate, Period::Second).unwrap(), burst_tokens: i64::from(rate) + 20 };
        policy.units = vec![UnitLimit { name: UNIT.to_owned(), limit }];
    }
}

/// Further policies: rates, bursts, ratios, parts and curves go up and down, and leases off and on again.
pub(super) fn policies(rng: &mut Rng, scenario: &mut Scenario) {
    if !rng.chance(1, 3) {
        return;
    }
    for _ in 0..rng.between(1, 4) {
        let last = scenario.policies[0].clone();
        let mut next = any_spec(rng);
        (next.fallback_originals, next.fallback_retries) = (last.fallback_originals, last.fallback_retries);
        (next.max_in_flight, next.permit_ttl_ms) = (last.max_in_flight, last.permit_ttl_ms);
        // Mostly one thing changes.
        if rng.chance(2, 3) {
            next.lease.curve.clone_from(&last.lease.curve);
        }
        scenario.policies.push(next);
    }
    if rng.chance(1, 4) {
        let mut without = scenario.policies[0].clone();
        without.lease.enabled = false;
        scenario.policies.push(without);
    }
    // It ends with one that permits leases.
    let again = scenario.policies[0].clone();
    scenario.policies.push(again);
    let count = i64::try_from(scenario.policies.len()).unwrap();
    for index in 1..count {
        let at_ms = 20_000 + index * 120_000 / count + rng.between(0, 5_000);
        scenario.at(at_ms, Fault::Publish(usize::try_from(index).unwrap()));
    }
}

/// One fault and, mostly, its end.
pub(super) fn fault(rng: &mut Rng, scenario: &mut Scenario, at_ms: i64) {
    let process = usize::try_from(rng.below(scenario.askers.len() as u64)).unwrap();
    let replica = usize::try_from(rng.below(scenario.replicas as u64)).unwrap();
    let long = rng.between(500, *rng.clone().pick(&[3_000, 30_000, 90_000]));
    let end_ms = at_ms + long;
    match rng.below(16) {
        0 => scenario.at(at_ms, Fault::Weather(Net::random(rng))),
        1 => {
            for cut in 0..scenario.askers.len() {
                if rng.chance(1, 2) {
                    scenario.at(at_ms, Fault::CutProcess(cut, true));
                    scenario.at(end_ms, Fault::CutProcess(cut, false));
                }
            }
        }
        2 => {
            scenario.at(at_ms, Fault::CutProcess(process, true));
            scenario.at(end_ms, Fault::CutProcess(process, false));
        }
        3 => {
            scenario.at(at_ms, Fault::CutReplica(replica, true));
            scenario.at(end_ms, Fault::CutReplica(replica, false));
        }
        4 => {
            scenario.at(at_ms, Fault::Replica(replica, false));
            scenario.at(at_ms + long / 4, Fault::Replica(replica, true));
        }
        5 => {
            scenario.at(at_ms, Fault::StopStore);
            scenario.at(end_ms, Fault::ContinueStore);
        }
        6 => {
            let back_ms = rng.chance(1, 2).then(|| rng.between(0, 40_000));
            scenario.at(at_ms, Fault::RestartStore(back_ms));
        }
        7 => scenario.at(at_ms, Fault::Flush),
        8 if scenario.timing.overlap_ms > 2_000 => {
            let overlap_ms = rng.between(0, scenario.timing.overlap_ms - 2_000);
            scenario.at(at_ms, Fault::FailOver { back_ms: rng.between(0, 5_000), overlap_ms, split: rng.chance(1, 3) });
        }
        9 => {
            let by_ms = *rng.pick(&[3_600_000, 1_500, 30_000, -30_000, -3_600_000, 700]);
            scenario.at(at_ms, Fault::Jump(by_ms));
            if rng.chance(1, 2) {
                scenario.at(end_ms, Fault::Jump(-by_ms));
            }
        }
        10 => {
            scenario.at(at_ms, Fault::Pause(process, true));
            scenario.at(end_ms, Fault::Pause(process, false));
        }
        11 => {
            scenario.at(at_ms, Fault::Suspend(process, true));
            scenario.at(end_ms, Fault::Suspend(process, false));
        }
        12 => crash_loop(rng, scenario, process, at_ms),
        13 => {
            scenario.at(at_ms, Fault::Demand(process, 0));
            scenario.at(end_ms, Fault::Demand(process, 100));
        }
        14 => scenario.at(at_ms, Fault::Revoke(process)),
        _ => {
            scenario.at(at_ms, Fault::Kill(process));
            scenario.at(at_ms + rng.between(1, 20_000), Fault::Start(process));
        }
    }
}

/// Dies and starts again and again.
pub(crate) fn crash_loop(rng: &mut Rng, scenario: &mut Scenario, process: usize, from_ms: i64) {
    let mut at_ms = from_ms;
    for _ in 0..rng.between(2, 8) {
        scenario.at(at_ms, Fault::Kill(process));
        scenario.at(at_ms + 200, Fault::Start(process));
        at_ms += rng.between(300, 4_000);
    }
}
