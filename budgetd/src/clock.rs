//! The only place that reads clocks. Everything else is told the time.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicI64, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// Wall-clock milliseconds for ledgers, and the monotonic clock for deadlines.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    manual_ms: Option<Arc<AtomicI64>>,
}

/// Moves a manual [`Clock`]; for tests.
#[derive(Clone, Debug)]
pub struct Hands(Arc<AtomicI64>);

// === impl Clock ===

impl Clock {
    /// The machine's clocks.
    #[must_use]
    pub const fn system() -> Self {
        Self { manual_ms: None }
    }

    /// A clock that stands at `start_ms` until its hands are moved.
    #[must_use]
    pub fn manual(start_ms: i64) -> (Self, Hands) {
        let shared = Arc::new(AtomicI64::new(start_ms));
        (Self { manual_ms: Some(Arc::clone(&shared)) }, Hands(shared))
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place")]
    pub fn now_ms(&self) -> i64 {
        match &self.manual_ms {
            Some(ms) => ms.load(Ordering::Relaxed),
            None => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX)),
        }
    }

    /// What a manual clock shows; none for the machine's clocks.
    #[must_use]
    pub fn injected_ms(&self) -> Option<i64> {
        self.manual_ms.as_ref().map(|ms| ms.load(Ordering::Relaxed))
    }

    /// Milliseconds since some moment of this process; they never go back, unless a manual clock's hands are moved so.
    #[must_use]
    pub fn monotonic_ms(&self) -> i64 {
        static START: LazyLock<Instant> = LazyLock::new(Clock::instant);
        self.injected_ms().unwrap_or_else(|| i64::try_from(START.elapsed().as_millis()).unwrap_or(i64::MAX))
    }

    /// For deadlines on this machine.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place")]
    pub fn instant() -> Instant {
        Instant::now()
    }
}

// === impl Hands ===

impl Hands {
    /// Sets the clock, forwards or backwards.
    pub fn set(&self, ms: i64) {
        self.0.store(ms, Ordering::Relaxed);
    }

    /// Moves the clock forwards.
    pub fn advance(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }
}
