//! One operation through its layers: each would retry what is below it; where the fleet has a budget, what it refuses is
//! final for all of them.

use std::{future::Future, pin::Pin, time::Duration};

use budget::decision::{Cause, OperationState, Outcome, TerminalState};
use budget_client::boot_time_ns;
use tokio::time;

use super::{
    Ask, Caller, End, Via,
    guard::{Asking, Held},
    journal::{Entry, position},
};
use crate::{
    dependency::{Failure, Problem},
    plan::Arrival,
    random::{mixed, share_of},
    scenario::Strategy,
};

/// An operation on its way.
pub(super) struct Operation {
    pub(super) arrival: Arrival,
    /// Attempts sent so far, by whichever layer.
    pub(super) sent: u32,
    /// What went wrong with the last of them.
    last: Option<Problem>,
}

/// Why a layer has no result.
enum Trouble {
    /// Whoever stands outside may try again.
    Failed(Failure),
    /// Nobody may.
    Final(End),
}

type Layered<'a> = Pin<Box<dyn Future<Output = Result<(), Trouble>> + Send + 'a>>;

// === impl Operation ===

impl Operation {
    pub(super) const fn new(arrival: Arrival) -> Self {
        Self { arrival, sent: 0, last: None }
    }

    const fn cause(&self) -> Option<Cause> {
        match (self.sent, self.last) {
            (0, _) => None,
            (_, Some(Problem::Timeout)) => Some(Cause::Timeout),
            (_, Some(Problem::Throttled)) => Some(Cause::Throttled),
            (_, Some(Problem::Transient | Problem::Permanent | Problem::Account | Problem::Incomplete) | None) => {
                Some(Cause::Transient)
            }
        }
    }

    /// It was begun by a process that is no more: what budgetd knows of it counts.
    fn goes_on(&mut self, state: &OperationState) -> Trouble {
        match state.terminal {
            Some(TerminalState::Completed) => return Trouble::Final(End::Completed),
            Some(TerminalState::OutcomeUnknown) => return Trouble::Final(End::OutcomeUnknown),
            Some(_) => return Trouble::Final(End::Failed),
            None => {}
        }
        self.sent = u32::try_from(state.attempts_used).unwrap_or(u32::MAX);
        let problem = match state.last_outcome {
            Some(Outcome::Throttled) => Problem::Throttled,
            Some(Outcome::Transient) => Problem::Transient,
            Some(Outcome::Permanent) => Problem::Permanent,
            Some(Outcome::Account) => Problem::Account,
            Some(Outcome::Incomplete) => Problem::Incomplete,
            // The last attempt was not reported: it may have happened.
            Some(Outcome::Success | Outcome::Unknown | Outcome::Abandoned) | None => Problem::Timeout,
        };
        self.last = Some(problem);
        Trouble::Failed(problem.into())
    }

    /// The end, when nobody tries again.
    const fn end(&self) -> End {
        match self.last {
            Some(Problem::Timeout) => End::OutcomeUnknown,
            Some(Problem::Incomplete) => End::Incomplete,
            Some(Problem::Transient | Problem::Throttled | Problem::Permanent | Problem::Account) | None => End::Failed,
        }
    }
}

// === impl Caller ===

impl Caller {
    /// Until it has ended, at its deadline at the latest.
    pub(super) async fn carry_out(&self, operation: &mut Operation) -> End {
        let deadline_ns = self.deadline_ns(operation);
        let left_ns = u64::try_from(deadline_ns.saturating_sub(boot_time_ns())).unwrap_or(0);
        let ended = time::timeout(Duration::from_nanos(left_ns), self.layer(operation, 0)).await;
        match ended {
            Ok(Ok(())) => End::Completed,
            Ok(Err(Trouble::Final(end))) => end,
            Ok(Err(Trouble::Failed(_))) => operation.end(),
            Err(_elapsed) => End::DeadlineExceeded,
        }
    }

    fn deadline_ns(&self, operation: &Operation) -> i64 {
        let whole_ns = i64::try_from(self.scenario.call.deadline().as_nanos()).unwrap_or(i64::MAX);
        self.start_ns.saturating_add(operation.arrival.due_ns).saturating_add(whole_ns)
    }

    fn attempts(&self) -> u32 {
        if self.task.strategy == Strategy::Single { 1 } else { self.scenario.call.attempts }
    }

