//! The words that local decisions are made on.
//!
//! Every bucket is one atomic word: a tag of 12 bits that names the segment of the lease it belongs to, and a *mark* of
//! 52 bits. A bucket has a clock that counts what it has earned since the segment began, in micro-tokens: time times rate
//! for a rate, deposits for the retry bucket. The mark lies on the same scale: `level = min(burst, clock − mark)`, so
//! refill needs no write, and a withdrawal is one compare-and-swap that lifts the mark
//! (as in the generic cell rate algorithm of ITU-T I.371, with tokens in place of time). A swap whose tag is of the past
//! fails, whatever it was computed from.

use std::sync::atomic::{
    AtomicI64, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Clocks stay below this; a segment that would exceed it is cut in two.
pub(super) const CLOCK_MAX: i64 = 1 << 50;
/// Marks are stored with this added.
const BIAS: i64 = 1 << 51;
const MARK_MASK: u64 = (1 << 52) - 1;
/// Tags as they stand in a word; 4,096 segments later a tag comes again, which takes hours.
const TAG_SHIFT: u32 = 52;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Names a segment in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u64);

/// Why nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missed {
    /// The bucket does not cover it.
    Short,
    /// The retry bucket does not: a larger part of the rate would not help.
    Unearned,
    /// The segment is over, or another thread is at its end.
    Moved,
}

/// A bucket.
#[derive(Debug)]
pub(super) struct Level {
    word: AtomicU64,
    /// Micro-tokens given back in all.
    given: AtomicI64,
}

/// What a look at a bucket showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    raw: u64,
    given: i64,
}

/// A rate in micro-tokens per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pace(pub(super) i64);

/// Permits in flight, in two generations that each last for the life of a permit, so that a leaked one comes back
/// without anything being remembered of it: within two lives.
///
/// The word: generation (24 bits), permits of it (20), permits of the one before (20).
#[derive(Debug, Default)]
pub(super) struct Flight {
    word: AtomicU64,
    turn_ns: AtomicI64,
}

const SLOT_BITS: u32 = 20;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const GENERATION_MASK: u64 = (1 << 24) - 1;

const _: () = assert!(crate::policy::IN_FLIGHT_MAX < 1 << SLOT_BITS);
const _: () = assert!(crate::units::BURST_MICROS_MAX <= CLOCK_MAX);

// === impl Tag ===

impl Tag {
    #[expect(clippy::as_conversions, reason = "widening, in a constant function")]
    pub(super) const fn of(segment: u32) -> Self {
        Self((segment as u64) << TAG_SHIFT)
    }

    pub(super) const fn is_odd(self) -> bool {
        self.0 & (1 << TAG_SHIFT) != 0
    }
}

// === impl Seen ===

impl Seen {
    #[inline]
    pub(super) fn tag(self) -> Tag {
        split(self.raw).0
    }
}

// === impl Level ===

#[inline]
fn split(raw: u64) -> (Tag, i64) {
    (Tag(raw & !MARK_MASK), (raw & MARK_MASK).cast_signed().wrapping_sub(BIAS))
}

#[inline]
fn join(tag: Tag, mark: i64) -> u64 {
    tag.0 | (mark.wrapping_add(BIAS).cast_unsigned() & MARK_MASK)
}

impl Level {
    pub(super) fn new(tag: Tag) -> Self {
        Self { word: AtomicU64::new(join(tag, 0)), given: AtomicI64::new(0) }
    }

    /// A look at the bucket. What was given back is read first: less of it is on the safe side.
    #[inline]
    pub(super) fn seen(&self) -> Seen {
        let given = self.given.load(Acquire);
        Seen { raw: self.word.load(Acquire), given }
    }

    /// The tag, before the parameters of its segment are read.
    #[inline]
    pub(super) fn tag(&self) -> Tag {
        split(self.word.load(Acquire)).0
    }

    #[cfg(feature = "guards")]
    pub(super) fn copy(&self) -> Self {
        Self { word: self.word.load(Acquire).into(), given: self.given.load(Acquire).into() }
    }

    /// Tag and mark.
    #[inline]
    pub(super) fn read(&self) -> (Tag, i64) {
        split(self.word.load(Acquire))
    }

