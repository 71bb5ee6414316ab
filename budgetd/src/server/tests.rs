//! A daemon in this process, over real connections. Nothing here sleeps: what has to happen is waited for, with a bound.
#![allow(clippy::unwrap_used, reason = "tests")]

mod admin;
mod bounds;
mod calls;
mod cancelled;
mod health;
mod leases;
mod roles;
mod session;
mod stopping;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use budget::{
    decision::Step,
    ids::DependencyId,
    lease::{HolderId, SyncAsk, Synced},
    ledger::{HolderView, View},
};
use budget_proto::pb::{self, budget_admin_client::BudgetAdminClient, retry_budget_client::RetryBudgetClient};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{sleep, timeout_at},
};
use tonic::transport::{Channel, Endpoint};

use super::*;
use crate::{
    clock::Hands,
    store::{Answered, StoreError},
};

/// When ledgers begin.
const START_MS: i64 = 1_700_000_000_000;
/// Anything that takes longer hangs.
const BOUND: Duration = Duration::from_secs(30);

/// Keeps steps until it is opened.
struct Gated {
    inner: MemoryStore,
    open: watch::Receiver<bool>,
    waiting: AtomicUsize,
}

struct Daemon {
    addresses: Addresses,
    telemetry: Arc<Telemetry>,
    store: Arc<Gated>,
    gate: watch::Sender<bool>,
    hands: Hands,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
}

/// Counts a waiting step, also if it is dropped.
struct Waits<'a>(&'a AtomicUsize);

// === impl Gated ===

impl<'a> Waits<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Gated {
    async fn pass(&self, deadline: Instant) -> Result<(), StoreError> {
        let mut open = self.open.clone();
        if !*open.borrow() {
            let _waits = Waits::new(&self.waiting);
            let opened = timeout_at(deadline.into(), open.wait_for(|open| *open)).await;
            opened.map_err(|_| StoreError::DeadlinePassed)?.map_err(|_| StoreError::Away("gate is gone".into()))?;
        }
        Ok(())
    }
}

impl Store for Gated {
    async fn step(&self, dependency: &DependencyId, step: Step, deadline: Instant) -> Result<Answered, StoreError> {
        self.pass(deadline).await?;
        self.inner.step(dependency, step, deadline).await
    }

    async fn view(&self, dependency: &DependencyId, deadline: Instant) -> Result<Option<View>, StoreError> {
        self.inner.view(dependency, deadline).await
    }

    async fn known(
        &self,
        after: Option<&str>,
        limit: usize,
        deadline: Instant,
    ) -> Result<Vec<DependencyId>, StoreError> {
        self.inner.known(after, limit, deadline).await
    }

    async fn sync(&self, dependency: &DependencyId, ask: SyncAsk, deadline: Instant) -> Result<Synced, StoreError> {
        self.pass(deadline).await?;
        self.inner.sync(dependency, ask, deadline).await
    }

    async fn list_holders(
        &self,
        dependency: &DependencyId,
        after: Option<&HolderId>,
        limit: usize,
        deadline: Instant,
    ) -> Result<Vec<HolderView>, StoreError> {
        self.inner.list_holders(dependency, after, limit, deadline).await
    }

    async fn revoke(
        &self,
        dependency: &DependencyId,
        holder: &HolderId,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        self.inner.revoke(dependency, holder, deadline).await
    }
}

// === impl Daemon ===

impl Daemon {
    async fn start(policies: &str) -> Self {
        Self::start_with(policies, |_| {}).await
    }

    /// The store's health is left to the test if it is not told to be contacted.
    async fn start_with(policies: &str, change: impl FnOnce(&mut Config)) -> Self {
        let daemon = Self::start_uncontacted(policies, change).await;
        daemon.telemetry.store.set_up(true);
        daemon
    }

