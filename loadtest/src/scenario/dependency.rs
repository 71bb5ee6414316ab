//! What the fake dependency can do, and how it behaves over time.

use std::time::Duration;

use budgetd::config::Span;
use serde::Deserialize;

use super::ms;

const WORKERS_MAX: u32 = 10_000;
const QUEUE_MAX: usize = 100_000;

/// A capacity model and a script.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DependencySpec {
    /// Requests worked on at once.
    pub(crate) workers: u32,
    /// Mean time of one.
    service: Span,
    /// Service times are evenly spread by so much of the mean to both sides; none: exponentially distributed.
    pub(crate) spread: Option<f64>,
    /// Requests that wait at most; more are answered `overflow` at once.
    pub(crate) queue: usize,
    #[serde(default = "unavailable")]
    pub(crate) overflow: Answer,
    /// Service takes so much longer, times the share of the queue that is filled.
    #[serde(default)]
    pub(crate) slowdown: f64,
    /// The share of all attempts that fails, whatever the script says.
    pub(crate) flawed: Option<Flawed>,
    #[serde(default)]
    pub(crate) script: Vec<Step>,
}

/// A share of attempts with another answer.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Flawed {
    pub(crate) share: f64,
    pub(crate) answer: Answer,
}

/// Another behaviour for a while.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    at: Span,
    /// Absent: to the end.
    until: Option<Span>,
    /// `outage`.
    pub(crate) label: String,
    /// What is answered instead.
    pub(crate) answer: Option<Answer>,
    /// To this share of attempts.
    #[serde(default = "all")]
    pub(crate) share: f64,
    /// Told with an answer that has one.
    hint: Option<Span>,
    /// This part of the workers works.
    #[serde(default = "all")]
    pub(crate) capacity: f64,
    /// Service takes so many times longer.
    #[serde(default = "all")]
    pub(crate) slow: f64,
}

/// How an attempt is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// With a result, after the work.
    Result,
    /// UNAVAILABLE or 503, at once, nothing done.
    Unavailable,
    /// INTERNAL or 500, after the work, nothing committed.
    Internal,
    /// RESOURCE_EXHAUSTED or 429, at once, with the step's hint if it has one.
    Throttled,
    /// INVALID_ARGUMENT or 400, at once.
    Permanent,
    /// UNAUTHENTICATED or 401, at once.
    Account,
    /// No answer and no work.
    Hang,
    /// The work is done and committed, and no answer is given.
    Lost,
    /// Of a stream, the first half, then UNAVAILABLE.
    Cut,
}

fn all() -> f64 {
    1.0
}

const fn unavailable() -> Answer {
    Answer::Unavailable
}

// === impl DependencySpec ===

impl DependencySpec {
    pub(super) fn judge(&self) -> Result<(), String> {
        if !(1..=WORKERS_MAX).contains(&self.workers) {
            return Err(format!("dependency.workers is {}, must be 1 to {WORKERS_MAX}", self.workers));
        }
        if self.queue > QUEUE_MAX {
            return Err(format!("dependency.queue is {}, must be at most {QUEUE_MAX}", self.queue));
        }
        let spread = self.spread.unwrap_or(0.0);
        if !(0.0..=1.0).contains(&spread) {
            return Err(format!("dependency.spread is {spread}, must be 0 to 1"));
        }
        if !(0.0..=100.0).contains(&self.slowdown) {
            return Err(format!("dependency.slowdown is {}, must be 0 to 100", self.slowdown));
        }
        let shares = self.flawed.iter().map(|flawed| flawed.share).chain(self.script.iter().map(|step| step.share));
        if let Some(share) = shares.into_iter().find(|share| !(0.0..=1.0).contains(share)) {
            return Err(format!("a share is {share}, must be 0 to 1"));
        }
        for step in &self.script {
            let (at, until) = (step.at_ms(), step.until_ms());
            if until.is_some_and(|until| until <= at) {
                return Err(format!("dependency.script {:?} ends before it begins", step.label));
            }
            if !(0.0..=10.0).contains(&step.capacity) || !(0.01..=1_000.0).contains(&step.slow) {
                return Err(format!("dependency.script {:?}: capacity is 0 to 10, slow 0.01 to 1000", step.label));
            }
        }
        Ok(())
    }

    pub(crate) const fn service(&self) -> Duration {
        self.service.0
    }

    /// The steps in force at a time.
    pub(crate) fn steps_at(&self, at_ms: u64) -> impl Iterator<Item = &Step> {
        self.script.iter().filter(move |step| step.holds(at_ms))
    }
}

// === impl Step ===

impl Step {
    pub(crate) fn at_ms(&self) -> u64 {
        ms(self.at)
    }

    pub(crate) fn until_ms(&self) -> Option<u64> {
        self.until.map(ms)
    }

    pub(crate) fn hint_ms(&self) -> Option<u64> {
        self.hint.map(ms)
    }

    fn holds(&self, at_ms: u64) -> bool {
        self.at_ms() <= at_ms && self.until_ms().is_none_or(|until| at_ms < until)
    }
}

// === impl Answer ===

impl Answer {
    /// Whether a worker is needed for it.
    pub(crate) const fn takes_work(self) -> bool {
        match self {
            Self::Result | Self::Internal | Self::Lost | Self::Cut => true,
            Self::Unavailable | Self::Throttled | Self::Permanent | Self::Account | Self::Hang => false,
        }
    }

    /// Whether the side effect has happened after the work.
    pub(crate) const fn commits(self) -> bool {
        match self {
            Self::Result | Self::Lost => true,
            Self::Internal
            | Self::Cut
            | Self::Unavailable
            | Self::Throttled
            | Self::Permanent
            | Self::Account
            | Self::Hang => false,
        }
    }
}
