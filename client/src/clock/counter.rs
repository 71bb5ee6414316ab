//! Time by the processor's counter, in steps of at most a millisecond from what the kernel said.
//!
//! The kernel's clock counts the time asleep, the counter need not. It is used only where the kernel itself keeps time by
//! it while awake (clock source `tsc`), and only while it is less than [`SPAN_NS`] ahead of an anchor, a reading of both:
//! a machine that wakes up has its counter set back to the beginning, or anywhere, or running on, so no anchor of before
//! is within reach, and the kernel is asked. The pace is measured, not read from the machine, and measured again every
//! second; it is trusted when two measurements in a row agree.

use std::sync::{
    Once, OnceLock,
    atomic::{
        AtomicI64, AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
        fence,
    },
};

use quanta::Clock;

/// How far an anchor reaches, nanoseconds.
const SPAN_NS: i64 = 1_000_000;
/// A first measurement of the pace takes so long at least, a later one longer.
const FIRST_NS: i64 = 20_000_000;
const LATER_NS: i64 = 1_000_000_000;
/// Measurements agree, and are exact, within one part of so many: the drift that the bound allows for.
const DRIFT: u64 = 1_000;
/// Paces are nanoseconds per 2³² counts.
const PACE_BITS: u32 = 32;

/// Written by one thread at a time, with an odd version meanwhile; read by any number of others.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Paced {
    version: AtomicU64,
    /// The anchor.
    count: AtomicU64,
    ns: AtomicI64,
    /// Counts that the anchor reaches; 0 while no pace is trusted.
    reach: AtomicU64,
    pace: AtomicU64,
    // What the pace is measured from, and how it was last. For the writer only.
    from_count: AtomicU64,
    from_ns: AtomicI64,
    from_width: AtomicU64,
    measured: AtomicU64,
}

/// A reading of both: the kernel was asked between two readings of the counter.
#[derive(Clone, Copy)]
struct Anchor {
    count: u64,
    ns: i64,
    /// Counts between the two, the last of which is `count`.
    width: u64,
}

static COUNTER: OnceLock<Clock> = OnceLock::new();
static PACED: Paced = Paced::new();
static PREPARED: Once = Once::new();

/// The counter, where it is to be trusted.
#[inline]
pub(super) fn trusted() -> Option<(&'static Paced, &'static Clock)> {
    COUNTER.get().map(|counter| (&PACED, counter))
}

/// Looks once, on a thread of its own: the library measures the counter too, for up to 0.2 s.
pub(super) fn prepare() {
    PREPARED.call_once(|| {
        if kernel_uses_counter() {
            // Without a thread the kernel is asked, as before.
            let _ = std::thread::Builder::new().name("budget-clock".into()).spawn(|| COUNTER.set(Clock::new()));
        }
    });
}

/// Whether the kernel keeps time by the counter of an x86 processor: it has judged then that it neither stops nor differs
/// between processors.
fn kernel_uses_counter() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(all(target_os = "linux", target_arch = "x86_64"))
        && std::fs::read_to_string(SOURCE).is_ok_and(|source| source.trim() == "tsc")
}

/// Whether two numbers differ by one part of [`DRIFT`] at most.
const fn agree(one: u64, other: u64) -> bool {
    one.abs_diff(other).saturating_mul(DRIFT) <= other
}

// === impl Paced ===

