//! A holder and a copy of it, as from a snapshot of its machine: up to a moment they are one, then both go on with what
//! they had. The coordinator hears of two under one incarnation at the next renewal, and fences one of them.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use budget::{
    decision::Outcome,
    holder::{Action, Holder, Local, LocalAsk, Reply, Spent, State},
    lease::{Amounts, HolderId, Incarnation, SyncAsk},
};
use budget_client::{
    Coordinators, Dependency, Error as ClientError, Options, boot_time_ns,
    leasing::{Asked, Coordinator, LeasingOptions},
    reservation_id,
};
use tokio::{task::JoinHandle, time};

use super::Cloned;
use crate::{Error, scenario::Scenario};

const NANOS_PER_MS: i64 = 1_000_000;
/// They are looked after at least this often.
const ROUND_MAX: Duration = Duration::from_millis(20);
const SYNC_WITHIN: Duration = Duration::from_secs(1);

/// The two, and who drives them.
pub(super) struct Twins {
    pair: Arc<Mutex<Pair>>,
    driver: JoinHandle<()>,
}

/// A right to send one attempt, from one of them; before they part, from both.
pub(super) struct TwinSpent {
    pair: Arc<Mutex<Pair>>,
    spent: [Option<Spent>; 2],
}

/// How one of them decides.
pub(super) enum TwinLocal {
    Admitted(TwinSpent),
    Denied,
    /// The coordinator has to be asked.
    Short,
}

struct Pair {
    holders: [Holder; 2],
    /// They part at the first renewal from then on: right after it a copy lives longest.
    parts_ns: i64,
    parted: Option<Parted>,
}

/// They have parted.
struct Parted {
    at_ns: i64,
    /// What both of them held.
    share: Amounts,
    /// When one of them learnt that it is a copy.
    fenced_ns: Option<i64>,
}

// === impl Twins ===

impl Twins {
    pub(super) fn start(
        scenario: &Scenario,
        id: HolderId,
        seed: u64,
        dependency: &Dependency,
        endpoints: Vec<String>,
    ) -> Result<Self, Error> {
        let coordinators = Coordinators::new(endpoints, &Options::default(), SYNC_WITHIN)?;
        let (timing, fallback) = (scenario.timing()?.limits, LeasingOptions::default().fallback);
        let (incarnation, now_ns) = (new_incarnation()?, boot_time_ns());
        let holder = || Holder::new(id.clone(), incarnation, 1, timing, fallback.clone(), seed, now_ns);
        let pair = Pair { holders: [holder(), holder()], parts_ns: i64::MAX, parted: None };
        let pair = Arc::new(Mutex::new(pair));
        let driver = tokio::spawn(drive(coordinators, dependency.clone(), Arc::clone(&pair)));
        Ok(Self { pair, driver })
    }

    /// They part at this time since boot, or soon after.
    pub(super) fn part_at(&self, at_ns: i64) {
        lock(&self.pair).parts_ns = at_ns;
    }

    pub(super) fn is_leased(&self) -> bool {
        lock(&self.pair).holders[0].lease(boot_time_ns()).is_some()
    }

    /// Decides by the lease of the one or the other.
    pub(super) fn reserve(&self, copy: bool, ask: &LocalAsk<'_>) -> TwinLocal {
        let now_ns = boot_time_ns();
        let pair = lock(&self.pair);
        let at = usize::from(copy);
        let mut spent = [None, None];
        // Until they part what one does the other has done.
        let of: &[usize] = if pair.parted.is_some() { &[at] } else { &[0, 1] };
        let mut answer = None;
        for at in of {
            let local = pair.holders[*at].share().reserve(now_ns, ask);
            match local {
                Local::Admitted(one) => spent[*at] = Some(one),
                Local::Denied(_) => answer = Some(TwinLocal::Denied),
                Local::Short => answer = Some(TwinLocal::Short),
            }
        }
        answer.unwrap_or_else(|| TwinLocal::Admitted(TwinSpent { pair: Arc::clone(&self.pair), spent }))
    }

    /// Asks for something and hands it back: who asks for nothing is lent nothing.
    pub(super) fn want(&self) {
        if let TwinLocal::Admitted(spent) = self.reserve(false, &LocalAsk::ORIGINAL) {
            spent.hand_back();
        }
    }

    /// What the copy had, and how long it lived.
    pub(super) fn told(&self) -> Option<Cloned> {
        let pair = lock(&self.pair);
        let parted = pair.parted.as_ref()?;
        let Amounts { rate, burst, retry_burst, slots, .. } = parted.share;
        let fenced_ns = parted.fenced_ns.unwrap_or_else(boot_time_ns);
        let alive_ms = (fenced_ns - parted.at_ns).div_euclid(NANOS_PER_MS) + 1;
        Some(Cloned { rate, burst, retry_burst, slots, alive_ms, fenced: parted.fenced_ns.is_some() })
    }
}

