//! The command line beside `serve`: everything an operator asks a running budgetd, over gRPC like any other client.
//!
//! Answers go to standard output, as aligned text or with `--json` as one JSON document. Errors go to standard error as
//! one line. The exit code is 0 for yes, 3 for an answer that says no (denied, or the policies differ), 1 for an error;
//! clap itself ends with 2 where the arguments make no sense.

use std::{
    io::{self, IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use budget_client::{Client, Credentials, Options};

mod arguments;
mod check;
mod explain;
mod holders;
mod policy;
mod release;
mod reserve;
mod retries;
mod status;
mod table;
#[cfg(test)]
mod tests;

use crate::{
    config::InvalidConfig,
    policies::{InvalidText, PolicyFileError},
};

/// Exit code of an answer that says no.
const EXIT_NO: u8 = 3;
/// Exit code of an error.
const EXIT_ERROR: u8 = 1;
/// Pages of 100 that are read at most, of policies or of dependencies: more than there can be.
const PAGES_MAX: usize = 1_000;

/// All subcommands but `serve`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Validates a policy file and prints the effective policy of every rule.
    Check(check::Args),
    /// Asks for one attempt; exit code 3 if it is denied.
    Reserve(reserve::Args),
    /// Ends a reservation: hands it back, or reports its outcome.
    Release(release::Args),
    /// Reads and writes policies.
    #[command(subcommand)]
    Policy(policy::Command),
    /// Shows rates, balances, permits and counters.
    Status(status::Args),
    /// Says why calls of a dependency are refused, what would help, and how much its policy can admit.
    Explain(explain::Args),
    /// The kill switch: switches retries off or on.
    #[command(subcommand)]
    Retries(retries::Command),
    /// Shows who holds leases of a dependency.
    Holders(holders::Args),
    /// Takes leases away.
    #[command(subcommand)]
    Lease(holders::Command),
}

/// How to reach budgetd and how to show its answer.
#[derive(Clone, Debug, clap::Args)]
pub struct Connection {
    /// http://host:port, https://host:port or unix:PATH of a running budgetd.
    #[arg(long, value_name = "URL", env = "BUDGETD_ENDPOINT", hide_env_values = true)]
    #[arg(default_value = "http://127.0.0.1:7411")]
    endpoint: String,
    /// Who signs the certificate of an https:// endpoint, in PEM.
    #[arg(long, value_name = "FILE", env = "BUDGETD_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// The certificate to show it, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of that certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// A file with a bearer token to send.
    #[arg(long, value_name = "FILE", env = "BUDGETD_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Longest wait for an answer.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = arguments::positive_duration)]
    timeout: Duration,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Yes,
    No,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{error} (endpoint {endpoint})")]
    Silent { endpoint: String, error: budget_client::Error },
    #[error(transparent)]
    Call(budget_client::Error),
    #[error(transparent)]
    PolicyFile(#[from] PolicyFileError),
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    #[error("policies at {endpoint}: {error}")]
    RemotePolicies { endpoint: String, error: Box<InvalidText> },
    #[error("{path}: {error}")]
    File { path: String, error: io::Error },
    #[error("{path}: {rule}")]
    FileContent { path: String, rule: &'static str },
    #[error("{endpoint} does not stop: more than {PAGES_MAX} pages")]
    Endless { endpoint: String },
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

/// Runs one command and says how the process ends.
pub async fn run(command: Command) -> ExitCode {
    let mut stdout = io::stdout().lock();
    let terminal = stdout.is_terminal();
    let verdict = match execute(command, terminal, &mut stdout).await {
        Ok(verdict) => stdout.flush().map(|()| verdict).map_err(Failure::Output),
        Err(failure) => Err(failure),
    };
    match verdict {
        Ok(Verdict::Yes) => ExitCode::SUCCESS,
        Ok(Verdict::No) => ExitCode::from(EXIT_NO),
        // The reader has seen enough, as with `| head`.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            // Nothing is left to be done if even standard error is closed.
            drop(writeln!(io::stderr(), "error: {}", one_line(&failure.to_string())));
            ExitCode::from(EXIT_ERROR)
        }
    }
}

/// `terminal`: whether the output can be cleared and written anew.
async fn execute(command: Command, terminal: bool, out: &mut impl Write) -> Result<Verdict, Failure> {
    match command {
        Command::Check(args) => check::run(&args, out),
        Command::Reserve(args) => reserve::run(&args, out).await,
        Command::Release(args) => release::run(&args, out).await,
        Command::Policy(command) => policy::run(&command, terminal, out).await,
        Command::Status(args) => status::run(&args, terminal, out).await,
        Command::Explain(args) => explain::run(&args, out).await,
        Command::Retries(command) => retries::run(&command, out).await,
        Command::Holders(args) => holders::run(&args, out).await,
        Command::Lease(command) => holders::run_lease(&command, out).await,
    }
}

/// What a server or a file put into an error must not move the cursor or add lines.
fn one_line(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}

// === impl Connection ===

impl Connection {
    fn client(&self) -> Result<Client, Failure> {
        let mut credentials = Credentials::default();
        if let Some(path) = &self.tls_ca {
            credentials = credentials.ca_file(path);
        }
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            credentials = credentials.certificate_files(cert, key);
        }
        if let Some(path) = &self.token_file {
            credentials = credentials.token_file(path);
        }
        let options = Options { credentials, ..Options::default() };
        Client::with_options(&self.endpoint, &options).map_err(Failure::Call)
    }

    /// Names the endpoint where it may be the reason.
    fn failure(&self, error: budget_client::Error) -> Failure {
        use budget_client::Error;
        match error {
            Error::Unreachable(_)
            | Error::OutcomeUnknown(_)
            | Error::DeadlineExceeded
            | Error::DeadlinePassed
            | Error::Unavailable(_)
            | Error::UnexpectedAnswer(_)
            | Error::Failed { .. } => Failure::Silent { endpoint: self.endpoint.clone(), error },
            Error::Unsendable(_)
            | Error::NoRuntime
            | Error::NoRandomness(_)
            | Error::SessionEnded(_)
            | Error::InvalidArgument(_)
            | Error::NotFound(_)
            | Error::Conflict(_)
            | Error::Overloaded(_)
            | Error::Unauthenticated(_)
            | Error::PermissionDenied(_) => Failure::Call(error),
        }
    }
}
