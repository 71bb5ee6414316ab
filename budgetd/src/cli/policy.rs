//! `budgetd policy`: rules in force, their changes and their history.

mod changes;
mod history;
mod try_out;

use std::io::Write;

use budget::ids::PolicyVersion;
use budget_client::{By, Client, Dependency, KillSwitch, PolicyOverride, PolicyPage, PolicyRule, PolicyView};
use serde_json::{Value, json};

use super::{
    Connection, Failure, PAGES_MAX, Verdict, one_line,
    table::{Table, print_json, version_json},
};
use crate::{clock::utc, policies::reference};

/// What to do with policies.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Shows what one dependency runs under.
    Get(GetArgs),
    /// Shows all rules as they were written.
    List(ListArgs),
    /// Writes or removes one rule.
    Put(changes::PutArgs),
    /// Removes one rule, or ends its override.
    Delete(changes::DeleteArgs),
    /// Shows what would change if a policy file, or a directory of them, were in force, or what has changed since a version;
    /// exit code 3 if anything would or has.
    Diff(history::DiffArgs),
    /// Shows who changed what, when and why.
    History(history::HistoryArgs),
    /// Returns to the rules of an earlier version.
    Rollback(changes::RollbackArgs),
    /// Compares a policy file with the policies in force on the calls that one replica answers meanwhile; nothing in force
    /// changes.
    Try(try_out::Args),
    /// Prints every field of a policy with its default and what is allowed, as Markdown. Asks no daemon.
    Fields,
}

/// Arguments of `policy get`.
#[derive(Debug, clap::Args)]
pub struct GetArgs {
    /// The dependency.
    dependency: String,
    #[command(flatten)]
    connection: Connection,
}

/// Arguments of `policy list`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(command: &Command, terminal: bool, out: &mut impl Write) -> Result<Verdict, Failure> {
    match command {
        Command::Get(args) => get(args, out).await,
        Command::List(args) => list(args, out).await,
        Command::Put(args) => changes::put(args, out).await,
        Command::Delete(args) => changes::delete(args, out).await,
        Command::Diff(args) => history::compare(args, out).await,
        Command::History(args) => history::show(args, out).await,
        Command::Rollback(args) => changes::roll_back(args, out).await,
        Command::Try(args) => try_out::run(args, terminal, out).await,
        Command::Fields => {
            out.write_all(reference().as_bytes())?;
            Ok(Verdict::Yes)
        }
    }
}

async fn get(GetArgs { dependency, connection }: &GetArgs, out: &mut impl Write) -> Result<Verdict, Failure> {
    let client = connection.client()?;
    let dependency = Dependency::new(dependency).map_err(|invalid| Failure::Call(invalid.into()))?;
    let policy = client.get_policy(dependency.id(), connection.timeout).await;
    let policy = policy.map_err(|error| connection.failure(error))?;
    if connection.json {
        let document = json!({
            "dependency": dependency.id().as_str(),
            "rule": policy.rule,
            "source_toml": policy.source_toml,
            "effective_toml": policy.effective_toml,
            "retries_off": policy.retries_off,
            "kill_switch": policy.kill_switch.as_ref().map(kill_switch_json),
            "file": policy.file,
            "override": policy.over.as_ref().map(override_json),
            "policy_version": version_json(policy.version),
        });
        print_json(out, &document)?;
    } else {
        show(&dependency, &policy, out)?;
    }
    Ok(Verdict::Yes)
}

pub(super) fn show(dependency: &Dependency, policy: &PolicyView, out: &mut impl Write) -> Result<(), Failure> {
    let mut table = Table::default();
    table.row(["dependency", dependency.id().as_str()]);
    table.row(["rule", &policy.rule]);
    match &policy.kill_switch {
        Some(switch) => table.row(["retries", &kill_switch_text(switch)]),
        None => table.row(["retries", if policy.retries_off { "OFF" } else { "on" }]),
    }
    if let Some(file) = &policy.file {
        table.row(["file", &one_line(file)]);
    }
    if let Some(PolicyOverride { until_ms, by }) = &policy.over {
        table.row(["override", &format!("until {}, by {}", utc(*until_ms), by_text(by))]);
    }
    table.row(["policy version", &version_text(policy.version)]);
    table.print(out)?;
    writeln!(out, "\n{}", policy.effective_toml.trim_end())?;
    Ok(())
}

