//! Clients that ask for more than there is, and keep every admission with its time.

use std::{
    collections::HashMap,
    fmt::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use budget::{
    decision::{Attempt, Cause, Outcome, Reserve},
    lease::HolderId,
};
use budget_client::{
    Ask, Client, Client as PlainClient, Decision, Handle, LeasedClient, Mode, Permit, Refused, Reserved, Source,
    Standing, boot_time_ns, reservation_id,
};
use budget_tests::{eventually::eventually, rng::Rng, security};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::{
    bills::{Bill, Billing, Bills, Open, pay_by_tokens},
    pace::Pace,
    setting::pay,
    useful::Rounds,
};

/// The deadline of each ask.
pub(crate) const WITHIN_MS: i64 = 150;
/// The same where whoever answers waits for another.
const WITHIN_PLAINLY_MS: i64 = 600;
/// Asks of one client that wait for a coordinator at once; more are not made.
const WAITING_MAX: usize = 64;
const TICK: Duration = Duration::from_millis(10);
/// A client that was not scheduled for so long does not make up for all of it.
const BEHIND_MAX_S: f64 = 0.5;

/// One admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    /// Right before it was asked for.
    pub(crate) from_ns: i64,
    /// Right after it was sent.
    pub(crate) until_ns: i64,
    pub(crate) is_retry: bool,
    pub(crate) source: Source,
}

/// What all clients saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) admissions: Mutex<Vec<Admission>>,
    pub(crate) originals_asked: AtomicI64,
    pub(crate) retries_asked: AtomicI64,
    pub(crate) overloaded: AtomicI64,
    pub(crate) denied: AtomicI64,
    /// Asks that could not be made.
    pub(crate) not_asked: AtomicI64,
    /// Errors that are no decisions.
    pub(crate) failures: Mutex<HashMap<String, u64>>,
    /// Longest time an ask took, nanoseconds.
    pub(crate) longest_ns: AtomicI64,
    pub(crate) rounds: Rounds,
    /// What they cost, where they are billed.
    pub(crate) bills: Bills,
    /// Each admission is printed, for another process to read.
    pub(crate) prints: bool,
}

/// How much is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// Originals per second of one client.
    pub(crate) originals: f64,
    /// Retries per second of one client.
    pub(crate) retries: f64,
    /// What the lease does not cover is not asked for.
    pub(crate) local_only: bool,
    /// What attempts cost, where the policy has a unit, and how long they last; none: nothing, and no time.
    pub(crate) bill: Option<Bill>,
    /// How long whoever asks waits.
    pub(crate) pace: Pace,
}

/// One ask.
#[derive(Clone, Copy)]
struct Wanted {
    asker: usize,
    is_retry: bool,
    local_only: bool,
    billing: Option<Billing>,
    pace: Pace,
}

/// One client at work.
pub(crate) struct Member {
    pub(crate) client: LeasedClient,
    pub(crate) handle: Handle,
    /// Asks only while this holds.
    pub(crate) active: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

/// Clients at work.
pub(crate) struct Fleet {
    pub(crate) members: Vec<Member>,
    callers: Vec<tokio::task::JoinHandle<()>>,
    /// What the policy gives them per second.
    pub(crate) rate: i64,
    pub(crate) pace: Pace,
    pub(crate) seen: Arc<Seen>,
}

/// Who asks.
#[derive(Clone)]
enum Asker {
    Leased(Handle),
    Plain(Arc<PlainClient>),
}

// === impl Admission ===

impl Admission {
    /// For another process.
    pub(crate) fn line(&self) -> String {
        let kind = if self.is_retry { "retry" } else { "original" };
        format!("admitted {kind} {} {} {:?} {}", self.from_ns, self.until_ns, self.source, std::process::id())
    }

    /// An admission, and the process it was in.
    pub(crate) fn parse(line: &str) -> Option<(Self, u32)> {
        let words: Vec<&str> = line.strip_prefix("admitted ")?.split(' ').collect();
        let [kind, from_ns, until_ns, source, process] = words[..] else { return None };
        let sources = [Source::Lease, Source::Coordinator, Source::Degraded, Source::Fallback];
        let source = sources.into_iter().find(|one| format!("{one:?}") == source)?;
        let (from_ns, until_ns) = (from_ns.parse().ok()?, until_ns.parse().ok()?);
        Some((Self { from_ns, until_ns, is_retry: kind == "retry", source }, process.parse().ok()?))
    }
}

// === impl Demand ===

impl Demand {
    /// Twice the policy in originals, three times the ratio of [`POLICY`](super::setting::POLICY) in retries.
    pub(crate) fn plenty(rate: i64, members: usize) -> Self {
        let originals = 2.0 * rate as f64 / members as f64;
        Self { originals, retries: 0.6 * originals, local_only: false, bill: None, pace: Pace::FULL }
    }

