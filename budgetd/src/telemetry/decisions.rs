//! What callers asked and how they were answered.
//!
//! Every label has a block of counters at a fixed position, so a call adds to an array. Which labels there are is fixed
//! by the policies: the table of blocks is made anew when these change, and takes the blocks of labels that stay along.

mod instruments;

use std::sync::{
    Arc, OnceLock, PoisonError, RwLock,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

use budget::{
    decision::{Answer, DenyReason, ExtendResult, Outcome, Priority, ReleaseResult, Step, TerminalState, Use},
    ids::PolicyVersion,
    lease::SyncAnswer,
};
use budget_proto::convert::Mode;
use opentelemetry::StringValue;
use tonic::Code;

use super::{
    SERIES_MAX,
    syncs::{Reported, SyncBlock},
    tally::{REASONS, Tally},
};
use crate::{policies::Snapshot, store::LabelAt};

pub(super) use instruments::register;

pub(super) const DECISIONS: &str = "budgetd_decisions";
pub(super) const MODES: &str = "budgetd_answers";
pub(super) const RELEASES: &str = "budgetd_releases";
pub(super) const EXTENDS: &str = "budgetd_extends";
pub(super) const OPERATIONS: &str = "budgetd_operations";

/// Labels with a block of their own; those of later rules fold into `other`.
const LABELS_MAX: usize = 1_000;
const OTHER: &str = "other";

/// Admitted, replayed, then refusals by reason, then would-be refusals by reason.
const VERDICTS: usize = 2 + 2 * REASONS;
const KINDS: [&str; 2] = ["original", "retry"];
const DECISION_CELLS: usize = KINDS.len() * Priority::ALL.len() * VERDICTS;
/// Not sent, then outcomes.
const USES: usize = 1 + Outcome::ALL.len();
const RELEASE_CELLS: usize = USES * ReleaseResult::ALL.len();
const EXTEND_RESULTS: [&str; 4] = ["extended", "already_released", "expired", "unknown"];
/// gRPC status codes.
const CODES: usize = 17;

/// Which call of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Reserve.
    Reserve,
    /// Release.
    Release,
    /// Extend.
    Extend,
    /// Sync; of its dependencies, each that failed alone.
    Sync,
    /// ReportReceived.
    ReportReceived,
    /// Any call of an operator.
    Admin,
}

const CALLS: [(Call, &str); 6] = [
    (Call::Reserve, "reserve"),
    (Call::Release, "release"),
    (Call::Extend, "extend"),
    (Call::Sync, "sync"),
    (Call::ReportReceived, "report_received"),
    (Call::Admin, "admin"),
];

/// All counters of calls.
#[derive(Debug, Default)]
pub struct Decisions {
    table: RwLock<Table>,
    failures: [[AtomicU64; CODES]; CALLS.len()],
    in_progress: AtomicI64,
    sessions: AtomicI64,
}

#[derive(Debug, Default)]
struct Table {
    version: Option<PolicyVersion>,
    /// By the snapshot's label index.
    labels: Vec<Label>,
}

#[derive(Clone, Debug)]
struct Label {
    name: Arc<str>,
    block: Arc<OnceLock<Box<Block>>>,
}

#[derive(Debug)]
pub(super) struct Block {
    decisions: [AtomicU64; DECISION_CELLS],
    modes: [AtomicU64; Mode::ALL.len()],
    releases: [AtomicU64; RELEASE_CELLS],
    extends: [AtomicU64; EXTEND_RESULTS.len()],
    operations: [AtomicU64; TerminalState::ALL.len()],
    pub(super) syncs: SyncBlock,
}

/// Where an answer is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cell {
    Decision(usize),
    /// And the end of an operation.
    Release(usize, Option<TerminalState>),
    Extend(usize),
    /// The caller's mistake; counted as a failure.
    None,
}

/// What has to be remembered of a step to count its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked(usize, Option<TerminalState>);

/// Counts something as going on until it is dropped.
#[derive(Debug)]
pub struct Gauge<'a>(&'a AtomicI64);

// === impl Asked ===