async fn list(ListArgs { connection }: &ListArgs, out: &mut impl Write) -> Result<Verdict, Failure> {
    let client = connection.client()?;
    let policies = read(&client, connection, None).await?;
    if connection.json {
        let rule = |rule: &PolicyRule| json!({ "name": rule.name, "source_toml": rule.source_toml });
        let document = json!({
            "policy_version": version_json(policies.version),
            "retries_off": policies.retries_off,
            "rules": policies.rules.iter().map(rule).collect::<Vec<_>>(),
        });
        print_json(out, &document)?;
    } else {
        show_all(&policies, out)?;
    }
    Ok(Verdict::Yes)
}

pub(super) fn show_all(policies: &PolicyPage, out: &mut impl Write) -> Result<(), Failure> {
    writeln!(out, "# policy version {}", version_text(policies.version))?;
    if !policies.retries_off.is_empty() {
        let targets: Vec<_> = policies.retries_off.iter().map(|target| format!("{target:?}")).collect();
        writeln!(out, "# retries are off for {}", targets.join(", "))?;
    }
    if policies.rules.is_empty() {
        writeln!(out, "# no rules: every dependency runs under the built-in defaults")?;
    }
    for rule in &policies.rules {
        writeln!(out, "\n# {}\n{}", rule.name, rule.source_toml.trim_end())?;
    }
    Ok(())
}

/// All pages as one, of the rules in force or of an earlier version.
async fn read(client: &Client, connection: &Connection, at: Option<i64>) -> Result<PolicyPage, Failure> {
    let page = async |token| {
        let page = match at {
            None => client.list_policies(token, connection.timeout).await,
            Some(number) => client.list_policies_at(number, token, connection.timeout).await,
        };
        page.map_err(|error| connection.failure(error))
    };
    let mut all = page(None).await?;
    for _ in 1..PAGES_MAX {
        let Some(token) = all.next.take() else { return Ok(all) };
        let mut further = page(Some(token)).await?;
        all.rules.append(&mut further.rules);
        all = PolicyPage { rules: all.rules, ..further };
    }
    match all.next {
        None => Ok(all),
        Some(_) => Err(Failure::Endless { endpoint: connection.endpoint.clone() }),
    }
}

/// Who, and why if they said so.
pub(super) fn by_text(By { who, why }: &By) -> String {
    let who = one_line(if who.is_empty() { "somebody" } else { who });
    if why.is_empty() { who } else { format!("{who}: {}", one_line(why)) }
}

pub(super) fn kill_switch_text(switch: &KillSwitch) -> String {
    let until = switch.until_ms.map_or_else(|| "until switched on".to_owned(), |ms| format!("until {}", utc(ms)));
    let target = if switch.target == "*" { "all".to_owned() } else { one_line(&switch.target) };
    format!("OFF for {target} {until}, by {}", by_text(&switch.by))
}

pub(super) fn kill_switch_json(switch: &KillSwitch) -> Value {
    json!({
        "target": switch.target,
        "since_ms": switch.since_ms,
        "until_ms": switch.until_ms,
        "who": switch.by.who,
        "why": switch.by.why,
    })
}

pub(super) fn override_json(over: &PolicyOverride) -> Value {
    json!({ "until_ms": over.until_ms, "who": over.by.who, "why": over.by.why })
}

/// As [`version`] reads it.
fn version_text(PolicyVersion { number, id }: PolicyVersion) -> String {
    format!("{number}:{id}")
}

fn version(text: &str) -> Result<PolicyVersion, String> {
    let parsed = text.split_once(':').and_then(|(number, id)| Some((number.parse().ok()?, id.parse().ok()?)));
    match parsed {
        Some((number, id)) if number >= 0 && id >= 0 => Ok(PolicyVersion { number, id }),
        Some(_) | None => Err("must look like NUMBER:ID, as `policy get` and `policy list` show it".to_owned()),
    }
}
