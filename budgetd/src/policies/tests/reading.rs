//! Every field and every way a text can be wrong.

use std::sync::Arc;

use budget::{
    ids::{DependencyId, PolicyVersion},
    lease::Timing,
    policy::{CurveStep, EarnOn, FallbackOriginals, FallbackRetries, Lease, Limit, Mode, Spec, UnitLimit},
    units::Rate,
};

use super::spec;
use crate::{
    config::LeaseTiming,
    policies::{PolicySet, Snapshot, Switches},
};

fn rate(text: &str) -> Rate {
    Rate::parse(text).unwrap()
}

fn limit(text: &str, burst_tokens: i64) -> Limit {
    Limit { rate: rate(text), burst_tokens }
}

fn defaults() -> Spec {
    Spec { fallback_originals: Some(FallbackOriginals::Allow), ..Spec::default() }
}

#[test]
fn every_field_is_read() {
    let text = r#"
        [defaults]
        mode = "enforce"
        unknown_dependencies = "refuse"

        [dependency."d"]
        mode = "shadow"
        admission = { rate = "500/s", burst = 1_000, max_in_flight = 200, permit_ttl = "30s", max_wait = "2s" }
        retry = { ratio = 0.15, floor = "2/min", burst = 100, earn_on = "success" }
        retry_cost = { transient = 1, throttled = 1.5, timeout = 2.0, hedge = 1000, failover = 1.000001 }
        operation = { max_attempts = 5, retention = "20m" }
        priority = { sheddable = 0.5, default = 0.9, critical = 1.0 }
        lease = { enabled = true, part = 0.75, curve = ["100% 10s", "12.5% 90s"] }
        fallback = { originals = "10%", retries = "deny" }
        cost.input_tokens = { rate = "2M/min", burst = 4_000_000 }

        [dependency.d.cost."a.b"]
        rate = "10/s"
        burst = 20
    "#;
    let mut expected = Spec {
        mode: Mode::Shadow,
        admission: Some(limit("500/s", 1000)),
        max_in_flight: Some(200),
        permit_ttl_ms: 30_000,
        max_wait_ms: 2_000,
        ratio_ppm: 150_000,
        floor: rate("2/min"),
        retry_burst_tokens: 100,
        earn_on: EarnOn::Success,
        retry_cost_micros: [1_000_000, 1_500_000, 2_000_000, 1_000_000_000, 1_000_001],
        max_attempts: 5,
        retention_ms: 1_200_000,
        priority_ppm: [500_000, 900_000, 1_000_000],
        units: vec![
            UnitLimit { name: "a.b".into(), limit: limit("10/s", 20) },
            UnitLimit { name: "input_tokens".into(), limit: limit("2M/min", 4_000_000) },
        ],
        lease: Lease {
            enabled: true,
            part_ppm: 750_000,
            curve: vec![
                CurveStep { part_ppm: 1_000_000, duration_ms: 10_000 },
                CurveStep { part_ppm: 125_000, duration_ms: 90_000 },
            ],
        },
        fallback_originals: Some(FallbackOriginals::Part(100_000)),
        ..Spec::default()
    };
    expected.fallback_retries = FallbackRetries::Deny;
    assert_eq!(spec(text), expected);
}

#[test]
fn nothing_written_is_the_built_in_defaults() {
    for text in ["", "\n# only a comment\n", "[defaults]", "[dependency.d]", "defaults = {}\ndependency = {}"] {
        assert_eq!(spec(text), defaults(), "{text}");
    }
    assert!(PolicySet::parse("f", "# nothing").unwrap().is_empty());
    assert!(!PolicySet::parse("f", "[defaults]").unwrap().is_empty());
}

#[test]
fn decimals_are_taken_as_written() {
    let check = |written: &str, ppm: i64| {
        assert_eq!(spec(&format!("[dependency.d]\nretry.ratio = {written}")).ratio_ppm, ppm, "{written}");
    };
    check("0.6", 600_000);
    check("0.7", 700_000);
    check("0.0333", 33_300);
    check("1.5", 1_500_000);
    check("0.000001", 1);
    check("1", 1_000_000);
    check("0", 0);
    check("0.0", 0);
    check("-0.0", 0);
    check("100", 100_000_000);
    check("+0.1", 100_000);
    check("0.100000000", 100_000);
    check("1.0", 1_000_000);
    check("1e-1", 100_000);
    check("33.3E-3", 33_300);
    check("1e1", 10_000_000);
    check("1_0.000_5", 10_000_500);
    check("0x10", 16_000_000);
}

