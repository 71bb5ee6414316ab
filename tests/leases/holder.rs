//! A holder in a process of its own, which can be stopped, killed and split: this test's executable, run again.

use std::{env, path::Path, process::Command, sync::Arc, thread, time::Duration};

use budget::lease::HolderId;
use budget_client::{Client, Standing, boot_time_ns};
use budget_tests::{
    eventually::eventually,
    process::{Process, Stream},
    security,
};

use super::{
    bills::{Bill, Billed, Bills},
    fleet::{Admission, Demand, Fleet, Seen, ask_of},
    pace::Pace,
    preload::FORK_LINK,
    setting::{TIMING, pay},
};

const ENDPOINT: &str = "BUDGETD_TEST_HOLDER";
const NAME: &str = "BUDGETD_TEST_HOLDER_ID";
const ORIGINALS: &str = "BUDGETD_TEST_ORIGINALS";
const SPLITS: &str = "BUDGETD_TEST_SPLITS";
const BILL: &str = "BUDGETD_TEST_BILL";
const PACE: &str = "BUDGETD_TEST_PACE";
/// It ends by itself after this.
const LIFE_MS: i64 = 60_000;
/// On a machine that is busy.
const LIFE_MAX: Duration = Duration::from_secs(300);
/// The thread that splits asks this often.
const EACH: Duration = Duration::from_millis(4);

/// How one is started.
#[derive(Clone, Copy)]
pub(crate) struct Start<'a> {
    pub(crate) endpoint: &'a str,
    pub(crate) holder: Option<&'a str>,
    /// Originals per second; retries are 0.6 of it.
    pub(crate) originals: f64,
    /// What attempts cost and how long they last.
    pub(crate) bill: Option<Bill>,
    pub(crate) pace: Pace,
    /// Splits once it is leased; then only one thread asks. With this library loaded.
    pub(crate) splits: Option<&'a Path>,
}

/// A running one.
pub(crate) struct HolderProcess(pub(crate) Process);

// === impl Start ===

impl Default for Start<'_> {
    fn default() -> Self {
        Self { endpoint: "", holder: None, originals: 0.0, bill: None, pace: Pace::FULL, splits: None }
    }
}

// === impl HolderProcess ===

impl HolderProcess {
    pub(crate) fn start(start: Start<'_>) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "holder::process", "--nocapture"]);
        command.env(ENDPOINT, start.endpoint).env(ORIGINALS, start.originals.to_string());
        command.env(PACE, start.pace.factor().to_string());
        if let Some(holder) = start.holder {
            command.env(NAME, holder);
        }
        if let Some(Bill { held_ms: (shortest, longest), one_lost_of, lost_ms }) = start.bill {
            command.env(BILL, format!("{shortest} {longest} {one_lost_of} {lost_ms}"));
        }
        if let Some(library) = start.splits {
            command.env(SPLITS, "1").env("LD_PRELOAD", library);
        }
        Self(Process::spawn("holder", command))
    }

    /// What it admitted so far, and in which process.
    pub(crate) fn admissions(&self) -> Vec<(Admission, u32)> {
        self.0.printed(Stream::Out).lines().filter_map(|line| Admission::parse(line.trim())).collect()
    }

    /// What that cost, where it is billed.
    pub(crate) fn bills(&self) -> Vec<Billed> {
        Bills::parse(&self.0.printed(Stream::Out))
    }

    /// Waits until it is leased.
    pub(crate) async fn leased(&self) {
        eventually(LIFE_MAX, "the holder process is leased", async || self.0.logged("standing Leased")).await;
    }
}

/// Does nothing in a test run. In a process that [`HolderProcess::start`] made, it is the holder.
#[test]
fn process() {
    let Ok(endpoint) = env::var(ENDPOINT) else { return };
    let originals: f64 = env::var(ORIGINALS).unwrap().parse().unwrap();
    let name = env::var(NAME).ok();
    let bill = env::var(BILL).ok().map(|text| {
        let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().unwrap()).collect();
        Bill { held_ms: (numbers[0], numbers[1]), one_lost_of: numbers[2], lost_ms: numbers[3] }
    });
    let pace = Pace::parse(&env::var(PACE).unwrap()).unwrap();
    // The test runner has begun a line.
    println!();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    if env::var_os(SPLITS).is_some() {
        split(&runtime, &endpoint);
    } else {
        let demand = Demand { originals, retries: 0.6 * originals, local_only: false, bill, pace };
        runtime.block_on(async {
            let mut fleet = Fleet::empty();
            fleet.seen = Arc::new(Seen { prints: true, ..Seen::default() });
            fleet.add(&[endpoint], name.as_deref(), demand);
            fleet.stand(Standing::Leased, 1).await;
            println!("standing Leased");
            let end_ns = boot_time_ns() + pace.ms(LIFE_MS / 3) * 1_000_000;
            eventually(LIFE_MAX, "its time is over", async || boot_time_ns() >= end_ns).await;
        });
    }
}

/// Asks by one thread, without waiting; splits once there is a lease.
fn split(runtime: &tokio::runtime::Runtime, endpoint: &str) {
    let (client, handle) = runtime.block_on(async {
        let holder = HolderId::new("split").unwrap();
        let client = Client::builder().endpoints([endpoint]).options(security::caller()).timing(TIMING);
        let client = client.holder_id(holder).connect().unwrap();
        let handle = client.dependency(&pay()).unwrap();
        (client, handle)
    });
    let seen = Seen { prints: true, ..Seen::default() };
    let start_ns = boot_time_ns();
    let mut leased_ns = None;
    let mut has_split = false;
    let mut asks = 0_u64;
    while boot_time_ns() < start_ns + LIFE_MS / 3 * 1_000_000 {
        let now_ns = boot_time_ns();
        if leased_ns.is_none() && handle.standing() == Standing::Leased {
            leased_ns = Some(now_ns);
            println!("standing Leased");
        }
        if !has_split && leased_ns.is_some_and(|leased_ns| now_ns > leased_ns + 1_000_000_000) {
            has_split = true;
            println!("split {}", boot_time_ns());
            // Fails in both processes that there are after it.
            drop(std::fs::read_link(FORK_LINK));
        }
        asks += 1;
        let is_retry = asks.is_multiple_of(3);
        let from_ns = boot_time_ns();
        if let Some(decided) = handle.try_reserve(&ask_of(is_retry)) {
            seen.note(from_ns, is_retry, None, decided);
        }
        thread::park_timeout(EACH);
    }
    drop(client);
}
