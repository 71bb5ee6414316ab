//! Plain calls to whichever of several budgetd answers.

use std::{sync::Arc, time::Duration};

use budget::decision::{Extend, ExtendResult, Release, Reserve};
use budget_proto::convert::{Released, Reserved, SyncReply};
use tokio::time::Instant;

use crate::{
    Dependency, Error, Options,
    client::deadline,
    endpoints::{Endpoints, Picked, is_away},
    leasing::{Asked, Coordinator},
};

/// A call that had less time says nothing about the endpoint.
const FAIR_TRIAL: Duration = Duration::from_millis(250);

/// Several budgetd of one fleet; cheap to clone. One is asked until it fails, then the next; one that failed is tried
/// again after a rest, for ever.
#[derive(Clone, Debug)]
pub struct Coordinators {
    endpoints: Arc<Endpoints>,
    sync_timeout: Duration,
}

// === impl Coordinators ===

impl Coordinators {
    /// Addresses: `http://host:port`, `https://host:port` or `unix:PATH`. Nothing is sent yet.
    ///
    /// # Errors
    /// If there is none, one has another form, or there is no tokio runtime.
    pub fn new(endpoints: Vec<String>, options: &Options, sync_timeout: Duration) -> Result<Self, Error> {
        if endpoints.is_empty() {
            let rule = "must name at least one budgetd";
            return Err(Error::Unsendable(budget_proto::InvalidMessage::absent("endpoints", rule)));
        }
        let seed = getrandom::u64().map_err(|error| Error::NoRandomness(error.to_string()))?;
        Ok(Self { endpoints: Arc::new(Endpoints::new(endpoints, options, seed)?), sync_timeout })
    }

    /// Asks one, and once more another, under the same reservation id, if that does not answer.
    ///
    /// # Errors
    /// [`Error::Unreachable`] at once while all rest; else whatever is not an answer.
    pub async fn reserve(
        &self,
        dependency: &Dependency,
        reserve: &Reserve,
        within: Duration,
    ) -> Result<Reserved, Error> {
        let deadline = deadline(within);
        let mut failed = None;
        for tries_left in [1_u32, 0] {
            let now = Instant::now();
            let Some(picked) = self.endpoints.pick(now) else { break };
            let left = deadline.saturating_duration_since(now);
            // Half of the time for the first, so that a silent endpoint does not cost all of it.
            let given = if tries_left > 0 && self.endpoints.len() > 1 { left / 2 } else { left };
            match self.noted(&picked, given, picked.transport.reserve(dependency, reserve, now + given).await) {
                Ok(reserved) => return Ok(reserved),
                // What leaves no record could be charged twice.
                Err(error) if !is_away(&error) || reserve.no_release => return Err(error),
                // The first error says more than "deadline passed".
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(all_rest))
    }

    /// Ends a reservation. Sent once.
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn release(
        &self,
        dependency: &Dependency,
        release: &Release,
        within: Duration,
    ) -> Result<Released, Error> {
        let now = Instant::now();
        let picked = self.endpoints.pick(now).ok_or_else(all_rest)?;
        self.noted(&picked, within, picked.transport.release(dependency, release, deadline(within)).await)
    }

    /// Prolongs a permit. Sent once.
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn extend(
        &self,
        dependency: &Dependency,
        extend: Extend,
        within: Duration,
    ) -> Result<ExtendResult, Error> {
        let now = Instant::now();
        let picked = self.endpoints.pick(now).ok_or_else(all_rest)?;
        self.noted(&picked, within, picked.transport.extend(dependency, extend, deadline(within)).await)
    }

    /// Whether any may be asked now; false while all rest after failures.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.endpoints.pick(Instant::now()).is_some()
    }

    /// Remembers whether an endpoint answered.
    fn noted<T>(&self, picked: &Picked, given: Duration, result: Result<T, Error>) -> Result<T, Error> {
        match &result {
            Ok(_) => self.endpoints.answered(picked),
            Err(Error::DeadlineExceeded | Error::DeadlinePassed) if given < FAIR_TRIAL => {}
            Err(error) if is_away(error) => self.endpoints.failed(picked, Instant::now()),
            Err(_) => self.endpoints.answered(picked),
        }
        result
    }
}

impl Coordinator for Coordinators {
    async fn sync(&self, asks: &[Asked]) -> Vec<Result<SyncReply, Error>> {
        let all = |error: &Error| asks.iter().map(|_| Err(error.clone())).collect();
        let now = Instant::now();
        let Some(picked) = self.endpoints.pick(now) else { return all(&all_rest()) };
        let given = self.sync_timeout;
        match self.noted(&picked, given, picked.transport.sync(asks, now + given).await) {
            Ok(answers) => answers,
            Err(error) => all(&error),
        }
    }
}

fn all_rest() -> Error {
    Error::Unreachable("no endpoint answers; each is tried again after a rest".into())
}
