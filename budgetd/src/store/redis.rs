//! Ledgers in Redis or Valkey, exact for any number of replicas: a ledger is changed only by a script, in one atomic step.
//!
//! ```text
//! step ─► queue ─► lane ─► pipeline: one script call for each dependency ─► Redis
//!           │ bounded   └─ owns a connection; what arrives meanwhile gathers
//! view, known, policies, contact ─► side connections ─► Redis
//! ```
//!
//! Nothing here waits without bound: a caller until its deadline, a call until the response time-out, a queue until it is
//! full. After failures in a row the store counts as down; then calls fail at once and probes look for its recovery.

mod census;
pub mod codec;
pub mod config;
mod contact;
mod facts;
mod failure;
pub mod health;
pub mod keys;
mod lane;
pub mod metrics;
mod queue;
pub mod repository;
pub mod scripts;
mod topology;
mod value;

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use budget::{
    decision::Step,
    ids::DependencyId,
    lease::{Epoch, HolderId, NotLeased, SyncAnswer, SyncAsk, Synced},
    ledger::{HolderView, View},
};
use deadpool_redis::redis::cmd;
use tokio::{task::AbortHandle, time::timeout_at};

pub use self::{
    census::UNNAMED_MAX,
    config::{Config, InvalidConfig, Settings},
    health::{Health, State},
    metrics::StoreMetrics,
    repository::RedisRepository,
    topology::Redis,
};
use self::{
    census::{Book, Census},
    contact::Contact,
    failure::{Failure, Refusal},
    lane::Lane,
    queue::{Queue, Waiting},
};
use super::{Answered, Store, StoreError, fallback::Sharers};
use crate::{clock::Clock, policies::Policies};

/// The index of known dependencies is read again after this much time.
const KNOWN_FRESH: Duration = Duration::from_secs(1);

/// A [`Store`] in Redis. Its background work ends when it is dropped.
pub struct RedisStore {
    redis: Arc<Redis>,
    policies: Arc<Policies>,
    queues: Vec<Arc<Queue>>,
    tasks: Vec<AbortHandle>,
    known: Mutex<Option<(Instant, Arc<[DependencyId]>)>>,
}

// === impl RedisStore ===

impl RedisStore {
    /// Starts lanes and contact. `sharers` is told how many replicas there are.
    pub async fn start(redis: Arc<Redis>, policies: Arc<Policies>, sharers: Arc<Sharers>) -> Self {
        let census = Arc::new(Census::new(UNNAMED_MAX));
        let contact = Contact::new(Arc::clone(&redis), sharers, Arc::clone(&census));
        contact.once().await;
        let mut tasks = vec![tokio::spawn(contact.run()).abort_handle()];
        let queues: Vec<Arc<Queue>> =
            (0..redis.config().lanes).map(|_| Arc::new(Queue::new(redis.config().queue_per_lane))).collect();
        for queue in &queues {
            let book = Book::new(Arc::clone(&census), redis.keys().clone(), Clock::instant());
            let lane = Lane::new(Arc::clone(&redis), Arc::clone(&policies), Arc::clone(queue), book);
            tasks.push(tokio::spawn(lane.run()).abort_handle());
        }
        Self { redis, policies, queues, tasks, known: Mutex::new(None) }
    }

    /// The connections, health and counters behind this store.
    #[must_use]
    pub const fn redis(&self) -> &Arc<Redis> {
        &self.redis
    }

    /// A dependency always belongs to the same lane, so its steps keep their order.
    fn queue_of(&self, dependency: &DependencyId) -> Option<&Arc<Queue>> {
        let mut hasher = DefaultHasher::new();
        dependency.hash(&mut hasher);
        let lanes = u64::try_from(self.queues.len()).unwrap_or(1);
        let lane = hasher.finish().checked_rem(lanes).and_then(|lane| usize::try_from(lane).ok());
        self.queues.get(lane.unwrap_or(0))
    }

    async fn ask_view(&self, dependency: &DependencyId) -> Result<Option<View>, Failure> {
        let mut link = self.redis.side_link().await?;
        let (key, now_ms) = (self.redis.keys().dependency(dependency).ledger(), self.redis.injected_now());
        let reply = link
            .script(&scripts::VIEW, |call| {
                call.arg(&key).arg(&now_ms);
            })
            .await?;
        codec::read_view(reply).map_err(Failure::unexpected_reply)
    }

