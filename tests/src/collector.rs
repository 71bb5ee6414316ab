//! An OpenTelemetry collector in this process: it keeps what it is sent. And one that accepts connections and says nothing.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use opentelemetry_proto::tonic::{
    collector::{
        metrics::v1::{
            ExportMetricsServiceRequest, ExportMetricsServiceResponse,
            metrics_service_server::{MetricsService, MetricsServiceServer},
        },
        trace::v1::{
            ExportTraceServiceRequest, ExportTraceServiceResponse,
            trace_service_server::{TraceService, TraceServiceServer},
        },
    },
    common::v1::{KeyValue, any_value::Value},
    metrics::v1::{Metric, metric::Data, number_data_point},
    trace::v1::Span as RawSpan,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tonic::{
    Request, Response, Status,
    transport::{Identity, Server, ServerTlsConfig, server::TcpIncoming},
};

use crate::certificates::Issued;

/// Attributes as text; numbers are written out.
pub type Attributes = BTreeMap<String, String>;

/// A span as it arrived.
#[derive(Clone, Debug)]
pub struct Span {
    /// What was done.
    pub name: String,
    /// In hex.
    pub trace_id: String,
    /// In hex.
    pub span_id: String,
    /// In hex; empty if it began the trace.
    pub parent_span_id: String,
    /// From its start to its end.
    pub nanos: u64,
    /// Whether it says that it failed.
    pub failed: bool,
    /// What was asked and answered.
    pub attributes: Attributes,
}

/// Everything of one point of time.
#[derive(Clone, Debug, Default)]
pub struct Metrics(BTreeMap<String, Vec<(Attributes, f64)>>);

/// A collector that takes everything.
#[derive(Debug)]
pub struct Collector {
    endpoint: String,
    received: Arc<Received>,
    serving: JoinHandle<()>,
}

/// A collector that accepts connections and never answers.
#[derive(Debug)]
pub struct Silent {
    address: SocketAddr,
    accepted: Arc<Mutex<Vec<TcpStream>>>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Received {
    spans: Mutex<Vec<Span>>,
    metrics: Mutex<Metrics>,
    resource: Mutex<Attributes>,
    /// Of the latest request.
    headers: Mutex<Attributes>,
}

/// Both services.
#[derive(Clone, Debug)]
struct Answering(Arc<Received>);

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn listen(port: u16) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap_or_else(|error| panic!("{port}: {error}"));
    let address = listener.local_addr().unwrap_or_else(|error| panic!("no address: {error}"));
    (listener, address)
}

// === impl Collector ===

impl Collector {
    /// Listens on a free port.
    ///
    /// # Panics
    /// If there is none.
    pub async fn start() -> Self {
        Self::start_on(0).await
    }

    /// The same, with TLS.
    ///
    /// # Panics
    /// If the certificate is none.
    pub async fn start_secure(own: &Issued) -> Self {
        let tls = ServerTlsConfig::new().identity(Identity::from_pem(&own.cert, &own.key));
        let server = Server::builder().tls_config(tls).unwrap_or_else(|error| panic!("no TLS: {error}"));
        Self::serve(server, 0, "https").await
    }

    /// Listens on a port that is known to be free.
    ///
    /// # Panics
    /// If it is not.
    pub async fn start_on(port: u16) -> Self {
        Self::serve(Server::builder(), port, "http").await
    }

    async fn serve(mut server: Server, port: u16, scheme: &'static str) -> Self {
        let (listener, address) = listen(port).await;
        let received = Arc::new(Received::default());
        let answering = Answering(Arc::clone(&received));
        let server = server
            .add_service(TraceServiceServer::new(answering.clone()))
            .add_service(MetricsServiceServer::new(answering));
        let serving = tokio::spawn(async move {
            if let Err(error) = server.serve_with_incoming(TcpIncoming::from(listener)).await {
                eprintln!("the collector ended: {error}");
            }
        });
        Self { endpoint: format!("{scheme}://{address}"), received, serving }
    }

