//! Ledgers in this process: for a single node, and for tests.
//!
//! Ledgers are spread over shards, each behind a lock that is held for one step: no call waits for more than that, so
//! the store answers at once and never suspends. Names come from callers, so those that no policy names are bounded, and
//! go when they have been idle for long enough that nothing is given away by forgetting them.

mod leases;
#[cfg(test)]
mod tests;

use std::{
    collections::{BinaryHeap, HashMap, HashSet, hash_map::RandomState},
    fmt,
    future::{Future, ready},
    hash::BuildHasher,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use budget::{
    decision::{Answer, ExtendResult, ReleaseResult, Step},
    ids::DependencyId,
    lease::{Epoch, Ground, HolderId, SyncAsk, Synced},
    ledger::{HolderView, Ledger, Start, View},
};

use super::{
    Answered, LabelAt, Store, StoreError,
    fallback::{Fallbacks, Sharers},
    ground::{self, Grounds},
};
use crate::{
    clock::Clock,
    policies::{Policies, Resolved, Snapshot},
};

/// Dependencies that no policy names.
pub const UNNAMED_MAX: usize = 10_000;
/// A sweep holds the lock of one shard for as long as it looks through it.
const SHARDS: usize = 64;
/// Every ledger is looked at about this often.
const SWEEP_ALL_EVERY: Duration = Duration::from_secs(60);
/// A shard is not swept again sooner, however often it is asked for.
const SWEEP_AGAIN_MS: i64 = 1_000;
/// A ledger idle for so long is brought to the present, so that it lets go of what has ended.
const TIDY_AFTER_MS: i64 = 60_000;

/// Keeps ledgers in memory. They are gone when the process ends.
pub struct MemoryStore {
    policies: Arc<Policies>,
    clock: Clock,
    start: Start,
    unnamed_max: usize,
    unnamed: AtomicUsize,
    hasher: RandomState,
    shards: Box<[Mutex<Shard>; SHARDS]>,
    next_sweep: AtomicUsize,
    grounds: Grounds,
    identity: i64,
    /// The clock since boot when this store began.
    begun_ms: i64,
    /// The highest epoch number of all ledgers that were forgotten.
    forgotten_epoch: AtomicI64,
    fallbacks: Fallbacks,
}

#[derive(Default)]
struct Shard {
    entries: HashMap<DependencyId, Box<Entry>>,
    /// Those whose time needs heartbeats.
    beating: HashSet<DependencyId>,
    /// What those with an entry have received whose own side reports it.
    received: HashMap<DependencyId, i64>,
    swept_ms: i64,
}

/// One dependency. Its size is bounded by a test.
struct Entry {
    resolved: Arc<Resolved>,
    /// The clock's reading at the last call.
    used_ms: i64,
    ledger: Ledger,
}

// === impl MemoryStore ===

impl MemoryStore {
    /// No ledgers yet; each begins full, unless its policy permits leases.
    #[must_use]
    pub fn new(policies: Arc<Policies>, clock: Clock) -> Self {
        Self::starting(policies, clock, Start::Full)
    }

    /// As [`Self::new`], with another beginning of ledgers; for comparing stores.
    #[must_use]
    pub fn starting(policies: Arc<Policies>, clock: Clock, start: Start) -> Self {
        let fallbacks = Fallbacks::new(Arc::clone(&policies), Arc::new(Sharers::new(1)), clock.clone());
        Self {
            grounds: Grounds::new(false),
            // Any will do where the system gives none: state never outlives the process.
            identity: ground::random_id().unwrap_or(1),
            begun_ms: clock.boot_ms(),
            forgotten_epoch: AtomicI64::new(0),
            fallbacks,
            policies,
            clock,
            start,
            unnamed_max: UNNAMED_MAX,
            unnamed: AtomicUsize::new(0),
            hasher: RandomState::new(),
            shards: Box::new(std::array::from_fn(|_| Mutex::default())),
            next_sweep: AtomicUsize::new(0),
        }
    }

    fn shard(&self, dependency: &DependencyId) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(dependency.as_str());
        // Only the remainder by the number of shards counts.
        self.locked(hash as usize)
    }

    fn locked(&self, at: usize) -> MutexGuard<'_, Shard> {
        self.shards[at % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies one step at once.
    ///
    /// # Errors
    /// If the policies refuse the dependency.
    pub fn apply(&self, dependency: &DependencyId, step: &Step) -> Result<Answered, StoreError> {
        self.decide(dependency, step).map(|(answered, _)| answered)
    }

    fn decide(&self, dependency: &DependencyId, step: &Step) -> Result<(Answered, Option<LabelAt>), StoreError> {
        let absent = |resolved: &Resolved| {
            let (version, shadow) = (resolved.version, resolved.numbers.shadow);
            let answered = |answer| Answered { answer, version, shadow, degraded: false, leased: false };
            without_state(step).map(|answer| Some((answered(answer), label(resolved))))
        };
        let decided = self.call(dependency, absent, |entry, _| entry.apply(step))?;
        match (decided, step) {
            (Some((answered, label)), _) => Ok((answered, Some(label))),
            (None, Step::Reserve(ask)) => Ok((self.fallbacks.decide(dependency, ask)?, None)),
            (None, Step::Release(_) | Step::Extend(_)) => Err(StoreError::Away("it waits for an earlier one".into())),
        }
    }

    /// One call on the ledger of a dependency, brought to the present. `absent` may answer where there is no ledger;
    /// otherwise one begins.
    fn call<T>(
        &self,
        dependency: &DependencyId,
        absent: impl FnOnce(&Resolved) -> Option<T>,
        call: impl FnOnce(&mut Entry, &Ground) -> T,
    ) -> Result<T, StoreError> {
        let mut shard = self.shard(dependency);
        let Shard { entries, beating, .. } = &mut *shard;
        if let Some(entry) = entries.get_mut(dependency) {
            if !self.policies.is_current(entry.resolved.version) {
                self.resolve_anew(&self.policies.snapshot(), dependency, entry)?;
            }
            return self.call_entry(dependency, entry, beating, call);
        }
        let resolved = self.policies.snapshot().resolve(dependency).map_err(StoreError::UnknownDependency)?;
        if let Some(answer) = absent(&resolved) {
            return Ok(answer);
        }
        let mut shard = self.admit(shard, dependency, resolved.named)?;
        let Shard { entries, beating, .. } = &mut *shard;
        let now_ms = self.clock.now_ms();
        let entry = entries.entry(dependency.clone()).or_insert_with(|| {
            let ledger = Ledger::new(resolved.version, Arc::clone(&resolved.numbers), self.start, now_ms);
            Box::new(Entry { resolved, used_ms: now_ms, ledger })
        });
        self.call_entry(dependency, entry, beating, call)
    }

    fn call_entry<T>(
        &self,
        dependency: &DependencyId,
        entry: &mut Entry,
        beating: &mut HashSet<DependencyId>,
        call: impl FnOnce(&mut Entry, &Ground) -> T,
    ) -> Result<T, StoreError> {
        // Read under the lock, so that time does not step back from one call of a ledger to the next.
        let now_ms = self.clock.now_ms();
        entry.used_ms = now_ms;
        let ground = self.begin(entry, now_ms)?;
        let answer = call(entry, &ground);
        self.grounds.learned(&ground, entry.ledger.epoch());
        if entry.ledger.needs_beats() && !beating.contains(dependency) {
            beating.insert(dependency.clone());
        }
        Ok(answer)
    }

    /// Takes newer policies into account.
    fn resolve_anew(
        &self,
        snapshot: &Snapshot,
        dependency: &DependencyId,
        entry: &mut Entry,
    ) -> Result<(), StoreError> {
        if entry.resolved.version < snapshot.version() {
            let resolved = snapshot.resolve(dependency).map_err(StoreError::UnknownDependency)?;
            self.renamed(entry.resolved.named, resolved.named);
            entry.resolved = resolved;
        }
        Ok(())
    }

    /// Makes room for one more name, or refuses it.
    fn admit<'a>(
        &'a self,
        mut shard: MutexGuard<'a, Shard>,
        dependency: &DependencyId,
        named: bool,
    ) -> Result<MutexGuard<'a, Shard>, StoreError> {
        if named || self.count_unnamed() {
            return Ok(shard);
        }
        // Another shard is swept than the one held: no two locks at a time.
        drop(shard);
        self.sweep_next();
        shard = self.shard(dependency);
        if shard.entries.contains_key(dependency) || self.count_unnamed() {
            return Ok(shard);
        }
        Err(StoreError::UnknownDependency(format!(
            "dependency {:?}: no policy names it, and {} such dependencies are in use, which is the most",
            dependency.as_str(),
            self.unnamed_max
        )))
    }

    fn count_unnamed(&self) -> bool {
        let more = |unnamed| (unnamed < self.unnamed_max).then_some(unnamed + 1);
        self.unnamed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// A policy change may name a dependency, or no longer name it. The latter may exceed the bound, by as many names as
    /// a policy has at most.
    fn renamed(&self, was_named: bool, is_named: bool) {
        match (was_named, is_named) {
            (false, true) => drop(self.unnamed.fetch_sub(1, Ordering::Relaxed)),
            (true, false) => drop(self.unnamed.fetch_add(1, Ordering::Relaxed)),
            (true, true) | (false, false) => {}
        }
    }

    /// Sweeps the shard whose turn it is; returns how many ledgers went.
    pub fn sweep_next(&self) -> usize {
        let mut shard = self.locked(self.next_sweep.fetch_add(1, Ordering::Relaxed));
        let now_ms = self.clock.now_ms();
        // A clock that was set back makes the sweep wait no longer.
        if (0..SWEEP_AGAIN_MS).contains(&now_ms.saturating_sub(shard.swept_ms)) {
            return 0;
        }
        shard.swept_ms = now_ms;
        let snapshot = self.policies.snapshot();
        let before = shard.entries.len();
        let Shard { entries, received, .. } = &mut *shard;
        entries.retain(|dependency, entry| self.keeps(&snapshot, dependency, entry, now_ms));
        received.retain(|dependency, _| entries.contains_key(dependency));
        let gone = before - shard.entries.len();
        if shard.entries.capacity() > 4 * shard.entries.len().max(16) {
            shard.entries.shrink_to_fit();
        }
        gone
    }

    fn keeps(&self, snapshot: &Snapshot, dependency: &DependencyId, entry: &mut Entry, now_ms: i64) -> bool {
        // So that old policies go, and a removed rule lets its ledger go. What is refused by now goes by time.
        let _refused = self.resolve_anew(snapshot, dependency, entry);
        let idle_ms = now_ms.saturating_sub(entry.used_ms);
        if idle_ms >= TIDY_AFTER_MS && self.begin(entry, now_ms).is_err() {
            return true;
        }
        let idle_ttl_ms = entry.ledger.idle_ttl_ms();
        let keeps = idle_ttl_ms == 0 || idle_ms < idle_ttl_ms || entry.ledger.needs_beats();
        if !keeps {
            self.forgotten_epoch.fetch_max(entry.ledger.epoch().number, Ordering::Relaxed);
            if !entry.resolved.named {
                self.unnamed.fetch_sub(1, Ordering::Relaxed);
            }
        }
        keeps
    }

    /// Sweeps one shard after the other, for ever.
    pub async fn sweep(&self) {
        let mut turns = tokio::time::interval(SWEEP_ALL_EVERY / u32::try_from(SHARDS).unwrap_or(1));
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            let gone = self.sweep_next();
            if gone > 0 {
                tracing::debug!(gone, "idle dependencies forgotten");
            }
        }
    }

    /// Dependencies with state, and how many of them no policy names.
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        let all = (0..SHARDS).map(|at| self.locked(at).entries.len()).sum();
        (all, self.unnamed.load(Ordering::Relaxed))
    }

    /// The complete state of one ledger as text; for comparing stores.
    #[must_use]
    pub fn dump(&self, dependency: &DependencyId) -> Option<Vec<String>> {
        self.shard(dependency).entries.get(dependency).map(|entry| entry.ledger.dump())
    }
}

