//! Families that aim at one rule each; the seed chooses times and sizes. Random schedules show these in too few runs.

use budget::{
    policy::{FallbackOriginals, FallbackRetries},
    units::{Period, Rate},
};

use super::{CURVES, anyhow, cut, even, heal, jumps, lost, plain, random::crash_loop, useful};
use crate::{
    net::Net,
    rng::Rng,
    scenario::{Fault, Scenario},
};

/// Makes a scenario of a family.
pub type Family = fn(&mut Rng) -> Scenario;

/// All of them, by name.
pub(crate) const FAMILIES: [(&str, Family); 28] = [
    ("cut-and-lend", lost::cut_and_lend),
    ("lower-lose-raise", lost::lower_lose_raise),
    ("overlap", lost::overlap),
    ("late-replies", late_replies),
    ("old-replies", old_replies),
    ("proofs", lost::proofs),
    ("clones", clones),
    ("crash-loop", crash_loops),
    ("clock", clock),
    ("suspend", suspend),
    ("beyond", beyond),
    ("permits", permits),
    ("outage", useful::outage),
    ("calm", useful::calm),
    ("few", useful::few),
    ("idle", useful::idle),
    ("curves", lost::curves),
    ("farewell", farewell),
    ("newcomers", useful::newcomers),
    ("late-sends", late_sends),
    ("lend-in-overlap", lost::lend_in_overlap),
    ("proved-twice", lost::proved_twice),
    ("raise", useful::raise),
    ("stranded", useful::stranded),
    ("jump-trains", jumps::trains),
    ("jump-crowds", jumps::crowds),
    ("jump-turns", jumps::turns),
    ("jump-behind", jumps::behind),
];

/// The directed families, the random schedules, and all with agents.
pub fn families() -> impl Iterator<Item = (&'static str, Family)> {
    let random: (&'static str, Family) = ("random", super::random::scenario);
    FAMILIES.into_iter().chain([random]).chain(super::agents::FAMILIES)
}

/// The family of this name.
pub fn family(named: &str) -> Family {
    families().find(|(name, _)| *name == named).map_or_else(|| panic!("no family {named}"), |(_, family)| family)
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