impl Drop for Twins {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

// === impl TwinSpent ===

impl TwinSpent {
    pub(super) fn settle(self, outcome: Outcome) {
        let now_ns = boot_time_ns();
        let pair = lock(&self.pair);
        for (holder, spent) in pair.holders.iter().zip(self.spent) {
            if let Some(spent) = spent {
                holder.share().settle(spent, now_ns, outcome, &[]);
            }
        }
    }

    fn hand_back(self) {
        let now_ns = boot_time_ns();
        let pair = lock(&self.pair);
        for (holder, spent) in pair.holders.iter().zip(self.spent) {
            if let Some(spent) = spent {
                holder.share().hand_back(spent, now_ns);
            }
        }
    }
}

// === impl Pair ===

impl Pair {
    /// What is to be sent now, and by whom.
    fn due(&mut self, now_ns: i64) -> Vec<(usize, Box<SyncAsk>, u32)> {
        if self.parted.is_some() {
            let polled = self.holders.iter_mut().enumerate().map(|(at, holder)| (at, holder.poll(now_ns, fresh())));
            return polled.filter_map(|(at, action)| sent(action).map(|(ask, attempt)| (at, ask, attempt))).collect();
        }
        let fresh = fresh();
        let [first, second] = &mut self.holders;
        let action = first.poll(now_ns, fresh);
        // The same, with the same number: one answer is for both.
        let _the_same = second.poll(now_ns, fresh);
        sent(action).map(|(ask, attempt)| (0, ask, attempt)).into_iter().collect()
    }

    fn due_ns(&self) -> i64 {
        self.holders.iter().map(Holder::due_ns).min().unwrap_or(i64::MAX)
    }

    /// An answer to one of them; before they part, to both.
    fn on_answer(&mut self, now_ns: i64, at: usize, reply: Result<&Reply<'_>, (i64, i64)>) {
        let together = self.parted.is_none();
        for (_, holder) in self.holders.iter_mut().enumerate().filter(|(number, _)| together || *number == at) {
            match reply {
                Ok(reply) => holder.on_answer(now_ns, reply),
                Err((sequence, nonce)) => holder.on_failure(now_ns, sequence, nonce),
            }
            if holder.state(now_ns) == State::Fenced {
                if let Some(parted) = &mut self.parted {
                    parted.fenced_ns.get_or_insert(now_ns);
                }
                // Without random bytes it stays fenced.
                if let Ok(incarnation) = new_incarnation() {
                    holder.reincarnate(now_ns, incarnation);
                }
            }
        }
        if together && now_ns >= self.parts_ns && reply.is_ok() {
            let lease = self.holders[0].lease(now_ns);
            self.parted = lease.map(|lease| Parted { at_ns: now_ns, share: lease.value, fenced_ns: None });
        }
    }
}

/// As long as the process lives.
async fn drive(coordinators: Coordinators, dependency: Dependency, pair: Arc<Mutex<Pair>>) {
    loop {
        let asks = lock(&pair).due(boot_time_ns());
        for (at, ask, attempt) in asks {
            let (sequence, nonce) = (ask.sequence, ask.nonce);
            let asked = [Asked { dependency: dependency.clone(), ask }];
            let mut answers = coordinators.sync(&asked).await;
            let answer = answers.pop().unwrap_or(Err(ClientError::DeadlinePassed));
            let now_ns = boot_time_ns();
            let mut pair = lock(&pair);
            match &answer {
                Ok(told) => {
                    let (answer, rules) = (&told.answer, Some(&told.rules));
                    let reply = Reply { sequence, nonce, attempt: Some(attempt), answer, rules };
                    pair.on_answer(now_ns, at, Ok(&reply));
                }
                Err(_) => pair.on_answer(now_ns, at, Err((sequence, nonce))),
            }
        }
        let left_ns = u64::try_from(lock(&pair).due_ns().saturating_sub(boot_time_ns())).unwrap_or(0);
        time::sleep(Duration::from_nanos(left_ns).clamp(Duration::from_millis(1), ROUND_MAX)).await;
    }
}

fn sent(action: Action) -> Option<(Box<SyncAsk>, u32)> {
    match action {
        Action::Send { ask, attempt } => Some((ask, attempt)),
        Action::Wait { .. } => None,
    }
}

/// Bits that a copy would not have.
fn fresh() -> u64 {
    let bytes = reservation_id().map_or([0; 16], |id| id.0);
    bytes.iter().take(8).fold(0, |all, byte| (all << 8) | u64::from(*byte))
}

fn new_incarnation() -> Result<Incarnation, Error> {
    Ok(Incarnation(reservation_id()?.0))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
