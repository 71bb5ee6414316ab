//! Short time limits, a policy that leases by them, and daemons that serve it.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use budget::{ids::DependencyId, lease::Timing, policy::Policy};
use budget_client::{Client, Dependency, HolderPage, How, PolicyEdit, boot_time_ns};
use budget_tests::{
    daemon::Daemon,
    eventually::eventually,
    redis_server::{Flavour, RedisServer},
    security,
};
use budgetd::{config::LeaseTiming, policies::PolicySet};
use tempfile::TempDir;

use super::pace::Pace;

/// For what must happen at all: more than it ever takes.
pub(crate) const BOUND: Duration = Duration::from_secs(30);
/// For a call of the test itself.
pub(crate) const CALL: Duration = Duration::from_secs(10);

/// The margin covers a step of ledger time and a quarter of a second, as it does by default: leases are as safe as those.
pub(crate) const TIMING: Timing = Timing {
    margin_ms: 500,
    overlap_ms: 0,
    renew_min_ms: 200,
    renew_max_ms: 300,
    resend_min_ms: 100,
    resend_max_ms: 150,
    heartbeat_ms: 100,
    step_max_ms: 200,
};
/// The curve of [`POLICY`]: all of it so long, then half of it as long again.
pub(crate) const STEP_MS: i64 = Pace::FULL.step_ms();
/// A lost state's quarantine, and a dead holder's share: the curve and the margin.
pub(crate) const QUARANTINE_MS: i64 = Pace::FULL.quarantine_ms();
/// The longest rest of an endpoint that does not answer.
pub(crate) const REST_MS: i64 = 5_000;
/// T4, after the coordinator can be reached: the quarantine, two renewals, and 2 s.
pub(crate) const RETURN_MS: i64 = Pace::FULL.return_ms();

/// 100 attempts per second.
pub(crate) const POLICY: &str = "admission = { rate = \"100/s\", burst = 25 }\n\
                                 retry = { ratio = 0.2, floor = \"2/s\", burst = 15 }\n\
                                 lease = { enabled = true, part = 0.8, curve = [\"100% 1s\", \"50% 1s\"] }\n\
                                 fallback = { originals = \"10%\", retries = \"earned\" }\n";

/// The same with other numbers.
pub(crate) fn policy_of(rate: i64, burst: i64, retry_burst: i64) -> String {
    Pace::FULL.policy(rate, burst, retry_burst)
}

/// A policy's text, judged.
pub(crate) fn judged(policy: &str) -> Arc<Policy> {
    judged_at(Pace::FULL, policy)
}

fn judged_at(pace: Pace, policy: &str) -> Arc<Policy> {
    let timing = LeaseTiming { limits: pace.timing(), unsafe_short: true };
    let set = PolicySet::parse_timed("a test", &format!("[dependency.pay]\n{policy}"), timing);
    let set = set.unwrap_or_else(|error| panic!("{error}"));
    Arc::clone(&set.rule("pay").unwrap().policy)
}

/// Where ledgers live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Memory,
    Redis7,
    Valkey9,
}

/// One dependency `pay` under a policy, and the daemons that serve it.
pub(crate) struct Setting {
    pub(crate) daemons: Vec<Daemon>,
    pub(crate) redis: Option<RedisServer>,
    pub(crate) policy: Arc<Policy>,
    pub(crate) pace: Pace,
    pub(crate) directory: TempDir,
}

// === impl Setting ===

impl Setting {
    /// One daemon that begins at once.
    pub(crate) fn new(on: On, policy: &str) -> Self {
        Self::with(on, policy, 1, &[])
    }

    /// Several; on memory, one.
    pub(crate) fn with(on: On, policy: &str, replicas: usize, arguments: &[&str]) -> Self {
        Self::paced(Pace::FULL, on, policy, replicas, arguments)
    }

    /// The same at another speed, which the policy must be made for.
    pub(crate) fn paced(pace: Pace, on: On, policy: &str, replicas: usize, arguments: &[&str]) -> Self {
        let redis = match on {
            On::Memory => None,
            On::Redis7 => Some(RedisServer::start(Flavour::Redis7)),
            On::Valkey9 => Some(RedisServer::start(Flavour::Valkey9)),
        };
        Self::on(pace, redis, policy, replicas, arguments)
    }

    /// The same on a server that is there, or on memory.
    pub(crate) fn on(
        pace: Pace,
        redis: Option<RedisServer>,
        policy: &str,
        replicas: usize,
        arguments: &[&str],
    ) -> Self {
        let url = redis.as_ref().map_or_else(|| "memory".to_owned(), RedisServer::unix_url);
        let mut setting = Self::bare_paced(pace, redis, policy);
        let store = setting.stored(&url);
        for _ in 0..replicas {
            let mut all: Vec<&str> = store.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
            if setting.redis.is_none() {
                all.push("--no-leases-out");
            }
            setting.daemons.push(Daemon::start(&all));
        }
        setting
    }

