//! `budgetd status`: balances, permits and counters.

use std::{io::Write, time::Duration};

use budget::{
    ids::DependencyId,
    ledger::{COUNTERS, Lending},
    units::Decimal,
};
use budget_client::{
    About, Balance, Client, Dependency, DependencyStatus, Refusals, StatusPage, StoreFormat, UnitNames, Window,
};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::{
    Connection, Failure, PAGES_MAX, Verdict, arguments,
    holders::amounts_json,
    one_line,
    policy::{kill_switch_json, kill_switch_text, override_json},
    table::{Table, duration, print_json, tokens, version_json},
};
use crate::clock::utc;

/// Moves to the top left and clears what is below.
pub(super) const CLEAR: &str = "\x1b[H\x1b[J";

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these; all if none is given.
    dependencies: Vec<String>,
    /// Show it again and again.
    #[arg(long)]
    watch: bool,
    /// How often.
    #[arg(long, value_name = "DURATION", requires = "watch", default_value = "2s")]
    #[arg(value_parser = arguments::positive_duration)]
    every: Duration,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(args: &Args, terminal: bool, out: &mut impl Write) -> Result<Verdict, Failure> {
    let client = args.connection.client()?;
    let ids: Result<Vec<_>, _> = args.dependencies.iter().map(|name| Dependency::new(name)).collect();
    let ids = ids.map_err(|invalid| Failure::Call(invalid.into()))?;
    let ids: Vec<_> = ids.iter().map(|dependency| dependency.id().clone()).collect();
    if !args.watch {
        let status = read(&client, &args.connection, &ids).await?;
        show(&status, args.connection.json, out)?;
        return Ok(Verdict::Yes);
    }
    let mut ticks = interval(args.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Err(failure) = watch(args, &client, &ids, terminal, out).await else { continue };
        // Whoever watches wants to see it come back.
        let Failure::Silent { .. } = &failure else { return Err(failure) };
        frame(args, terminal, out, |out| {
            if args.connection.json {
                print_json(out, &json!({ "error": failure.to_string() }))?;
            } else {
                writeln!(out, "{}", one_line(&failure.to_string()))?;
            }
            Ok(())
        })?;
    }
}

/// Shows round after round until the stream ends.
async fn watch(
    args: &Args,
    client: &Client,
    ids: &[DependencyId],
    terminal: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let connection = &args.connection;
    let failed = |error| connection.failure(error);
    let mut stream = client.watch_status(ids, args.every, connection.timeout).await.map_err(failed)?;
    let mut round: Option<StatusPage> = None;
    // A server that has gone silent is noticed by the connection's own probes.
    while let Some(mut page) = stream.next().await.map_err(failed)? {
        let more = page.next.is_some();
        let complete = match round.take() {
            None => page,
            Some(mut first) => {
                first.dependencies.append(&mut page.dependencies);
                first
            }
        };
        if more {
            round = Some(complete);
        } else {
            frame(args, terminal, out, |out| show(&complete, connection.json, out))?;
        }
    }
    Ok(())
}

/// One picture after the other, in place on a terminal.
fn frame<W: Write>(
    args: &Args,
    terminal: bool,
    out: &mut W,
    show: impl FnOnce(&mut W) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if terminal {
        write!(out, "{CLEAR}")?;
    }
    show(out)?;
    if !args.connection.json && !terminal {
        writeln!(out)?;
    }
    out.flush()?;
    Ok(())
}

/// All pages as one.
async fn read(client: &Client, connection: &Connection, ids: &[DependencyId]) -> Result<StatusPage, Failure> {
    let page = async |token| {
        client.get_status(ids, token, connection.timeout).await.map_err(|error| connection.failure(error))
    };
    let mut all = page(None).await?;
    for _ in 1..PAGES_MAX {
        let Some(token) = all.next.take() else { return Ok(all) };
        let mut further = page(Some(token)).await?;
        all.dependencies.append(&mut further.dependencies);
        all.next = further.next;
    }
    match all.next {
        None => Ok(all),
        Some(_) => Err(Failure::Endless { endpoint: connection.endpoint.clone() }),
    }
}

