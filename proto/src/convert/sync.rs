//! Sync: what a holder tells and asks about its dependencies, and the answers, in both directions.

use std::collections::HashSet;

use budget::{
    ids::DependencyId,
    lease::{HolderId, Incarnation, InvalidSync, NotLeased, Rules, SYNC_BATCH_MAX, SyncAnswer, SyncAsk},
    policy::{CURVE_MS_MAX, IN_FLIGHT_MAX},
    units::EXACT_MAX,
};
use prost::Message;
use tonic::{Code, Status};

use super::{dependency, holders, lease, not_negative, optional, rules, within};
use crate::{InvalidMessage, UnitNames, pb};

/// Largest weight of a holder.
const WEIGHT_MAX: i64 = 1_000;
/// Longest time a holder is told to wait.
const WAIT_MS_MAX: i64 = CURVE_MS_MAX;
/// Bytes of asks in one message; what is said of the holder itself fits the rest of 1 MiB.
const ASK_BYTES_MAX: usize = 1_000_000;

/// What is said of one dependency, before it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// Which.
    pub dependency: &'a DependencyId,
    /// What is told and asked.
    pub ask: &'a SyncAsk,
    /// Names of all its units.
    pub units: &'a UnitNames,
}

/// The answer about one dependency, as the coordinator sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncAnswered {
    /// What the ledger says.
    pub answer: SyncAnswer,
    /// What the holder has to know of the policy.
    pub rules: Rules,
}

/// Ties an answer to the ask that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AskName {
    /// Of the ask.
    pub sequence: i64,
    /// Of the ask.
    pub nonce: i64,
}

/// The answer about one dependency, as a holder receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncReply {
    /// What the ledger says.
    pub answer: SyncAnswer,
    /// What to know of the policy.
    pub rules: Rules,
    /// Names of the units that answer and rules speak of.
    pub units: UnitNames,
}

// === impl AskName ===

impl AskName {
    /// Of this ask.
    #[must_use]
    pub const fn of(ask: &SyncAsk) -> Self {
        Self { sequence: ask.sequence, nonce: ask.nonce }
    }
}

// Inward: what the coordinator receives.

/// Judges a whole message. What the policies say of a dependency is not judged here.
///
/// # Errors
/// The first field that breaks its rule; then none of the asks is taken.
pub fn sync_asks(request: pb::SyncRequest) -> Result<Vec<(DependencyId, SyncAsk)>, InvalidMessage> {
    let pb::SyncRequest { holder_id, incarnation, weight, asks } = request;
    let holder = holders::holder_id("holder_id", &holder_id)?;
    let incarnation = holders::incarnation("incarnation", &incarnation)?;
    let weight = within("weight", weight.unwrap_or(1).into(), 1, WEIGHT_MAX)?;
    if !(1..=SYNC_BATCH_MAX).contains(&asks.len()) {
        let rule = format!("must be between 1 and {SYNC_BATCH_MAX} dependencies");
        return Err(InvalidMessage::number("asks", format!("{} dependencies", asks.len()), rule));
    }
    let mut named = HashSet::with_capacity(asks.len());
    let mut judged = Vec::with_capacity(asks.len());
    for ask in asks {
        let dependency = dependency("asks.dependency", &ask.dependency)?;
        lease::once("asks.dependency", &ask.dependency, !named.insert(dependency.clone()))?;
        judged.push((dependency, sync_ask(ask, holder.clone(), incarnation, weight)?));
    }
    Ok(judged)
}

fn sync_ask(
    ask: pb::SyncAsk,
    holder: HolderId,
    incarnation: Incarnation,
    weight: i64,
) -> Result<SyncAsk, InvalidMessage> {
    let sequence = within("asks.sequence", ask.sequence, 1, EXACT_MAX)?;
    let nonce = within("asks.nonce", ask.nonce, 0, lease::RANDOM_MAX)?;
    let epoch = lease::optional_epoch(&lease::ASK_EPOCH, ask.epoch)?;
    let presented = optional(ask.lease, |presented| lease::presented(presented, epoch))?;
    let mut names = UnitNames::default();
    let usage = lease::usage(&lease::USAGE, ask.usage, &mut names)?;
    let counted = lease::usage(&lease::COUNTED, ask.counted, &mut names)?;
    lease::judge_counted(&counted, &usage)?;
    let in_flight = within("asks.in_flight", ask.in_flight, 0, IN_FLIGHT_MAX.into())?;
    let leave = ask.leave;
    Ok(SyncAsk {
        holder,
        incarnation,
        sequence,
        nonce,
        epoch,
        lease: presented,
        usage,
        counted,
        in_flight,
        weight,
        leave,
    })
}

