//! A process that holds a lease: the real machine and the real share, driven as a client drives them.

use std::rc::Rc;

use budget::{
    decision::{Attempt, Cause, Outcome, Priority},
    holder::{self, Action, Holder, Local, LocalAsk, Spent, State},
    lease::{FallbackRules, HolderId, Incarnation, LeaseName, LocalOriginals, SyncAnswer},
};

use crate::{
    history::{Admission, Source},
    oracle::{level::Level, state::Held, windows::Beyond},
    scenario::Asker,
    time::{HostClock, MS, S},
    world::{Event, Inside, Reply, World, gap},
};

/// Micro-tokens per second of a process that was never told the policy.
pub(crate) const NEVER_TOLD_RATE: i64 = 2_000_000;

/// One process, dead or alive.
pub(crate) struct Process {
    pub name: HolderId,
    pub weight: i64,
    pub originals: f64,
    /// Percent of `originals` that it asks for now.
    pub demand: u64,
    pub retries: f64,
    pub clock: HostClock,
    /// The replica it talks to.
    pub endpoint: usize,
    /// The number of its latest request.
    pub sequence: i64,
    /// It never talks to another.
    pinned: bool,
    pub lends: bool,
    /// The process that lends to it instead of a replica.
    pub agent: Option<usize>,
    /// Of the last sub-lease that it made in this life.
    pub lent: i64,
    pub cut: bool,
    pub life: u32,
    /// The machine, while it lives.
    pub holder: Option<Holder>,
    /// Which incarnation of all.
    pub stream: u32,
    pub paused: bool,
    /// When it was suspended.
    pub suspended: Option<i64>,
    /// What waits for it to go on.
    waiting: Vec<Inside>,
    /// The next poll that counts.
    poll_at: i64,
    /// The next ask that counts.
    ask_at: i64,
    pub held: Option<Held>,
    /// What it can have at most.
    pub level: Level,
    /// It is one of two that live under one incarnation: which case of that.
    pub twin: Option<usize>,
}

/// An attempt that was admitted and is not settled.
pub(crate) struct Sent {
    pub spent: Spent,
    pub admission: usize,
    pub permit: Option<usize>,
    retry: bool,
    /// What the level was raised by for it, if it is an original: the ratio of then, which another policy may have changed.
    ratio: i64,
    /// The lease it was taken from.
    name: LeaseName,
    /// When the step of the lease it was taken from ends, by the holder's clock.
    pub until: i64,
}

// === impl Process ===

impl Process {
    pub(crate) fn new(asker: &Asker, clock: HostClock, endpoint: usize) -> Self {
        Self {
            name: HolderId::new(&asker.name).unwrap(),
            weight: asker.weight,
            originals: asker.originals,
            demand: 100,
            retries: 0.0,
            clock,
            endpoint: asker.endpoint.unwrap_or(endpoint),
            sequence: 0,
            pinned: asker.endpoint.is_some(),
            lends: asker.lends,
            agent: asker.agent,
            lent: 0,
            cut: false,
            life: 0,
            holder: None,
            stream: 0,
            paused: false,
            suspended: None,
            waiting: Vec::new(),
            poll_at: 0,
            ask_at: 0,
            held: None,
            level: Level::default(),
            twin: None,
        }
    }

    /// A copy of it with all it has in memory.
    pub(crate) fn copy(&self) -> Option<Self> {
        let holder = self.holder.as_ref()?.copy();
        Some(Self {
            name: self.name.clone(),
            holder: Some(holder),
            held: self.held.clone(),
            waiting: Vec::new(),
            ..*self
        })
    }

    /// When the step of its lease that is in force at `now` ends, by its clock.
    fn step_end(&self, now: i64) -> i64 {
        let tau = self.clock.read(now);
        self.held.as_ref().and_then(|held| held.at(tau)).map_or(i64::MIN, |(end, _)| end)
    }

    pub(crate) const fn lives(&self) -> bool {
        self.holder.is_some()
    }
}

// === impl World ===

