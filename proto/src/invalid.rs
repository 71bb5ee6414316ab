//! The error of a message that is refused: which field, what stood there, and which rule it breaks.

use std::{borrow::Cow, fmt};

/// Bytes of a refused value that are shown; a hostile name of 4 KB must not flood a log.
const SHOWN_BYTES_MAX: usize = 64;

/// A field that breaks its rule. The value is escaped and shortened, so the text is one short line whatever was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}: {rule}")]
pub struct InvalidMessage {
    field: &'static str,
    value: String,
    rule: Cow<'static, str>,
}

// === impl InvalidMessage ===

impl InvalidMessage {
    /// A number, or anything else that is short and harmless to show.
    pub fn number(field: &'static str, value: impl fmt::Display, rule: impl Into<Cow<'static, str>>) -> Self {
        Self { field, value: value.to_string(), rule: rule.into() }
    }

    /// A text of unknown length and content.
    pub fn text(field: &'static str, value: &str, rule: impl Into<Cow<'static, str>>) -> Self {
        let end = (0..=SHOWN_BYTES_MAX.min(value.len())).rev().find(|at| value.is_char_boundary(*at)).unwrap_or(0);
        let shown = value.get(..end).unwrap_or_default().escape_debug();
        Self { field, value: shortened(&format!("\"{shown}\""), value.len()), rule: rule.into() }
    }

    /// Bytes, shown in hexadecimal.
    pub fn bytes(field: &'static str, value: &[u8], rule: impl Into<Cow<'static, str>>) -> Self {
        let shown: String = value.iter().take(SHOWN_BYTES_MAX).map(|byte| format!("{byte:02x}")).collect();
        let shown = if shown.is_empty() { "empty".to_owned() } else { shown };
        Self { field, value: shortened(&shown, value.len()), rule: rule.into() }
    }

    /// Nothing, where something is required.
    pub fn absent(field: &'static str, rule: impl Into<Cow<'static, str>>) -> Self {
        Self { field, value: "absent".to_owned(), rule: rule.into() }
    }

    /// The field, as it is named in the protocol.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }
}

fn shortened(shown: &str, bytes: usize) -> String {
    if bytes > SHOWN_BYTES_MAX { format!("{shown}… ({bytes} bytes)") } else { shown.to_owned() }
}

impl From<InvalidMessage> for tonic::Status {
    fn from(invalid: InvalidMessage) -> Self {
        Self::invalid_argument(invalid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_field_value_and_rule() {
        let invalid = InvalidMessage::number("permit_ttl_ms", 0, "must be between 1 and 3600000");
        assert_eq!(invalid.to_string(), "permit_ttl_ms is 0: must be between 1 and 3600000");
        let status = tonic::Status::from(invalid.clone());
        assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, &*invalid.to_string()));
        assert_eq!(InvalidMessage::absent("use", "is required").to_string(), "use is absent: is required");
        assert_eq!(InvalidMessage::bytes("id", &[], "is empty").to_string(), "id is empty: is empty");
    }

    #[test]
    fn a_hostile_value_stays_one_short_line() {
        let hostile = [
            "x".repeat(4096),
            "\n".repeat(4096),
            "\u{202e}".repeat(2000),
            "😀".repeat(1000),
            "\u{1b}[2J".repeat(1000),
            "\"".repeat(4096),
        ];
        for value in hostile {
            for invalid in [
                InvalidMessage::text("dependency", &value, "r"),
                InvalidMessage::bytes("dependency", value.as_bytes(), "r"),
            ] {
                let text = invalid.to_string();
                assert!(text.len() < 640, "{} bytes", text.len());
                assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{text}");
                assert!(text.contains(&format!("({} bytes)", value.len())), "{text}");
            }
        }
    }
}
