//! Just enough of Envoy's `envoy.service.ratelimit.v3.RateLimitService` to ask a peer of budgetd: the messages by their
//! field numbers, what an answer means, and a server that lets everything through.

use std::{
    convert::Infallible,
    future::{self, Ready},
    task::{Context, Poll},
};

use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService, UnaryService},
};
use tonic_prost::ProstCodec;

use crate::wire::{Prepared, Verdict};

pub(crate) const SHOULD_RATE_LIMIT_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// What a peer must have a limit for: this domain, and in it this descriptor key with any value.
pub(crate) const DOMAIN: &str = "bench";
pub(crate) const DESCRIPTOR_KEY: &str = "dependency";

/// `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    /// 0 counts as 1.
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<DescriptorEntry>,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DescriptorEntry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse`; what stands beside the code is skipped.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitResponse {
    #[prost(enumeration = "Code", tag = "1")]
    pub(crate) overall_code: i32,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse.Code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

/// The bare server: as the echo server, it decides nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Echo;

/// Its one answer.
#[derive(Clone, Copy)]
struct Admit;

/// The question whether one call to `dependency` may go out.
pub(crate) fn request(dependency: &str) -> RateLimitRequest {
    let entry = DescriptorEntry { key: DESCRIPTOR_KEY.to_owned(), value: dependency.to_owned() };
    RateLimitRequest {
        domain: DOMAIN.to_owned(),
        descriptors: vec![RateLimitDescriptor { entries: vec![entry] }],
        hits_addend: 1,
    }
}

/// The same, encoded once.
pub(crate) fn prepared(dependency: &str) -> Prepared {
    Prepared::without_id(&request(dependency))
}

impl From<&RateLimitResponse> for Verdict {
    fn from(answer: &RateLimitResponse) -> Self {
        match answer.overall_code() {
            Code::Ok => Self::Admitted,
            Code::OverLimit | Code::Unknown => Self::Refused,
        }
    }
}

// === impl Echo ===

impl NamedService for Echo {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            if request.uri().path() != SHOULD_RATE_LIMIT_PATH {
                return Ok(Status::unimplemented("only ShouldRateLimit is").into_http());
            }
            let codec: ProstCodec<RateLimitResponse, RateLimitRequest> = ProstCodec::default();
            Ok(Grpc::new(codec).unary(Admit, request).await)
        })
    }
}

// === impl Admit ===

impl UnaryService<RateLimitRequest> for Admit {
    type Response = RateLimitResponse;
    type Future = Ready<Result<Response<RateLimitResponse>, Status>>;

    fn call(&mut self, _: Request<RateLimitRequest>) -> Self::Future {
        future::ready(Ok(Response::new(RateLimitResponse { overall_code: Code::Ok.into() })))
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn messages_have_the_field_numbers_of_envoy() {
        // domain = 1, descriptors = 2 { entries = 1 { key = 1, value = 2 } }, hits_addend = 3.
        let bytes = b"\x0a\x05bench\x12\x13\x0a\x11\x0a\x0adependency\x12\x03abc\x18\x01";
        assert_eq!(request("abc").encode_to_vec(), bytes);
    }

    #[test]
    fn an_answer_is_read_past_what_is_not_known() {
        let verdict = |bytes: &[u8]| Verdict::from(&RateLimitResponse::decode(bytes).expect("decodes"));
        // overall_code = 1; statuses = 2, which peers send too.
        assert_eq!(verdict(b"\x08\x01\x12\x02\x08\x01"), Verdict::Admitted);
        assert_eq!(verdict(b"\x08\x02"), Verdict::Refused);
        assert_eq!(verdict(b""), Verdict::Refused);
        assert_eq!(verdict(b"\x08\x63"), Verdict::Refused);
    }
}
