//! What is to be written next: each kind of change as a new content of the document.

use std::{collections::BTreeMap, sync::Arc};

use budget::ids::PolicyVersion;

use super::{Edit, How, Inner, PoliciesError, Rollback, judge_for};
use crate::policies::{
    By, Managed, Override,
    file::PolicyFile,
    history::summary,
    managed::{Content, put},
    set::PolicySet,
    snapshot::Switches,
};

/// A content to be written.
pub(super) struct Draft {
    pub(super) content: Content,
    pub(super) import_hash: Option<String>,
    /// For the history: what was done, and by whom. None: nothing but the version changes.
    pub(super) done: Option<(String, By)>,
    /// The target of a switch thrown here alone that this stores.
    pub(super) stores: Option<String>,
}

// === impl Draft ===

impl Draft {
    /// What is in force here, once more.
    pub(super) fn again(inner: &Inner) -> Self {
        Self { content: inner.content.clone(), import_hash: import_hash(inner), done: None, stores: None }
    }

    fn of(inner: &Inner, content: Content, what: String, by: By) -> Self {
        Self { content, import_hash: import_hash(inner), done: Some((what, by)), stores: None }
    }

    pub(super) fn switched(inner: &Inner, switches: Switches, target: &str, enabled: bool, by: By) -> Self {
        let word = if enabled { "on" } else { "off" };
        let for_whom = if target == "*" { "all".to_owned() } else { format!("{target:?}") };
        let until_ms = switches.get(target).and_then(|switch| switch.until_ms);
        let until = until_ms.map_or_else(String::new, |ms| format!(" until {}", crate::clock::utc(ms)));
        let content = Content { switches, ..inner.content.clone() };
        Self::of(inner, content, format!("retries {word} for {for_whom}{until}"), by)
    }

    /// Files take the place of the files before them. What the API has written stays, unless a file now says otherwise, and
    /// overrides go on above.
    pub(super) fn import(base: &Content, file: &PolicyFile) -> Result<Self, PoliciesError> {
        let mut rules = file.set.sources();
        let mut others = 0;
        for (name, rule) in base.set.rules() {
            let is_own = !base.managed.files.contains_key(name) && !base.managed.overrides.contains_key(name);
            if is_own && !rules.contains_key(&**name) {
                rules.insert(name.to_string(), rule.source.to_string());
                others += 1;
            }
        }
        let mut overrides = base.managed.overrides.clone();
        for (name, over) in &mut overrides {
            let is_from_file = base.managed.files.contains_key(name);
            let own = over.beneath.clone().filter(|_| !is_from_file);
            over.beneath = rules.get(&**name).cloned().or(own);
            put(&mut rules, name, base.set.rule(name).map(|rule| rule.source.to_string()));
            others += 1;
        }
        let set = if others == 0 { file.set.clone() } else { PolicySet::of_rules(&rules, Some(&file.set))? };
        let files: BTreeMap<_, _> =
            file.origins.iter().map(|(rule, file)| (Arc::clone(rule), Arc::clone(file))).collect();
        let mut names: Vec<&str> = files.values().map(|file| &**file).collect();
        names.dedup();
        names.sort_unstable();
        names.dedup();
        let what = format!("imported {}", summary(names.into_iter()));
        let content = Content { set: Arc::new(set), managed: Arc::new(Managed { files, overrides }), ..base.clone() };
        let by = By { who: "budgetd".to_owned(), why: "the policy files have changed".to_owned() };
        let import_hash = Some(file.hash.clone());
        Ok(Self { content: judged(content)?, import_hash, done: Some((what, by)), stores: None })
    }

    /// One rule.
    pub(super) fn edit(inner: &Inner, edit: &Edit, now_ms: i64) -> Result<Self, PoliciesError> {
        let Edit { name, text, how, by, .. } = edit;
        let (set, managed) = (&inner.content.set, &inner.content.managed);
        let overridden = managed.overrides.get(name.as_str());
        if text.is_none() && set.rule(name).is_none() && overridden.is_none() {
            return Err(PoliciesError::NoSuchRule(name.clone()));
        }
        if let (None, Some(over), How::Plain) = (text, overridden, how) {
            // To remove an override is to end it.
            let content = ended(&inner.content, name, over)?;
            return Ok(Self::of(inner, content, format!("ended the override of {name:?}"), by.clone()));
        }
        let mut changes = BTreeMap::new();
        changes.insert(name.clone(), text.clone());
        let what = match (text, how) {
            (Some(_), How::Plain) => format!("put {name:?}"),
            (None, How::Plain) => format!("removed {name:?}"),
            (Some(_), How::OverrideForMs(_)) => format!("overrode {name:?}"),
            (None, How::OverrideForMs(_)) => format!("overrode {name:?} with nothing"),
            (Some(_), How::TakeOver) => format!("took over and put {name:?}"),
            (None, How::TakeOver) => format!("took over and removed {name:?}"),
        };
        Self::rules(inner, &changes, *how, what, by, now_ms)
    }

