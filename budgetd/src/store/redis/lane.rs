//! A lane sends steps: all that wait for one dependency together, many dependencies in one script call, all calls in one
//! pipeline. While that is in flight, what arrives gathers for the next round.
//!
//! The lane owns its connection, so a caller that goes away can neither shift replies nor leave half a step behind. A
//! round is bounded: an entry is sent again at most once for each reason there is (script forgotten, policies stale,
//! connection gone), and only if it was certainly not applied or carries an id that makes a second application harmless.

mod groups;
mod round;

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use budget::{
    decision::Step,
    ids::{DependencyId, PolicyVersion},
    lease::{Ground, SyncAsk},
};
use deadpool_redis::redis::Cmd;

use super::{
    census::{Book, Entry, SWEEP_EVERY},
    codec::{ASKS_MAX, Also, Apply, Group, LEDGERS_MAX, Lend, Member, STEPS_MAX, Way, reservation_of},
    lenders::Lenders,
    queue::{Queue, Waiting, Work},
    scripts::By,
    topology::{Link, Redis},
};
use crate::{
    clock::Clock,
    policies::{Policies, Snapshot},
    store::StoreError,
};
use groups::Groups;

/// Most dependencies of one pipeline.
const DEPENDENCIES_PER_ROUND: usize = 128;
/// Most steps of one pipeline, give or take one call: keeps a round well below the response time-out.
const STEPS_PER_ROUND: usize = 1024;
/// Most asks of holders of one pipeline: each takes the server as long as a few steps.
const ASKS_PER_ROUND: usize = 512;
/// Asks are sent no sooner after others: those of one dependency share a call, in which what is lent is read and written
/// once. Nobody waits for a renewal, and a lone one is sent at once.
const ASKS_APART: Duration = Duration::from_millis(20);
/// After a round with more steps than this the lane lets others run before it sends, as long as steps keep coming.
const BUSY_FROM: usize = 8;
/// How often it does so at most.
const YIELDS_MAX: usize = 8;
/// An unused connection goes back to its pool, which tests it before it is used again.
const CONNECTION_IDLE: Duration = Duration::from_secs(1);

/// One lane's state; [`Lane::run`] is its life.
pub(super) struct Lane {
    redis: Arc<Redis>,
    policies: Arc<Policies>,
    queue: Arc<Queue>,
    lenders: Arc<Lenders>,
    book: Book,
    /// Kept from round to round while there is work.
    link: Option<Link>,
    /// Everything that waits but for asks of holders.
    steps: Groups,
    /// Those.
    asks: Groups,
    /// When asks may be sent again.
    asks_from: Instant,
    last_round: usize,
    /// These policies were found stale, and reading them again did not help; asked again only after a while.
    no_newer: Option<(PolicyVersion, Instant)>,
    /// The server takes no call for ledgers of several hash slots.
    one_slot: bool,
}

/// Steps of one dependency in this round, or one piece of other work.
struct Call {
    dependency: DependencyId,
    entry: Entry,
    /// Decide with the ledger's own numbers.
    force: bool,
    /// For ledgers that lend: the ledger does, its policy permits it, or the work is about leases.
    lends: bool,
    /// What the call brought, where it lends.
    ground: Ground,
    /// Another call of this round is for the same ledger, or the server wants it so: shares no script call.
    apart: bool,
    waiting: Vec<Waiting>,
}

/// What is sent in one round, while it is chosen.
struct Chosen {
    /// Whether the server is to be called at all.
    up: Result<(), StoreError>,
    now: Instant,
    calls: Vec<Call>,
    /// How much has left the queue, and how much of that nobody waits for any more.
    left: usize,
    skipped: usize,
}

/// What of a group goes into one call.
#[derive(Default)]
struct Batch {
    waiting: Vec<Waiting>,
    /// Steps that nobody waits for any more.
    gone: usize,
}