impl Asked {
    pub(crate) fn of(step: &Step) -> Self {
        match step {
            Step::Reserve(ask) => {
                let kind = usize::from(ask.attempt.is_retry());
                Self((kind * Priority::ALL.len() + ask.priority.index()) * VERDICTS, None)
            }
            Step::Release(release) => {
                let (used, terminal) = match &release.used {
                    Use::NotSent => (0, None),
                    Use::Sent(sent) => (1 + sent.outcome.index(), sent.terminal),
                };
                Self(used * ReleaseResult::ALL.len(), terminal)
            }
            Step::Extend(_) => Self(0, None),
        }
    }

    pub(crate) fn answered(self, answer: &Answer) -> Cell {
        match answer {
            Answer::Admitted(admitted) => Cell::Decision(
                self.0
                    + match admitted.would_be_denied {
                        _ if admitted.replayed => 1,
                        None => 0,
                        Some(reason) => 2 + REASONS + reason.index(),
                    },
            ),
            Answer::Denied(denied) => Cell::Decision(self.0 + 2 + denied.reason.index()),
            Answer::Released(result) => {
                // Told again, it ends nothing again.
                let ended = self.1.filter(|_| *result == ReleaseResult::Applied);
                Cell::Release(self.0 + result.index(), ended)
            }
            Answer::Extended(result) => Cell::Extend(match result {
                ExtendResult::Extended(_) => 0,
                ExtendResult::AlreadyReleased => 1,
                ExtendResult::Expired => 2,
                ExtendResult::Unknown => 3,
            }),
            Answer::Invalid(_) => Cell::None,
        }
    }
}

/// What the cells of a verdict are called: decision and reason.
fn verdict(index: usize) -> (&'static str, &'static str) {
    match index {
        0 => ("admitted", "none"),
        1 => ("replayed", "none"),
        _ => {
            let decision = if index < 2 + REASONS { "denied" } else { "would_be_denied" };
            (decision, DenyReason::ALL.get((index - 2) % REASONS).map_or("none", |reason| reason.name()))
        }
    }
}

// === impl Block ===

impl Block {
    fn new() -> Box<Self> {
        let zero = |_| AtomicU64::new(0);
        Box::new(Self {
            decisions: std::array::from_fn(zero),
            modes: std::array::from_fn(zero),
            releases: std::array::from_fn(zero),
            extends: std::array::from_fn(zero),
            operations: std::array::from_fn(zero),
            syncs: SyncBlock::new(),
        })
    }

    fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for (at, cell) in self.decisions.iter().enumerate() {
            let (kind, count) = (at / VERDICTS / Priority::ALL.len(), cell.load(Ordering::Relaxed));
            match at % VERDICTS {
                0 => tally.admitted[kind] += count,
                1 => {}
                verdict if verdict < 2 + REASONS => tally.denied[kind][verdict - 2] += count,
                verdict => {
                    tally.admitted[kind] += count;
                    tally.would_be_denied[kind][verdict - 2 - REASONS] += count;
                }
            }
        }
        tally
    }

    fn count(&self, cell: Cell, mode: Mode) {
        let counter = match cell {
            Cell::Decision(at) => {
                bump(self.modes.get(mode as usize - 1));
                self.decisions.get(at)
            }
            Cell::Release(at, ended) => {
                bump(ended.and_then(|state| self.operations.get(state.index())));
                self.releases.get(at)
            }
            Cell::Extend(at) => self.extends.get(at),
            Cell::None => None,
        };
        bump(counter);
    }
}

