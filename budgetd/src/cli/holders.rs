//! `budgetd holders` and `budgetd lease revoke`: who holds leases of a dependency, and taking one away.

use std::io::Write;

use budget::{
    ids::PolicyVersion,
    lease::{Amounts, HolderId, SHARE_ONE},
    units::Decimal,
};
use budget_client::{Client, Dependency, Holder, UnitNames};
use serde_json::{Value, json};

use super::{
    Connection, Failure, PAGES_MAX, Verdict, arguments,
    table::{Table, duration, print_json, tokens, version_json},
};

/// Arguments of `holders`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The dependency.
    dependency: String,
    #[command(flatten)]
    connection: Connection,
}

/// What to do with a lease.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Takes a holder's lease away from its next sync on, for as long as a curve lasts; exit code 3 if no such holder is
    /// known.
    Revoke(RevokeArgs),
}

/// Arguments of `lease revoke`.
#[derive(Debug, clap::Args)]
pub struct RevokeArgs {
    /// The dependency.
    dependency: String,
    /// The holder, as `budgetd holders` shows it.
    #[arg(value_parser = arguments::holder_id)]
    holder: HolderId,
    /// Reason for budgetd's log, at most 256 bytes.
    #[arg(long, value_name = "TEXT", default_value = "")]
    why: String,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(args: &Args, out: &mut impl Write) -> Result<Verdict, Failure> {
    let client = args.connection.client()?;
    let dependency = Dependency::new(&args.dependency).map_err(|invalid| Failure::Call(invalid.into()))?;
    let holders = read(&client, &args.connection, &dependency).await?;
    show(&dependency, &holders, args.connection.json, out)?;
    Ok(Verdict::Yes)
}

pub(super) async fn run_lease(command: &Command, out: &mut impl Write) -> Result<Verdict, Failure> {
    let Command::Revoke(RevokeArgs { dependency, holder, why, connection }) = command;
    let client = connection.client()?;
    let dependency = Dependency::new(dependency).map_err(|invalid| Failure::Call(invalid.into()))?;
    let revoked = client.revoke_lease(dependency.id(), holder, why, connection.timeout).await;
    let revoked = revoked.map_err(|error| connection.failure(error))?;
    let (name, holder) = (dependency.id().as_str(), holder.as_str());
    if connection.json {
        print_json(out, &json!({ "dependency": name, "holder": holder, "revoked": revoked }))?;
    } else if revoked {
        writeln!(out, "{holder} loses its lease of {name} at its next sync")?;
    } else {
        writeln!(out, "{holder} is no holder of {name}")?;
    }
    Ok(if revoked { Verdict::Yes } else { Verdict::No })
}

/// A holder, and of which policies the replica that is asked told it last.
pub(super) type Listed = (Holder, Option<PolicyVersion>);

/// All pages.
async fn read(client: &Client, connection: &Connection, dependency: &Dependency) -> Result<Vec<Listed>, Failure> {
    let (mut all, mut token) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let page = client.list_holders(dependency.id(), token, connection.timeout).await;
        let page = page.map_err(|error| connection.failure(error))?;
        all.extend(page.holders.into_iter().zip(page.versions));
        match page.next {
            None => return Ok(all),
            next => token = next,
        }
    }
    Err(Failure::Endless { endpoint: connection.endpoint.clone() })
}

pub(super) fn show(
    dependency: &Dependency,
    holders: &[Listed],
    json: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let name = dependency.id().as_str();
    if json {
        let holders: Vec<_> = holders.iter().map(holder_json).collect();
        print_json(out, &json!({ "dependency": name, "holders": holders }))?;
        return Ok(());
    }
    if holders.is_empty() {
        writeln!(out, "{name} has no holders")?;
        return Ok(());
    }
    let mut table = Table::default();
    table.row(["HOLDER", "WEIGHT", "DEMAND", "RATE", "BURST", "RETRY BURST", "SLOTS", "ENDS IN", "POLICY", "NOTES"]);
    for (Holder { value: view, units }, version) in holders {
        let lease = &view.value;
        table.row([
            view.holder.as_str().to_owned(),
            view.weight.to_string(),
            format!("{}%", Decimal((view.demand * 1_000_000).div_euclid(SHARE_ONE / 100))),
            format!("{}/s", tokens(lease.rate)),
            tokens(lease.burst),
            tokens(lease.retry_burst),
            lease.slots.to_string(),
            duration(view.expires_in_ms),
            version.map_or_else(|| "?".to_owned(), |version| version.number.to_string()),
            if view.revoked { "REVOKED".to_owned() } else { String::new() },
        ]);
        for part in &lease.units {
            let empty = String::new;
            let unit = units.name(part.unit).unwrap_or("?");
            table.row([format!("  {unit}"), empty(), empty(), format!("{}/s", tokens(part.rate)), tokens(part.burst)]);
        }
    }
    table.print(out)?;
    Ok(())
}

fn holder_json((Holder { value: view, units }, version): &Listed) -> Value {
    let usage = &view.usage;
    json!({
        "holder": view.holder.as_str(),
        "incarnation": format!("{:?}", view.incarnation),
        "weight": view.weight,
        "demand_ppm": view.demand.div_euclid(SHARE_ONE / 1_000_000),
        "lease": amounts_json(&view.value, units),
        "charged": amounts_json(&view.charged, units),
        "generation": view.generation,
        "expires_in_ms": view.expires_in_ms,
        "revoked": view.revoked,
        "policy_version": version.map(version_json),
        "usage": {
            "asked": usage.asked,
            "originals_admitted": usage.originals_admitted,
            "retries_admitted": usage.retries_admitted,
            "originals_denied": usage.originals_denied,
            "retries_denied": usage.retries_denied,
            "not_sent": usage.not_sent,
            "fallback_originals": usage.fallback_originals,
            "fallback_retries": usage.fallback_retries,
            "deposited_micros": usage.deposited_micros,
            "overuse_micros": usage.overuse_micros,
        },
    })
}

/// Units without a known name are left out.
pub(super) fn amounts_json(amounts: &Amounts, units: &UnitNames) -> Value {
    let unit = |part: &budget::lease::UnitAmounts| {
        let unit = units.name(part.unit)?;
        Some(json!({ "unit": unit, "rate_micros_per_second": part.rate, "burst_micros": part.burst }))
    };
    json!({
        "rate_micros_per_second": amounts.rate,
        "burst_micros": amounts.burst,
        "retry_burst_micros": amounts.retry_burst,
        "slots": amounts.slots,
        "units": amounts.units.iter().filter_map(unit).collect::<Vec<_>>(),
    })
}
