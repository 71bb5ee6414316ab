//! Alert rules and the dashboard: judged by promtool and by each other. The names in them are judged in `telemetry::names`.

use std::{collections::BTreeSet, fs, path::PathBuf, process::Command};

use budget_tests::{daemon::Finished, repository};
use serde_json::{Value, json};

use super::{deploy, finish, succeed, yaml};

fn promtool() -> Command {
    let own = repository().join(".venv/bin/promtool");
    let on_path = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join("promtool").is_file()));
    assert!(
        own.is_file() || on_path,
        "promtool is missing: ./tests/run fetches it on Debian; elsewhere install Prometheus 2.42 or newer"
    );
    Command::new(if own.is_file() { own } else { PathBuf::from("promtool") })
}

fn rules_file() -> PathBuf {
    deploy().join("prometheus/budgetd.rules.yml")
}

pub(crate) fn rules() -> Value {
    yaml(&rules_file()).remove(0)
}

/// All rules of a file that have this key, `alert` or `record`.
pub(crate) fn rules_with<'a>(rules: &'a Value, key: &'a str) -> impl Iterator<Item = &'a Value> {
    let groups = rules["groups"].as_array().into_iter().flatten();
    groups.flat_map(|group| group["rules"].as_array().into_iter().flatten()).filter(move |rule| rule[key].is_string())
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

#[test]
fn promtool_accepts_rules_and_configuration() {
    let mut check = promtool();
    check.args(["check", "rules"]).arg(rules_file());
    succeed(check);
    // Where the compose file mounts the rules.
    let configuration = fs::read_to_string(deploy().join("compose/prometheus.yml")).unwrap();
    let here = deploy().join("prometheus").to_string_lossy().into_owned();
    let configuration = configuration.replace("/etc/prometheus/rules", &here);
    assert!(configuration.contains(&here));
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), configuration).unwrap();
    let mut check = promtool();
    check.args(["check", "config"]).arg(file.path());
    assert!(succeed(check).contains("20 rules found"));
}

/// How the unit tests of the rules go with other rules in a copy.
fn unit_tests(rules: &Value) -> Finished {
    let directory = tempfile::tempdir().unwrap();
    // JSON is YAML.
    fs::write(directory.path().join("budgetd.rules.yml"), rules.to_string()).unwrap();
    let tests = directory.path().join("budgetd.test.yml");
    fs::copy(deploy().join("prometheus/budgetd.test.yml"), &tests).unwrap();
    let mut test = promtool();
    test.args(["test", "rules"]).arg(tests);
    finish(test)
}

/// The rules with this in the place of each alert's expression, at once.
fn all_alerts_are(expression: &str) -> Value {
    let mut rules = rules();
    for group in rules["groups"].as_array_mut().unwrap() {
        for rule in group["rules"].as_array_mut().unwrap().iter_mut().filter(|rule| rule["alert"].is_string()) {
            rule["expr"] = json!(expression);
            rule["for"] = json!("0s");
        }
    }
    rules
}

/// Each alert is tried at a time when it must fire and at one when it must not.
#[test]
fn each_alert_has_unit_tests_that_notice_when_it_is_wrong() {
    let right = unit_tests(&rules());
    assert!(right.status.success(), "{}{}", right.stdout, right.stderr);
    // The label makes it wrong at the time to fire as well.
    let always = r#"label_replace(vector(1), "wrong", "1", "", "")"#;
    let [never, always] = ["vector(0) > 1", always].map(|wrong| {
        let finished = unit_tests(&all_alerts_are(wrong));
        assert!(!finished.status.success(), "{wrong}");
        finished.stdout + &finished.stderr
    });
    for rule in rules_with(&rules(), "alert") {
        let name = text(&rule["alert"]);
        let failures = |said: &str| said.matches(&format!("alertname: {name}, time: ")).count();
        let (missed, false_alarms) = (failures(&never), failures(&always) - failures(&never));
        assert!(missed >= 1 && false_alarms >= 1, "{name}: {missed} times to fire, {false_alarms} not to");
    }
}

#[test]
fn each_alert_has_a_runbook_and_each_runbook_an_alert() {
    let runbooks = fs::read_to_string(repository().join("docs/runbooks.md")).unwrap();
    let headings: BTreeSet<&str> = runbooks.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let rules = rules();
    for rule in rules_with(&rules, "alert") {
        let name = text(&rule["alert"]);
        let expected = format!("docs/runbooks.md#{}", name.to_lowercase());
        assert_eq!(text(&rule["annotations"]["runbook_url"]), expected);
        assert!(text(&rule["annotations"]["summary"]).ends_with('.'), "{name}");
        assert!(["critical", "warning", "info"].contains(&text(&rule["labels"]["severity"])), "{name}");
    }
    let alerts: BTreeSet<&str> = rules_with(&rules, "alert").map(|rule| text(&rule["alert"])).collect();
    assert_eq!(headings, alerts);
}

/// What the compose file gives Grafana: a datasource, and a folder with dashboards that use it.
#[test]
fn grafana_finds_the_dashboard_and_its_datasource() {
    let folder = deploy().join("compose/grafana");
    let source = yaml(&folder.join("datasources/prometheus.yml")).remove(0);
    let uid = text(&source["datasources"][0]["uid"]).to_owned();
    let compose = yaml(&deploy().join("compose/compose.yaml")).remove(0);
    let provider = yaml(&folder.join("dashboards/budgetd.yml")).remove(0);
    let path = text(&provider["providers"][0]["options"]["path"]).to_owned();
    let mounts = compose["services"]["grafana"]["volumes"].as_array().unwrap();
    assert!(mounts.iter().any(|mount| text(mount) == format!("../grafana:{path}:ro")), "{mounts:?}");
    assert!(mounts.iter().any(|mount| text(mount).starts_with("./grafana:/etc/grafana/provisioning")), "{mounts:?}");
    let dashboard = dashboard();
    let panels: Vec<&Value> = dashboard["panels"].as_array().unwrap().iter().collect();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        assert_eq!(text(&panel["datasource"]["uid"]), uid, "{}", panel["title"]);
        assert!(!text(&panel["description"]).is_empty() && !panel["targets"].as_array().unwrap().is_empty());
    }
    let variable = &dashboard["templating"]["list"][0];
    assert_eq!(variable["name"], "dependency");
    assert_eq!(variable["query"]["query"], "label_values(budgetd_decisions_total, dependency)");
    // What the panels ask, promtool understands.
    let asked = expressions(&dashboard);
    let rules: Vec<Value> = (asked.iter().enumerate())
        .map(|(at, asked)| json!({"record": format!("panel:number{at}"), "expr": asked.replace("$dependency", ".*")}))
        .collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), json!({"groups": [{"name": "panels", "rules": rules}]}).to_string()).unwrap();
    let mut check = promtool();
    check.args(["check", "rules"]).arg(file.path());
    succeed(check);
}

pub(crate) fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(deploy().join("grafana/budgetd.json")).unwrap()).unwrap()
}

/// What its panels ask.
pub(crate) fn expressions(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().into_iter().flatten();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets.map(|target| text(&target["expr"]).to_owned()).collect()
}
