//! What the documentation shows is so: its policies are valid, its commands exist, its output is what is printed.

use std::{fs, path::PathBuf};

use budget_tests::{
    daemon::{self, Daemon},
    repository,
};

/// A fenced block: its language and its text.
struct Block {
    page: String,
    language: String,
    text: String,
}

fn pages() -> Vec<(String, String)> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(repository().join("docs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.push(repository().join("README.md"));
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    let named =
        |path: PathBuf| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(path).unwrap());
    paths.into_iter().map(named).collect()
}

fn blocks(page: &str, text: &str) -> Vec<Block> {
    let parts = text.split("```").skip(1).step_by(2);
    parts
        .map(|part| {
            let (language, text) = part.split_once('\n').unwrap_or((part, ""));
            Block { page: page.to_owned(), language: language.to_owned(), text: text.to_owned() }
        })
        .collect()
}

fn all_blocks() -> Vec<Block> {
    let found: Vec<Block> = pages().iter().flat_map(|(page, text)| blocks(page, text)).collect();
    assert!(found.len() > 20, "{}", found.len());
    found
}

/// Words of a command line, quotation marks taken off.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in line.split('"').enumerate() {
        if at % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// Command lines of budgetd in shell blocks, and after the prompt of shown sessions; without the program's name.
fn commands(block: &Block) -> Vec<Vec<String>> {
    let lines = block.text.lines().filter_map(|line| match block.language.as_str() {
        "sh" => line.strip_prefix("budgetd ").or(line.strip_prefix("cargo run --release -p budgetd -- ")),
        "console" => line.strip_prefix("$ budgetd "),
        _ => None,
    });
    lines.map(words).collect()
}

#[test]
fn every_policy_shown_is_valid() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policies.toml");
    for block in all_blocks().iter().filter(|block| block.language == "toml") {
        fs::write(&file, &block.text).unwrap();
        let checked = daemon::run(&["check", &file.to_string_lossy()]);
        assert!(checked.status.success(), "{}: {}\n{}", block.page, checked.stderr, block.text);
    }
}

#[test]
fn every_command_shown_exists_with_its_flags() {
    let mut count = 0;
    for block in all_blocks() {
        for command in commands(&block) {
            // Help ends it before it does anything, and after all before it was understood.
            let id = "0".repeat(32);
            let here = |word: &str| if word == "RESERVATION" { id.clone() } else { word.to_owned() };
            let command: Vec<String> = command.iter().map(|word| here(word)).collect();
            let mut asked: Vec<&str> = command.iter().map(String::as_str).collect();
            asked.push("--help");
            let finished = daemon::run(&asked);
            assert!(finished.status.success(), "{}: {command:?}: {}", block.page, finished.stderr);
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}

/// Whether `shown` is what was printed, where a line `…` stands for any lines and `…` in a line for the rest of it.
fn matches(shown: &str, printed: &str) -> bool {
    let same = |shown: &str, printed: &str| match shown.split_once('…') {
        Some((start, _)) => printed.starts_with(start),
        None => shown == printed,
    };
    let (mut printed, mut may_skip) = (printed.lines(), false);
    for line in shown.lines() {
        if line == "…" {
            may_skip = true;
        } else if may_skip {
            may_skip = false;
            if !printed.any(|found| same(line, found)) {
                return false;
            }
        } else if !printed.next().is_some_and(|found| same(line, found)) {
            return false;
        }
    }
    may_skip || printed.next().is_none()
}

#[test]
fn the_judge_of_shown_output_sees_what_is_wrong() {
    let printed = "a\nb 7\nc\nd\n";
    for shown in ["a\nb 7\nc\nd", "…\nc\nd", "a\n…", "…\nb …\n…\nd", "a\nb …\nc\nd"] {
        assert!(matches(shown, printed), "{shown}");
    }
    for shown in ["a", "b 7\nc\nd", "…\nd\n…\nc", "a\n…\ne", "a\nb …\nd"] {
        assert!(!matches(shown, printed), "{shown}");
    }
}

/// The quick start, block for block, on a daemon with its policy.
#[test]
fn the_quick_start_goes_as_it_says() {
    let text = fs::read_to_string(repository().join("docs/quick-start.md")).unwrap();
    let blocks = blocks("quick-start.md", &text);
    let directory = tempfile::tempdir().unwrap();
    let policies = directory.path().join("policies.toml");
    let policy = blocks.iter().find(|block| block.language == "toml").unwrap();
    fs::write(&policies, &policy.text).unwrap();
    let policies = policies.to_string_lossy().into_owned();
    let daemon = Daemon::start(&["--policy", &policies]);
    let mut reservation = String::new();
    for block in &blocks {
        for command in commands(block).iter().filter(|command| command[0] != "serve") {
            let here = |word: &String| match word.as_str() {
                "policies.toml" => policies.clone(),
                "RESERVATION" => reservation.clone(),
                other => other.to_owned(),
            };
            let here: Vec<String> = command.iter().map(here).collect();
            let here: Vec<&str> = here.iter().map(String::as_str).collect();
            let finished = if here[0] == "check" { daemon::run(&here) } else { daemon.run(&here) };
            if block.language == "console" {
                let shown = block.text.split_once('\n').unwrap().1;
                assert!(matches(shown, &finished.stdout), "{command:?} shows\n{shown}and prints\n{}", finished.stdout);
                let code = if shown.contains("denied") { 3 } else { 0 };
                assert_eq!(finished.status.code(), Some(code), "{command:?}");
            } else {
                assert!(finished.status.success(), "{command:?}: {}", finished.stderr);
            }
            let id = finished.stdout.lines().find_map(|line| line.strip_prefix("reservation     "));
            reservation = id.map_or(reservation, str::to_owned);
        }
    }
}

/// What the tuning guide says its policies mean.
#[test]
fn the_tuning_guide_shows_what_check_prints() {
    let text = fs::read_to_string(repository().join("docs/tuning.md")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policies.toml").to_string_lossy().into_owned();
    let mut shown_outputs = 0;
    for block in blocks("tuning.md", &text) {
        if block.language == "toml" {
            fs::write(&file, &block.text).unwrap();
        }
        for command in commands(&block) {
            let here: Vec<&str> =
                command.iter().map(|word| if word == "policies.toml" { &file } else { word.as_str() }).collect();
            let printed = daemon::run(&here).stdout;
            let shown = block.text.split_once('\n').unwrap().1;
            assert!(matches(shown, &printed), "{command:?} shows\n{shown}and prints\n{printed}");
            shown_outputs += 1;
        }
    }
    assert_eq!(shown_outputs, 2);
}

/// Metrics that the pages name are those that there are.
#[test]
fn every_metric_named_is_made_somewhere() {
    let mut sources = String::new();
    let mut directories = vec![repository().join("budgetd/src"), repository().join("budget/src/ledger")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { directories.push(path) } else { sources.push_str(&fs::read_to_string(path).unwrap()) }
        }
    }
    let mut count = 0;
    for (page, text) in pages() {
        for (at, _) in text.match_indices("`budgetd_") {
            let name = text[at + 1..].split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
            // Counters are shown with an ending that the exporter adds.
            let base = name.strip_suffix("_total").unwrap_or(name);
            assert!(sources.contains(&format!("\"{base}\"")), "{page} names {name}");
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}
