//! Leases of many dependencies, held by one background task: all I/O is there, decisions are made by whoever asks.
//!
//! [`Leasing`] is for whoever speaks to a coordinator in a way of its own; the [client](crate::LeasedClient) is the usual
//! one. The task ends when the last clone is dropped.

mod driver;
mod lending;

use std::{
    borrow::Borrow,
    collections::HashSet,
    future::Future,
    hash::{Hash, Hasher},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, Ordering},
    },
    time::Duration,
};

use budget::{
    holder::{Holder, Local, LocalAsk, Share},
    ids::DependencyId,
    lease::{FallbackRules, HolderId, Incarnation, LocalOriginals, SyncAsk, Timing},
    units::MICROS_PER_TOKEN,
};
use budget_proto::{UnitNames, convert::SyncReply};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::{Dependency, Error, clock::boot_time_ns};
use driver::{Driver, Machine};

/// Life of a permit until a policy is told: that of a policy which says nothing.
const PERMIT_TTL_MS: u32 = 60_000;
/// Calls that wait for the background task.
const COMMANDS_MAX: usize = 16;

/// One dependency's part of a sync message.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Which, with the names of all its units.
    pub dependency: Dependency,
    /// What is told and asked.
    pub ask: Box<SyncAsk>,
}

/// Who grants leases.
pub trait Coordinator: Send + Sync + 'static {
    /// Sends asks of one incarnation, at most [`SYNC_BATCH_MAX`](budget::lease::SYNC_BATCH_MAX), and returns as many
    /// answers in their order.
    ///
    /// It is dropped when it takes too long: what was asked for is unknown then, and asked again.
    fn sync(&self, asks: &[Asked]) -> impl Future<Output = Vec<Result<SyncReply, Error>>> + Send;
}

/// How leases are held.
#[derive(Clone, Debug)]
pub struct LeasingOptions {
    /// The holder's name, kept over restarts: all that run under one name share one fair share. Absent: a random one.
    pub holder_id: Option<HolderId>,
    /// Weight among the holders, 1 to 1,000.
    pub weight: u16,
    /// Time limits of the protocol.
    pub timing: Timing,
    /// How long one sync may take.
    pub sync_timeout: Duration,
    /// What is admitted while no coordinator has told the policy: by default 5 originals per second and no retries.
    pub fallback: FallbackRules,
    /// Most dependencies.
    pub dependencies_max: usize,
    /// A dependency that nobody has asked about for so long, and of which nobody keeps a handle or a permit, is given back
    /// and forgotten: names that come and go leave room for others.
    pub forget_after: Duration,
    /// Whether parts of the leases are lent on, by [`Leasing::lend`].
    pub lends: bool,
}

/// How a dependency stands here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Standing {
    /// No lease yet, or no longer: a coordinator is asked each time, and the fallback decides while none answers.
    Unleased = 0,
    /// A lease is in force and the coordinator answers.
    Leased = 1,
    /// A lease is in force along its curve; the coordinator does not answer.
    Degraded = 2,
    /// A coordinator is asked each time: leases are not permitted, or the share is too small to be of use.
    Direct = 3,
    /// No lease, and the coordinator does not answer: the fallback decides.
    Fallback = 4,
}

/// Leases of any number of dependencies; cheap to clone.
#[derive(Clone, Debug)]
pub struct Leasing {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
}

/// One dependency: decides as long as the background task lives.
#[derive(Debug)]
pub struct Leased {
    dependency: Dependency,
    share: Arc<Share>,
    alive_until_ns: Arc<AtomicI64>,
    permit_ttl_ms: AtomicU32,
    is_shadow: AtomicBool,
    standing: AtomicU8,
    /// Names of the dependency's units and of all that were ever told.
    known: Mutex<Arc<UnitNames>>,
    /// Only the background task locks it.
    machine: Mutex<Machine>,
}

/// A dependency to be found by its name.
#[derive(Debug)]
struct Named(Arc<Leased>);

// With the share, the name and the entries of sets this is what a dependency costs.
const _: () = assert!(size_of::<Leased>() <= 352);

