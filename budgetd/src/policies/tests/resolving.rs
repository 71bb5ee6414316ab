//! From a name to its rule, its numbers and its switches.

use std::sync::Arc;

use budget::ids::PolicyVersion;

use super::{resolve, snapshot};
use crate::policies::{DEFAULTS, PolicySet, Snapshot, Switch, Switches};

const RULES: &str = r#"
    [defaults]
    operation.max_attempts = 2
    [dependency."payments"]
    operation.max_attempts = 11
    [dependency."pay*"]
    operation.max_attempts = 12
    [dependency."openai/*"]
    operation.max_attempts = 13
    [dependency."openai/gpt-4*"]
    operation.max_attempts = 14
    [dependency."openai/gpt-4/mini"]
    operation.max_attempts = 15
    [dependency."ö*"]
    operation.max_attempts = 16
"#;

#[test]
fn the_exact_name_wins_then_the_longest_prefix_then_the_defaults() {
    let snapshot = snapshot(RULES, &[]);
    let check = |name: &str, rule: &str, attempts: i64, named: bool, label: &str| {
        let resolved = resolve(&snapshot, name).unwrap();
        assert_eq!(&*resolved.rule, rule, "{name}");
        assert_eq!(resolved.numbers.max_attempts, attempts, "{name}");
        assert_eq!(i64::from(resolved.policy.spec().max_attempts), attempts, "{name}");
        assert_eq!((resolved.named, resolved.retries_off), (named, false), "{name}");
        assert_eq!(&*resolved.label, label, "{name}");
        assert_eq!(snapshot.labels()[resolved.label_index], resolved.label, "{name}");
        assert_eq!(resolved.version, snapshot.version(), "{name}");
        // Only what a policy names keeps its state for ever.
        assert_eq!(resolved.numbers.idle_ttl_ms == 0, named, "{name}");
    };
    check("payments", "payments", 11, true, "payments");
    check("payments2", "pay*", 12, false, "pay*");
    check("pay", "pay*", 12, false, "pay*");
    check("pa", DEFAULTS, 2, false, "other");
    check("openai/", "openai/*", 13, false, "openai/*");
    check("openai/x", "openai/*", 13, false, "openai/*");
    check("openai/gpt-4", "openai/gpt-4*", 14, false, "openai/gpt-4*");
    check("openai/gpt-4/mini", "openai/gpt-4/mini", 15, true, "openai/gpt-4/mini");
    check("openai/gpt-4/mini2", "openai/gpt-4*", 14, false, "openai/gpt-4*");
    check("Payments", DEFAULTS, 2, false, "other");
    check("ö/a", "ö*", 16, false, "ö*");
    check("ñ", DEFAULTS, 2, false, "other");
    check("😀", DEFAULTS, 2, false, "other");
}

#[test]
fn everything_is_a_family_too() {
    let snapshot = snapshot("[defaults]\nunknown_dependencies = 'refuse'\n[dependency.'*']\n[dependency.a]", &[]);
    assert_eq!(&*resolve(&snapshot, "x").unwrap().rule, "*");
    assert_eq!(&*resolve(&snapshot, "a").unwrap().rule, "a");
    assert!(!resolve(&snapshot, "x").unwrap().named);
}

#[test]
fn unknown_dependencies_may_be_refused() {
    let snapshot = snapshot("[defaults]\nunknown_dependencies = 'refuse'\n[dependency.a]\n[dependency.'f/*']", &[]);
    assert!(resolve(&snapshot, "a").is_ok());
    assert!(resolve(&snapshot, "f/a").is_ok());
    let text = resolve(&snapshot, "b\"c").unwrap_err();
    assert_eq!(text, "no rule names dependency \"b\\\"c\" and defaults.unknown_dependencies is \"refuse\"");
}

