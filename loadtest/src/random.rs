//! Seeded randomness: the same seed gives the same numbers on every machine and version.

/// A splitmix64 generator.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

/// What follows from several numbers, evenly spread: for choices that must not depend on the order of events.
pub(crate) fn mixed(numbers: &[u64]) -> u64 {
    let mix = |state: u64, number: &u64| Random::new(state ^ number.rotate_left(17)).next();
    numbers.iter().fold(0x51_7c_c1_b7_27_22_0a_95, mix)
}

/// A number of [`mixed`] as a share of one.
pub(crate) fn share_of(number: u64) -> f64 {
    Random { state: number }.share()
}

// === impl Random ===

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub(crate) const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to, not including, 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From 0 up to, not including, `bound`; 0 if `bound` is 0.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// Exponentially distributed with this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.share()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            [random.next(), random.next(), random.below(100)]
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert_eq!(mixed(&[1, 2, 3]), mixed(&[1, 2, 3]));
        assert_ne!(mixed(&[1, 2, 3]), mixed(&[1, 3, 2]));
    }

    #[test]
    fn shares_and_means_are_where_they_should_be() {
        let mut random = Random::new(2);
        let shares: f64 = (0..10_000).map(|_| random.share()).sum::<f64>() / 10_000.0;
        let waits: f64 = (0..10_000).map(|_| random.exponential(3.0)).sum::<f64>() / 10_000.0;
        assert!((0.48..0.52).contains(&shares), "{shares}");
        assert!((2.9..3.1).contains(&waits), "{waits}");
        assert!((0..1_000).all(|_| random.below(7) < 7));
    }
}