impl World {
    /// A process begins its next life.
    pub(crate) fn start(&mut self, index: usize) {
        let incarnation = Incarnation(self.rng.bytes());
        let seed = self.rng.next_u64();
        let process = &mut self.processes[index];
        process.life += 1;
        process.paused = false;
        process.suspended = None;
        process.waiting.clear();
        process.held = None;
        process.level = Level::default();
        process.lent = 0;
        let tau = process.clock.read(self.now);
        // What a process uses that was never told the policy.
        let never_told = FallbackRules {
            originals: LocalOriginals::Rate(NEVER_TOLD_RATE),
            retries_earned: false,
            units: Box::default(),
        };
        let timing = self.scenario.timing;
        let holder = Holder::new(process.name.clone(), incarnation, process.weight, timing, never_told, seed, tau);
        process.holder = Some(if process.lends { holder.lending() } else { holder });
        self.new_stream(index);
        self.wake(index, self.now);
        self.resume_asking(index);
    }

    /// What it admits from now on is another incarnation's.
    pub(crate) fn new_stream(&mut self, index: usize) {
        self.processes[index].stream = self.streams;
        self.streams += 1;
        self.beyond.push(Beyond { rate: NEVER_TOLD_RATE, ..Beyond::default() });
    }

    pub(crate) fn end(&mut self, index: usize) {
        let process = &mut self.processes[index];
        process.life += 1;
        process.holder = None;
        process.held = None;
        process.waiting.clear();
        process.paused = false;
    }

    pub(crate) fn go_on(&mut self, index: usize) {
        let now = self.now;
        let process = &mut self.processes[index];
        process.paused = false;
        if let Some(since) = process.suspended.take() {
            process.clock.suspended(now - since);
        }
        for what in std::mem::take(&mut process.waiting) {
            self.later(index, now, what);
        }
        self.wake(index, now);
    }

    /// Begins to ask, and forgets about asks that were planned.
    pub(crate) fn resume_asking(&mut self, index: usize) {
        let at = self.now + self.rng.between(0, 1_000 * MS);
        self.processes[index].ask_at = at;
        self.later(index, at, Inside::Ask);
    }

    /// Notes what lease a process lives by.
    fn note_held(&mut self, index: usize, answer: &SyncAnswer) {
        let process = &mut self.processes[index];
        let tau = process.clock.read(self.now);
        let Some(holder) = &process.holder else { return };
        process.level.advance(process.held.as_ref(), tau);
        let held = Held::new(&holder.share().steps(tau));
        if let (SyncAnswer::Granted(grant), true) = (answer, process.level.name != holder.name()) {
            process.level.install(&held, tau, holder.name(), &grant.moved);
        }
        process.held = Some(held);
    }

    pub(crate) fn later(&mut self, process: usize, at: i64, what: Inside) {
        let life = self.processes[process].life;
        self.queue.push(at, Event::Process { process, life, what });
    }

    /// Polls at `at` and forgets about other polls.
    pub(crate) fn wake(&mut self, index: usize, at: i64) {
        self.processes[index].poll_at = at;
        self.later(index, at, Inside::Poll);
    }

    pub(crate) fn inside(&mut self, index: usize, life: u32, what: Inside) {
        let process = &mut self.processes[index];
        if life != process.life || process.holder.is_none() {
            return;
        }
        if process.paused {
            process.waiting.push(what);
            return;
        }
        match what {
            Inside::Ask => self.ask(index),
            Inside::Poll => self.poll(index),
            Inside::Reply { attempt, reply } => self.reply(index, attempt, &reply),
            Inside::Send(sent) => self.send(index, *sent),
            Inside::Settle(sent) => self.settle(index, *sent),
            Inside::Lend(request) => self.lend(index, &request),
            Inside::Serve { retry } => self.attempt(index, retry),
        }
    }

