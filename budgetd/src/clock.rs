//! The only place that reads clocks. Everything else is told the time.

use std::{
    fs,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicI64, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use rustix::time::{ClockId, clock_gettime};
use xxhash_rust::xxh3::xxh3_64;

/// Wall-clock milliseconds for ledgers, and the monotonic clock for deadlines.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    manual: Option<Arc<Dial>>,
}

/// Moves a manual [`Clock`]; for tests.
#[derive(Clone, Debug)]
pub struct Hands(Arc<Dial>);

/// What a manual clock shows.
#[derive(Debug)]
struct Dial {
    wall_ms: AtomicI64,
    /// Since boot: what has really passed.
    boot_ms: AtomicI64,
}

/// A time since the Unix epoch as people write it: `2026-03-01T09:30:00Z`.
#[must_use]
pub fn utc(ms: i64) -> String {
    let (days, second) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000) / 1_000);
    // Years that begin in March, in eras of 400: then the leap day is the last of its year.
    let day = days.saturating_add(719_468);
    let (era, day_of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

// === impl Clock ===

impl Clock {
    /// The machine's clocks.
    #[must_use]
    pub const fn system() -> Self {
        Self { manual: None }
    }

    /// A clock that stands at `start_ms` until its hands are moved.
    #[must_use]
    pub fn manual(start_ms: i64) -> (Self, Hands) {
        let dial = Arc::new(Dial { wall_ms: AtomicI64::new(start_ms), boot_ms: AtomicI64::new(0) });
        (Self { manual: Some(Arc::clone(&dial)) }, Hands(dial))
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place")]
    pub fn now_ms(&self) -> i64 {
        match &self.manual {
            Some(dial) => dial.wall_ms.load(Ordering::Relaxed),
            None => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX)),
        }
    }

    /// What a manual clock shows; none for the machine's clocks.
    #[must_use]
    pub fn injected_ms(&self) -> Option<i64> {
        self.manual.as_ref().map(|dial| dial.wall_ms.load(Ordering::Relaxed))
    }

    /// Milliseconds since some moment of this process; they never go back, unless a manual clock's hands are moved so.
    #[must_use]
    pub fn monotonic_ms(&self) -> i64 {
        static START: LazyLock<Instant> = LazyLock::new(Clock::instant);
        self.injected_ms().unwrap_or_else(|| i64::try_from(START.elapsed().as_millis()).unwrap_or(i64::MAX))
    }

    /// Milliseconds since this machine was started, those in suspend included; nobody sets this clock.
    #[must_use]
    pub fn boot_ms(&self) -> i64 {
        match &self.manual {
            Some(dial) => dial.boot_ms.load(Ordering::Relaxed),
            None => {
                let since = clock_gettime(ClockId::Boottime);
                since.tv_sec.saturating_mul(1_000).saturating_add(since.tv_nsec / 1_000_000)
            }
        }
    }

    /// Tells apart clocks since boot: equal for processes that read the same one. 52 bits.
    #[must_use]
    pub fn boot_id() -> i64 {
        static ID: LazyLock<i64> = LazyLock::new(|| {
            let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            // A time namespace may have shifted it.
            let namespace = fs::read_link("/proc/self/ns/time").unwrap_or_default();
            let name = [&boot, namespace.as_os_str().as_encoded_bytes()].concat();
            // Where the system does not say, this process has a clock of its own.
            let alone = if boot.is_empty() { getrandom::u64().unwrap_or_default() } else { 0 };
            i64::try_from((xxh3_64(&name) ^ alone) >> 12).unwrap_or_default()
        });
        *ID
    }

    /// When something happened, for people: the machine's wall clock, whatever ledgers live by.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place")]
    pub fn wall() -> SystemTime {
        SystemTime::now()
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
    /// Sets the wall clock, forwards or backwards; no time passes.
    pub fn set(&self, ms: i64) {
        self.0.wall_ms.store(ms, Ordering::Relaxed);
    }

    /// Lets time pass.
    pub fn advance(&self, ms: i64) {
        self.0.wall_ms.fetch_add(ms, Ordering::Relaxed);
        self.0.boot_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (951_868_799_999, "2000-02-29T23:59:59Z"),
            (1_709_164_800_000, "2024-02-29T00:00:00Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ];
        for (ms, written) in cases {
            assert_eq!(utc(ms), written);
        }
    }

    #[test]
    fn time_since_boot_passes_and_is_not_set() {
        let machine = Clock::system();
        let first = machine.boot_ms();
        assert!(first > 0 && machine.boot_ms() >= first);
        assert_eq!(Clock::boot_id(), Clock::boot_id());
        assert!((0..1 << 52).contains(&Clock::boot_id()));
        let (clock, hands) = Clock::manual(1_000);
        hands.set(500);
        assert_eq!((clock.now_ms(), clock.boot_ms()), (500, 0));
        hands.advance(20);
        assert_eq!((clock.now_ms(), clock.boot_ms()), (520, 20));
    }
}