fn bump(counter: Option<&AtomicU64>) {
    if let Some(counter) = counter {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

// === impl Table ===

impl Table {
    fn block(&self, index: usize) -> Option<&Block> {
        let index = if index < LABELS_MAX { index } else { 0 };
        self.labels.get(index).map(|label| &**label.block.get_or_init(Block::new))
    }

    /// Labels that are no longer in any policy go, and their series with them.
    fn adopt(&mut self, snapshot: &Snapshot) {
        let old: std::collections::HashMap<_, _> =
            self.labels.drain(..).map(|label| (label.name, label.block)).collect();
        self.labels = (snapshot.labels().iter().take(LABELS_MAX))
            .map(|name| Label { name: Arc::clone(name), block: old.get(name).cloned().unwrap_or_default() })
            .collect();
        self.version = Some(snapshot.version());
    }
}

// === impl Decisions ===

impl Decisions {
    /// Counts an answer under a label. False: the label is not of the version that is counted now; nothing was counted.
    pub(crate) fn count_at(&self, label: LabelAt, cell: Cell, mode: Mode) -> bool {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let is_current = table.version == Some(label.version);
        if let Some(block) = table.block(label.index).filter(|_| is_current) {
            block.count(cell, mode);
        }
        is_current
    }

    /// Counts an answer under the label at `label_index` of `snapshot`.
    pub(crate) fn count(&self, snapshot: &Snapshot, label_index: usize, cell: Cell, mode: Mode) {
        self.on_block(snapshot, label_index, |block| block.count(cell, mode));
    }

    /// Counts the answer to a holder, and what it reported.
    pub(crate) fn count_sync(&self, snapshot: &Snapshot, label_index: usize, reported: &Reported, answer: &SyncAnswer) {
        self.on_block(snapshot, label_index, |block| block.syncs.count(reported, answer));
    }

    fn on_block(&self, snapshot: &Snapshot, label_index: usize, count: impl FnOnce(&Block)) {
        {
            let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
            if table.version == Some(snapshot.version()) {
                if let Some(block) = table.block(label_index) {
                    count(block);
                }
                return;
            }
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.version < Some(snapshot.version()) {
            table.adopt(snapshot);
        }
        // A straggler of an older version: its label may have moved, or gone.
        let name = snapshot.labels().get(label_index);
        let index = table.labels.iter().position(|label| Some(&label.name) == name).unwrap_or(0);
        if let Some(block) = table.block(index) {
            count(block);
        }
    }

    /// What was answered to Reserve so far, by label; labels without any answer are left out.
    pub(crate) fn tallies(&self) -> Vec<(Arc<str>, Tally)> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let labels = table.labels.iter();
        labels.filter_map(|label| Some((Arc::clone(&label.name), label.block.get()?.tally()))).collect()
    }

    /// The same of the label at this position of the snapshot.
    pub(crate) fn tally(&self, label_index: usize) -> Option<Tally> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let index = if label_index < LABELS_MAX { label_index } else { 0 };
        table.labels.get(index).and_then(|label| Some(label.block.get()?.tally()))
    }

    /// Counts a call that failed: neither an admission nor a refusal.
    pub fn failed(&self, call: Call, code: Code) {
        let row = CALLS.iter().position(|(known, _)| *known == call);
        let code = usize::try_from(i32::from(code)).unwrap_or(CODES);
        bump(row.and_then(|row| self.failures.get(row)).and_then(|codes| codes.get(code)));
    }

    /// A call waits for the store until the result is dropped. The number includes it.
    pub fn enter(&self) -> (i64, Gauge<'_>) {
        let before = self.in_progress.fetch_add(1, Ordering::Relaxed);
        (before.saturating_add(1), Gauge(&self.in_progress))
    }

    /// A session is open until [`Self::session_closed`].
    pub fn session_opened(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
    }

    /// The end of [`Self::session_opened`].
    pub fn session_closed(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    /// The cells of every label that are not zero. Labels beyond the bound of series are added to `other`, which comes
    /// last.
    pub(super) fn each<const CELLS: usize>(
        &self,
        cells: fn(&Block) -> &[AtomicU64; CELLS],
        mut observe: impl FnMut(u64, &StringValue, usize),
    ) {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let mut room = SERIES_MAX.saturating_sub(CELLS);
        let mut other = [0_u64; CELLS];
        for (index, label) in table.labels.iter().enumerate() {
            let Some(block) = label.block.get() else { continue };
            let counts = cells(block).iter().map(|cell| cell.load(Ordering::Relaxed));
            let counts: Vec<_> = counts.enumerate().filter(|(_, count)| *count > 0).collect();
            if index == 0 || counts.len() > room {
                for (at, count) in counts {
                    if let Some(sum) = other.get_mut(at) {
                        *sum = sum.saturating_add(count);
                    }
                }
                continue;
            }
            room = room.saturating_sub(counts.len());
            let name = StringValue::from(Arc::clone(&label.name));
            counts.into_iter().for_each(|(at, count)| observe(count, &name, at));
        }
        let name = StringValue::from(OTHER);
        other.into_iter().enumerate().filter(|(_, sum)| *sum > 0).for_each(|(at, sum)| observe(sum, &name, at));
    }
}

impl Drop for Gauge<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
