//! The clock by which switches and overrides end: the store's, which all replicas share, as far as it can be believed.
//!
//! Replicas' wall clocks differ, so none of them may decide. The store's clock is one for all, but it may be set, and
//! another server with another clock may take over. So each replica lets the store's time pass by its own clock since boot,
//! and follows a store's clock that says otherwise by at most a tenth of the time that has really passed: what was switched
//! off for 30 minutes stays off for 27 to 33, whatever becomes of the store's clock meanwhile. Only a replica that starts
//! has no other clock to go by than the store's.

use std::sync::{Mutex, PoisonError};

/// A clock that is off is followed by at most this part of the time that passes.
const SLEW_PART: i64 = 10;

/// The store's time, from one look at its clock to the next.
#[derive(Debug, Default)]
pub(super) struct StoreTime(Mutex<Option<Anchor>>);

#[derive(Clone, Copy, Debug)]
struct Anchor {
    store_ms: i64,
    boot_ms: i64,
}

// === impl StoreTime ===

impl StoreTime {
    /// The store's clock shows `store_ms`, this machine has run for `boot_ms`.
    pub(super) fn observe(&self, store_ms: i64, boot_ms: i64) {
        let mut anchor = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let store_ms = anchor.map_or(store_ms, |anchor| {
            let expected_ms = anchor.at(boot_ms);
            let most_ms = boot_ms.saturating_sub(anchor.boot_ms).max(0) / SLEW_PART;
            expected_ms.saturating_add(store_ms.saturating_sub(expected_ms).clamp(-most_ms, most_ms))
        });
        *anchor = Some(Anchor { store_ms, boot_ms });
    }

    /// The time now; none before the first look.
    pub(super) fn at(&self, boot_ms: i64) -> Option<i64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).map(|anchor| anchor.at(boot_ms))
    }
}

// === impl Anchor ===

impl Anchor {
    fn at(self, boot_ms: i64) -> i64 {
        self.store_ms.saturating_add(boot_ms.saturating_sub(self.boot_ms).max(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen to fail with the store's clock believed as it is.
    #[test]
    fn a_clock_that_is_set_ends_nothing_much_sooner_or_later() {
        for jump_ms in [3_600_000, -3_600_000] {
            let time = StoreTime::default();
            assert_eq!(time.at(5), None);
            time.observe(1_000_000, 0);
            assert_eq!(time.at(700), Some(1_000_700));
            // Half an hour of polls after the store's clock was set.
            for boot_ms in (0..=1_800_000).step_by(500) {
                time.observe(1_000_000 + boot_ms + jump_ms, boot_ms);
            }
            let passed_ms = time.at(1_800_000).unwrap() - 1_000_000;
            assert_eq!(passed_ms, 1_800_000 + jump_ms.signum() * 180_000);
        }
        // A small difference is made up soon.
        let time = StoreTime::default();
        time.observe(1_000, 0);
        time.observe(1_520, 500);
        assert_eq!(time.at(500), Some(1_520));
    }
}
