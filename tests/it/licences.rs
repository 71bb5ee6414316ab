//! Every crate that is linked or that builds us has a licence that `deny.toml` allows.

use std::{collections::BTreeSet, env, fs, process::Command};

use budget_tests::repository;
use serde_json::Value;

/// The part of SPDX expressions that crates use: `OR` binds weaker than `AND`, `/` is an old `OR`, `WITH` belongs to its
/// licence.
fn allowed(expression: &str, allow: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let judged = any(&mut words, allow);
    judged && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(words: &mut Words<'_>, allow: &BTreeSet<String>) -> bool {
    let mut judged = all(words, allow);
    while words.next_if_eq(&"OR").is_some() {
        judged |= all(words, allow);
    }
    judged
}

fn all(words: &mut Words<'_>, allow: &BTreeSet<String>) -> bool {
    let mut judged = one(words, allow);
    while words.next_if_eq(&"AND").is_some() {
        judged &= one(words, allow);
    }
    judged
}

fn one(words: &mut Words<'_>, allow: &BTreeSet<String>) -> bool {
    let Some(word) = words.next() else { return false };
    if word == "(" {
        let judged = any(words, allow);
        return words.next() == Some(")") && judged;
    }
    let mut licence = word.to_owned();
    if words.next_if_eq(&"WITH").is_some() {
        licence = format!("{licence} WITH {}", words.next().unwrap_or_default());
    }
    allow.contains(&licence)
}

/// The quoted words of `allow = [...]` in deny.toml.
fn allow_list() -> BTreeSet<String> {
    let text = fs::read_to_string(repository().join("deny.toml")).unwrap();
    let (_, after) = text.split_once("\nallow = [").expect("deny.toml has a list of allowed licences");
    let (list, _) = after.split_once(']').expect("that list ends");
    let uncommented = list.lines().map(|line| line.split('#').next().unwrap_or_default());
    let quoted = uncommented.flat_map(|line| line.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>());
    quoted.collect()
}

#[test]
fn expressions_are_judged() {
    let allow = BTreeSet::from(["MIT".to_owned(), "Zlib".to_owned(), "A WITH e".to_owned()]);
    for yes in
        ["MIT", "GPL OR MIT", "GPL/MIT", "A WITH e OR GPL", "MIT AND Zlib", "(MIT OR GPL) AND Zlib", "GPL AND X OR MIT"]
    {
        assert!(allowed(yes, &allow), "{yes}");
    }
    for no in ["", "GPL", "MIT AND GPL", "A", "A WITH f", "(MIT OR GPL) AND GPL", "MIT GPL", "(MIT"] {
        assert!(!allowed(no, &allow), "{no}");
    }
}

#[test]
fn every_dependency_has_an_allowed_licence() {
    let allow = allow_list();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(repository()).args(["metadata", "--format-version", "1", "--locked"]);
    // What runs and is built where we serve; crates for other systems need not be downloaded to be judged.
    command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 20, "only {} packages listed", packages.len());
    let mut used = BTreeSet::new();
    for package in packages {
        let licence = package["license"].as_str().unwrap_or_default();
        assert!(allowed(licence, &allow), "{} {} has licence {licence:?}", package["name"], package["version"]);
        used.extend(allow.iter().filter(|name| licence.contains(name.as_str())).cloned());
    }
    assert_eq!(used, allow, "deny.toml must not allow what nothing uses");
}
