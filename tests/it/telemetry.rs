//! What leaves a daemon for those who watch it: to a collector, to Prometheus, to a person.

mod away;
mod labels;
mod names;
mod otlp;

use std::time::Duration;

use budget_proto::pb::{self, retry_budget_client::RetryBudgetClient, session_request::Call};
use budget_tests::daemon::Daemon;
use tonic::transport::{Channel, Endpoint};

use crate::faults::ground::{Ground, On, fresh_id};

/// More than anything takes.
const BOUND: Duration = Duration::from_secs(30);

/// A daemon on memory that sends to this collector, a trace for this share of the calls.
fn sending(policy: &str, endpoint: &str, sample: &str) -> Ground {
    let arguments = ["--otlp-endpoint", endpoint, "--otlp-interval", "100ms", "--trace-sample", sample];
    Ground::with(On::Memory, policy, 1, &arguments)
}

async fn channel(daemon: &Daemon) -> Channel {
    Endpoint::from_shared(daemon.endpoint()).unwrap().connect().await.unwrap()
}

fn reserve(dependency: &str) -> pb::ReserveRequest {
    pb::ReserveRequest {
        dependency: dependency.to_owned(),
        reservation_id: fresh_id().0.to_vec(),
        attempt: Some(pb::Attempt { number: 1, cause: None }),
        no_release: true,
        ..Default::default()
    }
}

/// Asks for each of these names once, on one stream; returns how many were answered with a decision.
async fn ask_all(channel: Channel, names: impl Iterator<Item = String> + Send + 'static) -> usize {
    let calls = names
        .zip(1..)
        .map(|(name, id)| pb::SessionRequest { correlation_id: id, call: Some(Call::Reserve(reserve(&name))) });
    let session = RetryBudgetClient::new(channel).session(tokio_stream::iter(calls)).await;
    let (mut answers, mut decided) = (session.unwrap().into_inner(), 0);
    while let Some(answer) = answers.message().await.unwrap() {
        decided += usize::from(matches!(answer.answer, Some(pb::session_response::Answer::Reserve(_))));
    }
    decided
}
