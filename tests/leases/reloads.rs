//! A hundred reloads a second, at two replicas in turn, under leases and direct calls: nothing is refilled, nothing lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use budget::{
    decision::{Attempt, Outcome, Release, ReleaseResult, Reserve},
    ids::{PolicyVersion, ReservationId},
};
use budget_client::{Client, Decision, Dependency, DependencyStatus, How, PolicyEdit, boot_time_ns, reservation_id};
use budget_tests::{eventually::eventually, security};
use tokio::{task::JoinHandle, time::interval};

use super::{
    fleet::{Demand, Fleet},
    judge::Case,
    setting::{BOUND, CALL, On, POLICY, RETURN_MS, Setting, pay_id, policy_of},
};

const RELOADS: i64 = 1_000;
const EACH: Duration = Duration::from_millis(10);
const REPLICAS: usize = 2;
const MEMBERS: usize = 5;
const TOKEN: i64 = 1_000_000;
/// Of each caller.
const KEPT: usize = 20;
/// What a token a day brings while the test runs.
const DRIFT_MICROS: i64 = 50_000;

/// A policy whose buckets are as full afterwards as they were before, but for what is counted: it lends nothing, and a
/// thousandth of a retry is deposited for each original.
fn kept_policy(rate: &str, more: &str) -> String {
    format!(
        "admission = {{ rate = \"{rate}\", burst = 1000000, max_in_flight = 1000, permit_ttl = \"1h\" }}\n\
         retry = {{ ratio = 0.001, floor = \"0/s\", burst = 100000 }}\n\
         operation.retention = \"1h\"\n{more}\n"
    )
}

/// Asks again and again, and keeps some permits.
struct Caller {
    ending: Arc<AtomicBool>,
    task: JoinHandle<(i64, Vec<ReservationId>)>,
}

// === impl Caller ===

impl Caller {
    fn start(client: Client) -> Self {
        let ending = Arc::<AtomicBool>::default();
        let until = Arc::clone(&ending);
        let task = tokio::spawn(async move {
            let (kept, mut admitted, mut permits) = (kept(), 0, Vec::new());
            while !until.load(Relaxed) {
                let ask = Reserve::new(reservation_id().unwrap(), Attempt::ORIGINAL);
                let answer = client.reserve(&kept, &ask, CALL).await.unwrap_or_else(|error| panic!("{error}"));
                assert!(matches!(answer.decision, Decision::Admitted(_)), "{answer:?}");
                admitted += 1;
                if permits.len() < KEPT {
                    permits.push(ask.id);
                } else {
                    assert_eq!(released(&client, ask.id).await, ReleaseResult::Applied);
                }
            }
            (admitted, permits)
        });
        Self { ending, task }
    }

    async fn end(self) -> (i64, Vec<ReservationId>) {
        self.ending.store(true, Relaxed);
        self.task.await.unwrap()
    }
}

fn kept() -> Dependency {
    Dependency::new("kept").unwrap()
}

async fn released(client: &Client, id: ReservationId) -> ReleaseResult {
    client.release(&kept(), &Release::sent(id, Outcome::Success), CALL).await.unwrap().result
}

async fn put(client: &Client, name: &str, policy: &str, expected: PolicyVersion) -> PolicyVersion {
    let (name, source_toml, how) = (name.to_owned(), Some(policy.to_owned()), How::TakeOver);
    let edit = PolicyEdit { name, source_toml, expected, how, ..PolicyEdit::default() };
    client.edit_policy(edit, CALL).await.unwrap_or_else(|error| panic!("policy: {error}"))
}

async fn status(client: &Client) -> DependencyStatus {
    let page = client.get_status(&[kept().id().clone()], None, CALL).await.unwrap();
    page.dependencies.into_iter().next().unwrap()
}

