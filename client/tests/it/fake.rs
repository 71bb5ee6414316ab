//! A server that answers as it is told, and remembers what it was asked. Also a proxy that cuts connections.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use budget_proto::pb::{
    self, budget_admin_server::BudgetAdminServer, retry_budget_server::RetryBudgetServer, session_request::Call,
    session_response::Answer,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream, UnixListener},
    sync::{Notify, mpsc},
};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tonic::{Code, Request, Response, Status, Streaming, transport::Server};

/// What the next unary call gets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    Answer,
    Fail(Code),
    /// No answer, ever.
    Hang,
    /// An answer that breaks the protocol.
    Nonsense,
}

/// What a session does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Manner {
    Answer,
    /// Gathers so many calls, answers them in reverse order. The rest is never answered.
    Reverse(usize),
    /// Takes so many calls, then fails the stream without having answered.
    BreakAfter(usize),
    /// Takes so many calls, then ends the stream properly without having answered.
    EndAfter(usize),
    /// Answers a Reserve as if it were a Release.
    Mismatch,
}

#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) reservation_id: Vec<u8>,
    pub(crate) reserve: Option<pb::ReserveRequest>,
    pub(crate) grpc_timeout: String,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) next: Mutex<VecDeque<Next>>,
    pub(crate) manner: Mutex<Manner>,
    pub(crate) seen: Mutex<Vec<Seen>>,
    /// Calls of the session in the order they came.
    pub(crate) session_calls: Mutex<Vec<pb::SessionRequest>>,
    /// A call arrived.
    pub(crate) arrived: Notify,
    /// The client ended its side of a session.
    pub(crate) session_ended: Notify,
    pub(crate) put: Mutex<Option<pb::PutPolicyRequest>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Fake(pub(crate) Arc<Shared>);

// === impl Fake ===

impl Fake {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Shared {
            next: Mutex::default(),
            manner: Mutex::new(Manner::Answer),
            seen: Mutex::default(),
            session_calls: Mutex::default(),
            arrived: Notify::new(),
            session_ended: Notify::new(),
            put: Mutex::default(),
        }))
    }

    /// Serves on a free port and gives its endpoint.
    pub(crate) async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        self.serve_on(listener);
        endpoint
    }

    pub(crate) fn serve_on(&self, listener: TcpListener) {
        let server = self.server();
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    }

    pub(crate) fn serve_unix(&self, path: &std::path::Path) {
        let listener = UnixListener::bind(path).unwrap();
        let server = self.server();
        tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    }

    fn server(&self) -> tonic::transport::server::Router {
        Server::builder()
            .add_service(RetryBudgetServer::new(self.clone()))
            .add_service(BudgetAdminServer::new(self.clone()))
    }

    pub(crate) fn will(&self, next: impl IntoIterator<Item = Next>) {
        self.0.next.lock().unwrap().extend(next);
    }

    pub(crate) fn session_will(&self, manner: Manner) {
        *self.0.manner.lock().unwrap() = manner;
    }

    /// What was asked since the last time.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.0.seen.lock().unwrap())
    }

    async fn answer<R>(&self, seen: Seen, answer: R, nonsense: R) -> Result<Response<R>, Status> {
        self.0.seen.lock().unwrap().push(seen);
        let next = self.0.next.lock().unwrap().pop_front().unwrap_or(Next::Answer);
        self.0.arrived.notify_one();
        match next {
            Next::Answer => Ok(Response::new(answer)),
            Next::Nonsense => Ok(Response::new(nonsense)),
            Next::Fail(code) => Err(Status::new(code, "as told")),
            Next::Hang => std::future::pending().await,
        }
    }
}

fn grpc_timeout<M>(request: &Request<M>) -> String {
    request.metadata().get("grpc-timeout").map_or(String::new(), |value| value.to_str().unwrap().to_owned())
}

/// The permit time tells the answers apart: it repeats the last byte of the reservation id.
fn admitted(reservation_id: &[u8]) -> pb::ReserveResponse {
    let admitted = pb::Admitted {
        permit_ttl_ms: u64::from(*reservation_id.last().unwrap()),
        attempts_left: Some(2),
        ..pb::Admitted::default()
    };
    pb::ReserveResponse {
        decision: Some(pb::reserve_response::Decision::Admitted(admitted)),
        mode: pb::Mode::Exact.into(),
        policy_version: Some(pb::PolicyVersion { number: 3, id: 4 }),
    }
}

