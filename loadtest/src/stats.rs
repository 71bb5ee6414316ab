//! Order statistics: medians with quartiles over rounds, percentiles of latencies within a slice.

use std::fmt;

use serde::Serialize;

/// Median and quartiles of a few values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) q1: f64,
    pub(crate) median: f64,
    pub(crate) q3: f64,
}

/// Prints a value, or `n/a` where there is none.
pub(crate) struct OrNa<T>(pub(crate) Option<T>);

/// The value at `share` (0 to 1) of ascending values, interpolated between neighbours.
pub(crate) fn quantile(ascending: &[f64], share: f64) -> Option<f64> {
    let last = ascending.len().checked_sub(1)?;
    let position = share.clamp(0.0, 1.0) * last as f64;
    let below = ascending[position.floor() as usize];
    let above = ascending[position.ceil() as usize];
    Some(below + (above - below) * position.fract())
}

/// The median; values that are not finite (a ratio to nothing) do not count.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    Spread::of(values).map(|spread| spread.median)
}

/// The smallest value that at least `share` of the values do not exceed (nearest rank). Reorders the values.
pub(crate) fn percentile(values: &mut [u32], share: f64) -> Option<u32> {
    let last = values.len().checked_sub(1)?;
    let rank = (share.clamp(0.0, 1.0) * values.len() as f64).ceil() as usize;
    let (_, value, _) = values.select_nth_unstable(rank.saturating_sub(1).min(last));
    Some(*value)
}

/// `part / whole`, or nothing if there is no whole.
pub(crate) fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

// === impl Spread ===

impl Spread {
    /// Of the values that are finite, in any order; nothing if there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut ascending: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        ascending.sort_by(f64::total_cmp);
        Some(Self {
            q1: quantile(&ascending, 0.25)?,
            median: quantile(&ascending, 0.5)?,
            q3: quantile(&ascending, 0.75)?,
        })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Through `pad`, so that tables can align it.
        f.pad(&format!("{:.3} [{:.3}–{:.3}]", self.median, self.q1, self.q3))
    }
}

// === impl OrNa ===

impl<T: fmt::Display> fmt::Display for OrNa<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.pad("n/a"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_single() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median([7.0]), Some(7.0));
    }

    #[test]
    fn quartiles_interpolate_between_neighbours() {
        assert_eq!(Spread::of([1.0, 2.0, 3.0, 4.0, 5.0]), Some(Spread { q1: 2.0, median: 3.0, q3: 4.0 }));
        assert_eq!(Spread::of([40.0, 10.0, 30.0, 20.0]), Some(Spread { q1: 17.5, median: 25.0, q3: 32.5 }));
        assert_eq!(Spread::of([5.0]), Some(Spread { q1: 5.0, median: 5.0, q3: 5.0 }));
    }

    #[test]
    fn empty_and_not_finite_values_have_no_spread() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN, f64::INFINITY]), None);
        assert_eq!(median([f64::NAN, 2.0]), Some(2.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn quantile_stays_within_the_values() {
        assert_eq!(quantile(&[1.0, 9.0], 0.0), Some(1.0));
        assert_eq!(quantile(&[1.0, 9.0], 1.0), Some(9.0));
        assert_eq!(quantile(&[1.0, 9.0], -3.0), Some(1.0));
        assert_eq!(quantile(&[1.0, 9.0], 3.0), Some(9.0));
    }

    #[test]
    fn percentile_is_the_nearest_rank() {
        let mut hundred: Vec<u32> = (1..=100).rev().collect();
        assert_eq!(percentile(&mut hundred, 0.5), Some(50));
        assert_eq!(percentile(&mut hundred, 0.99), Some(99));
        assert_eq!(percentile(&mut hundred, 0.991), Some(100));
        assert_eq!(percentile(&mut hundred, 1.0), Some(100));
        assert_eq!(percentile(&mut hundred, 0.0), Some(1));
        assert_eq!(percentile(&mut [42], 0.99), Some(42));
        assert_eq!(percentile(&mut [], 0.99), None);
    }

    #[test]
    fn ratio_to_nothing_is_nothing() {
        assert_eq!(ratio(1.0, 4.0), Some(0.25));
        assert_eq!(ratio(1.0, 0.0), None);
    }

    #[test]
    fn missing_values_print_as_na_and_align() {
        assert_eq!(OrNa::<f64>(None).to_string(), "n/a");
        assert_eq!(format!("{:>6}", OrNa::<f64>(None)), "   n/a");
        assert_eq!(format!("{:>6.1}", OrNa(Some(2.25))), "   2.2");
        let spread = Spread { q1: 0.9, median: 0.95, q3: 1.0 };
        assert_eq!(OrNa(Some(spread)).to_string(), "0.950 [0.900–1.000]");
        assert_eq!(format!("{spread:>20}|"), " 0.950 [0.900–1.000]|");
    }
}
