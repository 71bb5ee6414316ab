//! The one builder of key names. All keys of a dependency carry one hash tag, so they share a slot of a cluster.
//!
//! | key | holds |
//! |---|---|
//! | `P:{tag}:s` | ledger (string) |
//! | `P:{tag}:a`, `P:{tag}:b` | the two generations of reservations (hashes) |
//! | `P:{tag}:l`, `P:{tag}:z` | long reservations (hash) and when they are due (sorted set) |
//! | `P:{tag}:e` | how a ledger that lends stands: epoch, sums of charges (string) |
//! | `P:{tag}:h`, `P:{tag}:d` | its holders (hash) and when the charge of each changes (sorted set) |
//! | `P:{tag}:p` | incarnations that have proved a lease of an earlier epoch (set) |
//! | `P:{tag}:r` | attempts that its own side has received (string) |
//! | `P:{tag}:o:<operation id>` | a tracked operation (string) |
//! | `P:told:<hour>:{tag}` | which policies its holders were told in that hour, by holder (hash) |
//! | `P:policies` | all policies of the namespace (hash) |
//! | `P:known` | names of known dependencies by last use (sorted set) |
//! | `P:replicas` | replicas and the newest format that each reads, by last contact (sorted set) |
//! | `P:format` | the format in which all of this is written (string) |
//! | `P:versions` | replicas with the version of their policies, by the time they told it (sorted set) |
//! | `P:probe` | written to see whether the store takes writes (string) |
//!
//! `P` is the namespace's prefix. The tag is the dependency's name with `%`, `{` and `}` escaped: Redis takes for the tag
//! what stands between the first `{` and the next `}`, so no name can leave its tag, and two names never share one.

use std::{fmt::Write as _, sync::Arc};

use budget::ids::{DependencyId, OperationId};

/// Longest prefix in bytes.
pub const PREFIX_BYTES_MAX: usize = 64;

/// Of the keys that every batch declares, behind the ledger's.
const BESIDE_LEDGER: [char; 4] = ['a', 'b', 'l', 'z'];

/// Names keys of one namespace.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: Box<str>,
}

/// Names keys of one dependency.
#[derive(Clone, Debug)]
pub struct DependencyKeys {
    /// `P:{tag}:`
    base: Arc<str>,
}

/// Why a prefix is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPrefix {
    /// Nothing was given, or too much.
    #[error("must have between 1 and {PREFIX_BYTES_MAX} bytes")]
    Size,
    /// Would be taken for a hash tag, or makes keys unreadable.
    #[error("must not contain '{{', '}}' or control characters")]
    Character,
}

// === impl Keys ===

impl Keys {
    /// Judges the namespace's prefix.
    ///
    /// # Errors
    /// If it is empty or too long, or has a brace or a control character.
    pub fn new(prefix: &str) -> Result<Self, InvalidPrefix> {
        if prefix.is_empty() || prefix.len() > PREFIX_BYTES_MAX {
            return Err(InvalidPrefix::Size);
        }
        if prefix.chars().any(|c| matches!(c, '{' | '}') || c.is_control()) {
            return Err(InvalidPrefix::Character);
        }
        Ok(Self { prefix: prefix.into() })
    }

    /// All policies of the namespace.
    #[must_use]
    pub fn policies(&self) -> String {
        format!("{}:policies", self.prefix)
    }

    /// Names of known dependencies.
    #[must_use]
    pub fn known(&self) -> String {
        format!("{}:known", self.prefix)
    }

    /// Replicas by last contact.
    #[must_use]
    pub fn replicas(&self) -> String {
        format!("{}:replicas", self.prefix)
    }

    /// The format in which the namespace is written.
    #[must_use]
    pub fn format(&self) -> String {
        format!("{}:format", self.prefix)
    }

    /// Replicas with the version of their policies.
    #[must_use]
    pub fn versions(&self) -> String {
        format!("{}:versions", self.prefix)
    }

    /// Which policies holders of a dependency's leases were told in one hour of the store's clock.
    #[must_use]
    pub fn told(&self, hour: i64, name: &DependencyId) -> String {
        let mut key = format!("{}:told:{hour}:", self.prefix);
        write_tag(&mut key, name);
        key
    }

    /// Written by probes.
    #[must_use]
    pub fn probe(&self) -> String {
        format!("{}:probe", self.prefix)
    }

    /// The keys of one dependency.
    #[must_use]
    pub fn dependency(&self, name: &DependencyId) -> DependencyKeys {
        let mut base = String::with_capacity(self.prefix.len() + name.as_str().len() + 4);
        base.push_str(&self.prefix);
        base.push(':');
        write_tag(&mut base, name);
        base.push(':');
        DependencyKeys { base: base.into() }
    }
}

fn write_tag(key: &mut String, name: &DependencyId) {
    key.push('{');
    for c in name.as_str().chars() {
        match c {
            // Writing to a string cannot fail.
            '%' | '{' | '}' => drop(write!(key, "%{:02X}", u32::from(c))),
            other => key.push(other),
        }
    }
    key.push('}');
}

// === impl DependencyKeys ===

impl DependencyKeys {
    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> String {
        self.with("s")
    }

    /// The keys every batch declares, in the order the script takes them: ledger, generations, long ones, their queue.
    #[must_use]
    pub fn of_every_batch(&self) -> [String; 5] {
        ["s", "a", "b", "l", "z"].map(|part| self.with(part))
    }

