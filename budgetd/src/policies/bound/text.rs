//! The report for people: short lines, what is limited on the left, the limits in one column on the right.

use std::fmt::Write;

use budget::{
    bound::{
        Base, Flow, Most, OutageStep, Part, Quantity,
        formula::{count, duration, most, tokens},
    },
    units::Decimal,
};

use super::{DEFAULTS, LeaseReport};

/// Where the column of limits ends.
const WIDTH: usize = 76;
/// Where formulas begin.
const FORMULA: usize = 14;

/// Lines under construction.
#[derive(Default)]
struct Page(String);

// === impl LeaseReport ===

impl LeaseReport {
    /// As lines of text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut page = Page::default();
        page.heading(self);
        for base in &self.bound.bases {
            page.base(base);
        }
        if !self.bound.terms.is_empty() {
            page.line("\nMORE ONLY IF");
        }
        for term in &self.bound.terms {
            page.line(&format!("  {}", visible(&term.text)));
            for part in &term.parts {
                page.part(4, part.quantity.name(), part, "+ ");
            }
        }
        page.outage(self);
        page.afterwards(self);
        page.sharing(self);
        if !self.warnings.is_empty() {
            page.line("\nWARNINGS");
        }
        for warning in &self.warnings {
            page.paragraph("  - ", &visible(&warning.to_string()));
        }
        page.0
    }
}

/// Names from a file must not move the cursor or add lines.
fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

fn number(number: i64, what: &str) -> String {
    format!("{} {what}{}", count(number), if number == 1 { "" } else { "s" })
}

fn flow(flow: Flow) -> String {
    match flow {
        Flow::PerSecond(micros) => format!("{}/s", tokens(micros)),
        Flow::Unlimited => "unlimited".to_owned(),
    }
}

// === impl Page ===

impl Page {
    fn line(&mut self, text: &str) {
        self.0.push_str(text.trim_end());
        self.0.push('\n');
    }

    /// `left` and, at the end of the line, `right`; at least two spaces between them.
    fn row(&mut self, left: &str, right: &str) {
        let room = WIDTH.saturating_sub(right.chars().count()).saturating_sub(2);
        self.line(&format!("{left:room$}  {right}"));
    }

    /// In lines of at most [`WIDTH`] signs where words allow.
    fn paragraph(&mut self, bullet: &str, text: &str) {
        let mut line = bullet.to_owned();
        let indent = " ".repeat(bullet.chars().count());
        let mut words = 0;
        for word in text.split(' ') {
            if words > 0 && line.chars().count() + 1 + word.chars().count() > WIDTH {
                self.line(&line);
                line.clone_from(&indent);
                words = 0;
            }
            if words > 0 {
                line.push(' ');
            }
            line.push_str(word);
            words += 1;
        }
        self.line(&line);
    }

    fn heading(&mut self, report: &LeaseReport) {
        let of = match report.rule.as_str() {
            DEFAULTS => "defaults: each dependency that no rule names".to_owned(),
            rule if rule.ends_with('*') => format!("{}: each dependency of the family", visible(rule)),
            rule => visible(rule),
        };
        let fleet = report.question.fleet;
        let mut among = number(fleet.holders, "holder");
        if fleet.replicas > 0 {
            let _ = write!(among, ", {}", number(fleet.replicas, "replica"));
        }
        self.line(&format!("== {of} =="));
        self.line(&format!("{among}; any window of {}", duration(report.question.window_ms)));
    }

    fn base(&mut self, base: &Base) {
        let name = match &base.quantity {
            Quantity::Unit(name) => format!("UNIT {}", visible(name)),
            name @ (Quantity::Admissions | Quantity::Retries | Quantity::InFlight) => name.name().to_uppercase(),
        };
        let mut most = most(base.most());
        if base.per_original_ppm > 0 {
            let _ = write!(most, " + {} x originals", Decimal(base.per_original_ppm));
        }
        self.line("");
        self.row(&format!("{name}, at most"), &most);
        if let [_] = base.parts.as_slice() {
            return;
        }
        for part in &base.parts {
            self.part(2, part.name, part, "");
        }
    }

