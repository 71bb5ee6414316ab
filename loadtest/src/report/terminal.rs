//! The summary on a terminal: strategies side by side, verdicts, bounds. Made for 80 to 120 columns.

use std::fmt::Write as _;

use console::{Term, measure_text_width, truncate_str};

use crate::record::{BoundLine, Run, ScenarioRun, StrategyRun, Verdict};

use super::{cells, quantities::Unit};

/// Narrower terminals get this much all the same, and wider ones no more than the other: text stays readable.
const COLUMNS_MIN: usize = 80;
const COLUMNS_MAX: usize = 120;

/// The longest bar of amplification.
const BAR_COLUMNS: usize = 24;

/// A delay of the generator from which on it is said.
const LATE_MS_SAID: u64 = 100;

/// A bar that is full means at least this much, so that no harm looks like none.
const BAR_SCALE_MIN: f64 = 3.0;

const RED: &str = "31";
const GREEN: &str = "32";
const BOLD: &str = "1";
const DIM: &str = "2";

/// How the summary looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    columns: usize,
    colour: bool,
}

/// A table that is as wide as its cells; the first column is of words, the rest of numbers.
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

/// What a run found. Coloured where standard output is a terminal and NO_COLOR is not set.
pub(crate) fn summary(run: &Run) -> String {
    write(run, Look::of_stdout())
}

fn write(run: &Run, look: Look) -> String {
    let mut text = String::new();
    for scenario in &run.scenarios {
        look.scenario(&mut text, scenario);
    }
    look.ending(&mut text, run);
    text
}

/// What stands in the table of a strategy.
fn row(run: &StrategyRun) -> Vec<String> {
    let totals = &run.totals;
    let counts = [totals.offered, totals.admitted, totals.refused, totals.retries_refused, totals.received];
    let mut row: Vec<String> = counts.into_iter().map(cells::count).collect();
    row.push(Unit::Ratio.write(totals.amplification()));
    row.push(Unit::Share.write(totals.useful_share()));
    row.push(Unit::Millis.write(run.latency.p99));
    row.push(cells::count(totals.duplicates));
    row
}

/// Words, each line no wider than `columns`.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().filter(|line| measure_text_width(line) + 1 + measure_text_width(word) <= columns);
        match line {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines.retain(|line| !line.is_empty());
    lines
}

