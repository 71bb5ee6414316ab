//! Two runs compared, as a page.

use std::fmt::Write as _;

use super::{
    compare::{Change, Comparison, Judgement, Pair},
    page::{self, escape},
};

/// Those that a roll-out is judged by stand above the rest.
const FIRST: [&str; 5] = ["amplification", "useful share", "duplicates per 1,000", "calls for a useful result", "p99"];

/// The page of a comparison, one file that needs nothing else.
pub(super) fn html(comparison: &Comparison) -> String {
    let [before, after] = &comparison.sides;
    let mut body = String::new();
    let _ = write!(
        body,
        "<header class=\"top\">\n<div class=\"bar\"><h1>Two load tests compared</h1>{}</div>\n<dl class=\"facts\">\n\
         <div><dt>Before</dt><dd>{}</dd></div>\n<div><dt>After</dt><dd>{}</dd></div>\n</dl>\n",
        page::THEME_SWITCH,
        escape(before),
        escape(after)
    );
    if !comparison.notes.is_empty() {
        body.push_str("<h3>What else differs</h3>\n<ul>\n");
        for note in &comparison.notes {
            let _ = writeln!(body, "<li>{}</li>", escape(note));
        }
        body.push_str("</ul>\n");
    }
    body.push_str("</header>\n<main>\n");
    for scenario in &comparison.scenarios {
        let _ = writeln!(
            body,
            "<section class=\"scenario\"><div class=\"bar\"><h2>{}</h2><code>{}</code></div>",
            escape(&scenario.title),
            escape(&scenario.name)
        );
        for pair in &scenario.pairs {
            table(&mut body, pair);
        }
        body.push_str("</section>\n");
    }
    body.push_str("</main>\n");
    page::page("Two load tests compared", &body)
}

fn table(body: &mut String, pair: &Pair) {
    let _ = writeln!(
        body,
        "<h3>{}</h3>\n<div class=\"scroll\" tabindex=\"0\"><table class=\"numbers\"><thead><tr><th scope=\"col\">Quantity</th>\
         <th scope=\"col\" class=\"number\">Before</th><th scope=\"col\" class=\"number\">After</th>\
         <th scope=\"col\" class=\"number\">Difference</th><th scope=\"col\" class=\"number\">Factor</th></tr></thead>",
        escape(&pair.says)
    );
    body.push_str("<tbody>\n");
    let first = FIRST.iter().filter_map(|name| pair.changes.iter().find(|change| change.name == *name));
    let cost = pair.changes.iter().filter(|change| change.group == "Cost" && change.name.ends_with("useful result"));
    first.chain(cost).for_each(|change| row(body, change));
    body.push_str("</tbody>\n");
    let mut group = "";
    for change in &pair.changes {
        if change.group != group {
            let end = if group.is_empty() { "" } else { "</tbody>\n" };
            group = change.group;
            let _ = writeln!(
                body,
                "{end}<tbody><tr class=\"group\"><th colspan=\"5\" scope=\"rowgroup\">{group}</th></tr>"
            );
        }
        row(body, change);
    }
    body.push_str("</tbody></table></div>\n");
}

fn row(body: &mut String, change: &Change) {
    let (class, sign) = match change.judged() {
        Judgement::Better => (" better", "✓ "),
        Judgement::Worse => (" worse", "✗ "),
        Judgement::None => ("", ""),
    };
    let _ = writeln!(
        body,
        "<tr><th scope=\"row\">{} <small>{}</small></th><td class=\"number\">{}</td><td class=\"number\">{}</td>\
         <td class=\"number{class}\">{sign}{}</td><td class=\"number\">{}</td></tr>",
        escape(&change.name),
        escape(&change.meaning),
        change.cell(change.before),
        change.cell(change.after),
        change.difference(),
        change.factor()
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::compare::tests::roll_out;

    #[test]
    fn what_a_roll_out_is_judged_by_comes_first() {
        let page = html(&roll_out());
        assert!(page.contains("naive → leased"));
        let body = page.split_once("<tbody>").expect("a table").1;
        let first = body.split_once("</tbody>").expect("an end").0;
        for name in FIRST.iter().chain(&["requests for a useful result"]) {
            assert!(first.contains(name), "{name}");
        }
        assert!(first.contains("better"));
    }

    #[test]
    fn hostile_names_stay_text() {
        let mut comparison = roll_out();
        comparison.notes.push("<script>alert(1)</script>".to_owned());
        comparison.scenarios[0].title = "<img>".to_owned();
        comparison.scenarios[0].pairs[0].says = "<b>".to_owned();
        let page = html(&comparison);
        assert!(!page.contains("<img>") && !page.contains("<b>") && !page.contains("<script>"));
        assert!(page.contains("&lt;script&gt;"));
    }
}
