//! A child process that can be watched, stopped and killed by its id. It ends with its handle.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
    time,
};

use crate::{
    Error,
    server_process::{command, log_tail},
};

/// This binary under a hidden subcommand.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    /// It ends when this closes.
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
}

// === impl Process ===

impl Process {
    pub(crate) fn start<A: AsRef<OsStr>>(
        name: impl Into<String>,
        arguments: impl IntoIterator<Item = A>,
        scratch: &Path,
    ) -> Result<Self, Error> {
        let name = name.into();
        let log = scratch.join(format!("{name}.log"));
        let mut command = command(env::current_exe()?, &log)?;
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or("a child process has no standard output")?;
        let stdin = child.stdin.take().ok_or("a child process has no standard input")?;
        Ok(Self { name, child, stdin, lines: BufReader::new(stdout).lines(), log })
    }

    /// Its next line, in time.
    pub(crate) async fn line(&mut self, patience: Duration) -> Result<String, Error> {
        match time::timeout(patience, self.lines.next_line()).await {
            Ok(Ok(Some(line))) => Ok(line),
            Ok(Ok(None)) => Err(self.blame("it has ended").await),
            Ok(Err(error)) => Err(self.blame(&error.to_string()).await),
            Err(_elapsed) => Err(self.blame(&format!("it said nothing for {} s", patience.as_secs())).await),
        }
    }

    /// Its next line, whenever it comes; none once it has ended.
    pub(crate) async fn next_line(&mut self) -> Option<String> {
        self.lines.next_line().await.ok().flatten()
    }

    pub(crate) async fn tell(&mut self, line: &str) -> Result<(), Error> {
        self.stdin.write_all(line.as_bytes()).await?;
        self.stdin.write_all(b"\n").await?;
        Ok(self.stdin.flush().await?)
    }

    /// Its end, in time.
    pub(crate) async fn ended(&mut self, patience: Duration) -> Result<(), Error> {
        match time::timeout(patience, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(self.blame(&format!("it ended with {status}")).await),
            Ok(Err(error)) => Err(error.into()),
            Err(_elapsed) => Err(self.blame(&format!("it did not end within {} s", patience.as_secs())).await),
        }
    }

    /// Stands still until [`Self::go_on`].
    pub(crate) fn stop(&self) -> Result<(), Error> {
        signal(self.child.id(), Signal::STOP)
    }

    pub(crate) fn go_on(&self) -> Result<(), Error> {
        signal(self.child.id(), Signal::CONT)
    }

    /// Kills it and waits for its end.
    pub(crate) async fn kill(&mut self) -> Result<(), Error> {
        Ok(self.child.kill().await?)
    }

    async fn blame(&mut self, why: &str) -> Error {
        // What it said last may still be on its way to the log.
        let _ended = time::timeout(Duration::from_millis(200), self.child.wait()).await;
        format!("{}: {why}; its log ends with\n{}", self.name, log_tail(&self.log)).into()
    }
}

/// Sends a signal to a child, by its id.
pub(super) fn signal(id: Option<u32>, signal: Signal) -> Result<(), Error> {
    let pid = id.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    Ok(kill_process(pid.ok_or("a child process has ended")?, signal)?)
}
