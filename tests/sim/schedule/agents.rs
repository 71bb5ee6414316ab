//! Families with agents: processes that lend parts of their leases to others.

use budget::units::{Period, Rate};

use super::{CURVES, ample, any_curve, any_spec, cut, even, heal, plain, random};
use crate::{
    net::Net,
    rng::Rng,
    scenario::{Asker, Fault, Scenario, Work, spec},
    schedule::directed::Family,
};

/// All of them, by name.
pub(crate) const FAMILIES: [(&str, Family); 15] = [
    ("agents", anything),
    ("agents-shrink", shrink),
    ("agents-end", end),
    ("agents-late", late),
    ("agents-lost", lost),
    ("agents-leave", leave),
    ("agents-turn", turn),
    ("agents-clones", clones),
    ("agents-permits", permits),
    ("agents-calm", calm),
    ("agents-outage", outage),
    ("agents-revoke", revoke),
    ("agents-nested", nested),
    ("agents-copied", copied),
    ("agents-crowded", crowded),
];

/// The first process is an agent and lends to the next ones; some have no agent. Agents are asked for little themselves.
fn fleet(rng: &mut Rng, family: &'static str, spec: budget::policy::Spec, lessees: usize, others: usize) -> Scenario {
    let mut scenario = plain(family, rng, spec, 1 + lessees + others);
    let askers = &mut scenario.askers;
    askers[0].lends = true;
    askers[0].originals *= *rng.pick(&[0.05, 0.5, 1.0]);
    for lessee in &mut askers[1..=lessees] {
        lessee.agent = Some(0);
    }
    scenario
}

fn few(rng: &mut Rng, from: i64, to: i64) -> usize {
    usize::try_from(rng.between(from, to)).unwrap()
}

/// Faults at random, for agents and all others.
fn anything(rng: &mut Rng) -> Scenario {
    let spec = any_spec(rng);
    let (lessees, others) = (few(rng, 1, 5), few(rng, 0, 3));
    let mut scenario = fleet(rng, "agents", spec, lessees, others);
    // Somebody stays with the first: an agent that nobody asks gives its lease up.
    if rng.chance(1, 3) && others > 0 && lessees > 1 {
        // A second agent.
        let second = scenario.askers.len() - 1;
        scenario.askers[second].lends = true;
        scenario.askers[lessees].agent = Some(second);
    }
    scenario.timing.overlap_ms = if rng.chance(1, 2) { 6_000 } else { 0 };
    scenario.fresh = rng.chance(3, 4);
    scenario.net = if rng.chance(1, 2) { Net::GOOD } else { Net::random(rng) };
    scenario.replicas = few(rng, 1, 3);
    scenario.late_send_ms = *rng.pick(&[5, 50, 5_000]);
    random::fallback(rng, &mut scenario);
    if rng.chance(1, 6) {
        random::limit_permits(rng, &mut scenario);
    }
    random::policies(rng, &mut scenario);
    if rng.chance(1, 4) {
        random::cost_unit(rng, &mut scenario);
    }
    let storm_ms = rng.between(60_000, 180_000);
    for _ in 0..rng.between(1, 3) * storm_ms / 15_000 {
        let at_ms = rng.between(3_000, storm_ms);
        random::fault(rng, &mut scenario, at_ms);
    }
    heal(&mut scenario, storm_ms + 30_000);
    scenario
}

