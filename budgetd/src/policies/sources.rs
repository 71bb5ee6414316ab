//! Splits a policy file into the text of each rule, comments kept, as it would stand under the rule's own heading: the
//! form in which rules are stored and changed one by one.

use std::collections::HashMap;

use toml::de::{DeTable, DeValue};

use super::{
    set::DEFAULTS,
    text::{Key, Reading},
};

/// The headings of a file in the order they are written.
pub(super) struct Sources<'a> {
    reading: Reading<'a>,
    headings: Vec<Heading>,
    of_rule: HashMap<String, Vec<usize>>,
}

struct Heading {
    /// Keys from the root.
    path: Vec<String>,
    start: usize,
    end: usize,
}

// === impl Sources ===

impl<'a> Sources<'a> {
    pub(super) fn new(reading: Reading<'a>, root: &DeTable<'_>) -> Self {
        let mut headings = Vec::new();
        collect(reading.text, root, &mut Vec::new(), &mut headings);
        headings.sort_by_key(|heading| heading.start);
        let mut of_rule: HashMap<_, Vec<_>> = HashMap::new();
        for (index, heading) in headings.iter().enumerate() {
            if let Some((rule, _)) = heading.rule() {
                of_rule.entry(rule.to_owned()).or_default().push(index);
            }
        }
        Self { reading, headings, of_rule }
    }

    /// The text of a rule: what stands under its heading, then its sub-tables under headings relative to it.
    pub(super) fn of(&self, name: &str) -> String {
        let (mut own, mut below) = (String::new(), String::new());
        for index in self.of_rule.get(name).into_iter().flatten().copied() {
            let heading = &self.headings[index];
            let before = &self.reading.text[self.comments_before(index)..heading.start];
            let end = self.headings.get(index + 1).map_or(self.reading.text.len(), |_| self.comments_before(index + 1));
            let body = &self.reading.text[heading.end..end];
            match heading.rule() {
                Some((_, [])) => own = format!("{before}{}", body.trim_start_matches([' ', '\t'])),
                Some((_, keys)) => {
                    let keys: Vec<_> = keys.iter().map(|key| Key(key).to_string()).collect();
                    below.push_str(&format!("{before}[{}]{body}", keys.join(".")));
                }
                None => {}
            }
        }
        format!("{own}{below}").trim().to_owned()
    }

    /// Where the comment lines begin that stand directly above a heading: they belong to it.
    fn comments_before(&self, index: usize) -> usize {
        let heading = self.headings[index].start;
        let previous = index.checked_sub(1).map_or(0, |previous| self.headings[previous].end);
        let between = &self.reading.text[previous..heading];
        // What follows the previous heading on its own line stays there.
        let first_line = if index == 0 { 0 } else { between.find('\n').map_or(between.len(), |newline| newline + 1) };
        let mut start = heading;
        for line in between[first_line..].split_inclusive('\n').rev() {
            if !line.trim_start().starts_with('#') {
                break;
            }
            start -= line.len();
        }
        start
    }
}

// === impl Heading ===

impl Heading {
    /// The rule that stands here, and the keys below it.
    fn rule(&self) -> Option<(&str, &[String])> {
        match self.path.as_slice() {
            [table, keys @ ..] if table == DEFAULTS => Some((DEFAULTS, keys)),
            [table, name, keys @ ..] if table == "dependency" => Some((name, keys)),
            _ => None,
        }
    }
}

fn collect(text: &str, table: &DeTable<'_>, path: &mut Vec<String>, headings: &mut Vec<Heading>) {
    for (key, value) in table {
        let DeValue::Table(table) = value.get_ref() else { continue };
        path.push(key.get_ref().clone().into_owned());
        let span = value.span();
        if text[span.clone()].starts_with('[') {
            headings.push(Heading { path: path.clone(), start: span.start, end: span.end });
        }
        collect(text, table, path, headings);
        path.pop();
    }
}

/// A rule's fields one per line, for a rule that has no heading of its own.
pub(super) fn flat(reading: Reading<'_>, table: &DeTable<'_>, prefix: &str) -> String {
    let mut lines = String::new();
    for (key, value) in table {
        let path = format!("{prefix}{}", Key(key.get_ref()));
        let written = &reading.text[value.span()];
        match value.get_ref().as_table().filter(|_| !written.starts_with('{')) {
            Some(table) => lines.push_str(&flat(reading, table, &format!("{path}."))),
            None => lines.push_str(&format!("{path} = {written}\n")),
        }
    }
    lines
}
