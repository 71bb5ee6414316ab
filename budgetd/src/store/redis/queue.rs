//! The bounded queue in front of a lane, and what waits in it.
//!
//! Exactly one of two things becomes of a waiting step: its lane claims it and sends it, or its caller withdraws it. So a
//! caller that gives up knows whether its step was sent.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
    time::Instant,
};

use budget::{
    decision::Step,
    ids::DependencyId,
    lease::{HolderId, SyncAsk, Synced},
};
use tokio::sync::{Notify, oneshot};

use crate::store::{Answered, StoreError};

const WAITING: u8 = 0;
const CLAIMED: u8 = 1;
const WITHDRAWN: u8 = 2;

/// What a caller gets.
pub(super) type Outcome = Result<Done, StoreError>;

/// What a caller wants done with a ledger.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// Shares a call with other steps.
    Step(Step),
    /// A holder tells and asks. Shares a call with other asks.
    Sync(Box<SyncAsk>),
    /// An operator takes a holder's lease away.
    Revoke(HolderId),
    /// Ledger time is kept.
    Beat,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Step(Answered),
    Sync(Box<Synced>),
    /// Whether there is such a holder.
    Revoked(bool),
    Beaten,
}

/// Work on its way.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) work: Work,
    pub(super) deadline: Instant,
    pub(super) arrived: Instant,
    ticket: Arc<AtomicU8>,
    reply: oneshot::Sender<Outcome>,
}

/// The caller's end.
#[derive(Debug)]
pub(super) struct Caller {
    ticket: Arc<AtomicU8>,
    pub(super) reply: oneshot::Receiver<Outcome>,
}

/// Steps for one lane, in order of arrival.
#[derive(Debug)]
pub(super) struct Queue {
    arrivals: Mutex<VecDeque<(DependencyId, Waiting)>>,
    /// Everything that is not yet sent, here or already with the lane.
    depth: AtomicUsize,
    most: usize,
    arrived: Notify,
    closed: AtomicBool,
}

// === impl Waiting ===

impl Waiting {
    pub(super) fn new(work: Work, arrived: Instant, deadline: Instant) -> (Self, Caller) {
        let ticket = Arc::new(AtomicU8::new(WAITING));
        let (sender, receiver) = oneshot::channel();
        let caller = Caller { ticket: Arc::clone(&ticket), reply: receiver };
        (Self { work, deadline, arrived, ticket, reply: sender }, caller)
    }

    /// The step that this is.
    pub(super) const fn step(&self) -> Option<&Step> {
        if let Work::Step(step) = &self.work { Some(step) } else { None }
    }

    /// The ask of a holder that this is.
    pub(super) fn ask(&self) -> Option<&SyncAsk> {
        if let Work::Sync(ask) = &self.work { Some(ask) } else { None }
    }

    /// Takes it for sending. False: the caller has gone, or its time is over; it has its answer.
    pub(super) fn claim(self, now: Instant) -> Option<Self> {
        if self.reply.is_closed() {
            return None;
        }
        if self.deadline <= now {
            self.answer(Err(StoreError::DeadlinePassed));
            return None;
        }
        let claimed = self.ticket.compare_exchange(WAITING, CLAIMED, Ordering::AcqRel, Ordering::Acquire).is_ok();
        claimed.then_some(self)
    }

    /// Whether anybody still waits for the answer of a claimed step.
    pub(super) fn is_wanted(&self, now: Instant) -> bool {
        self.deadline > now && !self.reply.is_closed()
    }

    pub(super) fn answer(self, outcome: Outcome) {
        // A caller that has gone needs none.
        drop(self.reply.send(outcome));
    }
}

// === impl Caller ===

