//! Scenarios as text: one line an act and what it must answer. The same files judge the pure ledger and every store.
//!
//! ```text
//! policy rate=10/s burst=2 ratio=0.5        everything left out has the default; each line is a whole new policy
//! 0   reserve a                             | admitted left=2
//! 0   reserve b n=2 cause=transient         | denied retry_budget after=1000
//! 10  release a success                     | applied
//! 10  view                                  | admission=1.1 retry=0.51 in_flight=0
//! ```
//! Acts begin with the time in milliseconds. `x100` repeats an act; the id `*` is a new one each time. Only the named
//! parts of an answer are compared; amounts are in tokens.

use std::{collections::BTreeMap, fmt::Write as _};

use budget::{
    decision::{
        Admitted, Answer, Attempt, Cause, Cost, Denied, Extend, ExtendResult, Invalid, OperationAsk, Outcome, Priority,
        Release, ReleaseResult, Reserve, Sent, Step, TerminalState, Use,
    },
    ids::{Fingerprint, OperationId, ReservationId, UnitId},
    ledger::{COUNTERS, View},
    policy::{CurveStep, EarnOn, FIELDS, Lease, Limit, Mode, Policy, Spec, UnitLimit, Value},
    units::{Decimal, Rate, parse_decimal_ppm},
};

/// What a scenario does.
#[derive(Clone, Debug)]
pub enum Act {
    /// Puts a policy into force; with the kill switch's position.
    Policy(Box<Policy>, bool),
    /// Applies a step at a time.
    Step(i64, Step),
    /// Looks at a time.
    View(i64),
}

/// What was seen of it.
#[derive(Clone, Debug)]
pub enum Seen {
    /// Nothing to see.
    Nothing,
    /// An answer.
    Answer(Answer),
    /// A view.
    View(Box<View>),
}