/// The agent's lease becomes smaller and larger while some of its sub-lessees hear nothing of it.
fn shrink(rng: &mut Rng) -> Scenario {
    let curve = any_curve(rng);
    let high = even(rng, curve);
    let (lessees, others) = (few(rng, 1, 4), few(rng, 1, 2));
    let mut scenario = fleet(rng, "agents-shrink", high.clone(), lessees, others);
    let mut low = high.clone();
    low.admission = low.admission.map(|limit| budget::policy::Limit {
        rate: Rate::new(u32::try_from(rng.between(4, 9)).unwrap(), Period::Second).unwrap(),
        burst_tokens: limit.burst_tokens.min(10),
    });
    low.retry_burst_tokens = 12;
    if rng.chance(1, 3) {
        low.lease.curve = even(rng, CURVES[3]).lease.curve;
    }
    scenario.policies.push(low);
    scenario.policies.push(high);
    let mut at_ms = 20_000;
    for _ in 0..rng.between(1, 4) {
        at_ms += rng.between(2_000, 12_000);
        let lessee = 1 + few(rng, 0, 3) % lessees;
        let to_ms = at_ms + rng.between(2_000, 60_000);
        match rng.below(3) {
            0 => scenario.at(at_ms, Fault::Kill(lessee)),
            1 => cut(&mut scenario, &[lessee], at_ms, true),
            _ => scenario.at(at_ms, Fault::Pause(lessee, true)),
        }
        let less_ms = at_ms + rng.between(0, 3_000);
        match rng.below(3) {
            0 => scenario.at(less_ms, Fault::Publish(1)),
            1 => (1 + lessees..1 + lessees + others).for_each(|it| scenario.at(less_ms, Fault::Demand(it, 800))),
            _ => (0..=lessees).for_each(|it| scenario.at(less_ms, Fault::Demand(it, 5))),
        }
        scenario.at(to_ms, Fault::Start(lessee));
        cut(&mut scenario, &[lessee], to_ms, false);
        scenario.at(to_ms, Fault::Pause(lessee, false));
        at_ms = to_ms;
        let more_ms = at_ms + rng.between(0, 20_000);
        scenario.at(more_ms, Fault::Publish(2));
        (0..scenario.askers.len()).for_each(|it| scenario.at(more_ms, Fault::Demand(it, 100)));
    }
    heal(&mut scenario, at_ms + 30_000);
    scenario
}

/// The agent is cut off, paused or killed, and so hears nothing, while its sub-lessees go on with it; others get what it
/// had. Sub-leases are made anew along the old curve.
fn end(rng: &mut Rng) -> Scenario {
    let curve = any_curve(rng);
    let spec = even(rng, curve);
    let (lessees, others) = (few(rng, 1, 4), few(rng, 1, 3));
    let mut scenario = fleet(rng, "agents-end", spec, lessees, others);
    let longest_ms = scenario.longest_curve_ms();
    let mut at_ms = 15_000;
    for _ in 0..rng.between(1, 4) {
        at_ms += rng.between(0, 10_000);
        let to_ms = at_ms + rng.between(2_000, longest_ms + 10_000);
        match rng.below(4) {
            0 => {
                scenario.at(at_ms, Fault::Kill(0));
                scenario.at(at_ms + rng.between(100, 20_000), Fault::Start(0));
            }
            1 => scenario.at(at_ms, Fault::Pause(0, true)),
            2 => scenario.at(at_ms, Fault::Suspend(0, true)),
            _ => cut(&mut scenario, &[0], at_ms, true),
        }
        for lessee in 1..=lessees {
            if rng.chance(1, 3) {
                // It comes back in the middle of the curve.
                let back_ms = at_ms + rng.between(1_000, longest_ms);
                cut(&mut scenario, &[lessee], at_ms, true);
                cut(&mut scenario, &[lessee], back_ms, false);
            }
        }
        scenario.at(to_ms, Fault::Start(0));
        scenario.at(to_ms, Fault::Pause(0, false));
        cut(&mut scenario, &[0], to_ms, false);
        at_ms = to_ms + rng.between(2_000, 15_000);
    }
    heal(&mut scenario, at_ms + 10_000);
    scenario
}

/// Sub-lessees are cut off until after the end of their sub-leases, by clocks slower than the agent's, while others, who
/// renew often, wait for what comes free.
fn late(rng: &mut Rng) -> Scenario {
    let spec = ample(rng, 12);
    let mut scenario = fleet(rng, "agents-late", super::spec_with(spec, CURVES[0]), 6, 0);
    scenario.timing.renew_min_ms = 200;
    scenario.timing.renew_max_ms = 400;
    scenario.timing.resend_min_ms = 100;
    scenario.timing.resend_max_ms = 200;
    enough(&mut scenario.askers[1..]);
    let away: Vec<_> = (1..=6).filter(|_| rng.chance(1, 2)).collect();
    let at_ms = 15_000;
    for lessee in &away {
        cut(&mut scenario, &[*lessee], at_ms + rng.between(0, 20_000), true);
    }
    let back_ms = at_ms + 150_000;
    cut(&mut scenario, &away, back_ms, false);
    heal(&mut scenario, back_ms);
    scenario
}

