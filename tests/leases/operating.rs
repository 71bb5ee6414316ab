//! A night of operating: three replicas on one Redis and fifty leased clients with traffic, while an operator changes a policy,
//! rolls it back, switches retries off and on, a policy file is deleted and Redis dies.
//!
//! Nothing is judged by how fast it is. Whatever was admitted is judged by the documented bound, switched off retries by
//! the documented end of convergence, and the end by the documented state.

use std::{fs, time::Duration};

use budget::ids::PolicyVersion;
use budget_client::{By, Client, How, PolicyEdit, RetrySwitch, Source, Standing, boot_time_ns};
use budget_tests::{
    daemon::Daemon,
    eventually::eventually,
    redis_server::{Flavour, RedisServer},
    security,
};

use super::{
    fleet::{Demand, Fleet},
    judge::Case,
    pace::Pace,
    redis::alone,
    setting::{CALL, Setting, pay_id},
};

/// For what must happen at all: more than it ever takes.
const BOUND: Duration = Duration::from_secs(240);
const MEMBERS: usize = 50;
const REPLICAS: usize = 3;
const RATE: i64 = 200;

struct Night {
    setting: Setting,
    operators: Vec<Client>,
    fleet: Fleet,
    case: Case,
}

fn by(why: &str) -> By {
    By { who: "ann@ops".to_owned(), why: why.to_owned() }
}

// === impl Night ===

impl Night {
    /// Each replica with a copy of the policy file, as hosts have it. All clients are leased.
    async fn start(pace: Pace) -> Self {
        let policy = pace.policy(RATE, 150, 150);
        let mut setting = Setting::bare(pace, Some(RedisServer::start(Flavour::Redis7)), &policy);
        let url = setting.redis.as_ref().unwrap().unix_url();
        for replica in 0..REPLICAS {
            let file = setting.path(&format!("policy{replica}.toml"));
            fs::write(&file, format!("[dependency.pay]\n{policy}")).unwrap();
            let mut arguments = setting.stored(&url);
            let at = arguments.iter().position(|argument| argument == "--policy").unwrap();
            arguments[at + 1] = file.to_string_lossy().into_owned();
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            setting.daemons.push(Daemon::start(&arguments));
        }
        let operators = setting.daemons.iter().map(|daemon| security::client(&daemon.endpoint())).collect();
        let mut case = Case::of(&setting, MEMBERS, REPLICAS, boot_time_ns());
        case.causes.beyond = i64::try_from(MEMBERS + REPLICAS).unwrap();
        // Each knows all replicas, and begins with another one.
        let mut fleet = Fleet::paced(pace, RATE);
        let mut endpoints = setting.endpoints();
        for _ in 0..MEMBERS {
            fleet.add(&endpoints, None, Demand::plenty_at(pace, RATE, MEMBERS));
            endpoints.rotate_left(1);
        }
        let night = Self { setting, operators, fleet, case };
        night.all_are_leased().await;
        night
    }

    async fn all_are_leased(&self) {
        eventually(BOUND, "all clients are leased", async || self.fleet.standing(Standing::Leased) == MEMBERS).await;
    }

    /// Of the policies in force at a replica.
    async fn version(&self, replica: usize) -> PolicyVersion {
        self.operators[replica].list_policies(None, CALL).await.unwrap().version
    }

    async fn put(&mut self, replica: usize, policy: &str, why: &str) {
        let expected = self.version(replica).await;
        let edit = PolicyEdit {
            name: "pay".to_owned(),
            source_toml: Some(policy.to_owned()),
            expected,
            how: How::TakeOver,
            by: by(why),
        };
        self.operators[replica].edit_policy(edit, CALL).await.unwrap();
        self.case.policy(boot_time_ns(), policy);
    }

    async fn switch(&self, replica: usize, enabled: bool) -> bool {
        let switch = RetrySwitch { target: "*".to_owned(), enabled, for_ms: None, by: by("incident 42") };
        self.operators[replica].switch_retries(switch, CALL).await.unwrap().pending
    }

    /// Every replica has the version that the last change made, and every holder was told it.
    async fn everybody_follows(&self, what: &str) {
        eventually(BOUND, &format!("{what} is everywhere"), async || {
            let mut versions = Vec::new();
            for operator in &self.operators {
                versions.push(operator.list_policies(None, CALL).await.ok().map(|page| page.version));
            }
            let Some(version) = versions[0] else { return false };
            // Whichever replica is asked.
            let Ok(page) = self.operators[1].list_holders(&pay_id(), None, CALL).await else { return false };
            versions.iter().all(|seen| *seen == Some(version))
                && page.versions.len() == MEMBERS
                && page.versions.iter().all(|told| *told == Some(version))
        })
        .await;
    }

    /// How many retries were admitted from then on, but for those of holders that heard of nobody in time.
    fn retries_since(&self, from_ns: i64) -> usize {
        let admissions = self.fleet.seen.admissions.lock().unwrap();
        admissions.iter().filter(|seen| seen.is_retry && seen.from_ns >= from_ns).count()
    }

