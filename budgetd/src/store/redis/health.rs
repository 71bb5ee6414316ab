//! Whether the store works, as far as is known: told by calls that failed or did not, and by probes while it is down.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::store::StoreError;

/// What is known of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No probe has succeeded since start.
    NeverReached,
    /// Calls are sent.
    Up,
    /// Calls fail at once; probes look for recovery.
    Down,
}

/// The store's state and why it is so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The state.
    pub state: State,
    /// The latest failure; empty while up.
    pub reason: Arc<str>,
}

/// Keeps the health of one store and tells whoever listens.
#[derive(Debug)]
pub(super) struct Board {
    health: watch::Sender<Health>,
    /// The state again, for the path of every call.
    up: AtomicBool,
    /// Failures in a row while up.
    failures: AtomicU32,
    failures_to_down: u32,
    outage: Mutex<Outage>,
}

#[derive(Debug, Default)]
struct Outage {
    since: Option<Instant>,
    past: Duration,
}

// === impl State ===

impl State {
    /// The name in logs and answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NeverReached => "never_reached",
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl Board ===

impl Board {
    pub(super) fn new(failures_to_down: u32, now: Instant) -> Self {
        let health = Health { state: State::NeverReached, reason: "no attempt has ended yet".into() };
        Self {
            health: watch::Sender::new(health),
            up: AtomicBool::new(false),
            failures: AtomicU32::new(0),
            failures_to_down,
            outage: Mutex::new(Outage { since: Some(now), past: Duration::ZERO }),
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    pub(super) fn is_up(&self) -> bool {
        self.up.load(Relaxed)
    }

    /// Whether a call may be sent.
    ///
    /// # Errors
    /// What to answer instead.
    pub(super) fn admit(&self) -> Result<(), StoreError> {
        if self.is_up() {
            return Ok(());
        }
        let health = self.health.borrow();
        match health.state {
            // It has just come up.
            State::Up => Ok(()),
            State::NeverReached => Err(StoreError::NeverReached(health.reason.to_string())),
            State::Down => Err(StoreError::Away(health.reason.to_string())),
        }
    }

    /// A call was answered.
    pub(super) fn succeeded(&self) {
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
    }

    /// A call was not answered, or refused for the store's sake. True if the store has gone down by it.
    pub(super) fn failed(&self, reason: &str, now: Instant) -> bool {
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        if failures < self.failures_to_down {
            return false;
        }
        self.leave(reason, now)
    }

    /// Calls fail from now on. True if the store has gone down by it.
    pub(super) fn leave(&self, reason: &str, now: Instant) -> bool {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        self.health.send_if_modified(|health| {
            if health.state != State::Up {
                return false;
            }
            *health = Health { state: State::Down, reason: reason.into() };
            self.up.store(false, Relaxed);
            outage.since = Some(now);
            true
        })
    }

    /// A probe failed.
    pub(super) fn still_away(&self, reason: &str) {
        self.health.send_if_modified(|health| {
            let news = health.state != State::Up && *health.reason != *reason;
            if news {
                health.reason = reason.into();
            }
            news
        });
    }

    /// A probe succeeded: how long the store was away.
    pub(super) fn recovered(&self, now: Instant) -> Duration {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        let lasted = outage.since.take().map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        outage.past = outage.past.saturating_add(lasted);
        self.failures.store(0, Relaxed);
        self.health.send_if_modified(|health| {
            let news = health.state != State::Up;
            *health = Health { state: State::Up, reason: "".into() };
            self.up.store(true, Relaxed);
            news
        });
        lasted
    }

    /// Time without the store so far, the one before first contact included.
    pub(super) fn down_time(&self, now: Instant) -> Duration {
        let outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        let present = outage.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        outage.past.saturating_add(present)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn a_store_goes_down_after_failures_in_a_row_and_comes_back_by_a_probe() {
        let start = Clock::instant();
        let at = |seconds| start + Duration::from_secs(seconds);
        let board = Board::new(3, start);
        assert!(matches!(board.admit(), Err(StoreError::NeverReached(_))));
        assert!(!board.failed("x", at(1)) && !board.failed("x", at(1)) && !board.failed("x", at(1)));
        board.still_away("refused");
        assert_eq!(board.admit().unwrap_err().to_string(), "store has never been reached: refused");

        assert_eq!(board.recovered(at(2)), Duration::from_secs(2));
        assert!(board.admit().is_ok());
        assert!(!board.failed("a", at(3)) && !board.failed("b", at(3)));
        board.succeeded();
        assert!(!board.failed("c", at(4)) && !board.failed("d", at(4)));
        assert!(board.failed("e", at(4)), "the third in a row");
        assert!(!board.failed("f", at(5)), "it is down already");
        assert_eq!(board.admit().unwrap_err().to_string(), "store is away: e");
        board.succeeded();
        assert!(board.admit().is_err(), "a late success of an old call is no probe");
        assert_eq!(board.down_time(at(10)), Duration::from_secs(2 + 6));
        assert_eq!(board.recovered(at(14)), Duration::from_secs(10));
        assert_eq!(board.down_time(at(20)), Duration::from_secs(12));
        assert!(board.admit().is_ok());
    }

    #[test]
    fn listeners_hear_of_changes_only() {
        let now = Clock::instant();
        let board = Board::new(1, now);
        let mut health = board.subscribe();
        board.still_away("refused");
        assert!(health.has_changed().unwrap());
        assert_eq!(&*health.borrow_and_update().reason, "refused");
        board.still_away("refused");
        assert!(!health.has_changed().unwrap());
        board.recovered(now);
        assert_eq!(health.borrow_and_update().state, State::Up);
        board.recovered(now);
        board.succeeded();
        assert!(!health.has_changed().unwrap());
    }
}
