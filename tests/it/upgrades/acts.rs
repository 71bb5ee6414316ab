//! Acts on one ledger as text, beyond those of `vectors`: what holders of leases ask, heartbeats, revoked leases; and
//! answers to them. Whatever a holder sends stands in the act, so that nothing but the ledger's state decides.

use std::fmt::Write as _;

use budget::{
    ids::UnitId,
    lease::{
        Amounts, Curve, Epoch, Grant, HolderId, Incarnation, LeaseName, Presented, SyncAnswer, SyncAsk, UnitAmounts,
        Usage,
    },
    ledger::{HolderView, View},
    policy::CurveStep,
};
use budget_tests::vectors::{Act, Seen, act_of, show};

/// What is done to a ledger.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    /// An act of `vectors`.
    Act(Act),
    /// The store's identity from now on, and whether an operator says that no lease is out.
    Store(i64, bool),
    /// A holder asks.
    Sync(i64, Box<SyncAsk>),
    /// A heartbeat of a host, by its boot id and its time since boot.
    Beat(i64, i64, i64),
    /// A lease is taken away.
    Revoke(i64, HolderId),
}

/// What was answered.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    Seen(Seen),
    Synced(Box<SyncAnswer>),
    Revoked(bool),
    Beaten,
}

/// Reads an act; `place` begins the message if it is malformed.
pub(crate) fn read(line: &str, place: &str) -> Deed {
    let words: Vec<&str> = line.split_whitespace().collect();
    let key = |key: &str| words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let number = |name: &str| -> i64 {
        let text = key(name).unwrap_or_else(|| panic!("{place}: no {name}"));
        text.parse().unwrap_or_else(|_| panic!("{place}: {name} is {text}"))
    };
    match words[0] {
        "policy" => {
            let (policy, off) = budget_tests::vectors::policy(words[1..].iter().copied(), place);
            return Deed::Act(Act::Policy(Box::new(policy), off));
        }
        "store" => return Deed::Store(number("identity"), words.contains(&"fresh")),
        _ => {}
    }
    let at_ms: i64 = words[0].parse().unwrap_or_else(|_| panic!("{place}: no time"));
    let holder = || HolderId::new(words[2]).unwrap_or_else(|error| panic!("{place}: {error}"));
    match words[1] {
        "sync" => {
            let lease = key("lease").map(|name| Presented {
                name: lease_name(name),
                value: amounts(key("value").unwrap_or_else(|| panic!("{place}: no value"))),
                curve: curve(key("curve").unwrap_or_else(|| panic!("{place}: no curve"))),
                position_ms: number("position"),
            });
            Deed::Sync(
                at_ms,
                Box::new(SyncAsk {
                    holder: holder(),
                    incarnation: incarnation(key("life").unwrap_or_else(|| panic!("{place}: no life"))),
                    sequence: number("sequence"),
                    nonce: number("nonce"),
                    epoch: epoch(key("epoch").unwrap_or_else(|| panic!("{place}: no epoch"))),
                    lease,
                    usage: usage(key("usage").unwrap_or_else(|| panic!("{place}: no usage"))),
                    counted: usage(key("counted").unwrap_or_else(|| panic!("{place}: no counted"))),
                    in_flight: number("in_flight"),
                    weight: number("weight"),
                    leave: words.contains(&"leave"),
                }),
            )
        }
        "beat" => Deed::Beat(at_ms, number("host"), number("up")),
        "revoke" => Deed::Revoke(at_ms, holder()),
        _ => Deed::Act(act_of(at_ms, &words[1..], 0, place)),
    }
}

/// An ask as [`read`] reads it.
pub(crate) fn ask_text(at_ms: i64, ask: &SyncAsk) -> String {
    let mut text = format!("{at_ms} sync {} life={:?}", ask.holder.as_str(), ask.incarnation);
    let _ = write!(text, " sequence={} nonce={} epoch={}", ask.sequence, ask.nonce, epoch_text(ask.epoch));
    if let Some(lease) = &ask.lease {
        let _ = write!(text, " lease={} value={}", name_text(lease.name), amounts_text(&lease.value));
        let _ = write!(text, " curve={} position={}", curve_text(&lease.curve), lease.position_ms);
    }
    let _ = write!(text, " usage={} counted={}", usage_text(&ask.usage), usage_text(&ask.counted));
    let _ = write!(text, " in_flight={} weight={}", ask.in_flight, ask.weight);
    if ask.leave {
        text.push_str(" leave");
    }
    text
}

/// The parts of an answer.
pub(crate) fn parts(told: &Told) -> Vec<String> {
    match told {
        Told::Seen(seen) => {
            let mut parts = show(seen);
            if let Seen::View(view) = seen {
                lending_parts(view, &mut parts);
            }
            parts
        }
        Told::Synced(answer) => match &**answer {
            SyncAnswer::Granted(Grant { name, position_ms, value, moved, curve }) => vec![
                "granted".to_owned(),
                format!("lease={}", name_text(*name)),
                format!("value={}", amounts_text(value)),
                format!("moved={}", amounts_text(moved)),
                format!("curve={}", curve_text(curve)),
                format!("position={position_ms}"),
            ],
            SyncAnswer::Epoch(epoch) => vec!["epoch".to_owned(), format!("epoch={}", epoch_text(*epoch))],
            SyncAnswer::Wait(ms) => vec!["wait".to_owned(), format!("wait={ms}")],
            SyncAnswer::Dead => vec!["dead".to_owned()],
            SyncAnswer::Fenced => vec!["fenced".to_owned()],
            SyncAnswer::NotLeased(why) => vec!["not_leased".to_owned(), format!("{why:?}")],
            SyncAnswer::Invalid(why) => vec!["invalid".to_owned(), format!("{why:?}")],
            SyncAnswer::Left => vec!["left".to_owned()],
        },
        Told::Revoked(known) => vec![if *known { "revoked" } else { "unknown_holder" }.to_owned()],
        Told::Beaten => vec!["beaten".to_owned()],
    }
}

