//! Names and identifiers, each its own type, validated where they enter.

use std::{fmt, sync::Arc};

/// Longest dependency name in bytes.
pub const DEPENDENCY_BYTES_MAX: usize = 256;
/// Longest operation id in bytes.
pub const OPERATION_ID_BYTES_MAX: usize = 128;
/// Longest unit name in bytes.
pub const UNIT_BYTES_MAX: usize = 64;
/// Longest result reference in bytes.
pub const RESULT_REF_BYTES_MAX: usize = 128;

/// The callee that is protected: 1 to 256 bytes of UTF-8 without control characters, not ending in `*`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DependencyId(Arc<str>);

/// Made by the caller, equal on every re-send of one ask: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId(pub [u8; 16]);

/// A tracked operation, unique per dependency: 1 to 128 bytes of UTF-8 without control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(Arc<str>);

/// A digest of an operation's input, 16 to 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    bytes: [u8; 32],
    len: u8,
}

/// A cost unit by the first 52 bits of a hash of its name, so that it fits a double. Two units of one policy that would
/// collide are refused when the policy is validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(i64);

/// (number, random id) of a set of policies; ordered by number, then id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyVersion {
    /// Rises with every change.
    pub number: i64,
    /// 52 random bits, telling apart equal numbers made by stores that lost their state.
    pub id: i64,
}

/// Why a name or identifier is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// Nothing was given.
    #[error("is empty")]
    Empty,
    /// Longer than allowed.
    #[error("has {len} bytes, must have at most {max}")]
    TooLong {
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// A control character, e.g. a line break.
    #[error("contains the control character U+{0:04X}")]
    Control(u32),
    /// A final `*` marks a family in a policy and is no name.
    #[error("ends in '*', which is reserved for families in policies")]
    Star,
    /// A fixed-size identifier of another size.
    #[error("has {len} bytes, must have {rule}")]
    Size {
        /// Bytes given.
        len: usize,
        /// Bytes required.
        rule: &'static str,
    },
}

pub(crate) fn judge_name(name: &str, max: usize) -> Result<(), InvalidId> {
    if name.is_empty() {
        return Err(InvalidId::Empty);
    }
    if name.len() > max {
        return Err(InvalidId::TooLong { len: name.len(), max });
    }
    match name.chars().find(|c| c.is_control()) {
        Some(c) => Err(InvalidId::Control(u32::from(c))),
        None => Ok(()),
    }
}

/// FNV-1a (Fowler, Noll, Vo), 64 bit, of which 52 bits are kept.
fn hash52(bytes: &[u8]) -> i64 {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    i64::try_from(hash >> 12).unwrap_or(0)
}

// === impl DependencyId ===

