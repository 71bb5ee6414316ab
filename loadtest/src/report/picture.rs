//! A scenario as one small picture for a README: what the dependency received under each strategy, over time and in all.
//!
//! It brings its own ground and follows the reader's choice of light or dark, so that it is readable anywhere.

use std::fmt::Write as _;

use crate::record::{Mark, ScenarioRun, StrategyRun};

use super::{cells, html::slots, page::escape, quantities::Unit};

const WIDTH: f64 = 880.0;
const HEAD: f64 = 92.0;
const ROW: f64 = 62.0;
const FOOT: f64 = 34.0;
/// Where the curves begin and how wide they are.
const LEFT: f64 = 228.0;
const SPAN: f64 = 430.0;
/// Height of a curve.
const RISE: f64 = 46.0;
/// A picture is for a glance.
const ROWS_MAX: usize = 8;
/// A label has two lines.
const LABEL_CHARS_MAX: usize = 31;

const STYLE: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue','DejaVu Sans',sans-serif;font-size:13px;fill:var(--ink)}\
svg{--ground:#fff;--ink:#1b1d21;--soft:#5b616b;--hair:#dddfe3;--ref:#e1e4e8;--band:#b4530916;--mark:#92400e;\
--c0:#6b7280;--c1:#d1420a;--c2:#b07d00;--c3:#0063b1;--c4:#00875f;--c5:#b0479a;--c6:#22262e;--c7:#1295b5}\
@media(prefers-color-scheme:dark){svg{--ground:#15181c;--ink:#e9ebee;--soft:#a2a9b4;--hair:#2e333b;--ref:#333a44;--band:#f59e0b22;--mark:#f3b765;\
--c0:#a3abb8;--c1:#ff7d45;--c2:#e8bd3f;--c3:#5cb2ff;--c4:#3fd0a0;--c5:#ea8fd6;--c6:#e9ebee;--c7:#5fd0ea}}\
.ground{fill:var(--ground);stroke:var(--hair)}.title{font-size:18px;font-weight:700}.name{font-size:15px;font-weight:700;fill:var(--c)}\
.soft{fill:var(--soft)}.small{font-size:12px}.big{font-size:19px;font-weight:700}.hair{stroke:var(--hair)}.ref{fill:var(--ref)}\
.band{fill:var(--band)}.mark{fill:var(--mark);font-size:12px}.edge{stroke:var(--mark);stroke-opacity:.5}\
.area{fill:var(--c);fill-opacity:.25}.curve{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}\
.s0{--c:var(--c0)}.s1{--c:var(--c1)}.s2{--c:var(--c2)}.s3{--c:var(--c3)}.s4{--c:var(--c4)}.s5{--c:var(--c5)}.s6{--c:var(--c6)}.s7{--c:var(--c7)}";

/// Of all curves.
struct Scale {
    /// In a bin.
    most: u64,
    bins: u64,
}

/// The picture, SVG.
pub(crate) fn picture(scenario: &ScenarioRun) -> String {
    let variant = scenario.strategies.last().map_or("", |run| &run.variant);
    let runs: Vec<&StrategyRun> =
        scenario.strategies.iter().filter(|run| run.variant == variant).take(ROWS_MAX).collect();
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let height = HEAD + ROW * float(runs.len()) + FOOT;
    let says: Vec<String> = runs
        .iter()
        .map(|run| format!("{} {} calls for each original", run.name, Unit::Ratio.write(run.totals.amplification())))
        .collect();
    let title = escape(&scenario.title);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" aria-labelledby=\"t d\">\n\
         <title id=\"t\">{title}</title>\n<desc id=\"d\">{}</desc>\n<style>{STYLE}</style>\n\
         <rect class=\"ground\" x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"12\"/>\n\
         <text class=\"title\" x=\"24\" y=\"36\">{title}</text>\n\
         <text class=\"soft small\" x=\"{LEFT}\" y=\"66\">calls the dependency received, per second</text>\n\
         <text class=\"soft small\" x=\"762\" y=\"66\" text-anchor=\"end\">amplification</text>\n\
         <text class=\"soft small\" x=\"856\" y=\"66\" text-anchor=\"end\">useful</text>\n",
        escape(&says.join("; ")),
        WIDTH - 1.0,
        height - 1.0,
    );
    let bottom = height - FOOT;
    let span = span_ms(scenario, &runs);
    for mark in &scenario.marks {
        band(&mut svg, span, mark, bottom);
    }
    let most = runs.iter().flat_map(|run| &run.series.received).copied().max().unwrap_or(0).max(1);
    for (at, (run, slot)) in runs.iter().zip(slots(&names)).enumerate() {
        row(&mut svg, run, slot, HEAD + ROW * float(at), &Scale { most, bins: span / scenario.bin_ms.max(1) });
    }
    foot(&mut svg, scenario, span, most, bottom);
    svg.push_str("</svg>\n");
    svg
}

