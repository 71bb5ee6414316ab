//! What `check` says about leases.

use std::{fs, path::Path};

use serde_json::Value;

use super::outcome;

async fn check(policies: &str, arguments: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policies.toml");
    fs::write(&file, policies).unwrap();
    outcome(format!("b check {} {arguments}", file.display()).trim_end()).await.unwrap().1
}

fn leases(text: &str) -> &str {
    text.find("== ").map_or("", |at| &text[at..])
}

const RICH: &str = r#"
[dependency."llm/*"]
admission = { rate = "500/s", burst = 1000, max_in_flight = 300, max_wait = "2s" }
retry     = { ratio = 0.1, floor = "1/s", burst = 10 }
retry_cost = { timeout = 2 }
lease     = { enabled = true, curve = ["100% 20s", "50% 50s", "25% 50s"] }
fallback  = { originals = "allow" }

[dependency."llm/*".cost.input_tokens]
rate = "2M/min"
burst = 4_000_000

[dependency."open"]
lease = { enabled = true }

[dependency."closed"]
admission = { rate = "500/s" }
"#;

/// What the document shows is what the command prints.
#[tokio::test]
async fn the_document_shows_what_the_command_prints() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/overshoot.md");
    let document = fs::read_to_string(path).unwrap();
    let blocks: Vec<&str> = document.split("```").skip(1).step_by(2).collect();
    let policy = blocks.iter().find_map(|block| block.strip_prefix("toml\n")).expect("a policy");
    let shown =
        blocks.iter().find_map(|block| block.strip_prefix("console\n$ budgetd check FILE ")).expect("an output");
    let (arguments, shown) = shown.split_once('\n').unwrap();
    assert_eq!(leases(&check(policy, arguments).await), shown, "docs/overshoot.md is not up to date");
}

#[tokio::test]
async fn every_rule_that_permits_leases_has_its_bound() {
    let text = check(RICH, "--holders 200 --replicas 3 --window 1m").await;
    let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("== ")).collect();
    assert_eq!(headings, ["== llm/*: each dependency of the family ==", "== open =="], "{text}");
    for line in leases(&text).lines() {
        assert!(line.chars().count() <= 80 && line.trim_end() == line, "{line:?}");
    }
    let expected = [
        "200 holders, 3 replicas; any window of 1m",
        "UNIT input_tokens, at most",
        "IN FLIGHT, at most",
        "UNBOUNDED",
        "1 x 300 within a permit's life",
        "one burst of debt",
        "callers of Reserve, if only the store is down: 3 replicas",
        "no holder has a lease",
        "retry.burst = 10 serves at most 8 holders (7 at equal demand)",
        "admissions are unbounded",
        "0.1 x originals",
    ];
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for expected in expected {
        assert!(one_line.contains(expected), "{expected:?} is not in\n{text}");
    }
    assert_eq!(leases(&check("[dependency.\"a\"]\n", "--holders 9").await), "");
}

#[tokio::test]
async fn the_bound_as_json() {
    let json = check(RICH, "--holders 7 --json").await;
    let json: Value = serde_json::from_str(&json).unwrap();
    let llm = &json["leases"][0];
    assert_eq!((&llm["rule"], &llm["holders"], &llm["beyond"]), (&"llm/*".into(), &7.into(), &7.into()));
    assert_eq!(llm["bound"][0]["of"], "admissions");
    assert_eq!(llm["bound"][0]["most"], 1_000 + 5_005 + 1);
    assert_eq!(llm["bound"][2]["unit"], "input_tokens");
    assert_eq!(llm["more_only_if"][0]["cause"], "beyond_curve");
    assert_eq!(llm["more_only_if"][0]["parts"][0]["most"], "unbounded");
    assert_eq!(llm["outage"][0]["by"], "lease");
    assert_eq!(llm["outage"][3]["until_ms"], Value::Null);
    // Permits are limited: those of lost leases may be in flight a minute longer.
    assert_eq!(llm["quarantine_ms"], 183_000);
    assert_eq!(llm["sharing"][1]["holders_most"], 8);
    assert!(!llm["warnings"].as_array().unwrap().is_empty());
    assert_eq!(json["leases"][1]["bound"][0]["per_original_ppm"], 100_000);
}
