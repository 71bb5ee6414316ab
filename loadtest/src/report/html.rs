//! The page of a run: for each scenario its story, verdicts, charts, quantities, bound and policy.

use std::fmt::Write as _;

use serde::Serialize;

use crate::record::{Mark, Run, ScenarioRun, Series, StrategyRun};

use super::{
    cells,
    page::{self, escape, pill},
    quantities::{self, Unit},
};

/// Colours and dashes that the style has for strategies.
const SLOTS: usize = 8;

/// A full bar of a ratio means at least this much, so that no harm looks like none.
const BAR_SCALE_MIN: f64 = 3.0;

/// Strategies keep their colour from scenario to scenario and from run to run.
const KNOWN: [&[&str]; 6] =
    [&["single", "baseline"], &["naive"], &["tower", "process"], &["exact"], &["leased", "lease"], &["agent"]];

/// What the script draws from.
#[derive(Serialize)]
struct Data<'a> {
    scenarios: Vec<ScenarioData<'a>>,
}

#[derive(Serialize)]
struct ScenarioData<'a> {
    bin_ms: u64,
    duration_ms: u64,
    marks: &'a [Mark],
    variants: Vec<&'a str>,
    strategies: Vec<StrategyData<'a>>,
}

#[derive(Serialize)]
struct StrategyData<'a> {
    name: &'a str,
    label: &'a str,
    variant: &'a str,
    slot: usize,
    amplification: Option<f64>,
    series: &'a Series,
}

/// The page of a run, one file that needs nothing else.
pub(crate) fn html(run: &Run) -> String {
    let mut body = String::new();
    header(&mut body, run);
    body.push_str("<main>\n");
    if run.scenarios.is_empty() {
        body.push_str("<p>No scenario ran.</p>\n");
    }
    for (at, scenario) in run.scenarios.iter().enumerate() {
        section(&mut body, at, scenario);
    }
    body.push_str("</main>\n");
    body.push_str(&page::data(&Data { scenarios: run.scenarios.iter().map(ScenarioData::of).collect() }));
    let title = match run.scenarios.as_slice() {
        [only] => format!("{} — budgetd load test", only.title),
        _ => "budgetd load test".to_owned(),
    };
    page::page(&title, &body)
}

/// The names of the strategies, each once, in the order in which they come.
fn names(scenario: &ScenarioRun) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for run in &scenario.strategies {
        if !names.contains(&run.name.as_str()) {
            names.push(&run.name);
        }
    }
    names
}

fn variants(scenario: &ScenarioRun) -> Vec<&str> {
    let mut variants: Vec<&str> = Vec::new();
    for run in &scenario.strategies {
        if !variants.contains(&run.variant.as_str()) {
            variants.push(&run.variant);
        }
    }
    variants
}

/// A place in the palette for each name: known strategies have theirs, others take what is free.
pub(super) fn slots(names: &[&str]) -> Vec<usize> {
    let known = |name: &str| KNOWN.iter().position(|words| words.iter().any(|word| name.contains(word)));
    let mut taken = [false; SLOTS];
    let mut slots: Vec<Option<usize>> = Vec::new();
    for name in names {
        let slot = known(name).filter(|&slot| !taken[slot]);
        if let Some(slot) = slot {
            taken[slot] = true;
        }
        slots.push(slot);
    }
    let mut next = 0;
    let mut free = || {
        let slot = (0..SLOTS).rev().find(|&slot| !taken[slot]).unwrap_or_else(|| {
            next += 1;
            (next - 1) % SLOTS
        });
        taken[slot] = true;
        slot
    };
    slots.into_iter().map(|slot| slot.unwrap_or_else(&mut free)).collect()
}

fn passed(scenario: &ScenarioRun) -> (usize, usize) {
    (scenario.verdicts.iter().filter(|verdict| verdict.passed).count(), scenario.verdicts.len())
}