/// What a ledger without state answers, where that leaves none.
fn without_state(step: &Step) -> Option<Answer> {
    match step {
        Step::Reserve(_) => None,
        Step::Release(_) => Some(Answer::Released(ReleaseResult::Unknown)),
        Step::Extend(_) => Some(Answer::Extended(ExtendResult::Unknown)),
    }
}

fn label(resolved: &Resolved) -> LabelAt {
    LabelAt { version: resolved.version, index: resolved.label_index }
}

impl Store for MemoryStore {
    async fn step(&self, dependency: &DependencyId, step: Step, _: Instant) -> Result<Answered, StoreError> {
        self.apply(dependency, &step)
    }

    fn step_labelled(
        &self,
        dependency: &DependencyId,
        step: Step,
        _: Instant,
    ) -> impl Future<Output = Result<(Answered, Option<LabelAt>), StoreError>> + Send {
        // Nothing is left to do in the future, so that it is small.
        ready(self.decide(dependency, &step))
    }

    async fn view(&self, dependency: &DependencyId, _: Instant) -> Result<Option<View>, StoreError> {
        let shard = self.shard(dependency);
        Ok(shard.entries.get(dependency).map(|entry| entry.ledger.view(self.clock.now_ms())))
    }

    async fn known(&self, after: Option<&str>, limit: usize, _: Instant) -> Result<Vec<DependencyId>, StoreError> {
        // The smallest `limit` names: the heap's top is the one to drop.
        let mut page = BinaryHeap::with_capacity(limit.saturating_add(1).min(self.unnamed_max));
        for at in 0..SHARDS {
            for name in self.locked(at).entries.keys().filter(|name| after.is_none_or(|after| name.as_str() > after)) {
                if page.len() < limit {
                    page.push(name.clone());
                } else if page.peek().is_some_and(|last| name < last) {
                    page.pop();
                    page.push(name.clone());
                }
            }
        }
        Ok(page.into_sorted_vec())
    }

