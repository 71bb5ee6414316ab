//! Ledger time where leases are permitted: it must not run ahead of the true time, whatever the store's clock does, nor
//! stand still for long.
//!
//! A call advances it by what the store's clock says has passed. Heartbeats bring the time since boot of the host of a
//! replica, which no clock setting changes: what ledger time has gained on a host between two of its heartbeats is a debt, paid
//! by standing still. Until a gain is found, all calls together advance time by at most one step. So in any stretch of
//! time ledger time gains a step at most, which the margin covers, however often the clock jumps.
//!
//! Ledger time less the debt is called *net* here.

use crate::guard::{Guard, on};

/// A heartbeat that was under way longer than an earlier one makes ledger time lag behind the host's clock. As far as this
/// the earlier one still counts, so that such differences are a debt once and not again with each heartbeat. Part of the
/// margin.
pub const LAG_KEPT_MS: i64 = 250;
/// Most hosts that are remembered. One that beats is enough; the others stand by.
pub const HOSTS_MAX: usize = 8;

/// What the clock of a host said in one of its heartbeats.
#[derive(Clone, Copy, Debug)]
pub(in crate::ledger) struct Beat {
    /// Boot id of the host.
    pub(in crate::ledger) boot: i64,
    /// Its time since boot.
    pub(in crate::ledger) clock_ms: i64,
    /// Net time then.
    pub(in crate::ledger) net_ms: i64,
}

/// What ledger time owes and what it is compared with.
#[derive(Clone, Debug, Default)]
pub(in crate::ledger) struct Time {
    /// What ledger time has gained on a host's clock: paid by standing still.
    pub(in crate::ledger) debt_ms: i64,
    /// Net time as it was last compared with a host's clock, or as the epoch opened; 0: neither yet.
    pub(in crate::ledger) compared_ms: i64,
    /// The store's clock when a host last had to make room for another.
    pub(in crate::ledger) replaced_ms: i64,
    /// One for each host that is remembered, the one that beat last at the end.
    pub(in crate::ledger) beats: Vec<Beat>,
}

// === impl Time ===

impl Time {
    /// From here on, in a new epoch.
    pub(super) fn of_epoch(now_ms: i64) -> Self {
        Self { compared_ms: now_ms, ..Self::default() }
    }

    fn net_ms(&self, now_ms: i64) -> i64 {
        now_ms.saturating_sub(self.debt_ms)
    }

    /// How far calls have advanced time since it was last compared.
    fn stepped_ms(&self, now_ms: i64) -> i64 {
        if self.compared_ms == 0 { 0 } else { self.net_ms(now_ms).saturating_sub(self.compared_ms).max(0) }
    }

    /// By how much a call advances ledger time, and the debt that is left.
    pub(in crate::ledger) fn advance(&self, now_ms: i64, elapsed_ms: i64, step_max_ms: i64) -> (i64, i64) {
        let stepped_ms = if on(Guard::OneStepTogether) { self.stepped_ms(now_ms) } else { 0 };
        let left_ms = step_max_ms.saturating_sub(stepped_ms).max(0);
        let clamped_ms = if on(Guard::ClampTime) { elapsed_ms.clamp(0, left_ms) } else { elapsed_ms.max(0) };
        let paid_ms = self.debt_ms.min(clamped_ms);
        (clamped_ms.saturating_sub(paid_ms), self.debt_ms.saturating_sub(paid_ms))
    }

    /// Takes a heartbeat of a host. `store_ms`: the store's clock.
    pub(super) fn beat(&mut self, (boot, clock_ms): (i64, i64), now_ms: i64, store_ms: i64, step_max_ms: i64) {
        let (net_ms, stepped_ms) = (self.net_ms(now_ms), self.stepped_ms(now_ms));
        let compared_ms = net_ms.saturating_sub(stepped_ms);
        let Some(at) = self.beats.iter().position(|beat| beat.boot == boot) else {
            self.remember(Beat { boot, clock_ms, net_ms }, stepped_ms, store_ms, step_max_ms);
            return;
        };
        let before = self.beats.remove(at);
        let new = before.net_ms > compared_ms && on(Guard::NewHostsWait);
        if new && stepped_ms < step_max_ms {
            // It has come since: what was gained before, only those before it can tell. When none of them does, time has
            // come to stand still, and all that it has not seen itself counts as gained.
            self.beats.push(before);
            return;
        }
        let from_ms = if new { compared_ms } else { before.net_ms };
        let passed_ms = clock_ms.saturating_sub(before.clock_ms).max(0);
        let gained_ms = net_ms.saturating_sub(from_ms).saturating_sub(passed_ms);
        // Whatever a host says: no more can have been gained than was stepped.
        let gained_ms = if self.compared_ms == 0 { gained_ms } else { gained_ms.min(stepped_ms) };
        if on(Guard::ClockDebt) {
            self.debt_ms = self.debt_ms.saturating_add(gained_ms.max(0));
        }
        self.compared_ms = self.net_ms(now_ms);
        // Who has come since the last comparison has seen what was gained as time; and to hosts that have not beaten since
        // time stood still a jump of the clock would look like what had to be made up for.
        let apart = gained_ms.abs() > LAG_KEPT_MS && on(Guard::LagForgets);
        self.beats.retain(|beat| !apart && (gained_ms <= 0 || beat.net_ms <= compared_ms));
        let kept = (LAG_KEPT_MS.saturating_neg()..=0).contains(&gained_ms);
        self.beats.push(if kept {
            Beat { net_ms: from_ms, ..before }
        } else {
            Beat { boot, clock_ms, net_ms: self.compared_ms }
        });
    }

