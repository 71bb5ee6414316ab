//! What reaches a collector: spans that tell a call, metrics under the names of `/metrics`.

use std::collections::{BTreeMap, BTreeSet};

use budget::decision::{Attempt, Cause, DenyReason, Outcome, Release, Reserve, Sent, TerminalState, Use};
use budget_client::Decision;
use budget_proto::pb::{self, retry_budget_client::RetryBudgetClient};
use budget_tests::{
    certificates::{Authority, Valid},
    collector::{Collector, Span},
    daemon::{self, Daemon},
    eventually::{eventually, eventually_some},
};
use tonic::{Request, metadata::MetadataValue};

use super::{BOUND, channel, reserve, sending};
use crate::faults::ground::{Metrics, Verdict, fresh_id, operation, original};

const POLICY: &str = "
[dependency.payments]
admission = { rate = \"1/h\", burst = 3 }
retry = { ratio = 1.0, burst = 1 }
operation = { max_attempts = 3 }
";

/// All spans of this number of calls, once they are there.
async fn spans(collector: &Collector, count: usize) -> Vec<Span> {
    let what = format!("{count} spans");
    eventually_some(BOUND, &what, async || Some(collector.spans()).filter(|all| all.len() >= count)).await
}

/// Those attributes of a span that are budgetd's own, without the reservation, which differs each time.
fn own(span: &Span) -> BTreeMap<&str, &str> {
    let own = span.attributes.iter().filter_map(|(key, value)| Some((key.strip_prefix("budgetd.")?, value.as_str())));
    own.filter(|(key, _)| *key != "reservation_id" && *key != "time_left_ms").collect()
}

/// An operation of two attempts, and a call that is refused: each attribute of each span, and the counts of E1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_e3_a_collector_learns_what_was_asked_and_answered() {
    let collector = Collector::start().await;
    let ground = sending(POLICY, &collector.endpoint(), "1");
    let caller = ground.caller("payments");
    let job = operation("job-42");
    let first = Reserve { operation: Some(job.clone()), ..original() };
    assert!(caller.ask(&first).await.admitted());
    let sent = |outcome, terminal| Use::Sent(Sent { outcome, costs: Vec::new(), terminal, result_ref: None });
    let ended = |id, used| Release { id, used, operation: Some(job.id.clone()) };
    caller.release(&ended(first.id, sent(Outcome::Transient, None))).await;
    let retry = Reserve {
        attempt: Attempt::retry(2, Cause::Timeout),
        operation: Some(job.clone()),
        ..Reserve::new(fresh_id(), Attempt::ORIGINAL)
    };
    assert!(caller.ask(&retry).await.admitted());
    caller.release(&ended(retry.id, sent(Outcome::Success, Some(TerminalState::Completed)))).await;
    assert!(caller.ask(&original()).await.admitted());
    let refused = caller.ask(&original()).await;
    assert!(matches!(&refused, Decision::Denied(denied) if denied.reason == DenyReason::Admission), "{refused:?}");

    let spans = spans(&collector, 6).await;
    let names: Vec<&str> = spans.iter().map(|span| span.name.rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["Reserve", "Release", "Reserve", "Release", "Reserve", "Reserve"]);
    let common = [("dependency", "payments"), ("mode", "exact"), ("policy_version", "1")];
    let is = |span: &Span, expected: &[(&'static str, &str)]| {
        let expected: BTreeMap<&str, &str> = common.iter().chain(expected).copied().collect();
        assert_eq!(own(span), expected, "{}", span.name);
    };
    let attempt = [("operation_id", "job-42"), ("priority", "default"), ("decision", "admitted")];
    is(&spans[0], &[&attempt[..], &[("attempt", "1"), ("attempts_left", "2")]].concat());
    is(&spans[1], &[("operation_id", "job-42"), ("outcome", "transient"), ("result", "applied")]);
    is(&spans[2], &[&attempt[..], &[("attempt", "2"), ("cause", "timeout"), ("attempts_left", "1")]].concat());
    let completed = [("outcome", "success"), ("terminal_state", "completed"), ("result", "applied")];
    is(&spans[3], &[&completed[..], &[("operation_id", "job-42")]].concat());
    let wait = spans[5].attributes.get("budgetd.wait_ms").map(String::as_str).unwrap();
    assert!((3_500_000..=3_600_000).contains(&wait.parse().unwrap()), "{wait}");
    let denied = [("attempt", "1"), ("priority", "default"), ("decision", "denied"), ("reason", "admission")];
    is(&spans[5], &[&denied[..], &[("wait_ms", wait)]].concat());
    for span in &spans {
        assert_eq!(span.attributes["rpc.system"], "grpc");
        assert_eq!(span.attributes["rpc.grpc.status_code"], "0");
        assert!(!span.failed && span.parent_span_id.is_empty() && span.nanos > 0, "{span:?}");
    }
    let traces: BTreeSet<&str> = spans.iter().map(|span| span.trace_id.as_str()).collect();
    assert_eq!(traces.len(), spans.len(), "a trace of its own for each call of an untraced caller");
    let reservation = |at: usize| &spans[at].attributes["budgetd.reservation_id"];
    assert_eq!((reservation(0), reservation(2)), (reservation(1), reservation(3)));

    one_set_of_names(&collector, ground.daemon()).await;
}

/// Each metric is both at the collector and at `/metrics`, with equal counts, and neither knows an operation.
async fn one_set_of_names(collector: &Collector, daemon: &Daemon) {
    let admitted = [("dependency", "payments"), ("kind", "original"), ("decision", "admitted")];
    eventually(BOUND, "counts", async || collector.metrics().sum("budgetd_decisions", &admitted) == 2.0).await;
    let pushed = collector.metrics();
    for (name, labels, count) in [
        ("budgetd_decisions", &[("kind", "retry"), ("decision", "admitted")][..], 1.0),
        ("budgetd_decisions", &[("kind", "original"), ("reason", "admission")], 1.0),
        ("budgetd_answers", &[("mode", "exact")], 4.0),
        ("budgetd_releases", &[("outcome", "success"), ("result", "applied")], 1.0),
        ("budgetd_operations", &[("state", "completed"), ("dependency", "payments")], 1.0),
        ("budgetd_store_up", &[], 1.0),
    ] {
        assert_eq!(pushed.sum(name, labels), count, "{name} {labels:?}");
    }
    let scraped = Metrics::of(daemon).await.0;
    let scraped_names: BTreeSet<&str> =
        scraped.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let pushed_names = pushed.names();
    let missing = scraped_names.iter().filter(|name| !pushed_names.contains(&name.trim_end_matches("_total")));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new(), "only at /metrics");
    let known = |name: &str| scraped_names.contains(name) || scraped_names.contains(format!("{name}_total").as_str());
    let missing = pushed_names.iter().filter(|name| !known(name));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new(), "only at the collector");
    assert!(!scraped.contains("job-42") && !format!("{pushed:?}").contains("job-42"));
}

