//! The door: accepts connections, bounds their number, and can cut every one of them.
//!
//! A connection that says nothing must cost nothing. hyper waits for ever for a preface that never comes, also while it
//! shuts down, so a new connection has until a deadline to say as much as a client must, and is cut first when the
//! daemon ends. That includes the TLS handshake. Of those that have not said enough, the oldest give way to newer ones.

mod gathering;
mod io;

use std::{
    fmt,
    io::{Error, ErrorKind, IoSlice, Result as IoResult},
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::task::AtomicWaker;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, UnixListener, UnixStream},
    time::{Sleep, sleep},
};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

use crate::{
    config::Listen,
    security::{Peer, Port, Tls},
};
use gathering::Gathering;
use io::Io;

/// After an error of accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound listener of either kind.
#[derive(Debug)]
pub enum Listening {
    /// An address.
    Tcp(TcpListener),
    /// A socket in the file system, removed when this is dropped.
    Unix(UnixListener, SocketFile),
}

/// Removes the file of a unix socket when it is no longer listened on.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

/// Accepts connections up to a bound.
#[derive(Debug)]
pub struct Door {
    listening: Listening,
    connections: Connections,
    rules: Rules,
    tls: Option<(Tls, Port)>,
}

/// What a connection has to do to stay.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Connections at a time; further ones are closed at once.
    pub most: usize,
    /// Of these, so many may not have said enough; beyond, the oldest of them are cut.
    pub most_silent: usize,
    /// Bytes that the client has to send...
    pub opening_bytes: usize,
    /// ...in this time.
    pub opening_timeout: Duration,
}

/// All connections of one door.
#[derive(Clone, Debug, Default)]
pub struct Connections(Arc<Open>);

#[derive(Debug, Default)]
struct Open {
    /// By address, so that a connection can take itself out.
    cuts: Mutex<Vec<Arc<Cut>>>,
    count: AtomicUsize,
    refused: AtomicUsize,
    /// Connections that gave way before they had said enough.
    gave_way: AtomicU64,
    /// Handshakes that failed or were not done in time.
    handshakes_failed: AtomicU64,
    next: AtomicU64,
}

/// The knife at one connection.
#[derive(Debug, Default)]
struct Cut {
    /// Rises from connection to connection.
    number: u64,
    cut: AtomicBool,
    opened: AtomicBool,
    reader: AtomicWaker,
}

/// One accepted connection.
pub struct Connection {
    io: Io,
    peer: Peer,
    cut: Arc<Cut>,
    connections: Connections,
    opening: Option<Opening>,
    gathering: Gathering,
}

/// A connection of which not enough has been heard yet.
struct Opening {
    missing_bytes: usize,
    deadline: Pin<Box<Sleep>>,
}

// === impl Rules ===

impl Rules {
    /// Of `most` connections a quarter may be silent, or a few where there are few.
    #[must_use]
    pub fn new(most: usize, opening_bytes: usize, opening_timeout: Duration) -> Self {
        Self { most, most_silent: (most / 4).max(16), opening_bytes, opening_timeout }
    }
}

// === impl Listening ===

impl Listening {
    /// Binds. A socket file that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// If the address is taken or not ours.
    pub async fn bind(listen: &Listen) -> IoResult<Self> {
        match listen {
            Listen::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Listen::Unix(path) => {
                let listener = match UnixListener::bind(path) {
                    Err(error) if error.kind() == ErrorKind::AddrInUse && is_abandoned(path).await => {
                        std::fs::remove_file(path)?;
                        UnixListener::bind(path)?
                    }
                    bound => bound?,
                };
                Ok(Self::Unix(listener, SocketFile(path.clone())))
            }
        }
    }

