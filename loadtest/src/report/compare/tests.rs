use super::*;
use crate::report::sample;

const DEFAULT: Choice = Choice { from: None, to: None, any_seed: false };

/// Before: naive; after: leased.
pub(in crate::report) fn roll_out() -> Comparison {
    let choice = Choice { from: Some("naive".to_owned()), to: Some("leased".to_owned()), any_seed: false };
    Comparison::of(&sample::storm(7), &sample::storm(7), &choice).expect("comparable")
}

fn change<'a>(comparison: &'a Comparison, name: &str) -> &'a Change {
    let changes = &comparison.scenarios[0].pairs[0].changes;
    changes.iter().find(|change| change.name == name).unwrap_or_else(|| panic!("no {name}"))
}

fn refused(before: &Run, after: &Run, choice: &Choice) -> String {
    Comparison::of(before, after, choice).map(|_| ()).expect_err("is refused").to_string()
}

#[test]
fn a_run_does_not_differ_from_itself() {
    let comparison = Comparison::of(&sample::all(7), &sample::all(7), &DEFAULT).expect("comparable");
    assert!(comparison.notes.is_empty(), "{:?}", comparison.notes);
    assert_eq!(comparison.scenarios.len(), 4);
    assert_eq!(comparison.scenarios[1].pairs.len(), 24);
    for pair in comparison.scenarios.iter().flat_map(|scenario| &scenario.pairs) {
        assert!(pair.changes.iter().all(|change| change.judged() == Judgement::None), "{}", pair.says);
    }
}

#[test]
fn a_roll_out_is_judged_by_duplicates_and_cost_too() {
    let (mut before, mut after) = (sample::storm(7), sample::storm(7));
    let totals = |run: &mut Run, at: usize, duplicates, tokens| {
        let totals = &mut run.scenarios[0].strategies[at].totals;
        (totals.offered, totals.useful, totals.duplicates) = (2_000, 1_000, duplicates);
        totals.cost = [("tokens".to_owned(), tokens)].into();
    };
    totals(&mut before, 1, 40, 9_000);
    totals(&mut after, 4, 10, 3_000);
    let choice = Choice { from: Some("naive".to_owned()), to: Some("leased".to_owned()), any_seed: false };
    let comparison = Comparison::of(&before, &after, &choice).expect("comparable");
    assert_eq!(comparison.scenarios[0].pairs[0].says, "naive → leased");
    let duplicates = change(&comparison, "duplicates per 1,000");
    assert_eq!((duplicates.before, duplicates.after), (Some(20.0), Some(5.0)));
    assert_eq!((duplicates.difference(), duplicates.factor()), ("−15.0".to_owned(), "× 0.25".to_owned()));
    assert_eq!(duplicates.judged(), Judgement::Better);
    let cost = change(&comparison, "tokens for a useful result");
    assert_eq!((cost.before, cost.after, cost.judged()), (Some(9.0), Some(3.0), Judgement::Better));
}

#[test]
fn what_is_na_has_no_difference() {
    let (mut before, after) = (sample::storm(7), sample::storm(7));
    before.scenarios[0].strategies[0].totals.admitted = 0;
    let comparison = Comparison::of(&before, &after, &DEFAULT).expect("comparable");
    let amplification = change(&comparison, "amplification");
    assert_eq!(amplification.difference(), "n/a");
    assert_eq!((amplification.factor(), amplification.judged()), (String::new(), Judgement::None));
    assert!(comparison.text(Look::plain(80)).contains("n/a"));
}

#[test]
fn unlike_runs_are_refused_with_what_to_do() {
    let (seven, eight) = (sample::storm(7), sample::storm(8));
    assert!(refused(&seven, &eight, &DEFAULT).contains("seeds 7 and 8"));
    let any = Choice { any_seed: true, ..DEFAULT };
    let comparison = Comparison::of(&seven, &eight, &any).expect("comparable");
    assert!(comparison.notes[0].contains("seeds differ: 7 and 8"));

    let mut short = sample::storm(7);
    short.scenarios[0].duration_ms = 5_000;
    assert!(refused(&seven, &short, &DEFAULT).contains("lasted 20 s before and 5 s after"));

    let mut other = sample::storm(7);
    other.scenarios[0].name = "flake".to_owned();
    assert_eq!(refused(&seven, &other, &DEFAULT), "the runs have no scenario in common: storm before, flake after");
    let choice = Choice { from: Some("nave".to_owned()), to: Some("leased".to_owned()), any_seed: false };
    assert!(refused(&seven, &seven, &choice).contains("storm has no strategy nave; it has single, naive, tower"));
}

#[test]
fn what_differs_is_said() {
    let (before, mut after) = (sample::all(7), sample::all(7));
    after.versions.insert("budgetd".to_owned(), "0.2.0".to_owned());
    after.scenarios[0].policy.push_str("burst = 9\n");
    after.scenarios[0].marks.clear();
    after.scenarios[0].strategies.retain(|run| run.name != "tower");
    after.scenarios.remove(1);
    let notes = Comparison::of(&before, &after, &DEFAULT).expect("comparable").notes;
    assert_eq!(
        notes,
        [
            "budgetd: 0.1.0 before, 0.2.0 after",
            "storm: the policies differ",
            "storm: faults differ, or came at other times",
            "storm: tower is only in the run before",
            "clients is only in the run before",
        ]
    );
}

#[test]
fn lines_fit_and_hostile_names_steer_nothing() {
    let mut run = sample::all(7);
    run.scenarios[0].title = "\x1b[2J".to_owned();
    let mut other = run.clone();
    other.scenarios[0].strategies[1].totals.received += 1_000;
    let text = Comparison::of(&run, &other, &DEFAULT).expect("comparable").text(Look::plain(80));
    assert!(!text.contains('\x1b') && text.contains("quantities are the same"));
    assert!(roll_out().text(Look::plain(80)).lines().skip(2).all(|line| console::measure_text_width(line) <= 80));
}
