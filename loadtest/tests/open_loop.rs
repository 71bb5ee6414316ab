//! The load test's own honesty: operations begin when they are due, so a budgetd that stands still is seen in latencies.

use std::{fs, process::Command};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_loadtest");

/// budgetd stands still for 2 s, every operation asks it once, and nobody gives up waiting.
const STOPPED: &str = r#"
name = "stopped"
title = "budgetd stands still for two seconds"
story = "Operations go on being due."
duration = "6s"
clients = 20
policy = """
[dependency.tool]
admission = { rate = "100/s", burst = 600, permit_ttl = "10s" }
"""
strategies = ["exact"]

[dependency]
workers = 2000
service = "2ms"
queue = 1000

[[load]]
rate = 250.0

[call]
layers = ["tool"]
attempts = 1
timeout = "5s"
deadline = "10s"
backoff_base = "10ms"
backoff_cap = "10ms"
ask_within = "8s"

[[fault]]
at = "2s"
until = "4s"
do = "stop_budgetd"
"#;

#[test]
fn a31_a_budgetd_that_stands_still_is_seen_in_latencies_and_everything_asked_is_accounted_for() {
    let scratch = tempfile::TempDir::with_prefix("open-loop-").expect("a directory");
    let path = |name: &str| scratch.path().join(name).display().to_string();
    fs::write(path("stopped.toml"), STOPPED).expect("is written");
    let arguments = ["run", &path("stopped.toml"), "--quiet", "--out", &path("out")];
    let output = Command::new(PROGRAM).args(arguments).output().expect("a run");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let run = fs::read_to_string(path("out/stopped.json")).unwrap_or_else(|error| panic!("{error}\n{said}"));
    let run: Value = serde_json::from_str(&run).expect("JSON");
    let strategy = &run["scenarios"][0]["strategies"][0];
    let total = |name: &str| strategy["totals"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {strategy}"));

    // Half of the operations were due while it stood still or right after: a closed loop would have sent few of them.
    let offered = total("offered");
    assert!((1_300..1_700).contains(&offered), "{offered}");
    assert_eq!(total("started"), offered);
    // What the generator is late is said.
    println!("{} ms late at most", total("late_max_ms"));
    assert_eq!(offered, total("admitted") + total("refused") + total("errors"), "{said}");
    assert!(total("refused") > 0 && total("errors") == 0, "{said}");
    assert_eq!((total("sent"), total("received")), (total("admitted"), total("admitted")));

    let latency = |name: &str| strategy["latency"][name].as_f64().expect("operations ended");
    // The first operation after it was stopped waited all of the 2 s; a busy machine adds to that and takes nothing away.
    assert!(latency("p999") >= 1_900.0, "{said}");
    // Of 6 s, 2 s are a third: its waits are spread evenly from 2 s to nothing.
    assert!(latency("p90") >= 1_000.0, "{said}");
}