/// Seen to fail with balances that are set to the burst of a new policy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a13_a_hundred_reloads_a_second_on_two_replicas_refill_and_lose_nothing() {
    let setting = Setting::with(On::Redis7, POLICY, REPLICAS, &[]);
    let start_ns = boot_time_ns();
    let operators: Vec<Client> = setting.endpoints().iter().map(|endpoint| security::client(endpoint)).collect();
    let mut version = operators[0].list_policies(None, CALL).await.unwrap().version;
    version = put(&operators[0], "kept", &kept_policy("1M/s", ""), version).await;
    let ask = Reserve { no_release: true, ..Reserve::new(reservation_id().unwrap(), Attempt::ORIGINAL) };
    operators[0].reserve(&kept(), &ask, CALL).await.unwrap();
    eventually(BOUND, "the bucket is full", async || {
        let bucket = status(&operators[0]).await.admission.unwrap();
        bucket.balance_micros == bucket.burst_micros
    })
    .await;
    version = put(&operators[0], "kept", &kept_policy("1/d", ""), version).await;
    let before = status(&operators[0]).await;

    // All that is admitted of the other dependency is decided by leases.
    let demand = Demand { local_only: true, ..Demand::plenty(100, MEMBERS) };
    let fleet = Fleet::start(&setting.endpoints(), MEMBERS, demand);
    fleet.all_leased(RETURN_MS, "first leases").await;
    let callers: Vec<Caller> = operators.iter().cloned().map(Caller::start).collect();
    let mut case = Case::new(&setting.policy, MEMBERS, REPLICAS, start_ns);
    let leased = [policy_of(80, 20, 10), POLICY.replace("ratio = 0.2", "ratio = 0.1"), POLICY.to_owned()];
    let direct = ["operation.max_attempts = 2", "retry_cost.hedge = 2.0", "priority.sheddable = 0.5"];
    let first = version;
    let mut turns = interval(EACH);
    for reload in 0..RELOADS {
        turns.tick().await;
        let variant = usize::try_from(reload).unwrap();
        let operator = &operators[variant % REPLICAS];
        version = if variant % 3 == 0 {
            put(operator, "kept", &kept_policy("1/d", direct[variant / 3 % 3]), version).await
        } else {
            let policy = &leased[variant % leased.len()];
            case.policy(boot_time_ns(), policy);
            put(operator, "pay", policy, version).await
        };
    }
    version = put(&operators[0], "pay", POLICY, version).await;
    case.policy(boot_time_ns(), POLICY);
    assert_eq!(version.number - first.number, RELOADS + 1, "each reload was one change");

    // Direct: every token, deposit and permit is where it was.
    let (mut admitted, mut permits) = (0, Vec::new());
    for caller in callers {
        let (more, kept) = caller.end().await;
        admitted += more;
        permits.extend(kept);
    }
    let after = status(&operators[1]).await;
    println!("{RELOADS} reloads under {admitted} direct calls");
    let spent = before.admission.unwrap().balance_micros - after.admission.unwrap().balance_micros;
    assert!((0..DRIFT_MICROS).contains(&(admitted * TOKEN - spent)), "{spent} of {admitted}");
    assert_eq!(after.retry.balance_micros - before.retry.balance_micros, admitted * TOKEN / 1_000);
    assert_eq!(after.counters.originals_admitted - before.counters.originals_admitted, admitted);
    assert_eq!(after.in_flight, i64::try_from(permits.len()).unwrap());
    for (at, id) in permits.iter().enumerate() {
        assert_eq!(released(&operators[at % REPLICAS], *id).await, ReleaseResult::Applied);
    }
    assert_eq!(status(&operators[0]).await.in_flight, 0);

    // Leased: all holders run the last version, and what they admitted is what the ledger counts.
    eventually(BOUND, "all run the last version", async || {
        let page = operators[1].list_holders(&pay_id(), None, CALL).await.unwrap();
        page.versions.len() == MEMBERS && page.versions.iter().all(|told| *told == Some(version))
    })
    .await;
    fleet.stop_asking();
    let counted = async || {
        let page = operators[0].get_status(&[pay_id()], None, CALL).await.unwrap();
        let counters = page.dependencies[0].counters;
        counters.originals_admitted + counters.retries_admitted
    };
    eventually(BOUND, "all is reported", async || {
        let seen = i64::try_from(fleet.seen.admissions.lock().unwrap().len()).unwrap();
        counted().await == seen
    })
    .await;
    fleet.assert_none_failed();
    case.assert(&*fleet.end().await);
}
