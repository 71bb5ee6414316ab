//! A process of callers: many logical clients, each a few numbers, whose operations begin when the plan says, whatever
//! became of those before.

mod guard;
mod journal;
mod operation;
mod told;
mod twins;

use std::{
    fs, io,
    io::{BufRead, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use budget_client::boot_time_ns;
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, task::JoinSet, time};

pub(crate) use told::{Ask, Cloned, End, Ended, Told, Via};

use crate::{
    Error,
    dependency::Callee,
    plan::{self, Arrival},
    scenario::{Scenario, Strategy},
};
use guard::Guard;
use journal::{Entry, Journal, Left};
use operation::Operation;

/// How long a process may take to be ready for the load.
const READY_PATIENCE: Duration = Duration::from_secs(60);
/// How often the engine is told how far it is.
const LIVE_EVERY: Duration = Duration::from_millis(250);
/// After the last operation's deadline, for those that are late on a busy machine.
const DRAIN_SLACK: Duration = Duration::from_secs(5);

/// What one process has to do; the scenario says the rest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) strategy: Strategy,
    pub(crate) seed: u64,
    pub(crate) quick: bool,
    /// Logical clients of all processes.
    pub(crate) clients: u32,
    /// This process.
    pub(crate) process: u32,
    /// As budgetd knows it, where that is not the scenario's own.
    pub(crate) named: Option<String>,
    /// The policy in force, where it is not the scenario's.
    pub(crate) policy: Option<String>,
    /// Holders of leases are called by it, so that they are nobody else's.
    pub(crate) tag: String,
    /// Addresses of budgetd or its agent.
    pub(crate) budgetd: Vec<String>,
    /// It never reaches them, and so never learns the policy.
    pub(crate) untold: bool,
    /// Addresses of the dependency, over gRPC and HTTP.
    pub(crate) dependency: (String, String),
    /// Where it writes what it has to tell.
    pub(crate) told: PathBuf,
    /// Where it writes down what it does, if it may be killed.
    pub(crate) journal: Option<PathBuf>,
}

/// Words between the engine and its callers, a line each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Word {
    /// It could begin.
    Ready,
    /// The load begins at this time since boot.
    Start { at_ns: i64 },
    /// How far it is.
    Live { offered: u64, useful: u64, refused: u64 },
}

/// What all operations of a process share.
struct Caller {
    scenario: Scenario,
    task: Task,
    callee: Callee,
    guard: Guard,
    start_ns: i64,
    told: Mutex<Told>,
    journal: Option<Journal>,
    live: Live,
}

/// Counts on the way.
#[derive(Default)]
struct Live {
    offered: AtomicU64,
    useful: AtomicU64,
    refused: AtomicU64,
}

/// Runs one process of callers.
pub(crate) fn main(scenario: &Path, task: &Path) -> Result<ExitCode, Error> {
    let text = fs::read_to_string(scenario)?;
    let mut scenario = Scenario::parse(&scenario.display().to_string(), &text)?;
    let task: Task = serde_json::from_str(&fs::read_to_string(task)?)?;
    if let Some(policy) = &task.policy {
        scenario.policy.clone_from(policy);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(scenario, task))
}

async fn run(scenario: Scenario, task: Task) -> Result<ExitCode, Error> {
    let callee = Callee::connect(scenario.call.protocol, &task.dependency.0, &task.dependency.1).await?;
    let duration = scenario.duration(task.quick);
    let joins_ns = i64::try_from(scenario.joins_at_ms(task.process)).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    let mine = |arrival: &Arrival| arrival.client % scenario.processes == task.process && arrival.due_ns >= joins_ns;
    let mut plan = plan::arrivals(&scenario, task.seed, task.clients, duration);
    plan.retain(mine);
    let left = task.journal.as_deref().map(Left::read).transpose()?.unwrap_or_default();
    let journal = task.journal.as_deref().map(Journal::open).transpose()?;
    plan.retain(|arrival| !left.ended.contains(&arrival.key));
    let told = Mutex::new(Told { resumed: u64::try_from(left.under_way.len())?, ..left.told });
    let (guard, start_ns) = if joins_ns > 0 {
        // It is not there before.
        say(Word::Ready)?;
        let start_ns = started().await?;
        until(start_ns.saturating_add(joins_ns)).await;
        (Guard::new(&scenario, &task)?, start_ns)
    } else {
        let guard = Guard::new(&scenario, &task)?;
        if !task.untold {
            let ready = time::timeout(READY_PATIENCE, guard.until_ready());
            ready.await.map_err(|_| format!("budgetd was not ready within {} s", READY_PATIENCE.as_secs()))??;
        }
        say(Word::Ready)?;
        (guard, started().await?)
    };
    if let Some(at_ms) = scenario.clones_at_ms(task.process) {
        let at_ns = i64::try_from(at_ms).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        guard.copies_at(start_ns.saturating_add(at_ns));
    }
    let caller = Arc::new(Caller { scenario, task, callee, guard, start_ns, told, journal, live: Live::default() });
    let live = Arc::clone(&caller);
    let telling = tokio::spawn(async move { live.tell_live().await });
    caller.work(plan).await;
    caller.guard.finish().await;
    telling.abort();
    let mut told = std::mem::take(&mut *caller.told.lock().unwrap_or_else(PoisonError::into_inner));
    told.cloned = caller.guard.cloned();
    told.releases_lost = caller.guard.releases_lost();
    fs::write(&caller.task.told, serde_json::to_vec(&told)?)?;
    Ok(ExitCode::SUCCESS)
}