/// With no traces begun here, a span is one that its caller has sampled. Seen to fail with the caller's flag ignored, and with the
/// first of two headers taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e3_a_callers_trace_goes_on_and_what_is_malformed_is_ignored() {
    let collector = Collector::start().await;
    let ground = sending("", &collector.endpoint(), "0");
    let mut budgets = RetryBudgetClient::new(channel(ground.daemon()).await);
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let sampled = format!("00-{trace}-{parent}-01");
    let long = format!("01-{trace}-{parent}-01-{}", "x".repeat(4096));
    let zero = "0".repeat(32);
    let without_a_span = [
        vec![],
        vec![format!("00-{trace}-{parent}-00")],
        vec![sampled.clone(), sampled.clone()],
        vec![sampled.to_uppercase()],
        vec![sampled[..54].to_owned()],
        vec![format!("{sampled}-00")],
        vec![format!("ff-{trace}-{parent}-01")],
        vec![format!("00-{zero}-{parent}-01")],
        vec![format!("00-{trace}-{}-01", &zero[..16])],
        vec![format!("00-+{}-{parent}-01", &trace[1..])],
        vec![String::new()],
        vec!["-".repeat(200)],
        vec![long],
    ];
    let mut asked = async |headers: &[String]| {
        let mut request = Request::new(reserve("payments"));
        for header in headers {
            request.metadata_mut().append("traceparent", MetadataValue::try_from(header).unwrap());
        }
        let answer = budgets.reserve(request).await.unwrap().into_inner();
        assert!(matches!(answer.decision, Some(pb::reserve_response::Decision::Admitted(_))), "{headers:?}");
    };
    for headers in &without_a_span {
        asked(headers).await;
    }
    // Spans arrive in the order of their ends: whatever one of those had, would be there by now.
    asked(&[format!("01-{trace}-{parent}-03-of a later version")]).await;
    asked(&[sampled]).await;
    let spans = spans(&collector, 2).await;
    assert_eq!(spans.len(), 2, "{spans:#?}");
    for span in &spans {
        assert_eq!((span.trace_id.as_str(), span.parent_span_id.as_str()), (trace, parent));
        assert_ne!(span.span_id, parent);
    }
}

