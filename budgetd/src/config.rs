//! Settings of the daemon: flags beat environment, environment beats file, file beats default.
//!
//! [`ServeArgs`] is what was written where; [`Config`] is judged and complete. A store's URL may carry a password: it is
//! parsed only here, never by clap or serde, whose errors would show it, and [`Secret`] keeps it out of logs.

mod exporting;
mod listen;
mod secured;
mod settings;
#[cfg(test)]
mod tests;
mod timing;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use budget::{lease::HolderId, policy::InvalidPolicy};
use budget_client::Credentials;

use crate::security::SecurityFiles;

pub use exporting::Otlp;
pub use listen::Listen;
pub use settings::{Secret, ServeArgs, Settings, Span};
pub use timing::{LeaseTiming, TimingSettings};

/// Longest prefix of keys in the store, in bytes.
const PREFIX_BYTES_MAX: usize = 64;
/// Upper bound of every counting setting.
const COUNT_MAX: usize = 1_000_000;

/// Complete and judged.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where gRPC is served.
    pub listen: Listen,
    /// Where metrics and health are served.
    pub http: SocketAddr,
    /// Who may connect and do what.
    pub security: SecurityFiles,
    /// What an agent shows those it asks.
    pub upstream: Credentials,
    /// Where ledgers live.
    pub store: StoreChoice,
    /// An operator's word that no lease of an earlier daemon is in use.
    pub no_leases_out: bool,
    /// Reserve is answered from leases that this daemon holds on its store.
    pub lease: bool,
    /// The name those leases are held under; none: a random one.
    pub holder_id: Option<HolderId>,
    /// A file of policies, imported when its content has changed.
    pub policy: Option<PathBuf>,
    /// Written once the daemon serves.
    pub ready_file: Option<PathBuf>,
    /// Bounds of the server.
    pub limits: ServerLimits,
    /// Time limits of leases.
    pub timing: LeaseTiming,
    /// How long calls may take to finish once the daemon shall end.
    pub shutdown_timeout: Duration,
    /// Where metrics and spans are sent; none: nowhere.
    pub otlp: Option<Otlp>,
    /// Form of the log.
    pub log_format: LogFormat,
    /// What is logged, in the syntax of `tracing_subscriber::EnvFilter`.
    pub log_level: String,
}

/// Which store, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChoice {
    /// In this process: a single node.
    Memory,
    /// Redis or Valkey, shared by all replicas.
    Redis(RedisChoice),
    /// Other budgetd, of which one is asked: this one is the agent of a host.
    Upstream(Vec<String>),
}

/// How Redis is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisChoice {
    /// With user and password, if any.
    pub url: Secret,
    /// The namespace: what all keys start with.
    pub prefix: String,
    /// For a new connection.
    pub connect_timeout: Duration,
    /// For a free connection of the pool.
    pub wait_timeout: Duration,
    /// For an answer.
    pub response_timeout: Duration,
    /// Connections.
    pub pool_size: usize,
}

/// Bounds of the gRPC server. Nothing a caller does makes it hold more than these allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Connections at a time; further ones are closed at once.
    pub connections: usize,
    /// Streams of one connection.
    pub streams_per_connection: u32,
    /// Calls that wait for the store at a time; further ones are answered RESOURCE_EXHAUSTED.
    pub calls: usize,
    /// Unanswered calls of one Session; the server reads on when one is answered.
    pub session_unanswered: usize,
    /// For a call that brings no deadline of its own.
    pub call_timeout: Duration,
    /// For a new connection to begin to speak HTTP/2.
    pub handshake_timeout: Duration,
    /// Bytes of one request.
    pub message_bytes: usize,
    /// Bytes of the headers of one request.
    pub header_bytes: u32,
    /// A connection without traffic is probed this often.
    pub keepalive_interval: Duration,
    /// And closed if the probe is not answered in time.
    pub keepalive_timeout: Duration,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// For people.
    Text,
    /// For machines, one object per line.
    Json,
}

/// A setting that is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    /// One setting breaks its rule.
    #[error("{name} is {value}: {rule}")]
    Setting {
        /// The flag without its dashes.
        name: &'static str,
        /// What was given; a secret is not shown.
        value: String,
        /// What is required.
        rule: String,
    },
    /// Time limits of leases that do not fit each other.
    #[error(transparent)]
    Timing(#[from] InvalidPolicy),
    /// The settings file cannot be read.
    #[error("settings file {}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not; names line and key.
        why: String,
    },
}

// === impl ServerLimits ===

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 4096,
            streams_per_connection: 1024,
            calls: 65_536,
            session_unanswered: 1024,
            call_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(5),
            message_bytes: 1024 * 1024,
            header_bytes: 16 * 1024,
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
        }
    }
}

