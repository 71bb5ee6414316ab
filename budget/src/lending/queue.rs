//! The queue of holders by when their charge changes next.
//!
//! A holder that renews is due later and later. It moves in the queue only once its turn has come, so that a renewal costs
//! no more than noting the time, and the turn of a holder that is not due yet touches nothing of it.

use std::collections::BTreeSet;

/// Of what has no time.
const NEVER: i64 = i64::MAX;

/// Holders, by the numbers of their places.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    /// Turns, and whose they are.
    turns: BTreeSet<(i64, usize)>,
    places: Vec<Place>,
    /// Places that nobody has.
    free: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Under which the holder is found.
    key: u64,
    due_ms: i64,
    /// Never later than `due_ms`.
    turn_ms: i64,
}

// === impl Queue ===

impl Queue {
    /// Gives a holder a place.
    pub(crate) fn enter(&mut self, key: u64) -> usize {
        let place = Place { key, due_ms: NEVER, turn_ms: NEVER };
        match self.free.pop().and_then(|at| Some((at, self.places.get_mut(at)?))) {
            Some((at, free)) => {
                *free = place;
                at
            }
            None => {
                self.places.push(place);
                self.places.len().saturating_sub(1)
            }
        }
    }

    /// Takes the place away from a holder.
    pub(crate) fn leave(&mut self, at: usize) {
        self.set(at, None);
        self.free.push(at);
    }

    /// When the holder of a place is due.
    pub(crate) fn due_ms(&self, at: usize) -> Option<i64> {
        self.places.get(at).map(|place| place.due_ms).filter(|due_ms| *due_ms < NEVER)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Notes when the holder of a place is due; none: not at all.
    pub(crate) fn set(&mut self, at: usize, due_ms: Option<i64>) {
        let Some(place) = self.places.get_mut(at) else { return };
        place.due_ms = due_ms.unwrap_or(NEVER);
        if place.turn_ms > place.due_ms || place.due_ms == NEVER {
            self.turns.remove(&(place.turn_ms, at));
            place.turn_ms = place.due_ms;
            self.turns.extend(due_ms.map(|due_ms| (due_ms, at)));
        }
    }

    /// A holder that is due; none if there is none among the first `most`.
    pub(crate) fn pop(&mut self, now_ms: i64, most: &mut usize) -> Option<u64> {
        while *most > 0 && self.turns.first().is_some_and(|(turn_ms, _)| *turn_ms <= now_ms) {
            *most = most.saturating_sub(1);
            let (_, at) = self.turns.pop_first()?;
            let place = self.places.get_mut(at)?;
            if place.due_ms <= now_ms {
                place.turn_ms = NEVER;
                return Some(place.key);
            }
            place.turn_ms = place.due_ms;
            self.turns.insert((place.due_ms, at));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pop(queue: &mut Queue, now_ms: i64, mut most: usize) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop(now_ms, &mut most)).collect()
    }

    #[test]
    fn turns_come_by_time_and_once() {
        let mut queue = Queue::default();
        let [a, b, c] = [10, 11, 12].map(|key| queue.enter(key));
        queue.set(a, Some(30));
        queue.set(b, Some(20));
        queue.set(c, Some(30));
        assert!(pop(&mut queue, 19, 9).is_empty());
        assert_eq!(pop(&mut queue, 30, 2), [11, 10]);
        assert_eq!(pop(&mut queue, 30, 9), [12]);
        assert!(pop(&mut queue, 1_000, 9).is_empty());
    }

    #[test]
    fn who_is_put_off_comes_when_due_and_who_is_due_earlier_at_once() {
        let mut queue = Queue::default();
        let [a, b] = [10, 11].map(|key| queue.enter(key));
        queue.set(a, Some(20));
        queue.set(a, Some(50));
        queue.set(b, Some(50));
        queue.set(b, Some(20));
        assert_eq!((queue.due_ms(a), queue.due_ms(b), queue.turns.len()), (Some(50), Some(20), 2));
        assert_eq!(pop(&mut queue, 20, 9), [11]);
        assert!(pop(&mut queue, 49, 9).is_empty());
        assert_eq!(pop(&mut queue, 50, 9), [10]);
        // Putting somebody off is work too.
        queue.set(a, Some(60));
        queue.set(a, Some(90));
        queue.set(b, Some(61));
        assert!(pop(&mut queue, 70, 1).is_empty());
        assert_eq!(pop(&mut queue, 70, 1), [11]);
    }

    #[test]
    fn a_place_that_was_left_has_no_turn_and_is_given_again() {
        let mut queue = Queue::default();
        let [a, b] = [10, 11].map(|key| queue.enter(key));
        queue.set(a, Some(20));
        queue.leave(a);
        assert_eq!((queue.due_ms(a), queue.turns.len()), (None, 0));
        assert_eq!(queue.enter(12), a);
        assert!(pop(&mut queue, 20, 9).is_empty());
        queue.set(a, Some(30));
        assert_eq!(pop(&mut queue, 30, 9), [12]);
        assert_eq!((queue.enter(13), queue.places.len()), (b + 1, 3));
    }
}