    /// For `--otlp-endpoint`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// All spans so far.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        lock(&self.received.spans).clone()
    }

    /// The metrics that came last.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        lock(&self.received.metrics).clone()
    }

    /// Who sent last.
    #[must_use]
    pub fn resource(&self) -> Attributes {
        lock(&self.received.resource).clone()
    }

    /// Headers of the latest request, as far as they are text.
    #[must_use]
    pub fn headers(&self) -> Attributes {
        lock(&self.received.headers).clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

// === impl Silent ===

impl Silent {
    /// Listens on a free port.
    ///
    /// # Panics
    /// If there is none.
    pub async fn start() -> Self {
        let (listener, address) = listen(0).await;
        let accepted = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&accepted);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                lock(&kept).push(stream);
            }
        });
        Self { address, accepted, accepting }
    }

    /// For `--otlp-endpoint`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Connections so far.
    #[must_use]
    pub fn accepted(&self) -> usize {
        lock(&self.accepted).len()
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

// === impl Metrics ===

impl Metrics {
    /// Names in order.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    /// Sum over all series of this name with all these labels.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |series: &Attributes| labels.iter().all(|(key, value)| series.get(*key).is_some_and(|v| v == value));
        let series = self.0.get(name).into_iter().flatten().filter(|(series, _)| has(series));
        series.map(|(_, value)| value).sum()
    }

    /// The number of series over all names.
    #[must_use]
    pub fn series(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}

// === impl Answering ===

#[tonic::async_trait]
impl TraceService for Answering {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.note_headers(&request);
        for resource in request.into_inner().resource_spans {
            *lock(&self.0.resource) = resource.resource.map(|own| attributes(own.attributes)).unwrap_or_default();
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans).map(span);
            lock(&self.0.spans).extend(spans);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Answering {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.note_headers(&request);
        for resource in request.into_inner().resource_metrics {
            *lock(&self.0.resource) = resource.resource.map(|own| attributes(own.attributes)).unwrap_or_default();
            let metrics = resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics);
            *lock(&self.0.metrics) = Metrics(metrics.map(series).collect());
        }
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

impl Answering {
    fn note_headers<T>(&self, request: &Request<T>) {
        let headers = request.metadata().as_ref().iter();
        let text = headers.filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
        *lock(&self.0.headers) = text.collect();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn span(raw: RawSpan) -> Span {
    Span {
        name: raw.name,
        trace_id: hex(&raw.trace_id),
        span_id: hex(&raw.span_id),
        parent_span_id: hex(&raw.parent_span_id),
        nanos: raw.end_time_unix_nano.saturating_sub(raw.start_time_unix_nano),
        failed: raw.status.is_some_and(|status| status.code == 2),
        attributes: attributes(raw.attributes),
    }
}

fn attributes(all: Vec<KeyValue>) -> Attributes {
    let text = |own: KeyValue| {
        let value = own.value.and_then(|value| value.value)?;
        let text = if let Value::StringValue(text) = value {
            text
        } else if let Value::IntValue(number) = value {
            number.to_string()
        } else {
            format!("{value:?}")
        };
        Some((own.key, text))
    };
    all.into_iter().filter_map(text).collect()
}

/// Counters and gauges by their value, distributions by their count.
fn series(metric: Metric) -> (String, Vec<(Attributes, f64)>) {
    #[allow(clippy::cast_precision_loss, clippy::as_conversions, reason = "compared with small numbers")]
    let number = |value: Option<number_data_point::Value>| match value {
        Some(number_data_point::Value::AsDouble(value)) => value,
        Some(number_data_point::Value::AsInt(value)) => value as f64,
        None => f64::NAN,
    };
    let points = match metric.data {
        Some(Data::Gauge(gauge)) => gauge.data_points,
        Some(Data::Sum(sum)) => sum.data_points,
        #[allow(clippy::cast_precision_loss, clippy::as_conversions, reason = "compared with small numbers")]
        Some(Data::Histogram(histogram)) => {
            let counts =
                histogram.data_points.into_iter().map(|point| (attributes(point.attributes), point.count as f64));
            return (metric.name, counts.collect());
        }
        Some(Data::ExponentialHistogram(_) | Data::Summary(_)) | None => Vec::new(),
    };
    (metric.name, points.into_iter().map(|point| (attributes(point.attributes), number(point.value))).collect())
}