    /// The same at another speed: `rate` is that at full speed.
    pub(crate) fn plenty_at(pace: Pace, rate: i64, members: usize) -> Self {
        Self { pace, ..Self::plenty(pace.rate(rate), members) }
    }
}

// === impl Fleet ===

impl Fleet {
    pub(crate) fn empty() -> Self {
        Self { members: Vec::new(), callers: Vec::new(), rate: 100, pace: Pace::FULL, seen: Arc::default() }
    }

    pub(crate) fn paced(pace: Pace, rate: i64) -> Self {
        Self { rate: pace.rate(rate), pace, ..Self::empty() }
    }

    /// So many clients of these endpoints.
    pub(crate) fn start(endpoints: &[String], members: usize, demand: Demand) -> Self {
        let mut fleet = Self { pace: demand.pace, ..Self::empty() };
        for _ in 0..members {
            fleet.add(endpoints, None, demand);
        }
        fleet
    }

    pub(crate) fn add(&mut self, endpoints: &[String], holder: Option<&str>, demand: Demand) {
        let mut builder =
            Client::builder().endpoints(endpoints).timing(demand.pace.timing()).options(security::caller());
        if let Some(holder) = holder {
            builder = builder.holder_id(HolderId::new(holder).unwrap());
        }
        let client = builder.connect().unwrap_or_else(|error| panic!("{error}"));
        let dependency = if demand.bill.is_some() { pay_by_tokens() } else { pay() };
        let handle = client.dependency(&dependency).unwrap();
        let active = Arc::new(AtomicBool::new(true));
        let asker = Asker::Leased(handle.clone());
        let work = work((self.askers(), asker), demand, Arc::clone(&active), Arc::clone(&self.seen));
        self.members.push(Member { client, handle, active, task: tokio::spawn(work) });
    }

    /// A caller of an agent, or of a daemon, that holds no lease.
    pub(crate) fn add_caller(&mut self, endpoint: &str, demand: Demand) {
        let asker = Asker::Plain(Arc::new(PlainClient::with_options(endpoint, &security::caller()).unwrap()));
        let work = work((self.askers(), asker), demand, Arc::new(AtomicBool::new(true)), Arc::clone(&self.seen));
        self.callers.push(tokio::spawn(work));
    }

    /// Clients, and callers without leases.
    pub(crate) fn askers(&self) -> usize {
        self.members.len() + self.callers.len()
    }

    /// Waits until all are leased, and says how long that took and should. Who is late is judged in virtual time, by T4 of
    /// tests/sim.
    pub(crate) async fn all_leased(&self, should_ms: i64, what: &str) {
        let start_ns = boot_time_ns();
        eventually(self.pace.bound(), what, async || self.standing(Standing::Leased) == self.members.len()).await;
        let took_ms = (boot_time_ns() - start_ns) / 1_000_000;
        println!("{what}: {} holders within {took_ms} ms; on an idle machine {should_ms} ms", self.members.len());
    }

    /// Twice as many originals as there may be, and three times the ratio of retries, by so many clients.
    pub(crate) fn plenty(endpoints: &[String], members: usize, rate: i64) -> Self {
        Self::plenty_at(Pace::FULL, endpoints, members, rate)
    }

    /// The same at another speed.
    pub(crate) fn plenty_at(pace: Pace, endpoints: &[String], members: usize, rate: i64) -> Self {
        let demand = Demand::plenty_at(pace, rate, members);
        Self { rate: pace.rate(rate), ..Self::start(endpoints, members, demand) }
    }

    /// No client asks for anything any more.
    pub(crate) fn stop_asking(&self) {
        self.members.iter().for_each(|member| member.active.store(false, Relaxed));
    }

    /// How many stand like this.
    pub(crate) fn standing(&self, standing: Standing) -> usize {
        self.members.iter().filter(|member| member.handle.standing() == standing).count()
    }

