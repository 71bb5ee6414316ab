//! The client that decides by itself: it holds leases, and asks a coordinator only for what they do not cover.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use budget::{
    decision::{Attempt, Cause, Cost, Denied, DenyReason, Priority, Release, Reserve},
    holder::{Local, LocalAsk, Share},
    lease::{FallbackRules, HolderId, Timing, Usage},
};
use budget_proto::convert::{Decision, Mode};
use tokio::sync::{Semaphore, mpsc};

use crate::{
    Client, Credentials, Dependency, Error, Options,
    client::reservation_id,
    clock::{self, boot_time_ns},
    coordinators::Coordinators,
    endpoints::is_away,
    leasing::{Leased, Leasing, LeasingOptions, Standing, TooManyDependencies},
    permit::{Facts, Permit, Right, Source},
};

/// Releases that wait to be sent. More are left to the permits' own end.
const RELEASES_MAX: usize = 4_096;
/// Releases on their way at once.
const RELEASES_AT_ONCE: usize = 32;
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes a [`LeasedClient`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Builder {
    endpoints: Vec<String>,
    options: Options,
    leasing: LeasingOptions,
}

/// A client that holds leases; cheap to clone. Its background task ends with its last clone, handle and permit.
#[derive(Clone)]
pub struct LeasedClient {
    inner: Arc<Inner>,
}

/// One dependency of a [`LeasedClient`]; cheap to clone.
#[derive(Clone)]
pub struct Handle {
    leased: Arc<Leased>,
    inner: Arc<Inner>,
}

/// What is asked for.
#[derive(Clone, Debug)]
#[must_use]
pub struct Ask {
    attempt: Attempt,
    priority: Priority,
    costs: Vec<Cost>,
    max_wait_ms: i64,
    permit_ttl_ms: Option<i64>,
}

/// Why there is no permit.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refused {
    /// The budget has none: a decision, final for now.
    #[error("refused: {}", .0.reason.name())]
    Denied(Denied),
    /// The coordinator has too much to do: a refusal too, since overload must never widen a budget.
    #[error("refused: the coordinator is overloaded")]
    Overloaded,
    /// The ask, its names or its credentials are at fault.
    #[error(transparent)]
    Failed(Error),
}

/// Counters of one dependency, since this client was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Decided here.
    pub local: Usage,
    /// How the dependency stands.
    pub standing: Standing,
}

pub(crate) struct Inner {
    leasing: Leasing,
    coordinators: Coordinators,
    releases: mpsc::Sender<(Dependency, Release)>,
    releases_lost: AtomicU64,
}

// === impl Builder ===

impl Builder {
    /// Addresses of budgetd: `http://host:port`, `https://host:port` or `unix:PATH`. One is used until it fails, then the next.
    pub fn endpoints<S: Into<String>>(mut self, endpoints: impl IntoIterator<Item = S>) -> Self {
        self.endpoints = endpoints.into_iter().map(Into::into).collect();
        self
    }

    /// The holder's name, kept over restarts: all that run under one name share one fair share, so that a crash loop
    /// cannot strand the quota. Two processes that live at once should have two names. Default: a random one.
    pub fn holder_id(mut self, holder: HolderId) -> Self {
        self.leasing.holder_id = Some(holder);
        self
    }

    /// This client's weight among the holders, 1 to 1,000; 1 unless set.
    pub fn weight(mut self, weight: u16) -> Self {
        self.leasing.weight = weight;
        self
    }

    /// What is admitted while no coordinator has told the policy; by default 5 originals per second and no retries.
    pub fn fallback(mut self, fallback: FallbackRules) -> Self {
        self.leasing.fallback = fallback;
        self
    }

    /// Certificates and token.
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.options.credentials = credentials;
        self
    }

    /// Times of connections, and credentials.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Time limits of leases; those of budgetd must fit.
    pub fn timing(mut self, timing: Timing) -> Self {
        self.leasing.timing = timing;
        self
    }

    /// Most dependencies, 10,000 unless set.
    pub fn dependencies_max(mut self, most: usize) -> Self {
        self.leasing.dependencies_max = most;
        self
    }

    /// Starts the client. It connects by itself, now and whenever it must; nobody waits for that.
    ///
    /// # Errors
    /// If there is no endpoint, one has another form, or there is no tokio runtime.
    pub fn connect(self) -> Result<LeasedClient, Error> {
        clock::prepare();
        let coordinators = Coordinators::new(self.endpoints, &self.options, self.leasing.sync_timeout)?;
        let leasing = Leasing::start(coordinators.clone(), self.leasing)?;
        let (releases, queued) = mpsc::channel(RELEASES_MAX);
        tokio::spawn(release_all(coordinators.clone(), queued));
        let inner = Inner { leasing, coordinators, releases, releases_lost: AtomicU64::new(0) };
        Ok(LeasedClient { inner: Arc::new(inner) })
    }
}

