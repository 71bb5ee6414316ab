//! Steps and numbers as scripts receive them, and their replies as answers. The layout is written at the head of
//! `apply.lua`, `bucket.lua` and `view.lua`.
//!
//! Everything sent is packed in fixed formats, big-endian; integers of seven bytes hold everything below 2^53, which is
//! what a script's doubles hold exactly. A reply is judged completely; one that no script of ours gives is an error,
//! never a panic or a guess.

mod group;
mod items;
mod lease;

use std::collections::HashMap;

use budget::{
    decision::{Admitted, Answer, Attempt, Cause, Release, Reserve, Step, TerminalState, Use},
    ids::{OperationId, PolicyVersion, ReservationId, UnitId},
    ledger::{Counters, View},
    policy::{BucketNumbers, Numbers},
    units::EXACT_MAX,
};
use deadpool_redis::redis::{Cmd, Value};

use super::{
    keys::DependencyKeys,
    scripts::{By, Script},
};
pub use group::{Group, LEDGERS_MAX, Member, split_reply};
use items::Items;
pub(super) use lease::read_holders;
pub use lease::{ASKS_MAX, Also, AlsoAnswer, Lend, LendReply, Lent, pack_terms, read_lend_reply};

/// Most steps of one call.
pub const STEPS_MAX: usize = 256;
/// Keys before the operations in the list of keys.
const KEYS_BEFORE_OPERATIONS: usize = 5;

const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const EXTEND: u8 = 3;
/// Status of a call for a ledger that lends.
const LENDS: i64 = 3;

/// A call of `apply.lua` but for its steps.
#[derive(Clone, Copy, Debug)]
pub struct Apply<'a> {
    /// Of the ledger.
    pub keys: &'a DependencyKeys,
    /// The time, or an empty text for the server's own.
    pub now_ms: &'a str,
    /// Of the policies the numbers come from.
    pub version: PolicyVersion,
    /// Decide even if the ledger has a newer version, with the ledger's numbers.
    pub force: bool,
    /// What [`pack_numbers`] gave.
    pub numbers: &'a [u8],
}

/// A reply of `apply.lua`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// One answer for each step.
    Done {
        /// The ledger's.
        version: PolicyVersion,
        /// Its policy only watches.
        shadow: bool,
        /// In the order of the steps.
        answers: Vec<Answer>,
    },
    /// Nothing was done: the ledger has newer numbers.
    Stale {
        /// The ledger's.
        version: PolicyVersion,
    },
    /// Nothing was done: the ledger lends, so [`Lend`] is to be used.
    Lends,
}

/// What is wrong with a reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unexpected {
    /// Scripts give flat arrays.
    #[error("is {0}, must be an array")]
    NotAnArray(&'static str),
    /// Something is missing.
    #[error("ends before {0}")]
    Ends(&'static str),
    /// An item is of another type, or has a value that has no meaning.
    #[error("{what} is {found}, must be {rule}")]
    Field {
        /// Which.
        what: &'static str,
        /// What stands there.
        found: String,
        /// What is required.
        rule: &'static str,
    },
    /// More than there are answers for.
    #[error("has {0} items too many")]
    TooLong(usize),
}

// === impl Apply ===

impl Apply<'_> {
    /// The command that applies steps, at most [`STEPS_MAX`], each of another reservation. With each step comes how long
    /// it has waited, which is taken from its time left. It is a call for a group of one; see [`split_reply`].
    #[must_use]
    pub fn command<'s>(&self, by: By, steps: impl ExactSizeIterator<Item = (&'s Step, i64)> + Clone) -> Cmd {
        let group = Group { now_ms: self.now_ms, version: self.version, force: self.force };
        group.command(by, &[Member { keys: self.keys, numbers: self.numbers, steps }])
    }

    /// A call of a script for one ledger, which takes more keys behind those of the operations.
    fn command_of<'s>(
        &self,
        script: &Script,
        by: By,
        steps: impl ExactSizeIterator<Item = (&'s Step, i64)> + Clone,
        more_keys: &[String],
    ) -> Cmd {
        let mut packing = Packing { bytes: Vec::with_capacity(40 * steps.len()), ..Packing::default() };
        for (step, waited_ms) in steps.clone() {
            packing.step(step, waited_ms);
        }
        let keys = self.keys.of_every_batch();
        let operations = packing.operations.len();
        let mut command = script.call(by, keys.len().saturating_add(operations).saturating_add(more_keys.len()));
        for key in &keys {
            command.arg(key);
        }
        for operation in &packing.operations {
            command.arg(self.keys.operation(operation));
        }
        for key in more_keys {
            command.arg(key);
        }
        command.arg(self.now_ms).arg(self.version.number).arg(self.version.id).arg(u8::from(self.force));
        command.arg(self.numbers).arg(packing.bytes);
        for (step, _) in steps {
            command.arg(&reservation_of(step).0);
        }
        command
    }
}

