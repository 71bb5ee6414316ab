//! Which commit `--version` tells: budgetd's build script, compiled alone and run in repositories of all kinds.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use budget_tests::{daemon, repository};
use tempfile::TempDir;

use super::{finish, succeed};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const OTHER: &str = "fedcba9876543210fedcba9876543210fedcba98";

/// The build script, compiled.
struct Script {
    directory: TempDir,
}

impl Script {
    fn compile() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc.args(["--edition", "2024", "-o"]).arg(directory.path().join("build"));
        rustc.arg(repository().join("budgetd/build.rs"));
        succeed(rustc);
        fs::create_dir_all(directory.path().join("sources/budgetd")).unwrap();
        Self { directory }
    }

    /// Of the sources that are built.
    fn root(&self) -> PathBuf {
        self.directory.path().join("sources")
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// What it tells cargo.
    fn run(&self, profile: &str, given: Option<&str>) -> String {
        let mut command = Command::new(self.directory.path().join("build"));
        command.env_clear().env("CARGO_PKG_VERSION", "1.2.3").env("PROFILE", profile);
        command.env("CARGO_MANIFEST_DIR", self.root().join("budgetd"));
        command.envs(given.map(|commit| ("BUDGETD_COMMIT", commit)));
        let finished = finish(command);
        assert!(finished.status.success(), "{}", finished.stderr);
        finished.stdout
    }

    fn version(&self) -> String {
        version_in(&self.run("release", None))
    }
}

fn version_in(told: &str) -> String {
    let version = told.lines().find_map(|line| line.strip_prefix("cargo::rustc-env=BUDGETD_VERSION="));
    version.unwrap_or_else(|| panic!("{told}")).to_owned()
}

/// All that is looked at again exists: a file that is missing would run the script at each build.
fn judge_watched(told: &str, root: &Path) {
    let watched: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("cargo::rerun-if-changed=")).collect();
    assert!(watched.contains(&"build.rs"), "without it cargo looks at every file: {told}");
    for path in watched.iter().filter(|path| **path != "build.rs") {
        assert!(root.join(path).is_file(), "{path} is watched and missing");
    }
}

#[test]
fn a_release_tells_the_commit_that_is_checked_out() {
    let script = Script::compile();
    assert_eq!(script.version(), "1.2.3 (commit unknown)", "a tarball");
    // One that lies inside somebody else's repository is still of no known commit.
    fs::create_dir_all(script.directory.path().join(".git")).unwrap();
    fs::write(script.directory.path().join(".git/HEAD"), OTHER).unwrap();
    assert_eq!(script.version(), "1.2.3 (commit unknown)");

    script.write(".git/HEAD", &format!("{COMMIT}\n"));
    assert_eq!(script.version(), "1.2.3 (commit 0123456789ab)", "checked out without a branch, as CI does");

    script.write(".git/HEAD", "ref: refs/heads/main\n");
    assert_eq!(script.version(), "1.2.3 (commit unknown)", "before the first commit");
    let packed = format!("# pack-refs with: peeled\n{OTHER} refs/heads/not-main\n{COMMIT} refs/heads/main\n^{OTHER}\n");
    script.write(".git/packed-refs", &packed);
    assert_eq!(script.version(), "1.2.3 (commit 0123456789ab)");
    judge_watched(&script.run("release", None), &script.root());
    script.write(".git/refs/heads/main", &format!("{OTHER}\n"));
    script.write(".git/logs/HEAD", "");
    assert_eq!(script.version(), "1.2.3 (commit fedcba987654)", "what is written last wins");
    let told = script.run("release", None);
    judge_watched(&told, &script.root());
    assert!(told.contains("logs/HEAD") && told.contains("refs/heads/main"), "{told}");
}

#[test]
fn a_worktree_tells_its_own_commit() {
    let script = Script::compile();
    script.write(".git", "gitdir: ../main/.git/worktrees/x\n");
    script.write("../main/.git/worktrees/x/HEAD", "ref: refs/heads/x\n");
    script.write("../main/.git/worktrees/x/commondir", "../..\n");
    script.write("../main/.git/refs/heads/x", COMMIT);
    script.write("../main/.git/refs/heads/main", OTHER);
    assert_eq!(script.version(), "1.2.3 (commit 0123456789ab)");
    judge_watched(&script.run("release", None), &script.root());
}

#[test]
fn a_given_commit_wins_and_cannot_break_out() {
    let script = Script::compile();
    script.write(".git/HEAD", OTHER);
    assert_eq!(version_in(&script.run("release", Some(COMMIT))), "1.2.3 (commit 0123456789ab)");
    assert_eq!(version_in(&script.run("release", Some(""))), "1.2.3 (commit fedcba987654)");
    let told = script.run("release", Some("abc\ncargo::rustc-env=PATH=x"));
    assert_eq!(version_in(&told), "1.2.3 (commit abc)");
    assert!(!told.contains("PATH"), "{told}");
}

/// Or each commit would compile the daemon and all tests anew.
#[test]
fn a_debug_build_looks_at_no_commit() {
    let script = Script::compile();
    script.write(".git/HEAD", OTHER);
    let told = script.run("debug", None);
    assert_eq!(version_in(&told), "1.2.3 (debug build)");
    assert!(!told.contains("HEAD"), "{told}");
    let shown = daemon::run(&["--version"]).stdout;
    let expected = format!("budgetd {} (", env!("CARGO_PKG_VERSION"));
    assert!(shown.starts_with(&expected) && shown.ends_with(")\n"), "{shown}");
}
