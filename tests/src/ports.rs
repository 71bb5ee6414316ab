//! Free TCP ports for processes that must come back on the same address after a crash.
//!
//! They lie below the range that systems give to outgoing connections. From that range, another connection could take
//! the port while its owner is down, or a client that reconnects to it could even connect to itself.

use std::net::{Ipv4Addr, TcpListener};

use crate::rng::Rng;

const FIRST: u64 = 20_000;
const COUNT: u64 = 12_000;
const ATTEMPTS_MAX: u32 = 1_000;

/// A port that nobody listens on now. Another process may take it before the caller does: be ready to ask again.
///
/// # Panics
/// If none is found.
#[must_use]
pub fn pick() -> u16 {
    let mut rng = Rng::fresh();
    for _ in 0..ATTEMPTS_MAX {
        let port = u16::try_from(FIRST + rng.below(COUNT)).unwrap_or(u16::MAX);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}
