//! Sub-leases that are taken away before their end: from a sub-lessee that an operator names, and from those whose agent was
//! fenced.

use super::{Lender, ms};
use crate::{
    guard::{Guard, on},
    lease::{Epoch, HolderId, Incarnation, SyncAsk, Timing},
    lending::Record,
};

/// Most fenced lives of an agent whose sub-leases are known as theirs.
const FENCED_MAX: usize = 8;

// === impl Lender ===

impl Lender {
    /// A new life of the agent, whose last one was fenced. What that lent stays charged to it by the coordinator, and is none
    /// of this one's.
    pub(in crate::holder) fn reincarnate(&mut self, incarnation: Incarnation, timing: &Timing) {
        let (rules, fenced) = (self.rules.take(), self.with_this_fenced());
        *self = Self { rules, fenced, ..Self::new(incarnation, timing) };
    }

    /// Lends a sub-lessee nothing from its next request on, for as long as one curve lasts. False if it is not known.
    pub(in crate::holder) fn revoke(&mut self, now_ns: i64, holder: &HolderId) -> bool {
        let curve_ms = self.latest().map_or(0, |parent| parent.curve.total_ms());
        let until_ms = ms(now_ns).saturating_add(curve_ms);
        self.table.revoke(holder, until_ms)
    }

    /// Whether a sub-lessee is to give up what it lives by even if it gets nothing instead: it is revoked, or its lease was
    /// lent by a life of the agent that was fenced. Another process lives under that incarnation and lends the same.
    pub(in crate::holder) fn takes_away(&self, now_ns: i64, record: Option<&Record>, ask: &SyncAsk) -> bool {
        let revoked = record.is_some_and(|record| record.is_revoked(ms(now_ns)));
        let fenced = ask.lease.as_ref().is_some_and(|lease| self.fenced.contains(&lease.name.epoch));
        revoked || (fenced && on(Guard::FencedSubleasesEnd))
    }

    /// The fenced lives, this one among them.
    fn with_this_fenced(&mut self) -> Vec<Epoch> {
        let mut fenced = std::mem::take(&mut self.fenced);
        if fenced.len() >= FENCED_MAX {
            fenced.remove(0);
        }
        fenced.push(self.epoch);
        fenced
    }
}
