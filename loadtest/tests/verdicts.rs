//! The load test as a program: what it counts, what it says, and how it ends.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_loadtest");

/// Every call fails; little enough for a machine that is busy with other tests.
const SMALL: &str = r#"
name = "small"
title = "Every call fails"
story = "Three layers, and nothing works."
duration = "1500ms"
clients = 20
policy = """
[dependency.tool]
retry = { ratio = 0.1, floor = "1/s", burst = 10 }
operation = { max_attempts = 3 }
lease = { enabled = true }
"""
strategies = ["single", "naive", "exact", "leased"]

[dependency]
workers = 20
service = "5ms"
queue = 100
flawed = { share = 1.0, answer = "unavailable" }

[[load]]
rate = 30.0

[call]
layers = ["workflow", "gateway", "tool"]
attempts = 3
timeout = "3s"
deadline = "8s"
backoff_base = "2ms"
backoff_cap = "5ms"
ask_within = "4s"

[[accept]]
gauge = "amplification"
at_most = 1.0
of = "budget"

[[accept]]
gauge = "attempts_max"
strategies = ["naive"]
at_least = 27
at_most = 27
"#;

/// More is asked for than two replicas may admit together.
const SATURATED: &str = r#"
name = "saturated"
title = "Two replicas, one rate"
story = "Both are asked for more than there is."
duration = "2500ms"
clients = 20
policy = """
[dependency.tool]
admission = { rate = "20/s", burst = 5 }
"""
strategies = ["exact"]

[fleet]
replicas = 2
store = "redis"

[dependency]
workers = 50
service = "2ms"
queue = 100

[[load]]
rate = 80.0

[call]
layers = ["tool"]
attempts = 1
timeout = "3s"
deadline = "8s"
backoff_base = "2ms"
backoff_cap = "5ms"
ask_within = "4s"

[bound]
"#;

