//! What this replica brings to calls on ledgers that lend: identity of the store, epochs seen, heartbeats.
//!
//! A heartbeat is a call like any other that also tells the time since boot of this machine. Every call on a ledger that
//! lends brings one if the last is old enough; [`Lenders::due`] names the dependencies that nobody calls meanwhile.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use budget::{
    ids::DependencyId,
    lease::{Epoch, Ground},
};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    clock::Clock,
    store::{
        StoreError,
        ground::{Epochs, Grounds, beat},
    },
};

/// Most dependencies with heartbeats from this replica.
const BEATING_MAX: usize = 20_000;

/// What the lanes of one replica share about leases.
#[derive(Debug)]
pub(super) struct Lenders {
    grounds: Grounds,
    epochs: Epochs,
    /// When each dependency that needs heartbeats had its last from here.
    beating: Mutex<HashMap<DependencyId, Instant>>,
    clock: Clock,
    every: Duration,
}

// === impl Lenders ===

impl Lenders {
    /// With heartbeats this far apart.
    pub(super) fn new(clock: Clock, every: Duration) -> Self {
        Self { grounds: Grounds::new(false), epochs: Epochs::default(), beating: Mutex::default(), clock, every }
    }

    /// How far heartbeats are apart.
    pub(super) const fn every(&self) -> Duration {
        self.every
    }

    /// For one call to the server of this identity. `with_beat`: it is a heartbeat, whenever the last was.
    ///
    /// # Errors
    /// If the system gives no random numbers.
    pub(super) fn ground(
        &self,
        dependency: &DependencyId,
        identity: i64,
        with_beat: bool,
        now: Instant,
    ) -> Result<Ground, StoreError> {
        let beats = {
            let mut beating = self.beating.lock().unwrap_or_else(PoisonError::into_inner);
            let last = beating.get_mut(dependency);
            let old = |last: &Instant| now.saturating_duration_since(*last) >= self.every / 2;
            let beats = with_beat || last.as_deref().is_none_or(old);
            // Noted before it is answered: of the calls of one pipeline one brings it, or what lies between them would
            // look like a gain of the store's clock.
            if let Some(last) = last.filter(|_| beats) {
                *last = now;
            }
            beats
        };
        let beat = beats.then(|| beat(&self.clock));
        self.grounds.ground(identity, self.epochs.remembered(dependency), beat)
    }

    /// The call that brought `ground` was answered.
    pub(super) fn learned(
        &self,
        dependency: &DependencyId,
        ground: &Ground,
        epoch: Epoch,
        needs_beats: bool,
        now: Instant,
    ) {
        self.grounds.learned(ground, epoch);
        self.epochs.learned(dependency, epoch);
        let mut beating = self.beating.lock().unwrap_or_else(PoisonError::into_inner);
        if !needs_beats {
            beating.remove(dependency);
        } else if !beating.contains_key(dependency) && beating.len() < BEATING_MAX {
            beating.insert(dependency.clone(), now);
        }
    }

    /// Dependencies whose last heartbeat from here is too old.
    pub(super) fn due(&self, now: Instant) -> Vec<DependencyId> {
        let beating = self.beating.lock().unwrap_or_else(PoisonError::into_inner);
        let due = |last: &Instant| now.saturating_duration_since(*last) >= self.every;
        beating.iter().filter(|(_, last)| due(last)).map(|(dependency, _)| dependency.clone()).collect()
    }

    /// No more heartbeats from here: no policy applies to it any more.
    pub(super) fn forget(&self, dependency: &DependencyId) {
        self.beating.lock().unwrap_or_else(PoisonError::into_inner).remove(dependency);
    }
}

/// The identity of a server by its answer to INFO; none if that does not tell.
pub(super) fn identity(info: &str) -> Option<i64> {
    let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"))?.trim();
    // 52 bits, so that it fits a double; 0 stands for none.
    (!run_id.is_empty()).then(|| i64::try_from(xxh3_64(run_id.as_bytes()) >> 12).unwrap_or_default().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dependency(name: &str) -> DependencyId {
        DependencyId::new(name).unwrap()
    }

    #[test]
    fn a_server_is_known_by_its_run_id() {
        let info = |run_id: &str| format!("# Server\r\nredis_version:7.0.15\r\nrun_id:{run_id}\r\ntcp_port:6379\r\n");
        let first = identity(&info("0123456789abcdef0123456789abcdef01234567")).unwrap();
        assert!((1..1 << 52).contains(&first));
        assert_ne!(identity(&info("1123456789abcdef0123456789abcdef01234567")), Some(first));
        assert_eq!(identity("# Server\r\nredis_version:7.0.15\r\n"), None);
        assert_eq!(identity(&info("")), None);
    }

    #[test]
    fn heartbeats_go_to_ledgers_that_need_them_and_had_none_for_a_while() {
        let (clock, _hands) = Clock::manual(0);
        let every = Duration::from_millis(500);
        let lenders = Lenders::new(clock, every);
        let (a, b, start) = (dependency("a"), dependency("b"), Clock::instant());
        let epoch = Epoch { number: 1, id: 5 };
        let first = lenders.ground(&a, 7, false, start).unwrap();
        assert!(first.beat.is_some(), "the first call brings one");
        lenders.learned(&a, &first, epoch, true, start);
        lenders.learned(&b, &first, epoch, false, start);
        assert!(lenders.due(start + every / 2).is_empty());
        assert_eq!(lenders.ground(&a, 7, false, start + every / 4).unwrap().beat, None);
        assert_eq!(lenders.ground(&a, 7, false, start).unwrap().remembered, epoch);
        assert_eq!(lenders.due(start + every), std::slice::from_ref(&a));
        assert!(lenders.ground(&a, 7, false, start + every / 2).unwrap().beat.is_some());
        assert_eq!(lenders.ground(&a, 7, false, start + every / 2).unwrap().beat, None, "of one pipeline one");
        assert!(lenders.ground(&a, 7, true, start + every / 2).unwrap().beat.is_some());
        let second = lenders.ground(&a, 7, false, start + every).unwrap();
        lenders.learned(&a, &second, epoch, true, start + every);
        assert!(lenders.due(start + every).is_empty());
        lenders.learned(&a, &second, epoch, false, start + every);
        assert!(lenders.due(start + every * 9).is_empty());
    }
}
