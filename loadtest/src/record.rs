//! What a run found, as data: written by the engine, judged by verdicts, drawn by reports, compared with other runs.
//!
//! Times are milliseconds since the load began. Every count is of what happened inside the load: the dependency's own
//! counts are named so.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The layout of the JSON; a reader refuses others.
pub(crate) const SCHEMA: u32 = 1;

/// A run of one or several scenarios.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) schema: u32,
    /// Of all random choices; the same seed makes the same load.
    pub(crate) seed: u64,
    /// Seconds since 1970.
    pub(crate) started_at: u64,
    /// The command line without the program.
    pub(crate) arguments: Vec<String>,
    /// Of each program that took part: `budgetd`, `redis`.
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) scenarios: Vec<ScenarioRun>,
}

/// One scenario with all the strategies that were tried on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ScenarioRun {
    /// As on the command line, `storm`.
    pub(crate) name: String,
    /// One line.
    pub(crate) title: String,
    /// What to see in it, for someone who has not read the manual: a few sentences.
    pub(crate) story: String,
    /// The policy in force, TOML.
    pub(crate) policy: String,
    pub(crate) duration_ms: u64,
    /// Width of an element of every series.
    pub(crate) bin_ms: u64,
    pub(crate) marks: Vec<Mark>,
    pub(crate) strategies: Vec<StrategyRun>,
    pub(crate) verdicts: Vec<Verdict>,
    /// The documented bound and what was seen, where the scenario judges it.
    pub(crate) bound: Vec<BoundLine>,
}

/// Something done to the world: a fault, a trigger, a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) at_ms: u64,
    /// Absent: a moment.
    pub(crate) until_ms: Option<u64>,
    /// `Redis killed`.
    pub(crate) label: String,
}

/// What one strategy did under the scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StrategyRun {
    /// `naive`.
    pub(crate) name: String,
    /// `3 attempts in every layer`.
    pub(crate) label: String,
    /// A variant of the scenario, such as `100 clients`; empty where there is one.
    pub(crate) variant: String,
    pub(crate) totals: Totals,
    pub(crate) latency: Latency,
    pub(crate) series: Series,
}

/// Counts of a whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Totals {
    /// Operations that were due by the plan.
    pub(crate) offered: u64,
    /// Operations that were started; fewer than offered only where the generator itself was short, which is said.
    pub(crate) started: u64,
    /// The longest time after it was due that the generator itself began an operation, milliseconds; latencies have it in
    /// them.
    pub(crate) late_max_ms: u64,
    /// Originals admitted and refused.
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    /// Asks that ended in an error instead of a decision.
    pub(crate) errors: u64,
    /// Retries asked for and refused.
    pub(crate) retries_refused: u64,
    /// Attempts that callers sent, and those after an operation's first.
    pub(crate) sent: u64,
    pub(crate) retries: u64,
    /// Attempts that the dependency itself received, and side effects it executed, of which some for a key it had already executed.
    pub(crate) received: u64,
    pub(crate) executed: u64,
    pub(crate) duplicates: u64,
    /// Most calls at once that the dependency saw, and most that waited in its queue.
    pub(crate) concurrency_max: u64,
    pub(crate) queue_max: u64,
    /// How operations ended, by terminal state.
    pub(crate) ended: BTreeMap<String, u64>,
    /// Operations with an accepted result.
    pub(crate) useful: u64,
    /// Attempts after the first, by the cause they named.
    pub(crate) retries_by_cause: BTreeMap<String, u64>,
    /// Cost units spent, by unit.
    pub(crate) cost: BTreeMap<String, u64>,
}

/// From the time an operation was due to its end, milliseconds; absent where nothing ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) p50: Option<f64>,
    pub(crate) p90: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) p999: Option<f64>,
    pub(crate) max: Option<f64>,
}

/// Counts for each bin of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) offered: Vec<u64>,
    pub(crate) admitted: Vec<u64>,
    pub(crate) refused: Vec<u64>,
    pub(crate) retries_refused: Vec<u64>,
    /// Received by the dependency.
    pub(crate) received: Vec<u64>,
    /// Of them, retries.
    pub(crate) retries: Vec<u64>,
    /// Useful completions, by the time they ended.
    pub(crate) useful: Vec<u64>,
    /// Longest wait in the dependency's queue, milliseconds.
    pub(crate) queue_age_ms: Vec<u64>,
    /// Most calls at once at the dependency.
    pub(crate) in_flight: Vec<u64>,
}

/// One acceptance of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// What must hold, in words.
    pub(crate) says: String,
    /// The limit, with its numbers.
    pub(crate) wanted: String,
    /// What was seen; `n/a` where there is nothing to divide by.
    pub(crate) seen: String,
    pub(crate) passed: bool,
}

/// A line of the documented bound beside what a run showed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BoundLine {
    /// Strategy and variant it belongs to.
    pub(crate) strategy: String,
    /// `admissions`, `retries`.
    pub(crate) quantity: String,
    /// `base` or the name of a term's cause.
    pub(crate) term: String,
    /// How it comes about, with its numbers.
    pub(crate) formula: String,
    /// Documented for the worst window; absent: unbounded.
    pub(crate) allowed: Option<f64>,
    /// Seen in that window; absent in lines that only explain.
    pub(crate) seen: Option<f64>,
}

// === impl Totals ===

impl Totals {
    /// Calls that reached the dependency for each admitted original; none where nothing was admitted.
    pub(crate) fn amplification(&self) -> Option<f64> {
        ratio(self.received, self.admitted)
    }

    /// Share of the operations offered that ended with an accepted result.
    pub(crate) fn useful_share(&self) -> Option<f64> {
        ratio(self.useful, self.offered)
    }

    /// Executed side effects that were not the first of their key, for each 1,000 operations offered.
    pub(crate) fn duplicates_per_1000(&self) -> Option<f64> {
        ratio(self.duplicates, self.offered).map(|share| share * 1_000.0)
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
