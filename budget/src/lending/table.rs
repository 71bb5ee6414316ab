//! The table of holders, with the sums of what is charged and asked for.
//!
//! Holders are found by a keyed hash of their names, so that the table stays small and nobody can choose names that meet in
//! it. Should two meet nevertheless, the later one is not leased. Whoever decides on a holder takes its record out of the
//! table and puts it back: it is looked up once, and the sums can be changed beside it.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
};

use super::{
    Charging, DUE_PER_CALL_MAX,
    queue::Queue,
    record::{Given, HolderView, Life, Record},
    shares::Shares,
};
use crate::{
    guard::Guard,
    lease::{Amounts, HolderId, INCARNATIONS_MAX, SyncAsk},
};

/// Who holds what.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// The sum of all charges.
    pub(crate) charged: Amounts,
    /// Of the slots that are charged, those that are not only lingering.
    pub(crate) slots: i64,
    pub(crate) shares: Shares,
    pub(crate) queue: Queue,
    /// By the hash of their names.
    holders: HashMap<u64, Box<Record>>,
    /// With the keys of that hash.
    hashed: RandomState,
}

/// A holder that is taken out of the table.
pub(crate) struct Held {
    key: u64,
    pub(crate) record: Box<Record>,
}

// === impl Table ===

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.holders.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = &Record> {
        self.holders.values().map(Box::as_ref)
    }

    fn key(&self, holder: &HolderId) -> u64 {
        self.hashed.hash_one(holder)
    }

    /// Lends it nothing from its next request on, until then. False if it is not known.
    pub(crate) fn revoke(&mut self, holder: &HolderId, until_ms: i64) -> bool {
        let key = self.key(holder);
        let record = self.holders.get_mut(&key).filter(|record| record.name == *holder);
        record.map(|record| record.revoked_until_ms = until_ms).is_some()
    }

    /// Holders in the order of their names after `after`, at most `limit`.
    pub(crate) fn list(&self, after: Option<&HolderId>, limit: usize, now_ms: i64) -> Vec<HolderView> {
        let mut holders: Vec<_> =
            self.records().filter(|record| after.is_none_or(|after| record.name > *after)).collect();
        holders.sort_unstable_by_key(|record| &record.name);
        holders.into_iter().filter_map(|record| record.view(now_ms)).take(limit).collect()
    }

    pub(crate) fn take(&mut self, holder: &HolderId) -> Option<Held> {
        let key = self.key(holder);
        let record = self.holders.remove(&key)?;
        if record.name == *holder {
            return Some(Held { key, record });
        }
        self.holders.insert(key, record);
        None
    }

    pub(crate) fn put_back(&mut self, held: Option<Held>) {
        if let Some(Held { key, record }) = held {
            self.holders.insert(key, record);
        }
    }

    /// Makes sure that there is a record of the life that asks; false if there is no room. One that begins beside another
    /// is a restart, and watched for `watched_ms`.
    pub(crate) fn admit(
        &mut self,
        held: &mut Option<Held>,
        ask: &SyncAsk,
        now_ms: i64,
        watched_ms: i64,
        most: usize,
    ) -> bool {
        if life_of(held, ask).is_some() {
            return true;
        }
        match held {
            Some(held) if held.record.lives.len() >= INCARNATIONS_MAX => return false,
            Some(held) => held.record.restarted_until_ms = now_ms.saturating_add(watched_ms),
            None => *held = self.enter(&ask.holder, ask.weight, most),
        }
        let Some(held) = held else { return false };
        held.record.lives.push(Life::new(ask.incarnation, ask.counted.clone(), now_ms));
        true
    }

    /// A record for a holder that has none, to be put back; none if there is no room.
    fn enter(&mut self, holder: &HolderId, weight: i64, most: usize) -> Option<Held> {
        let key = self.key(holder);
        if self.holders.len() >= most || self.holders.contains_key(&key) {
            return None;
        }
        self.shares.add(0, weight);
        let place = self.queue.enter(key);
        Some(Held { key, record: Box::new(Record::new(holder.clone(), place, weight)) })
    }

    /// Keeps a grant beside those that may still be in use, and charges it.
    pub(crate) fn give(&mut self, record: &mut Record, ask: &SyncAsk, given: Given, charging: Charging, now_ms: i64) {
        self.change(record, |record| {
            let Some(life) = record.life_mut(ask.incarnation) else { return };
            if !charging.side.on(Guard::KeepUntilQuoted, Guard::SubleaseUntilQuoted) {
                life.grants.clear();
            }
            (life.sequence, life.nonce, life.answered) = (ask.sequence, ask.nonce, given.generation);
            let permit_ttl_ms = given.permit_ttl_ms;
            life.grants.push(given);
            life.charge_again(now_ms, charging, permit_ttl_ms);
        });
    }

    /// Drops the grants before `generation`. A holder that stops has nothing in use but permits: all of them.
    pub(crate) fn quote(
        &mut self,
        held: &mut Option<Held>,
        ask: &SyncAsk,
        generation: i64,
        now_ms: i64,
        charging: Charging,
    ) {
        let Some(Held { record, .. }) = held else { return };
        self.change(record, |record| {
            if let Some(life) = record.life_mut(ask.incarnation) {
                life.quoted(generation, now_ms, charging);
            }
        });
    }

    /// Changes a record and, by as much, the sums of what is charged.
    pub(crate) fn change(&mut self, record: &mut Record, change: impl FnOnce(&mut Record)) {
        let (before, slots_before) = (record.charge(), record.slots());
        change(record);
        self.charged = self.charged.join(&record.charge(), i64::saturating_add).zip(&before, i64::saturating_sub);
        self.charged.units =
            self.charged.units.iter().filter(|unit| unit.rate != 0 || unit.burst != 0).copied().collect();
        self.slots = self.slots.saturating_add(record.slots()).saturating_sub(slots_before);
    }

    /// Steps charges down whose time has come, a bounded number of them.
    pub(crate) fn step_down(&mut self, now_ms: i64, charging: Charging) {
        let mut most = DUE_PER_CALL_MAX;
        while let Some(key) = self.queue.pop(now_ms, &mut most) {
            let mut held = self.holders.remove(&key).map(|record| Held { key, record });
            self.refresh(&mut held, now_ms, charging);
            self.put_back(held);
        }
    }

    /// Brings the charge of one holder to the present and forgets it when nothing is left.
    pub(crate) fn refresh(&mut self, held: &mut Option<Held>, now_ms: i64, charging: Charging) {
        let Some(Held { record, .. }) = held else { return };
        self.change(record, |record| record.step_down(now_ms, charging));
        let due_ms = record.next_change_ms(now_ms, charging);
        self.queue.set(record.place, due_ms);
        if due_ms.is_none() {
            self.queue.leave(record.place);
            self.shares.remove(record.demand, record.weight);
            *held = None;
        }
    }

    /// Has the names of two holders meet: what is kept of the only one is found by the other's.
    #[cfg(test)]
    pub(crate) fn collide(&mut self, other: &HolderId) {
        let (_, record) = self.holders.drain().next().unwrap();
        self.holders.insert(self.key(other), record);
    }
}

/// The life that asks.
pub(crate) fn life_of<'a>(held: &'a mut Option<Held>, ask: &SyncAsk) -> Option<&'a mut Life> {
    held.as_mut()?.record.life_mut(ask.incarnation)
}
