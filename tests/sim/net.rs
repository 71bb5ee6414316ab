//! The network: loses, doubles, delays and so reorders; cuts are elsewhere.

use crate::{rng::Rng, time::MS};

/// Conditions of the moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Net {
    /// Parts per thousand that are lost.
    pub loss: u64,
    /// Parts per thousand that arrive twice.
    pub double: u64,
    /// Parts per thousand that are late by up to `late_ms`.
    pub late: u64,
    pub late_ms: i64,
    /// All others arrive within this.
    pub usual_ms: i64,
}

impl Net {
    pub(crate) const GOOD: Self = Self { loss: 0, double: 0, late: 0, late_ms: 0, usual_ms: 5 };

    /// How long a message is under way, for each copy that arrives.
    pub(crate) fn deliveries(&self, rng: &mut Rng) -> [Option<i64>; 2] {
        let one = |rng: &mut Rng| (!rng.chance(self.loss, 1_000)).then(|| self.delay(rng));
        let first = one(rng);
        let second = rng.chance(self.double, 1_000).then(|| one(rng)).flatten();
        [first, second]
    }

    fn delay(&self, rng: &mut Rng) -> i64 {
        if rng.chance(self.late, 1_000) {
            return rng.between(0, self.late_ms * MS);
        }
        rng.between(MS / 10, self.usual_ms * MS)
    }

    /// Some weather.
    pub(crate) fn random(rng: &mut Rng) -> Self {
        match rng.below(4) {
            0 => Self::GOOD,
            1 => Self { loss: 30, double: 30, late: 30, late_ms: 800, usual_ms: 20 },
            2 => Self { loss: 150, double: 100, late: 200, late_ms: 6_000, usual_ms: 50 },
            _ => Self { loss: 50, double: 300, late: 400, late_ms: 30_000, usual_ms: 10 },
        }
    }
}
