//! The world of one run: everything that exists, the loop over its events, and what each event does.

use std::{rc::Rc, sync::Arc};

use budget::{
    decision::{Admitted, Answer, Attempt, Cause, Cost, Outcome, Release, Reserve, Step},
    ids::{PolicyVersion, ReservationId},
    lease::{Curve, Epoch, SyncAnswer, SyncAsk},
    ledger::Ledger,
    policy::{LeaseNumbers, Numbers, Policy},
};

use crate::{
    history::{Admission, History, Quota, Source},
    net::Net,
    oracle::{state::Twins, windows::Beyond},
    process::{Process, Sent},
    rng::Rng,
    scenario::{Scenario, unit},
    store::{COPY_EVERY_MS, Called, Coordinators, Deed, Known, Master, Replica, Said, bits},
    time::{HostClock, MS, Queue, S, WallClock},
};

/// Direct callers have this stream.
pub(crate) const NOBODY: u32 = u32::MAX;

/// What happens at some time.
pub(crate) enum Event {
    /// By its index in the scenario.
    Fault(usize),
    /// Half a second has passed.
    Tick,
    /// A caller without a lease asks.
    Direct,
    /// A replica's heartbeat is due.
    Beat(usize),
    /// A replica turns to another master.
    Turn(usize, usize),
    /// A master ends.
    Bury(usize),
    /// A request reaches the store by way of a replica.
    Request { process: usize, life: u32, replica: usize, ask: Rc<SyncAsk>, attempt: u32 },
    /// A Reserve does.
    Reserve { process: Option<usize>, replica: usize, retry: bool },
    /// A Release does.
    Release { replica: usize, id: ReservationId, permit: usize },
    /// Something happens in a process.
    Process { process: usize, life: u32, what: Inside },
}

/// What happens in a process, later if it is paused.
pub(crate) enum Inside {
    Ask,
    Poll,
    Reply {
        attempt: u32,
        reply: Rc<Reply>,
    },
    Send(Box<Sent>),
    Settle(Box<Sent>),
    /// An agent is asked for a lease.
    Lend(Rc<Request>),
    /// An agent is asked for one attempt.
    Serve {
        retry: bool,
    },
}

/// What a process asks an agent.
pub(crate) struct Request {
    pub process: usize,
    pub life: u32,
    pub ask: Rc<SyncAsk>,
    pub attempt: u32,
}

/// What a replica answers to a request.
pub(crate) struct Reply {
    pub sequence: i64,
    pub nonce: i64,
    pub answer: SyncAnswer,
    pub rules: budget::lease::Rules,
}

/// Everything that exists.
pub(crate) struct World {
    pub now: i64,
    pub rng: Rng,
    pub queue: Queue<Event>,
    pub scenario: Rc<Scenario>,
    pub net: Net,
    pub coordinators: Coordinators,
    pub processes: Vec<Process>,
    pub streams: u32,
    pub history: History,
    /// What each incarnation may admit beyond its curve.
    pub beyond: Vec<Beyond>,
    /// Cases of two processes under one incarnation.
    pub twins: Vec<Twins>,
    /// Two masters live longer than they should, until then.
    pub two_until: i64,
    /// Retries that direct callers owe to their originals.
    direct_retries: f64,
}

// === impl World ===

