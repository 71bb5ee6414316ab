//! The clock of leases: one that goes on while the machine sleeps.

use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Nanoseconds since the machine started, time asleep counted. `Instant` stops in suspend and would let a lease live on.
#[must_use]
pub fn boot_time_ns() -> i64 {
    let now = clock_gettime(CLOCK);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}
