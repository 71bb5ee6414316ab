//! Sends metrics and spans to an OpenTelemetry collector, beside the calls.
//!
//! One task for each signal, one request at a time, each with a time limit and sent once: what a collector does not take in
//! time is dropped and counted. Nothing waits for that but the end of the daemon, and it for [`FLUSH_TIMEOUT`] at most. The
//! SDK has threads for this, but they wait for an export, and for the last one, as long as it takes.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use opentelemetry::{Key, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, MetricExporter, RetryPolicy, SpanExporter, WithTonicConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    metrics::{
        InstrumentKind, ManualReader, Pipeline, Temporality, data::ResourceMetrics, exporter::PushMetricExporter,
        reader::MetricReader,
    },
    trace::{SpanData, SpanExporter as _},
};
use tokio::{
    sync::mpsc,
    task::{JoinSet, spawn_blocking},
    time::{MissedTickBehavior, interval, timeout},
};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use super::Telemetry;
use crate::{config::Otlp, shutdown::Stop};

/// For a connection to the collector.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For one request, a connection included.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// For all that is left once the daemon ends.
pub(super) const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// A collector that is gone without a word is noticed.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Spans of one request.
const BATCH_MAX: usize = 512;
/// The oldest span of a request waits for others so long.
const GATHER_FOR: Duration = Duration::from_secs(1);

/// Who is told what.
const SIGNALS: [&str; 2] = ["metrics", "traces"];
const METRICS: usize = 0;
const TRACES: usize = 1;

/// The collector cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidCollector {
    /// The CA cannot be read.
    #[error("otlp-ca {}: {error}", path.display())]
    Ca {
        /// As configured.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// The address, or the CA's text.
    #[error("otlp-endpoint: {0}")]
    Endpoint(#[from] tonic::transport::Error),
    /// Anything else about the exporters.
    #[error("OTLP: {0}")]
    Exporter(#[from] ExporterBuildError),
}

/// Reads all metrics when a task asks.
#[derive(Clone, Debug, Default)]
pub(super) struct Reader(Arc<ManualReader>);

/// How requests went.
#[derive(Debug, Default)]
pub(super) struct Exports([Export; SIGNALS.len()]);

#[derive(Debug, Default)]
struct Export {
    taken: AtomicU64,
    failed: AtomicU64,
    /// So says the log.
    failing: AtomicBool,
}

/// What is sent to a collector until the end.
#[derive(Debug)]
pub(super) struct Push {
    stop: Stop,
    tasks: Mutex<JoinSet<()>>,
}

/// Both ways to the collector.
#[derive(Debug)]
pub(super) struct Collector {
    metrics: MetricExporter,
    spans: SpanExporter,
}

// === impl Collector ===

impl Collector {
    /// Connects when there is something to send.
    pub(super) fn new(otlp: &Otlp, resource: &Resource) -> Result<Self, InvalidCollector> {
        let channel = channel(otlp)?;
        let metrics = MetricExporter::builder()
            .with_tonic()
            .with_channel(channel.clone())
            .with_retry_policy(RetryPolicy::disabled())
            .build()?;
        let spans = SpanExporter::builder().with_tonic().with_channel(channel);
        let mut spans = spans.with_retry_policy(RetryPolicy::disabled()).build()?;
        spans.set_resource(resource);
        Ok(Self { metrics, spans })
    }
}

fn channel(otlp: &Otlp) -> Result<Channel, InvalidCollector> {
    let endpoint = Endpoint::from_shared(otlp.endpoint.clone())?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(EXPORT_TIMEOUT);
    let Some(path) = &otlp.ca else { return Ok(endpoint.connect_lazy()) };
    let pem = fs::read(path).map_err(|error| InvalidCollector::Ca { path: path.clone(), error })?;
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
    Ok(endpoint.tls_config(tls)?.connect_lazy())
}

/// Who sends: the name as configured, and an id of this process, since replicas must not be taken for one.
pub(super) fn resource(service_name: Option<&str>) -> Resource {
    let written = Resource::builder().build();
    let instance = Key::from_static_str("service.instance.id");
    let named = written.get(&Key::from_static_str("service.name"));
    let is_named = named.is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let mut builder = Resource::builder().with_attribute(KeyValue::new("service.version", crate::VERSION));
    if let Some(name) = service_name.or((!is_named).then_some("budgetd")) {
        builder = builder.with_service_name(name.to_owned());
    }
    if written.get(&instance).is_none() {
        let id =
            u128::from(getrandom::u64().unwrap_or_default()) << 64 | u128::from(getrandom::u64().unwrap_or_default());
        builder = builder.with_attribute(KeyValue::new(instance, format!("{id:032x}")));
    }
    builder.build()
}

// === impl Exports ===

impl Exports {
    fn note(&self, signal: usize, result: Result<(), String>) {
        let Some(export) = self.0.get(signal) else { return };
        let signal = SIGNALS.get(signal).copied().unwrap_or_default();
        match result {
            Ok(()) => {
                export.taken.fetch_add(1, Ordering::Relaxed);
                if export.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!(signal, "the collector takes telemetry again");
                }
            }
            Err(why) => {
                export.failed.fetch_add(1, Ordering::Relaxed);
                if !export.failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(signal, why, "the collector does not take telemetry: it is dropped meanwhile");
                }
            }
        }
    }
}

