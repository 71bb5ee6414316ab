//! Calls that are given up at any moment.

use budget::ids::DependencyId;

use super::*;

const POLICIES: &str =
    "[dependency.\"pay\"]\nadmission = { rate = \"1G/s\", burst = 1_000_000, permit_ttl = \"10s\" }\n";

async fn view(daemon: &Daemon) -> Option<View> {
    daemon.store.inner.view(&DependencyId::new("pay").unwrap(), Clock::instant()).await.unwrap()
}

/// Seen to fail when the step went on without its caller.
#[tokio::test]
async fn a_call_given_up_while_it_waits_is_no_step() {
    let daemon = Daemon::start(POLICIES).await;
    daemon.gate.send_replace(false);
    let budgets = daemon.budgets().await;
    let waiting = || daemon.store.waiting.load(Ordering::SeqCst);
    for number in 0..50 {
        let mut budgets = budgets.clone();
        let call = tokio::spawn(async move { budgets.reserve(original("pay", number)).await });
        eventually("it waits", || waiting() == 1).await;
        call.abort();
        eventually("it no longer waits", || waiting() == 0).await;
    }
    daemon.gate.send_replace(true);
    assert_eq!(view(&daemon).await, None);
    assert_eq!(daemon.metric("budgetd_calls_in_progress"), Some(0.0));
    daemon.end().await;
}

/// Each call is aborted after some number of turns of the scheduler: some before it is sent, some while it is decided,
/// some after.
#[tokio::test]
async fn a09_aborted_calls_leave_whole_steps_and_permits_end() {
    let daemon = Daemon::start(POLICIES).await;
    let budgets = daemon.budgets().await;
    let (mut answered, mut aborted) = (0, 0);
    for number in 0..3000_u64 {
        let mut budgets = budgets.clone();
        let call = tokio::spawn(async move { budgets.reserve(original("pay", number)).await });
        for _ in 0..number % 23 {
            tokio::task::yield_now().await;
        }
        call.abort();
        match bounded(call).await {
            Ok(response) => {
                admitted(response.unwrap().into_inner());
                answered += 1;
            }
            Err(_) => aborted += 1,
        }
    }
    assert!(answered > 0 && aborted > 0, "{answered} answered, {aborted} aborted");
    eventually("no call is in progress", || daemon.metric("budgetd_calls_in_progress") == Some(0.0)).await;
    // A call after all others on the same connection: they have been dealt with.
    admitted(budgets.clone().reserve(original("pay", 1 << 40)).await.unwrap().into_inner());
    let view_now = view(&daemon).await.unwrap();
    let taken = view_now.counters.originals_admitted;
    assert_eq!(view_now.in_flight, taken);
    assert_eq!(view_now.admission_balance_micros, Some((1_000_000 - taken) * 1_000_000));
    assert!((answered + 1..=answered + aborted + 1).contains(&taken), "{taken}");

    daemon.hands.advance(20_000);
    admitted(budgets.clone().reserve(original("pay", 1 << 41)).await.unwrap().into_inner());
    let later = view(&daemon).await.unwrap();
    assert_eq!((later.in_flight, later.counters.permits_expired), (1, taken));
    daemon.end().await;
}
