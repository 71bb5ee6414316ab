//! Callers that reserve and release without pause, and what they were answered.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
};

use budget_client::{Error, Mode};
use budget_tests::eventually::eventually;
use tokio::task::JoinSet;

use super::ground::{BOUND, Caller, Verdict, original};

/// What callers were answered so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Admitted on the ledger.
    pub(crate) admitted: AtomicI64,
    /// Denied on the ledger.
    pub(crate) denied: AtomicI64,
    /// Decided without the store.
    pub(crate) degraded: AtomicI64,
    /// Failed: RESOURCE_EXHAUSTED.
    pub(crate) shed: AtomicI64,
    /// Failed otherwise.
    pub(crate) failed: AtomicI64,
}

/// Callers at work.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
    pub(crate) tally: Arc<Tally>,
}

// === impl Tally ===

impl Tally {
    pub(crate) fn answered(&self) -> i64 {
        [&self.admitted, &self.denied, &self.degraded].into_iter().map(|count| count.load(Relaxed)).sum()
    }

    async fn call(&self, caller: &Caller) {
        let ask = original();
        match caller.reserve(&ask).await {
            Ok(seen) if seen.mode == Mode::Degraded => self.degraded.fetch_add(1, Relaxed),
            Ok(seen) if seen.decision.admitted() => {
                self.admitted.fetch_add(1, Relaxed);
                // Whether it is heard is not this call's business.
                let release = budget::decision::Release::sent(ask.id, budget::decision::Outcome::Success);
                drop(caller.client.release(&caller.dependency, &release, super::ground::CALL).await);
                0
            }
            Ok(_) => self.denied.fetch_add(1, Relaxed),
            Err(Error::Overloaded(_)) => self.shed.fetch_add(1, Relaxed),
            Err(error) => {
                eprintln!("a call failed: {error:?}");
                self.failed.fetch_add(1, Relaxed)
            }
        };
    }
}

// === impl Load ===

impl Load {
    /// So many tasks for each caller.
    pub(crate) fn start(callers: impl IntoIterator<Item = Caller>, each: usize) -> Self {
        let mut load = Self { stop: Arc::default(), tasks: JoinSet::new(), tally: Arc::default() };
        for caller in callers {
            for _ in 0..each {
                let (caller, stop, tally) = (caller.clone(), Arc::clone(&load.stop), Arc::clone(&load.tally));
                load.tasks.spawn(async move {
                    while !stop.load(Relaxed) {
                        tally.call(&caller).await;
                    }
                });
            }
        }
        load
    }

    /// Waits for so many further answers.
    pub(crate) async fn goes_on(&self, answers: i64) {
        let target = self.tally.answered() + answers;
        eventually(BOUND, "calls are answered", async || self.tally.answered() >= target).await;
    }

    /// Ends all callers after their last answer.
    pub(crate) async fn end(self) -> Arc<Tally> {
        self.stop.store(true, Relaxed);
        self.tasks.join_all().await;
        self.tally
    }
}
