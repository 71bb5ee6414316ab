//! The clock of leases: one that goes on while the machine sleeps.

mod counter;

use nix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

/// Nanoseconds since the machine started, time asleep counted. `Instant` stops in suspend and would let a lease live on.
///
/// Where the kernel itself keeps time by the processor's counter, the counter is read instead of asking the kernel, in a
/// third of the time, once a [`LeasedClient`](crate::LeasedClient) has been made: never for longer than a millisecond
/// since the kernel was asked last. Two readings by two threads may then differ by a microsecond from the order they
/// were taken in.
#[must_use]
#[inline]
pub fn boot_time_ns() -> i64 {
    match counter::trusted() {
        Some((paced, counter)) => paced.read(|| counter.raw(), kernel_ns),
        None => kernel_ns(),
    }
}

/// Looks, once in this process and beside its work, whether the processor's counter can be read instead of the kernel.
pub(crate) fn prepare() {
    counter::prepare();
}

fn kernel_ns() -> i64 {
    // It fails only for a clock that the kernel does not have, and all have had these for ten years: the lease is over then.
    clock_gettime(CLOCK)
        .map_or(i64::MAX, |now| now.tv_sec().saturating_mul(1_000_000_000).saturating_add(now.tv_nsec()))
}
