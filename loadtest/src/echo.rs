//! The baseline: a bare tonic server that speaks the same service, built like budgetd's, and decides nothing.
//!
//! Its answers have the encoded size of budgetd's, so that the difference to budgetd is what budgetd does. For peers it
//! speaks their service as well.

use futures::{StreamExt, stream};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, Streaming};

use budget_proto::pb;
use pb::retry_budget_server::{RetryBudget, RetryBudgetServer};

use crate::{daemon, rate_limit};

/// Answers everything with the same words.
pub(crate) struct Echo;

type Responder = fn(Result<pb::SessionRequest, Status>) -> Result<pb::SessionResponse, Status>;

/// Serves until `shutdown` ends.
pub(crate) async fn run(
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    daemon::bare_server()
        .add_service(service())
        .add_service(rate_limit::Echo)
        .serve_with_incoming_shutdown(daemon::bare_incoming(listener), shutdown)
        .await
}

/// Of a server that speaks more.
pub(crate) fn service() -> RetryBudgetServer<Echo> {
    RetryBudgetServer::new(Echo)
}

fn admitted() -> pb::ReserveResponse {
    let admitted = pb::Admitted {
        start_after_ms: 0,
        permit_ttl_ms: 60_000,
        attempts_left: Some(2),
        replayed: false,
        would_be_denied: None,
    };
    pb::ReserveResponse {
        decision: Some(pb::reserve_response::Decision::Admitted(admitted)),
        mode: pb::Mode::Exact.into(),
        // Random ids are mostly this long.
        policy_version: Some(pb::PolicyVersion { number: 1, id: u64::MAX >> 1 }),
    }
}

fn applied() -> pb::ReleaseResponse {
    pb::ReleaseResponse { result: pb::ReleaseResult::Applied.into(), mode: pb::Mode::Exact.into() }
}

fn extended(permit_ttl_ms: u64) -> pb::ExtendResponse {
    pb::ExtendResponse { result: pb::ExtendResult::Extended.into(), permit_ttl_ms: Some(permit_ttl_ms) }
}

fn answer(request: &pb::SessionRequest) -> pb::SessionResponse {
    let answer = match &request.call {
        Some(pb::session_request::Call::Reserve(_)) => Some(pb::session_response::Answer::Reserve(admitted())),
        Some(pb::session_request::Call::Release(_)) => Some(pb::session_response::Answer::Release(applied())),
        Some(pb::session_request::Call::Extend(extend)) => {
            Some(pb::session_response::Answer::Extend(extended(extend.permit_ttl_ms)))
        }
        None => None,
    };
    pb::SessionResponse { correlation_id: request.correlation_id, answer }
}

// === impl Echo ===

#[tonic::async_trait]
impl RetryBudget for Echo {
    // One answer at a time: the next call is read when the answer before it is taken.
    type SessionStream = stream::Map<Streaming<pb::SessionRequest>, Responder>;

    async fn reserve(&self, _: Request<pb::ReserveRequest>) -> Result<Response<pb::ReserveResponse>, Status> {
        Ok(Response::new(admitted()))
    }

    async fn release(&self, _: Request<pb::ReleaseRequest>) -> Result<Response<pb::ReleaseResponse>, Status> {
        Ok(Response::new(applied()))
    }

    async fn extend(&self, request: Request<pb::ExtendRequest>) -> Result<Response<pb::ExtendResponse>, Status> {
        Ok(Response::new(extended(request.get_ref().permit_ttl_ms)))
    }

    async fn sync(&self, _: Request<pb::SyncRequest>) -> Result<Response<pb::SyncResponse>, Status> {
        Err(Status::unimplemented("the baseline lends nothing"))
    }

    async fn report_received(
        &self,
        _: Request<pb::ReportReceivedRequest>,
    ) -> Result<Response<pb::ReportReceivedResponse>, Status> {
        Err(Status::unimplemented("the baseline compares nothing"))
    }

    async fn session(
        &self,
        request: Request<Streaming<pb::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let responder: Responder = |request| request.map(|request| answer(&request));
        Ok(Response::new(request.into_inner().map(responder)))
    }
}