    /// Waits until so many stand like this.
    pub(crate) async fn stand(&self, standing: Standing, members: usize) {
        let what = format!("{members} clients are {standing:?}");
        eventually(self.pace.bound(), &what, async || self.standing(standing) >= members).await;
    }

    /// Admitted since and until then, by the time they were sent.
    pub(crate) fn admitted(&self, from_ns: i64, until_ns: i64) -> usize {
        let admissions = self.seen.admissions.lock().unwrap();
        admissions.iter().filter(|seen| (from_ns..until_ns).contains(&seen.until_ns)).count()
    }

    /// Admitted by leases since then.
    pub(crate) fn by_lease_since(&self, from_ns: i64) -> usize {
        let admissions = self.seen.admissions.lock().unwrap();
        admissions.iter().filter(|seen| seen.from_ns >= from_ns && seen.source == Source::Lease).count()
    }

    /// Each ask was decided, or had no answer by its deadline: how many those are is up to the machine.
    pub(crate) fn assert_none_failed(&self) {
        const LATE: &str = "no answer within the deadline";
        let failures = self.seen.failures.lock().unwrap().clone();
        assert!(failures.keys().all(|why| why == LATE), "{}", self.summary());
    }

    pub(crate) fn summary(&self) -> String {
        let mut text = String::new();
        let seen = &self.seen;
        let admissions = seen.admissions.lock().unwrap();
        let by = |source| admissions.iter().filter(|seen| seen.source == source).count();
        let _ = write!(
            text,
            "{} admitted ({} lease, {} coordinator, {} degraded, {} fallback), asked {} + {} retries, {} denied, {} \
             overloaded, {} not asked, longest {} ms, {:?}",
            admissions.len(),
            by(Source::Lease),
            by(Source::Coordinator),
            by(Source::Degraded),
            by(Source::Fallback),
            seen.originals_asked.load(Relaxed),
            seen.retries_asked.load(Relaxed),
            seen.denied.load(Relaxed),
            seen.overloaded.load(Relaxed),
            seen.not_asked.load(Relaxed),
            seen.longest_ns.load(Relaxed) / 1_000_000,
            seen.failures.lock().unwrap(),
        );
        text
    }

    /// Ends all, and hands out what they saw.
    pub(crate) async fn end(self) -> Arc<Seen> {
        println!("{}", self.summary());
        for caller in self.callers {
            caller.abort();
        }
        for member in &self.members {
            member.task.abort();
        }
        for member in self.members {
            drop(member.task.await);
        }
        self.seen
    }
}

async fn work((number, asker): (usize, Asker), demand: Demand, active: Arc<AtomicBool>, seen: Arc<Seen>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waiting: JoinSet<Option<Open>> = JoinSet::new();
    let (mut open, mut rng) = (Vec::new(), Rng::fresh());
    let (mut last_ns, mut originals, mut retries) = (boot_time_ns(), 0.0, 0.0);
    loop {
        ticks.tick().await;
        while let Some(asked) = waiting.try_join_next() {
            // At the end of a test they are cancelled.
            open.extend(asked.ok().flatten());
        }
        seen.bills.settle(&mut open, seen.prints);
        let now_ns = boot_time_ns();
        let elapsed_s = ((now_ns - last_ns) as f64 / 1e9).min(BEHIND_MAX_S);
        last_ns = now_ns;
        if !active.load(Relaxed) {
            continue;
        }
        originals += demand.originals * elapsed_s;
        retries += demand.retries * elapsed_s;
        let asks_for_originals = originals >= 1.0;
        while originals >= 1.0 || retries >= 1.0 {
            let is_retry = retries > originals;
            if is_retry {
                retries -= 1.0;
                seen.retries_asked.fetch_add(1, Relaxed);
            } else {
                originals -= 1.0;
                seen.originals_asked.fetch_add(1, Relaxed);
            }
            let billing = demand.bill.map(|bill| bill.next(&mut rng));
            let wanted = Wanted { asker: number, is_retry, local_only: demand.local_only, billing, pace: demand.pace };
            open.extend(seen.ask(&asker, wanted, &mut waiting));
        }
        // Others ask when they are answered.
        if asks_for_originals && matches!(asker, Asker::Leased(_)) {
            seen.rounds.note(number, now_ns, open.iter().filter(|open: &&Open| open.is_of_lease()).count());
        }
    }
}

/// An ask of one kind.
pub(crate) fn ask_of(is_retry: bool) -> Ask {
    if is_retry { Ask::retry(2, Cause::Transient) } else { Ask::original() }
}

// === impl Seen ===

impl Seen {
    /// Locally at once, or else beside the others.
    fn ask(self: &Arc<Self>, asker: &Asker, wanted: Wanted, waiting: &mut JoinSet<Option<Open>>) -> Option<Open> {
        let from_ns = boot_time_ns();
        let Wanted { asker: number, is_retry, billing, local_only, pace } = wanted;
        let within = move |ms| Duration::from_millis(pace.ms(ms).unsigned_abs());
        let ask = ask_of(is_retry).costs(billing.map(|billing| billing.estimated()));
        if let Asker::Leased(handle) = asker
            && let Some(decided) = handle.try_reserve(&ask)
        {
            return self.note(from_ns, is_retry, billing, decided);
        }
        if local_only || waiting.len() >= WAITING_MAX {
            self.not_asked.fetch_add(1, Relaxed);
            return None;
        }
        let (asker, seen) = (asker.clone(), Arc::clone(self));
        waiting.spawn(async move {
            let from_ns = boot_time_ns();
            match asker {
                Asker::Leased(handle) => {
                    let decided = handle.reserve(&ask, within(WITHIN_MS)).await;
                    seen.note(from_ns, is_retry, billing, decided)
                }
                Asker::Plain(client) => {
                    let is_decided = seen.ask_plainly(from_ns, is_retry, &client, within(WITHIN_PLAINLY_MS)).await;
                    if is_decided && !is_retry {
                        seen.rounds.note(number, boot_time_ns(), 0);
                    }
                    None
                }
            }
        });
        None
    }

