//! Metrics, traces and logs.
//!
//! Whoever does the work adds to plain atomics; OpenTelemetry reads them when somebody asks, through observable
//! instruments. So a call costs a few atomic additions and hashes no attributes. Labels come from the policies, never
//! from callers: everything else folds into `other`. Prometheus asks at `/metrics`, `otlp` sends the same instruments to a
//! collector; what callers name stands in spans (`traces`) only.

pub(crate) mod decisions;
mod ledgers;
mod logs;
mod otlp;
mod store;
pub(crate) mod syncs;
pub(crate) mod tally;
#[cfg(test)]
mod tests;
pub(crate) mod traces;

use std::sync::Arc;

use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry_sdk::metrics::{Instrument, SdkMeterProvider, Stream};
use prometheus::{Encoder, Registry, TextEncoder};

use crate::config::Otlp;

pub use decisions::{Call, Decisions};
pub use ledgers::{Ledgers, WATCHED_MAX};
pub use logs::{InvalidFilter, init as init_logs};
pub use otlp::InvalidCollector;
pub use store::{StoreHealth, StoreState};
pub use traces::Traces;

/// The media type of [`Telemetry::scrape`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Series of one instrument. The instruments keep themselves below it, so that nothing is ever folded by the SDK, which
/// could only overwrite.
const SERIES_MAX: usize = 20_000;

/// Everything that is counted in this process. Several may exist side by side.
#[derive(Debug)]
pub struct Telemetry {
    /// What callers asked and were answered.
    pub decisions: Arc<Decisions>,
    /// Whether the store answers.
    pub store: Arc<StoreHealth>,
    /// How ledgers stand.
    pub ledgers: Arc<Ledgers>,
    /// Spans of calls.
    pub traces: Arc<Traces>,
    registry: Registry,
    meter: Meter,
    push: Option<otlp::Push>,
    // Holds the instruments.
    _provider: SdkMeterProvider,
}

/// Metrics or traces cannot be set up or shown.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Metrics at `/metrics`.
    #[error("metrics: {0}")]
    Metrics(String),
    /// What is sent.
    #[error(transparent)]
    Collector(#[from] InvalidCollector),
}

// === impl Telemetry ===

impl Telemetry {
    /// Instruments and registry of their own; nothing is sent.
    ///
    /// # Errors
    /// If the exporter cannot be registered.
    pub fn new() -> Result<Self, TelemetryError> {
        Self::build(None)
    }

    /// The same, sent to a collector from now on. Needs the runtime of tokio.
    ///
    /// # Errors
    /// If the exporters cannot be made; a collector that is away is no error.
    pub fn sending(otlp: &Otlp) -> Result<Self, TelemetryError> {
        Self::build(Some(otlp))
    }

    fn build(otlp: Option<&Otlp>) -> Result<Self, TelemetryError> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .without_target_info()
            .scope_info_enabled(false)
            .build()
            .map_err(|error| TelemetryError::Metrics(error.to_string()))?;
        let resource = otlp::resource(otlp.and_then(|otlp| otlp.service_name.as_deref()));
        let reader = otlp::Reader::default();
        let mut provider =
            SdkMeterProvider::builder().with_resource(resource.clone()).with_reader(exporter).with_view(series_max);
        if otlp.is_some() {
            provider = provider.with_reader(reader.clone());
        }
        let provider = provider.build();
        let meter = provider.meter("budgetd");
        let (decisions, store, ledgers) = <(Arc<Decisions>, Arc<StoreHealth>, Arc<Ledgers>)>::default();
        decisions::register(&decisions, &meter);
        syncs::register(&decisions, &meter);
        store::register(&store, &meter);
        ledgers::register(&ledgers, &meter);
        meter
            .u64_observable_gauge("budgetd_build_info")
            .with_description("Always 1; the label tells which version this is.")
            .with_callback(|observer| {
                observer.observe(1, &[opentelemetry::KeyValue::new("version", env!("CARGO_PKG_VERSION"))]);
            })
            .build();
        let traces = Arc::default();
        let all = Self { decisions, store, ledgers, traces, registry, meter, push: None, _provider: provider };
        let Some(otlp) = otlp else { return Ok(all) };
        let (traces, spans) = Traces::new(otlp.trace_sample);
        let (exports, collector) = (Arc::default(), otlp::Collector::new(otlp, &resource)?);
        let push = otlp::Push::start(collector, reader, otlp.interval, spans, &exports);
        let all = Self { traces: Arc::new(traces), push: Some(push), ..all };
        otlp::register(&all, &exports);
        Ok(all)
    }

    /// Sends what is left, as far as the collector takes it within 2 s. Nothing is sent afterwards.
    pub async fn end(&self) {
        if let Some(push) = &self.push {
            push.end().await;
        }
    }

    /// Where further instruments are made.
    #[must_use]
    pub const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// A gauge without labels that is read when somebody asks.
    pub fn gauge(&self, name: &'static str, description: &'static str, read: impl Fn() -> u64 + Send + Sync + 'static) {
        self.meter
            .u64_observable_gauge(name)
            .with_description(description)
            .with_callback(move |observer| observer.observe(read(), &[]))
            .build();
    }

    /// A counter without labels that is read when somebody asks.
    pub fn counter(
        &self,
        name: &'static str,
        description: &'static str,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.meter
            .u64_observable_counter(name)
            .with_description(description)
            .with_callback(move |observer| observer.observe(read(), &[]))
            .build();
    }

    /// All metrics in the Prometheus text format, [`CONTENT_TYPE`].
    ///
    /// # Errors
    /// If a metric cannot be shown.
    pub fn scrape(&self) -> Result<Vec<u8>, TelemetryError> {
        let mut text = Vec::new();
        let encoded = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        encoded.map_err(|error| TelemetryError::Metrics(error.to_string()))?;
        Ok(text)
    }
}

/// Instruments with labels of the policies may have more series than the SDK allows by itself.
fn series_max(instrument: &Instrument) -> Option<Stream> {
    let many = [
        decisions::DECISIONS,
        decisions::RELEASES,
        decisions::MODES,
        decisions::EXTENDS,
        decisions::OPERATIONS,
        syncs::SYNCS,
        syncs::REPORTED,
        ledgers::COST_BALANCE,
    ]
    .contains(&instrument.name());
    if many { Stream::builder().with_cardinality_limit(SERIES_MAX).build().ok() } else { None }
}