// === impl Config ===

impl Config {
    /// Reads the file if one is named, and judges all settings.
    ///
    /// # Errors
    /// The first setting that breaks its rule, or the reason why the file cannot be read.
    pub fn load(args: ServeArgs) -> Result<Self, InvalidConfig> {
        Self::judge(match args.config {
            None => args.settings,
            Some(path) => args.settings.or(read(&path)?),
        })
    }

    /// The time limits of leases in a settings file.
    ///
    /// # Errors
    /// If the file cannot be read, or a limit breaks its rule.
    pub fn timing_of(path: &Path) -> Result<LeaseTiming, InvalidConfig> {
        Ok(read(path)?.timing.unwrap_or_default().judge()?)
    }

    /// Fills in defaults and judges.
    ///
    /// # Errors
    /// The first setting that breaks its rule.
    pub fn judge(settings: Settings) -> Result<Self, InvalidConfig> {
        let defaults = ServerLimits::default();
        let store = judge_store(&settings)?;
        let security = secured::judge_files(&settings)?;
        let upstream = secured::judge_upstream(&settings, &store)?;
        let otlp = exporting::judge(&settings)?;
        let listen = settings.listen.unwrap_or_default();
        let http = settings.http.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 7412)));
        let insecure = settings.insecure.unwrap_or(false);
        secured::judge_exposure("listen", listen.tcp(), &security, insecure)?;
        secured::judge_exposure("http", Some(http), &security, insecure)?;
        let limits = ServerLimits {
            connections: count("max-connections", settings.max_connections, defaults.connections)?,
            calls: count("max-concurrent", settings.max_concurrent, defaults.calls)?,
            call_timeout: span("call-timeout", settings.call_timeout, defaults.call_timeout)?,
            ..defaults
        };
        let default_shutdown = Duration::from_secs(10);
        let no_leases_out = judge_word(&store, settings.no_leases_out.unwrap_or(false))?;
        let lease = judge_lease(&store, settings.lease)?;
        let holder_id = settings.holder_id.map(|name| judge_holder_id(&name)).transpose()?;
        judge_policy(&store, settings.policy.as_deref())?;
        Ok(Self {
            store,
            security,
            upstream,
            no_leases_out,
            lease,
            holder_id,
            shutdown_timeout: span("shutdown-timeout", settings.shutdown_timeout, default_shutdown)?,
            listen,
            http,
            policy: settings.policy,
            ready_file: settings.ready_file,
            limits,
            timing: settings.timing.unwrap_or_default().judge()?,
            otlp,
            log_format: settings.log_format.unwrap_or_default(),
            log_level: settings.log_level.unwrap_or_else(|| "info".to_owned()),
        })
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Listen::default(),
            http: SocketAddr::from(([127, 0, 0, 1], 7412)),
            security: SecurityFiles::default(),
            upstream: Credentials::default(),
            store: StoreChoice::Memory,
            no_leases_out: false,
            lease: false,
            holder_id: None,
            policy: None,
            ready_file: None,
            limits: ServerLimits::default(),
            timing: LeaseTiming::default(),
            shutdown_timeout: Duration::from_secs(10),
            otlp: None,
            log_format: LogFormat::Auto,
            log_level: "info".to_owned(),
        }
    }
}

fn read(path: &Path) -> Result<Settings, InvalidConfig> {
    let unreadable = |why: String| InvalidConfig::File { path: path.to_owned(), why };
    let text = fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    Settings::parse(&text).map_err(unreadable)
}

fn invalid(name: &'static str, value: impl ToString, rule: impl Into<String>) -> InvalidConfig {
    InvalidConfig::Setting { name, value: value.to_string(), rule: rule.into() }
}

/// An agent has no ledgers to begin.
fn judge_word(store: &StoreChoice, no_leases_out: bool) -> Result<bool, InvalidConfig> {
    match store {
        StoreChoice::Upstream(_) if no_leases_out => {
            let rule = "is a word to whoever has the ledgers: the budgetd that this agent asks";
            Err(invalid("no-leases-out", true, rule))
        }
        StoreChoice::Memory | StoreChoice::Redis(_) | StoreChoice::Upstream(_) => Ok(no_leases_out),
    }
}

