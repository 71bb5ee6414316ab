//! Who changed what, when and why: the latest changes, with what it takes to return to the rules before each.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use budget::ids::PolicyVersion;

use super::{By, managed::put, set::PolicySet};

/// Most changes remembered.
pub const HISTORY_MAX: usize = 100;
/// Most bytes of them; a change that alone has more is remembered without the rules before it.
const HISTORY_BYTES_MAX: usize = 1 << 20;
/// What a change takes beside its texts, about.
const CHANGE_BYTES: usize = 100;
/// Names that a summary spells out.
const NAMES_SHOWN: usize = 3;

/// One change, as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Since when the policies have been as it made them.
    pub version: PolicyVersion,
    /// By the store's clock, since the Unix epoch.
    pub at_ms: i64,
    /// By whom, and their reason.
    pub by: By,
    /// In words.
    pub what: String,
    /// The texts before, of the rules in force that it altered; none: too large to be kept.
    pub before: Option<BTreeMap<String, Option<String>>>,
}

/// The latest changes, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History(VecDeque<Arc<Change>>);

// === impl Change ===

impl Change {
    fn bytes(&self) -> usize {
        let before = self.before.iter().flatten();
        let before = before.map(|(name, text)| name.len() + text.as_ref().map_or(0, String::len) + 8).sum::<usize>();
        CHANGE_BYTES + self.by.who.len() + self.by.why.len() + self.what.len() + before
    }
}

// === impl History ===

impl History {
    /// With one more change, and without the oldest where there is no room for them.
    pub(super) fn with(&self, mut change: Change) -> Self {
        if change.bytes() > HISTORY_BYTES_MAX {
            change.before = None;
        }
        let mut changes = self.0.clone();
        changes.push_back(Arc::new(change));
        let mut bytes: usize = changes.iter().map(|change| change.bytes()).sum();
        while changes.len() > HISTORY_MAX || bytes > HISTORY_BYTES_MAX {
            bytes -= changes.pop_front().map_or(bytes, |oldest| oldest.bytes());
        }
        Self(changes)
    }

    /// The changes, the latest first.
    pub fn iter(&self) -> impl Iterator<Item = &Change> {
        self.0.iter().rev().map(|change| &**change)
    }

    /// The rules in force under an earlier version, by its number, where `now` are in force under `current`.
    ///
    /// # Errors
    /// What there is to say about a version that cannot be restored.
    pub fn rules_at(
        &self,
        number: i64,
        now: &PolicySet,
        current: PolicyVersion,
    ) -> Result<BTreeMap<String, String>, String> {
        let mut rules = now.sources();
        if number == current.number {
            return Ok(rules);
        }
        let oldest = self.0.front().map_or(current.number, |change| change.version.number);
        if !(oldest..current.number).contains(&number) {
            return Err(format!("must be between {oldest} and {}, which is what the history holds", current.number));
        }
        for change in self.iter().take_while(|change| change.version.number > number) {
            let Some(before) = &change.before else {
                let at = change.version.number;
                return Err(format!("must be at least {at}: the rules before that change were too many to be kept"));
            };
            for (name, text) in before {
                put(&mut rules, name, text.clone());
            }
        }
        Ok(rules)
    }
}

impl FromIterator<Change> for History {
    /// Oldest first.
    fn from_iter<I: IntoIterator<Item = Change>>(changes: I) -> Self {
        Self(changes.into_iter().map(Arc::new).collect())
    }
}

/// The texts before of all rules that differ.
pub(super) fn altered(before: &PolicySet, after: &PolicySet) -> BTreeMap<String, Option<String>> {
    let names: BTreeSet<_> = before.rules().chain(after.rules()).map(|(name, _)| name).collect();
    let source = |set: &PolicySet, name: &str| set.rule(name).map(|rule| Arc::clone(&rule.source));
    let differing = names.into_iter().filter_map(|name| {
        let old = source(before, name);
        (old != source(after, name)).then(|| (name.to_string(), old.map(|text| text.to_string())))
    });
    differing.collect()
}

/// Some names, and how many more there are.
pub(super) fn summary<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(NAMES_SHOWN);
    let shown: Vec<_> = names.take(NAMES_SHOWN).collect();
    match (shown.as_slice(), more) {
        ([], _) => "no rule in force".to_owned(),
        (shown, 0) => shown.join(", "),
        (shown, more) => format!("{} and {more} more", shown.join(", ")),
    }
}
