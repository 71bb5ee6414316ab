//! Steps and numbers as scripts receive them, and their replies as answers. What is packed is declared in [`super::layout`].
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
};
use deadpool_redis::redis::{Cmd, Value};

use super::{
    keys::DependencyKeys,
    layout::{
        FORMAT_NEWEST, Item,
        constants::{status, step},
        records::{
            ASK_OPERATION, CostRecord, ExtendStep, PolicyNumbers, RELEASE_OPERATION, ReleaseStep, ReserveStep,
            UnitNumbers,
        },
    },
    scripts::{By, Script},
};
pub use group::{Group, LEDGERS_MAX, Member, split_reply};
use items::Items;
pub(super) use lease::read_holders;
pub use lease::{ASKS_MAX, Also, AlsoAnswer, Lend, LendReply, Lent, pack_terms, read_lend_reply};

/// Most steps of one call.
pub const STEPS_MAX: usize = 256;

/// A call of `group.lua` but for its steps.
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
    /// How it is to be done.
    pub way: Way,
    /// What [`pack_numbers`] gave.
    pub numbers: &'a [u8],
}

/// How a script is to do what it does; it decides the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The format to write, where what is stored has no newer one.
    pub format: u8,
    /// The commonest steps may go a shorter way.
    pub short: bool,
}

impl Default for Way {
    fn default() -> Self {
        Self { format: FORMAT_NEWEST, short: true }
    }
}