/// As long as the load, or until the dependency receives nothing more.
fn span_ms(scenario: &ScenarioRun, runs: &[&StrategyRun]) -> u64 {
    let bins = runs.iter().filter_map(|run| run.series.received.iter().rposition(|count| *count > 0)).max();
    let bins = bins.and_then(|last| u64::try_from(last + 1).ok()).unwrap_or(0);
    let bin_ms = scenario.bin_ms.max(1);
    bins.max(scenario.duration_ms.div_ceil(bin_ms)).max(1).saturating_mul(bin_ms)
}

fn band(svg: &mut String, span_ms: u64, mark: &Mark, bottom: f64) {
    let x = |at_ms: u64| LEFT + SPAN * (wide(at_ms) / wide(span_ms)).min(1.0);
    let (from, to) = (x(mark.at_ms), x(mark.until_ms.unwrap_or(mark.at_ms)));
    let _ = writeln!(
        svg,
        "<rect class=\"band\" x=\"{from:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{:.1}\"/>\
         <path class=\"edge\" d=\"M{from:.1} {}V{bottom}\"/>\
         <text class=\"mark\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        HEAD - 8.0,
        to - from,
        bottom - HEAD + 8.0,
        HEAD - 8.0,
        f64::midpoint(from, to),
        HEAD - 12.0,
        escape(&short(&mark.label)),
    );
}

fn row(svg: &mut String, run: &StrategyRun, slot: usize, top: f64, scale: &Scale) {
    let base = top + RISE + 6.0;
    let label = lines(&run.label);
    let first = base - if label.len() > 1 { 33.0 } else { 22.0 };
    let _ = write!(
        svg,
        "<g class=\"s{slot}\"><text class=\"name\" x=\"24\" y=\"{first:.0}\">{}</text>\
         <path class=\"hair\" d=\"M{LEFT} {base}h{SPAN}\"/>",
        escape(&short(&run.name)),
    );
    for (line, y) in label.iter().zip([first + 17.0, first + 32.0]) {
        let _ = write!(svg, "<text class=\"soft small\" x=\"24\" y=\"{y:.0}\">{}</text>", escape(line));
    }
    // Closed to the base line where it is an area.
    let (from, to) = (format!("M{LEFT} {base:.1}L"), format!("L{:.1} {base:.1}Z", LEFT + SPAN));
    let offered = line(&run.series.offered, base, scale);
    let received = line(&run.series.received, base, scale);
    let _ = writeln!(
        svg,
        "<path class=\"ref\" d=\"{from}{offered}{to}\"/><path class=\"area\" d=\"{from}{received}{to}\"/><path class=\"curve\" d=\"M{received}\"/>\
         <text class=\"big\" x=\"762\" y=\"{:.0}\" text-anchor=\"end\">{}</text><text class=\"big\" x=\"856\" y=\"{:.0}\" text-anchor=\"end\">{}</text></g>",
        base - 8.0,
        run.totals.amplification().map_or(cells::NA.to_owned(), |value| format!("{}×", cells::number(value))),
        base - 8.0,
        run.totals.useful_share().map_or(cells::NA.to_owned(), |share| format!("{:.0}%", share * 100.0)),
    );
}