    /// A host that is not known. Where there is no room it waits until those that are known are late, and takes the place of
    /// the one silent for longest; not sooner after another did so than that can beat again.
    fn remember(&mut self, beat: Beat, stepped_ms: i64, store_ms: i64, step_max_ms: i64) {
        if self.beats.len() >= HOSTS_MAX {
            let late = stepped_ms >= step_max_ms.div_euclid(2);
            let in_turn = !(0..step_max_ms).contains(&store_ms.saturating_sub(self.replaced_ms));
            if !(late && in_turn) && on(Guard::HostsStay) {
                return;
            }
            self.replaced_ms = store_ms;
            self.beats.remove(0);
        }
        self.beats.push(beat);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP_MS: i64 = 2_000;

    /// Ledger time, the store's clock and the true time, which hosts tell.
    struct World {
        time: Time,
        now_ms: i64,
        store_ms: i64,
        true_ms: i64,
    }

    impl World {
        fn new() -> Self {
            Self { time: Time::of_epoch(1_000), now_ms: 1_000, store_ms: 50_000, true_ms: 0 }
        }

        /// A call, after time has passed and the store's clock has jumped.
        fn call(&mut self, passed_ms: i64, jumped_ms: i64) {
            self.true_ms += passed_ms;
            self.store_ms += passed_ms + jumped_ms;
            let (by_ms, debt_ms) = self.time.advance(self.now_ms, passed_ms + jumped_ms, STEP_MS);
            (self.now_ms, self.time.debt_ms) = (self.now_ms + by_ms, debt_ms);
        }

        fn beat(&mut self, host: i64) {
            self.time.beat((host, host * 1_000_000 + self.true_ms), self.now_ms, self.store_ms, STEP_MS);
        }

        fn gained_ms(&self) -> i64 {
            self.now_ms - 1_000 - self.true_ms
        }
    }

    #[test]
    fn jumps_gain_one_step_together_and_are_paid() {
        let mut world = World::new();
        world.beat(1);
        for _ in 0..5 {
            world.call(100, 3_600_000);
            assert!(world.gained_ms() <= STEP_MS);
        }
        world.beat(1);
        assert_eq!(world.time.debt_ms, 1_500);
        for _ in 0..8 {
            world.call(500, 0);
            world.beat(1);
        }
        assert_eq!((world.gained_ms(), world.time.debt_ms), (0, 0));
    }

    #[test]
    fn a_host_that_took_over_while_the_clock_jumped_has_not_seen_it_as_time() {
        let mut world = World::new();
        world.beat(1);
        for host in 2..20 {
            world.call(100, 5_000);
            world.beat(host);
            world.call(500, 0);
            world.beat(host);
            assert!(world.gained_ms() <= STEP_MS, "{}", world.gained_ms());
        }
    }

    #[test]
    fn of_many_hosts_enough_are_remembered_and_the_dead_make_room() {
        let mut world = World::new();
        world.beat(0);
        let round = |world: &mut World, hosts: std::ops::Range<i64>, jumped_ms: i64| {
            let apart_ms = 500 / (hosts.end - hosts.start);
            for host in hosts {
                world.call(apart_ms, jumped_ms);
                world.beat(host);
                assert!(world.gained_ms() <= STEP_MS);
                assert!(world.time.beats.len() <= HOSTS_MAX);
            }
        };
        for _ in 0..20 {
            round(&mut world, 0..50, 0);
        }
        assert_eq!(world.gained_ms(), 0);
        round(&mut world, 0..50, 3_600_000);
        for _ in 0..20 {
            round(&mut world, 0..50, 0);
        }
        assert_eq!(world.time.debt_ms, 0);
        // All that were remembered are gone: time goes on with the others a few seconds later.
        for _ in 0..40 {
            round(&mut world, 40..50, 0);
        }
        let before_ms = world.gained_ms();
        assert!(before_ms > -5_000, "{before_ms}");
        for _ in 0..40 {
            round(&mut world, 40..50, 0);
        }
        assert_eq!(world.gained_ms(), before_ms);
    }

    #[test]
    fn a_host_slower_than_a_step_does_not_stop_time() {
        let mut world = World::new();
        for _ in 0..40 {
            world.beat(1);
            world.call(3_000, 0);
        }
        assert!(world.now_ms - 1_000 > 40 * 1_500, "{}", world.now_ms);
    }
}
