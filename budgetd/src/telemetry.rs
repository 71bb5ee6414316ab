//! Metrics and logs.
//!
//! Whoever does the work adds to plain atomics; OpenTelemetry reads them when somebody asks, through observable
//! instruments. So a call costs a few atomic additions and hashes no attributes. Labels come from the policies, never
//! from callers: everything else folds into `other`.

pub(crate) mod decisions;
mod ledgers;
mod logs;
mod store;
pub(crate) mod syncs;
pub(crate) mod tally;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry_sdk::{
    Resource,
    metrics::{Instrument, SdkMeterProvider, Stream},
};
use prometheus::{Encoder, Registry, TextEncoder};

pub use decisions::{Call, Decisions};
pub use ledgers::{Ledgers, WATCHED_MAX};
pub use logs::{InvalidFilter, init as init_logs};
pub use store::{StoreHealth, StoreState};

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
    registry: Registry,
    meter: Meter,
    // Holds the instruments.
    _provider: SdkMeterProvider,
}

/// Metrics cannot be set up or shown.
#[derive(Debug, thiserror::Error)]
#[error("metrics: {0}")]
pub struct TelemetryError(String);

// === impl Telemetry ===

impl Telemetry {
    /// Instruments and registry of their own.
    ///
    /// # Errors
    /// If the exporter cannot be registered.
    pub fn new() -> Result<Self, TelemetryError> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .without_target_info()
            .scope_info_enabled(false)
            .build()
            .map_err(|error| TelemetryError(error.to_string()))?;
        let provider = SdkMeterProvider::builder()
            .with_resource(Resource::builder().with_service_name("budgetd").build())
            .with_reader(exporter)
            .with_view(|instrument: &Instrument| {
                let many = [
                    decisions::DECISIONS,
                    decisions::RELEASES,
                    decisions::MODES,
                    decisions::EXTENDS,
                    syncs::SYNCS,
                    syncs::REPORTED,
                ]
                .contains(&instrument.name());
                let limit = if many { SERIES_MAX } else { return None };
                Stream::builder().with_cardinality_limit(limit).build().ok()
            })
            .build();
        let meter = provider.meter("budgetd");
        let decisions = Arc::new(Decisions::default());
        decisions::register(&decisions, &meter);
        syncs::register(&decisions, &meter);
        let store = Arc::new(StoreHealth::default());
        store::register(&store, &meter);
        let ledgers = Arc::new(Ledgers::default());
        ledgers::register(&ledgers, &meter);
        meter
            .u64_observable_gauge("budgetd_build_info")
            .with_description("Always 1; the label tells which version this is.")
            .with_callback(|observer| {
                observer.observe(1, &[opentelemetry::KeyValue::new("version", env!("CARGO_PKG_VERSION"))]);
            })
            .build();
        Ok(Self { decisions, store, ledgers, registry, meter, _provider: provider })
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
        encoded.map_err(|error| TelemetryError(error.to_string()))?;
        Ok(text)
    }
}
