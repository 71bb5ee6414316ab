//! Policies as text: printed back, split into rules, compared.

use std::{collections::BTreeMap, sync::Arc};

use super::{snapshot, spec};
use crate::{
    config::LeaseTiming,
    policies::{PolicySet, UnknownDependencies, check_report, diff, effective_toml, reports},
};

/// One field away from the defaults each, then all together.
const VARIANTS: &[&str] = &[
    "",
    "mode = 'shadow'",
    "admission = { rate = '270/min', burst = 1, max_wait = '2s' }",
    "admission = { rate = '0.0333/s' }",
    "admission = { rate = '2M/min', burst = 4_000_000 }",
    "admission = { rate = '1.5k/d', burst = 1 }",
    "admission.max_in_flight = 1_000_000",
    "admission.permit_ttl = '90s'",
    "admission.permit_ttl = '1ms'",
    "retry = { ratio = 0.000001, floor = '0/s', burst = 0, earn_on = 'success' }",
    "retry = { ratio = 100, floor = '100/h', burst = 100_000_000 }",
    "retry_cost = { transient = 1.5, throttled = 2, timeout = 1000, hedge = 1.000001, failover = 3 }",
    "operation = { max_attempts = 100, retention = '30d' }",
    "priority = { sheddable = 0, default = 0.123456, critical = 0.9 }",
    "lease = { enabled = true, part = 0.000001, curve = ['0.0001% 1ms'] }",
    "lease.curve = ['100% 20s', '50% 100s', '12.5% 3m']",
    "fallback = { originals = 'deny', retries = 'deny' }",
    "fallback.originals = 'allow'",
    "fallback.originals = '5/s'",
    "admission.rate = '9/s'\nfallback.originals = '0.01%'",
    "cost.\"a b\".rate = '1/s'\ncost.\"ü.\\\"'\\\\\".rate = '2/h'\ncost.u = { rate = '3/d', burst = 7 }",
];

#[test]
fn a_policy_printed_back_reads_as_the_same() {
    let together = r#"
        mode = "shadow"
        admission = { rate = "500/s", burst = 1000, max_in_flight = 200, permit_ttl = "30s", max_wait = "2s" }
        retry = { ratio = 0.15, floor = "2/min", burst = 100, earn_on = "success" }
        retry_cost = { timeout = 2.0 }
        operation = { max_attempts = 5, retention = "20m" }
        priority = { sheddable = 0.5, default = 0.9 }
        lease = { enabled = true, part = 0.75, curve = ["100% 10s", "12.5% 90s"] }
        fallback = { originals = "7.5%", retries = "deny" }
        cost.input_tokens = { rate = "2M/min", burst = 4_000_000 }
    "#;
    for rule in VARIANTS.iter().copied().chain([together]) {
        let set = PolicySet::parse_timed("f", &format!("[dependency.d]\n{rule}"), LeaseTiming::ANY);
        let set = set.unwrap_or_else(|error| panic!("{error}"));
        let policy = &set.rule("d").unwrap().policy;
        let printed = effective_toml(policy);
        assert_eq!(spec(&format!("[dependency.d]\n{printed}")), *policy.spec(), "{printed}");
        // It says everything: defaults do not show through.
        let other = "[defaults]\nmode = 'shadow'\nretry.ratio = 7\nadmission = { rate = '1/s', max_in_flight = 1 }\n";
        assert_eq!(spec(&format!("{other}[dependency.d]\n{printed}")), *policy.spec(), "{printed}");
        // As a rule of its own, as the API takes it.
        let rules = BTreeMap::from([("d".to_owned(), printed.clone())]);
        assert_eq!(
            PolicySet::of_rules(&rules, Some(&PolicySet::timed(LeaseTiming::ANY))).unwrap().rule("d").unwrap().policy,
            *policy,
            "{printed}"
        );
    }
}