#[test]
fn rules_inherit_field_by_field_from_the_defaults_alone() {
    let text = |rule: &str| {
        format!(
            r#"
            [defaults]
            mode = "shadow"
            admission = {{ burst = 50, max_wait = "1s", max_in_flight = 9 }}
            retry = {{ ratio = 0.2, floor = "3/s" }}
            retry_cost = {{ timeout = 2 }}
            priority = {{ sheddable = 0.25, default = 0.5 }}
            fallback.originals = "5%"
            cost.tokens = {{ rate = "10/s", burst = 40 }}
            [dependency."d*"]
            operation.max_attempts = 9
            [dependency.d]
            {rule}
            "#
        )
    };
    let inherited = Spec {
        mode: Mode::Shadow,
        max_wait_ms: 1000,
        max_in_flight: Some(9),
        ratio_ppm: 200_000,
        floor: rate("3/s"),
        retry_cost_micros: [1_000_000, 1_000_000, 2_000_000, 1_000_000, 1_000_000],
        priority_ppm: [250_000, 500_000, 1_000_000],
        units: vec![UnitLimit { name: "tokens".into(), limit: limit("10/s", 40) }],
        ..defaults()
    };
    let check = |rule: &str, expected: Spec| assert_eq!(spec(&text(rule)), expected, "{rule}");
    let of = || inherited.clone();
    check("", of());
    let part = Some(FallbackOriginals::Part(50_000));
    check("admission.rate = '7/s'", Spec { admission: Some(limit("7/s", 50)), fallback_originals: part, ..of() });
    let deny = Some(FallbackOriginals::Deny);
    check("fallback.originals = 'deny'", Spec { fallback_originals: deny, ..of() });
    let five = Some(FallbackOriginals::Rate(rate("5/s")));
    check("fallback = { originals = '5/s' }", Spec { fallback_originals: five, ..of() });
    check("retry.floor = '0/s'", Spec { floor: Rate::ZERO, ..of() });
    check("mode = 'enforce'", Spec { mode: Mode::Enforce, ..of() });
    check("admission.max_in_flight = 'unlimited'", Spec { max_in_flight: None, ..of() });
    check("cost.tokens.rate = 'unlimited'", Spec { units: vec![], ..of() });
    let tokens = |text, burst| vec![UnitLimit { name: "tokens".into(), limit: limit(text, burst) }];
    check("cost.tokens.burst = 1", Spec { units: tokens("10/s", 1), ..of() });
    check("cost.tokens.rate = '1/s'", Spec { units: tokens("1/s", 40), ..of() });
    let usd = UnitLimit { name: "usd".into(), limit: limit("1/h", 2) };
    check("[dependency.d.cost.usd]\nrate='1/h'\nburst=2", Spec { units: [of().units, vec![usd]].concat(), ..of() });
}

#[test]
fn a_limit_can_be_lifted_and_has_a_burst() {
    let of = |rule: &str| spec(&format!("[defaults]\nadmission.rate = '500/s'\n[dependency.d]\n{rule}")).admission;
    assert_eq!(of(""), Some(limit("500/s", 500)));
    assert_eq!(of("admission.rate = 'unlimited'"), None);
    assert_eq!(of("admission.burst = 3"), Some(limit("500/s", 3)));
    for (rate, burst) in
        [("270/min", 5), ("100/h", 1), ("0.5/s", 1), ("60/min", 1), ("61/min", 2), ("1G/s", 1_000_000_000)]
    {
        assert_eq!(of(&format!("admission.rate = '{rate}'")), Some(limit(rate, burst)));
    }
}

