//! State of Redis as a released budgetd left it, kept as text, and what that budgetd answered afterwards.
//!
//! ```text
//! # what it is
//! made                                       acts by which the state was made, in the language of `vectors`, and answers
//! 0 reserve a | admitted start=0 ttl=60000
//! state                                      type, key, ms to live (-1: for ever), then what it holds
//! string f:{d}:s -1 0x0001
//! holders                                    a time, and a holder of a lease as operators saw it then
//! 10 a weight=1 …
//! then                                       acts on that state, and what the budgetd that made it answered
//! 10 release a success | applied
//! calls                                      of each act that called a script: its name, number of keys, keys and
//! apply 1 f:{d}:s 0 = *1 :0                  arguments, and the reply
//! ```
//! Bytes that are no plain text are written `0x…`.

use std::{fmt::Write as _, path::Path};

use deadpool_redis::redis::{self, Value};

use crate::redis_server::RedisServer;

/// Nothing expires while a test looks at it.
const LIFE_MS_MIN: i64 = 600_000;

/// One frozen namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frozen {
    /// What it is: lines of text.
    pub about: Vec<String>,
    /// Acts and answers before.
    pub made: Vec<(String, String)>,
    /// What is stored.
    pub state: Vec<Vec<String>>,
    /// Holders of leases, as they were seen then.
    pub holders: Vec<String>,
    /// Acts and answers after.
    pub then: Vec<(String, String)>,
    /// Of `made` and `then`.
    pub calls: Vec<Call>,
}

/// A script call as it was sent, and its reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Of the script, in the folder of the fixture.
    pub script: String,
    /// How many of the arguments are keys.
    pub keys: usize,
    /// Keys and arguments.
    pub arguments: Vec<Vec<u8>>,
    /// What the script answered.
    pub reply: Value,
}

impl Eq for Call {}

// === impl Frozen ===

impl Frozen {
    /// Reads the text of one.
    ///
    /// # Panics
    /// If it is malformed.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut frozen = Self::default();
        let mut part = "";
        for line in text.lines() {
            if let Some(about) = line.strip_prefix("# ") {
                frozen.about.push(about.to_owned());
                continue;
            }
            if ["made", "state", "holders", "then", "calls"].contains(&line) {
                part = line;
                continue;
            }
            let act = || {
                let (act, answer) = line.split_once(" | ").unwrap_or((line, ""));
                (act.to_owned(), answer.to_owned())
            };
            match part {
                "made" => frozen.made.push(act()),
                "state" => frozen.state.push(line.split(' ').map(str::to_owned).collect()),
                "holders" => frozen.holders.push(line.to_owned()),
                "then" => frozen.then.push(act()),
                "calls" => frozen.calls.push(Call::parse(line)),
                _ => panic!("{line} stands in no part"),
            }
        }
        frozen
    }

    /// Reads the file of one.
    ///
    /// # Panics
    /// If it cannot be read.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self::parse(&text)
    }

    /// As [`Self::parse`] reads it.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.about.iter().fold(String::new(), |text, line| text + "# " + line + "\n");
        let acts = |text: &mut String, part: &str, acts: &[(String, String)]| {
            text.push_str(part);
            text.push('\n');
            for (act, answer) in acts {
                text.push_str(act);
                if !answer.is_empty() {
                    text.push_str(" | ");
                    text.push_str(answer);
                }
                text.push('\n');
            }
        };
        acts(&mut text, "made", &self.made);
        text.push_str("state\n");
        for words in &self.state {
            let _ = writeln!(text, "{}", words.join(" "));
        }
        text.push_str("holders\n");
        for holder in &self.holders {
            let _ = writeln!(text, "{holder}");
        }
        acts(&mut text, "then", &self.then);
        text.push_str("calls\n");
        for call in &self.calls {
            let _ = writeln!(text, "{}", call.text());
        }
        text
    }

    /// Puts the state into a server.
    ///
    /// # Panics
    /// If it refuses.
    pub fn load(&self, server: &RedisServer) {
        for words in &self.state {
            let [kind, key, life_ms, rest @ ..] = &words[..] else { panic!("{words:?}") };
            let mut command: Vec<Vec<u8>> = Vec::new();
            let name = match kind.as_str() {
                "string" => "SET",
                "hash" => "HSET",
                "zset" => "ZADD",
                "set" => "SADD",
                other => panic!("a {other}"),
            };
            command.push(name.into());
            command.push(bytes(key));
            command.extend(rest.iter().map(|word| bytes(word)));
            server.cli(&command);
            let life_ms: i64 = life_ms.parse().unwrap_or_else(|_| panic!("{words:?}"));
            if life_ms >= 0 {
                let life_ms = life_ms.max(LIFE_MS_MIN).to_string().into_bytes();
                server.cli(&[b"PEXPIRE".to_vec(), bytes(key), life_ms]);
            }
        }
    }

    /// Takes the state of all keys that begin with a prefix out of a server.
    ///
    /// # Panics
    /// If it refuses.
    #[must_use]
    pub fn state_of(server: &RedisServer, prefix: &str) -> Vec<Vec<String>> {
        let list = |command: &[&[u8]]| -> Vec<Vec<u8>> {
            redis::from_redis_value(server.cli(command)).unwrap_or_else(|error| panic!("{error}"))
        };
        let mut keys = list(&[b"KEYS", format!("{prefix}:*").as_bytes()]);
        keys.sort_unstable();
        let mut state = Vec::new();
        for key in keys {
            let kind: String = redis::from_redis_value(server.cli(&[b"TYPE", &key[..]])).unwrap_or_default();
            let life_ms: i64 = redis::from_redis_value(server.cli(&[b"PTTL", &key[..]])).unwrap_or_default();
            let head = [kind.clone(), word(&key), life_ms.to_string()];
            let mut add = |items: &[Vec<u8>]| {
                state.push(head.iter().cloned().chain(items.iter().map(|item| word(item))).collect());
            };
            match kind.as_str() {
                "string" => {
                    let value: Vec<u8> = redis::from_redis_value(server.cli(&[b"GET", &key[..]])).unwrap_or_default();
                    add(&[value]);
                }
                "hash" => {
                    let mut pairs: Vec<_> = list(&[b"HGETALL", &key]).chunks(2).map(<[_]>::to_vec).collect();
                    pairs.sort_unstable();
                    pairs.iter().for_each(|pair| add(pair));
                }
                "zset" => {
                    for pair in list(&[b"ZRANGE", &key, b"0", b"-1", b"WITHSCORES"]).chunks(2) {
                        add(&[pair[1].clone(), pair[0].clone()]);
                    }
                }
                "set" => {
                    let mut members = list(&[b"SMEMBERS", &key]);
                    members.sort_unstable();
                    members.iter().for_each(|member| add(std::slice::from_ref(member)));
                }
                other => panic!("a {other}"),
            }
        }
        state
    }
}

