//! The closed loop over Session streams: the same callers, each with one call unanswered, share one stream per
//! connection.

use std::time::Instant;

use budgetd::clock::Clock;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel};

use budget_proto::pb;

use crate::{
    driver::{Dependencies, Tally, pick},
    wire::{Ids, Prepared, PreparedCodec, PreparedPair, SESSION_PATH, Verdict},
};

/// A caller: its calls, what it waits for.
struct Caller {
    pair: PreparedPair,
    id: [u8; 16],
    sent_at: Instant,
    waits_for: Waits,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    Reserve,
    Release,
    Nothing,
}

/// Drives one stream until `end`, then waits for the unanswered calls and closes it.
pub(crate) async fn drive(
    channel: Channel,
    callers: usize,
    dependencies: &Dependencies,
    mut ids: Ids,
    end: Instant,
) -> Result<Tally, Status> {
    let mut tally = Tally::default();
    if callers == 0 {
        return Ok(tally);
    }
    // One call per caller is unanswered at most, so the queue never fills.
    let (calls, queue) = mpsc::channel(callers);
    let mut crew: Vec<Caller> = (0..callers)
        .map(|index| {
            let name = &dependencies.names[pick(ids.bits(), dependencies.names.len())];
            Caller {
                // Correlation ids are positions, from 1.
                pair: PreparedPair::session(name, index as u64 + 1),
                id: [0; 16],
                sent_at: Clock::instant(),
                waits_for: Waits::Nothing,
            }
        })
        .collect();
    for caller in &mut crew {
        caller.ask(ids.id(), &calls)?;
    }

    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| Status::unavailable(format!("connection lost: {error}")))?;
    let path = PathAndQuery::from_static(SESSION_PATH);
    let request = Request::new(ReceiverStream::new(queue));
    let mut answers = grpc.streaming(request, path, PreparedCodec::stream()).await?.into_inner();

    let mut unanswered = callers;
    while unanswered > 0 {
        let answer: pb::SessionResponse =
            answers.message().await?.ok_or_else(|| Status::aborted("the stream ended with calls unanswered"))?;
        let index = usize::try_from(answer.correlation_id).ok().and_then(|id| id.checked_sub(1));
        let caller = index
            .and_then(|index| crew.get_mut(index))
            .ok_or_else(|| Status::internal(format!("answer to no call: correlation_id {}", answer.correlation_id)))?;
        let verdict = tally.judge(failure(&answer).map_or(Ok(answer), Err));
        let now = match caller.waits_for {
            Waits::Reserve => tally.note_ask(verdict, caller.sent_at),
            Waits::Release => tally.note_release(verdict, caller.sent_at),
            Waits::Nothing => return Err(Status::internal("a call was answered twice")),
        };
        if caller.waits_for == Waits::Reserve && verdict == Verdict::Admitted {
            caller.hand_back(now, &calls)?;
        } else if now < end {
            caller.ask(ids.id(), &calls)?;
        } else {
            caller.waits_for = Waits::Nothing;
            unanswered -= 1;
        }
    }
    drop(calls);
    match answers.message().await? {
        None => Ok(tally),
        Some(_) => Err(Status::internal("an answer came after the last call was answered")),
    }
}

/// That of one call, not of the stream.
fn failure(answer: &pb::SessionResponse) -> Option<Status> {
    match &answer.answer {
        Some(pb::session_response::Answer::Failure(failure)) => {
            Some(Status::new(Code::from_i32(failure.code), failure.message.clone()))
        }
        Some(
            pb::session_response::Answer::Reserve(_)
            | pb::session_response::Answer::Release(_)
            | pb::session_response::Answer::Extend(_),
        )
        | None => None,
    }
}

// === impl Caller ===

impl Caller {
    fn ask(&mut self, id: [u8; 16], calls: &mpsc::Sender<Prepared>) -> Result<(), Status> {
        self.id = id;
        self.waits_for = Waits::Reserve;
        self.sent_at = Clock::instant();
        send(calls, self.pair.reserve.with_id(id))
    }

    fn hand_back(&mut self, now: Instant, calls: &mpsc::Sender<Prepared>) -> Result<(), Status> {
        self.waits_for = Waits::Release;
        self.sent_at = now;
        send(calls, self.pair.release.with_id(self.id))
    }
}

fn send(calls: &mpsc::Sender<Prepared>, call: Prepared) -> Result<(), Status> {
    calls.try_send(call).map_err(|error| Status::internal(format!("the stream takes no calls: {error}")))
}
