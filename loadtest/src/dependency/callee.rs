//! The dependency as callers see it: one attempt, and what became of it.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::time;
use tonic::{
    Code, Request, Status,
    client::Grpc,
    codegen::http::{self, uri::PathAndQuery},
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::wire::{Ask, CALL, Done, HINT, HTTP_CALL, STREAM};
use crate::{Error, scenario::Protocol};

/// Connections of one caller process over gRPC.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A way to the dependency; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum Callee {
    Grpc(Channel),
    Http { client: Box<HttpClient<HttpConnector, Empty<Bytes>>>, address: String },
}

/// What went wrong with an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// It may have happened.
    Timeout,
    /// It may pass.
    Transient,
    /// Too much was asked of it.
    Throttled,
    /// It will not pass.
    Permanent,
    /// Credentials or quota.
    Account,
    /// A stream ended after partial output.
    Incomplete,
}

/// An attempt that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) problem: Problem,
    /// Not before.
    pub(crate) hint: Option<Duration>,
}

// === impl Callee ===

impl Callee {
    /// Over gRPC, connected now; over HTTP, when it is used.
    pub(crate) async fn connect(protocol: Protocol, grpc: &str, http: &str) -> Result<Self, Error> {
        Ok(match protocol {
            Protocol::Grpc => {
                let endpoint = Endpoint::from_shared(format!("http://{grpc}"))?.connect_timeout(CONNECT_TIMEOUT);
                Self::Grpc(endpoint.connect().await?)
            }
            Protocol::Http => {
                let client = Box::new(HttpClient::builder(TokioExecutor::new()).build_http());
                Self::Http { client, address: http.to_owned() }
            }
        })
    }

    /// One attempt. Work goes on at the dependency if it takes longer than `timeout`.
    pub(crate) async fn call(&self, key: u64, cost: u64, parts: u32, timeout: Duration) -> Result<Done, Failure> {
        let ask = Ask { key, cost, parts };
        let called = async {
            match self {
                Self::Grpc(channel) if parts > 0 => stream(channel.clone(), ask).await,
                Self::Grpc(channel) => unary(channel.clone(), ask).await,
                Self::Http { client, address } => http_call(client, address, ask).await,
            }
        };
        time::timeout(timeout, called).await.unwrap_or(Err(Failure { problem: Problem::Timeout, hint: None }))
    }
}

async fn unary(channel: Channel, ask: Ask) -> Result<Done, Failure> {
    let mut grpc = Grpc::new(channel);
    ready(&mut grpc).await?;
    let path = PathAndQuery::from_static(CALL);
    let answered = grpc.unary(Request::new(ask), path, ProstCodec::<Ask, Done>::default()).await;
    answered.map(tonic::Response::into_inner).map_err(|status| of_status(&status))
}

async fn stream(channel: Channel, ask: Ask) -> Result<Done, Failure> {
    let mut grpc = Grpc::new(channel);
    ready(&mut grpc).await?;
    let path = PathAndQuery::from_static(STREAM);
    let answered = grpc.server_streaming(Request::new(ask), path, ProstCodec::<Ask, Done>::default()).await;
    let mut parts = answered.map_err(|status| of_status(&status))?.into_inner();
    let mut last = None;
    loop {
        match parts.message().await {
            Ok(Some(part)) => last = Some(part),
            Ok(None) => return last.ok_or(Problem::Transient.into()),
            // What came is an incomplete result; before that it is a failed attempt like any other.
            Err(_) if last.is_some() => return Err(Problem::Incomplete.into()),
            Err(status) => return Err(of_status(&status)),
        }
    }
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Failure> {
    grpc.ready().await.map_err(|_| Problem::Transient.into())
}

fn of_status(status: &Status) -> Failure {
    let problem = match status.code() {
        Code::DeadlineExceeded | Code::Cancelled => Problem::Timeout,
        Code::ResourceExhausted => Problem::Throttled,
        Code::Unauthenticated | Code::PermissionDenied => Problem::Account,
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => Problem::Permanent,
        Code::Ok | Code::Unavailable | Code::Unknown | Code::Internal | Code::Aborted | Code::DataLoss => {
            Problem::Transient
        }
    };
    let hint = status.metadata().get(HINT).and_then(|value| value.to_str().ok()).and_then(hint_of);
    Failure { problem, hint }
}

fn hint_of(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_millis)
}

async fn http_call(client: &HttpClient<HttpConnector, Empty<Bytes>>, address: &str, ask: Ask) -> Result<Done, Failure> {
    let uri = format!("http://{address}{HTTP_CALL}?key={}&cost={}", ask.key, ask.cost);
    let request = http::Request::builder().method(Method::POST).uri(uri).body(Empty::new());
    let request = request.map_err(|_| Failure::from(Problem::Permanent))?;
    let response = client.request(request).await.map_err(|_| Failure::from(Problem::Transient))?;
    let problem = match response.status() {
        StatusCode::OK => {
            let body = response.into_body().collect().await.map_err(|_| Failure::from(Problem::Transient))?;
            let effect = std::str::from_utf8(&body.to_bytes()).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
            return Ok(Done { key: ask.key, effect });
        }
        StatusCode::TOO_MANY_REQUESTS => Problem::Throttled,
        StatusCode::UNAUTHORIZED | StatusCode::PAYMENT_REQUIRED | StatusCode::FORBIDDEN => Problem::Account,
        status if status.is_server_error() => Problem::Transient,
        _ => Problem::Permanent,
    };
    let hint = response.headers().get(HINT).and_then(|value| value.to_str().ok()).and_then(hint_of);
    Err(Failure { problem, hint })
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self { problem, hint: None }
    }
}
