//! The records: each a list of fields in the order in which they are packed. Those that calls bring have a type with the
//! same fields, so that none can be left out or be taken for another.

use super::{Field, Kind, Record};

layout! {
    /// The beginning of a ledger, which is one string: this head, the cost units' buckets, the policy's numbers as they were
    /// received, and the parts that `parts` names. What changes with every call comes first.
    HEAD = "HEAD", "L_" from 1 {
        format: U1, parts: U1, number: I7, id: I7, clock: I7, now: I7, admission: I7, admission_rest: I4, retry: I7,
        retry_rest: I4, in_flight: I4, end_1: I7, permits_1: I4, end_2: I7, permits_2: I4, newer: U1, size_1: U1,
        size_2: U1, originals_admitted: I7, deposited: I7, retries_admitted: I7, originals_denied: I7, retries_denied: I7,
        not_sent: I7, permits_expired: I6, overuse: I7, account_signals: I6, would_be_denied: I6, unit_count: U1,
    }
}
layout! {
    /// Of reservations that fit in no generation: how many there are, their permits, and when the last of them is due.
    QUEUE = "QUEUE", "L_" from 30 { queued: I4, queue_permits: I4, queue_until: I7 }
}
layout! {
    /// A cost unit's bucket, behind the head.
    UNIT = "UNIT", "" from 1 { id: I7, balance: I7, rest: I4 }
}
layout! {
    /// As format 1 has it: the queue's numbers stand between others, and there are no parts.
    HEAD_1 = "HEAD_1", "" from 1 {
        number: I7, id: I7, clock: I7, now: I7, admission: I7, admission_rest: I4, retry: I7, retry_rest: I4, in_flight: I4,
        end_1: I7, permits_1: I4, end_2: I7, permits_2: I4, newer: U1, size_1: U1, size_2: U1, queued: I4,
        originals_admitted: I7, deposited: I7, queue_permits: I4, queue_until: I7, retries_admitted: I7,
        originals_denied: I7, retries_denied: I7, not_sent: I7, permits_expired: I6, overuse: I7, account_signals: I6,
        would_be_denied: I6, unit_count: U1,
    }
}
/// Values of `parts` of a ledger: they add up. The ledger lends, its lending stands in keys of their own.
pub const PART_LENDS: u8 = 1;
/// [`QUEUE`] follows behind the numbers.
pub const PART_QUEUE: u8 = 2;
/// Room: parts behind the queue that no script of this release writes, each with its length in two bytes before it. The
/// server's identity and clock jumps, least room of buckets in time slices, push-back and breaker.
pub const LEDGER_ROOM: [(&str, u8); 4] = [("JUMPS", 4), ("LEAST_ROOM", 8), ("PUSH_BACK", 16), ("BREAKER", 32)];

record! {
    /// A policy's numbers; those that every step needs come first. Units follow.
    PolicyNumbers = "NUMBERS", "N_" {
        limited: U1, admission_num: I7, admission_den: I4, admission_burst: I7, admission_keep_1: I7, admission_keep_2: I7,
        admission_keep_3: I7, max_in_flight: I4, keep_in_flight_1: I4, keep_in_flight_2: I4, keep_in_flight_3: I4,
        permit_ttl: I4, deposit: I4, earn_on_success: U1, idle_ttl: I5, retry_num: I7, retry_den: I4, retry_burst: I7,
        retry_keep_1: I7, retry_keep_2: I7, retry_keep_3: I7, shadow: U1, retries_off: U1, max_wait: I4, retry_cost_1: I4,
        retry_cost_2: I4, retry_cost_3: I4, retry_cost_4: I4, retry_cost_5: I4, max_attempts: I2, retention: I5,
        absent_admission: I4,
    }
}
record! {
    /// A cost unit's numbers.
    UnitNumbers = "UNIT_NUMBERS", "" {
        id: I7, num: I7, den: I4, burst: I7, keep_1: I7, keep_2: I7, keep_3: I7,
    }
}

