//! A lane sends steps: all that wait for one dependency together, many dependencies in one script call, all calls in one
//! pipeline. While that is in flight, what arrives gathers for the next round.
//!
//! The lane owns its connection, so a caller that goes away can neither shift replies nor leave half a step behind. A
//! round is bounded: an entry is sent again at most once for each reason there is (script forgotten, policies stale,
//! connection gone), and only if it was certainly not applied or carries an id that makes a second application harmless.

mod round;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use budget::{
    decision::Step,
    ids::{DependencyId, PolicyVersion},
    lease::Ground,
};
use deadpool_redis::redis::Cmd;

use super::{
    census::{Book, Entry, SWEEP_EVERY},
    codec::{Also, Apply, Group, LEDGERS_MAX, Lend, Member, STEPS_MAX, reservation_of},
    lenders::Lenders,
    queue::{Queue, Waiting, Work},
    scripts::By,
    topology::{Link, Redis},
};
use crate::{clock::Clock, policies::Policies, store::StoreError};

/// Most dependencies of one pipeline.
const DEPENDENCIES_PER_ROUND: usize = 128;
/// Most steps of one pipeline, give or take one call: keeps a round well below the response time-out.
const STEPS_PER_ROUND: usize = 1024;
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
    /// What waits, by dependency.
    groups: HashMap<DependencyId, VecDeque<Waiting>>,
    /// Dependencies with waiting steps, the one to be served next in front.
    order: VecDeque<DependencyId>,
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

/// What of a group goes into one call.
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
            groups: HashMap::new(),
            order: VecDeque::new(),
            last_round: 0,
            no_newer: None,
            one_slot: false,
        }
    }

    /// Serves the queue until the task is aborted.
    pub(super) async fn run(mut self) {
        let _closing = Closing(Arc::clone(&self.queue));
        loop {
            if self.order.is_empty() {
                self.wait().await;
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
            match self.groups.get_mut(&dependency) {
                Some(group) => group.push_back(waiting),
                None => {
                    self.order.push_back(dependency.clone());
                    self.groups.insert(dependency, VecDeque::from([waiting]));
                }
            }
        }
        count
    }

    /// Chooses what is sent now: for each dependency in turn its oldest steps, as far as somebody still waits for them.
    fn choose(&mut self, now: Instant) -> Vec<Call> {
        let snapshot = self.policies.snapshot();
        let up = self.redis.admit();
        let mut calls = Vec::with_capacity(self.order.len().min(DEPENDENCIES_PER_ROUND));
        let (mut steps, mut left, mut skipped) = (0, 0, 0);
        for _ in 0..self.order.len() {
            if calls.len() >= DEPENDENCIES_PER_ROUND || steps >= STEPS_PER_ROUND {
                break;
            }
            let Some(dependency) = self.order.pop_front() else { break };
            let Some(group) = self.groups.get_mut(&dependency) else { continue };
            // Work other than steps goes into calls of its own, many of them in one pipeline.
            let mut apart = false;
            loop {
                let Batch { waiting, gone } = Batch::of(group, now);
                left += waiting.len() + gone;
                skipped += gone;
                let other_work =
                    [waiting.first(), group.front()].into_iter().flatten().any(|waiting| waiting.step().is_none());
                if !waiting.is_empty() {
                    let entry = up.clone().and_then(|()| {
                        self.book.look_up(&dependency, &snapshot, now).map_err(StoreError::UnknownDependency)
                    });
                    match entry {
                        Ok(entry) => {
                            steps += waiting.len();
                            calls.push(Call { apart, ..Call::new(dependency.clone(), entry, waiting) });
                            apart = true;
                        }
                        Err(error) => answer_all(waiting, &error),
                    }
                }
                if !other_work || group.is_empty() || calls.len() >= DEPENDENCIES_PER_ROUND {
                    break;
                }
            }
            if group.is_empty() {
                self.groups.remove(&dependency);
            } else {
                self.order.push_back(dependency);
            }
        }
        self.queue.left(left);
        self.redis.metrics().queue_depth.fetch_sub(u64::try_from(left).unwrap_or(0), Relaxed);
        count(&self.redis.metrics().steps_skipped, skipped);
        calls
    }
}

// === impl Batch ===

impl Batch {
    /// Takes the oldest steps of a group, each of another reservation: a script looks each up once. The others stay, and
    /// what comes behind other work. Or takes that, if it is the oldest.
    fn of(group: &mut VecDeque<Waiting>, now: Instant) -> Self {
        let most = group.len().min(STEPS_MAX);
        // Most are alone.
        if most <= 1 {
            let waiting: Vec<Waiting> = group.pop_front().and_then(|next| next.claim(now)).into_iter().collect();
            return Self { gone: most - waiting.len(), waiting };
        }
        let mut batch = Self { waiting: Vec::with_capacity(most), gone: 0 };
        let (mut ids, mut later) = (HashSet::with_capacity(most), Vec::new());
        while batch.waiting.len() < STEPS_MAX
            && let Some(next) = group.pop_front()
        {
            let Some(step) = next.step() else {
                if batch.waiting.is_empty() && later.is_empty() {
                    match next.claim(now) {
                        Some(claimed) => batch.waiting.push(claimed),
                        None => batch.gone += 1,
                    }
                } else {
                    later.push(next);
                }
                break;
            };
            if !ids.insert(reservation_of(step)) {
                later.push(next);
            } else if let Some(claimed) = next.claim(now) {
                batch.waiting.push(claimed);
            } else {
                batch.gone += 1;
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

    /// What it does beside steps.
    fn also(&self) -> Also<'_> {
        match self.waiting.first().map(|waiting| &waiting.work) {
            Some(Work::Sync(ask)) => Also::Sync(ask),
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
    fn command(calls: &[Self], by: By, now_ms: &str, now: Option<Instant>) -> Cmd {
        let Some(first) = calls.first() else { return Cmd::new() };
        let (version, force) = (first.version(), first.force);
        if first.lends {
            let (keys, numbers) = (&first.entry.keys, &*first.entry.numbers);
            let apply = Apply { keys, now_ms, version, force, numbers };
            let steps: Vec<_> = first.steps(now).collect();
            let lend = Lend { apply, terms: &first.entry.terms, ground: &first.ground };
            return lend.command(by, steps.iter().copied(), first.also());
        }
        let members: Vec<_> = calls
            .iter()
            .map(|call| Member { keys: &call.entry.keys, numbers: &call.entry.numbers, steps: call.steps(now) })
            .collect();
        Group { now_ms, version, force }.command(by, &members)
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
