//! `budgetd retries on|off`: the kill switch.

use std::io::Write;

use serde_json::json;

use super::{
    Connection, Failure, Verdict,
    table::{print_json, version_json},
};

/// On or off.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Admits retries again, as far as the policies do.
    On(Args),
    /// Refuses every retry.
    Off(Args),
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
    /// Reason for budgetd's log, at most 256 bytes.
    #[arg(long, value_name = "TEXT", default_value = "")]
    why: String,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(command: &Command, out: &mut impl Write) -> Result<Verdict, Failure> {
    let (enabled, word, args) = match command {
        Command::On(args) => (true, "on", args),
        Command::Off(args) => (false, "off", args),
    };
    let target = args.dependency.as_deref().unwrap_or("*");
    let connection = &args.connection;
    let client = connection.client()?;
    let switched = client.set_retries(target, enabled, &args.why, connection.timeout).await;
    let version = switched.map_err(|error| connection.failure(error))?;
    if connection.json {
        let document = json!({ "target": target, "retries": word, "policy_version": version_json(version) });
        print_json(out, &document)?;
    } else {
        let target = if args.all { "all dependencies" } else { target };
        writeln!(out, "retries are {word} for {target} (policy version {})", version.number)?;
    }
    Ok(Verdict::Yes)
}
