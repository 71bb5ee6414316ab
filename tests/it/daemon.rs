//! The built daemon as its users run it: starting, ending, coming back.

use std::{net::TcpStream, time::Duration};

use budget_tests::daemon::{self, Daemon};

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

#[test]
fn an_unknown_flag_is_refused() {
    let finished = daemon::run(&["--no-such-flag"]);
    assert!(!finished.status.success());
    assert!(finished.stderr.contains("--no-such-flag"), "{}", finished.stderr);
    assert!(Daemon::try_start(&["--no-such-flag"], &[]).is_err());
}
