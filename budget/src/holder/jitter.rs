//! Spreads the times of sending. Not for secrets.

/// A generator of the SplitMix64 family (Steele, Lea, Flood).
#[derive(Clone, Debug)]
pub(super) struct Jitter(u64);

// === impl Jitter ===

impl Jitter {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform between two bounds, both included.
    pub(super) fn between(&mut self, min: i64, max: i64) -> i64 {
        let width = u128::from(max.saturating_sub(min).max(0).unsigned_abs()).saturating_add(1);
        let scaled = u128::from(self.next()).saturating_mul(width) >> 64;
        min.saturating_add(i64::try_from(scaled).unwrap_or(0))
    }

    /// 52 bits; `fresh` keeps a clone, whose generator goes the same way, from making the same.
    pub(super) fn nonce(&mut self, fresh: u64) -> i64 {
        i64::try_from((self.next() ^ fresh) >> 12).unwrap_or(0)
    }
}
