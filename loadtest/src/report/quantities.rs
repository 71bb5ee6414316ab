//! The quantities of evidence, each defined once: tables, pages and comparisons show the same.

use std::collections::BTreeSet;

use crate::record::{StrategyRun, Totals};

use super::cells;

/// How a quantity is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Count,
    Ratio,
    Share,
    Millis,
}

/// Whether more of it is better, for someone who compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    More,
    Less,
    /// It says what happened, not how well.
    Neither,
}

/// A number that says something of a strategy's run.
#[derive(Clone, Debug)]
pub(super) struct Quantity {
    /// Stands at the head of a group of rows.
    pub(super) group: &'static str,
    pub(super) name: String,
    /// How it comes about.
    pub(super) meaning: String,
    pub(super) unit: Unit,
    pub(super) better: Better,
    of: Of,
}

#[derive(Clone, Debug)]
enum Of {
    Fixed(fn(&StrategyRun) -> Option<f64>),
    Ended(String),
    Cause(String),
    Cost(String),
    CostEach(String),
}

const CALLS: &str = "Calls";
const RESULTS: &str = "Results";
const TIME: &str = "Time";

type Row = (&'static str, &'static str, &'static str, Unit, Better, fn(&StrategyRun) -> Option<f64>);

/// Those that every run has, in the order in which they are shown.
const FIXED: [Row; 24] = [
    (CALLS, "offered", "operations due by the plan", Unit::Count, Better::Neither, |run| of(run.totals.offered)),
    (CALLS, "never started", "operations that the generator itself was short of", Unit::Count, Better::Less, |run| {
        of(run.totals.offered.saturating_sub(run.totals.started))
    }),
    (CALLS, "originals admitted", "first attempts that were let through", Unit::Count, Better::Neither, |run| {
        of(run.totals.admitted)
    }),
    (CALLS, "originals refused", "first attempts that were not", Unit::Count, Better::Neither, |run| {
        of(run.totals.refused)
    }),
    (
        CALLS,
        "retries refused",
        "further attempts that were asked for and not let through",
        Unit::Count,
        Better::Neither,
        |run| of(run.totals.retries_refused),
    ),
    (CALLS, "asks without a decision", "ended in an error", Unit::Count, Better::Less, |run| of(run.totals.errors)),
    (CALLS, "sent", "attempts that callers sent", Unit::Count, Better::Neither, |run| of(run.totals.sent)),
    (CALLS, "received", "attempts that the dependency itself counted", Unit::Count, Better::Neither, |run| {
        of(run.totals.received)
    }),
    (CALLS, "additional attempts", "attempts after the first of an operation", Unit::Count, Better::Neither, |run| {
        of(run.totals.retries)
    }),
    (CALLS, "amplification", "received ÷ originals admitted", Unit::Ratio, Better::Less, |run| {
        run.totals.amplification()
    }),
    (RESULTS, "useful", "operations with an accepted result", Unit::Count, Better::More, |run| of(run.totals.useful)),
    (RESULTS, "useful share", "useful ÷ offered", Unit::Share, Better::More, |run| run.totals.useful_share()),
    (RESULTS, "calls for a useful result", "received ÷ useful", Unit::Ratio, Better::Less, |run| {
        ratio(run.totals.received, run.totals.useful)
    }),
    (RESULTS, "side effects", "executed by the dependency", Unit::Count, Better::Neither, |run| {
        of(run.totals.executed)
    }),
    (
        RESULTS,
        "duplicates per 1,000",
        "side effects of a key already executed, for 1,000 offered",
        Unit::Ratio,
        Better::Less,
        |run| run.totals.duplicates_per_1000(),
    ),
    (RESULTS, "share of duplicate work", "duplicates ÷ side effects", Unit::Share, Better::Less, |run| {
        ratio(run.totals.duplicates, run.totals.executed)
    }),
    (TIME, "p50", "from when an operation was due to its end", Unit::Millis, Better::Less, |run| run.latency.p50),
    (TIME, "p90", "from when an operation was due to its end", Unit::Millis, Better::Less, |run| run.latency.p90),
    (TIME, "p99", "from when an operation was due to its end", Unit::Millis, Better::Less, |run| run.latency.p99),
    (TIME, "p99.9", "from when an operation was due to its end", Unit::Millis, Better::Less, |run| run.latency.p999),
    (
        TIME,
        "generator's own delay",
        "longest, from when an operation was due to its start; it is in the times above",
        Unit::Millis,
        Better::Less,
        |run| of(run.totals.late_max_ms),
    ),
    (TIME, "oldest in the queue", "longest wait in the dependency's queue", Unit::Millis, Better::Less, |run| {
        run.series.queue_age_ms.iter().max().copied().and_then(of)
    }),
    (TIME, "most in the queue", "that waited at once at the dependency", Unit::Count, Better::Less, |run| {
        of(run.totals.queue_max)
    }),
    (TIME, "most at once", "concurrent calls that the dependency saw", Unit::Count, Better::Neither, |run| {
        of(run.totals.concurrency_max)
    }),
];

/// Everything that can be said of these runs; what some of them name, such as a cost unit, is a row for all.
pub(super) fn all<'a>(runs: impl IntoIterator<Item = &'a StrategyRun> + Clone) -> Vec<Quantity> {
    let names = |keys: fn(&Totals) -> Vec<&String>| -> BTreeSet<String> {
        runs.clone().into_iter().flat_map(|run| keys(&run.totals)).cloned().collect()
    };
    let mut rows: Vec<Quantity> = FIXED
        .iter()
        .map(|&(group, name, meaning, unit, better, of)| Quantity {
            group,
            name: name.to_owned(),
            meaning: meaning.to_owned(),
            unit,
            better,
            of: Of::Fixed(of),
        })
        .collect();
    let row =
        |group, name: String, meaning: String, unit, better, of| Quantity { group, name, meaning, unit, better, of };
    for state in names(|totals| totals.ended.keys().collect()) {
        let meaning = "operations that ended so".to_owned();
        rows.push(row("Ended", state.clone(), meaning, Unit::Count, Better::Neither, Of::Ended(state)));
    }
    for cause in names(|totals| totals.retries_by_cause.keys().collect()) {
        let meaning = "additional attempts that named this cause".to_owned();
        rows.push(row("Attempts by cause", cause.clone(), meaning, Unit::Count, Better::Less, Of::Cause(cause)));
    }
    for unit in names(|totals| totals.cost.keys().collect()) {
        let each = format!("{unit} for a useful result");
        let spent = Of::Cost(unit.clone());
        rows.push(row("Cost", unit.clone(), "spent in all".to_owned(), Unit::Count, Better::Less, spent));
        rows.push(row("Cost", each, "spent ÷ useful".to_owned(), Unit::Ratio, Better::Less, Of::CostEach(unit)));
    }
    rows
}

