//! Rules of this repository that no compiler checks. ARCHITECTURE.md says why they matter.

use std::{
    fs,
    path::{Path, PathBuf},
};

use budget_tests::repository;

const FILE_LINES_MAX: usize = 500;
pub(crate) const FUNCTION_LINES_MAX: usize = 90;

/// Crates whose sources may name generated types only in [`GENERATED_ALLOWED`]. Tests and the load test talk gRPC as any
/// user does.
const GENERATED_CHECKED: [&str; 3] = ["budget/src/", "client/src/", "budgetd/src/"];
/// Where they are converted, and where the generated server is mounted.
const GENERATED_ALLOWED: [&str; 3] = ["client/src/transport", "budgetd/src/service", "budgetd/src/server"];

/// A text, and why it must not stand in any Rust file. In two parts, so that this file does not break the rule.
const BANNED: [((&str, &str), &str); 6] = [
    (("todo", "!("), "finish it, or leave it out"),
    (("unimplemented", "!("), "finish it, or leave it out"),
    (("dbg", "!("), "log it, or leave it out"),
    (("#[ig", "nore"), "a test runs or goes"),
    (("thread::", "sleep"), "wait on an event, or move a manual clock"),
    (("mod ", "utils"), "name what it holds"),
];

pub(crate) struct File {
    /// From the root of the repository, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// All files with one of these endings, but for what is built and what is hidden.
pub(crate) fn files(endings: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    collect(&repository(), endings, &mut found);
    assert!(!found.is_empty(), "no {endings:?} found below {}", repository().display());
    found
}

fn collect(directory: &Path, endings: &[&str], found: &mut Vec<File>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" {
                collect(&path, endings, found);
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let path = path.strip_prefix(repository()).unwrap().to_str().unwrap().replace('\\', "/");
            found.push(File { path, text });
        }
    }
}

impl File {
    /// What it is, its name says; and a table of cases may be long.
    fn is_test_module(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/")
    }
}

pub(crate) fn judge(rule: &str, broken: &[String]) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

/// Line number and length of each function. Relies on rustfmt: a body ends with a brace at its function's indentation.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let words: Vec<&str> = code.split(' ').take(6).collect();
        let qualifiers = ["pub", "pub(crate)", "pub(super)", "const", "async", "extern"];
        let is_function = words.iter().find(|word| !qualifiers.contains(word)) == Some(&"fn");
        if !is_function || code.ends_with('}') || code.ends_with(';') {
            continue;
        }
        let indentation = &line[..line.len() - code.len()];
        let rest = &lines[at..];
        let length = rest.iter().position(|line| line.strip_prefix(indentation) == Some("}"));
        if let Some(length) = length {
            found.push((at + 1, length + 1));
        }
    }
    found
}

#[test]
fn functions_are_found() {
    let text = "impl X {\n    pub fn short(&self) {}\n    pub(crate) const fn long(\n        x: u8,\n    ) {\n        {\n        }\n    }\n}\n";
    assert_eq!(functions(text), [(3, 6)]);
}

#[test]
fn files_and_functions_are_short() {
    let mut broken = Vec::new();
    for file in files(&[".rs"]) {
        let is_test_module = file.is_test_module();
        let File { path, text } = file;
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            broken.push(format!("{path} has {lines} lines, at most {FILE_LINES_MAX}"));
        }
        if is_test_module {
            continue;
        }
        let long = functions(&text).into_iter().filter(|(_, length)| *length > FUNCTION_LINES_MAX);
        broken.extend(long.map(|(at, length)| {
            format!("{path}:{at} begins a function of {length} lines, at most {FUNCTION_LINES_MAX}")
        }));
    }
    judge("what is longer than a reader can hold must be split", &broken);
}

#[test]
fn every_module_says_what_it_is() {
    let mut broken = Vec::new();
    for file in files(&[".rs"]) {
        if !file.is_test_module() && !file.text.starts_with("//! ") {
            broken.push(file.path);
        }
    }
    judge("the first line must be module documentation", &broken);
}

/// `pb::…`, or `pb` imported from our own protocol.
fn names_generated(line: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices("pb").any(|(start, _)| {
        let (before, from) = line.split_at(start);
        let whole = !part(before.chars().next_back()) && !part(from.chars().nth(2));
        whole && (from.starts_with("pb::") || line.contains("budget_proto"))
    })
}

