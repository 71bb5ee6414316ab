//! Families in which the state of the store is lost, or a policy changes meanwhile.

use budget::units::{Period, Rate};

use super::{CURVES, anyhow, cut, even, heal, plain};
use crate::{
    net::Net,
    rng::Rng,
    scenario::{Fault, Scenario},
};

/// Half the fleet is cut off and steps down, the other half gets what is freed and is cut off, the store is lost; several
/// times in a row.
pub(crate) fn cut_and_lend(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let holders = usize::try_from(rng.between(2, 6)).unwrap();
    let mut scenario = plain("cut-and-lend", rng, spec, holders);
    scenario.timing.overlap_ms = if rng.chance(1, 3) { 6_000 } else { 0 };
    let first_step_ms = scenario.policies[0].lease.curve[0].duration_ms;
    let margin_ms = scenario.timing.margin_ms;
    let middle = holders / 2;
    let (some, others): (Vec<_>, Vec<_>) = (0..holders).partition(|index| *index < middle);
    let mut at_ms = 15_000 + rng.between(0, 5_000);
    for _ in 0..rng.between(1, 4) {
        cut(&mut scenario, &some, at_ms, true);
        at_ms += first_step_ms + margin_ms + rng.between(0, 12_000);
        cut(&mut scenario, &others, at_ms, true);
        at_ms += rng.between(0, 4_000);
        let lost = match rng.below(3) {
            0 => Fault::Flush,
            1 => Fault::RestartStore(None),
            _ => Fault::RestartStore(Some(rng.between(1_000, 40_000))),
        };
        scenario.at(at_ms, lost);
        let mut more_ms = at_ms;
        for _ in 0..rng.below(3) {
            more_ms += rng.between(20_000, 60_000);
            scenario.at(more_ms, Fault::Flush);
        }
        if rng.chance(1, 2) {
            cut(&mut scenario, &some, at_ms, false);
        }
        at_ms += rng.between(1_000, 30_000);
        cut(&mut scenario, &some, at_ms, rng.chance(1, 3));
        cut(&mut scenario, &others, at_ms, false);
        at_ms += rng.between(10_000, 30_000);
    }
    heal(&mut scenario, at_ms + 10_000);
    scenario
}

/// A policy is lowered, the store is lost, the policy is raised, also during σ; part of the fleet cannot be reached.
pub(crate) fn lower_lose_raise(rng: &mut Rng) -> Scenario {
    let high = anyhow(rng);
    let mut low = high.clone();
    let quarter = rng.between(2, 6);
    low.admission = low.admission.map(|limit| budget::policy::Limit {
        rate: Rate::new(u32::try_from(limit.rate.micros_per_second() / 1_000_000 / quarter).unwrap(), Period::Second)
            .unwrap(),
        burst_tokens: limit.burst_tokens / quarter,
    });
    low.retry_burst_tokens /= quarter;
    let holders = usize::try_from(rng.between(2, 4)).unwrap();
    let mut scenario = plain("lower-lose-raise", rng, high.clone(), holders);
    scenario.policies.push(low.clone());
    scenario.policies.push(high.clone());
    scenario.policies.push(low);
    scenario.policies.push(high);
    scenario.timing.overlap_ms = *rng.pick(&[0, 6_000, 6_000]);
    let away: Vec<_> = (0..holders).filter(|_| rng.chance(2, 3)).collect();
    let mut at_ms = 15_000 + rng.between(0, 5_000);
    for round in [0, 2] {
        cut(&mut scenario, &away, at_ms, true);
        at_ms += rng.between(0, 3_000);
        scenario.at(at_ms, Fault::Publish(round + 1));
        at_ms += rng.between(0, 15_000);
        scenario
            .at(at_ms, if rng.chance(1, 2) { Fault::Flush } else { Fault::RestartStore(Some(rng.between(0, 20_000))) });
        at_ms += rng.between(0, 8_000);
        scenario.at(at_ms, Fault::Publish(round + 2));
        at_ms += rng.between(0, 40_000);
        cut(&mut scenario, &away, at_ms, false);
        at_ms += rng.between(5_000, 20_000);
    }
    heal(&mut scenario, at_ms + 5_000);
    scenario
}

/// Two masters live for a while, both reachable by some; the old one goes on lending.
pub(crate) fn overlap(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let holders = usize::try_from(rng.between(3, 8)).unwrap();
    let mut scenario = plain("overlap", rng, spec, holders);
    scenario.timing.overlap_ms = 6_000;
    scenario.replicas = 3;
    let mut at_ms = 20_000 + rng.between(0, 5_000);
    for _ in 0..rng.between(1, 5) {
        // Newcomers ask the old master at the last moment.
        for process in 0..holders {
            if rng.chance(1, 3) {
                scenario.at(at_ms - rng.between(0, 6_000), Fault::Kill(process));
                scenario.at(at_ms + rng.between(-1_000, 4_000), Fault::Start(process));
            }
        }
        let overlap_ms = if rng.chance(1, 8) { rng.between(4_000, 9_000) } else { rng.between(2_000, 4_000) };
        scenario.at(at_ms, Fault::FailOver { back_ms: rng.between(0, 4_000), overlap_ms, split: rng.chance(1, 3) });
        at_ms += rng.between(8_000, 50_000);
    }
    heal(&mut scenario, at_ms + 10_000);
    scenario
}

