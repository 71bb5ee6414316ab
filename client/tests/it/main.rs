//! The client against a server whose every answer the test chooses.
#![allow(clippy::unwrap_used, reason = "tests")]

mod admin;
mod calls;
mod endpoints;
mod fake;
mod leasing;
mod sessions;

use std::time::Duration;

use budget::{
    decision::{Attempt, Reserve},
    ids::ReservationId,
};
use budget_client::Dependency;

/// Longer than any test takes: reached only if something hangs.
const LONG: Duration = Duration::from_secs(30);
/// For waits that are meant to end without an answer.
const SHORT: Duration = Duration::from_millis(50);

fn payments() -> Dependency {
    Dependency::new("payments").unwrap().with_units(["usd"]).unwrap()
}

fn id(n: u128) -> ReservationId {
    ReservationId(n.to_be_bytes())
}

fn original(n: u128) -> Reserve {
    Reserve::new(id(n), Attempt::ORIGINAL)
}
