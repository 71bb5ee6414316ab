//! Two runs compared: what a change of policy, client or roll-out did to each quantity, on the same load.

use std::{fmt::Write as _, fs, path::PathBuf, process::ExitCode};

use clap::Args;

use crate::{
    Error,
    record::{Run, ScenarioRun, StrategyRun},
};

use super::{
    cells, compare_page, json,
    quantities::{self, Better, Unit},
    terminal::{Look, Table, plain},
};

/// Less than this share is noise of a machine, not a change for better or worse.
const NOTABLE_SHARE: f64 = 0.01;

#[derive(Debug, Args)]
pub(crate) struct CompareOptions {
    /// JSON of the run before.
    before: PathBuf,
    /// JSON of the run after; may be the same file with --from and --to.
    after: PathBuf,
    /// Write a page as well.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    choice: Choice,
}

/// What is compared with what.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Choice {
    /// Of the run before, this strategy; without it each strategy is compared with itself.
    #[arg(long, value_name = "STRATEGY", requires = "to")]
    from: Option<String>,
    /// Of the run after, this strategy.
    #[arg(long, value_name = "STRATEGY", requires = "from")]
    to: Option<String>,
    /// Compare runs of different seeds all the same; their load differs.
    #[arg(long)]
    any_seed: bool,
}

/// Two runs, side by side.
#[derive(Debug)]
pub(super) struct Comparison {
    /// Seed and versions of either side.
    pub(super) sides: [String; 2],
    /// What differs between the runs besides what they found.
    pub(super) notes: Vec<String>,
    pub(super) scenarios: Vec<ScenarioComparison>,
}

#[derive(Debug)]
pub(super) struct ScenarioComparison {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) pairs: Vec<Pair>,
}

/// A strategy of either run.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) says: String,
    pub(super) changes: Vec<Change>,
}

/// One quantity of both.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) group: &'static str,
    pub(super) name: String,
    pub(super) meaning: String,
    pub(super) before: Option<f64>,
    pub(super) after: Option<f64>,
    unit: Unit,
    better: Better,
}

/// Whether a change is welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Better,
    Worse,
    /// Too small to say, or neither.
    None,
}

