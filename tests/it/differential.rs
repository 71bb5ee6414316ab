//! The two copies of the ledger, Rust and Lua, under the same random calls: equal answers and equal state after every
//! call, and every kind of answer reached often.
//!
//! `DIFF_STEPS` sets the number of steps, `BUDGET_SEED` replays a run.

mod leases;
mod worlds;

use std::{
    collections::{BTreeMap, HashSet},
    env,
    sync::Arc,
};

use budget::{
    decision::{Answer, DenyReason, ExtendResult, Invalid, ReleaseResult, Stale, Step},
    ids::{DependencyId, OperationId, PolicyVersion},
    lease::Ground,
    ledger::{Ledger, Start},
    policy::Numbers,
};
use budget_tests::{
    redis_server::{Flavour, RedisServer},
    rng::Rng,
};
use budgetd::store::redis::{
    codec::{Group, Member, Reply, Way, pack_numbers, read_reply, reservation_of, split_reply},
    keys::{DependencyKeys, Keys},
    scripts::{self, APPLY, By, Script},
};
use deadpool_redis::redis::{self, Cmd, Value};
use worlds::{OPERATIONS, Source};

/// Worlds that advance side by side, so that one round trip serves many.
const WORLDS: usize = 64;
/// Each so-manieth world has a twin: its ledger once more, decided by the same script calls.
const TWINS_EVERY: usize = 4;
/// Calls after which a world is replaced by a new one.
const CALLS_PER_WORLD: usize = 1_500;
/// Each kind of answer must be seen this often per million steps.
const SEEN_MIN_PER_MILLION: u64 = 1_000;

/// The script that shows the whole state.
fn dump_script() -> Script {
    Script::new(&[scripts::READING, include_str!("differential/dump.lua")].concat())
}

/// One call of the script that applies steps.
#[derive(Debug)]
struct Call {
    version: PolicyVersion,
    numbers: Arc<Numbers>,
    force: bool,
    way: Way,
    now_ms: i64,
    steps: Vec<Step>,
}

struct World {
    name: String,
    source: Source,
    model: Option<Ledger>,
    clock_ms: i64,
    versions: Vec<(PolicyVersion, Arc<Numbers>)>,
    calls: usize,
    dump: Vec<String>,
}

/// One call on a world: what was asked, and what the model said.
struct Round {
    call: Call,
    expected: Result<Vec<Answer>, Stale>,
}

// === impl World ===

impl World {
    fn new(name: String, rng: Rng) -> Self {
        let mut source = Source::new(rng);
        let numbers = Arc::new(source.numbers());
        let versions = vec![(PolicyVersion { number: 1, id: 7 }, numbers)];
        Self { name, source, model: None, clock_ms: 1_700_000_000_000, versions, calls: 0, dump: Vec::new() }
    }

    fn used(&self, index: usize) -> i64 {
        let prefix = format!("operation {} ", OPERATIONS[index]);
        let line = self.dump.iter().find_map(|line| line.strip_prefix(&prefix));
        line.and_then(|line| line.split(' ').nth(3)).map_or(0, |used| used.parse().expect("a number"))
    }

    fn round(&mut self) -> Round {
        self.calls += 1;
        self.clock_ms += self.source.elapsed_ms();
        if self.source.chance(2) {
            let last = self.versions.last().expect("never empty").0;
            let version = if self.source.chance(20) {
                PolicyVersion { id: last.id + 1, ..last }
            } else {
                PolicyVersion {
                    number: last.number + 1,
                    id: i64::try_from(self.source.rng.below(1 << 52)).expect("52 bits"),
                }
            };
            let numbers = Arc::new(self.source.numbers());
            self.versions.push((version, numbers));
        }
        let back = if self.source.chance(6) { usize::try_from(self.source.rng.below(3)).expect("small") } else { 0 };
        let force = self.source.chance(30);
        let way = self.source.way(self.calls, CALLS_PER_WORLD);
        let (version, numbers) = self.versions[self.versions.len().saturating_sub(1 + back)].clone();
        let len = if self.source.chance(70) { 1 } else { 1 + self.source.rng.below(5) };
        let mut steps = Vec::new();
        for _ in 0..len {
            let used: Vec<i64> = (0..OPERATIONS.len()).map(|index| self.used(index)).collect();
            steps.push(self.source.step(&numbers, |index| used[index]));
        }
        // Steps of one reservation go into calls of their own.
        let mut ids = HashSet::new();
        steps.retain(|step| ids.insert(reservation_of(step)));
        if self.model.is_none() && !steps.iter().any(|step| matches!(step, Step::Reserve(_))) {
            // What finds no ledger makes none.
            self.dump = vec!["absent".to_owned()];
            let unknown = |step: &Step| match step {
                Step::Extend(_) => Answer::Extended(ExtendResult::Unknown),
                Step::Reserve(_) | Step::Release(_) => Answer::Released(ReleaseResult::Unknown),
            };
            let expected = Ok(steps.iter().map(unknown).collect());
            let call = Call { version, numbers, force, way, now_ms: self.clock_ms, steps };
            return Round { call, expected };
        }
        let model =
            self.model.get_or_insert_with(|| Ledger::new(version, Arc::clone(&numbers), Start::Empty, self.clock_ms));
        let begun = model.begin(version, &numbers, force, self.clock_ms, &Ground::default());
        let expected: Result<Vec<Answer>, Stale> = begun.map(|()| steps.iter().map(|step| model.step(step)).collect());
        self.dump = model.dump();
        let answers: &[Answer] = expected.as_ref().map_or(&[], Vec::as_slice);
        for (step, answer) in steps.iter().zip(answers) {
            let nothing = match answer {
                Answer::Denied(denied) => denied.reason != DenyReason::AlreadyReleased,
                Answer::Released(result) => *result == ReleaseResult::Unknown,
                Answer::Extended(result) => *result == ExtendResult::Unknown,
                Answer::Invalid(_) => matches!(step, Step::Reserve(_)),
                Answer::Admitted(_) => matches!(step, Step::Reserve(ask) if ask.no_release),
            };
            if nothing {
                self.source.nothing_under(reservation_of(step));
            }
        }
        let call = Call { version, numbers, force, way, now_ms: self.clock_ms, steps };
        Round { call, expected }
    }
}

