//! The dependency's doors: gRPC for callers, HTTP for callers and for the engine that starts it and asks for its counts.

use std::{
    convert::Infallible,
    future::Future,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    Json, Router,
    extract::{Query, State},
    http::{HeaderMap, HeaderValue, StatusCode},
    routing::{get, post},
};
use futures::stream::{self, Stream};
use serde::Deserialize;
use tokio::net::TcpListener;
use tonic::{
    Code, Request, Response, Status,
    body::Body,
    codegen::http,
    metadata::MetadataValue,
    server::{Grpc, NamedService, ServerStreamingService, UnaryService},
    transport::{Server, server::TcpIncoming},
};
use tonic_prost::ProstCodec;

use super::{
    Counts, Dependency, Reply,
    wire::{Ask, CALL, Done, HINT, HTTP_CALL, SERVICE, STREAM},
};
use crate::{Error, scenario::Answer};

/// Between the addresses of gRPC and HTTP, where the process says where it listens.
pub(crate) const ADDRESSES_SEPARATOR: char = ' ';
/// Callers that give up by the thousand must not be cut off for it.
const STREAMS_MAX: u32 = 100_000;

/// Serves until `shutdown` ends. `announce` is told both addresses.
pub(crate) async fn serve(
    dependency: Arc<Dependency>,
    announce: impl FnOnce(&str) -> std::io::Result<()>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (grpc, http) = (TcpListener::bind(loopback).await?, TcpListener::bind(loopback).await?);
    announce(&format!("{}{ADDRESSES_SEPARATOR}{}", grpc.local_addr()?, http.local_addr()?))?;
    let worker = Arc::clone(&dependency);
    tokio::spawn(async move { worker.work().await });
    let router = Router::new()
        .route(HTTP_CALL, post(call))
        .route("/start", post(start))
        .route("/counts", get(counts))
        .route("/received", get(received))
        .with_state(Arc::clone(&dependency));
    tokio::spawn(async move { axum::serve(http, router).await });
    Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_pending_accept_reset_streams(usize::try_from(STREAMS_MAX).ok())
        .add_service(Calls(dependency))
        .serve_with_incoming_shutdown(TcpIncoming::from(grpc).with_nodelay(Some(true)), shutdown)
        .await?;
    Ok(())
}

// === HTTP ===

#[derive(Debug, Deserialize)]
struct Start {
    at_ns: i64,
}

#[derive(Debug, Deserialize)]
struct HttpAsk {
    key: u64,
    cost: u64,
}

async fn start(State(dependency): State<Arc<Dependency>>, Query(start): Query<Start>) {
    dependency.start(start.at_ns);
}

async fn counts(State(dependency): State<Arc<Dependency>>) -> Json<Counts> {
    Json(dependency.counts())
}

async fn received(State(dependency): State<Arc<Dependency>>) -> String {
    dependency.received().to_string()
}

async fn call(
    State(dependency): State<Arc<Dependency>>,
    Query(ask): Query<HttpAsk>,
) -> (StatusCode, HeaderMap, String) {
    let reply = dependency.reply(Ask { key: ask.key, cost: ask.cost, parts: 0 }).await;
    let status = match reply.answer {
        Answer::Result => StatusCode::OK,
        Answer::Unavailable | Answer::Cut => StatusCode::SERVICE_UNAVAILABLE,
        Answer::Throttled => StatusCode::TOO_MANY_REQUESTS,
        Answer::Permanent => StatusCode::BAD_REQUEST,
        Answer::Account => StatusCode::UNAUTHORIZED,
        Answer::Internal | Answer::Hang | Answer::Lost => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut headers = HeaderMap::new();
    if let Some(ms) = reply.hint_ms {
        headers.insert(HINT, HeaderValue::from(ms));
    }
    (status, headers, reply.done.effect.to_string())
}

// === gRPC ===

/// The gRPC service, without generated code: two methods of one message each.
#[derive(Clone)]
struct Calls(Arc<Dependency>);

/// `Call`.
struct Unary(Arc<Dependency>);

/// `Stream`.
struct Streaming(Arc<Dependency>);

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Parts = Pin<Box<dyn Stream<Item = Result<Done, Status>> + Send>>;

fn status_of(reply: &Reply) -> Option<Status> {
    let (code, says) = match reply.answer {
        Answer::Result => return None,
        Answer::Unavailable | Answer::Cut => (Code::Unavailable, "as scripted"),
        Answer::Throttled => (Code::ResourceExhausted, "throttled"),
        Answer::Permanent => (Code::InvalidArgument, "refused"),
        Answer::Account => (Code::Unauthenticated, "no account"),
        Answer::Internal | Answer::Hang | Answer::Lost => (Code::Internal, "broken"),
    };
    let mut status = Status::new(code, says);
    if let Some(ms) = reply.hint_ms {
        status.metadata_mut().insert(HINT, MetadataValue::from(ms));
    }
    Some(status)
}

impl NamedService for Calls {
    const NAME: &'static str = SERVICE;
}

impl tower::Service<http::Request<Body>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Boxed<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let dependency = Arc::clone(&self.0);
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::<Done, Ask>::default());
            Ok(match request.uri().path() {
                CALL => grpc.unary(Unary(dependency), request).await,
                STREAM => grpc.server_streaming(Streaming(dependency), request).await,
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}

impl UnaryService<Ask> for Unary {
    type Response = Done;
    type Future = Boxed<Result<Response<Done>, Status>>;

    fn call(&mut self, request: Request<Ask>) -> Self::Future {
        let dependency = Arc::clone(&self.0);
        Box::pin(async move {
            let reply = dependency.reply(request.into_inner()).await;
            status_of(&reply).map_or_else(|| Ok(Response::new(reply.done)), Err)
        })
    }
}

impl ServerStreamingService<Ask> for Streaming {
    type Response = Done;
    type ResponseStream = Parts;
    type Future = Boxed<Result<Response<Parts>, Status>>;

    fn call(&mut self, request: Request<Ask>) -> Self::Future {
        let dependency = Arc::clone(&self.0);
        Box::pin(async move {
            let ask = request.into_inner();
            let reply = dependency.reply(ask).await;
            let is_cut = reply.answer == Answer::Cut;
            match status_of(&reply).filter(|_| !is_cut) {
                Some(status) => Err(status),
                None => {
                    let whole = ask.parts.max(1);
                    let parts = if is_cut { whole / 2 } else { whole };
                    let end = is_cut.then(|| Err(Status::unavailable("cut")));
                    let parts = (0..parts).map(move |_| Ok(reply.done));
                    let parts: Parts = Box::pin(stream::iter(parts.chain(end)));
                    Ok(Response::new(parts))
                }
            }
        })
    }
}
