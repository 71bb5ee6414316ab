//! The table of holders.
//!
//! Holders are found by a keyed hash of their names, so that the table stays small and nobody can choose names that meet in
//! it. Should two meet nevertheless, the later one is not leased. Whoever decides on a holder takes its record out of the
//! table and puts it back: it is looked up once, and the sums can be changed beside it.

use std::hash::BuildHasher;

use super::{DUE_PER_CALL_MAX, Leases, holders::Record, sum};
use crate::lease::{Amounts, HOLDERS_MAX, HolderId};

/// A holder that is taken out of the table.
pub(super) struct Held {
    key: u64,
    pub(super) record: Box<Record>,
}

// === impl Leases ===

impl Leases {
    pub(super) fn key(&self, holder: &HolderId) -> u64 {
        self.hashed.hash_one(holder)
    }

    pub(super) fn find_mut(&mut self, holder: &HolderId) -> Option<&mut Record> {
        let key = self.key(holder);
        self.holders.get_mut(&key).map(Box::as_mut).filter(|record| record.name == *holder)
    }

    pub(super) fn take(&mut self, holder: &HolderId) -> Option<Held> {
        let key = self.key(holder);
        let record = self.holders.remove(&key)?;
        if record.name == *holder {
            return Some(Held { key, record });
        }
        self.holders.insert(key, record);
        None
    }

    pub(super) fn put_back(&mut self, held: Option<Held>) {
        if let Some(Held { key, record }) = held {
            self.holders.insert(key, record);
        }
    }

    /// A record for a holder that has none, to be put back; none if there is no room.
    pub(super) fn enter(&mut self, holder: &HolderId, weight: i64) -> Option<Held> {
        let key = self.key(holder);
        if self.holders.len() >= HOLDERS_MAX || self.holders.contains_key(&key) {
            return None;
        }
        self.shares.add(0, weight);
        let place = self.queue.enter(key);
        Some(Held { key, record: Box::new(Record::new(holder.clone(), place, weight)) })
    }

    /// Changes a record and, by as much, the sum of what is charged.
    pub(super) fn change(&mut self, record: &mut Record, change: impl FnOnce(&mut Record)) {
        let before = record.charge();
        change(record);
        self.recharge(&before, &record.charge());
    }

    /// Replaces what is charged to a holder in the sum.
    fn recharge(&mut self, before: &Amounts, after: &Amounts) {
        self.charged = sum(&self.charged, after).zip(before, i64::saturating_sub);
        self.charged.units =
            self.charged.units.iter().filter(|unit| unit.rate != 0 || unit.burst != 0).copied().collect();
    }

    /// Steps charges down whose time has come, a bounded number of them.
    pub(super) fn step_down(&mut self, now_ms: i64) {
        let mut most = DUE_PER_CALL_MAX;
        while let Some(key) = self.queue.pop(now_ms, &mut most) {
            let mut held = self.holders.remove(&key).map(|record| Held { key, record });
            self.refresh(&mut held, now_ms);
            self.put_back(held);
        }
    }

    /// Brings the charge of one holder to the present and forgets it when nothing is left.
    pub(super) fn refresh(&mut self, held: &mut Option<Held>, now_ms: i64) {
        let Some(Held { record, .. }) = held else { return };
        let margin_ms = self.terms.margin_ms;
        self.change(record, |record| record.step_down(now_ms, margin_ms));
        let due_ms = record.next_change_ms(now_ms, margin_ms);
        self.queue.set(record.place, due_ms);
        if due_ms.is_none() {
            self.queue.leave(record.place);
            self.shares.remove(record.demand, record.weight);
            *held = None;
        }
    }
}
