//! How fast a test lives. Where the machine is busy with other things, everything in a test takes longer by one factor:
//! steps of the curve, renewals, deadlines, time limits, and the time between two asks. What is shown is the same, and
//! needs so much less of the machine.

use std::{fs, thread, time::Duration};

use budget::lease::Timing;
use budget_client::boot_time_ns;

use super::setting::{POLICY, TIMING};

/// More than anything ever takes at full speed.
const BOUND_MS: i64 = 60_000;
/// Of a curve's step, at full speed.
const STEP_MS: i64 = 1_000;
/// Slower than this a test would take too long.
const FACTOR_MAX: i64 = 8;
/// A thread that has to wait for others two thirds of its time is still fast enough.
const FAST_ENOUGH: i64 = 3;
/// CPU time that a look at the machine takes, and its longest time in all.
const LOOK_NS: i64 = 60_000_000;
const LOOK_MAX_NS: i64 = 2_000_000_000;

/// A factor of all times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace(i64);

/// CPU time of this thread, and how long it was ready to run and did not, nanoseconds; none where nobody says.
fn run_and_waited_ns() -> Option<(i64, i64)> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let mut numbers = text.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// How many times as long as on an idle machine a busy thread takes here now.
fn slowness() -> Option<i64> {
    let (run_before, waited_before) = run_and_waited_ns()?;
    let until_ns = boot_time_ns() + LOOK_MAX_NS;
    loop {
        let (run, waited) = run_and_waited_ns()?;
        let (run, waited) = (run - run_before, waited - waited_before);
        if run >= LOOK_NS || boot_time_ns() >= until_ns {
            return Some((run + waited) / run.max(1));
        }
    }
}

/// Threads that were ready to run in the last minute, for each CPU; none where nobody says.
fn ready_for_each_cpu() -> Option<i64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    let ready: f64 = text.split_whitespace().next()?.parse().ok()?;
    let cpus = thread::available_parallelism().ok()?.get();
    Some((ready / cpus as f64) as i64)
}

// === impl Pace ===

impl Pace {
    /// As on a machine that has nothing else to do.
    pub(crate) const FULL: Self = Self(1);

    /// What this machine has room for, by a look at it and by the last minute.
    pub(crate) fn of_machine() -> Self {
        // In a thread of its own: the scheduler has no grudge against it.
        let now = thread::spawn(slowness).join().unwrap();
        let slowness = now.into_iter().chain(ready_for_each_cpu()).max().unwrap_or(1);
        let pace = Self((slowness / FAST_ENOUGH + 1).min(FACTOR_MAX));
        println!("{slowness} times as slow as an idle machine: {pace:?}");
        pace
    }

    pub(crate) const fn factor(self) -> i64 {
        self.0
    }

    /// For another process.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }

    /// What takes so long at full speed.
    pub(crate) const fn ms(self, ms: i64) -> i64 {
        ms * self.0
    }

    /// For what must happen at all.
    pub(crate) fn bound(self) -> Duration {
        Duration::from_millis(self.ms(BOUND_MS).unsigned_abs())
    }

    /// What happens so often at full speed.
    pub(crate) const fn rate(self, per_second: i64) -> i64 {
        per_second / self.0
    }

    pub(crate) const fn timing(self) -> Timing {
        Timing {
            margin_ms: self.ms(TIMING.margin_ms),
            overlap_ms: self.ms(TIMING.overlap_ms),
            renew_min_ms: self.ms(TIMING.renew_min_ms),
            renew_max_ms: self.ms(TIMING.renew_max_ms),
            resend_min_ms: self.ms(TIMING.resend_min_ms),
            resend_max_ms: self.ms(TIMING.resend_max_ms),
            heartbeat_ms: self.ms(TIMING.heartbeat_ms),
            step_max_ms: self.ms(TIMING.step_max_ms),
        }
    }

    /// Of the curve: all of it so long, then half of it as long again.
    pub(crate) const fn step_ms(self) -> i64 {
        self.ms(STEP_MS)
    }

    /// A lost state's quarantine, and a dead holder's share: the curve and the margin.
    pub(crate) const fn quarantine_ms(self) -> i64 {
        2 * self.step_ms() + self.timing().margin_ms
    }

    /// T4, after the coordinator can be reached: the quarantine, two renewals, and 2 s.
    pub(crate) const fn return_ms(self) -> i64 {
        self.quarantine_ms() + 2 * self.timing().renew_max_ms + self.ms(2_000)
    }

    /// [`POLICY`] with other numbers, at this speed.
    pub(crate) fn policy(self, rate: i64, burst: i64, retry_burst: i64) -> String {
        let lines = POLICY.lines().skip(2).collect::<Vec<_>>().join("\n");
        format!(
            "admission = {{ rate = \"{}/s\", burst = {burst} }}\n\
             retry = {{ ratio = 0.2, floor = \"2/s\", burst = {retry_burst} }}\n{}\n",
            self.rate(rate),
            self.curved(&lines)
        )
    }

    /// A policy with the steps of its curve at this speed.
    pub(crate) fn curved(self, policy: &str) -> String {
        let steps = |times: i64| format!(" {}ms\"", times * self.step_ms());
        policy.replace(" 1s\"", &steps(1)).replace(" 2s\"", &steps(2))
    }
}
