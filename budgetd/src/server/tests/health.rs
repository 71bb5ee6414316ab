//! Readiness, health and reflection.

use tokio_stream::StreamExt;
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use super::*;

async fn check(client: &mut HealthClient<Channel>, service: &str) -> ServingStatus {
    let request = HealthCheckRequest { service: service.into() };
    client.check(request).await.unwrap().into_inner().status()
}

async fn watch(
    client: &mut HealthClient<Channel>,
    service: &str,
) -> tonic::Streaming<tonic_health::pb::HealthCheckResponse> {
    client.watch(HealthCheckRequest { service: service.into() }).await.unwrap().into_inner()
}

/// Seen to fail when readiness followed the store.
#[tokio::test]
async fn a27_readiness_begins_with_the_first_contact_and_outlives_the_store() {
    let daemon = Daemon::start_uncontacted("[defaults]", |_| {}).await;
    let mut client = HealthClient::new(daemon.channel().await);
    let readyz = |ready, up, degraded| {
        format!(r#"{{"ready":{ready},"store":{{"kind":"memory","up":{up},"degraded":{degraded}}}}}"#)
    };
    assert_eq!(daemon.get("/readyz").await, (503, readyz(false, false, false)));
    assert_eq!(daemon.get("/livez").await, (200, "ok\n".into()));
    for name in ["", "retrybudget.v1.RetryBudget", "retrybudget.v1.BudgetAdmin", "store"] {
        assert_eq!(check(&mut client, name).await, ServingStatus::NotServing, "{name}");
    }
    let mut store = watch(&mut client, "store").await;
    assert_eq!(store.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    let mut whole = watch(&mut client, "").await;
    assert_eq!(whole.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);

    daemon.telemetry.store.set_up(true);
    assert_eq!(bounded(store.next()).await.unwrap().unwrap().status(), ServingStatus::Serving);
    assert_eq!(bounded(whole.next()).await.unwrap().unwrap().status(), ServingStatus::Serving);
    assert_eq!(daemon.get("/readyz").await, (200, readyz(true, true, false)));

    daemon.telemetry.store.set_up(false);
    assert_eq!(bounded(store.next()).await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert_eq!(check(&mut client, "").await, ServingStatus::Serving);
    assert_eq!(daemon.get("/readyz").await, (200, readyz(true, false, true)));
    assert_eq!(daemon.get("/livez").await, (200, "ok\n".into()));
    assert_eq!(daemon.metric("budgetd_store_up"), Some(0.0));
    assert_eq!(daemon.metric("budgetd_store_outages_total"), Some(1.0));

    daemon.telemetry.store.set_up(true);
    assert_eq!(bounded(store.next()).await.unwrap().unwrap().status(), ServingStatus::Serving);
    assert_eq!(client.check(HealthCheckRequest { service: "x".into() }).await.unwrap_err().code(), Code::NotFound);
    daemon.end().await;
}

#[tokio::test]
async fn metrics_are_served() {
    let daemon = Daemon::start("[dependency.\"pay\"]\n").await;
    let (status, text) = daemon.get("/metrics").await;
    assert_eq!(status, 200);
    for name in
        ["budgetd_policy_version 1", "budgetd_store_up 1", "budgetd_build_info{version=", "budgetd_connections 0"]
    {
        assert!(text.contains(name), "{name}");
    }
    assert_eq!(daemon.get("/nothing").await.0, 404);
    daemon.end().await;
}

#[tokio::test]
async fn reflection_lists_all_services() {
    use tonic_reflection::pb::{v1, v1alpha};

    let daemon = Daemon::start("").await;
    let expected = ["grpc.health.v1.Health", "retrybudget.v1.BudgetAdmin", "retrybudget.v1.RetryBudget"];
    let mut new = v1::server_reflection_client::ServerReflectionClient::new(daemon.channel().await);
    let list = v1::server_reflection_request::MessageRequest::ListServices(String::new());
    let request = v1::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let mut answers = new.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
    let answer = answers.next().await.unwrap().unwrap().message_response.unwrap();
    let v1::server_reflection_response::MessageResponse::ListServicesResponse(services) = answer else { panic!() };
    let names: Vec<_> = services.service.into_iter().map(|service| service.name).collect();
    for name in expected {
        assert!(names.iter().any(|found| found == name), "{name} in {names:?}");
    }

    let mut old = v1alpha::server_reflection_client::ServerReflectionClient::new(daemon.channel().await);
    let symbol = "retrybudget.v1.RetryBudget".to_owned();
    let find = v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(symbol);
    let request = v1alpha::ServerReflectionRequest { host: String::new(), message_request: Some(find) };
    let mut answers = old.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
    let answer = answers.next().await.unwrap().unwrap().message_response.unwrap();
    assert!(matches!(answer, v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(_)));
    drop((new, old, answers));
    daemon.end().await;
}