/// The store is lost once or more while agents, sub-lessees and others are cut off or not.
fn lost(rng: &mut Rng) -> Scenario {
    let curve = any_curve(rng);
    let spec = even(rng, curve);
    let (lessees, others) = (few(rng, 1, 4), few(rng, 1, 3));
    let mut scenario = fleet(rng, "agents-lost", spec, lessees, others);
    let mut at_ms = 15_000;
    for _ in 0..rng.between(1, 4) {
        at_ms += rng.between(500, 40_000);
        let away: Vec<_> = (0..scenario.askers.len()).filter(|_| rng.chance(1, 3)).collect();
        cut(&mut scenario, &away, at_ms - 500, true);
        match rng.below(3) {
            0 => scenario.at(at_ms, Fault::Flush),
            1 => scenario.at(at_ms, Fault::RestartStore(None)),
            _ => scenario.at(at_ms, Fault::RestartStore(Some(rng.between(0, 40_000)))),
        }
        let back_ms = at_ms + rng.between(500, 60_000);
        cut(&mut scenario, &away, back_ms, false);
        if rng.chance(1, 3) {
            scenario.at(at_ms + 100, Fault::Kill(0));
            scenario.at(at_ms + rng.between(200, 5_000), Fault::Start(0));
        }
    }
    heal(&mut scenario, at_ms + 40_000);
    scenario
}

/// Agents and sub-lessees say farewell, and messages they sent before arrive later.
fn leave(rng: &mut Rng) -> Scenario {
    let curve = any_curve(rng);
    let spec = even(rng, curve);
    let (lessees, others) = (few(rng, 1, 4), few(rng, 1, 2));
    let mut scenario = fleet(rng, "agents-leave", spec, lessees, others);
    scenario.net = Net { loss: 50, double: 300, late: 300, late_ms: 5_000, usual_ms: 20 };
    let mut at_ms = 15_000;
    for _ in 0..rng.between(2, 6) {
        let process = few(rng, 0, i64::try_from(lessees).unwrap());
        scenario.at(at_ms, Fault::Leave(process));
        at_ms += rng.between(3_000, 10_000);
        scenario.at(at_ms, Fault::Kill(process));
        scenario.at(at_ms + rng.between(500, 20_000), Fault::Start(process));
    }
    heal(&mut scenario, at_ms + 10_000);
    scenario
}

/// Sub-lessees turn to replicas and back, while the store is lost.
fn turn(rng: &mut Rng) -> Scenario {
    let curve = any_curve(rng);
    let spec = even(rng, curve);
    let (lessees, others) = (few(rng, 2, 4), few(rng, 1, 3));
    let mut scenario = fleet(rng, "agents-turn", spec, lessees, others);
    let mut at_ms = 15_000;
    for _ in 0..rng.between(1, 3) {
        at_ms += rng.between(2_000, 20_000);
        let turned: Vec<_> = (1..=lessees).filter(|_| rng.chance(2, 3)).collect();
        // The agent proves all of its lease, and what these have stays unknown.
        let away: Vec<_> = (1 + lessees..scenario.askers.len()).filter(|_| rng.chance(3, 4)).collect();
        cut(&mut scenario, &away, at_ms - 100, true);
        if rng.chance(3, 4) {
            scenario.at(at_ms, Fault::Flush);
        }
        for process in &turned {
            scenario.at(at_ms + rng.between(0, 3_000), Fault::Turn(*process, None));
        }
        at_ms += rng.between(5_000, 60_000);
        for process in &turned {
            scenario.at(at_ms, Fault::Turn(*process, Some(0)));
            // It does not listen to an agent any more, unless it begins anew.
            scenario.at(at_ms + 100, Fault::Kill(*process));
            scenario.at(at_ms + 200, Fault::Start(*process));
        }
        cut(&mut scenario, &away, at_ms, false);
    }
    heal(&mut scenario, at_ms + 10_000);
    scenario
}

