//! Calls of the script for ledgers that do not lend, and how a reply falls into those of its ledgers. The layout is written
//! at the head of `group.lua`.

use budget::{decision::Step, ids::PolicyVersion};
use deadpool_redis::redis::{Cmd, Value};

use super::{Packing, Way, reservation_of};
use crate::store::redis::{
    keys::DependencyKeys,
    layout::records::PlanEntry,
    scripts::{APPLY, By},
    value,
};

/// Most ledgers of one call: nobody else is served while a script runs.
pub const LEDGERS_MAX: usize = 64;

/// What the ledgers of one call have in common.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// The time, or an empty text for the server's own.
    pub now_ms: &'a str,
    /// Of the policies all numbers come from.
    pub version: PolicyVersion,
    /// Decide even if a ledger has a newer version, with the ledger's numbers.
    pub force: bool,
    /// How it is to be done.
    pub way: Way,
}

/// One ledger and its steps: at most [`super::STEPS_MAX`], each of another reservation. With each step comes how long it
/// has waited, which is taken from its time left.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a, S> {
    /// Of the ledger. No two members have the same.
    pub keys: &'a DependencyKeys,
    /// What [`super::pack_numbers`] gave.
    pub numbers: &'a [u8],
    /// In the order in which they are decided.
    pub steps: S,
}

// === impl Group ===

impl Group<'_> {
    /// The command that applies the steps of at most [`LEDGERS_MAX`] ledgers.
    #[must_use]
    pub fn command<'s, S>(&self, by: By, members: &[Member<'_, S>]) -> Cmd
    where
        S: Iterator<Item = (&'s Step, i64)> + Clone,
    {
        debug_assert!(members.len() <= LEDGERS_MAX, "{} ledgers", members.len());
        let mut packing = Packing::default();
        let mut plan = Vec::with_capacity(5 * members.len() + 1);
        plan.push(0);
        let mut kinds: Vec<&[u8]> = Vec::with_capacity(1);
        // Where the packed steps of each end, and its operations.
        let mut ends = Vec::with_capacity(members.len());
        let mut steps = 0_usize;
        let mut operations_before = 0;
        for member in members {
            packing.begin_ledger();
            let mut count = 0_usize;
            for (step, waited_ms) in member.steps.clone() {
                packing.step(step, waited_ms);
                count += 1;
            }
            let known = kinds.iter().position(|numbers| *numbers == member.numbers);
            let kind = known.unwrap_or_else(|| {
                kinds.push(member.numbers);
                kinds.len() - 1
            });
            let operations = packing.operations.len() - operations_before;
            operations_before = packing.operations.len();
            let [kind, operations, steps_of] =
                [kind + 1, operations, count].map(|number| i64::try_from(number).unwrap_or(i64::MAX));
            PlanEntry { kind, operations, steps: steps_of }.pack(&mut plan);
            ends.push((packing.bytes.len(), packing.operations.len()));
            steps += count;
        }
        if let Some(first) = plan.first_mut() {
            *first = u8::try_from(kinds.len()).unwrap_or(u8::MAX);
        }

        let keys = 5 * members.len() + packing.operations.len();
        let key_bytes = members.first().map_or(0, |member| member.keys.bytes());
        let bytes = 256 + keys * key_bytes + packing.bytes.len() + plan.len() + 160 * kinds.len() + 16 * steps;
        let mut command = APPLY.call_of_size(by, keys, keys + 8 + kinds.len() + members.len() + steps, bytes);
        let mut key = String::with_capacity(key_bytes);
        for member in members {
            command.arg(member.keys.write_ledger(&mut key));
        }
        let mut operations_from = 0;
        for (member, &(_, operations_to)) in members.iter().zip(&ends) {
            member.keys.each_beside_ledger(&mut key, |key| {
                command.arg(key);
            });
            for operation in packing.operations.get(operations_from..operations_to).unwrap_or_default() {
                command.arg(member.keys.operation(operation));
            }
            operations_from = operations_to;
        }
        command.arg(self.now_ms).arg(self.version.number).arg(self.version.id).arg(u8::from(self.force));
        command.arg(self.way.format).arg(u8::from(self.way.short)).arg(plan);
        for numbers in kinds {
            command.arg(numbers);
        }
        let mut steps_from = 0;
        for (member, &(steps_to, _)) in members.iter().zip(&ends) {
            command.arg(packing.bytes.get(steps_from..steps_to).unwrap_or_default());
            for (step, _) in member.steps.clone() {
                command.arg(&reservation_of(step).0);
            }
            steps_from = steps_to;
        }
        command
    }
}

/// The reply of each ledger of a call. Where the call as a whole failed, that is the reply of each.
#[must_use]
pub fn split_reply(reply: Value, ledgers: usize) -> Vec<Value> {
    if let Value::ServerError(_) = reply {
        return vec![reply; ledgers];
    }
    // No script of ours gives anything else.
    value::array(reply).ok().filter(|replies| replies.len() == ledgers).unwrap_or_else(|| vec![Value::Nil; ledgers])
}