/// What handles and the background task have in common.
#[derive(Debug)]
struct Shared {
    options: LeasingOptions,
    holder: HolderId,
    /// Of the next dependency that is named: another one after some were forgotten, since a coordinator may remember these
    /// longer.
    incarnation: Mutex<Incarnation>,
    leases: RwLock<HashSet<Named>>,
    /// Dependencies that the task has not taken over yet.
    new: Mutex<Vec<Arc<Leased>>>,
    timing: Arc<Timing>,
    /// Without the task nobody renews or is fenced: a forked child, or a runtime that is stuck, decides nothing after
    /// this time.
    alive_until_ns: Arc<AtomicI64>,
    /// A coordinator has told something.
    told: Notify,
}

#[derive(Debug)]
enum Command {
    /// There are new holders.
    Wake,
    /// Give all leases back and say so.
    Leave(oneshot::Sender<()>),
    Lend(lending::Lend),
    List(lending::List),
    Revoke(lending::Revoke),
}

/// There are [`LeasingOptions::dependencies_max`] already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {0} dependencies already, the most that this client was made for")]
pub struct TooManyDependencies(pub usize);

// === impl LeasingOptions ===

impl Default for LeasingOptions {
    fn default() -> Self {
        Self {
            holder_id: None,
            weight: 1,
            timing: Timing::default(),
            sync_timeout: Duration::from_secs(1),
            fallback: FallbackRules {
                originals: LocalOriginals::Rate(5 * MICROS_PER_TOKEN),
                retries_earned: false,
                units: Box::default(),
            },
            dependencies_max: 10_000,
            forget_after: Duration::from_secs(3_600),
            lends: false,
        }
    }
}

// === impl Standing ===

impl Standing {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 5] = [Self::Unleased, Self::Leased, Self::Degraded, Self::Direct, Self::Fallback];

    /// The name in logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unleased => "unleased",
            Self::Leased => "leased",
            Self::Degraded => "degraded",
            Self::Direct => "direct",
            Self::Fallback => "fallback",
        }
    }
}

// === impl Leasing ===

impl Leasing {
    /// Starts the background task. Nothing is asked before a dependency is named.
    ///
    /// # Errors
    /// If there is no tokio runtime, or no random bytes.
    pub fn start<C: Coordinator>(coordinator: C, options: LeasingOptions) -> Result<Self, Error> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let incarnation = random_incarnation()?;
        let holder = match &options.holder_id {
            Some(holder) => holder.clone(),
            None => HolderId::new(&format!("{:?}", random_incarnation()?))
                .map_err(|error| Error::NoRandomness(error.to_string()))?,
        };
        let shared = Arc::new(Shared {
            timing: Arc::new(options.timing),
            options,
            holder,
            incarnation: Mutex::new(incarnation),
            leases: RwLock::default(),
            new: Mutex::default(),
            alive_until_ns: Arc::new(AtomicI64::new(i64::MIN)),
            told: Notify::new(),
        });
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let driver = Driver::new(coordinator, Arc::clone(&shared), received);
        driver.tell_alive(boot_time_ns());
        runtime.spawn(driver.run());
        Ok(Self { shared, commands })
    }

    /// The leases of one dependency, from now on held until nobody has kept or used what is returned for long.
    ///
    /// # Errors
    /// If there are too many.
    pub fn dependency(&self, dependency: &Dependency) -> Result<Arc<Leased>, TooManyDependencies> {
        let shared = &self.shared;
        if let Some(leased) = self.find(dependency.id()) {
            return Ok(leased);
        }
        let mut leases = shared.leases.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(Named(leased)) = leases.get(dependency.id()) {
            return Ok(Arc::clone(leased));
        }
        let most = shared.options.dependencies_max;
        if leases.len() >= most {
            return Err(TooManyDependencies(most));
        }
        let (options, now_ns) = (&shared.options, boot_time_ns());
        let holder = Holder::new(
            shared.holder.clone(),
            *lock(&shared.incarnation),
            options.weight.clamp(1, 1_000).into(),
            Arc::clone(&shared.timing),
            options.fallback.clone(),
            // Neither leases nor budgets depend on it: it spreads the times of sending.
            random_u64(),
            now_ns,
        );
        let holder = if options.lends { holder.lending() } else { holder };
        let leased = Arc::new(Leased {
            dependency: dependency.clone(),
            share: Arc::clone(holder.share()),
            alive_until_ns: Arc::clone(&shared.alive_until_ns),
            permit_ttl_ms: AtomicU32::new(PERMIT_TTL_MS),
            is_shadow: AtomicBool::new(false),
            standing: AtomicU8::new(Standing::Unleased as u8),
            known: Mutex::new(Arc::clone(dependency.shared_units())),
            machine: Mutex::new(Machine::new(holder, now_ns)),
        });
        leases.insert(Named(Arc::clone(&leased)));
        lock(&shared.new).push(Arc::clone(&leased));
        // If the queue is full it wakes anyway.
        let _ = self.commands.try_send(Command::Wake);
        Ok(leased)
    }

    /// The lease of a dependency that was named before.
    #[must_use]
    pub fn find(&self, dependency: &DependencyId) -> Option<Arc<Leased>> {
        self.shared.find(dependency)
    }

    /// All dependencies named so far.
    #[must_use]
    pub fn dependencies(&self) -> Vec<Arc<Leased>> {
        let leases = self.shared.leases.read().unwrap_or_else(PoisonError::into_inner);
        leases.iter().map(|Named(leased)| Arc::clone(leased)).collect()
    }

    /// The holder's name.
    #[must_use]
    pub fn holder_id(&self) -> &HolderId {
        &self.shared.holder
    }

    /// Gives all leases back, so that others have them at once. Nothing is leased afterwards. Whether the coordinator
    /// heard of it within the time; if not, the leases end by their curves.
    pub async fn leave(&self, within: Duration) -> bool {
        let (done, left) = oneshot::channel();
        let leaving = async { self.commands.send(Command::Leave(done)).await.is_ok() && left.await.is_ok() };
        tokio::time::timeout(within, leaving).await.unwrap_or(false)
    }
}

