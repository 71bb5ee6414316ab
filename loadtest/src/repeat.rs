//! One scenario with one seed after the other: how close each run came to the documented bound.

use std::{collections::BTreeMap, process::ExitCode};

use crate::{
    Error,
    record::{BoundLine, Run, ScenarioRun},
};

/// Most repeats: a bounded command ends.
pub(crate) const REPEATS_MAX: u32 = 100;
/// The line of a bound that has all of its terms in it.
const SUM: &str = "sum";

/// What was seen so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Repeats {
    closest: BTreeMap<(String, String), Closest>,
    passed: u32,
    /// Seeds of runs that broke an acceptance, or came to no end.
    failed: Vec<u64>,
}

/// The run in which a quantity came closest to its bound.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Closest {
    seen: f64,
    allowed: f64,
    seed: u64,
}

// === impl Repeats ===

impl Repeats {
    /// Adds a run. The result says in one line how it went.
    pub(crate) fn add(&mut self, seed: u64, run: &Result<Run, Error>) -> String {
        let scenario = match run.as_ref().map(|run| run.scenarios.first()) {
            Ok(Some(scenario)) => scenario,
            Ok(None) => return String::new(),
            Err(error) => {
                self.failed.push(seed);
                return format!("seed {seed}: did not come to its end: {error}");
            }
        };
        let mut parts = Vec::new();
        for (who, seen, allowed) in scenario.bound.iter().filter_map(sum) {
            parts.push(format!("{} {} {seen:.0} of {allowed:.0}", who.0, who.1));
            let closest = self.closest.entry(who).or_insert(Closest { seen, allowed, seed });
            if allowed - seen < closest.allowed - closest.seen {
                *closest = Closest { seen, allowed, seed };
            }
        }
        let (passed, all) = counts(scenario);
        if passed == all {
            self.passed += 1;
        } else {
            self.failed.push(seed);
        }
        let mut line = format!("seed {seed}: {passed} of {all} acceptances passed");
        if !parts.is_empty() {
            line = format!("{line}; {}", parts.join(", "));
        }
        for verdict in scenario.verdicts.iter().filter(|verdict| !verdict.passed) {
            line.push_str(&format!("\n  FAIL {}: wanted {}, seen {}", verdict.says, verdict.wanted, verdict.seen));
        }
        line
    }

    /// Whether this is the first that failed: its report is worth keeping.
    pub(crate) fn has_just_failed_first(&self, seed: u64) -> bool {
        self.failed.first() == Some(&seed)
    }

    pub(crate) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    pub(crate) fn summary(&self, name: &str) -> String {
        let all = self.passed + u32::try_from(self.failed.len()).unwrap_or(u32::MAX);
        let mut text = format!("\n{name}: {} of {all} repeats passed everything\n", self.passed);
        if !self.failed.is_empty() {
            let seeds: Vec<String> = self.failed.iter().map(u64::to_string).collect();
            text.push_str(&format!("failed with seed {}\n", seeds.join(", ")));
        }
        if !self.closest.is_empty() {
            text.push_str("closest to the documented bound, of all windows of all repeats    seen  allowed  seed\n");
        }
        for ((strategy, quantity), closest) in &self.closest {
            let Closest { seen, allowed, seed } = closest;
            let who = format!("{strategy} · {quantity}");
            text.push_str(&format!("  {who:<60}  {seen:>8.0} {allowed:>8.0} {seed:>5}\n"));
        }
        text
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        if self.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

fn counts(scenario: &ScenarioRun) -> (usize, usize) {
    (scenario.verdicts.iter().filter(|verdict| verdict.passed).count(), scenario.verdicts.len())
}

/// Strategy and quantity, seen and allowed.
fn sum(line: &BoundLine) -> Option<((String, String), f64, f64)> {
    let whole = line.term == SUM;
    whole.then_some(())?;
    Some(((line.strategy.clone(), line.quantity.clone()), line.seen?, line.allowed?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{SCHEMA, Verdict};

    fn run(seen: f64, passed: bool) -> Result<Run, Error> {
        let line = BoundLine {
            strategy: "exact".to_owned(),
            quantity: "admissions".to_owned(),
            term: SUM.to_owned(),
            formula: String::new(),
            allowed: Some(100.0),
            seen: Some(seen),
        };
        let verdict = Verdict { says: "it holds".to_owned(), wanted: "≤ 1".to_owned(), seen: "2".to_owned(), passed };
        let scenario = ScenarioRun {
            name: "a".to_owned(),
            title: String::new(),
            story: String::new(),
            policy: String::new(),
            duration_ms: 1,
            bin_ms: 1,
            marks: Vec::new(),
            strategies: Vec::new(),
            verdicts: vec![verdict],
            bound: vec![line],
        };
        let versions = BTreeMap::new();
        Ok(Run { schema: SCHEMA, seed: 1, started_at: 0, arguments: Vec::new(), versions, scenarios: vec![scenario] })
    }

    #[test]
    fn the_closest_of_all_is_kept_and_one_failure_fails_all() {
        let mut repeats = Repeats::default();
        let line = repeats.add(1, &run(80.0, true));
        assert_eq!(line, "seed 1: 1 of 1 acceptances passed; exact admissions 80 of 100");
        repeats.add(2, &run(99.0, true));
        assert!(!repeats.has_failed());
        let line = repeats.add(3, &run(90.0, false));
        assert!(line.contains("FAIL it holds: wanted ≤ 1, seen 2"), "{line}");
        assert!(repeats.has_just_failed_first(3));
        assert!(repeats.add(4, &Err("no Redis".into())).contains("no Redis"));
        assert!(!repeats.has_just_failed_first(4));
        let summary = repeats.summary("a");
        assert!(summary.contains("a: 2 of 4 repeats passed everything\nfailed with seed 3, 4\n"), "{summary}");
        let closest = summary.lines().last().expect("a line").split_whitespace().collect::<Vec<_>>();
        assert_eq!(closest, ["exact", "·", "admissions", "99", "100", "2"]);
    }
}