pub(super) fn show(status: &StatusPage, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    if json {
        print_json(out, &document(status))?;
        return Ok(());
    }
    let up = if status.store_up { "up" } else { "DOWN" };
    writeln!(out, "store {} is {up}, policy version {}", status.store, status.version.number)?;
    about(&status.about, out)?;
    if status.dependencies.is_empty() {
        writeln!(out, "no dependency is known yet")?;
        return Ok(());
    }
    let mut table = Table::default();
    table.row([
        "DEPENDENCY",
        "RULE",
        "MODE",
        "ADMISSION",
        "RETRY",
        "IN FLIGHT",
        "ORIGINALS",
        "RETRIES",
        "DENIED",
        "PER SECOND",
        "AMPLIFICATION",
        "NOTES",
    ]);
    for dependency in &status.dependencies {
        rows(&mut table, dependency);
    }
    table.print(out)?;
    Ok(())
}

fn rows(table: &mut Table, status: &DependencyStatus) {
    let counters = &status.counters;
    let limit = status.max_in_flight.map_or(String::new(), |max| format!("/{max}"));
    table.row([
        status.name.clone(),
        status.rule.clone(),
        status.mode.name().to_owned(),
        status.admission.map_or_else(|| "unlimited".to_owned(), bucket),
        bucket(status.retry),
        format!("{}{limit}", status.in_flight),
        counters.originals_admitted.to_string(),
        counters.retries_admitted.to_string(),
        format!("{}+{}", counters.originals_denied, counters.retries_denied),
        rates(status),
        latest(status).and_then(|window| window.amplification_ppm).map_or_else(|| "n/a".to_owned(), decimal),
        notes(status),
    ]);
    for unit in &status.units {
        let empty = String::new;
        table.row([format!("  {}", unit.unit), empty(), empty(), bucket(unit.bucket)]);
    }
}

/// What is to be known of the replicas.
fn about(about: &About, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(error) = &about.policy_error {
        writeln!(out, "POLICIES: {}", one_line(error))?;
    }
    if let Some(format) = &about.store_format {
        writeln!(out, "{}", format_text(format))?;
    }
    for switch in &about.kill_switches {
        writeln!(out, "retries {}", kill_switch_text(switch))?;
    }
    let mut versions: Vec<_> = about.replicas.iter().map(|replica| replica.version.number).collect();
    versions.sort_unstable();
    versions.dedup();
    if let [_, _, ..] = *versions {
        let each = about.replicas.iter();
        let each: Vec<_> =
            each.map(|replica| format!("{} has {}", replica.replica_id, replica.version.number)).collect();
        writeln!(out, "replicas differ in their policy version: {}", each.join(", "))?;
    } else if !about.replicas.is_empty() {
        writeln!(out, "{} replicas, all with this policy version", about.replicas.len())?;
    }
    for replica in about.replicas.iter().filter(|replica| replica.policy_error) {
        writeln!(out, "replica {} cannot bring its policies up to date", one_line(&replica.replica_id))?;
    }
    Ok(())
}

/// Which format is written, and what keeps a newer one from being written.
fn format_text(StoreFormat { written, readable, held_back_by }: &StoreFormat) -> String {
    let now = format!("stored in format {written}");
    match &held_back_by[..] {
        [] if written >= readable => now,
        [] => format!("{now}, in format {readable} within seconds"),
        old => {
            let old: Vec<_> = old.iter().map(|replica| one_line(replica)).collect();
            format!("{now}, in format {readable} once these have been away for two minutes: {}", old.join(", "))
        }
    }
}

/// The shortest window: of the fleet if that is known, else of the replica.
fn latest(status: &DependencyStatus) -> Option<&Window> {
    status.recent.fleet.first().or_else(|| status.recent.replica.first())
}

/// Originals, retries and refusals each second; of one replica where the fleet's are not known.
fn rates(status: &DependencyStatus) -> String {
    let Some(window) = latest(status) else { return "n/a".to_owned() };
    let each = |count: u64| {
        decimal(count.saturating_mul(1_000_000_000).checked_div(window.length_ms).unwrap_or(0) / 100_000 * 100_000)
    };
    let denied = window.originals_denied.saturating_add(window.retries_denied);
    let scope = if status.recent.fleet.is_empty() { " here" } else { "" };
    let (originals, retries) = (each(window.originals_admitted), each(window.retries_admitted));
    format!("{originals}+{retries}, {} denied{scope}", each(denied))
}

