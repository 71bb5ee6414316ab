//! What a namespace has beside its ledgers: policies with switches, overrides and their history, the register of names,
//! replicas, what dependencies received, what holders were told. All of it as text, to be frozen and compared.

use budget::{
    ids::{DependencyId, PolicyVersion, ReservationId},
    lease::HolderId,
};
use budget_tests::{frozen::Frozen, redis_server::RedisServer};
use budgetd::{
    clock::Clock,
    policies::{By, Edit, How, Switching, effective_toml, repository::Told},
    store::{Store, redis::Settings},
};

use super::world::{BASE_MS, PREFIX};
use crate::redis_world::{Replica, dependency, original, patient, soon};

const NAMES: [&str; 3] = ["payments", "mail/a", "mail/{b}%"];

async fn replica(server: &RedisServer, at_ms: i64) -> Replica {
    let settings = Settings { prefix: PREFIX.to_owned(), ..patient(&server.unix_url()) };
    Replica::start(&settings, Clock::manual(BASE_MS + at_ms).0).await
}

fn by(who: &str) -> By {
    By { who: who.to_owned(), why: "a reason".to_owned() }
}

/// Makes one and freezes it, as the first release would have left it.
pub(super) async fn make(server: &RedisServer) -> Frozen {
    let replica = replica(server, 0).await;
    replica.put("payments", "admission = { rate = \"100/s\", burst = 20 }\nretry.ratio = 0.25\n").await;
    replica.put("mail/*", "mode = \"shadow\"\n").await;
    replica.put("mail/a", "retry.burst = 7\n").await;
    replica.put("payments", "admission = { rate = \"50/s\", burst = 20 }\nretry.ratio = 0.25\n").await;
    let edit = Edit {
        name: "mail/a".to_owned(),
        text: Some("retry.burst = 3\n".to_owned()),
        expected: replica.policies.snapshot().version(),
        how: How::OverrideForMs(7_200_000),
        by: by("ann"),
    };
    replica.policies.edit(edit).await.unwrap();
    for (target, for_ms) in [("mail/*", None), ("payments", Some(3_600_000))] {
        let target = target.to_owned();
        replica.policies.switch(Switching { target, enabled: false, for_ms, by: by("bob") }).await.unwrap();
    }
    for (at, name) in NAMES.iter().enumerate() {
        for id in 0..=at {
            assert!(replica.admits(name, ReservationId([u8::try_from(16 * at + id).unwrap(); 16])).await);
        }
        assert!(replica.store.report_received(&dependency(name), 40 + at as i64, soon()).await.unwrap());
    }
    let version = PolicyVersion { number: 3, id: 99 };
    let told = |holder| Told { dependency: dependency("payments"), holder: HolderId::new(holder).unwrap(), version };
    replica.policies.tell_holders(&[told("a"), told("holder-é")]).await.unwrap();
    replica.policies.tell().await.unwrap();
    // Names are entered with the next contact.
    budget_tests::eventually::eventually(crate::redis_world::BOUND, "all names are known", async || {
        replica.store.known(None, 10, soon()).await.unwrap().len() == NAMES.len()
    })
    .await;
    let mut state = Frozen::state_of(server, PREFIX);
    // The first release knows of no format, and says nothing of it.
    state.retain(|words| words[1] != format!("{PREFIX}:format"));
    for words in &mut state {
        if words[1] == format!("{PREFIX}:replicas") {
            words[4] = replica.policies.replica().to_owned();
        }
    }
    let then = describe(&replica).await.into_iter().map(|line| (line, String::new())).collect();
    let about = vec!["All of a namespace but ledgers that lend, frozen by tests/it/upgrades/namespace.rs.".to_owned()];
    Frozen { about, state, then, ..Frozen::default() }
}

/// A replica that comes later sees all of it.
pub(super) async fn check(server: &RedisServer, frozen: &Frozen) {
    frozen.load(server);
    let replica = replica(server, 5_000).await;
    let seen = describe(&replica).await;
    for (line, _) in &frozen.then {
        assert!(seen.contains(line), "{line} is not in {seen:#?}");
    }
    for (at, name) in NAMES.iter().enumerate() {
        // What was admitted then is not admitted twice now.
        let id = ReservationId([u8::try_from(16 * at).unwrap(); 16]);
        let before = replica.view(name).await.unwrap();
        assert!(replica.answer(name, original(id)).await == replica.answer(name, original(id)).await);
        assert_eq!(replica.view(name).await.unwrap().in_flight, before.in_flight);
    }
}

async fn describe(replica: &Replica) -> Vec<String> {
    let snapshot = replica.policies.snapshot();
    let version = |version: PolicyVersion| format!("{}:{}", version.number, version.id);
    let mut lines = vec![format!("policies {}", version(snapshot.version()))];
    for name in NAMES.map(dependency) {
        let resolved = snapshot.resolve(&name).unwrap();
        let toml = effective_toml(&resolved.policy).replace('\n', "; ");
        lines.push(format!("rule {name} {} retries_off {} {toml}", resolved.rule, resolved.retries_off));
    }
    for (target, switch) in snapshot.switches().iter() {
        lines.push(format!("switch {target} {switch:?}"));
    }
    for (rule, over) in &snapshot.managed().overrides {
        lines.push(format!("override {rule} {over:?}"));
    }
    let (history, ..) = replica.policies.history().await;
    for change in history.iter() {
        lines.push(format!(
            "change {} at {} by {} since {}: {} before {:?}",
            version(change.version),
            change.at_ms,
            change.by.who,
            change.by.why,
            change.what,
            change.before
        ));
    }
    let known: Vec<DependencyId> = replica.store.known(None, 10, soon()).await.unwrap();
    lines.push(format!("known {known:?}"));
    lines.push(format!("received {:?}", replica.store.received(&known, soon()).await.unwrap()));
    let holders = ["a", "holder-é", "nobody"].map(|holder| HolderId::new(holder).unwrap());
    let told = replica.policies.holders_told(&dependency("payments"), &holders).await.unwrap();
    lines.push(format!("told {:?}", told.iter().map(|told| told.map(version)).collect::<Vec<_>>()));
    for name in NAMES {
        let view = replica.view(name).await.unwrap();
        lines.push(format!(
            "ledger {name} in flight {}, originals {}",
            view.in_flight, view.counters.originals_admitted
        ));
    }
    lines
}
