//! Unary calls: deadlines, the one re-send, and errors.

use std::time::Duration;

use budget::decision::{Extend, ExtendResult, Outcome, Release, ReleaseResult, Reserve, Use};
use budget_client::{Client, Decision, Error, Reserved, reservation_id};
use budget_proto::pb;
use tokio::net::TcpListener;
use tonic::Code;

use crate::{
    LONG, SHORT,
    fake::{Fake, Next, cutting_proxy},
    id, original, payments,
};

fn permit_ttl_ms(reserved: &Reserved) -> i64 {
    match &reserved.decision {
        Decision::Admitted(admitted) => admitted.permit_ttl_ms,
        Decision::Denied(denied) => panic!("denied: {denied:?}"),
    }
}

#[tokio::test]
async fn reserve_release_and_extend_are_answered() {
    let fake = Fake::new();
    let client = Client::new(&fake.serve().await).unwrap();
    let reserved = client.reserve(&payments(), &original(9), LONG).await.unwrap();
    assert_eq!((permit_ttl_ms(&reserved), reserved.version.number, reserved.version.id), (9, 3, 4));
    let mut release = Release::sent(id(9), Outcome::Success);
    let Use::Sent(sent) = &mut release.used else { panic!("not sent") };
    sent.costs.push(payments().cost("usd", 5).unwrap());
    let released = client.release(&payments(), &release, LONG).await.unwrap();
    assert_eq!(released.result, ReleaseResult::Applied);
    let extended = client.extend(&payments(), Extend { id: id(9), permit_ttl_ms: 77 }, LONG).await.unwrap();
    assert_eq!(extended, ExtendResult::Extended(77));
    assert!(fake.seen().iter().all(|seen| seen.reservation_id == id(9).0));
}

#[tokio::test]
async fn it_connects_when_it_is_used_and_again_when_it_must() {
    // Nobody listens yet; the port is kept by a listener that is closed before the first call.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = Client::new(&format!("http://{address}")).unwrap();
    drop(listener);
    let error = client.reserve(&payments(), &original(1), LONG).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)) && !error.may_have_been_applied(), "{error}");
    let fake = Fake::new();
    fake.serve_on(TcpListener::bind(address).await.unwrap());
    assert!(client.reserve(&payments(), &original(1), LONG).await.is_ok());
}

#[tokio::test]
async fn a24_the_deadline_goes_along_in_both_forms() {
    let fake = Fake::new();
    let client = Client::new(&fake.serve().await).unwrap();
    let within = Duration::from_secs(20);
    for (own, expected) in
        [(None, 10_000..=20_000), (Some(0), 0..=0), (Some(50), 50..=50), (Some(90_000), 10_000..=20_000)]
    {
        let ask = Reserve { time_left_ms: own, ..original(1) };
        client.reserve(&payments(), &ask, within).await.unwrap();
        let seen = fake.seen().pop().unwrap();
        let sent = seen.reserve.unwrap().time_left_ms.unwrap();
        assert!(expected.contains(&sent), "{own:?}: {sent}");
        assert!(seen.grpc_timeout.ends_with('u') || seen.grpc_timeout.ends_with('n'), "{}", seen.grpc_timeout);
    }
    client.release(&payments(), &Release::not_sent(id(1)), within).await.unwrap();
    assert!(!fake.seen().pop().unwrap().grpc_timeout.is_empty());
}

#[tokio::test]
async fn a24_a_silent_server_costs_no_more_than_the_deadline() {
    let fake = Fake::new();
    let client = Client::new(&fake.serve().await).unwrap();
    fake.will([Next::Hang]);
    let error = client.reserve(&payments(), &original(1), SHORT).await.unwrap_err();
    assert!(matches!(error, Error::DeadlineExceeded) && error.may_have_been_applied(), "{error}");
    assert_eq!(fake.seen().len(), 1, "a late answer is not lost: no second ask");
    let error = client.reserve(&payments(), &original(1), Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, Error::DeadlinePassed) && !error.may_have_been_applied(), "{error}");
    assert!(fake.seen().is_empty());
    // A deadline beyond all time is one, too.
    assert!(client.reserve(&payments(), &original(1), Duration::MAX).await.is_ok());
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_once_more_under_the_same_id() {
    let fake = Fake::new();
    let client = Client::new(&fake.serve().await).unwrap();
    fake.will([Next::Fail(Code::Unavailable)]);
    assert!(client.reserve(&payments(), &original(5), LONG).await.is_ok());
    let seen = fake.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|seen| seen.reservation_id == id(5).0));

    fake.will([Next::Fail(Code::Unavailable), Next::Fail(Code::Unavailable)]);
    let error = client.reserve(&payments(), &original(6), LONG).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert_eq!(fake.seen().len(), 2, "once, not more");
}

