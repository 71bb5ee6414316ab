//! What is to be seen of calls on ledgers that lend.

use budget::{
    decision::Answer,
    lease::{InvalidSync, NotLeased, SyncAnswer},
};
use budgetd::store::redis::codec::AlsoAnswer;

use super::{Call, Deed, Expected};

/// What a call shows.
pub(super) fn kinds(call: &Call, expected: &Expected, dump: &[String]) -> Vec<&'static str> {
    let Expected::Done { answers, also, .. } = expected else { return vec!["stale"] };
    let mut kinds = Vec::new();
    let synced = if let AlsoAnswer::Syncs(answers) = also { &answers[..] } else { &[] };
    if synced.len() > 1 {
        kinds.push("asks together");
        let epochs = synced.iter().flatten().filter_map(|answer| match answer {
            SyncAnswer::Epoch(epoch) => Some(*epoch),
            SyncAnswer::Granted(grant) => Some(grant.name.epoch),
            SyncAnswer::Wait(_)
            | SyncAnswer::Dead
            | SyncAnswer::Fenced
            | SyncAnswer::NotLeased(_)
            | SyncAnswer::Invalid(_)
            | SyncAnswer::Left => None,
        });
        if epochs.collect::<std::collections::BTreeSet<_>>().len() > 1 {
            kinds.push("an epoch opened between asks");
        }
    }
    for answer in synced.iter().flatten() {
        kinds.push(match answer {
            SyncAnswer::Granted(grant) if grant.position_ms > 0 => "granted again",
            SyncAnswer::Granted(grant) if grant.value.is_zero() => "granted nothing",
            SyncAnswer::Granted(grant) if !grant.moved.is_zero() => "granted with tokens",
            SyncAnswer::Granted(_) => "granted",
            SyncAnswer::Epoch(_) => "epoch",
            SyncAnswer::Wait(_) => "wait",
            SyncAnswer::Dead => "dead",
            SyncAnswer::Fenced => "fenced",
            SyncAnswer::NotLeased(NotLeased::NotPermitted) => "not permitted",
            SyncAnswer::NotLeased(NotLeased::TooManyHolders) => "too many holders",
            SyncAnswer::Invalid(InvalidSync::UsageBackwards) => "usage backwards",
            SyncAnswer::Invalid(InvalidSync::UnknownGeneration) => "unknown generation",
            SyncAnswer::Left => "left",
        });
    }
    match call.deed {
        Deed::Revoke(_) if *also == AlsoAnswer::Revoked(true) => kinds.push("revoked"),
        Deed::Beat => kinds.push("beat"),
        Deed::Revoke(_) | Deed::Steps(_) | Deed::Syncs(_) => {}
    }
    if answers.iter().any(Option::is_none) {
        kinds.push("away");
    }
    let holds = |part: &str| dump.iter().any(|line| line.starts_with(part));
    if answers.iter().any(|answer| matches!(answer, Some(Answer::Admitted(_)))) && holds("lease grant") {
        kinds.push("admitted beside leases");
    }
    if holds("lease proof") {
        kinds.push("with proofs");
    }
    if dump.iter().any(|line| line.starts_with("lease epoch") && !line.ends_with(" debt 0")) {
        kinds.push("with clock debt");
    }
    if call.plain && call.lends {
        kinds.push("lends though not permitted");
    }
    kinds
}

/// What must be seen.
pub(super) const KINDS: [&str; 21] = [
    "asks together",
    "granted again",
    "granted nothing",
    "granted with tokens",
    "granted",
    "epoch",
    "wait",
    "dead",
    "fenced",
    "not permitted",
    "too many holders",
    "usage backwards",
    "unknown generation",
    "left",
    "revoked",
    "beat",
    "away",
    "admitted beside leases",
    "with proofs",
    "with clock debt",
    "lends though not permitted",
];