    /// Whether the level is below `needed`: a look that takes nothing, and says nothing where the tag is another.
    #[inline]
    pub(super) fn lacks(&self, tag: Tag, clock: i64, burst: i64, needed: i64) -> bool {
        let (found, mark) = self.read();
        found == tag && clock.wrapping_sub(mark).min(burst) < needed
    }

    /// Takes `cost` if the level is at least `needed`; returns a receipt for [`Self::give`]: the mark after that and all
    /// that was given back before. Marks and clocks are within ±2⁵¹ and costs within a burst, so nothing wraps.
    #[inline]
    pub(super) fn take(&self, tag: Tag, clock: i64, burst: i64, needed: i64, cost: i64) -> Result<i64, Missed> {
        let seen = self.seen();
        if seen.tag() != tag {
            return Err(Missed::Moved);
        }
        self.take_from(seen, clock, burst, needed, cost, || {})
    }

    /// As [`Self::take`] of the segment that was seen, beginning with what was seen of the bucket: under contention each
    /// look is dear. `collided` is called each time that another thread was faster.
    #[inline]
    pub(super) fn take_from(
        &self,
        seen: Seen,
        clock: i64,
        burst: i64,
        needed: i64,
        cost: i64,
        collided: impl Fn(),
    ) -> Result<i64, Missed> {
        let line = clock.wrapping_sub(burst);
        let tag = seen.tag();
        let Seen { mut raw, given } = seen;
        loop {
            let (found, mark) = split(raw);
            if found != tag {
                return Err(Missed::Moved);
            }
            let mark = mark.max(line);
            if clock.wrapping_sub(mark) < needed {
                return Err(Missed::Short);
            }
            let after = mark.wrapping_add(cost);
            match self.word.compare_exchange_weak(raw, join(tag, after), AcqRel, Relaxed) {
                Ok(_) => return Ok(after.wrapping_add(given)),
                Err(seen) => raw = seen,
            }
            collided();
        }
    }

    /// Changes the mark while the tag is `tag`; `change` gets it and says the new one.
    pub(super) fn change(&self, tag: Tag, mut change: impl FnMut(i64) -> i64) -> Result<(), Missed> {
        let mut raw = self.word.load(Relaxed);
        loop {
            let (found, mark) = split(raw);
            if found != tag {
                return Err(Missed::Moved);
            }
            match self.word.compare_exchange_weak(raw, join(tag, change(mark)), AcqRel, Relaxed) {
                Ok(_) => return Ok(()),
                Err(seen) => raw = seen,
            }
        }
    }

    /// Gives back what was taken with `receipt`, as far as it was not earned anew since: only what lies above `line`, where
    /// a full bucket's mark would be, even if all that was given back meanwhile had lain below it. So a token held for
    /// long is not worth two: the bucket was never full since, and is as if the token had not been taken.
    pub(super) fn give(&self, tag: Tag, line: i64, receipt: i64, amount: i64) {
        if self.undo(tag, line, receipt, amount) {
            return;
        }
        let above = |given: i64| receipt.saturating_sub(given).saturating_sub(line).clamp(0, amount);
        // Counted first: another that is given back at the same time must not lean on this one.
        let counted = self.given.fetch_update(AcqRel, Acquire, |given| {
            let credit = above(given);
            (credit > 0).then(|| given.wrapping_add(credit))
        });
        if let Ok(given) = counted {
            let credit = above(given);
            let _ = self.change(tag, |mark| mark.saturating_sub(credit));
        }
    }

    /// Gives back what was taken last: nothing else leans on it.
    fn undo(&self, tag: Tag, line: i64, receipt: i64, amount: i64) -> bool {
        let given = self.given.load(Acquire);
        let raw = self.word.load(Acquire);
        let (found, mark) = split(raw);
        if found != tag || mark.wrapping_add(given) != receipt {
            return false;
        }
        let credit = mark.saturating_sub(line).clamp(0, amount);
        self.word.compare_exchange(raw, join(tag, mark.wrapping_sub(credit)), AcqRel, Relaxed).is_ok()
    }

    /// Moves to the next segment. Only one thread at a time does this. `mark` gets the old mark.
    pub(super) fn turn(&self, to: Tag, mut mark: impl FnMut(i64) -> i64) {
        let mut raw = self.word.load(Acquire);
        loop {
            match self.word.compare_exchange_weak(raw, join(to, mark(split(raw).1)), AcqRel, Acquire) {
                Ok(_) => return,
                Err(seen) => raw = seen,
            }
        }
    }
}

