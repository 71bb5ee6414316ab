//! The gRPC services. Generated types stop here: [`budget_proto::convert`] judges what comes in.
//!
//! A cancelled call leaves either a whole step or none, which is the store's promise, and from the store's answer to the
//! response nothing is awaited. An admission whose answer got lost is not handed back from here, since the caller may
//! have sent the same reservation again, here or to another replica, and go by the answer to that: its permit ends by
//! time.

mod admin;
mod budget_service;
mod deadline;
mod permitted;
mod received;
mod session;
mod sight;
mod status;
mod sync;
mod trial;

use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use budget::{decision::Step, ids::DependencyId, ledger::Start};
use budget_proto::convert::{Decided, Echo, Mode, Received};
use futures::future::Either;
use tonic::Status;

use crate::{
    clock::Clock,
    config::ServerLimits,
    policies::Policies,
    shutdown::Stop,
    store::{Answered, Store, StoreError, fallback::Sharers},
    telemetry::{
        Call, Decisions, StoreHealth, Traces,
        decisions::{Asked, Gauge},
        traces::Parent,
    },
};
use deadline::TimeLimit;

pub use admin::Admin;
pub use budget_service::Budgets;
pub use permitted::Permitted;
pub use sight::Sight;

/// Between two lines of the log about state that cannot be read, whatever its traffic.
const COMPLAIN_EVERY_MS: i64 = 10_000;

/// What all calls share.
pub struct Core<S> {
    /// Where ledgers live.
    pub store: Arc<S>,
    /// What that is called.
    pub store_kind: StoreKind,
    /// Numbers by dependency.
    pub policies: Arc<Policies>,
    /// Counts every answer.
    pub decisions: Arc<Decisions>,
    /// Whether the store answers.
    pub store_health: Arc<StoreHealth>,
    /// Bounds.
    pub limits: ServerLimits,
    /// How many replicas there are.
    pub sharers: Arc<Sharers>,
    /// Time of ledgers.
    pub clock: Clock,
    /// Ends sessions.
    pub stop: Stop,
    /// Keeps the log readable.
    pub complaints: Complaints,
    /// What operators look at.
    pub sight: Arc<Sight>,
    /// Makes spans of calls.
    pub traces: Arc<Traces>,
}

/// When something was complained about last.
#[derive(Debug, Default)]
pub struct Complaints(AtomicI64);

/// What operators have to know of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreKind {
    /// As in the configuration.
    pub name: &'static str,
    /// How a ledger begins there.
    pub start: Start,
}

// === impl StoreKind ===

impl StoreKind {
    /// This process.
    pub const MEMORY: Self = Self { name: "memory", start: Start::Full };
    /// Redis or Valkey.
    pub const REDIS: Self = Self { name: "redis", start: Start::Empty };
    /// Other budgetd.
    pub const UPSTREAM: Self = Self { name: "upstream", start: Start::Empty };
}

// === impl Core ===

impl<S: Store> Core<S> {
    /// Has one step decided, within its time. The future holds what it needs and holds it once, since it is allocated for
    /// each call; an `async fn` would keep its arguments beside what it makes of them.
    fn decide(
        &self,
        received: Received,
        limit: TimeLimit,
        parent: &Parent,
    ) -> impl Future<Output = Result<(Decided, Echo), Status>> + use<'_, S> {
        let recording = self.traces.begin(parent, &received);
        let Received { dependency, mut step, echo } = received;
        let (deadline, entered) = match self.enter(&mut step, limit) {
            Ok(entered) => entered,
            Err(status) => {
                if let Some(recording) = recording {
                    recording.end(Err(&status));
                }
                return Either::Left(ready(Err(status)));
            }
        };
        let asked = Asked::of(&step);
        let tried = self.sight.trials.is_any().then(|| Box::new(step.clone()));
        Either::Right(async move {
            let answered = self.store.step_labelled(&dependency, step, deadline).await;
            drop(entered);
            let answered = answered.map_err(|error| self.failure(&error, &dependency));
            if let Some(recording) = recording {
                let told = answered.as_ref().map(|(own, _)| (&own.answer, mode(own), own.version));
                recording.end(told);
            }
            let (answered, label) = answered?;
            if let Some(step) = tried {
                self.sight.trials.observe(&dependency, &step, &answered, self.clock.monotonic_ms());
            }
            let (mode, cell) = (mode(&answered), asked.answered(&answered.answer));
            if !label.is_some_and(|label| self.decisions.count_at(label, cell, mode)) {
                let snapshot = self.policies.snapshot();
                let label_index = snapshot.resolve(&dependency).map_or(0, |resolved| resolved.label_index);
                self.decisions.count(&snapshot, label_index, cell, mode);
            }
            Ok((Decided { answer: answered.answer, mode, version: answered.version }, echo))
        })
    }

    /// One more call that waits for the store, unless it is too late for it or too many wait.
    fn enter(&self, step: &mut Step, limit: TimeLimit) -> Result<(Instant, Gauge<'_>), Status> {
        let deadline = limit.apply(step, self.limits.call_timeout)?;
        let (in_progress, entered) = self.decisions.enter();
        self.judge_load(in_progress)?;
        Ok((deadline, entered))
    }

    fn judge_load(&self, in_progress: i64) -> Result<(), Status> {
        if usize::try_from(in_progress).is_ok_and(|calls| calls > self.limits.calls) {
            return Err(Status::resource_exhausted(format!(
                "budgetd is overloaded: {} calls are waiting for the store",
                self.limits.calls
            )));
        }
        Ok(())
    }

    /// Stores tell of themselves when they go away; state that cannot be read needs a person.
    fn failure(&self, error: &StoreError, dependency: &DependencyId) -> Status {
        if let StoreError::Corrupt(why) = error
            && self.complaints.is_due(self.clock.now_ms())
        {
            tracing::error!(dependency = ?dependency, why, "state cannot be read; only this dependency is affected");
        }
        status::of_store(error, dependency)
    }

    fn failed(&self, call: Call) -> impl Fn(&Status) + use<'_, S> {
        move |status| self.decisions.failed(call, status.code())
    }

    fn call_timeout(&self) -> Duration {
        self.limits.call_timeout
    }
}

// === impl Complaints ===

impl Complaints {
    fn is_due(&self, now_ms: i64) -> bool {
        let last_ms = self.0.load(Ordering::Relaxed);
        let is_due = !(0..COMPLAIN_EVERY_MS).contains(&now_ms.saturating_sub(last_ms));
        is_due && self.0.compare_exchange(last_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

const fn mode(answered: &Answered) -> Mode {
    if answered.degraded {
        Mode::Degraded
    } else if answered.shadow {
        Mode::Shadow
    } else if answered.leased {
        Mode::Leased
    } else {
        Mode::Exact
    }
}

const fn call_of(step: &Step) -> Call {
    match step {
        Step::Reserve(_) => Call::Reserve,
        Step::Release(_) => Call::Release,
        Step::Extend(_) => Call::Extend,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_rare_and_survive_a_clock_set_back() {
        let complaints = Complaints::default();
        let now_ms = 1_700_000_000_000;
        assert!(complaints.is_due(now_ms) && !complaints.is_due(now_ms));
        assert!(!complaints.is_due(now_ms + COMPLAIN_EVERY_MS - 1));
        assert!(complaints.is_due(now_ms + COMPLAIN_EVERY_MS));
        assert!(complaints.is_due(now_ms) && !complaints.is_due(now_ms + 1));
    }
}
