//! What is read, and what is refused.

use super::*;

fn storm() -> String {
    find("storm").expect("the library has it").1
}

fn refused(from: &str, to: &str) -> String {
    let text = storm();
    assert!(text.contains(from), "{from}");
    match Scenario::parse("a test", &text.replacen(from, to, 1)) {
        Ok(_) => panic!("{to} was taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn all_scenarios_of_the_library_are_valid_and_are_called_as_their_files() {
    let all = library().expect("valid");
    assert!(all.len() > 20);
    for (scenario, text) in all {
        assert_eq!(find(&scenario.name).expect("found by its name").1, text);
        assert!(!scenario.story.trim().is_empty() && !scenario.title.is_empty(), "{}", scenario.name);
        let judged = scenario.bound.is_some() || !scenario.accept.is_empty();
        assert!(judged, "{} accepts everything", scenario.name);
        assert!(scenario.duration(true) <= scenario.duration(false));
    }
}

#[test]
fn a_key_that_is_not_known_is_named() {
    for (from, to, key) in [
        ("seed = 1", "sead = 1", "sead"),
        ("[dependency]", "[dependency]\nwrokers = 1", "wrokers"),
        ("rate = 110.0", "rate = 110.0\nburst = 3", "burst"),
        ("of = \"best_other\"", "over = \"best_other\"", "over"),
        ("until = \"2500ms\"", "end = \"2500ms\"", "end"),
    ] {
        let error = refused(from, to);
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn values_out_of_range_are_named_with_their_rule() {
    for (from, to, wanted) in [
        ("clients = 100", "clients = 0", "clients is 0, must be 1 to 100000"),
        ("duration = \"7s\"", "duration = \"1h\"", "duration is 1h, must be 500ms to 10m"),
        ("rate = 110.0", "rate = 9000.0", "load offers 9000 per second at its peak, must be 0.1 to 2000"),
        ("workers = 12", "workers = 0", "dependency.workers is 0"),
        ("strategies = [\"naive\"]", "strategies = [\"brave\"]", "brave"),
        ("ratio = 0.1", "ratio = -1", "retry.ratio"),
        ("until = \"2500ms\"", "until = \"500ms\"", "ends before it begins"),
        ("at_most = 1.0\nof = \"budget\"", "of = \"budget\"", "neither at_most nor at_least"),
        ("\"naive\", \"tower\"", "\"tower\"", "is about naive, which the scenario does not run"),
        ("clients = 100", "clients = 100\nfault = [{ at = \"1s\", do = \"kill_redis\" }]", "needs store = \"redis\""),
        ("clients = 100", "clients = 100\nfault = [{ at = \"1s\", do = \"kill_agent\" }]", "needs fleet.agents"),
        ("clients = 100", "clients = 100\nfleet = { agents = 3 }", "fleet.agents is 3, more than there are processes"),
        (
            "clients = 100",
            "clients = 100\nfault = [{ at = \"1s\", do = \"restart_callers\" }]",
            "none of leased, agent and tower",
        ),
        (
            "clients = 100",
            "clients = 100\nfault = [{ at = \"1s\", do = \"clone\" }]",
            "needs strategies = [\"leased\"] and holders = 1",
        ),
    ] {
        let error = refused(from, to);
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn an_unknown_scenario_is_refused_with_the_names_of_all() {
    let error = find("strom").map(drop).expect_err("there is none").to_string();
    assert!(error.contains("strom") && error.contains("storm, amplification"), "{error}");
}

#[test]
fn faults_that_are_repeated_happen_at_their_times() {
    let (scenario, _) = find("term_state_lost").expect("the library has it");
    let times: Vec<u64> = scenario.faults[0].times_ms().collect();
    assert_eq!((times.len(), times[0], times[1]), (40, 1_500, 1_600));
}
