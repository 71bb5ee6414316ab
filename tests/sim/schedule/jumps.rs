//! Families that aim at ledger time: the store's clock jumps while leases step down, and hosts come and go by whose clocks
//! that is found out.

use super::{ample, anyhow, cut, heal, plain};
use crate::{
    rng::Rng,
    scenario::{Fault, Scenario, Work},
};

const HOUR_MS: i64 = 3_600_000;

/// So many jumps forward, and now and then back, so far apart; says when the last one was.
fn jumps(rng: &mut Rng, scenario: &mut Scenario, from_ms: i64, count: i64, apart_ms: (i64, i64)) -> i64 {
    let mut at_ms = from_ms;
    for _ in 0..count {
        let by_ms = *rng.pick(&[HOUR_MS, 2_000, 2_000, 5_000, 30_000, -2_000]);
        scenario.at(at_ms, Fault::Jump(by_ms));
        at_ms += rng.between(apart_ms.0, apart_ms.1);
    }
    at_ms
}

/// Several jumps between two heartbeats, once or again and again.
pub(crate) fn trains(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let holders = usize::try_from(rng.between(2, 4)).unwrap();
    let mut scenario = plain("jump-trains", rng, spec, holders);
    scenario.replicas = usize::try_from(rng.between(1, 3)).unwrap();
    let away: Vec<_> = (0..holders / 2).collect();
    let mut at_ms = 15_000 + rng.between(0, 3_000);
    cut(&mut scenario, &away, at_ms, true);
    let count = *rng.pick(&[2, 5, 20]);
    for _ in 0..rng.between(1, 4) {
        at_ms += rng.between(0, 8_000);
        at_ms = jumps(rng, &mut scenario, at_ms, count, (100, 120));
    }
    let end_ms = at_ms + scenario.longest_curve_ms();
    heal(&mut scenario, end_ms);
    scenario
}

/// More replicas than are remembered, holders at one of them; most of the others end, and time goes on.
pub(crate) fn crowds(rng: &mut Rng) -> Scenario {
    let holders = usize::try_from(rng.between(2, 4)).unwrap();
    let spec = ample(rng, holders);
    let mut scenario = plain("jump-crowds", rng, spec, holders);
    scenario.replicas = *rng.pick(&[9, 12, 40]);
    for asker in &mut scenario.askers {
        asker.endpoint = Some(0);
    }
    let away: Vec<_> = (0..holders / 2).collect();
    let mut at_ms = 15_000 + rng.between(0, 3_000);
    cut(&mut scenario, &away, at_ms, true);
    let count = rng.between(1, 20);
    at_ms = jumps(rng, &mut scenario, at_ms, count, (100, 4_000));
    cut(&mut scenario, &away, at_ms, false);
    // Callers without a lease find most of them away.
    scenario.direct *= 8.0;
    for replica in 1..scenario.replicas {
        if rng.chance(3, 4) {
            scenario.at(at_ms + rng.between(0, 2_000), Fault::Replica(replica, false));
        }
    }
    // What the clock gained is paid, what was cut off is leased again.
    let from_ms = at_ms + scenario.longest_curve_ms() + 10_000;
    let to_ms = from_ms + 30_000;
    scenario.work.push(Work::Calm { from_ms, to_ms, percent: 90 });
    heal(&mut scenario, to_ms);
    scenario
}

/// Hosts are replaced by new ones just when the clock jumps.
pub(crate) fn turns(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let holders = usize::try_from(rng.between(2, 4)).unwrap();
    let mut scenario = plain("jump-turns", rng, spec, holders);
    scenario.replicas = usize::try_from(rng.between(1, 12)).unwrap();
    let away: Vec<_> = (0..holders / 2).collect();
    let mut at_ms = 15_000 + rng.between(0, 3_000);
    cut(&mut scenario, &away, at_ms, true);
    for _ in 0..rng.between(2, 10) {
        at_ms = jumps(rng, &mut scenario, at_ms, 1, (0, 300));
        for replica in 0..scenario.replicas {
            if rng.chance(7, 8) {
                scenario.at(at_ms, Fault::Reboot(replica));
            }
        }
        at_ms += rng.between(1_000, 3_000);
    }
    let end_ms = at_ms + scenario.longest_curve_ms();
    heal(&mut scenario, end_ms);
    scenario
}

/// Ledger time has fallen behind, and hosts that have seen nothing of it come back while the clock jumps.
pub(crate) fn behind(rng: &mut Rng) -> Scenario {
    let spec = anyhow(rng);
    let holders = usize::try_from(rng.between(2, 4)).unwrap();
    let mut scenario = plain("jump-behind", rng, spec, holders);
    scenario.replicas = usize::try_from(rng.between(3, 9)).unwrap();
    let mut at_ms = 15_000 + rng.between(0, 3_000);
    let others = 1..scenario.replicas;
    scenario.at(at_ms, Fault::StopStore);
    for replica in others.clone() {
        scenario.at(at_ms, Fault::CutReplica(replica, true));
    }
    at_ms += rng.between(3_000, 60_000);
    scenario.at(at_ms, Fault::ContinueStore);
    at_ms += rng.between(6_000, 12_000);
    let away: Vec<_> = (0..holders / 2).collect();
    cut(&mut scenario, &away, at_ms, true);
    for replica in others {
        scenario.at(at_ms, Fault::CutReplica(replica, false));
    }
    let end_ms = jumps(rng, &mut scenario, at_ms, 5, (50, 100)) + scenario.longest_curve_ms();
    heal(&mut scenario, end_ms);
    scenario
}
