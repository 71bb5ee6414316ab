//! Sessions: many calls at once, in any order, bounded, and what a broken stream means.

use std::time::Duration;

use budget::decision::{Extend, ExtendResult, Outcome, Release, ReleaseResult, Reserve};
use budget_client::{Client, Decision, Dependency, Error, Options, Session};
use budget_proto::pb;
use tokio::task::JoinSet;

use crate::{
    LONG, SHORT,
    fake::{Fake, Manner, session_calls},
    id, original, payments,
};

async fn session(fake: &Fake, manner: Manner, outstanding_max: usize) -> Session {
    fake.session_will(manner);
    let options = Options { session_outstanding_max: outstanding_max, ..Options::default() };
    let client = Client::with_options(&fake.serve().await, &options).unwrap();
    client.session(LONG).await.unwrap()
}

/// Asks with the number as id and expects it back.
async fn ask(session: Session, n: u8) -> Result<(), Error> {
    let reserved = session.reserve(&payments(), &original(n.into()), LONG).await?;
    let Decision::Admitted(admitted) = reserved.decision else { panic!("{reserved:?}") };
    assert_eq!(admitted.permit_ttl_ms, i64::from(n), "another call's answer");
    Ok(())
}

#[tokio::test]
async fn all_three_calls_are_carried() {
    let fake = Fake::new();
    let session = session(&fake, Manner::Answer, 4).await;
    ask(session.clone(), 9).await.unwrap();
    let released = session.release(&payments(), &Release::sent(id(9), Outcome::Success), LONG).await.unwrap();
    assert_eq!(released.result, ReleaseResult::Applied);
    let extended = session.extend(&payments(), Extend { id: id(9), permit_ttl_ms: 77 }, LONG).await.unwrap();
    assert_eq!(extended, ExtendResult::Extended(77));
    assert_eq!(session.ended(), None);
}

#[tokio::test]
async fn answers_find_their_calls_in_any_order() {
    let fake = Fake::new();
    let session = session(&fake, Manner::Reverse(8), 8).await;
    let mut asks = JoinSet::new();
    (0..200).for_each(|n| drop(asks.spawn(ask(session.clone(), n))));
    while let Some(asked) = asks.join_next().await {
        asked.unwrap().unwrap();
    }
    assert_eq!(fake.0.session_calls.lock().unwrap().len(), 200);
}