fn say(word: Word) -> Result<(), Error> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", serde_json::to_string(&word)?)?;
    Ok(stdout.flush()?)
}

/// The engine says when. Without it, however it ended, there is nobody to call for.
async fn started() -> Result<i64, Error> {
    let (told, mut heard) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut lines = io::stdin().lock().lines();
        let word = lines.next().and_then(Result::ok).and_then(|line| serde_json::from_str(&line).ok());
        // Nobody may be left to hear it.
        let _gone = told.blocking_send(word);
        while let Some(Ok(_)) = lines.next() {}
        std::process::exit(1);
    });
    match heard.recv().await.flatten() {
        Some(Word::Start { at_ns }) => Ok(at_ns),
        Some(Word::Ready | Word::Live { .. }) | None => Err("the engine did not say when to start".into()),
    }
}

/// Waits until a time since boot.
async fn until(at_ns: i64) {
    let left_ns = at_ns.saturating_sub(boot_time_ns());
    if let Ok(left_ns) = u64::try_from(left_ns) {
        time::sleep(Duration::from_nanos(left_ns)).await;
    }
}

// === impl Caller ===

impl Caller {
    /// Starts every operation when it is due, and waits for all of them.
    async fn work(self: &Arc<Self>, plan: Vec<Arrival>) {
        let mut operations = JoinSet::new();
        for arrival in plan {
            until(self.start_ns.saturating_add(arrival.due_ns)).await;
            while operations.try_join_next().is_some() {}
            self.live.offered.fetch_add(1, Relaxed);
            let caller = Arc::clone(self);
            operations.spawn(async move { caller.operate(arrival).await });
        }
        let drain = self.scenario.call.deadline().saturating_add(DRAIN_SLACK);
        let drained = time::timeout(drain, async { while operations.join_next().await.is_some() {} }).await;
        if drained.is_err() {
            self.tell(|told| told.unended = u64::try_from(operations.len()).unwrap_or(u64::MAX));
        }
    }

    async fn operate(&self, arrival: Arrival) {
        let begun_ns = boot_time_ns();
        let late_ns = begun_ns.saturating_sub(self.start_ns.saturating_add(arrival.due_ns));
        let mut operation = Operation::new(arrival);
        let end = self.carry_out(&mut operation).await;
        let ended_ns = boot_time_ns().saturating_sub(self.start_ns);
        if end == End::Completed {
            self.live.useful.fetch_add(1, Relaxed);
        }
        if end == End::AdmissionDenied {
            self.live.refused.fetch_add(1, Relaxed);
        }
        let load = u8::try_from(arrival.load).unwrap_or(u8::MAX);
        let ended = Ended { due_ns: arrival.due_ns, ended_ns, load, sent: operation.sent, end };
        self.note(|| Entry::Ended { key: arrival.key, ended });
        self.tell(|told| {
            told.late_max_ns = told.late_max_ns.max(late_ns);
            told.operations.push(ended);
        });
    }

    fn tell(&self, what: impl FnOnce(&mut Told)) {
        what(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Writes it down, where somebody may have to go on.
    fn note(&self, entry: impl FnOnce() -> Entry) {
        if let Some(journal) = &self.journal
            && let Err(error) = journal.write(&entry())
        {
            // Without it the accounts would be wrong.
            eprintln!("the journal cannot be written: {error}");
            std::process::exit(1);
        }
    }

    async fn tell_live(&self) {
        let mut rounds = time::interval(LIVE_EVERY);
        loop {
            rounds.tick().await;
            let live = &self.live;
            let word = Word::Live {
                offered: live.offered.load(Relaxed),
                useful: live.useful.load(Relaxed),
                refused: live.refused.load(Relaxed),
            };
            if say(word).is_err() {
                return;
            }
        }
    }
}
