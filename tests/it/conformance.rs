//! The scenarios of `tests/vectors` on every store, through the store's own interface: policies are put into the
//! registry, the clock is set by hand, steps go one by one.

use std::{fs, path::Path, sync::Arc, time::Duration};

use budget::{ids::DependencyId, ledger::Start};
use budget_tests::{
    redis_server::{Flavour, RedisServer},
    vectors::{self, Act, Seen},
};
use budgetd::{
    clock::{Clock, Hands},
    policies::{Policies, effective_toml, repository::MemoryRepository},
    store::{Store, memory::MemoryStore, redis::RedisStore},
};
use tokio::runtime::Runtime;

use crate::redis_world;

/// A name that would break out of a careless hash tag.
pub(crate) const DEPENDENCY: &str = "pay{ments}:%7B é";

pub(crate) fn scenarios() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors");
    let mut found: Vec<_> = fs::read_dir(folder)
        .expect("the scenarios")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(&path).unwrap()))
        .collect();
    found.sort();
    assert!(found.len() >= 12, "scenarios are missing");
    found
}

fn run(runtime: &Runtime, name: &str, text: &str, policies: &Policies, store: &impl Store, hands: &Hands) {
    let dependency = DependencyId::new(DEPENDENCY).unwrap();
    let deadline = || Clock::instant() + Duration::from_secs(30);
    vectors::run(name, text, |act| {
        runtime.block_on(async {
            match act {
                Act::Policy(policy, retries_off) => {
                    let version = policies.snapshot().version();
                    policies.put(DEPENDENCY, &effective_toml(&policy), version).await.expect("a valid policy");
                    let off = policies.snapshot().resolve(&dependency).unwrap().retries_off;
                    if off != retries_off {
                        policies.set_retries(DEPENDENCY, !retries_off).await.expect("a switch");
                    }
                    Seen::Nothing
                }
                Act::Step(at_ms, step) => {
                    hands.set(at_ms);
                    let answered = store.step(&dependency, step, deadline()).await.expect("an answer");
                    assert_eq!(answered.version, policies.snapshot().version(), "{name}: decided with an old policy");
                    assert!(!answered.degraded);
                    Seen::Answer(answered.answer)
                }
                Act::View(at_ms) => {
                    hands.set(at_ms);
                    Seen::View(Box::new(store.view(&dependency, deadline()).await.expect("a view").expect("state")))
                }
            }
        })
    });
}

#[test]
fn every_scenario_holds_on_memory() {
    let runtime = Runtime::new().unwrap();
    for (name, text) in scenarios() {
        let policies = runtime.block_on(Policies::start(MemoryRepository::default(), None)).unwrap();
        let policies = Arc::new(policies);
        let (clock, hands) = Clock::manual(0);
        let store = MemoryStore::starting(Arc::clone(&policies), clock, Start::Empty);
        run(&runtime, &name, &text, &policies, &store, &hands);
    }
}

/// On one server, each scenario in a namespace that begins with `prefix`.
pub(crate) fn hold_at(url: &str, prefix: &str) {
    let runtime = Runtime::new().unwrap();
    for (index, (name, text)) in scenarios().into_iter().enumerate() {
        let (clock, hands) = Clock::manual(0);
        let (policies, store): (Arc<Policies>, RedisStore) =
            runtime.block_on(redis_world::store(url, &format!("{prefix}{index}"), clock));
        run(&runtime, &name, &text, &policies, &store, &hands);
    }
}

#[test]
fn every_scenario_holds_on_redis_7() {
    hold_at(&RedisServer::start(Flavour::Redis7).unix_url(), "c");
}

#[test]
fn every_scenario_holds_on_valkey_9() {
    hold_at(&RedisServer::start(Flavour::Valkey9).unix_url(), "c");
}
