//! The records of ledgers that lend, and of asks of their holders and the answers.

use super::{Field, Kind, Record};

layout! {
    /// How lending stands. Terms, heartbeats with their number before them, then three amounts follow: the part of direct
    /// callers, what is charged, and what was proved.
    LENDING = "LENDING", "" from 1 {
        format: U1, number: I7, id: I7, identity: I7, generation: I7, dead: I7, lost: U1, wait: I7, quarantine: I7, debt: I7,
        next_due: I7, holders: I4, proofs: I4, compared: I7, replaced: I7,
    }
}
layout! {
    /// The fields of it that format 1 has, without the byte of the format.
    LENDING_1 = "LENDING_1", "" from 1 {
        number: I7, id: I7, identity: I7, generation: I7, dead: I7, lost: U1, wait: I7, quarantine: I7, debt: I7,
        next_due: I7, holders: I4, proofs: I4,
    }
}
record! {
    /// What a policy says of leases; its curve follows.
    TermsRecord = "TERMS", "" {
        some: U1, slots_limited: U1, sheddable: I4, default: I4, critical: I4, part: I4, widest: I4, longest: I4, margin: I4,
        overlap: I4, step_max: I4,
    }
}
record! {
    /// A step of a curve, which has the number of its steps before them.
    StepRecord = "STEP", "" { part: I4, duration: I4 }
}
layout! {
    /// A host's clock: its boot id, its time, and ledger time less debt then.
    BEAT = "BEAT", "" from 1 { boot: I7, clock: I7, net: I7 }
}
record! {
    /// Amounts; `units` of [`UnitAmountsRecord`] follow.
    AmountsRecord = "AMOUNTS", "" { rate: I7, burst: I7, retry_burst: I7, slots: I7, units: U1 }
}
record! {
    /// Amounts of a cost unit.
    UnitAmountsRecord = "UNIT_AMOUNTS", "" { unit: I7, rate: I7, burst: I7 }
}
record! {
    /// What a holder reports; `units` of [`AskedRecord`] follow.
    ReportRecord = "REPORT", "" {
        asked: I7, originals_admitted: I7, retries_admitted: I7, originals_denied: I7, retries_denied: I7, not_sent: I7,
        fallback_originals: I7, fallback_retries: I7, deposited: I7, overuse: I7, units: U1,
    }
}
record! {
    /// What was asked for of a cost unit.
    AskedRecord = "ASKED", "" { unit: I7, amount: I7 }
}

layout! {
    /// A holder; its lives follow.
    HOLDER = "HOLDER", "" from 1 {
        format: U1, weight: I4, demand: I4, share: I4, idle: I4, revoked: I7, restarted: I7, due: I7, lives: U1,
    }
}
layout! {
    /// A life of a holder; lingering slots, its charge, the last report, what of a report says what had been asked when
    /// measuring began, and grants follow.
    LIFE = "LIFE", "" from 1 {
        incarnation: Id, sequence: I7, nonce: I7, answered: I7, slots: I7, measured: I7, lingering: U1, grants: U1,
    }
}
layout! {
    /// Slots that are charged until a time.
    LINGERING = "LINGERING", "" from 1 { slots: I7, until: I7 }
}
layout! {
    /// A grant; what was said to the holder follows: value, moved, curve.
    GRANT = "GRANT", "" from 1 { generation: I7, granted: I7, ttl: I7 }
}
layout! {
    /// Sums of shares; `buckets` of number, weights and demands follow.
    SHARES = "SHARES", "" from 1 { format: U1, weight: I7, demand: I7, buckets: U1 }
}
layout! {
    /// One of these.
    SHARES_BUCKET = "SHARES_BUCKET", "" from 1 { number: U1, weights: I7, demands: I7 }
}

record! {
    /// What a call brings: `asks` is 1 where their number and they follow, and 2 where the name of a holder that is to be
    /// revoked does.
    GroundRecord = "GROUND", "" {
        identity: I7, number: I7, id: I7, fresh_id: I7, fresh_store: U1, has_beat: U1, boot: I7, clock: I7, asks: U1,
    }
}
layout! {
    /// The name of a holder to be revoked.
    REVOKED = "REVOKED", "" from 1 { holder: Text }
}
layout! {
    /// How an ask begins: the length of all that follows, and its holder.
    ASK_NAME = "ASK_NAME", "" from 1 { length: U2, holder: Text }
}
layout! {
    /// An ask; two reports follow, the last one and the one counted before, and if a lease of another epoch than the ask quotes
    /// is presented, its position, value and curve.
    ASK = "ASK", "" from 1 {
        length: U2, holder: Text, incarnation: Id, sequence: I7, nonce: I7, number: I7, id: I7, weight: I4, leave: U1,
        presents: U1, of_number: I7, of_id: I7, of_generation: I7,
    }
}
record! {
    /// The position of a lease that is presented.
    PositionRecord = "POSITION", "" { position: I7 }
}
record! {
    /// Answers that have more than the byte of their kind: granted, with value, moved and curve behind it.
    GrantedRecord = "GRANTED", "" { kind: U1, number: I7, id: I7, generation: I7, position: I7 }
}
record! {
    /// Another epoch than the ask quotes.
    OtherEpochRecord = "OTHER_EPOCH", "" { kind: U1, number: I7, id: I7 }
}
record! {
    /// Nothing is given before a time has passed.
    WaitRecord = "WAIT", "" { kind: U1, wait: I7 }
}

/// All of them.
pub(super) const ALL: [Record; 22] = [
    LENDING,
    LENDING_1,
    TermsRecord::RECORD,
    StepRecord::RECORD,
    BEAT,
    AmountsRecord::RECORD,
    UnitAmountsRecord::RECORD,
    ReportRecord::RECORD,
    AskedRecord::RECORD,
    HOLDER,
    LIFE,
    LINGERING,
    GRANT,
    SHARES,
    GroundRecord::RECORD,
    REVOKED,
    ASK_NAME,
    ASK,
    PositionRecord::RECORD,
    GrantedRecord::RECORD,
    OtherEpochRecord::RECORD,
    WaitRecord::RECORD,
];