    fn poll(&mut self, index: usize) {
        let now = self.now;
        let fresh = self.rng.next_u64();
        let process = &mut self.processes[index];
        if now < process.poll_at {
            return;
        }
        let tau = process.clock.read(now);
        let Some(holder) = &mut process.holder else { return };
        let action = holder.poll(tau, fresh);
        if process.lends {
            self.note_part(index, None);
        }
        let process = &mut self.processes[index];
        match action {
            Action::Wait { until_ns } => {
                let until_ns = until_ns.min(tau + 600 * S);
                let at = process.clock.when(until_ns).max(now + 1_000);
                self.wake(index, at);
            }
            Action::Send { ask, attempt } => {
                let ask = Rc::new(*ask);
                process.sequence = ask.sequence;
                if let Some(agent) = process.agent {
                    self.ask_agent(index, agent, &ask, attempt);
                    self.wake(index, now);
                    return;
                }
                let (endpoint, life, cut, pinned) = (process.endpoint, process.life, process.cut, process.pinned);
                // An unanswered client tries another endpoint now and then.
                if !pinned && self.rng.chance(1, 3) {
                    let other = self.rng.below(self.scenario.replicas as u64);
                    self.processes[index].endpoint = usize::try_from(other).unwrap_or(0);
                }
                if !cut {
                    for delay in self.net.deliveries(&mut self.rng).into_iter().flatten() {
                        let request =
                            Event::Request { process: index, life, replica: endpoint, ask: Rc::clone(&ask), attempt };
                        let arrives = now + delay;
                        let apart = self.scenario.asks_apart_ms.map_or(1, |apart_ms| apart_ms * MS);
                        self.queue.push((arrives + apart - 1) / apart * apart, request);
                    }
                }
                self.wake(index, now);
            }
        }
    }

    fn reply(&mut self, index: usize, attempt: u32, reply: &Reply) {
        let now = self.now;
        let incarnation = Incarnation(self.rng.bytes());
        let process = &mut self.processes[index];
        if process.cut {
            return;
        }
        let tau = process.clock.read(now);
        let Some(holder) = &mut process.holder else { return };
        let told = holder::Reply {
            sequence: reply.sequence,
            nonce: reply.nonce,
            // Some transports can tell.
            attempt: index.is_multiple_of(2).then_some(attempt),
            answer: &reply.answer,
            rules: Some(&reply.rules),
        };
        holder.on_answer(tau, &told);
        if holder.state(tau) == State::Fenced {
            holder.reincarnate(tau, incarnation);
            self.processes[index].lent = 0;
            self.new_stream(index);
            self.fenced(index);
        }
        let stream = usize::try_from(self.processes[index].stream).unwrap_or(0);
        self.beyond[stream].learn(&reply.rules);
        self.note_held(index, &reply.answer);
        self.note_twin(index, reply.sequence);
        self.wake(index, now);
        self.check_state();
    }

    /// Asks as its callers do: one original, and the retries that are due.
    fn ask(&mut self, index: usize) {
        let now = self.now;
        let process = &mut self.processes[index];
        if now < process.ask_at || process.demand == 0 {
            return;
        }
        let per_second = process.originals * process.demand as f64 / 100.0;
        process.retries += self.scenario.retries;
        let mut retries = 0;
        while process.retries >= 1.0 {
            process.retries -= 1.0;
            retries += 1;
        }
        let gap = gap(&mut self.rng, per_second);
        self.processes[index].ask_at = now + gap;
        self.later(index, now + gap, Inside::Ask);
        self.attempt(index, false);
        for _ in 0..retries {
            self.attempt(index, true);
        }
    }

    pub(crate) fn attempt(&mut self, index: usize, retry: bool) {
        let (costs, cost) = self.costs();
        let now = self.now;
        let process = &self.processes[index];
        let tau = process.clock.read(now);
        let Some(holder) = &process.holder else { return };
        let attempt = if retry { Attempt::retry(2, Cause::Transient) } else { Attempt::ORIGINAL };
        let ask = LocalAsk { attempt, priority: Priority::Default, costs: &costs };
        match holder.share().reserve(tau, &ask) {
            Local::Admitted(spent) => self.admitted(index, spent, retry, cost),
            Local::Denied(_) => {}
            Local::Short if process.agent.is_some_and(|agent| self.reaches_agent(index, agent)) => {
                self.ask_agent_for_one(index, retry);
            }
            Local::Short => {
                let (endpoint, cut) = (process.endpoint, process.cut);
                if !cut && process.agent.is_none() && self.coordinators.reaches(endpoint) {
                    let delay = self.rng.between(MS, 5 * MS);
                    self.queue.push(now + delay, Event::Reserve { process: Some(index), replica: endpoint, retry });
                } else if let Local::Admitted(spent) = holder.share().reserve_beyond(tau, &ask) {
                    self.admitted(index, spent, retry, cost);
                }
            }
        }
    }