impl World {
    pub(crate) fn new(seed: u64, scenario: Rc<Scenario>) -> Self {
        let mut rng = Rng::new(seed);
        let known: Vec<_> = (scenario.policies.iter().enumerate())
            .map(|(index, spec)| {
                let policy = Policy::new(spec.clone()).unwrap_or_else(|error| panic!("{error}"));
                let mut numbers = policy.numbers_timed(false, true, &scenario.timing);
                numbers.lease = Some(lately(&scenario, &numbers));
                let number = i64::try_from(index + 1).unwrap();
                Known { version: PolicyVersion { number, id: bits(&mut rng) }, policy, numbers: Arc::new(numbers) }
            })
            .collect();
        let quotas = known.iter().map(|known| Quota::of(&known.numbers)).collect();
        let mut history = History::new(quotas, scenario.timing.margin_ms + scenario.timing.overlap_ms);
        history.permit_ttl_ms = known.iter().map(|known| known.numbers.permit_ttl_ms).max().unwrap_or(0);
        let clock = WallClock::new(rng.between(1, 1 << 41), rng.between(-400, 400));
        let master = Master::new(&mut rng, None, clock);
        let replicas = (0..scenario.replicas)
            .map(|_| Replica {
                alive: true,
                cut: false,
                master: 0,
                policy: 0,
                remembered: Epoch::default(),
                boot: bits(&mut rng),
                clock: HostClock::new(rng.between(0, 1 << 50), rng.between(-400, 400)),
            })
            .collect();
        let coordinators = Coordinators::new(known, master, replicas, scenario.fresh);
        let mut world = Self {
            now: 0,
            net: scenario.net,
            queue: Queue::new(),
            coordinators,
            processes: Vec::new(),
            streams: 0,
            history,
            beyond: Vec::new(),
            twins: Vec::new(),
            two_until: 0,
            direct_retries: 0.0,
            rng,
            scenario,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let scenario = Rc::clone(&self.scenario);
        for (index, (at_ms, _)) in scenario.faults.iter().enumerate() {
            self.queue.push(at_ms * MS, Event::Fault(index));
        }
        self.queue.push(0, Event::Tick);
        if scenario.direct > 0.0 {
            self.queue.push(0, Event::Direct);
        }
        for replica in 0..scenario.replicas {
            let at = self.rng.between(0, S / 2);
            self.queue.push(at, Event::Beat(replica));
        }
        for asker in &scenario.askers {
            let clock = HostClock::new(self.rng.between(0, 1 << 50), self.rng.between(-400, 400));
            let endpoint = usize::try_from(self.rng.below(scenario.replicas as u64)).unwrap_or(0);
            // Every other one lives on the host of its agent.
            let beside =
                asker.agent.filter(|agent| *agent < self.processes.len() && self.processes.len().is_multiple_of(2));
            let clock = beside.map_or(clock, |agent| self.processes[agent].clock);
            self.processes.push(Process::new(asker, clock, endpoint));
            if asker.starts {
                self.start(self.processes.len() - 1);
            }
        }
    }

    /// Runs to the end, or to the first violation.
    pub(crate) fn run(&mut self) {
        let end = self.scenario.duration_ms * MS;
        while let Some((at, event)) = self.queue.pop() {
            if at > end || self.history.violation.is_some() {
                break;
            }
            self.now = at.max(self.now);
            self.happens(event);
        }
        self.now = self.now.max(end);
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Fault(index) => {
                let scenario = Rc::clone(&self.scenario);
                self.strike(&scenario.faults[index].1);
            }
            Event::Tick => {
                self.history.note_bound(self.now);
                self.coordinators.copy(self.now);
                self.coordinators.stay(self.now, &mut self.history);
                self.history.held.push((self.now, self.all_held().rate));
                self.check_levels();
                self.queue.push(self.now + COPY_EVERY_MS * MS, Event::Tick);
            }
            Event::Direct => self.direct(),
            Event::Beat(replica) => self.beat(replica),
            Event::Turn(replica, master) => self.coordinators.replicas[replica].master = master,
            Event::Bury(master) => self.coordinators.bury(master),
            Event::Request { process, life, replica, ask, attempt } => {
                self.request(process, life, replica, &ask, attempt)
            }
            Event::Reserve { process, replica, retry } => self.reserve(process, replica, retry),
            Event::Release { replica, id, permit } => self.release(replica, id, permit),
            Event::Process { process, life, what } => self.inside(process, life, what),
        }
    }

    fn beat(&mut self, replica: usize) {
        let next = self.now + self.scenario.timing.heartbeat_ms * MS;
        self.queue.push(next, Event::Beat(replica));
        let Self { coordinators, history, rng, now, .. } = self;
        let _ = coordinators.call(replica, Deed::Beat, *now, rng, history);
        // A replica reads the policies from time to time.
        if self.rng.chance(1, 4) && self.coordinators.reaches(replica) {
            self.coordinators.replicas[replica].policy = self.coordinators.published;
        }
        self.check_state();
    }

    /// A holder's request at the store.
    fn request(&mut self, process: usize, life: u32, replica: usize, ask: &SyncAsk, attempt: u32) {
        if self.processes[process].cut {
            return;
        }
        let Self { coordinators, history, rng, now, .. } = self;
        let called = coordinators.call(replica, Deed::Sync(ask), *now, rng, history);
        let Called::Done(Said::Synced(answer)) = called else { return };
        let master = &self.coordinators.masters[self.coordinators.replicas[replica].master];
        let holders = master.ledger.as_ref().map_or(0, Ledger::holders);
        self.check_state();
        self.check_grant(replica, &answer);
        let rules = self.coordinators.rules(replica, holders);
        let reply = Rc::new(Reply { sequence: ask.sequence, nonce: ask.nonce, answer, rules });
        for delay in self.net.deliveries(&mut self.rng).into_iter().flatten() {
            let what = Inside::Reply { attempt, reply: Rc::clone(&reply) };
            self.queue.push(self.now + delay, Event::Process { process, life, what });
        }
    }