fn kind(step: &Step, answer: &Answer) -> String {
    match answer {
        Answer::Admitted(admitted) if admitted.replayed => "admitted: replayed".to_owned(),
        Answer::Admitted(admitted) => match (admitted.would_be_denied, admitted.start_after_ms, step) {
            (Some(reason), ..) => format!("shadow: {}", reason.name()),
            (None, 1.., _) => "admitted: booked ahead".to_owned(),
            (None, _, Step::Reserve(ask)) => match ask.attempt.cause {
                Some(cause) => format!("admitted: {}", cause.name()),
                None => "admitted: original".to_owned(),
            },
            (None, _, Step::Release(_) | Step::Extend(_)) => unreachable!("only asks are admitted"),
        },
        Answer::Denied(denied) => {
            format!("denied: {}{}", denied.reason.name(), if denied.impossible { ", impossible" } else { "" })
        }
        Answer::Released(result) => format!("release: {}", result.name()),
        Answer::Extended(ExtendResult::Extended(_)) => "extend: extended".to_owned(),
        Answer::Extended(ExtendResult::AlreadyReleased) => "extend: already released".to_owned(),
        Answer::Extended(ExtendResult::Expired) => "extend: expired".to_owned(),
        Answer::Extended(ExtendResult::Unknown) => "extend: unknown".to_owned(),
        Answer::Invalid(Invalid::UnknownUnit(_)) => "invalid: unknown unit".to_owned(),
        Answer::Invalid(Invalid::ExpiresInTooLong) => "invalid: expires in too long".to_owned(),
        Answer::Invalid(Invalid::OperationMismatch) => "invalid: operation mismatch".to_owned(),
    }
}

const KINDS: [&str; 39] = [
    "admitted: original",
    "admitted: transient",
    "admitted: throttled",
    "admitted: timeout",
    "admitted: hedge",
    "admitted: failover",
    "admitted: replayed",
    "admitted: booked ahead",
    "denied: retries_off",
    "denied: no_time_left",
    "denied: attempt_limit, impossible",
    "denied: retry_budget",
    "denied: retry_budget, impossible",
    "denied: in_flight",
    "denied: cost",
    "denied: cost, impossible",
    "denied: admission",
    "denied: already_released",
    "denied: in_progress",
    "denied: completed",
    "denied: conflict",
    "denied: outcome_unknown",
    "denied: out_of_order",
    "shadow: no_time_left",
    "shadow: attempt_limit",
    "shadow: retry_budget",
    "shadow: admission",
    "release: applied",
    "release: already_released",
    "release: expired",
    "release: unknown",
    "extend: extended",
    "extend: already released",
    "extend: expired",
    "extend: unknown",
    "invalid: unknown unit",
    "invalid: expires in too long",
    "invalid: operation mismatch",
    "stale",
];

fn dump_lines(reply: &Value) -> Vec<String> {
    redis::from_redis_value(reply.clone()).expect("lines of text")
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort_unstable();
    lines
}

fn dump_command(dump: &Script, keys: &DependencyKeys, operations: &[OperationId]) -> Cmd {
    let ledger_keys = keys.of_every_batch();
    let mut command = dump.call(By::Digest, ledger_keys.len() + operations.len() + 4);
    command.arg(&ledger_keys[..]);
    for operation in operations {
        command.arg(keys.operation(operation));
    }
    command.arg(&keys.of_lending()[..]).arg(&OPERATIONS[..]);
    command
}

