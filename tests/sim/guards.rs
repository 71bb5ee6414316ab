//! Every guard is missed when it is switched off: by which oracle, in which family, by which seed.
//!
//! `SIM_HUNT=N` looks for such seeds among the first N of each family.

use budget::guard::{self, Guard};

use crate::{
    run::{judge, of_family},
    schedule::{
        directed::{FAMILIES, Family},
        random,
    },
};

/// What a run of one seed says while a guard is off.
fn without(guard: Guard, family: Family, seed: u64) -> Option<String> {
    guard::switch_off(Some(guard));
    let verdict = judge(seed, of_family(family, seed));
    guard::switch_off(None);
    verdict.err()
}

fn families() -> impl Iterator<Item = (&'static str, Family)> {
    let all: (&'static str, Family) = ("random", random::scenario);
    FAMILIES.into_iter().chain([all])
}

#[test]
fn hunt() {
    let Ok(count) = std::env::var("SIM_HUNT") else { return };
    let count: u64 = count.parse().unwrap();
    let only = std::env::var("SIM_GUARD").ok();
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(guard) = Guard::ALL.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    if only.as_ref().is_some_and(|only| *only != format!("{guard:?}")) {
                        continue;
                    }
                    let mut found = Vec::new();
                    for (name, family) in families() {
                        let caught: Vec<_> = (1..=count)
                            .filter_map(|seed| without(*guard, family, seed).map(|what| (seed, what)))
                            .collect();
                        if let Some((seed, what)) = caught.first() {
                            let oracle: String = what.chars().take(4).collect();
                            found.push((caught.len(), name, *seed, oracle));
                        }
                    }
                    found.sort_by(|a, b| b.cmp(a));
                    println!("{guard:?}: {:?}", &found[..found.len().min(5)]);
                }
            });
        }
    });
}
