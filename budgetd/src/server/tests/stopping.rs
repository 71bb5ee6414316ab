//! The end: readiness drops, calls in flight finish, and nobody keeps the daemon from ending.

use tokio_stream::StreamExt;
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use super::*;

/// The preface and empty settings: all a client must say.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Seen to fail when silent connections were not cut (the end took the whole limit), and when sessions were not told.
#[tokio::test]
async fn a26_calls_in_flight_finish_and_silent_connections_are_not_waited_for() {
    let daemon = Daemon::start_with("", |config| {
        config.shutdown_timeout = BOUND;
        config.limits.handshake_timeout = BOUND;
    })
    .await;
    let silent = daemon.raw().await;
    let mut halting = daemon.raw().await;
    halting.write_all(&HELLO[..10]).await.unwrap();
    let mut health = HealthClient::new(daemon.channel().await);
    let watching = health.watch(HealthCheckRequest { service: String::new() }).await;
    let mut watched = watching.unwrap().into_inner();
    assert_eq!(watched.next().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let mut budgets = daemon.budgets().await;
    let idle = budgets.session(tokio_stream::pending()).await.unwrap();
    daemon.gate.send_replace(false);
    let mut on_session = daemon.budgets().await;
    let request = pb::session_request::Call::Reserve(original("pay", 2));
    let request = pb::SessionRequest { correlation_id: 7, call: Some(request) };
    let calls = tokio_stream::iter([request]).chain(tokio_stream::pending());
    let mut answers = on_session.session(calls).await.unwrap().into_inner();
    let call = tokio::spawn(async move { budgets.reserve(original("pay", 1)).await });
    eventually("two calls wait", || daemon.store.waiting.load(Ordering::SeqCst) == 2).await;
    eventually("all have connected", || daemon.metric("budgetd_connections") == Some(5.0)).await;

    daemon.stop.send(()).unwrap();
    assert_eq!(bounded(watched.next()).await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(bounded(watched.next()).await.is_none());
    let Daemon { addresses, gate, serving, .. } = daemon;
    let mut probe = TcpStream::connect(addresses.http).await.unwrap();
    probe.write_all(b"GET /readyz HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    bounded(probe.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"ready\":false"), "{answer}");
    assert!(!call.is_finished());
    assert_eq!(bounded(idle.into_inner().next()).await.unwrap().unwrap_err().code(), Code::Unavailable);

    gate.send_replace(true);
    admitted(bounded(call).await.unwrap().unwrap().into_inner());
    assert_eq!(bounded(answers.next()).await.unwrap().unwrap().correlation_id, 7);
    assert_eq!(bounded(answers.next()).await.unwrap().unwrap_err().code(), Code::Unavailable);
    let begun = Clock::instant();
    bounded(serving).await.unwrap().unwrap();
    assert!(Clock::instant() - begun < BOUND / 2, "only the limit ended it");
    drop((silent, halting));
}

/// Seen to fail, hanging, without a limit.
#[tokio::test]
async fn a26_the_limit_ends_what_does_not_finish() {
    let daemon = Daemon::start_with("", |config| config.shutdown_timeout = Duration::from_millis(50)).await;
    // It has said hello and takes no notice of anything any more, like a stopped process.
    let mut frozen = daemon.raw().await;
    frozen.write_all(HELLO).await.unwrap();
    daemon.gate.send_replace(false);
    let mut budgets = daemon.budgets().await;
    let call = tokio::spawn(async move { budgets.reserve(original("pay", 1)).await });
    eventually("the call waits", || daemon.store.waiting.load(Ordering::SeqCst) == 1).await;
    eventually("both have connected", || daemon.metric("budgetd_connections") == Some(2.0)).await;
    let store = Arc::clone(&daemon.store);
    let gate = daemon.gate.clone();
    assert!(daemon.end().await < BOUND / 2);
    assert!(bounded(call).await.unwrap().is_err());
    eventually("the call is dropped", || store.waiting.load(Ordering::SeqCst) == 0).await;
    drop(gate);
}

#[tokio::test]
async fn idle_clients_do_not_hold_the_end_up() {
    let daemon = Daemon::start_with("", |config| config.shutdown_timeout = BOUND).await;
    let mut budgets = daemon.budgets().await;
    admitted(budgets.reserve(original("pay", 1)).await.unwrap().into_inner());
    let keeping = TcpStream::connect(daemon.addresses.http).await.unwrap();
    assert!(daemon.end().await < BOUND / 2);
    drop((budgets, keeping));
}

#[tokio::test]
async fn the_ready_file_tells_where_it_serves() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ready.json");
    let daemon = Daemon::start_with("", |config| config.ready_file = Some(path.clone())).await;
    eventually("the file is there", || path.exists()).await;
    let ready: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(ready["grpc"], daemon.addresses.grpc.to_string());
    assert_eq!(ready["http"], daemon.addresses.http.to_string());
    daemon.end().await;
}
