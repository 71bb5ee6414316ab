//! What a class must leave to others: `keep = (1 − share) · burst`, in whole tokens or permits.

use crate::units::{MICROS_PER_TOKEN, PPM, checked_div};

/// Of so many whole tokens or permits, those that a class leaves which may drain `share_ppm` of them.
#[inline]
pub(crate) fn kept(whole: i64, share_ppm: i64) -> i64 {
    // 10^9 tokens at most: no product overflows.
    checked_div(whole.saturating_mul(PPM.saturating_sub(share_ppm).max(0)), PPM)
}

/// What a class leaves of a bucket, whole tokens in micro-tokens. Part of a token counts as none.
#[inline]
pub(crate) fn keep(burst_micros: i64, share_ppm: i64) -> i64 {
    kept(checked_div(burst_micros, MICROS_PER_TOKEN), share_ppm).saturating_mul(MICROS_PER_TOKEN)
}

/// Permits that a class leaves: one is left for every class.
#[inline]
pub(crate) fn keep_permits(permits: i64, share_ppm: i64) -> i64 {
    kept(permits, share_ppm).min(permits.saturating_sub(1)).max(0)
}

/// The level at which a cost is covered, for a class that leaves `keep`: a full bucket serves every class. None is enough for
/// a cost above the burst.
#[inline]
pub(crate) fn needed(burst_micros: i64, cost: i64, keep_micros: i64) -> Option<i64> {
    let room = burst_micros.saturating_sub(cost);
    (room >= 0).then(|| cost.saturating_add(keep_micros.min(room)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::BURST_MICROS_MAX;

    #[test]
    fn what_a_class_leaves_is_rounded_down_exactly() {
        let million = i128::from(MICROS_PER_TOKEN);
        for burst in [0, 1, 999_999, 1_000_001, 7_654_321_987, BURST_MICROS_MAX - 1, BURST_MICROS_MAX] {
            for share in [0, 1, 333_333, 500_000, 999_999, PPM] {
                let exact = i128::from(burst) / million * i128::from(PPM - share) / million * million;
                assert_eq!(i128::from(keep(burst, share)), exact, "{burst} {share}");
            }
        }
    }

    #[test]
    fn one_permit_is_left_for_every_class() {
        let of = |permits| [0, PPM / 2, PPM].map(|share| keep_permits(permits, share));
        assert_eq!([of(0), of(1), of(2), of(7)], [[0, 0, 0], [0, 0, 0], [1, 1, 0], [6, 3, 0]]);
    }

    #[test]
    fn a_full_bucket_serves_every_class() {
        assert_eq!(
            (needed(5, 2, 1), needed(5, 2, 9), needed(5, 5, 9), needed(5, 6, 0)),
            (Some(3), Some(5), Some(5), None)
        );
    }
}