    /// Where clients find it, the port the system chose included.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn address(&self) -> IoResult<Listen> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
            Self::Unix(_, file) => Ok(Listen::Unix(file.0.clone())),
        }
    }

    async fn accept(&self) -> IoResult<Io> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Io::Tcp(stream))
            }
            Self::Unix(listener, _) => listener.accept().await.map(|(stream, _)| Io::Unix(stream)),
        }
    }
}

async fn is_abandoned(path: &Path) -> bool {
    matches!(UnixStream::connect(path).await, Err(error) if error.kind() == ErrorKind::ConnectionRefused)
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "socket file stays");
        }
    }
}

// === impl Door ===

impl Door {
    /// Accepts at `listening` by `rules`.
    #[must_use]
    pub fn new(listening: Listening, rules: Rules) -> Self {
        Self { listening, connections: Connections::default(), rules, tls: None }
    }

    /// Demands TLS of connections to an address.
    #[must_use]
    pub fn with_tls(self, tls: Option<&Tls>, port: Port) -> Self {
        Self { tls: tls.map(|tls| (tls.clone(), port)), ..self }
    }

    /// The connections that have come in through this door.
    #[must_use]
    pub fn connections(&self) -> Connections {
        self.connections.clone()
    }

    /// The next connection. Errors are logged and waited out.
    pub async fn next(&self) -> Connection {
        loop {
            match self.listening.accept().await {
                Ok(io) => {
                    if let Some(connection) = self.admit(io) {
                        return connection;
                    }
                }
                Err(error) if is_of_the_client(&error) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot accept connections");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn admit(&self, io: Io) -> Option<Connection> {
        let open = &self.connections.0;
        if open.count.fetch_add(1, Ordering::Relaxed) >= self.rules.most {
            open.count.fetch_sub(1, Ordering::Relaxed);
            open.refused.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(most = self.rules.most, "connection refused: too many are open");
            return None;
        }
        let cut = Arc::new(Cut { number: open.next.fetch_add(1, Ordering::Relaxed), ..Cut::default() });
        {
            let mut cuts = open.cuts.lock().unwrap_or_else(PoisonError::into_inner);
            cuts.push(Arc::clone(&cut));
            if cuts.len() > self.rules.most_silent {
                open.make_way(&cuts, self.rules.most_silent);
            }
        }
        let deadline = Box::pin(sleep(self.rules.opening_timeout));
        let opening = Opening { missing_bytes: self.rules.opening_bytes, deadline };
        Some(Connection {
            peer: io.peer(),
            io: io.secured(self.tls.as_ref()),
            cut,
            connections: self.connections.clone(),
            opening: Some(opening),
            gathering: Gathering::default(),
        })
    }

    /// As tonic wants it.
    pub fn into_stream(self) -> impl Stream<Item = IoResult<Connection>> {
        futures::stream::unfold(self, |door| async move { Some((Ok(door.next().await), door)) })
    }
}

fn is_of_the_client(error: &Error) -> bool {
    // Also what set_nodelay says of a connection that is gone already.
    [ErrorKind::ConnectionRefused, ErrorKind::ConnectionAborted, ErrorKind::ConnectionReset].contains(&error.kind())
        || error.kind() == ErrorKind::InvalidInput
}

impl axum::serve::Listener for Door {
    type Io = Connection;
    type Addr = Peer;

    async fn accept(&mut self) -> (Connection, Peer) {
        let connection = self.next().await;
        let peer = connection.peer.clone();
        (connection, peer)
    }

    fn local_addr(&self) -> IoResult<Peer> {
        self.listening.address().map(|address| Peer::at(address.tcp()))
    }
}

// === impl Connections ===

impl Connections {
    /// How many are open.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.count.load(Ordering::Relaxed)
    }

    /// How many were refused because too many were open.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// How many were cut because newer ones came before they had said enough.
    #[must_use]
    pub fn gave_way(&self) -> u64 {
        self.0.gave_way.load(Ordering::Relaxed)
    }

    /// How many TLS handshakes failed, or were not done in time.
    #[must_use]
    pub fn handshakes_failed(&self) -> u64 {
        self.0.handshakes_failed.load(Ordering::Relaxed)
    }

    /// Cuts those that have not said enough to be in use.
    pub fn cut_silent(&self) -> usize {
        self.cut_where(|cut| !cut.opened.load(Ordering::Acquire))
    }

    /// Cuts all.
    pub fn cut_all(&self) -> usize {
        self.cut_where(|_| true)
    }

    fn cut_where(&self, which: impl Fn(&Cut) -> bool) -> usize {
        let cuts = self.0.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        let chosen = cuts.iter().filter(|cut| which(cut));
        chosen.map(|cut| cut.cut()).count()
    }
}

// === impl Open ===

impl Open {
    /// Cuts the oldest silent connection if there are more than `most` of them.
    fn make_way(&self, cuts: &[Arc<Cut>], most: usize) {
        let silent = || cuts.iter().filter(|cut| cut.is_silent());
        if silent().count() > most
            && let Some(oldest) = silent().min_by_key(|cut| cut.number)
        {
            oldest.cut();
            self.gave_way.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// === impl Cut ===

impl Cut {
    fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        self.reader.wake();
    }

    fn is_silent(&self) -> bool {
        !self.opened.load(Ordering::Acquire) && !self.cut.load(Ordering::Acquire)
    }

    fn judge(&self) -> IoResult<()> {
        if self.cut.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::ConnectionAborted, "cut off"));
        }
        Ok(())
    }
}

