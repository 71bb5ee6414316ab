//! Counters of what is admitted: one pair for all threads, and from the time that threads are in each other's way one for
//! each.

use std::{
    cell::Cell,
    sync::{
        OnceLock,
        atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
};

/// What is counted with every admission.
#[derive(Debug, Default)]
pub(in crate::holder) struct Admitted {
    /// Originals admitted; usually the retry bucket's clock.
    pub(in crate::holder) originals: AtomicI64,
    pub(in crate::holder) retries: AtomicI64,
}

/// The same for some of the threads, made when they collide: they share one word of a decision then, not two. What was
/// counted before stays where it is.
#[derive(Debug, Default)]
pub(in crate::holder) struct Lanes(OnceLock<Box<[Lane; LANES]>>);

/// In a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Lane(Admitted);

const LANES: usize = 4;
/// So many collisions within one segment make lanes: those of a dependency that is asked now and then do not.
const COLLISIONS_MAX: u32 = 32;

const _: () = assert!(LANES.is_power_of_two());

thread_local! {
    /// Which lane this thread counts in.
    static LANE: Cell<usize> = const { Cell::new(LANES) };
}

static NEXT_LANE: AtomicUsize = AtomicUsize::new(0);

/// Threads take lanes in turn.
#[cold]
fn choose_lane() -> usize {
    let lane = NEXT_LANE.fetch_add(1, Relaxed) & (LANES - 1);
    LANE.set(lane);
    lane
}

// === impl Lanes ===

impl Lanes {
    /// This thread's, if there are any.
    #[inline]
    pub(super) fn own(&self) -> Option<&Admitted> {
        let [first, second, third, fourth] = &**self.0.get()?;
        let mut lane = LANE.get();
        if lane >= LANES {
            lane = choose_lane();
        }
        Some(match lane {
            0 => &first.0,
            1 => &second.0,
            2 => &third.0,
            _ => &fourth.0,
        })
    }

    /// One count over all lanes and what was counted before there were any.
    pub(super) fn sum(&self, before: &Admitted, count: impl Fn(&Admitted) -> i64) -> i64 {
        let lanes = self.0.get().into_iter().flat_map(|lanes| lanes.iter());
        lanes.fold(count(before), |sum, lane| sum.wrapping_add(count(&lane.0)))
    }

    /// Takes note of one more collision.
    pub(super) fn collided(&self, collisions: &AtomicU32) {
        if self.0.get().is_none() && collisions.fetch_add(1, Relaxed) >= COLLISIONS_MAX {
            self.0.get_or_init(Box::default);
        }
    }

    #[cfg(feature = "guards")]
    pub(in crate::holder) fn copy(&self) -> Self {
        let lanes = self.0.get().map(|lanes| Box::new(lanes.each_ref().map(|lane| Lane(lane.0.copy()))));
        Self(lanes.map_or_else(OnceLock::new, OnceLock::from))
    }
}

// === impl Admitted ===

#[cfg(feature = "guards")]
impl Admitted {
    pub(in crate::holder) fn copy(&self) -> Self {
        Self { originals: self.originals.load(Relaxed).into(), retries: self.retries.load(Relaxed).into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_come_with_collisions_and_nothing_counted_is_lost() {
        let (lanes, before, collisions) = (Lanes::default(), Admitted::default(), AtomicU32::new(0));
        before.originals.store(7, Relaxed);
        let sum = || lanes.sum(&before, |admitted| admitted.originals.load(Relaxed));
        for _ in 0..COLLISIONS_MAX {
            lanes.collided(&collisions);
        }
        assert!(lanes.own().is_none() && sum() == 7);
        lanes.collided(&collisions);
        for threads in 1..=8 {
            std::thread::scope(|scope| {
                scope.spawn(|| lanes.own().unwrap().originals.fetch_add(1, Relaxed));
            });
            assert_eq!(sum(), 7 + threads);
        }
    }
}
