//! The hidden subcommands: this process is a server that a benchmark started.

use std::{
    io::{self, Read, Write},
    path::PathBuf,
    process::ExitCode,
    thread,
};

use clap::Args;
use tokio::sync::oneshot;

use crate::{Error, daemon, echo};

#[derive(Debug, Args)]
pub(crate) struct DaemonOptions {
    /// `memory`, or the URL of a Redis.
    #[arg(long)]
    store: String,
    /// Answer from leases held on the store.
    #[arg(long)]
    lease: bool,
    /// The policy file.
    #[arg(long)]
    policies: PathBuf,
}

/// Serves the baseline.
pub(crate) fn echo() -> Result<ExitCode, Error> {
    daemon::runtime()?.block_on(async {
        let listener = daemon::bare_listener().await?;
        announce(&listener.local_addr()?.to_string())?;
        echo::run(listener, until_orphaned()).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Serves as a replica of budgetd.
pub(crate) fn daemon(options: DaemonOptions) -> Result<ExitCode, Error> {
    daemon::runtime()?.block_on(async {
        daemon::run(&options.store, options.lease, options.policies, announce, until_orphaned()).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Says where; calls that come before the server accepts wait in the backlog.
fn announce(address: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{address}")?;
    stdout.flush()
}

/// Ends when standard input does, which is when the parent has died, however it died.
fn until_orphaned() -> impl Future<Output = ()> + Send + 'static {
    let (ended, wait) = oneshot::channel::<()>();
    thread::spawn(move || {
        let mut sink = [0; 64];
        let mut stdin = io::stdin().lock();
        while matches!(stdin.read(&mut sink), Ok(count) if count > 0) {}
        drop(ended);
    });
    async move {
        // The sender only ever drops.
        let _: Result<(), oneshot::error::RecvError> = wait.await;
    }
}
