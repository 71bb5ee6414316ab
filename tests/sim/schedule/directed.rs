//! Families that aim at one rule each; the seed chooses times and sizes. Random schedules show these in too few runs.

use budget::{
    policy::{FallbackOriginals, FallbackRetries, Spec},
    units::{Period, Rate},
};

use super::{CURVES, any_curve, heal, plain, random::crash_loop};
use crate::{
    net::Net,
    rng::Rng,
    scenario::{Fault, Scenario, Work, spec},
};

/// Makes a scenario of a family.
pub(crate) type Family = fn(&mut Rng) -> Scenario;

/// All of them, by name.
pub(crate) const FAMILIES: [(&str, Family); 23] = [
    ("cut-and-lend", cut_and_lend),
    ("lower-lose-raise", lower_lose_raise),
    ("overlap", overlap),
    ("late-replies", late_replies),
    ("old-replies", old_replies),
    ("proofs", proofs),
    ("clones", clones),
    ("crash-loop", crash_loops),
    ("clock", clock),
    ("suspend", suspend),
    ("beyond", beyond),
    ("permits", permits),
    ("outage", outage),
    ("calm", calm),
    ("few", few),
    ("idle", idle),
    ("curves", curves),
    ("farewell", farewell),
    ("newcomers", newcomers),
    ("late-sends", late_sends),
    ("lend-in-overlap", lend_in_overlap),
    ("proved-twice", proved_twice),
    ("raise", raise),
];

fn cut(scenario: &mut Scenario, processes: &[usize], at_ms: i64, cut: bool) {
    for process in processes {
        scenario.at(at_ms, Fault::CutProcess(*process, cut));
    }
}

/// A policy whose retries matter as much as its admissions.
fn even(rng: &mut Rng, curve: &[(i64, i64)]) -> Spec {
    let rate = u32::try_from(rng.between(10, 40)).unwrap();
    spec(rate, i64::from(rate), 100_000, 20, 1, curve)
}

/// A policy of which so many holders have several tokens each, at every step.
fn ample(rng: &mut Rng, holders: usize) -> Spec {
    let rate = u32::try_from(holders).unwrap() * u32::try_from(rng.between(4, 10)).unwrap();
    let burst = i64::from(rate) * rng.between(2, 4);
    let curve = any_curve(rng);
    spec(rate, burst, 100_000, burst, 1, curve)
}

fn anyhow(rng: &mut Rng) -> Spec {
    let curve = any_curve(rng);
    even(rng, curve)
}

