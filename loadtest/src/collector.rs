//! An OpenTelemetry collector that takes everything and keeps nothing, for measuring what telemetry costs.

use opentelemetry_proto::tonic::collector::{
    metrics::v1::{
        ExportMetricsServiceRequest, ExportMetricsServiceResponse,
        metrics_service_server::{MetricsService, MetricsServiceServer},
    },
    trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

use crate::{daemon, echo};

/// Both services.
struct Sink;

/// Serves until `shutdown` ends. Calls of budgetd are answered too, which is how servers here are found ready.
pub(crate) async fn run(
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    daemon::bare_server()
        .add_service(echo::service())
        .add_service(TraceServiceServer::new(Sink))
        .add_service(MetricsServiceServer::new(Sink))
        .serve_with_incoming_shutdown(daemon::bare_incoming(listener), shutdown)
        .await
}

// === impl Sink ===

#[tonic::async_trait]
impl TraceService for Sink {
    async fn export(
        &self,
        _: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Sink {
    async fn export(
        &self,
        _: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}
