//! `budgetd policy history|diff`.

use std::{collections::BTreeMap, io::Write, path::PathBuf};

use budget_client::{Client, PolicyPage};
use serde_json::json;

use super::{by_text, read, version_text};
use crate::{
    cli::{
        Connection, Failure, PAGES_MAX, Verdict, one_line,
        table::{Table, print_json, version_json},
    },
    clock::utc,
    config::LeaseTiming,
    policies::{PolicyFile, PolicySet, diff},
};

/// Arguments of `policy history`.
#[derive(Debug, clap::Args)]
pub struct HistoryArgs {
    #[command(flatten)]
    connection: Connection,
}

/// Arguments of `policy diff`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["file", "from"]))]
pub struct DiffArgs {
    /// A policy file, or a directory of them.
    file: Option<PathBuf>,
    /// The number of an earlier version, as `policy history` shows it.
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(i64).range(0..))]
    from: Option<i64>,
    /// The number of a later one [default: the present].
    #[arg(long, value_name = "VERSION", conflicts_with = "file", value_parser = clap::value_parser!(i64).range(0..))]
    to: Option<i64>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn show(HistoryArgs { connection }: &HistoryArgs, out: &mut impl Write) -> Result<Verdict, Failure> {
    let client = connection.client()?;
    let (mut changes, mut token) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let page = client.policy_history(token, connection.timeout).await;
        let mut page = page.map_err(|error| connection.failure(error))?;
        changes.append(&mut page.changes);
        token = page.next;
        if token.is_none() {
            break;
        }
    }
    if connection.json {
        let change = |change: &budget_client::PolicyChange| {
            json!({
                "policy_version": version_json(change.version),
                "at_ms": change.at_ms,
                "who": change.by.who,
                "why": change.by.why,
                "what": change.what,
                "rules": change.rules,
                "rules_count": change.rules_count,
            })
        };
        print_json(out, &json!({ "changes": changes.iter().map(change).collect::<Vec<_>>() }))?;
        return Ok(Verdict::Yes);
    }
    if changes.is_empty() {
        writeln!(out, "nothing has been changed yet")?;
        return Ok(Verdict::Yes);
    }
    let mut table = Table::default();
    table.row(["VERSION", "WHEN", "WHAT", "WHO: WHY"]);
    for change in &changes {
        table.row([change.version.number.to_string(), utc(change.at_ms), one_line(&change.what), by_text(&change.by)]);
    }
    table.print(out)?;
    Ok(Verdict::Yes)
}

pub(super) async fn compare(args: &DiffArgs, out: &mut impl Write) -> Result<Verdict, Failure> {
    let connection = &args.connection;
    let client = connection.client()?;
    let (old, new, page) = match &args.file {
        Some(file) => {
            let new = PolicyFile::read_timed(file, LeaseTiming::ANY)?.set;
            let (old, page) = rules(&client, connection, None).await?;
            (old, new, page)
        }
        None => {
            let (old, page) = rules(&client, connection, args.from).await?;
            let (new, _) = rules(&client, connection, args.to).await?;
            (old, new, page)
        }
    };
    let changes = diff(&old, &new);
    if connection.json {
        let lines: Vec<_> = changes.lines().collect();
        let version = version_json(page.version);
        print_json(out, &json!({ "equal": changes.is_empty(), "changes": lines, "policy_version": version }))?;
    } else if changes.is_empty() {
        writeln!(out, "no difference to policy version {}", version_text(page.version))?;
    } else {
        write!(out, "{changes}")?;
    }
    Ok(if changes.is_empty() { Verdict::Yes } else { Verdict::No })
}

async fn rules(client: &Client, connection: &Connection, at: Option<i64>) -> Result<(PolicySet, PolicyPage), Failure> {
    let page = read(client, connection, at).await?;
    let rules: BTreeMap<_, _> = page.rules.iter().map(|rule| (rule.name.clone(), rule.source_toml.clone())).collect();
    let set = PolicySet::of_rules(&rules, Some(&PolicySet::timed(LeaseTiming::ANY)));
    let set =
        set.map_err(|error| Failure::RemotePolicies { endpoint: connection.endpoint.clone(), error: Box::new(error) })?;
    Ok((set, page))
}