#[test]
fn switches_turn_retries_off_for_names_families_and_all() {
    let names = ["payments", "payments2", "openai/gpt-4", "openai/gpt-4/mini", "x", "x2"];
    let check = |off: &[&str], expected: &[&str]| {
        let snapshot = snapshot(RULES, off);
        let found: Vec<_> = names
            .into_iter()
            .filter(|name| {
                let resolved = resolve(&snapshot, name).unwrap();
                assert_eq!(resolved.retries_off, resolved.numbers.retries_off, "{name}");
                resolved.retries_off
            })
            .collect();
        assert_eq!(found, expected, "{off:?}");
    };
    check(&[], &[]);
    check(&["payments"], &["payments"]);
    check(&["payments2"], &["payments2"]);
    check(&["pay*"], &["payments", "payments2"]);
    check(&["openai/*"], &["openai/gpt-4", "openai/gpt-4/mini"]);
    check(&["openai/gpt-4/*"], &["openai/gpt-4/mini"]);
    check(&["x"], &["x"]);
    check(&["x*"], &["x", "x2"]);
    check(&["nobody", "y*"], &[]);
    check(&["*"], &names);
    check(&["*", "payments"], &names);
}

#[test]
fn each_target_is_a_switch_of_its_own() {
    let mut switches = Switches::default();
    assert!(switches.set("a/b", Some(Switch::default())));
    assert!(!switches.set("a/b", Some(Switch::default())));
    assert!(switches.set("a/*", Some(Switch::default())));
    assert!(switches.set("*", Some(Switch::default())));
    assert_eq!(switches.iter().map(|(target, _)| target).collect::<Vec<_>>(), ["*", "a/*", "a/b"]);
    assert_eq!(switches.wider("a/b"), Some("*"));
    assert!(switches.set("*", None));
    assert_eq!((switches.wider("a/b"), switches.wider("a/*"), switches.wider("b")), (Some("a/*"), None, None));
    assert!(switches.set("a/*", None));
    assert_eq!(switches.wider("a/b"), None);
    assert!(!switches.set("a/*", None));
    assert_eq!(switches.len(), 1);
}

#[test]
fn labels_are_dense_and_a_dependency_called_other_shares_one() {
    let snapshot = snapshot("[dependency.other]\n[dependency.a]\n[dependency.'b*']\n[dependency.c]", &[]);
    let labels: Vec<_> = snapshot.labels().iter().map(|label| &**label).collect();
    assert_eq!(labels, ["other", "a", "b*", "c"]);
    for (name, index) in [("other", 0), ("unknown", 0), ("a", 1), ("bb", 2), ("c", 3)] {
        assert_eq!(resolve(&snapshot, name).unwrap().label_index, index, "{name}");
    }
}

#[test]
fn the_text_of_a_rule_can_be_read() {
    let snapshot = snapshot(RULES, &["x"]);
    assert_eq!(snapshot.source("payments").map(|text| &**text), Some("operation.max_attempts = 11"));
    assert_eq!(snapshot.source(DEFAULTS).map(|text| &**text), Some("operation.max_attempts = 2"));
    assert!(snapshot.source("payments2").is_none());
    assert_eq!(snapshot.switches().iter().map(|(target, _)| target).collect::<Vec<_>>(), ["x"]);
}

#[test]
fn resolving_shares_what_is_compiled() {
    let snapshot = snapshot(RULES, &[]);
    for name in ["payments", "pay", "unknown"] {
        let (first, second) = (resolve(&snapshot, name).unwrap(), resolve(&snapshot, name).unwrap());
        assert!(Arc::ptr_eq(&first, &second), "{name}");
    }
}

#[test]
fn the_longest_of_many_prefixes_is_found() {
    let text: String = (1..=256).map(|length| format!("[dependency.'{}*']\n", "x".repeat(length))).collect();
    let set = Arc::new(PolicySet::parse("f", &text).unwrap());
    let snapshot = Snapshot::new(PolicyVersion::default(), set, Switches::default());
    for length in [1, 2, 100, 255, 256] {
        assert_eq!(resolve(&snapshot, &"x".repeat(length)).unwrap().rule.len(), length + 1);
    }
    assert_eq!(&*resolve(&snapshot, &format!("xx{}", "y".repeat(254))).unwrap().rule, "xx*");
}