#[test]
fn the_defaults_in_full() {
    let expected = r#"mode = "enforce"
admission = { rate = "unlimited", max_in_flight = "unlimited", permit_ttl = "1m", max_wait = "0ms" }
retry = { ratio = 0.1, floor = "1/s", burst = 10, earn_on = "admitted" }
retry_cost = { transient = 1, throttled = 1, timeout = 1, hedge = 1, failover = 1 }
operation = { max_attempts = 3, retention = "10m" }
priority = { sheddable = 1, default = 1, critical = 1 }
lease = { enabled = false, part = 0.8, curve = ["100% 20s", "50% 100s"] }
fallback = { originals = "allow", retries = "earned" }
"#;
    assert_eq!(effective_toml(PolicySet::default().defaults()), expected);
}

#[test]
fn the_report_of_check_is_a_policy_file() {
    let text = r#"
        [dependency."b/*"]
        admission.rate = "5/s"
        cost.t.rate = "1/s"
        [defaults]
        unknown_dependencies = "refuse"
        retry.ratio = 0.2
        [dependency."a \"quoted\" \\ name"]
        mode = "shadow"
    "#;
    let snapshot = snapshot(text, &[]);
    let report = check_report(&snapshot);
    let again = PolicySet::parse("report", &report).unwrap_or_else(|error| panic!("{error}\n{report}"));
    assert_eq!(again.defaults(), snapshot.set().defaults());
    assert_eq!(again.unknown_dependencies(), UnknownDependencies::Refuse);
    for (name, rule) in snapshot.set().rules() {
        assert_eq!(again.rule(name).unwrap().policy, rule.policy, "{name}");
    }
    assert_eq!(diff(snapshot.set(), &again), "");
    assert!(report.starts_with("[defaults]\nunknown_dependencies = \"refuse\"\nmode = "), "{report}");
    assert!(report.ends_with("cost.t = { rate = \"1/s\", burst = 1 }\n"), "{report}");
    let names: Vec<_> = reports(&snapshot).into_iter().map(|report| report.rule).collect();
    assert_eq!(names, ["defaults", "a \"quoted\" \\ name", "b/*"]);
}

#[test]
fn a_file_is_split_into_rules_with_their_comments() {
    let text = r#"# the file
# as a whole

# for everyone
[defaults]   # beside the heading
mode = "enforce" # beside a value

# above payments
[dependency."payments".cost.input_tokens]
rate = "2M/min"
# above the rule
# in two lines
[dependency."payments"]
retry = { ratio = 0.1 }

# in between

admission.rate = '5/s'
[dependency.'payments'.cost."a.b"] # unit
rate = "1/s"
[dependency.bare] # stays here
[dependency.inline.retry] # no heading of its own
ratio = 0.5
"#;
    let set = PolicySet::parse("f", text).unwrap();
    let source = |name: &str| set.rule(name).unwrap().source.to_string();
    assert_eq!(source("defaults"), "# for everyone\n# beside the heading\nmode = \"enforce\" # beside a value");
    assert_eq!(
        source("payments"),
        "# above the rule\n# in two lines\n\nretry = { ratio = 0.1 }\n\n# in between\n\nadmission.rate = '5/s'\n\
         # above payments\n[cost.input_tokens]\nrate = \"2M/min\"\n[cost.\"a.b\"] # unit\nrate = \"1/s\""
    );
    assert_eq!(source("bare"), "# stays here");
    assert_eq!(source("inline"), "[retry] # no heading of its own\nratio = 0.5");
    assert_same_rules(&set);
}

