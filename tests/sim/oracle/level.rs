//! What one holder may have at most, reckoned apart from its share: refilled piecewise, clipped at each step's end, grown
//! only by what came with a grant, and given back only to the step it was taken from.

use budget::lease::{Amounts, LeaseName};

use crate::oracle::state::{Held, Part};

const TOKEN: f64 = 1e6;
/// Micro-tokens that rounding may make.
const ROUNDING: f64 = 4.0;

/// The highest levels a holder can have, in micro-tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Level {
    /// By the holder's clock.
    at: i64,
    admission: f64,
    /// Negative: a deposit that was spent was taken back. Above the cap: deposits that are lost when a retry is taken, or
    /// are taken back first.
    retry: f64,
    pub name: LeaseName,
}

// === impl Level ===

impl Level {
    /// Refills up to `tau`, step by step.
    pub(crate) fn advance(&mut self, held: Option<&Held>, tau: i64) {
        let steps = held.map_or(&[][..], |held| &held.steps);
        let from = self.at;
        let mut left = steps.iter().skip_while(|(end, _)| *end <= from);
        while let Some((end, part)) = left.next() {
            let to = tau.min(*end).max(self.at);
            self.admission = (self.admission + part.rate as f64 * (to - self.at) as f64 / 1e9).min(part.burst as f64);
            self.at = to;
            if tau < *end {
                return;
            }
            let next = left.clone().next().map_or_else(Part::default, |(_, next)| *next);
            self.clip(&next);
        }
        // Beyond the last step nothing is left.
        self.clip(&Part::default());
        self.at = self.at.max(tau);
    }

    fn clip(&mut self, part: &Part) {
        self.admission = self.admission.min(part.burst as f64);
        self.retry = self.retry.min(part.retry_burst as f64);
    }

    /// Another lease, with what comes with it.
    pub(crate) fn install(&mut self, held: &Held, tau: i64, name: LeaseName, moved: &Amounts) {
        self.name = name;
        let part = held.at(tau).map_or_else(Part::default, |(_, part)| part);
        self.clip(&part);
        self.admission += moved.burst as f64;
        self.retry += moved.retry_burst as f64;
        self.clip(&part);
    }

    /// Lends a part, with what goes with it; another part is left.
    pub(crate) fn part_with(&mut self, held: &Held, tau: i64, moved: Option<&Amounts>) {
        if let Some(moved) = moved {
            self.admission -= moved.burst as f64;
            self.retry -= moved.retry_burst as f64;
        }
        let part = held.at(tau).map_or_else(Part::default, |(_, part)| part);
        self.clip(&part);
    }

    /// Admits one attempt; the error says what it lacked.
    pub(crate) fn admit(&mut self, retry: bool, ratio: i64, cap: i64) -> Result<(), String> {
        if retry {
            self.retry = self.retry.min(cap as f64);
        }
        if self.admission < TOKEN - ROUNDING || (retry && self.retry < TOKEN - ROUNDING) {
            return Err(format!("admits {} with at most {self:?}", if retry { "a retry" } else { "an original" }));
        }
        self.admission -= TOKEN;
        if retry {
            self.retry -= TOKEN;
        } else {
            self.retry += ratio as f64;
        }
        Ok(())
    }

    /// Takes back what was not sent; `same`: the step it was taken from is still in force.
    pub(crate) fn hand_back(&mut self, same: bool, retry: bool, ratio: i64, part: &Part) {
        if same {
            self.admission += TOKEN;
            self.retry += if retry { TOKEN } else { 0.0 };
        }
        if !retry {
            self.retry = (self.retry - ratio as f64).max(-(part.retry_burst as f64));
        }
        self.admission = self.admission.min(part.burst as f64);
    }
}
