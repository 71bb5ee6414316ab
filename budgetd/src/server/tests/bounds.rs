//! Nothing that callers send makes the daemon grow without bound.

use tokio_stream::StreamExt;
use tonic::Code;

use super::*;
use crate::store::memory::UNNAMED_MAX;

/// Seen to fail, with one series for each name, when the name itself was the label.
#[tokio::test]
async fn a29_hostile_names_make_no_series() {
    let mut policies: String = (0..200).map(|number| format!("[dependency.\"known-{number}\"]\n")).collect();
    policies.push_str("[dependency.\"family/*\"]\n");
    let daemon = Daemon::start(&policies).await;
    let mut budgets = daemon.budgets().await;
    let names = |number: u64| match number % 4 {
        0 => format!("known-{}", number / 4 % 200),
        1 => format!("family/{number}"),
        _ => format!("hostile-{number}"),
    };
    let mut sizes = Vec::new();
    for round in 0..2_u64 {
        let range = round * 100_000..(round + 1) * 100_000;
        let calls = tokio_stream::iter(range.map(move |number| {
            let call = match number % 3 {
                0 => pb::session_request::Call::Release(success(&names(number), number)),
                1 | 2 => pb::session_request::Call::Reserve(pb::ReserveRequest {
                    no_release: true,
                    ..original(&names(number), number)
                }),
                _ => unreachable!(),
            };
            pb::SessionRequest { correlation_id: number, call: Some(call) }
        }));
        let mut answers = budgets.session(calls).await.unwrap().into_inner();
        let mut count = 0;
        while let Some(answer) = bounded(answers.next()).await {
            answer.unwrap();
            count += 1;
        }
        assert_eq!(count, 100_000);
        let (_, metrics) = daemon.get("/metrics").await;
        assert!(!metrics.contains("hostile") && !metrics.contains("family/1"));
        // What is shown of ledgers comes of itself, and later.
        let of_calls = |line: &&str| line.starts_with("budgetd_decisions") || line.starts_with("budgetd_releases");
        sizes.push(metrics.lines().filter(of_calls).count());
    }
    let [first, second] = sizes[..] else { panic!() };
    assert!(first >= 400 && second == first, "{first} series, then {second}");
    let other = r#"budgetd_decisions_total{decision="admitted",dependency="other",kind="original",priority="default""#;
    assert!(daemon.metric(&format!("{other},reason=\"none\"}}")).is_some_and(|count| count > 1000.0));
    let (all, unnamed) = daemon.store.inner.len();
    assert!(unnamed <= UNNAMED_MAX && all <= UNNAMED_MAX + 200, "{all} ledgers, {unnamed} unnamed");
    daemon.end().await;
}

/// Seen to fail without the bound.
#[tokio::test]
async fn a30_unknown_names_beyond_the_bound_are_refused_by_rule() {
    let daemon = Daemon::start("[dependency.\"known\"]\n").await;
    let mut budgets = daemon.budgets().await;
    let calls = tokio_stream::iter((0..20_000_u64).map(|number| {
        let call = pb::session_request::Call::Reserve(original(&format!("name-{number}"), number));
        pb::SessionRequest { correlation_id: number, call: Some(call) }
    }));
    let mut answers = budgets.session(calls).await.unwrap().into_inner();
    let (mut taken, mut refused) = (0, 0);
    while let Some(answer) = bounded(answers.next()).await {
        match answer.unwrap().answer.unwrap() {
            pb::session_response::Answer::Reserve(_) => taken += 1,
            pb::session_response::Answer::Failure(failure) => {
                assert_eq!(Code::from_i32(failure.code), Code::NotFound);
                assert!(failure.message.contains("no policy names it"), "{}", failure.message);
                refused += 1;
            }
            pb::session_response::Answer::Release(_) | pb::session_response::Answer::Extend(_) => panic!(),
        }
    }
    assert_eq!((taken, refused), (UNNAMED_MAX, 10_000));
    // Those that a policy names are not affected.
    admitted(budgets.reserve(original("known", 1)).await.unwrap().into_inner());
    assert_eq!(daemon.store.inner.len(), (UNNAMED_MAX + 1, UNNAMED_MAX));
    daemon.end().await;
}

#[tokio::test]
async fn connections_beyond_the_bound_are_closed() {
    let daemon = Daemon::start_with("", |config| config.limits.connections = 3).await;
    let kept = [daemon.raw().await, daemon.raw().await, daemon.raw().await];
    eventually("three are open", || daemon.metric("budgetd_connections") == Some(3.0)).await;
    let mut fourth = daemon.raw().await;
    assert_eq!(bounded(fourth.read(&mut [0; 8])).await.unwrap_or(0), 0);
    assert_eq!(daemon.metric("budgetd_connections_refused_total"), Some(1.0));
    drop(kept);
    eventually("there is room again", || daemon.metric("budgetd_connections") == Some(0.0)).await;
    admitted(daemon.budgets().await.reserve(original("pay", 1)).await.unwrap().into_inner());
    daemon.end().await;
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed() {
    let daemon = Daemon::start_with("", |config| config.limits.handshake_timeout = Duration::from_millis(20)).await;
    for hello in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
        let mut stream = daemon.raw().await;
        stream.write_all(hello).await.unwrap();
        let mut rest = Vec::new();
        // The server's own settings may come before the end.
        let _reset = bounded(stream.read_to_end(&mut rest)).await;
    }
    eventually("none is open", || daemon.metric("budgetd_connections") == Some(0.0)).await;
    let mut http = TcpStream::connect(daemon.addresses.http).await.unwrap();
    assert_eq!(bounded(http.read(&mut [0; 8])).await.unwrap_or(0), 0);
    // One that has spoken stays.
    let mut budgets = daemon.budgets().await;
    admitted(budgets.reserve(original("pay", 1)).await.unwrap().into_inner());
    sleep(Duration::from_millis(60)).await;
    admitted(budgets.reserve(original("pay", 2)).await.unwrap().into_inner());
    assert_eq!(daemon.metric("budgetd_connections"), Some(1.0));
    daemon.end().await;
}
