//! The background task: drives one holder machine for each dependency and does all their I/O.

mod idle;

use std::{
    cmp,
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use budget::{
    holder::{Action, Alike, Holder, Reply, State},
    ids::DependencyId,
    lease::{Incarnation, SYNC_BATCH_MAX},
};
use budget_proto::convert::SyncReply;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use idle::Idle;

use super::{Asked, Command, Coordinator, Leased, Shared, Standing, lock, random_incarnation, random_u64};
use crate::{Error, clock::boot_time_ns};

const NANOS_PER_MS: i64 = 1_000_000;
/// Syncs on their way at once.
const FLIGHTS_MAX: usize = 4;
/// The task looks about at least this often.
const ROUND_MAX: Duration = Duration::from_secs(2);
/// How much longer than the longest renewal decisions are made without a sign of life from the task.
const ALIVE_SLACK_MS: i64 = 4_000;
/// How much longer than its time a sync is waited for.
const SYNC_GRACE: Duration = Duration::from_millis(250);
/// After so many sendings without an answer the coordinator counts as away.
const UNANSWERED_AWAY: u32 = 2;

/// Drives all holders of one process.
pub(super) struct Driver<C> {
    coordinator: Arc<C>,
    pub(super) shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
    /// All that are held, by when they want to be polled.
    pub(super) due: BTreeSet<Due>,
    /// Rules and curves of different dependencies are often the same.
    alike: Alike,
    leaving: Vec<oneshot::Sender<()>>,
    /// When idle dependencies are looked for next.
    look_ns: i64,
}

/// When a dependency wants to be polled.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) at_ns: i64,
    pub(super) leased: Arc<Leased>,
}

/// What drives the leases of one dependency.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) holder: Holder,
    /// As [`Driver::due`] has it.
    pub(super) due_ns: i64,
    idle: Idle,
}

/// A sync that has come back.
struct Flight {
    asks: Vec<(Asked, u32)>,
    /// None: it took too long.
    answers: Option<Vec<Result<SyncReply, Error>>>,
}

// === impl Driver ===

impl<C: Coordinator> Driver<C> {
    pub(super) fn new(coordinator: C, shared: Arc<Shared>, commands: mpsc::Receiver<Command>) -> Self {
        Self {
            coordinator: Arc::new(coordinator),
            shared,
            commands,
            due: BTreeSet::new(),
            alike: Alike::default(),
            leaving: Vec::new(),
            look_ns: 0,
        }
    }

    pub(super) fn tell_alive(&self, now_ns: i64) {
        let for_ms = self.shared.options.timing.renew_max_ms + ALIVE_SLACK_MS;
        self.shared.alive_until_ns.store(now_ns + for_ms * NANOS_PER_MS, Ordering::Relaxed);
    }

