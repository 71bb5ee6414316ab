//! The meaning of a retry budget, pure: every method takes `now`, nothing reads a clock or does I/O.
//!
//! | unit | written | type |
//! |---|---|---|
//! | micro-token | `_micros` | `i64`, negative only for debt |
//! | millisecond | `_ms` | `i64` |
//! | part per million | `_ppm` | `i64` |
//!
//! Invariants, asserted by the tests of every store:
//! - a balance lies between its debt limit and its burst;
//! - a refusal changes nothing but counters and refill;
//! - time never moves a ledger back;
//! - what a release gives back never lifts a balance above its burst.
#![deny(
    clippy::float_arithmetic,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    missing_docs
)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        clippy::indexing_slicing,
        clippy::unwrap_used,
        reason = "tests"
    )
)]

pub mod bound;
pub mod bucket;
pub mod decision;
pub mod fallback;
pub mod guard;
pub mod holder;
pub mod ids;
pub mod lease;
pub mod ledger;
mod lending;
mod operation;
pub mod policy;
pub mod units;
