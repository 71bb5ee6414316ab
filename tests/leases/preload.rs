//! A small C library that is loaded into a process before its own: it splits the process, or shifts its clock.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use budget_tests::repository;

/// Reading this link splits a process that has [`library`] loaded.
pub(crate) const FORK_LINK: &str = "/budgetd-test/fork";
/// Names the file with the shift of the clock, microseconds as 8 bytes.
pub(crate) const SHIFT_VARIABLE: &str = "BUDGETD_TEST_SHIFT";

/// Compiles it into a directory. The C compiler is there: Rust links with it.
pub(crate) fn library(directory: &Path) -> PathBuf {
    let library = directory.join("preload.so");
    let source = repository().join("tests/leases/preload.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl");
    let output = compiler.output().unwrap_or_else(|error| panic!("cc does not run: {error}"));
    assert!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
    library
}

/// Shifts the clock of the processes that read this file.
pub(crate) fn shift_clock(file: &Path, seconds: i64) {
    // In place: it is mapped.
    use std::os::unix::fs::FileExt;
    let opened = fs::OpenOptions::new().write(true).create(true).truncate(false).open(file).unwrap();
    opened.write_all_at(&(seconds * 1_000_000).to_ne_bytes(), 0).unwrap();
}
