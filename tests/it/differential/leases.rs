//! Worlds with leases: random holders that sync, repeat, forge and leave, beside direct callers, heartbeats, revoked
//! holders, policies that change, and state that is lost, older, or another store's.

mod call;
mod callers;
mod kinds;

use std::{collections::BTreeMap, collections::HashSet, sync::Arc};

use budget::{
    decision::{Answer, DenyReason, ExtendResult, ReleaseResult, Stale, Step},
    ids::{DependencyId, OperationId, PolicyVersion},
    lease::{EPOCH_NUMBER_MAX, Epoch, Ground, HolderId, NotLeased, SyncAnswer, SyncAsk},
    ledger::{Ledger, Start, View},
    policy::Numbers,
};
use budget_tests::{
    redis_server::{Flavour, RedisServer},
    rng::Rng,
};
use budgetd::store::redis::{
    codec::{AlsoAnswer, Way, read_view, reservation_of},
    keys::Keys,
    scripts::{APPLY, By, LEND, VIEW},
};
use callers::Callers;
use deadpool_redis::redis::{self, Value};
use kinds::{KINDS, kinds};

use super::{
    dump_lines, dump_script, sorted, steps_wanted,
    worlds::{OPERATIONS, Source},
};

/// Worlds that advance side by side. Few, so that none lasts long: its time may stand still, but keys expire by the
/// server's.
const WORLDS: usize = 24;
/// Calls after which a world is replaced by a new one.
const CALLS_PER_WORLD: usize = 500;
/// Most asks of one call here.
const ASKS: u64 = 9;
/// Each kind of answer must be seen this often per million calls.
const SEEN_MIN_PER_MILLION: u64 = 1_000;

/// What happens to the state between two calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stays,
    Saved,
    Lost,
    Older,
}

/// What a call does.
#[derive(Clone, Debug)]
enum Deed {
    Steps(Vec<Step>),
    Syncs(Vec<SyncAsk>),
    Beat,
    Revoke(HolderId),
}

/// One call.
#[derive(Debug)]
struct Call {
    fate: Fate,
    version: PolicyVersion,
    numbers: Arc<Numbers>,
    force: bool,
    way: Way,
    now_ms: i64,
    ground: Ground,
    deed: Deed,
    /// The caller has no reason to think that it lends.
    plain: bool,
    /// But it does.
    lends: bool,
}

/// What the model says to a call.
#[derive(Debug)]
enum Expected {
    Stale(Stale),
    Done { answers: Vec<Option<Answer>>, also: AlsoAnswer, epoch: Epoch, holders: i64, needs_beats: bool },
}

struct World {
    name: String,
    source: Source,
    callers: Callers,
    model: Option<Ledger>,
    saved: Option<Option<Ledger>>,
    clock_ms: i64,
    versions: Vec<(PolicyVersion, Arc<Numbers>)>,
    identity: i64,
    /// The highest epoch that any caller has seen.
    seen: Epoch,
    /// Boot id and what its clock is behind the store's.
    hosts: Vec<(i64, i64)>,
    calls: usize,
    /// When the ledger is looked at after the call.
    view_ms: i64,
    dump: Vec<String>,
}

// === impl World ===

impl World {
    fn new(name: String, rng: Rng) -> Self {
        let mut source = Source::new(rng);
        let callers = Callers::new(Rng::new(source.rng.next_u64()));
        let versions = vec![(PolicyVersion { number: 1, id: 7 }, Arc::new(source.leased_numbers()))];
        Self {
            name,
            source,
            callers,
            model: None,
            saved: None,
            clock_ms: 1_700_000_000_000,
            versions,
            identity: 5,
            seen: Epoch::default(),
            hosts: vec![(11, 0), (12, 1_000), (13, -70_000)],
            calls: 0,
            view_ms: 0,
            dump: vec!["absent".to_owned()],
        }
    }

    fn used(&self, index: usize) -> i64 {
        let prefix = format!("operation {} ", OPERATIONS[index]);
        let line = self.dump.iter().find_map(|line| line.strip_prefix(&prefix));
        line.and_then(|line| line.split(' ').nth(3)).map_or(0, |used| used.parse().expect("a number"))
    }

    fn random52(&mut self) -> i64 {
        i64::try_from(self.source.rng.below(1 << 52)).expect("52 bits")
    }

    fn fate(&mut self) -> Fate {
        match self.source.rng.below(2_000) {
            0..3 => Fate::Lost,
            3..13 => Fate::Saved,
            13..18 if self.saved.is_some() => Fate::Older,
            _ => Fate::Stays,
        }
    }