    /// Without a daemon yet.
    pub(crate) fn bare(redis: Option<RedisServer>, policy: &str) -> Self {
        Self::bare_paced(Pace::FULL, redis, policy)
    }

    /// The same at another speed.
    pub(crate) fn bare_paced(pace: Pace, redis: Option<RedisServer>, policy: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let setting = Self { daemons: Vec::new(), redis, policy: judged_at(pace, policy), pace, directory };
        fs::write(setting.path("policy.toml"), format!("[dependency.pay]\n{policy}")).unwrap();
        let t = pace.timing();
        let timing = format!(
            "[timing]\nunsafe_short = true\nmargin = \"{}ms\"\noverlap = \"{}ms\"\nrenew_min = \"{}ms\"\n\
             renew_max = \"{}ms\"\nresend_min = \"{}ms\"\nresend_max = \"{}ms\"\nheartbeat = \"{}ms\"\n\
             step_max = \"{}ms\"\n",
            t.margin_ms,
            t.overlap_ms,
            t.renew_min_ms,
            t.renew_max_ms,
            t.resend_min_ms,
            t.resend_max_ms,
            t.heartbeat_ms,
            t.step_max_ms
        );
        fs::write(setting.path("budgetd.toml"), timing).unwrap();
        setting
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn text_path(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }

    /// The arguments of a daemon with this store.
    pub(crate) fn stored(&self, store: &str) -> Vec<String> {
        let fixed = ["--store", store, "--config", &self.text_path("budgetd.toml")].map(str::to_owned);
        let policy = ["--policy".to_owned(), self.text_path("policy.toml")];
        // A busy machine must not look like an outage.
        let patience = format!("{}ms", self.pace.ms(300));
        let patient =
            ["--redis-connect-timeout", "1s", "--redis-wait-timeout", &patience, "--redis-response-timeout", &patience];
        fixed.into_iter().chain(policy).chain(patient.map(str::to_owned)).collect()
    }

    pub(crate) fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemons[0]
    }

    /// Starts a daemon on memory again: what the first start was told of leases does not hold any more.
    pub(crate) fn restart_on_memory(&mut self) {
        let arguments = self.stored("memory");
        self.daemon().restart_with(arguments);
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.daemons.iter().map(Daemon::endpoint).collect()
    }

    /// Of the first daemon.
    pub(crate) fn operator(&self) -> Operator {
        Operator { client: security::client(&self.daemons[0].endpoint()) }
    }
}

/// Asks a daemon what is going on, and changes policies.
pub(crate) struct Operator {
    client: Client,
}

// === impl Operator ===

impl Operator {
    /// None while the store cannot say.
    pub(crate) async fn try_holders(&self) -> Option<HolderPage> {
        self.client.list_holders(&pay_id(), None, CALL).await.ok()
    }

    pub(crate) async fn holders(&self) -> HolderPage {
        self.try_holders().await.unwrap()
    }

    /// What is lent, whole attempts per second, and to how many; nothing while the store cannot say.
    pub(crate) async fn lent(&self) -> (f64, usize) {
        let holders = self.try_holders().await.map_or_else(Vec::new, |page| page.holders);
        let rates: Vec<i64> = holders.iter().map(|holder| holder.value.value.rate).filter(|rate| *rate > 0).collect();
        (rates.iter().sum::<i64>() as f64 / 1e6, rates.len())
    }

    pub(crate) async fn lent_per_second(&self) -> f64 {
        self.lent().await.0
    }

    pub(crate) async fn put(&self, policy: &str) {
        let expected = self.client.list_policies(None, CALL).await.unwrap().version;
        let (name, source_toml, how) = ("pay".to_owned(), Some(policy.to_owned()), How::TakeOver);
        let edit = PolicyEdit { name, source_toml, expected, how, ..PolicyEdit::default() };
        self.client.edit_policy(edit, CALL).await.unwrap_or_else(|error| panic!("policy: {error}"));
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }
}

pub(crate) fn pay_id() -> DependencyId {
    pay().id().clone()
}

pub(crate) fn pay() -> Dependency {
    Dependency::new("pay").unwrap()
}

/// Lets so much time pass.
pub(crate) async fn pass_ms(ms: i64) {
    until_ns(boot_time_ns() + ms * 1_000_000).await;
}

/// Waits for a moment.
pub(crate) async fn until_ns(at_ns: i64) {
    let left = Duration::from_nanos((at_ns - boot_time_ns()).max(0).unsigned_abs());
    eventually(left + BOUND, "time passes", async || boot_time_ns() >= at_ns).await;
}
