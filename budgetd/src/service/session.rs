//! Session: many calls on one stream, answered in any order.
//!
//! The stream is its own machine, polled by whoever writes it to the wire: no task per stream or call. What the store
//! answers at once is answered in the same poll, so many calls go out in one write. No further call is read while too
//! many are unanswered, or while the client does not read its answers.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use budget_proto::{
    convert::{Received, session_call, session_response},
    pb,
};
use futures::{Stream, StreamExt, stream::FuturesUnordered};
use tonic::{Status, Streaming};

use super::{Core, call_of, deadline::TimeLimit};
use crate::{
    clock::Clock,
    security::{Access, Role},
    store::Store,
    telemetry::{Call, traces::Parent},
};

/// The answers of one session.
pub struct Session<S: Store> {
    core: Arc<Core<S>>,
    calls: Streaming<pb::SessionRequest>,
    limit: TimeLimit,
    access: Access,
    unanswered: FuturesUnordered<Answer>,
    stopping: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// No further calls are read: why the stream ends once all are answered; none if the client said so.
    ending: Option<Option<Status>>,
}

type Answer = Pin<Box<dyn Future<Output = pb::SessionResponse> + Send>>;

// === impl Session ===

impl<S: Store> Session<S> {
    pub(super) fn new(
        core: Arc<Core<S>>,
        calls: Streaming<pb::SessionRequest>,
        limit: TimeLimit,
        access: Access,
    ) -> Self {
        core.decisions.session_opened();
        let stopping = Box::pin(core.stop.begun());
        Self { core, calls, limit, access, unanswered: FuturesUnordered::new(), stopping, ending: None }
    }

    /// The answer to a call: at once if the store answers at once, otherwise later.
    fn begin(&mut self, request: pb::SessionRequest, cx: &mut Context<'_>) -> Result<pb::SessionResponse, Answer> {
        let limit = self.limit.on_stream(Clock::instant());
        let kind = kind(&request);
        let (correlation_id, received) = session_call(request);
        let permitted = received.map_err(Status::from).and_then(|received| {
            // Each call by itself: who was let in may have lost a right, or a token its owner, since then.
            self.access.renew()?;
            self.access.permit(Role::Reserve, received.dependency.as_str())?;
            Ok(received)
        });
        let received = match permitted {
            Ok(received) => received,
            Err(status) => {
                self.core.decisions.failed(kind, status.code());
                return Ok(session_response(correlation_id, Err(status)));
            }
        };
        let mut answer: Answer = Box::pin(answer(Arc::clone(&self.core), correlation_id, received, limit));
        match answer.as_mut().poll(cx) {
            Poll::Ready(response) => Ok(response),
            Poll::Pending => Err(answer),
        }
    }

    /// Reads no further call.
    fn end(&mut self, why: Option<Status>) {
        self.ending.get_or_insert(why);
    }
}

async fn answer<S: Store>(
    core: Arc<Core<S>>,
    correlation_id: u64,
    received: Received,
    limit: TimeLimit,
) -> pb::SessionResponse {
    let call = call_of(&received.step);
    // What the headers of a stream say holds for the stream, not for each of its calls.
    let deciding = core.decide(received, limit, &Parent::default());
    let answer = deciding.await.and_then(|(decided, echo)| decided.session(&echo));
    session_response(correlation_id, answer.inspect_err(core.failed(call)))
}

fn shutting_down() -> Status {
    Status::unavailable("budgetd is shutting down")
}

const fn kind(request: &pb::SessionRequest) -> Call {
    match request.call {
        Some(pb::session_request::Call::Release(_)) => Call::Release,
        Some(pb::session_request::Call::Extend(_)) => Call::Extend,
        Some(pb::session_request::Call::Reserve(_)) | None => Call::Reserve,
    }
}

impl<S: Store> Stream for Session<S> {
    type Item = Result<pb::SessionResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if !this.unanswered.is_empty()
                && let Poll::Ready(Some(response)) = this.unanswered.poll_next_unpin(cx)
            {
                return Poll::Ready(Some(Ok(response)));
            }
            if this.core.stop.has_begun() {
                this.end(Some(shutting_down()));
            }
            if this.ending.is_none() && this.unanswered.len() < this.core.limits.session_unanswered {
                match this.calls.poll_next_unpin(cx) {
                    Poll::Ready(Some(Ok(request))) => match this.begin(request, cx) {
                        Ok(response) => return Poll::Ready(Some(Ok(response))),
                        Err(later) => this.unanswered.push(later),
                    },
                    // What could not be read may have been a call: nothing after it can be told apart.
                    Poll::Ready(Some(Err(status))) => this.end(Some(status)),
                    Poll::Ready(None) => this.end(None),
                    Poll::Pending if this.stopping.as_mut().poll(cx).is_pending() => return Poll::Pending,
                    Poll::Pending => this.end(Some(shutting_down())),
                }
                continue;
            }
            if let Some(why) = this.ending.as_mut().filter(|_| this.unanswered.is_empty()) {
                return Poll::Ready(why.take().map(Err));
            }
            return Poll::Pending;
        }
    }
}

impl<S: Store> Drop for Session<S> {
    fn drop(&mut self) {
        self.core.decisions.session_closed();
    }
}
