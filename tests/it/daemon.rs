//! The built daemon as its users run it: starting, ending, coming back.

use std::{fs, net::TcpStream, time::Duration};

use budget_tests::{
    daemon::{self, Daemon},
    eventually::eventually,
    redis_server::{Flavour, RedisServer},
};
use budgetd::clock::Clock;

/// More than the daemon takes to end without open calls.
const END_BOUND: Duration = Duration::from_secs(20);

#[test]
fn a_killed_daemon_comes_back_on_its_addresses() {
    let mut daemon = Daemon::start(&[]);
    let addresses = [daemon.grpc(), daemon.http()];
    daemon.kill();
    assert!(addresses.iter().all(|address| TcpStream::connect(address).is_err()));
    daemon.restart();
    assert_eq!([daemon.grpc(), daemon.http()], addresses);
    assert!(addresses.iter().all(|address| TcpStream::connect(address).is_ok()));
}

#[test]
fn a_terminated_daemon_ends_well() {
    let mut daemon = Daemon::start(&[]);
    daemon.terminate();
    let status = daemon.wait(END_BOUND);
    assert!(status.success(), "{status}; {}", daemon.process().tail());
}

#[test]
fn a_frozen_daemon_goes_on() {
    let mut daemon = Daemon::start(&[]);
    daemon.freeze();
    daemon.thaw();
    daemon.terminate();
    assert!(daemon.wait(END_BOUND).success());
}

/// Seen to fail with four readings a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_daemon_reads_the_policies_twice_a_second() {
    let redis = RedisServer::start(Flavour::Redis7);
    let directory = tempfile::tempdir().unwrap();
    let policy = directory.path().join("policy.toml");
    fs::write(&policy, "[defaults]\nretry.ratio = 0.2\n").unwrap();
    let _daemon = Daemon::start(&["--store", &redis.unix_url(), "--policy", &policy.to_string_lossy()]);
    let readings = || redis.info("commandstats", "cmdstat_hmget", "calls");
    let more = async |readings_before: u64, more: u64| {
        eventually(END_BOUND, "policies are read", async || readings() >= readings_before + more).await;
    };
    // What is read at the start comes at once.
    more(readings(), 3).await;
    let start = Clock::instant();
    more(readings(), 4).await;
    let took = Clock::instant() - start;
    assert!(took > Duration::from_millis(1_200), "{took:?}");
}

#[test]
fn an_unknown_flag_is_refused() {
    let finished = daemon::run(&["--no-such-flag"]);
    assert!(!finished.status.success());
    assert!(finished.stderr.contains("--no-such-flag"), "{}", finished.stderr);
    assert!(Daemon::try_start(&["--no-such-flag"], &[]).is_err());
}
