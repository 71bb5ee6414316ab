//! Slots that a life has given up while permits taken in them may still be in flight.
//!
//! Whoever takes a permit has at most as many in flight as it has slots, so at any time no more are than the largest number
//! of slots within the life of a permit before. What falls is therefore charged for that long, and each fall for itself: a
//! small one does not keep an earlier large one charged any longer.

use crate::units::EXACT_MAX;

/// Falls that are kept apart for each life. Beyond that the two are joined that differ least.
pub const LINGERING_MAX: usize = 4;

/// Slots and until when, falling numbers by rising times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lingering(Vec<(i64, i64)>);

// === impl Lingering ===

impl Lingering {
    /// At least so many slots are charged until then.
    pub(crate) fn add(&mut self, slots: i64, until_ms: i64) {
        let Self(falls) = self;
        if slots <= 0 || falls.iter().any(|(more, later_ms)| *more >= slots && *later_ms >= until_ms) {
            return;
        }
        falls.retain(|(fewer, earlier_ms)| *fewer > slots || *earlier_ms > until_ms);
        let at = falls.iter().take_while(|(_, earlier_ms)| *earlier_ms < until_ms).count();
        falls.insert(at, (slots, until_ms));
        if falls.len() > LINGERING_MAX {
            self.join();
        }
    }

    /// Joins the two that differ least: the larger number for the longer time.
    fn join(&mut self) {
        let Self(falls) = self;
        let (mut least, mut at) = (EXACT_MAX, 0_usize);
        for (index, ((more, _), (fewer, _))) in falls.iter().zip(falls.iter().skip(1)).enumerate() {
            let difference = more.saturating_sub(*fewer);
            if difference < least {
                (least, at) = (difference, index);
            }
        }
        if at.saturating_add(1) < falls.len() {
            let (more, _) = falls.remove(at);
            if let Some(joined) = falls.get_mut(at) {
                joined.0 = more;
            }
        }
    }

    pub(crate) fn drop_ended(&mut self, now_ms: i64) {
        self.0.retain(|(_, until_ms)| *until_ms > now_ms);
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is charged at the moment.
    pub(crate) fn most(&self) -> i64 {
        self.0.first().map_or(0, |(slots, _)| *slots)
    }

    pub(crate) fn first_end_ms(&self) -> Option<i64> {
        self.0.first().map(|(_, until_ms)| *until_ms)
    }

    /// The falls, for comparing stores.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(falls: &[(i64, i64)]) -> Lingering {
        let mut lingering = Lingering::default();
        for (slots, until_ms) in falls {
            lingering.add(*slots, *until_ms);
        }
        lingering
    }

    fn list(lingering: &Lingering) -> Vec<(i64, i64)> {
        lingering.iter().collect()
    }

    #[test]
    fn a_small_fall_keeps_no_earlier_large_one() {
        let mut lingering = of(&[(21, 100), (7, 150)]);
        assert_eq!((lingering.most(), lingering.first_end_ms()), (21, Some(100)));
        lingering.drop_ended(99);
        assert_eq!(list(&lingering), [(21, 100), (7, 150)]);
        lingering.drop_ended(100);
        assert_eq!((lingering.most(), lingering.first_end_ms()), (7, Some(150)));
        lingering.drop_ended(150);
        assert!(lingering.is_empty() && lingering.most() == 0 && lingering.first_end_ms().is_none());
    }

    #[test]
    fn what_another_covers_is_not_kept() {
        assert_eq!(list(&of(&[(5, 100), (5, 100), (4, 100), (5, 90), (4, 90), (0, 900), (-1, 900)])), [(5, 100)]);
        assert_eq!(list(&of(&[(5, 100), (6, 100)])), [(6, 100)]);
        assert_eq!(list(&of(&[(5, 100), (5, 110)])), [(5, 110)]);
        assert_eq!(list(&of(&[(5, 100), (3, 200), (4, 200), (9, 50)])), [(9, 50), (5, 100), (4, 200)]);
        assert_eq!(list(&of(&[(5, 100), (3, 200), (9, 300)])), [(9, 300)]);
    }

    #[test]
    fn when_full_the_two_that_differ_least_are_joined() {
        assert_eq!(list(&of(&[(20, 10), (12, 20), (9, 30), (5, 40), (1, 50)])), [(20, 10), (12, 30), (5, 40), (1, 50)]);
        // The first of equals.
        assert_eq!(list(&of(&[(5, 10), (4, 20), (3, 30), (2, 40), (1, 50)])), [(5, 20), (3, 30), (2, 40), (1, 50)]);
    }

    /// Never less than the largest number of slots within the life of a permit before.
    #[test]
    fn never_less_than_what_may_be_in_flight() {
        let mut random = 1_u64;
        let mut below = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            i64::try_from((random >> 33) % most).unwrap()
        };
        let (mut lingering, mut slots, mut falls) = (Lingering::default(), 0, Vec::new());
        for now_ms in 0..20_000 {
            lingering.drop_ended(now_ms);
            if below(10) == 0 {
                let next = below(30);
                if next < slots {
                    lingering.add(slots, now_ms + 100);
                    falls.push((slots, now_ms + 100));
                }
                slots = next;
            }
            falls.retain(|(_, until_ms)| *until_ms > now_ms);
            let least = falls.iter().map(|(slots, _)| *slots).max().unwrap_or(0);
            assert!(lingering.most() >= least);
            assert!(lingering.iter().count() <= LINGERING_MAX && lingering.is_empty() == falls.is_empty());
            assert!(lingering.iter().is_sorted_by(|a, b| a.0 > b.0 && a.1 < b.1));
        }
    }
}
