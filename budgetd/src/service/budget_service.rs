//! RetryBudget: Reserve, Release, Extend, Sync, ReportReceived, and Session.

use std::{future::ready, sync::Arc};

use budget_proto::{
    InvalidMessage,
    convert::{Decided, Echo, Received},
    pb,
};
use futures::{FutureExt, future::Either};
use tonic::{Request, Response, Status, Streaming};

use super::{Core, deadline::TimeLimit, session::Session};
use crate::{
    clock::Clock,
    security::{Access, Role},
    store::Store,
    telemetry::Call,
};

/// The service that callers use.
pub struct Budgets<S>(Arc<Core<S>>);

// === impl Budgets ===

impl<S: Store> Budgets<S> {
    /// Of this core.
    #[must_use]
    pub const fn new(core: Arc<Core<S>>) -> Self {
        Self(core)
    }

    /// Judges one request and has it decided. The request is gone before anything waits.
    fn call<Q, A>(
        &self,
        call: Call,
        request: Request<Q>,
        answer: fn(Decided, &Echo) -> Result<A, Status>,
    ) -> impl Future<Output = Result<Response<A>, Status>> + use<'_, S, Q, A>
    where
        Received: TryFrom<Q, Error = InvalidMessage>,
    {
        let access = Access::of(request.extensions());
        let parent = self.0.traces.parent(request.metadata());
        let judged = TimeLimit::of(request.metadata(), Clock::instant())
            .and_then(|limit| Ok((Received::try_from(request.into_inner())?, limit)))
            .map_err(Status::from)
            .and_then(|(received, limit)| {
                access.permit(Role::Reserve, received.dependency.as_str())?;
                Ok((received, limit))
            });
        let deciding = match judged {
            Ok((received, limit)) => Either::Left(self.0.decide(received, limit, &parent)),
            Err(status) => Either::Right(ready(Err(status))),
        };
        deciding.map(move |decided| {
            let answer = decided.and_then(|(decided, echo)| answer(decided, &echo));
            answer.inspect_err(self.0.failed(call)).map(Response::new)
        })
    }
}

#[tonic::async_trait]
impl<S: Store> pb::retry_budget_server::RetryBudget for Budgets<S> {
    type SessionStream = Session<S>;

    async fn reserve(&self, request: Request<pb::ReserveRequest>) -> Result<Response<pb::ReserveResponse>, Status> {
        self.call(Call::Reserve, request, Decided::reserve).await
    }

    async fn release(&self, request: Request<pb::ReleaseRequest>) -> Result<Response<pb::ReleaseResponse>, Status> {
        self.call(Call::Release, request, Decided::release).await
    }

    async fn extend(&self, request: Request<pb::ExtendRequest>) -> Result<Response<pb::ExtendResponse>, Status> {
        self.call(Call::Extend, request, Decided::extend).await
    }

    async fn sync(&self, request: Request<pb::SyncRequest>) -> Result<Response<pb::SyncResponse>, Status> {
        self.0.sync(request).await.inspect_err(self.0.failed(Call::Sync)).map(Response::new)
    }

    async fn report_received(
        &self,
        request: Request<pb::ReportReceivedRequest>,
    ) -> Result<Response<pb::ReportReceivedResponse>, Status> {
        self.0.report_received(&request).await.inspect_err(self.0.failed(Call::ReportReceived)).map(Response::new)
    }

    async fn session(&self, request: Request<Streaming<pb::SessionRequest>>) -> Result<Response<Session<S>>, Status> {
        let limit = TimeLimit::of(request.metadata(), Clock::instant())?;
        let access = Access::of(request.extensions());
        Ok(Response::new(Session::new(Arc::clone(&self.0), request.into_inner(), limit, access)))
    }
}

#[cfg(test)]
mod tests {
    use budget_proto::pb::retry_budget_server::RetryBudget;

    use super::*;
    use crate::{
        config::ServerLimits,
        policies::{Policies, repository::MemoryRepository},
        service::{Complaints, StoreKind},
        shutdown::Stop,
        store::{fallback::Sharers, memory::MemoryStore},
    };

    /// The system's allocator keeps blocks of up to 1032 bytes at hand for each thread; larger ones cost much more. Seen
    /// to fail with `decide` an `async fn` that holds the request as well: 1704 bytes.
    #[tokio::test]
    async fn the_future_of_a_call_is_small() {
        let policies = Arc::new(Policies::start(MemoryRepository::default(), None).await.unwrap());
        let core = Core {
            store: Arc::new(MemoryStore::new(Arc::clone(&policies), Clock::system())),
            store_kind: StoreKind::MEMORY,
            policies,
            decisions: Arc::default(),
            store_health: Arc::default(),
            limits: ServerLimits::default(),
            sharers: Arc::new(Sharers::new(1)),
            clock: Clock::system(),
            stop: Stop::new(),
            complaints: Complaints::default(),
            sight: Arc::default(),
            traces: Arc::default(),
        };
        let budgets = Budgets::new(Arc::new(core));
        let sizes = [
            size_of_val(&*budgets.reserve(Request::new(pb::ReserveRequest::default()))),
            size_of_val(&*budgets.release(Request::new(pb::ReleaseRequest::default()))),
            size_of_val(&*budgets.extend(Request::new(pb::ExtendRequest::default()))),
        ];
        assert!(sizes.iter().all(|bytes| *bytes <= 1024), "{sizes:?} bytes");
    }
}