#[test]
fn rules_without_a_heading_are_split_field_by_field() {
    let check = |text: &str, expected: &str| {
        let set = PolicySet::parse("f", text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(&*set.rule("a").unwrap().source, expected, "{text}");
        assert_same_rules(&set);
    };
    check("dependency.a.retry.ratio = 0.10", "retry.ratio = 0.10\n");
    check(
        "dependency = { a = { mode = 'shadow', retry = { ratio = 1 } } }",
        "mode = 'shadow'\nretry = { ratio = 1 }\n",
    );
    check("[dependency]\na = { mode = 'shadow' }\n[dependency.b]", "mode = 'shadow'\n");
    check("[dependency]\na.cost.'x y'.rate = '1/s'", "cost.\"x y\".rate = '1/s'\n");
    check("[dependency]\na.lease.curve = [ # c\n'100% 1s',\n]", "lease.curve = [ # c\n'100% 1s',\n]\n");
    check("[dependency.a]\r\nmode = 'shadow'\r\n", "mode = 'shadow'");
    check("\u{feff}[dependency.a]\nmode = 'shadow'", "mode = 'shadow'");
    // A string that looks like a heading, and one that looks like a comment above one.
    check(
        "[dependency.a]\nmode = '''\nshadow'''\n[dependency.b]".replace("\nshadow", "shadow").as_str(),
        "mode = '''shadow'''",
    );
    check(
        "[dependency.a]\nmode = \"\"\"\\\n  shadow\\\n  \"\"\"\n# b\n[dependency.b]",
        "mode = \"\"\"\\\n  shadow\\\n  \"\"\"",
    );
}

/// Reading the rules one by one gives the same policies as the file did.
fn assert_same_rules(set: &PolicySet) {
    let again = PolicySet::of_rules(&set.sources(), None).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(diff(set, &again), "");
    assert_eq!(again.sources(), set.sources());
    for (name, rule) in set.rules() {
        assert_eq!(again.rule(name).unwrap().policy, rule.policy, "{name}");
    }
}

/// Broken in random places, a file gives an error or rules that survive being split: never a panic, never other numbers.
#[test]
fn damaged_files_are_refused_or_split_correctly() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/config/example.toml");
    let example = std::fs::read_to_string(example).unwrap();
    let compact: Vec<&str> = example.lines().filter(|line| !line.starts_with('#') || line.len() < 60).collect();
    let tokens =
        ["\n", "[", "]", "{", "}", "\"", "'", "#", "=", ".", "*", "\"\"\"", "😀", "\r\n", "0", "dependency", "retry"];
    let seed = 0x5eed_u64;
    let mut state = seed;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    };
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..2_000 {
        let mut lines: Vec<String> = compact.iter().map(|line| (*line).to_owned()).collect();
        for _ in 0..=random(2) {
            let (from, to) = (random(lines.len()), random(lines.len()));
            match random(4) {
                0 => drop(lines.remove(from)),
                1 => lines.swap(from, to),
                2 => {
                    let line = lines[from].clone();
                    lines.insert(to, line);
                }
                _ => {
                    let at = (0..=lines[from].len()).filter(|at| lines[from].is_char_boundary(*at));
                    let at: Vec<_> = at.collect();
                    let at = at[random(at.len())];
                    lines[from].insert_str(at, tokens[random(tokens.len())]);
                }
            }
        }
        match PolicySet::parse("f", &lines.join("\n")) {
            Ok(set) => {
                accepted += 1;
                assert_same_rules(&set);
            }
            Err(error) => {
                refused += 1;
                assert!(error.line <= lines.len() + 1 && !error.rule.is_empty(), "{error}");
            }
        }
    }
    assert!(accepted > 200 && refused > 200, "{accepted} accepted, {refused} refused, seed {seed:#x}");
}