fn released() -> pb::ReleaseResponse {
    pb::ReleaseResponse { result: pb::ReleaseResult::Applied.into(), mode: pb::Mode::Exact.into() }
}

#[tonic::async_trait]
impl pb::retry_budget_server::RetryBudget for Fake {
    type SessionStream = ReceiverStream<Result<pb::SessionResponse, Status>>;

    async fn reserve(&self, request: Request<pb::ReserveRequest>) -> Result<Response<pb::ReserveResponse>, Status> {
        let grpc_timeout = grpc_timeout(&request);
        let reserve = request.into_inner();
        let reservation_id = reserve.reservation_id.clone();
        let answer = admitted(&reservation_id);
        let seen = Seen { reservation_id, reserve: Some(reserve), grpc_timeout };
        self.answer(seen, answer, pb::ReserveResponse::default()).await
    }

    async fn release(&self, request: Request<pb::ReleaseRequest>) -> Result<Response<pb::ReleaseResponse>, Status> {
        let grpc_timeout = grpc_timeout(&request);
        let reservation_id = request.into_inner().reservation_id;
        let seen = Seen { reservation_id, reserve: None, grpc_timeout };
        self.answer(seen, released(), pb::ReleaseResponse::default()).await
    }

    async fn extend(&self, request: Request<pb::ExtendRequest>) -> Result<Response<pb::ExtendResponse>, Status> {
        let grpc_timeout = grpc_timeout(&request);
        let pb::ExtendRequest { reservation_id, permit_ttl_ms, .. } = request.into_inner();
        let answer = pb::ExtendResponse { result: 1, permit_ttl_ms: Some(permit_ttl_ms) };
        let seen = Seen { reservation_id, reserve: None, grpc_timeout };
        self.answer(seen, answer, pb::ExtendResponse::default()).await
    }

    async fn sync(&self, _: Request<pb::SyncRequest>) -> Result<Response<pb::SyncResponse>, Status> {
        Err(Status::unimplemented("this one lends nothing"))
    }

    async fn report_received(
        &self,
        _: Request<pb::ReportReceivedRequest>,
    ) -> Result<Response<pb::ReportReceivedResponse>, Status> {
        Err(Status::unimplemented("this one compares nothing"))
    }

