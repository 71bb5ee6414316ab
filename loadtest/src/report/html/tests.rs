use super::*;
use crate::report::sample;

fn island(page: &str) -> serde_json::Value {
    let from = page.split_once("id=\"data\">").expect("data").1;
    serde_json::from_str(from.split_once("</script>").expect("an end").0).expect("JSON")
}

#[test]
fn hostile_names_stay_text() {
    let evil = "</script><img src=x onerror=alert(1)>\"'&";
    let mut run = sample::all(7);
    run.arguments = vec![evil.to_owned()];
    run.versions.insert(evil.to_owned(), evil.to_owned());
    for scenario in &mut run.scenarios {
        for text in [&mut scenario.name, &mut scenario.title, &mut scenario.story, &mut scenario.policy] {
            *text = evil.to_owned();
        }
        scenario.marks.iter_mut().for_each(|mark| mark.label = evil.to_owned());
        for run in &mut scenario.strategies {
            run.name = evil.to_owned();
            run.label = evil.to_owned();
            run.totals.ended.insert(evil.to_owned(), 1);
            run.totals.cost.insert(evil.to_owned(), 1);
        }
        for verdict in &mut scenario.verdicts {
            (verdict.says, verdict.wanted, verdict.seen) = (evil.to_owned(), evil.to_owned(), evil.to_owned());
        }
        for line in &mut scenario.bound {
            (line.strategy, line.term, line.formula) = (evil.to_owned(), evil.to_owned(), evil.to_owned());
        }
    }
    let page = html(&run);
    assert!(!page.contains("<img") && page.contains("&lt;img"));
    assert_eq!(page.matches("</script>").count(), 2);
    assert_eq!(island(&page)["scenarios"][0]["strategies"][0]["name"], evil);
}

#[test]
fn nothing_comes_from_elsewhere() {
    let page = html(&sample::all(7)).replace("http://www.w3.org/2000/svg", "");
    for other in ["http:", "https:", "//cdn", "src=", "url(", "@import", " style=\""] {
        assert!(!page.contains(other), "{other}");
    }
}

#[test]
fn every_series_is_in_the_data_with_all_its_bins() {
    let run = sample::all(7);
    let data = island(&html(&run));
    for (at, scenario) in run.scenarios.iter().enumerate() {
        let drawn = &data["scenarios"][at];
        assert_eq!(drawn["strategies"].as_array().map(Vec::len), Some(scenario.strategies.len()));
        for (index, strategy) in scenario.strategies.iter().enumerate() {
            let series = drawn["strategies"][index]["series"].as_object().expect("series");
            assert_eq!(series.len(), 9);
            for (name, values) in series {
                assert_eq!(values.as_array().map(Vec::len), Some(strategy.series.offered.len()), "{name}");
            }
        }
    }
}

#[test]
fn seed_versions_command_policy_verdicts_and_bound_are_there() {
    let page = html(&sample::all(7));
    for part in [
        "<code>7</code>",
        "Redis 7.0.15",
        "loadtest storm --seed 7",
        "storm/dependency",
        "≥ 120",
        "✗ fail",
        "✓ pass",
        "unbounded",
        "lent 140 at the end of the epoch",
        "duplicates per 1,000",
        "n/a",
        "every call fails",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn each_variant_has_its_bars_and_its_table() {
    let page = html(&sample::all(7));
    for variant in ["1 client", "10 clients", "100 clients", "1000 clients"] {
        assert!(page.contains(&format!("<caption>{variant}</caption>")), "{variant}");
    }
    // Bars and numbers of four variants; the three other scenarios have one each.
    assert_eq!(page.matches("data-of-variant=").count(), 2 * (4 + 3));
}

#[test]
fn runs_without_anything_are_pages_too() {
    let mut run = sample::all(7);
    run.scenarios[0].strategies.clear();
    assert!(html(&run).contains("No strategy ran."));
    run.scenarios.clear();
    let page = html(&run);
    assert!(page.contains("No scenario ran.") && page.contains("nothing judged"));
}

#[test]
fn the_page_of_a_storm_is_small() {
    let page = html(&sample::storm(7));
    assert!(page.len() < 120_000, "{} bytes", page.len());
}

#[test]
fn strategies_keep_their_colour_and_others_take_free_ones() {
    assert_eq!(slots(&["naive", "exact"]), [1, 3]);
    assert_eq!(slots(&["exact", "single", "leased"]), [3, 0, 4]);
    assert_eq!(slots(&["before", "after"]), [7, 6]);
    assert_eq!(slots(&["exact", "exact again"]), [3, 7]);
    let many: Vec<String> = (0..20).map(|at| format!("strategy {at}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(slots(&many).iter().all(|&slot| slot < SLOTS));
}

#[test]
fn marks_are_lettered() {
    assert_eq!((letter(0), letter(25), letter(26), letter(52)), ("A".into(), "Z".into(), "A2".into(), "A3".into()));
}
