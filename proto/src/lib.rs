//! The gRPC interface `retrybudget.v1`: generated code, and in [`convert`] the one place where it meets the types of
//! the `budget` crate.

pub mod convert;
mod invalid;
mod names;

pub use invalid::InvalidMessage;
pub use names::UnitNames;

/// Generated from `proto/retrybudget/v1/*.proto`; documented there.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "generated"
)]
pub mod pb {
    tonic::include_proto!("retrybudget.v1");

    /// The encoded `FileDescriptorSet`, for server reflection and for the compatibility test.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/retrybudget.v1.bin"));
}
