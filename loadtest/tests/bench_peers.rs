//! `loadtest bench --peer`: a program of another kind, measured beside budgetd.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_loadtest");

/// Ends with the test, however that ends.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        self.0.kill().expect("a peer can be killed");
        self.0.wait().expect("a peer that was killed ends");
    }
}

/// A bare server, which speaks Envoy's RateLimitService too, and its address.
fn peer() -> (Peer, String) {
    let child = Command::new(PROGRAM).arg("serve-echo").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut peer = Peer(child.expect("a peer starts"));
    let mut address = String::new();
    let stdout = peer.0.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut address).expect("a peer says where it listens");
    (peer, address.trim().to_owned())
}

fn bench(arguments: &[&str]) -> (bool, String, String) {
    let short = ["bench", "--only", "echo", "--rounds", "1", "--seconds-per-slice", "0.5", "--warm-up-seconds", "0.05"];
    let output = Command::new(PROGRAM).args(short).args(arguments).output().expect("a benchmark runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_peer_is_a_row_like_the_others() {
    let (peer, address) = peer();
    let scratch = tempfile::TempDir::with_prefix("bench-").expect("a directory");
    let json = scratch.path().join("bench.json");
    let given = format!("other={address}");
    let (passed, stdout, stderr) = bench(&["--peer", &given, "--json", json.to_str().expect("a path")]);
    drop(peer);
    assert!(passed, "{stdout}\n{stderr}");
    assert!(stdout.contains("peer_other"), "{stdout}");
    let report = std::fs::read_to_string(json).expect("JSON");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let row = &report["results"][1];
    assert_eq!((row["name"].as_str(), row["rounds"].as_u64()), (Some("peer_other"), Some(1)));
    assert!(row["ratio_to_echo"].as_f64().is_some_and(|ratio| ratio > 0.0), "{row}");
    assert_eq!((row["admitted_share"].as_f64(), row["failed_calls"].as_u64()), (Some(1.0), Some(0)));
    // It is not ours, so nobody knows its processor time.
    assert!(row["server_cpu_micros_per_call"].is_null(), "{row}");
}

#[test]
fn peers_that_are_away_or_elsewhere_are_refused() {
    // Nobody listens on port 1.
    let (passed, _, stderr) = bench(&["--peer", "gone=127.0.0.1:1"]);
    assert!(!passed && stderr.contains("peer gone at 127.0.0.1:1"), "{stderr}");
    let (passed, _, stderr) = bench(&["--peer", "far=192.0.2.1:8081"]);
    assert!(!passed && stderr.contains("another machine"), "{stderr}");
}
