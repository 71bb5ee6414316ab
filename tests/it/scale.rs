//! Ten thousand dependencies: what it costs a daemon to start with them, and to show how they stand.
//!
//! `cargo test --release -p budget-tests --test it scale -- --nocapture` prints the figures of a release build.

use std::{fmt::Write as _, fs, time::Duration};

use budget::decision::Reserve;
use budget_client::{Client, Dependency};
use budget_tests::{
    daemon::Daemon,
    redis_server::{Flavour, RedisServer},
    security,
};
use futures::future::join_all;

use crate::faults::ground::{CALL, Footprint, PATIENT, original};

const DEPENDENCIES: usize = 10_000;
const AT_ONCE: usize = 250;
/// A debug build may take twice as long.
const SLOWER: u32 = if cfg!(debug_assertions) { 2 } else { 1 };
/// Of processor time, for one status of all.
const STATUS: Duration = Duration::from_millis(500);
/// Of processor time, for a start with all policies, more than for a start without.
const START: Duration = Duration::from_secs(1);
/// Of memory that stays with the daemon after it has shown all several times.
const MEMORY_KIB: u64 = 64 * 1024;

fn name(number: usize) -> String {
    format!("dependency-{number:05}")
}

/// A file with a rule for each.
fn policies() -> tempfile::NamedTempFile {
    let mut text = String::new();
    for number in 0..DEPENDENCIES {
        let _infallible = writeln!(
            text,
            "[dependency.\"{}\"]\nadmission = {{ rate = \"{}/s\", burst = 100, max_in_flight = 50 }}\n\
             retry = {{ ratio = 0.1, floor = \"1/s\", burst = 20 }}",
            name(number),
            1 + number % 500
        );
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    file
}

/// Asks once for each, so that all have state.
async fn touch(client: &Client) {
    let names: Vec<usize> = (0..DEPENDENCIES).collect();
    for some in names.chunks(AT_ONCE) {
        let asks = some.iter().map(|number| async {
            let ask = Reserve { no_release: true, ..original() };
            client.reserve(&Dependency::new(&name(*number)).unwrap(), &ask, CALL).await.unwrap();
        });
        join_all(asks).await;
    }
}

/// All pages.
async fn shown(client: &Client) -> usize {
    let (mut page, mut count) = (None, 0);
    loop {
        let status = client.get_status(&[], page, CALL).await.unwrap();
        count += status.dependencies.iter().filter(|status| status.ledger_version.is_some()).count();
        let Some(next) = status.next else { return count };
        page = Some(next);
    }
}

async fn status_of_all(store: &str, what: &str) {
    const ROUNDS: u32 = 4;
    let file = policies();
    let arguments = ["--store", store, "--policy", &file.path().to_string_lossy()];
    let daemon = Daemon::start(&[&arguments[..], &PATIENT].concat());
    let client = security::client(&daemon.endpoint());
    touch(&client).await;
    assert_eq!(shown(&client).await, DEPENDENCIES);
    let before = Footprint::of(&daemon);
    for _ in 0..ROUNDS {
        assert_eq!(shown(&client).await, DEPENDENCIES);
    }
    let after = Footprint::of(&daemon);
    let (busy, more) = ((after.busy - before.busy) / ROUNDS, after.resident_kib.saturating_sub(before.resident_kib));
    println!(
        "a status of {DEPENDENCIES} dependencies on {what}: {busy:?} of the daemon, {more} KiB more after {ROUNDS}"
    );
    assert!(busy <= SLOWER * STATUS, "{busy:?}");
    assert!(more <= MEMORY_KIB, "{more} KiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_of_ten_thousand_dependencies_is_cheap_on_memory() {
    status_of_all("memory", "memory").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_of_ten_thousand_dependencies_is_cheap_on_redis() {
    status_of_all(&RedisServer::start(Flavour::Redis7).unix_url(), "Redis").await;
}

#[test]
fn a_start_with_ten_thousand_policies_is_quick() {
    let file = policies();
    let busy = |arguments: &[&str]| Footprint::of(&Daemon::start(arguments)).busy;
    let empty = busy(&[]);
    let full = busy(&["--policy", &file.path().to_string_lossy()]);
    println!("processor time until it serves: {empty:?} without policies, {full:?} with {DEPENDENCIES}");
    assert!(full.saturating_sub(empty) <= SLOWER * START, "{full:?}");
}