fn header(body: &mut String, run: &Run) {
    let (passed_all, all) =
        run.scenarios.iter().map(passed).fold((0, 0), |(passed, all), (more, of)| (passed + more, all + of));
    let versions: Vec<String> = run.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let _ = write!(
        body,
        "<header class=\"top\">\n<div class=\"bar\"><h1>budgetd load test</h1>{}{}</div>\n<dl class=\"facts\">\n\
         <div><dt>Seed</dt><dd><code>{}</code></dd></div>\n\
         <div><dt>Started</dt><dd><time data-unix=\"{}\">{} s after 1970</time></dd></div>\n\
         <div><dt>Versions</dt><dd>{}</dd></div>\n\
         <div><dt>Command</dt><dd><code>loadtest {}</code></dd></div>\n</dl>\n",
        pill(passed_all, all),
        page::THEME_SWITCH,
        run.seed,
        run.started_at,
        run.started_at,
        escape(&versions.join(", ")),
        escape(&run.arguments.join(" ")),
    );
    if run.scenarios.len() > 1 {
        body.push_str("<nav aria-label=\"Scenarios\"><ol>\n");
        for (at, scenario) in run.scenarios.iter().enumerate() {
            let (passed, all) = passed(scenario);
            let _ = writeln!(
                body,
                "<li><a href=\"#scenario-{at}\">{}</a> <code>{}</code>{}</li>",
                escape(&scenario.title),
                escape(&scenario.name),
                pill(passed, all)
            );
        }
        body.push_str("</ol></nav>\n");
    }
    body.push_str("</header>\n");
}

fn section(body: &mut String, at: usize, scenario: &ScenarioRun) {
    let (passed, all) = passed(scenario);
    let _ = write!(
        body,
        "<section id=\"scenario-{at}\" class=\"scenario\" data-scenario=\"{at}\" aria-labelledby=\"title-{at}\">\n\
         <div class=\"bar\"><h2 id=\"title-{at}\">{}</h2><code>{}</code>{}</div>\n<p class=\"story\">{}</p>\n",
        escape(&scenario.title),
        escape(&scenario.name),
        pill(passed, all),
        escape(&scenario.story),
    );
    if scenario.strategies.is_empty() {
        body.push_str("<p>No strategy ran.</p>\n");
    } else {
        controls(body, scenario);
        glance(body, scenario);
        body.push_str("<div class=\"charts\" data-charts><noscript><p>The charts need JavaScript; the tables below have the same run in numbers.</p></noscript></div>\n");
    }
    verdicts(body, scenario);
    bound(body, scenario);
    numbers(body, scenario);
    let _ = write!(
        body,
        "<details class=\"policy\"><summary>Policy in force</summary><pre>{}</pre></details>\n</section>\n",
        escape(&scenario.policy)
    );
}

/// Legend, marks and the choice of a variant.
fn controls(body: &mut String, scenario: &ScenarioRun) {
    let names = names(scenario);
    body.push_str("<div class=\"controls\">\n<div class=\"legend\" role=\"group\" aria-label=\"Strategies shown in the charts\">\n");
    for (name, slot) in names.iter().zip(slots(&names)) {
        let label = scenario.strategies.iter().find(|run| run.name == *name).map_or("", |run| &run.label);
        let _ = writeln!(
            body,
            "<button type=\"button\" class=\"key s{slot}\" aria-pressed=\"true\" data-strategy=\"{}\">{}<b>{}</b> <span>{}</span></button>",
            escape(name),
            swatch(),
            escape(name),
            escape(label)
        );
    }
    body.push_str("</div>\n");
    let variants = variants(scenario);
    if variants.len() > 1 {
        body.push_str("<div class=\"variants\" role=\"group\" aria-label=\"Variant shown\">\n");
        for (at, variant) in variants.iter().enumerate() {
            let pressed = at + 1 == variants.len();
            let _ = writeln!(
                body,
                "<button type=\"button\" data-variant=\"{at}\" aria-pressed=\"{pressed}\">{}</button>",
                escape(variant)
            );
        }
        body.push_str("</div>\n");
    }
    if !scenario.marks.is_empty() {
        body.push_str("<ul class=\"marks\" aria-label=\"What was done to the world\">\n");
        for (at, mark) in scenario.marks.iter().enumerate() {
            let until = mark.until_ms.map_or(String::new(), |until| format!("–{}", cells::moment(until)));
            let from = cells::moment(mark.at_ms);
            let from = if until.is_empty() { &from } else { from.trim_end_matches(" s") };
            let _ = writeln!(body, "<li><b>{}</b> {from}{until} {}</li>", letter(at), escape(&mark.label));
        }
        body.push_str("</ul>\n");
    }
    body.push_str("</div>\n");
}