    /// A caller without a lease.
    fn direct(&mut self) {
        let rate = self.scenario.direct;
        let gap = gap(&mut self.rng, rate);
        self.queue.push(self.now + gap, Event::Direct);
        let replica = usize::try_from(self.rng.below(self.coordinators.replicas.len() as u64)).unwrap_or(0);
        self.reserve(None, replica, false);
        self.direct_retries += self.scenario.retries;
        while self.direct_retries >= 1.0 {
            self.direct_retries -= 1.0;
            self.reserve(None, replica, true);
        }
    }

    /// A Reserve at the store.
    pub(crate) fn reserve(&mut self, process: Option<usize>, replica: usize, retry: bool) {
        if process.is_some_and(|process| self.processes[process].cut) {
            return;
        }
        if self.scenario.reserves_in.is_some_and(|(first_ms, of_ms)| self.now / MS % of_ms >= first_ms) {
            return;
        }
        let slots = self.coordinators.known[self.coordinators.published].numbers.slots_limited;
        let id = ReservationId(self.rng.bytes());
        let cause = *self.rng.pick(&Cause::ALL);
        let attempt = if retry { Attempt::retry(2, cause) } else { Attempt::ORIGINAL };
        let (costs, cost) = self.costs();
        let ask = Reserve { no_release: !slots, costs, ..Reserve::new(id, attempt) };
        let Self { coordinators, history, rng, now, .. } = self;
        let called = coordinators.call(replica, Deed::Step(&Step::Reserve(ask)), *now, rng, history);
        self.check_state();
        let Called::Done(Said::Stepped(Some(Answer::Admitted(Admitted { .. })))) = called else { return };
        let retry_micros = if retry { 1_000_000 } else { 0 };
        let admission =
            Admission { at: self.now, retry_micros, source: Source::Direct, stream: NOBODY, unsent: false, cost };
        self.history.admissions.push(admission);
        if slots {
            let permit = self.permit();
            let hold = self.rng.between(0, self.scenario.hold_ms * MS);
            self.queue.push(self.now + hold, Event::Release { replica, id, permit });
        }
    }

    /// What one attempt costs of the unit, if there is one.
    pub(crate) fn costs(&mut self) -> (Vec<Cost>, i64) {
        if self.scenario.cost == 0 {
            return (Vec::new(), 0);
        }
        let amount_micros = self.rng.between(1, self.scenario.cost * 1_000_000);
        (vec![Cost { unit: unit(), amount_micros }], amount_micros)
    }

    /// A permit begins; it ends with its life unless it is shortened.
    pub(crate) fn permit(&mut self) -> usize {
        let ttl = self.history.permit_ttl_ms * MS;
        self.history.permits.push((self.now, self.now + ttl));
        self.history.permits.len() - 1
    }

    pub(crate) fn permit_ends(&mut self, permit: usize) {
        let end = &mut self.history.permits[permit].1;
        *end = self.now.min(*end);
    }

    fn release(&mut self, replica: usize, id: ReservationId, permit: usize) {
        self.permit_ends(permit);
        let Self { coordinators, history, rng, now, .. } = self;
        let step = Step::Release(Release::sent(id, Outcome::Success));
        let _ = coordinators.call(replica, Deed::Step(&step), *now, rng, history);
    }
}

/// What a caller knows that has seen all policies of a scenario: leases of any may be out.
fn lately(scenario: &Scenario, numbers: &Numbers) -> LeaseNumbers {
    let specs = &scenario.policies;
    let (part_ppm, curve) = match &numbers.lease {
        Some(lease) => (lease.part_ppm, lease.curve.clone()),
        None => (0, Curve(specs[0].lease.curve.as_slice().into())),
    };
    LeaseNumbers {
        part_ppm,
        widest_part_ppm: specs.iter().map(|spec| spec.lease.part_ppm).max().unwrap_or(0),
        curve,
        longest_curve_ms: scenario.longest_curve_ms(),
        margin_ms: scenario.timing.margin_ms,
        overlap_ms: scenario.timing.overlap_ms,
        step_max_ms: scenario.timing.step_max_ms,
    }
}

/// Between two events of which there are so many per second.
pub(crate) fn gap(rng: &mut Rng, per_second: f64) -> i64 {
    let mean = 1e9 / per_second.max(1e-3);
    let mean = (mean.min(1e13)) as i64;
    rng.between(mean / 5, mean * 9 / 5)
}
