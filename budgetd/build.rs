//! Tells the release build which commit it is made from, for `budgetd --version`.
//!
//! `BUDGETD_COMMIT` says it where the sources come without their repository, as in a container build. Otherwise the
//! repository is read, file by file: no program is started. Sources without a repository of their own are of an
//! "unknown" commit, even where they lie inside somebody else's. A changed tree tells the commit it was changed from.
//! Debug builds do not tell: each commit would compile the daemon and all its tests anew.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Hexadecimal digits of a commit that are shown.
const DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=BUDGETD_COMMIT");
    let package = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let given = env::var("BUDGETD_COMMIT").ok().filter(|commit| !commit.is_empty());
    let what = if let Some(commit) = given {
        format!("commit {}", shown(&commit))
    } else if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("..");
        format!("commit {}", commit(&root.join(".git")).as_deref().map_or("unknown", shown))
    } else {
        "debug build".to_owned()
    };
    println!("cargo::rustc-env=BUDGETD_VERSION={package} ({what})");
}

/// A given commit may be any text; what reaches the output is one short word.
fn shown(commit: &str) -> &str {
    let end = commit.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(commit.len()).min(DIGITS);
    &commit[..end]
}

/// The commit that is checked out. `git` is the repository's directory, or the file that a worktree has in its place.
fn commit(git: &Path) -> Option<String> {
    let directory = match read(git) {
        Some(pointer) => git.parent()?.join(pointer.strip_prefix("gitdir: ")?),
        None => git.to_owned(),
    };
    let head = read(&directory.join("HEAD"))?;
    watch(&directory.join("HEAD"));
    // Grows with every commit and checkout, also where no other file that is read here changes.
    watch(&directory.join("logs/HEAD"));
    let Some(branch) = head.strip_prefix("ref: ") else { return Some(head) };
    let common = read(&directory.join("commondir")).map_or_else(|| directory.clone(), |path| directory.join(path));
    if let Some(commit) = read(&common.join(branch)) {
        watch(&common.join(branch));
        return Some(commit);
    }
    let packed = common.join("packed-refs");
    watch(&packed);
    read(&packed)?.lines().find_map(|line| line.strip_suffix(branch)?.strip_suffix(' ').map(str::to_owned))
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// A file that is missing would run this again each time.
fn watch(path: &Path) {
    if path.is_file() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}