    /// Whether it was decided.
    async fn ask_plainly(&self, from_ns: i64, is_retry: bool, client: &PlainClient, within: Duration) -> bool {
        let attempt = if is_retry { Attempt::retry(2, Cause::Transient) } else { Attempt::ORIGINAL };
        let reserve = Reserve { no_release: true, ..Reserve::new(reservation_id().unwrap(), attempt) };
        let reserved = client.reserve(&pay(), &reserve, within).await;
        let until_ns = boot_time_ns();
        self.longest_ns.fetch_max(until_ns - from_ns, Relaxed);
        match reserved {
            Ok(Reserved { decision: Decision::Admitted(_), mode, .. }) => {
                let source = match mode {
                    Mode::Leased => Source::Lease,
                    Mode::Exact | Mode::Shadow => Source::Coordinator,
                    Mode::Degraded => Source::Degraded,
                };
                self.keep(Admission { from_ns, until_ns, is_retry, source });
                true
            }
            Ok(_) => {
                self.denied.fetch_add(1, Relaxed);
                true
            }
            Err(budget_client::Error::Overloaded(_)) => {
                self.overloaded.fetch_add(1, Relaxed);
                false
            }
            Err(error) => {
                *self.failures.lock().unwrap().entry(error.to_string()).or_default() += 1;
                false
            }
        }
    }

    pub(crate) fn keep(&self, admission: Admission) {
        if self.prints {
            println!("{}", admission.line());
        }
        self.admissions.lock().unwrap().push(admission);
    }

    /// Sends what is admitted, and finishes it at once unless it is billed.
    pub(crate) fn note(
        &self,
        from_ns: i64,
        is_retry: bool,
        billing: Option<Billing>,
        decided: Result<Permit, Refused>,
    ) -> Option<Open> {
        self.longest_ns.fetch_max(boot_time_ns() - from_ns, Relaxed);
        match decided {
            Ok(permit) => {
                let source = permit.source();
                // Handed back otherwise.
                let attempt = permit.sent().ok()?;
                let until_ns = boot_time_ns();
                self.keep(Admission { from_ns, until_ns, is_retry, source });
                match billing {
                    Some(billing) => {
                        return Some(self.bills.open((from_ns, until_ns), source, billing, attempt, self.prints));
                    }
                    None => attempt.finish(Outcome::Success),
                }
            }
            Err(Refused::Denied(_)) => {
                self.denied.fetch_add(1, Relaxed);
            }
            Err(Refused::Overloaded) => {
                self.overloaded.fetch_add(1, Relaxed);
            }
            Err(Refused::Failed(error)) => {
                *self.failures.lock().unwrap().entry(error.to_string()).or_default() += 1;
            }
        }
        None
    }
}
