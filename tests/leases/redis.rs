//! Redis dies, stands still, forgets, remembers too much, or has its clock set, under fifty leased clients.

use std::{fs, path::Path};

use budget_client::boot_time_ns;
use budget_tests::{
    eventually::eventually,
    redis_server::{Flavour, RedisServer},
};

use super::{
    fleet::{Demand, Fleet},
    judge::Case,
    outages::{Fresh, all_fresh, curve_is_followed, nothing_blocks, returned, settle, steps_are_used},
    pace::Pace,
    preload,
    setting::{On, REST_MS, Setting, pass_ms, until_ns},
};

const MS: i64 = 1_000_000;
const MEMBERS: usize = 50;
const RATE: i64 = 200;
const REPLICAS: usize = 2;

/// Names the file with the shift of the clock, microseconds as 8 bytes.
const SHIFT_VARIABLE: &str = "BUDGETD_TEST_SHIFT";

fn policy(pace: Pace) -> String {
    pace.policy(RATE, 150, 150)
}

fn server(setting: &mut Setting) -> &mut RedisServer {
    setting.redis.as_mut().unwrap()
}

async fn fleet(setting: &Setting) -> (Fleet, Fresh) {
    let fleet = Fleet::plenty_at(setting.pace, &setting.endpoints(), MEMBERS, RATE);
    let fresh = settle(setting, &fleet).await;
    (fleet, fresh)
}

fn case(setting: &Setting, start_ns: i64) -> Case {
    let mut case = Case::of(setting, MEMBERS, REPLICAS, start_ns);
    case.causes.beyond = i64::try_from(MEMBERS + REPLICAS).unwrap();
    case
}

/// One fleet at a time: fifty clients and all they speak to fill a small machine. Held by whoever has the file, since tests
/// may run in processes of their own. Then it lives as fast as the machine has room for.
pub(crate) async fn alone() -> (fs::File, Pace) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("one-fleet-at-a-time");
    let file = fs::File::create(path).unwrap();
    tokio::task::spawn_blocking(move || {
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        (file, Pace::of_machine())
    })
    .await
    .unwrap()
}

/// Redis and every daemon: decisions follow the curve, nothing waits, and all are leased again in time.
///
/// Seen to fail with leases that do not end with their curve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_redis_and_every_daemon_killed_under_fifty_clients() {
    let (_alone, pace) = alone().await;
    let mut setting = Setting::paced(pace, On::Redis7, &policy(pace), REPLICAS, &[]);
    let start_ns = boot_time_ns();
    let (fleet, fresh) = fleet(&setting).await;
    let killed_ns = boot_time_ns();
    server(&mut setting).kill();
    setting.daemons.iter_mut().for_each(budget_tests::daemon::Daemon::kill);
    curve_is_followed(&fleet, killed_ns, fresh).await;
    server(&mut setting).restart();
    for daemon in &mut setting.daemons {
        daemon.restart();
    }
    returned(&setting, &fleet, pace.return_ms() + REST_MS, "T4 after the end of everything").await;
    nothing_blocks(&fleet);
    let mut case = case(&setting, start_ns);
    case.epoch(killed_ns);
    case.assert(&*fleet.end().await);
}

/// It answers nobody for a while, and nothing is lost.
///
/// Seen to fail with leases that do not end with their curve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_redis_stands_still_under_fifty_clients() {
    stands_still(On::Redis7).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_valkey_stands_still_under_fifty_clients() {
    stands_still(On::Valkey9).await;
}

async fn stands_still(on: On) {
    let (_alone, pace) = alone().await;
    let mut setting = Setting::paced(pace, on, &policy(pace), REPLICAS, &[]);
    let start_ns = boot_time_ns();
    let (fleet, fresh) = fleet(&setting).await;
    server(&mut setting).freeze();
    curve_is_followed(&fleet, boot_time_ns(), fresh).await;
    server(&mut setting).thaw();
    returned(&setting, &fleet, pace.return_ms() + REST_MS, "T4 after standing still").await;
    nothing_blocks(&fleet);
    case(&setting, start_ns).assert(&*fleet.end().await);
}

