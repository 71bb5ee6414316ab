//! Puts the daemon together: binds, serves, and ends in time.

mod background;
mod guarding;
mod health;
pub mod incoming;
mod redis;
#[cfg(test)]
mod tests;

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use budget_client::{
    Coordinators,
    leasing::{Leasing, LeasingOptions},
};
use budget_proto::pb::{
    FILE_DESCRIPTOR_SET, budget_admin_server::BudgetAdminServer, retry_budget_server::RetryBudgetServer,
};
use tokio::{net::TcpListener, task::JoinSet, time::timeout};
use tonic::transport::server::Router;
use tower::layer::util::{Identity, Stack};

use crate::{
    clock::Clock,
    config::{Config, Listen, ServerLimits, StoreChoice},
    http::{self, Asker, Http},
    policies::{Policies, PoliciesError, repository::MemoryRepository},
    security::{Guard, InvalidFile, Port, Security},
    service::{Admin, Budgets, Complaints, Core, Permitted, StoreKind},
    shutdown::Stop,
    store::{
        Store,
        fallback::{Sharers, WithFallback},
        leased::{Lender, Scope, WithLeases},
        memory::MemoryStore,
        redis::{InvalidConfig, Redis, RedisRepository, RedisStore, format::too_new},
        upstream::Upstream,
    },
    telemetry::{Telemetry, TelemetryError},
};
use guarding::Guarding;
use health::Health;
use incoming::{Connections, Door, Listening, Rules};

/// Bytes a gRPC client sends before anything else: the preface of HTTP/2.
const PREFACE_BYTES: usize = 24;
/// The shortest HTTP/1.1 request line.
const REQUEST_LINE_BYTES: usize = 14;
/// Connections for metrics and health at a time.
const HTTP_CONNECTIONS: usize = 256;
/// After connections were cut, until their tasks have noticed.
const CUT_TIMEOUT: Duration = Duration::from_secs(1);

/// After the last call, for giving leases back.
const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the state of other budgetd is looked at.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);

/// A daemon that is bound and does not serve yet.
#[derive(Debug)]
pub struct Server {
    config: Config,
    clock: Clock,
    telemetry: Arc<Telemetry>,
    security: Arc<Security>,
    grpc: Listening,
    http: TcpListener,
    addresses: Addresses,
}

/// Where a daemon is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// gRPC.
    pub grpc: Listen,
    /// Metrics and health.
    pub http: SocketAddr,
}