    async fn sync(&self, dependency: &DependencyId, ask: SyncAsk, _: Instant) -> Result<Synced, StoreError> {
        self.sync_now(dependency, &ask)
    }

    async fn list_holders(
        &self,
        dependency: &DependencyId,
        after: Option<&HolderId>,
        limit: usize,
        _: Instant,
    ) -> Result<Vec<HolderView>, StoreError> {
        let shard = self.shard(dependency);
        Ok(shard.entries.get(dependency).map(|entry| entry.ledger.list_holders(after, limit)).unwrap_or_default())
    }

    async fn report_received(&self, dependency: &DependencyId, attempts: i64, _: Instant) -> Result<bool, StoreError> {
        let mut shard = self.shard(dependency);
        if !shard.entries.contains_key(dependency) {
            return Ok(false);
        }
        let received = shard.received.entry(dependency.clone()).or_default();
        *received = received.saturating_add(attempts);
        Ok(true)
    }

    async fn received(&self, dependencies: &[DependencyId], _: Instant) -> Result<Vec<Option<i64>>, StoreError> {
        let of = |dependency| self.shard(dependency).received.get(dependency).copied();
        Ok(dependencies.iter().map(of).collect())
    }

    async fn revoke(&self, dependency: &DependencyId, holder: &HolderId, _: Instant) -> Result<bool, StoreError> {
        self.call(dependency, |_| Some(false), |entry, _| entry.ledger.revoke(holder))
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("len", &self.len()).finish_non_exhaustive()
    }
}

// === impl Entry ===

impl Entry {
    /// None: another store may still answer for this one, which decides nothing until then.
    fn apply(&mut self, step: &Step) -> Option<(Answered, LabelAt)> {
        if matches!(step, Step::Reserve(_)) && self.ledger.direct_wait_ms() > 0 {
            return None;
        }
        let answer = self.ledger.step(step);
        let (version, shadow) = (self.ledger.version(), self.ledger.shadow());
        Some((Answered { answer, version, shadow, degraded: false, leased: false }, label(&self.resolved)))
    }
}