/// The points of a curve, from edge to edge.
fn line(values: &[u64], base: f64, scale: &Scale) -> String {
    let step = SPAN / wide(scale.bins.max(1));
    let values: Vec<u64> = values.iter().copied().take(usize::try_from(scale.bins).unwrap_or(usize::MAX)).collect();
    let height = |value: &u64| base - RISE * wide(*value) / wide(scale.most);
    let mut points = format!("{LEFT} {:.1}", values.first().map_or(base, height));
    for (at, value) in values.iter().enumerate() {
        let _ = write!(points, "L{:.1} {:.1}", LEFT + step * (float(at) + 0.5), height(value));
    }
    let _ = write!(points, "L{:.1} {:.1}", LEFT + SPAN, values.last().map_or(base, height));
    points
}

fn foot(svg: &mut String, scenario: &ScenarioRun, span_ms: u64, most: u64, bottom: f64) {
    let y = bottom + 17.0;
    let peak = cells::number(wide(most) * 1_000.0 / wide(scenario.bin_ms.max(1)));
    let _ = writeln!(
        svg,
        "<text class=\"soft small\" x=\"{LEFT}\" y=\"{y}\">0 s</text><text class=\"soft small\" x=\"{}\" y=\"{y}\" text-anchor=\"end\">{}</text>\
         <text class=\"soft small\" x=\"{}\" y=\"{y}\" text-anchor=\"middle\">grey: offered · all to one scale, peak {peak}/s</text>",
        LEFT + SPAN,
        cells::moment(span_ms),
        LEFT + SPAN / 2.0,
    );
}

/// A label on two lines, broken between words.
fn lines(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let full = lines.len() > 1;
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if full || line.chars().count() + 1 + word.chars().count() <= LABEL_CHARS_MAX => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) | None => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| short(line)).collect()
}

fn short(text: &str) -> String {
    if text.chars().count() <= LABEL_CHARS_MAX {
        return text.to_owned();
    }
    text.chars().take(LABEL_CHARS_MAX - 1).chain(['…']).collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
fn wide(value: u64) -> f64 {
    value as f64
}

#[expect(clippy::cast_precision_loss, reason = "a few rows and bins")]
fn float(value: usize) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn every_strategy_has_its_curve_and_its_numbers() {
        let run = sample::storm(7);
        let svg = picture(&run.scenarios[0]);
        assert_eq!(svg.matches("class=\"curve\"").count(), 6);
        for strategy in &run.scenarios[0].strategies {
            assert!(svg.contains(&format!(">{}<", strategy.name)));
            assert!(svg.contains(&format!(">{}×<", Unit::Ratio.write(strategy.totals.amplification()))));
        }
        assert!(svg.contains("prefers-color-scheme") && svg.contains("every call fails"));
        assert!(svg.len() < 40_000, "{} bytes", svg.len());
    }

    #[test]
    fn variants_are_shown_by_the_last_and_nothing_is_drawn_of_nothing() {
        let run = sample::all(7);
        assert_eq!(picture(&run.scenarios[1]).matches("class=\"curve\"").count(), 6);
        assert!(picture(&run.scenarios[3]).contains("n/a"));
        let mut empty = run.scenarios[3].clone();
        empty.strategies.clear();
        empty.bin_ms = 0;
        empty.duration_ms = 0;
        assert!(picture(&empty).ends_with("</svg>\n"));
    }

    #[test]
    fn labels_have_two_lines_at_most() {
        assert_eq!(lines("one attempt"), ["one attempt"]);
        assert_eq!(
            lines("a tower budget in every layer of every client"),
            ["a tower budget in every layer", "of every client"]
        );
        let long = lines(&"word ".repeat(40));
        assert!(long.len() == 2 && long.iter().all(|line| line.chars().count() <= LABEL_CHARS_MAX), "{long:?}");
    }

    #[test]
    fn hostile_names_stay_text() {
        let mut scenario = sample::storm(7).scenarios.remove(0);
        scenario.title = "</title><script>".to_owned();
        scenario.strategies[0].name = "<b>".to_owned();
        scenario.marks[0].label = "<i>".to_owned();
        let svg = picture(&scenario);
        assert!(!svg.contains("<script>") && !svg.contains("<b>") && !svg.contains("<i>"));
    }
}