/// It forgets everything; it comes back with the state of a while ago; it forgets again at once.
///
/// Seen to fail with renewals whose buckets start full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_redis_is_flushed_and_restored_from_an_old_dump_under_fifty_clients() {
    let (_alone, pace) = alone().await;
    let mut setting = Setting::paced(pace, On::Redis7, &policy(pace), REPLICAS, &[]);
    let start_ns = boot_time_ns();
    let (fleet, _) = fleet(&setting).await;
    let mut case = case(&setting, start_ns);
    server(&mut setting).cli(&["SAVE"]);
    pass_ms(pace.ms(600)).await;
    case.epoch(boot_time_ns());
    server(&mut setting).cli(&["FLUSHALL"]);
    pass_ms(pace.ms(500)).await;
    case.epoch(boot_time_ns());
    // With what it kept before the flush.
    server(&mut setting).restart();
    pass_ms(pace.ms(500)).await;
    for _ in 0..2 {
        case.epoch(boot_time_ns());
        server(&mut setting).cli(&["FLUSHALL"]);
        pass_ms(pace.ms(400)).await;
    }
    returned(&setting, &fleet, pace.return_ms() + REST_MS, "T4 after lost and old states").await;
    nothing_blocks(&fleet);
    case.assert(&*fleet.end().await);
}

/// Replicas that answer from leases of their own, to callers that hold none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_replicas_that_lease_go_on_while_redis_is_away() {
    let (_alone, pace) = alone().await;
    const CALLERS: usize = 3;
    let mut setting = Setting::paced(pace, On::Redis7, &policy(pace), REPLICAS, &["--lease"]);
    let start_ns = boot_time_ns();
    let mut fleet = Fleet::paced(pace, RATE);
    for endpoint in setting.endpoints() {
        for _ in 0..CALLERS {
            fleet.add_caller(&endpoint, Demand::plenty_at(pace, RATE, REPLICAS * CALLERS));
        }
    }
    let operator = setting.operator();
    let rate = pace.rate(RATE) as f64;
    let lends = async || operator.lent_per_second().await >= 0.7 * rate;
    eventually(pace.bound(), "replicas are leased", lends).await;
    fleet.works(0.8 * rate, "calm, by replicas").await;
    let fresh = all_fresh(&operator, REPLICAS, pace, 2).await;
    let killed_ns = boot_time_ns();
    server(&mut setting).kill();
    steps_are_used(&fleet, killed_ns, fresh, "replicas on the curve").await;
    until_ns(killed_ns + (2 * pace.step_ms() + pace.ms(500)) * MS).await;
    server(&mut setting).restart();
    eventually(pace.bound(), "T4: replicas are leased again", lends).await;
    fleet.works(0.4 * rate, "replicas after the return").await;
    fleet.assert_none_failed();
    let mut case = Case::of(&setting, REPLICAS, REPLICAS, start_ns);
    case.epoch(killed_ns);
    case.causes.beyond = i64::try_from(2 * REPLICAS).unwrap();
    case.assert(&*fleet.end().await);
}

/// An hour forward, an hour back: what leases say does not hang on the store's clock.
///
/// Seen to fail with renewals whose buckets start full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_the_clock_of_redis_is_set_by_an_hour_forward_and_back() {
    let (_alone, pace) = alone().await;
    let directory = tempfile::tempdir().unwrap();
    let shift = directory.path().join("shift");
    fs::write(&shift, [0; 8]).unwrap();
    let library = preload::library(directory.path());
    let environment = [("LD_PRELOAD", library.to_str().unwrap()), (SHIFT_VARIABLE, shift.to_str().unwrap())];
    let redis = RedisServer::start_in(Flavour::Redis7, &[], &environment);
    let mut setting = Setting::on(pace, Some(redis), &policy(pace), REPLICAS, &[]);
    let start_ns = boot_time_ns();
    let (fleet, _) = fleet(&setting).await;
    let mut case = case(&setting, start_ns);
    for hours in [1, 0, -1, 0] {
        let before = seconds(server(&mut setting));
        shift_clock(&shift, hours * 3_600);
        // State with an expiry may be gone: an epoch.
        case.epoch(boot_time_ns());
        let moved = seconds(server(&mut setting)) - before;
        assert!(moved.abs() > 3_000, "the clock of Redis has moved by {moved} s");
        pass_ms(pace.quarantine_ms() / 2).await;
    }
    case.causes.clock_jumps = 4;
    returned(&setting, &fleet, pace.return_ms() + REST_MS, "T4 after clocks that were set").await;
    nothing_blocks(&fleet);
    case.assert(&*fleet.end().await);
}

fn seconds(redis: &RedisServer) -> i64 {
    let (seconds, _): (i64, i64) = deadpool_redis::redis::from_redis_value(redis.cli(&["TIME"])).unwrap();
    seconds
}

/// Shifts the clock of the processes that read this file.
fn shift_clock(file: &Path, seconds: i64) {
    // In place: it is mapped.
    use std::os::unix::fs::FileExt;
    let opened = fs::OpenOptions::new().write(true).create(true).truncate(false).open(file).unwrap();
    opened.write_all_at(&(seconds * 1_000_000).to_ne_bytes(), 0).unwrap();
}
