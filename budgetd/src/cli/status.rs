//! `budgetd status`: balances, permits and counters.

use std::{io::Write, time::Duration};

use budget::{ids::DependencyId, ledger::Lending};
use budget_client::{Balance, Client, Dependency, DependencyStatus, StatusPage, UnitNames};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::{
    Connection, Failure, PAGES_MAX, Verdict, arguments,
    holders::amounts_json,
    one_line,
    table::{Table, duration, print_json, tokens, version_json},
};

/// Moves to the top left and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

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
        let status = read(&client, &args.connection, &ids).await;
        if terminal {
            write!(out, "{CLEAR}")?;
        }
        match status {
            Ok(status) => show(&status, args.connection.json, out)?,
            // Whoever watches wants to see it come back.
            Err(failure @ Failure::Silent { .. }) if args.connection.json => {
                print_json(out, &json!({ "error": failure.to_string() }))?;
            }
            Err(failure @ Failure::Silent { .. }) => writeln!(out, "{}", one_line(&failure.to_string()))?,
            Err(failure) => return Err(failure),
        }
        if !args.connection.json && !terminal {
            writeln!(out)?;
        }
        out.flush()?;
    }
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
        all = StatusPage { dependencies: all.dependencies, ..further };
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
        notes(status),
    ]);
    for unit in &status.units {
        let empty = String::new;
        table.row([format!("  {}", unit.unit), empty(), empty(), bucket(unit.bucket)]);
    }
}

fn bucket(Balance { balance_micros, burst_micros }: Balance) -> String {
    format!("{}/{}", tokens(balance_micros), tokens(burst_micros))
}

/// What is out of the ordinary.
fn notes(status: &DependencyStatus) -> String {
    let counters = &status.counters;
    let counted = [
        (counters.would_be_denied, "would be denied"),
        (counters.not_sent, "not sent"),
        (counters.permits_expired, "permits expired"),
        (counters.account_signals, "account signals"),
    ];
    let counted = counted.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let off = status.retries_off.then(|| "RETRIES OFF".to_owned());
    let overuse = (counters.overuse_micros > 0).then(|| format!("{} overused", tokens(counters.overuse_micros)));
    let leased = status.lending.iter().map(leased);
    off.into_iter().chain(leased).chain(counted).chain(overuse).collect::<Vec<_>>().join(", ")
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
        "dependencies": status.dependencies.iter().map(dependency_json).collect::<Vec<_>>(),
    })
}

fn dependency_json(status: &DependencyStatus) -> Value {
    let bucket = |Balance { balance_micros, burst_micros }: Balance| json!({ "balance_micros": balance_micros, "burst_micros": burst_micros });
    let counters = &status.counters;
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
        "counters": {
            "originals_admitted": counters.originals_admitted,
            "retries_admitted": counters.retries_admitted,
            "originals_denied": counters.originals_denied,
            "retries_denied": counters.retries_denied,
            "not_sent": counters.not_sent,
            "permits_expired": counters.permits_expired,
            "deposited_micros": counters.deposited_micros,
            "overuse_micros": counters.overuse_micros,
            "account_signals": counters.account_signals,
            "would_be_denied": counters.would_be_denied,
        },
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
