//! All I/O of the client, and with [`operators`] the only file of it that knows the generated types.

mod operators;

use std::{future::Future, time::Duration};

use budget::decision::{Extend, ExtendResult, Release, Reserve};
use budget_proto::{
    InvalidMessage,
    convert::{
        AskName, Asking, Released, Reply, Reserved, SyncReply, extend_request, release_request, reserve_request,
        session_reply, sync_replies, sync_requests,
    },
    pb::{self, budget_admin_client::BudgetAdminClient, retry_budget_client::RetryBudgetClient},
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Response, Status, Streaming,
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint, Uri},
};

use crate::{Dependency, Error, Options, credentials::Bearer, leasing::Asked};

pub(crate) use operators::{StatusAnswers, TrialAnswers};

/// A call of a session, encoded; its correlation id is set when it is queued.
pub(crate) type SessionCall = pb::SessionRequest;

/// A call of a session before its deadline is known.
#[derive(Debug)]
pub(crate) enum Call<'a> {
    Reserve(&'a Reserve),
    Release(&'a Release),
    Extend(Extend),
}

/// The answers of a session.
#[derive(Debug)]
pub(crate) struct SessionAnswers(Streaming<pb::SessionResponse>);

/// A lazily connected channel; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Transport {
    budget: RetryBudgetClient<Authorized>,
    admin: BudgetAdminClient<Authorized>,
}

/// Sends the token along, if there is one.
type Authorized = InterceptedService<Channel, Bearer>;

// === impl Transport ===

impl Transport {
    pub(crate) fn new(endpoint: &str, options: &Options) -> Result<Self, Error> {
        let address = endpoint;
        let endpoint = judged(address)?
            .connect_timeout(options.connect_timeout)
            .http2_keep_alive_interval(options.keep_alive_interval)
            .keep_alive_timeout(options.keep_alive_timeout)
            .keep_alive_while_idle(true);
        // The channel starts a task.
        tokio::runtime::Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let (endpoint, bearer) = (options.credentials.secure(address, endpoint)?, options.credentials.bearer()?);
        let channel = InterceptedService::new(endpoint.connect_lazy(), bearer);
        Ok(Self { budget: RetryBudgetClient::new(channel.clone()), admin: BudgetAdminClient::new(channel) })
    }

    pub(crate) async fn reserve(
        &self,
        dependency: &Dependency,
        reserve: &Reserve,
        deadline: Instant,
    ) -> Result<Reserved, Error> {
        let message = timed_reserve(dependency, reserve, deadline)?;
        let mut client = self.budget.clone();
        let response = call(message, deadline, |request| async move { client.reserve(request).await }).await?;
        response.try_into().map_err(Error::UnexpectedAnswer)
    }

    pub(crate) async fn release(
        &self,
        dependency: &Dependency,
        release: &Release,
        deadline: Instant,
    ) -> Result<Released, Error> {
        let message = release_request(dependency.id(), release, dependency.units())?;
        let mut client = self.budget.clone();
        let response = call(message, deadline, |request| async move { client.release(request).await }).await?;
        response.try_into().map_err(Error::UnexpectedAnswer)
    }

    pub(crate) async fn extend(
        &self,
        dependency: &Dependency,
        extend: Extend,
        deadline: Instant,
    ) -> Result<ExtendResult, Error> {
        let message = extend_request(dependency.id(), extend)?;
        let mut client = self.budget.clone();
        let response = call(message, deadline, |request| async move { client.extend(request).await }).await?;
        response.try_into().map_err(Error::UnexpectedAnswer)
    }

    pub(crate) async fn report_received(
        &self,
        dependency: &Dependency,
        attempts: u64,
        deadline: Instant,
    ) -> Result<bool, Error> {
        let message = pb::ReportReceivedRequest { dependency: dependency.id().to_string(), attempts };
        let mut client = self.budget.clone();
        let response = call(message, deadline, |request| async move { client.report_received(request).await }).await?;
        Ok(response.counted)
    }

    /// Asks for leases; the inner errors concern one dependency each.
    pub(crate) async fn sync(&self, asks: &[Asked], deadline: Instant) -> Result<Vec<Result<SyncReply, Error>>, Error> {
        let asking: Vec<_> = asks
            .iter()
            .map(|asked| Asking { dependency: asked.dependency.id(), ask: &asked.ask, units: asked.dependency.units() })
            .collect();
        let mut replies = Vec::with_capacity(asks.len());
        let mut names = asks.iter().map(|asked| AskName::of(&asked.ask));
        for message in sync_requests(&asking)? {
            let asked: Vec<_> = names.by_ref().take(message.asks.len()).collect();
            let mut client = self.budget.clone();
            let response = call(message, deadline, |request| async move { client.sync(request).await }).await?;
            for reply in sync_replies(response, &asked).map_err(Error::UnexpectedAnswer)? {
                replies.push(match reply {
                    Ok(reply) => reply.map_err(Error::from_status),
                    Err(invalid) => Err(Error::UnexpectedAnswer(invalid)),
                });
            }
        }
        Ok(replies)
    }