/// Runs every line of `text` on `subject` and compares.
///
/// # Panics
/// With file, line and difference, if an answer is not the expected one or the text is malformed.
pub fn run(name: &str, text: &str, mut subject: impl FnMut(Act) -> Seen) {
    let mut unique = 0_u64;
    let mut wrong = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let place = format!("{name}:{}: {line}", index + 1);
        let (act, expected) = line.split_once('|').unwrap_or((line, ""));
        let mut words = act.split_whitespace();
        let first = words.next().unwrap_or_default();
        if first == "policy" {
            let (policy, retries_off) = policy(words, &place);
            subject(Act::Policy(Box::new(policy), retries_off));
            continue;
        }
        let at_ms: i64 = first.parse().unwrap_or_else(|_| panic!("{place}: no time"));
        let words: Vec<&str> = words.collect();
        let times = words.iter().find_map(|word| word.strip_prefix('x')?.parse().ok()).unwrap_or(1);
        for _ in 0..times {
            unique += 1;
            let act = act_of(at_ms, &words, unique, &place);
            let seen = show(&subject(act));
            for word in expected.split_whitespace() {
                if !seen.iter().any(|part| part == word) {
                    wrong.push(format!("{place}\n  expected {word}\n  seen     {}", seen.join(" ")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn pairs<'a>(words: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, &'a str> {
    words.filter_map(|word| word.split_once('=')).collect()
}

/// The policy that the words of a line say, and whether its retries are switched off.
///
/// # Panics
/// If they are malformed; the message begins with `place`.
pub fn policy<'a>(words: impl Iterator<Item = &'a str>, place: &str) -> (Policy, bool) {
    let mut spec = Spec::default();
    let mut retries_off = false;
    let rate = |text: &str| Rate::parse(text).unwrap_or_else(|error| panic!("{place}: {text} {error}"));
    let ppm = |text: &str| parse_decimal_ppm(text).unwrap_or_else(|error| panic!("{place}: {text} {error}"));
    let int = |text: &str| -> i64 { text.parse().unwrap_or_else(|_| panic!("{place}: {text} is no number")) };
    let small = |text: &str| -> u32 { text.parse().unwrap_or_else(|_| panic!("{place}: {text} is no number")) };
    let limit = |spec: &mut Spec| {
        spec.admission.unwrap_or(Limit { rate: Rate::parse("1/s").expect("a rate"), burst_tokens: 1 })
    };
    for (key, value) in words.filter_map(|word| word.split_once('=')) {
        match key {
            "rate" => spec.admission = Some(Limit { rate: rate(value), ..limit(&mut spec) }),
            "burst" => spec.admission = Some(Limit { burst_tokens: int(value), ..limit(&mut spec) }),
            "max_in_flight" => spec.max_in_flight = Some(small(value)),
            "ttl" => spec.permit_ttl_ms = int(value),
            "max_wait" => spec.max_wait_ms = int(value),
            "ratio" => spec.ratio_ppm = ppm(value),
            "floor" => spec.floor = rate(value),
            "retry_burst" => spec.retry_burst_tokens = int(value),
            "earn" => spec.earn_on = if value == "success" { EarnOn::Success } else { EarnOn::Admitted },
            "mode" => spec.mode = if value == "shadow" { Mode::Shadow } else { Mode::Enforce },
            "attempts" => spec.max_attempts = small(value),
            "retention" => spec.retention_ms = int(value),
            "retries" => retries_off = value == "off",
            "lease" => spec.lease = Lease { enabled: true, part_ppm: ppm(value), ..spec.lease },
            "curve" => spec.lease.curve = curve(value, place),
            _ => {
                if let Some(cause) =
                    Cause::ALL.into_iter().find(|cause| key.strip_prefix("cost.") == Some(cause.name()))
                {
                    spec.retry_cost_micros[cause.index()] = ppm(value);
                } else if let Some(priority) = Priority::ALL.into_iter().find(|priority| priority.name() == key) {
                    spec.priority_ppm[priority.index()] = ppm(value);
                } else if let Some(name) = key.strip_prefix("unit.") {
                    let (unit_rate, burst) = value.split_once(',').unwrap_or_else(|| panic!("{place}: {value}"));
                    let limit = Limit { rate: rate(unit_rate), burst_tokens: int(burst) };
                    spec.units.push(UnitLimit { name: name.to_owned(), limit });
                } else if let Some(field) = FIELDS.iter().find(|field| field.key == key) {
                    field.set(&mut spec, &Value::Number(int(value)));
                } else {
                    panic!("{place}: unknown key {key}");
                }
            }
        }
    }
    (Policy::new(spec).unwrap_or_else(|error| panic!("{place}: {error}")), retries_off)
}

/// Steps such as `1x20000,0.5x100000`.
fn curve(text: &str, place: &str) -> Vec<CurveStep> {
    let step = |step: &str| {
        let (part, duration) = step.split_once('x').unwrap_or_else(|| panic!("{place}: {step}"));
        let part_ppm = parse_decimal_ppm(part).unwrap_or_else(|error| panic!("{place}: {part} {error}"));
        CurveStep { part_ppm, duration_ms: duration.parse().unwrap_or_else(|_| panic!("{place}: {duration}")) }
    };
    text.split(',').map(step).collect()
}

fn reservation_id(word: &str, unique: u64) -> ReservationId {
    let mut bytes = [0; 16];
    if word == "*" {
        bytes[8..].copy_from_slice(&unique.to_be_bytes());
    } else {
        let len = word.len().min(8);
        bytes[..len].copy_from_slice(&word.as_bytes()[..len]);
    }
    ReservationId(bytes)
}

fn costs(words: &[&str], place: &str) -> Vec<Cost> {
    let amount = |text| parse_decimal_ppm(text).unwrap_or_else(|error| panic!("{place}: {error}"));
    (words.iter().filter_map(|word| word.split_once(':')))
        .map(|(unit, tokens)| Cost { unit: UnitId::of(unit).expect("a unit"), amount_micros: amount(tokens) })
        .collect()
}

/// The act that words say, without its time. `unique` makes the id `*`.
///
/// # Panics
/// If they are malformed; the message begins with `place`.
#[must_use]
pub fn act_of(at_ms: i64, words: &[&str], unique: u64, place: &str) -> Act {
    let keys = pairs(words.iter().copied());
    let int = |key| keys.get(key).map(|text: &&str| text.parse::<i64>().unwrap_or_else(|_| panic!("{place}: {key}")));
    let operation = keys.get("op").map(|id| OperationId::new(id).expect("an operation id"));
    let id = || reservation_id(words.get(1).copied().unwrap_or_default(), unique);
    let third = words.get(2).copied().unwrap_or_default();
    match words.first().copied().unwrap_or_default() {
        "view" => Act::View(at_ms),
        "reserve" => {
            let cause = keys.get("cause").map(|name| by_name(&Cause::ALL, name, Cause::name, place));
            let number = u32::try_from(int("n").unwrap_or(1)).expect("a number");
            let fingerprint = keys.get("fp").map_or(b'f', |text| text.as_bytes()[0]);
            let ask = Reserve {
                time_left_ms: int("left"),
                max_wait_ms: int("wait").unwrap_or(0),
                permit_ttl_ms: int("ttl"),
                priority: (keys.get("prio"))
                    .map_or(Priority::Default, |name| by_name(&Priority::ALL, name, Priority::name, place)),
                costs: costs(words, place),
                operation: operation.map(|id| OperationAsk {
                    id,
                    fingerprint: Fingerprint::from_slice(&[fingerprint; 16]).expect("16 bytes"),
                    expires_in_ms: int("expires"),
                }),
                no_release: words.contains(&"norelease"),
                ..Reserve::new(id(), Attempt { number, cause })
            };
            Act::Step(at_ms, Step::Reserve(ask))
        }
        "release" => {
            let used = if third == "not_sent" {
                Use::NotSent
            } else {
                Use::Sent(Sent {
                    outcome: by_name(&Outcome::ALL, third, Outcome::name, place),
                    costs: costs(words, place),
                    terminal: (keys.get("terminal"))
                        .map(|name| by_name(&TerminalState::ALL, name, TerminalState::name, place)),
                    result_ref: keys.get("ref").map(|text| text.as_bytes().into()),
                })
            };
            Act::Step(at_ms, Step::Release(Release { id: id(), used, operation }))
        }
        "extend" => {
            let permit_ttl_ms = third.parse().unwrap_or_else(|_| panic!("{place}: no time to extend by"));
            Act::Step(at_ms, Step::Extend(Extend { id: id(), permit_ttl_ms }))
        }
        other => panic!("{place}: unknown act {other}"),
    }
}

fn by_name<T: Copy>(all: &[T], name: &str, name_of: impl Fn(T) -> &'static str, place: &str) -> T {
    *all.iter().find(|value| name_of(**value) == name).unwrap_or_else(|| panic!("{place}: unknown name {name}"))
}

/// The parts of what was seen, as they are written in a scenario.
#[must_use]
pub fn show(seen: &Seen) -> Vec<String> {
    match seen {
        Seen::Nothing => Vec::new(),
        Seen::Answer(answer) => show_answer(answer),
        Seen::View(view) => show_view(view),
    }
}

fn show_answer(answer: &Answer) -> Vec<String> {
    match answer {
        Answer::Admitted(Admitted { start_after_ms, permit_ttl_ms, attempts_left, replayed, would_be_denied }) => {
            let mut parts = vec![
                "admitted".to_owned(),
                format!("start={start_after_ms}"),
                format!("ttl={permit_ttl_ms}"),
                format!("left={attempts_left}"),
            ];
            parts.push(if *replayed { "replayed" } else { "new" }.to_owned());
            parts.push(would_be_denied.map_or("charged".to_owned(), |reason| format!("would_be={}", reason.name())));
            parts
        }
        Answer::Denied(Denied { reason, unit, retry_after_ms, impossible, operation }) => {
            let mut parts = vec!["denied".to_owned(), reason.name().to_owned()];
            parts.push(retry_after_ms.map_or("no_hint".to_owned(), |ms| format!("after={ms}")));
            parts.push(if *impossible { "impossible" } else { "possible" }.to_owned());
            if unit.is_some() {
                parts.push("unit".to_owned());
            }
            parts.extend(unit.map(|unit| format!("unit={}", unit.raw())));
            if let Some(state) = operation {
                parts.push(format!("used={}", state.attempts_used));
                parts.push(state.last_outcome.map_or("last=none".to_owned(), |last| format!("last={}", last.name())));
                parts
                    .push(state.terminal.map_or("open".to_owned(), |terminal| format!("terminal={}", terminal.name())));
                parts.push(
                    state
                        .result_ref
                        .as_ref()
                        .map_or("no_ref".to_owned(), |bytes| format!("ref={}", String::from_utf8_lossy(bytes))),
                );
            } else {
                parts.push("no_operation".to_owned());
            }
            parts
        }
        Answer::Released(result) => vec![result.name().to_owned()],
        Answer::Extended(ExtendResult::Extended(ms)) => vec!["extended".to_owned(), format!("ttl={ms}")],
        Answer::Extended(ExtendResult::AlreadyReleased) => vec![ReleaseResult::AlreadyReleased.name().to_owned()],
        Answer::Extended(ExtendResult::Expired) => vec![ReleaseResult::Expired.name().to_owned()],
        Answer::Extended(ExtendResult::Unknown) => vec![ReleaseResult::Unknown.name().to_owned()],
        Answer::Invalid(Invalid::UnknownUnit(_)) => vec!["invalid".to_owned(), "unknown_unit".to_owned()],
        Answer::Invalid(Invalid::ExpiresInTooLong) => vec!["invalid".to_owned(), "expires_in".to_owned()],
        Answer::Invalid(Invalid::OperationMismatch) => vec!["invalid".to_owned(), "operation_mismatch".to_owned()],
    }
}

fn show_view(view: &View) -> Vec<String> {
    let mut parts = vec![
        view.admission_balance_micros.map_or("unlimited".to_owned(), |micros| format!("admission={}", Decimal(micros))),
        format!("retry={}", Decimal(view.retry_balance_micros)),
        format!("in_flight={}", view.in_flight),
    ];
    for counter in COUNTERS {
        let value = (counter.get)(&view.counters);
        let name = match counter.name {
            "originals_admitted" => "originals",
            "retries_admitted" => "retries",
            "permits_expired" => "expired",
            "account_signals" => "account",
            name => name.trim_end_matches("_micros"),
        };
        parts.push(if counter.is_micros() { format!("{name}={}", Decimal(value)) } else { format!("{name}={value}") });
    }
    let mut units = String::from("units=");
    for (index, (_, balance)) in view.units.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(units, "{comma}{}", Decimal(*balance));
    }
    parts.push(units);
    parts
}
