//! Seeded randomness: a run that failed is replayed with the seed it printed.

use std::env;

/// Names the seed to replay.
pub const SEED_VARIABLE: &str = "BUDGET_SEED";

/// A splitmix64 generator. The same seed gives the same numbers on every machine and version.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

// === impl Rng ===

impl Rng {
    /// Starts from this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Starts from the operating system's randomness, with nothing printed: for what need not be replayed.
    ///
    /// # Panics
    /// If the system has no randomness.
    #[must_use]
    pub fn fresh() -> Self {
        Self::new(fresh_seed())
    }

    /// Starts from `BUDGET_SEED`, or else from a fresh seed, and prints it: a failed test shows how to run it again.
    ///
    /// # Panics
    /// If the variable is set and is not a number.
    #[must_use]
    pub fn seeded(what: &str) -> Self {
        let seed = match env::var(SEED_VARIABLE) {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE} is {text:?}, must be a whole number")),
            Err(_) => fresh_seed(),
        };
        eprintln!("{what}: seed {seed}, replay with {SEED_VARIABLE}={seed}");
        Self::new(seed)
    }

    /// The next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to, not including, `bound`; 0 if `bound` is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product: even enough for tests, and free of a division.
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    ///
    /// # Panics
    /// If `low` is above `high`.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        assert!(low <= high, "{low} is above {high}");
        let span = high.abs_diff(low);
        let offset = if span == u64::MAX { self.next_u64() } else { self.below(span + 1) };
        low.wrapping_add_unsigned(offset)
    }

    /// True in `part` of `whole` cases.
    pub const fn chance(&mut self, part: u64, whole: u64) -> bool {
        self.below(whole) < part
    }

    /// One of the items.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        let index = usize::try_from(self.below(items.len() as u64)).unwrap_or(0);
        &items[index]
    }

    /// Random bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        for chunk in bytes.chunks_mut(8) {
            let random = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
        bytes
    }

    /// A generator of its own for one of several tasks, so that their interleaving does not change their numbers.
    #[must_use]
    pub const fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

fn fresh_seed() -> u64 {
    getrandom::u64().unwrap_or_else(|error| panic!("no randomness: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_alone_decides() {
        // Published values of splitmix64 for the seed 1234567.
        let mut rng = Rng::new(1_234_567);
        assert_eq!([rng.next_u64(), rng.next_u64()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        assert_eq!(Rng::new(7).bytes::<13>(), Rng::new(7).bytes::<13>());
    }

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_them() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 5];
        for _ in 0..1_000 {
            seen[usize::try_from(rng.between(-2, 2) + 2).unwrap()] = true;
            assert!(rng.below(3) < 3);
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.between(9, 9), 9);
        assert!(rng.chance(1, 1) && !rng.chance(0, 10));
        let _covers_all = rng.between(i64::MIN, i64::MAX);
    }
}
