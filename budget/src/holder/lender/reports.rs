//! What sub-lessees report, as the agent reports it: its own counters and theirs.

use super::Lender;
use crate::{lease::Usage, lending::report};

// === impl Lender ===

impl Lender {
    /// Adds what a report has more than the last one to what the agent reports itself. What a sub-lessee could not decide
    /// it asks the agent for, or it is refused: it counts there.
    pub(super) fn count(&mut self, more: Usage) {
        let decided = [more.retries_admitted, more.originals_denied];
        let asked = decided.into_iter().fold(more.originals_admitted, i64::saturating_add);
        let all = &mut self.reported;
        let known = self.rules.iter().flat_map(|rules| rules.units.iter().copied());
        let new = known.filter(|unit| all.units_asked.iter().all(|(id, _)| id != unit)).map(|unit| (unit, 0));
        all.units_asked = all.units_asked.iter().copied().chain(new).collect();
        *all = all.zip(&Usage { asked, ..more }, report);
    }

    /// The agent's own counters with those of its sub-lessees.
    pub(in crate::holder) fn usage(&self, own: &Usage) -> Usage {
        own.zip(&self.reported, i64::saturating_add)
    }
}
