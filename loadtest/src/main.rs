//! Load scenarios and benchmarks of budgetd. Starts what it measures by itself; nothing else has to be built, running or reachable.

mod bench;
mod bytes_per_item;
mod caller;
mod calls;
mod collector;
mod commands;
mod comparisons;
mod daemon;
mod dependency;
mod deployment;
mod driver;
mod echo;
mod engine;
mod fleet;
mod judge;
mod plan;
mod policies;
mod proxy;
mod random;
mod rate_limit;
mod record;
mod redis_server;
mod repeat;
mod report;
mod scenario;
mod serve;
mod server_process;
mod session;
mod stats;
mod wire;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Ends the program with a message; nothing here branches on it.
type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
#[command(name = "loadtest", about = "Load scenarios and benchmarks of budgetd", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compares budgetd, on memory and on Redis, with a bare server that only answers.
    Bench(bench::Options),
    /// Shows a retry storm, and what a budget does to it: one scenario, all strategies side by side.
    Storm(commands::Options),
    /// Runs one scenario, by its name or from a file, on a fleet of its own or against a budgetd that is there.
    Run(commands::RunOptions),
    /// Runs all scenarios.
    All(commands::Options),
    /// Names all scenarios.
    List,
    /// Compares two runs, JSON, on the same load: before and after a change or a roll-out.
    Compare(report::CompareOptions),
    /// Shows a run, JSON, once more: its summary, page or picture.
    Show(report::ShowOptions),
    /// The bare server; started by the benchmark.
    #[command(hide = true)]
    ServeEcho,
    /// A collector of telemetry; started by the benchmark.
    #[command(hide = true)]
    ServeCollector,
    /// A replica of budgetd; started by benchmarks and scenarios.
    #[command(hide = true)]
    ServeDaemon(serve::DaemonOptions),
    /// The fake dependency; started by scenarios.
    #[command(hide = true)]
    ServeDependency(serve::DependencyOptions),
    /// Another program, which ends with whoever started it; for Redis.
    #[command(hide = true)]
    Hold(serve::HoldOptions),
    /// A process of callers; started by scenarios.
    #[command(hide = true)]
    ServeCallers(serve::CallerOptions),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Bench(options) => bench::main(&options),
        Command::Compare(options) => report::compare_main(&options),
        Command::Show(options) => report::show(&options),
        Command::ServeEcho => serve::echo(),
        Command::ServeCollector => serve::collector(),
        Command::ServeDaemon(options) => serve::daemon(options),
        Command::ServeDependency(options) => serve::dependency(&options),
        Command::ServeCallers(options) => serve::caller(&options),
        Command::Hold(options) => serve::hold(&options),
        Command::Storm(options) => commands::storm(&options),
        Command::Run(options) => commands::run(&options),
        Command::All(options) => commands::all(&options),
        Command::List => commands::list(),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}