/// A collector by each way, and the standard variables that the exporters read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e3_flags_beat_the_environment_and_that_the_file() {
    let [by_flag, by_environment, by_file] =
        [Collector::start().await, Collector::start().await, Collector::start().await];
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("settings.toml");
    let text = format!(
        "otlp_endpoint = {:?}\notlp_interval = \"100ms\"\nservice_name = \"of the file\"\ntrace_sample = 1\n",
        by_file.endpoint()
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_string_lossy();
    let endpoint = by_environment.endpoint();
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_SERVICE_NAME", "of the environment"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.instance.id=pod-1"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cr3t"),
    ];
    let arrives = async |collector: &Collector| {
        eventually(BOUND, "metrics", async || collector.metrics().series() > 0).await;
        collector.resource()
    };
    let flag = by_flag.endpoint();
    let daemon =
        Daemon::start_with(&["--config", &file, "--otlp-endpoint", &flag, "--log-level", "trace"], &environment);
    let resource = arrives(&by_flag).await;
    assert_eq!(resource["service.name"], "of the environment");
    assert_eq!(resource["deployment.environment.name"], "test");
    assert_eq!(resource["service.instance.id"], "pod-1");
    assert_eq!(by_flag.headers()["authorization"], "Bearer s3cr3t");
    assert!(!daemon.process().logged("s3cr3t"));
    drop(daemon);
    let daemon = Daemon::start_with(&["--config", &file], &environment);
    arrives(&by_environment).await;
    drop(daemon);
    // In the variables of OpenTelemetry, empty is not set.
    let _daemon = Daemon::start_with(
        &["--config", &file],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", ""), ("OTEL_EXPORTER_OTLP_CERTIFICATE", "")],
    );
    let resource = arrives(&by_file).await;
    assert_eq!(resource["service.name"], "of the file");
    assert_eq!(resource["service.instance.id"].len(), 32, "{resource:?}");
}

/// A daemon that knows who signs the collector's certificate, and one that knows another authority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e3_a_collector_with_tls_must_be_the_right_one() {
    let (authority, other) = (Authority::new("ours"), Authority::new("theirs"));
    let collector = Collector::start_secure(&authority.server(Valid::Now)).await;
    let directory = tempfile::tempdir().unwrap();
    let start = |name: &str, authority: &Authority| {
        let file = directory.path().join(name);
        std::fs::write(&file, authority.pem()).unwrap();
        let file = file.to_string_lossy().into_owned();
        Daemon::start(&["--otlp-endpoint", &collector.endpoint(), "--otlp-ca", &file, "--otlp-interval", "100ms"])
    };
    let wrong = start("other.pem", &other);
    let failed = ["result=\"failed\"", "signal=\"metrics\""];
    eventually(BOUND, "requests that failed", async || {
        Metrics::of(&wrong).await.sum("budgetd_otlp_exports_total", &failed) >= 3.0
    })
    .await;
    assert_eq!(collector.metrics().series(), 0);
    let _right = start("ca.pem", &authority);
    eventually(BOUND, "metrics", async || collector.metrics().series() > 0).await;
}

#[test]
fn e3_a_setting_that_is_refused_is_named_with_its_rule() {
    let refused = |arguments: &[&str]| {
        let finished =
            daemon::run(&[&["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"], arguments].concat());
        assert_eq!(finished.status.code(), Some(1), "{arguments:?}: {}", finished.stderr);
        finished.stderr
    };
    for endpoint in
        ["collector:4317", "ftp://a:1", "http://a", "http://a:4317/v1/traces", "http://a:0", "unix:/a", "http://:1"]
    {
        let said = refused(&["--otlp-endpoint", endpoint]);
        assert!(said.contains(&format!("otlp-endpoint is {endpoint:?}: must look like")), "{said}");
    }
    let said = refused(&["--otlp-endpoint", "http://user:s3cr3t@a:4317"]);
    assert!(said.contains("otlp-endpoint is") && !said.contains("s3cr3t"), "{said}");
    let at = ["--otlp-endpoint", "http://127.0.0.1:4317"];
    for sample in ["1.1", "-1", "NaN"] {
        let said = refused(&[&at[..], &[&format!("--trace-sample={sample}")]].concat());
        assert!(said.contains("trace-sample is") && said.contains("between 0 and 1"), "{said}");
    }
    let said = refused(&[&at[..], &["--otlp-interval", "2h"]].concat());
    assert!(said.contains("otlp-interval is 2h: must be between"), "{said}");
    let said = refused(&["--otlp-endpoint", "https://a:4317"]);
    assert!(said.contains("otlp-ca is absent: must name who signs"), "{said}");
    let said = refused(&["--otlp-endpoint", "https://a:4317", "--otlp-ca", "/does/not/exist"]);
    assert!(said.contains("otlp-ca /does/not/exist: "), "{said}");
}
