//! Benchmarks of budgetd. Starts what it measures by itself; nothing else has to be built, running or reachable.

mod bench;
mod bytes_per_item;
mod calls;
mod comparisons;
mod daemon;
mod driver;
mod echo;
mod policies;
mod rate_limit;
mod record;
mod redis_server;
#[allow(dead_code, unused_imports, reason = "what runs scenarios is not there yet")]
mod report;
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
#[command(name = "loadtest", about = "Benchmarks of budgetd", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compares budgetd, on memory and on Redis, with a bare server that only answers.
    Bench(bench::Options),
    /// Compares two runs, JSON, on the same load: before and after a change or a roll-out.
    Compare(report::CompareOptions),
    /// Shows a run, JSON, once more: its summary, page or picture.
    Show(report::ShowOptions),
    /// The bare server; started by the benchmark.
    #[command(hide = true)]
    ServeEcho,
    /// A replica of budgetd; started by the benchmark.
    #[command(hide = true)]
    ServeDaemon(serve::DaemonOptions),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Bench(options) => bench::main(&options),
        Command::Compare(options) => report::compare_main(&options),
        Command::Show(options) => report::show(&options),
        Command::ServeEcho => serve::echo(),
        Command::ServeDaemon(options) => serve::daemon(options),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}