    /// Opens a stream fed by `calls`. The deadline is that of opening; the stream itself has none.
    pub(crate) async fn session(
        &self,
        calls: mpsc::Receiver<SessionCall>,
        deadline: Instant,
    ) -> Result<SessionAnswers, Error> {
        let mut client = self.budget.clone();
        match timeout_at(deadline, client.session(ReceiverStream::new(calls))).await {
            Err(_) => Err(Error::DeadlineExceeded),
            Ok(Err(status)) => Err(Error::from_status(status)),
            Ok(Ok(response)) => Ok(SessionAnswers(response.into_inner())),
        }
    }
}

/// Accepts `http://host:port`, `https://host:port` and `unix:PATH`; anything more, such as credentials in a URL, is refused.
fn judged(endpoint: &str) -> Result<Endpoint, InvalidMessage> {
    // What stands before an '@' may be a password.
    let shown = endpoint.rsplit_once('@').map_or(endpoint, |(_, host)| host);
    let invalid =
        || InvalidMessage::text("endpoint", shown, "must look like http://host:port, https://host:port or unix:PATH");
    if let Some(path) = endpoint.strip_prefix("unix:") {
        if path.trim_start_matches('/').is_empty() || path.contains('\0') {
            return Err(invalid());
        }
        return Endpoint::from_shared(endpoint.to_owned()).map_err(|_| invalid());
    }
    let uri: Uri = endpoint.parse().map_err(|_| invalid())?;
    let plain = matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.port_u16().is_some()
        && uri.host().is_some_and(|host| !host.is_empty())
        && !endpoint.contains('@')
        && uri.path_and_query().is_none_or(|path| path == "/");
    if plain { Ok(uri.into()) } else { Err(invalid()) }
}

/// One call: the deadline goes along as grpc-timeout, and ends the wait on this side whatever budgetd does.
async fn call<M, R, F>(message: M, deadline: Instant, send: impl FnOnce(Request<M>) -> F) -> Result<R, Error>
where
    F: Future<Output = Result<Response<R>, Status>>,
{
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Error::DeadlinePassed);
    }
    let mut request = Request::new(message);
    request.set_timeout(left);
    match timeout_at(deadline, send(request)).await {
        Err(_) => Err(Error::DeadlineExceeded),
        Ok(Err(status)) => Err(Error::from_status(status)),
        Ok(Ok(response)) => Ok(response.into_inner()),
    }
}

/// The deadline of the call bounds the time the caller says is left.
fn timed_reserve(dependency: &Dependency, reserve: &Reserve, deadline: Instant) -> Result<pb::ReserveRequest, Error> {
    let left_ms = whole_ms(deadline.saturating_duration_since(Instant::now()));
    let mut message = reserve_request(dependency.id(), reserve, dependency.units())?;
    message.time_left_ms = Some(message.time_left_ms.map_or(left_ms, |ms| ms.min(left_ms)));
    Ok(message)
}

/// Rounded up: with less than a millisecond left there is still time left.
fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

// === impl Call ===

impl Call<'_> {
    pub(crate) fn request(&self, dependency: &Dependency, deadline: Instant) -> Result<SessionCall, Error> {
        use pb::session_request::Call as Carried;
        let call = match self {
            Self::Reserve(reserve) => Carried::Reserve(timed_reserve(dependency, reserve, deadline)?),
            Self::Release(release) => Carried::Release(release_request(dependency.id(), release, dependency.units())?),
            Self::Extend(extend) => Carried::Extend(extend_request(dependency.id(), *extend)?),
        };
        Ok(SessionCall { correlation_id: 0, call: Some(call) })
    }
}

// === impl SessionAnswers ===

impl SessionAnswers {
    /// The next answer and whose it is; none at the end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<(u64, Result<Reply, Error>)>, Error> {
        let Some(response) = self.0.message().await.map_err(Error::from_status)? else { return Ok(None) };
        let (id, reply) = session_reply(response);
        let reply = match reply {
            Ok(reply) => reply.map_err(Error::from_status),
            Err(invalid) => Err(Error::UnexpectedAnswer(invalid)),
        };
        Ok(Some((id, reply)))
    }
}