/// Why a daemon does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An address cannot be bound.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// As configured.
        address: String,
        /// Why not.
        error: io::Error,
    },
    /// Certificates, keys or roles cannot be used.
    #[error(transparent)]
    Security(#[from] InvalidFile),
    /// The policies cannot be read.
    #[error(transparent)]
    Policies(#[from] PoliciesError),
    /// The ready file cannot be written.
    #[error("cannot write ready file {}: {error}", path.display())]
    ReadyFile {
        /// As configured.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Metrics cannot be set up.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// Reflection cannot be set up.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The gRPC server failed.
    #[error("gRPC server: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// The Redis store's settings.
    #[error(transparent)]
    Redis(#[from] InvalidConfig),
    /// A later release has written to the store.
    #[error("{}", too_new(*.0))]
    TooNew(u8),
    /// Leases cannot be held.
    #[error("leases: {0}")]
    Leases(#[from] budget_client::Error),
}

/// The tonic server with the bounds of `limits`; the load test builds its baseline with it.
#[must_use]
pub fn grpc_server(limits: &ServerLimits) -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .max_concurrent_streams(limits.streams_per_connection)
        // Callers that share a connection may all give up at once; that must not cut the others off.
        .http2_max_pending_accept_reset_streams(usize::try_from(limits.streams_per_connection).ok())
        .http2_max_header_list_size(limits.header_bytes)
        .http2_keepalive_interval(Some(limits.keepalive_interval))
        .http2_keepalive_timeout(Some(limits.keepalive_timeout))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
}

/// What a client may send ahead on one stream: many calls of a session.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// And on one connection.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;

// === impl Server ===

impl Server {
    /// Binds; port 0 lets the system choose.
    ///
    /// # Errors
    /// If an address cannot be bound.
    pub async fn bind(config: Config) -> Result<Self, ServeError> {
        let failed = |address: &dyn ToString| {
            let address = address.to_string();
            move |error| ServeError::Bind { address, error }
        };
        let security = Arc::new(Security::load(config.security.clone())?);
        let grpc = Listening::bind(&config.listen).await.map_err(failed(&config.listen))?;
        let http = TcpListener::bind(config.http).await.map_err(failed(&config.http))?;
        let addresses = Addresses {
            grpc: grpc.address().map_err(failed(&config.listen))?,
            http: http.local_addr().map_err(failed(&config.http))?,
        };
        let telemetry = match &config.otlp {
            Some(otlp) => Telemetry::sending(otlp)?,
            None => Telemetry::new()?,
        };
        let telemetry = Arc::new(telemetry);
        Ok(Self { config, clock: Clock::system(), telemetry, security, grpc, http, addresses })
    }

    /// Where it will be found.
    #[must_use]
    pub const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// What it counts.
    #[must_use]
    pub fn telemetry(&self) -> Arc<Telemetry> {
        Arc::clone(&self.telemetry)
    }

    /// Has ledgers live by another clock; for tests.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Serves until `shutdown` ends, and then until all calls are finished, or the time for that is over.
    ///
    /// # Errors
    /// If it cannot begin to serve.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        let (policy_file, timing) = (self.config.policy.as_deref(), self.config.timing);
        if timing.unsafe_short {
            tracing::warn!("timing.unsafe_short: leases may outlive their charge, and the bound does not hold");
        }
        match &self.config.store {
            StoreChoice::Memory => {
                tracing::warn!("the memory store serves a single node: replicas would not share their budgets");
                let (repository, clock) = (MemoryRepository::default(), self.clock.clone());
                let policies = Arc::new(Policies::start_timed(repository, policy_file, timing, clock).await?);
                let mut store = MemoryStore::new(Arc::clone(&policies), self.clock.clone());
                if self.config.no_leases_out {
                    tracing::warn!("an operator's word: no lease of an earlier daemon is in use");
                    store = store.with_no_leases_out();
                }
                let store = Arc::new(store);
                self.telemetry.store.set_up(true);
                let mut tasks = JoinSet::new();
                let (sweeper, beating) = (Arc::clone(&store), Arc::clone(&store));
                tasks.spawn(async move { sweeper.sweep().await });
                tasks.spawn(async move { beating.beats().await });
                let sharers = Arc::new(Sharers::new(1));
                self.serve_store(store, StoreKind::MEMORY, (policies, sharers), tasks, shutdown).await
            }
            StoreChoice::Redis(choice) => {
                let redis = Redis::start(redis::judge(choice)?, self.clock.clone()).await;
                if let Some(format) = redis.too_new() {
                    return Err(ServeError::TooNew(format));
                }
                let mut tasks = JoinSet::new();
                redis::show(&redis, &self.telemetry, &mut tasks);
                let repository = RedisRepository::new(Arc::clone(&redis));
                let clock = self.clock.clone();
                let policies = Arc::new(Policies::start_timed(repository, policy_file, timing, clock).await?);
                let sharers = Arc::new(Sharers::new(1));
                let word = self.config.no_leases_out;
                if word {
                    tracing::warn!("an operator's word: no lease given through this server is in use");
                }
                let ledgers = RedisStore::start(redis, Arc::clone(&policies), Arc::clone(&sharers), word).await;
                let replicas = Arc::clone(&sharers);
                let store = WithFallback::new(ledgers, Arc::clone(&policies), replicas, self.clock.clone());
                let store = Arc::new(store);
                if !self.config.lease {
                    return self.serve_store(store, StoreKind::REDIS, (policies, sharers), tasks, shutdown).await;
                }
                let options = leasing_options(&self.config);
                let timeout = options.sync_timeout;
                let lender = Lender::new(Arc::clone(&store), Arc::clone(&policies), Arc::clone(&sharers), timeout);
                let leasing = Leasing::start(lender, options)?;
                let store = WithLeases::new(store, Arc::clone(&policies), leasing.clone(), Scope::Permitted);
                let served = self.serve_store(Arc::new(store), StoreKind::REDIS, (policies, sharers), tasks, shutdown);
                served.await?;
                give_back(&leasing).await;
                Ok(())
            }
            StoreChoice::Upstream(endpoints) => {
                let options = LeasingOptions { lends: true, ..leasing_options(&self.config) };
                let coordinators =
                    Coordinators::new(endpoints.clone(), &upstream_options(&self.config), options.sync_timeout)?;
                let leasing = Leasing::start(coordinators.clone(), options)?;
                let mut tasks = JoinSet::new();
                tasks.spawn(follow(coordinators.clone(), Arc::clone(&self.telemetry)));
                let (repository, clock) = (MemoryRepository::default(), self.clock.clone());
                let policies = Arc::new(Policies::start_timed(repository, None, timing, clock).await?);
                let sharers = Arc::new(Sharers::new(1));
                let upstream = Upstream::new(coordinators, leasing.clone());
                let replicas = Arc::clone(&sharers);
                let inner = WithFallback::new(upstream, Arc::clone(&policies), replicas, self.clock.clone());
                let store = WithLeases::new(Arc::new(inner), Arc::clone(&policies), leasing.clone(), Scope::All);
                let kind = StoreKind::UPSTREAM;
                self.serve_store(Arc::new(store), kind, (policies, sharers), tasks, shutdown).await?;
                give_back(&leasing).await;
                Ok(())
            }
        }
    }

    async fn serve_store<S: Store>(
        self,
        store: Arc<S>,
        store_kind: StoreKind,
        (policies, sharers): (Arc<Policies>, Arc<Sharers>),
        mut tasks: JoinSet<()>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let Self { config, clock, telemetry, security, grpc, http, addresses } = self;
        let stop = Stop::new();
        let limits = config.limits.clone();
        let core = Arc::new(Core {
            store,
            store_kind,
            policies,
            decisions: Arc::clone(&telemetry.decisions),
            store_health: Arc::clone(&telemetry.store),
            limits: limits.clone(),
            sharers,
            clock,
            stop: stop.clone(),
            complaints: Complaints::default(),
            sight: Arc::default(),
            traces: Arc::clone(&telemetry.traces),
        });
        background::spawn(&core, config.policy.clone(), &telemetry, &mut tasks);

        let health = Health::starting(telemetry.store.state(), &stop).await;
        tasks.spawn(health.clone().follow(telemetry.store.watch(), stop.clone()));
        let opening_timeout = limits.handshake_timeout;
        let rules = Rules::new(limits.connections, PREFACE_BYTES, opening_timeout);
        let grpc_door = Door::new(grpc, rules).with_tls(security.tls(), Port::Grpc);
        let grpc_connections = grpc_door.connections();
        background::register_connections(&telemetry, &grpc_connections);
        background::secure(&security, &telemetry, &grpc_connections, &mut tasks);
        let router = routes(&core, &health, security.guard())?;
        let grpc = router.serve_with_incoming_shutdown(grpc_door.into_stream(), stop.begun());

        let http_rules = Rules::new(HTTP_CONNECTIONS, REQUEST_LINE_BYTES, opening_timeout);
        let http_door = Door::new(Listening::Tcp(http), http_rules).with_tls(security.tls(), Port::Http);
        let http_connections = http_door.connections();
        let http_stop = Stop::new();
        let answers = Http::new(Arc::clone(&telemetry), store_kind.name, stop.clone(), Arc::clone(security.guard()));
        let routes = http::router(answers.with_policies(Arc::clone(&core.policies)));
        let routes = routes.into_make_service_with_connect_info::<Asker>();
        let http = axum::serve(http_door, routes).with_graceful_shutdown(http_stop.begun());
        tasks.spawn(async move {
            if let Err(error) = http.await {
                tracing::error!(%error, "HTTP server");
            }
        });

        if let Some(path) = &config.ready_file {
            write_ready_file(path, &addresses).map_err(|error| ServeError::ReadyFile { path: path.clone(), error })?;
        }
        tracing::info!(grpc = %addresses.grpc, http = %addresses.http, store = store_kind.name, "serving");

        let mut grpc = std::pin::pin!(grpc);
        tokio::select! {
            ended = &mut grpc => return Ok(ended?),
            () = shutdown => {}
        }
        // No longer ready; no further connections; sessions end; what is in flight finishes.
        stop.begin();
        health.stop().await;
        grpc_connections.cut_silent();
        if timeout(config.shutdown_timeout, &mut grpc).await.is_err() {
            let cut = grpc_connections.cut_all();
            tracing::warn!(cut, "calls did not finish in time; their connections were cut");
            let _noticed = timeout(CUT_TIMEOUT, &mut grpc).await;
        }
        http_stop.begin();
        end_http(&http_connections).await;
        telemetry.end().await;
        tracing::info!("ended");
        Ok(())
    }
}

/// Answers to probes may still be on their way; nobody else is waited for.
async fn end_http(connections: &Connections) {
    connections.cut_silent();
    tokio::task::yield_now().await;
    connections.cut_all();
}

fn routes<S: Store>(
    core: &Arc<Core<S>>,
    health: &Health,
    guard: &Arc<Guard>,
) -> Result<Router<Stack<Guarding, Identity>>, ServeError> {
    let limits = &core.limits;
    let budgets = RetryBudgetServer::new(Budgets::new(Arc::clone(core)));
    let admin = BudgetAdminServer::new(Permitted::new(Admin::new(Arc::clone(core))));
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let (v1, v1alpha) = (reflection().build_v1()?, reflection().build_v1alpha()?);
    Ok(grpc_server(limits)
        .layer(Guarding(Arc::clone(guard)))
        .add_service(budgets.max_decoding_message_size(limits.message_bytes))
        .add_service(admin.max_decoding_message_size(limits.message_bytes))
        .add_service(health.service().max_decoding_message_size(limits.message_bytes))
        .add_service(v1.max_decoding_message_size(limits.message_bytes))
        .add_service(v1alpha.max_decoding_message_size(limits.message_bytes)))
}

fn leasing_options(config: &Config) -> LeasingOptions {
    LeasingOptions { holder_id: config.holder_id.clone(), timing: config.timing.limits, ..LeasingOptions::default() }
}

fn upstream_options(config: &Config) -> budget_client::Options {
    budget_client::Options { credentials: config.upstream.clone(), ..budget_client::Options::default() }
}

/// Others have the leases at once, not only when their curves end.
async fn give_back(leasing: &Leasing) {
    if !leasing.leave(GIVE_BACK_TIMEOUT).await {
        tracing::warn!("leases could not be given back: they end by their curves");
    }
}

/// Shows whether any of the coordinators answers.
async fn follow(coordinators: Coordinators, telemetry: Arc<Telemetry>) {
    let mut rounds = tokio::time::interval(FOLLOW_EVERY);
    loop {
        rounds.tick().await;
        telemetry.store.set_up(coordinators.is_reachable());
    }
}

/// Complete or not there: a reader never sees half of it.
fn write_ready_file(path: &Path, addresses: &Addresses) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let ready = serde_json::json!({ "grpc": addresses.grpc.to_string(), "http": addresses.http.to_string() });
    fs::write(&beside, format!("{ready}\n"))?;
    fs::rename(&beside, path)
}
