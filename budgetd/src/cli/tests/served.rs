//! Every subcommand against a daemon in this process.

use std::time::Duration;

use budget::lease::HolderId;
use budget_client::{Client, Dependency};
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
    assert!(daemon.yes("policy get search").await.contains("retries         OFF\n"));
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
