//! The `budgetd` of an earlier commit, built once from the history of this repository.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::repository;

/// The last commit that writes the first format and knows of no other.
pub const FORMAT_1: &str = "eefc0a68c6702b5eef00f713cf45beb85487d03c";

/// Its executable. Whoever comes first builds it, below the target directory of this test; that takes some minutes.
///
/// # Panics
/// If the commit is not in the history, or does not build.
#[must_use]
pub fn binary(commit: &str) -> PathBuf {
    let test = env::current_exe().unwrap_or_else(|error| panic!("this test has no path: {error}"));
    // Test executables lie in `deps` below the profile's directory.
    let target = test.ancestors().nth(3).unwrap_or_else(|| panic!("{} lies nowhere", test.display()));
    let home = target.join("released").join(commit);
    let built = home.join("target/debug/budgetd");
    let source = home.join("source");
    fs::create_dir_all(&source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let lock = fs::File::create(home.join("lock")).unwrap_or_else(|error| panic!("{}: {error}", home.display()));
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap_or_else(|error| panic!("{error}"));
    if !built.is_file() {
        unpack(commit, &source);
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--locked", "-p", "budgetd", "--bin", "budgetd", "--target-dir"]);
        cargo.arg(home.join("target")).current_dir(&source);
        let built = cargo.status().unwrap_or_else(|error| panic!("cargo does not run: {error}"));
        assert!(built.success(), "budgetd of commit {commit} does not build: {built}");
    }
    built
}

fn unpack(commit: &str, to: &Path) {
    let mut git = Command::new("git");
    git.current_dir(repository()).args(["archive", "--format=tar", commit]).stdout(Stdio::piped());
    let mut archive = git.spawn().unwrap_or_else(|error| panic!("git does not run: {error}"));
    let tar = archive.stdout.take().map(Stdio::from).unwrap_or_else(Stdio::null);
    let unpacked = Command::new("tar").arg("-x").current_dir(to).stdin(tar).status();
    let archived = archive.wait().unwrap_or_else(|error| panic!("git: {error}"));
    assert!(
        archived.success(),
        "commit {commit} is not in the history of {}: a shallow clone lacks it, git fetch --unshallow brings it",
        repository().display()
    );
    assert!(unpacked.is_ok_and(|status| status.success()), "tar does not unpack {commit}");
}
