//! The hidden subcommands: this process is a server that a benchmark started.

use std::{
    ffi::OsString,
    fs,
    io::{self, Read, Write},
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, ExitCode},
    thread,
};

use clap::Args;
use tokio::sync::oneshot;

use crate::{
    Error, caller, collector,
    daemon::{self, Start},
    dependency::{self, Dependency},
    echo,
    scenario::Scenario,
};

#[derive(Debug, Args)]
pub(crate) struct DaemonOptions {
    /// `memory`, or the URL of a Redis.
    #[arg(long)]
    store: String,
    /// Answer from leases held on the store.
    #[arg(long)]
    lease: bool,
    /// The policy file; none for an agent.
    #[arg(long)]
    policies: Option<PathBuf>,
    /// Where to listen; any free port unless given.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// A settings file, for time limits of leases.
    #[arg(long)]
    config: Option<PathBuf>,
    /// The name of an agent as a holder of leases.
    #[arg(long)]
    holder_id: Option<String>,
    /// No lease of an earlier daemon is in use.
    #[arg(long)]
    no_leases_out: bool,
    /// Ledgers live by a clock that is ahead by the milliseconds in this file.
    #[arg(long)]
    clock: Option<PathBuf>,
    /// Send metrics and traces to this collector.
    #[arg(long)]
    otlp_endpoint: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DependencyOptions {
    /// The scenario whose dependency it is.
    #[arg(long)]
    scenario: PathBuf,
    #[arg(long)]
    seed: u64,
}

#[derive(Debug, Args)]
pub(crate) struct CallerOptions {
    /// The scenario.
    #[arg(long)]
    scenario: PathBuf,
    /// What this process has to do in it.
    #[arg(long)]
    task: PathBuf,
}

/// Serves as the fake dependency.
pub(crate) fn dependency(options: &DependencyOptions) -> Result<ExitCode, Error> {
    die_with_parent()?;
    let text = fs::read_to_string(&options.scenario)?;
    let scenario = Scenario::parse(&options.scenario.display().to_string(), &text)?;
    let keeps_arrivals = scenario.bound.as_ref().is_some_and(|bound| bound.at_arrival);
    let dependency = Dependency::new(scenario.dependency.clone(), options.seed, scenario.bin_ms(), keeps_arrivals);
    daemon::runtime()?.block_on(async {
        dependency::serve(dependency, announce, until_orphaned()).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Calls as a process of callers.
pub(crate) fn caller(options: &CallerOptions) -> Result<ExitCode, Error> {
    die_with_parent()?;
    caller::main(&options.scenario, &options.task)
}

/// Serves the baseline.
pub(crate) fn echo() -> Result<ExitCode, Error> {
    die_with_parent()?;
    daemon::runtime()?.block_on(async {
        let listener = daemon::bare_listener().await?;
        announce(&listener.local_addr()?.to_string())?;
        echo::run(listener, until_orphaned()).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Serves as a collector of telemetry.
pub(crate) fn collector() -> Result<ExitCode, Error> {
    die_with_parent()?;
    daemon::runtime()?.block_on(async {
        let listener = daemon::bare_listener().await?;
        announce(&listener.local_addr()?.to_string())?;
        collector::run(listener, until_orphaned()).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Serves as a replica of budgetd.
pub(crate) fn daemon(options: DaemonOptions) -> Result<ExitCode, Error> {
    die_with_parent()?;
    daemon::runtime()?.block_on(async {
        let config = options.config.as_deref();
        let start = Start {
            store: &options.store,
            lease: options.lease,
            policies: options.policies,
            listen: options.listen,
            config,
            holder_id: options.holder_id,
            no_leases_out: options.no_leases_out,
            clock: options.clock,
            otlp_endpoint: options.otlp_endpoint,
        };
        daemon::run(start, announce, until_orphaned()).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The process ends with whoever started it, even if it stands still then.
pub(crate) fn die_with_parent() -> Result<(), Error> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    Ok(())
}

#[derive(Debug, Args)]
pub(crate) struct HoldOptions {
    /// A program and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    program: Vec<OsString>,
}

/// Becomes another program that ends with whoever started it.
pub(crate) fn hold(options: &HoldOptions) -> Result<ExitCode, Error> {
    die_with_parent()?;
    let (program, arguments) = options.program.split_first().ok_or("there is no program to run")?;
    let error = Command::new(program).args(arguments).exec();
    let program = program.display();
    Err(format!("{program} does not start: {error}; install it, or name another one with --redis-server").into())
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
