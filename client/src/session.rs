//! Many calls over one stream: no HTTP request for each, answers in any order.
//!
//! When the stream breaks, nobody can say which of the unanswered calls were applied: each of them fails with
//! [`Error::OutcomeUnknown`]. The session is over then; open another one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use budget::decision::{Extend, ExtendResult, Release, Reserve};
use budget_proto::{
    InvalidMessage,
    convert::{Released, Reply, Reserved},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use crate::{
    Dependency, Error,
    client::deadline,
    transport::{Call, SessionAnswers, SessionCall, Transport},
};

/// An open stream; cheap to clone, ends with its last clone.
#[derive(Clone, Debug)]
pub struct Session {
    stream: Arc<Stream>,
}

#[derive(Debug)]
struct Stream {
    /// As many as there may be unanswered calls. Each has room in `calls`.
    slots: Arc<Semaphore>,
    calls: mpsc::Sender<SessionCall>,
    unanswered: Arc<Mutex<Unanswered>>,
    reader: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Unanswered {
    next_correlation_id: u64,
    calls: HashMap<u64, Waiting>,
    /// Why the stream has ended.
    ended: Option<Arc<str>>,
}

/// A call keeps its slot until it is answered, even if its caller no longer waits: budgetd still works on it.
#[derive(Debug)]
struct Waiting {
    caller: oneshot::Sender<Result<Reply, Error>>,
    _slot: OwnedSemaphorePermit,
}

// === impl Session ===

impl Session {
    pub(crate) async fn open(transport: &Transport, outstanding_max: usize, deadline: Instant) -> Result<Self, Error> {
        let outstanding_max = outstanding_max.min(Semaphore::MAX_PERMITS);
        let (calls, queue) = mpsc::channel(outstanding_max);
        let answers = transport.session(queue, deadline).await?;
        let slots = Arc::new(Semaphore::new(outstanding_max));
        let unanswered = Arc::<Mutex<Unanswered>>::default();
        let reader = tokio::spawn(read(answers, Arc::clone(&unanswered), Arc::clone(&slots)));
        Ok(Self { stream: Arc::new(Stream { slots, calls, unanswered, reader }) })
    }

    /// As [`Client::reserve`](crate::Client::reserve), but never sent again: after [`Error::OutcomeUnknown`] the caller
    /// may do so on another session.
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn reserve(
        &self,
        dependency: &Dependency,
        reserve: &Reserve,
        within: Duration,
    ) -> Result<Reserved, Error> {
        match self.call(dependency, Call::Reserve(reserve), deadline(within)).await? {
            Reply::Reserved(reserved) => Ok(reserved),
            Reply::Released(_) => Err(mismatch("release", "must answer a reserve")),
            Reply::Extended(_) => Err(mismatch("extend", "must answer a reserve")),
        }
    }

    /// As [`Client::release`](crate::Client::release).
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn release(
        &self,
        dependency: &Dependency,
        release: &Release,
        within: Duration,
    ) -> Result<Released, Error> {
        match self.call(dependency, Call::Release(release), deadline(within)).await? {
            Reply::Released(released) => Ok(released),
            Reply::Reserved(_) => Err(mismatch("reserve", "must answer a release")),
            Reply::Extended(_) => Err(mismatch("extend", "must answer a release")),
        }
    }

    /// As [`Client::extend`](crate::Client::extend).
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn extend(
        &self,
        dependency: &Dependency,
        extend: Extend,
        within: Duration,
    ) -> Result<ExtendResult, Error> {
        match self.call(dependency, Call::Extend(extend), deadline(within)).await? {
            Reply::Extended(result) => Ok(result),
            Reply::Reserved(_) => Err(mismatch("reserve", "must answer an extend")),
            Reply::Released(_) => Err(mismatch("release", "must answer an extend")),
        }
    }

    /// Why the stream has ended; none while it lives.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        lock(&self.stream.unanswered).ended.as_ref().map(ToString::to_string)
    }

    async fn call(&self, dependency: &Dependency, call: Call<'_>, deadline: Instant) -> Result<Reply, Error> {
        let slot = match timeout_at(deadline, Arc::clone(&self.stream.slots).acquire_owned()).await {
            Err(_) => return Err(Error::DeadlinePassed),
            Ok(Err(_closed)) => return Err(self.ended_error()),
            Ok(Ok(slot)) => slot,
        };
        // How much time is left is known only now.
        if Instant::now() >= deadline {
            return Err(Error::DeadlinePassed);
        }
        let request = call.request(dependency, deadline)?;
        let answer = self.send(request, slot)?;
        match timeout_at(deadline, answer).await {
            Err(_) => Err(Error::DeadlineExceeded),
            Ok(Ok(reply)) => reply,
            // The runtime of the reader has shut down.
            Ok(Err(_dropped)) => Err(Error::OutcomeUnknown("the session was dropped".into())),
        }
    }

    /// Registers a call and queues it, with nothing in between at which it could be cancelled.
    fn send(
        &self,
        mut request: SessionCall,
        slot: OwnedSemaphorePermit,
    ) -> Result<oneshot::Receiver<Result<Reply, Error>>, Error> {
        let (caller, answer) = oneshot::channel();
        let mut unanswered = lock(&self.stream.unanswered);
        if let Some(reason) = &unanswered.ended {
            return Err(Error::SessionEnded(Arc::clone(reason)));
        }
        let id = unanswered.next_correlation_id;
        unanswered.next_correlation_id = id.wrapping_add(1);
        request.correlation_id = id;
        // The slot of this call is its place in the queue, so the queue is never full; it closes with the stream.
        if self.stream.calls.try_send(request).is_err() {
            return Err(Error::SessionEnded("the stream takes no more calls".into()));
        }
        unanswered.calls.insert(id, Waiting { caller, _slot: slot });
        Ok(answer)
    }

    fn ended_error(&self) -> Error {
        let reason = lock(&self.stream.unanswered).ended.clone();
        Error::SessionEnded(reason.unwrap_or_else(|| "the stream is closed".into()))
    }
}

fn mismatch(answered: &'static str, rule: &'static str) -> Error {
    Error::UnexpectedAnswer(InvalidMessage::number("answer", answered, rule))
}

// === impl Stream ===

impl Drop for Stream {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Hands each answer to its caller, until the stream ends.
async fn read(mut answers: SessionAnswers, unanswered: Arc<Mutex<Unanswered>>, slots: Arc<Semaphore>) {
    let reason: Arc<str> = loop {
        match answers.next().await {
            Ok(Some((id, reply))) => {
                // A caller that no longer waits, or an id that nobody used, changes nothing.
                if let Some(waiting) = lock(&unanswered).calls.remove(&id) {
                    drop(waiting.caller.send(reply));
                }
            }
            Ok(None) => break "budgetd closed the stream".into(),
            Err(error) => break error.to_string().into(),
        }
    };
    slots.close();
    let stranded = {
        let mut unanswered = lock(&unanswered);
        unanswered.ended = Some(Arc::clone(&reason));
        std::mem::take(&mut unanswered.calls)
    };
    for waiting in stranded.into_values() {
        drop(waiting.caller.send(Err(Error::OutcomeUnknown(Arc::clone(&reason)))));
    }
}

/// Every critical section leaves the map whole, so a panic elsewhere is no reason to give up.
fn lock(unanswered: &Mutex<Unanswered>) -> MutexGuard<'_, Unanswered> {
    unanswered.lock().unwrap_or_else(PoisonError::into_inner)
}
