//! A tracked operation: its attempts, its end, and who may go on with it.

use std::collections::{BTreeSet, HashMap};

use crate::{
    decision::{Denied, DenyReason, OperationAsk, OperationState, Outcome, Sent, TerminalState},
    ids::{Fingerprint, OperationId},
};

/// Most operations forgotten in one call.
const FORGOTTEN_PER_CALL_MAX: usize = 16;

/// What is stored of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) fingerprint: Fingerprint,
    /// No attempt is admitted from then on.
    pub(crate) expires_ms: i64,
    /// Forgotten from then on.
    pub(crate) keep_until_ms: i64,
    pub(crate) used: i64,
    /// Attempts reserved and not released, as far as their time has not ended.
    pub(crate) open: i64,
    pub(crate) open_until_ms: i64,
    pub(crate) last_outcome: Option<Outcome>,
    pub(crate) terminal: Option<TerminalState>,
    pub(crate) result_ref: Option<Box<[u8]>>,
    pub(crate) earned: bool,
}

/// The operations of one dependency.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operations {
    map: HashMap<OperationId, Operation>,
    /// By the time they were to be forgotten when entered here; later times are found in the map.
    queue: BTreeSet<(i64, OperationId)>,
}

// === impl Operation ===

impl Operation {
    /// An operation seen for the first time.
    pub(crate) fn new(ask: &OperationAsk, retention_ms: i64, now_ms: i64) -> Self {
        let expires_ms = now_ms.saturating_add(ask.expires_in_ms.unwrap_or(retention_ms));
        Self {
            fingerprint: ask.fingerprint,
            expires_ms,
            keep_until_ms: expires_ms.saturating_add(retention_ms),
            used: 0,
            open: 0,
            open_until_ms: 0,
            last_outcome: None,
            terminal: None,
            result_ref: None,
            earned: false,
        }
    }

    /// Whether attempt `number` may be admitted next, as far as the operation itself is concerned.
    pub(crate) fn judge(
        known: Option<&Self>,
        fingerprint: &Fingerprint,
        number: i64,
        now_ms: i64,
    ) -> Result<(), Denied> {
        let Some(operation) = known else {
            return if number == 1 {
                Ok(())
            } else {
                let state = Some(Box::new(OperationState::default()));
                Err(Denied { operation: state, ..Denied::because(DenyReason::OutOfOrder) })
            };
        };
        if operation.fingerprint != *fingerprint {
            return Err(Denied::because(DenyReason::Conflict));
        }
        let reason = match operation.terminal {
            Some(TerminalState::OutcomeUnknown) => DenyReason::OutcomeUnknown,
            Some(
                TerminalState::Completed
                | TerminalState::Failed
                | TerminalState::DeadlineExceeded
                | TerminalState::AdmissionDenied
                | TerminalState::RetryBudgetExhausted,
            ) => DenyReason::Completed,
            None if now_ms >= operation.expires_ms => DenyReason::OutOfOrder,
            None if number == operation.used.saturating_add(1) => return Ok(()),
            None if number <= operation.used && operation.open > 0 && now_ms < operation.open_until_ms => {
                DenyReason::InProgress
            }
            None => DenyReason::OutOfOrder,
        };
        Err(Denied { operation: Some(Box::new(operation.state())), ..Denied::because(reason) })
    }

    fn state(&self) -> OperationState {
        OperationState {
            attempts_used: self.used,
            last_outcome: self.last_outcome,
            terminal: self.terminal,
            result_ref: self.result_ref.clone(),
        }
    }

    /// Attempt `number` was admitted with a permit that ends at `permit_until_ms`.
    pub(crate) fn admit(&mut self, number: i64, permit_until_ms: i64, now_ms: i64) {
        if now_ms >= self.open_until_ms {
            self.open = 0;
        }
        self.used = number;
        self.open = self.open.saturating_add(1);
        self.open_until_ms = self.open_until_ms.max(permit_until_ms);
    }

    /// Attempt `number` was handed back unsent: it may be asked for again if it was the last.
    pub(crate) fn hand_back(&mut self, number: i64) {
        self.open = self.open.saturating_sub(1).max(0);
        if self.used == number {
            self.used = self.used.saturating_sub(1);
        }
    }

    /// An attempt was sent and reported. The first terminal state stays.
    pub(crate) fn report(&mut self, sent: &Sent, retention_ms: i64, now_ms: i64) {
        self.open = self.open.saturating_sub(1).max(0);
        self.last_outcome = Some(sent.outcome);
        if self.terminal.is_none() && sent.terminal.is_some() {
            self.terminal = sent.terminal;
            self.result_ref.clone_from(&sent.result_ref);
            self.keep_until_ms = self.keep_until_ms.max(now_ms.saturating_add(retention_ms));
        }
    }
}

// === impl Operations ===

impl Operations {
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub(crate) fn get(&self, id: &OperationId, now_ms: i64) -> Option<&Operation> {
        self.map.get(id).filter(|operation| now_ms < operation.keep_until_ms)
    }

    pub(crate) fn get_mut(&mut self, id: &OperationId, now_ms: i64) -> Option<&mut Operation> {
        self.map.get_mut(id).filter(|operation| now_ms < operation.keep_until_ms)
    }

    /// The operation, made from `ask` if it is not known.
    pub(crate) fn entry(&mut self, ask: &OperationAsk, retention_ms: i64, now_ms: i64) -> &mut Operation {
        if self.get(&ask.id, now_ms).is_none() {
            let operation = Operation::new(ask, retention_ms, now_ms);
            self.queue.insert((operation.keep_until_ms, ask.id.clone()));
            self.map.insert(ask.id.clone(), operation);
        }
        self.map.entry(ask.id.clone()).or_insert_with(|| Operation::new(ask, retention_ms, now_ms))
    }

    /// Forgets operations whose time is over, a bounded number per call.
    pub(crate) fn forget(&mut self, now_ms: i64) {
        for _ in 0..FORGOTTEN_PER_CALL_MAX {
            let Some((due_ms, id)) = self.queue.first().filter(|(due_ms, _)| *due_ms <= now_ms).cloned() else {
                return;
            };
            self.queue.remove(&(due_ms, id.clone()));
            match self.map.get(&id).map(|operation| operation.keep_until_ms) {
                Some(later_ms) if later_ms > now_ms => {
                    self.queue.insert((later_ms, id));
                }
                Some(_) | None => {
                    self.map.remove(&id);
                }
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&OperationId, &Operation)> {
        self.map.iter()
    }
}