// === impl Connection ===

impl Connection {
    /// Fails once the connection is cut, or its opening has taken too long.
    fn poll_alive(&mut self, cx: &mut Context<'_>) -> IoResult<()> {
        self.cut.reader.register(cx.waker());
        self.cut.judge()?;
        if let Some(opening) = &mut self.opening
            && opening.deadline.as_mut().poll(cx).is_ready()
        {
            return Err(Error::new(ErrorKind::TimedOut, "nothing was said in time"));
        }
        Ok(())
    }

    /// Goes on with the handshake, if there is one, as long as it may take.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        if self.io.is_ready() {
            return Poll::Ready(Ok(()));
        }
        let polled = match self.poll_alive(cx) {
            Ok(()) => self.io.poll_ready(cx, &self.peer),
            Err(error) => Poll::Ready(Err(error)),
        };
        if let Poll::Ready(Err(error)) = &polled {
            self.connections.0.handshakes_failed.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(peer = ?self.peer, %error, "no TLS handshake");
        }
        polled
    }

    fn heard(&mut self, bytes: usize) {
        if let Some(opening) = &mut self.opening {
            opening.missing_bytes = opening.missing_bytes.saturating_sub(bytes);
            if opening.missing_bytes == 0 {
                self.opening = None;
                self.cut.opened.store(true, Ordering::Release);
            }
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<IoResult<()>> {
        let this = self.get_mut();
        ready!(this.poll_ready(cx))?;
        this.poll_alive(cx)?;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buffer))?;
        this.heard(buffer.filled().len().saturating_sub(before));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    // A task that waits for room to write is woken by the waker of its last read.
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<IoResult<usize>> {
        let this = self.get_mut();
        ready!(this.poll_ready(cx))?;
        this.cut.judge()?;
        if this.gathering.puts_off(bytes.len(), cx) {
            return Poll::Pending;
        }
        Pin::new(&mut this.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<IoResult<usize>> {
        let this = self.get_mut();
        ready!(this.poll_ready(cx))?;
        this.cut.judge()?;
        if this.gathering.puts_off(slices.iter().map(|slice| slice.len()).sum(), cx) {
            return Poll::Pending;
        }
        Pin::new(&mut this.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let open = &self.connections.0;
        let mut cuts = open.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = cuts.iter().position(|cut| Arc::ptr_eq(cut, &self.cut)) {
            cuts.swap_remove(at);
        }
        open.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.io).finish()
    }
}
