//! `budgetd retries on|off`: the kill switch.

use std::{io::Write, time::Duration};

use budget_client::RetrySwitch;
use serde_json::json;

use super::{
    Connection, Failure, Verdict,
    arguments::{self, Author},
    one_line,
    table::{print_json, version_json},
};
use crate::clock::utc;

/// On or off.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Admits retries again, as far as the policies do.
    On(Args),
    /// Refuses every retry.
    Off(OffArgs),
}

/// Arguments of `retries off`.
#[derive(Debug, clap::Args)]
pub struct OffArgs {
    /// Switched on again by itself after this time, up to 30d [default: never]
    #[arg(long = "for", value_name = "DURATION", value_parser = arguments::positive_duration)]
    time: Option<Duration>,
    #[command(flatten)]
    args: Args,
}

/// Arguments of both.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["dependency", "all"]))]
pub struct Args {
    /// A dependency, or a family ending in '*'.
    dependency: Option<String>,
    /// Everywhere.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    author: Author,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(command: &Command, out: &mut impl Write) -> Result<Verdict, Failure> {
    let (enabled, word, args, time) = match command {
        Command::On(args) => (true, "on", args, None),
        Command::Off(OffArgs { time, args }) => (false, "off", args, *time),
    };
    let target = args.dependency.as_deref().unwrap_or("*");
    let connection = &args.connection;
    let client = connection.client()?;
    let for_ms = time.map(|time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
    let switch = RetrySwitch { target: target.to_owned(), enabled, for_ms, by: args.author.by() };
    let switched = client.switch_retries(switch, connection.timeout).await;
    let switched = switched.map_err(|error| connection.failure(error))?;
    if connection.json {
        let document = json!({
            "target": target,
            "retries": word,
            "until_ms": switched.until_ms,
            "pending": switched.pending,
            "still_off_by": switched.still_off_by,
            "policy_version": version_json(switched.version),
        });
        print_json(out, &document)?;
        return Ok(Verdict::Yes);
    }
    let target = if args.all { "all dependencies" } else { target };
    let until = switched.until_ms.map_or_else(String::new, |ms| format!(" until {}", utc(ms)));
    writeln!(out, "retries are {word} for {target}{until} (policy version {})", switched.version.number)?;
    if let Some(wider) = &switched.still_off_by {
        writeln!(out, "they stay off by the wider switch {}", one_line(wider))?;
    }
    if switched.pending {
        writeln!(
            out,
            "only at the replica {} so far: the store is away; tell the others too. It is stored for all when the store \
             is back",
            connection.endpoint
        )?;
    }
    Ok(Verdict::Yes)
}
