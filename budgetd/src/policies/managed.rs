//! What is kept beside the rules in force: which of them files manage, which are overridden for a time, and all of it as
//! one, ready to be stored.

use std::{collections::BTreeMap, sync::Arc};

use super::{history::History, set::PolicySet, snapshot::Switches};

/// Who changes something, and why; for the log and the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct By {
    /// A person or a program, as they call themselves.
    pub who: String,
    /// Their reason.
    pub why: String,
}

/// A rule that is in force for a time, in place of another or of none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The text that will be in force again; none: no rule.
    pub beneath: Option<String>,
    /// When, by the store's clock.
    pub until_ms: i64,
    /// Whose word it is.
    pub by: By,
}

/// Which rules are not the API's alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managed {
    /// By rule: the file it comes from.
    pub files: BTreeMap<Arc<str>, Arc<str>>,
    /// By rule.
    pub overrides: BTreeMap<Arc<str>, Override>,
}

/// All that is stored under one version.
#[derive(Clone, Debug)]
pub(super) struct Content {
    /// The rules in force.
    pub(super) set: Arc<PolicySet>,
    pub(super) switches: Switches,
    pub(super) managed: Arc<Managed>,
    pub(super) history: Arc<History>,
}

// === impl By ===

impl By {
    /// budgetd itself, because time has passed.
    pub(super) fn time() -> Self {
        Self { who: "budgetd".to_owned(), why: "its time is over".to_owned() }
    }
}

// === impl Content ===

impl Content {
    /// Rules that nobody has written anywhere yet.
    pub(super) fn of(set: Arc<PolicySet>) -> Self {
        Self { set, switches: Switches::default(), managed: Arc::default(), history: Arc::default() }
    }

    /// The rules as they will be when no override is in force any more; none: there is no override.
    pub(super) fn beneath(&self) -> Option<BTreeMap<String, String>> {
        if self.managed.overrides.is_empty() {
            return None;
        }
        let mut rules = self.set.sources();
        for (name, over) in &self.managed.overrides {
            put(&mut rules, name, over.beneath.clone());
        }
        Some(rules)
    }
}

/// Writes or removes one rule.
pub(super) fn put(rules: &mut BTreeMap<String, String>, name: &str, text: Option<String>) {
    match text {
        Some(text) => drop(rules.insert(name.to_owned(), text)),
        None => drop(rules.remove(name)),
    }
}
