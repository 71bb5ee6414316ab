//! The fake dependency: a process of its own with a limited capacity and a script, that counts for itself.

mod callee;
mod counts;
mod model;
mod server;
mod wire;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use budget_client::boot_time_ns;
use tokio::sync::{Notify, oneshot};

pub(crate) use callee::{Callee, Failure, Problem};
pub(crate) use counts::{Bin, Counts};
pub(crate) use server::{ADDRESSES_SEPARATOR, serve};

use crate::{
    random::{mixed, share_of},
    scenario::{Answer, DependencySpec},
};
use counts::Counting;
use model::{Full, Model};
use wire::{Ask, Done};

/// The task that ends work looks about at least this often.
const ROUND_MAX: Duration = Duration::from_millis(50);

/// The dependency itself, whichever way it is called.
pub(crate) struct Dependency {
    inner: Mutex<Inner>,
    /// Something may end sooner than was thought.
    sooner: Notify,
    seed: u64,
}

struct Inner {
    model: Model<Job>,
    counting: Counting,
    start_ns: Option<i64>,
}

/// A request inside.
struct Job {
    ask: Ask,
    answer: Answer,
    done: oneshot::Sender<Done>,
}

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reply {
    answer: Answer,
    hint_ms: Option<u64>,
    done: Done,
}

// === impl Dependency ===

impl Dependency {
    pub(crate) fn new(spec: DependencySpec, seed: u64, bin_ms: u64, keeps_arrivals: bool) -> Arc<Self> {
        let inner = Inner {
            model: Model::new(spec, mixed(&[seed, 1])),
            counting: Counting::new(bin_ms, keeps_arrivals),
            start_ns: None,
        };
        Arc::new(Self { inner: Mutex::new(inner), sooner: Notify::new(), seed })
    }

    /// The run begins: what is received from then on counts.
    fn start(&self, at_ns: i64) {
        let mut inner = self.lock();
        inner.start_ns = Some(at_ns);
        inner.model.start(at_ns);
    }

    fn counts(&self) -> Counts {
        self.lock().counting.told()
    }

    /// Received so far.
    fn received(&self) -> u64 {
        self.lock().counting.received_so_far()
    }

    /// Answers one attempt; it may take for ever.
    async fn reply(&self, ask: Ask) -> Reply {
        let (answer, hint_ms, done) = match self.admit(ask) {
            Admitted::AtOnce(answer, hint_ms) => (answer, hint_ms, None),
            Admitted::Working(answer, done) => (answer, None, Some(done)),
        };
        let nothing = Done { key: ask.key, effect: 0 };
        let done = match done {
            // The sender only drops with the process.
            Some(done) => done.await.unwrap_or(nothing),
            None => nothing,
        };
        match answer {
            Answer::Hang | Answer::Lost => std::future::pending().await,
            Answer::Result
            | Answer::Unavailable
            | Answer::Internal
            | Answer::Throttled
            | Answer::Permanent
            | Answer::Account
            | Answer::Cut => Reply { answer, hint_ms, done },
        }
    }

    fn admit(&self, ask: Ask) -> Admitted {
        let mut inner = self.lock();
        let now_ns = boot_time_ns();
        inner.advance(now_ns);
        let since_ns = inner.since_ns(now_ns);
        let attempt = inner.counting.received(since_ns, ask.key);
        let (answer, hint_ms) = inner.scripted(now_ns, self.seed, ask.key, attempt);
        if !answer.takes_work() {
            return Admitted::AtOnce(answer, hint_ms);
        }
        let (done, ended) = oneshot::channel();
        let admitted = match inner.model.arrive(now_ns, Job { ask, answer, done }) {
            Ok(()) => Admitted::Working(answer, ended),
            Err(Full) => Admitted::AtOnce(inner.model.spec().overflow, None),
        };
        let (in_flight, queued) = (inner.model.in_flight(), inner.model.queued());
        inner.counting.filled(since_ns, in_flight, queued);
        drop(inner);
        self.sooner.notify_one();
        admitted
    }

    /// Ends work when its time has come. Work goes on whoever has given up waiting for it.
    async fn work(&self) {
        loop {
            let wait = {
                let mut inner = self.lock();
                let now_ns = boot_time_ns();
                inner.advance(now_ns);
                let next_ns = inner.model.next_ns().map(|next_ns| next_ns.saturating_sub(now_ns));
                next_ns.map_or(ROUND_MAX, |ns| Duration::from_nanos(u64::try_from(ns).unwrap_or(0)).min(ROUND_MAX))
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.sooner.notified() => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What becomes of an attempt.
enum Admitted {
    AtOnce(Answer, Option<u64>),
    Working(Answer, oneshot::Receiver<Done>),
}

// === impl Inner ===

impl Inner {
    fn since_ns(&self, at_ns: i64) -> i64 {
        self.start_ns.map_or(0, |start_ns| at_ns.saturating_sub(start_ns).max(0))
    }

    fn advance(&mut self, now_ns: i64) {
        for (_, Job { ask, answer, done }) in self.model.advance(now_ns) {
            let effect = if answer.commits() { self.counting.executed(ask.key, ask.cost) } else { 0 };
            // Whoever waited may have given up.
            let _gone = done.send(Done { key: ask.key, effect });
        }
        let (since_ns, age_ns) = (self.since_ns(now_ns), self.model.take_queue_age_ns(now_ns));
        if age_ns > 0 {
            self.counting.aged(since_ns, age_ns);
        }
    }

    /// By the script and the share of flaws: a choice that depends on the operation and the number of its attempt, not on
    /// the order of events.
    fn scripted(&self, now_ns: i64, seed: u64, key: u64, attempt: u64) -> (Answer, Option<u64>) {
        let chance = |of: u64| share_of(mixed(&[seed, key, attempt, of]));
        let spec = self.model.spec();
        let steps = self.model.script_ms(now_ns).into_iter().flat_map(|ms| spec.steps_at(ms));
        for (at, step) in steps.enumerate() {
            if let Some(answer) = step.answer
                && chance(u64::try_from(at).unwrap_or(0)) < step.share
            {
                return (answer, step.hint_ms());
            }
        }
        match spec.flawed {
            Some(flawed) if chance(1_000) < flawed.share => (flawed.answer, None),
            Some(_) | None => (Answer::Result, None),
        }
    }
}
