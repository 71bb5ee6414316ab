//! The scripts, each with its digest. They are called by digest; one that the server has forgotten is given again.
//!
//! Lua 5.1 has no constants, and a variable would cost every function that uses it. So an upper-case name in a script is a
//! constant: one of [`super::layout::constants::constants`], or of a line `local NAME <const> = value` of its own, which is taken out
//! when the script is made. The value is put in wherever the name stands.

use std::{collections::HashMap, sync::LazyLock};

use deadpool_redis::redis::{self, Cmd, cmd};

use super::layout;

/// Puts the parts of a script one behind the other.
macro_rules! parts {
    ($($part:literal),+) => { concat!($(include_str!(concat!("../../../lua/", $part, ".lua"))),+) };
}

/// Applies a batch of steps to each of some ledgers that do not lend.
pub static APPLY: LazyLock<Script> = LazyLock::new(|| {
    Script::new(parts!(
        "bucket",
        "formats",
        "ledger",
        "reservations",
        "operations",
        "reserve",
        "release",
        "plain",
        "short",
        "group"
    ))
});
/// Applies a batch of steps to one ledger that lends or may begin to, takes heartbeats and answers a sync.
pub static LEND: LazyLock<Script> = LazyLock::new(|| {
    Script::new(parts!(
        "bucket",
        "formats",
        "ledger",
        "reservations",
        "operations",
        "reserve",
        "release",
        "plain",
        "amounts",
        "lending",
        "epoch",
        "shares",
        "record",
        "charge",
        "lease",
        "grants",
        "sync",
        "asks",
        "lend"
    ))
});
/// Shows a ledger.
pub static VIEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(parts!("bucket", "formats", "ledger", "amounts", "lending", "show", "view")));
/// Shows holders of leases.
pub static HOLDERS: LazyLock<Script> = LazyLock::new(|| {
    Script::new(parts!("bucket", "formats", "ledger", "amounts", "lending", "record", "show", "holders"))
});
/// What reads what is stored, for a script that is put behind it.
pub const READING: &str = parts!("bucket", "formats", "ledger", "reservations", "amounts", "lending", "record");
/// Says that a replica lives.
pub(super) static CONTACT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../../lua/contact.lua")));
/// Tells and raises the format of the namespace.
pub(super) static FORMAT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../../lua/format.lua")));
/// Enters dependencies into the index.
pub(super) static KNOWN: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../../lua/known.lua")));
/// Counts what a dependency has received.
pub(super) static RECEIVED: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../../lua/received.lua")));
/// Writes to see whether the store works.
pub(super) static PROBE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../../lua/probe.lua")));
/// Replaces all policies.
pub(super) static POLICIES_REPLACE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../../lua/policies_replace.lua")));

/// All scripts by name.
#[must_use]
pub fn all() -> [(&'static str, &'static Script); 10] {
    [
        ("apply", &APPLY),
        ("lend", &LEND),
        ("view", &VIEW),
        ("holders", &HOLDERS),
        ("contact", &CONTACT),
        ("format", &FORMAT),
        ("known", &KNOWN),
        ("received", &RECEIVED),
        ("probe", &PROBE),
        ("policies_replace", &POLICIES_REPLACE),
    ]
}

/// A script and how it is called.
#[derive(Debug)]
pub struct Script {
    source: Box<str>,
    digest: Box<str>,
}

/// How a call says which script it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By its digest: short, but the server must know the script.
    Digest,
    /// By its whole text: always works.
    Source,
}

// === impl Script ===

impl Script {
    /// Makes a script of its text, which may use constants.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let source = with_constants(text);
        Self { digest: redis::Script::new(&source).get_hash().into(), source: source.into() }
    }

    /// Its text as servers get it.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// A call; keys, then arguments, are to be added.
    #[must_use]
    pub fn call(&self, by: By, keys: usize) -> Cmd {
        self.call_of_size(by, keys, keys.saturating_add(10), 1024)
    }

    /// The same, with room for so many arguments, of so many bytes together.
    pub(super) fn call_of_size(&self, by: By, keys: usize, arguments: usize, bytes: usize) -> Cmd {
        let mut call = Cmd::with_capacity(arguments, bytes);
        match by {
            By::Digest => call.arg("EVALSHA").arg(&*self.digest),
            By::Source => call.arg("EVAL").arg(&*self.source),
        };
        call.arg(keys);
        call
    }

    /// Makes the server know it.
    #[must_use]
    pub fn load(&self) -> Cmd {
        let mut load = cmd("SCRIPT");
        load.arg("LOAD").arg(&*self.source);
        load
    }
}

/// Takes the constants out and puts their values in. Lines keep their numbers.
fn with_constants(text: &str) -> String {
    let constant = |line: &str| {
        let (name, value) = line.strip_prefix("local ")?.split_once(" <const> = ")?;
        Some((name.to_owned(), value.to_owned()))
    };
    let mut constants: HashMap<String, String> = layout::constants::constants();
    constants.extend(text.lines().filter_map(constant));
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut source = String::with_capacity(text.len());
    for line in text.lines() {
        // Comments stay as they are.
        let (code, comment) = line.split_at(line.find("--").unwrap_or(line.len()));
        let mut rest = if constant(line).is_some() { "" } else { code };
        while let Some(start) = rest.find(is_part) {
            let (before, from) = rest.split_at(start);
            let (word, after) = from.split_at(from.find(|c| !is_part(c)).unwrap_or(from.len()));
            source.push_str(before);
            source.push_str(constants.get(word).map_or(word, String::as_str));
            rest = after;
        }
        source.push_str(rest);
        source.push_str(comment);
        source.push('\n');
    }
    source
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_script_has_its_own_digest_and_no_constants_left() {
        let all = all().map(|(_, script)| script);
        let digests: HashSet<&str> = all.iter().map(|script| &*script.digest).collect();
        assert_eq!(digests.len(), all.len());
        assert!(digests.iter().all(|digest| digest.len() == 40));
        for script in all {
            let code = script.source.lines().map(|line| line.split("--").next().unwrap_or_default());
            assert!(code.into_iter().all(|line| !line.contains("<const>")), "{}", script.source);
        }
    }

    #[test]
    fn constants_are_replaced_as_whole_words() {
        let text =
            "local A <const> = '>i7'\nlocal A_B <const> = 2\n-- A is a constant\nlocal x = f(A, A_B, AA, 'a') -- A\n";
        assert_eq!(with_constants(text), "\n\n-- A is a constant\nlocal x = f('>i7', 2, AA, 'a') -- A\n");
    }

    #[test]
    fn a_call_names_script_and_number_of_keys() {
        let packed = |by| {
            let mut command = PROBE.call(by, 1);
            command.arg("key").arg(5);
            String::from_utf8(command.get_packed_command()).unwrap()
        };
        let rest = "$1\r\n1\r\n$3\r\nkey\r\n$1\r\n5\r\n";
        assert_eq!(packed(By::Digest), format!("*5\r\n$7\r\nEVALSHA\r\n$40\r\n{}\r\n{rest}", PROBE.digest));
        let source = format!("${}\r\n{}", PROBE.source.len(), PROBE.source);
        assert_eq!(packed(By::Source), format!("*5\r\n$4\r\nEVAL\r\n{source}\r\n{rest}"));
    }
}
