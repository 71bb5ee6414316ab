//! Policies and the kill switch change while their leases are out.

use std::sync::atomic::Ordering::Relaxed;

use budget_client::boot_time_ns;
use budget_tests::eventually::eventually;

use super::{
    fleet::Fleet,
    judge::Case,
    outages::{nothing_blocks, settled},
    setting::{BOUND, CALL, On, POLICY, Setting, pass_ms, pay_id, policy_of},
};

const MS: i64 = 1_000_000;
const MEMBERS: usize = 5;

/// In two seconds, or as long as they take.
const CHANGES_MIN: usize = 20;

/// On Redis two, of which the operator speaks to one and holders to both.
fn replicas(on: On) -> usize {
    if on == On::Memory { 1 } else { 2 }
}

/// Asked for since then, and admitted.
fn asked_since(fleet: &Fleet, from_ns: i64) -> usize {
    fleet.seen.admissions.lock().unwrap().iter().filter(|seen| seen.from_ns >= from_ns).count()
}

/// Seen to fail with renewals whose buckets start full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a12_a_policy_lowered_under_its_leases_is_obeyed_and_raised_again_at_once() {
    lowered_and_raised(On::Memory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a12_a_policy_lowered_under_its_leases_is_obeyed_and_raised_again_at_once_on_redis() {
    lowered_and_raised(On::Redis7).await;
}

async fn lowered_and_raised(on: On) {
    let setting = Setting::with(on, POLICY, replicas(on), &[]);
    let start_ns = boot_time_ns();
    let (fleet, _) = settled(&setting, &setting.endpoints()).await;
    let operator = setting.operator();
    let mut case = Case::new(&setting.policy, MEMBERS, replicas(on), start_ns);
    let lowered = policy_of(40, 20, 8);
    operator.put(&lowered).await;
    case.policy(boot_time_ns(), &lowered);
    // Each holder renews, and acknowledges what it gave up.
    operator.charges_at_most(32).await;
    let from_ns = boot_time_ns();
    pass_ms(1_000).await;
    let seen = asked_since(&fleet, from_ns) as f64;
    let most = 40.0 * 1.001 * (boot_time_ns() - from_ns) as f64 / 1e9 + 20.0 + 1.0;
    println!("under 40/s: {seen}, at most {most:.1}");
    assert!(seen <= most, "{seen} of {most} under 40/s");
    fleet.works(0.8 * 40.0, "under 40/s").await;
    let page = operator.client().get_status(&[pay_id()], None, CALL).await.unwrap();
    let bucket = page.dependencies[0].admission.unwrap();
    assert!((0..=bucket.burst_micros).contains(&bucket.balance_micros), "{bucket:?}");
    let raised = policy_of(150, 60, 20);
    operator.put(&raised).await;
    case.policy(boot_time_ns(), &raised);
    fleet.works(0.8 * 150.0, "under 150/s").await;
    nothing_blocks(&fleet);
    case.assert(&*fleet.end().await);
}

/// Ratio, bursts and rate change as fast as they can: nothing is refilled for free, and nothing breaks.
///
/// Seen to fail with renewals whose buckets start full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a13_policies_changed_all_the_time_mint_nothing_under_leases() {
    changed_all_the_time(On::Memory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a13_policies_changed_all_the_time_mint_nothing_under_leases_on_redis() {
    changed_all_the_time(On::Redis7).await;
}

async fn changed_all_the_time(on: On) {
    let setting = Setting::with(on, POLICY, replicas(on), &[]);
    let start_ns = boot_time_ns();
    let (fleet, _) = settled(&setting, &setting.endpoints()).await;
    let operator = setting.operator();
    let mut case = Case::new(&setting.policy, MEMBERS, replicas(on), start_ns);
    let variants = [policy_of(80, 20, 10), POLICY.replace("ratio = 0.2", "ratio = 0.1"), POLICY.to_owned()];
    let until_ns = boot_time_ns() + 2_000 * MS;
    let mut changes = 0;
    while boot_time_ns() < until_ns || changes <= CHANGES_MIN {
        let policy = &variants[changes % variants.len()];
        // Whichever of both is in force while the call is on its way.
        case.policy(boot_time_ns(), policy);
        operator.put(policy).await;
        changes += 1;
        pass_ms(10).await;
    }
    operator.put(POLICY).await;
    case.policy(boot_time_ns(), POLICY);
    println!("{changes} changes");
    fleet.works(80.0, "under the last policy").await;
    nothing_blocks(&fleet);
    case.assert(&*fleet.end().await);
}

/// Retries switched off stop at each holder once it is told, and come back with what the bucket has. That it is told with its
/// next renewal shows in `reach`.
///
/// Seen to fail with rules that do not tell of the switch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a15_the_kill_switch_reaches_holders_within_a_renewal() {
    switched_off_and_on(On::Memory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a15_the_kill_switch_reaches_holders_within_a_renewal_on_redis() {
    switched_off_and_on(On::Redis7).await;
}

async fn switched_off_and_on(on: On) {
    let setting = Setting::with(on, POLICY, replicas(on), &[]);
    let start_ns = boot_time_ns();
    let (fleet, _) = settled(&setting, &setting.endpoints()).await;
    let operator = setting.operator();
    let retries_since = |from_ns: i64| {
        let admissions = fleet.seen.admissions.lock().unwrap();
        admissions.iter().filter(|seen| seen.is_retry && seen.from_ns >= from_ns).count()
    };
    let off = operator.client().set_retries("pay", false, "a test", CALL).await.unwrap();
    let off_ns = boot_time_ns();
    operator.all_told(MEMBERS, off).await;
    let told_ns = boot_time_ns();
    println!("{} retries in {} ms until all were told", retries_since(off_ns), (told_ns - off_ns) / MS);
    fleet.works(80.0, "originals with retries off").await;
    assert_eq!(retries_since(told_ns), 0, "retries are off: {}", fleet.summary());
    // On and off and on again, faster than anybody renews.
    for enabled in [true, false, true, false, true] {
        operator.client().set_retries("pay", enabled, "a test", CALL).await.unwrap();
    }
    let on_ns = boot_time_ns();
    eventually(BOUND, "retries come back", async || retries_since(on_ns) > 0).await;
    assert!(fleet.seen.retries_asked.load(Relaxed) > 0);
    nothing_blocks(&fleet);
    Case::new(&setting.policy, MEMBERS, replicas(on), start_ns).assert(&*fleet.end().await);
}