/// Names come from files: nothing in them may steer a terminal.
pub(super) fn plain(text: &str) -> String {
    let safe = |c: char| match c {
        '\n' | '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(safe).collect()
}

// === impl Look ===

impl Look {
    /// As wide as standard output, and coloured where it is a terminal.
    pub(super) fn of_stdout() -> Self {
        let columns = Term::stdout().size_checked().map_or(COLUMNS_MAX, |(_, columns)| usize::from(columns));
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { columns: columns.clamp(COLUMNS_MIN, COLUMNS_MAX), colour: console::colors_enabled() && !no_color }
    }

    /// Without colour.
    #[cfg(test)]
    pub(super) fn plain(columns: usize) -> Self {
        Self { columns, colour: false }
    }

    pub(super) fn columns(self) -> usize {
        self.columns
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.paint(BOLD, text)
    }

    pub(super) fn dim(self, text: &str) -> String {
        self.paint(DIM, text)
    }

    pub(super) fn good(self, text: &str) -> String {
        self.paint(GREEN, text)
    }

    pub(super) fn bad(self, text: &str) -> String {
        self.paint(RED, text)
    }

    fn paint(self, codes: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{codes}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn scenario(self, text: &mut String, scenario: &ScenarioRun) {
        let heading = format!("{} — {}", plain(&scenario.name), plain(&scenario.title));
        let _ = writeln!(text, "{}", self.bold(&heading));
        for line in wrapped(&plain(&scenario.story), self.columns - 2) {
            let _ = writeln!(text, "  {}", self.dim(&line));
        }
        for mark in &scenario.marks {
            let until = mark.until_ms.map_or(String::new(), |until| format!(" to {}", cells::moment(until)));
            let _ = writeln!(text, "  {}{until}  {}", cells::moment(mark.at_ms), plain(&mark.label));
        }
        text.push('\n');
        self.strategies(text, scenario);
        self.shortcomings(text, &scenario.strategies);
        for verdict in &scenario.verdicts {
            self.verdict(text, verdict);
        }
        if !scenario.bound.is_empty() {
            self.bound(text, &scenario.bound);
        }
        text.push('\n');
    }

    fn strategies(self, text: &mut String, scenario: &ScenarioRun) {
        let runs = &scenario.strategies;
        if runs.is_empty() {
            let _ = writeln!(text, "  no strategy ran\n");
            return;
        }
        let heads = ["", "offered", "admitted", "refused", "no retry", "received", "ampl.", "useful", "p99", "dupl."];
        let mut table = Table::new(&heads);
        for run in runs {
            let variant = if run.variant.is_empty() { String::new() } else { format!(" · {}", run.variant) };
            let mut cells = vec![plain(&format!("{}{variant}", run.name))];
            cells.extend(row(run));
            table.row(cells);
        }
        let widest = runs.iter().filter_map(|run| run.totals.amplification()).fold(BAR_SCALE_MIN, f64::max);
        let lines = table.lines(self.columns - 2);
        let room =
            lines.iter().map(|line| self.columns.saturating_sub(measure_text_width(line) + 4)).min().unwrap_or(0);
        for (at, line) in lines.iter().enumerate() {
            let bar = at
                .checked_sub(1)
                .and_then(|at| runs.get(at))
                .map_or(String::new(), |run| bar(run.totals.amplification(), widest, room.min(BAR_COLUMNS)));
            let variant = |at: usize| runs.get(at).map(|run| &run.variant);
            if at > 1 && variant(at - 1) != variant(at - 2) {
                text.push('\n');
            }
            let line = if at == 0 { self.dim(line) } else { line.clone() };
            let _ = writeln!(text, "  {}", format!("{line}  {bar}").trim_end());
        }
        text.push('\n');
    }

    /// What the generator itself fell short of, where it did.
    fn shortcomings(self, text: &mut String, runs: &[StrategyRun]) {
        let late = runs.iter().map(|run| run.totals.late_max_ms).max().unwrap_or(0);
        let never: u64 = runs.iter().map(|run| run.totals.offered.saturating_sub(run.totals.started)).sum();
        if late < LATE_MS_SAID && never == 0 {
            return;
        }
        let late = Unit::Millis.write(Some(std::time::Duration::from_millis(late).as_secs_f64() * 1_000.0));
        let mut said = format!("The machine was short: operations began up to {late} after they were due");
        if never > 0 {
            let _ = write!(said, ", and {} never did", cells::count(never));
        }
        for line in wrapped(&(said + "; latencies count from when they were due."), self.columns - 2) {
            let _ = writeln!(text, "  {}", self.dim(&line));
        }
        text.push('\n');
    }

    fn verdict(self, text: &mut String, verdict: &Verdict) {
        let (codes, word) = if verdict.passed { (GREEN, "pass") } else { (RED, "FAIL") };
        let line = format!("{}: wanted {}, seen {}", verdict.says, verdict.wanted, verdict.seen);
        let mut lines = wrapped(&plain(&line), self.columns - 8).into_iter();
        let first = lines.next().unwrap_or_default();
        let _ = writeln!(text, "  {}  {first}", self.paint(codes, word));
        for line in lines {
            let _ = writeln!(text, "        {line}");
        }
    }

    fn bound(self, text: &mut String, lines: &[BoundLine]) {
        let _ = writeln!(text, "\n  {}", self.dim("documented bound for the worst window, and what was seen in it"));
        let mut table = Table::new(&["", "allowed", "seen"]);
        for line in lines {
            let name = plain(&format!("{} · {} · {}", line.strategy, line.quantity, line.term));
            let allowed = line.allowed.map_or("unbounded".to_owned(), cells::amount);
            table.row(vec![name, allowed, line.seen.map_or(String::new(), cells::amount)]);
        }
        let drawn = table.lines(self.columns - 2);
        for (at, row) in drawn.iter().enumerate() {
            let Some(line) = at.checked_sub(1).and_then(|at| lines.get(at)) else {
                let _ = writeln!(text, "  {}", self.dim(row));
                continue;
            };
            let formula = plain(&line.formula);
            let exceeded = line.allowed.zip(line.seen).is_some_and(|(allowed, seen)| seen > allowed);
            let row = if exceeded { self.bad(row) } else { row.clone() };
            if measure_text_width(&formula) + measure_text_width(&row) + 4 <= self.columns {
                let _ = writeln!(text, "  {row}  {}", self.dim(&formula));
            } else {
                let _ = writeln!(text, "  {}", row.trim_end());
                for part in wrapped(&formula, self.columns - 6) {
                    let _ = writeln!(text, "      {}", self.dim(&part));
                }
            }
        }
    }

    fn ending(self, text: &mut String, run: &Run) {
        let verdicts = || run.scenarios.iter().flat_map(|scenario| &scenario.verdicts);
        let (all, failed) = (verdicts().count(), verdicts().filter(|verdict| !verdict.passed).count());
        let said = match (all, failed) {
            (0, _) => self.dim("nothing was judged"),
            (1, 0) => self.good("the one acceptance passed"),
            (_, 0) => self.good(&format!("all {all} acceptances passed")),
            _ => self.bad(&format!("{failed} of {all} acceptances failed")),
        };
        let versions: Vec<String> =
            run.versions.iter().map(|(name, version)| plain(&format!("{name} {version}"))).collect();
        let _ = writeln!(text, "{said}");
        let made = format!("seed {} · {}", run.seed, versions.join(", "));
        for line in wrapped(&made, self.columns) {
            let _ = writeln!(text, "{}", self.dim(&line));
        }
    }
}

fn bar(value: Option<f64>, widest: f64, room: usize) -> String {
    let Some(value) = value.filter(|value| value.is_finite() && *value > 0.0) else { return String::new() };
    if room < 6 {
        return String::new();
    }
    "▪".repeat(columns(value / widest, room).max(1))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a few columns"
)]
fn columns(share: f64, room: usize) -> usize {
    (share * room as f64).round() as usize
}

// === impl Table ===

impl Table {
    pub(super) fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(|head| plain(head)).collect()] }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Each row as a line; if they are too wide, the first column gives way.
    pub(super) fn lines(&self, columns: usize) -> Vec<String> {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |at: usize| {
            self.rows.iter().filter_map(|row| row.get(at)).map(|cell| measure_text_width(cell)).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..count).map(width).collect();
        let rest: usize = widths.iter().skip(1).sum();
        let gap = if widths.first().unwrap_or(&0) + rest + 2 * count.saturating_sub(1) <= columns { 2 } else { 1 };
        if let Some(first) = widths.first_mut() {
            *first = (*first).min(columns.saturating_sub(rest + gap * count.saturating_sub(1)).max(8));
        }
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, &width))| {
                let cell = truncate_str(cell, width, "…");
                let pad = " ".repeat(width.saturating_sub(measure_text_width(&cell)));
                if at == 0 { format!("{cell}{pad}") } else { format!("{pad}{cell}") }
            });
            cells.collect::<Vec<_>>().join(&" ".repeat(gap))
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    const PLAIN: Look = Look { columns: 80, colour: false };

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for columns in [80, 100, 120] {
            let text = write(&sample::all(7), Look { columns, ..PLAIN });
            for line in text.lines() {
                assert!(measure_text_width(line) <= columns, "{columns}: {line}");
            }
        }
    }

    #[test]
    fn strategies_verdicts_and_bounds_are_there() {
        let text = write(&sample::all(7), PLAIN);
        for part in ["naive", "leased", "ampl.", "FAIL", "pass", "unbounded", "wanted ≥ 120, seen 87", "seed 7", "n/a"]
        {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(text.contains("2 of"), "{text}");
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn colour_is_only_where_wanted_and_names_cannot_steer_the_terminal() {
        let mut run = sample::storm(7);
        run.scenarios[0].title = "evil \x1b[2J title".to_owned();
        run.scenarios[0].story = "two\nlines".to_owned();
        assert!(write(&run, PLAIN).contains("  two lines\n"));
        run.scenarios[0].strategies[0].name = "a\x1b]0;x\x07".to_owned();
        assert!(!write(&run, PLAIN).contains('\x1b'));
        let coloured = write(&run, Look { colour: true, ..PLAIN });
        assert!(coloured.contains("\x1b[32mpass\x1b[0m") && !coloured.contains("\x1b[2J"));
    }

    #[test]
    fn a_generator_that_fell_short_says_so() {
        let mut run = sample::storm(7);
        assert!(!write(&run, PLAIN).contains("was short"));
        run.scenarios[0].strategies[0].totals.late_max_ms = 1_500;
        run.scenarios[0].strategies[1].totals.started -= 3;
        let text = write(&run, Look { columns: 120, ..PLAIN });
        assert!(text.contains("began up to 1.50 s after they were due, and 3 never did"), "{text}");
    }

    #[test]
    fn a_run_of_nothing_says_so() {
        let mut run = sample::storm(7);
        run.scenarios[0].strategies.clear();
        run.scenarios[0].verdicts.clear();
        let text = write(&run, PLAIN);
        assert!(text.contains("no strategy ran") && text.contains("nothing was judged"), "{text}");
    }

    #[test]
    fn words_longer_than_a_line_stand_alone() {
        assert_eq!(wrapped("a bb ccc", 4), ["a bb", "ccc"]);
        assert_eq!(wrapped("aaaaaaaa b", 4), ["aaaaaaaa", "b"]);
        assert_eq!(wrapped("  ", 4), Vec::<String>::new());
    }
}
