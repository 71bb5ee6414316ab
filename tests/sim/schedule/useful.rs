//! Families that judge what is admitted, and who gets it.

use super::{CURVES, ample, any_curve, anyhow, heal, plain};
use crate::{
    net::Net,
    rng::Rng,
    scenario::{Fault, Scenario, Work, spec},
};

/// Store and replicas are all gone: the fleet lives by its curves.
pub(crate) fn outage(rng: &mut Rng) -> Scenario {
    let holders = usize::try_from(rng.between(2, 8)).unwrap();
    let spec = ample(rng, holders);
    let mut scenario = plain("outage", rng, spec, holders);
    let from_ms = 40_000 + rng.between(0, 10_000);
    let to_ms = from_ms + scenario.longest_curve_ms() + 5_000;
    scenario.at(from_ms, Fault::StopStore);
    scenario.work.push(Work::Outage { from_ms, to_ms });
    heal(&mut scenario, to_ms + rng.between(0, 20_000));
    scenario
}

/// Nothing happens.
pub(crate) fn calm(rng: &mut Rng) -> Scenario {
    let holders = usize::try_from(rng.between(1, 12)).unwrap();
    let spec = ample(rng, holders);
    let mut scenario = plain("calm", rng, spec, holders);
    scenario.duration_ms = 100_000;
    scenario.work.push(Work::Calm { from_ms: 10_000, to_ms: 100_000, percent: 80 });
    scenario.work.push(Work::Calm { from_ms: 40_000, to_ms: 100_000, percent: 95 });
    scenario
}

/// A small budget among one holder, a few, or more than it has tokens.
pub(crate) fn few(rng: &mut Rng) -> Scenario {
    let curve = any_curve(rng);
    let spec = spec(10, rng.between(4, 20), 100_000, rng.between(1, 10), 0, curve);
    let holders = *rng.pick(&[1, 10, 50]);
    let mut scenario = plain("few", rng, spec, holders);
    scenario.duration_ms = 120_000;
    scenario.work.push(Work::Calm { from_ms: 20_000, to_ms: 120_000, percent: 80 });
    scenario
}

/// A majority falls idle; what it had comes to those who ask.
pub(crate) fn idle(rng: &mut Rng) -> Scenario {
    let holders = usize::try_from(rng.between(4, 10)).unwrap();
    let spec = ample(rng, holders);
    let mut scenario = plain("idle", rng, spec, holders);
    let idle = holders * 2 / 3;
    // Those who go on ask for enough.
    let rate: f64 = scenario.askers.iter().map(|asker| asker.originals).sum();
    for asker in &mut scenario.askers[idle..] {
        asker.originals = rate / (holders - idle) as f64;
    }
    for process in 0..idle {
        scenario.at(40_000, Fault::Demand(process, 0));
    }
    scenario.direct = 0.0;
    scenario.duration_ms = 110_000;
    // Two renewals, and one in which it is asked for.
    scenario.work.push(Work::Calm { from_ms: 62_000, to_ms: 110_000, percent: 90 });
    scenario
}

/// One holder crashes every few seconds; what its dead incarnations hold must not starve direct callers.
pub(crate) fn stranded(rng: &mut Rng) -> Scenario {
    let spec = ample(rng, 6);
    let mut scenario = plain("stranded", rng, spec, 1);
    scenario.direct = scenario.askers[0].originals;
    scenario.askers[0].originals /= 10.0;
    let mut at_ms = 30_000;
    while at_ms < 80_000 {
        scenario.at(at_ms, Fault::Kill(0));
        scenario.at(at_ms + 100, Fault::Start(0));
        at_ms += rng.between(1_000, 5_000);
    }
    scenario.work.push(Work::Calm { from_ms: 45_000, to_ms: 80_000, percent: 60 });
    heal(&mut scenario, at_ms);
    scenario
}

/// Holders come one after the other, while those before them hold all there is.
pub(crate) fn newcomers(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let holders = usize::try_from(rng.between(3, 10)).unwrap();
    let mut scenario = plain("newcomers", rng, spec, holders);
    for process in 1..holders {
        scenario.askers[process].starts = false;
        scenario.at(rng.between(10_000, 90_000), Fault::Start(process));
    }
    if rng.chance(1, 2) {
        scenario.net = Net::random(rng);
    }
    heal(&mut scenario, 100_000);
    scenario
}

/// The rate is raised, not the burst, when nobody has called for a while.
pub(crate) fn raise(rng: &mut Rng) -> Scenario {
    let low = spec(5, 10, 100_000, 10, 0, CURVES[1]);
    let high = spec(60, 10, 100_000, 10, 0, CURVES[1]);
    let mut scenario = plain("raise", rng, low, 1);
    scenario.policies.push(high);
    scenario.direct = 60.0;
    scenario.askers[0].starts = false;
    let at_ms = 20_000 + rng.between(0, 5_000);
    for replica in 0..scenario.replicas {
        scenario.at(at_ms, Fault::CutReplica(replica, true));
        scenario.at(at_ms + 2_500, Fault::CutReplica(replica, false));
    }
    scenario.at(at_ms + 2_400, Fault::Publish(1));
    scenario.duration_ms = at_ms + 20_000;
    scenario
}