    async fn start_uncontacted(policies: &str, change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("policy.toml");
        fs::write(&file, policies).unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = Config { listen: Listen::Tcp(any), http: any, ..Config::default() };
        change(&mut config);
        let (clock, hands) = Clock::manual(START_MS);
        let policies = Arc::new(Policies::start(MemoryRepository::default(), Some(&file)).await.unwrap());
        let (gate, open) = watch::channel(true);
        let inner = MemoryStore::new(Arc::clone(&policies), clock.clone()).with_no_leases_out();
        let store = Arc::new(Gated { inner, open, waiting: AtomicUsize::new(0) });
        let server = Server::bind(config).await.unwrap().with_clock(clock);
        let (addresses, telemetry) = (server.addresses().clone(), server.telemetry());
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(server.serve_store(
            Arc::clone(&store),
            StoreKind::MEMORY,
            (policies, Arc::new(Sharers::new(1))),
            JoinSet::new(),
            async move { drop(stopped.await) },
        ));
        Self { addresses, telemetry, store, gate, hands, stop, serving }
    }

    async fn channel(&self) -> Channel {
        let uri = match &self.addresses.grpc {
            Listen::Tcp(address) => format!("http://{address}"),
            Listen::Unix(path) => format!("unix://{}", path.display()),
        };
        bounded(Endpoint::try_from(uri).unwrap().connect()).await.unwrap()
    }

    async fn budgets(&self) -> RetryBudgetClient<Channel> {
        RetryBudgetClient::new(self.channel().await)
    }

    async fn admin(&self) -> BudgetAdminClient<Channel> {
        BudgetAdminClient::new(self.channel().await)
    }

    async fn raw(&self) -> TcpStream {
        TcpStream::connect(self.addresses.grpc.tcp().unwrap()).await.unwrap()
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.addresses.http).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        bounded(stream.read_to_string(&mut answer)).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// The value of a metric whose line begins so.
    fn metric(&self, line: &str) -> Option<f64> {
        let text = String::from_utf8(self.telemetry.scrape().unwrap()).unwrap();
        let value = text.lines().find_map(|found| found.strip_prefix(line))?;
        value.trim().parse().ok()
    }

    /// Ends the daemon, in time.
    async fn end(self) -> Duration {
        let begun = Clock::instant();
        self.stop.send(()).expect("it serves");
        bounded(self.serving).await.unwrap().unwrap();
        Clock::instant() - begun
    }
}

async fn bounded<T>(future: impl IntoFuture<Output = T>) -> T {
    timeout(BOUND, future).await.expect("it hangs")
}

/// Waits until something that happens elsewhere is so.
async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begun = Clock::instant();
    while !is_so() {
        assert!(Clock::instant() - begun < BOUND, "never: {what}");
        sleep(Duration::from_millis(1)).await;
    }
}

fn id(number: u64) -> Vec<u8> {
    u128::from(number).to_be_bytes().to_vec()
}

fn original(dependency: &str, number: u64) -> pb::ReserveRequest {
    pb::ReserveRequest {
        dependency: dependency.into(),
        reservation_id: id(number),
        attempt: Some(pb::Attempt { number: 1, cause: None }),
        ..Default::default()
    }
}

fn success(dependency: &str, number: u64) -> pb::ReleaseRequest {
    let sent = pb::Sent { outcome: pb::Outcome::Success.into(), ..Default::default() };
    pb::ReleaseRequest {
        dependency: dependency.into(),
        reservation_id: id(number),
        r#use: Some(pb::release_request::Use::Sent(sent)),
        operation_id: None,
    }
}

fn admitted(response: pb::ReserveResponse) -> pb::Admitted {
    match response.decision.unwrap() {
        pb::reserve_response::Decision::Admitted(admitted) => admitted,
        pb::reserve_response::Decision::Denied(denied) => panic!("denied: {denied:?}"),
    }
}

fn denied(response: pb::ReserveResponse) -> pb::Denied {
    match response.decision.unwrap() {
        pb::reserve_response::Decision::Denied(denied) => denied,
        pb::reserve_response::Decision::Admitted(admitted) => panic!("admitted: {admitted:?}"),
    }
}
