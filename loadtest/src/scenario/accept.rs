//! What must hold, in a form that can be checked.

use budgetd::config::Span;
use serde::Deserialize;

use super::{Scenario, Strategy, ms};

/// One acceptance: a gauge of each of these strategies, and its limits.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Accept {
    /// What is measured.
    pub(crate) gauge: Gauge,
    /// On whom; each must keep the limits. Empty: on all of budgetd's that the scenario runs.
    #[serde(default)]
    strategies: Vec<Strategy>,
    pub(crate) at_most: Option<f64>,
    pub(crate) at_least: Option<f64>,
    /// The limits are multiples of this instead of numbers.
    pub(crate) of: Option<Over>,
    /// Only operations that were due then.
    #[serde(default)]
    pub(crate) range: Range,
    /// Only this stream of load.
    pub(crate) load: Option<String>,
}

/// A quantity of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Gauge {
    /// Attempts that the dependency received for each original that was sent.
    Amplification,
    /// The largest of it divided by the smallest, over all numbers of clients.
    AmplificationSpread,
    /// Of operations offered, those with an accepted result.
    UsefulShare,
    /// Operations with an accepted result.
    Useful,
    /// Most attempts for one operation, as the dependency counted them.
    AttemptsMax,
    /// Most calls at once at the dependency.
    ConcurrencyMax,
    /// Most that waited in its queue.
    QueueMax,
    /// Side effects beyond the first of each operation, per 1,000 operations.
    DuplicatesPer1000,
    /// Attempts after the first that the dependency received.
    Retries,
    /// Operations that ended with an unknown outcome, per thousand.
    UnknownPer1000,
    /// Operations with attempts sent that another process went on with, after the first was killed.
    Resumed,
    /// Streams that ended after partial output.
    Incomplete,
    /// Attempts that were admitted, by when that was.
    Admitted,
    /// Of those the part that a lease decided, in the process where it is least.
    LeasedShare,
    /// Cost units spent, as the dependency counted them.
    Cost,
    /// Cost units spent per accepted result.
    CostPerUseful,
}

/// What a limit is a multiple of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Over {
    /// What the policy's retry budget allows: 1 + ratio + (burst + floor·T) / originals.
    Budget,
    /// The same gauge of the best of the other strategies.
    BestOther,
    /// The same gauge of the naive strategy.
    Naive,
    Single,
    Tower,
    /// The same gauge of the same strategy with the fewest clients.
    FewestClients,
}

/// Part of the operations, by when they were due.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Range {
    from: Option<Span>,
    until: Option<Span>,
    /// After `from`, this many arrivals are left out.
    pub(crate) skip: usize,
}

// === impl Accept ===

impl Accept {
    pub(super) fn judge(&self, scenario: &Scenario) -> Result<(), String> {
        let gauge = format!("accept {:?}", self.gauge);
        if self.at_most.is_none() && self.at_least.is_none() {
            return Err(format!("{gauge} has neither at_most nor at_least"));
        }
        if let Some(strategy) = self.strategies.iter().find(|strategy| !scenario.strategies.contains(strategy)) {
            return Err(format!("{gauge} is about {}, which the scenario does not run", strategy.name()));
        }
        match &self.load {
            Some(name) if scenario.load.iter().all(|load| load.name != *name) => {
                Err(format!("{gauge} is about load {name:?}, which there is not"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whom it is about.
    pub(crate) fn strategies(&self, scenario: &Scenario) -> Vec<Strategy> {
        if self.strategies.is_empty() {
            scenario.strategies.iter().copied().filter(|strategy| strategy.has_budgetd()).collect()
        } else {
            self.strategies.clone()
        }
    }
}

// === impl Gauge ===

impl Gauge {
    /// Whether it is about asks of budgetd rather than operations.
    pub(crate) const fn is_of_asks(self) -> bool {
        matches!(self, Self::Admitted | Self::LeasedShare)
    }
}

// === impl Range ===

impl Range {
    pub(crate) fn begin_ms(&self) -> u64 {
        self.from.map_or(0, ms)
    }

    pub(crate) fn end_ms(&self) -> u64 {
        self.until.map_or(u64::MAX, ms)
    }

    pub(crate) fn is_all(&self) -> bool {
        *self == Self::default()
    }
}
