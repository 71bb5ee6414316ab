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
pub mod format;
pub mod health;
pub mod keys;
mod lane;
pub mod layout;
mod lenders;
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
    lease::{HolderId, SyncAsk, Synced},
    ledger::{HolderView, View},
};
use deadpool_redis::redis::{Cmd, Pipeline, Value, cmd};
use tokio::{
    task::{AbortHandle, JoinSet},
    time::{MissedTickBehavior, timeout_at},
};

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
    lenders::Lenders,
    queue::{Done, Queue, Waiting, Work},
    scripts::By,
};
use super::{Answered, Store, StoreError, fallback::Sharers};
use crate::{clock::Clock, policies::Policies};

/// The index of known dependencies is read again after this much time.
const KNOWN_FRESH: Duration = Duration::from_secs(1);
/// Holders shown by one call.
const HOLDERS_PER_CALL: usize = 500;
/// What a dependency has received is forgotten so long after its last report.
const RECEIVED_MEMORY_MS: i64 = 24 * 3_600_000;
/// Ledgers looked at in one go: few enough for the time that an answer may take.
const VIEWS_AT_ONCE: usize = 128;
/// Heartbeats under way at a time.
const BEATS_AT_ONCE: usize = 128;

/// A [`Store`] in Redis. Its background work ends when it is dropped.
pub struct RedisStore {
    redis: Arc<Redis>,
    lanes: Lanes,
    lenders: Arc<Lenders>,
    tasks: Vec<AbortHandle>,
    known: Mutex<Option<(Instant, Arc<[DependencyId]>)>>,
}

/// The way to the lanes.
#[derive(Clone)]
struct Lanes {
    redis: Arc<Redis>,
    queues: Arc<[Arc<Queue>]>,
}

// === impl Lanes ===

impl Lanes {
    /// A dependency always belongs to the same lane, so its steps keep their order.
    fn queue_of(&self, dependency: &DependencyId) -> Option<&Arc<Queue>> {
        let mut hasher = DefaultHasher::new();
        dependency.hash(&mut hasher);
        let lanes = u64::try_from(self.queues.len()).unwrap_or(1);
        let lane = hasher.finish().checked_rem(lanes).and_then(|lane| usize::try_from(lane).ok());
        self.queues.get(lane.unwrap_or(0))
    }

    /// Has work done by the lane of a dependency.
    async fn ask(&self, dependency: &DependencyId, work: Work, deadline: Instant) -> Result<Done, StoreError> {
        self.redis.admit()?;
        let now = Clock::instant();
        if deadline <= now {
            return Err(StoreError::DeadlinePassed);
        }
        let Some(queue) = self.queue_of(dependency) else { return Err(StoreError::Overloaded) };
        let (waiting, mut caller) = Waiting::new(work, now, deadline);
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

    /// Sends heartbeats, for ever.
    async fn beat(self, lenders: Arc<Lenders>) {
        let mut turns = tokio::time::interval(lenders.every());
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            let now = Clock::instant();
            for some in lenders.due(now).chunks(BEATS_AT_ONCE) {
                let mut beats = JoinSet::new();
                for dependency in some {
                    let (lanes, lenders, dependency) = (self.clone(), Arc::clone(&lenders), dependency.clone());
                    beats.spawn(async move {
                        let deadline = Clock::instant() + lenders.every();
                        match lanes.ask(&dependency, Work::Beat, deadline).await {
                            Ok(_) => {}
                            Err(StoreError::UnknownDependency(_)) => lenders.forget(&dependency),
                            Err(error) => tracing::debug!(%dependency, %error, "no heartbeat"),
                        }
                    });
                }
                while beats.join_next().await.is_some() {}
            }
        }
    }
}

// === impl RedisStore ===