/// Half the fleet is cut off and steps down, the other half gets what is freed and is cut off, the store is lost; several
/// times in a row.
fn cut_and_lend(rng: &mut Rng) -> Scenario {
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
fn lower_lose_raise(rng: &mut Rng) -> Scenario {
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
fn overlap(rng: &mut Rng) -> Scenario {
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

/// Replies are later than the margin.
fn late_replies(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let holders = usize::try_from(rng.between(2, 5)).unwrap();
    let mut scenario = plain("late-replies", rng, spec, holders);
    scenario.net = Net { loss: 0, double: 100, late: 500, late_ms: rng.between(5_000, 20_000), usual_ms: 20 };
    let mut at_ms = 15_000;
    for _ in 0..rng.between(2, 6) {
        let away: Vec<_> = (0..holders).filter(|_| rng.chance(1, 2)).collect();
        let to_ms = at_ms + rng.between(5_000, 60_000);
        cut(&mut scenario, &away, at_ms, true);
        cut(&mut scenario, &away, to_ms, false);
        at_ms = to_ms + rng.between(3_000, 20_000);
    }
    heal(&mut scenario, at_ms);
    scenario
}

/// Requests arrive twice, the second time after a policy was lowered, or when the grant has ended.
fn old_replies(rng: &mut Rng) -> Scenario {
    let high = anyhow(rng);
    let mut low = high.clone();
    low.admission = low.admission.map(|limit| budget::policy::Limit {
        rate: Rate::new(5, Period::Second).unwrap(),
        burst_tokens: 6.max(limit.burst_tokens / 6),
    });
    low.retry_burst_tokens = 5;
    let holders = usize::try_from(rng.between(2, 4)).unwrap();
    let mut scenario = plain("old-replies", rng, high, holders);
    scenario.policies.push(low);
    scenario.net = Net { loss: 300, double: 300, late: 300, late_ms: rng.between(2_000, 30_000), usual_ms: 20 };
    let mut at_ms = 20_000 + rng.between(0, 10_000);
    let away: Vec<_> = (0..holders).filter(|_| rng.chance(1, 2)).collect();
    for process in &away {
        scenario.at(at_ms - rng.between(0, 3_000), Fault::Pause(*process, true));
    }
    scenario.at(at_ms, Fault::Publish(1));
    at_ms += rng.between(1_000, 120_000);
    for process in &away {
        scenario.at(at_ms, Fault::Pause(*process, false));
    }
    heal(&mut scenario, at_ms + 10_000);
    scenario
}

/// The store is lost again and again while holders prove what they hold, some more than once.
fn proofs(rng: &mut Rng) -> Scenario {
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

/// A running holder is copied.
fn clones(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let holders = usize::try_from(rng.between(2, 4)).unwrap();
    let mut scenario = plain("clones", rng, spec, holders);
    let mut at_ms = 20_000;
    for _ in 0..rng.between(1, 3) {
        at_ms += rng.between(0, 10_000);
        let process = usize::try_from(rng.below(holders as u64)).unwrap();
        scenario.at(at_ms, Fault::Clone(process));
        at_ms += scenario.longest_curve_ms() + 5_000;
    }
    heal(&mut scenario, at_ms + 5_000);
    scenario
}

fn crash_loops(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let holders = usize::try_from(rng.between(2, 5)).unwrap();
    let mut scenario = plain("crash-loop", rng, spec, holders);
    for _ in 0..rng.between(3, 12) {
        let process = usize::try_from(rng.below(holders as u64)).unwrap();
        let at_ms = rng.between(10_000, 60_000);
        crash_loop(rng, &mut scenario, process, at_ms);
    }
    heal(&mut scenario, 80_000);
    scenario
}

/// The store's clock jumps while leases step down.
fn clock(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let holders = usize::try_from(rng.between(2, 4)).unwrap();
    let mut scenario = plain("clock", rng, spec, holders);
    let away: Vec<_> = (0..holders / 2).collect();
    let mut at_ms = 15_000;
    cut(&mut scenario, &away, at_ms, true);
    for _ in 0..rng.between(1, 20) {
        at_ms += rng.between(1_000, 4_000);
        let by_ms = *rng.pick(&[3_600_000, 2_000, 5_000, 30_000, 120_000, -3_600_000, -2_000]);
        scenario.at(at_ms, Fault::Jump(by_ms));
    }
    let end_ms = at_ms + scenario.longest_curve_ms();
    heal(&mut scenario, end_ms);
    scenario
}

/// Hosts are suspended and come back in the middle of a curve, or behind it.
fn suspend(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let holders = usize::try_from(rng.between(2, 4)).unwrap();
    let mut scenario = plain("suspend", rng, spec, holders);
    let longest_ms = scenario.longest_curve_ms();
    let mut at_ms = 15_000;
    for _ in 0..rng.between(2, 6) {
        let process = usize::try_from(rng.below(holders as u64)).unwrap();
        let to_ms = at_ms + rng.between(2_000, longest_ms + 10_000);
        scenario.at(at_ms, Fault::Suspend(process, true));
        if rng.chance(1, 2) {
            cut(&mut scenario, &[process], at_ms, true);
            cut(&mut scenario, &[process], to_ms + 10_000, false);
        }
        scenario.at(to_ms, Fault::Suspend(process, false));
        at_ms = to_ms + rng.between(2_000, 15_000);
    }
    heal(&mut scenario, at_ms + 10_000);
    scenario
}

/// Everybody is beyond the curve, several times, under each fallback.
fn beyond(rng: &mut Rng) -> Scenario {
    let curve = CURVES[usize::try_from(rng.between(1, 3)).unwrap()];
    let mut spec = even(rng, curve);
    let (originals, retries) = *rng.pick(&[
        (FallbackOriginals::Deny, FallbackRetries::Deny),
        (FallbackOriginals::Allow, FallbackRetries::Earned),
        (FallbackOriginals::Rate(Rate::new(2, Period::Second).unwrap()), FallbackRetries::Earned),
        (FallbackOriginals::Rate(Rate::new(1, Period::Second).unwrap()), FallbackRetries::Deny),
        (FallbackOriginals::Part(100_000), FallbackRetries::Earned),
        (FallbackOriginals::Part(300_000), FallbackRetries::Earned),
    ]);
    spec.fallback_originals = Some(originals);
    spec.fallback_retries = retries;
    if rng.chance(1, 2) {
        spec.floor = Rate::new(3, Period::Second).unwrap();
    }
    let holders = usize::try_from(rng.between(2, 6)).unwrap();
    let mut scenario = plain("beyond", rng, spec, holders);
    let longest_ms = scenario.longest_curve_ms();
    let mut at_ms = 15_000;
    for _ in 0..rng.between(2, 4) {
        scenario.at(at_ms, Fault::StopStore);
        at_ms += longest_ms + rng.between(-5_000, 40_000);
        scenario.at(at_ms, Fault::ContinueStore);
        at_ms += rng.between(500, 15_000);
    }
    heal(&mut scenario, at_ms);
    scenario
}

/// Permits are limited and held for long; holders are cut off, shrink and crash.
fn permits(rng: &mut Rng) -> Scenario {
    let mut spec = anyhow(rng);
    spec.max_in_flight = Some(u32::try_from(rng.between(8, 60)).unwrap());
    spec.permit_ttl_ms = rng.between(3_000, 12_000);
    let holders = usize::try_from(rng.between(2, 4)).unwrap();
    let mut scenario = plain("permits", rng, spec, holders);
    scenario.hold_ms = rng.between(1_000, 15_000);
    let mut at_ms = 15_000;
    for _ in 0..rng.between(3, 8) {
        let process = usize::try_from(rng.below(holders as u64)).unwrap();
        let to_ms = at_ms + rng.between(2_000, 40_000);
        match rng.below(4) {
            0 => {
                cut(&mut scenario, &[process], at_ms, true);
                cut(&mut scenario, &[process], to_ms, false);
            }
            1 => {
                scenario.at(at_ms, Fault::Demand(process, 0));
                scenario.at(to_ms, Fault::Demand(process, 100));
            }
            2 => {
                scenario.at(at_ms, Fault::Kill(process));
                scenario.at(to_ms, Fault::Start(process));
            }
            _ => scenario.at(at_ms, Fault::Flush),
        }
        at_ms += rng.between(3_000, 20_000);
    }
    heal(&mut scenario, at_ms + 10_000);
    scenario
}

/// Store and replicas are all gone: the fleet lives by its curves.
fn outage(rng: &mut Rng) -> Scenario {
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
fn calm(rng: &mut Rng) -> Scenario {
    let holders = usize::try_from(rng.between(1, 12)).unwrap();
    let spec = ample(rng, holders);
    let mut scenario = plain("calm", rng, spec, holders);
    scenario.duration_ms = 100_000;
    scenario.work.push(Work::Calm { from_ms: 10_000, to_ms: 100_000, percent: 80 });
    scenario.work.push(Work::Calm { from_ms: 40_000, to_ms: 100_000, percent: 95 });
    scenario
}

/// A small budget among one holder, a few, or more than it has tokens.
fn few(rng: &mut Rng) -> Scenario {
    let curve = any_curve(rng);
    let spec = spec(10, rng.between(4, 20), 100_000, rng.between(1, 10), 0, curve);
    let holders = *rng.pick(&[1, 10, 50]);
    let mut scenario = plain("few", rng, spec, holders);
    scenario.duration_ms = 120_000;
    scenario.work.push(Work::Calm { from_ms: 20_000, to_ms: 120_000, percent: 80 });
    scenario
}

/// A majority falls idle; what it had comes to those who ask.
fn idle(rng: &mut Rng) -> Scenario {
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

/// The curve becomes shorter, the part smaller, leases are forbidden, and the store is lost.
fn curves(rng: &mut Rng) -> Scenario {
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

/// Holders say farewell, and messages they sent before arrive later.
fn farewell(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let holders = usize::try_from(rng.between(2, 6)).unwrap();
    let mut scenario = plain("farewell", rng, spec, holders);
    scenario.net = Net { loss: 100, double: 300, late: 300, late_ms: 10_000, usual_ms: 20 };
    let mut at_ms = 15_000;
    for _ in 0..rng.between(2, 8) {
        let process = usize::try_from(rng.below(holders as u64)).unwrap();
        scenario.at(at_ms, Fault::Leave(process));
        at_ms += rng.between(3_000, 10_000);
        scenario.at(at_ms, Fault::Kill(process));
        scenario.at(at_ms + 500, Fault::Start(process));
    }
    heal(&mut scenario, at_ms + 10_000);
    scenario
}

/// Holders come one after the other, while those before them hold all there is.
fn newcomers(rng: &mut Rng) -> Scenario {
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

/// Permits wait long before they are sent, in processes that stop and go on.
fn late_sends(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let holders = usize::try_from(rng.between(2, 4)).unwrap();
    let mut scenario = plain("late-sends", rng, spec, holders);
    scenario.late_send_ms = 20_000;
    let mut at_ms = 15_000;
    for _ in 0..rng.between(2, 6) {
        let process = usize::try_from(rng.below(holders as u64)).unwrap();
        scenario.at(at_ms, Fault::Pause(process, true));
        at_ms += rng.between(1_000, 60_000);
        scenario.at(at_ms, Fault::Pause(process, false));
        at_ms += rng.between(1_000, 10_000);
    }
    heal(&mut scenario, at_ms + 10_000);
    scenario
}

/// Who was cut off proves to the new master what it holds, a moment before its step ends; the old master lends the freed
/// half to one it still talks to, and the new one might do the same.
fn lend_in_overlap(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let mut scenario = plain("lend-in-overlap", rng, spec, 3);
    let step_ms = scenario.policies[0].lease.curve[0].duration_ms;
    scenario.timing.overlap_ms = 14_000;
    let overlap_ms = rng.between(9_000, 12_000);
    // One talks to the old master as long as it lives, the others to the new one.
    for (asker, endpoint) in scenario.askers.iter_mut().zip([1, 0, 1]) {
        asker.endpoint = Some(endpoint);
        asker.weight = 1;
    }
    // The third comes when there is something to get.
    scenario.askers[2].starts = false;
    let cut_ms = 20_000 + rng.between(0, 4_000);
    let lost_ms = cut_ms + step_ms - rng.between(500, 5_000);
    scenario.at(cut_ms, Fault::CutProcess(0, true));
    scenario.at(lost_ms, Fault::FailOver { back_ms: 0, overlap_ms, split: true });
    scenario.at(lost_ms + 50, Fault::CutProcess(0, false));
    let again_ms = lost_ms + rng.between(200, 2_000);
    scenario.at(again_ms, Fault::CutProcess(0, true));
    scenario.at(lost_ms + rng.between(1_000, 10_000), Fault::Start(2));
    heal(&mut scenario, lost_ms + 50_000);
    scenario
}

/// Replies are lost and policies are lowered a little after a loss of state, so that proofs are answered with DEAD and
/// come again; others, cut off, have proved nothing.
fn proved_twice(rng: &mut Rng) -> Scenario {
    let curve = CURVES[0];
    let first = even(rng, curve);
    let holders = usize::try_from(rng.between(2, 5)).unwrap();
    let mut scenario = plain("proved-twice", rng, first.clone(), holders);
    for step in 1..=8 {
        let mut lower = first.clone();
        lower.retry_burst_tokens -= step;
        scenario.policies.push(lower);
    }
    let (away, near): (Vec<_>, Vec<_>) = (0..holders).partition(|index| index % 2 == 0);
    let at_ms = 20_000 + rng.between(0, 5_000);
    cut(&mut scenario, &away, at_ms - 500, true);
    scenario.at(at_ms, Fault::Flush);
    scenario.at(at_ms, Fault::Weather(Net { loss: 500, double: 0, late: 0, late_ms: 0, usual_ms: 20 }));
    for step in 1..=8 {
        let step_ms = i64::try_from(step).unwrap() * 1_000;
        scenario.at(at_ms + step_ms + rng.between(0, 900), Fault::Publish(step));
    }
    scenario.at(at_ms + 12_000, Fault::Weather(Net::GOOD));
    let _ = near;
    heal(&mut scenario, at_ms + 40_000);
    scenario
}

/// The rate is raised, not the burst, when nobody has called for a while.
fn raise(rng: &mut Rng) -> Scenario {
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
