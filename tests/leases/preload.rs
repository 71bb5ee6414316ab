//! A small C library that is loaded into a process before its own: it splits the process, or shifts its clock.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use budget_tests::repository;

/// Reading this link splits a process that has [`library`] loaded.
pub(crate) const FORK_LINK: &str = "/budgetd-test/fork";

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
