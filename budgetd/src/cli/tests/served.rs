//! Every subcommand against a daemon in this process.

use std::time::Duration;

use budget::lease::HolderId;
use budget_client::{Client, Dependency, PolicyRule};
use serde_json::Value;
use tokio::{sync::oneshot, time::timeout};

use super::{Verdict, outcome};
use crate::{
    config::{Config, Listen},
    server::Server,
};

/// A daemon with the memory store on a free port; it ends with this value.
struct Daemon {
    endpoint: String,
    directory: tempfile::TempDir,
    _stop: oneshot::Sender<()>,
}

// === impl Daemon ===

impl Daemon {
    async fn start() -> Self {
        let any = "127.0.0.1:0".parse().unwrap();
        let config = Config { listen: Listen::Tcp(any), http: any, no_leases_out: true, ..Config::default() };
        let server = Server::bind(config).await.unwrap();
        let endpoint = format!("http://{}", server.addresses().grpc);
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(server.serve(async move { drop(stopped.await) }));
        let daemon = Self { endpoint, directory: tempfile::tempdir().unwrap(), _stop: stop };
        let rule = "admission = { rate = \"1/d\", burst = 3 }\nretry = { ratio = 0, floor = \"1/d\", burst = 1 }\n\
                    [cost.usd]\nrate = \"1/d\"\nburst = 2\n";
        assert!(
            daemon.yes(&format!("policy put payments {}", daemon.file("rule.toml", rule))).await.contains("written")
        );
        daemon
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    async fn run(&self, line: &str) -> Result<(Verdict, String), String> {
        let outcome = outcome(&format!("b {line} --endpoint {}", self.endpoint)).await;
        outcome.map_err(|failure| failure.to_string())
    }

    async fn yes(&self, line: &str) -> String {
        let (verdict, text) = self.run(line).await.unwrap();
        assert_eq!(verdict, Verdict::Yes, "{line}: {text}");
        text
    }

    async fn no(&self, line: &str) -> String {
        let (verdict, text) = self.run(line).await.unwrap();
        assert_eq!(verdict, Verdict::No, "{line}: {text}");
        text
    }

    async fn json(&self, line: &str) -> Value {
        let (_, text) = self.run(&format!("{line} --json")).await.unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str(&text).unwrap()
    }
}

#[tokio::test]
async fn a_reservation_lives_and_ends() {
    let daemon = Daemon::start().await;
    let admitted = daemon.json("reserve payments --cost usd=0.5").await;
    assert_eq!((&admitted["decision"], &admitted["mode"]), (&"admitted".into(), &"exact".into()));
    let id = admitted["reservation_id"].as_str().unwrap();
    let again = daemon.json(&format!("reserve payments --cost usd=0.5 --id {id}")).await;
    assert_eq!(again["replayed"], true);
    assert!(daemon.yes("status payments").await.contains("2/3"), "charged once");

    let release = format!("release payments {id} --outcome success --cost usd=0.25");
    assert!(daemon.yes(&release).await.starts_with("result  applied\n"));
    assert!(daemon.yes(&release).await.starts_with("result  already_released\n"));
    let unknown = "release payments 00000000000000000000000000000001 --not-sent";
    assert!(daemon.yes(unknown).await.starts_with("result  unknown\n"));
    let status = daemon.json("status payments").await;
    let payments = &status["dependencies"][0];
    assert_eq!((&payments["counters"]["originals_admitted"], &payments["in_flight"]), (&1.into(), &0.into()));
    let usd = payments["units"][0]["balance_micros"].as_i64().unwrap();
    assert!((1_750_000..1_760_000).contains(&usd), "settled to a quarter: {usd}");
}

#[tokio::test]
async fn denials_name_reason_and_unit() {
    let daemon = Daemon::start().await;
    daemon.yes("reserve payments --cost usd=1.5").await;
    let denied = daemon.no("reserve payments --cost usd=1.5").await;
    assert!(
        denied.starts_with("decision        denied\nreason          cost\nunit            usd\nretry after "),
        "{denied}"
    );
    let never = daemon.json("reserve payments --cost usd=3").await;
    assert_eq!((&never["impossible"], &never["unit"]), (&true.into(), &"usd".into()));
    daemon.yes("reserve payments").await;
    daemon.yes("reserve payments").await;
    assert_eq!(daemon.json("reserve payments").await["reason"], "admission");
    assert_eq!(daemon.json("reserve payments --time-left 0ms").await["reason"], "no_time_left");
}

#[tokio::test]
async fn mistakes_are_refused_by_field_value_and_rule() {
    let daemon = Daemon::start().await;
    let refused = async |line: &str| daemon.run(line).await.unwrap_err();
    let text = refused("reserve payments --attempt 2").await;
    assert!(text.starts_with("attempt.cause is absent: is required from attempt number 2 on"), "{text}");
    let text = refused("reserve payments --permit-ttl 2h").await;
    assert_eq!(text, "permit_ttl_ms is 7200000: must be between 1 and 3600000");
    let text = refused("reserve payments --cost eur=1").await;
    assert_eq!(text, "costs.unit is \"eur\": must be a unit of the dependency's policy");
    let text = refused("reserve payments --cost usd=1 --cost usd=2").await;
    assert_eq!(text, "costs.unit is \"usd\": must be named at most once");
}

#[tokio::test]
async fn the_kill_switch_is_seen_at_once() {
    let daemon = Daemon::start().await;
    daemon.yes("reserve search").await;
    let retry = "reserve search --attempt 2 --cause timeout";
    let off = daemon.yes("retries off --all --why incident").await;
    assert!(off.starts_with("retries are off for all dependencies (policy version "), "{off}");
    assert_eq!(daemon.json(retry).await["reason"], "retries_off");
    assert!(daemon.yes("policy list").await.contains("# retries are off for \"*\"\n"));
    assert!(daemon.yes("policy get search").await.contains("retries         OFF for all until switched on, by "));
    assert!(daemon.yes("status search").await.contains("RETRIES OFF"));
    daemon.yes("retries on --all").await;
    assert_ne!(daemon.json(retry).await["reason"], "retries_off");
}

#[tokio::test]
async fn policies_are_compared_and_written_by_version() {
    let daemon = Daemon::start().await;
    let listed = daemon.json("policy list").await;
    let version = &listed["policy_version"];
    let expect = format!("{}:{}", version["number"], version["id"]);
    assert_eq!(listed["rules"][0]["name"], "payments");

    let file = daemon.file("all.toml", "[dependency.\"payments\"]\nretry = { ratio = 0.3 }\n");
    let changes = daemon.no(&format!("policy diff {file}")).await;
    assert!(changes.starts_with("~ \"payments\"\n") && changes.contains("  + retry.ratio = 0.3\n"), "{changes}");

    let rule = daemon.file("rule.toml", "retry = { ratio = 0.3 }\n");
    daemon.yes(&format!("policy put payments {rule} --expect {expect}")).await;
    let lost = daemon.run(&format!("policy put payments {rule} --expect {expect}")).await.unwrap_err();
    assert!(lost.contains("version"), "{lost}");
    let same = daemon.yes(&format!("policy diff {file}")).await;
    assert!(same.starts_with("no difference to policy version "), "{same}");
    assert!(daemon.yes("policy get payments").await.contains("ratio = 0.3"));

    let bad = daemon.file("bad.toml", "retry = { ratio = -1 }\n");
    let text = daemon.run(&format!("policy put payments {bad}")).await.unwrap_err();
    assert!(text.contains("ratio") && text.contains("-1"), "{text}");
    assert!(daemon.yes("policy put payments --remove").await.starts_with("rule payments is removed"));
    assert_eq!(daemon.json("policy get payments").await["rule"], "defaults");
}

#[tokio::test]
async fn a_tracked_operation_is_finished_once() {
    let daemon = Daemon::start().await;
    let operation = "--operation order-1 --fingerprint 00112233445566778899aabbccddeeff";
    let admitted = daemon.json(&format!("reserve search {operation}")).await;
    let id = admitted["reservation_id"].as_str().unwrap();
    assert_eq!(daemon.json(&format!("reserve search {operation}")).await["reason"], "in_progress");
    let mismatch = daemon.run(&format!("release search {id} --outcome success")).await.unwrap_err();
    assert_eq!(mismatch, "operation_id is absent: must be the operation named at Reserve");
    let finish = "--outcome success --terminal completed --result-ref r-7 --operation order-1";
    daemon.yes(&format!("release search {id} {finish}")).await;
    let denied = daemon.no(&format!("reserve search {operation}")).await;
    assert!(denied.contains("reason            completed\n") && denied.contains("result reference  r-7\n"), "{denied}");
}

#[tokio::test]
async fn what_no_policy_names_is_shown_as_well() {
    let daemon = Daemon::start().await;
    assert!(daemon.yes("status").await.contains("policy version"));
    daemon.yes("reserve a{b}:c").await;
    let status = daemon.json("status").await;
    let names: Vec<_> = status["dependencies"].as_array().unwrap().iter().map(|found| &found["name"]).collect();
    assert!(names.contains(&&Value::from("a{b}:c")), "{status}");
    assert_eq!((&status["store"], &status["store_up"]), (&"memory".into(), &true.into()));
}

#[tokio::test]
async fn a_holder_is_seen_and_loses_its_lease() {
    let daemon = Daemon::start().await;
    let rule = "admission = { rate = \"100/s\", burst = 100 }\nlease.enabled = true\n";
    daemon.yes(&format!("policy put leased {}", daemon.file("leased.toml", rule))).await;
    assert_eq!(daemon.yes("holders leased").await, "leased has no holders\n");
    assert_eq!(daemon.no("lease revoke leased pod-1").await, "pod-1 is no holder of leased\n");

    let holder = HolderId::new("pod-1").unwrap();
    let client = Client::builder().endpoints([daemon.endpoint.as_str()]).holder_id(holder).connect().unwrap();
    let _handle = client.dependency(&Dependency::new("leased").unwrap()).unwrap();
    let listed = async {
        loop {
            let listed = daemon.json("holders leased").await;
            if listed["holders"][0]["lease"]["rate_micros_per_second"].as_i64().is_some_and(|rate| rate > 0) {
                return listed;
            }
        }
    };
    let listed = timeout(Duration::from_secs(30), listed).await.unwrap();
    assert_eq!((&listed["holders"][0]["holder"], &listed["holders"][0]["revoked"]), (&"pod-1".into(), &false.into()));
    assert!(daemon.yes("status leased").await.contains("1 holder (epoch 1) with "));
    assert_eq!(daemon.json("status leased").await["dependencies"][0]["lending"]["holders"], 1);

    let revoked = daemon.json("lease revoke leased pod-1 --why incident").await;
    assert_eq!((&revoked["holder"], &revoked["revoked"]), (&"pod-1".into(), &true.into()));
    assert!(daemon.yes("holders leased").await.contains("REVOKED"));
    assert!(daemon.run("holders leased*").await.unwrap_err().contains("ends in '*'"));
}

#[tokio::test]
async fn policies_have_a_history_that_one_can_return_to() {
    let daemon = Daemon::start().await;
    let three = daemon.file("three.toml", "retry.burst = 3");
    daemon.yes(&format!("policy put search {three} --who ann@ops --why tuning")).await;
    let overridden =
        daemon.yes(&format!("policy put search {} --override-for 2h", daemon.file("f.toml", "retry.burst = 4"))).await;
    assert!(overridden.contains("rule search is written"), "{overridden}");
    assert!(daemon.yes("policy get search").await.contains("override        until "));
    let history = daemon.yes("policy history").await;
    let lines: Vec<_> = history.lines().collect();
    assert!(lines[1].contains("overrode \"search\" until ") && lines[2].contains("ann@ops: tuning"), "{history}");
    daemon.yes("policy delete search").await;
    assert!(daemon.yes("policy get search").await.contains("burst = 3"));
    let diff = daemon.no("policy diff --from 1").await;
    assert!(diff.contains("+ \"search\"") && diff.contains("burst = 3"), "{diff}");
    assert!(daemon.yes("policy diff --from 2").await.starts_with("no difference"));
    daemon.yes("policy rollback 1 --why regret").await;
    assert!(daemon.yes("policy diff --from 1").await.starts_with("no difference"));
    let error = daemon.run("policy rollback 77").await.unwrap_err();
    assert!(error.contains("version is 77: must be between 1 and "), "{error}");
    assert_eq!(daemon.json("policy history").await["changes"][0]["why"], "regret");
}

#[tokio::test]
async fn a_switch_ends_by_itself_and_says_so_before() {
    let daemon = Daemon::start().await;
    let off = daemon.yes("retries off search --for 30m --who ann@ops --why incident").await;
    assert!(off.starts_with("retries are off for search until 20"), "{off}");
    let status = daemon.yes("status search").await;
    assert!(status.contains("retries OFF for search until 20") && status.contains("by ann@ops: incident"), "{status}");
    assert!(status.contains("RETRIES OFF until 20"), "{status}");
    let explained = daemon.yes("explain search").await;
    assert!(explained.contains("What helps: budgetd retries on search"), "{explained}");
    let (switch, now) = (daemon.json("status search").await, daemon.json("policy get search").await);
    assert_eq!(switch["dependencies"][0]["kill_switch"], now["kill_switch"]);
    assert_eq!(
        now["kill_switch"]["until_ms"].as_i64().unwrap() - now["kill_switch"]["since_ms"].as_i64().unwrap(),
        1_800_000
    );
    assert_eq!(daemon.json("retries off search --for 10ms").await["pending"], false);
    let on = async { while daemon.json("policy get search").await["kill_switch"] != Value::Null {} };
    timeout(Duration::from_secs(30), on).await.unwrap();
}

#[tokio::test]
async fn refusals_are_explained_and_the_bound_is_computed() {
    let daemon = Daemon::start().await;
    for _ in 0..3 {
        daemon.yes("reserve payments").await;
    }
    daemon.no("reserve payments").await;
    let explained = daemon.yes("explain payments --window 1d").await;
    assert!(explained.contains("payments runs under rule payments"), "{explained}");
    assert!(explained.contains("the next call is refused: less than one admission token is there"), "{explained}");
    assert!(explained.contains("`budgetd policy put payments FILE`"), "{explained}");
    assert!(explained.contains("attempts  burst 3 + 1/d x 86400 s = 4\n"), "{explained}");
    assert!(explained.contains("retries   burst 1 + 1/d x 86400 s + 0 x originals = 2 + 0 x originals"), "{explained}");
    let json = daemon.json("explain payments --window 1d").await;
    assert_eq!((&json["bound"]["attempts"], &json["bound"]["retries_without_originals"]), (&4.into(), &2.into()));
}

/// Seen to fail with the candidate put into force, and with one ledger for both.
#[tokio::test]
async fn a_policy_on_trial_is_compared_and_changes_nothing() {
    let daemon = Daemon::start().await;
    let text = "admission = { rate = \"1/d\", burst = 2 }";
    let rule = PolicyRule { name: "payments".to_owned(), source_toml: text.to_owned() };
    let within = Duration::from_secs(30);
    let client = Client::new(&daemon.endpoint).unwrap();
    let mut trial = client.try_policies(vec![rule], 2_000, within).await.unwrap();
    // It runs once the first message has come.
    assert_eq!(trial.next().await.unwrap().unwrap().trials, []);
    let mut admitted = 0;
    for _ in 0..5 {
        admitted += u32::from(daemon.run("reserve payments").await.unwrap().0 == Verdict::Yes);
    }
    assert_eq!(admitted, 3);
    let mut last = None;
    while let Some(state) = trial.next().await.unwrap() {
        last = Some(state);
    }
    let last = last.unwrap();
    let [payments] = &last.trials[..] else { panic!("{last:?}") };
    assert!(last.finished && payments.dependency == "payments", "{last:?}");
    assert_eq!(payments.real, payments.present);
    assert_eq!((payments.present.originals_admitted, payments.candidate.originals_admitted), (3, 2));
    assert_eq!(payments.candidate.refusals[0].originals, 3);
    assert!(daemon.yes("policy get payments").await.contains("burst = 3"), "nothing in force has changed");

    let candidate = daemon.file("c.toml", &format!("[dependency.payments]\n{text}\n"));
    let quiet = daemon.yes(&format!("policy try {candidate} --for 1s")).await;
    assert!(quiet.contains("nobody has asked for anything meanwhile"), "{quiet}");
    let error = daemon.run(&format!("policy try {} --for 1s", daemon.file("bad.toml", "[dependency.a]\nx = 1"))).await;
    assert!(error.unwrap_err().contains("bad.toml, line 2"));
    assert!(daemon.run(&format!("policy try {candidate} --for 11m")).await.unwrap_err().contains("for_ms is 660000"));
}
