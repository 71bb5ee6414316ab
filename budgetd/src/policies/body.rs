//! The stored form of rules, switches, overrides and history: canonical JSON, so that equal policies are equal text.

use std::{collections::BTreeMap, sync::Arc};

use budget::ids::PolicyVersion;
use serde::{Deserialize, Serialize};

use super::{
    By, Change, Managed, Override, SWITCHES_MAX,
    managed::Content,
    set::{PolicySet, judge_pattern},
    snapshot::{Switch, Switches},
};

const FORMAT: u32 = 2;

/// A reader that does not know a field must not write the document back without it: unknown ones are refused.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    format: u32,
    retries_off: BTreeMap<String, StoredSwitch>,
    /// Those in force.
    rules: BTreeMap<String, String>,
    /// Files with the rules that they manage.
    files: BTreeMap<String, Vec<String>>,
    overrides: BTreeMap<String, StoredOverride>,
    /// Oldest first.
    history: Vec<StoredChange>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredSwitch {
    at_ms: i64,
    until_ms: Option<i64>,
    who: String,
    why: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredOverride {
    beneath: Option<String>,
    until_ms: i64,
    who: String,
    why: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredChange {
    number: i64,
    id: i64,
    at_ms: i64,
    who: String,
    why: String,
    what: String,
    before: Option<BTreeMap<String, Option<String>>>,
}

pub(super) fn encode(content: &Content) -> String {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (rule, file) in &content.managed.files {
        files.entry(file.to_string()).or_default().push(rule.to_string());
    }
    let overrides = content.managed.overrides.iter();
    let mut history: Vec<_> = content.history.iter().map(StoredChange::of).collect();
    history.reverse();
    let body = Body {
        format: FORMAT,
        retries_off: content.switches.iter().map(|(target, switch)| (target.to_owned(), switch.into())).collect(),
        rules: content.set.sources(),
        files,
        overrides: overrides.map(|(rule, over)| (rule.to_string(), StoredOverride::of(over))).collect(),
        history,
    };
    serde_json::to_string(&body).expect("strings and numbers become JSON")
}

/// `previous` spares reading rules that have not changed.
pub(super) fn decode(body: &str, previous: &PolicySet) -> Result<Content, String> {
    let body = Body::read(body)?;
    let set = PolicySet::of_rules(&body.rules, Some(previous)).map_err(|error| error.to_string())?;
    let mut files = BTreeMap::new();
    for (file, rules) in body.files {
        let file: Arc<str> = file.into();
        files.extend(rules.into_iter().map(|rule| (rule.into(), Arc::clone(&file))));
    }
    let overrides = body.overrides.into_iter().map(|(rule, over)| (rule.into(), over.into())).collect();
    Ok(Content {
        set: Arc::new(set),
        switches: switches(body.retries_off),
        managed: Arc::new(Managed { files, overrides }),
        history: Arc::new(body.history.into_iter().map(Change::from).collect()),
    })
}

/// The switches alone, for a body whose rules are about to be replaced.
pub(super) fn decode_switches(body: &str) -> Result<Switches, String> {
    Ok(switches(Body::read(body)?.retries_off))
}

fn switches(stored: BTreeMap<String, StoredSwitch>) -> Switches {
    stored.into_iter().map(|(target, switch)| (target, Switch::from(switch))).collect()
}

// === impl Body ===

impl Body {
    fn read(body: &str) -> Result<Self, String> {
        let body: Self = serde_json::from_str(body).map_err(|error| error.to_string())?;
        let targets = &body.retries_off;
        if body.format != FORMAT {
            return Err(format!("format is {}, must be {FORMAT}", body.format));
        }
        if targets.len() > SWITCHES_MAX {
            return Err(format!("retries_off has {} targets, must have at most {SWITCHES_MAX}", targets.len()));
        }
        for target in targets.keys() {
            judge_pattern(target).map_err(|error| format!("retries_off: {target:?} {error}"))?;
        }
        Ok(body)
    }
}

// === impl StoredSwitch ===

impl From<&Switch> for StoredSwitch {
    fn from(switch: &Switch) -> Self {
        let By { who, why } = switch.by.clone();
        Self { at_ms: switch.at_ms, until_ms: switch.until_ms, who, why }
    }
}

impl From<StoredSwitch> for Switch {
    fn from(StoredSwitch { at_ms, until_ms, who, why }: StoredSwitch) -> Self {
        Self { at_ms, until_ms, by: By { who, why } }
    }
}

// === impl StoredOverride ===

impl StoredOverride {
    fn of(over: &Override) -> Self {
        let Override { beneath, until_ms, by: By { who, why } } = over.clone();
        Self { beneath, until_ms, who, why }
    }
}

impl From<StoredOverride> for Override {
    fn from(StoredOverride { beneath, until_ms, who, why }: StoredOverride) -> Self {
        Self { beneath, until_ms, by: By { who, why } }
    }
}

// === impl StoredChange ===

impl StoredChange {
    fn of(change: &Change) -> Self {
        let Change { version: PolicyVersion { number, id }, at_ms, by: By { who, why }, what, before } = change.clone();
        Self { number, id, at_ms, who, why, what, before }
    }
}

impl From<StoredChange> for Change {
    fn from(StoredChange { number, id, at_ms, who, why, what, before }: StoredChange) -> Self {
        Self { version: PolicyVersion { number, id }, at_ms, by: By { who, why }, what, before }
    }
}