fn run(flavour: Flavour, steps_wanted: u64) {
    let mut rng = Rng::seeded("differential");
    let server = RedisServer::start(flavour);
    let client = redis::Client::open(server.admin_url()).expect("a URL");
    let mut connection = client.get_connection().expect("a connection");
    let dump = dump_script();
    for script in [&*APPLY, &dump] {
        script.load().exec(&mut connection).expect("a script");
    }
    let namespaces = ["diff", "twin"].map(|prefix| Keys::new(prefix).expect("a prefix"));
    let ledgers = |at: usize, world: &World| -> Vec<DependencyKeys> {
        let name = DependencyId::new(&world.name).expect("a name");
        let twins = if at.is_multiple_of(TWINS_EVERY) { 2 } else { 1 };
        namespaces[..twins].iter().map(|keys| keys.dependency(&name)).collect()
    };
    let operations = OPERATIONS.map(|id| OperationId::new(id).expect("an id"));
    let mut made = 0;
    let mut world = |rng: &mut Rng| {
        made += 1;
        World::new(format!("dependency {{{made}}} %:é"), Rng::new(rng.next_u64()))
    };
    let mut worlds: Vec<World> = (0..WORLDS).map(|_| world(&mut rng)).collect();
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let mut steps = 0_u64;
    while steps < steps_wanted {
        let rounds: Vec<Round> = worlds.iter_mut().map(World::round).collect();
        let mut pipeline = redis::pipe();
        for (at, (world, round)) in worlds.iter().zip(&rounds).enumerate() {
            let Call { version, force, way, now_ms, .. } = round.call;
            let numbers = pack_numbers(&round.call.numbers);
            let steps = round.call.steps.iter().map(|step| (step, 0));
            let ledgers = ledgers(at, world);
            let members: Vec<_> =
                ledgers.iter().map(|keys| Member { keys, numbers: &numbers, steps: steps.clone() }).collect();
            let group = Group { now_ms: &now_ms.to_string(), version, force, way };
            pipeline.add_command(group.command(By::Digest, &members));
            for keys in &ledgers {
                pipeline.add_command(dump_command(&dump, keys, &operations));
            }
        }
        let replies: Vec<Value> = pipeline.query(&mut connection).expect("replies");
        let mut replies = replies.into_iter();
        for (at, (world, round)) in worlds.iter_mut().zip(&rounds).enumerate() {
            let context = || format!("{} call {}: {:#?}", world.name, world.calls, round.call);
            let twins = ledgers(at, world).len();
            let decided = split_reply(replies.next().expect("a reply"), twins);
            let states: Vec<Value> = replies.by_ref().take(twins).collect();
            assert!(decided.iter().all(|reply| *reply == decided[0]), "twins differ: {decided:?} in {}", context());
            let answered =
                read_reply(decided[0].clone(), round.call.version, &round.call.numbers, round.call.steps.iter())
                    .unwrap_or_else(|error| panic!("{error}: {:?} in {}", decided[0], context()));
            match (&round.expected, &answered) {
                (Ok(expected), Reply::Done { answers, version, .. }) => {
                    assert_eq!(answers, expected, "answers differ (left Redis) in {}", context());
                    assert_eq!(*version, world.model.as_ref().map_or(round.call.version, Ledger::version));
                    for (step, answer) in round.call.steps.iter().zip(answers) {
                        *seen.entry(kind(step, answer)).or_default() += 1;
                    }
                }
                (Err(stale), Reply::Stale { version }) => {
                    assert_eq!(*version, stale.ledger_version);
                    *seen.entry("stale".to_owned()).or_default() += 1;
                }
                (expected, answered) => panic!("{expected:?} against {answered:?} in {}", context()),
            }
            for state in &states {
                let state = sorted(dump_lines(state));
                assert_eq!(state, sorted(world.dump.clone()), "state differs (left Redis) after {}", context());
            }
            steps += round.call.steps.len() as u64;
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
    let wanted = SEEN_MIN_PER_MILLION * steps_wanted / 1_000_000;
    let rare: Vec<_> = KINDS.iter().filter(|kind| seen.get(**kind).copied().unwrap_or(0) < wanted).collect();
    assert!(rare.is_empty(), "seen fewer than {wanted} times: {rare:?}");
}

fn steps_wanted(default: u64) -> u64 {
    env::var("DIFF_STEPS").map_or(default, |text| text.parse().expect("DIFF_STEPS is a number"))
}

#[test]
fn random_steps_agree_with_redis_7() {
    run(Flavour::Redis7, steps_wanted(100_000));
}

#[test]
fn random_steps_agree_with_valkey_9() {
    run(Flavour::Valkey9, steps_wanted(100_000));
}

mod long {
    use super::*;

    #[test]
    fn a_million_random_steps_agree_with_redis_7() {
        run(Flavour::Redis7, steps_wanted(1_000_000));
    }

    #[test]
    fn more_random_steps_agree_with_valkey_9() {
        run(Flavour::Valkey9, steps_wanted(1_000_000) / 5);
    }
}
