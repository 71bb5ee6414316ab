//! Judges a history of admissions: whether every window of any length keeps the bound, in one pass and exactly.
//!
//! For windows that all run under the same policy a single number suffices: `M := max(0, M − R·dt) + 1` at each
//! admission is the largest excess over `R·W` of all windows that end now, so the bound holds in all of them as long as
//! `M` never passes `A`. Where policies change, windows differ in the burst they are allowed, so there is one such number
//! for each burst that is the largest of some window.
//!
//! Integers throughout. Times are nanoseconds of one clock that does not go back.

mod star;
#[cfg(test)]
mod tests;

use crate::{
    policy::{BucketNumbers, Policy},
    units::MICROS_PER_TOKEN,
};
use star::{History, Star};

/// What one micro-token is counted as inside: a nanosecond of any rate, with its drift, is a whole number.
const PER_MICRO: i128 = 86_400_000 * 1_000 * 1_000_000;
/// The same for one token.
const PER_TOKEN: i128 = PER_MICRO * 1_000_000;
/// Every denominator of a rate divides it: the milliseconds of a day.
const DEN_MULTIPLE: i64 = 86_400_000;

const _: () = assert!(MICROS_PER_TOKEN == 1_000_000);

/// A bucket as the bound sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slope {
    /// Micro-tokens per millisecond: numerator.
    pub num: i64,
    /// Denominator.
    pub den: i64,
    /// Micro-tokens.
    pub burst_micros: i64,
}

/// The numbers of a policy that the bound has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Law {
    /// Rate and burst of all attempts; none: unlimited.
    pub admission: Option<Slope>,
    /// Floor and burst of retries.
    pub retry: Slope,
    /// Retry tokens per original, parts per million.
    pub ratio_ppm: i64,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// This policy is in force from now on.
    Policy(Law),
    /// The ledger lost its state and opened an epoch.
    Epoch,
    /// An original was admitted: it counts, and it earns.
    Original,
    /// An original was admitted that earns nothing, or not yet.
    Admission,
    /// An original earned without counting: it was handed back unsent, or it earns at its success, which is now.
    Earning,
    /// A retry was admitted.
    Retry,
}

/// The window that comes closest to its bound, or exceeds it most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// By how much the window exceeds its bound, micro-tokens, rounded up; at most 0 where it keeps it.
    pub micros: i64,
    /// The window's first attempt.
    pub from_ns: i64,
    /// Its last.
    pub until_ns: i64,
}

/// The bound without its extra terms, T1 and T2, for all windows of a history at once.
///
/// Events are fed in the order of time; of those with the same time, policies and epochs first, originals before retries
/// ([`Self::of`] sorts). A time before the latest is taken as the latest.
#[derive(Clone, Debug)]
pub struct AllWindows {
    history: History,
    star: Star,
    at_ns: i64,
    admissions: Windows,
    retries: Windows,
}

/// All windows that end now, of one budget.
#[derive(Clone, Debug, Default)]
struct Windows {
    /// By falling level, and so from longer windows to shorter ones. Each spent less than all before it: a longer window
    /// that spent no more is allowed more, now and ever after. Empty: nothing is limited.
    kinds: Vec<Kind>,
    at_ns: i64,
    worst: Option<(i128, i64, i64)>,
}

/// The windows whose largest level is the same: of them, the one that spent most.
#[derive(Clone, Copy, Debug)]
struct Kind {
    level: i128,
    /// Beyond the rate; never negative, since a window may begin now.
    spent: i128,
    from_ns: i64,
}

// === impl Law ===

impl Law {
    /// The numbers of a policy.
    #[must_use]
    pub fn of(policy: &Policy) -> Self {
        let numbers = policy.numbers(false, true);
        let slope = |bucket: BucketNumbers| Slope { num: bucket.num, den: bucket.den, burst_micros: bucket.burst };
        Self { admission: numbers.admission.map(slope), retry: slope(numbers.retry), ratio_ppm: numbers.deposit_micros }
    }
}

// === impl Event ===

impl Event {
    /// Order of events of the same time.
    const fn rank(&self) -> u8 {
        match self {
            Self::Policy(_) | Self::Epoch => 0,
            Self::Original | Self::Admission | Self::Earning => 1,
            Self::Retry => 2,
        }
    }
}

// === impl AllWindows ===

impl AllWindows {
    /// Nothing has happened yet at `at_ns`. `horizon_ms`: how long a policy may go on to count after its end, with no
    /// epoch opened meanwhile ([`horizon_ms`](super::horizon_ms)).
    #[must_use]
    pub fn new(horizon_ms: i64, at_ns: i64, law: Law) -> Self {
        let history = History::new(horizon_ms, law);
        let star = history.star(at_ns);
        let empty = Windows { at_ns, ..Windows::default() };
        let mut all = Self { history, star, at_ns, admissions: empty.clone(), retries: empty };
        all.under(star);
        all
    }