/// The reservation a step is about.
#[must_use]
pub const fn reservation_of(step: &Step) -> ReservationId {
    match step {
        Step::Reserve(ask) => ask.id,
        Step::Release(release) => release.id,
        Step::Extend(extend) => extend.id,
    }
}

/// Packs the numbers of a policy.
#[must_use]
pub fn pack_numbers(numbers: &Numbers) -> Vec<u8> {
    let mut packing = Packing::default();
    let unlimited = BucketNumbers { den: 1, ..BucketNumbers::default() };
    packing.byte(numbers.admission.is_some().into());
    packing.bucket(&numbers.admission.unwrap_or(unlimited));
    packing.int::<4>(numbers.max_in_flight);
    for keep in numbers.keep_in_flight {
        packing.int::<4>(keep);
    }
    packing.int::<4>(numbers.permit_ttl_ms);
    packing.int::<4>(numbers.deposit_micros);
    packing.byte(numbers.earn_on_success.into());
    packing.int::<5>(numbers.idle_ttl_ms);
    packing.bucket(&numbers.retry);
    packing.byte(numbers.shadow.into());
    packing.byte(numbers.retries_off.into());
    packing.int::<4>(numbers.max_wait_ms);
    for cost in numbers.retry_cost_micros {
        packing.int::<4>(cost);
    }
    packing.int::<2>(numbers.max_attempts);
    packing.int::<5>(numbers.retention_ms);
    packing.int::<4>(numbers.absent_admission_micros);
    for (unit, bucket) in &numbers.units {
        packing.int::<7>(unit.raw());
        packing.bucket(bucket);
    }
    packing.bytes
}

/// Packed steps, and the operations they name in the order of their keys.
#[derive(Default)]
struct Packing<'a> {
    bytes: Vec<u8>,
    operations: Vec<&'a OperationId>,
    at: HashMap<&'a OperationId, usize>,
    /// The present ledger's begin here.
    operations_from: usize,
}

impl<'a> Packing<'a> {
    /// What comes belongs to another ledger.
    fn begin_ledger(&mut self) {
        self.at.clear();
        self.operations_from = self.operations.len();
    }

    fn byte(&mut self, value: i64) {
        self.bytes.push(u8::try_from(value).unwrap_or(u8::MAX));
    }

    /// The nearest number of `N` bytes. What is further away means the same: it is beyond every limit.
    fn int<const N: usize>(&mut self, value: i64) {
        let most = if N < 7 { (1 << (8 * N - 1)) - 1 } else { EXACT_MAX };
        let bytes = value.clamp(-most, most).to_be_bytes();
        self.bytes.extend_from_slice(&bytes[8 - N..]);
    }

    /// Its length, then itself.
    fn text(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= usize::from(u8::MAX), "judged before");
        self.byte(i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        self.bytes.extend_from_slice(bytes);
    }

    fn bucket(&mut self, numbers: &BucketNumbers) {
        self.int::<7>(numbers.num);
        self.int::<4>(numbers.den);
        self.int::<7>(numbers.burst);
        for keep in numbers.keep {
            self.int::<7>(keep);
        }
    }

    /// Its place in the list of keys, from 1; 0 for none.
    fn operation_key(&mut self, id: Option<&'a OperationId>) {
        let key = id.map_or(0, |id| {
            let next = self.operations.len().saturating_sub(self.operations_from);
            let at = *self.at.entry(id).or_insert(next);
            if at == next {
                self.operations.push(id);
            }
            at.saturating_add(KEYS_BEFORE_OPERATIONS).saturating_add(1)
        });
        self.bytes.extend_from_slice(&u16::try_from(key).unwrap_or(u16::MAX).to_be_bytes());
    }

    fn step(&mut self, step: &'a Step, waited_ms: i64) {
        match step {
            Step::Reserve(ask) => self.reserve(ask, waited_ms),
            Step::Release(release) => self.release(release),
            Step::Extend(extend) => {
                self.bytes.push(EXTEND);
                self.int::<7>(extend.permit_ttl_ms);
            }
        }
    }

