//! The gRPC interface `retrybudget.v1`: generated code, and in [`convert`] the one place where it meets the types of
//! the `budget` crate.

/// Generated from `proto/retrybudget/v1/*.proto`; documented there.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used, reason = "generated")]
pub mod pb {
    tonic::include_proto!("retrybudget.v1");

    /// The encoded `FileDescriptorSet`, for server reflection and for the compatibility test.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/retrybudget.v1.bin"));
}
