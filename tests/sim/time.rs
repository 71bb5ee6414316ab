//! Virtual time: nanoseconds of a true clock that nobody in the world can read, an event queue, and the clocks they read.

use std::{cmp::Reverse, collections::BinaryHeap};

use budget::guard::{Guard, on};

/// Nanoseconds in a millisecond.
pub(crate) const MS: i64 = 1_000_000;
/// Nanoseconds in a second.
pub(crate) const S: i64 = 1_000 * MS;

/// Events in the order of their time, then of their making.
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    made: u64,
}

struct Entry<E> {
    at: i64,
    made: u64,
    event: E,
}

/// The clock of one host: drifts, and goes on in suspend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostClock {
    offset: i64,
    ppm: i64,
}

/// The wall clock of one store, in milliseconds: drifts and jumps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WallClock {
    offset_ms: i64,
    ppm: i64,
}

// === impl Queue ===

impl<E> Queue<E> {
    pub(crate) const fn new() -> Self {
        Self { heap: BinaryHeap::new(), made: 0 }
    }

    pub(crate) fn push(&mut self, at: i64, event: E) {
        self.made += 1;
        self.heap.push(Reverse(Entry { at, made: self.made, event }));
    }

    pub(crate) fn pop(&mut self) -> Option<(i64, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.made == other.made
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.made).cmp(&(other.at, other.made))
    }
}

// === impl HostClock ===

fn drifted(at: i64, ppm: i64) -> i64 {
    at + at / 1_000_000 * ppm
}

impl HostClock {
    /// Booted `offset` nanoseconds before the world began.
    pub(crate) const fn new(offset: i64, ppm: i64) -> Self {
        Self { offset, ppm }
    }

    /// Booted at a true time, and exact.
    pub(crate) const fn booted(at: i64) -> Self {
        Self::new(-at, 0)
    }

    /// Its reading at a true time, in nanoseconds.
    pub(crate) fn read(&self, at: i64) -> i64 {
        self.offset + drifted(at, self.ppm)
    }

    /// A true time at which it reads at least this.
    pub(crate) fn when(&self, reading: i64) -> i64 {
        let passed = reading - self.offset;
        // A microsecond later covers what rounding left out.
        passed - passed / 1_000_000 * self.ppm + passed.abs() / 1_000_000 + 2_000
    }

    /// The host was suspended for so long.
    pub(crate) fn suspended(&mut self, for_ns: i64) {
        if !on(Guard::SuspendCounts) {
            self.offset -= for_ns;
        }
    }
}

// === impl WallClock ===

impl WallClock {
    pub(crate) const fn new(offset_ms: i64, ppm: i64) -> Self {
        Self { offset_ms, ppm }
    }

    pub(crate) fn read_ms(&self, at: i64) -> i64 {
        self.offset_ms + drifted(at, self.ppm) / MS
    }

    pub(crate) const fn jump(&mut self, by_ms: i64) {
        self.offset_ms += by_ms;
    }
}