    fn elapsed_ms(&mut self) -> i64 {
        // Less idle than in worlds without leases: ledger time advances by bounded steps.
        if self.source.chance(50) { self.source.between(0, 400) } else { self.source.elapsed_ms() }
    }

    fn ground(&mut self) -> Ground {
        if self.source.rng.below(1_000) == 0 {
            self.identity = self.random52();
        }
        let remembered = match self.source.rng.below(1_000) {
            0 => Epoch { number: (self.seen.number + 2).min(EPOCH_NUMBER_MAX), id: self.random52() },
            1 => Epoch { id: self.random52(), ..self.seen },
            2..500 => self.seen,
            _ => Epoch::default(),
        };
        let beat = self.source.chance(25).then(|| {
            let at = usize::try_from(self.source.rng.below(3)).expect("small");
            let host = &mut self.hosts[at];
            match self.source.rng.below(100) {
                // A clock that runs ahead, one that was booted again.
                0 => host.1 += 700,
                1 => host.1 = self.clock_ms,
                2 => host.0 = 10 + i64::try_from(self.source.rng.below(12)).expect("small"),
                _ => {}
            }
            (host.0, self.clock_ms - host.1)
        });
        let fresh_store = self.source.chance(2);
        Ground { identity: self.identity, remembered, fresh_id: self.random52(), fresh_store, beat }
    }

    fn deed(&mut self, numbers: &Numbers) -> Deed {
        match self.source.rng.below(100) {
            0..45 => {
                let epoch = self.model.as_ref().map_or(Epoch::default(), Ledger::epoch);
                let now_ms = self.clock_ms;
                let len = if self.source.chance(50) { 1 } else { 2 + self.source.rng.below(ASKS - 1) };
                Deed::Syncs((0..len).map(|_| self.callers.ask(&mut self.source, numbers, epoch, now_ms)).collect())
            }
            45..50 => Deed::Beat,
            50 => Deed::Revoke(self.callers.name()),
            _ => {
                let len = if self.source.chance(70) { 1 } else { 1 + self.source.rng.below(5) };
                let used: Vec<i64> = (0..OPERATIONS.len()).map(|index| self.used(index)).collect();
                let mut steps: Vec<Step> = (0..len).map(|_| self.source.step(numbers, |index| used[index])).collect();
                // Steps of one reservation go into calls of their own.
                let mut ids = HashSet::new();
                steps.retain(|step| ids.insert(reservation_of(step)));
                Deed::Steps(steps)
            }
        }
    }

    fn round(&mut self) -> (Call, Expected) {
        self.calls += 1;
        let fate = self.fate();
        match fate {
            Fate::Stays => {}
            Fate::Saved => self.saved = Some(self.model.clone()),
            Fate::Lost => self.model = None,
            Fate::Older => self.model = self.saved.clone().expect("was saved"),
        }
        if fate != Fate::Stays {
            self.dump = self.model.as_ref().map_or_else(|| vec!["absent".to_owned()], Ledger::dump);
        }
        self.clock_ms += self.elapsed_ms();
        if self.source.rng.below(1_000) < 8 {
            let last = self.versions.last().expect("never empty").0;
            let version = PolicyVersion { number: last.number + 1, id: self.random52() };
            let numbers = Arc::new(self.source.leased_numbers());
            self.versions.push((version, numbers));
        }
        if self.source.rng.below(1_000) < 3 {
            // Other settings of the daemons.
            let margin_ms = self.source.pick(&[1, 300, 3_000]);
            let overlap_ms = self.source.pick(&[0, 500, 4_000]);
            let step_max_ms = self.source.pick(&[200, 2_000, 60_000]);
            let (_, numbers) = self.versions.last_mut().expect("never empty");
            let mut changed = (**numbers).clone();
            if let Some(terms) = &mut changed.lease {
                (terms.margin_ms, terms.overlap_ms, terms.step_max_ms) = (margin_ms, overlap_ms, step_max_ms);
            }
            // Or one that does not remember former leases.
            changed.lease = changed.lease.filter(|terms| terms.part_ppm > 0);
            *numbers = Arc::new(changed);
        }
        let back = if self.source.chance(3) { usize::try_from(self.source.rng.below(3)).expect("small") } else { 0 };
        let force = self.source.chance(30);
        let (version, numbers) = self.versions[self.versions.len().saturating_sub(1 + back)].clone();
        let ground = self.ground();
        let deed = self.deed(&numbers);
        let plain = matches!(deed, Deed::Steps(_)) && numbers.lease.is_none() && ground.beat.is_none();
        let lends = self.model.as_ref().is_some_and(|model| model.lending().is_some());
        // The first format does not keep when ledger time was last compared with a host's clock, so ledgers that lend differ in it
        // from the model: `upgrades` has them.
        let way = Way { short: self.source.chance(50), ..Way::default() };
        let call = Call { fate, version, numbers, force, way, now_ms: self.clock_ms, ground, deed, plain, lends };
        self.view_ms = self.clock_ms + self.source.elapsed_ms();
        let expected = self.expect(&call);
        if let Some(model) = &self.model {
            self.dump = model.dump();
            let epoch = model.epoch();
            if epoch.supersedes(self.seen) {
                self.seen = epoch;
            }
        }
        (call, expected)
    }

