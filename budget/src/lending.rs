//! What a ledger and an agent have in common when they lend: who holds which part, what is charged for it, and how much
//! each should get.
//!
//! A ledger lends of a policy's quotas, by ledger time, and charges each grant along its curve. An agent lends of its own
//! lease, by its host's clock, and charges each sub-lease whole until it has ended, since the curve is in its lease already.
//! Both keep a [`Table`] of [`Record`]s, charge the maximum of the grants that may still be in use until a margin after
//! their steps, and choose shares by [`Table::choose`] and [`Table::clip`]. Safety is the last one alone. All sums are
//! running sums: no call looks at more than [`DUE_PER_CALL_MAX`] holders.

mod choice;
mod few;
mod lingering;
mod queue;
mod record;
mod shares;
mod table;

use crate::guard::{Guard, on};
pub use choice::MEASURE_MS_MIN;
pub(crate) use choice::{Beside, Measured, Needs, Pool, raised};
pub use lingering::LINGERING_MAX;
pub use record::HolderView;
pub(crate) use record::{Given, Record};
pub use shares::BUCKETS as SHARE_BUCKETS;
pub(crate) use table::{Held, Table, life_of};

/// Most holders whose charges step down in one call. Stepping down late is safe.
pub const DUE_PER_CALL_MAX: usize = 64;
/// Reports, which may be forged, bring no counter further, so that it can go on exactly.
pub const REPORTED_MAX: i64 = 1 << 52;

/// Who lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Ledger,
    Agent,
}

/// How a grant is charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charging {
    pub(crate) side: Side,
    /// Each step is charged so much longer than it lasts.
    pub(crate) margin_ms: i64,
}

// === impl Side ===

impl Side {
    /// Whether a line is in force that both have. Each has a guard of its own for it, so that each is shown to need it.
    fn on(self, ledgers: Guard, agents: Guard) -> bool {
        on(match self {
            Self::Ledger => ledgers,
            Self::Agent => agents,
        })
    }
}

/// Adds what a holder reports.
pub(crate) fn report(counter: i64, more: i64) -> i64 {
    counter.saturating_add(more).min(REPORTED_MAX).max(counter)
}
