//! The messages of a session: the same calls and answers, tied together by a correlation id.

use budget::decision::ExtendResult;
use tonic::{Code, Status};

use super::{Received, Released, Reserved};
use crate::{InvalidMessage, pb};

/// The answer to one call of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To a Reserve.
    Reserved(Reserved),
    /// To a Release.
    Released(Released),
    /// To an Extend.
    Extended(ExtendResult),
}

/// A call as the server receives it: its correlation id, and the call if it obeys the rules.
pub fn session_call(request: pb::SessionRequest) -> (u64, Result<Received, InvalidMessage>) {
    use pb::session_request::Call;
    let received = match request.call {
        Some(Call::Reserve(reserve)) => reserve.try_into(),
        Some(Call::Release(release)) => release.try_into(),
        Some(Call::Extend(extend)) => extend.try_into(),
        None => Err(InvalidMessage::absent("call", "must be one of reserve, release, extend")),
    };
    (request.correlation_id, received)
}

/// An answer as the server sends it; a call that failed does not end the stream.
#[must_use]
pub fn session_response(
    correlation_id: u64,
    answer: Result<pb::session_response::Answer, Status>,
) -> pb::SessionResponse {
    let answer = answer.unwrap_or_else(|status| {
        let failure = pb::Failure { code: status.code().into(), message: status.message().to_owned() };
        pb::session_response::Answer::Failure(failure)
    });
    pb::SessionResponse { correlation_id, answer: Some(answer) }
}

/// An answer as the client receives it: its correlation id, and the reply or the status of a call that failed.
///
/// The outer error is an answer that breaks the rules.
pub fn session_reply(response: pb::SessionResponse) -> (u64, Result<Result<Reply, Status>, InvalidMessage>) {
    use pb::session_response::Answer;
    let reply = match response.answer {
        Some(Answer::Reserve(reserved)) => reserved.try_into().map(Reply::Reserved).map(Ok),
        Some(Answer::Release(released)) => released.try_into().map(Reply::Released).map(Ok),
        Some(Answer::Extend(extended)) => extended.try_into().map(Reply::Extended).map(Ok),
        Some(Answer::Failure(pb::Failure { code, .. })) if Code::from_i32(code) == Code::Ok => {
            Err(InvalidMessage::number("failure.code", code, "must be a status other than OK"))
        }
        Some(Answer::Failure(pb::Failure { code, message })) => Ok(Err(Status::new(Code::from_i32(code), message))),
        None => Err(InvalidMessage::absent("answer", "must be one of reserve, release, extend, failure")),
    };
    (response.correlation_id, reply)
}
