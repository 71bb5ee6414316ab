//! Every guard is missed when it is switched off: by which oracle, in which family, within how many seeds.
//!
//! `SIM_HUNT=N` shows for each guard, or for the one that `SIM_GUARD` names, which families miss it how often among their
//! first N seeds.

use budget_guarded::guard::{self, Guard};
use budget_sim::{
    Family, families, family,
    missed::{MISSED, MISSED_BY_AGENTS},
    run::{judge, of_family},
};

/// What a run of one seed says while guards are off.
fn without(guards: &[Guard], family: Family, seed: u64) -> Option<String> {
    guard::switch_off(guards);
    let verdict = judge(seed, of_family(family, seed));
    guard::switch_off(&[]);
    verdict.err()
}

#[test]
fn every_guard_is_missed() {
    if let Ok(count) = std::env::var("SIM_HUNT") {
        return hunt(count.parse().unwrap());
    }
    let mut unnoticed = Vec::new();
    for (guards, name, seeds, oracle) in MISSED.into_iter().chain(MISSED_BY_AGENTS) {
        let family = family(name);
        let found = (1..=seeds).find_map(|seed| {
            without(guards, family, seed).filter(|what| what.starts_with(oracle)).map(|what| (seed, what))
        });
        match found {
            Some((seed, what)) => {
                println!("{guards:?}: {name} {seed}: {what}");
                // It is the guard that is missed, not something else.
                let with = judge(seed, of_family(family, seed));
                assert!(with.is_ok(), "{name} {seed} fails with all guards on: {:?}", with.err());
            }
            None => unnoticed.push(format!("{guards:?} is not missed by {oracle} in {seeds} seeds of {name}")),
        }
    }
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
}

#[test]
fn every_guard_has_its_line() {
    for guard in Guard::ALL {
        let mut listed = MISSED.iter().chain(&MISSED_BY_AGENTS);
        assert!(listed.any(|(guards, ..)| guards.contains(&guard)), "{guard:?}");
    }
}

/// Shows which families miss which guard.
fn hunt(count: u64) {
    let only = std::env::var("SIM_GUARD").ok();
    for guard in Guard::ALL.into_iter().filter(|guard| only.as_ref().is_none_or(|only| *only == format!("{guard:?}"))) {
        let mut found = Vec::new();
        for (name, family) in families() {
            let caught: Vec<_> =
                (1..=count).filter_map(|seed| Some((seed, without(&[guard], family, seed)?))).collect();
            if let Some((seed, what)) = caught.first() {
                let oracle: String = what.chars().take(4).collect();
                found.push((caught.len(), name, *seed, oracle));
            }
        }
        found.sort_by(|a, b| b.cmp(a));
        println!("{guard:?}: {:?}", &found[..found.len().min(5)]);
    }
}
