//! How callers speak to the fake dependency: one message each way, over gRPC or HTTP/1.1. There is no budgetd in it.

use prost::Message;

/// Of the gRPC service.
pub(crate) const SERVICE: &str = "loadtest.Dependency";
/// One answer.
pub(crate) const CALL: &str = "/loadtest.Dependency/Call";
/// A stream of parts.
pub(crate) const STREAM: &str = "/loadtest.Dependency/Stream";
/// The same over HTTP.
pub(crate) const HTTP_CALL: &str = "/call";
/// Metadata or header with the time to wait, milliseconds.
pub(crate) const HINT: &str = "retry-after-ms";

/// An attempt.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Ask {
    /// The operation.
    #[prost(fixed64, tag = "1")]
    pub(crate) key: u64,
    /// Whole tokens of the cost unit that it will really cost.
    #[prost(uint64, tag = "2")]
    pub(crate) cost: u64,
    /// Parts of a stream.
    #[prost(uint32, tag = "3")]
    pub(crate) parts: u32,
}

/// Its result, or a part of it.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Done {
    /// The operation.
    #[prost(fixed64, tag = "1")]
    pub(crate) key: u64,
    /// The number of this side effect among those of its operation.
    #[prost(uint64, tag = "2")]
    pub(crate) effect: u64,
}
