//! The example in another language, against a real daemon.

use std::{process::Command, time::Duration};

use budget_tests::{
    daemon::Daemon,
    process::{Process, Stream},
    repository, security,
};

/// Starting Python and generating the stubs included.
const BOUND: Duration = Duration::from_secs(60);

/// Runs the example with the Python of `.venv` and gives its exit code and what it printed.
fn example(arguments: &[&str]) -> (Option<i32>, String, String) {
    let python = repository().join(".venv/bin/python");
    assert!(python.is_file(), "{} is missing: run ./tests/run once, it makes it", python.display());
    let mut command = Command::new(python);
    command.arg(repository().join("examples/python/reserve.py")).args(arguments);
    if let Some(files) = security::secured() {
        command.args(["--tls-ca", &files.text("ca.crt"), "--token-file", &files.text("token")]);
    }
    let mut process = Process::spawn("reserve.py", command);
    let status = process.wait(BOUND);
    (status.code(), process.printed(Stream::Out), process.printed(Stream::Err))
}

#[test]
fn the_python_example_reserves_and_releases() {
    let daemon = Daemon::start(&[]);
    let endpoint = daemon.grpc().to_string();
    let (code, printed, complaints) = example(&["--endpoint", &endpoint, "payments"]);
    let expected = "admitted: start after 0 ms, MODE_EXACT\nreleased: RELEASE_RESULT_APPLIED\n";
    assert_eq!((code, printed.as_str()), (Some(0), expected), "{complaints}");
}

#[test]
fn the_python_example_shows_a_refused_name() {
    let daemon = Daemon::start(&[]);
    let endpoint = daemon.grpc().to_string();
    let (code, _, complaints) = example(&["--endpoint", &endpoint, "reserved/*"]);
    assert_eq!(code, Some(1));
    assert!(complaints.contains("INVALID_ARGUMENT") && complaints.contains("dependency"), "{complaints}");
}