    fn admitted(&mut self, index: usize, spent: Spent, retry: bool, cost: i64) {
        let source = if spent.is_beyond() { Source::Fallback } else { Source::Lease };
        let now = self.now;
        let stream = self.processes[index].stream;
        let retry_micros = if retry { 1_000_000 } else { 0 };
        self.history.admissions.push(Admission { at: now, retry_micros, source, stream, unsent: false, cost });
        let admission = self.history.admissions.len() - 1;
        let slots = self.coordinators.known[self.coordinators.published].numbers.slots_limited;
        // The fallback limits rates, not permits.
        let permit = (slots && source == Source::Lease).then(|| self.permit());
        let until = self.processes[index].step_end(now);
        // By the rules of then, which need not be those of now; the largest it was told would take back too much.
        let ratio = self.ratio(index).min(spent.deposited_micros());
        if source == Source::Lease {
            self.judge_level(index, retry, ratio);
        }
        let name = self.processes[index].level.name;
        let sent = Sent { spent, admission, permit, retry, ratio, name, until };
        match self.rng.below(100) {
            0 => self.hand_back(index, sent),
            1 => {
                let at = now + self.rng.between(0, self.scenario.late_send_ms * MS);
                self.later(index, at, Inside::Send(Box::new(sent)));
            }
            _ => self.send(index, sent),
        }
    }

    /// Right before its bytes go out.
    fn send(&mut self, index: usize, sent: Sent) {
        let process = &self.processes[index];
        let tau = process.clock.read(self.now);
        let Some(holder) = &process.holder else { return };
        if !holder.share().check(&sent.spent, tau) {
            self.hand_back(index, sent);
            return;
        }
        if self.history.admissions[sent.admission].source == Source::Lease && tau > sent.until {
            let late = (tau - sent.until) / MS;
            self.history.violated(self.now, "T5", || format!("process {index} sends {late} ms after its step's end"));
        }
        let hold = self.rng.between(0, self.scenario.hold_ms * MS);
        if sent.permit.is_some() {
            self.later(index, self.now + hold, Inside::Settle(Box::new(sent)));
        } else {
            self.settle(index, sent);
        }
    }

    fn settle(&mut self, index: usize, sent: Sent) {
        if let Some(permit) = sent.permit {
            self.permit_ends(permit);
        }
        let process = &self.processes[index];
        let tau = process.clock.read(self.now);
        let Some(holder) = &process.holder else { return };
        let outcome = if self.rng.chance(4, 5) { Outcome::Success } else { Outcome::Transient };
        holder.share().settle(sent.spent, tau, outcome, &[]);
    }

    fn hand_back(&mut self, index: usize, sent: Sent) {
        let tau = self.processes[index].clock.read(self.now);
        let Some(holder) = &self.processes[index].holder else { return };
        let beyond = sent.spent.is_beyond();
        holder.share().hand_back(sent.spent, tau);
        if !beyond {
            self.level_back(index, (sent.name, sent.until), sent.retry, sent.ratio);
        }
        self.history.admissions[sent.admission].unsent = true;
        if let Some(permit) = sent.permit {
            self.permit_ends(permit);
        }
    }

    /// The most that one original deposits, as far as an incarnation was told.
    fn ratio(&self, index: usize) -> i64 {
        usize::try_from(self.processes[index].stream)
            .ok()
            .and_then(|stream| self.beyond.get(stream))
            .map_or(0, |it| it.ratio)
    }

    /// What a process has just admitted from its lease must have been there.
    fn judge_level(&mut self, index: usize, retry: bool, ratio: i64) {
        let cap = self.held_now(index).retry_burst;
        let process = &mut self.processes[index];
        let tau = process.clock.read(self.now);
        process.level.advance(process.held.as_ref(), tau);
        if let Err(what) = process.level.admit(retry, ratio, cap) {
            self.history.violated(self.now, "T3", || format!("process {index} {what}"));
        }
    }

    fn level_back(&mut self, index: usize, (name, until): (LeaseName, i64), retry: bool, ratio: i64) {
        let part = self.held_now(index);
        let process = &mut self.processes[index];
        let tau = process.clock.read(self.now);
        process.level.advance(process.held.as_ref(), tau);
        let same = name == process.level.name && until == process.step_end(self.now);
        process.level.hand_back(same, retry, ratio, &part);
    }
}
