//! What is admitted while the store is away, by each policy's `fallback`: marked as degraded, and bounded for the whole
//! fleet.
//!
//! Only a store that is away calls for it. Overload, a deadline that has passed and corrupt state are passed on as they
//! are: none of them may loosen a budget. So is a store that was never reached, since nobody knows then how many share
//! what. Releases and extensions are passed on too: only the ledger knows what they end.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Instant,
};

use budget::{
    decision::{Reserve, Step},
    fallback::Fallback,
    ids::DependencyId,
    lease::{HolderId, SyncAsk, Synced},
    ledger::{HolderView, View},
    policy::CURVE_MS_MAX,
};

use super::{Answered, Store, StoreError};
use crate::{clock::Clock, policies::Policies};

/// Most dependencies whose fallback is remembered.
const KEPT_MAX: usize = 20_000;
/// When there is no more room, those unused for this long are forgotten. What is forgotten begins empty again, so
/// forgetting gives nothing away.
const IDLE_MS: i64 = 60_000;
/// Idle ones are looked for at most this often.
const SWEEP_EVERY_MS: i64 = 1_000;

/// Holders count for the percentage for one to two of these: as long as a default curve lasts.
const HOLDERS_WINDOW_MS: i64 = 120_000;

/// How many processes share a percentage; told by whoever counts them.
#[derive(Debug)]
pub struct Sharers(AtomicI64);

/// A store that falls back to the policy's `fallback` while the one inside is away.
pub struct WithFallback<S> {
    inner: S,
    fallbacks: Fallbacks,
}

/// The fallback of every dependency in this process.
pub struct Fallbacks {
    policies: Arc<Policies>,
    sharers: Arc<Sharers>,
    clock: Clock,
    kept: Mutex<Kept>,
}

/// The fallback of each dependency, from one outage to the next, and its holders as told last.
#[derive(Debug, Default)]
struct Kept {
    fallbacks: HashMap<DependencyId, Used>,
    holders: HashMap<DependencyId, Told>,
    swept_ms: i64,
}

#[derive(Debug)]
struct Used {
    fallback: Fallback,
    at_ms: i64,
}

/// The most holders of this window and of the one before.
#[derive(Clone, Copy, Debug)]
struct Told {
    most: i64,
    before: i64,
    since_ms: i64,
}

// === impl Sharers ===

impl Sharers {
    /// At least one, this process.
    #[must_use]
    pub fn new(count: i64) -> Self {
        Self(AtomicI64::new(count.max(1)))
    }

    /// There are so many now.
    pub fn set(&self, count: i64) {
        self.0.store(count.max(1), Relaxed);
    }

    /// As told last.
    #[must_use]
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

// === impl Fallbacks ===

impl Fallbacks {
    /// Nothing kept yet. `sharers`: the replicas; the holders of a dependency count as well.
    #[must_use]
    pub fn new(policies: Arc<Policies>, sharers: Arc<Sharers>, clock: Clock) -> Self {
        Self { policies, sharers, clock, kept: Mutex::default() }
    }

    /// A dependency has so many holders now; returns how many it had within about one curve.
    pub fn told(&self, dependency: &DependencyId, holders: i64) -> i64 {
        let now_ms = self.clock.monotonic_ms();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.told(dependency, holders, now_ms);
        kept.holders(dependency, now_ms).max(holders)
    }

    /// Decides an ask without the store.
    ///
    /// # Errors
    /// If the policies refuse the dependency.
    pub fn decide(&self, dependency: &DependencyId, ask: &Reserve) -> Result<Answered, StoreError> {
        let resolved = self.policies.snapshot().resolve(dependency).map_err(StoreError::UnknownDependency)?;
        let now_ms = self.clock.monotonic_ms();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let sharers = self.sharers.get().saturating_add(kept.holders(dependency, now_ms));
        let mut throwaway;
        let fallback = match kept.get(dependency, now_ms) {
            Some(kept) => kept,
            None => {
                throwaway = Fallback::new(now_ms);
                &mut throwaway
            }
        };
        let answer = fallback.reserve(&resolved.policy, &resolved.numbers, sharers, now_ms, ask);
        Ok(Answered {
            answer,
            version: resolved.version,
            shadow: resolved.numbers.shadow,
            degraded: true,
            leased: false,
        })
    }
}

// === impl WithFallback ===

impl<S: Store> WithFallback<S> {
    /// Stands before `inner`.
    pub fn new(inner: S, policies: Arc<Policies>, sharers: Arc<Sharers>, clock: Clock) -> Self {
        Self { inner, fallbacks: Fallbacks::new(policies, sharers, clock) }
    }