    fn expect(&mut self, call: &Call) -> Expected {
        let done =
            |answers, also| Expected::Done { answers, also, epoch: Epoch::default(), holders: 0, needs_beats: false };
        if self.model.is_none() {
            // What finds no ledger makes none, unless it decides.
            match &call.deed {
                Deed::Beat => return done(Vec::new(), AlsoAnswer::Nothing),
                Deed::Revoke(_) => return done(Vec::new(), AlsoAnswer::Revoked(false)),
                Deed::Syncs(asks) if call.numbers.lease.is_none() => {
                    let answer = SyncAnswer::NotLeased(NotLeased::NotPermitted);
                    return done(Vec::new(), AlsoAnswer::Syncs(vec![Some(answer); asks.len()]));
                }
                Deed::Syncs(asks) if asks.iter().all(|ask| ask.leave) => {
                    return done(Vec::new(), AlsoAnswer::Syncs(vec![Some(SyncAnswer::Left); asks.len()]));
                }
                Deed::Steps(steps) if !steps.iter().any(|step| matches!(step, Step::Reserve(_))) => {
                    let unknown = |step: &Step| match step {
                        Step::Extend(_) => Some(Answer::Extended(ExtendResult::Unknown)),
                        Step::Reserve(_) | Step::Release(_) => Some(Answer::Released(ReleaseResult::Unknown)),
                    };
                    return done(steps.iter().map(unknown).collect(), AlsoAnswer::Nothing);
                }
                Deed::Syncs(_) | Deed::Steps(_) => {}
            }
        }
        let mut absent = self.model.is_none();
        let model = self
            .model
            .get_or_insert_with(|| Ledger::new(call.version, Arc::clone(&call.numbers), Start::Empty, call.now_ms));
        if let Err(stale) = model.begin(call.version, &call.numbers, call.force, call.now_ms, &call.ground) {
            return Expected::Stale(stale);
        }
        let (mut answers, mut also) = (Vec::new(), AlsoAnswer::Nothing);
        match &call.deed {
            Deed::Beat => {}
            Deed::Revoke(holder) => also = AlsoAnswer::Revoked(model.revoke(holder)),
            Deed::Syncs(asks) => {
                let mut said = Vec::with_capacity(asks.len());
                for ask in asks {
                    // Who goes begins nothing.
                    absent &= ask.leave;
                    let answer = if absent { SyncAnswer::Left } else { model.sync(ask, &call.ground) };
                    self.callers.answered(ask, &answer, call.now_ms);
                    said.push(Some(answer));
                }
                also = AlsoAnswer::Syncs(said);
            }
            Deed::Steps(steps) => {
                let away = model.direct_wait_ms() > 0;
                for step in steps {
                    let waits = away && matches!(step, Step::Reserve(_));
                    let answer = (!waits).then(|| model.step(step));
                    let nothing = match &answer {
                        None => true,
                        Some(Answer::Denied(denied)) => denied.reason != DenyReason::AlreadyReleased,
                        Some(Answer::Released(result)) => *result == ReleaseResult::Unknown,
                        Some(Answer::Extended(result)) => *result == ExtendResult::Unknown,
                        Some(Answer::Invalid(_)) => matches!(step, Step::Reserve(_)),
                        Some(Answer::Admitted(_)) => matches!(step, Step::Reserve(ask) if ask.no_release),
                    };
                    if nothing {
                        self.source.nothing_under(reservation_of(step));
                    }
                    answers.push(answer);
                }
            }
        }
        let model = &*model;
        let (epoch, holders, needs_beats) = (model.epoch(), model.holders(), model.needs_beats());
        Expected::Done { answers, also, epoch, holders, needs_beats }
    }
}

/// With units in one order, and without those that have no part.
fn ordered(mut view: View) -> View {
    for amounts in view.lending.iter_mut().flat_map(|lending| [&mut lending.charged, &mut lending.unknown]) {
        let mut units = amounts.units.to_vec();
        units.retain(|unit| unit.rate != 0 || unit.burst != 0);
        units.sort_by_key(|unit| unit.unit);
        amounts.units = units.into();
    }
    view
}