impl RedisStore {
    /// Starts lanes and contact. `sharers` is told how many replicas there are. `no_leases_out`: an operator's word that no
    /// lease given through this server is in use.
    pub async fn start(redis: Arc<Redis>, policies: Arc<Policies>, sharers: Arc<Sharers>, no_leases_out: bool) -> Self {
        let census = Arc::new(Census::new(UNNAMED_MAX));
        let limits = policies.snapshot().set().timing().limits;
        let every = Duration::from_millis(u64::try_from(limits.heartbeat_ms).unwrap_or(1).max(1));
        let lenders = Arc::new(Lenders::new(redis.clock().clone(), every, no_leases_out));
        let contact = Contact::new(Arc::clone(&redis), sharers, Arc::clone(&census));
        contact.once().await;
        let mut tasks = vec![tokio::spawn(contact.run()).abort_handle()];
        let queues: Vec<Arc<Queue>> =
            (0..redis.config().lanes).map(|_| Arc::new(Queue::new(redis.config().queue_per_lane))).collect();
        for queue in &queues {
            let book = Book::new(Arc::clone(&census), redis.keys().clone(), Clock::instant());
            let lane =
                Lane::new(Arc::clone(&redis), Arc::clone(&policies), Arc::clone(queue), Arc::clone(&lenders), book);
            tasks.push(tokio::spawn(lane.run()).abort_handle());
        }
        let lanes = Lanes { redis: Arc::clone(&redis), queues: queues.into() };
        tasks.push(tokio::spawn(lanes.clone().beat(Arc::clone(&lenders))).abort_handle());
        Self { redis, lanes, lenders, tasks, known: Mutex::new(None) }
    }

    /// The connections, health and counters behind this store.
    #[must_use]
    pub const fn redis(&self) -> &Arc<Redis> {
        &self.redis
    }

    async fn ask_view(&self, dependency: &DependencyId) -> Result<Option<View>, Failure> {
        let mut link = self.redis.side_link().await?;
        let reply = link.script_with_keys(&scripts::VIEW, 2, |call| self.name_view(call, dependency)).await?;
        codec::read_view(reply).map_err(Failure::unexpected_reply)
    }

    fn name_view(&self, call: &mut Cmd, dependency: &DependencyId) {
        let keys = self.redis.keys().dependency(dependency);
        let [lending, ..] = keys.of_lending();
        call.arg(keys.ledger()).arg(lending).arg(self.redis.injected_now());
    }

    /// All in one go. Those that the server did not know the script for are asked for again, which tells it.
    async fn ask_views(&self, dependencies: &[DependencyId]) -> Result<Vec<Result<Option<View>, Failure>>, Failure> {
        let mut link = self.redis.side_link().await?;
        let mut calls = Pipeline::with_capacity(dependencies.len());
        for dependency in dependencies {
            let mut call = scripts::VIEW.call(By::Digest, 2);
            self.name_view(&mut call, dependency);
            calls.add_command(call);
        }
        let replies = link.send(&calls).await?;
        drop(link);
        let mut views = Vec::with_capacity(dependencies.len());
        for (dependency, reply) in dependencies.iter().zip(replies) {
            let view = if let Value::ServerError(error) = reply {
                match Refusal::of(&error) {
                    Refusal::NoScript => self.ask_view(dependency).await,
                    Refusal::Failure(failure) => Err(failure),
                }
            } else {
                codec::read_view(reply).map_err(Failure::unexpected_reply)
            };
            views.push(view);
        }
        Ok(views)
    }

    async fn ask_report(&self, dependency: &DependencyId, attempts: i64) -> Result<bool, Failure> {
        let mut link = self.redis.side_link().await?;
        let keys = self.redis.keys().dependency(dependency);
        let reply = link
            .script_with_keys(&scripts::RECEIVED, 2, |call| {
                call.arg(keys.ledger()).arg(keys.received()).arg(attempts).arg(RECEIVED_MEMORY_MS);
            })
            .await?;
        let Value::Int(counted) = reply else { return Err(Failure::unexpected_reply("neither counted nor not")) };
        Ok(counted == 1)
    }

    async fn ask_received(&self, dependencies: &[DependencyId]) -> Result<Vec<Option<i64>>, Failure> {
        let mut link = self.redis.side_link().await?;
        let mut gets = Pipeline::with_capacity(dependencies.len());
        for dependency in dependencies {
            let mut get = cmd("GET");
            get.arg(self.redis.keys().dependency(dependency).received());
            gets.add_command(get);
        }
        // What is no number was not written by us.
        let count = |reply: &Value| value::text(reply)?.parse().ok();
        Ok(link.send(&gets).await?.iter().map(count).collect())
    }