    /// The store inside.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// What decides while that is away.
    pub const fn fallbacks(&self) -> &Fallbacks {
        &self.fallbacks
    }
}

impl<S: Store> Store for WithFallback<S> {
    async fn step(&self, dependency: &DependencyId, step: Step, deadline: Instant) -> Result<Answered, StoreError> {
        let ask = match &step {
            Step::Reserve(ask) => ask.clone(),
            Step::Release(_) | Step::Extend(_) => return self.inner.step(dependency, step, deadline).await,
        };
        match self.inner.step(dependency, step, deadline).await {
            // Nobody waits for what would be decided now, so it must take nothing.
            Err(error @ (StoreError::Away(_) | StoreError::Lost(_))) if Clock::instant() >= deadline => {
                Err(error.too_late())
            }
            Err(StoreError::Away(_) | StoreError::Lost(_)) => self.fallbacks.decide(dependency, &ask),
            decided_or_not_ours @ (Ok(_)
            | Err(
                StoreError::UnknownDependency(_)
                | StoreError::NeverReached(_)
                | StoreError::Overloaded
                | StoreError::DeadlinePassed
                | StoreError::Late
                | StoreError::Refused(_)
                | StoreError::Corrupt(_),
            )) => decided_or_not_ours,
        }
    }

    async fn view(&self, dependency: &DependencyId, deadline: Instant) -> Result<Option<View>, StoreError> {
        self.inner.view(dependency, deadline).await
    }

    async fn views(&self, dependencies: &[DependencyId], deadline: Instant) -> Vec<Result<Option<View>, StoreError>> {
        self.inner.views(dependencies, deadline).await
    }

    async fn report_received(
        &self,
        dependency: &DependencyId,
        attempts: i64,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        self.inner.report_received(dependency, attempts, deadline).await
    }

    async fn received(&self, dependencies: &[DependencyId], deadline: Instant) -> Result<Vec<Option<i64>>, StoreError> {
        self.inner.received(dependencies, deadline).await
    }

    async fn known(
        &self,
        after: Option<&str>,
        limit: usize,
        deadline: Instant,
    ) -> Result<Vec<DependencyId>, StoreError> {
        self.inner.known(after, limit, deadline).await
    }

    /// A holder has a fallback of its own.
    async fn sync(&self, dependency: &DependencyId, ask: SyncAsk, deadline: Instant) -> Result<Synced, StoreError> {
        let synced = self.inner.sync(dependency, ask, deadline).await?;
        Ok(Synced { holders: self.fallbacks.told(dependency, synced.holders), ..synced })
    }

    async fn list_holders(
        &self,
        dependency: &DependencyId,
        after: Option<&HolderId>,
        limit: usize,
        deadline: Instant,
    ) -> Result<Vec<HolderView>, StoreError> {
        self.inner.list_holders(dependency, after, limit, deadline).await
    }

    async fn revoke(
        &self,
        dependency: &DependencyId,
        holder: &HolderId,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        self.inner.revoke(dependency, holder, deadline).await
    }
}

impl<S: fmt::Debug> fmt::Debug for WithFallback<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithFallback").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl fmt::Debug for Fallbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallbacks").field("sharers", &self.sharers).finish_non_exhaustive()
    }
}

// === impl Kept ===

impl Kept {
    fn told(&mut self, dependency: &DependencyId, holders: i64, now_ms: i64) {
        let room = self.holders.len() < KEPT_MAX;
        match self.holders.get_mut(dependency) {
            Some(known) => known.update(holders, now_ms),
            None if room && holders > 0 => {
                self.holders.insert(dependency.clone(), Told { most: holders, before: 0, since_ms: now_ms });
            }
            None => {}
        }
    }

    fn holders(&self, dependency: &DependencyId, now_ms: i64) -> i64 {
        let told = self.holders.get(dependency).filter(|told| now_ms.saturating_sub(told.since_ms) <= CURVE_MS_MAX);
        told.map_or(0, |told| told.most.max(told.before))
    }

    /// None if there is no room: then an empty one decides.
    fn get(&mut self, dependency: &DependencyId, now_ms: i64) -> Option<&mut Fallback> {
        if !self.fallbacks.contains_key(dependency) {
            if self.fallbacks.len() >= KEPT_MAX && now_ms.saturating_sub(self.swept_ms) >= SWEEP_EVERY_MS {
                self.swept_ms = now_ms;
                self.fallbacks.retain(|_, used| now_ms.saturating_sub(used.at_ms) < IDLE_MS);
            }
            if self.fallbacks.len() >= KEPT_MAX {
                return None;
            }
            let fresh = Used { fallback: Fallback::new(now_ms), at_ms: now_ms };
            self.fallbacks.insert(dependency.clone(), fresh);
        }
        let used = self.fallbacks.get_mut(dependency)?;
        used.at_ms = now_ms;
        Some(&mut used.fallback)
    }
}

// === impl Told ===

impl Told {
    fn update(&mut self, holders: i64, now_ms: i64) {
        let elapsed_ms = now_ms.saturating_sub(self.since_ms);
        if (0..HOLDERS_WINDOW_MS).contains(&elapsed_ms) {
            self.most = self.most.max(holders);
        } else {
            let before = if elapsed_ms < 2 * HOLDERS_WINDOW_MS { self.most } else { 0 };
            *self = Self { most: holders, before, since_ms: now_ms };
        }
    }
}

#[cfg(test)]
mod tests;
