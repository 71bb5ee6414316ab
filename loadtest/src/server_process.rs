//! Servers as child processes: this binary, started again with a hidden subcommand. They listen on free loopback
//! ports, say where on standard output, end when their standard input ends, and are killed when dropped.

use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time,
};

use crate::{Error, calls};

/// How long a server may take to say where it listens.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// Lines of a failed server's log that are shown.
const LOG_LINES_SHOWN: usize = 20;

/// `/proc` counts processor time in hundredths of a second on every Linux.
const MICROS_PER_TICK: u64 = 10_000;

/// A child process that serves.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    name: &'static str,
    child: Child,
    address: String,
    log: PathBuf,
}

/// Prepares a command whose process dies with its handle and logs to `log`.
pub(crate) fn command(program: impl AsRef<OsStr>, log: &Path) -> Result<Command, Error> {
    let mut command = Command::new(program);
    command.kill_on_drop(true).stderr(File::create(log)?);
    Ok(command)
}

/// The last lines of a log, for an error message.
pub(crate) fn log_tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}

/// Processor time a process has used; none where `/proc` does not say.
pub(crate) fn cpu_micros(pid: u32) -> Option<u64> {
    parse_cpu_micros(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Memory of a process that no file backs: heap and stacks; none where `/proc` does not say.
pub(crate) fn anonymous_bytes(pid: u32) -> Option<u64> {
    parse_anonymous_bytes(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn parse_cpu_micros(stat: &str) -> Option<u64> {
    // The name in parentheses may contain spaces and parentheses; user and system time are fields 14 and 15.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) * MICROS_PER_TICK)
}

fn parse_anonymous_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

// === impl ServerProcess ===

impl ServerProcess {
    /// Starts this binary with `arguments` and waits until it answers calls.
    pub(crate) async fn start<A: AsRef<OsStr>>(
        name: &'static str,
        arguments: impl IntoIterator<Item = A>,
        scratch: &Path,
    ) -> Result<Self, Error> {
        let log = scratch.join(format!("{name}.log"));
        let mut child =
            command(env::current_exe()?, &log)?.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or("a child process has no standard output")?;
        let mut lines = BufReader::new(stdout).lines();
        let said = time::timeout(START_PATIENCE, lines.next_line()).await;
        let Ok(Ok(Some(address))) = said else {
            return Err(format!("{name} did not start; its log ends with\n{}", log_tail(&log)).into());
        };
        // Whatever else it prints must not block it.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let mut process = Self { name, child, address, log };
        match calls::until_answered(&process.address).await {
            Ok(()) => Ok(process),
            Err(error) => Err(process.blame(&error)),
        }
    }

    /// Ends it and waits for its end.
    pub(crate) async fn end(mut self) -> Result<(), Error> {
        Ok(self.child.kill().await?)
    }

    /// Starts a replica of budgetd.
    pub(crate) async fn start_daemon(
        name: &'static str,
        store: &str,
        policy_file: &Path,
        scratch: &Path,
    ) -> Result<Self, Error> {
        let arguments = [OsStr::new("serve-daemon"), OsStr::new("--store"), OsStr::new(store)];
        let policies = [OsStr::new("--policies"), policy_file.as_os_str()];
        Self::start(name, arguments.into_iter().chain(policies), scratch).await
    }

    /// The same, answering from leases held on the store.
    pub(crate) async fn start_leased(
        name: &'static str,
        store: &str,
        policy_file: &Path,
        scratch: &Path,
    ) -> Result<Self, Error> {
        let arguments = ["serve-daemon", "--lease", "--store", store, "--policies"].map(OsStr::new);
        Self::start(name, arguments.into_iter().chain([policy_file.as_os_str()]), scratch).await
    }

    /// A replica with its ledgers in memory that sends metrics and traces to a collector.
    pub(crate) async fn start_sending(
        name: &'static str,
        collector: &str,
        policy_file: &Path,
        scratch: &Path,
    ) -> Result<Self, Error> {
        let endpoint = format!("http://{collector}");
        let arguments =
            ["serve-daemon", "--store", "memory", "--otlp-endpoint", &endpoint, "--policies"].map(OsStr::new);
        Self::start(name, arguments.into_iter().chain([policy_file.as_os_str()]), scratch).await
    }

    /// Where its gRPC server listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// See [`cpu_micros`].
    pub(crate) fn cpu_micros(&self) -> Option<u64> {
        cpu_micros(self.child.id()?)
    }

    /// See [`anonymous_bytes`].
    pub(crate) fn anonymous_bytes(&self) -> Option<u64> {
        anonymous_bytes(self.child.id()?)
    }

    /// Adds to an error what this server last said.
    pub(crate) fn blame(&mut self, error: &Error) -> Error {
        let state = match self.child.try_wait() {
            Ok(Some(status)) => format!("it ended with {status}"),
            Ok(None) => "it is running".to_owned(),
            Err(error) => format!("its state is unknown: {error}"),
        };
        format!("{}: {error}; {state}; its log ends with\n{}", self.name, log_tail(&self.log)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_past_a_hostile_name() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194304 100 0 0 0 7 5 0 0 20 0 3 0 100 1000 10";
        assert_eq!(parse_cpu_micros(stat), Some(120_000));
        assert_eq!(parse_cpu_micros("nonsense"), None);
    }

    #[test]
    fn anonymous_memory_is_read_in_bytes() {
        assert_eq!(parse_anonymous_bytes("VmRSS:\t 9 kB\nRssAnon:\t    1234 kB\nRssFile: 1 kB\n"), Some(1_263_616));
        assert_eq!(parse_anonymous_bytes("VmRSS: 9 kB"), None);
    }
}
