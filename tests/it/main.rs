//! Tests that need more than one crate, in one binary.
#![allow(clippy::unwrap_used, reason = "tests")]

mod cancelled;
mod client_crates;
mod conformance;
mod daemon;
mod deploy;
mod differential;
mod docs;
mod faults;
mod formats;
mod fuzzed;
mod licences;
mod lua;
mod operations;
mod python;
mod received;
mod redis_faults;
mod redis_health;
mod redis_leases;
mod redis_store;
mod redis_world;
mod replicas;
mod scale;
mod security;
mod telemetry;
mod tidy;
mod upgrades;