#[test]
fn one_rule_can_be_replaced_and_removed() {
    let set = PolicySet::parse("f", "[defaults]\nretry.burst = 5\n[dependency.a]\n[dependency.b]").unwrap();
    let burst = |set: &PolicySet, name: &str| set.rule(name).map(|rule| rule.policy.spec().retry_burst_tokens);
    let other = set.with("a", Some("retry.burst = 6")).unwrap();
    assert_eq!((burst(&other, "a"), burst(&other, "b")), (Some(6), Some(5)));
    let other = other.with("defaults", Some("retry.burst = 7")).unwrap();
    assert_eq!((burst(&other, "a"), burst(&other, "b")), (Some(6), Some(7)));
    assert_eq!(other.defaults().spec().retry_burst_tokens, 7);
    let other = other.with("defaults", None).unwrap();
    assert_eq!((burst(&other, "a"), burst(&other, "b"), burst(&other, "defaults")), (Some(6), Some(10), None));
    let other = other.with("a", None).unwrap().with("b", None).unwrap();
    assert!(other.is_empty());

    let check = |name: &str, text: &str, error: &str| {
        assert_eq!(set.with(name, Some(text)).unwrap_err().to_string(), error);
    };
    check("a", "retry = {}\nmode = 1", "rule \"a\", line 2: mode is 1: must be \"enforce\" or \"shadow\"");
    check("defaults", "\nretry.ratio = -1", "defaults, line 2: retry.ratio is -1: must be between 0 and 100");
    check(
        "a**",
        "",
        "rule \"a**\", line 1: name is a**: the name ends in '*', which is reserved for families in policies",
    );
    let permit = "admission.permit_ttl = '20m'";
    let retention = "must not be shorter than admission.permit_ttl, 20m (not set here)";
    check("a", permit, &format!("rule \"a\", line 1: operation.retention is 10m: {retention}"));
    // New defaults that break a rule which was fine before.
    let set = set.with("a", Some("operation.retention = '2m'")).unwrap();
    let error = set.with("defaults", Some("admission.permit_ttl = '3m'")).unwrap_err().to_string();
    assert!(error.starts_with("rule \"a\", line 1: operation.retention is '2m'"), "{error}");
}

#[test]
fn unchanged_rules_are_taken_over() {
    let set = PolicySet::parse("f", "[dependency.a]\n[dependency.b]\nmode = 'shadow'").unwrap();
    let again = PolicySet::of_rules(&set.sources(), Some(&set)).unwrap();
    assert!(Arc::ptr_eq(&set.rule("b").unwrap().policy, &again.rule("b").unwrap().policy));
    let mut rules = set.sources();
    rules.insert("defaults".to_owned(), "retry.burst = 1".to_owned());
    let other = PolicySet::of_rules(&rules, Some(&set)).unwrap();
    assert_eq!(other.rule("b").unwrap().policy.spec().retry_burst_tokens, 1);
}

#[test]
fn a_difference_names_rules_and_fields() {
    let parse = |text: &str| PolicySet::parse("f", text).unwrap();
    let check = |old: &str, new: &str, expected: &str| assert_eq!(diff(&parse(old), &parse(new)), expected);
    check("[dependency.a]\n# c", "[dependency.a]", "");
    check("", "[defaults]\nmode = 'enforce'", "");
    check(
        "[dependency.a]\nretry.ratio = 0.1\ncost.t.rate = '1/s'",
        "[dependency.a]\nretry.ratio = 0.2\nadmission.rate = '1/s'",
        "~ \"a\"\n  - admission.rate = \"unlimited\"\n  + admission.rate = \"1/s\"\n  + admission.burst = 1\n  - retry.ratio = 0.1\n  \
         + retry.ratio = 0.2\n  - fallback.originals = \"allow\"\n  + fallback.originals = \"10%\"\n  \
         - cost.t.rate = \"1/s\"\n  - cost.t.burst = 1\n",
    );
    check(
        "[dependency.a]\n[dependency.b]\nretry.burst = 3",
        "[defaults]\nunknown_dependencies = 'refuse'\nretry.burst = 4\n[dependency.a]\n[dependency.b]\nretry.burst = 3",
        "~ defaults\n  - retry.burst = 10\n  + retry.burst = 4\n  - unknown_dependencies = \"defaults\"\n  \
         + unknown_dependencies = \"refuse\"\n~ \"a\"\n  - retry.burst = 10\n  + retry.burst = 4\n",
    );
    let text = diff(&parse("[dependency.a]"), &parse("[dependency.b]\nretry.burst = 4"));
    assert!(text.starts_with("- \"a\"\n  - mode = \"enforce\"\n"), "{text}");
    assert!(text.contains("\n+ \"b\"\n  + mode = \"enforce\"\n"), "{text}");
    assert!(text.contains("  + retry = { ratio = 0.1, floor = \"1/s\", burst = 4,"), "{text}");
}