    /// All rules as they were.
    pub(super) fn roll_back(inner: &Inner, rollback: &Rollback, now_ms: i64) -> Result<Self, PoliciesError> {
        let Rollback { to, how, by, .. } = rollback;
        let current = inner.held.as_ref().map_or_else(PolicyVersion::default, |held| held.version);
        let Content { set, history, .. } = &inner.content;
        let wanted = history.rules_at(*to, set, current);
        let wanted = wanted.map_err(|rule| PoliciesError::Range { field: "version", value: *to, rule })?;
        let now = set.sources();
        let mut changes = BTreeMap::new();
        for name in now.keys().chain(wanted.keys()) {
            if now.get(name) != wanted.get(name) {
                changes.insert(name.clone(), wanted.get(name).cloned());
            }
        }
        let what = format!("rolled back to version {to}: {}", summary(changes.keys().map(String::as_str)));
        Self::rules(inner, &changes, *how, what, by, now_ms)
    }

    fn rules(
        inner: &Inner,
        changes: &BTreeMap<String, Option<String>>,
        how: How,
        mut what: String,
        by: &By,
        now_ms: i64,
    ) -> Result<Self, PoliciesError> {
        let Content { set, managed, .. } = &inner.content;
        let Managed { mut files, mut overrides } = (**managed).clone();
        let mut set = Arc::clone(set);
        for name in changes.keys() {
            match how {
                How::Plain => {
                    if let Some(file) = files.get(name.as_str()) {
                        return Err(PoliciesError::Managed { rule: name.clone(), file: file.to_string() });
                    }
                    overrides.remove(name.as_str());
                }
                How::TakeOver => {
                    files.remove(name.as_str());
                    overrides.remove(name.as_str());
                }
                How::OverrideForMs(for_ms) => {
                    judge_for("override_for_ms", Some(for_ms))?;
                    let beneath = match overrides.remove(name.as_str()) {
                        Some(before) => before.beneath,
                        None => set.rule(name).map(|rule| rule.source.to_string()),
                    };
                    let until_ms = now_ms.saturating_add(for_ms);
                    overrides.insert(name.as_str().into(), Override { beneath, until_ms, by: by.clone() });
                }
            }
        }
        let mut one_by_one = changes.iter();
        if let (Some((name, text)), None) = (one_by_one.next(), one_by_one.next()) {
            set = Arc::new(set.with(name, text.as_deref())?);
        } else {
            let mut rules = set.sources();
            changes.iter().for_each(|(name, text)| put(&mut rules, name, text.clone()));
            set = Arc::new(PolicySet::of_rules(&rules, Some(&set))?);
        }
        if let How::OverrideForMs(for_ms) = how {
            what.push_str(&format!(" until {}", crate::clock::utc(now_ms.saturating_add(for_ms))));
        }
        let content = Content { set, managed: Arc::new(Managed { files, overrides }), ..inner.content.clone() };
        Ok(Self::of(inner, judged(content)?, what, by.clone()))
    }

    /// What is to be written though nobody asks now: switches thrown while the repository was away, what is over, and files.
    pub(super) fn due(inner: &Inner, now_ms: i64) -> Result<Option<Self>, PoliciesError> {
        let content = &inner.content;
        if let Some((target, thrown)) = inner.thrown.iter().next() {
            let mut switches = content.switches.clone();
            // Anew, even if it says the same: its time tells that it is stored.
            switches.set(target, None);
            switches.set(target, thrown.switch.clone());
            let draft = Self::switched(inner, switches, target, thrown.switch.is_none(), thrown.by.clone());
            return Ok(Some(Self { stores: Some(target.clone()), ..draft }));
        }
        let ended_switches = content.switches.ended(now_ms);
        if !ended_switches.is_empty() {
            let mut switches = content.switches.clone();
            for target in &ended_switches {
                switches.set(target, None);
            }
            let what = format!("retries on for {}", summary(ended_switches.iter().map(String::as_str)));
            return Ok(Some(Self::of(inner, Content { switches, ..content.clone() }, what, By::time())));
        }
        let mut overrides = content.managed.overrides.iter();
        if let Some((name, over)) = overrides.find(|(_, over)| over.until_ms <= now_ms) {
            let what = format!("the override of {name:?} ended");
            return Ok(Some(Self::of(inner, ended(content, name, over)?, what, By::time())));
        }
        inner.pending.as_ref().map(|file| Self::import(content, file)).transpose()
    }
}

fn import_hash(inner: &Inner) -> Option<String> {
    inner.held.as_ref().and_then(|held| held.import_hash.clone())
}

/// Without one override.
fn ended(content: &Content, name: &str, over: &Override) -> Result<Content, PoliciesError> {
    let mut managed = (*content.managed).clone();
    managed.overrides.remove(name);
    let set = match (&over.beneath, content.set.rule(name)) {
        (None, None) => Arc::clone(&content.set),
        (beneath, _) => Arc::new(content.set.with(name, beneath.as_deref())?),
    };
    Ok(Content { set, managed: Arc::new(managed), ..content.clone() })
}

/// What is beneath overrides must be valid as well: it will be in force when nobody looks.
fn judged(content: Content) -> Result<Content, PoliciesError> {
    if let Some(beneath) = content.beneath() {
        PolicySet::of_rules(&beneath, Some(&content.set))?;
    }
    Ok(content)
}