layout! {
    /// An open reservation. One that is not open is a single byte, see [`super::constants`]. Behind it stand the parts that
    /// `parts` names, then its costs.
    RECORD = "RECORD", "" from 1 {
        format: U1, parts: U1, expires: I7, permit: U1, admission: U1, deposited: I4, retry_cost: I4, earn: U1, would_be: U1,
        number: I4, cause: U1,
    }
}
/// Value of `parts` of a reservation: [`DETAIL`] follows.
pub const PART_DETAIL: u8 = 1;
layout! {
    /// Of a reservation that starts later or belongs to an operation: `life` says which of the operation's lives.
    DETAIL = "DETAIL", "" from 1 { start: I7, operation: I7, life: I4 }
}
/// Room: parts behind the detail that no script of this release writes, each with its length. A mark that the reservation
/// was asked for again; a digest of what was asked; the time slice in which it was charged, and the end of its permit in
/// steps of 250 ms.
pub const RECORD_ROOM: [(&str, u8, usize); 3] = [("REPLAYED", 2, 0), ("DIGEST", 4, 8), ("SLICES", 8, 8)];
layout! {
    /// As format 1 has it.
    RECORD_1 = "RECORD_1", "" from 1 {
        expires: I7, permit: U1, admission: U1, deposited: I4, retry_cost: I4, earn: U1, would_be: U1,
    }
}
layout! {
    /// As format 1 has it; also where a reservation has costs and nothing else.
    DETAIL_1 = "DETAIL_1", "" from 1 { start: I7, operation: I7, number: I4 }
}
record! {
    /// A cost, of a step or of a reservation.
    CostRecord = "COST", "" { unit: I7, amount: I7 }
}

layout! {
    /// A tracked operation. `life`: which of the lives of its id this is.
    OPERATION = "OPERATION", "O_" from 1 {
        format: U1, expires: I7, keep: I7, used: I4, open: I4, open_until: I7, last: U1, terminal: U1, earned: U1, life: I4,
        fingerprint: Text, has_ref: U1, ref: Text,
    }
}
layout! {
    /// The fields of an operation before those that format 1 does not have, without the byte of the format.
    OPERATION_1 = "OPERATION_1", "" from 1 {
        expires: I7, keep: I7, used: I4, open: I4, open_until: I7, last: U1, terminal: U1, earned: U1,
    }
}

record! {
    /// A reserve; -1 stands for what is not given where 0 has a meaning. `operation` is its number among the operations of
    /// the call, 0 for none.
    ReserveStep = "RESERVE", "" {
        number: I4, cause: U1, time_left: I7, max_wait: I7, permit_ttl: I7, priority: U1, no_release: U1, operation: U2,
        costs: U1,
    }
}
layout! {
    /// Behind a reserve that names an operation.
    ASK_OPERATION = "ASK_OPERATION", "" from 1 { hash: I7, expires_in: I7, fingerprint: Text }
}
record! {
    /// A release.
    ReleaseStep = "RELEASE", "" { not_sent: U1, outcome: U1, terminal: U1, operation: U2, costs: U1 }
}
layout! {
    /// Behind a release that names an operation.
    RELEASE_OPERATION = "RELEASE_OPERATION", "" from 1 { hash: I7, has_ref: U1, ref: Text }
}
record! {
    /// An extension.
    ExtendStep = "EXTEND", "" { permit_ttl: I7 }
}
record! {
    /// Of the plan of a call for several ledgers: which of its numbers, how many operations and steps.
    PlanEntry = "PLAN", "" { kind: U1, operations: U2, steps: U2 }
}

/// All of them.
pub(super) const ALL: [Record; 17] = [
    HEAD,
    QUEUE,
    UNIT,
    HEAD_1,
    PolicyNumbers::RECORD,
    UnitNumbers::RECORD,
    RECORD,
    DETAIL,
    RECORD_1,
    DETAIL_1,
    CostRecord::RECORD,
    OPERATION,
    OPERATION_1,
    ReserveStep::RECORD,
    ReleaseStep::RECORD,
    ExtendStep::RECORD,
    PlanEntry::RECORD,
];