// === impl Client ===

impl Client {
    /// A client that holds leases and decides by itself.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

// === impl LeasedClient ===

impl LeasedClient {
    /// A handle for one dependency. From now on its lease is renewed.
    ///
    /// # Errors
    /// If there are too many.
    pub fn dependency(&self, dependency: &Dependency) -> Result<Handle, TooManyDependencies> {
        let leased = self.inner.leasing.dependency(dependency)?;
        Ok(Handle { leased, inner: Arc::clone(&self.inner) })
    }

    pub(crate) const fn of(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    pub(crate) const fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// The holder's name.
    #[must_use]
    pub fn holder_id(&self) -> &HolderId {
        self.inner.leasing.holder_id()
    }

    /// Releases that were not sent because too many waited. Their permits end by themselves.
    #[must_use]
    pub fn releases_lost(&self) -> u64 {
        self.inner.releases_lost.load(Ordering::Relaxed)
    }

    /// Counters of every dependency.
    #[must_use]
    pub fn counts(&self) -> Vec<(Dependency, Counts)> {
        let leases = self.inner.leasing.dependencies();
        let counts = |leased: &Arc<Leased>| Counts { local: leased.share().usage(), standing: leased.standing() };
        leases.iter().map(|leased| (leased.dependency().clone(), counts(leased))).collect()
    }

    /// Gives all leases back, so that others have them at once. Whether a coordinator heard of it within the time; if
    /// not, they end by their curves.
    pub async fn leave(&self, within: Duration) -> bool {
        self.inner.leasing.leave(within).await
    }
}

impl fmt::Debug for LeasedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedClient").field("holder_id", self.holder_id()).finish_non_exhaustive()
    }
}

// === impl Ask ===

impl Ask {
    /// A first attempt.
    pub const fn original() -> Self {
        Self::attempt(Attempt::ORIGINAL)
    }

    /// A later one: its number, from 2, and its cause.
    pub const fn retry(number: u32, cause: Cause) -> Self {
        Self::attempt(Attempt::retry(number, cause))
    }

    const fn attempt(attempt: Attempt) -> Self {
        Self { attempt, priority: Priority::Default, costs: Vec::new(), max_wait_ms: 0, permit_ttl_ms: None }
    }

    /// Its class.
    pub const fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Estimated costs, each unit at most once.
    pub fn costs(mut self, costs: impl IntoIterator<Item = Cost>) -> Self {
        self.costs = costs.into_iter().collect();
        self
    }

    /// How long the start may be put off. Only a coordinator can book ahead, so an ask that may wait asks it when the
    /// lease is short.
    pub const fn max_wait_ms(mut self, ms: i64) -> Self {
        self.max_wait_ms = ms;
        self
    }

    /// Life of the permit; the policy's unless set. A lease knows only the policy's: another one asks a coordinator.
    pub const fn permit_ttl_ms(mut self, ms: i64) -> Self {
        self.permit_ttl_ms = Some(ms);
        self
    }

    fn local(&self) -> LocalAsk<'_> {
        LocalAsk { attempt: self.attempt, priority: self.priority, costs: &self.costs }
    }
}

// === impl Handle ===