// === impl Call ===

impl Call {
    fn parse(line: &str) -> Self {
        let (call, reply) = line.split_once(" = ").unwrap_or_else(|| panic!("{line} has no reply"));
        let mut words = call.split(' ');
        let script = words.next().unwrap_or_default().to_owned();
        let keys = words.next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{line}"));
        let arguments = words.map(bytes).collect();
        let mut words = reply.split(' ').peekable();
        let reply = value(&mut words);
        assert!(words.next().is_none(), "{line} goes on");
        Self { script, keys, arguments, reply }
    }

    fn text(&self) -> String {
        let mut text = format!("{} {}", self.script, self.keys);
        for argument in &self.arguments {
            let _ = write!(text, " {}", word(argument));
        }
        text.push_str(" =");
        write_value(&self.reply, &mut text);
        text
    }
}

fn value<'a>(words: &mut impl Iterator<Item = &'a str>) -> Value {
    let word = words.next().unwrap_or_else(|| panic!("a reply ends"));
    if let Some(number) = word.strip_prefix(':') {
        return Value::Int(number.parse().unwrap_or_else(|_| panic!("{word}")));
    }
    if let Some(count) = word.strip_prefix('*') {
        let count = count.parse().unwrap_or_else(|_| panic!("{word}"));
        return Value::Array((0..count).map(|_| value(words)).collect());
    }
    match word.strip_prefix('$') {
        Some(text) => Value::BulkString(bytes(text)),
        None if word == "_" => Value::Nil,
        None => panic!("{word} is no reply"),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "scripts answer with these alone")]
fn write_value(value: &Value, text: &mut String) {
    match value {
        Value::Int(number) => drop(write!(text, " :{number}")),
        Value::BulkString(bytes) => drop(write!(text, " ${}", word(bytes))),
        Value::Nil => text.push_str(" _"),
        Value::Array(items) => {
            let _ = write!(text, " *{}", items.len());
            items.iter().for_each(|item| write_value(item, text));
        }
        other => panic!("{other:?} in a reply of a script"),
    }
}

/// Bytes as one word of text.
fn word(bytes: &[u8]) -> String {
    let plain = bytes.iter().all(|byte| byte.is_ascii_graphic() && !b"|=".contains(byte));
    match std::str::from_utf8(bytes) {
        Ok(text) if plain && !text.is_empty() && !text.starts_with("0x") => text.to_owned(),
        Ok(_) | Err(_) => bytes.iter().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}")),
    }
}

/// The inverse of [`word`].
fn bytes(word: &str) -> Vec<u8> {
    let Some(hex) = word.strip_prefix("0x") else { return word.as_bytes().to_vec() };
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap_or_else(|_| panic!("{word} is no hexadecimal"));
    (0..hex.len()).step_by(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis_server::Flavour;

    #[test]
    fn what_is_frozen_comes_back() {
        let server = RedisServer::start(Flavour::Redis7);
        server.cli(&[&b"SET"[..], b"f:{a b}:s", b"\x00|=", b"PX", b"5000000"]);
        server.cli(&["HSET", "f:h", "", "x", "0x", "y"]);
        server.cli(&["ZADD", "f:z", "1700000000000", "one", "2", "two"]);
        server.cli(&["SADD", "f:m", "p", "q"]);
        server.cli(&["SET", "other", "x"]);
        let reply =
            Value::Array(vec![Value::Int(-1), Value::Array(Vec::new()), Value::Nil, Value::BulkString(vec![0])]);
        let call = Call { script: "apply".to_owned(), keys: 1, arguments: vec![b"f:s".to_vec(), Vec::new()], reply };
        let frozen = Frozen {
            about: vec!["a b".to_owned()],
            made: vec![("0 reserve a".to_owned(), "admitted".to_owned()), ("policy".to_owned(), String::new())],
            state: Frozen::state_of(&server, "f"),
            holders: vec!["5 a weight=1".to_owned()],
            then: vec![("5 view".to_owned(), "x".to_owned())],
            calls: vec![call],
        };
        let read = Frozen::parse(&frozen.text());
        assert_eq!(read, frozen);
        server.cli(&["FLUSHALL"]);
        read.load(&server);
        let mut again = Frozen::state_of(&server, "f");
        let lives: Vec<i64> = again.iter().map(|line| line[2].parse().unwrap()).collect();
        assert!(lives.iter().all(|life_ms| *life_ms == -1 || *life_ms > 4_000_000), "{lives:?}");
        again.iter_mut().zip(&frozen.state).for_each(|(line, was)| line[2].clone_from(&was[2]));
        assert_eq!(again, frozen.state);
    }
}