/// Within its time, or not at all.
async fn in_time(export: impl Future<Output = OTelSdkResult>) -> Result<(), String> {
    match timeout(EXPORT_TIMEOUT, export).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {EXPORT_TIMEOUT:?}")),
    }
}

// === impl Push ===

impl Push {
    /// Begins to send.
    pub(super) fn start(
        collector: Collector,
        reader: Reader,
        every: Duration,
        spans: mpsc::Receiver<SpanData>,
        exports: &Arc<Exports>,
    ) -> Self {
        let stop = Stop::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(push_metrics(collector.metrics, reader, every, Arc::clone(exports), stop.clone()));
        tasks.spawn(push_spans(collector.spans, spans, Arc::clone(exports), stop.clone()));
        Self { stop, tasks: Mutex::new(tasks) }
    }

    /// Sends what is left, as far as the collector takes it within [`FLUSH_TIMEOUT`].
    pub(super) async fn end(&self) {
        self.stop.begin();
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        if timeout(FLUSH_TIMEOUT, async { while tasks.join_next().await.is_some() {} }).await.is_err() {
            tracing::warn!("the collector did not take the last telemetry in time");
        }
    }
}

async fn push_metrics(exporter: MetricExporter, reader: Reader, every: Duration, exports: Arc<Exports>, stop: Stop) {
    let mut turns = interval(every);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    turns.tick().await;
    let mut ending = std::pin::pin!(stop.begun());
    loop {
        let is_last = tokio::select! {
            _ = turns.tick() => false,
            () = &mut ending => true,
        };
        let reader = reader.clone();
        // Thousands of series take a while.
        let collected = spawn_blocking(move || {
            let mut all = ResourceMetrics::default();
            reader.collect(&mut all).map(|()| all).map_err(|error| error.to_string())
        });
        let sent = match collected.await {
            Ok(Ok(all)) => in_time(exporter.export(&all)).await,
            Ok(Err(why)) => Err(why),
            Err(error) => Err(error.to_string()),
        };
        exports.note(METRICS, sent);
        if is_last {
            return;
        }
    }
}

async fn push_spans(exporter: SpanExporter, mut queue: mpsc::Receiver<SpanData>, exports: Arc<Exports>, stop: Stop) {
    let mut batch = Vec::new();
    let mut ending = std::pin::pin!(stop.begun());
    while !queue.is_closed() || !queue.is_empty() {
        tokio::select! {
            _ = timeout(GATHER_FOR, gather(&mut queue, &mut batch)) => {}
            () = &mut ending, if !queue.is_closed() => queue.close(),
        }
        if !batch.is_empty() {
            exports.note(TRACES, in_time(exporter.export(std::mem::take(&mut batch))).await);
        }
    }
}

/// Until the batch is full, or nothing more will come.
async fn gather(queue: &mut mpsc::Receiver<SpanData>, batch: &mut Vec<SpanData>) {
    while batch.len() < BATCH_MAX {
        if queue.recv_many(batch, BATCH_MAX - batch.len()).await == 0 {
            return;
        }
    }
}

pub(super) fn register(telemetry: &Telemetry, exports: &Arc<Exports>) {
    let all = Arc::clone(exports);
    telemetry
        .meter()
        .u64_observable_counter("budgetd_otlp_exports")
        .with_description("Requests to the OpenTelemetry collector, by signal and by whether it took them.")
        .with_callback(move |observer| {
            for (export, signal) in all.0.iter().zip(SIGNALS) {
                for (result, count) in [("taken", &export.taken), ("failed", &export.failed)] {
                    let labels = [KeyValue::new("result", result), KeyValue::new("signal", signal)];
                    observer.observe(count.load(Ordering::Relaxed), &labels);
                }
            }
        })
        .build();
    let traces = Arc::clone(&telemetry.traces);
    let count = move || traces.dropped();
    telemetry.counter("budgetd_otlp_spans_dropped", "Spans that found the queue to the collector full.", count);
}

// === impl Reader ===

impl MetricReader for Reader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, all: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(all)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}