    /// Ends when nobody can send commands any more. Leases then end by their curves.
    pub(super) async fn run(mut self) {
        let mut flights = JoinSet::new();
        loop {
            let now_ns = boot_time_ns();
            self.tell_alive(now_ns);
            self.take_over(now_ns);
            self.forget_idle(now_ns);
            while flights.len() < FLIGHTS_MAX {
                let asks = self.due(now_ns);
                if asks.is_empty() {
                    break;
                }
                flights.spawn(sync(Arc::clone(&self.coordinator), asks, self.shared.options.sync_timeout));
            }
            self.tell_left();
            let sleep = tokio::time::sleep(self.until_due(now_ns, flights.len() < FLIGHTS_MAX));
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(Command::Wake) => {}
                    Some(Command::Leave(done)) => self.leave(done),
                    Some(Command::Lend(lend)) => self.lend(lend),
                    Some(Command::List(list)) => self.list(list),
                    Some(Command::Revoke(revoke)) => self.revoke(revoke),
                    None => return,
                },
                Some(flight) = flights.join_next(), if !flights.is_empty() => {
                    // A sync that panicked is a lost one: its asks are sent again when their time comes.
                    if let Ok(flight) = flight {
                        self.on_flight(flight);
                    }
                }
                () = sleep => {}
            }
        }
    }

    pub(super) fn take_over(&mut self, now_ns: i64) {
        for leased in std::mem::take(&mut *lock(&self.shared.new)) {
            let mut machine = lock(&leased.machine);
            machine.due_ns = now_ns;
            drop(machine);
            self.due.insert(Due { at_ns: now_ns, leased });
        }
    }

    fn until_due(&self, now_ns: i64, may_send: bool) -> Duration {
        match self.due.first() {
            Some(Due { at_ns, .. }) if may_send => {
                let left_ns = u64::try_from(at_ns.saturating_sub(now_ns)).unwrap_or(0);
                // Timers are no finer than a millisecond.
                Duration::from_nanos(left_ns).clamp(Duration::from_millis(1), ROUND_MAX)
            }
            Some(_) | None => ROUND_MAX,
        }
    }

    /// Asks that are due, of one incarnation; those nearly due come along.
    fn due(&mut self, now_ns: i64) -> Vec<(Asked, u32)> {
        let mut asks: Vec<(Asked, u32)> = Vec::new();
        let mut later: Vec<Due> = Vec::new();
        let soon_ns = self.shared.options.timing.renew_min_ms / 2 * NANOS_PER_MS;
        while asks.len() < SYNC_BATCH_MAX {
            let until_ns = if asks.is_empty() { now_ns } else { now_ns.saturating_add(soon_ns) };
            let Some(due) = self.due.pop_first() else { break };
            if due.at_ns > until_ns {
                self.due.insert(due);
                break;
            }
            let Due { at_ns, leased } = due;
            let mut machine = lock(&leased.machine);
            let of_batch = asks.first().is_none_or(|(asked, _)| asked.ask.incarnation == machine.holder.incarnation());
            if of_batch {
                if at_ns > now_ns {
                    machine.holder.hasten(now_ns);
                }
                if let Action::Send { ask, attempt } = machine.holder.poll(now_ns, random_u64()) {
                    asks.push((Asked { dependency: leased.known(), ask }, attempt));
                }
                machine.due_ns = machine.holder.due_ns().max(now_ns + NANOS_PER_MS);
                leased.stand(&machine, now_ns);
            }
            let at_ns = machine.due_ns;
            drop(machine);
            later.push(Due { at_ns, leased });
        }
        self.due.extend(later);
        asks
    }

    fn on_flight(&mut self, flight: Flight) {
        let now_ns = boot_time_ns();
        let mut answers = flight.answers.map(Vec::into_iter);
        for (asked, attempt) in flight.asks {
            let answer = answers.as_mut().and_then(Iterator::next);
            let id = asked.dependency.id();
            let Some(leased) = self.shared.find(id) else { continue };
            let mut machine = lock(&leased.machine);
            // The one that asked was forgotten: it has been named anew a moment ago.
            if !self.due.remove(&Due { at_ns: machine.due_ns, leased: Arc::clone(&leased) }) {
                continue;
            }
            let (sequence, nonce) = (asked.ask.sequence, asked.ask.nonce);
            match answer {
                Some(Ok(reply)) => {
                    leased.told(&reply);
                    let heard = Reply {
                        sequence,
                        nonce,
                        attempt: Some(attempt),
                        answer: &reply.answer,
                        rules: Some(&reply.rules),
                    };
                    machine.holder.on_answer(now_ns, &heard);
                    machine.holder.keep_once(&mut self.alike);
                }
                Some(Err(error)) => {
                    tracing::debug!(dependency = %id, %error, "no lease: the sync failed");
                    machine.holder.on_failure(now_ns, sequence, nonce);
                }
                None => machine.holder.on_failure(now_ns, sequence, nonce),
            }
            if machine.holder.state(now_ns) == State::Fenced {
                machine.be_born_again(id, now_ns, random_incarnation());
            }
            machine.due_ns = machine.holder.due_ns();
            leased.stand(&machine, now_ns);
            self.due.insert(Due { at_ns: machine.due_ns, leased: Arc::clone(&leased) });
        }
        self.shared.told.notify_waiters();
    }

    fn leave(&mut self, done: oneshot::Sender<()>) {
        let now_ns = boot_time_ns();
        self.leaving.push(done);
        for Due { leased, .. } in std::mem::take(&mut self.due) {
            let mut machine = lock(&leased.machine);
            machine.holder.leave(now_ns);
            machine.due_ns = now_ns;
            drop(machine);
            self.due.insert(Due { at_ns: now_ns, leased });
        }
    }

    fn tell_left(&mut self) {
        let now_ns = boot_time_ns();
        let gone = |due: &Due| matches!(lock(&due.leased.machine).holder.state(now_ns), State::Left | State::Fenced);
        if !self.leaving.is_empty() && self.due.iter().all(gone) {
            for done in self.leaving.drain(..) {
                let _ = done.send(());
            }
        }
    }
}

// === impl Due ===

impl Due {
    fn key(&self) -> (i64, *const Leased) {
        (self.at_ns, Arc::as_ptr(&self.leased))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

// === impl Machine ===

impl Machine {
    pub(super) const fn new(holder: Holder, now_ns: i64) -> Self {
        Self { holder, due_ns: now_ns, idle: Idle::since(now_ns) }
    }

    fn be_born_again(&mut self, dependency: &DependencyId, now_ns: i64, incarnation: Result<Incarnation, Error>) {
        match incarnation {
            Ok(incarnation) => {
                tracing::warn!(
                    %dependency,
                    "another process lives under this incarnation (a copy of this one?): starting anew without a lease"
                );
                self.holder.reincarnate(now_ns, incarnation);
            }
            // It stays fenced: asks go to a coordinator.
            Err(error) => tracing::error!(%error, "no new incarnation"),
        }
    }
}

// === impl Leased ===

impl Leased {
    /// Shows how it stands.
    fn stand(&self, machine: &Machine, now_ns: i64) {
        let away = machine.holder.unanswered() >= UNANSWERED_AWAY;
        let standing = match machine.holder.state(now_ns) {
            State::Leased if away => Standing::Degraded,
            State::Leased => Standing::Leased,
            State::Unleased | State::Parked if away => Standing::Fallback,
            State::Parked => Standing::Direct,
            State::Unleased | State::Fenced | State::Left => Standing::Unleased,
        };
        let before = self.standing();
        if before != standing {
            self.standing.store(standing as u8, Ordering::Relaxed);
            tracing::info!(dependency = %self.dependency().id(), from = ?before, to = ?standing, "lease");
        }
    }
}

async fn sync<C: Coordinator>(coordinator: Arc<C>, asks: Vec<(Asked, u32)>, within: Duration) -> Flight {
    let sent: Vec<Asked> = asks.iter().map(|(asked, _)| asked.clone()).collect();
    // The coordinator keeps the time too, and learns more from it.
    let answers = tokio::time::timeout(within + SYNC_GRACE, coordinator.sync(&sent)).await.ok();
    Flight { asks, answers }
}
