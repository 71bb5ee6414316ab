//! `budgetd release`: ends a reservation.

use std::io::Write;

use budget::{
    decision::{Outcome, Release, Sent, TerminalState, Use},
    ids::ReservationId,
};
use budget_client::{Dependency, Error};
use serde_json::json;

use super::{
    Connection, Failure, Verdict,
    arguments::{self, CostArgument, named},
    reserve::{costs, dependency, operation_id},
    table::{Table, print_json},
};

/// Arguments of `release`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("use").required(true).args(["outcome", "not_sent"]))]
pub struct Args {
    /// The dependency it was reserved at.
    dependency: String,
    /// The reservation id that `reserve` printed.
    #[arg(value_parser = arguments::reservation_id)]
    id: ReservationId,
    /// How the attempt ended.
    #[arg(long, value_parser = named(Outcome::ALL, Outcome::name))]
    outcome: Option<Outcome>,
    /// Not one byte went out: everything is undone.
    #[arg(long)]
    not_sent: bool,
    /// Actual cost; a unit left out keeps its estimate.
    #[arg(long, value_name = "UNIT=AMOUNT", conflicts_with = "not_sent", value_parser = arguments::cost)]
    cost: Vec<CostArgument>,
    /// Finishes the operation.
    #[arg(long, value_name = "STATE", conflicts_with = "not_sent", requires = "operation")]
    #[arg(value_parser = named(TerminalState::ALL, TerminalState::name))]
    terminal: Option<TerminalState>,
    /// Kept with the terminal state for later duplicates, at most 128 bytes.
    #[arg(long, value_name = "TEXT", requires = "terminal")]
    result_ref: Option<String>,
    /// The operation named at `reserve`.
    #[arg(long, value_name = "ID")]
    operation: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(args: &Args, out: &mut impl Write) -> Result<Verdict, Failure> {
    let client = args.connection.client()?;
    let (dependency, release) = args.release().map_err(Failure::Call)?;
    let released = client.release(&dependency, &release, args.connection.timeout).await;
    let released = released.map_err(|error| args.connection.failure(error))?;
    if args.connection.json {
        let id = format!("{:?}", args.id);
        let document = json!({ "result": released.result.name(), "mode": released.mode.name(), "reservation_id": id });
        print_json(out, &document)?;
    } else {
        let mut table = Table::default();
        table.row(["result", released.result.name()]);
        table.row(["mode", released.mode.name()]);
        table.print(out)?;
    }
    Ok(Verdict::Yes)
}

// === impl Args ===

impl Args {
    fn release(&self) -> Result<(Dependency, Release), Error> {
        let dependency = dependency(&self.dependency, &self.cost)?;
        let used = match self.outcome {
            None => Use::NotSent,
            Some(outcome) => Use::Sent(Sent {
                outcome,
                costs: costs(&dependency, &self.cost),
                terminal: self.terminal,
                result_ref: self.result_ref.as_ref().map(|text| text.as_bytes().into()),
            }),
        };
        let operation = self.operation.as_deref().map(operation_id).transpose()?;
        Ok((dependency, Release { id: self.id, used, operation }))
    }
}