    fn reserve(&mut self, ask: &'a Reserve, waited_ms: i64) {
        self.bytes.push(RESERVE);
        self.int::<4>(ask.attempt.number.into());
        self.byte(ask.attempt.cause.map_or(0, Cause::code));
        self.int::<7>(ask.time_left_ms.map_or(-1, |left_ms| left_ms.saturating_sub(waited_ms).max(0)));
        self.int::<7>(ask.max_wait_ms);
        self.int::<7>(ask.permit_ttl_ms.unwrap_or(-1));
        self.byte(ask.priority.code());
        self.byte(ask.no_release.into());
        self.operation_key(ask.operation.as_ref().map(|operation| &operation.id));
        self.byte(i64::try_from(ask.costs.len()).unwrap_or(i64::MAX));
        if let Some(operation) = &ask.operation {
            self.int::<7>(operation.id.hash());
            self.int::<7>(operation.expires_in_ms.unwrap_or(-1));
            self.text(operation.fingerprint.as_slice());
        }
        self.costs(&ask.costs);
    }

    fn release(&mut self, release: &'a Release) {
        let sent = match &release.used {
            Use::NotSent => None,
            Use::Sent(sent) => Some(sent),
        };
        let costs = sent.map_or(&[][..], |sent| &sent.costs);
        self.bytes.push(RELEASE);
        self.byte(sent.is_none().into());
        self.byte(sent.map_or(0, |sent| sent.outcome.code()));
        self.byte(sent.and_then(|sent| sent.terminal).map_or(0, TerminalState::code));
        self.operation_key(release.operation.as_ref());
        self.byte(i64::try_from(costs.len()).unwrap_or(i64::MAX));
        if let Some(operation) = &release.operation {
            let reference = sent.and_then(|sent| sent.result_ref.as_deref());
            self.int::<7>(operation.hash());
            self.byte(reference.is_some().into());
            self.text(reference.unwrap_or_default());
        }
        self.costs(costs);
    }

    fn costs(&mut self, costs: &[budget::decision::Cost]) {
        for cost in costs {
            self.int::<7>(cost.unit.raw());
            self.int::<7>(cost.amount_micros);
        }
    }
}

/// Reads a reply of `apply.lua` to these steps, which were sent with these numbers of this version.
///
/// # Errors
/// If it is not one the script gives to them.
pub fn read_reply<'a>(
    reply: Value,
    version: PolicyVersion,
    numbers: &Numbers,
    steps: impl Iterator<Item = &'a Step>,
) -> Result<Reply, Unexpected> {
    if reply == Value::Array(vec![Value::Int(LENDS)]) {
        return Ok(Reply::Lends);
    }
    let reply = if let Value::Int(_) = reply { Value::Array(vec![Value::Int(0), reply]) } else { reply };
    let mut items = Items::of(reply)?;
    let Some((version, shadow, defaults)) = items.status(version, numbers)? else {
        let version = items.version()?;
        items.end()?;
        return Ok(Reply::Stale { version });
    };
    let answers = steps.map(|step| items.answer(step, defaults)).collect::<Result<_, _>>()?;
    items.end()?;
    Ok(Reply::Done { version, shadow, answers })
}

/// What most answers of a batch have in common.
#[derive(Clone, Copy)]
struct Defaults {
    permit_ttl_ms: i64,
    max_attempts: i64,
}

impl Defaults {
    /// Admitted at once, with nothing special.
    fn admitted(self, attempt: Attempt) -> Admitted {
        Admitted {
            start_after_ms: 0,
            permit_ttl_ms: self.permit_ttl_ms,
            attempts_left: self.max_attempts.saturating_sub(attempt.number.into()).max(0),
            replayed: false,
            would_be_denied: None,
        }
    }
}

/// Reads a reply of `view.lua`.
///
/// # Errors
/// If it is not one the script gives.
pub fn read_view(reply: Value) -> Result<Option<View>, Unexpected> {
    let mut items = Items::of(reply)?;
    if !items.flag("whether there is a ledger")? {
        items.end()?;
        return Ok(None);
    }
    let version = items.version()?;
    let shadow = items.flag("shadow")?;
    let limited = items.flag("limited")?;
    let admission_balance_micros = Some(items.balance("admission balance")?).filter(|_| limited);
    let retry_balance_micros = items.balance("retry balance")?;
    let in_flight = items.amount("permits")?;
    let mut counters = [0; 10];
    for counter in &mut counters {
        *counter = items.amount("a counter")?;
    }
    let lending = if items.flag("whether it lends")? { Some(Box::new(items.lending()?)) } else { None };
    let mut units = Vec::with_capacity(items.left() / 2);
    while items.left() > 0 {
        units.push((UnitId::from_raw(items.int("unit")?), items.balance("unit's balance")?));
    }
    Ok(Some(View {
        version,
        shadow,
        admission_balance_micros,
        retry_balance_micros,
        units,
        in_flight,
        counters: Counters::from_list(counters),
        lending,
    }))
}

#[cfg(test)]
mod tests;