    /// Writes the ledger's key over a text, which is then [`Self::ledger`].
    pub(super) fn write_ledger<'k>(&self, key: &'k mut String) -> &'k str {
        key.clear();
        key.push_str(&self.base);
        key.push('s');
        key
    }

    /// The keys of [`Self::of_every_batch`] but the ledger's, each written over a text.
    pub(super) fn each_beside_ledger(&self, key: &mut String, mut each: impl FnMut(&str)) {
        key.clear();
        key.push_str(&self.base);
        for part in BESIDE_LEDGER {
            key.push(part);
            each(key);
            key.pop();
        }
    }

    /// About the length of a key.
    pub(super) fn bytes(&self) -> usize {
        self.base.len() + 1
    }

    /// What a ledger that lends has beside: lending, holders, when their charges change, proofs.
    #[must_use]
    pub fn of_lending(&self) -> [String; 4] {
        ["e", "h", "d", "p"].map(|part| self.with(part))
    }

    /// What the dependency's own side has received.
    #[must_use]
    pub fn received(&self) -> String {
        self.with("r")
    }

    /// One tracked operation.
    #[must_use]
    pub fn operation(&self, id: &OperationId) -> String {
        let mut key = self.with("o:");
        key.push_str(id.as_str());
        key
    }

    fn with(&self, part: &str) -> String {
        let mut key = String::with_capacity(self.base.len() + part.len());
        key.push_str(&self.base);
        key.push_str(part);
        key
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// The slot of a key by the cluster specification: CRC16 (XMODEM) of the tag between the first `{` and the next `}`
    /// if that is not empty, else of the whole key.
    fn slot(key: &str) -> u16 {
        let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
        let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
        hashed.bytes().fold(0_u16, |crc, byte| {
            (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| (crc << 1) ^ (if crc >> 15 == 1 { 0x1021 } else { 0 }))
        }) % 16_384
    }

    fn keys_of(prefix: &str, name: &str) -> Vec<String> {
        let keys = Keys::new(prefix).unwrap().dependency(&DependencyId::new(name).unwrap());
        let operations = ["a", "}:s", "{b}", "s", "o:1"].map(|id| keys.operation(&OperationId::new(id).unwrap()));
        keys.of_every_batch().into_iter().chain(keys.of_lending()).chain([keys.received()]).chain(operations).collect()
    }

    fn odd_names() -> Vec<String> {
        let mut names: Vec<String> = [
            "{", "}", "{}", "}{", "{{}}", "a{b}c{d}", "{a}", "a", "A", "a ", " a", "a:b", "a:b:c", "%", "%7B", "%257B",
            "{%7D", "😀", "é", "e\u{301}", "a:s", "o:a", ":", "a}:s", "s",
        ]
        .map(String::from)
        .to_vec();
        names.extend(["x".repeat(256), "{".repeat(256), "%".repeat(256), "😀".repeat(64)]);
        names
    }

    #[test]
    fn the_specification_s_example_holds() {
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("{user1000}.following"), slot("{user1000}.followers"));
        assert_eq!(slot("foo{}{bar}"), slot("foo{}{bar}"));
        assert_ne!(slot("foo{bar}"), slot("foo{zap}"));
    }

    /// Seen to fail with the name written into the tag unescaped.
    #[test]
    fn a19_all_keys_of_a_dependency_share_a_slot_whatever_its_name() {
        for name in odd_names() {
            let slots: Vec<u16> = keys_of("budgetd", &name).iter().map(|key| slot(key)).collect();
            assert!(slots.iter().all(|other| *other == slots[0]), "{name:?}: {slots:?}");
        }
    }

    /// Seen to fail with `%` left out of the escapes: `{` and `%7B` then share all keys.
    #[test]
    fn a20_distinct_names_operations_and_namespaces_never_share_a_key() {
        let mut owners: HashMap<String, (String, String, usize)> = HashMap::new();
        for prefix in ["budgetd", "budgetd:a", "b", "b:b", "%7B"] {
            let keys = Keys::new(prefix).unwrap();
            let fixed = [keys.policies(), keys.known(), keys.replicas(), keys.format(), keys.probe()];
            for (at, key) in fixed.into_iter().enumerate() {
                let owner = (prefix.to_owned(), String::new(), at);
                assert_eq!(owners.insert(key.clone(), owner), None, "{key}");
            }
            for name in odd_names() {
                let told = [keys.told(7, &DependencyId::new(&name).unwrap())];
                for (at, key) in keys_of(prefix, &name).into_iter().chain(told).enumerate() {
                    let owner = (prefix.to_owned(), name.clone(), at);
                    assert_eq!(owners.insert(key.clone(), owner), None, "{key}");
                }
            }
        }
    }

    #[test]
    fn a20_a_dependency_and_operation_split_at_another_colon_do_not_meet() {
        let keys = Keys::new("p").unwrap();
        let key = |name: &str, operation: &str| {
            keys.dependency(&DependencyId::new(name).unwrap()).operation(&OperationId::new(operation).unwrap())
        };
        assert_eq!(key("a", "b:c"), "p:{a}:o:b:c");
        assert_ne!(key("a", "b:c"), key("a:b", "c"));
    }

    #[test]
    fn prefixes_are_judged() {
        for good in ["budgetd", "a:b", "%", "é", &"x".repeat(64)] {
            assert!(Keys::new(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("", InvalidPrefix::Size),
            (&*"x".repeat(65), InvalidPrefix::Size),
            ("a{b", InvalidPrefix::Character),
            ("a}", InvalidPrefix::Character),
            ("a\nb", InvalidPrefix::Character),
        ] {
            assert_eq!(Keys::new(bad).unwrap_err(), why, "{bad:?}");
        }
    }
}
