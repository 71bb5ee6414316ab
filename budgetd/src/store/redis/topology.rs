//! The connections to Redis and what is known of its health. The one place that says which server is asked: today a
//! single one by its URL.
//!
//! A connection on which a reply is outstanding never goes back to its pool: [`Link`] takes it out when it is dropped in
//! the middle of a call, whether by a time-out, an error or a cancelled caller.

use std::{
    fmt,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    time::Duration,
};

use deadpool_redis::{
    Connection, Manager, Pool, Runtime, Timeouts,
    redis::{AsyncConnectionConfig, Cmd, Pipeline, Value, aio::ConnectionLike, cmd},
};
use tokio::sync::watch;

use super::{
    codec::Way,
    config::Config,
    facts,
    failure::{Failure, Refusal},
    format::{self, Formats},
    health::{Board, Health, State},
    keys::Keys,
    lenders,
    metrics::{ErrorKind, StoreMetrics},
    scripts::{self, By, Script},
    value,
};
use crate::{clock::Clock, store::StoreError};

/// How long the key of a probe lives.
const PROBE_TTL_MS: i64 = 60_000;

/// A Redis server (later: one of several) with its pools, health and counters. Ends its background work when dropped.
pub struct Redis {
    config: Config,
    /// One connection for each lane.
    lanes: Pool,
    /// For everything else, so that neither can starve the other.
    side: Pool,
    board: Board,
    formats: Formats,
    metrics: StoreMetrics,
    clock: Clock,
    replica: String,
}

/// A connection in use.
pub(super) struct Link {
    connection: Option<Connection>,
    /// A reply is outstanding.
    busy: bool,
    /// Of the server behind it, once it was asked.
    identity: Option<i64>,
}

// === impl Redis ===

impl Redis {
    /// Begins to look for the server, and waits for the outcome of the first attempt. That it is away is no error.
    pub async fn start(config: Config, clock: Clock) -> Arc<Self> {
        let redis = Arc::new(Self {
            lanes: pool(&config, config.lanes),
            side: pool(&config, config.side_connections),
            board: Board::new(config.failures_to_down, Clock::instant()),
            formats: Formats::default(),
            metrics: StoreMetrics::default(),
            clock,
            replica: random_id(),
            config,
        });
        redis.look().await;
        tokio::spawn(watch_over(Arc::downgrade(&redis)));
        redis
    }