/// `loadtest compare`.
pub(crate) fn main(options: &CompareOptions) -> Result<ExitCode, Error> {
    let (before, after) = (json::read(&options.before)?, json::read(&options.after)?);
    let comparison = Comparison::of(&before, &after, &options.choice)?;
    print!("{}", comparison.text(Look::of_stdout()));
    if let Some(path) = &options.html {
        fs::write(path, compare_page::html(&comparison)).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn side(run: &Run) -> String {
    let versions: Vec<String> = run.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    format!("seed {}, {}, loadtest {}", run.seed, versions.join(", "), run.arguments.join(" "))
}

fn names<'a>(values: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = Vec::new();
    for value in values.filter(|value| !value.is_empty()) {
        if !names.contains(&value) {
            names.push(value);
        }
    }
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn scenario_names(run: &Run) -> String {
    names(run.scenarios.iter().map(|scenario| scenario.name.as_str()))
}

fn pairs<'a>(
    before: &'a ScenarioRun,
    after: &'a ScenarioRun,
    choice: &Choice,
) -> Result<Vec<(&'a StrategyRun, &'a StrategyRun)>, Error> {
    let chosen = |scenario: &'a ScenarioRun, name: &Option<String>| -> Result<Vec<&'a StrategyRun>, Error> {
        let Some(name) = name else { return Ok(scenario.strategies.iter().collect()) };
        let found: Vec<&StrategyRun> = scenario.strategies.iter().filter(|run| run.name == *name).collect();
        if found.is_empty() {
            let has = names(scenario.strategies.iter().map(|run| run.name.as_str()));
            return Err(format!("{} has no strategy {name}; it has {has}", scenario.name).into());
        }
        Ok(found)
    };
    let (olds, news) = (chosen(before, &choice.from)?, chosen(after, &choice.to)?);
    let matches = |old: &StrategyRun, new: &StrategyRun| {
        old.variant == new.variant && (choice.from.is_some() || old.name == new.name)
    };
    Ok(olds.iter().filter_map(|old| news.iter().find(|new| matches(old, new)).map(|new| (*old, *new))).collect())
}

// === impl Comparison ===

impl Comparison {
    /// Compares what both runs have.
    ///
    /// # Errors
    ///
    /// Their loads differ, or they have nothing in common; the message says what to do.
    pub(super) fn of(before: &Run, after: &Run, choice: &Choice) -> Result<Self, Error> {
        let mut notes = Vec::new();
        if before.seed != after.seed {
            if !choice.any_seed {
                let (one, other) = (before.seed, after.seed);
                return Err(format!(
                    "the runs have seeds {one} and {other}, so their loads differ: run one again with --seed {one}, or compare all the same with --any-seed"
                )
                .into());
            }
            notes.push(format!("seeds differ: {} and {}; so do the loads", before.seed, after.seed));
        }
        for name in
            before.versions.keys().chain(after.versions.keys().filter(|name| !before.versions.contains_key(*name)))
        {
            let version = |run: &Run| run.versions.get(name).map_or("absent", String::as_str).to_owned();
            let (one, other) = (version(before), version(after));
            if one != other {
                notes.push(format!("{name}: {one} before, {other} after"));
            }
        }
        let mut scenarios = Vec::new();
        for old in &before.scenarios {
            let Some(new) = after.scenarios.iter().find(|scenario| scenario.name == old.name) else {
                notes.push(format!("{} is only in the run before", old.name));
                continue;
            };
            scenarios.push(ScenarioComparison::of(old, new, choice, &mut notes)?);
        }
        if scenarios.is_empty() {
            let (one, other) = (scenario_names(before), scenario_names(after));
            return Err(format!("the runs have no scenario in common: {one} before, {other} after").into());
        }
        for new in after.scenarios.iter().filter(|new| before.scenarios.iter().all(|old| old.name != new.name)) {
            notes.push(format!("{} is only in the run after", new.name));
        }
        if scenarios.iter().all(|scenario| scenario.pairs.is_empty()) {
            return Err("the runs have no strategy in common; name one of each with --from and --to".into());
        }
        Ok(Self { sides: [side(before), side(after)], notes, scenarios })
    }

    fn text(&self, look: Look) -> String {
        let mut text = String::new();
        let [before, after] = &self.sides;
        let _ = writeln!(text, "before: {}\nafter:  {}", plain(before), plain(after));
        for note in &self.notes {
            let _ = writeln!(text, "note:   {}", plain(note));
        }
        for scenario in &self.scenarios {
            let _ = writeln!(text, "\n{}", look.bold(&plain(&format!("{} — {}", scenario.name, scenario.title))));
            for pair in &scenario.pairs {
                pair.write(&mut text, look);
            }
        }
        text
    }
}

// === impl ScenarioComparison ===

impl ScenarioComparison {
    fn of(old: &ScenarioRun, new: &ScenarioRun, choice: &Choice, notes: &mut Vec<String>) -> Result<Self, Error> {
        let name = &old.name;
        if old.duration_ms != new.duration_ms {
            let (one, other) = (cells::moment(old.duration_ms), cells::moment(new.duration_ms));
            return Err(format!(
                "{name} lasted {one} before and {other} after, so its counts differ for that alone: run both with or both without --quick"
            )
            .into());
        }
        if old.policy != new.policy {
            notes.push(format!("{name}: the policies differ"));
        }
        if old.marks != new.marks {
            notes.push(format!("{name}: faults differ, or came at other times"));
        }
        let pairs = pairs(old, new, choice)?;
        for run in old.strategies.iter().filter(|_| choice.from.is_none()) {
            if !pairs.iter().any(|(old, _)| old.name == run.name && old.variant == run.variant) {
                notes.push(format!("{name}: {} is only in the run before", label(run)));
            }
        }
        for run in new.strategies.iter().filter(|_| choice.from.is_none()) {
            if !pairs.iter().any(|(_, new)| new.name == run.name && new.variant == run.variant) {
                notes.push(format!("{name}: {} is only in the run after", label(run)));
            }
        }
        let pairs = pairs.into_iter().map(|(old, new)| Pair::of(old, new)).collect();
        Ok(Self { name: name.clone(), title: new.title.clone(), pairs })
    }
}

fn label(run: &StrategyRun) -> String {
    if run.variant.is_empty() { run.name.clone() } else { format!("{} · {}", run.name, run.variant) }
}

// === impl Pair ===

impl Pair {
    fn of(old: &StrategyRun, new: &StrategyRun) -> Self {
        let says = if old.name == new.name { label(old) } else { format!("{} → {}", label(old), label(new)) };
        let changes = quantities::all([old, new])
            .into_iter()
            .map(|row| Change {
                before: row.value(old),
                after: row.value(new),
                group: row.group,
                name: row.name,
                meaning: row.meaning,
                unit: row.unit,
                better: row.better,
            })
            .collect();
        Self { says, changes }
    }

    fn write(&self, text: &mut String, look: Look) {
        let shown: Vec<&Change> = self.changes.iter().filter(|change| change.before != change.after).collect();
        let mut table = Table::new(&[&self.says, "before", "after", "difference", ""]);
        for change in &shown {
            table.row(vec![
                plain(&change.name),
                change.cell(change.before),
                change.cell(change.after),
                change.difference(),
                change.factor(),
            ]);
        }
        for (at, line) in table.lines(look.columns() - 2).iter().enumerate() {
            let judged = at.checked_sub(1).and_then(|at| shown.get(at)).map(|change| change.judged());
            let line = match judged {
                Some(Judgement::Better) => look.good(line),
                Some(Judgement::Worse) => look.bad(line),
                Some(Judgement::None) => line.clone(),
                None => look.dim(line),
            };
            let _ = writeln!(text, "  {}", line.trim_end());
        }
        let _ =
            writeln!(text, "  {}", look.dim(&format!("{} quantities are the same", self.changes.len() - shown.len())));
    }
}

// === impl Change ===

impl Change {
    pub(super) fn cell(&self, value: Option<f64>) -> String {
        self.unit.write(value)
    }

    /// Signed; `n/a` where either is.
    pub(super) fn difference(&self) -> String {
        match self.before.zip(self.after) {
            Some((before, after)) => self.unit.difference(before, after),
            None => cells::NA.to_owned(),
        }
    }

    /// `× 0.24`; nothing where there is nothing to divide by.
    pub(super) fn factor(&self) -> String {
        match self.before.zip(self.after) {
            Some((before, after)) if before > 0.0 && before.to_bits() != after.to_bits() => {
                format!("× {}", cells::number(after / before))
            }
            Some(_) | None => String::new(),
        }
    }

    pub(super) fn judged(&self) -> Judgement {
        let Some((before, after)) = self.before.zip(self.after) else { return Judgement::None };
        let change = after - before;
        if change.abs() <= before.abs().max(after.abs()) * NOTABLE_SHARE {
            return Judgement::None;
        }
        match self.better {
            Better::Neither => Judgement::None,
            Better::More if change > 0.0 => Judgement::Better,
            Better::Less if change < 0.0 => Judgement::Better,
            Better::More | Better::Less => Judgement::Worse,
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
