//! The plain client: one endpoint, one call at a time or many, each with its own deadline.

use std::time::Duration;

use budget::{
    decision::{Extend, ExtendResult, Release, Reserve},
    ids::ReservationId,
    units::DURATION_MS_MAX,
};
use budget_proto::convert::{Released, Reserved};
use tokio::time::Instant;

use crate::{Credentials, Dependency, Error, Session, transport::Transport};

/// How a client connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Longest time to make a connection.
    pub connect_timeout: Duration,
    /// A silent connection is probed this often.
    pub keep_alive_interval: Duration,
    /// A probe that stays unanswered this long ends the connection.
    pub keep_alive_timeout: Duration,
    /// Most unanswered calls of one [`Session`]; at least 1.
    pub session_outstanding_max: usize,
    /// Certificates and token.
    pub credentials: Credentials,
}

/// A client of one budgetd; cheap to clone. It connects when it is first used and again whenever it must.
#[derive(Clone, Debug)]
pub struct Client {
    transport: Transport,
    session_outstanding_max: usize,
}

/// 128 random bits. One for each ask; the same for every re-send of it.
///
/// # Errors
/// If the operating system has no random bytes.
pub fn reservation_id() -> Result<ReservationId, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::NoRandomness(error.to_string()))?;
    Ok(ReservationId(bytes))
}

/// A deadline so far away that it never comes still has to be a point in time.
pub(crate) fn deadline(within: Duration) -> Instant {
    let longest = Duration::from_millis(DURATION_MS_MAX.unsigned_abs());
    Instant::now() + within.min(longest)
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            keep_alive_interval: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(5),
            session_outstanding_max: 256,
            credentials: Credentials::default(),
        }
    }
}

// === impl Client ===

impl Client {
    /// A client for `http://host:port`, `https://host:port` or `unix:PATH`. Nothing is sent yet.
    ///
    /// # Errors
    /// If the endpoint has another form, or there is no tokio runtime.
    pub fn new(endpoint: &str) -> Result<Self, Error> {
        Self::with_options(endpoint, &Options::default())
    }

    /// The same with other times, limits and credentials.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_options(endpoint: &str, options: &Options) -> Result<Self, Error> {
        let transport = Transport::new(endpoint, options)?;
        Ok(Self { transport, session_outstanding_max: options.session_outstanding_max.max(1) })
    }

    /// Asks for one attempt. `within` is the caller's deadline: budgetd admits nothing that would start later.
    ///
    /// If budgetd is not reached or the answer is lost, the ask is sent once more under the same reservation id, within
    /// the same deadline. An ask without record (`no_release`) is not: it could be charged twice.
    ///
    /// # Errors
    /// Whatever is not an answer; a denial is one.
    pub async fn reserve(
        &self,
        dependency: &Dependency,
        reserve: &Reserve,
        within: Duration,
    ) -> Result<Reserved, Error> {
        let deadline = deadline(within);
        match self.transport.reserve(dependency, reserve, deadline).await {
            Err(lost) if lost.answer_was_lost() && !reserve.no_release => {
                // The first error says more than "deadline passed".
                match self.transport.reserve(dependency, reserve, deadline).await {
                    Err(Error::DeadlinePassed) => Err(lost),
                    answered => answered,
                }
            }
            answered => answered,
        }
    }

    /// Ends a reservation. Sent once: budgetd treats a second one as already done, so the caller may send it again.
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn release(
        &self,
        dependency: &Dependency,
        release: &Release,
        within: Duration,
    ) -> Result<Released, Error> {
        self.transport.release(dependency, release, deadline(within)).await
    }

    /// Prolongs a permit.
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn extend(
        &self,
        dependency: &Dependency,
        extend: Extend,
        within: Duration,
    ) -> Result<ExtendResult, Error> {
        self.transport.extend(dependency, extend, deadline(within)).await
    }

    /// Counts attempts that a dependency received, as its own side saw them; false if nobody has asked for it yet. Sent
    /// once, since a second time would count twice. [`Received`](crate::Received) does so by itself.
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn report_received(
        &self,
        dependency: &Dependency,
        attempts: u64,
        within: Duration,
    ) -> Result<bool, Error> {
        self.transport.report_received(dependency, attempts, deadline(within)).await
    }

    /// Opens a stream that carries many calls at once.
    ///
    /// # Errors
    /// If it was not opened in time.
    pub async fn session(&self, within: Duration) -> Result<Session, Error> {
        Session::open(&self.transport, self.session_outstanding_max, deadline(within)).await
    }

    pub(crate) const fn transport(&self) -> &Transport {
        &self.transport
    }
}