#[tokio::test]
async fn a_broken_connection_is_a_lost_answer() {
    let fake = Fake::new();
    let client = Client::new(&cutting_proxy(&fake, 1).await).unwrap();
    fake.will([Next::Hang]);
    assert!(client.reserve(&payments(), &original(5), LONG).await.is_ok());
    let seen = fake.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|seen| seen.reservation_id == id(5).0));
}

#[tokio::test]
async fn nothing_else_is_sent_again() {
    let fake = Fake::new();
    let client = Client::new(&fake.serve().await).unwrap();
    for code in (1..=16).map(Code::from_i32).filter(|code| *code != Code::Unavailable) {
        fake.will([Next::Fail(code)]);
        let error = client.reserve(&payments(), &original(1), LONG).await.unwrap_err();
        assert_eq!(fake.seen().len(), 1, "{code:?}: {error}");
    }
    // Without a record a second ask would be charged a second time.
    fake.will([Next::Fail(Code::Unavailable)]);
    let ask = Reserve { no_release: true, ..original(1) };
    assert!(client.reserve(&payments(), &ask, LONG).await.is_err());
    assert_eq!(fake.seen().len(), 1);
    fake.will([Next::Fail(Code::Unavailable)]);
    assert!(client.release(&payments(), &Release::not_sent(id(1)), LONG).await.is_err());
    assert_eq!(fake.seen().len(), 1);
    fake.will([Next::Fail(Code::Unavailable)]);
    assert!(client.extend(&payments(), Extend { id: id(1), permit_ttl_ms: 1 }, LONG).await.is_err());
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn a_release_over_a_broken_connection_has_an_unknown_outcome() {
    let fake = Fake::new();
    let client = Client::new(&cutting_proxy(&fake, 1).await).unwrap();
    fake.will([Next::Hang]);
    let error = client.release(&payments(), &Release::not_sent(id(1)), LONG).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)) && error.may_have_been_applied(), "{error}");
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn every_status_has_its_error() {
    let fake = Fake::new();
    let client = Client::new(&fake.serve().await).unwrap();
    type Expected = fn(&Error) -> bool;
    let table: [(Code, Expected); 8] = [
        (Code::InvalidArgument, |e| matches!(e, Error::InvalidArgument(text) if text == "as told")),
        (Code::NotFound, |e| matches!(e, Error::NotFound(_))),
        (Code::Aborted, |e| matches!(e, Error::Conflict(_))),
        (Code::ResourceExhausted, |e| matches!(e, Error::Overloaded(_))),
        (Code::Unauthenticated, |e| matches!(e, Error::Unauthenticated(_))),
        (Code::PermissionDenied, |e| matches!(e, Error::PermissionDenied(_))),
        (Code::DeadlineExceeded, |e| matches!(e, Error::DeadlineExceeded)),
        (Code::Internal, |e| matches!(e, Error::Failed { code: Code::Internal, .. })),
    ];
    for (code, expected) in table {
        fake.will([Next::Fail(code)]);
        let error = client.reserve(&payments(), &original(1), LONG).await.unwrap_err();
        assert!(expected(&error), "{code:?}: {error:?}");
    }
}

#[tokio::test]
async fn nonsense_is_refused_on_both_sides() {
    let fake = Fake::new();
    let client = Client::new(&fake.serve().await).unwrap();
    fake.will([Next::Nonsense; 3]);
    let unexpected = |error: Error| assert!(matches!(error, Error::UnexpectedAnswer(_)), "{error}");
    unexpected(client.reserve(&payments(), &original(1), LONG).await.unwrap_err());
    unexpected(client.release(&payments(), &Release::not_sent(id(1)), LONG).await.unwrap_err());
    unexpected(client.extend(&payments(), Extend { id: id(1), permit_ttl_ms: 1 }, LONG).await.unwrap_err());
    assert_eq!(fake.seen().len(), 3, "an answer that makes no sense is an answer");

    let unnamed = budget_client::Dependency::new("payments").unwrap();
    let ask = Reserve { costs: vec![payments().cost("usd", 1).unwrap()], ..original(1) };
    let error = client.reserve(&unnamed, &ask, LONG).await.unwrap_err();
    assert!(matches!(&error, Error::Unsendable(invalid) if invalid.field() == "costs.unit"), "{error}");
    let error = client.extend(&payments(), Extend { id: id(1), permit_ttl_ms: -1 }, LONG).await.unwrap_err();
    assert!(matches!(&error, Error::Unsendable(invalid) if invalid.field() == "permit_ttl_ms"), "{error}");
    assert!(fake.seen().is_empty());
}

#[test]
fn reservation_ids_differ() {
    let ids: std::collections::HashSet<_> = (0..1000).map(|_| reservation_id().unwrap()).collect();
    assert_eq!(ids.len(), 1000);
    // As the server wants them.
    let request = pb::ExtendRequest {
        dependency: "a".to_owned(),
        reservation_id: reservation_id().unwrap().0.to_vec(),
        permit_ttl_ms: 1,
    };
    assert!(budget_proto::convert::Received::try_from(request).is_ok());
}
