//! Masters with a copy of the ledger each, and the replicas of budgetd that call them.

use std::{collections::VecDeque, sync::Arc};

use budget::{
    decision::Stale,
    ids::PolicyVersion,
    lease::{Epoch, FallbackRules, Ground, LocalOriginals, Rules},
    ledger::{Ledger, Start},
    policy::{FallbackOriginals, FallbackRetries, Numbers, Policy},
};

use crate::{
    history::{History, Quota},
    rng::Rng,
    time::{HostClock, MS, WallClock},
};

/// Copies of the ledger are kept for so many milliseconds.
pub(crate) const COPIES_MS: i64 = 60_000;
/// And made so often.
pub(crate) const COPY_EVERY_MS: i64 = 500;

/// A policy as replicas know it.
pub(crate) struct Known {
    pub version: PolicyVersion,
    pub policy: Policy,
    pub numbers: Arc<Numbers>,
}

/// One process of the store.
pub(crate) struct Master {
    pub identity: i64,
    pub ledger: Option<Ledger>,
    pub clock: WallClock,
    /// It answers.
    pub running: bool,
    /// It will never answer again.
    pub dead: bool,
    /// By which policy it decides, as an interval of the history.
    in_force: Option<(PolicyVersion, usize)>,
    epoch: Epoch,
}

/// One process of budgetd.
pub(crate) struct Replica {
    pub alive: bool,
    /// It cannot reach the stores.
    pub cut: bool,
    /// The master it is connected to.
    pub master: usize,
    /// The policy it knows.
    pub policy: usize,
    pub remembered: Epoch,
    pub boot: i64,
    pub clock: HostClock,
}

/// How a call on the store ended.
pub(crate) enum Called<T> {
    Away,
    Done(T),
}

/// Stores, replicas and what they share.
pub(crate) struct Coordinators {
    pub known: Vec<Known>,
    /// The latest policy published.
    pub published: usize,
    pub masters: Vec<Master>,
    /// The one that replicas turn to.
    pub current: usize,
    pub replicas: Vec<Replica>,
    /// Old states of the current master.
    copies: VecDeque<(i64, Option<Ledger>)>,
    /// The next epoch may skip quarantine.
    pub fresh: bool,
    pub first_epoch: bool,
}

// === impl Master ===

impl Master {
    pub(crate) fn new(rng: &mut Rng, ledger: Option<Ledger>, clock: WallClock) -> Self {
        let identity = bits(rng);
        Self { identity, ledger, clock, running: true, dead: false, in_force: None, epoch: Epoch::default() }
    }
}

/// 52 random bits, not 0.
pub(crate) fn bits(rng: &mut Rng) -> i64 {
    rng.between(1, (1 << 52) - 1)
}

// === impl Coordinators ===

impl Coordinators {
    pub(crate) fn new(known: Vec<Known>, master: Master, replicas: Vec<Replica>, fresh: bool) -> Self {
        Self {
            known,
            published: 0,
            masters: vec![master],
            current: 0,
            replicas,
            copies: VecDeque::new(),
            fresh,
            first_epoch: true,
        }
    }

    /// What a replica tells holders of the policy, with so many holders about.
    pub(crate) fn rules(&self, replica: usize, holders: i64) -> Rules {
        let known = &self.known[self.replicas[replica].policy];
        let sharers = i64::try_from(self.replicas.len()).unwrap_or(1) + holders;
        let numbers = &known.numbers;
        let spec = known.policy.spec();
        let originals = match known.policy.fallback_originals() {
            FallbackOriginals::Deny => LocalOriginals::Deny,
            FallbackOriginals::Allow => LocalOriginals::Allow,
            FallbackOriginals::Rate(rate) => LocalOriginals::Rate(rate.micros_per_second()),
            FallbackOriginals::Part(part_ppm) => {
                let rate = spec.admission.map_or(0, |limit| {
                    let (num, den) = limit.rate.part_fraction(part_ppm, sharers);
                    num * 1_000 / den
                });
                LocalOriginals::Rate(rate)
            }
        };
        Rules {
            version: known.version,
            shadow: numbers.shadow,
            retries_off: numbers.retries_off,
            limited: numbers.admission.is_some(),
            slots_limited: numbers.slots_limited,
            deposit_micros: numbers.deposit_micros,
            earn_on_success: numbers.earn_on_success,
            retry_cost_micros: numbers.retry_cost_micros,
            max_attempts: numbers.max_attempts,
            permit_ttl_ms: numbers.permit_ttl_ms,
            priority_ppm: numbers.priority_ppm,
            units: numbers.units.iter().map(|(unit, _)| *unit).collect(),
            fallback: FallbackRules {
                originals,
                retries_earned: spec.fallback_retries == FallbackRetries::Earned,
                units: Box::default(),
            },
        }
    }

