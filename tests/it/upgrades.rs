//! Two releases side by side on one store, and one after the other: frozen state of each released format is read by the
//! present scripts as the scripts that wrote it would have read it.
//!
//! `FREEZE=format-2 cargo nextest run -p budget-tests upgrades::` writes the fixtures of a format that has none yet.

mod acts;
mod freeze;
mod ledgers;
mod lenders;
mod namespace;
mod switch;
mod world;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use budget_tests::{
    frozen::Frozen,
    redis_server::{Flavour, RedisServer},
    rng::Rng,
};
use budgetd::store::redis::{
    codec::Way,
    layout::{FORMAT_NEWEST, FORMAT_OLDEST},
};
use deadpool_redis::redis::Arg;

use self::{acts::parts, world::World};

/// Orders in which two releases take turns.
const ROUNDS: u64 = 6;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// One kind of fixture in each format that a release has written.
fn frozen(name: &str) -> Vec<Frozen> {
    let folders = (1_u8..).map(|format| fixtures().join(format!("format-{format}")));
    let folders = folders.take_while(|folder| folder.exists());
    let all: Vec<Frozen> = folders.map(|folder| Frozen::read(&folder.join(format!("{name}.txt")))).collect();
    assert!(!all.is_empty(), "fixtures are missing");
    all
}

/// Does acts and compares all parts of the answers that were recorded; there may be further ones.
fn agrees(name: &str, world: &mut World, acts: &[(String, String)]) {
    for (act, expected) in acts {
        let seen = world.act(act).map_or_else(Vec::new, |(told, _)| parts(&told));
        let missing: Vec<&str> = expected.split(' ').filter(|word| !seen.iter().any(|part| part == word)).collect();
        assert!(expected.is_empty() || missing.is_empty(), "{name}: {act}\n  {missing:?}\n  seen {}", seen.join(" "));
    }
}

fn reads(flavour: Flavour) {
    let server = RedisServer::start(flavour);
    for (name, _) in freeze::ALL {
        for frozen in frozen(name) {
            for format in FORMAT_OLDEST..=FORMAT_NEWEST {
                for short in [true, false] {
                    goes_on(name, &server, &frozen, Way { format, short });
                }
            }
        }
    }
}

/// What was frozen is read, and answers as it would have.
fn goes_on(name: &str, server: &RedisServer, frozen: &Frozen, way: Way) {
    server.cli(&["FLUSHALL"]);
    frozen.load(server);
    let at_ms = frozen.holders.first().map_or(0, |line| line.split(' ').next().unwrap().parse().unwrap());
    assert_eq!(world::holders(server, at_ms), frozen.holders, "{name}");
    let mut world = World::of(server);
    frozen.made.iter().for_each(|(act, _)| world.skip(act));
    world.way = way;
    agrees(&format!("{name}, {way:?}"), &mut world, &frozen.then);
}

#[test]
fn q26_frozen_state_of_each_released_format_is_read_as_it_was_written_on_redis_7() {
    reads(Flavour::Redis7);
}

#[test]
fn q26_frozen_state_of_each_released_format_is_read_as_it_was_written_on_valkey_9() {
    reads(Flavour::Valkey9);
}

/// What makes the fixtures: what it freezes now goes on as it would have without.
#[test]
fn what_is_frozen_now_is_read_now() {
    let server = RedisServer::start(Flavour::Redis7);
    for (name, acts) in freeze::ALL {
        let made = Frozen::parse(&freeze::make(name, acts).text());
        goes_on(name, &server, &made, Way { format: FORMAT_OLDEST, ..Way::default() });
        if let Some(format) = env::var_os("FREEZE") {
            keep(&fixtures().join(format).join(format!("{name}.txt")), &made.text());
        }
    }
    if let Some(format) = env::var_os("FREEZE") {
        for (name, script) in world::scripts() {
            let load = script.load();
            let Some(Arg::Simple(text)) = load.args_iter().nth(2) else { panic!("no text") };
            keep(&fixtures().join(&format).join(format!("{name}.lua")), &String::from_utf8_lossy(text));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_namespace_has_beside_is_frozen_and_read() {
    let server = RedisServer::start(Flavour::Redis7);
    let made = Frozen::parse(&namespace::make(&server).await.text());
    server.cli(&["FLUSHALL"]);
    namespace::check(&server, &made).await;
    if let Some(format) = env::var_os("FREEZE") {
        keep(&fixtures().join(format).join("namespace.txt"), &made.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q26_policies_names_and_switches_of_each_released_format_are_read() {
    for flavour in Flavour::ALL {
        let server = RedisServer::start(flavour);
        for frozen in frozen("namespace") {
            server.cli(&["FLUSHALL"]);
            namespace::check(&server, &frozen).await;
        }
    }
}

/// What is frozen stays.
fn keep(path: &Path, text: &str) {
    assert!(!path.exists(), "{} is frozen", path.display());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// The scripts of a released format and the present ones on one ledger, each as often as the other: no answer differs, and
/// neither stumbles over what the other wrote.
fn take_turns(flavour: Flavour) {
    let mut rng = Rng::seeded("scripts take turns");
    let server = RedisServer::start(flavour);
    let folder = fixtures().join("format-1");
    let script = |name: &str| fs::read_to_string(folder.join(format!("{name}.lua"))).unwrap();
    for (name, _) in freeze::ALL {
        let frozen = Frozen::read(&folder.join(format!("{name}.txt")));
        for round in 0..ROUNDS {
            server.cli(&["FLUSHALL"]);
            let mut world = World::of(&server);
            let mut calls = frozen.calls.iter();
            for (at, (act, expected)) in frozen.made.iter().chain(&frozen.then).enumerate() {
                if world.is_no_call(act) {
                    world.skip(act);
                    continue;
                }
                let call = calls.next().expect("a call for each act");
                // One after the other, the other way round, and at random.
                let by_old = match round {
                    0 => at % 2 == 0,
                    1 => at % 2 == 1,
                    _ => rng.chance(1, 2),
                };
                let context =
                    || format!("{name} round {round}: {act}, by {}", if by_old { "format 1" } else { "today" });
                if by_old {
                    let reply = world.replay(call, &script(&call.script));
                    assert_eq!(reply, call.reply, "{}", context());
                } else {
                    agrees(&context(), &mut world, &[(act.clone(), expected.clone())]);
                }
            }
        }
    }
}

#[test]
fn q26_scripts_of_two_releases_take_turns_on_one_ledger_on_redis_7() {
    take_turns(Flavour::Redis7);
}

#[test]
fn q26_scripts_of_two_releases_take_turns_on_one_ledger_on_valkey_9() {
    take_turns(Flavour::Valkey9);
}