/// The error of a file whose third line is given, as a text.
fn refused(third_line: &str) -> String {
    let text = format!("# line 1\n[dependency.d]\n{third_line}\n");
    match PolicySet::parse("p.toml", &text) {
        Ok(_) => panic!("accepted: {third_line}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_bad_value_is_named_with_line_key_value_and_rule() {
    let check = |line: &str, key: &str, value: &str, rule: &str| {
        assert_eq!(refused(line), format!("p.toml, line 3: dependency.d.{key} is {value}: {rule}"));
    };
    let ratio = "must be between 0 and 100";
    let decimal = "must be a plain decimal number with at most 6 decimals";
    let cost = "must be between 1 and 1000";
    let burst = "must be between 1 and 1000000000";
    let whole = "must be a whole number";
    let duration = "must look like \"200ms\", \"60s\", \"10m\", \"2h\" or \"1d\", at most 365d";
    let rate = "must look like \"500/s\", \"270/min\", \"100/h\" or \"2M/min\"";
    let curve = "each step must look like \"100% 20s\": part of the share, for how long";
    let originals = "must be \"deny\", \"allow\", a rate such as \"5/s\", or a part such as \"10%\"";

    check("retry.ratio = -1", "retry.ratio", "-1", ratio);
    check("retry.ratio = -0.1", "retry.ratio", "-0.1", ratio);
    check("retry.ratio = 100.000001", "retry.ratio", "100.000001", ratio);
    check("retry.ratio = 9223372036854775807", "retry.ratio", "9223372036854775807", ratio);
    check("retry.ratio = 18446744073709551615", "retry.ratio", "18446744073709551615", ratio);
    check("retry.ratio = -99999999999999999999", "retry.ratio", "-99999999999999999999", ratio);
    check("retry.ratio = 9007199254740993", "retry.ratio", "9007199254740993", ratio);
    check("retry.ratio = 0.0000001", "retry.ratio", "0.0000001", decimal);
    check("retry.ratio = 0.30000000000000004", "retry.ratio", "0.30000000000000004", decimal);
    check("retry.ratio = 1e-7", "retry.ratio", "1e-7", decimal);
    check("retry.ratio = 1e300", "retry.ratio", "1e300", decimal);
    check("retry.ratio = 1e999", "retry.ratio", "1e999", decimal);
    check("retry.ratio = nan", "retry.ratio", "nan", decimal);
    check("retry.ratio = inf", "retry.ratio", "inf", decimal);
    check("retry.ratio = -inf", "retry.ratio", "-inf", decimal);
    check("retry.ratio = '0.1'", "retry.ratio", "'0.1'", "must be a number");
    check("retry.ratio = 1979-05-27", "retry.ratio", "1979-05-27", "must be a number");
    check("retry.ratio = [0.1]", "retry.ratio", "[0.1]", "must be a number");
    check("retry.burst = -1", "retry.burst", "-1", "must be between 0 and 1000000000");
    check("retry.burst = 2147483648", "retry.burst", "2147483648", "must be between 0 and 1000000000");
    check("retry.burst = 10.0", "retry.burst", "10.0", whole);
    check("retry.floor = 1", "retry.floor", "1", rate);
    check("retry.floor = ''", "retry.floor", "''", rate);
    check("retry.floor = '1/week'", "retry.floor", "'1/week'", rate);
    check("retry.floor = '1.5G/s'", "retry.floor", "'1.5G/s'", "must be at most 1G per period");
    check("retry.earn_on = 'never'", "retry.earn_on", "'never'", "must be \"admitted\" or \"success\"");
    check("retry = 0.1", "retry", "0.1", "must be a table");
    check("retry = []", "retry", "[]", "must be a table");
    check("admission.rate = '0/s'", "admission.rate", "'0/s'", "must be above 0");
    check("admission.rate = '-1/s'", "admission.rate", "'-1/s'", rate);
    check("admission = { rate = '1/s', burst = 0 }", "admission.burst", "0", burst);
    check("admission = { rate = '1/s', burst = 1_000_000_001 }", "admission.burst", "1_000_000_001", burst);
    check("admission.burst = 5", "admission.burst", "5", "needs a limit in admission.rate");
    check("admission.max_in_flight = 0", "admission.max_in_flight", "0", "must be between 1 and 1000000");
    check(
        "admission.max_in_flight = -4294967295",
        "admission.max_in_flight",
        "-4294967295",
        "must be between 1 and 1000000",
    );
    check(
        "admission.max_in_flight = 4294967297",
        "admission.max_in_flight",
        "4294967297",
        "must be between 1 and 1000000",
    );
    check("admission.max_in_flight = 'many'", "admission.max_in_flight", "'many'", whole);
    check("admission.permit_ttl = '0s'", "admission.permit_ttl", "'0s'", "must be between 1ms and 1h");
    check("admission.permit_ttl = '61m'", "admission.permit_ttl", "'61m'", "must be between 1ms and 1h");
    check("admission.permit_ttl = 60", "admission.permit_ttl", "60", duration);
    check("admission.permit_ttl = '1.5s'", "admission.permit_ttl", "'1.5s'", duration);
    check("admission.max_wait = '2h'", "admission.max_wait", "'2h'", "must be between 0ms and 1h");
    check("retry_cost.timeout = 0.999999", "retry_cost.timeout", "0.999999", cost);
    check("retry_cost.hedge = 0", "retry_cost.hedge", "0", cost);
    check("retry_cost.hedge = 1000.000001", "retry_cost.hedge", "1000.000001", cost);
    check("operation.max_attempts = 0", "operation.max_attempts", "0", "must be between 1 and 100");
    check("operation.max_attempts = 101", "operation.max_attempts", "101", "must be between 1 and 100");
    check("operation.retention = '999ms'", "operation.retention", "'999ms'", "must be between 1s and 30d");
    check(
        "operation.retention = '30s'",
        "operation.retention",
        "'30s'",
        "must not be shorter than admission.permit_ttl, 1m",
    );
    check("priority.critical = 1.5", "priority.critical", "1.5", "must be between 0 and 1");
    let order = "must not decrease from sheddable over default to critical";
    check("priority = { default = 0.5 }", "priority", "1, 0.5, 1", order);
    check("lease.enabled = 1", "lease.enabled", "1", "must be true or false");
    check("lease.part = 0", "lease.part", "0", "must be between 0.000001 and 1");
    check("lease.curve = '100% 20s'", "lease.curve", "'100% 20s'", "must be an array of strings");
    check("lease.curve = [1]", "lease.curve", "[1]", "must be an array of strings");
    check("lease.curve = []", "lease.curve", "[]", "must have between 1 and 8 steps");
    check("lease.curve = ['100%']", "lease.curve", "['100%']", curve);
    check("lease.curve = ['1 20s']", "lease.curve", "['1 20s']", curve);
    check("lease.curve = ['0.00001% 20s']", "lease.curve", "['0.00001% 20s']", curve);
    check("lease.curve = ['50% 1s', '60% 1s']", "lease.curve", "['50% 1s', '60% 1s']", "must never rise");
    check("fallback.originals = 'some'", "fallback.originals", "'some'", originals);
    check("fallback.originals = 10", "fallback.originals", "10", originals);
    check("fallback.originals = '-1%'", "fallback.originals", "'-1%'", originals);
    let needs = "a percentage needs an admission limit; use \"deny\", \"allow\" or a rate";
    check("fallback.originals = '10%'", "fallback.originals", "'10%'", needs);
    check("fallback.retries = 'allow'", "fallback.retries", "'allow'", "must be \"earned\" or \"deny\"");
    check("mode = 'off'", "mode", "'off'", "must be \"enforce\" or \"shadow\"");
    check("mode = true", "mode", "true", "must be \"enforce\" or \"shadow\"");
    check("unknown_dependencies = 'refuse'", "unknown_dependencies", "'refuse'", "is allowed in [defaults] only");
    check("cost.t.burst = 5", "cost.t", "a unit without rate", "must have a rate");
    check("cost.t = { rate = '5/s', burst = 0 }", "cost.t.burst", "0", burst);
    check("cost.t = { rate = 'unlimited', burst = 3 }", "cost.t.burst", "3", "needs a limit in cost.t.rate");
}

#[test]
fn unknown_keys_are_refused() {
    let check = |line: &str, key: &str, known: &str| {
        let error = refused(line);
        assert!(error.starts_with(&format!("p.toml, line 3: dependency.d.{key} is ")), "{error}");
        assert!(error.ends_with(&format!(": unknown key, must be one of {known}")), "{error}");
    };
    let top = "mode, admission, retry, retry_cost, operation, priority, lease, fallback, cost";
    check("retries.ratio = 0.1", "retries", top);
    check("Mode = 'shadow'", "Mode", top);
    check("admission.max_wait_ms = 5", "admission.max_wait_ms", "rate, burst, max_in_flight, permit_ttl, max_wait");
    check("retry.ration = 0.1", "retry.ration", "ratio, floor, burst, earn_on");
    check("retry_cost.slow = 1", "retry_cost.slow", "transient, throttled, timeout, hedge, failover");
    check("operation.attempts = 1", "operation.attempts", "max_attempts, retention");
    check("priority.low = 1", "priority.low", "sheddable, default, critical");
    check("lease.on = true", "lease.on", "enabled, part, curve");
    check("fallback.x = 1", "fallback.x", "originals, retries");
    check("cost.\"a b\".x = 1", "cost.\"a b\".x", "rate, burst");
    let error = PolicySet::parse("p.toml", "\n[server]\nport = 1").unwrap_err().to_string();
    assert_eq!(
        error,
        "p.toml, line 2: server is [server]: unknown key, must be one of [defaults], [dependency.\"name\"]"
    );
}

#[test]
fn duplicates_and_broken_toml_are_refused_with_the_line() {
    let check = |text: &str, expected: &str| {
        assert_eq!(PolicySet::parse("p.toml", text).unwrap_err().to_string(), format!("p.toml, {expected}"));
    };
    check("[dependency.a]\nmode = 'shadow'\nmode = 'shadow'", "line 3: `mode = 'shadow'`: duplicate key mode");
    check(
        "[defaults]\nretry = { ratio = 1, ratio = 2 }",
        "line 2: `retry = { ratio = 1, ratio = 2 }`: duplicate key ratio",
    );
    check("[dependency.a]\n\n[dependency.'a']", "line 3: `[dependency.'a']`: duplicate key 'a'");
    check("[defaults]\n[defaults]", "line 2: `[defaults]`: duplicate key defaults");
    check("[dependency.a]\nmode = 'shad", "line 2: `mode = 'shad`: invalid literal string, expected `'`");
    check("[dependency.\"a", "line 1: `[dependency.\"a`: unclosed table, expected `]`");
    check("[[dependency]]\nmode = 'shadow'", "line 1: dependency is [[dependency]]: must be a table");
    check("dependency.a = 1", "line 1: dependency.a is 1: must be a table");
    let deep = PolicySet::parse("p.toml", &format!("a = {}", "[".repeat(100_000))).unwrap_err();
    assert!(deep.value.chars().count() <= 81, "{deep}");
}

#[test]
fn a_combination_that_is_inherited_is_blamed_on_the_heading() {
    let text = "[defaults]\noperation.retention = '2m'\n\n[dependency.a]\n[dependency.d]\nadmission.permit_ttl = '3m'";
    assert_eq!(
        PolicySet::parse("p.toml", text).unwrap_err().to_string(),
        "p.toml, line 5: dependency.d.operation.retention is 2m: must not be shorter than admission.permit_ttl, 3m \
         (not set here)"
    );
    let text = "[defaults]\nadmission.permit_ttl = '3m'\noperation.retention = '2m'";
    let error = PolicySet::parse("p.toml", text).unwrap_err().to_string();
    assert!(error.starts_with("p.toml, line 3: defaults.operation.retention is '2m': must not"), "{error}");
}

#[test]
fn the_first_error_in_the_text_is_reported() {
    let text = "[dependency.z]\nretry.burst = -1\n[dependency.a]\nretry.ratio = -1";
    assert_eq!(PolicySet::parse("p.toml", text).unwrap_err().line, 2);
}

#[test]
fn names_are_judged_as_dependencies_and_families() {
    let long = "x".repeat(256);
    for good in ["a", "fam/*", "*", "a{b}c:d%e f", "😀", "*x", "a.b", "other", &long, &format!("{long}*")] {
        let set = PolicySet::parse("p.toml", &format!("[dependency.\"{good}\"]")).unwrap();
        assert!(set.rule(good).is_some(), "{good}");
    }
    let check = |name: &str, rule: &str| {
        let error = PolicySet::parse("p.toml", &format!("\n[dependency.\"{name}\"]")).unwrap_err();
        assert_eq!((error.line, error.rule.as_str()), (2, rule), "{name}");
    };
    check("", "the name is empty");
    check("a**", "the name ends in '*', which is reserved for families in policies");
    check("a\\nb", "the name contains the control character U+000A");
    check("a\\u0000*", "the name contains the control character U+0000");
    check(&"x".repeat(257), "the name has 257 bytes, must have at most 256");
    check("defaults", "the name defaults is reserved for [defaults]");
}

#[test]
fn units_are_judged() {
    let nine: String = (0..9).map(|n| format!("cost.u{n}.rate = '1/s'\n")).collect();
    let error = refused(&nine);
    assert!(error.ends_with("dependency.d.cost is 9 units: must be at most 8"), "{error}");
    let error = refused("cost.\"a\\nb\".rate = '1/s'");
    assert!(error.ends_with("contains the control character U+000A"), "{error}");
    assert!(refused("cost.\"\".rate = '1/s'").ends_with("is empty"));
    assert!(refused(&format!("cost.{}.rate = '1/s'", "u".repeat(65))).ends_with("has 65 bytes, must have at most 64"));
}

#[test]
fn there_are_at_most_ten_thousand_rules() {
    let mut text = String::from("[defaults]\n");
    for n in 0..10_000 {
        text.push_str(&format!("[dependency.d{n}]\n"));
    }
    assert_eq!(PolicySet::parse("p.toml", &text).unwrap().rules().count(), 10_001);
    text.push_str("[dependency.more]\n");
    let error = PolicySet::parse("p.toml", &text).unwrap_err();
    assert_eq!((error.line, error.rule.as_str()), (10_002, "one rule too many, there must be at most 10000"));
}

/// Leases have to fit the time limits of the protocol; where the limits are others, other curves fit.
#[test]
fn a_curve_that_does_not_fit_the_time_limits_is_refused() {
    let timing = |margin_ms, renew_max_ms, unsafe_short| {
        let usual = Timing::default();
        LeaseTiming { limits: Timing { margin_ms, renew_max_ms, ..usual }, unsafe_short }
    };
    let parse = |timing, text: &str| PolicySet::parse_timed("f", text, timing).map_err(|error| error.to_string());
    let long = "[dependency.d]\nlease.enabled = true\nlease.curve = [\"100% 20s\", \"50% 15m\"]\n";
    assert_eq!(
        parse(LeaseTiming::default(), long).unwrap_err(),
        "f, line 3: dependency.d.lease.curve is [\"100% 20s\", \"50% 15m\"]: is too long for timing.margin, which is 3s and \
         must be 2250ms and a thousandth of the curve, here 3170ms"
    );
    assert!(parse(timing(3_170, 6_000, false), long).is_ok());
    assert!(parse(timing(3_169, 6_000, false), long).is_err());
    assert!(parse(timing(2_250, 6_000, true), long).is_ok());

    let quick = "[dependency.d]\nlease = { enabled = true, curve = [\"100% 3s\", \"50% 20s\"] }\n";
    let error = parse(LeaseTiming::default(), quick).unwrap_err();
    assert!(error.contains("line 2: dependency.d.lease.curve is") && error.contains("for more than 9s"), "{error}");
    assert!(parse(timing(3_000, 6_000, true), quick).is_err());

    // Inherited, or permitted by the defaults themselves.
    let inherited = "[defaults]\nlease.curve = [\"100% 3s\"]\n[dependency.d]\nlease.enabled = true\n";
    assert!(parse(LeaseTiming::default(), inherited).unwrap_err().contains("line 3: dependency.d.lease.curve is 3s"));
    let defaults = "[defaults]\nlease = { enabled = true, curve = [\"100% 3s\"] }\n";
    assert!(parse(LeaseTiming::default(), defaults).unwrap_err().contains("defaults.lease.curve"));
    let unused = "[defaults]\nlease.curve = [\"100% 3s\"]\n[dependency.d]\nlease.enabled = false\n";
    assert!(parse(LeaseTiming::default(), unused).is_ok());

    // What is read later is judged with the same limits.
    let set = parse(timing(3_170, 6_000, false), long).unwrap();
    assert!(set.with("e", Some("lease.enabled = true\nlease.curve = [\"100% 920s\"]")).is_ok());
    assert!(set.with("e", Some("lease.enabled = true\nlease.curve = [\"100% 921s\"]")).is_err());
    assert_eq!(PolicySet::of_rules(&set.sources(), Some(&set)).unwrap().timing(), set.timing());
    let snapshot = Snapshot::new(PolicyVersion::default(), Arc::new(set), Switches::default());
    let resolved = snapshot.resolve(&DependencyId::new("d").unwrap()).unwrap();
    let lease = resolved.numbers.lease.as_ref().unwrap();
    assert_eq!((lease.margin_ms, lease.curve.total_ms()), (3_170, 920_000));
}
