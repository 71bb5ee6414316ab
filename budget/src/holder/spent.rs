//! The right to send one attempt, as it was paid for here.

use super::{segment::EARN_ON_SUCCESS, share::LocalAsk, word::Tag};
use crate::{decision::DenyReason, ids::UnitId};

/// Beyond the lease.
pub(super) const FALLBACK: u8 = 1;
/// Nothing was charged.
pub(super) const SHADOW: u8 = 2;
/// A first attempt.
pub(super) const ORIGINAL: u8 = 4;
/// Its success is a deposit.
pub(super) const EARNS: u8 = 8;
/// It has an admission token.
pub(super) const ADMISSION: u8 = 16;
/// It is counted in flight.
pub(super) const PERMIT: u8 = 32;

/// The right to send one attempt: used up by [`Share::hand_back`](super::Share::hand_back) or
/// [`Share::settle`](super::Share::settle), whichever comes first. One that is dropped has been spent.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an admission that is not used is lost"]
pub struct Spent {
    pub(super) tag: Tag,
    pub(super) until_ns: i64,
    /// Receipt of the admission bucket, if [`ADMISSION`].
    pub(super) admission: i64,
    /// Receipt of the retry bucket, if `retry_cost` is not 0.
    pub(super) retry: i64,
    pub(super) units: Option<Box<[UnitSpent]>>,
    pub(super) retry_cost: u32,
    pub(super) deposit: u32,
    /// Generation of its permit, if [`PERMIT`].
    pub(super) slot: u32,
    pub(super) attempts_left: u16,
    pub(super) would_be: Option<DenyReason>,
    pub(super) flags: u8,
}

const _: () = assert!(size_of::<Spent>() <= 64);

/// What was taken of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnitSpent {
    pub(super) unit: UnitId,
    pub(super) estimate_micros: i64,
    pub(super) receipt: i64,
}

// === impl Spent ===

impl Spent {
    #[inline]
    pub(super) const fn empty(tag: Tag, until_ns: i64, segment_flags: u32) -> Self {
        Self {
            tag,
            until_ns,
            admission: 0,
            retry: 0,
            units: None,
            retry_cost: 0,
            deposit: 0,
            slot: 0,
            attempts_left: 0,
            would_be: None,
            flags: if segment_flags & EARN_ON_SUCCESS == 0 { 0 } else { EARNS },
        }
    }

    #[inline]
    pub(super) fn original(
        tag: Tag,
        until_ns: i64,
        receipt: i64,
        deposit: u32,
        attempts_left: u16,
        flags: u32,
    ) -> Self {
        let earns = flags & EARN_ON_SUCCESS != 0;
        Self {
            tag,
            until_ns,
            admission: receipt,
            retry: 0,
            units: None,
            retry_cost: 0,
            deposit: if earns { 0 } else { deposit },
            slot: 0,
            attempts_left,
            would_be: None,
            flags: if earns { ADMISSION | ORIGINAL | EARNS } else { ADMISSION | ORIGINAL },
        }
    }

    /// Let through although it should have been refused.
    pub(super) fn shadow(until_ns: i64, reason: DenyReason, ask: &LocalAsk<'_>) -> Self {
        let original = if ask.attempt.is_retry() { 0 } else { ORIGINAL };
        let none = Self::empty(Tag::of(0), until_ns, 0);
        Self { would_be: Some(reason), flags: SHADOW | original, ..none }
    }

    /// Admitted by the fallback.
    pub(super) fn beyond(until_ns: i64, attempts_left: u16, original: bool, earns: bool) -> Self {
        let flags = FALLBACK | if original { ORIGINAL } else { 0 } | if earns { EARNS } else { 0 };
        Self { attempts_left, flags, ..Self::empty(Tag::of(0), until_ns, 0) }
    }

    #[inline]
    pub(super) const fn is(&self, any_of: u8) -> bool {
        self.flags & any_of != 0
    }

    /// It may not be sent at this time or later.
    #[must_use]
    pub const fn until_ns(&self) -> i64 {
        self.until_ns
    }

    /// Attempts the operation has left.
    #[must_use]
    pub const fn attempts_left(&self) -> u16 {
        self.attempts_left
    }

    /// Shadow mode: what would have been refused.
    #[must_use]
    pub const fn would_be_denied(&self) -> Option<DenyReason> {
        self.would_be
    }

    /// Whether the fallback admitted it, not the lease.
    #[must_use]
    pub const fn is_beyond(&self) -> bool {
        self.is(FALLBACK)
    }

    /// Whether it is a first attempt.
    #[must_use]
    pub const fn is_original(&self) -> bool {
        self.is(ORIGINAL)
    }
}