#[test]
fn generated_types_stop_at_the_door() {
    let mut broken = Vec::new();
    for File { path, text } in files(&[".rs"]) {
        let checked = GENERATED_CHECKED.iter().any(|start| path.starts_with(start));
        if !checked || GENERATED_ALLOWED.iter().any(|start| path.starts_with(start)) {
            continue;
        }
        let named = text.lines().enumerate().filter(|(_, line)| names_generated(line));
        broken.extend(named.map(|(at, _)| format!("{path}:{}", at + 1)));
    }
    judge(
        "generated types may be named only in proto, budgetd's service and server, and the client's transport",
        &broken,
    );
}

#[test]
fn nothing_unfinished_and_nothing_that_sleeps() {
    let mut broken = Vec::new();
    for File { path, text } in files(&[".rs"]) {
        for ((start, end), why) in BANNED {
            let banned = format!("{start}{end}");
            for (at, _) in text.lines().enumerate().filter(|(_, line)| line.contains(&banned)) {
                broken.push(format!("{path}:{} has {banned}: {why}", at + 1));
            }
        }
    }
    judge("banned", &broken);
}

#[test]
fn the_arithmetic_in_lua_touches_no_key() {
    let lua = files(&[".lua"]);
    let bucket = lua.iter().find(|file| file.path == "budgetd/lua/bucket.lua").expect("budgetd/lua/bucket.lua");
    for call in ["redis.", "KEYS", "ARGV"] {
        assert!(!bucket.text.contains(call), "{} must stay pure: it names {call}", bucket.path);
    }
    for File { path, text } in &lua {
        assert!(text.starts_with("-- "), "{path} must begin by saying what it is");
        assert!(text.matches("'TIME'").count() <= 1, "{path} must read the clock in one place only");
    }
}

/// The crates under `[dependencies]`, and those for tests and benchmarks too if they are asked for.
fn dependencies(manifest: &str, for_tests: bool) -> Vec<String> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
            found.extend(section.split_once("dependencies.").map(|(_, name)| name.to_owned()));
        } else if section.ends_with("dependencies")
            && (for_tests || section == "dependencies")
            && !line.is_empty()
            && !line.starts_with('#')
        {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            found.push(name.to_owned());
        }
    }
    found
}

#[test]
fn dependencies_point_one_way() {
    let manifest = |name: &str| fs::read_to_string(repository().join(name).join("Cargo.toml")).unwrap();
    let ours = |name: &str| dependencies(&manifest(name), true);
    assert_eq!(
        dependencies(&manifest("budget"), false),
        ["thiserror"],
        "budget is pure: no I/O, no clock, no randomness"
    );
    let must_not = [
        ("proto", &["budget-client", "budgetd", "loadtest", "budget-tests", "tokio"][..]),
        ("client", &["budgetd", "loadtest", "budget-tests"]),
        ("budgetd", &["loadtest", "budget-tests"]),
        ("loadtest", &["budget-tests"]),
    ];
    for (name, forbidden) in must_not {
        let found: Vec<String> = ours(name).into_iter().filter(|found| forbidden.contains(&found.as_str())).collect();
        assert!(found.is_empty(), "{name} must not depend on {found:?}");
    }
}

/// As shown on the web: lower case, spaces to hyphens, other signs dropped.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    headings.map(|heading| heading.chars().filter(kept).collect::<String>().to_lowercase().replace(' ', "-")).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for File { path, text } in files(&[".md"]) {
        let directory: PathBuf = repository().join(&path).parent().unwrap().to_owned();
        for (_, after) in text.match_indices("](").map(|(at, _)| text.split_at(at + 2)) {
            let target = after.split(')').next().unwrap_or_default();
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let linked = if file.is_empty() { repository().join(&path) } else { directory.join(file) };
            let leads = match fs::read_to_string(&linked) {
                Ok(linked) => anchor.is_empty() || anchors(&linked).iter().any(|found| found == anchor),
                Err(_) => anchor.is_empty() && linked.is_dir(),
            };
            if !leads {
                broken.push(format!("{path}: {target}"));
            }
        }
    }
    judge("links must lead to a file of this repository and a heading in it", &broken);
}
