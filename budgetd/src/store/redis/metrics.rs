//! What the Redis store counts about itself. Plain atomics: whoever exports them reads them; distributions are recorded
//! in an exported histogram beside them, once there is one.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use opentelemetry::metrics::{Histogram as Exported, Meter};

/// Upper bounds of the batch-size buckets, in steps per script call.
pub const BATCH_BOUNDS: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Upper bounds of the round-trip buckets, in microseconds.
pub const ROUND_TRIP_BOUNDS_MICROS: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000];

/// Why a call to the store failed, as counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorKind {
    /// No connection could be made, a refused password included.
    Connect,
    /// All connections stayed in use for the wait time-out.
    PoolWait,
    /// No reply within the response time-out.
    Timeout,
    /// The connection broke while a reply was outstanding.
    Broken,
    /// A replica does not take writes.
    ReadOnly,
    /// Loading, cut off from its master, or part of a cluster that does not serve this key now.
    Topology,
    /// Out of memory.
    OutOfMemory,
    /// Not authenticated, or not permitted.
    Auth,
    /// State of one dependency that cannot be read.
    Corrupt,
    /// State that a later release has written.
    Newer,
    /// Any other error reply.
    Server,
    /// A reply no script of ours gives.
    UnexpectedReply,
}

/// Counts in fixed buckets.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds: &'static [u64; N],
    buckets: [AtomicU64; N],
    above: AtomicU64,
    sum: AtomicU64,
    exported: OnceLock<Exported<u64>>,
}

/// The counters of one store.
#[derive(Debug)]
pub struct StoreMetrics {
    /// Calls of the script that applies steps, repeated ones included.
    pub script_calls: AtomicU64,
    /// Steps those calls carried.
    pub steps: AtomicU64,
    /// Steps per call.
    pub batch_size: Histogram<9>,
    /// From sending a pipeline to its last reply, in microseconds.
    pub round_trip_micros: Histogram<12>,
    /// Calls answered *stale*: a newer policy was in the ledger.
    pub stale: AtomicU64,
    /// Times the script was loaded again because the server had forgotten it.
    pub noscript_reloads: AtomicU64,
    /// Steps sent again on a new connection.
    pub steps_resent: AtomicU64,
    /// Steps that were never sent: their deadline had passed or their caller had gone.
    pub steps_skipped: AtomicU64,
    /// Steps refused because a queue was full.
    pub overloaded: AtomicU64,
    /// Steps waiting to be sent now.
    pub queue_depth: AtomicU64,
    /// Times the store went down.
    pub outages: AtomicU64,
    errors: [AtomicU64; ErrorKind::ALL.len()],
}

// === impl ErrorKind ===

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; 12] = [
        Self::Connect,
        Self::PoolWait,
        Self::Timeout,
        Self::Broken,
        Self::ReadOnly,
        Self::Topology,
        Self::OutOfMemory,
        Self::Auth,
        Self::Corrupt,
        Self::Newer,
        Self::Server,
        Self::UnexpectedReply,
    ];

    /// The name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::PoolWait => "pool_wait",
            Self::Timeout => "timeout",
            Self::Broken => "broken",
            Self::ReadOnly => "read_only",
            Self::Topology => "topology",
            Self::OutOfMemory => "out_of_memory",
            Self::Auth => "auth",
            Self::Corrupt => "corrupt",
            Self::Newer => "newer",
            Self::Server => "server",
            Self::UnexpectedReply => "unexpected_reply",
        }
    }
}

// === impl Histogram ===

impl<const N: usize> Histogram<N> {
    const fn new(bounds: &'static [u64; N]) -> Self {
        Self {
            bounds,
            buckets: [const { AtomicU64::new(0) }; N],
            above: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            exported: OnceLock::new(),
        }
    }

    /// Counts one value.
    pub fn observe(&self, value: u64) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound).and_then(|at| self.buckets.get(at));
        bucket.unwrap_or(&self.above).fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
        if let Some(exported) = self.exported.get() {
            exported.record(value, &[]);
        }
    }

    fn export(&self, meter: &Meter, name: &'static str, description: &'static str) {
        #[expect(clippy::cast_precision_loss, clippy::as_conversions, reason = "bounds are small")]
        let bounds = self.bounds.iter().map(|bound| *bound as f64).collect();
        let histogram = meter.u64_histogram(name).with_description(description).with_boundaries(bounds).build();
        // A second export changes nothing.
        let _first = self.exported.set(histogram);
    }

    /// Upper bound and count of each bucket, not cumulative; the last, without bound, holds what is above all others.
    #[must_use]
    pub fn buckets(&self) -> Vec<(Option<u64>, u64)> {
        let bounded = self.bounds.iter().zip(&self.buckets).map(|(bound, count)| (Some(*bound), count.load(Relaxed)));
        bounded.chain([(None, self.above.load(Relaxed))]).collect()
    }

    /// Sum of all values.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }
}

// === impl StoreMetrics ===

impl Default for StoreMetrics {
    fn default() -> Self {
        Self {
            script_calls: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            batch_size: Histogram::new(&BATCH_BOUNDS),
            round_trip_micros: Histogram::new(&ROUND_TRIP_BOUNDS_MICROS),
            stale: AtomicU64::new(0),
            noscript_reloads: AtomicU64::new(0),
            steps_resent: AtomicU64::new(0),
            steps_skipped: AtomicU64::new(0),
            overloaded: AtomicU64::new(0),
            queue_depth: AtomicU64::new(0),
            outages: AtomicU64::new(0),
            errors: [const { AtomicU64::new(0) }; ErrorKind::ALL.len()],
        }
    }
}

impl StoreMetrics {
    /// Makes the distributions visible.
    pub fn export(&self, meter: &Meter) {
        self.batch_size.export(meter, "budgetd_store_batch_steps", "Steps per script call.");
        self.round_trip_micros.export(meter, "budgetd_store_round_trip_microseconds", "Pipeline sent to last reply.");
    }

    /// Counts an error.
    pub fn error(&self, kind: ErrorKind) {
        for (counted, count) in ErrorKind::ALL.iter().zip(&self.errors) {
            if *counted == kind {
                count.fetch_add(1, Relaxed);
            }
        }
    }

    /// All kinds of error with their counts.
    pub fn errors(&self) -> impl Iterator<Item = (ErrorKind, u64)> + '_ {
        ErrorKind::ALL.iter().zip(&self.errors).map(|(kind, count)| (*kind, count.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_into_the_first_bucket_that_holds_them() {
        let metrics = StoreMetrics::default();
        for value in [0, 1, 2, 3, 256, 257] {
            metrics.batch_size.observe(value);
        }
        let counts: Vec<u64> = metrics.batch_size.buckets().into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [2, 1, 1, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(metrics.batch_size.sum(), 519);
    }

    #[test]
    fn errors_are_counted_by_kind() {
        let metrics = StoreMetrics::default();
        metrics.error(ErrorKind::Timeout);
        metrics.error(ErrorKind::Timeout);
        metrics.error(ErrorKind::UnexpectedReply);
        let counted: Vec<_> = metrics.errors().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(ErrorKind::Timeout, 2), (ErrorKind::UnexpectedReply, 1)]);
    }
}
