//! The one declaration of what is stored in Redis, of what scripts are sent, and of the constants that both languages share.
//!
//! From it come the packing of calls in Rust, and every format, index, limit and code that a script names: an upper-case
//! name in a script is a constant of [`constants::constants`]. So a field or a code is declared once, here.
//!
//! # Formats
//!
//! Each stored value begins with a byte that says in which format it is written: [`FORMAT_MARK`] and the number of the
//! format. Values without such a byte are of format 1; they begin with a byte below the mark. A release reads its own format
//! and the one before it, and writes the format that a call names: the newest that every replica of the namespace reads. A
//! value is never written in an older format than it has. A value of a newer format is left alone.
//!
//! Only the newest format is declared here; `formats.lua` turns values of format 1 into it and back, and knows both.
//!
//! # Room
//!
//! A byte behind the format's says which parts follow the fixed ones. Some parts are declared but written by no script yet
//! ([`records::RECORD_ROOM`], [`records::LEDGER_ROOM`]): what scripts find there they carry along as it is.

/// Declares a record of integers with its type.
macro_rules! record {
    ($(#[$doc:meta])* $type:ident = $name:literal, $prefix:literal { $($field:ident: $kind:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[allow(missing_docs, reason = "named as the fields of budget's types")]
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $type { $(pub $field: i64),+ }

        impl $type {
            /// Its declaration.
            pub const RECORD: Record = Record {
                name: $name,
                prefix: $prefix,
                first: 1,
                fields: &[$(Field { name: stringify!($field), kind: Kind::$kind }),+],
            };

            /// Appends it.
            pub fn pack(&self, to: &mut Vec<u8>) {
                $(Kind::$kind.pack(self.$field, to);)+
            }
        }
    };
}

/// Declares a record that has texts, or that only scripts pack.
macro_rules! layout {
    ($(#[$doc:meta])* $const:ident = $name:literal, $prefix:literal from $first:literal { $($field:ident: $kind:ident),+ $(,)? }) => {
        $(#[$doc])*
        pub const $const: Record = Record {
            name: $name,
            prefix: $prefix,
            first: $first,
            fields: &[$(Field { name: stringify!($field), kind: Kind::$kind }),+],
        };
    };
}

pub mod constants;
pub mod lending;
pub mod records;

/// The format that this release writes when every replica reads it.
pub const FORMAT_NEWEST: u8 = 2;
/// The oldest format that this release reads and writes.
pub const FORMAT_OLDEST: u8 = 1;
/// What is added to a format's number in the first byte of a value. Few foreign values begin like that: in UTF-8 it is the
/// beginning of rare characters.
pub const FORMAT_MARK: u8 = 0xf0;
/// No format has a higher number: what begins with a higher byte was not written by any release.
pub const FORMATS_MAX: u8 = 15;

/// How a field is packed. Integers are big-endian and signed, but for [`Kind::U1`] and [`Kind::U2`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A byte.
    U1,
    /// Two bytes without a sign.
    U2,
    /// Two bytes.
    I2,
    /// Four bytes.
    I4,
    /// Five bytes.
    I5,
    /// Six bytes.
    I6,
    /// Seven bytes: everything below 2^53, which is what a script's doubles hold exactly.
    I7,
    /// Sixteen bytes as they are.
    Id,
    /// A length byte, then as many bytes.
    Text,
}

/// One field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// As scripts name it, in lower case.
    pub name: &'static str,
    /// How it is packed.
    pub kind: Kind,
}

/// Fields that are packed one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Scripts know it as `NAME_FORMAT` and `NAME_BYTES`.
    pub name: &'static str,
    /// Scripts know the place of a field in the list of what was unpacked as this and the field's name. Empty: they take
    /// the fields one by one.
    pub prefix: &'static str,
    /// The place of the first field.
    pub first: usize,
    /// In their order.
    pub fields: &'static [Field],
}

/// The value of one field.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// Of an integer.
    Int(i64),
    /// Of an id or a text.
    Bytes(&'a [u8]),
}

// === impl Kind ===

impl Kind {
    /// As `struct.pack` of the scripts names it.
    const fn code(self) -> &'static str {
        match self {
            Self::U1 => "B",
            Self::U2 => "H",
            Self::I2 => "i2",
            Self::I4 => "i4",
            Self::I5 => "i5",
            Self::I6 => "i6",
            Self::I7 => "i7",
            Self::Id => "c16",
            Self::Text => "Bc0",
        }
    }

    /// None: as long as what it holds.
    const fn bytes(self) -> Option<usize> {
        Some(match self {
            Self::U1 => 1,
            Self::U2 | Self::I2 => 2,
            Self::I4 => 4,
            Self::I5 => 5,
            Self::I6 => 6,
            Self::I7 => 7,
            Self::Id => 16,
            Self::Text => return None,
        })
    }

    /// Packs the nearest number that has room. What is further away means the same: it is beyond every limit.
    fn pack(self, value: i64, to: &mut Vec<u8>) {
        let (least, most) = match self {
            Self::U1 => (0, i64::from(u8::MAX)),
            Self::U2 => (0, i64::from(u16::MAX)),
            Self::I2 => symmetric(i16::MAX.into()),
            Self::I4 => symmetric(i32::MAX.into()),
            Self::I5 => symmetric((1 << 39) - 1),
            Self::I6 => symmetric((1 << 47) - 1),
            Self::I7 | Self::Id | Self::Text => symmetric(budget::units::EXACT_MAX),
        };
        let bytes = value.clamp(least, most).to_be_bytes();
        let from = bytes.len().saturating_sub(self.bytes().unwrap_or(7));
        to.extend_from_slice(bytes.get(from..).unwrap_or_default());
    }
}

const fn symmetric(most: i64) -> (i64, i64) {
    (-most, most)
}

// === impl Record ===

impl Record {
    /// As `struct.pack` of the scripts takes it.
    #[must_use]
    pub fn format(&self) -> String {
        self.fields.iter().fold(">".to_owned(), |format, field| format + field.kind.code())
    }

    /// Its length; none if that differs.
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        self.fields.iter().try_fold(0_usize, |sum, field| Some(sum.saturating_add(field.kind.bytes()?)))
    }

    /// Appends one: a value for each field, in their order.
    pub fn pack(&self, items: &[Item<'_>], to: &mut Vec<u8>) {
        debug_assert_eq!(self.fields.len(), items.len(), "{}", self.name);
        for (field, item) in self.fields.iter().zip(items) {
            match item {
                Item::Int(value) => field.kind.pack(*value, to),
                Item::Bytes(bytes) => {
                    if field.kind == Kind::Text {
                        debug_assert!(bytes.len() <= usize::from(u8::MAX), "judged before");
                        to.push(u8::try_from(bytes.len()).unwrap_or(u8::MAX));
                    }
                    to.extend_from_slice(bytes);
                }
            }
        }
    }

    /// The place of a field in a script's list.
    fn place(&self, field: &str) -> usize {
        let at = self.fields.iter().position(|it| it.name == field);
        at.map_or(0, |at| self.first.saturating_add(at))
    }
}
