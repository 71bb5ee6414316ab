//! The `budgetd` binary: serves, or asks a running daemon.

use std::process::ExitCode;

use clap::Parser;

use budgetd::{
    cli,
    config::{Config, ServeArgs},
    run, shutdown, telemetry,
};

/// One retry budget and one admission budget per dependency, for a whole fleet.
#[derive(Parser)]
#[command(name = "budgetd", version = budgetd::VERSION, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(clap::Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one in a process")]
enum Command {
    /// Serves until SIGTERM or SIGINT. The default
    Serve(ServeArgs),
    #[command(flatten)]
    Ask(cli::Command),
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { command, serve } = Arguments::parse();
    match command {
        None => daemon(serve).await,
        Some(Command::Serve(serve)) => daemon(serve).await,
        Some(Command::Ask(command)) => cli::run(command).await,
    }
}

async fn daemon(args: ServeArgs) -> ExitCode {
    match serve(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("budgetd: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: ServeArgs) -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::load(args)?;
    telemetry::init_logs(config.log_format, &config.log_level)?;
    Ok(run(config, shutdown::signals()?).await?)
}
