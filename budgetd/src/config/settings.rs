//! Settings as they are written, each optional: the same fields on the command line, in the environment and in a file.

use std::{convert::Infallible, ffi::OsStr, fmt, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use budget::units::{format_duration_ms, parse_duration_ms};
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::{Listen, LogFormat, TimingSettings};

/// The flags of `budgetd serve`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ServeArgs {
    /// A TOML file with the settings below, keys written with underscores. Flags and environment beat it
    #[arg(long, env = "BUDGETD_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Everything else.
    #[command(flatten)]
    pub settings: Settings,
}

/// What was written; absent fields are taken from elsewhere.
#[derive(Clone, Debug, Default, clap::Args, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where gRPC is served: an address with port (0: any free one), or unix:PATH [default: 127.0.0.1:7411]
    #[arg(long, env = "BUDGETD_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<Listen>,
    /// Where /metrics, /livez and /readyz are served [default: 127.0.0.1:7412]
    #[arg(long, env = "BUDGETD_HTTP", value_name = "ADDRESS")]
    pub http: Option<SocketAddr>,
    /// Speak TLS at both ports: the server's certificate in PEM, followed by those between it and a root. Read anew when
    /// it changes, and so are the other files here
    #[arg(long, env = "BUDGETD_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of that certificate, in PEM
    #[arg(long, env = "BUDGETD_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Who signs the certificates of clients, in PEM. gRPC clients need one, unless --auth has tokens
    #[arg(long, env = "BUDGETD_TLS_CLIENT_CA", value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// A TOML file that says which bearer token and which client certificate may do what [default: whoever can connect may
    /// do everything]
    #[arg(long, env = "BUDGETD_AUTH", value_name = "FILE")]
    pub auth: Option<PathBuf>,
    /// For an agent (store grpcs://...): who signs the certificates of the budgetd that it asks, in PEM
    #[arg(long, env = "BUDGETD_UPSTREAM_CA", value_name = "FILE")]
    pub upstream_ca: Option<PathBuf>,
    /// The certificate that an agent shows them, in PEM
    #[arg(long, env = "BUDGETD_UPSTREAM_CERT", value_name = "FILE")]
    pub upstream_cert: Option<PathBuf>,
    /// The private key of that certificate, in PEM
    #[arg(long, env = "BUDGETD_UPSTREAM_KEY", value_name = "FILE")]
    pub upstream_key: Option<PathBuf>,
    /// A file with the bearer token that an agent sends them
    #[arg(long, env = "BUDGETD_UPSTREAM_TOKEN_FILE", value_name = "FILE")]
    pub upstream_token_file: Option<PathBuf>,
    /// Listen on addresses that are not loopback, without TLS and authentication
    #[arg(long, env = "BUDGETD_INSECURE", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_name = "BOOL", hide_possible_values = true)]
    pub insecure: Option<bool>,
    /// Where ledgers live: memory (this process, a single node), or the URL of a Redis or Valkey server that all
    /// replicas share, such as redis://user:password@host:6379 or unix:///run/redis.sock; or other budgetd, of which
    /// this one becomes the agent on a host: grpc://host:7411, or with TLS grpcs://host:7411, several separated by commas
    /// [default: memory]
    #[arg(long, env = "BUDGETD_STORE", hide_env_values = true, value_name = "URL")]
    pub store: Option<Secret>,
    /// Answer Reserve from leases that this daemon holds on its store, where a policy permits leases: no store on the
    /// path, and decisions go on along the curve while it is away. An agent (store grpc://... or grpcs://...) always does
    #[arg(long, env = "BUDGETD_LEASE", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_name = "BOOL", hide_possible_values = true)]
    pub lease: Option<bool>,
    /// The name under which those leases are held, kept over restarts so that a crash loop cannot strand the quota; no
    /// two daemons that live at once may share one [default: a random one]
    #[arg(long, env = "BUDGETD_HOLDER_ID", value_name = "NAME")]
    pub holder_id: Option<String>,
    /// The namespace: what every key in Redis starts with [default: budgetd]
    #[arg(long, env = "BUDGETD_PREFIX", value_name = "TEXT")]
    pub prefix: Option<String>,
    /// For this one start of the daemon, an operator's word: no lease that was given earlier is in use any more.
    /// Dependencies whose state is missing begin without quarantine, on Redis those that are first used within two
    /// minutes; the word is withdrawn when such a lease turns up. Not for a supervisor that starts the daemon again, so it
    /// is read from nowhere else
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL",
        hide_possible_values = true)]
    #[serde(skip)]
    pub no_leases_out: Option<bool>,
    /// A TOML file of policies, imported when its content has changed since the last import
    #[arg(long, env = "BUDGETD_POLICY", value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Is written once the daemon serves, as JSON: {"grpc":"127.0.0.1:7411","http":"127.0.0.1:7412"}
    #[arg(long, env = "BUDGETD_READY_FILE", value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// Send metrics and traces to this OpenTelemetry collector, by OTLP over gRPC, such as http://127.0.0.1:4317 [default: no
    /// collector; /metrics is there in any case]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Who signs the certificate of a collector at https://, in PEM
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CERTIFICATE", value_name = "FILE", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub otlp_ca: Option<PathBuf>,
    /// What this daemon is called in metrics and traces that are sent [default: budgetd]
    #[arg(long, env = "OTEL_SERVICE_NAME", value_name = "NAME")]
    pub service_name: Option<String>,
    /// The share of calls, 0 to 1, for which a trace is begun. Of callers that are traced (W3C traceparent) exactly those
    /// calls are that they have sampled [default: 0.01]
    #[arg(long, env = "BUDGETD_TRACE_SAMPLE", value_name = "SHARE")]
    pub trace_sample: Option<f64>,
    /// Metrics are sent this often [default: 60s]
    #[arg(long, env = "BUDGETD_OTLP_INTERVAL", value_name = "DURATION")]
    pub otlp_interval: Option<Span>,
    /// Form of the log; auto: text on a terminal, JSON otherwise [default: auto]
    #[arg(long, env = "BUDGETD_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// What is logged: error, warn, info, debug, trace, or a filter such as info,budgetd=debug [default: info]
    #[arg(long, env = "BUDGETD_LOG_LEVEL", value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// For a call that brings no deadline of its own [default: 5s]
    #[arg(long, env = "BUDGETD_CALL_TIMEOUT", value_name = "DURATION")]
    pub call_timeout: Option<Span>,
    /// Calls that may wait for the store at a time [default: 65536]
    #[arg(long, env = "BUDGETD_MAX_CONCURRENT", value_name = "COUNT")]
    pub max_concurrent: Option<usize>,
    /// gRPC connections that may be open at a time [default: 4096]
    #[arg(long, env = "BUDGETD_MAX_CONNECTIONS", value_name = "COUNT")]
    pub max_connections: Option<usize>,
    /// After SIGTERM, how long calls may take to finish before their connections are cut [default: 10s]
    #[arg(long, env = "BUDGETD_SHUTDOWN_TIMEOUT", value_name = "DURATION")]
    pub shutdown_timeout: Option<Span>,
    /// For a new connection to Redis [default: 500ms]
    #[arg(long, env = "BUDGETD_REDIS_CONNECT_TIMEOUT", value_name = "DURATION")]
    pub redis_connect_timeout: Option<Span>,
    /// For a free connection to Redis [default: 50ms]
    #[arg(long, env = "BUDGETD_REDIS_WAIT_TIMEOUT", value_name = "DURATION")]
    pub redis_wait_timeout: Option<Span>,
    /// For an answer of Redis [default: 100ms]
    #[arg(long, env = "BUDGETD_REDIS_RESPONSE_TIMEOUT", value_name = "DURATION")]
    pub redis_response_timeout: Option<Span>,
    /// Connections to Redis [default: 4]
    #[arg(long, env = "BUDGETD_REDIS_POOL_SIZE", value_name = "COUNT")]
    pub redis_pool_size: Option<usize>,
    /// Time limits of leases: in a settings file only.
    #[arg(skip)]
    pub timing: Option<Box<TimingSettings>>,
}

