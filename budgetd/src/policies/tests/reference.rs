//! The reference says what the code does.

use budget::policy::FIELDS;

use super::spec;
use crate::{
    config::LeaseTiming,
    policies::{PolicySet, print::keys, reference::reference},
};

/// A file that sets one field; what else the field needs is set too.
fn file(key: &str, value: &str) -> String {
    match key {
        "unknown_dependencies" => format!("[defaults]\n{key} = {value}\n"),
        "admission.burst" => format!("[dependency.d]\nadmission = {{ rate = \"1000/s\", burst = {value} }}\n"),
        // Judged where it is in use.
        "lease.curve" => format!("[dependency.d]\nlease = {{ enabled = true, curve = {value} }}\n"),
        // Refused alone, since they fall below what the class before may drain, or lift nothing.
        "priority.default" | "priority.critical" => {
            format!("[dependency.d]\n{key} = {value}\npriority.sheddable = 0.95\n")
        }
        "admission.permit_ttl" => format!("[dependency.d]\n{key} = {value}\noperation.retention = \"30d\"\n"),
        "operation.retention" => format!("[dependency.d]\n{key} = {value}\nadmission.permit_ttl = \"60s\"\n"),
        key => format!("[dependency.d]\n{} = {value}\n", key.replace("UNIT", "tokens")),
    }
}

fn parse(text: &str) -> Result<PolicySet, String> {
    PolicySet::parse_timed("test.toml", text, LeaseTiming::default()).map_err(|error| error.to_string())
}

#[test]
fn no_field_is_missing_and_none_unknown() {
    let set = parse("[dependency.d]\nadmission = { rate = '1/s' }\ncost.UNIT.rate = '1/s'\n").unwrap();
    let mut printed = keys(&set.rule("d").unwrap().policy);
    printed.push("unknown_dependencies".to_owned());
    let mut documented: Vec<String> = FIELDS.iter().map(|field| field.key.to_owned()).collect();
    printed.sort();
    documented.sort();
    assert_eq!(documented, printed);
}

#[test]
fn a_default_that_is_written_changes_nothing() {
    for field in FIELDS.iter().filter(|field| !field.default.is_empty() && field.key != "unknown_dependencies") {
        assert_eq!(spec(&format!("[dependency.d]\n{} = {}\n", field.key, field.default)), spec(""), "{}", field.key);
    }
}

#[test]
fn what_is_said_to_be_allowed_is_allowed_and_nothing_else() {
    for field in FIELDS {
        for value in field.accepted {
            parse(&file(field.key, value)).unwrap_or_else(|error| panic!("{} = {value}: {error}", field.key));
        }
        assert!(!field.refused.is_empty(), "{}", field.key);
        for value in field.refused {
            let error = parse(&file(field.key, value)).err().unwrap_or_else(|| panic!("{} = {value}", field.key));
            let key = field.key.replace("UNIT", "tokens");
            let named = error.contains(&key) || error.contains(key.split('.').next().unwrap());
            assert!(named, "{key} = {value}: {error}");
        }
    }
}

#[test]
fn the_page_is_what_the_command_prints() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/policy-reference.md");
    if std::env::var_os("UPDATE_DOCS").is_some_and(|value| value == "1") {
        std::fs::write(path, reference()).unwrap();
    }
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(page == reference(), "run: cargo run -p budgetd -- policy fields > docs/policy-reference.md");
}
