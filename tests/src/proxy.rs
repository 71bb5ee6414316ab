//! A proxy that stands between two processes and misbehaves on request: it cuts, holds back, refuses, delays.
//!
//! Nothing here is random and nothing sleeps, but for the delay asked for by [`Proxy::delay`]: a test holds traffic
//! until it releases it, and sees by the counts what has passed.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep_until},
};

use crate::{ports, redis_server, security};

/// Most chunks on their way in one direction of a connection; then the sender is held back, as by a full socket.
const CHUNKS_MAX: usize = 1024;
/// Largest chunk.
const CHUNK_BYTES_MAX: usize = 16 * 1024;
/// How often a listening port is looked for.
const BINDS_MAX: u32 = 20;

/// Where the proxy connects to, for each connection it accepts.
#[derive(Clone, Debug)]
pub enum Upstream {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A running proxy; dropping it closes everything.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    control: Arc<Control>,
    task: JoinHandle<()>,
}

/// What has passed so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// Bytes handed to the upstream.
    pub requests: u64,
    /// Bytes handed back.
    pub replies: u64,
    /// Bytes read from the client and not yet handed on: held, delayed, or lost by a cut.
    pub requests_held: u64,
    /// Bytes read from the upstream and not yet handed back: held, delayed, or lost by a cut.
    pub replies_held: u64,
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    Requests = 0,
    Replies = 1,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    /// By [`Direction`].
    flows: [bool; 2],
    listens: bool,
    delay: Duration,
}

#[derive(Debug)]
struct Control {
    settings: watch::Sender<Settings>,
    listening: watch::Sender<bool>,
    /// Connections hold receivers of the latest one; it is replaced at each cut.
    generation: Mutex<watch::Sender<bool>>,
    accepted: AtomicU64,
    open: AtomicU64,
    /// By [`Direction`].
    read: [AtomicU64; 2],
    written: [AtomicU64; 2],
}

/// Counts a connection as open while it lives.
struct Open<'a>(&'a AtomicU64);

// === impl Proxy ===

impl Proxy {
    /// Starts one that passes everything.
    ///
    /// # Panics
    /// If no port is to be had.
    pub async fn start(upstream: Upstream) -> Self {
        let (address, listener) = listen().await;
        let control = Arc::new(Control {
            settings: watch::Sender::new(Settings { flows: [true; 2], listens: true, delay: Duration::ZERO }),
            listening: watch::Sender::new(true),
            generation: Mutex::new(watch::Sender::new(false)),
            accepted: AtomicU64::new(0),
            open: AtomicU64::new(0),
            read: Default::default(),
            written: Default::default(),
        });
        let task = tokio::spawn(serve(listener, address, upstream, Arc::clone(&control)));
        Self { address, control, task }
    }

    /// Where it listens, also after [`Self::refuse`] and [`Self::accept`].
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// `redis://…` of this proxy, for budgetd's own user.
    #[must_use]
    pub fn redis_url(&self) -> String {
        redis_server::budgetd_url(self.address)
    }

    /// `http://…` of this proxy, for gRPC; `https://` where daemons are secured.
    #[must_use]
    pub fn endpoint(&self) -> String {
        security::endpoint(self.address)
    }

    /// What has passed so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let control = &self.control;
        let written = control.written.each_ref().map(|count| count.load(Ordering::Acquire));
        let read = control.read.each_ref().map(|count| count.load(Ordering::Acquire));
        Counts {
            accepted: control.accepted.load(Ordering::Acquire),
            open: control.open.load(Ordering::Acquire),
            requests: written[0],
            replies: written[1],
            requests_held: read[0].saturating_sub(written[0]),
            replies_held: read[1].saturating_sub(written[1]),
        }
    }

    /// Passes everything, what was held first, without delay.
    pub fn pass(&self) {
        self.set(|settings| (settings.flows, settings.delay) = ([true; 2], Duration::ZERO));
    }

    /// Keeps connections open, accepts new ones, and passes nothing on in either direction.
    pub fn blackhole(&self) {
        self.set(|settings| settings.flows = [false; 2]);
    }

    /// Passes no requests on; replies pass.
    pub fn hold_requests(&self) {
        self.set(|settings| settings.flows = [false, true]);
    }

    /// Passes requests on, holds the replies back: what is asked happens, and nobody hears of it.
    pub fn hold_replies(&self) {
        self.set(|settings| settings.flows = [true, false]);
    }

    /// Delays all that arrives from now on, in both directions each. It is real time: for load, not for ordering.
    pub fn delay(&self, delay: Duration) {
        self.set(|settings| settings.delay = delay);
    }

    /// Closes all open connections, and with them drops what is held. Returns when they are closed.
    ///
    /// New connections are accepted, but while [`Self::refuse`] holds.
    pub async fn cut(&self) {
        let old = {
            let mut generation = self.control.generation.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *generation, watch::Sender::new(false))
        };
        let _nobody_listens = old.send(true);
        old.closed().await;
    }

    /// Stops listening: new connections are refused, open ones live on.
    ///
    /// # Panics
    /// If the proxy has failed.
    pub async fn refuse(&self) {
        self.listen(false).await;
    }

    /// Listens again, on the same address.
    ///
    /// # Panics
    /// If somebody else took the port meanwhile.
    pub async fn accept(&self) {
        self.listen(true).await;
    }

    async fn listen(&self, listens: bool) {
        self.set(|settings| settings.listens = listens);
        let mut listening = self.control.listening.subscribe();
        tokio::select! {
            reached = listening.wait_for(|now| *now == listens) => drop(reached),
            () = async { while !self.task.is_finished() { tokio::task::yield_now().await; } } => {
                panic!("the proxy could not listen on {} again", self.address)
            }
        }
    }

    fn set(&self, change: impl FnOnce(&mut Settings)) {
        self.control.settings.send_modify(change);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Its connections are in a set that the task owns, so they end with it.
        self.task.abort();
    }
}

