//! `loadtest run --endpoint`: a scenario against a budgetd that is there already.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use budget::decision::{Attempt, Reserve};
use budget_client::{Client, Decision, Dependency, reservation_id};
use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_loadtest");

/// What the deployment permits; the scenario's own policy is another.
const POLICIES: &str = r#"
[dependency."tests/load"]
admission = { rate = "30/s", burst = 30, max_in_flight = 1000, permit_ttl = "60s" }
retry = { ratio = 0.1, burst = 10 }
operation = { max_attempts = 3 }
"#;

const SCENARIO: &str = r#"
name = "failing"
title = "A dependency that fails"
story = "It fails throughout."
duration = "1500ms"
clients = 10
policy = """
[dependency.tool]
admission = { rate = "1000/s", burst = 1000 }
lease = { enabled = true }
"""
strategies = ["naive", "exact", "leased", "agent"]

[dependency]
workers = 100
service = "2ms"
queue = 100

[[dependency.script]]
at = "0s"
label = "every call fails"
answer = "unavailable"

[[load]]
rate = 60.0

[call]
layers = ["tool"]
timeout = "500ms"
deadline = "2s"
backoff_base = "10ms"
backoff_cap = "50ms"
ask_within = "1s"

[[accept]]
gauge = "amplification"
strategies = ["exact"]
at_most = 1.0
of = "budget"
"#;

/// Ends with the test, however that ends.
struct Deployment {
    process: Child,
    address: String,
}

impl Drop for Deployment {
    fn drop(&mut self) {
        self.process.kill().expect("a deployment can be killed");
        self.process.wait().expect("a deployment that was killed ends");
    }
}

fn deployment(scratch: &Path) -> Deployment {
    let policies = scratch.join("policies.toml");
    fs::write(&policies, POLICIES).expect("is written");
    let mut command = Command::new(PROGRAM);
    command.args(["serve-daemon", "--store", "memory", "--policies"]).arg(policies);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a deployment starts");
    let stdout = process.stdout.take().expect("a pipe");
    let mut deployment = Deployment { process, address: String::new() };
    BufReader::new(stdout).read_line(&mut deployment.address).expect("a deployment says where it listens");
    deployment.address = format!("http://{}", deployment.address.trim());
    deployment
}

fn run(scratch: &TempDir, arguments: &[&str]) -> (bool, String) {
    let path = |name: &str| scratch.path().join(name).display().to_string();
    fs::write(path("failing.toml"), SCENARIO).expect("is written");
    let mut command = Command::new(PROGRAM);
    command.args(["run", "--scenario", &path("failing.toml"), "--quiet", "--out", &path("out")]).args(arguments);
    let output = command.output().expect("a run");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), said)
}

#[test]
fn a_scenario_runs_against_a_deployment_under_the_policy_in_force_there() {
    let scratch = TempDir::with_prefix("deployment-").expect("a directory");
    let deployment = deployment(scratch.path());
    let (passed, said) = run(&scratch, &["--endpoint", &deployment.address, "--dependency", "tests/load"]);
    assert!(passed, "{said}");
    let record = fs::read_to_string(scratch.path().join("out/failing.json")).expect("a report");
    let record: Value = serde_json::from_str(&record).expect("JSON");
    let scenario = &record["scenarios"][0];
    let policy = scenario["policy"].as_str().expect("a policy");
    assert!(policy.contains("30/s") && !policy.contains("1000/s"), "{policy}");
    let story = scenario["story"].as_str().expect("a story");
    for part in ["tests/load", deployment.address.trim_start_matches("http://"), "permits no leases", "not judged here"]
    {
        assert!(story.contains(part), "{part}: {story}");
    }
    let strategies = scenario["strategies"].as_array().expect("strategies");
    let names: Vec<_> = strategies.iter().filter_map(|strategy| strategy["name"].as_str()).collect();
    assert_eq!(names, ["naive", "exact"]);
    // 30 and 30 for each second are admitted of about 90, and nearly no retries.
    let total = |at: usize, name: &str| strategies[at]["totals"][name].as_u64().expect("a count");
    assert!(total(0, "received") >= 2 * total(0, "offered"), "{said}");
    assert!(total(1, "refused") > 0 && total(1, "received") <= total(1, "admitted") + 10 + 9, "{said}");
    assert_eq!(total(1, "sent"), total(1, "received"));
}

#[test]
fn what_could_do_harm_is_refused_before_anything_is_sent() {
    let scratch = TempDir::with_prefix("deployment-").expect("a directory");
    for (arguments, says) in [
        (&["--endpoint", "http://192.0.2.1:7401", "--dependency", "x"][..], "--allow-remote"),
        (&["--endpoint", "http://127.0.0.1:7401"], "--dependency"),
        (&["--endpoint", "http://127.0.0.1:1", "--dependency", "x", "--max-rate", "10"], "--max-rate"),
        (&["--endpoint", "http://127.0.0.1:1", "--dependency", "x", "--max-seconds", "1"], "--max-seconds"),
        // Nobody listens on port 1.
        (&["--endpoint", "http://127.0.0.1:1", "--dependency", "x"], "127.0.0.1:1: "),
    ] {
        let (passed, said) = run(&scratch, arguments);
        assert!(!passed && said.contains(says), "{arguments:?}: {said}");
    }
}

#[tokio::test]
async fn a_dependency_in_use_is_left_alone_unless_that_is_meant() {
    let scratch = TempDir::with_prefix("deployment-").expect("a directory");
    let deployment = deployment(scratch.path());
    let named = ["--endpoint", &deployment.address, "--dependency", "tests/load", "--strategies", "exact"];
    let client = Client::new(&deployment.address).expect("an address");
    let dependency = Dependency::new("tests/load").expect("a name");
    let reserve = Reserve::new(reservation_id().expect("randomness"), Attempt::ORIGINAL);
    let reserved = client.reserve(&dependency, &reserve, Duration::from_secs(5)).await.expect("an answer");
    assert!(matches!(reserved.decision, Decision::Admitted(_)), "{reserved:?}");

    let (passed, said) = run(&scratch, &named);
    assert!(!passed && said.contains("--allow-shared"), "{said}");
    let (passed, said) = run(&scratch, &[&named[..], &["--allow-shared"]].concat());
    assert!(passed, "{said}");
}