    /// The store's health, to be watched.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Health> {
        self.board.subscribe()
    }

    /// What the store counts about itself.
    #[must_use]
    pub const fn metrics(&self) -> &StoreMetrics {
        &self.metrics
    }

    /// Time without the store since start.
    #[must_use]
    pub fn down_time(&self) -> Duration {
        self.board.down_time(Clock::instant())
    }

    /// Connections in use now.
    #[must_use]
    pub fn connections_in_use(&self) -> usize {
        [&self.lanes, &self.side].into_iter().map(|pool| pool.status()).fold(0, |sum, status| {
            let in_use = status.size.saturating_sub(status.available);
            sum.saturating_add(in_use)
        })
    }

    pub(super) const fn config(&self) -> &Config {
        &self.config
    }

    pub(super) const fn keys(&self) -> &Keys {
        &self.config.keys
    }

    pub(super) const fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) const fn formats(&self) -> &Formats {
        &self.formats
    }

    pub(super) fn replica(&self) -> &str {
        &self.replica
    }

    /// How scripts are to do what they do.
    pub(super) fn way(&self) -> Way {
        Way { format: self.format(), ..Way::default() }
    }

    /// The time scripts are told: a manual clock's, or an empty text for the server's own.
    pub(super) fn injected_now(&self) -> String {
        self.clock.injected_ms().map_or_else(String::new, |ms| ms.to_string())
    }

    pub(super) fn clock_is_injected(&self) -> bool {
        self.clock.injected_ms().is_some()
    }

    /// Whether calls may be sent.
    ///
    /// # Errors
    /// What to answer instead.
    pub(super) fn admit(&self) -> Result<(), StoreError> {
        self.board.admit()
    }

    pub(super) async fn lane_link(&self) -> Result<Link, Failure> {
        Link::of(&self.lanes).await
    }

    pub(super) async fn side_link(&self) -> Result<Link, Failure> {
        Link::of(&self.side).await
    }

    /// Takes note of how a call ended.
    pub(super) fn note<T>(&self, result: &Result<T, Failure>) {
        match result {
            Ok(_) => self.board.succeeded(),
            Err(failure) => self.note_failure(failure),
        }
    }

    pub(super) fn note_success(&self) {
        self.board.succeeded();
    }

    pub(super) fn note_failure(&self, failure: &Failure) {
        self.metrics.error(failure.kind);
        if failure.discard {
            self.forget_idle_connections();
        }
        // Too few connections is our own doing.
        if failure.speaks_against_the_store()
            && failure.kind != ErrorKind::PoolWait
            && self.board.failed(&failure.text, Clock::instant())
        {
            self.metrics.outages.fetch_add(1, Relaxed);
            self.forget_idle_connections();
            tracing::warn!(store = self.config.address, reason = failure.text, "store is down");
        }
    }

    /// What a later release has written is left alone: calls fail as if the store were away.
    pub(super) fn leave_if_too_new(&self) {
        let Some(found) = self.too_new() else { return };
        let reason = format::too_new(found);
        if self.board.leave(&reason, Clock::instant()) {
            self.metrics.outages.fetch_add(1, Relaxed);
            tracing::error!(store = self.config.address, reason, "store is left alone");
        }
    }

    /// Whoever stood behind an address may have been replaced: the next connections are made afresh.
    pub(super) fn forget_idle_connections(&self) {
        for pool in [&self.lanes, &self.side] {
            drop(pool.retain(|_, _| false));
        }
    }

    async fn probe(&self) -> Result<(), Failure> {
        let mut link = self.side_link().await?;
        let key = self.keys().probe();
        link.script(&scripts::PROBE, |call| {
            call.arg(&key).arg(&self.replica).arg(PROBE_TTL_MS);
        })
        .await?;
        drop(link);
        // Nothing is written before it is known in which format.
        self.make_contact().await?;
        Ok(())
    }

    /// One probe while the store counts as away.
    async fn look(&self) {
        let first = self.board.subscribe().borrow().state == State::NeverReached;
        match self.probe().await {
            Ok(()) => {
                let away_ms = u64::try_from(self.board.recovered(Clock::instant()).as_millis()).unwrap_or(u64::MAX);
                tracing::info!(store = self.config.address, away_ms, "store is up");
                if first {
                    facts::warn_about_server(self).await;
                }
            }
            Err(failure) => {
                self.metrics.error(failure.kind);
                self.forget_idle_connections();
                let news = *self.board.subscribe().borrow().reason != *failure.text;
                if news && first {
                    tracing::warn!(store = self.config.address, reason = failure.text, "store cannot be reached");
                } else {
                    tracing::debug!(store = self.config.address, reason = failure.text, "store is still away");
                }
                self.board.still_away(&failure.text);
            }
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("config", &self.config).field("replica", &self.replica).finish_non_exhaustive()
    }
}

/// Probes while the store is away, until nobody uses it any more.
async fn watch_over(redis: Weak<Redis>) {
    loop {
        let Some(present) = redis.upgrade() else { return };
        if present.board.is_up() {
            let mut health = present.board.subscribe();
            drop(present);
            if health.wait_for(|health| health.state != State::Up).await.is_err() {
                return;
            }
            continue;
        }
        let pause = Duration::from_millis(random_within(
            *present.config.probe_pause_ms.start(),
            *present.config.probe_pause_ms.end(),
        ));
        drop(present);
        tokio::time::sleep(pause).await;
        let Some(present) = redis.upgrade() else { return };
        present.look().await;
    }
}

fn pool(config: &Config, size: usize) -> Pool {
    let connection = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(config.connect_timeout))
        .set_response_timeout(Some(config.response_timeout));
    #[expect(clippy::expect_used, reason = "judged connection settings open no socket, and the runtime is named")]
    Manager::new_with_config(config.connection.clone(), connection)
        .map(|manager| {
            let timeouts = Timeouts {
                wait: Some(config.wait_timeout),
                // The connection's own time-out comes first and says more.
                create: Some(config.connect_timeout.saturating_mul(2)),
                recycle: Some(config.response_timeout),
            };
            Pool::builder(manager).max_size(size).timeouts(timeouts).runtime(Runtime::Tokio1).build()
        })
        .expect("settings were judged")
        .expect("a runtime is named")
}

