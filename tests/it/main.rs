//! Tests that need more than one crate, in one binary.
#![allow(clippy::unwrap_used, reason = "tests")]

mod daemon;
mod licences;
mod python;
mod tidy;