// Outward: what the coordinator sends.

/// One answer as it is sent. `names` are those of the units of the policy; a unit without one is left out.
#[must_use]
pub fn sync_answer(name: AskName, answered: Result<SyncAnswered, Status>, names: &UnitNames) -> pb::SyncAnswer {
    use pb::sync_answer::Answer;
    let (answer, rules) = match answered {
        Ok(SyncAnswered { answer, rules }) => (answer_message(&answer, names), Some(rules)),
        Err(status) => {
            let failure = pb::Failure { code: status.code().into(), message: status.message().to_owned() };
            (Answer::Failure(failure), None)
        }
    };
    pb::SyncAnswer {
        sequence: super::unsigned(name.sequence),
        nonce: super::unsigned(name.nonce),
        answer: Some(answer),
        rules: rules.map(|rules| rules::rules_message(&rules, names)),
    }
}

fn answer_message(answer: &SyncAnswer, names: &UnitNames) -> pb::sync_answer::Answer {
    use pb::sync_answer::Answer;
    match answer {
        SyncAnswer::Granted(grant) => Answer::Granted(lease::grant_message(grant, names)),
        SyncAnswer::Epoch(epoch) => Answer::OtherEpoch((*epoch).into()),
        SyncAnswer::Wait(ms) => Answer::WaitMs(super::unsigned((*ms).clamp(1, WAIT_MS_MAX))),
        SyncAnswer::Dead => Answer::Dead(pb::SyncDead {}),
        SyncAnswer::Fenced => Answer::Fenced(pb::SyncFenced {}),
        SyncAnswer::NotLeased(why) => Answer::NotLeased(
            match why {
                NotLeased::NotPermitted => pb::NotLeased::NotPermitted,
                NotLeased::TooManyHolders => pb::NotLeased::TooManyHolders,
            }
            .into(),
        ),
        SyncAnswer::Invalid(why) => Answer::Invalid(
            match why {
                InvalidSync::UsageBackwards => pb::InvalidSync::UsageBackwards,
                InvalidSync::UnknownGeneration => pb::InvalidSync::UnknownGeneration,
            }
            .into(),
        ),
        SyncAnswer::Left => Answer::Left(pb::SyncLeft {}),
    }
}

// Outward: what a holder sends.