/// In the environment variables of OpenTelemetry, empty means not set.
pub(super) fn given<T: AsRef<OsStr>>(value: Option<T>) -> Option<T> {
    value.filter(|value| !value.as_ref().is_empty())
}

/// A text that may hold a password. Only [`Secret::reveal`] shows it.
#[derive(Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

/// A duration, written `200ms`, `5s`, `1m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Span(pub Duration);

// === impl Settings ===

impl Settings {
    /// Reads a settings file.
    ///
    /// # Errors
    /// What is wrong and in which line; the line itself is not shown, since it may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text.bytes().take(span.start).filter(|b| *b == b'\n').count());
            format!("line {line}: {}", error.message())
        })
    }

    /// These settings, and where they are silent, `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            listen: self.listen.or(other.listen),
            http: self.http.or(other.http),
            tls_cert: self.tls_cert.or(other.tls_cert),
            tls_key: self.tls_key.or(other.tls_key),
            tls_client_ca: self.tls_client_ca.or(other.tls_client_ca),
            auth: self.auth.or(other.auth),
            upstream_ca: self.upstream_ca.or(other.upstream_ca),
            upstream_cert: self.upstream_cert.or(other.upstream_cert),
            upstream_key: self.upstream_key.or(other.upstream_key),
            upstream_token_file: self.upstream_token_file.or(other.upstream_token_file),
            insecure: self.insecure.or(other.insecure),
            store: self.store.or(other.store),
            prefix: self.prefix.or(other.prefix),
            lease: self.lease.or(other.lease),
            holder_id: self.holder_id.or(other.holder_id),
            no_leases_out: self.no_leases_out.or(other.no_leases_out),
            policy: self.policy.or(other.policy),
            ready_file: self.ready_file.or(other.ready_file),
            otlp_endpoint: given(self.otlp_endpoint).or_else(|| given(other.otlp_endpoint)),
            otlp_ca: given(self.otlp_ca).or_else(|| given(other.otlp_ca)),
            service_name: given(self.service_name).or_else(|| given(other.service_name)),
            trace_sample: self.trace_sample.or(other.trace_sample),
            otlp_interval: self.otlp_interval.or(other.otlp_interval),
            log_format: self.log_format.or(other.log_format),
            log_level: self.log_level.or(other.log_level),
            call_timeout: self.call_timeout.or(other.call_timeout),
            max_concurrent: self.max_concurrent.or(other.max_concurrent),
            max_connections: self.max_connections.or(other.max_connections),
            shutdown_timeout: self.shutdown_timeout.or(other.shutdown_timeout),
            redis_connect_timeout: self.redis_connect_timeout.or(other.redis_connect_timeout),
            redis_wait_timeout: self.redis_wait_timeout.or(other.redis_wait_timeout),
            redis_response_timeout: self.redis_response_timeout.or(other.redis_response_timeout),
            redis_pool_size: self.redis_pool_size.or(other.redis_pool_size),
            timing: self.timing.or(other.timing),
        }
    }
}

// === impl Secret ===

impl Secret {
    /// Hides a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself; never for logs and errors.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl FromStr for Secret {
    // Never an error: clap would show the value.
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::new(text))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

// === impl Span ===

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ms = parse_duration_ms(text).map_err(|error| error.to_string())?;
        Ok(Self(Duration::from_millis(u64::try_from(ms).unwrap_or(0))))
    }
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_duration_ms(i64::try_from(self.0.as_millis()).unwrap_or(i64::MAX)))
    }
}