impl Caller {
    /// Gives up waiting. True: the step will never be sent.
    pub(super) fn withdraw(&self) -> bool {
        self.ticket.compare_exchange(WAITING, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

// === impl Queue ===

impl Queue {
    pub(super) fn new(most: usize) -> Self {
        Self {
            arrivals: Mutex::new(VecDeque::new()),
            depth: AtomicUsize::new(0),
            most,
            arrived: Notify::new(),
            closed: AtomicBool::new(false),
        }
    }

    /// Lets a step wait.
    ///
    /// # Errors
    /// If too many wait already, or nobody takes them any more.
    pub(super) fn push(&self, dependency: &DependencyId, waiting: Waiting) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::Away("the store has been closed".to_owned()));
        }
        if self.depth.fetch_add(1, Ordering::AcqRel) >= self.most {
            self.depth.fetch_sub(1, Ordering::AcqRel);
            return Err(StoreError::Overloaded);
        }
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        let first = arrivals.is_empty();
        arrivals.push_back((dependency.clone(), waiting));
        drop(arrivals);
        if first {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Everything that has arrived.
    pub(super) fn take(&self) -> VecDeque<(DependencyId, Waiting)> {
        std::mem::take(&mut *self.arrivals.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns when something has arrived since the last [`Self::take`].
    pub(super) async fn arrived(&self) {
        loop {
            if !self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
                return;
            }
            self.arrived.notified().await;
        }
    }

    /// So many were sent, or need not be.
    pub(super) fn left(&self, count: usize) {
        self.depth.fetch_sub(count, Ordering::AcqRel);
    }

    /// Nobody takes what arrives any more. What waits is answered.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for (_, waiting) in self.take() {
            waiting.answer(Err(StoreError::Away("the store has been closed".to_owned())));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use budget::{
        decision::{Attempt, Reserve},
        ids::ReservationId,
    };

    use super::*;
    use crate::clock::Clock;

    fn waiting(now: Instant) -> (Waiting, Caller) {
        let step = Step::Reserve(Reserve::new(ReservationId([1; 16]), Attempt::ORIGINAL));
        Waiting::new(Work::Step(step), now, now + Duration::from_secs(1))
    }

    #[test]
    fn a24_a_step_is_either_sent_or_withdrawn() {
        let now = Clock::instant();
        let (step, caller) = waiting(now);
        assert!(step.claim(now).is_some());
        assert!(!caller.withdraw(), "it may have been applied");

        let (step, caller) = waiting(now);
        assert!(caller.withdraw());
        assert!(step.claim(now).is_none());

        let (step, caller) = waiting(now);
        drop(caller);
        assert!(step.claim(now).is_none());

        let (step, mut caller) = waiting(now);
        assert!(step.claim(now + Duration::from_secs(1)).is_none());
        assert!(matches!(caller.reply.try_recv(), Ok(Err(StoreError::DeadlinePassed))));
    }

    #[test]
    fn a25_the_queue_is_bounded_until_steps_leave_it() {
        let now = Clock::instant();
        let queue = Queue::new(2);
        let name = DependencyId::new("a").unwrap();
        let mut callers = Vec::new();
        let mut push = || {
            let (step, caller) = waiting(now);
            callers.push(caller);
            queue.push(&name, step)
        };
        assert!(push().is_ok() && push().is_ok());
        assert!(matches!(push(), Err(StoreError::Overloaded)));
        assert_eq!(queue.take().len(), 2);
        assert!(matches!(push(), Err(StoreError::Overloaded)), "taken is not sent");
        queue.left(2);
        assert!(push().is_ok() && push().is_ok());
        assert!(push().is_err());
    }

    #[tokio::test]
    async fn a_closed_queue_answers_what_waits() {
        let now = Clock::instant();
        let queue = Queue::new(2);
        let name = DependencyId::new("a").unwrap();
        let (step, mut caller) = waiting(now);
        queue.push(&name, step).unwrap();
        queue.arrived().await;
        queue.close();
        assert!(matches!(caller.reply.try_recv(), Ok(Err(StoreError::Away(_)))));
        let (step, _caller) = waiting(now);
        assert!(queue.push(&name, step).is_err());
    }
}