    /// Waits for so many more originals: traffic goes on.
    async fn originals_go_on(&self, more: usize) {
        let from_ns = boot_time_ns();
        eventually(BOUND, "originals go on", async || {
            let admissions = self.fleet.seen.admissions.lock().unwrap();
            admissions.iter().filter(|seen| !seen.is_retry && seen.from_ns >= from_ns).count() >= more
        })
        .await;
    }

    /// Direct callers of every replica are told so.
    async fn has_retries(&self, enabled: bool) {
        for (at, operator) in self.operators.iter().enumerate() {
            eventually(BOUND, &format!("retries enabled: {enabled}, at replica {at}"), async || {
                operator.get_policy(&pay_id(), CALL).await.is_ok_and(|view| view.retries_off != enabled)
            })
            .await;
        }
    }
}

/// Seen to fail with rules that do not tell of the switch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_night_of_operating_three_replicas_under_fifty_clients() {
    let (_alone, pace) = alone().await;
    let mut night = Night::start(pace).await;
    let (policy, at_first) = (pace.policy(RATE, 150, 150), night.version(0).await);

    // A change at one replica, regretted at another.
    let lowered = pace.policy(80, 60, 60);
    night.put(0, &lowered, "the peak is over").await;
    night.everybody_follows("the change").await;
    night.originals_go_on(50).await;
    let changed = night.version(1).await;
    night.operators[1].roll_back(at_first.number, changed, How::TakeOver, by("regret"), CALL).await.unwrap();
    night.case.policy(boot_time_ns(), &policy);
    night.everybody_follows("the return").await;
    assert!(night.retries_since(0) > 0, "retries were admitted: {}", night.fleet.summary());

    // The file of a replica vanishes: it says so, and nothing else changes.
    let file = night.setting.path("policy2.toml");
    let returned = night.version(2).await;
    fs::remove_file(&file).unwrap();
    eventually(BOUND, "the replica misses its file", async || {
        let page = night.operators[2].get_status(&[pay_id()], None, CALL).await.unwrap();
        page.about.policy_error.is_some_and(|error| error.contains("policy file "))
    })
    .await;
    assert_eq!(night.version(2).await, returned);

    // Off: no retry of anybody once all were told, and not while Redis is away either.
    assert!(!night.switch(2, false).await, "it is stored");
    night.everybody_follows("the switch").await;
    let off_ns = boot_time_ns();
    night.originals_go_on(200).await;
    let killed_ns = boot_time_ns();
    night.setting.redis.as_mut().unwrap().kill();
    night.case.epoch(killed_ns);
    night.fleet.stand(Standing::Fallback, MEMBERS).await;
    night.originals_go_on(5).await;
    night.has_retries(false).await;
    assert_eq!(night.retries_since(off_ns), 0, "retries are off: {}", night.fleet.summary());

    // On again with Redis away: at each replica that is told, and everywhere once it is back.
    for replica in 0..REPLICAS {
        assert!(night.switch(replica, true).await, "it waits for the store");
    }
    night.has_retries(true).await;
    night.setting.redis.as_mut().unwrap().restart();
    night.all_are_leased().await;
    night.everybody_follows("the end of the switch").await;
    let on_ns = boot_time_ns();
    eventually(BOUND, "retries come back by leases", async || {
        let admissions = night.fleet.seen.admissions.lock().unwrap();
        admissions.iter().any(|seen| seen.is_retry && seen.from_ns >= on_ns && seen.source == Source::Lease)
    })
    .await;

    // What is left is what is documented.
    fs::write(&file, format!("[dependency.pay]\n{policy}")).unwrap();
    for (at, operator) in night.operators.iter().enumerate() {
        eventually(BOUND, &format!("replica {at} is well"), async || {
            let page = operator.get_status(&[pay_id()], None, CALL).await.unwrap();
            page.about.policy_error.is_none() && page.about.replicas.len() == REPLICAS && page.store_up
        })
        .await;
        let view = operator.get_policy(&pay_id(), CALL).await.unwrap();
        assert_eq!((view.source_toml.trim(), view.retries_off, view.kill_switch), (policy.trim(), false, None));
        let page = operator.get_status(&[pay_id()], None, CALL).await.unwrap();
        assert_eq!(page.about.kill_switches, []);
    }
    let history = night.operators[0].policy_history(None, CALL).await.unwrap();
    let by_ann = history.changes.iter().filter(|change| change.by.who.contains("ann@ops"));
    let mut told: Vec<&str> = by_ann.map(|change| &*change.by.why).collect();
    // Off and on, the latter at up to three replicas.
    assert!(told.len() >= 4, "{:?}", history.changes);
    told.dedup();
    assert_eq!(told, ["incident 42", "regret", "the peak is over"], "{:?}", history.changes);
    night.fleet.assert_none_failed();
    night.case.assert(&*night.fleet.end().await);
}