    /// Calls the ledger through a replica, as budgetd does: what is stale is read again and sent once more.
    pub(crate) fn call<T>(
        &mut self,
        replica: usize,
        beat: bool,
        now: i64,
        rng: &mut Rng,
        history: &mut History,
        step: impl FnOnce(&mut Ledger, &Ground) -> T,
    ) -> Called<T> {
        if !self.reaches(replica) {
            return Called::Away;
        }
        let caller = &mut self.replicas[replica];
        let master = &mut self.masters[caller.master];
        let clock_ms = master.clock.read_ms(now);
        let ground = Ground {
            identity: master.identity,
            remembered: caller.remembered,
            fresh_id: bits(rng),
            fresh_store: self.fresh,
            beat: beat.then(|| (caller.boot, caller.clock.read(now) / MS)),
        };
        for force in [false, true] {
            let known = &self.known[caller.policy];
            let ledger = master
                .ledger
                .get_or_insert_with(|| Ledger::new(known.version, Arc::clone(&known.numbers), Start::Empty, clock_ms));
            match ledger.begin(known.version, &known.numbers, force, clock_ms, &ground) {
                Ok(()) => break,
                Err(Stale { .. }) => caller.policy = self.published,
            }
        }
        let Some(ledger) = &mut master.ledger else { return Called::Away };
        let result = step(ledger, &ground);
        self.fresh = false;
        if ledger.epoch().supersedes(caller.remembered) {
            caller.remembered = ledger.epoch();
        }
        self.note(replica, now, history);
        Called::Done(result)
    }

    /// Tells the history by which policy the master decides and whether it opened an epoch.
    pub(crate) fn note(&mut self, replica: usize, now: i64, history: &mut History) {
        let master = &mut self.masters[self.replicas[replica].master];
        let Some(ledger) = &master.ledger else { return };
        let version = ledger.version();
        match master.in_force {
            Some((in_force, interval)) if in_force == version => history.keeps(interval, now),
            _ => {
                let policy = self.known.iter().position(|known| known.version == version).unwrap_or(0);
                master.in_force = Some((version, history.adopts(policy, now)));
            }
        }
        if ledger.epoch() != master.epoch {
            master.epoch = ledger.epoch();
            if !std::mem::take(&mut self.first_epoch) {
                history.opens(now);
            }
        }
    }

    /// Masters that have decided something and may decide more.
    pub(crate) fn deciding(&self) -> impl Iterator<Item = &Master> {
        self.masters.iter().filter(|master| !master.dead && master.in_force.is_some())
    }

    /// What a living master decided by stays in force, asked or not.
    pub(crate) fn stay(&self, now: i64, history: &mut History) {
        for (_, interval) in self.deciding().filter_map(|master| master.in_force) {
            history.keeps(interval, now);
        }
    }

    /// The state of the current master is deleted.
    pub(crate) fn flush(&mut self) {
        let master = &mut self.masters[self.current];
        master.ledger = None;
        master.in_force = None;
    }

    /// The quotas of the policy that a replica's master decides by.
    pub(crate) fn decides_by(&self, replica: usize) -> Option<Quota> {
        let (version, _) = self.masters[self.replicas[replica].master].in_force?;
        self.known.iter().find(|known| known.version == version).map(|known| Quota::of(&known.numbers))
    }

    pub(crate) fn reaches(&self, replica: usize) -> bool {
        let caller = &self.replicas[replica];
        let master = &self.masters[caller.master];
        caller.alive && !caller.cut && master.running && !master.dead
    }

    pub(crate) fn copy(&mut self, now: i64) {
        self.copies.push_back((now, self.masters[self.current].ledger.clone()));
        while self.copies.front().is_some_and(|(at, _)| *at < now - COPIES_MS * MS) {
            self.copies.pop_front();
        }
    }

    /// The state as it was so long ago; the oldest there is at most.
    pub(crate) fn state_before(&self, back_ms: i64, now: i64) -> Option<Ledger> {
        let at = now - back_ms * MS;
        let copy = self.copies.iter().rev().find(|(copied, _)| *copied <= at).or_else(|| self.copies.front());
        copy.and_then(|(_, ledger)| ledger.clone())
    }

    /// A new master takes over; replicas turn to it when they are told to.
    pub(crate) fn replace(&mut self, rng: &mut Rng, ledger: Option<Ledger>) -> usize {
        let clock = self.masters[self.current].clock;
        self.masters.push(Master::new(rng, ledger, clock));
        self.current = self.masters.len() - 1;
        self.copies.clear();
        self.current
    }

    /// A master is gone; who is still connected to it turns to the current one.
    pub(crate) fn bury(&mut self, master: usize) {
        self.masters[master].dead = true;
        for replica in &mut self.replicas {
            if replica.master == master {
                replica.master = self.current;
            }
        }
    }
}