/// A reply of `group.lua`.
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
        let group = Group { now_ms: self.now_ms, version: self.version, force: self.force, way: self.way };
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
        command.arg(self.way.format).arg(self.numbers).arg(packing.bytes);
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
    let unlimited = BucketNumbers { den: 1, ..BucketNumbers::default() };
    let admission = numbers.admission.unwrap_or(unlimited);
    let retry = numbers.retry;
    let [admission_keep_1, admission_keep_2, admission_keep_3] = admission.keep;
    let [retry_keep_1, retry_keep_2, retry_keep_3] = retry.keep;
    let [keep_in_flight_1, keep_in_flight_2, keep_in_flight_3] = numbers.keep_in_flight;
    let [retry_cost_1, retry_cost_2, retry_cost_3, retry_cost_4, retry_cost_5] = numbers.retry_cost_micros;
    let mut packed = Vec::with_capacity(160);
    PolicyNumbers {
        limited: numbers.admission.is_some().into(),
        admission_num: admission.num,
        admission_den: admission.den,
        admission_burst: admission.burst,
        admission_keep_1,
        admission_keep_2,
        admission_keep_3,
        max_in_flight: numbers.max_in_flight,
        keep_in_flight_1,
        keep_in_flight_2,
        keep_in_flight_3,
        permit_ttl: numbers.permit_ttl_ms,
        deposit: numbers.deposit_micros,
        earn_on_success: numbers.earn_on_success.into(),
        idle_ttl: numbers.idle_ttl_ms,
        retry_num: retry.num,
        retry_den: retry.den,
        retry_burst: retry.burst,
        retry_keep_1,
        retry_keep_2,
        retry_keep_3,
        shadow: numbers.shadow.into(),
        retries_off: numbers.retries_off.into(),
        max_wait: numbers.max_wait_ms,
        retry_cost_1,
        retry_cost_2,
        retry_cost_3,
        retry_cost_4,
        retry_cost_5,
        max_attempts: numbers.max_attempts,
        retention: numbers.retention_ms,
        absent_admission: numbers.absent_admission_micros,
    }
    .pack(&mut packed);
    for (unit, bucket) in &numbers.units {
        let [keep_1, keep_2, keep_3] = bucket.keep;
        let id = unit.raw();
        UnitNumbers { id, num: bucket.num, den: bucket.den, burst: bucket.burst, keep_1, keep_2, keep_3 }
            .pack(&mut packed);
    }
    packed
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

    /// Its number among the operations of the ledger's call, from 1; 0 for none.
    fn operation(&mut self, id: Option<&'a OperationId>) -> i64 {
        let number = id.map_or(0, |id| {
            let next = self.operations.len().saturating_sub(self.operations_from);
            let at = *self.at.entry(id).or_insert(next);
            if at == next {
                self.operations.push(id);
            }
            at.saturating_add(1)
        });
        i64::try_from(number).unwrap_or(i64::MAX)
    }

    fn step(&mut self, step: &'a Step, waited_ms: i64) {
        match step {
            Step::Reserve(ask) => self.reserve(ask, waited_ms),
            Step::Release(release) => self.release(release),
            Step::Extend(extend) => {
                self.bytes.push(step::EXTEND);
                ExtendStep { permit_ttl: extend.permit_ttl_ms }.pack(&mut self.bytes);
            }
        }
    }

    fn reserve(&mut self, ask: &'a Reserve, waited_ms: i64) {
        let operation = self.operation(ask.operation.as_ref().map(|operation| &operation.id));
        self.bytes.push(step::RESERVE);
        ReserveStep {
            number: ask.attempt.number.into(),
            cause: ask.attempt.cause.map_or(0, Cause::code),
            time_left: ask.time_left_ms.map_or(-1, |left_ms| left_ms.saturating_sub(waited_ms).max(0)),
            max_wait: ask.max_wait_ms,
            permit_ttl: ask.permit_ttl_ms.unwrap_or(-1),
            priority: ask.priority.code(),
            no_release: ask.no_release.into(),
            operation,
            costs: i64::try_from(ask.costs.len()).unwrap_or(i64::MAX),
        }
        .pack(&mut self.bytes);
        if let Some(operation) = &ask.operation {
            let expires_in = Item::Int(operation.expires_in_ms.unwrap_or(-1));
            let fingerprint = Item::Bytes(operation.fingerprint.as_slice());
            ASK_OPERATION.pack(&[Item::Int(operation.id.hash()), expires_in, fingerprint], &mut self.bytes);
        }
        self.costs(&ask.costs);
    }

    fn release(&mut self, release: &'a Release) {
        let sent = match &release.used {
            Use::NotSent => None,
            Use::Sent(sent) => Some(sent),
        };
        let costs = sent.map_or(&[][..], |sent| &sent.costs);
        let operation = self.operation(release.operation.as_ref());
        self.bytes.push(step::RELEASE);
        ReleaseStep {
            not_sent: sent.is_none().into(),
            outcome: sent.map_or(0, |sent| sent.outcome.code()),
            terminal: sent.and_then(|sent| sent.terminal).map_or(0, TerminalState::code),
            operation,
            costs: i64::try_from(costs.len()).unwrap_or(i64::MAX),
        }
        .pack(&mut self.bytes);
        if let Some(operation) = &release.operation {
            let reference = sent.and_then(|sent| sent.result_ref.as_deref());
            let has_reference = Item::Int(reference.is_some().into());
            let items = [Item::Int(operation.hash()), has_reference, Item::Bytes(reference.unwrap_or_default())];
            RELEASE_OPERATION.pack(&items, &mut self.bytes);
        }
        self.costs(costs);
    }

    fn costs(&mut self, costs: &[budget::decision::Cost]) {
        for cost in costs {
            CostRecord { unit: cost.unit.raw(), amount: cost.amount_micros }.pack(&mut self.bytes);
        }
    }
}

/// Reads a reply of `group.lua` to these steps, which were sent with these numbers of this version.
///
/// # Errors
/// If it is not one the script gives to them.
pub fn read_reply<'a>(
    reply: Value,
    version: PolicyVersion,
    numbers: &Numbers,
    steps: impl Iterator<Item = &'a Step>,
) -> Result<Reply, Unexpected> {
    if reply == Value::Array(vec![Value::Int(status::LENDS)]) {
        return Ok(Reply::Lends);
    }
    let reply = if let Value::Int(_) = reply { Value::Array(vec![Value::Int(status::DECIDED), reply]) } else { reply };
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
