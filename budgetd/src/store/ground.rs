//! What every call on a ledger carries where leases are permitted, as far as the calling replica has to bring it.
//!
//! A call is given [`Grounds::ground`], with the epoch that [`Epochs`] remembers, the identity of the store that it goes
//! to, and, for a heartbeat, [`beat`]. When it is answered, [`Grounds::learned`] and [`Epochs::learned`] are told the
//! ledger's epoch. So state that is older than what a replica has seen never passes for the present.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
    },
};

use budget::{
    ids::DependencyId,
    lease::{Epoch, Ground},
};

use super::StoreError;
use crate::clock::Clock;

/// Most dependencies whose epoch is remembered: as many as a store has with state.
const REMEMBERED_MAX: usize = 20_000;
/// Identities and ids of epochs are random in this many bits.
const ID_BITS: u32 = 52;

/// What this replica brings to calls on all ledgers.
#[derive(Debug)]
pub struct Grounds {
    /// For the next epoch that a call opens; 0: to be drawn.
    fresh_id: AtomicI64,
    no_leases_out: AtomicBool,
}

/// The highest epoch of each dependency that this replica has seen in a store it shares with others.
#[derive(Debug, Default)]
pub struct Epochs(Mutex<HashMap<DependencyId, Epoch>>);

// === impl Grounds ===

impl Grounds {
    /// `no_leases_out`: an operator's word that no lease of an earlier life of the store is in use any more.
    #[must_use]
    pub const fn new(no_leases_out: bool) -> Self {
        Self { fresh_id: AtomicI64::new(0), no_leases_out: AtomicBool::new(no_leases_out) }
    }

    /// For one call. `remembered` is the default for a ledger that cannot be older than what was seen of it.
    ///
    /// # Errors
    /// If the system gives no random numbers.
    pub fn ground(&self, identity: i64, remembered: Epoch, beat: Option<(i64, i64)>) -> Result<Ground, StoreError> {
        let mut fresh_id = self.fresh_id.load(Relaxed);
        if fresh_id == 0 {
            fresh_id = random_id()?;
            self.fresh_id.store(fresh_id, Relaxed);
        }
        Ok(Ground { identity, remembered, fresh_id, fresh_store: self.no_leases_out(), beat })
    }

    /// The call that brought `ground` was answered from this epoch.
    pub fn learned(&self, ground: &Ground, epoch: Epoch) {
        if epoch.number > 0 && epoch.id == ground.fresh_id {
            // Another call may have used it up already; ids need not differ from ledger to ledger.
            let _replaced = self.fresh_id.compare_exchange(ground.fresh_id, 0, Relaxed, Relaxed);
        }
    }

    /// Whether an operator's word holds that no lease is out.
    pub fn no_leases_out(&self) -> bool {
        self.no_leases_out.load(Relaxed)
    }

    /// A lease turned up: the word was wrong. True for the first time.
    pub fn withdraw_word(&self) -> bool {
        self.no_leases_out.swap(false, Relaxed)
    }
}

// === impl Epochs ===

impl Epochs {
    /// The highest seen; number 0 if there is none.
    pub fn remembered(&self, dependency: &DependencyId) -> Epoch {
        let epochs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        epochs.get(dependency).copied().unwrap_or_default()
    }

    /// The ledger of `dependency` answered from this epoch.
    pub fn learned(&self, dependency: &DependencyId, epoch: Epoch) {
        if epoch.number == 0 {
            return;
        }
        let mut epochs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = epochs.len() < REMEMBERED_MAX;
        match epochs.get_mut(dependency) {
            Some(known) if epoch.supersedes(*known) => *known = epoch,
            // Where there is no room, holders still remember it, and bring it along.
            Some(_) => {}
            None if room => {
                epochs.insert(dependency.clone(), epoch);
            }
            None => {}
        }
    }
}

/// Boot id and time since boot of this machine.
#[must_use]
pub fn beat(clock: &Clock) -> (i64, i64) {
    (Clock::boot_id(), clock.boot_ms())
}

/// Random, from 1, in 52 bits.
///
/// # Errors
/// If the system gives no random numbers.
pub fn random_id() -> Result<i64, StoreError> {
    let random = getrandom::u64().map_err(|error| StoreError::Away(format!("no random numbers: {error}")))?;
    Ok(i64::try_from(random >> (u64::BITS - ID_BITS)).unwrap_or_default().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(number: i64, id: i64) -> Epoch {
        Epoch { number, id }
    }

    #[test]
    fn an_id_is_used_for_one_epoch_only() {
        let grounds = Grounds::new(false);
        let first = grounds.ground(7, epoch(2, 3), None).unwrap();
        assert_eq!((first.identity, first.remembered, first.fresh_store, first.beat), (7, epoch(2, 3), false, None));
        assert!((1..1 << ID_BITS).contains(&first.fresh_id));
        grounds.learned(&first, epoch(2, 3));
        assert_eq!(grounds.ground(7, Epoch::default(), None).unwrap().fresh_id, first.fresh_id, "not used");
        grounds.learned(&first, epoch(3, first.fresh_id));
        let second = grounds.ground(7, Epoch::default(), Some((1, 2))).unwrap();
        assert_ne!(second.fresh_id, first.fresh_id);
        assert_eq!(second.beat, Some((1, 2)));
        grounds.learned(&first, epoch(3, first.fresh_id));
        assert_eq!(grounds.ground(7, Epoch::default(), None).unwrap().fresh_id, second.fresh_id);
    }

    #[test]
    fn a_word_holds_until_it_is_withdrawn() {
        let grounds = Grounds::new(true);
        assert!(grounds.ground(1, Epoch::default(), None).unwrap().fresh_store);
        assert!(grounds.withdraw_word() && !grounds.withdraw_word());
        assert!(!grounds.ground(1, Epoch::default(), None).unwrap().fresh_store);
    }

    #[test]
    fn the_highest_epoch_is_remembered_for_a_bounded_number_of_dependencies() {
        let epochs = Epochs::default();
        let dependency = |number: usize| DependencyId::new(&format!("d-{number}")).unwrap();
        for seen in [epoch(0, 0), epoch(3, 1), epoch(2, 9)] {
            epochs.learned(&dependency(0), seen);
        }
        assert_eq!(epochs.remembered(&dependency(0)), epoch(3, 1));
        epochs.learned(&dependency(0), epoch(3, 5));
        assert_eq!(epochs.remembered(&dependency(0)), epoch(3, 5));
        for number in 1..REMEMBERED_MAX + 5 {
            epochs.learned(&dependency(number), epoch(1, 1));
        }
        assert_eq!(epochs.remembered(&dependency(REMEMBERED_MAX + 1)), Epoch::default());
        assert_eq!(epochs.remembered(&dependency(1)), epoch(1, 1));
    }
}