/// An agent always leases; the memory store has nobody to lease from.
fn judge_lease(store: &StoreChoice, lease: Option<bool>) -> Result<bool, InvalidConfig> {
    match (store, lease) {
        (StoreChoice::Memory, Some(true)) => {
            Err(invalid("lease", true, "needs a store elsewhere: the memory store decides at once and in this process"))
        }
        (StoreChoice::Upstream(_), Some(false)) => {
            Err(invalid("lease", false, "is what an agent of other budgetd is for; ask those directly instead"))
        }
        (StoreChoice::Upstream(_), _) => Ok(true),
        (StoreChoice::Memory | StoreChoice::Redis(_), lease) => Ok(lease.unwrap_or(false)),
    }
}

fn judge_holder_id(name: &str) -> Result<HolderId, InvalidConfig> {
    HolderId::new(name).map_err(|rule| invalid("holder-id", format!("{name:?}"), rule.to_string()))
}

/// Whose policies are in force is not the agent's to say.
fn judge_policy(store: &StoreChoice, policy: Option<&Path>) -> Result<(), InvalidConfig> {
    match (store, policy) {
        (StoreChoice::Upstream(_), Some(policy)) => {
            let rule = "is for a daemon with a store of its own: an agent goes by the policies of those it asks";
            Err(invalid("policy", policy.display(), rule))
        }
        (StoreChoice::Upstream(_), None) | (StoreChoice::Memory | StoreChoice::Redis(_), _) => Ok(()),
    }
}

fn count(name: &'static str, given: Option<usize>, default: usize) -> Result<usize, InvalidConfig> {
    let value = given.unwrap_or(default);
    if (1..=COUNT_MAX).contains(&value) {
        return Ok(value);
    }
    Err(invalid(name, value, format!("must be between 1 and {COUNT_MAX}")))
}

fn span(name: &'static str, given: Option<Span>, default: Duration) -> Result<Duration, InvalidConfig> {
    let value = given.map_or(default, |span| span.0);
    if (Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&value) {
        return Ok(value);
    }
    Err(invalid(name, Span(value), "must be between 1ms and 1h"))
}

fn judge_store(settings: &Settings) -> Result<StoreChoice, InvalidConfig> {
    let prefix = settings.prefix.clone().unwrap_or_else(|| "budgetd".to_owned());
    let fits = (1..=PREFIX_BYTES_MAX).contains(&prefix.len());
    if !fits || prefix.chars().any(|c| c.is_control() || matches!(c, '{' | '}')) {
        let rule = format!("must be 1 to {PREFIX_BYTES_MAX} bytes without braces and control characters");
        return Err(invalid("prefix", format!("{prefix:?}"), rule));
    }
    let choice = RedisChoice {
        url: settings.store.clone().unwrap_or_else(|| Secret::new("memory")),
        prefix,
        connect_timeout: span("redis-connect-timeout", settings.redis_connect_timeout, Duration::from_millis(500))?,
        wait_timeout: span("redis-wait-timeout", settings.redis_wait_timeout, Duration::from_millis(50))?,
        response_timeout: span("redis-response-timeout", settings.redis_response_timeout, Duration::from_millis(100))?,
        pool_size: count("redis-pool-size", settings.redis_pool_size, 4)?,
    };
    let schemes = ["redis://", "rediss://", "unix://", "redis+unix://", "valkey://", "valkeys://"];
    match choice.url.reveal() {
        "memory" => Ok(StoreChoice::Memory),
        url if url.starts_with("grpc://") || url.starts_with("grpcs://") => {
            judge_upstream(url).map(StoreChoice::Upstream)
        }
        url if schemes.iter().any(|scheme| url.starts_with(scheme)) => Ok(StoreChoice::Redis(choice)),
        // What was given may hold a password, so it is not shown.
        _ => Err(invalid("store", "something else", "must be memory, or a URL such as redis://host:6379")),
    }
}

/// `grpc://host:port` or `grpcs://host:port`, or several of one kind, separated by commas.
fn judge_upstream(url: &str) -> Result<Vec<String>, InvalidConfig> {
    let (scheme, to) = if url.starts_with("grpcs://") { ("grpcs://", "https") } else { ("grpc://", "http") };
    let hosts = url.trim_start_matches(scheme).split(',').map(|host| host.trim().trim_start_matches(scheme));
    hosts
        .map(|host| {
            let port = host.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse::<u16>().ok()?)));
            match port {
                Some((name, 1..)) if !name.is_empty() && !host.contains(['/', '@', '?', '#']) => {
                    Ok(format!("{to}://{host}"))
                }
                // What stands before an '@' may be a password.
                Some(_) | None => {
                    let shown = host.rsplit_once('@').map_or(host, |(_, host)| host);
                    Err(invalid(
                        "store",
                        shown,
                        "must look like grpc://host:port or grpcs://host:port, several of one kind separated by commas",
                    ))
                }
            }
        })
        .collect()
}