/// Millionths, to a hundredth.
fn decimal(ppm: u64) -> String {
    Decimal(i64::try_from(ppm / 10_000 * 10_000).unwrap_or(i64::MAX)).to_string()
}

/// `12 retry_budget, 3 admission`.
pub(super) fn refusals_text(refusals: &[Refusals]) -> String {
    let each = refusals
        .iter()
        .map(|refusals| format!("{} {}", refusals.originals.saturating_add(refusals.retries), refusals.reason.name()));
    each.collect::<Vec<_>>().join(", ")
}

pub(super) fn refusals_json(refusals: &[Refusals]) -> Value {
    let each = refusals.iter().map(|refusals| {
        json!({ "reason": refusals.reason.name(), "originals": refusals.originals, "retries": refusals.retries })
    });
    Value::Array(each.collect())
}

fn window_json(window: &Window) -> Value {
    json!({
        "length_ms": window.length_ms,
        "originals_admitted": window.originals_admitted,
        "retries_admitted": window.retries_admitted,
        "originals_denied": window.originals_denied,
        "retries_denied": window.retries_denied,
        "would_be_denied": window.would_be_denied,
        "amplification_ppm": window.amplification_ppm,
        "refusals": refusals_json(&window.refusals),
        "would_be_refusals": refusals_json(&window.would_be_refusals),
        "received": window.received,
    })
}

fn bucket(Balance { balance_micros, burst_micros }: Balance) -> String {
    format!("{}/{}", tokens(balance_micros), tokens(burst_micros))
}

/// What is out of the ordinary.
fn notes(status: &DependencyStatus) -> String {
    let mut noted: Vec<_> = COUNTERS.into_iter().filter(|counter| !counter.note.is_empty()).collect();
    // First that refusals do not bite, last what is no count of calls.
    noted.sort_by_key(|counter| (counter.name != "would_be_denied", counter.is_micros()));
    let counted = noted.into_iter().filter_map(|counter| match (counter.get)(&status.counters) {
        ..=0 => None,
        micros if counter.is_micros() => Some(format!("{} {}", tokens(micros), counter.note)),
        count => Some(format!("{count} {}", counter.note)),
    });
    let until = status.recent.kill_switch.as_ref().and_then(|switch| switch.until_ms);
    let until = until.map_or_else(String::new, |ms| format!(" until {}", utc(ms)));
    let off = status.retries_off.then(|| format!("RETRIES OFF{until}"));
    let refused = status.recent.replica.last().map(|window| refusals_text(&window.refusals));
    let refused = refused.filter(|text| !text.is_empty()).map(|text| format!("lately {text}"));
    let over = status.recent.over.as_ref().map(|over| format!("OVERRIDDEN until {}", utc(over.until_ms)));
    let leased = status.lending.iter().map(leased);
    off.into_iter()
        .chain(over)
        .chain(unasked(status).map(|unasked| unasked.text()))
        .chain(leased)
        .chain(counted)
        .chain(refused)
        .collect::<Vec<_>>()
        .join(", ")
}

/// More came to a dependency than was admitted.
pub(super) struct Unasked {
    received: u64,
    admitted: u64,
    seconds: u64,
}

impl Unasked {
    pub(super) fn text(&self) -> String {
        let Self { received, admitted, seconds } = self;
        format!("RECEIVED {received} where {admitted} were admitted in {seconds} s")
    }
}

/// Whether attempts come that nobody asked for, in the last minute. Reports, and what holders admit, are some seconds late, so
/// that a tenth more says nothing.
pub(super) fn unasked(status: &DependencyStatus) -> Option<Unasked> {
    let window = status.recent.fleet.last()?;
    let (received, seconds) = (window.received?, window.length_ms / 1_000);
    let admitted = window.originals_admitted.saturating_add(window.retries_admitted);
    let most = admitted.saturating_add(admitted / 10).saturating_add(10);
    (received > most).then_some(Unasked { received, admitted, seconds })
}

