//! RetryBudget: Reserve, Release, Extend, and Session.

use std::sync::Arc;

use budget::lease::SyncAsk;
use budget_proto::{
    UnitNames,
    convert::{AskName, Decided, Echo, Received, sync_answer, sync_asks},
    pb,
};
use tonic::{Request, Response, Status, Streaming};

use super::{Core, deadline::TimeLimit, session::Session};
use crate::{clock::Clock, store::Store, telemetry::Call};

/// The service that callers use.
pub struct Budgets<S>(Arc<Core<S>>);

// === impl Budgets ===

impl<S: Store> Budgets<S> {
    /// Of this core.
    #[must_use]
    pub const fn new(core: Arc<Core<S>>) -> Self {
        Self(core)
    }

    /// Judges one request and has it decided.
    async fn call<Q>(&self, request: Request<Q>) -> Result<(Decided, Echo), Status>
    where
        Received: TryFrom<Q, Error = budget_proto::InvalidMessage>,
    {
        let limit = TimeLimit::of(request.metadata(), Clock::instant())?;
        let received = Received::try_from(request.into_inner())?;
        self.0.decide(received, limit).await
    }
}

#[tonic::async_trait]
impl<S: Store> pb::retry_budget_server::RetryBudget for Budgets<S> {
    type SessionStream = Session<S>;

    async fn reserve(&self, request: Request<pb::ReserveRequest>) -> Result<Response<pb::ReserveResponse>, Status> {
        let answer = self.call(request).await.and_then(|(decided, echo)| decided.reserve(&echo));
        answer.inspect_err(self.0.failed(Call::Reserve)).map(Response::new)
    }

    async fn release(&self, request: Request<pb::ReleaseRequest>) -> Result<Response<pb::ReleaseResponse>, Status> {
        let answer = self.call(request).await.and_then(|(decided, echo)| decided.release(&echo));
        answer.inspect_err(self.0.failed(Call::Release)).map(Response::new)
    }

    async fn extend(&self, request: Request<pb::ExtendRequest>) -> Result<Response<pb::ExtendResponse>, Status> {
        let answer = self.call(request).await.and_then(|(decided, echo)| decided.extend(&echo));
        answer.inspect_err(self.0.failed(Call::Extend)).map(Response::new)
    }

    async fn sync(&self, request: Request<pb::SyncRequest>) -> Result<Response<pb::SyncResponse>, Status> {
        let asks = sync_asks(request.into_inner())?;
        let answer = |(_, ask): &(_, SyncAsk)| {
            let status = Status::unimplemented("this version grants no leases yet");
            sync_answer(AskName::of(ask), Err(status), &UnitNames::default())
        };
        Ok(Response::new(pb::SyncResponse { answers: asks.iter().map(answer).collect() }))
    }

    async fn session(&self, request: Request<Streaming<pb::SessionRequest>>) -> Result<Response<Session<S>>, Status> {
        let limit = TimeLimit::of(request.metadata(), Clock::instant())?;
        Ok(Response::new(Session::new(Arc::clone(&self.0), request.into_inner(), limit)))
    }
}
