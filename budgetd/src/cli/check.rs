//! `budgetd check`: validates a policy file without a server.

use std::{io::Write, path::PathBuf, sync::Arc};

use budget::ids::PolicyVersion;
use serde_json::json;

use super::{Failure, Verdict, table::print_json};
use crate::{
    config::Config,
    policies::{PolicyFile, Snapshot, Switches, check_report, reports},
};

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The policy file.
    file: PathBuf,
    /// A settings file of `serve`, whose [timing] leases have to fit; without one the built-in limits hold
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, out: &mut impl Write) -> Result<Verdict, Failure> {
    let timing = args.config.as_deref().map(Config::timing_of).transpose()?.unwrap_or_default();
    let file = PolicyFile::read_timed(&args.file, timing)?;
    let snapshot = Snapshot::new(PolicyVersion::default(), Arc::new(file.set), Switches::default());
    if args.json {
        print_json(out, &json!({ "valid": true, "rules": reports(&snapshot) }))?;
    } else {
        write!(out, "{}", check_report(&snapshot))?;
    }
    Ok(Verdict::Yes)
}
