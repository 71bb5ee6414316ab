//! What sub-lessees report, as the agent reports it: its own counters and theirs.

use super::Lender;
use crate::lease::{SyncAsk, Usage};

/// Reports, which may be forged, bring no counter further.
const REPORTED_MAX: i64 = 1 << 52;

// === impl Lender ===

impl Lender {
    /// Adds what a report has more than the last one to what the agent reports itself. What a sub-lessee could not decide
    /// it asks the agent for, or it is refused: it counts there.
    pub(super) fn count(&mut self, ask: &SyncAsk) {
        let Some(lessee) = self.lessees.get_mut(&ask.holder) else { return };
        let Some(life) = lessee.lives.iter_mut().find(|life| life.incarnation == ask.incarnation) else { return };
        let then = std::mem::replace(&mut life.usage, ask.usage.clone());
        let now = &ask.usage;
        let add = |sum: &mut i64, now: i64, then: i64| {
            let more = now.saturating_sub(then).max(0);
            *sum = sum.saturating_add(more).min(REPORTED_MAX).max(*sum);
            more
        };
        let all = &mut self.reported;
        let decided = [
            add(&mut all.originals_admitted, now.originals_admitted, then.originals_admitted),
            add(&mut all.retries_admitted, now.retries_admitted, then.retries_admitted),
            add(&mut all.originals_denied, now.originals_denied, then.originals_denied),
        ];
        add(&mut all.retries_denied, now.retries_denied, then.retries_denied);
        let decided = decided.into_iter().fold(0, i64::saturating_add);
        add(&mut all.asked, decided, 0);
        add(&mut all.not_sent, now.not_sent, then.not_sent);
        add(&mut all.fallback_originals, now.fallback_originals, then.fallback_originals);
        add(&mut all.fallback_retries, now.fallback_retries, then.fallback_retries);
        add(&mut all.deposited_micros, now.deposited_micros, then.deposited_micros);
        add(&mut all.overuse_micros, now.overuse_micros, then.overuse_micros);
        let known = self.rules.as_ref().map_or(&[][..], |rules| &rules.units);
        let asked_of =
            |usage: &Usage, unit| usage.units_asked.iter().find(|(id, _)| *id == unit).map_or(0, |(_, asked)| *asked);
        let mut units = std::mem::take(&mut all.units_asked).into_vec();
        for unit in known {
            let at = units.iter().position(|(id, _)| id == unit).unwrap_or_else(|| {
                units.push((*unit, 0));
                units.len().saturating_sub(1)
            });
            if let Some((_, asked)) = units.get_mut(at) {
                add(asked, asked_of(now, *unit), asked_of(&then, *unit));
            }
        }
        all.units_asked = units.into();
    }

    /// The agent's own counters with those of its sub-lessees.
    pub(in crate::holder) fn usage(&self, own: Usage) -> Usage {
        let all = &self.reported;
        let of = |unit| all.units_asked.iter().find(|(id, _)| *id == unit).map_or(0, |(_, asked)| *asked);
        Usage {
            asked: own.asked.saturating_add(all.asked),
            originals_admitted: own.originals_admitted.saturating_add(all.originals_admitted),
            retries_admitted: own.retries_admitted.saturating_add(all.retries_admitted),
            originals_denied: own.originals_denied.saturating_add(all.originals_denied),
            retries_denied: own.retries_denied.saturating_add(all.retries_denied),
            not_sent: own.not_sent.saturating_add(all.not_sent),
            fallback_originals: own.fallback_originals.saturating_add(all.fallback_originals),
            fallback_retries: own.fallback_retries.saturating_add(all.fallback_retries),
            deposited_micros: own.deposited_micros.saturating_add(all.deposited_micros),
            units_asked: own.units_asked.iter().map(|(unit, asked)| (*unit, asked.saturating_add(of(*unit)))).collect(),
            overuse_micros: own.overuse_micros.saturating_add(all.overuse_micros),
        }
    }
}
