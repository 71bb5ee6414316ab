//! The hidden subcommands: this process is a server that a benchmark started.

use std::{
    io::{self, Read, Write},
    path::PathBuf,
    process::ExitCode,
    thread,
};

use clap::Args;
use tokio::{net::TcpListener, sync::oneshot};

use crate::{Error, daemon, echo};

/// Any free port.
const LOOPBACK: &str = "127.0.0.1:0";

#[derive(Debug, Args)]
pub(crate) struct DaemonOptions {
    /// `memory`, or the URL of a Redis.
    #[arg(long)]
    store: String,
    /// The policy file.
    #[arg(long)]
    policies: PathBuf,
}

/// Serves the baseline.
pub(crate) fn echo() -> Result<ExitCode, Error> {
    daemon::runtime()?.block_on(async {
        let listener = TcpListener::bind(LOOPBACK).await?;
        announce(&listener)?;
        echo::run(listener, until_orphaned()).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Serves as a replica of budgetd.
pub(crate) fn daemon(options: DaemonOptions) -> Result<ExitCode, Error> {
    let plan = daemon::Plan { store: options.store, policies: options.policies };
    daemon::runtime()?.block_on(async {
        let grpc = TcpListener::bind(LOOPBACK).await?;
        let http = TcpListener::bind(LOOPBACK).await?;
        announce(&grpc)?;
        daemon::run(plan, grpc, http, until_orphaned()).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Says where; calls that come before the server accepts wait in the backlog.
fn announce(listener: &TcpListener) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{}", listener.local_addr()?)?;
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
