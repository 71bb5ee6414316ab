//! Reading TOML with a memory of where everything stood, so that every refusal names line, key, value and rule.

use std::{
    fmt::{self, Display},
    ops::Range,
};

use budget::policy::InvalidPolicy;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// Longest excerpt of a refused value.
const EXCERPT_CHARS_MAX: usize = 80;

/// A refused policy text: where, what stood there, and the rule it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct InvalidText {
    /// The file, or the rule that was given or stored.
    pub origin: String,
    /// Counted from 1.
    pub line: usize,
    /// The full key, e.g. `dependency."payments".retry.ratio`; empty where the text is no TOML at all.
    pub key: String,
    /// As it is written there, shortened if long.
    pub value: String,
    /// What is required.
    pub rule: String,
}

/// A text and what it is called in errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading<'a> {
    pub(super) origin: &'a str,
    pub(super) text: &'a str,
}

/// One key with its value and the keys above it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field<'a> {
    reading: Reading<'a>,
    parent: Option<&'a Field<'a>>,
    pub(super) key: &'a str,
    value: &'a Spanned<DeValue<'a>>,
}

/// A key as TOML writes it: quoted where it must be.
pub(super) struct Key<'a>(pub(super) &'a str);

/// A TOML basic string.
pub(super) struct Quoted<'a>(pub(super) &'a str);

// === impl InvalidText ===

impl Display for InvalidText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, line, key, value, rule } = self;
        match key.as_str() {
            "" => write!(f, "{origin}, line {line}: `{value}`: {rule}"),
            key => write!(f, "{origin}, line {line}: {key} is {value}: {rule}"),
        }
    }
}

// === impl Reading ===

impl<'a> Reading<'a> {
    /// Parses the text; its tables borrow from it.
    pub(super) fn parse(self) -> Result<Spanned<DeTable<'a>>, InvalidText> {
        DeTable::parse(self.text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start).min(self.text.len());
            let line_start = self.text.get(..at).and_then(|before| before.rfind('\n')).map_or(0, |newline| newline + 1);
            let line = self.text.get(line_start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
            let rule = match error.span().and_then(|span| self.text.get(span)) {
                Some(found) if error.message() == "duplicate key" => format!("duplicate key {found}"),
                Some(_) | None => error.message().replace('\n', " "),
            };
            self.refusal(at, String::new(), line, rule)
        })
    }

    /// The fields of a whole document in the order they are written.
    pub(super) fn fields(self, table: &'a DeTable<'a>) -> Vec<Field<'a>> {
        let mut fields: Vec<_> = table.iter().collect();
        fields.sort_by_key(|(key, _)| key.span().start);
        fields
            .into_iter()
            .map(|(key, value)| Field { reading: self, parent: None, key: key.get_ref(), value })
            .collect()
    }

    pub(super) fn line_of(self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
    }

    fn refusal(self, offset: usize, key: String, value: &str, rule: impl Into<String>) -> InvalidText {
        let origin = self.origin.to_owned();
        InvalidText { origin, line: self.line_of(offset), key, value: excerpt(value), rule: rule.into() }
    }

    /// Finds where a rule's numbers were written when they turn out to break a rule together. `heading` is where the
    /// rule itself begins, for a number that it inherits.
    pub(super) fn locate(self, table: &DeTable<'_>, heading: usize, prefix: &str, error: InvalidPolicy) -> InvalidText {
        let key = match prefix {
            "" => error.field.clone(),
            prefix => format!("{prefix}.{}", error.field),
        };
        match find(table, &error.field) {
            Some((span, leaf)) => {
                let written = self.text.get(span.clone()).filter(|_| leaf);
                self.refusal(span.start, key, written.unwrap_or(&error.value), error.rule)
            }
            None => self.refusal(heading, key, &error.value, format!("{} (not set here)", error.rule)),
        }
    }
}

/// The span of the value under a dotted path, and whether it is no table; a key may itself contain dots.
fn find(table: &DeTable<'_>, path: &str) -> Option<(Range<usize>, bool)> {
    table.iter().find_map(|(key, value)| {
        let rest = path.strip_prefix(key.get_ref().as_ref())?;
        match (rest.strip_prefix('.'), value.get_ref()) {
            (Some(rest), DeValue::Table(table)) => find(table, rest),
            (_, value_of) => rest.is_empty().then(|| (value.span(), !value_of.is_table())),
        }
    })
}

fn excerpt(value: &str) -> String {
    let mut chars = value.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut excerpt: String = chars.by_ref().take(EXCERPT_CHARS_MAX).collect();
    if chars.next().is_some() {
        excerpt.push('…');
    }
    excerpt
}

// === impl Field ===

impl<'a> Field<'a> {
    /// The full dotted key.
    pub(super) fn path(&self) -> String {
        match self.parent {
            Some(parent) => format!("{}.{}", parent.path(), Key(self.key)),
            None => Key(self.key).to_string(),
        }
    }

    /// Where the value, or the heading of a table, begins.
    pub(super) fn offset(&self) -> usize {
        self.value.span().start
    }

    /// The value as written.
    pub(super) fn written(&self) -> &'a str {
        self.reading.text.get(self.value.span()).unwrap_or_default()
    }

    pub(super) fn value(&self) -> &'a DeValue<'a> {
        self.value.get_ref()
    }

    pub(super) fn refuse(&self, rule: impl Into<String>) -> InvalidText {
        self.reading.refusal(self.offset(), self.path(), self.written(), rule)
    }

    /// This key is none of those that are known here.
    pub(super) fn unknown(&self, known: &[&str]) -> InvalidText {
        self.refuse(format!("unknown key, must be one of {}", known.join(", ")))
    }

    pub(super) fn table(&self) -> Result<&'a DeTable<'a>, InvalidText> {
        self.value().as_table().ok_or_else(|| self.refuse("must be a table"))
    }

    /// The fields of this table in the order they are written.
    pub(super) fn fields<'b>(&'b self) -> Result<Vec<Field<'b>>, InvalidText>
    where
        'a: 'b,
    {
        let mut fields = self.reading.fields(self.table()?);
        for field in &mut fields {
            field.parent = Some(self);
        }
        Ok(fields)
    }

    /// The elements of an array of strings.
    pub(super) fn texts(&self) -> Result<Vec<&'a str>, InvalidText> {
        let texts = self.value().as_array().and_then(|array| {
            let texts = array.iter().map(|element| element.get_ref().as_str());
            texts.collect::<Option<Vec<_>>>()
        });
        texts.ok_or_else(|| self.refuse("must be an array of strings"))
    }
}

// === impl Key ===

impl Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if !self.0.is_empty() && self.0.bytes().all(bare) {
            return f.write_str(self.0);
        }
        Quoted(self.0).fmt(f)
    }
}

// === impl Quoted ===

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => write!(f, "\\u{:04X}", u32::from(c))?,
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}
