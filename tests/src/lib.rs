//! What the tests share: private Redis servers, real daemons, proxies that misbehave on request, seeded randomness.
//!
//! Everything here panics when it cannot do its work: a test that cannot run has failed, it is never skipped. Ports are
//! free ones, waits are bounded, and what was started is killed when its owner is dropped.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests"))]

use std::path::{Path, PathBuf};

pub mod certificates;
pub mod collector;
pub mod daemon;
pub mod eventually;
pub mod frozen;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod redis_server;
pub mod released;
pub mod rng;
pub mod security;
pub mod vectors;

/// The root of the repository.
#[must_use]
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or_else(|| here.to_owned(), Path::to_owned)
}
