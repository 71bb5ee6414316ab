//! A collector that is away, or accepts and never answers: calls, memory and the end of the daemon do not care.

use std::time::Duration;

use budget_tests::{
    collector::{Collector, Silent},
    eventually::eventually,
    ports,
};

use super::{BOUND, ask_all, channel, sending};
use crate::faults::ground::{Footprint, Ground, Metrics, get, timed};

/// Calls that are all traced: many times what the queue to the collector holds.
const MANY: usize = 30_000;
/// What memory may grow by meanwhile: a queue and a request of spans, buffers, and what the allocator keeps.
const GROWTH_KIB: u64 = 24 * 1024;
/// The last flush takes 2 s at most; the rest is for a busy machine, and less than a flush that waits for its request.
const END: Duration = Duration::from_secs(20);

fn names() -> impl Iterator<Item = String> + Send + 'static {
    (0..MANY).map(|_| "payments".to_owned())
}

/// All calls are answered, memory is bounded, whatever is lost is counted, and who looks by hand sees everything.
async fn works(ground: &Ground) {
    let warm = channel(ground.daemon()).await;
    ask_all(warm, names()).await;
    let before = Footprint::of(ground.daemon());
    for _ in 0..3 {
        assert_eq!(ask_all(channel(ground.daemon()).await, names()).await, MANY);
    }
    let grown = Footprint::of(ground.daemon()).resident_kib.saturating_sub(before.resident_kib);
    assert!(grown < GROWTH_KIB, "{grown} KiB more");
    let metrics = Metrics::of(ground.daemon()).await;
    assert_eq!(metrics.sum("budgetd_decisions_total", &["decision=\"admitted\""]), 4.0 * MANY as f64);
    assert_eq!(get(ground.daemon().http(), "/readyz").await.0, 200);
    for command in [&["status", "payments"][..], &["explain", "payments"]] {
        let shown = ground.daemon().run(command);
        assert!(shown.status.success() && shown.stdout.contains("payments"), "{command:?}: {}", shown.stderr);
    }
}

async fn ends(mut ground: Ground) {
    let daemon = ground.daemon_mut();
    daemon.terminate();
    let (status, took) = timed(async { daemon.wait(BOUND) }).await;
    assert!(status.success(), "{status}");
    assert!(took < END, "{took:?}");
}

/// It accepts, so each request takes its whole time, and the queue is full meanwhile. Seen to fail with a queue without bound
/// (138 MiB more), and with a last flush that waits for its request (24 s).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e6_a_collector_that_never_answers_costs_nothing_but_telemetry() {
    let silent = Silent::start().await;
    let ground = sending("[dependency.payments]\n", &silent.endpoint(), "1");
    works(&ground).await;
    let metrics = Metrics::of(ground.daemon()).await;
    assert!(metrics.sum("budgetd_otlp_spans_dropped_total", &[]) > MANY as f64);
    assert!((1..10).contains(&silent.accepted()), "{} connections", silent.accepted());
    ends(ground).await;
}

/// Nobody listens: requests fail at once. The log tells it once, and that it is over. Seen to fail with a line for each request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e6_a_collector_that_is_away_is_found_when_it_comes() {
    let port = ports::pick();
    let ground = sending("[dependency.payments]\n", &format!("http://127.0.0.1:{port}"), "1");
    works(&ground).await;
    let failed = ["result=\"failed\"", "signal=\"metrics\""];
    eventually(BOUND, "ten requests that failed", async || {
        Metrics::of(ground.daemon()).await.sum("budgetd_otlp_exports_total", &failed) >= 10.0
    })
    .await;
    let complaints = ground.daemon().process().log();
    let complaints = complaints.iter().filter(|line| line.contains("the collector does not take telemetry"));
    assert_eq!(complaints.count(), 2, "one for each signal");
    let collector = Collector::start_on(port).await;
    eventually(BOUND, "metrics", async || collector.metrics().series() > 0).await;
    ask_all(channel(ground.daemon()).await, names().take(10)).await;
    eventually(BOUND, "spans", async || collector.spans().len() >= 10).await;
    assert!(ground.daemon().process().logged("the collector takes telemetry again"));
    ends(ground).await;
}

/// More spans than a request holds, and metrics that would be due in an hour. Seen to fail with the rest thrown away at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e6_the_last_calls_are_told_before_the_end() {
    let collector = Collector::start().await;
    let endpoint = collector.endpoint();
    let arguments = ["--otlp-endpoint", &endpoint, "--otlp-interval", "1h", "--trace-sample", "1"];
    let ground = Ground::with(crate::faults::ground::On::Memory, "[dependency.payments]\n", 1, &arguments);
    ask_all(channel(ground.daemon()).await, names().take(700)).await;
    ends(ground).await;
    assert_eq!(collector.spans().len(), 700);
    assert_eq!(collector.metrics().sum("budgetd_decisions", &[("dependency", "payments")]), 700.0);
}
