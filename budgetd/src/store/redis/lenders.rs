//! What this replica brings to calls on ledgers that lend: identity of the store, epochs seen, heartbeats.
//!
//! A heartbeat is a call like any other that also tells the time since boot of this machine. Every call on a ledger that
//! lends brings one if the last is old enough; [`Lenders::due`] names the dependencies that nobody calls meanwhile.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use budget::{
    ids::DependencyId,
    lease::{Epoch, Ground, HolderId},
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

/// A replica that finds others keeping a ledger's time goes on with heartbeats so many times as far apart at most.
const BACK_OFF_MAX: u32 = 3;
/// An operator's word that no lease is out is about the server as it is when this replica starts: it holds for so long.
const WORD_LASTS: Duration = Duration::from_secs(120);

/// What the lanes of one replica share about leases.
#[derive(Debug)]
pub(super) struct Lenders {
    grounds: Grounds,
    epochs: Epochs,
    beating: Mutex<HashMap<DependencyId, Beating>>,
    clock: Clock,
    every: Duration,
    /// The first server that this replica spoke to; 0: none yet.
    first_identity: AtomicI64,
    started: Instant,
}

/// The heartbeats of one dependency from here.
#[derive(Debug)]
struct Beating {
    last: Instant,
    /// By the clock whose time heartbeats tell.
    last_boot_ms: i64,
    /// Until the next, in heartbeats.
    intervals: u32,
}

// === impl Lenders ===

impl Lenders {
    /// With heartbeats this far apart. `no_leases_out`: an operator's word, about the server that answers first.
    pub(super) fn new(clock: Clock, every: Duration, no_leases_out: bool) -> Self {
        Self {
            grounds: Grounds::new(no_leases_out),
            epochs: Epochs::default(),
            beating: Mutex::default(),
            clock,
            every,
            first_identity: AtomicI64::new(0),
            started: Clock::instant(),
        }
    }

    /// Whether an operator's word that no lease is out covers what is missing there: not what was lost since it was given.
    fn word_holds(&self, identity: i64, remembered: Epoch, now: Instant) -> bool {
        let first = self.first_identity.compare_exchange(0, identity, Relaxed, Relaxed).unwrap_or_else(|first| first);
        (first == 0 || first == identity)
            && remembered.number == 0
            && now.saturating_duration_since(self.started) < WORD_LASTS
    }

    /// A holder brings a lease of this epoch: unless it is known from here, the word does not hold any more.
    pub(super) fn presented(&self, dependency: &DependencyId, holder: &HolderId, of: Epoch) {
        if self.grounds.no_leases_out() && of != self.epochs.remembered(dependency) && self.grounds.withdraw_word() {
            tracing::warn!(
                %dependency, holder = holder.as_str(),
                "a lease is in use that this replica has not seen given; the word given at start ends, and ledgers without \
                 state begin in quarantine"
            );
        }
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
        let boot_ms = self.clock.boot_ms();
        let half_ms = i64::try_from(self.every.as_millis() / 2).unwrap_or(i64::MAX);
        let beats = {
            let mut beating = self.beating.lock().unwrap_or_else(PoisonError::into_inner);
            let last = beating.get_mut(dependency);
            let old = |beating: &Beating| {
                now.saturating_duration_since(beating.last) >= self.every / 2
                    || boot_ms.saturating_sub(beating.last_boot_ms) >= half_ms
            };
            let beats = with_beat || last.as_deref().is_none_or(old);
            // Noted before it is answered: of the calls of one pipeline one brings it, or what lies between them would
            // look like a gain of the store's clock.
            if let Some(beating) = last.filter(|_| beats) {
                beating.last = now;
                beating.last_boot_ms = boot_ms;
            }
            beats
        };
        let beat = beats.then(|| beat(&self.clock));
        let remembered = self.epochs.remembered(dependency);
        let ground = self.grounds.ground(identity, remembered, beat)?;
        Ok(Ground { fresh_store: ground.fresh_store && self.word_holds(identity, remembered, now), ..ground })
    }

    /// The call that brought `ground` was answered. `quiet_ms`: for so long nobody had called the ledger, which needs
    /// heartbeats; absent if it needs none.
    pub(super) fn learned(
        &self,
        dependency: &DependencyId,
        ground: &Ground,
        epoch: Epoch,
        quiet_ms: Option<i64>,
        now: Instant,
    ) {
        self.grounds.learned(ground, epoch);
        self.epochs.learned(dependency, epoch);
        let mut beating = self.beating.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(quiet_ms) = quiet_ms else {
            beating.remove(dependency);
            return;
        };
        let room = beating.len() < BEATING_MAX;
        match beating.get_mut(dependency) {
            // Whoever finds ledger time older than a heartbeat keeps it; others look after it less often.
            Some(beating) if ground.beat.is_some() => {
                let quiet = Duration::from_millis(u64::try_from(quiet_ms).unwrap_or(0));
                let kept_by_others = quiet < self.every / 2;
                beating.intervals = if kept_by_others { (beating.intervals + 1).min(BACK_OFF_MAX) } else { 1 };
            }
            Some(_) => {}
            None if room => {
                let last_boot_ms = self.clock.boot_ms();
                beating.insert(dependency.clone(), Beating { last: now, last_boot_ms, intervals: 1 });
            }
            None => {}
        }
    }

