//! What the simulator's oracles look at.

use super::Ledger;
use crate::lease::Amounts;

/// The sums of a ledger that lends.
#[derive(Clone, Debug)]
pub struct Probe {
    /// What direct callers share until the next call.
    pub direct: Amounts,
    /// What is charged to all holders.
    pub charged: Amounts,
    /// What may be out from before the epoch opened.
    pub unknown: Amounts,
    /// Levels of the admission and the retry bucket.
    pub levels: (i64, i64),
}

impl Ledger {
    /// None where nothing is lent.
    #[must_use]
    pub fn probe(&self) -> Option<Probe> {
        let leases = self.leases.as_ref()?;
        Some(Probe {
            direct: self.numbers.quota(),
            charged: leases.table.charged.clone(),
            unknown: leases.unknown(self.now_ms),
            levels: (self.admission.balance_micros, self.retry.balance_micros),
        })
    }
}
