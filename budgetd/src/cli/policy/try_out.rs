//! `budgetd policy try`: a policy file against the calls that one replica answers meanwhile.

use std::{io::Write, path::PathBuf, time::Duration};

use budget_client::{PolicyRule, Tally, Trial, TrialState};
use serde_json::{Value, json};

use crate::{
    cli::{
        Connection, Failure, Verdict, arguments,
        status::{CLEAR, refusals_json, refusals_text},
        table::{Table, print_json},
    },
    config::LeaseTiming,
    policies::PolicyFile,
};

/// Arguments of `policy try`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A policy file, or a directory of them. Rules it does not name stay as they are in force.
    file: PathBuf,
    /// How long, 1s to 10m.
    #[arg(long = "for", value_name = "DURATION", default_value = "30s", value_parser = arguments::positive_duration)]
    time: Duration,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(args: &Args, terminal: bool, out: &mut impl Write) -> Result<Verdict, Failure> {
    let connection = &args.connection;
    let set = PolicyFile::read_timed(&args.file, LeaseTiming::ANY)?.set;
    let rules = set.sources().into_iter().map(|(name, source_toml)| PolicyRule { name, source_toml }).collect();
    let client = connection.client()?;
    let for_ms = u64::try_from(args.time.as_millis()).unwrap_or(u64::MAX);
    let stream = client.try_policies(rules, for_ms, connection.timeout).await;
    let mut stream = stream.map_err(|error| connection.failure(error))?;
    let mut latest = None;
    while let Some(state) = stream.next().await.map_err(|error| connection.failure(error))? {
        if terminal && !connection.json && !state.finished {
            write!(out, "{CLEAR}")?;
            show(&state, out)?;
            out.flush()?;
        }
        latest = Some(state);
    }
    let Some(state) = latest else {
        let error = budget_client::Error::Unavailable("the trial ended before it had begun".to_owned());
        return Err(connection.failure(error));
    };
    if connection.json {
        print_json(out, &document(&state))?;
    } else {
        if terminal {
            write!(out, "{CLEAR}")?;
        }
        show(&state, out)?;
    }
    Ok(Verdict::Yes)
}

fn show(state: &TrialState, out: &mut impl Write) -> Result<(), Failure> {
    let (seconds, cut) = (state.elapsed_ms / 1_000, if state.finished { "" } else { " so far" });
    writeln!(
        out,
        "calls of one replica, {seconds} s{cut}; IN FORCE and CANDIDATE decide the same calls, each beginning full"
    )?;
    if state.left_out > 0 {
        writeln!(
            out,
            "{} calls were not compared: too many names, about operations, or the store was away",
            state.left_out
        )?;
    }
    if state.trials.is_empty() {
        writeln!(out, "nobody has asked for anything meanwhile")?;
        return Ok(());
    }
    let mut table = Table::default();
    table.row(["DEPENDENCY", "POLICY", "ORIGINALS", "RETRIES", "REFUSED"]);
    for trial in &state.trials {
        let mut row = |name: &str, policy: &str, tally: &Tally| {
            table.row([
                name.to_owned(),
                policy.to_owned(),
                tally.originals_admitted.to_string(),
                tally.retries_admitted.to_string(),
                refusals_text(&tally.refusals),
            ]);
        };
        row(&trial.dependency, "(answered)", &trial.real);
        row("", "IN FORCE", &trial.present);
        row("", "CANDIDATE", &trial.candidate);
        table.row([
            "",
            "difference",
            &difference(trial, |tally| tally.originals_admitted),
            &difference(trial, |tally| tally.retries_admitted),
        ]);
    }
    table.print(out)?;
    Ok(())
}

fn difference(trial: &Trial, count: fn(&Tally) -> u64) -> String {
    let [candidate, present] = [&trial.candidate, &trial.present].map(|tally| i128::from(count(tally)));
    format!("{:+}", candidate - present)
}

fn document(state: &TrialState) -> Value {
    let tally = |tally: &Tally| {
        json!({
            "originals_admitted": tally.originals_admitted,
            "retries_admitted": tally.retries_admitted,
            "refusals": refusals_json(&tally.refusals),
        })
    };
    let trial = |trial: &Trial| {
        json!({
            "dependency": trial.dependency,
            "answered": tally(&trial.real),
            "in_force": tally(&trial.present),
            "candidate": tally(&trial.candidate),
        })
    };
    json!({
        "scope": "replica",
        "elapsed_ms": state.elapsed_ms,
        "left_out": state.left_out,
        "dependencies": state.trials.iter().map(trial).collect::<Vec<_>>(),
    })
}
