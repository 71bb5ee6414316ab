//! What the fake dependency counts by itself, whatever its clients believe.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Bins of a run at most; what is later falls into the last.
const BINS_MAX: usize = 20_000;

/// All counts of a run, as they are told to the engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) received: u64,
    /// Operations seen.
    pub(crate) keys: u64,
    /// Most attempts for one operation.
    pub(crate) attempts_max: u64,
    /// Side effects, and those beyond the first of their operation.
    pub(crate) executed: u64,
    pub(crate) duplicates: u64,
    /// Most requests inside at once, and most that waited.
    pub(crate) in_flight_max: u64,
    pub(crate) queue_max: u64,
    /// Whole tokens of the cost unit, of what was executed.
    pub(crate) cost: u64,
    pub(crate) bins: Vec<Bin>,
    /// Times of arrival since the start, nanoseconds, and whether it was a retry; only where they are asked for.
    pub(crate) arrivals: Vec<(i64, bool)>,
}

/// Counts of a stretch of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bin {
    pub(crate) received: u64,
    pub(crate) retries: u64,
    pub(crate) queue_age_ms: u64,
    pub(crate) in_flight: u64,
}

/// Counts while it runs.
#[derive(Debug, Default)]
pub(super) struct Counting {
    counts: Counts,
    attempts: HashMap<u64, u64>,
    effects: HashMap<u64, u64>,
    bin_ms: u64,
    keeps_arrivals: bool,
}

// === impl Counting ===

impl Counting {
    pub(super) fn new(bin_ms: u64, keeps_arrivals: bool) -> Self {
        Self { bin_ms: bin_ms.max(1), keeps_arrivals, ..Self::default() }
    }

    /// An attempt arrives, so many nanoseconds after the start. The result is its number among those of its operation.
    pub(super) fn received(&mut self, since_ns: i64, key: u64) -> u64 {
        let attempts = self.attempts.entry(key).or_default();
        *attempts += 1;
        let attempt = *attempts;
        let is_retry = attempt > 1;
        self.counts.attempts_max = self.counts.attempts_max.max(attempt);
        self.counts.received += 1;
        if self.keeps_arrivals {
            self.counts.arrivals.push((since_ns, is_retry));
        }
        let bin = self.bin(since_ns);
        bin.received += 1;
        bin.retries += u64::from(is_retry);
        attempt
    }

    pub(super) const fn received_so_far(&self) -> u64 {
        self.counts.received
    }

    /// How full it is.
    pub(super) fn filled(&mut self, since_ns: i64, in_flight: usize, queued: usize) {
        let (in_flight, queued) = (to_u64(in_flight), to_u64(queued));
        self.counts.in_flight_max = self.counts.in_flight_max.max(in_flight);
        self.counts.queue_max = self.counts.queue_max.max(queued);
        let bin = self.bin(since_ns);
        bin.in_flight = bin.in_flight.max(in_flight);
    }

    pub(super) fn aged(&mut self, since_ns: i64, queue_age_ns: i64) {
        let age_ms = u64::try_from(queue_age_ns / 1_000_000).unwrap_or(0);
        let bin = self.bin(since_ns);
        bin.queue_age_ms = bin.queue_age_ms.max(age_ms);
    }

    /// A side effect happens. The result is how many there were of this operation, this one included.
    pub(super) fn executed(&mut self, key: u64, cost: u64) -> u64 {
        let effects = self.effects.entry(key).or_default();
        *effects += 1;
        self.counts.executed += 1;
        self.counts.duplicates += u64::from(*effects > 1);
        self.counts.cost += cost;
        *effects
    }

    pub(super) fn told(&self) -> Counts {
        Counts { keys: to_u64(self.attempts.len()), ..self.counts.clone() }
    }

    fn bin(&mut self, since_ns: i64) -> &mut Bin {
        let ms = u64::try_from(since_ns / 1_000_000).unwrap_or(0);
        let at = usize::try_from(ms / self.bin_ms).unwrap_or(usize::MAX).min(BINS_MAX - 1);
        if self.counts.bins.len() <= at {
            self.counts.bins.resize(at + 1, Bin::default());
        }
        &mut self.counts.bins[at]
    }
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_and_duplicates_are_counted_by_key_and_not_by_what_callers_say() {
        let mut counting = Counting::new(100, true);
        for (since_ms, key) in [(0, 1), (50, 1), (120, 2), (130, 1)] {
            let _attempt = counting.received(since_ms * 1_000_000, key);
        }
        assert_eq!([counting.executed(1, 10), counting.executed(1, 10), counting.executed(2, 5)], [1, 2, 1]);
        let counts = counting.told();
        assert_eq!((counts.received, counts.keys, counts.attempts_max), (4, 2, 3));
        assert_eq!((counts.executed, counts.duplicates, counts.cost), (3, 1, 25));
        let bins: Vec<(u64, u64)> = counts.bins.iter().map(|bin| (bin.received, bin.retries)).collect();
        assert_eq!(bins, [(2, 1), (2, 1)]);
        assert_eq!(counts.arrivals.iter().filter(|(_, retry)| *retry).count(), 2);
    }
}
