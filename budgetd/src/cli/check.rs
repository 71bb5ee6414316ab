//! `budgetd check`: validates a policy file without a server, and says what its leases may do.

use std::{io::Write, path::PathBuf, sync::Arc, time::Duration};

use budget::{bound::Fleet, ids::PolicyVersion};
use serde_json::{Value, json};

use super::{Failure, Verdict, arguments, table::print_json};
use crate::{
    config::Config,
    policies::{LeaseReport, PolicyFile, Question, Snapshot, Switches, check_report, reports},
};

/// Most processes that can be asked for.
const PROCESSES_MAX: i64 = 1_000_000;

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The policy file.
    file: PathBuf,
    /// Where leases are permitted: processes that hold them.
    #[arg(long, value_name = "COUNT", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(i64).range(1..=PROCESSES_MAX))]
    holders: i64,
    /// Replicas of budgetd that answer Reserve by the fallback while the store is away.
    #[arg(long, value_name = "COUNT", default_value = "0")]
    #[arg(value_parser = clap::value_parser!(i64).range(0..=PROCESSES_MAX))]
    replicas: i64,
    /// Of all these, how many live beyond their curve at once [default: all].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(i64).range(0..=PROCESSES_MAX))]
    beyond: Option<i64>,
    /// Length of the window that the bound is for.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = arguments::positive_duration)]
    window: Duration,
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
    let leases = LeaseReport::all(&snapshot, args.question());
    if args.json {
        let leases: Vec<Value> = leases.iter().map(LeaseReport::json).collect();
        print_json(out, &json!({ "valid": true, "rules": reports(&snapshot), "leases": leases }))?;
    } else {
        write!(out, "{}", check_report(&snapshot))?;
        for report in &leases {
            write!(out, "\n{}", report.text())?;
        }
    }
    Ok(Verdict::Yes)
}

// === impl Args ===

impl Args {
    fn question(&self) -> Question {
        let fleet = Fleet { holders: self.holders, replicas: self.replicas };
        Question {
            fleet,
            beyond: self.beyond.unwrap_or(self.holders + self.replicas),
            window_ms: i64::try_from(self.window.as_millis()).unwrap_or(i64::MAX),
        }
    }
}