    async fn ask_holders(
        &self,
        dependency: &DependencyId,
        after: Option<&HolderId>,
        limit: usize,
    ) -> Result<Vec<HolderView>, Failure> {
        let mut link = self.redis.side_link().await?;
        let (keys, now_ms) = (self.redis.keys().dependency(dependency), self.redis.injected_now());
        let [lending, holders, ..] = keys.of_lending();
        let mut command = cmd("HKEYS");
        command.arg(&holders);
        let reply = link.command(command).await.map_err(|refusal| match refusal {
            Refusal::Failure(failure) => failure,
            Refusal::NoScript => Failure::unexpected_reply("NOSCRIPT to HKEYS"),
        })?;
        let items = value::array(reply).map_err(|_| Failure::unexpected_reply("no array of holders"))?;
        // One of the fields is no name: it is empty.
        let mut names: Vec<HolderId> =
            items.iter().filter_map(|item| HolderId::new(&value::text(item)?).ok()).collect();
        names.sort_unstable();
        let from = after.map_or(0, |after| names.partition_point(|name| name <= after));
        let mut listed = Vec::new();
        let wanted: Vec<&HolderId> = names.iter().skip(from).take(limit).collect();
        for page in wanted.chunks(HOLDERS_PER_CALL) {
            let reply = link
                .script_with_keys(&scripts::HOLDERS, 3, |call| {
                    call.arg(keys.ledger()).arg(&lending).arg(&holders).arg(&now_ms);
                    for name in page {
                        call.arg(name.as_str());
                    }
                })
                .await?;
            listed.extend(codec::read_holders(reply).map_err(Failure::unexpected_reply)?);
        }
        Ok(listed)
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
        match self.lanes.ask(dependency, Work::Step(step), deadline).await? {
            Done::Step(answered) => Ok(answered),
            other @ (Done::Sync(_) | Done::Revoked(_) | Done::Beaten) => Err(unasked(&other)),
        }
    }

    async fn view(&self, dependency: &DependencyId, deadline: Instant) -> Result<Option<View>, StoreError> {
        self.read(deadline, self.ask_view(dependency)).await
    }

    async fn views(&self, dependencies: &[DependencyId], deadline: Instant) -> Vec<Result<Option<View>, StoreError>> {
        let mut views = Vec::with_capacity(dependencies.len());
        for some in dependencies.chunks(VIEWS_AT_ONCE) {
            match self.read(deadline, self.ask_views(some)).await {
                Ok(some) => views.extend(some.into_iter().map(|view| view.map_err(|failure| failure.to_store_error()))),
                Err(error) => views.extend(some.iter().map(|_| Err(error.clone()))),
            }
        }
        views
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

    async fn sync(&self, dependency: &DependencyId, ask: SyncAsk, deadline: Instant) -> Result<Synced, StoreError> {
        if let Some(lease) = &ask.lease {
            self.lenders.presented(dependency, &ask.holder, lease.name.epoch);
        }
        match self.lanes.ask(dependency, Work::Sync(Box::new(ask)), deadline).await? {
            Done::Sync(synced) => Ok(*synced),
            other @ (Done::Step(_) | Done::Revoked(_) | Done::Beaten) => Err(unasked(&other)),
        }
    }

    async fn list_holders(
        &self,
        dependency: &DependencyId,
        after: Option<&HolderId>,
        limit: usize,
        deadline: Instant,
    ) -> Result<Vec<HolderView>, StoreError> {
        self.read(deadline, self.ask_holders(dependency, after, limit)).await
    }

    async fn report_received(
        &self,
        dependency: &DependencyId,
        attempts: i64,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        self.read(deadline, self.ask_report(dependency, attempts)).await
    }

    async fn received(&self, dependencies: &[DependencyId], deadline: Instant) -> Result<Vec<Option<i64>>, StoreError> {
        let mut counts = Vec::with_capacity(dependencies.len());
        for some in dependencies.chunks(VIEWS_AT_ONCE) {
            counts.extend(self.read(deadline, self.ask_received(some)).await?);
        }
        Ok(counts)
    }

    async fn revoke(
        &self,
        dependency: &DependencyId,
        holder: &HolderId,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        match self.lanes.ask(dependency, Work::Revoke(holder.clone()), deadline).await? {
            Done::Revoked(known) => Ok(known),
            other @ (Done::Step(_) | Done::Sync(_) | Done::Beaten) => Err(unasked(&other)),
        }
    }
}

fn unasked(done: &Done) -> StoreError {
    StoreError::Corrupt(format!("an answer to something else: {done:?}"))
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