/// A, B, … Z, A2, …; the script does the same.
fn letter(at: usize) -> String {
    let letter = char::from(b'A' + u8::try_from(at % 26).unwrap_or(0));
    if at < 26 { letter.to_string() } else { format!("{letter}{}", at / 26 + 1) }
}

fn swatch() -> &'static str {
    "<svg class=\"swatch\" width=\"26\" height=\"10\" aria-hidden=\"true\"><line x1=\"1\" y1=\"5\" x2=\"25\" y2=\"5\" class=\"line\"/></svg>"
}

/// The two numbers that say most, as bars.
fn glance(body: &mut String, scenario: &ScenarioRun) {
    let variants = variants(scenario);
    for (at, variant) in variants.iter().enumerate() {
        let runs: Vec<&StrategyRun> = scenario.strategies.iter().filter(|run| run.variant == *variant).collect();
        let _ = writeln!(body, "<div class=\"glance\" data-of-variant=\"{at}\">");
        let of = if variants.len() > 1 { format!(", {variant}") } else { String::new() };
        bars(
            body,
            scenario,
            &runs,
            &format!("Calls at the dependency for each admitted original{of}"),
            Unit::Ratio,
            |run| run.totals.amplification(),
        );
        bars(body, scenario, &runs, &format!("Operations with a useful result{of}"), Unit::Share, |run| {
            run.totals.useful_share()
        });
        body.push_str("</div>\n");
    }
}

fn bars(
    body: &mut String,
    scenario: &ScenarioRun,
    runs: &[&StrategyRun],
    title: &str,
    unit: Unit,
    value: fn(&StrategyRun) -> Option<f64>,
) {
    let names = names(scenario);
    let slots = slots(&names);
    let longest =
        if unit == Unit::Share { 1.0 } else { runs.iter().filter_map(|run| value(run)).fold(BAR_SCALE_MIN, f64::max) };
    let _ = writeln!(body, "<table class=\"bars\"><caption>{}</caption><tbody>", escape(title));
    for run in runs {
        let slot = names.iter().position(|name| *name == run.name).and_then(|at| slots.get(at)).unwrap_or(&0);
        let share = value(run).map_or(0.0, |value| (value / longest).clamp(0.0, 1.0) * 100.0);
        let _ = writeln!(
            body,
            "<tr class=\"s{slot}\" data-strategy=\"{}\"><th scope=\"row\">{}</th><td class=\"track\"><svg width=\"100%\" height=\"14\" aria-hidden=\"true\">\
             <rect class=\"fill\" width=\"{share:.2}%\" height=\"14\" rx=\"2\"/></svg></td><td class=\"value\">{}</td></tr>",
            escape(&run.name),
            escape(&run.name),
            unit.write(value(run))
        );
    }
    body.push_str("</tbody></table>\n");
}

fn verdicts(body: &mut String, scenario: &ScenarioRun) {
    if scenario.verdicts.is_empty() {
        return;
    }
    body.push_str("<h3>Acceptance</h3>\n<div class=\"scroll\" tabindex=\"0\"><table class=\"verdicts\"><thead><tr><th scope=\"col\">Verdict</th><th scope=\"col\">What must hold</th><th scope=\"col\">Wanted</th><th scope=\"col\">Seen</th></tr></thead><tbody>\n");
    for verdict in &scenario.verdicts {
        let (class, word) = if verdict.passed { ("pass", "✓ pass") } else { ("fail", "✗ fail") };
        let _ = writeln!(
            body,
            "<tr><td class=\"{class}\">{word}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&verdict.says),
            escape(&verdict.wanted),
            escape(&verdict.seen)
        );
    }
    body.push_str("</tbody></table></div>\n");
}