    async fn session(
        &self,
        request: Request<Streaming<pb::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (answers, stream) = mpsc::channel(1024);
        let manner = *self.0.manner.lock().unwrap();
        tokio::spawn(run_session(Arc::clone(&self.0), manner, request.into_inner(), answers));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

async fn run_session(
    shared: Arc<Shared>,
    manner: Manner,
    mut calls: Streaming<pb::SessionRequest>,
    answers: mpsc::Sender<Result<pb::SessionResponse, Status>>,
) {
    let mut gathered = Vec::new();
    while let Ok(Some(call)) = calls.message().await {
        shared.session_calls.lock().unwrap().push(call.clone());
        shared.arrived.notify_one();
        let answer = session_answer(&call, manner);
        match manner {
            Manner::Answer | Manner::Mismatch => answers.send(Ok(answer)).await.unwrap(),
            Manner::Reverse(count) => {
                gathered.push(answer);
                if gathered.len() == count {
                    for answer in gathered.drain(..).rev() {
                        answers.send(Ok(answer)).await.unwrap();
                    }
                }
            }
            Manner::BreakAfter(count) => {
                gathered.push(answer);
                if gathered.len() == count {
                    answers.send(Err(Status::internal("as told"))).await.unwrap();
                    return;
                }
            }
            Manner::EndAfter(count) => {
                gathered.push(answer);
                if gathered.len() == count {
                    return;
                }
            }
        }
    }
    shared.session_ended.notify_one();
}

/// Dependency `fails` gets a failure, `nonsense` an answer that breaks the protocol.
fn session_answer(request: &pb::SessionRequest, manner: Manner) -> pb::SessionResponse {
    let answer = match request.call.as_ref().unwrap() {
        Call::Reserve(_) if manner == Manner::Mismatch => Answer::Release(released()),
        Call::Reserve(reserve) if reserve.dependency == "fails" => {
            Answer::Failure(pb::Failure { code: Code::NotFound.into(), message: "as told".to_owned() })
        }
        Call::Reserve(reserve) if reserve.dependency == "nonsense" => Answer::Reserve(pb::ReserveResponse::default()),
        Call::Reserve(reserve) => Answer::Reserve(admitted(&reserve.reservation_id)),
        Call::Release(_) => Answer::Release(released()),
        Call::Extend(extend) => {
            Answer::Extend(pb::ExtendResponse { result: 1, permit_ttl_ms: Some(extend.permit_ttl_ms) })
        }
    };
    pb::SessionResponse { correlation_id: request.correlation_id, answer: Some(answer) }
}

const VERSION: Option<pb::PolicyVersion> = Some(pb::PolicyVersion { number: 7, id: 8 });

#[tonic::async_trait]
impl pb::budget_admin_server::BudgetAdmin for Fake {
    async fn get_policy(
        &self,
        request: Request<pb::GetPolicyRequest>,
    ) -> Result<Response<pb::GetPolicyResponse>, Status> {
        Ok(Response::new(pb::GetPolicyResponse {
            version: VERSION,
            rule: request.into_inner().dependency,
            source_toml: "source".to_owned(),
            effective_toml: "effective".to_owned(),
            retries_off: true,
            ..pb::GetPolicyResponse::default()
        }))
    }

    async fn list_policies(
        &self,
        request: Request<pb::ListPoliciesRequest>,
    ) -> Result<Response<pb::ListPoliciesResponse>, Status> {
        let page = request.into_inner().page_token;
        let name = page.clone().unwrap_or_else(|| "first".to_owned());
        Ok(Response::new(pb::ListPoliciesResponse {
            version: VERSION,
            rules: vec![pb::PolicyRule { name, source_toml: "source".to_owned(), ..Default::default() }],
            retries_off: vec!["*".to_owned()],
            next_page_token: if page.is_none() { Some("second".to_owned()) } else { None },
        }))
    }

    async fn put_policy(
        &self,
        request: Request<pb::PutPolicyRequest>,
    ) -> Result<Response<pb::PutPolicyResponse>, Status> {
        let put = request.into_inner();
        if put.expected_version != VERSION {
            return Err(Status::aborted("policies have version 7, not the expected one"));
        }
        *self.0.put.lock().unwrap() = Some(put);
        Ok(Response::new(pb::PutPolicyResponse { version: Some(pb::PolicyVersion { number: 8, id: 9 }) }))
    }

    async fn get_status(
        &self,
        request: Request<pb::GetStatusRequest>,
    ) -> Result<Response<pb::GetStatusResponse>, Status> {
        let status = |name: String| pb::DependencyStatus {
            rule: "defaults".to_owned(),
            mode: pb::Mode::Exact.into(),
            admission_balance_micros: Some(-5),
            admission_burst_micros: Some(10),
            retry_balance_micros: 1,
            retry_burst_micros: 2,
            units: vec![pb::UnitStatus { unit: "usd".to_owned(), balance_micros: -1, burst_micros: 2 }],
            in_flight: 3,
            counters: if name == "nonsense" { None } else { Some(pb::Counters::default()) },
            name,
            ..pb::DependencyStatus::default()
        };
        Ok(Response::new(pb::GetStatusResponse {
            version: VERSION,
            store: "memory".to_owned(),
            store_up: true,
            dependencies: request.into_inner().dependencies.into_iter().map(status).collect(),
            ..pb::GetStatusResponse::default()
        }))
    }

    async fn list_holders(
        &self,
        request: Request<pb::ListHoldersRequest>,
    ) -> Result<Response<pb::ListHoldersResponse>, Status> {
        let pb::ListHoldersRequest { dependency, page_token, .. } = request.into_inner();
        let unit = pb::UnitAmounts { unit: "usd".to_owned(), rate_micros_per_second: 5, burst_micros: 6 };
        let value = pb::Amounts { rate_micros_per_second: 7, units: vec![unit], ..pb::Amounts::default() };
        let holder = pb::Holder {
            holder_id: page_token.clone().unwrap_or_else(|| "first".to_owned()),
            incarnation: if dependency == "nonsense" { vec![1; 3] } else { vec![1; 16] },
            weight: 2,
            demand_ppm: 3,
            value: Some(value.clone()),
            charged: Some(value),
            ..pb::Holder::default()
        };
        let next_page_token = if page_token.is_none() { Some("second".to_owned()) } else { None };
        Ok(Response::new(pb::ListHoldersResponse { holders: vec![holder], next_page_token }))
    }

    async fn revoke_lease(
        &self,
        request: Request<pb::RevokeLeaseRequest>,
    ) -> Result<Response<pb::RevokeLeaseResponse>, Status> {
        let pb::RevokeLeaseRequest { dependency, holder_id, why } = request.into_inner();
        let revoked = (dependency.as_str(), holder_id.as_str(), why.as_str()) == ("payments", "pod-1", "incident 7");
        Ok(Response::new(pb::RevokeLeaseResponse { revoked }))
    }

    async fn delete_policy(
        &self,
        request: Request<pb::DeletePolicyRequest>,
    ) -> Result<Response<pb::DeletePolicyResponse>, Status> {
        let pb::DeletePolicyRequest { name, override_for_ms, .. } = request.into_inner();
        match (name.as_str(), override_for_ms) {
            ("payments", Some(7_200_000)) => Ok(Response::new(pb::DeletePolicyResponse { version: VERSION })),
            _ => Err(Status::failed_precondition("rule comes from policy file p.toml")),
        }
    }

    async fn policy_history(
        &self,
        _: Request<pb::PolicyHistoryRequest>,
    ) -> Result<Response<pb::PolicyHistoryResponse>, Status> {
        let change = pb::PolicyChange { version: VERSION, at_ms: 5, who: "ann".to_owned(), ..Default::default() };
        Ok(Response::new(pb::PolicyHistoryResponse { version: VERSION, changes: vec![change], next_page_token: None }))
    }

    async fn rollback_policies(
        &self,
        request: Request<pb::RollbackPoliciesRequest>,
    ) -> Result<Response<pb::RollbackPoliciesResponse>, Status> {
        match request.into_inner().version_number {
            5 => Ok(Response::new(pb::RollbackPoliciesResponse { version: VERSION })),
            other => Err(Status::invalid_argument(format!("version is {other}: must be 5"))),
        }
    }

    type TryPoliciesStream = tokio_stream::Iter<std::vec::IntoIter<Result<pb::TryPoliciesResponse, Status>>>;

    async fn try_policies(
        &self,
        _: Request<pb::TryPoliciesRequest>,
    ) -> Result<Response<Self::TryPoliciesStream>, Status> {
        let refusals = vec![pb::Refusals { reason: 4, originals: 0, retries: 9 }];
        let tally = pb::Tally { originals_admitted: 1, retries_admitted: 2, refusals };
        let trial = pb::Trial { dependency: "a".to_owned(), candidate: Some(tally), ..Default::default() };
        let last = pb::TryPoliciesResponse { finished: true, trials: vec![trial], ..Default::default() };
        Ok(Response::new(tokio_stream::iter(vec![Ok(pb::TryPoliciesResponse::default()), Ok(last)])))
    }

    type WatchStatusStream = tokio_stream::Iter<std::vec::IntoIter<Result<pb::GetStatusResponse, Status>>>;

    async fn watch_status(
        &self,
        _: Request<pb::WatchStatusRequest>,
    ) -> Result<Response<Self::WatchStatusStream>, Status> {
        let page =
            |store: &str| pb::GetStatusResponse { version: VERSION, store: store.to_owned(), ..Default::default() };
        let pages = vec![Ok(page("one")), Ok(page("two")), Err(Status::unavailable("that was all"))];
        Ok(Response::new(tokio_stream::iter(pages)))
    }

    async fn set_retries(
        &self,
        request: Request<pb::SetRetriesRequest>,
    ) -> Result<Response<pb::SetRetriesResponse>, Status> {
        let pb::SetRetriesRequest { target, enabled, why, .. } = request.into_inner();
        if (target.as_str(), enabled, why.as_str()) != ("fam/*", false, "incident 7") {
            return Err(Status::invalid_argument("target is something else: must be fam/*"));
        }
        Ok(Response::new(pb::SetRetriesResponse { version: VERSION, ..Default::default() }))
    }
}

/// A proxy that cuts each of its first `cuts` connections when a call has arrived behind it: the server has applied
/// the call, and its answer is lost.
pub(crate) async fn cutting_proxy(fake: &Fake, cuts: usize) -> String {
    let behind = fake.serve().await;
    let behind = behind.strip_prefix("http://").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let shared = Arc::clone(&fake.0);
    tokio::spawn(async move {
        for connection in 0.. {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = TcpStream::connect(&behind).await.unwrap();
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                if connection < cuts {
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        () = shared.arrived.notified() => {}
                    }
                } else {
                    drop(copy_bidirectional(&mut near, &mut far).await);
                }
            });
        }
    });
    endpoint
}

/// Waits until the session has taken `count` calls; a test that waits in vain fails.
pub(crate) async fn session_calls(fake: &Fake, count: usize) {
    let reached = async {
        while fake.0.session_calls.lock().unwrap().len() < count {
            fake.0.arrived.notified().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reached).await.unwrap();
}
