//! How much each holder should get: max-min fairness by demand, from running sums.
//!
//! Demands (per weight) are counted in a histogram of half octaves. The water level is where filling every holder up to
//! its demand, the smallest first, uses up what there is: one pass over the histogram, whatever the number of holders.
//! Inside a bucket the average counts, so the level is approximate; safety does not depend on it.

use crate::units::checked_div;

/// Half octaves of 1 to 2^32.
pub const BUCKETS: usize = 64;

/// Sums over the holders of one ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Of weights and of demands in each bucket.
    buckets: Box<[(i64, i64); BUCKETS]>,
    pub(crate) weight: i64,
    pub(crate) demand: i64,
}

impl Default for Shares {
    fn default() -> Self {
        Self { buckets: Box::new([(0, 0); BUCKETS]), weight: 0, demand: 0 }
    }
}

// === impl Shares ===

impl Shares {
    pub(crate) fn add(&mut self, demand: i64, weight: i64) {
        self.change(demand, weight, 1);
    }

    pub(crate) fn remove(&mut self, demand: i64, weight: i64) {
        self.change(demand, weight, -1);
    }

    fn change(&mut self, demand: i64, weight: i64, sign: i64) {
        let (demand_change, weight_change) = (demand.saturating_mul(sign), weight.saturating_mul(sign));
        if let Some((weights, demands)) = self.buckets.get_mut(bucket(checked_div(demand, weight))) {
            *weights = weights.saturating_add(weight_change);
            *demands = demands.saturating_add(demand_change);
        }
        self.weight = self.weight.saturating_add(weight_change);
        self.demand = self.demand.saturating_add(demand_change);
    }

    /// The most that one unit of weight gets of `available`; none if all demands fit.
    pub(crate) fn level(&self, available: i64) -> Option<i64> {
        let (mut left, mut weight) = (available, self.weight);
        for (weights, demands) in self.buckets.iter().filter(|(weights, _)| *weights > 0) {
            let level = checked_div(left.max(0), weight);
            if *demands > level.saturating_mul(*weights) {
                return Some(level);
            }
            left = left.saturating_sub(*demands);
            weight = weight.saturating_sub(*weights);
        }
        None
    }

    /// The sums, for comparing stores.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (usize, (i64, i64))> + '_ {
        self.buckets.iter().copied().enumerate().filter(|(_, sums)| *sums != (0, 0))
    }
}

/// Two buckets for each power of two.
fn bucket(demand: i64) -> usize {
    let mut at = 0_usize;
    let mut rest = demand;
    while rest >= 4 {
        rest = rest.div_euclid(2);
        at = at.saturating_add(2);
    }
    // 0 and 1, 2 and 3 are one bucket each.
    let at = if rest >= 3 {
        at.saturating_add(2)
    } else if rest >= 2 {
        at.saturating_add(1)
    } else {
        at
    };
    at.min(BUCKETS.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_demands_are_met_and_large_ones_share_the_rest() {
        let mut shares = Shares::default();
        for _ in 0..8 {
            shares.add(10, 1);
        }
        shares.add(1_000, 1);
        shares.add(2_000, 1);
        assert_eq!(shares.level(1_000), Some(460));
        assert_eq!(shares.level(10_000), None);
        shares.remove(2_000, 1);
        assert_eq!(shares.level(1_000), Some(920));
        assert_eq!(shares.level(2_000), None);
    }

    #[test]
    fn weights_count() {
        let mut shares = Shares::default();
        shares.add(1_000, 1);
        shares.add(3_000, 3);
        assert_eq!(shares.level(400), Some(100));
        assert_eq!(Shares::default().level(0), None);
    }

    #[test]
    fn buckets_rise_with_demand() {
        let all: Vec<_> = (0..100_000).map(bucket).collect();
        assert!(all.is_sorted());
        assert!(bucket(i64::MAX) < BUCKETS);
        assert!(bucket(10_000_000) < BUCKETS);
    }
}