impl Handle {
    /// Asks for a first attempt: by the lease at once, else a coordinator within the time.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub async fn reserve_original(&self, within: Duration) -> Result<Permit, Refused> {
        self.reserve(&Ask::original(), within).await
    }

    /// Asks for a retry: its number, from 2, and its cause.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub async fn reserve_retry(&self, number: u32, cause: Cause, within: Duration) -> Result<Permit, Refused> {
        self.reserve(&Ask::retry(number, cause), within).await
    }

    /// Asks for one attempt: by the lease at once; where that is short, a coordinator within the time; where none answers,
    /// the policy's fallback.
    ///
    /// # Errors
    /// A refusal, or what is wrong with the ask.
    pub async fn reserve(&self, ask: &Ask, within: Duration) -> Result<Permit, Refused> {
        match self.try_reserve(ask) {
            Some(decided) => decided,
            None => self.reserve_directly(ask, within).await,
        }
    }

    /// Decides by the lease alone, at once; none if a coordinator has to be asked.
    ///
    /// # Errors
    /// A refusal that no coordinator would decide otherwise.
    pub fn try_reserve(&self, ask: &Ask) -> Option<Result<Permit, Refused>> {
        if ask.permit_ttl_ms.is_some() {
            return None;
        }
        self.permit_of(self.leased.reserve(&ask.local()), Source::Lease)
    }

    async fn reserve_directly(&self, ask: &Ask, within: Duration) -> Result<Permit, Refused> {
        let reserve = Reserve {
            priority: ask.priority,
            costs: ask.costs.clone(),
            max_wait_ms: ask.max_wait_ms,
            permit_ttl_ms: ask.permit_ttl_ms,
            ..Reserve::new(reservation_id().map_err(Refused::Failed)?, ask.attempt)
        };
        match self.inner.coordinators.reserve(self.leased.dependency(), &reserve, within).await {
            Ok(reserved) => match reserved.decision {
                Decision::Denied(denied) => Err(Refused::Denied(denied)),
                Decision::Admitted(admitted) => {
                    let life_ms = admitted.start_after_ms.saturating_add(admitted.permit_ttl_ms);
                    let right = Right::Direct {
                        id: reserve.id,
                        until_ns: boot_time_ns().saturating_add(life_ms.saturating_mul(1_000_000)),
                    };
                    let source = match reserved.mode {
                        Mode::Exact | Mode::Leased | Mode::Shadow => Source::Coordinator,
                        Mode::Degraded => Source::Degraded,
                    };
                    Ok(Permit::new(
                        self.clone(),
                        right,
                        Facts {
                            attempts_left: admitted.attempts_left,
                            start_after_ms: admitted.start_after_ms,
                            would_be_denied: admitted.would_be_denied,
                            source,
                        },
                    ))
                }
            },
            Err(Error::Overloaded(_)) => Err(Refused::Overloaded),
            Err(error) if !is_away(&error) && !matches!(error, Error::DeadlinePassed) => Err(Refused::Failed(error)),
            // Nobody answers, or not in time.
            Err(_) => {
                let local = self.leased.reserve_beyond(&ask.local());
                let none = || Err(Refused::Denied(Denied::because(DenyReason::Fallback)));
                self.permit_of(local, Source::Fallback).unwrap_or_else(none)
            }
        }
    }

    fn permit_of(&self, local: Local, source: Source) -> Option<Result<Permit, Refused>> {
        match local {
            Local::Short => None,
            Local::Denied(denied) => Some(Err(Refused::Denied(denied))),
            Local::Admitted(spent) => {
                let facts = Facts {
                    attempts_left: spent.attempts_left().into(),
                    start_after_ms: 0,
                    would_be_denied: spent.would_be_denied(),
                    source: if spent.is_beyond() {
                        Source::Fallback
                    } else if source == Source::Fallback {
                        Source::Lease
                    } else {
                        source
                    },
                };
                Some(Ok(Permit::new(self.clone(), Right::Local(spent), facts)))
            }
        }
    }

    /// How the dependency stands.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.leased.standing()
    }

    /// The dependency, for naming costs.
    #[must_use]
    pub fn dependency(&self) -> &Dependency {
        self.leased.dependency()
    }

    pub(crate) fn share(&self) -> &Share {
        self.leased.share()
    }

    /// Never waits. What finds no room is left to the permit's own end.
    pub(crate) fn release_later(&self, release: Release) {
        if self.inner.releases.try_send((self.leased.dependency().clone(), release)).is_err() {
            self.inner.releases_lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("dependency", self.dependency()).finish_non_exhaustive()
    }
}

/// Sends releases, a bounded number at once, each once: a lost one is left to the permit's own end.
async fn release_all(coordinators: Coordinators, mut queued: mpsc::Receiver<(Dependency, Release)>) {
    let at_once = Arc::new(Semaphore::new(RELEASES_AT_ONCE));
    while let Some((dependency, release)) = queued.recv().await {
        let Ok(slot) = Arc::clone(&at_once).acquire_owned().await else { return };
        let coordinators = coordinators.clone();
        tokio::spawn(async move {
            let _slot = slot;
            if let Err(error) = coordinators.release(&dependency, &release, RELEASE_TIMEOUT).await {
                tracing::debug!(dependency = %dependency.id(), %error, "release was lost");
            }
        });
    }
}
