//! The background task: drives one holder machine for each dependency and does all their I/O.

mod idle;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use budget::{
    holder::{Action, Holder, Reply, State},
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
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
    /// Boxed, since a map has room for up to twice as many as it holds.
    pub(super) machines: HashMap<DependencyId, Box<Machine>>,
    /// When each wants to be polled.
    pub(super) due: BTreeSet<(i64, DependencyId)>,
    leaving: Vec<oneshot::Sender<()>>,
    /// When idle dependencies are looked for next.
    look_ns: i64,
}

pub(super) struct Machine {
    pub(super) holder: Holder,
    leased: Arc<Leased>,
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
            machines: HashMap::new(),
            due: BTreeSet::new(),
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
        for (holder, leased) in std::mem::take(&mut *lock(&self.shared.new)) {
            let id = leased.dependency().id().clone();
            self.due.insert((now_ns, id.clone()));
            let machine = Machine { holder, leased, due_ns: now_ns, idle: Idle::since(now_ns) };
            self.machines.insert(id, Box::new(machine));
        }
    }

    fn until_due(&self, now_ns: i64, may_send: bool) -> Duration {
        match self.due.first() {
            Some((at_ns, _)) if may_send => {
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
        let mut later: Vec<(i64, DependencyId)> = Vec::new();
        let soon_ns = self.shared.options.timing.renew_min_ms / 2 * NANOS_PER_MS;
        while asks.len() < SYNC_BATCH_MAX {
            let until_ns = if asks.is_empty() { now_ns } else { now_ns.saturating_add(soon_ns) };
            let Some((at_ns, id)) = self.due.pop_first() else { break };
            if at_ns > until_ns {
                self.due.insert((at_ns, id));
                break;
            }
            let Some(machine) = self.machines.get_mut(&id) else { continue };
            let of_batch = asks.first().is_none_or(|(asked, _)| asked.ask.incarnation == machine.holder.incarnation());
            if of_batch {
                if at_ns > now_ns {
                    machine.holder.hasten(now_ns);
                }
                if let Action::Send { ask, attempt } = machine.holder.poll(now_ns, random_u64()) {
                    asks.push((Asked { dependency: machine.leased.known(), ask }, attempt));
                }
                machine.due_ns = machine.holder.due_ns().max(now_ns + NANOS_PER_MS);
                machine.stand(now_ns);
            }
            later.push((machine.due_ns, id));
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
            let Some(machine) = self.machines.get_mut(id) else { continue };
            let (sequence, nonce) = (asked.ask.sequence, asked.ask.nonce);
            match answer {
                Some(Ok(reply)) => {
                    machine.leased.told(&reply);
                    let heard = Reply {
                        sequence,
                        nonce,
                        attempt: Some(attempt),
                        answer: &reply.answer,
                        rules: Some(&reply.rules),
                    };
                    machine.holder.on_answer(now_ns, &heard);
                }
                Some(Err(error)) => {
                    tracing::debug!(dependency = %id, %error, "no lease: the sync failed");
                    machine.holder.on_failure(now_ns, sequence, nonce);
                }
                None => machine.holder.on_failure(now_ns, sequence, nonce),
            }
            if machine.holder.state(now_ns) == State::Fenced {
                machine.be_born_again(now_ns, random_incarnation());
            }
            self.due.remove(&(machine.due_ns, id.clone()));
            machine.due_ns = machine.holder.due_ns();
            self.due.insert((machine.due_ns, id.clone()));
            machine.stand(now_ns);
        }
        self.shared.told.notify_waiters();
    }

    fn leave(&mut self, done: oneshot::Sender<()>) {
        let now_ns = boot_time_ns();
        self.leaving.push(done);
        self.due.clear();
        for (id, machine) in &mut self.machines {
            machine.holder.leave(now_ns);
            machine.due_ns = now_ns;
            self.due.insert((now_ns, id.clone()));
        }
    }

    fn tell_left(&mut self) {
        let now_ns = boot_time_ns();
        let gone = |machine: &Machine| matches!(machine.holder.state(now_ns), State::Left | State::Fenced);
        if !self.leaving.is_empty() && self.machines.values().all(|machine| gone(machine)) {
            for done in self.leaving.drain(..) {
                let _ = done.send(());
            }
        }
    }
}

// === impl Machine ===

impl Machine {
    fn be_born_again(&mut self, now_ns: i64, incarnation: Result<Incarnation, Error>) {
        match incarnation {
            Ok(incarnation) => {
                tracing::warn!(
                    dependency = %self.leased.dependency().id(),
                    "another process lives under this incarnation (a copy of this one?): starting anew without a lease"
                );
                self.holder.reincarnate(now_ns, incarnation);
            }
            // It stays fenced: asks go to a coordinator.
            Err(error) => tracing::error!(%error, "no new incarnation"),
        }
    }

    /// Shows how it stands.
    fn stand(&self, now_ns: i64) {
        let away = self.holder.unanswered() >= UNANSWERED_AWAY;
        let standing = match self.holder.state(now_ns) {
            State::Leased if away => Standing::Degraded,
            State::Leased => Standing::Leased,
            State::Unleased | State::Parked if away => Standing::Fallback,
            State::Parked => Standing::Direct,
            State::Unleased | State::Fenced | State::Left => Standing::Unleased,
        };
        let before = self.leased.standing();
        if before != standing {
            self.leased.standing.store(standing as u8, Ordering::Relaxed);
            tracing::info!(dependency = %self.leased.dependency().id(), from = ?before, to = ?standing, "lease");
        }
    }
}

async fn sync<C: Coordinator>(coordinator: Arc<C>, asks: Vec<(Asked, u32)>, within: Duration) -> Flight {
    let sent: Vec<Asked> = asks.iter().map(|(asked, _)| asked.clone()).collect();
    // The coordinator keeps the time too, and learns more from it.
    let answers = tokio::time::timeout(within + SYNC_GRACE, coordinator.sync(&sent)).await.ok();
    Flight { asks, answers }
}