    /// A layer with all its attempts.
    fn layer<'a>(&'a self, operation: &'a mut Operation, layer: usize) -> Layered<'a> {
        Box::pin(async move {
            let layers = self.scenario.call.layers.len();
            let client = operation.arrival.client;
            let mut number = 1;
            loop {
                let failure = match self.below(operation, layer).await {
                    Ok(()) => {
                        self.guard.succeeded(client, layer, layers);
                        return Ok(());
                    }
                    Err(Trouble::Failed(failure)) => failure,
                    Err(trouble @ Trouble::Final(_)) => return Err(trouble),
                };
                let again = match failure.problem {
                    Problem::Timeout | Problem::Transient | Problem::Throttled => true,
                    // What came of a stream is kept or thrown away by whoever reads it, where somebody thinks of that.
                    Problem::Incomplete => !self.task.strategy.has_budgetd(),
                    Problem::Permanent | Problem::Account => false,
                };
                if !again || number >= self.attempts() {
                    return Err(Trouble::Failed(failure));
                }
                number += 1;
                if !self.guard.may_retry(client, layer, layers) {
                    self.tell(|told| told.refused_locally += 1);
                    return Err(Trouble::Failed(failure));
                }
                let wait = self.backoff(operation, layer, number).max(failure.hint.unwrap_or_default());
                let wait_ns = i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX);
                if boot_time_ns().saturating_add(wait_ns) >= self.deadline_ns(operation) {
                    return Err(Trouble::Final(End::DeadlineExceeded));
                }
                time::sleep(wait).await;
            }
        })
    }

    /// One attempt of a layer: the layer below, or the dependency.
    async fn below(&self, operation: &mut Operation, layer: usize) -> Result<(), Trouble> {
        if layer + 1 == self.scenario.call.layers.len() {
            return self.send(operation).await;
        }
        match self.scenario.call.outer_timeout(layer) {
            None => self.layer(operation, layer + 1).await,
            Some(timeout) => match time::timeout(timeout, self.layer(operation, layer + 1)).await {
                Ok(ended) => ended,
                Err(_elapsed) => {
                    operation.last = Some(Problem::Timeout);
                    Err(Trouble::Failed(Problem::Timeout.into()))
                }
            },
        }
    }

    /// One attempt at the dependency, if it is admitted.
    async fn send(&self, operation: &mut Operation) -> Result<(), Trouble> {
        let call = &self.scenario.call;
        let cause = operation.cause();
        let from_ns = boot_time_ns();
        let held = self.admitted(operation, cause).await?;
        let admitted_ms = u64::try_from((boot_time_ns() - self.start_ns) / 1_000_000).unwrap_or(0);
        time::sleep(call.held_back(admitted_ms)).await;
        operation.sent += 1;
        let cause = cause.map(position);
        self.note(|| Entry::Sent { key: operation.arrival.key, cause });
        self.tell(|told| {
            told.sent += 1;
            if let Some(cause) = cause {
                told.retries_by_cause[cause] += 1;
            }
        });
        let cost = self.scenario.load[operation.arrival.load].cost.as_ref();
        let actual = cost.map_or(0, |cost| whole(f64::from(operation.arrival.cost) * cost.actual));
        let called = self.callee.call(operation.arrival.key, actual, call.parts, call.timeout()).await;
        let answered_ns = boot_time_ns() - from_ns;
        self.tell(|told| told.arrival_max_ns = told.arrival_max_ns.max(answered_ns));
        let outcome = match called.as_ref().map_err(|failure| failure.problem) {
            Ok(_) => Outcome::Success,
            // Work may go on over there: the permit stays until its time ends.
            Err(Problem::Timeout) => Outcome::Abandoned,
            Err(Problem::Transient) => Outcome::Transient,
            Err(Problem::Throttled) => Outcome::Throttled,
            Err(Problem::Permanent) => Outcome::Permanent,
            Err(Problem::Account) => Outcome::Account,
            Err(Problem::Incomplete) => Outcome::Incomplete,
        };
        let micros = i64::try_from(actual).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        held.finish(outcome, cost.map(|cost| cost.unit.as_str()), micros);
        match called {
            Ok(_) => Ok(()),
            Err(failure) => {
                operation.last = Some(failure.problem);
                Err(Trouble::Failed(failure))
            }
        }
    }

    /// The right to send one attempt. What the fleet's budget refuses is final for every layer.
    async fn admitted(&self, operation: &mut Operation, cause: Option<Cause>) -> Result<Held, Trouble> {
        let from_ns = boot_time_ns();
        let left_ns = u64::try_from(self.deadline_ns(operation).saturating_sub(from_ns)).unwrap_or(0);
        let within = self.scenario.call.ask_within().min(Duration::from_nanos(left_ns));
        let asking = Asking { arrival: &operation.arrival, number: operation.sent + 1, cause, within };
        let Some((via, held, cost_micros)) = self.guard.ask(&self.scenario, asking).await else {
            return Ok(Held::Nothing);
        };
        let (from_ns, until_ns) = (from_ns - self.start_ns, boot_time_ns() - self.start_ns);
        if let Held::Known(state) = held {
            return Err(operation.goes_on(&state));
        }
        let ask = Ask { from_ns, until_ns, is_retry: cause.is_some(), cost_micros, via };
        self.note(|| Entry::Asked(ask.clone()));
        self.tell(|told| told.asks.push(ask));
        match via {
            Via::Lease | Via::Coordinator | Via::Degraded | Via::Fallback => Ok(held),
            // What was sent before may have happened.
            Via::Refused if operation.last == Some(Problem::Timeout) => Err(Trouble::Final(End::OutcomeUnknown)),
            Via::Refused if cause.is_some() => Err(Trouble::Final(End::RetryBudgetExhausted)),
            Via::Refused => Err(Trouble::Final(End::AdmissionDenied)),
            Via::Error => Err(Trouble::Final(End::Undecided)),
        }
    }

    /// Full jitter, from the seed.
    fn backoff(&self, operation: &Operation, layer: usize, number: u32) -> Duration {
        let layer = u64::try_from(layer).unwrap_or(0);
        let numbers = [self.task.seed, operation.arrival.key, layer, number.into(), operation.sent.into()];
        self.scenario.call.backoff_max(number).mul_f64(share_of(mixed(&numbers)))
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "costs are small and positive")]
fn whole(cost: f64) -> u64 {
    cost.round().max(0.0) as u64
}