/// A running sub-lessee is copied.
fn clones(rng: &mut Rng) -> Scenario {
    let curve = any_curve(rng);
    let spec = even(rng, curve);
    let (lessees, others) = (few(rng, 1, 3), few(rng, 0, 2));
    let mut scenario = fleet(rng, "agents-clones", spec, lessees, others);
    let mut at_ms = 20_000;
    for _ in 0..rng.between(1, 3) {
        at_ms += rng.between(0, 10_000);
        scenario.at(at_ms, Fault::Clone(1 + few(rng, 0, 2) % lessees));
        at_ms += scenario.longest_curve_ms() + 5_000;
    }
    heal(&mut scenario, at_ms + 5_000);
    scenario
}

/// Permits are limited and held for long.
fn permits(rng: &mut Rng) -> Scenario {
    let curve = any_curve(rng);
    let mut spec = even(rng, curve);
    spec.max_in_flight = Some(u32::try_from(rng.between(12, 60)).unwrap());
    spec.permit_ttl_ms = rng.between(3_000, 12_000);
    let (lessees, others) = (few(rng, 1, 4), few(rng, 0, 2));
    let mut scenario = fleet(rng, "agents-permits", spec, lessees, others);
    scenario.hold_ms = rng.between(1_000, 15_000);
    let mut at_ms = 15_000;
    for _ in 0..rng.between(3, 8) {
        let process = few(rng, 0, i64::try_from(lessees + others).unwrap());
        let to_ms = at_ms + rng.between(2_000, 40_000);
        match rng.below(3) {
            0 => {
                cut(&mut scenario, &[process], at_ms, true);
                cut(&mut scenario, &[process], to_ms, false);
            }
            1 => {
                scenario.at(at_ms, Fault::Demand(process, 0));
                scenario.at(to_ms, Fault::Demand(process, 100));
            }
            _ => {
                scenario.at(at_ms, Fault::Kill(process));
                scenario.at(to_ms, Fault::Start(process));
            }
        }
        at_ms += rng.between(3_000, 20_000);
    }
    heal(&mut scenario, at_ms + 10_000);
    scenario
}

/// Nothing happens.
fn calm(rng: &mut Rng) -> Scenario {
    let (lessees, others) = (few(rng, 1, 6), few(rng, 0, 4));
    let spec = ample(rng, 2 * (1 + lessees + others));
    let mut scenario = fleet(rng, "agents-calm", spec, lessees, others);
    enough(&mut scenario.askers[1..]);
    scenario.duration_ms = 120_000;
    scenario.work.push(Work::Calm { from_ms: 15_000, to_ms: 120_000, percent: 80 });
    scenario.work.push(Work::Calm { from_ms: 60_000, to_ms: 120_000, percent: 90 });
    scenario
}

/// Replicas and store are gone: agents and their sub-lessees live by the curves.
fn outage(rng: &mut Rng) -> Scenario {
    let (lessees, others) = (few(rng, 1, 6), few(rng, 0, 3));
    // What is lent on is small, and is to have a whole token of burst at the last step too.
    let spec = ample(rng, 4 * (1 + lessees + others));
    let mut scenario = fleet(rng, "agents-outage", spec, lessees, others);
    enough(&mut scenario.askers);
    let from_ms = 50_000 + rng.between(0, 10_000);
    let to_ms = from_ms + scenario.longest_curve_ms() + 5_000;
    scenario.at(from_ms, Fault::StopStore);
    if rng.chance(1, 2) {
        // The agent as well, for good.
        scenario.at(from_ms, Fault::Kill(0));
    }
    scenario.work.push(Work::Outage { from_ms, to_ms });
    heal(&mut scenario, to_ms + rng.between(0, 20_000));
    scenario
}

/// An operator takes a lease away at the agent that lends it.
fn revoke(rng: &mut Rng) -> Scenario {
    let (lessees, others) = (few(rng, 2, 5), few(rng, 0, 2));
    let spec = ample(rng, 2 * (1 + lessees + others));
    let mut scenario = fleet(rng, "agents-revoke", spec, lessees, others);
    let (at_ms, process) = (30_000 + rng.between(0, 5_000), 1 + few(rng, 0, 4) % lessees);
    scenario.at(at_ms, Fault::Revoke(process));
    let to_ms = at_ms + scenario.longest_curve_ms() - 100;
    scenario.work.push(Work::Revoked { process, from_ms: at_ms + scenario.timing.renew_max_ms + 100, to_ms });
    heal(&mut scenario, to_ms);
    scenario
}