// === impl Pace ===

impl Pace {
    /// `⌊rate · elapsed / 10⁹⌋`, exact; 0 for a negative time.
    #[inline]
    pub(super) fn at(self, elapsed_ns: i64) -> i64 {
        let (elapsed, rate) = (elapsed_ns.max(0).cast_unsigned(), self.0.cast_unsigned());
        let earned = match elapsed.checked_mul(rate) {
            Some(product) => product.div_euclid(NANOS_PER_SECOND),
            None => long(elapsed, rate),
        };
        earned.min(CLOCK_MAX.cast_unsigned()).cast_signed()
    }
}

/// Both factors are cut at the second, so that no product leaves its range.
#[inline]
fn long(elapsed: u64, rate: u64) -> u64 {
    let (seconds, nanos) = (elapsed.div_euclid(NANOS_PER_SECOND), elapsed.rem_euclid(NANOS_PER_SECOND));
    let (per_nano, rest) = (rate.div_euclid(NANOS_PER_SECOND), rate.rem_euclid(NANOS_PER_SECOND));
    let within = nanos.saturating_mul(rest).div_euclid(NANOS_PER_SECOND);
    seconds.saturating_mul(rate).saturating_add(nanos.saturating_mul(per_nano)).saturating_add(within)
}

// === impl Flight ===

impl Flight {
    fn parts(raw: u64) -> (u64, u64, u64) {
        ((raw >> (SLOT_BITS << 1)) & GENERATION_MASK, (raw >> SLOT_BITS) & SLOT_MASK, raw & SLOT_MASK)
    }

    fn whole(generation: u64, now: u64, before: u64) -> u64 {
        ((generation & GENERATION_MASK) << (SLOT_BITS << 1)) | (now << SLOT_BITS) | before
    }

    #[cfg(feature = "guards")]
    pub(super) fn copy(&self) -> Self {
        Self { word: self.word.load(Acquire).into(), turn_ns: self.turn_ns.load(Acquire).into() }
    }

    pub(super) fn count(&self) -> i64 {
        let (_, now, before) = Self::parts(self.word.load(Relaxed));
        now.saturating_add(before).cast_signed()
    }

    /// Whether the older generation's time is over, or none has begun.
    #[inline]
    pub(super) fn is_due(&self, now_ns: i64) -> bool {
        now_ns >= self.turn_ns.load(Relaxed)
    }

    /// Takes a permit if fewer than `limit` are out, and returns its generation.
    pub(super) fn take(&self, limit: i64) -> Option<u32> {
        let taken = self.word.fetch_update(AcqRel, Acquire, |raw| {
            let (generation, now, before) = Self::parts(raw);
            let out = now.saturating_add(before);
            (out.cast_signed() < limit).then(|| Self::whole(generation, now.saturating_add(1), before))
        });
        u32::try_from(Self::parts(taken.ok()?).0).ok()
    }

    /// Gives a permit back, if it has not ended.
    pub(super) fn give(&self, of: u32) {
        let of = u64::from(of);
        let _ = self.word.fetch_update(AcqRel, Acquire, |raw| {
            let (generation, now, before) = Self::parts(raw);
            if of == generation {
                Some(Self::whole(generation, now.saturating_sub(1), before))
            } else if of.wrapping_add(1) & GENERATION_MASK == generation {
                Some(Self::whole(generation, now, before.saturating_sub(1)))
            } else {
                None
            }
        });
    }

    /// Drops the permits whose time is over. Only one thread at a time does this.
    pub(super) fn turn(&self, now_ns: i64, life_ns: i64) {
        let due_ns = self.turn_ns.load(Relaxed);
        if now_ns < due_ns {
            return;
        }
        let long_over = now_ns >= due_ns.saturating_add(life_ns);
        let _ = self.word.fetch_update(AcqRel, Acquire, |raw| {
            let (generation, now, _) = Self::parts(raw);
            Some(if long_over {
                Self::whole(generation.wrapping_add(2), 0, 0)
            } else {
                Self::whole(generation.wrapping_add(1), 0, now)
            })
        });
        self.turn_ns.store(now_ns.saturating_add(life_ns), Release);
    }
}
