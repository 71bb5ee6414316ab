//! Makes ledgers in every state there is, and freezes them: the fixtures of a released format were made by this at that
//! release. Whatever it sends stands in the fixture, so nothing of this is needed to read one.

use budget::{
    ids::UnitId,
    lease::{Epoch, Grant, HolderId, Incarnation, Presented, SyncAnswer, SyncAsk, Usage},
};
use budget_tests::{
    frozen::Frozen,
    redis_server::{Flavour, RedisServer},
};

use super::{
    acts::{Told, ask_text, parts},
    ledgers, lenders,
    world::{DEPENDENCY, PREFIX, STEP_MS, World, holders},
};

/// Makes one fixture.
pub(crate) struct Freezer {
    server: RedisServer,
    world: World,
    frozen: Frozen,
    is_frozen: bool,
}

/// One process start of an honest holder.
pub(super) struct Life {
    holder: &'static str,
    incarnation: Incarnation,
    sequence: i64,
    weight: i64,
    epoch: Epoch,
    pub(super) lease: Option<(Grant, i64)>,
    pub(super) usage: Usage,
    counted: Usage,
}

type Acts = fn(&mut Freezer);

/// What is frozen, by name.
pub(crate) const ALL: [(&str, Acts); 5] = [
    ("plain", ledgers::plain),
    ("units", ledgers::units),
    ("shadow", ledgers::shadow),
    ("lending", lenders::lending),
    ("quarantine", lenders::quarantine),
];

/// How long the host of heartbeats has been up at 0.
const BOOTED_MS: i64 = 5_000_000;

/// Where nothing is stored buckets begin empty; by 0 they are full.
pub(super) const FILL: &str = "-1000000 reserve seed norelease";

/// Makes one of [`ALL`].
pub(crate) fn make(about: &str, acts: fn(&mut Freezer)) -> Frozen {
    let server = RedisServer::start(Flavour::Redis7);
    let world = World::of(&server);
    let about = vec![
        format!("The ledger \"{about}\" of the dependency \"{DEPENDENCY}\", frozen by tests/it/upgrades/freeze.rs."),
        "The language is explained in tests/src/frozen.rs; times count from 1700000000000.".to_owned(),
    ];
    let mut freezer = Freezer { server, world, frozen: Frozen { about, ..Frozen::default() }, is_frozen: false };
    acts(&mut freezer);
    assert!(freezer.is_frozen && !freezer.frozen.then.is_empty());
    freezer.frozen
}

// === impl Freezer ===

impl Freezer {
    /// Does an act and keeps what it answered.
    pub(super) fn act(&mut self, line: &str) -> Option<Told> {
        let done = self.world.act(line);
        let answer = done.as_ref().map_or_else(String::new, |(told, _)| parts(told).join(" "));
        let acts = if self.is_frozen { &mut self.frozen.then } else { &mut self.frozen.made };
        acts.push((line.to_owned(), answer));
        let (told, call) = done?;
        self.frozen.calls.push(call);
        Some(told)
    }

    pub(super) fn acts(&mut self, lines: &str) {
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            self.act(line);
        }
    }

    pub(super) fn freeze(&mut self, at_ms: i64) {
        self.frozen.state = Frozen::state_of(&self.server, PREFIX);
        self.frozen.holders = holders(&self.server, at_ms);
        self.is_frozen = true;
    }

    /// A holder asks; an honest one hears the answer.
    pub(super) fn sync(&mut self, at_ms: i64, life: &mut Life) {
        let ask = life.ask(at_ms);
        let Some(Told::Synced(answer)) = self.act(&ask_text(at_ms, &ask)) else { panic!("no answer") };
        life.hear(&answer, at_ms);
    }

    /// Heartbeats while nobody calls: each brings ledger time forward by so much at most.
    pub(super) fn pass(&mut self, from_ms: i64, to_ms: i64) {
        let mut at_ms = from_ms;
        while at_ms < to_ms {
            at_ms = (at_ms + STEP_MS).min(to_ms);
            self.act(&format!("{at_ms} beat host=11 up={}", BOOTED_MS + at_ms));
        }
    }

    /// As often as it takes to learn of the epoch.
    pub(super) fn lease(&mut self, at_ms: i64, life: &mut Life) {
        self.sync(at_ms, life);
        self.sync(at_ms, life);
        assert!(life.lease.is_some(), "{} is not leased", life.holder);
    }
}

// === impl Life ===

impl Life {
    pub(super) fn of(holder: &'static str, life: u8, weight: i64) -> Self {
        let incarnation = Incarnation(std::array::from_fn(|at| life.wrapping_mul(17) ^ u8::try_from(at).unwrap()));
        let (usage, counted) = (Usage::default(), Usage::default());
        Self { holder, incarnation, sequence: 0, weight, epoch: Epoch::default(), lease: None, usage, counted }
    }

    /// So many more originals and retries.
    pub(super) fn work(&mut self, originals: i64, retries: i64) {
        let usage = &mut self.usage;
        usage.asked += originals + retries + 1;
        usage.originals_admitted += originals;
        usage.originals_denied += 1;
        usage.retries_admitted += retries;
        usage.retries_denied += retries;
        usage.not_sent += 1;
        usage.deposited_micros += 100_000 * originals;
        let unit = UnitId::of("in").unwrap();
        let asked = usage.units_asked.first().map_or(0, |(_, asked)| *asked);
        usage.units_asked = [(unit, asked + 3_000_000 * originals)].into();
    }

    pub(super) fn ask(&mut self, at_ms: i64) -> SyncAsk {
        self.sequence += 1;
        let lease = self.lease.as_ref().and_then(|(grant, since_ms)| {
            let position_ms = at_ms - since_ms;
            let (value, curve) = (grant.value.clone(), grant.curve.clone());
            (position_ms < curve.total_ms()).then_some(Presented { name: grant.name, value, curve, position_ms })
        });
        SyncAsk {
            holder: HolderId::new(self.holder).unwrap(),
            incarnation: self.incarnation,
            sequence: self.sequence,
            nonce: 1_000 + self.sequence,
            epoch: self.epoch,
            lease,
            usage: self.usage.clone(),
            counted: self.counted.clone(),
            in_flight: self.sequence.min(2),
            weight: self.weight,
            leave: false,
        }
    }

    fn hear(&mut self, answer: &SyncAnswer, at_ms: i64) {
        match answer {
            SyncAnswer::Granted(grant) => {
                self.lease = Some((grant.clone(), at_ms - grant.position_ms));
                self.counted = self.usage.clone();
            }
            SyncAnswer::Epoch(epoch) => self.epoch = *epoch,
            SyncAnswer::Wait(_)
            | SyncAnswer::Dead
            | SyncAnswer::Fenced
            | SyncAnswer::NotLeased(_)
            | SyncAnswer::Invalid(_)
            | SyncAnswer::Left => {}
        }
    }
}
