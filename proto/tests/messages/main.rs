//! What the conversions accept, what they refuse and how, and that nothing gets lost on the way.
#![allow(clippy::unwrap_used, reason = "tests")]

mod holders;
mod lease_answers;
mod leases;
mod random;
mod requests;
mod responses;
mod round_trips;
mod syncs;

use budget_proto::pb;

/// A Reserve that obeys every rule.
fn reserve() -> pb::ReserveRequest {
    pb::ReserveRequest {
        dependency: "payments".to_owned(),
        reservation_id: vec![7; 16],
        attempt: Some(pb::Attempt { number: 1, cause: None }),
        ..pb::ReserveRequest::default()
    }
}

/// A Release that obeys every rule.
fn release(sent: pb::Sent) -> pb::ReleaseRequest {
    pb::ReleaseRequest {
        dependency: "payments".to_owned(),
        reservation_id: vec![7; 16],
        r#use: Some(pb::release_request::Use::Sent(sent)),
        operation_id: Some("order-1".to_owned()),
    }
}

/// A report that obeys every rule.
fn sent() -> pb::Sent {
    pb::Sent { outcome: pb::Outcome::Success.into(), ..pb::Sent::default() }
}

/// An Extend that obeys every rule.
fn extend() -> pb::ExtendRequest {
    pb::ExtendRequest { dependency: "payments".to_owned(), reservation_id: vec![7; 16], permit_ttl_ms: 1 }
}

fn operation() -> pb::Operation {
    pb::Operation { id: "order-1".to_owned(), fingerprint: vec![1; 16], expires_in_ms: None, parent_id: None }
}

fn cost(unit: &str, amount_micros: u64) -> pb::Cost {
    pb::Cost { unit: unit.to_owned(), amount_micros }
}