fn run(scratch: &TempDir, scenario: &str, more: &[&str]) -> Output {
    let path = scratch.path().join("scenario.toml");
    fs::write(&path, scenario).expect("is written");
    let mut command = Command::new(PROGRAM);
    command.arg("run").arg(&path).arg("--quiet").arg("--out").arg(scratch.path());
    command.args(more).output().expect("a run")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn strategies_are_offered_the_same_and_the_dependency_counts_for_itself() {
    let scratch = TempDir::with_prefix("verdicts-").expect("a directory");
    let output = run(&scratch, SMALL, &["--seed", "5"]);
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    let run = read(&scratch.path().join("small.json"));
    assert_eq!(run["seed"], 5);
    assert!(run["versions"]["budgetd"].is_string() && scratch.path().join("small.html").exists());
    let scenario = &run["scenarios"][0];
    let strategies: Vec<&Value> = scenario["strategies"].as_array().expect("strategies").iter().collect();
    let total = |name: &str, of: &str| {
        let strategy = strategies.iter().find(|strategy| strategy["name"] == name).expect("it ran");
        strategy["totals"][of].as_u64().unwrap_or_else(|| panic!("no {of} in {strategy}"))
    };
    let offered = total("single", "offered");
    assert!((25..65).contains(&offered), "{offered}");
    for name in ["naive", "exact", "leased"] {
        assert_eq!(total(name, "offered"), offered, "the same plan");
        assert_eq!(total(name, "received"), total(name, "sent"), "{said}");
        assert_eq!(total(name, "useful"), 0);
    }
    // 3 × 3 × 3.
    assert_eq!((total("single", "received"), total("naive", "received")), (offered, 27 * offered));
    for name in ["exact", "leased"] {
        let (admitted, received) = (total(name, "admitted"), total(name, "received"));
        assert_eq!(admitted, offered, "originals are not limited: {said}");
        assert!(received > admitted && received <= admitted + 20 + admitted / 10, "{said}");
        assert!(total(name, "retries_refused") > 0, "{said}");
    }
    assert!(scenario["verdicts"].as_array().expect("verdicts").iter().all(|verdict| verdict["passed"] == true));
}

/// What the verdicts are worth: with replicas that each have the whole budget to themselves they must fail.
#[test]
fn a_broken_budget_fails_where_the_right_one_passes() {
    let scratch = TempDir::with_prefix("verdicts-").expect("a directory");
    let right = run(&scratch, SATURATED, &[]);
    assert!(right.status.success(), "{}", said(&right));
    let broken = run(&scratch, SATURATED, &["--broken"]);
    assert_eq!(broken.status.code(), Some(1), "{}", said(&broken));
    let run = read(&scratch.path().join("saturated.json"));
    let scenario = &run["scenarios"][0];
    let failed: Vec<&str> = scenario["verdicts"]
        .as_array()
        .expect("verdicts")
        .iter()
        .filter(|verdict| verdict["passed"] == false)
        .filter_map(|verdict| verdict["says"].as_str())
        .collect();
    assert_eq!(failed, ["exact: admissions of every window keep the documented bound"], "{}", said(&broken));
}

#[test]
fn repeats_go_on_with_the_next_seed_and_say_how_close_they_came() {
    let scratch = TempDir::with_prefix("verdicts-").expect("a directory");
    let output = run(&scratch, SATURATED, &["--repeat", "2", "--seed", "7"]);
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    for wanted in [
        "seed 7: 2 of 2 acceptances passed; exact admissions ",
        "seed 8: ",
        "2 of 2 repeats passed",
        "exact · admissions",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let output = run(&scratch, SATURATED, &["--repeat", "1", "--broken"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("FAIL exact: admissions of every window") && said.contains("0 of 1 repeats"), "{said}");
}

/// Untracked operations are tried more often, in two lives, than either life permits.
#[test]
fn a_process_that_is_killed_during_backoff_does_not_reset_what_its_operations_have_used() {
    let scratch = TempDir::with_prefix("verdicts-").expect("a directory");
    let shorter = include_str!("../scenarios/restart.toml")
        .replace("duration = \"6s\"", "duration = \"3s\"")
        .replace("rate = 60.0", "rate = 40.0")
        .replace("at = \"2500ms\"", "at = \"1800ms\"")
        .replace("extra = true", "");
    let output = run(&scratch, &shorter, &[]);
    assert!(output.status.success(), "{}", said(&output));
    let untracked = shorter.replace("tracked = true", "tracked = false").replace("burst = 100", "burst = 1000");
    let output = run(&scratch, &untracked, &["--strategies", "exact"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("FAIL  exact: most attempts for one operation: wanted ≤ 3"), "{}", said(&output));
}

#[test]
fn what_cannot_run_says_why() {
    let scratch = TempDir::with_prefix("verdicts-").expect("a directory");
    let output = run(&scratch, &SMALL.replacen("rate = 30.0", "rates = 30.0", 1), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("rates"), "{}", said(&output));
    let output = run(&scratch, SATURATED, &["--redis-server", "/nowhere/redis-server"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("/nowhere/redis-server does not start"), "{}", said(&output));
    let output = Command::new(PROGRAM).args(["run", "strom"]).output().expect("a run");
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("there are storm"), "{}", said(&output));
}

/// However it ends, what it started ends with it.
#[cfg(target_os = "linux")]
#[test]
fn nothing_outlives_a_run_that_is_killed() {
    const PATIENCE_NS: i64 = 30_000_000_000;
    let scratch = TempDir::with_prefix("verdicts-").expect("a directory");
    let path = scratch.path().join("scenario.toml");
    fs::write(&path, SATURATED.replacen("2500ms", "60s", 1)).expect("is written");
    let mut command = Command::new(PROGRAM);
    command.arg("run").arg(&path).arg("--quiet").arg("--out").arg(scratch.path()).env("TMPDIR", scratch.path());
    let mut running = command.spawn().expect("a run");
    let pid = running.id();
    let children = || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
        let of_task = |task: std::io::Result<fs::DirEntry>| fs::read_to_string(task.ok()?.path().join("children")).ok();
        let text: String = tasks.filter_map(of_task).collect();
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let until_ns = budget_client::boot_time_ns() + PATIENCE_NS;
    // The dependency, Redis, two replicas, two processes of callers.
    let mut started = Vec::new();
    while started.len() < 6 {
        assert!(budget_client::boot_time_ns() < until_ns, "only {started:?} were started");
        std::thread::yield_now();
        started = children();
    }
    running.kill().expect("is killed");
    running.wait().expect("ends");
    // An ended process whose new parent has not noticed has no memory any more.
    let lives = |child: &&String| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        status.contains("VmRSS")
    };
    let until_ns = budget_client::boot_time_ns() + PATIENCE_NS;
    while started.iter().any(|child| lives(&child)) {
        assert!(budget_client::boot_time_ns() < until_ns, "{started:?} go on");
        std::thread::yield_now();
    }
}
