//! Runs seeds and reports.

use std::{
    rc::Rc,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    oracle::{returned, windows, work},
    rng::Rng,
    scenario::Scenario,
    schedule::{
        agents,
        directed::{FAMILIES, Family},
        random,
    },
    store::Witness,
    world::World,
};

/// The scenario of a seed: two of five are random, the others go through the families in turn.
#[must_use]
pub fn scenario(seed: u64) -> Scenario {
    among(FAMILIES.len(), seed)
}

/// The same as before jumps of the clock had families of their own: what a seed that failed then stands for.
#[must_use]
pub fn scenario_before_jumps(seed: u64) -> Scenario {
    among(24, seed)
}

fn among(families: usize, seed: u64) -> Scenario {
    let mut rng = Rng::new(seed ^ 0x5151_5151);
    if seed % 5 < 2 {
        return random::scenario(&mut rng);
    }
    let (_, family) = FAMILIES[usize::try_from(seed / 5 % families as u64).unwrap()];
    family(&mut rng)
}

/// A scenario with agents: one of four is random, the others go through the families in turn.
#[must_use]
pub fn with_agents(seed: u64) -> Scenario {
    let families = agents::FAMILIES.len() as u64;
    let family = if seed.is_multiple_of(4) { 0 } else { seed / 4 % families };
    let (_, family) = agents::FAMILIES[usize::try_from(family).unwrap()];
    of_family(family, seed)
}

/// A scenario of one family.
#[must_use]
pub fn of_family(family: Family, seed: u64) -> Scenario {
    family(&mut Rng::new(seed ^ 0x5151_5151))
}

/// Runs one scenario and lets every oracle judge it. Says how many attempts were admitted.
///
/// # Errors
/// What went wrong first, beginning with the name of the rule.
pub fn judge(seed: u64, scenario: Scenario) -> Result<u64, String> {
    let scenario = Rc::new(scenario);
    let mut world = World::new(seed, Rc::clone(&scenario));
    world.run();
    if let Some(violation) = world.history.violation.take() {
        return Err(violation);
    }
    windows::judge(&world.history, &world.beyond)?;
    returned::judge_permits(&world.history)?;
    world.judge_return()?;
    let streams: Vec<_> = world.processes.iter().map(|process| process.stream).collect();
    work::judge(&world.history, &streams, &scenario.work)?;
    Ok(world.history.admissions.len() as u64)
}

/// Runs one scenario before a witness, who judges it.
pub fn witnessed(seed: u64, scenario: Scenario, witness: Box<dyn Witness>) {
    let mut world = World::new(seed, Rc::new(scenario));
    world.coordinators.witness = Some(witness);
    world.run();
}

/// Runs many seeds on all cores and panics if one fails. `SIM_FAMILY` leaves out all other families.
pub fn many(of_seed: fn(u64) -> Scenario, first: u64, count: u64) {
    let only = std::env::var("SIM_FAMILY").ok();
    let next = AtomicU64::new(first);
    let failures = Mutex::new(Vec::new());
    let decisions = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    let scenario = of_seed(seed);
                    let family = scenario.family;
                    if only.as_ref().is_some_and(|only| only != family) {
                        continue;
                    }
                    match judge(seed, scenario) {
                        Ok(admitted) => {
                            decisions.fetch_add(admitted, Ordering::Relaxed);
                        }
                        Err(violation) => failures.lock().unwrap().push((seed, family, violation)),
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    for (seed, family, violation) in failures.iter().take(40) {
        println!("seed {seed} ({family}): {violation}");
    }
    let seeds: Vec<_> = failures.iter().map(|(seed, ..)| seed.to_string()).collect();
    println!(
        "seeds={count} first={first} admissions={} violations={} {}",
        decisions.load(Ordering::Relaxed),
        failures.len(),
        seeds.join(" ")
    );
    assert!(
        failures.is_empty(),
        "{} of {count} seeds failed; run one again with SIM_SEEDS=1 SIM_FIRST=…",
        failures.len()
    );
}