impl Paced {
    const fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            count: AtomicU64::new(0),
            ns: AtomicI64::new(0),
            reach: AtomicU64::new(0),
            pace: AtomicU64::new(0),
            from_count: AtomicU64::new(0),
            from_ns: AtomicI64::new(0),
            from_width: AtomicU64::new(u64::MAX),
            measured: AtomicU64::new(0),
        }
    }

    /// The time: by the counter within reach of the anchor, else as the kernel says, which is the next anchor.
    #[inline]
    pub(super) fn read(&self, counter: impl Fn() -> u64, kernel: impl Fn() -> i64) -> i64 {
        let version = self.version.load(Acquire);
        let (count, ns) = (self.count.load(Relaxed), self.ns.load(Relaxed));
        let (reach, pace) = (self.reach.load(Relaxed), self.pace.load(Relaxed));
        fence(Acquire);
        // Set back, or read before another thread's anchor: it wraps to more than any reach.
        let ahead = counter().wrapping_sub(count);
        if ahead < reach && version & 1 == 0 && self.version.load(Relaxed) == version {
            // Within reach this is at most `SPAN_NS`.
            return ns.wrapping_add((ahead.wrapping_mul(pace) >> PACE_BITS).cast_signed());
        }
        self.ask(counter, kernel)
    }

    /// Asks the kernel, and anchors what it said if no other thread does that now.
    #[cold]
    fn ask(&self, counter: impl Fn() -> u64, kernel: impl Fn() -> i64) -> i64 {
        let before = counter();
        let ns = kernel();
        let count = counter();
        let version = self.version.load(Relaxed);
        if version & 1 == 0 && self.version.compare_exchange(version, version + 1, AcqRel, Relaxed).is_ok() {
            // Nothing of the anchor is seen before the odd version is.
            fence(Release);
            self.anchor(Anchor { count, ns, width: count.wrapping_sub(before) });
            self.version.store(version + 2, Release);
        }
        ns
    }

    /// For the one that holds the version odd. The last of the two counts is taken, so that time by the counter is behind
    /// rather than ahead.
    fn anchor(&self, now: Anchor) {
        let pace = self.measure(now);
        // As many counts as the pace says; none if it took a large part of them to make this anchor.
        let reach = (SPAN_NS.cast_unsigned() << PACE_BITS).checked_div(pace).unwrap_or(0);
        let close = now.width < reach / 100;
        self.count.store(now.count, Relaxed);
        self.ns.store(now.ns, Relaxed);
        self.pace.store(pace, Relaxed);
        self.reach.store(if close { reach } else { 0 }, Relaxed);
    }

    /// The pace to trust, 0 for none.
    fn measure(&self, now: Anchor) -> u64 {
        let trusted = self.pace.load(Relaxed);
        let (counts, ns) = (now.count.wrapping_sub(self.from_count.load(Relaxed)), self.from_ns.load(Relaxed));
        let took_ns = now.ns.saturating_sub(ns);
        if took_ns < if trusted == 0 { FIRST_NS } else { LATER_NS } {
            return trusted;
        }
        let widths = now.width.saturating_add(self.from_width.load(Relaxed));
        self.from_count.store(now.count, Relaxed);
        self.from_ns.store(now.ns, Relaxed);
        self.from_width.store(now.width, Relaxed);
        if widths > counts / (DRIFT * 10) {
            // Interrupted while it read.
            return trusted;
        }
        let pace = u128::from(took_ns.cast_unsigned()) << PACE_BITS;
        let pace = pace.checked_div(counts.into()).and_then(|pace| u64::try_from(pace).ok()).unwrap_or(0);
        let last = self.measured.swap(pace, Relaxed);
        if agree(pace, last) { pace } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A machine: its counter counts `per_us` a microsecond.
    struct Machine {
        count: Cell<u64>,
        ns: Cell<i64>,
        per_us: Cell<u64>,
        asked: Cell<u32>,
        paced: Paced,
    }

    impl Machine {
        fn new(per_us: u64) -> Self {
            Self {
                count: Cell::new(1 << 40),
                ns: Cell::new(5_000_000_000),
                per_us: Cell::new(per_us),
                asked: Cell::new(0),
                paced: Paced::new(),
            }
        }

        fn runs(&self, us: u64) {
            self.count.set(self.count.get().wrapping_add(us * self.per_us.get()));
            self.ns.set(self.ns.get() + us.cast_signed() * 1_000);
        }

        fn read(&self) -> i64 {
            let kernel = || {
                self.asked.set(self.asked.get() + 1);
                self.ns.get()
            };
            self.paced.read(|| self.count.get(), kernel)
        }

        /// Reads every 10 µs.
        fn busy(&self, ms: u64) {
            for _ in 0..ms * 100 {
                self.runs(10);
                let (read, real) = (self.read(), self.ns.get());
                assert!(read.abs_diff(real) <= 1_000, "{read} at {real}");
            }
        }

        fn asked_in(&self, ms: u64) -> u32 {
            let before = self.asked.get();
            self.busy(ms);
            self.asked.get() - before
        }
    }

    #[test]
    fn the_kernel_is_asked_once_a_millisecond_when_the_pace_is_known() {
        for per_us in [25, 1_000, 2_445, 5_200] {
            let machine = Machine::new(per_us);
            assert_eq!(machine.asked_in(20), 2_000, "nothing is known of the pace");
            machine.busy(50);
            let asked = machine.asked_in(3_000);
            assert!((2_900..=3_100).contains(&asked), "{per_us}: {asked}");
        }
    }

    #[test]
    fn time_asleep_counts_whatever_the_counter_did() {
        // From the start, left anywhere by the firmware, or running on.
        for counter in [0, 1, 1 << 39, 1 << 60, u64::MAX, (1 << 40) + 3_600_000_000 * 3_000] {
            let machine = Machine::new(3_000);
            machine.busy(100);
            machine.ns.set(machine.ns.get() + 3_600_000_000_000);
            machine.count.set(counter);
            assert_eq!(machine.read(), machine.ns.get(), "counter at {counter}");
            // An hour of another pace than before is no measurement; soon it has one again.
            machine.busy(100);
            assert!(machine.asked_in(1_000) <= 1_010);
        }
    }

    #[test]
    fn a_counter_whose_pace_changes_is_not_trusted_for_longer_than_a_second() {
        let machine = Machine::new(3_000);
        machine.busy(100);
        machine.per_us.set(2_000);
        // Slower by a third: behind by a third of a millisecond at most until it is noticed.
        for _ in 0..110_000 {
            machine.runs(10);
            let (read, real) = (machine.read(), machine.ns.get());
            assert!((real - SPAN_NS / 2..=real + 1_000).contains(&read), "{read} at {real}");
        }
        machine.busy(50);
        assert!(machine.asked_in(1_000) <= 1_010, "the new pace is known");
    }

    #[test]
    fn a_reading_that_was_interrupted_is_no_anchor_and_no_measurement() {
        let machine = Machine::new(3_000);
        machine.busy(100);
        machine.runs(2_000);
        let late = Cell::new(0);
        let read = machine.paced.read(
            || {
                // Before the second of the two readings the thread stands still for 50 ms.
                late.set(late.get() + 1);
                if late.get() == 3 {
                    machine.runs(50_000);
                }
                machine.count.get()
            },
            || machine.ns.get(),
        );
        assert_eq!(read + 50_000_000, machine.ns.get());
        machine.busy(2_000);
    }

    #[test]
    fn a_writer_in_another_thread_is_not_waited_for() {
        let machine = Machine::new(3_000);
        machine.busy(100);
        machine.paced.version.fetch_add(1, Relaxed);
        machine.runs(10);
        assert_eq!(machine.read(), machine.ns.get());
        assert_eq!(machine.asked_in(10), 1_000);
    }

    #[test]
    fn threads_read_the_kernels_time_within_a_microsecond() {
        // The real counter, if the kernel uses it; without it there is nothing to compare.
        if !kernel_uses_counter() {
            return;
        }
        let clock = Clock::new();
        let paced = Paced::new();
        let read = || paced.read(|| clock.raw(), super::super::kernel_ns);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..300_000 {
                        let before = super::super::kernel_ns();
                        let read = read();
                        let after = super::super::kernel_ns();
                        assert!((before - 2_000..=after + 2_000).contains(&read), "{before} {read} {after}");
                    }
                });
            }
        });
    }
}
