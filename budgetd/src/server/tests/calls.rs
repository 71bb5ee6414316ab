//! Reserve, Release and Extend over the wire.

use tonic::{Code, Request};

use super::*;

const POLICIES: &str = r#"
[defaults]
unknown_dependencies = "refuse"
[dependency."pay"]
admission = { rate = "1/s", burst = 2, max_in_flight = 100 }
[dependency."pay".cost.tokens]
rate = "1/s"
burst = 5
[dependency."free/*"]
"#;

#[tokio::test]
async fn a_denial_is_ok() {
    let daemon = Daemon::start(POLICIES).await;
    let mut budgets = daemon.budgets().await;
    for number in [1, 2] {
        let response = budgets.reserve(original("pay", number)).await.unwrap().into_inner();
        assert_eq!(response.mode, i32::from(pb::Mode::Exact));
        assert!(response.policy_version.is_some());
        assert_eq!(admitted(response).permit_ttl_ms, 60_000);
    }
    let refused = denied(budgets.reserve(original("pay", 3)).await.unwrap().into_inner());
    assert_eq!(refused.reason, i32::from(pb::DenyReason::Admission));
    assert_eq!(refused.retry_after_ms, Some(1000));
    let extended = budgets
        .extend(pb::ExtendRequest { dependency: "pay".into(), reservation_id: id(2), permit_ttl_ms: 90_000 })
        .await;
    assert_eq!(extended.unwrap().into_inner().permit_ttl_ms, Some(90_000));
    for result in [pb::ReleaseResult::Applied, pb::ReleaseResult::AlreadyReleased] {
        let released = budgets.release(success("pay", 1)).await.unwrap().into_inner();
        assert_eq!(released.result, i32::from(result));
    }
    assert!(admitted(budgets.reserve(original("pay", 2)).await.unwrap().into_inner()).replayed);

    let labels = r#"dependency="pay",kind="original",priority="default""#;
    let count = |decision: &str, reason: &str| {
        daemon.metric(&format!(r#"budgetd_decisions_total{{decision="{decision}",{labels},reason="{reason}"}}"#))
    };
    assert_eq!(count("admitted", "none"), Some(2.0));
    assert_eq!(count("denied", "admission"), Some(1.0));
    assert_eq!(count("replayed", "none"), Some(1.0));
    let releases = r#"budgetd_releases_total{dependency="pay",outcome="success",result="applied"}"#;
    assert_eq!(daemon.metric(releases), Some(1.0));
    assert_eq!(daemon.metric(r#"budgetd_answers_total{dependency="pay",mode="exact"}"#), Some(4.0));
    daemon.end().await;
}

#[tokio::test]
async fn bad_input_names_its_field_and_changes_nothing() {
    let daemon = Daemon::start(POLICIES).await;
    let mut budgets = daemon.budgets().await;
    let good = || original("pay", 1);
    let cost = |unit: &str, amount_micros| pb::Cost { unit: unit.into(), amount_micros };
    let cases = [
        ("dependency", pb::ReserveRequest { dependency: String::new(), ..good() }),
        ("dependency", pb::ReserveRequest { dependency: "a\nb".into(), ..good() }),
        ("dependency", pb::ReserveRequest { dependency: "x".repeat(257), ..good() }),
        ("dependency", pb::ReserveRequest { dependency: "fam/*".into(), ..good() }),
        ("reservation_id", pb::ReserveRequest { reservation_id: vec![1; 15], ..good() }),
        ("reservation_id", pb::ReserveRequest { reservation_id: Vec::new(), ..good() }),
        ("attempt", pb::ReserveRequest { attempt: None, ..good() }),
        ("attempt.number", pb::ReserveRequest { attempt: Some(pb::Attempt { number: 0, cause: None }), ..good() }),
        ("attempt.cause", pb::ReserveRequest { attempt: Some(pb::Attempt { number: 2, cause: None }), ..good() }),
        ("attempt.cause", pb::ReserveRequest { attempt: Some(pb::Attempt { number: 2, cause: Some(0) }), ..good() }),
        ("time_left_ms", pb::ReserveRequest { time_left_ms: Some(u64::MAX), ..good() }),
        ("max_wait_ms", pb::ReserveRequest { max_wait_ms: Some(1 << 53), ..good() }),
        ("permit_ttl_ms", pb::ReserveRequest { permit_ttl_ms: Some(0), ..good() }),
        ("priority", pb::ReserveRequest { priority: Some(99), ..good() }),
        ("costs", pb::ReserveRequest { costs: vec![cost("tokens", 1), cost("tokens", 2)], ..good() }),
        ("costs.amount_micros", pb::ReserveRequest { costs: vec![cost("tokens", u64::MAX)], ..good() }),
        ("costs.unit", pb::ReserveRequest { costs: vec![cost("dollars", 1)], ..good() }),
        ("operation.id", pb::ReserveRequest { operation: Some(pb::Operation::default()), ..good() }),
    ];
    for (field, request) in cases {
        let status = budgets.reserve(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{request:?}");
        assert!(status.message().starts_with(field), "{field}: {}", status.message());
    }
    let mut request = Request::new(good());
    request.metadata_mut().insert("grpc-timeout", "soon".parse().unwrap());
    assert!(budgets.reserve(request).await.unwrap_err().message().starts_with("grpc-timeout"));
    let nothing = pb::ReleaseRequest { r#use: None, ..success("pay", 1) };
    assert!(budgets.release(nothing).await.unwrap_err().message().starts_with("use"));
    let extend = pb::ExtendRequest { dependency: "pay".into(), reservation_id: id(1), permit_ttl_ms: 1 << 40 };
    assert!(budgets.extend(extend).await.unwrap_err().message().starts_with("permit_ttl_ms"));
    // More than any message of ours can be.
    let huge = pb::ReserveRequest { reservation_id: vec![1; (1 << 20) + 1], ..good() };
    assert_eq!(budgets.reserve(huge).await.unwrap_err().code(), Code::OutOfRange);

    // The unknown unit is found by the ledger, which then exists; it has charged nothing.
    let view = daemon.store.inner.view(&DependencyId::new("pay").unwrap(), Clock::instant()).await.unwrap().unwrap();
    assert_eq!((view.in_flight, view.admission_balance_micros), (0, Some(2_000_000)));
    assert_eq!(view.counters, budget::ledger::Counters::default());
    assert_eq!(daemon.metric(r#"budgetd_failures_total{call="reserve",code="InvalidArgument"}"#), Some(19.0));
    daemon.end().await;
}

#[tokio::test]
async fn refused_names_are_not_found() {
    let daemon = Daemon::start(POLICIES).await;
    let mut budgets = daemon.budgets().await;
    for name in ["nobody", "free", "pay "] {
        let status = budgets.reserve(original(name, 1)).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
        assert!(status.message().contains("unknown_dependencies"), "{}", status.message());
        assert_eq!(budgets.release(success(name, 1)).await.unwrap_err().code(), Code::NotFound);
    }
    admitted(budgets.reserve(original("free/{x}:%y 😀", 1)).await.unwrap().into_inner());
    assert_eq!(daemon.store.inner.len(), (1, 1));
    daemon.end().await;
}

/// Seen to fail when `time_left_ms` did not end the wait for the store.
#[tokio::test]
async fn a24_an_expired_call_takes_nothing() {
    let daemon = Daemon::start_with(POLICIES, |config| config.limits.call_timeout = 2 * BOUND).await;
    let mut budgets = daemon.budgets().await;
    let spent = pb::ReserveRequest { time_left_ms: Some(0), ..original("pay", 1) };
    let refused = denied(budgets.reserve(spent).await.unwrap().into_inner());
    assert_eq!(refused.reason, i32::from(pb::DenyReason::NoTimeLeft));
    let mut request = Request::new(original("pay", 2));
    request.metadata_mut().insert("grpc-timeout", "0n".parse().unwrap());
    // Cancelled is what this client says if it looks at its clock before it reads the answer.
    let expired = |status: tonic::Status| matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled);
    assert!(expired(budgets.reserve(request).await.unwrap_err()));

    // Time passes while a call waits for the store: with a deadline in a header, and with one in the message.
    daemon.gate.send_replace(false);
    let mut request = Request::new(original("pay", 3));
    request.set_timeout(Duration::from_millis(5));
    assert!(expired(bounded(budgets.reserve(request)).await.unwrap_err()));
    let short = pb::ReserveRequest { time_left_ms: Some(5), ..original("pay", 4) };
    assert_eq!(bounded(budgets.reserve(short)).await.unwrap_err().code(), Code::DeadlineExceeded);
    daemon.gate.send_replace(true);

    let view = daemon.store.inner.view(&DependencyId::new("pay").unwrap(), Clock::instant()).await.unwrap().unwrap();
    assert_eq!((view.in_flight, view.admission_balance_micros), (0, Some(2_000_000)));
    eventually("no call is in progress", || daemon.metric("budgetd_calls_in_progress") == Some(0.0)).await;
    daemon.end().await;
}

#[tokio::test]
async fn a_call_without_deadline_gets_one() {
    let daemon = Daemon::start_with(POLICIES, |config| {
        config.limits.call_timeout = Duration::from_millis(5);
    })
    .await;
    daemon.gate.send_replace(false);
    let mut budgets = daemon.budgets().await;
    assert_eq!(bounded(budgets.reserve(original("pay", 1))).await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(bounded(budgets.release(success("pay", 1))).await.unwrap_err().code(), Code::DeadlineExceeded);
    daemon.end().await;
}

#[tokio::test]
async fn too_many_calls_are_refused_quickly() {
    let daemon = Daemon::start_with(POLICIES, |config| config.limits.calls = 2).await;
    daemon.gate.send_replace(false);
    let budgets = daemon.budgets().await;
    let waiting: Vec<_> = (0..2)
        .map(|number| {
            let mut budgets = budgets.clone();
            tokio::spawn(async move { budgets.reserve(original("pay", number)).await })
        })
        .collect();
    eventually("both wait", || daemon.store.waiting.load(Ordering::SeqCst) == 2).await;
    let status = budgets.clone().reserve(original("pay", 9)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    daemon.gate.send_replace(true);
    for call in waiting {
        admitted(bounded(call).await.unwrap().unwrap().into_inner());
    }
    assert!(budgets.clone().reserve(original("pay", 9)).await.is_ok());
    daemon.end().await;
}

#[tokio::test]
async fn a_unix_socket_serves_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("budgetd.sock");
    // Left behind by one that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listen = Listen::Unix(path.clone());
    let daemon = Daemon::start_with(POLICIES, |config| config.listen = listen.clone()).await;
    admitted(daemon.budgets().await.reserve(original("pay", 1)).await.unwrap().into_inner());
    // One that is in use is not taken.
    let second = Server::bind(Config { listen, ..Config::default() }).await.unwrap_err();
    assert!(second.to_string().contains("in use"), "{second}");
    daemon.end().await;
    assert!(!path.exists());
}