// === impl Shared ===

impl Shared {
    fn find(&self, dependency: &DependencyId) -> Option<Arc<Leased>> {
        let leases = self.leases.read().unwrap_or_else(PoisonError::into_inner);
        leases.get(dependency).map(|Named(leased)| Arc::clone(leased))
    }
}

// === impl Named ===

impl Borrow<DependencyId> for Named {
    fn borrow(&self) -> &DependencyId {
        self.0.dependency.id()
    }
}

impl Hash for Named {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.dependency.id().hash(state);
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.0.dependency.id() == other.0.dependency.id()
    }
}

impl Eq for Named {}

// === impl Leased ===

impl Leased {
    /// Decides by the lease alone, without waiting.
    #[inline]
    pub fn reserve(&self, ask: &LocalAsk<'_>) -> Local {
        let now_ns = boot_time_ns();
        if now_ns >= self.alive_until_ns.load(Ordering::Relaxed) {
            return Local::Short;
        }
        self.share.reserve(now_ns, ask)
    }

    /// Decides while no coordinator can be asked.
    pub fn reserve_beyond(&self, ask: &LocalAsk<'_>) -> Local {
        self.share.reserve_beyond(boot_time_ns(), ask)
    }

    /// The dependency.
    #[must_use]
    pub const fn dependency(&self) -> &Dependency {
        &self.dependency
    }

    /// The dependency with the names of all units that the coordinator ever told.
    #[must_use]
    pub fn known(&self) -> Dependency {
        self.dependency.knowing(Arc::clone(&lock(&self.known)))
    }

    /// Life of a permit, as the coordinator told it last.
    #[must_use]
    pub fn permit_ttl_ms(&self) -> i64 {
        self.permit_ttl_ms.load(Ordering::Relaxed).into()
    }

    /// Whether the policy told last only counts what it would refuse.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.is_shadow.load(Ordering::Relaxed)
    }

    fn told(&self, reply: &SyncReply) {
        self.is_shadow.store(reply.rules.shadow, Ordering::Relaxed);
        let permit_ttl_ms = u32::try_from(reply.rules.permit_ttl_ms).unwrap_or(PERMIT_TTL_MS);
        self.permit_ttl_ms.store(permit_ttl_ms, Ordering::Relaxed);
        let mut known = lock(&self.known);
        if !known.has(&reply.units) {
            *known = Arc::new(known.with(&reply.units));
        }
    }

    /// What has been admitted here, and takes permits back.
    #[must_use]
    pub fn share(&self) -> &Share {
        &self.share
    }

    /// How it stands.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let code = usize::from(self.standing.load(Ordering::Relaxed));
        Standing::ALL.get(code).copied().unwrap_or(Standing::Unleased)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn random_incarnation() -> Result<Incarnation, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::NoRandomness(error.to_string()))?;
    Ok(Incarnation(bytes))
}

/// Random where the system has random bytes; what must be so asks for an error instead.
fn random_u64() -> u64 {
    getrandom::u64().unwrap_or(0)
}
