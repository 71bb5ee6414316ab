//! What a ledger counts, declared once: stores, status, JSON and metrics follow this list.

use crate::units::EXACT_MAX;

/// Hands the list of counters to a macro: for each its documentation, name, note in the status (empty: none), metric
/// (empty: none) and that metric's meaning. Amounts of micro-tokens end in `_micros`; notes and metrics show them in
/// tokens.
#[macro_export]
macro_rules! with_counters {
    ($then:ident) => {
        $then! {
            /// Originals admitted, would-be refusals of shadow mode not counted.
            originals_admitted, "", "", "";
            /// Retries admitted, likewise.
            retries_admitted, "", "", "";
            /// Originals refused.
            originals_denied, "", "", "";
            /// Retries refused.
            retries_denied, "", "", "";
            /// Handed back unsent.
            not_sent, "not sent", "budgetd_handed_back", "Reservations handed back unsent, fleet-wide.";
            /// Permits that ended by time.
            permits_expired, "permits expired", "budgetd_permits_expired",
                "Permits that ended by time, fleet-wide: every replica shows the same number.";
            /// Retry tokens deposited by traffic.
            deposited_micros, "", "budgetd_deposited_tokens",
                "Retry tokens earned by traffic, fleet-wide, rounded down.";
            /// Settlements beyond a unit's debt limit.
            overuse_micros, "overused", "budgetd_overuse_tokens",
                "Costs settled beyond a unit's debt limit, fleet-wide, rounded down.";
            /// Outcomes of class account.
            account_signals, "account signals", "budgetd_account_signals",
                "Outcomes of class account (401, 402, quota used up), fleet-wide.";
            /// Admitted only because the policy is in shadow mode.
            would_be_denied, "would be denied", "", "";
        }
    };
}

/// One counter, as operators see it.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// Its name in JSON and in messages.
    pub name: &'static str,
    /// What follows the number among the notes of the status, if it is not 0; empty: not shown there.
    pub note: &'static str,
    /// The metric, without the ending that exporters add; empty: none.
    pub metric: &'static str,
    /// What that metric means.
    pub help: &'static str,
    /// Its value.
    pub get: fn(&Counters) -> i64,
}

macro_rules! declare {
    ($($(#[doc = $doc:literal])+ $name:ident, $note:literal, $metric:literal, $help:literal;)+) => {
        /// What happened since the ledger's state began.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: i64,)+
        }

        /// All counters in the order scripts keep them.
        pub const COUNTERS: [Counter; [$($note),+].len()] = [$(Counter {
            name: stringify!($name),
            note: $note,
            metric: $metric,
            help: $help,
            get: |counters| counters.$name,
        }),+];

        impl Counters {
            /// The values in the order of [`COUNTERS`].
            #[must_use]
            pub const fn to_list(&self) -> [i64; COUNTERS.len()] {
                [$(self.$name),+]
            }

            /// The inverse of [`Self::to_list`].
            #[must_use]
            pub const fn from_list(list: [i64; COUNTERS.len()]) -> Self {
                let [$($name),+] = list;
                Self { $($name),+ }
            }
        }
    };
}

with_counters!(declare);

impl Counter {
    /// It counts micro-tokens, not events.
    #[must_use]
    pub fn is_micros(&self) -> bool {
        self.name.ends_with("_micros")
    }
}

/// Adds to a counter, which stays below 2^53.
pub(super) fn bump(counter: &mut i64, amount: i64) {
    *counter = counter.saturating_add(amount).min(EXACT_MAX);
}
