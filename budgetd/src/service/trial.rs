//! Policies on trial: the calls of this replica are decided a second and a third time, on ledgers that nobody depends on.
//!
//! One such ledger runs under the policy in force and one under the candidate, both see the same calls, and both begin full.
//! So the difference between them is the policy's alone. The real ledger differs from both: it knows the calls of all
//! replicas and what was saved up before.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use budget::{
    decision::{Answer, DenyReason, Reserve, Step},
    ids::DependencyId,
    lease::Ground,
    ledger::{Ledger, Start},
    policy::Numbers,
};

use crate::{
    policies::{Resolved, Snapshot},
    store::Answered,
    telemetry::tally::Tally,
};

/// Trials at a time.
const TRIALS_MAX: usize = 4;
/// Dependencies of one trial.
const DEPENDENCIES_MAX: usize = 10_000;

/// All trials that run.
#[derive(Debug, Default)]
pub(super) struct Trials {
    count: AtomicUsize,
    all: Mutex<Vec<Arc<Trial>>>,
}

/// One of them.
pub(super) struct Trial {
    present: Arc<Snapshot>,
    candidate: Snapshot,
    compared: Mutex<HashMap<DependencyId, Box<Compared>>>,
    left_out: AtomicU64,
}

/// Ends its trial when it is dropped.
#[derive(Debug)]
pub(super) struct Running {
    trials: Arc<Trials>,
    trial: Arc<Trial>,
}

/// One dependency.
struct Compared {
    real: Tally,
    /// None: the policy refuses the name.
    present: Option<Shadow>,
    candidate: Option<Shadow>,
}

struct Shadow {
    numbers: Arc<Numbers>,
    ledger: Ledger,
    tally: Tally,
}

/// Answers of the real ledger, of the policy in force, of the candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) real: Tally,
    pub(super) present: Tally,
    pub(super) candidate: Tally,
}

// === impl Trials ===

impl Trials {
    /// Whether any runs: asked by every call.
    pub(super) fn is_any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// Begins one. None: there are too many.
    pub(super) fn begin(self: &Arc<Self>, present: Arc<Snapshot>, candidate: Snapshot) -> Option<Running> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= TRIALS_MAX {
            return None;
        }
        let trial = Arc::new(Trial { present, candidate, compared: Mutex::default(), left_out: AtomicU64::new(0) });
        all.push(Arc::clone(&trial));
        self.count.store(all.len(), Relaxed);
        Some(Running { trials: Arc::clone(self), trial })
    }

    /// A call was answered.
    pub(super) fn observe(&self, dependency: &DependencyId, step: &Step, answered: &Answered, now_ms: i64) {
        let all: Vec<_> = self.all.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.iter().for_each(|trial| trial.observe(dependency, step, answered, now_ms));
    }
}

// === impl Running ===

impl Running {
    /// What was found so far, in name order, and how many calls were left out.
    pub(super) fn found(&self) -> (BTreeMap<DependencyId, Found>, u64) {
        let compared = self.trial.compared.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = |shadow: &Option<Shadow>| shadow.as_ref().map(|shadow| shadow.tally).unwrap_or_default();
        let found = compared.iter().map(|(name, compared)| {
            let Compared { real, present, candidate } = &**compared;
            (name.clone(), Found { real: *real, present: tally(present), candidate: tally(candidate) })
        });
        (found.collect(), self.trial.left_out.load(Relaxed))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut all = self.trials.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|trial| !Arc::ptr_eq(trial, &self.trial));
        self.trials.count.store(all.len(), Relaxed);
    }
}

// === impl Trial ===

impl Trial {
    fn observe(&self, dependency: &DependencyId, step: &Step, answered: &Answered, now_ms: i64) {
        let mut all = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        let ask = match step {
            Step::Reserve(ask) => ask,
            Step::Release(_) | Step::Extend(_) => {
                // What neither ledger has admitted, neither knows.
                if let Some(compared) = all.get_mut(dependency) {
                    compared.shadows().for_each(|shadow| drop(shadow.step(step, now_ms)));
                }
                return;
            }
        };
        if !all.contains_key(dependency) && all.len() >= DEPENDENCIES_MAX || !is_comparable(answered) {
            self.left_out.fetch_add(1, Relaxed);
            return;
        }
        let compared = all.entry(dependency.clone()).or_insert_with(|| {
            let shadow = |snapshot: &Snapshot| snapshot.resolve(dependency).ok().map(|it| Shadow::new(&it, now_ms));
            let (present, candidate) = (shadow(&self.present), shadow(&self.candidate));
            Box::new(Compared { real: Tally::default(), present, candidate })
        });
        let is_admitted = matches!(answered.answer, Answer::Admitted(_));
        // Nobody will release what was refused in truth, so it must hold no permit.
        let no_release = ask.no_release || !is_admitted;
        let again = Step::Reserve(Reserve { operation: None, no_release, ..ask.clone() });
        let is_retry = ask.attempt.is_retry();
        compared.real.count(is_retry, &answered.answer);
        for shadow in compared.shadows() {
            let answer = shadow.step(&again, now_ms);
            shadow.tally.count(is_retry, &answer);
        }
    }
}

/// Answers about re-sends and about operations, or without the store, say nothing of a policy.
fn is_comparable(answered: &Answered) -> bool {
    let by_policy = match &answered.answer {
        Answer::Admitted(admitted) => !admitted.replayed,
        Answer::Denied(denied) => match denied.reason {
            DenyReason::RetriesOff
            | DenyReason::NoTimeLeft
            | DenyReason::AttemptLimit
            | DenyReason::RetryBudget
            | DenyReason::InFlight
            | DenyReason::Cost
            | DenyReason::Admission => true,
            DenyReason::AlreadyReleased
            | DenyReason::InProgress
            | DenyReason::Completed
            | DenyReason::Conflict
            | DenyReason::OutcomeUnknown
            | DenyReason::OutOfOrder
            | DenyReason::Fallback
            | DenyReason::OperationStoreAway => false,
        },
        Answer::Released(_) | Answer::Extended(_) | Answer::Invalid(_) => false,
    };
    by_policy && !answered.degraded
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial").field("left_out", &self.left_out).finish_non_exhaustive()
    }
}

// === impl Compared ===

impl Compared {
    fn shadows(&mut self) -> impl Iterator<Item = &mut Shadow> {
        self.present.iter_mut().chain(&mut self.candidate)
    }
}

// === impl Shadow ===

impl Shadow {
    fn new(resolved: &Resolved, now_ms: i64) -> Self {
        // It decides in earnest, and lends nothing.
        let numbers = Arc::new(Numbers { shadow: false, lease: None, ..(*resolved.numbers).clone() });
        let ledger = Ledger::new(resolved.version, Arc::clone(&numbers), Start::Full, now_ms);
        Self { numbers, ledger, tally: Tally::default() }
    }

    fn step(&mut self, step: &Step, now_ms: i64) -> Answer {
        let version = self.ledger.version();
        // Of its own version nothing is stale.
        let _never_stale = self.ledger.begin(version, &self.numbers, false, now_ms, &Ground::default());
        self.ledger.step(step)
    }
}