fn bound(body: &mut String, scenario: &ScenarioRun) {
    if scenario.bound.is_empty() {
        return;
    }
    body.push_str("<h3>The documented bound, and what was seen in the worst window</h3>\n<div class=\"scroll\" tabindex=\"0\"><table class=\"bound\"><thead><tr><th scope=\"col\">Strategy</th><th scope=\"col\">Quantity</th><th scope=\"col\">Term</th><th scope=\"col\">How it comes about</th><th scope=\"col\" class=\"number\">Allowed</th><th scope=\"col\" class=\"number\">Seen</th></tr></thead><tbody>\n");
    for line in &scenario.bound {
        let exceeded = line.allowed.zip(line.seen).is_some_and(|(allowed, seen)| seen > allowed);
        let seen = line.seen.map_or(String::new(), cells::amount);
        let _ = writeln!(
            body,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"number\">{}</td><td class=\"number{}\">{}</td></tr>",
            escape(&line.strategy),
            escape(&line.quantity),
            escape(&line.term),
            escape(&line.formula),
            line.allowed.map_or("unbounded".to_owned(), cells::amount),
            if exceeded { " fail" } else { "" },
            if exceeded { format!("✗ {seen}") } else { seen },
        );
    }
    body.push_str("</tbody></table></div>\n");
}

/// A column for each strategy, a row for each quantity; a table for each variant.
fn numbers(body: &mut String, scenario: &ScenarioRun) {
    if scenario.strategies.is_empty() {
        return;
    }
    let rows = quantities::all(&scenario.strategies);
    let variants = variants(scenario);
    body.push_str("<h3>In numbers</h3>\n");
    for (at, variant) in variants.iter().enumerate() {
        let runs: Vec<&StrategyRun> = scenario.strategies.iter().filter(|run| run.variant == *variant).collect();
        let _ = write!(body, "<div class=\"scroll\" tabindex=\"0\" data-of-variant=\"{at}\"><table class=\"numbers\">");
        if !variant.is_empty() {
            let _ = write!(body, "<caption>{}</caption>", escape(variant));
        }
        body.push_str("<thead><tr><th scope=\"col\">Quantity</th>");
        for run in &runs {
            let _ = write!(body, "<th scope=\"col\" class=\"number\">{}</th>", escape(&run.name));
        }
        body.push_str("</tr></thead>\n");
        let mut group = "";
        for row in &rows {
            if row.group != group {
                let end = if group.is_empty() { "" } else { "</tbody>\n" };
                group = row.group;
                let across = runs.len() + 1;
                let _ = writeln!(
                    body,
                    "{end}<tbody><tr class=\"group\"><th colspan=\"{across}\" scope=\"rowgroup\">{group}</th></tr>"
                );
            }
            let _ = write!(
                body,
                "<tr><th scope=\"row\">{} <small>{}</small></th>",
                escape(&row.name),
                escape(&row.meaning)
            );
            for run in &runs {
                let _ = write!(body, "<td class=\"number\">{}</td>", row.cell(run));
            }
            body.push_str("</tr>\n");
        }
        body.push_str("</tbody></table></div>\n");
    }
}

// === impl ScenarioData ===

impl<'a> ScenarioData<'a> {
    fn of(scenario: &'a ScenarioRun) -> Self {
        let names = names(scenario);
        let slots = slots(&names);
        let slot = |run: &StrategyRun| {
            names.iter().position(|name| *name == run.name).and_then(|at| slots.get(at)).copied().unwrap_or(0)
        };
        Self {
            bin_ms: scenario.bin_ms,
            duration_ms: scenario.duration_ms,
            marks: &scenario.marks,
            variants: variants(scenario),
            strategies: scenario
                .strategies
                .iter()
                .map(|run| StrategyData {
                    name: &run.name,
                    label: &run.label,
                    variant: &run.variant,
                    slot: slot(run),
                    amplification: run.totals.amplification(),
                    series: &run.series,
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests;