    async fn ask_known(&self) -> Result<Arc<[DependencyId]>, Failure> {
        let mut link = self.redis.side_link().await?;
        let mut command = cmd("ZRANGE");
        command.arg(self.redis.keys().known()).arg(0).arg(contact::NAMES_MAX);
        let reply = link.command(command).await.map_err(|refusal| match refusal {
            Refusal::Failure(failure) => failure,
            Refusal::NoScript => Failure::unexpected_reply("NOSCRIPT to ZRANGE"),
        })?;
        let items = value::array(reply).map_err(|_| Failure::unexpected_reply("no array of names"))?;
        // What is no name was not written by us.
        let mut names: Vec<DependencyId> =
            items.iter().filter_map(|item| DependencyId::new(&value::text(item)?).ok()).collect();
        names.sort_unstable();
        Ok(names.into())
    }

    /// Bounds a read by the caller's deadline. Dropping it in the middle costs the connection, nothing else.
    async fn read<T>(
        &self,
        deadline: Instant,
        read: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, StoreError> {
        self.redis.admit()?;
        let Ok(result) = timeout_at(deadline.into(), read).await else { return Err(StoreError::DeadlinePassed) };
        self.redis.note(&result);
        result.map_err(|failure| failure.to_store_error())
    }
}

impl Store for RedisStore {
    async fn step(&self, dependency: &DependencyId, step: Step, deadline: Instant) -> Result<Answered, StoreError> {
        self.redis.admit()?;
        let now = Clock::instant();
        if deadline <= now {
            return Err(StoreError::DeadlinePassed);
        }
        let Some(queue) = self.queue_of(dependency) else { return Err(StoreError::Overloaded) };
        let (waiting, mut caller) = Waiting::new(step, now, deadline);
        let metrics = self.redis.metrics();
        // Counted first: its lane may be done with it before this task goes on.
        metrics.queue_depth.fetch_add(1, Relaxed);
        queue.push(dependency, waiting).inspect_err(|error| {
            metrics.queue_depth.fetch_sub(1, Relaxed);
            if matches!(error, StoreError::Overloaded) {
                metrics.overloaded.fetch_add(1, Relaxed);
            }
        })?;
        match timeout_at(deadline.into(), &mut caller.reply).await {
            Ok(Ok(Err(error))) if Clock::instant() >= deadline => Err(error.too_late()),
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(StoreError::Lost("the lane has ended".to_owned())),
            Err(_) if caller.withdraw() => Err(StoreError::DeadlinePassed),
            Err(_) => Err(StoreError::Late),
        }
    }

    async fn view(&self, dependency: &DependencyId, deadline: Instant) -> Result<Option<View>, StoreError> {
        self.read(deadline, self.ask_view(dependency)).await
    }

    async fn known(
        &self,
        after: Option<&str>,
        limit: usize,
        deadline: Instant,
    ) -> Result<Vec<DependencyId>, StoreError> {
        let now = Clock::instant();
        let fresh = |cached: &Option<(Instant, Arc<[DependencyId]>)>| {
            let (at, names) = cached.as_ref()?;
            (now.saturating_duration_since(*at) < KNOWN_FRESH).then(|| Arc::clone(names))
        };
        let cached = fresh(&self.known.lock().unwrap_or_else(PoisonError::into_inner));
        let names = match cached {
            Some(names) => names,
            None => {
                let names = self.read(deadline, self.ask_known()).await?;
                *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Arc::clone(&names)));
                names
            }
        };
        let from = after.map_or(0, |after| names.partition_point(|name| name.as_str() <= after));
        Ok(names.iter().skip(from).take(limit).cloned().collect())
    }

    // The scripts know no leases yet: whatever a policy permits, holders are told to use Reserve.

    async fn sync(&self, dependency: &DependencyId, _: SyncAsk, _: Instant) -> Result<Synced, StoreError> {
        let resolved = self.policies.snapshot().resolve(dependency).map_err(StoreError::UnknownDependency)?;
        let answer = SyncAnswer::NotLeased(NotLeased::NotPermitted);
        Ok(Synced { answer, version: resolved.version, epoch: Epoch::default(), holders: 0 })
    }

    async fn list_holders(
        &self,
        _: &DependencyId,
        _: Option<&HolderId>,
        _: usize,
        _: Instant,
    ) -> Result<Vec<HolderView>, StoreError> {
        Ok(Vec::new())
    }

    async fn revoke(&self, _: &DependencyId, _: &HolderId, _: Instant) -> Result<bool, StoreError> {
        Ok(false)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("redis", &self.redis).finish_non_exhaustive()
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}