/// The store is lost again and again while holders prove what they hold, some more than once.
pub(crate) fn proofs(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let holders = usize::try_from(rng.between(2, 8)).unwrap();
    let mut scenario = plain("proofs", rng, spec, holders);
    scenario.timing.overlap_ms = if rng.chance(1, 3) { 6_000 } else { 0 };
    scenario.net = if rng.chance(1, 2) {
        Net::GOOD
    } else {
        Net { loss: 400, double: 200, late: 100, late_ms: 3_000, usual_ms: 30 }
    };
    let mut at_ms = 20_000;
    let longest_ms = scenario.longest_curve_ms();
    for _ in 0..rng.between(1, 4) {
        let away: Vec<_> = (0..holders).filter(|_| rng.chance(1, 2)).collect();
        let cut_ms = at_ms - rng.between(0, 10_000);
        cut(&mut scenario, &away, cut_ms, true);
        scenario.at(at_ms, Fault::Flush);
        at_ms += rng.between(3_000, longest_ms);
        cut(&mut scenario, &away, at_ms, false);
        at_ms += rng.between(2_000, 20_000);
    }
    heal(&mut scenario, at_ms + 5_000);
    scenario
}

/// Who was cut off proves to the new master what it holds, a moment before its step ends; the old master lends the freed
/// half to one it still talks to, and the new one might do the same.
pub(crate) fn lend_in_overlap(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let mut scenario = plain("lend-in-overlap", rng, spec, 4);
    let step_ms = scenario.policies[0].lease.curve[0].duration_ms;
    scenario.timing.overlap_ms = 14_000;
    let overlap_ms = rng.between(10_000, 12_000);
    // Some talk to the old master as long as it lives, the others to the new one.
    for (asker, endpoint) in scenario.askers.iter_mut().zip([1, 0, 0, 1]) {
        asker.endpoint = Some(endpoint);
        asker.weight = 1;
    }
    // These come when there is something to get.
    scenario.askers[2].starts = false;
    scenario.askers[3].starts = false;
    let cut_ms = 20_000 + rng.between(0, 4_000);
    let lost_ms = cut_ms + step_ms - rng.between(3_000, 6_000);
    scenario.at(cut_ms, Fault::CutProcess(0, true));
    scenario.at(lost_ms, Fault::FailOver { back_ms: 0, overlap_ms, split: true });
    scenario.at(lost_ms + 50, Fault::CutProcess(0, false));
    let again_ms = lost_ms + rng.between(200, 5_000);
    scenario.at(again_ms, Fault::CutProcess(0, true));
    scenario.at(lost_ms + rng.between(4_000, overlap_ms - 500), Fault::Start(2));
    scenario.at(lost_ms + rng.between(1_000, 20_000), Fault::Start(3));
    heal(&mut scenario, lost_ms + 50_000);
    scenario
}

/// Replies are lost and policies are lowered a little after a loss of state, so that proofs are answered with DEAD and
/// come again; others, cut off, have proved nothing.
pub(crate) fn proved_twice(rng: &mut Rng) -> Scenario {
    let curve = CURVES[0];
    let first = even(rng, curve);
    let holders = usize::try_from(rng.between(2, 5)).unwrap();
    let mut scenario = plain("proved-twice", rng, first.clone(), holders);
    for step in 1..=8 {
        let mut lower = first.clone();
        lower.retry_burst_tokens -= step;
        scenario.policies.push(lower);
    }
    let away: Vec<_> = (0..holders).step_by(2).collect();
    let at_ms = 20_000 + rng.between(0, 5_000);
    cut(&mut scenario, &away, at_ms - 500, true);
    scenario.at(at_ms, Fault::Flush);
    scenario.at(at_ms, Fault::Weather(Net { loss: 500, double: 0, late: 0, late_ms: 0, usual_ms: 20 }));
    for step in 1..=8 {
        let step_ms = i64::try_from(step).unwrap() * 1_000;
        scenario.at(at_ms + step_ms + rng.between(0, 900), Fault::Publish(step));
    }
    scenario.at(at_ms + 12_000, Fault::Weather(Net::GOOD));
    heal(&mut scenario, at_ms + 40_000);
    scenario
}

/// The curve becomes shorter, the part smaller, leases are forbidden, and the store is lost.
pub(crate) fn curves(rng: &mut Rng) -> Scenario {
    let mut first = even(rng, CURVES[0]);
    first.lease.part_ppm = *rng.pick(&[1_000_000, 800_000]);
    let mut second = first.clone();
    match rng.below(3) {
        0 => second.lease.curve = even(rng, CURVES[3]).lease.curve,
        1 => second.lease.part_ppm = *rng.pick(&[300_000, 100_000]),
        _ => second.lease.enabled = false,
    }
    let holders = usize::try_from(rng.between(2, 4)).unwrap();
    let mut scenario = plain("curves", rng, first.clone(), holders);
    scenario.policies.push(second);
    scenario.policies.push(first);
    let away: Vec<_> = (0..holders).filter(|_| rng.chance(2, 3)).collect();
    let at_ms = 20_000 + rng.between(0, 5_000);
    cut(&mut scenario, &away, at_ms, true);
    scenario.at(at_ms + rng.between(0, 10_000), Fault::Publish(1));
    scenario.at(at_ms + rng.between(10_000, 20_000), Fault::Flush);
    scenario.at(at_ms + rng.between(20_000, 100_000), Fault::Publish(2));
    heal(&mut scenario, at_ms + 110_000);
    scenario
}