/// Closes the queue when the lane ends, however it ends.
struct Closing(Arc<Queue>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

// === impl Lane ===

impl Lane {
    pub(super) fn new(
        redis: Arc<Redis>,
        policies: Arc<Policies>,
        queue: Arc<Queue>,
        lenders: Arc<Lenders>,
        book: Book,
    ) -> Self {
        Self {
            redis,
            policies,
            queue,
            lenders,
            book,
            link: None,
            steps: Groups::default(),
            asks: Groups::default(),
            asks_from: Clock::instant(),
            last_round: 0,
            no_newer: None,
            one_slot: false,
        }
    }

    /// Serves the queue until the task is aborted.
    pub(super) async fn run(mut self) {
        let _closing = Closing(Arc::clone(&self.queue));
        loop {
            if self.steps.is_empty() && self.asks.is_empty() {
                self.wait().await;
            } else if self.steps.is_empty() {
                // Asks that are not yet due, unless something arrives that is.
                drop(tokio::time::timeout_at(self.asks_from.into(), self.queue.arrived()).await);
            }
            self.gather().await;
            self.last_round = self.round().await;
        }
    }

    /// Waits for work, and tidies up when there is none.
    async fn wait(&mut self) {
        let mut patience = CONNECTION_IDLE;
        while tokio::time::timeout(patience, self.queue.arrived()).await.is_err() {
            self.link = None;
            self.last_round = 0;
            self.book.tend(Clock::instant());
            patience = SWEEP_EVERY;
        }
    }

    /// Takes what has arrived. Under load others run first: each step that they bring in time saves a part of a call.
    async fn gather(&mut self) {
        self.sort_in();
        if self.last_round <= BUSY_FROM {
            return;
        }
        for _ in 0..YIELDS_MAX {
            tokio::task::yield_now().await;
            if self.sort_in() == 0 {
                return;
            }
        }
    }

    fn sort_in(&mut self) -> usize {
        let arrivals = self.queue.take();
        let count = arrivals.len();
        for (dependency, waiting) in arrivals {
            let groups = if waiting.ask().is_some() { &mut self.asks } else { &mut self.steps };
            groups.push(dependency, waiting);
        }
        count
    }

    /// Chooses what is sent now: for each dependency in turn its oldest work, as far as somebody still waits for it.
    fn choose(&mut self, now: Instant) -> Vec<Call> {
        let snapshot = self.policies.snapshot();
        let mut chosen = Chosen { up: self.redis.admit(), now, calls: Vec::new(), left: 0, skipped: 0 };
        if now >= self.asks_from {
            self.choose_asks(&snapshot, &mut chosen);
        }
        self.choose_steps(&snapshot, &mut chosen);
        let Chosen { calls, left, skipped, .. } = chosen;
        self.queue.left(left);
        self.redis.metrics().queue_depth.fetch_sub(u64::try_from(left).unwrap_or(0), Relaxed);
        count(&self.redis.metrics().steps_skipped, skipped);
        calls
    }

    fn choose_asks(&mut self, snapshot: &Snapshot, chosen: &mut Chosen) {
        let (asks, book) = (&mut self.asks, &mut self.book);
        let (mut calls, mut most) = (0, ASKS_PER_ROUND);
        while most > 0 && calls < DEPENDENCIES_PER_ROUND {
            let served = asks.serve(|dependency, group| {
                let mut batch = Batch::default();
                let taken = group.len().min(ASKS_MAX).min(most);
                for ask in group.drain(..taken) {
                    batch.claim(ask, chosen.now);
                }
                chosen.call(dependency, batch, false, |now| book.look_up(dependency, snapshot, now));
                taken
            });
            let Some(taken) = served else { break };
            most -= taken;
            calls += 1;
        }
        if calls > 0 && asks.is_empty() {
            self.asks_from = chosen.now + ASKS_APART;
        }
    }

    fn choose_steps(&mut self, snapshot: &Snapshot, chosen: &mut Chosen) {
        let (steps, book) = (&mut self.steps, &mut self.book);
        let (before, mut sent) = (chosen.calls.len(), 0);
        for _ in 0..steps.len() {
            let calls_max = before.saturating_add(DEPENDENCIES_PER_ROUND);
            if chosen.calls.len() >= calls_max || sent >= STEPS_PER_ROUND {
                break;
            }
            steps.serve(|dependency, group| {
                // Work other than steps goes into calls of its own, many of them in one pipeline.
                let mut apart = false;
                loop {
                    let batch = Batch::of(group, chosen.now);
                    let other_work =
                        [batch.waiting.first(), group.front()].into_iter().flatten().any(|next| next.step().is_none());
                    let count = batch.waiting.len();
                    if chosen.call(dependency, batch, apart, |now| book.look_up(dependency, snapshot, now)) {
                        sent += count;
                        apart = true;
                    }
                    if !other_work || group.is_empty() || chosen.calls.len() >= calls_max {
                        break;
                    }
                }
            });
        }
    }
}

// === impl Chosen ===

impl Chosen {
    /// Makes a call of a batch, whose entry `look_up` finds. False if there is none.
    fn call(
        &mut self,
        dependency: &DependencyId,
        batch: Batch,
        apart: bool,
        look_up: impl FnOnce(Instant) -> Result<Entry, String>,
    ) -> bool {
        let Batch { waiting, gone } = batch;
        self.left += waiting.len() + gone;
        self.skipped += gone;
        if waiting.is_empty() {
            return false;
        }
        let entry = self.up.clone().and_then(|()| look_up(self.now).map_err(StoreError::UnknownDependency));
        match entry {
            Ok(entry) => {
                self.calls.push(Call { apart, ..Call::new(dependency.clone(), entry, waiting) });
                true
            }
            Err(error) => {
                answer_all(waiting, &error);
                false
            }
        }
    }
}

// === impl Batch ===

impl Batch {
    /// Takes one piece of work, if somebody still waits for it.
    fn claim(&mut self, next: Waiting, now: Instant) {
        match next.claim(now) {
            Some(claimed) => self.waiting.push(claimed),
            None => self.gone += 1,
        }
    }

    /// Takes the oldest steps of a group, each of another reservation: a script looks each up once. The others stay, and
    /// what comes behind other work. Or takes that, if it is the oldest.
    fn of(group: &mut VecDeque<Waiting>, now: Instant) -> Self {
        let most = group.len().min(STEPS_MAX);
        // Most are alone.
        let mut batch = Self { waiting: Vec::with_capacity(most), gone: 0 };
        if most <= 1 {
            if let Some(next) = group.pop_front() {
                batch.claim(next, now);
            }
            return batch;
        }
        let (mut ids, mut later) = (HashSet::with_capacity(most), Vec::new());
        while batch.waiting.len() < STEPS_MAX
            && let Some(next) = group.pop_front()
        {
            let Some(step) = next.step() else {
                if batch.waiting.is_empty() && later.is_empty() {
                    batch.claim(next, now);
                } else {
                    later.push(next);
                }
                break;
            };
            if ids.insert(reservation_of(step)) {
                batch.claim(next, now);
            } else {
                later.push(next);
            }
        }
        for next in later.into_iter().rev() {
            group.push_front(next);
        }
        batch
    }
}

// === impl Call ===

impl Call {
    fn new(dependency: DependencyId, entry: Entry, waiting: Vec<Waiting>) -> Self {
        let lends = entry.resolved.numbers.lease.is_some() || waiting.iter().any(|waiting| waiting.step().is_none());
        Self { dependency, entry, force: false, lends, ground: Ground::default(), apart: false, waiting }
    }

    /// The asks of holders that it carries.
    fn asks(&self) -> Vec<&SyncAsk> {
        self.waiting.iter().filter_map(Waiting::ask).collect()
    }

    /// What it does beside steps, with what [`Self::asks`] gave.
    fn also<'a>(&'a self, asks: &'a [&'a SyncAsk]) -> Also<'a> {
        match self.waiting.first().map(|waiting| &waiting.work) {
            Some(Work::Sync(_)) => Also::Syncs(asks),
            Some(Work::Revoke(holder)) => Also::Revoke(holder),
            Some(Work::Step(_) | Work::Beat) | None => Also::Nothing,
        }
    }

    fn is_beat(&self) -> bool {
        self.waiting.first().is_some_and(|waiting| matches!(waiting.work, Work::Beat))
    }

    fn version(&self) -> PolicyVersion {
        self.entry.resolved.version
    }

    /// Its steps, each with how long it has waited.
    fn steps(&self, now: Option<Instant>) -> impl Iterator<Item = (&Step, i64)> + Clone {
        self.waiting.iter().filter_map(move |waiting| {
            let waited = now.map_or(Duration::ZERO, |now| now.saturating_duration_since(waiting.arrived));
            Some((waiting.step()?, i64::try_from(waited.as_millis()).unwrap_or(i64::MAX)))
        })
    }

    /// How many of these share a script call with the first.
    fn sharing(calls: &[Self], one_slot: bool) -> usize {
        let Some((first, others)) = calls.split_first() else { return 0 };
        if one_slot || first.lends || first.apart {
            return 1;
        }
        let mut steps = first.waiting.len();
        let sharing = others.iter().take(LEDGERS_MAX - 1).take_while(|call| {
            steps += call.waiting.len();
            let alike = call.force == first.force && call.version() == first.version();
            alike && !call.lends && !call.apart && steps <= STEPS_MAX
        });
        1 + sharing.count()
    }

    /// One script call for all of these.
    fn command(calls: &[Self], by: By, way: Way, now_ms: &str, now: Option<Instant>) -> Cmd {
        let Some(first) = calls.first() else { return Cmd::new() };
        let (version, force) = (first.version(), first.force);
        if first.lends {
            let (keys, numbers) = (&first.entry.keys, &*first.entry.numbers);
            let apply = Apply { keys, now_ms, version, force, way, numbers };
            let steps: Vec<_> = first.steps(now).collect();
            let lend = Lend { apply, terms: &first.entry.terms, ground: &first.ground };
            return lend.command(by, steps.iter().copied(), first.also(&first.asks()));
        }
        let members: Vec<_> = calls
            .iter()
            .map(|call| Member { keys: &call.entry.keys, numbers: &call.entry.numbers, steps: call.steps(now) })
            .collect();
        Group { now_ms, version, force, way }.command(by, &members)
    }

    fn answer_all(self, error: &StoreError) {
        answer_all(self.waiting, error);
    }
}

fn answer_all(waiting: Vec<Waiting>, error: &StoreError) {
    for waiting in waiting {
        waiting.answer(Err(error.clone()));
    }
}

fn count(counter: &AtomicU64, amount: usize) {
    counter.fetch_add(u64::try_from(amount).unwrap_or(u64::MAX), Relaxed);
}