#[expect(clippy::unnecessary_wraps, reason = "the form of every quantity")]
#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
fn of(count: u64) -> Option<f64> {
    Some(count as f64)
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then_some(())?;
    Some(of(part)? / of(whole)?)
}

// === impl Quantity ===

impl Quantity {
    /// Its value; none where there is nothing to divide by or nothing was measured.
    pub(super) fn value(&self, run: &StrategyRun) -> Option<f64> {
        let totals = &run.totals;
        match &self.of {
            Of::Fixed(value) => value(run),
            Of::Ended(state) => of(totals.ended.get(state).copied().unwrap_or(0)),
            Of::Cause(cause) => of(totals.retries_by_cause.get(cause).copied().unwrap_or(0)),
            Of::Cost(unit) => of(totals.cost.get(unit).copied().unwrap_or(0)),
            Of::CostEach(unit) => ratio(totals.cost.get(unit).copied().unwrap_or(0), totals.useful),
        }
    }

    /// As written in a cell.
    pub(super) fn cell(&self, run: &StrategyRun) -> String {
        self.unit.write(self.value(run))
    }
}

// === impl Unit ===

impl Unit {
    /// A value in this unit.
    pub(super) fn write(self, value: Option<f64>) -> String {
        let Some(value) = value.filter(|value| value.is_finite()) else { return cells::NA.to_owned() };
        match self {
            Self::Count => cells::amount(value),
            Self::Ratio => cells::number(value),
            Self::Share => cells::percent(value),
            Self::Millis => cells::millis(value),
        }
    }

    /// How far apart two values are, signed.
    pub(super) fn difference(self, before: f64, after: f64) -> String {
        let change = after - before;
        let sign = if change > 0.0 { "+" } else { "" };
        match self {
            Self::Share => format!("{sign}{} points", cells::percent(change).trim_end_matches('%')),
            Self::Count | Self::Ratio => format!("{sign}{}", self.write(Some(change))),
            Self::Millis if change < 0.0 => format!("−{}", cells::millis(-change)),
            Self::Millis => format!("{sign}{}", cells::millis(change)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    fn named<'a>(rows: &'a [Quantity], name: &str) -> &'a Quantity {
        rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no quantity {name}"))
    }

    #[test]
    fn empty_denominators_are_na_and_totals_of_nothing_are_zero() {
        let mut run = sample::strategy("naive");
        run.totals = Totals::default();
        run.latency = crate::record::Latency::default();
        run.series = crate::record::Series::default();
        let rows = all([&run]);
        for name in ["amplification", "useful share", "calls for a useful result", "duplicates per 1,000", "p99"] {
            assert_eq!(named(&rows, name).cell(&run), "n/a", "{name}");
        }
        assert_eq!(named(&rows, "received").cell(&run), "0");
    }

    #[test]
    fn amplification_counts_what_the_dependency_received_and_usefulness_all_that_was_offered() {
        let mut run = sample::strategy("naive");
        run.totals = Totals { offered: 200, admitted: 100, received: 270, useful: 50, ..Totals::default() };
        let rows = all([&run]);
        assert_eq!(named(&rows, "amplification").value(&run), Some(2.7));
        assert_eq!(named(&rows, "useful share").cell(&run), "25.0%");
        assert_eq!(named(&rows, "calls for a useful result").cell(&run), "5.40");
    }

    #[test]
    fn what_one_strategy_names_is_a_row_for_all() {
        let (mut one, mut other) = (sample::strategy("naive"), sample::strategy("exact"));
        one.totals.cost = [("tokens".to_owned(), 900)].into();
        one.totals.useful = 3;
        other.totals.cost.clear();
        other.totals.ended = [("deadline exceeded".to_owned(), 4)].into();
        let rows = all([&one, &other]);
        assert_eq!(named(&rows, "tokens").cell(&other), "0");
        assert_eq!(named(&rows, "tokens for a useful result").cell(&one), "300");
        assert_eq!(named(&rows, "deadline exceeded").cell(&other), "4");
    }

    #[test]
    fn differences_are_signed() {
        assert_eq!(Unit::Count.difference(10.0, 4.0), "−6");
        assert_eq!(Unit::Ratio.difference(1.0, 2.5), "+1.50");
        assert_eq!(Unit::Share.difference(0.5, 0.75), "+25.0 points");
        assert_eq!(Unit::Millis.difference(2_000.0, 500.0), "−1.50 s");
        assert_eq!(Unit::Count.difference(3.0, 3.0), "0");
    }
}