impl DependencyId {
    /// Judges a name.
    ///
    /// # Errors
    /// If it is empty, too long, ends in `*` or has a control character.
    pub fn new(name: &str) -> Result<Self, InvalidId> {
        judge_name(name, DEPENDENCY_BYTES_MAX)?;
        if name.ends_with('*') {
            return Err(InvalidId::Star);
        }
        Ok(Self(name.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for DependencyId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for DependencyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for DependencyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl ReservationId ===

impl ReservationId {
    /// From exactly 16 bytes.
    ///
    /// # Errors
    /// If there are more or fewer.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, InvalidId> {
        bytes.try_into().map(Self).map_err(|_| InvalidId::Size { len: bytes.len(), rule: "exactly 16" })
    }
}

impl fmt::Debug for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

// === impl OperationId ===

impl OperationId {
    /// Judges an operation id.
    ///
    /// # Errors
    /// If it is empty, too long or has a control character.
    pub fn new(id: &str) -> Result<Self, InvalidId> {
        judge_name(id, OPERATION_ID_BYTES_MAX)?;
        Ok(Self(id.into()))
    }

    /// The id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What a reservation remembers of its operation: never 0.
    #[must_use]
    pub fn hash(&self) -> i64 {
        hash52(self.0.as_bytes()).max(1)
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

// === impl Fingerprint ===

impl Fingerprint {
    /// From 16 to 32 bytes.
    ///
    /// # Errors
    /// If there are more or fewer.
    pub fn from_slice(slice: &[u8]) -> Result<Self, InvalidId> {
        let wrong = InvalidId::Size { len: slice.len(), rule: "16 to 32" };
        if slice.len() < 16 {
            return Err(wrong);
        }
        let mut bytes = [0; 32];
        bytes.get_mut(..slice.len()).ok_or(wrong)?.copy_from_slice(slice);
        Ok(Self { bytes, len: u8::try_from(slice.len()).unwrap_or(32) })
    }

    /// The bytes as given.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&self.bytes)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

// === impl UnitId ===

impl UnitId {
    /// The id of a unit's name.
    ///
    /// # Errors
    /// If the name is empty, longer than 64 bytes or has a control character.
    pub fn of(name: &str) -> Result<Self, InvalidId> {
        judge_name(name, UNIT_BYTES_MAX)?;
        Ok(Self(hash52(name.as_bytes()).max(1)))
    }

    /// As stored in Redis.
    #[must_use]
    pub const fn raw(self) -> i64 {
        self.0
    }

    /// From what [`Self::raw`] gave.
    #[must_use]
    pub const fn from_raw(raw: i64) -> Self {
        Self(raw)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_judged() {
        for good in ["a", "openai/gpt", "a{b}c:d%e f", "😀", "Ä", "*x", &"x".repeat(256)] {
            assert_eq!(DependencyId::new(good).unwrap().as_str(), good);
        }
        assert_eq!(DependencyId::new(""), Err(InvalidId::Empty));
        assert_eq!(DependencyId::new("fam/*"), Err(InvalidId::Star));
        assert_eq!(DependencyId::new("a\nb"), Err(InvalidId::Control(10)));
        assert_eq!(DependencyId::new("a\u{0}"), Err(InvalidId::Control(0)));
        assert_eq!(DependencyId::new(&"x".repeat(257)), Err(InvalidId::TooLong { len: 257, max: 256 }));
    }

    #[test]
    fn sizes_are_judged() {
        assert!(ReservationId::from_slice(&[1; 16]).is_ok());
        assert!(ReservationId::from_slice(&[1; 15]).is_err());
        assert!(ReservationId::from_slice(&[]).is_err());
        for len in [16, 20, 32] {
            assert_eq!(Fingerprint::from_slice(&vec![7; len]).unwrap().as_slice(), vec![7; len]);
        }
        for len in [0, 15, 33, 1000] {
            assert!(Fingerprint::from_slice(&vec![7; len]).is_err());
        }
    }

    #[test]
    fn names_are_shown_as_given_and_bytes_as_hex() {
        let dependency = DependencyId::new("a b").unwrap();
        assert_eq!((dependency.to_string(), format!("{dependency:?}")), ("a b".to_owned(), "\"a b\"".to_owned()));
        let operation = OperationId::new("o 1").unwrap();
        assert_eq!((operation.as_str(), format!("{operation:?}")), ("o 1", "\"o 1\"".to_owned()));
        assert_eq!(format!("{:?}", ReservationId([0x0a; 16])), "0a".repeat(16));
        assert_eq!(format!("{:?}", Fingerprint::from_slice(&[0x0f; 17]).unwrap()), "0f".repeat(17));
    }

    #[test]
    fn a_dependency_is_found_by_its_name() {
        let known = HashSet::from([DependencyId::new("a").unwrap()]);
        assert!(known.contains("a") && !known.contains("b"));
    }

    /// What is in Redis is found again by a newer version: the hash may not change.
    #[test]
    fn hashes_are_fnv_1a() {
        assert_eq!(UnitId::of("a").unwrap().raw(), 0xa_f63d_c4c8_601e);
        assert_eq!(UnitId::of("foobar").unwrap(), UnitId::from_raw(0x8_5944_171f_7396));
        assert_eq!(OperationId::new("foobar").unwrap().hash(), 0x8_5944_171f_7396);
    }

    #[test]
    fn ids_fit_a_double() {
        for name in ["a", "input_tokens", "output_tokens", "usd"] {
            let raw = UnitId::of(name).unwrap().raw();
            assert!((1..1 << 52).contains(&raw));
        }
    }
}