fn lending_parts(view: &View, parts: &mut Vec<String>) {
    parts.push(format!("version={}:{}", view.version.number, view.version.id));
    parts.push(if view.shadow { "shadow" } else { "enforce" }.to_owned());
    let Some(lending) = &view.lending else {
        parts.push("lends_not".to_owned());
        return;
    };
    parts.push(format!("epoch={}", epoch_text(lending.epoch)));
    parts.push(format!("holders={}", lending.holders));
    parts.push(format!("charged={}", amounts_text(&lending.charged)));
    parts.push(format!("unknown={}", amounts_text(&lending.unknown)));
    parts.push(format!("quarantine={}", lending.quarantine_left_ms));
    parts.push(format!("wait={}", lending.wait_left_ms));
    parts.push(format!("debt={}", lending.clock_debt_ms));
}

/// One holder as operators see it.
pub(crate) fn holder_text(view: &HolderView) -> String {
    format!(
        "{} life={:?} weight={} demand={} value={} charged={} generation={} expires={} usage={} {}",
        view.holder.as_str(),
        view.incarnation,
        view.weight,
        view.demand,
        amounts_text(&view.value),
        amounts_text(&view.charged),
        view.generation,
        view.expires_in_ms,
        usage_text(&view.usage),
        if view.revoked { "revoked" } else { "leased" },
    )
}

fn number(text: &str) -> i64 {
    text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

fn pair(text: &str) -> (i64, i64) {
    let (first, second) = text.split_once(':').unwrap_or_else(|| panic!("{text} is no pair"));
    (number(first), number(second))
}

fn epoch(text: &str) -> Epoch {
    let (number, id) = pair(text);
    Epoch { number, id }
}

fn epoch_text(epoch: Epoch) -> String {
    format!("{}:{}", epoch.number, epoch.id)
}

fn lease_name(text: &str) -> LeaseName {
    let (of, generation) = text.split_once('/').unwrap_or_else(|| panic!("{text} is no lease"));
    LeaseName { epoch: epoch(of), generation: number(generation) }
}

fn name_text(name: LeaseName) -> String {
    format!("{}/{}", epoch_text(name.epoch), name.generation)
}

fn incarnation(text: &str) -> Incarnation {
    let byte = |at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap_or_else(|_| panic!("{text} is no life"));
    Incarnation(std::array::from_fn(byte))
}

/// `rate/burst/retry_burst/slots`, and for each unit `/id:rate:burst`. Units without a part, and their order, say nothing.
fn amounts_text(amounts: &Amounts) -> String {
    let mut text = format!("{}/{}/{}/{}", amounts.rate, amounts.burst, amounts.retry_burst, amounts.slots);
    let mut units = amounts.units.to_vec();
    units.retain(|unit| unit.rate != 0 || unit.burst != 0);
    units.sort_by_key(|unit| unit.unit);
    for UnitAmounts { unit, rate, burst } in units {
        let _ = write!(text, "/{}:{rate}:{burst}", unit.raw());
    }
    text
}

fn amounts(text: &str) -> Amounts {
    let words: Vec<&str> = text.split('/').collect();
    let unit = |word: &&str| {
        let parts: Vec<i64> = word.split(':').map(number).collect();
        UnitAmounts { unit: UnitId::from_raw(parts[0]), rate: parts[1], burst: parts[2] }
    };
    Amounts {
        rate: number(words[0]),
        burst: number(words[1]),
        retry_burst: number(words[2]),
        slots: number(words[3]),
        units: words[4..].iter().map(unit).collect(),
    }
}

fn curve(text: &str) -> Curve {
    let step = |word: &str| {
        let (part_ppm, duration_ms) = pair(word);
        CurveStep { part_ppm, duration_ms }
    };
    Curve(text.split(',').map(step).collect())
}

fn curve_text(curve: &Curve) -> String {
    let steps: Vec<String> = curve.0.iter().map(|step| format!("{}:{}", step.part_ppm, step.duration_ms)).collect();
    steps.join(",")
}

/// The counters in their order, and for each unit `/id:amount`.
fn usage_text(usage: &Usage) -> String {
    let counters: Vec<String> = usage.counters().iter().map(ToString::to_string).collect();
    let units = usage.units_asked.iter().map(|(unit, amount)| format!("/{}:{amount}", unit.raw()));
    counters.join(",") + &units.collect::<String>()
}

fn usage(text: &str) -> Usage {
    let mut words = text.split('/');
    let counters: Vec<i64> = words.next().unwrap_or_default().split(',').map(number).collect();
    let units_asked = words.map(pair).map(|(unit, amount)| (UnitId::from_raw(unit), amount)).collect();
    Usage {
        asked: counters[0],
        originals_admitted: counters[1],
        retries_admitted: counters[2],
        originals_denied: counters[3],
        retries_denied: counters[4],
        not_sent: counters[5],
        fallback_originals: counters[6],
        fallback_retries: counters[7],
        deposited_micros: counters[8],
        overuse_micros: counters[9],
        units_asked,
    }
}
