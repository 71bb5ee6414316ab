//! `budgetd policy put|delete|rollback`.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use budget::ids::PolicyVersion;
use budget_client::{Client, How, PolicyEdit};
use serde_json::json;

use super::{version, version_text};
use crate::{
    cli::{
        Connection, Failure, Verdict,
        arguments::{self, Author},
        table::{print_json, version_json},
    },
    policies::TEXT_BYTES_MAX,
};

/// What every change of the policies takes.
#[derive(Debug, clap::Args)]
struct ChangeArgs {
    /// Fail unless the policies still have this version, as `policy get` shows it (NUMBER:ID).
    #[arg(long, value_name = "VERSION", value_parser = version)]
    expect: Option<PolicyVersion>,
    #[command(flatten)]
    how: HowArgs,
    #[command(flatten)]
    author: Author,
    #[command(flatten)]
    connection: Connection,
}

/// What becomes of rules that policy files manage.
#[derive(Clone, Debug, clap::Args)]
struct HowArgs {
    /// The change holds for so long, up to 30d; then what was there before, or what a policy file says by then. Also for
    /// rules that a policy file manages.
    #[arg(long, value_name = "DURATION", conflicts_with = "take_over", value_parser = arguments::positive_duration)]
    override_for: Option<Duration>,
    /// The rule no longer belongs to its policy file, until the content of the files changes.
    #[arg(long)]
    take_over: bool,
}

/// Arguments of `policy put`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "budgetd policy put [OPTIONS] <NAME> <FILE|--remove>")]
#[command(group = clap::ArgGroup::new("text").required(true).args(["file", "remove"]))]
pub struct PutArgs {
    /// A dependency, a family ending in '*', or "defaults".
    name: String,
    /// The rule's fields as they would stand under its heading; '-' reads standard input.
    file: Option<PathBuf>,
    /// Remove the rule.
    #[arg(long)]
    remove: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Arguments of `policy delete`.
#[derive(Debug, clap::Args)]
pub struct DeleteArgs {
    /// A dependency, a family ending in '*', or "defaults".
    name: String,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Arguments of `policy rollback`.
#[derive(Debug, clap::Args)]
pub struct RollbackArgs {
    /// The number of an earlier version, as `policy history` shows it.
    #[arg(value_name = "VERSION", value_parser = clap::value_parser!(i64).range(0..))]
    to: i64,
    #[command(flatten)]
    change: ChangeArgs,
}

// === impl ChangeArgs ===

impl ChangeArgs {
    /// The version that the policies must still have: as given, else as they are now.
    async fn expected(&self, client: &Client) -> Result<PolicyVersion, Failure> {
        match self.expect {
            Some(version) => Ok(version),
            None => {
                let page = client.list_policies(None, self.connection.timeout).await;
                Ok(page.map_err(|error| self.connection.failure(error))?.version)
            }
        }
    }
}

// === impl HowArgs ===

impl HowArgs {
    fn how(&self) -> How {
        match (self.override_for, self.take_over) {
            (Some(time), _) => How::OverrideForMs(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)),
            (None, true) => How::TakeOver,
            (None, false) => How::Plain,
        }
    }
}

pub(super) async fn put(args: &PutArgs, out: &mut impl Write) -> Result<Verdict, Failure> {
    let source_toml = match &args.file {
        // To write nothing is to remove the rule, and that takes a clear word.
        Some(file) => Some(not_empty(file, text(file)?)?),
        None => None,
    };
    edit(&args.name, source_toml, &args.change, out).await
}

pub(super) async fn delete(args: &DeleteArgs, out: &mut impl Write) -> Result<Verdict, Failure> {
    edit(&args.name, None, &args.change, out).await
}

/// Without a text the rule is removed.
async fn edit(
    name: &str,
    source_toml: Option<String>,
    change: &ChangeArgs,
    out: &mut impl Write,
) -> Result<Verdict, Failure> {
    let word = if source_toml.is_some() { "written" } else { "removed" };
    let connection = &change.connection;
    let client = connection.client()?;
    let expected = change.expected(&client).await?;
    let edit =
        PolicyEdit { name: name.to_owned(), source_toml, expected, how: change.how.how(), by: change.author.by() };
    let version = client.edit_policy(edit, connection.timeout).await;
    let version = version.map_err(|error| connection.failure(error))?;
    if connection.json {
        print_json(out, &json!({ "rule": name, "result": word, "policy_version": version_json(version) }))?;
    } else {
        writeln!(out, "rule {name} is {word} (policy version {})", version_text(version))?;
    }
    Ok(Verdict::Yes)
}

pub(super) async fn roll_back(args: &RollbackArgs, out: &mut impl Write) -> Result<Verdict, Failure> {
    let RollbackArgs { to, change } = args;
    let connection = &change.connection;
    let client = connection.client()?;
    let expected = change.expected(&client).await?;
    let version = client.roll_back(*to, expected, change.how.how(), change.author.by(), connection.timeout).await;
    let version = version.map_err(|error| connection.failure(error))?;
    if connection.json {
        print_json(out, &json!({ "rules_of": to, "policy_version": version_json(version) }))?;
    } else {
        writeln!(out, "the rules are those of version {to} (policy version {})", version_text(version))?;
    }
    Ok(Verdict::Yes)
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
