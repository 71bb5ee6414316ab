//! The constants that scripts name: formats, lengths and places of all records, and the codes and limits that both
//! languages share.

use std::collections::HashMap;

use budget::{
    decision::{DenyReason, Outcome, TerminalState},
    lease::{self, Usage},
    ledger,
    units::{BURST_MICROS_MAX, EXACT_MAX, MICROS_PER_TOKEN, PPM},
};

use super::{
    FORMAT_MARK, FORMAT_NEWEST, FORMATS_MAX, Kind, Record, lending,
    records::{
        ALL, ASK_OPERATION, HEAD, LEDGER_ROOM, PART_DETAIL, PART_LENDS, PART_QUEUE, PolicyNumbers, QUEUE, RECORD_ROOM,
        RELEASE_OPERATION, UNIT, UnitNumbers,
    },
};

/// Declares codes, which scripts know by the same names with a prefix.
macro_rules! codes {
    ($(#[$doc:meta])* $module:ident: $type:ty, $prefix:literal { $($(#[$of_code:meta])* $name:ident = $code:literal,)+ }) => {
        $(#[$doc])*
        pub mod $module {
            $($(#[$of_code])* pub const $name: $type = $code;)+

            pub(super) const ALL: &[(&str, $type)] = &[$((concat!($prefix, stringify!($name)), $code)),+];
        }
    };
}

codes! {
    /// What each step of a call begins with.
    step: u8, "STEP_" {
        /// Reserve.
        RESERVE = 1,
        /// Release.
        RELEASE = 2,
        /// Extend.
        EXTEND = 3,
    }
}
codes! {
    /// How the reply for one ledger begins.
    status: i64, "STATUS_" {
        /// Decided with the numbers of the call.
        DECIDED = 0,
        /// The ledger has newer numbers: version number and id follow, nothing was done.
        STALE = 1,
        /// Decided with the ledger's numbers: version number and id, shadow, default permit life and attempts follow.
        FORCED = 2,
        /// For the script of ledgers that lend; nothing was done.
        LENDS = 3,
    }
}
codes! {
    /// How the answer to one step begins, and what follows.
    answer: i64, "ANSWER_" {
        /// Admitted at once with the default permit life and nothing special.
        ADMITTED_PLAIN = 0,
        /// Admitted: start after, permit life, replayed, would-be reason or 0.
        ADMITTED = 1,
        /// Denied: reason, unit or 0, retry after or -1, impossible.
        DENIED = 2,
        /// Denied because of its operation: reason, attempts used, last outcome or 0, terminal state or 0, whether it has a
        /// reference, and that.
        DENIED_BY_OPERATION = 3,
        /// A release was applied.
        APPLIED = 11,
        /// The reservation was released before.
        RELEASED_BEFORE = 12,
        /// Its time was over.
        RELEASED_LATE = 13,
        /// No such reservation is known.
        RELEASED_UNKNOWN = 14,
        /// Extended: the permit's life follows.
        EXTENDED = 21,
        /// The reservation was released before.
        EXTENDED_RELEASED = 22,
        /// Its time was over.
        EXTENDED_LATE = 23,
        /// No such reservation is known.
        EXTENDED_UNKNOWN = 24,
        /// Contradicts the policy: the unit that it does not have follows.
        UNKNOWN_UNIT = 31,
        /// Contradicts the policy.
        EXPIRES_IN_TOO_LONG = 32,
        /// Names another operation than the reservation.
        OPERATION_MISMATCH = 33,
        /// State was lost a moment ago: nothing is decided yet.
        AWAY = 40,
    }
}

codes! {
    /// How the answer to an ask of a holder begins.
    sync: u8, "SYNC_" {
        /// A lease.
        GRANTED = 1,
        /// The ask quotes another epoch than this.
        OTHER_EPOCH = 2,
        /// Nothing is given for so long.
        WAIT = 3,
        /// What is asked for again has ended.
        DEAD = 4,
        /// Another has asked in the same name.
        FENCED = 5,
        /// 1: leases are not permitted, 2: there are too many holders.
        NOT_LEASED = 6,
        /// 1: usage went backwards, 2: a generation that was not granted.
        INVALID = 7,
        /// It has left.
        LEFT = 8,
        /// What is kept of this holder cannot be read.
        UNREADABLE = 9,
    }
}

/// A reservation that is not open any more is one of these.
mod closed {
    pub(super) const CLOSED: &str = "'1'";
    pub(super) const EXPIRED: &str = "'2'";
    pub(super) const CLOSED_WITH_PERMIT: &str = "'3'";
}

/// Upper-case names as scripts write them, with their values as Lua.
#[must_use]
pub fn constants() -> HashMap<String, String> {
    let mut all = Constants(HashMap::new());
    for record in ALL.iter().chain(&[ASK_OPERATION, RELEASE_OPERATION]).chain(&lending::ALL) {
        all.record(record);
    }
    all.places();
    all.codes();
    all.limits();
    all.0
}

struct Constants(HashMap<String, String>);

// === impl Constants ===

impl Constants {
    fn put(&mut self, name: impl Into<String>, value: impl ToString) {
        let (name, value) = (name.into(), value.to_string());
        let before = self.0.insert(name.clone(), value.clone());
        debug_assert!(before.is_none_or(|before| before == value), "{name} is declared twice");
    }

    fn record(&mut self, record: &Record) {
        self.put(format!("{}_FORMAT", record.name), format!("'{}'", record.format()));
        if let Some(bytes) = record.bytes() {
            self.put(format!("{}_BYTES", record.name), bytes);
        }
        for field in record.fields.iter().filter(|_| !record.prefix.is_empty()) {
            self.put(format!("{}{}", record.prefix, field.name.to_ascii_uppercase()), record.place(field.name));
        }
    }

    /// The first fields of a record, up to and with one of them.
    fn beginning(&mut self, name: &str, record: &Record, last: &str) {
        let fields = record.fields.get(..=record.place(last) - record.first).unwrap_or_default();
        let beginning = Record { fields, ..*record };
        self.put(format!("{name}_FORMAT"), format!("'{}'", beginning.format()));
        self.put(format!("{name}_BYTES"), beginning.bytes().unwrap_or(0));
    }

    /// Of lists: where units begin, how many items one has, and where numbered fields are counted from.
    fn places(&mut self) {
        let numbers = PolicyNumbers::RECORD;
        self.put("L_UNITS", QUEUE.first + QUEUE.fields.len());
        self.put("L_UNIT", UNIT.fields.len());
        self.put("L_HEAD_FIELDS", HEAD.fields.len());
        self.put("N_UNITS", numbers.first + numbers.fields.len());
        self.put("UNIT_NUMBERS", UnitNumbers::RECORD.fields.len());
        // That of generation g stands g, or twice g, behind these.
        self.put("L_END", HEAD.place("end_1") - 2);
        self.put("L_PERMITS", HEAD.place("permits_1") - 2);
        self.put("L_SIZE", HEAD.place("size_1") - 1);
        // A bucket begins here.
        self.put("N_ADMISSION", numbers.place("admission_num"));
        self.put("N_RETRY", numbers.place("retry_num"));
        // That of a priority or cause stands its code behind these.
        self.put("N_KEEP_IN_FLIGHT", numbers.place("keep_in_flight_1") - 1);
        self.put("N_RETRY_COST", numbers.place("retry_cost_1") - 1);
        self.put("COUNTERS", Usage::default().counters().len());
        // Of a repetition, which says ">" once.
        self.put("SHARES_BUCKET_FORMAT", format!("'{}'", lending::SHARES_BUCKET.format().trim_start_matches('>')));
        // The length of an ask stands before what it counts.
        self.put("ASK_LENGTH_BYTES", Kind::U2.bytes().unwrap_or(0));
        self.beginning("COMMON_HEAD", &HEAD, "deposited");
        self.beginning("COMMON_NUMBERS", &numbers, "retry_burst");
    }

    fn codes(&mut self) {
        for (name, code) in step::ALL {
            self.put(*name, code);
        }
        for (name, code) in status::ALL.iter().chain(answer::ALL) {
            self.put(*name, code);
        }
        for reason in DenyReason::ALL {
            self.put(format!("REASON_{}", reason.name().to_ascii_uppercase()), reason.code());
        }
        for outcome in Outcome::ALL {
            self.put(format!("OUTCOME_{}", outcome.name().to_ascii_uppercase()), outcome.code());
        }
        for terminal in TerminalState::ALL {
            self.put(format!("TERMINAL_{}", terminal.name().to_ascii_uppercase()), terminal.code());
        }
        for (name, code) in sync::ALL {
            self.put(*name, code);
        }
        // Answers that are one byte, or two.
        for (name, bytes) in [
            ("DEAD", vec![sync::DEAD]),
            ("FENCED", vec![sync::FENCED]),
            ("NOT_PERMITTED", vec![sync::NOT_LEASED, 1]),
            ("TOO_MANY_HOLDERS", vec![sync::NOT_LEASED, 2]),
            ("USAGE_BACKWARDS", vec![sync::INVALID, 1]),
            ("UNKNOWN_GENERATION", vec![sync::INVALID, 2]),
            ("LEFT", vec![sync::LEFT]),
            ("UNREADABLE", vec![sync::UNREADABLE]),
        ] {
            let escaped = bytes.iter().fold(String::new(), |text, byte| format!("{text}\\{byte}"));
            self.put(name, format!("'{escaped}'"));
        }
        self.put("CLOSED", closed::CLOSED);
        self.put("EXPIRED", closed::EXPIRED);
        self.put("CLOSED_WITH_PERMIT", closed::CLOSED_WITH_PERMIT);
    }

    fn limits(&mut self) {
        self.put("EXACT_MAX", EXACT_MAX);
        self.put("TOKEN", MICROS_PER_TOKEN);
        self.put("PPM", PPM);
        self.put("FORMAT_MARK", FORMAT_MARK);
        self.put("FORMAT_NEWEST", FORMAT_NEWEST);
        self.put("FORMATS_MAX", FORMATS_MAX);
        self.put("FORMAT_BYTE", FORMAT_MARK.saturating_add(FORMAT_NEWEST));
        self.put("PART_LENDS", PART_LENDS);
        self.put("PART_QUEUE", PART_QUEUE);
        self.put("PART_DETAIL", PART_DETAIL);
        // Parts from here on are room.
        self.put("LEDGER_ROOM_FROM", LEDGER_ROOM.map(|(_, part)| part).into_iter().min().unwrap_or(u8::MAX));
        for (name, part, bytes) in RECORD_ROOM {
            self.put(format!("RECORD_{name}"), part);
            self.put(format!("RECORD_{name}_BYTES"), bytes);
        }
        for (name, limit) in [
            ("QUEUE_PER_CALL_MAX", ledger::QUEUE_PER_CALL_MAX),
            ("DUE_PER_CALL_MAX", ledger::DUE_PER_CALL_MAX),
            ("LINGERING_MAX", ledger::LINGERING_MAX),
            ("SHARE_BUCKETS", ledger::SHARE_BUCKETS),
            ("HOSTS_MAX", ledger::HOSTS_MAX),
            ("PROOFS_MAX", ledger::PROOFS_MAX),
            ("GRANTS_MAX", lease::GRANTS_MAX),
            ("INCARNATIONS_MAX", lease::INCARNATIONS_MAX),
            ("HOLDERS_MAX", lease::HOLDERS_MAX),
        ] {
            self.put(name, limit);
        }
        for (name, limit) in [
            ("SHARE_ONE", lease::SHARE_ONE),
            // Of all shares, what newcomers find is left.
            ("LEASED_OUT", lease::SHARE_ONE - lease::NEWCOMERS_SHARE),
            ("EPOCH_NUMBER_MAX", lease::EPOCH_NUMBER_MAX),
            ("PRESENTED_MAX", ledger::PRESENTED_MAX),
            ("REPORTED_MAX", ledger::REPORTED_MAX),
            ("LAG_KEPT_MS", ledger::LAG_KEPT_MS),
            ("MEASURE_MS_MIN", ledger::MEASURE_MS_MIN),
            ("NEVER", EXACT_MAX),
            // A step below a hundredth counts as one.
            ("PART_LEAST", PPM / 100),
            // What a report may say more than the one before counts as at most this.
            ("ATTEMPTS_ASKED_MAX", 1_000_000_000),
            ("UNIT_ASKED_MAX", BURST_MICROS_MAX),
        ] {
            self.put(name, limit);
        }
    }
}
