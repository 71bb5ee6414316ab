//! Masters with a copy of the ledger each, and the replicas of budgetd that call them.

use std::{collections::VecDeque, sync::Arc};

use budget::{
    decision::{Answer, ExtendResult, ReleaseResult, Stale, Step},
    ids::PolicyVersion,
    lease::{Epoch, FallbackRules, Ground, HolderId, LocalOriginals, Rules, SyncAnswer, SyncAsk},
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

/// What a call on the store does.
#[derive(Clone, Copy, Debug)]
pub enum Deed<'a> {
    /// Only brings the ledger to the present.
    Look,
    Beat,
    Sync(&'a SyncAsk),
    Step(&'a Step),
    Revoke(&'a HolderId),
}

/// What the ledger says to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Nothing,
    Synced(SyncAnswer),
    /// None: direct callers are not served yet.
    Stepped(Option<Answer>),
    Revoked(bool),
}

/// How a call on the store ended.
pub(crate) enum Called {
    Away,
    Done(Said),
}

/// One call as a store gets it.
#[derive(Debug)]
pub struct Call<'a> {
    pub master: usize,
    pub version: PolicyVersion,
    pub numbers: &'a Arc<Numbers>,
    pub force: bool,
    pub clock_ms: i64,
    pub ground: &'a Ground,
    pub deed: Deed<'a>,
}

/// Sees all that happens to the states of masters, in the order in which it happens.
pub trait Witness {
    /// A call was answered; the ledger is as it is after it, if there is one.
    fn called(&mut self, call: &Call<'_>, said: Result<&Said, Stale>, ledger: Option<&Ledger>);
    /// A copy of a state was made.
    fn copied(&mut self, master: usize, copy: u64);
    /// A master begins with a copy, or with nothing.
    fn begun(&mut self, master: usize, copy: Option<u64>);
    /// The state of a master was deleted.
    fn flushed(&mut self, master: usize);
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
    /// Old states of the current master: when they were copied, and as which copy of all.
    copies: VecDeque<(i64, u64, Option<Ledger>)>,
    copied: u64,
    /// The next epoch may skip quarantine.
    pub fresh: bool,
    pub first_epoch: bool,
    pub witness: Option<Box<dyn Witness>>,
}

// === impl Deed ===

impl Deed<'_> {
    /// What is said to it where there is no ledger; none: it makes one.
    fn finds_nothing(self) -> Option<Said> {
        match self {
            Self::Look | Self::Beat => Some(Said::Nothing),
            Self::Revoke(_) => Some(Said::Revoked(false)),
            Self::Sync(ask) => ask.leave.then_some(Said::Synced(SyncAnswer::Left)),
            Self::Step(Step::Reserve(_)) => None,
            Self::Step(Step::Release(_)) => Some(Said::Stepped(Some(Answer::Released(ReleaseResult::Unknown)))),
            Self::Step(Step::Extend(_)) => Some(Said::Stepped(Some(Answer::Extended(ExtendResult::Unknown)))),
        }
    }

    fn done(self, ledger: &mut Ledger, ground: &Ground) -> Said {
        match self {
            Self::Look | Self::Beat => Said::Nothing,
            Self::Revoke(holder) => Said::Revoked(ledger.revoke(holder)),
            Self::Sync(ask) => Said::Synced(ledger.sync(ask, ground)),
            Self::Step(step) => {
                let waits = matches!(step, Step::Reserve(_)) && ledger.direct_wait_ms() > 0;
                Said::Stepped((!waits).then(|| ledger.step(step)))
            }
        }
    }
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
            copied: 0,
            fresh,
            first_epoch: true,
            witness: None,
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
    pub(crate) fn call(
        &mut self,
        replica: usize,
        deed: Deed<'_>,
        now: i64,
        rng: &mut Rng,
        history: &mut History,
    ) -> Called {
        if !self.reaches(replica) {
            return Called::Away;
        }
        let caller = &mut self.replicas[replica];
        let at = caller.master;
        let master = &mut self.masters[at];
        let clock_ms = master.clock.read_ms(now);
        let ground = Ground {
            identity: master.identity,
            remembered: caller.remembered,
            fresh_id: bits(rng),
            fresh_store: self.fresh,
            beat: matches!(deed, Deed::Beat).then(|| (caller.boot, caller.clock.read(now) / MS)),
        };
        let mut said = Said::Nothing;
        for force in [false, true] {
            let known = &self.known[caller.policy];
            let Known { version, numbers, .. } = known;
            let call = Call { master: at, version: *version, numbers, force, clock_ms, ground: &ground, deed };
            if let (None, Some(nothing)) = (&master.ledger, deed.finds_nothing()) {
                said = nothing;
                if let Some(witness) = &mut self.witness {
                    witness.called(&call, Ok(&said), None);
                }
                break;
            }
            let ledger =
                master.ledger.get_or_insert_with(|| Ledger::new(*version, Arc::clone(numbers), Start::Empty, clock_ms));
            let begun = ledger.begin(*version, numbers, force, clock_ms, &ground);
            if begun.is_ok() {
                said = deed.done(ledger, &ground);
                self.fresh = false;
            }
            if let Some(witness) = &mut self.witness {
                witness.called(&call, begun.map(|()| &said), Some(ledger));
            }
            match begun {
                Ok(()) => break,
                Err(Stale { .. }) => caller.policy = self.published,
            }
        }
        if let Some(ledger) = &master.ledger
            && ledger.epoch().supersedes(caller.remembered)
        {
            caller.remembered = ledger.epoch();
        }
        self.note(replica, now, history);
        Called::Done(said)
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
        if let Some(witness) = &mut self.witness {
            witness.flushed(self.current);
        }
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
        self.copied += 1;
        self.copies.push_back((now, self.copied, self.masters[self.current].ledger.clone()));
        while self.copies.front().is_some_and(|(at, ..)| *at < now - COPIES_MS * MS) {
            self.copies.pop_front();
        }
        if let Some(witness) = &mut self.witness {
            witness.copied(self.current, self.copied);
        }
    }

    /// A new master takes over, with the state as it was `back_ms` ago (the oldest there is at most), or with none;
    /// replicas turn to it when they are told to.
    pub(crate) fn replace(&mut self, rng: &mut Rng, back_ms: Option<i64>, now: i64) -> usize {
        let copy = back_ms.and_then(|back_ms| {
            let at = now - back_ms * MS;
            self.copies.iter().rev().find(|(copied, ..)| *copied <= at).or_else(|| self.copies.front())
        });
        let (copy, ledger) = copy
            .and_then(|(_, copy, ledger)| Some((*copy, ledger.clone()?)))
            .map_or((None, None), |(copy, ledger)| (Some(copy), Some(ledger)));
        let clock = self.masters[self.current].clock;
        self.masters.push(Master::new(rng, ledger, clock));
        self.current = self.masters.len() - 1;
        self.copies.clear();
        if let Some(witness) = &mut self.witness {
            witness.begun(self.current, copy);
        }
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