/// What is leased, and what is unknown.
fn leased(lending: &Lending) -> String {
    let holders = match lending.holders {
        0 => "no holders".to_owned(),
        1 => "1 holder".to_owned(),
        more => format!("{more} holders"),
    };
    let charged = &lending.charged;
    let mut text = format!("{holders} (epoch {})", lending.epoch.number);
    if lending.holders > 0 {
        let (rate, burst, retries) = (tokens(charged.rate), tokens(charged.burst), tokens(charged.retry_burst));
        text.push_str(&format!(" with {rate}/s, burst {burst}, retries {retries}"));
        if charged.slots > 0 {
            text.push_str(&format!(", slots {}", charged.slots));
        }
    }
    for (left_ms, what) in [(lending.wait_left_ms, "WAITS"), (lending.quarantine_left_ms, "QUARANTINE")] {
        if left_ms > 0 {
            text.push_str(&format!(", {what} {}", duration(left_ms)));
        }
    }
    text
}

fn document(status: &StatusPage) -> Value {
    json!({
        "policy_version": version_json(status.version),
        "store": status.store,
        "store_up": status.store_up,
        "now_ms": status.about.now_ms,
        "policy_error": status.about.policy_error,
        "replica": status.about.replica_id,
        "replicas": status.about.replicas.iter().map(|replica| json!({
            "replica": replica.replica_id,
            "policy_version": version_json(replica.version),
            "age_ms": replica.age_ms,
            "policy_error": replica.policy_error,
        })).collect::<Vec<_>>(),
        "store_format": status.about.store_format.as_ref().map(|format| json!({
            "written": format.written,
            "readable": format.readable,
            "held_back_by": format.held_back_by,
        })),
        "kill_switches": status.about.kill_switches.iter().map(kill_switch_json).collect::<Vec<_>>(),
        "dependencies": status.dependencies.iter().map(dependency_json).collect::<Vec<_>>(),
    })
}

fn dependency_json(status: &DependencyStatus) -> Value {
    let bucket = |Balance { balance_micros, burst_micros }: Balance| json!({ "balance_micros": balance_micros, "burst_micros": burst_micros });
    let counters =
        COUNTERS.into_iter().map(|counter| (counter.name.to_owned(), (counter.get)(&status.counters).into()));
    let counters: serde_json::Map<String, Value> = counters.collect();
    json!({
        "name": status.name,
        "rule": status.rule,
        "retries_off": status.retries_off,
        "mode": status.mode.name(),
        "admission": status.admission.map(bucket),
        "retry": bucket(status.retry),
        "units": status.units.iter().map(|unit| {
            json!({ "unit": unit.unit, "balance_micros": unit.bucket.balance_micros,
                    "burst_micros": unit.bucket.burst_micros })
        }).collect::<Vec<_>>(),
        "in_flight": status.in_flight,
        "max_in_flight": status.max_in_flight,
        "ledger_version": status.ledger_version.map(version_json),
        "lending": status.lending.as_ref().map(lending_json),
        "policy_version": status.recent.policy_version.map(version_json),
        "kill_switch": status.recent.kill_switch.as_ref().map(kill_switch_json),
        "file": status.recent.file,
        "override": status.recent.over.as_ref().map(override_json),
        "fleet": status.recent.fleet.iter().map(window_json).collect::<Vec<_>>(),
        "replica": status.recent.replica.iter().map(window_json).collect::<Vec<_>>(),
        "counters": counters,
    })
}

/// Parts of cost units are shown by `budgetd holders`.
fn lending_json(lending: &Lending) -> Value {
    let none = UnitNames::default();
    json!({
        "epoch": { "number": lending.epoch.number, "id": lending.epoch.id },
        "holders": lending.holders,
        "charged": amounts_json(&lending.charged, &none),
        "unknown": amounts_json(&lending.unknown, &none),
        "quarantine_left_ms": lending.quarantine_left_ms,
        "wait_left_ms": lending.wait_left_ms,
        "clock_debt_ms": lending.clock_debt_ms,
    })
}
