//! Policies as text: every field in force as TOML, what differs between two sets, the report of `check`.

use std::fmt::Write;

use budget::policy::{FIELDS, Form, Policy, Value};

use super::{
    fields::UnknownDependencies,
    set::{DEFAULTS, PolicySet},
    snapshot::Snapshot,
    text::{Key, Quoted},
    value::written,
};

/// One rule and what follows from it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RuleReport {
    /// `defaults`, a dependency, or a family ending in `*`.
    pub rule: String,
    /// Every field with the value in force.
    pub effective_toml: String,
}

/// A field's table, its key in there, and its value; the table is empty for a field at the top.
type Line = (String, &'static str, String);

/// Every field of a policy with the value in force, as it could stand under a rule's heading.
#[must_use]
pub fn effective_toml(policy: &Policy) -> String {
    let mut text = String::new();
    let mut lines = lines(policy).into_iter().peekable();
    while let Some((table, key, value)) = lines.next() {
        if table.is_empty() {
            text.push_str(&format!("{key} = {value}\n"));
            continue;
        }
        let mut fields = format!("{key} = {value}");
        while let Some((_, key, value)) = lines.next_if(|(next, ..)| *next == table) {
            fields.push_str(&format!(", {key} = {value}"));
        }
        text.push_str(&format!("{table} = {{ {fields} }}\n"));
    }
    text
}

fn lines(policy: &Policy) -> Vec<Line> {
    let spec = policy.spec();
    let mut lines: Vec<Line> = Vec::new();
    for field in FIELDS {
        if let Some(value) = field.get(spec) {
            let (table, key) = field.path();
            lines.push((table.to_owned(), key, written(&field.form, &value)));
        }
    }
    for unit in &spec.units {
        let table = format!("cost.{}", Key(&unit.name));
        lines.push((table.clone(), "rate", written(&Form::Rate, &Value::Rate(unit.limit.rate))));
        lines.push((table, "burst", unit.limit.burst_tokens.to_string()));
    }
    lines
}

/// The names of all fields, table and key.
#[cfg(test)]
pub(super) fn keys(policy: &Policy) -> Vec<String> {
    lines(policy).into_iter().map(|(table, key, _)| format!("{table}.{key}").trim_matches('.').to_owned()).collect()
}

/// What follows from every rule, the defaults first.
#[must_use]
pub fn reports(snapshot: &Snapshot) -> Vec<RuleReport> {
    let set = snapshot.set();
    let mut defaults = effective_toml(set.defaults());
    let unknown = set.unknown_dependencies().name();
    defaults.insert_str(0, &format!("{} = \"{unknown}\"\n", UnknownDependencies::KEY));
    let defaults = RuleReport { rule: DEFAULTS.to_owned(), effective_toml: defaults };
    let rules = set.rules().filter(|(name, _)| ***name != *DEFAULTS);
    let rules =
        rules.map(|(name, rule)| RuleReport { rule: name.to_string(), effective_toml: effective_toml(&rule.policy) });
    std::iter::once(defaults).chain(rules).collect()
}

/// The effective policy of every rule, in the form of a policy file.
#[must_use]
pub fn check_report(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for RuleReport { rule, effective_toml } in reports(snapshot) {
        let heading = match rule.as_str() {
            DEFAULTS => format!("[{DEFAULTS}]"),
            name => format!("[dependency.{}]", Quoted(name)),
        };
        text.push_str(&format!("{heading}\n{effective_toml}\n"));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// What changes from `old` to `new`, rule by rule and field by field: `+` added, `-` removed, `~` changed. Empty if every
/// dependency runs under the same numbers as before.
#[must_use]
pub fn diff(old: &PolicySet, new: &PolicySet) -> String {
    let mut text = String::new();
    let names: std::collections::BTreeSet<_> = old.rules().chain(new.rules()).map(|(name, _)| name).collect();
    let mut defaults = changes(old.defaults(), new.defaults());
    let (before, after) = (old.unknown_dependencies(), new.unknown_dependencies());
    if before != after {
        for (sign, unknown) in [('-', before), ('+', after)] {
            let _ = writeln!(defaults, "  {sign} {} = \"{}\"", UnknownDependencies::KEY, unknown.name());
        }
    }
    if !defaults.is_empty() {
        let _ = write!(text, "~ {DEFAULTS}\n{defaults}");
    }
    for name in names.into_iter().filter(|name| ***name != *DEFAULTS) {
        match (old.rule(name), new.rule(name)) {
            (Some(old), Some(new)) => {
                let changes = changes(&old.policy, &new.policy);
                if !changes.is_empty() {
                    let _ = write!(text, "~ {}\n{changes}", Quoted(name));
                }
            }
            (None, Some(new)) => text.push_str(&whole('+', name, &new.policy)),
            (Some(old), None) => text.push_str(&whole('-', name, &old.policy)),
            (None, None) => {}
        }
    }
    text
}

fn whole(sign: char, name: &str, policy: &Policy) -> String {
    let fields = effective_toml(policy);
    let fields = fields.lines().map(|line| format!("  {sign} {line}\n"));
    format!("{sign} {}\n{}", Quoted(name), fields.collect::<String>())
}

fn changes(old: &Policy, new: &Policy) -> String {
    let mut text = String::new();
    if old == new {
        return text;
    }
    let (old, new) = (lines(old), lines(new));
    let mut show = |sign: char, (table, key, value): &Line| {
        let dot = if table.is_empty() { "" } else { "." };
        let _ = writeln!(text, "  {sign} {table}{dot}{key} = {value}");
    };
    let at = |lines: &[Line], (table, key, _): &Line| lines.iter().position(|(t, k, _)| t == table && k == key);
    for (index, line) in old.iter().enumerate() {
        match at(&new, line).and_then(|index| new.get(index)) {
            Some(same) if same == line => {}
            Some(other) => {
                show('-', line);
                show('+', other);
            }
            None => show('-', line),
        }
        let last_of_table = old.get(index + 1).is_none_or(|next| next.0 != line.0);
        let added = |other: &&Line| last_of_table && other.0 == line.0 && at(&old, other).is_none();
        new.iter().filter(added).for_each(|line| show('+', line));
    }
    let in_new_table = |line: &&Line| old.iter().all(|(table, ..)| *table != line.0);
    new.iter().filter(in_new_table).for_each(|line| show('+', line));
    text
}