    fn part(&mut self, indent: usize, name: &str, part: &Part, sign: &str) {
        let width = FORMULA + indent - 2;
        let left = format!("{:indent$}{}", "", visible(name));
        let left = format!("{left:width$}  {}", visible(&part.formula));
        let right = match part.most {
            Most::Count(_) => format!("{sign}{}", most(part.most)),
            Most::Unbounded => "UNBOUNDED".to_owned(),
        };
        self.row(&left, &right);
    }

    fn outage(&mut self, report: &LeaseReport) {
        self.line("\nWITH EVERYTHING DOWN, ALL HOLDERS TOGETHER");
        let steps = &report.outage.steps;
        for (step, part) in steps.iter().zip(report.curve_ppm.iter().map(Some).chain(std::iter::repeat(None))) {
            let OutageStep { from_ms, until_ms, leased, admissions, retries } = step;
            let when = until_ms.map_or_else(
                || format!("from {}", duration(*from_ms)),
                |until_ms| format!("{} to {}", duration(*from_ms), duration(until_ms)),
            );
            let by = match part.filter(|_| *leased) {
                Some(ppm) => format!("{}% of the lease", Decimal(ppm.saturating_mul(100))),
                None => "fallback".to_owned(),
            };
            let note = if *retries { "" } else { ", no retries" };
            self.row(&format!("  {when:FORMULA$}{by}{note}"), &flow(*admissions));
        }
        if report.question.fleet.replicas > 0 {
            let shown = number(report.question.fleet.replicas, "replica");
            self.row(
                &format!("  callers of Reserve, if only the store is down: {shown}"),
                &flow(report.outage.reserve),
            );
        }
        let share = &report.outage.share;
        if share.is_zero() {
            self.line("  no holder has a lease: the quotas are too small, see below");
            return;
        }
        let mut each = Vec::new();
        if report.bound.base(&Quantity::Admissions).is_some() {
            each.push(format!("{}/s, burst {}", tokens(share.rate), tokens(share.burst)));
        }
        each.push(format!("retry burst {}", tokens(share.retry_burst)));
        if report.bound.base(&Quantity::InFlight).is_some() {
            each.push(number(share.slots, "permit"));
        }
        self.line(&format!("  each holder has {}", each.join(", ")));
    }

    fn afterwards(&mut self, report: &LeaseReport) {
        let outage = &report.outage;
        self.line("\nONCE BUDGETD ANSWERS AGAIN, AT THE LATEST AFTER");
        self.row("  every live holder is leased again", &duration(outage.leased_again_ms));
        self.row("  a crashed holder's share is free again", &duration(outage.returned_ms));
        self.row("  a policy that was lowered holds everywhere", &duration(outage.returned_ms));
        self.row("  a store that lost its state lends freely again", &duration(outage.quarantine_ms));
        if outage.wait_ms > 0 {
            self.row("    until then, nothing but the fallback for", &duration(outage.wait_ms));
        }
        if let Flow::PerSecond(_) = outage.direct {
            self.row("    until then, callers of Reserve get at least", &flow(outage.direct));
        }
    }

    fn sharing(&mut self, report: &LeaseReport) {
        self.line("\nCAN BE LEASED TO SO MANY HOLDERS, AT EQUAL DEMAND");
        for sharing in &report.sharing {
            let left = format!("  {} = {}", visible(&sharing.field), count(sharing.value));
            self.row(&left, &count(sharing.holders));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_end_in_one_column_and_paragraphs_break_between_words() {
        let mut page = Page::default();
        page.row("left", "right");
        page.row(&"x".repeat(80), "right");
        let lines: Vec<_> = page.0.lines().map(|line| line.chars().count()).collect();
        assert_eq!(lines, [WIDTH, 87]);
        let mut page = Page::default();
        page.paragraph("- ", &format!("{} {}", "word ".repeat(40).trim_end(), "x".repeat(90)));
        assert!(
            page.0.lines().all(|line| line.chars().count() <= WIDTH || line.trim() == "x".repeat(90)),
            "{}",
            page.0
        );
        assert!(page.0.starts_with("- word word") && page.0.contains("\n  word"), "{}", page.0);
    }

    #[test]
    fn names_cannot_draw() {
        assert_eq!(visible("a\u{1b}[2J\nb"), "a\\u{1b}[2J\\nb");
    }
}