    /// Dependencies whose last heartbeat from here is too old.
    pub(super) fn due(&self, now: Instant) -> Vec<DependencyId> {
        let beating = self.beating.lock().unwrap_or_else(PoisonError::into_inner);
        let due = |beating: &Beating| now.saturating_duration_since(beating.last) >= self.every * beating.intervals;
        beating.iter().filter(|(_, beating)| due(beating)).map(|(dependency, _)| dependency.clone()).collect()
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
        let lenders = Lenders::new(clock, every, false);
        let (a, b, start) = (dependency("a"), dependency("b"), Clock::instant());
        let epoch = Epoch { number: 1, id: 5 };
        let first = lenders.ground(&a, 7, false, start).unwrap();
        assert!(first.beat.is_some(), "the first call brings one");
        lenders.learned(&a, &first, epoch, Some(400), start);
        lenders.learned(&b, &first, epoch, None, start);
        assert!(lenders.due(start + every / 2).is_empty());
        assert_eq!(lenders.ground(&a, 7, false, start + every / 4).unwrap().beat, None);
        assert_eq!(lenders.ground(&a, 7, false, start).unwrap().remembered, epoch);
        assert_eq!(lenders.due(start + every), std::slice::from_ref(&a));
        assert!(lenders.ground(&a, 7, false, start + every / 2).unwrap().beat.is_some());
        assert_eq!(lenders.ground(&a, 7, false, start + every / 2).unwrap().beat, None, "of one pipeline one");
        assert!(lenders.ground(&a, 7, true, start + every / 2).unwrap().beat.is_some());
        let second = lenders.ground(&a, 7, false, start + every).unwrap();
        lenders.learned(&a, &second, epoch, Some(400), start + every);
        assert!(lenders.due(start + every).is_empty());
        lenders.learned(&a, &second, epoch, None, start + every);
        assert!(lenders.due(start + every * 9).is_empty());
    }
    #[test]
    fn who_finds_others_keeping_the_time_looks_after_it_less_often() {
        let (clock, _hands) = Clock::manual(0);
        let every = Duration::from_millis(500);
        let lenders = Lenders::new(clock, every, false);
        let (a, mut now) = (dependency("a"), Clock::instant());
        let epoch = Epoch { number: 1, id: 5 };
        let ground = lenders.ground(&a, 7, false, now).unwrap();
        lenders.learned(&a, &ground, epoch, Some(0), now);
        let mut beat = |quiet_ms: i64, intervals: u32| {
            now += every * intervals;
            assert!(lenders.due(now - Duration::from_millis(1)).is_empty());
            assert_eq!(lenders.due(now), std::slice::from_ref(&a));
            let ground = lenders.ground(&a, 7, true, now).unwrap();
            lenders.learned(&a, &ground, epoch, Some(quiet_ms), now);
        };
        for (quiet_ms, intervals) in
            [(500, 1), (249, 1), (100, 2), (0, 3), (249, 3), (250, 3), (600, 1), (0, 1), (250, 2), (0, 1)]
        {
            beat(quiet_ms, intervals);
        }
    }

    /// What is missing is new only as far as the word can know: not what was lost since, nor on another server.
    #[test]
    fn a_word_is_about_the_server_at_the_start() {
        let fresh = |lenders: &Lenders, name: &str, identity, now| {
            lenders.ground(&dependency(name), identity, false, now).unwrap().fresh_store
        };
        let new = |word| Lenders::new(Clock::manual(0).0, Duration::from_millis(500), word);
        let start = Clock::instant();
        assert!(!fresh(&new(false), "a", 7, start));
        let lenders = new(true);
        assert!(fresh(&lenders, "a", 7, start) && fresh(&lenders, "b", 7, start));
        assert!(!fresh(&lenders, "b", 8, start), "another server");
        assert!(
            fresh(&lenders, "b", 7, start) && !fresh(&lenders, "b", 7, start + WORD_LASTS + Duration::from_secs(9))
        );
        let ground = lenders.ground(&dependency("a"), 7, false, start).unwrap();
        let epoch = Epoch { number: 1, id: ground.fresh_id };
        lenders.learned(&dependency("a"), &ground, epoch, Some(0), start);
        assert!(!fresh(&lenders, "a", 7, start), "seen already, so lost since");
        let holder = HolderId::new("pod").unwrap();
        lenders.presented(&dependency("a"), &holder, epoch);
        assert!(fresh(&lenders, "b", 7, start));
        lenders.presented(&dependency("b"), &holder, Epoch { number: 4, id: 2 });
        assert!(!fresh(&lenders, "b", 7, start) && !fresh(&lenders, "c", 7, start), "the word was wrong");
    }
}