/// An agent has its leases of another agent, and any of them hears nothing for a while.
fn nested(rng: &mut Rng) -> Scenario {
    let curve = any_curve(rng);
    let spec = even(rng, curve);
    let (lessees, others) = (few(rng, 2, 4), few(rng, 0, 2));
    let mut scenario = fleet(rng, "agents-nested", spec, lessees, others);
    scenario.askers[1].lends = true;
    for lessee in &mut scenario.askers[2..=lessees] {
        lessee.agent = Some(1);
    }
    let longest_ms = scenario.longest_curve_ms();
    let mut at_ms = 20_000;
    for _ in 0..rng.between(1, 5) {
        at_ms += rng.between(0, 15_000);
        let process = few(rng, 0, i64::try_from(lessees).unwrap());
        let to_ms = at_ms + rng.between(2_000, longest_ms + 10_000);
        match rng.below(5) {
            0 => scenario.at(at_ms, Fault::Kill(process)),
            1 => scenario.at(at_ms, Fault::Pause(process, true)),
            2 => scenario.at(at_ms, Fault::Suspend(process, true)),
            3 => scenario.at(at_ms, Fault::Flush),
            _ => cut(&mut scenario, &[process], at_ms, true),
        }
        scenario.at(to_ms, Fault::Start(process));
        scenario.at(to_ms, Fault::Pause(process, false));
        cut(&mut scenario, &[process], to_ms, false);
    }
    heal(&mut scenario, at_ms + longest_ms + 10_000);
    // One more hands on what it must have first.
    scenario.duration_ms += 5 * scenario.timing.renew_max_ms;
    // What has come through two agents is up to three renewals old: a shorter curve may be over by then.
    if longest_ms < 3 * scenario.timing.renew_max_ms {
        scenario.calm_from_ms = None;
    }
    scenario
}

/// A host is copied with the agent on it and those it lends to. One of the two may not be heard of for a while.
fn copied(rng: &mut Rng) -> Scenario {
    let curve = any_curve(rng);
    let spec = even(rng, curve);
    let (lessees, others) = (few(rng, 1, 3), few(rng, 0, 2));
    let mut scenario = fleet(rng, "agents-copied", spec, lessees, others);
    let at_ms = 20_000 + rng.between(0, 10_000);
    scenario.at(at_ms, Fault::CloneHost(0));
    let longest_ms = scenario.longest_curve_ms();
    if rng.chance(1, 2) {
        // The copy of the agent comes after all askers.
        let away = [*rng.pick(&[0, scenario.askers.len()])];
        let from_ms = at_ms + rng.between(1, 3_000);
        cut(&mut scenario, &away, from_ms, true);
        cut(&mut scenario, &away, from_ms + rng.between(1_000, longest_ms), false);
    }
    heal(&mut scenario, at_ms + longest_ms + 5_000);
    scenario
}

/// More sub-lessees than the lease has tokens for, and each asks for more than its part. As many as fit are lent a token and
/// go on by it when agent and store are gone.
fn crowded(rng: &mut Rng) -> Scenario {
    let lessees = few(rng, 10, 14);
    // 0.8 of it is leased, and nearly all of that lent on: for each less than a token.
    let burst = rng.between(12, 13);
    let spec = spec(20, burst, 100_000, 100, 1, &[(100, 60_000)]);
    let mut scenario = fleet(rng, "agents-crowded", spec, lessees, 0);
    scenario.direct = 0.0;
    scenario.askers[0].originals = 0.0;
    for lessee in &mut scenario.askers[1..] {
        lessee.weight = 1;
        lessee.originals = 8.0;
    }
    let at_ms = 60_000 + rng.between(0, 10_000);
    scenario.at(at_ms, Fault::Kill(0));
    scenario.at(at_ms, Fault::StopStore);
    scenario.work.push(Work::Calm { from_ms: at_ms, to_ms: at_ms + 40_000, percent: 40 });
    scenario.duration_ms = at_ms + 40_000;
    scenario
}

/// They ask for twice as much, so that a part that one has too much of is used by it.
fn enough(askers: &mut [Asker]) {
    for asker in askers {
        asker.originals *= 2.0;
    }
}