#[tokio::test]
async fn unanswered_calls_are_bounded() {
    let fake = Fake::new();
    let session = session(&fake, Manner::Reverse(usize::MAX), 3).await;
    let mut asks = JoinSet::new();
    (0..3).for_each(|n| drop(asks.spawn(ask(session.clone(), n))));
    session_calls(&fake, 3).await;
    let error = session.reserve(&payments(), &original(9), SHORT).await.unwrap_err();
    assert!(matches!(error, Error::DeadlinePassed) && !error.may_have_been_applied(), "{error}");
    // Callers that gave up free no slot: their calls are unanswered still.
    asks.shutdown().await;
    let error = session.reserve(&payments(), &original(9), SHORT).await.unwrap_err();
    assert!(matches!(error, Error::DeadlinePassed), "{error}");
    assert_eq!(fake.0.session_calls.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn a_sent_call_without_answer_ends_at_its_deadline() {
    let fake = Fake::new();
    let session = session(&fake, Manner::Reverse(usize::MAX), 3).await;
    let error = session.reserve(&payments(), &original(9), SHORT).await.unwrap_err();
    assert!(matches!(error, Error::DeadlineExceeded) && error.may_have_been_applied(), "{error}");
}

#[tokio::test]
async fn cancelled_calls_shift_no_answers() {
    let fake = Fake::new();
    let session = session(&fake, Manner::Reverse(4), 4).await;
    let mut asks: Vec<_> = (0..3).map(|n| tokio::spawn(ask(session.clone(), n))).collect();
    session_calls(&fake, 3).await;
    asks[1].abort();
    assert!((&mut asks[1]).await.unwrap_err().is_cancelled());
    ask(session.clone(), 3).await.unwrap();
    for (n, asked) in asks.into_iter().enumerate() {
        if n != 1 {
            asked.await.unwrap().unwrap();
        }
    }
    // The slot of the cancelled one came back with its answer.
    let mut asks = JoinSet::new();
    (4..8).for_each(|n| drop(asks.spawn(ask(session.clone(), n))));
    while let Some(asked) = asks.join_next().await {
        asked.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_broken_stream_leaves_every_unanswered_outcome_unknown() {
    for manner in [Manner::BreakAfter(5), Manner::EndAfter(5)] {
        let fake = Fake::new();
        let session = session(&fake, manner, 5).await;
        let mut asks = JoinSet::new();
        // Five are sent, two wait for a slot.
        (0..7).for_each(|n| drop(asks.spawn(ask(session.clone(), n))));
        let (mut unknown, mut not_sent) = (0, 0);
        while let Some(asked) = asks.join_next().await {
            let error = asked.unwrap().unwrap_err();
            unknown += usize::from(matches!(error, Error::OutcomeUnknown(_)));
            not_sent += usize::from(matches!(error, Error::SessionEnded(_)));
        }
        assert_eq!((unknown, not_sent), (5, 2), "{manner:?}");
        let error = session.reserve(&payments(), &original(9), LONG).await.unwrap_err();
        assert!(matches!(error, Error::SessionEnded(_)) && !error.may_have_been_applied(), "{error}");
        assert!(session.ended().is_some());
    }
}

#[tokio::test]
async fn one_failed_call_does_not_end_the_others() {
    let fake = Fake::new();
    let session = session(&fake, Manner::Answer, 4).await;
    let on = |name: &str| Dependency::new(name).unwrap();
    let error = session.reserve(&on("fails"), &original(1), LONG).await.unwrap_err();
    assert!(matches!(&error, Error::NotFound(text) if text == "as told"), "{error}");
    let error = session.reserve(&on("nonsense"), &original(1), LONG).await.unwrap_err();
    assert!(matches!(&error, Error::UnexpectedAnswer(_)), "{error}");
    let unnamed = Reserve { costs: vec![payments().cost("usd", 1).unwrap()], ..original(1) };
    let error = session.reserve(&on("payments"), &unnamed, LONG).await.unwrap_err();
    assert!(matches!(&error, Error::Unsendable(_)), "{error}");
    // More than there are slots: none of the failed calls kept one.
    for n in 0..9 {
        ask(session.clone(), n).await.unwrap();
    }
}

#[tokio::test]
async fn an_answer_of_another_kind_is_refused() {
    let fake = Fake::new();
    let session = session(&fake, Manner::Mismatch, 4).await;
    let error = session.reserve(&payments(), &original(1), LONG).await.unwrap_err();
    assert_eq!(error.to_string(), "unexpected answer: answer is release: must answer a reserve");
}

#[tokio::test]
async fn a24_the_deadline_of_each_call_goes_along() {
    let fake = Fake::new();
    let session = session(&fake, Manner::Answer, 4).await;
    for (own, expected) in [(None, 10_000..=20_000), (Some(0), 0..=0), (Some(50), 50..=50)] {
        let ask = Reserve { time_left_ms: own, ..original(1) };
        session.reserve(&payments(), &ask, Duration::from_secs(20)).await.unwrap();
        let call = fake.0.session_calls.lock().unwrap().pop().unwrap().call;
        let Some(pb::session_request::Call::Reserve(reserve)) = call else { panic!("{call:?}") };
        assert!(expected.contains(&reserve.time_left_ms.unwrap()), "{own:?}: {:?}", reserve.time_left_ms);
    }
    let error = session.reserve(&payments(), &original(1), Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, Error::DeadlinePassed), "{error}");
    assert!(fake.0.session_calls.lock().unwrap().is_empty(), "a call without time is not sent");
}

#[tokio::test]
async fn the_last_clone_ends_the_stream() {
    let fake = Fake::new();
    let session = session(&fake, Manner::Answer, 4).await;
    let clone = session.clone();
    ask(session, 1).await.unwrap();
    ask(clone.clone(), 2).await.unwrap();
    drop(clone);
    tokio::time::timeout(LONG, fake.0.session_ended.notified()).await.unwrap();
}

#[tokio::test]
async fn a_session_to_nobody_is_not_opened() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = Client::new(&format!("http://{address}")).unwrap();
    assert!(matches!(client.session(LONG).await, Err(Error::Unreachable(_))));
}