// === impl Open ===

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn listen() -> (SocketAddr, TcpListener) {
    for _ in 0..BINDS_MAX {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::pick()));
        if let Ok(listener) = TcpListener::bind(address).await {
            return (address, listener);
        }
    }
    panic!("somebody else took the port {BINDS_MAX} times");
}

async fn serve(listener: TcpListener, address: SocketAddr, upstream: Upstream, control: Arc<Control>) {
    let mut listener = Some(listener);
    let mut settings = control.settings.subscribe();
    let mut connections = JoinSet::new();
    loop {
        let listens = settings.borrow_and_update().listens;
        if listens && listener.is_none() {
            match TcpListener::bind(address).await {
                Ok(bound) => listener = Some(bound),
                Err(_) => return,
            }
        } else if !listens {
            listener = None;
        }
        control.listening.send_replace(listens);
        tokio::select! {
            accepted = accept(listener.as_ref()) => {
                if let Ok((client, _)) = accepted {
                    connections.spawn(connection(client, upstream.clone(), Arc::clone(&control)));
                }
            }
            changed = settings.changed() => if changed.is_err() { return },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

async fn connection(client: TcpStream, upstream: Upstream, control: Arc<Control>) {
    let mut cut = control.generation.lock().unwrap_or_else(PoisonError::into_inner).subscribe();
    control.accepted.fetch_add(1, Ordering::AcqRel);
    control.open.fetch_add(1, Ordering::AcqRel);
    let _open = Open(&control.open);
    let relayed = async {
        client.set_nodelay(true)?;
        match upstream {
            Upstream::Tcp(address) => {
                let server = TcpStream::connect(address).await?;
                server.set_nodelay(true)?;
                relay(client, server, &control).await
            }
            Upstream::Unix(path) => relay(client, UnixStream::connect(path).await?, &control).await,
        }
    };
    tokio::select! {
        _ = cut.changed() => {}
        // A broken connection is the business of those at its ends.
        _ = relayed => {}
    }
}

async fn relay<S: AsyncRead + AsyncWrite>(client: TcpStream, server: S, control: &Control) -> io::Result<()> {
    let (client_reads, client_writes) = tokio::io::split(client);
    let (server_reads, server_writes) = tokio::io::split(server);
    tokio::try_join!(
        pump(client_reads, server_writes, control, Direction::Requests),
        pump(server_reads, client_writes, control, Direction::Replies),
    )?;
    Ok(())
}

/// Carries bytes one way until their source ends, then says so to the other side.
async fn pump(
    reads: impl AsyncRead,
    writes: impl AsyncWrite,
    control: &Control,
    direction: Direction,
) -> io::Result<()> {
    let (chunks, arrived) = mpsc::channel(CHUNKS_MAX);
    tokio::try_join!(take_in(reads, chunks, control, direction), hand_on(arrived, writes, control, direction))?;
    Ok(())
}

async fn take_in(
    reads: impl AsyncRead,
    chunks: mpsc::Sender<(Option<Instant>, Vec<u8>)>,
    control: &Control,
    direction: Direction,
) -> io::Result<()> {
    tokio::pin!(reads);
    let mut buffer = vec![0; CHUNK_BYTES_MAX];
    loop {
        let length = reads.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        let delay = control.settings.borrow().delay;
        let due = (!delay.is_zero()).then(|| Instant::now() + delay);
        control.read[direction as usize].fetch_add(length as u64, Ordering::AcqRel);
        if chunks.send((due, buffer[..length].to_vec())).await.is_err() {
            return Ok(());
        }
    }
}

async fn hand_on(
    mut arrived: mpsc::Receiver<(Option<Instant>, Vec<u8>)>,
    writes: impl AsyncWrite,
    control: &Control,
    direction: Direction,
) -> io::Result<()> {
    tokio::pin!(writes);
    let mut settings = control.settings.subscribe();
    while let Some((due, chunk)) = arrived.recv().await {
        if let Some(due) = due {
            sleep_until(due).await;
        }
        let released = settings.wait_for(|settings| settings.flows[direction as usize]).await.is_ok();
        if !released {
            return Ok(());
        }
        writes.write_all(&chunk).await?;
        control.written[direction as usize].fetch_add(chunk.len() as u64, Ordering::AcqRel);
    }
    writes.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventually::eventually;

    const BOUND: Duration = Duration::from_secs(10);

    /// A server that says back what it hears, and a proxy before it.
    async fn echo() -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut reads, mut writes) = stream.split();
                    tokio::io::copy(&mut reads, &mut writes).await
                });
            }
        });
        Proxy::start(Upstream::Tcp(address)).await
    }

    async fn heard(stream: &mut TcpStream, length: usize) -> Vec<u8> {
        let mut heard = vec![0; length];
        tokio::time::timeout(BOUND, stream.read_exact(&mut heard)).await.unwrap().unwrap();
        heard
    }

    #[tokio::test]
    async fn passes_and_counts() {
        let proxy = echo().await;
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(b"hello").await.unwrap();
        assert_eq!(heard(&mut client, 5).await, b"hello");
        eventually(BOUND, "the reply is counted", async || proxy.counts().replies == 5).await;
        let expected = Counts { accepted: 1, open: 1, requests: 5, replies: 5, requests_held: 0, replies_held: 0 };
        assert_eq!(proxy.counts(), expected);
        client.shutdown().await.unwrap();
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
        eventually(BOUND, "the connection ends", async || proxy.counts().open == 0).await;
    }

    #[tokio::test]
    async fn holds_replies_until_released() {
        let proxy = echo().await;
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        proxy.hold_replies();
        client.write_all(b"hello").await.unwrap();
        eventually(BOUND, "the reply is held", async || proxy.counts().replies_held == 5).await;
        assert_eq!((proxy.counts().requests, proxy.counts().replies), (5, 0));
        proxy.pass();
        assert_eq!(heard(&mut client, 5).await, b"hello");
    }

    #[tokio::test]
    async fn a_blackhole_accepts_and_passes_nothing() {
        let proxy = echo().await;
        proxy.blackhole();
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(b"hello").await.unwrap();
        eventually(BOUND, "the request is held", async || proxy.counts().requests_held == 5).await;
        assert_eq!((proxy.counts().open, proxy.counts().requests), (1, 0));
    }

    #[tokio::test]
    async fn a_cut_closes_and_drops_what_is_held() {
        let proxy = echo().await;
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        proxy.hold_replies();
        client.write_all(b"hello").await.unwrap();
        eventually(BOUND, "the reply is held", async || proxy.counts().replies_held == 5).await;
        proxy.cut().await;
        assert_eq!(proxy.counts().open, 0);
        assert!(matches!(client.read(&mut [0; 8]).await, Ok(0) | Err(_)));
        proxy.pass();
        let mut again = TcpStream::connect(proxy.address()).await.unwrap();
        again.write_all(b"again").await.unwrap();
        assert_eq!(heard(&mut again, 5).await, b"again");
    }

    #[tokio::test]
    async fn refuses_new_connections_and_keeps_old_ones() {
        let proxy = echo().await;
        let mut old = TcpStream::connect(proxy.address()).await.unwrap();
        old.write_all(b"x").await.unwrap();
        heard(&mut old, 1).await;
        proxy.refuse().await;
        assert_eq!(TcpStream::connect(proxy.address()).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        old.write_all(b"y").await.unwrap();
        assert_eq!(heard(&mut old, 1).await, b"y");
        proxy.accept().await;
        TcpStream::connect(proxy.address()).await.unwrap();
    }

    #[tokio::test]
    async fn delays_each_way_without_losing_throughput() {
        let proxy = echo().await;
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        proxy.delay(Duration::from_millis(50));
        let start = Instant::now();
        for _ in 0..10 {
            client.write_all(b"hello").await.unwrap();
            tokio::task::yield_now().await;
        }
        heard(&mut client, 50).await;
        let elapsed = start.elapsed();
        assert!(elapsed >= Duration::from_millis(100) && elapsed < Duration::from_millis(900), "{elapsed:?}");
    }
}
