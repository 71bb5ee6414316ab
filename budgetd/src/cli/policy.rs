//! `budgetd policy get|list|put|diff|fields`.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use budget::ids::PolicyVersion;
use budget_client::{Client, Dependency, PolicyPage, PolicyRule, PolicyView};
use serde_json::json;

use super::{
    Connection, Failure, PAGES_MAX, Verdict,
    table::{Table, print_json, version_json},
};
use crate::{
    config::LeaseTiming,
    policies::{PolicyFile, PolicySet, TEXT_BYTES_MAX, diff, reference},
};

/// What to do with policies.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Shows what one dependency runs under.
    Get(GetArgs),
    /// Shows all rules as they were written.
    List(ListArgs),
    /// Writes or removes one rule.
    Put(PutArgs),
    /// Shows what would change if a policy file were in force; exit code 3 if anything would.
    Diff(DiffArgs),
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

/// Arguments of `policy put`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("text").required(true).args(["file", "remove"]))]
pub struct PutArgs {
    /// A dependency, a family ending in '*', or "defaults".
    name: String,
    /// The rule's fields as they would stand under its heading; '-' reads standard input.
    file: Option<PathBuf>,
    /// Remove the rule.
    #[arg(long)]
    remove: bool,
    /// Fail unless the policies still have this version, as `policy get` shows it (NUMBER:ID).
    #[arg(long, value_name = "VERSION", value_parser = version)]
    expect: Option<PolicyVersion>,
    #[command(flatten)]
    connection: Connection,
}

/// Arguments of `policy diff`.
#[derive(Debug, clap::Args)]
pub struct DiffArgs {
    /// A policy file.
    file: PathBuf,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(command: &Command, out: &mut impl Write) -> Result<Verdict, Failure> {
    match command {
        Command::Get(args) => get(args, out).await,
        Command::List(args) => list(args, out).await,
        Command::Put(args) => put(args, out).await,
        Command::Diff(args) => compare(args, out).await,
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
    table.row(["retries", if policy.retries_off { "OFF" } else { "on" }]);
    table.row(["policy version", &version_text(policy.version)]);
    table.print(out)?;
    writeln!(out, "\n{}", policy.effective_toml.trim_end())?;
    Ok(())
}

async fn list(ListArgs { connection }: &ListArgs, out: &mut impl Write) -> Result<Verdict, Failure> {
    let client = connection.client()?;
    let policies = read(&client, connection).await?;
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

async fn put(args: &PutArgs, out: &mut impl Write) -> Result<Verdict, Failure> {
    let connection = &args.connection;
    let source_toml = match &args.file {
        // To write nothing is to remove the rule, and that takes a clear word.
        Some(file) => not_empty(file, text(file)?)?,
        None => String::new(),
    };
    let client = connection.client()?;
    let expected = match args.expect {
        Some(version) => version,
        None => {
            let page = client.list_policies(None, connection.timeout).await;
            page.map_err(|error| connection.failure(error))?.version
        }
    };
    let rule = PolicyRule { name: args.name.clone(), source_toml };
    let version = client.put_policy(rule, expected, connection.timeout).await;
    let version = version.map_err(|error| connection.failure(error))?;
    let word = if args.remove { "removed" } else { "written" };
    if connection.json {
        let document = json!({ "rule": args.name, "result": word, "policy_version": version_json(version) });
        print_json(out, &document)?;
    } else {
        writeln!(out, "rule {} is {word} (policy version {})", args.name, version_text(version))?;
    }
    Ok(Verdict::Yes)
}

async fn compare(DiffArgs { file, connection }: &DiffArgs, out: &mut impl Write) -> Result<Verdict, Failure> {
    let new = PolicyFile::read_timed(file, LeaseTiming::ANY)?.set;
    let client = connection.client()?;
    let policies = read(&client, connection).await?;
    let rules: BTreeMap<_, _> = policies.rules.into_iter().map(|rule| (rule.name, rule.source_toml)).collect();
    let old = PolicySet::of_rules(&rules, Some(&PolicySet::timed(LeaseTiming::ANY)))
        .map_err(|error| Failure::RemotePolicies { endpoint: connection.endpoint.clone(), error: Box::new(error) })?;
    let changes = diff(&old, &new);
    if connection.json {
        let lines: Vec<_> = changes.lines().collect();
        let version = version_json(policies.version);
        print_json(out, &json!({ "equal": changes.is_empty(), "changes": lines, "policy_version": version }))?;
    } else if changes.is_empty() {
        writeln!(out, "no difference to policy version {}", version_text(policies.version))?;
    } else {
        write!(out, "{changes}")?;
    }
    Ok(if changes.is_empty() { Verdict::Yes } else { Verdict::No })
}

/// All pages as one.
async fn read(client: &Client, connection: &Connection) -> Result<PolicyPage, Failure> {
    let page =
        async |token| client.list_policies(token, connection.timeout).await.map_err(|error| connection.failure(error));
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

fn text(file: &Path) -> Result<String, Failure> {
    let failure = |error| Failure::File { path: file.display().to_string(), error };
    let most = u64::try_from(TEXT_BYTES_MAX).unwrap_or(u64::MAX);
    let reader: Box<dyn Read> = if file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(file).map_err(failure)?)
    };
    let mut text = String::new();
    reader.take(most.saturating_add(1)).read_to_string(&mut text).map_err(failure)?;
    if text.len() > TEXT_BYTES_MAX {
        return Err(Failure::FileContent {
            path: file.display().to_string(),
            rule: "is larger than all policies may be",
        });
    }
    Ok(text)
}

fn not_empty(file: &Path, text: String) -> Result<String, Failure> {
    if text.trim().is_empty() {
        let rule = "is empty; use --remove to remove a rule";
        return Err(Failure::FileContent { path: file.display().to_string(), rule });
    }
    Ok(text)
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
