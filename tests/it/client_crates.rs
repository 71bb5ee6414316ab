//! What a program takes in that uses the client.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    process::Command,
};

use budget_tests::repository;
use serde_json::Value;

/// Crates of others beyond what tonic and tokio bring.
const CRATES_MAX: usize = 15;

/// Everything that is linked into a program which depends on these packages: names and versions.
fn linked(dependencies: &BTreeMap<&str, Vec<&str>>, roots: &[&str]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut left: Vec<&str> = roots.to_vec();
    while let Some(id) = left.pop() {
        if seen.insert(id.to_owned()) {
            left.extend(&dependencies[id]);
        }
    }
    seen
}

#[test]
fn the_client_brings_few_crates_beyond_tonic_and_tokio() {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(repository()).args(["metadata", "--format-version", "1", "--locked"]);
    command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ids: BTreeMap<&str, &str> = (metadata["packages"].as_array().unwrap().iter())
        .map(|package| (package["name"].as_str().unwrap(), package["id"].as_str().unwrap()))
        .collect();
    // Without those that only build or test.
    let dependencies: BTreeMap<&str, Vec<&str>> = (metadata["resolve"]["nodes"].as_array().unwrap().iter())
        .map(|node| {
            let linked = |dep: &&Value| dep["dep_kinds"].as_array().unwrap().iter().any(|kind| kind["kind"].is_null());
            let needed = node["deps"].as_array().unwrap().iter().filter(linked);
            (node["id"].as_str().unwrap(), needed.map(|dep| dep["pkg"].as_str().unwrap()).collect())
        })
        .collect();
    let client = linked(&dependencies, &[ids["budget-client"]]);
    let brought = linked(&dependencies, &[ids["tonic"], ids["tokio"]]);
    assert!(client.len() > 20 && client.is_superset(&brought), "{client:?}");
    let own: BTreeSet<&str> =
        metadata["workspace_members"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    let beyond: Vec<&String> = client.difference(&brought).filter(|id| !own.contains(id.as_str())).collect();
    println!("{} of {}: {beyond:#?}", beyond.len(), client.len());
    assert!(beyond.len() <= CRATES_MAX, "{} crates: {beyond:#?}", beyond.len());
}
