//! What `deploy/` holds, without a container engine or a cluster: each file is judged by the tool for its kind, and what it
//! says to budgetd is said to a real one.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use budget_tests::{
    daemon::{self, Finished},
    process::{Process, Stream},
    repository,
};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) mod alerts;
mod image;
mod manifests;
mod stores;
mod units;
mod version;

/// The slowest tool starts in a second.
const BOUND: Duration = Duration::from_secs(60);

fn deploy() -> PathBuf {
    repository().join("deploy")
}

/// A program of `.venv`.
fn tool(name: &str) -> Command {
    let path = repository().join(".venv/bin").join(name);
    assert!(path.is_file(), "{} is missing: run ./tests/run once, it makes it", path.display());
    Command::new(path)
}

fn finish(command: Command) -> Finished {
    let name = format!("{command:?}");
    let mut process = Process::spawn(name, command);
    let status = process.wait(BOUND);
    Finished { status, stdout: process.printed(Stream::Out), stderr: process.printed(Stream::Err) }
}

/// What it printed; it must succeed.
fn succeed(command: Command) -> String {
    let name = format!("{command:?}");
    let Finished { status, stdout, stderr } = finish(command);
    assert!(status.success(), "{name}: {status}\n{stdout}{stderr}");
    stdout
}

/// All documents of a YAML file.
fn yaml(path: &Path) -> Vec<Value> {
    let mut command = tool("python");
    let script = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    command.args(["-c", script]).arg(path);
    let documents: Vec<Value> = serde_json::from_str(&succeed(command)).unwrap();
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

/// A copy of `deploy/` with the secrets of compose and the trial overlay made as its files tell.
fn prepared() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(deploy()).arg(directory.path());
    succeed(copy);
    let copied = directory.path().join("deploy");
    for place in ["compose/secrets", "kubernetes/overlays/trial/secrets"] {
        let made = copied.join(place);
        if !made.exists() {
            let mut secrets = Command::new(copied.join("redis/secrets"));
            secrets.arg(made);
            succeed(secrets);
        }
    }
    directory
}

/// Names of the environment that the built daemon takes.
fn known_settings() -> String {
    let help = daemon::run(&["serve", "--help"]).stdout;
    assert!(help.contains("[env: BUDGETD_STORE]"), "{help}");
    help
}

/// Refuses names that budgetd would ignore in silence.
fn judge_settings<'a>(origin: &str, names: impl IntoIterator<Item = &'a str>) {
    let known = known_settings();
    for name in names.into_iter().filter(|name| name.starts_with("BUDGETD_")) {
        let is_known = [format!("[env: {name}="), format!("[env: {name}]")].iter().any(|text| known.contains(text));
        assert!(is_known, "{origin} sets {name}, which budgetd does not know");
    }
}