fn random_id() -> String {
    let mut bytes = [0; 16];
    // Without randomness two replicas could count as one; a time still tells them apart.
    if getrandom::fill(&mut bytes).is_err() {
        bytes = u128::try_from(Clock::system().now_ms()).unwrap_or_default().to_be_bytes();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A number between the bounds, both included; the lower one if there is no randomness.
pub(super) fn random_within(low: u64, high: u64) -> u64 {
    let span = high.saturating_sub(low).saturating_add(1);
    low.saturating_add(getrandom::u64().unwrap_or_default().checked_rem(span).unwrap_or_default())
}

// === impl Link ===

impl Link {
    async fn of(pool: &Pool) -> Result<Self, Failure> {
        match pool.get().await {
            Ok(connection) => Ok(Self { connection: Some(connection), busy: false, identity: None }),
            Err(error) => Err(Failure::of_pool(&error)),
        }
    }

    /// Sends commands in one go. Error replies stand among the others.
    pub(super) async fn send(&mut self, commands: &Pipeline) -> Result<Vec<Value>, Failure> {
        let Some(connection) = &mut self.connection else {
            return Err(Failure::unexpected_reply("a link without connection"));
        };
        self.busy = true;
        let replies = connection
            .req_packed_commands(commands, 0, commands.len())
            .await
            .map_err(|error| Failure::of_connection(&error))?;
        self.busy = false;
        if replies.len() != commands.len() {
            // Whose replies they are cannot be told any more.
            self.busy = true;
            return Err(Failure { discard: true, ..Failure::unexpected_reply("not one for each command") });
        }
        Ok(replies)
    }

    /// Sends one command.
    pub(super) async fn command(&mut self, command: Cmd) -> Result<Value, Refusal> {
        let mut commands = Pipeline::with_capacity(1);
        commands.add_command(command);
        match self.send(&commands).await.map_err(Refusal::Failure)?.pop() {
            Some(Value::ServerError(error)) => Err(Refusal::of(&error)),
            Some(value) => Ok(value),
            None => Err(Refusal::Failure(Failure::unexpected_reply("none"))),
        }
    }

    /// Which server this is: as long as the connection lasts it is the same, and has lost nothing by a restart.
    pub(super) async fn identity(&mut self) -> Result<i64, Failure> {
        if let Some(identity) = self.identity {
            return Ok(identity);
        }
        let mut info = cmd("INFO");
        info.arg("server");
        let reply = self.command(info).await.map_err(|refusal| match refusal {
            Refusal::Failure(failure) => failure,
            Refusal::NoScript => Failure::unexpected_reply("NOSCRIPT to INFO"),
        })?;
        let identity = value::text(&reply).and_then(|info| lenders::identity(&info));
        self.identity = identity;
        identity.ok_or_else(|| Failure::unexpected_reply("INFO without run_id"))
    }

    /// Calls a script with one key.
    pub(super) async fn script(&mut self, script: &Script, fill: impl Fn(&mut Cmd)) -> Result<Value, Failure> {
        self.script_with_keys(script, 1, fill).await
    }

    /// Calls a script; if the server does not know it, once more by its text.
    pub(super) async fn script_with_keys(
        &mut self,
        script: &Script,
        keys: usize,
        fill: impl Fn(&mut Cmd),
    ) -> Result<Value, Failure> {
        for by in [By::Digest, By::Source] {
            let mut call = script.call(by, keys);
            fill(&mut call);
            match self.command(call).await {
                Ok(value) => return Ok(value),
                Err(Refusal::Failure(failure)) => return Err(failure),
                Err(Refusal::NoScript) => {}
            }
        }
        Err(Failure::unexpected_reply("NOSCRIPT to a call by text"))
    }

    /// Not to be used again: it leaves its pool.
    pub(super) fn discard(mut self) {
        self.busy = true;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.busy
            && let Some(connection) = self.connection.take()
        {
            drop(Connection::take(connection));
        }
    }
}
