//! The memory store's side of leases: what calls carry, heartbeats, and syncs.
//!
//! State that is there is never older than what was seen of it, since both end with the process. What an earlier process
//! has lent is unknown to this one: ledgers begin in quarantine, until an operator gives his word, or so much time has
//! passed that no lease of an earlier process can be in use.

use std::time::Duration;

use budget::{lease::NotLeased, lease::SyncAnswer, policy::CURVE_MS_MAX};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::*;

/// What the time limits of leases add to a curve is less than this.
const LIMITS_MS_MAX: i64 = CURVE_MS_MAX;

// === impl MemoryStore ===

impl MemoryStore {
    /// As it is, with an operator's word that no lease of an earlier process is in use. It is withdrawn when one turns up.
    #[must_use]
    pub fn with_no_leases_out(mut self) -> Self {
        self.grounds = Grounds::new(true);
        self
    }

    /// Brings a ledger to the present and says what the call carried. Every call compares ledger time with the time since boot:
    /// it costs one look at a clock.
    pub(super) fn begin(&self, entry: &mut Entry, now_ms: i64) -> Result<Ground, StoreError> {
        let epoch = entry.ledger.epoch();
        let ground = if epoch.number == 0 && entry.resolved.numbers.lease.is_none() {
            Ground::default()
        } else {
            let forgotten = Epoch { number: self.forgotten_epoch.load(Ordering::Relaxed), id: 0 };
            let remembered = if epoch.number == 0 { forgotten } else { Epoch::default() };
            let ground = self.grounds.ground(self.identity, remembered, Some(ground::beat(&self.clock)))?;
            Ground { fresh_store: ground.fresh_store || self.outlives_earlier_leases(), ..ground }
        };
        // The snapshot is the newest there is in this process, so there is nothing to re-read.
        let begun = entry.ledger.begin(entry.resolved.version, &entry.resolved.numbers, true, now_ms, &ground);
        debug_assert!(begun.is_ok(), "a forced call is never stale");
        self.grounds.learned(&ground, entry.ledger.epoch());
        Ok(ground)
    }

    /// Whether every lease that another process gave has ended, and every one that a forgotten ledger gave has too.
    fn outlives_earlier_leases(&self) -> bool {
        self.clock.boot_ms().saturating_sub(self.begun_ms) > CURVE_MS_MAX.saturating_add(LIMITS_MS_MAX)
    }

    /// Decides what one holder tells and asks, at once.
    ///
    /// # Errors
    /// If the policies refuse the dependency.
    pub fn sync_now(&self, dependency: &DependencyId, ask: &SyncAsk) -> Result<Synced, StoreError> {
        if let Some(lease) = ask.lease.as_ref().filter(|_| self.grounds.no_leases_out())
            && lease.name.epoch != self.epoch_of(dependency)
            && self.grounds.withdraw_word()
        {
            tracing::error!(
                dependency = %dependency, holder = ask.holder.as_str(),
                "a lease of an earlier process is in use, against the word given at start; from now on ledgers begin in \
                 quarantine"
            );
        }
        let absent = |resolved: &Resolved| {
            let answer = if resolved.numbers.lease.is_none() {
                SyncAnswer::NotLeased(NotLeased::NotPermitted)
            } else if ask.leave {
                SyncAnswer::Left
            } else {
                return None;
            };
            Some(Synced { answer, version: resolved.version, epoch: Epoch::default(), holders: 0 })
        };
        let synced = self.call(dependency, absent, |entry, ground| {
            let answer = entry.ledger.sync(ask, ground);
            let (version, epoch, holders) = (entry.ledger.version(), entry.ledger.epoch(), entry.ledger.holders());
            Synced { answer, version, epoch, holders }
        })?;
        Ok(Synced { holders: self.fallbacks.told(dependency, synced.holders), ..synced })
    }

    fn epoch_of(&self, dependency: &DependencyId) -> Epoch {
        self.shard(dependency).entries.get(dependency).map_or_else(Epoch::default, |entry| entry.ledger.epoch())
    }

    /// One heartbeat of every ledger in one shard whose time needs some; returns how many there are.
    fn beat_shard(&self, at: usize) -> usize {
        let snapshot = self.policies.snapshot();
        let mut shard = self.locked(at);
        let Shard { entries, beating, .. } = &mut *shard;
        beating.retain(|dependency| {
            let Some(entry) = entries.get_mut(dependency) else { return false };
            let _refused = self.resolve_anew(&snapshot, dependency, entry);
            let begun = self.begin(entry, self.clock.now_ms());
            begun.is_err() || entry.ledger.needs_beats()
        });
        beating.len()
    }

    /// One heartbeat of every ledger whose time needs some; returns how many there are.
    pub fn beat(&self) -> usize {
        (0..SHARDS).map(|at| self.beat_shard(at)).sum()
    }

    /// Keeps the time of ledgers with leases, for ever.
    pub async fn beats(&self) {
        let limits = self.policies.snapshot().set().timing().limits;
        let every = Duration::from_millis(u64::try_from(limits.heartbeat_ms).unwrap_or(1).max(1));
        let mut turns = interval_at(Instant::from_std(Clock::instant()) + every, every);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            for at in 0..SHARDS {
                if self.beat_shard(at) > 0 {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}
