//! The scripts are held to the rules that Rust is held to: short files and functions, and a lint.

use std::{
    collections::BTreeMap,
    io::Write,
    process::{Command, Stdio},
};

use budget_tests::repository;
use budgetd::store::redis::scripts;

use super::tidy::{FUNCTION_LINES_MAX, File, files, judge};

const FILE_LINES_MAX: usize = 400;

/// What is part of no other word.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// A line without its strings and its comment. Strings over several lines, and such comments, are not written here.
fn code_of(line: &str) -> String {
    let mut code = String::new();
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '-' if chars.peek() == Some(&'-') => break,
            '\'' | '"' => {
                while let Some(inner) = chars.next().filter(|inner| *inner != c) {
                    if inner == '\\' {
                        chars.next();
                    }
                }
                code.push(' ');
            }
            _ => code.push(c),
        }
    }
    code
}

/// First line and length of each function, nameless ones too.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    // What is open: a function, by its line, or another block.
    let mut open = Vec::new();
    for (at, line) in text.lines().enumerate() {
        assert!(
            !line.contains("[["),
            "line {} begins what may be a long string: the judge of lengths reads none",
            at + 1
        );
        for word in words(&code_of(line)) {
            match word {
                "function" => open.push(Some(at)),
                // That of a loop is its `do`.
                "do" | "if" | "repeat" => open.push(None),
                "end" | "until" => {
                    if let Some(from) = open.pop().unwrap_or_else(|| panic!("line {}: nothing is open", at + 1)) {
                        found.push((from + 1, at - from + 1));
                    }
                }
                _ => {}
            }
        }
    }
    assert!(open.is_empty(), "{} blocks are not closed", open.len());
    found
}

#[test]
fn functions_of_lua_are_found() {
    let text = "local function f(x) -- function\n  for at = 1, 2 do\n    if x then g('end \\' end') elseif y then g() end\n  end\n\
                end\nlocal g = function() return 1 end\nh(function()\n  repeat\n    while x do y() end\n  until z\nend)\n";
    assert_eq!(functions(text), [(1, 5), (6, 1), (7, 5)]);
}

#[test]
fn lua_is_as_short_as_rust() {
    let mut broken = Vec::new();
    for File { path, text } in files(&[".lua"]).into_iter().filter(|file| file.path.starts_with("budgetd/lua/")) {
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            broken.push(format!("{path} has {lines} lines, at most {FILE_LINES_MAX}"));
        }
        let long = functions(&text).into_iter().filter(|(_, length)| *length > FUNCTION_LINES_MAX);
        broken.extend(long.map(|(at, length)| {
            format!("{path}:{at} begins a function of {length} lines, at most {FUNCTION_LINES_MAX}")
        }));
        if !text.starts_with("-- ") {
            broken.push(format!("{path} must begin by saying what it is"));
        }
        let marks = text.lines().enumerate().filter(|(_, line)| {
            let line = line.trim();
            line.starts_with("--if ") || line == "--end"
        });
        broken.extend(
            marks.map(|(at, _)| format!("{path}:{} is left out of some scripts: make functions of it", at + 1)),
        );
    }
    judge("a script must be as readable as Rust", &broken);
}

/// Every script as servers get it.
fn scripts() -> Vec<(String, String)> {
    scripts::all().map(|(name, script)| (name.to_owned(), script.source().to_owned())).into()
}

/// What luacheck says of a script: code, and text.
fn complaints(source: &str) -> Vec<(String, String)> {
    let config = repository().join(".luacheckrc");
    let mut command = Command::new("luacheck");
    command.arg("--config").arg(config).args(["--codes", "--formatter", "plain", "-"]);
    let running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut running = running.unwrap_or_else(|error| panic!("luacheck ({error}): install it, on Debian lua-check"));
    running.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    let ended = running.wait_with_output().unwrap();
    let (said, error) = (String::from_utf8(ended.stdout).unwrap(), String::from_utf8_lossy(&ended.stderr).into_owned());
    // 0: nothing, 1: warnings, 2: errors in the source.
    assert!(matches!(ended.status.code(), Some(0..=2)), "{}: {said}{error}", ended.status);
    // `stdin:12:3: (W211) unused variable 'x'`
    let parse = |line: &str| {
        let (position, rest) = line.strip_prefix("stdin:")?.split_once(": (")?;
        let (code, text) = rest.split_once(") ")?;
        Some((code.to_owned(), format!("{position}: {text}")))
    };
    said.lines().map(|line| parse(line).unwrap_or_else(|| panic!("{line:?} {error}"))).collect()
}

/// What is said between quotes.
fn quoted(text: &str) -> Option<&str> {
    text.split('\'').nth(1)
}

#[test]
fn luacheck_has_nothing_to_say() {
    let scripts = scripts();
    let mut broken = Vec::new();
    // A file serves several scripts: what one of them does not use or set may be used or set by another.
    let mut unused: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, source) in &scripts {
        for (code, text) in complaints(source) {
            let line = format!("{name}.lua:{text} ({code})");
            match (&*code, quoted(&text)) {
                ("W211" | "W221" | "W231", Some(what)) => unused.entry(what.to_owned()).or_default().push(line),
                _ => broken.push(line),
            }
        }
    }
    for (what, lines) in unused {
        let named = scripts.iter().filter(|(_, source)| words(source).any(|word| word == what)).count();
        if lines.len() >= named {
            broken.extend(lines);
        }
    }
    judge("luacheck, on the scripts as servers get them", &broken);
}

#[test]
fn luacheck_sees_what_is_wrong() {
    let said = complaints("local unused = 1\nother = redis.call('GET', KEYS[1])\n");
    assert_eq!(said.iter().map(|(code, _)| &**code).collect::<Vec<_>>(), ["W211", "W111"], "{said:?}");
}
