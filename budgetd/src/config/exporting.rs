//! Settings of what is sent to an OpenTelemetry collector.

use std::{path::PathBuf, time::Duration};

use axum::http::Uri;

use super::{InvalidConfig, Settings, invalid, settings::given, span};

/// Traces that are begun here: one call in a hundred.
const TRACE_SAMPLE: f64 = 0.01;
/// As the specification of OpenTelemetry has it.
const INTERVAL: Duration = Duration::from_secs(60);

/// Where metrics and spans are sent, and how many.
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// The collector: `http://host:port`, or with TLS `https://host:port`.
    pub endpoint: String,
    /// Who signs the collector's certificate, in PEM; given where the endpoint has TLS.
    pub ca: Option<PathBuf>,
    /// What this daemon is called there; none: `budgetd`, unless `OTEL_RESOURCE_ATTRIBUTES` says otherwise.
    pub service_name: Option<String>,
    /// The share of calls that a trace is begun for, 0 to 1; a caller that is traced decides by itself.
    pub trace_sample: f64,
    /// Between two exports of metrics.
    pub interval: Duration,
}

/// Off without an endpoint; all else then changes nothing, since it may stand in the environment for other programs.
pub(super) fn judge(settings: &Settings) -> Result<Option<Otlp>, InvalidConfig> {
    let Some(endpoint) = given(settings.otlp_endpoint.as_deref()) else { return Ok(None) };
    let ca = match (judge_endpoint(endpoint)?, given(settings.otlp_ca.as_deref())) {
        (true, None) => {
            let rule = "must name who signs the certificate of a collector at https://";
            return Err(invalid("otlp-ca", "absent", rule));
        }
        (true, Some(ca)) => Some(ca.to_owned()),
        (false, _) => None,
    };
    let trace_sample = settings.trace_sample.unwrap_or(TRACE_SAMPLE);
    if !(0.0..=1.0).contains(&trace_sample) {
        return Err(invalid("trace-sample", trace_sample, "must be between 0 and 1"));
    }
    Ok(Some(Otlp {
        endpoint: endpoint.to_owned(),
        ca,
        service_name: given(settings.service_name.clone()),
        trace_sample,
        interval: span("otlp-interval", settings.otlp_interval, INTERVAL)?,
    }))
}

/// Whether it speaks TLS.
fn judge_endpoint(endpoint: &str) -> Result<bool, InvalidConfig> {
    // What stands before an '@' may be a password.
    let shown = endpoint.rsplit_once('@').map_or(endpoint, |(_, host)| host);
    let rule = "must look like http://host:4317 or https://host:4317";
    let refused = || invalid("otlp-endpoint", format!("{shown:?}"), rule);
    let uri: Uri = endpoint.parse().map_err(|_| refused())?;
    let plain = !endpoint.contains('@') && uri.host().is_some_and(|host| !host.is_empty());
    if !plain || uri.port_u16().is_none_or(|port| port == 0) || !matches!(uri.path(), "" | "/") || uri.query().is_some()
    {
        return Err(refused());
    }
    match uri.scheme_str() {
        Some("http") => Ok(false),
        Some("https") => Ok(true),
        Some(_) | None => Err(refused()),
    }
}