/// All asks of one holder, in as few messages as their bounds allow, in order. Its name, incarnation and weight are those
/// of the first ask.
///
/// # Errors
/// If an ask is another holder's, a unit has no name, or a number is negative.
pub fn sync_requests(asks: &[Asking<'_>]) -> Result<Vec<pb::SyncRequest>, InvalidMessage> {
    let Some(first) = asks.first().map(|asking| asking.ask) else { return Ok(Vec::new()) };
    let weight = u32::try_from(first.weight)
        .map_err(|_| InvalidMessage::number("weight", first.weight, format!("must be between 1 and {WEIGHT_MAX}")))?;
    let empty = || pb::SyncRequest {
        holder_id: first.holder.as_str().to_owned(),
        incarnation: first.incarnation.0.to_vec(),
        weight: Some(weight),
        asks: Vec::new(),
    };
    let mut requests = Vec::new();
    let (mut filling, mut bytes) = (empty(), 0);
    for asking in asks {
        let theirs = (&asking.ask.holder, asking.ask.incarnation, asking.ask.weight);
        if theirs != (&first.holder, first.incarnation, first.weight) {
            let rule = "must be that of all asks of one message";
            return Err(InvalidMessage::text("holder_id", asking.ask.holder.as_str(), rule));
        }
        let ask = ask_message(asking)?;
        let size = ask.encoded_len() + ASK_OVERHEAD_BYTES;
        if filling.asks.len() >= SYNC_BATCH_MAX || (bytes + size > ASK_BYTES_MAX && !filling.asks.is_empty()) {
            requests.push(std::mem::replace(&mut filling, empty()));
            bytes = 0;
        }
        bytes += size;
        filling.asks.push(ask);
    }
    requests.push(filling);
    Ok(requests)
}

/// Key and length of one ask in its message.
const ASK_OVERHEAD_BYTES: usize = 5;

fn ask_message(Asking { dependency, ask, units }: &Asking<'_>) -> Result<pb::SyncAsk, InvalidMessage> {
    Ok(pb::SyncAsk {
        dependency: dependency.as_str().to_owned(),
        sequence: not_negative("asks.sequence", ask.sequence)?,
        nonce: not_negative("asks.nonce", ask.nonce)?,
        epoch: lease::epoch_message(&lease::ASK_EPOCH, ask.epoch)?,
        lease: ask.lease.as_ref().map(|presented| lease::presented_message(presented, units)).transpose()?,
        usage: lease::usage_message(&lease::USAGE, &ask.usage, units)?,
        counted: lease::usage_message(&lease::COUNTED, &ask.counted, units)?,
        in_flight: not_negative("asks.in_flight", ask.in_flight)?,
        leave: ask.leave,
    })
}

// Inward: what a holder receives.

/// The answers in the order of the asks. The inner error is the status of an ask that failed alone; the one around it an
/// answer that breaks the rules, which says nothing about the others.
///
/// # Errors
/// If there are not as many answers as there were asks.
#[expect(clippy::type_complexity, reason = "two kinds of failure, as with a session")]
pub fn sync_replies(
    response: pb::SyncResponse,
    asked: &[AskName],
) -> Result<Vec<Result<Result<SyncReply, Status>, InvalidMessage>>, InvalidMessage> {
    if response.answers.len() != asked.len() {
        let rule = format!("must be as many as there were asks, which is {}", asked.len());
        return Err(InvalidMessage::number("answers", response.answers.len(), rule));
    }
    Ok(response.answers.into_iter().zip(asked).map(|(answer, asked)| sync_reply(answer, *asked)).collect())
}

fn sync_reply(answer: pb::SyncAnswer, asked: AskName) -> Result<Result<SyncReply, Status>, InvalidMessage> {
    use pb::sync_answer::Answer;
    for (field, theirs, ours) in
        [("answers.sequence", answer.sequence, asked.sequence), ("answers.nonce", answer.nonce, asked.nonce)]
    {
        if i64::try_from(theirs) != Ok(ours) {
            return Err(InvalidMessage::number(field, theirs, format!("must be that of the ask, which is {ours}")));
        }
    }
    let mut units = UnitNames::default();
    let judged = match answer.answer {
        Some(Answer::Granted(grant)) => SyncAnswer::Granted(lease::granted(grant, &mut units)?),
        Some(Answer::OtherEpoch(epoch)) => SyncAnswer::Epoch(lease::epoch(&lease::OTHER_EPOCH, Some(epoch))?),
        Some(Answer::WaitMs(ms)) => SyncAnswer::Wait(within("wait_ms", ms, 1, WAIT_MS_MAX)?),
        Some(Answer::Dead(pb::SyncDead {})) => SyncAnswer::Dead,
        Some(Answer::Fenced(pb::SyncFenced {})) => SyncAnswer::Fenced,
        Some(Answer::NotLeased(code)) => SyncAnswer::NotLeased(not_leased(code)?),
        Some(Answer::Invalid(code)) => SyncAnswer::Invalid(invalid(code)?),
        Some(Answer::Left(pb::SyncLeft {})) => SyncAnswer::Left,
        Some(Answer::Failure(pb::Failure { code, .. })) if Code::from_i32(code) == Code::Ok => {
            return Err(InvalidMessage::number("failure.code", code, "must be a status other than OK"));
        }
        Some(Answer::Failure(pb::Failure { code, message })) => {
            return Ok(Err(Status::new(Code::from_i32(code), message)));
        }
        None => {
            let rule = "must be one of granted, other_epoch, wait_ms, dead, fenced, not_leased, invalid, left, failure";
            return Err(InvalidMessage::absent("answer", rule));
        }
    };
    let rules = rules::rules(answer.rules, &mut units)?;
    Ok(Ok(SyncReply { answer: judged, rules, units }))
}

fn not_leased(code: i32) -> Result<NotLeased, InvalidMessage> {
    match pb::NotLeased::try_from(code) {
        Ok(pb::NotLeased::NotPermitted) => Ok(NotLeased::NotPermitted),
        Ok(pb::NotLeased::TooManyHolders) => Ok(NotLeased::TooManyHolders),
        Ok(pb::NotLeased::Unspecified) | Err(_) => {
            Err(InvalidMessage::number("not_leased", code, "must be one of 1 not_permitted, 2 too_many_holders"))
        }
    }
}

fn invalid(code: i32) -> Result<InvalidSync, InvalidMessage> {
    match pb::InvalidSync::try_from(code) {
        Ok(pb::InvalidSync::UsageBackwards) => Ok(InvalidSync::UsageBackwards),
        Ok(pb::InvalidSync::UnknownGeneration) => Ok(InvalidSync::UnknownGeneration),
        Ok(pb::InvalidSync::Unspecified) | Err(_) => {
            Err(InvalidMessage::number("invalid", code, "must be one of 1 usage_backwards, 2 unknown_generation"))
        }
    }
}