    /// As [`Self::new`], with all that happened from then on, in any order.
    #[must_use]
    pub fn of(horizon_ms: i64, at_ns: i64, law: Law, mut events: Vec<(i64, Event)>) -> Self {
        events.sort_by_key(|(at_ns, event)| (*at_ns, event.rank()));
        let mut all = Self::new(horizon_ms, at_ns, law);
        events.iter().for_each(|(at_ns, event)| all.feed(*at_ns, event));
        all
    }

    /// Takes note of one event.
    pub fn feed(&mut self, at_ns: i64, event: &Event) {
        self.advance(at_ns);
        match event {
            Event::Policy(law) => {
                self.history.change(*law, self.at_ns);
                self.under(self.history.star(self.at_ns));
            }
            Event::Epoch => {
                self.history.open_epoch(self.at_ns);
                self.under(self.history.star(self.at_ns));
            }
            Event::Original => {
                self.admissions.spend(PER_TOKEN);
                self.retries.earn(self.star.earned);
            }
            Event::Admission => self.admissions.spend(PER_TOKEN),
            Event::Earning => self.retries.earn(self.star.earned),
            Event::Retry => {
                self.admissions.spend(PER_TOKEN);
                self.retries.spend(PER_TOKEN);
            }
        }
    }

    /// Of all windows so far, the one that exceeds T1 most; none if there was no admission under a limit.
    #[must_use]
    pub fn admissions(&self) -> Option<Excess> {
        self.admissions.worst()
    }

    /// Of all windows so far, the one that exceeds T2 most; none if there was no retry.
    #[must_use]
    pub fn retries(&self) -> Option<Excess> {
        self.retries.worst()
    }

    /// Passes every moment on the way at which a policy of the past stops to count.
    fn advance(&mut self, at_ns: i64) {
        let at_ns = at_ns.max(self.at_ns);
        while let Some(change_ns) = self.star.until_ns.filter(|change_ns| *change_ns <= at_ns) {
            self.admissions.advance(change_ns, self.star.admission.map_or(0, |line| line.drain()));
            self.retries.advance(change_ns, self.star.retry.drain());
            self.at_ns = change_ns;
            self.under(self.history.star(change_ns));
        }
        self.admissions.advance(at_ns, self.star.admission.map_or(0, |line| line.drain()));
        self.retries.advance(at_ns, self.star.retry.drain());
        self.at_ns = at_ns;
    }

    fn under(&mut self, star: Star) {
        self.star = star;
        self.admissions.allow(star.admission.map(|line| line.level()));
        self.retries.allow(Some(star.retry.level()));
    }
}

// === impl Windows ===

impl Windows {
    /// From now on windows are allowed this much beyond the rate; none: anything.
    fn allow(&mut self, level: Option<i128>) {
        let Some(level) = level else {
            self.kinds.clear();
            return;
        };
        let mut kind = Kind { level, spent: 0, from_ns: self.at_ns };
        while let Some(last) = self.kinds.pop_if(|last| last.level <= level || last.spent == 0) {
            if last.spent > kind.spent {
                kind = Kind { level, ..last };
            }
        }
        self.kinds.push(kind);
    }

    fn advance(&mut self, at_ns: i64, drain: i128) {
        let elapsed_ns = at_ns.saturating_sub(self.at_ns);
        self.at_ns = at_ns;
        if elapsed_ns > 0 {
            self.earn(drain.saturating_mul(elapsed_ns.into()));
        }
    }

    fn earn(&mut self, amount: i128) {
        for kind in &mut self.kinds {
            kind.spent = kind.spent.saturating_sub(amount).max(0);
        }
        // Once the longer windows have spent no more than the shorter ones, those say it all.
        while self.kinds.iter().rev().nth(1).is_some_and(|longer| longer.spent == 0) {
            let at = self.kinds.len().saturating_sub(2);
            self.kinds.remove(at);
        }
    }

    fn spend(&mut self, amount: i128) {
        let at_ns = self.at_ns;
        for kind in &mut self.kinds {
            if kind.spent == 0 {
                kind.from_ns = at_ns;
            }
            kind.spent = kind.spent.saturating_add(amount);
            let excess = kind.spent.saturating_sub(kind.level);
            if self.worst.is_none_or(|(worst, ..)| excess > worst) {
                self.worst = Some((excess, kind.from_ns, at_ns));
            }
        }
    }

    fn worst(&self) -> Option<Excess> {
        self.worst.map(|(excess, from_ns, until_ns)| {
            let micros = excess.saturating_neg().div_euclid(PER_MICRO).saturating_neg();
            let most = if micros > 0 { i64::MAX } else { i64::MIN };
            Excess { micros: i64::try_from(micros).unwrap_or(most), from_ns, until_ns }
        })
    }
}