fn run(flavour: Flavour, calls_wanted: u64) {
    let mut rng = Rng::seeded("differential of leases");
    let server = RedisServer::start(flavour);
    let client = redis::Client::open(server.admin_url()).expect("a URL");
    let mut connection = client.get_connection().expect("a connection");
    let dump = dump_script();
    for script in [&*APPLY, &*LEND, &*VIEW, &dump] {
        script.load().exec(&mut connection).expect("a script");
    }
    let keys = Keys::new("diff").expect("a prefix");
    let mut made = 0;
    let mut world = |rng: &mut Rng| {
        made += 1;
        World::new(format!("dependency {{{made}}} %:é"), Rng::new(rng.next_u64()))
    };
    let mut worlds: Vec<World> = (0..WORLDS).map(|_| world(&mut rng)).collect();
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    let mut calls = 0_u64;
    while calls < calls_wanted {
        let rounds: Vec<(Call, Expected)> = worlds.iter_mut().map(World::round).collect();
        let mut pipeline = redis::pipe();
        let mut counts = Vec::with_capacity(WORLDS);
        for (world, (call, _)) in worlds.iter().zip(&rounds) {
            let keys = keys.dependency(&DependencyId::new(&world.name).expect("a name"));
            counts.push(call.send(&keys, &mut pipeline));
            let [lending, ..] = keys.of_lending();
            let mut view = VIEW.call(By::Digest, 2);
            view.arg(keys.ledger()).arg(lending).arg(world.view_ms);
            pipeline.add_command(view);
            let mut command = dump.call(By::Digest, 5 + OPERATIONS.len() + 4);
            command.arg(&keys.of_every_batch()[..]);
            for operation in OPERATIONS {
                command.arg(keys.operation(&OperationId::new(operation).expect("an id")));
            }
            command.arg(&keys.of_lending()[..]).arg(&OPERATIONS[..]);
            pipeline.add_command(command);
        }
        let replies: Vec<Value> = pipeline.query(&mut connection).expect("replies");
        let mut replies = &replies[..];
        for ((world, (call, expected)), count) in worlds.iter_mut().zip(&rounds).zip(counts) {
            let (of_call, rest) = replies.split_at(count);
            let ([view, state], rest) = rest.split_first_chunk().expect("a view and a dump");
            replies = rest;
            let context = || format!("{} call {}: {call:?}\nthe model: {expected:?}", world.name, world.calls);
            call.check(of_call, expected, &context);
            let view = read_view(view.clone()).unwrap_or_else(|error| panic!("{error}: {view:?} after {}", context()));
            let expected_view = world.model.as_ref().map(|model| model.view(world.view_ms));
            assert_eq!(view.map(ordered), expected_view.map(ordered), "views differ (left Redis) after {}", context());
            let (state, model) = (sorted(dump_lines(state)), sorted(world.dump.clone()));
            if state != model {
                let only = |these: &[String], those: &[String]| -> Vec<String> {
                    these.iter().filter(|line| !those.contains(line)).cloned().collect()
                };
                panic!(
                    "state differs: Redis {:#?}\nmodel {:#?}\nafter {}",
                    only(&state, &model),
                    only(&model, &state),
                    context()
                );
            }
            for kind in kinds(call, expected, &world.dump) {
                *seen.entry(kind).or_default() += 1;
            }
            calls += 1;
        }
        for slot in &mut worlds {
            if slot.calls >= CALLS_PER_WORLD {
                *slot = world(&mut rng);
            }
        }
    }
    for (kind, count) in &seen {
        println!("{count:>9}  {kind}");
    }
    let wanted = SEEN_MIN_PER_MILLION * calls_wanted / 1_000_000;
    let rare: Vec<_> = KINDS.iter().filter(|kind| seen.get(**kind).copied().unwrap_or(0) < wanted).collect();
    assert!(rare.is_empty(), "seen fewer than {wanted} times: {rare:?}");
}

#[test]
fn random_syncs_agree_with_redis_7() {
    run(Flavour::Redis7, steps_wanted(30_000));
}

#[test]
fn random_syncs_agree_with_valkey_9() {
    run(Flavour::Valkey9, steps_wanted(30_000));
}

mod long {
    use super::*;

    #[test]
    fn many_random_syncs_agree_with_redis_7() {
        run(Flavour::Redis7, steps_wanted(400_000));
    }

    #[test]
    fn more_random_syncs_agree_with_valkey_9() {
        run(Flavour::Valkey9, steps_wanted(400_000) / 4);
    }
}
