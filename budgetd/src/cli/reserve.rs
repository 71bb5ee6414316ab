//! `budgetd reserve`: asks for one attempt.

use std::{io::Write, time::Duration};

use budget::{
    decision::{Admitted, Attempt, Cause, Denied, OperationAsk, OperationState, Priority, Reserve},
    ids::{Fingerprint, OperationId, ReservationId},
};
use budget_client::{Decision, Dependency, Error, InvalidMessage, Reserved, reservation_id};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    Connection, Failure, Verdict,
    arguments::{self, CostArgument, named},
    table::{Table, duration, print_json, version_json, yes_no},
};

/// Arguments of `reserve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The dependency that would be called.
    dependency: String,
    /// Number of the attempt; 1 is the original.
    #[arg(long, value_name = "N", default_value_t = 1)]
    attempt: u32,
    /// Why this is a retry.
    #[arg(long, value_parser = named(Cause::ALL, Cause::name))]
    cause: Option<Cause>,
    /// Which work is shed first.
    #[arg(long, default_value = "default", value_parser = named(Priority::ALL, Priority::name))]
    priority: Priority,
    /// Estimated cost, e.g. input_tokens=1200 or usd=0.015; may be given for several units.
    #[arg(long, value_name = "UNIT=AMOUNT", value_parser = arguments::cost)]
    cost: Vec<CostArgument>,
    /// Time until the caller's own deadline.
    #[arg(long, value_name = "DURATION", value_parser = arguments::duration_ms)]
    time_left: Option<i64>,
    /// How long the caller is willing to wait for its start.
    #[arg(long, value_name = "DURATION", default_value = "0ms", value_parser = arguments::duration_ms)]
    max_wait: i64,
    /// When the permit ends by itself; the policy's permit_ttl if absent.
    #[arg(long, value_name = "DURATION", value_parser = arguments::duration_ms)]
    permit_ttl: Option<i64>,
    /// Id of a tracked operation.
    #[arg(long, value_name = "ID", requires = "fingerprint")]
    operation: Option<String>,
    /// Digest of the operation's input, 16 to 32 bytes in hexadecimal.
    #[arg(long, value_name = "HEX", requires = "operation", value_parser = arguments::fingerprint)]
    fingerprint: Option<Fingerprint>,
    /// When the operation ends by itself; the policy's retention if absent.
    #[arg(long, value_name = "DURATION", requires = "operation", value_parser = arguments::duration_ms)]
    expires_in: Option<i64>,
    /// Reservation id, 16 bytes in hexadecimal; random if absent. The same id is never charged twice.
    #[arg(long, value_name = "HEX", value_parser = arguments::reservation_id)]
    id: Option<ReservationId>,
    /// Keep no record and take no permit: nothing can be released.
    #[arg(long, conflicts_with = "operation")]
    no_release: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(args: &Args, out: &mut impl Write) -> Result<Verdict, Failure> {
    let client = args.connection.client()?;
    let (dependency, ask) = args.ask().map_err(Failure::Call)?;
    // The deadline of the call bounds the start of the attempt, so it must leave room for the wait that is asked for.
    let room_ms = args.time_left.unwrap_or(args.max_wait).unsigned_abs();
    let within = args.connection.timeout.saturating_add(Duration::from_millis(room_ms));
    let answered = timeout(args.connection.timeout, client.reserve(&dependency, &ask, within)).await;
    let reserved = answered.unwrap_or(Err(Error::DeadlineExceeded)).map_err(|error| args.connection.failure(error))?;
    if args.connection.json {
        print_json(out, &document(ask.id, &dependency, &reserved))?;
    } else {
        table(&ask, &dependency, &reserved).print(out)?;
    }
    Ok(match reserved.decision {
        Decision::Admitted(_) => Verdict::Yes,
        Decision::Denied(_) => Verdict::No,
    })
}

// === impl Args ===

impl Args {
    fn ask(&self) -> Result<(Dependency, Reserve), Error> {
        let dependency = dependency(&self.dependency, &self.cost)?;
        let id = match self.id {
            Some(id) => id,
            None => reservation_id()?,
        };
        let operation = match (&self.operation, self.fingerprint) {
            (Some(id), Some(fingerprint)) => {
                let id = operation_id(id)?;
                Some(OperationAsk { id, fingerprint, expires_in_ms: self.expires_in })
            }
            (None, _) | (_, None) => None,
        };
        let ask = Reserve {
            id,
            attempt: Attempt { number: self.attempt, cause: self.cause },
            time_left_ms: self.time_left,
            max_wait_ms: self.max_wait,
            permit_ttl_ms: self.permit_ttl,
            priority: self.priority,
            costs: costs(&dependency, &self.cost),
            operation,
            no_release: self.no_release,
        };
        Ok((dependency, ask))
    }
}

/// The dependency with the units that `costs` name.
pub(super) fn dependency(name: &str, costs: &[CostArgument]) -> Result<Dependency, InvalidMessage> {
    Dependency::new(name)?.with_units(costs.iter().map(|cost| cost.unit.as_str()))
}

pub(super) fn costs(dependency: &Dependency, costs: &[CostArgument]) -> Vec<budget::decision::Cost> {
    costs.iter().filter_map(|cost| dependency.cost(&cost.unit, cost.amount_micros)).collect()
}

pub(super) fn operation_id(id: &str) -> Result<OperationId, InvalidMessage> {
    OperationId::new(id).map_err(|rule| InvalidMessage::text("operation", id, rule.to_string()))
}

pub(super) fn document(id: ReservationId, dependency: &Dependency, reserved: &Reserved) -> Value {
    let mut document = match &reserved.decision {
        Decision::Admitted(admitted) => json!({
            "decision": "admitted",
            "start_after_ms": admitted.start_after_ms,
            "permit_ttl_ms": admitted.permit_ttl_ms,
            "attempts_left": admitted.attempts_left,
            "replayed": admitted.replayed,
            "would_be_denied": admitted.would_be_denied.map(|reason| reason.name()),
        }),
        Decision::Denied(denied) => json!({
            "decision": "denied",
            "reason": denied.reason.name(),
            "unit": unit_name(denied, dependency),
            "retry_after_ms": denied.retry_after_ms,
            "impossible": denied.impossible,
            "operation": denied.operation.as_ref().map(|state| operation_json(state)),
        }),
    };
    document["reservation_id"] = format!("{id:?}").into();
    document["mode"] = reserved.mode.name().into();
    document["policy_version"] = version_json(reserved.version);
    document
}

fn operation_json(state: &OperationState) -> Value {
    json!({
        "attempts_used": state.attempts_used,
        "last_outcome": state.last_outcome.map(|outcome| outcome.name()),
        "terminal_state": state.terminal.map(|terminal| terminal.name()),
        "result_ref_hex": state.result_ref.as_deref().map(hex),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unit_name<'a>(denied: &Denied, dependency: &'a Dependency) -> Option<&'a str> {
    denied.unit.and_then(|unit| dependency.units().name(unit))
}

pub(super) fn table(ask: &Reserve, dependency: &Dependency, reserved: &Reserved) -> Table {
    let mut table = Table::default();
    match &reserved.decision {
        Decision::Admitted(admitted) => admitted_rows(&mut table, ask, admitted),
        Decision::Denied(denied) => denied_rows(&mut table, dependency, denied),
    }
    table.row(["mode", reserved.mode.name()]);
    table.row(["policy version", &reserved.version.number.to_string()]);
    table
}

fn admitted_rows(table: &mut Table, ask: &Reserve, admitted: &Admitted) {
    table.row(["decision", "admitted"]);
    if ask.no_release {
        table.row(["reservation", "none, nothing to release"]);
    } else {
        table.row(["reservation", &format!("{:?}", ask.id)]);
    }
    match admitted.start_after_ms {
        0 => table.row(["start", "now"]),
        ms => table.row(["start", &format!("after {}", duration(ms))]),
    }
    if !ask.no_release {
        table.row(["permit", &format!("ends {} after the start", duration(admitted.permit_ttl_ms))]);
    }
    table.row(["attempts left", &admitted.attempts_left.to_string()]);
    if admitted.replayed {
        table.row(["replayed", "this id was admitted before, nothing was charged now"]);
    }
    if let Some(reason) = admitted.would_be_denied {
        table.row(["would be denied", reason.name()]);
    }
}

fn denied_rows(table: &mut Table, dependency: &Dependency, denied: &Denied) {
    table.row(["decision", "denied"]);
    table.row(["reason", denied.reason.name()]);
    if let Some(unit) = unit_name(denied, dependency) {
        table.row(["unit", unit]);
    }
    match denied.retry_after_ms {
        Some(ms) => table.row(["retry after", &duration(ms)]),
        None if denied.impossible => table.row(["retry after", "never: it exceeds what the policy can ever give"]),
        None => {}
    }
    if let Some(state) = &denied.operation {
        table.row(["attempts used", &state.attempts_used.to_string()]);
        if let Some(outcome) = state.last_outcome {
            table.row(["last outcome", outcome.name()]);
        }
        table.row(["finished", state.terminal.map_or(yes_no(false), |terminal| terminal.name())]);
        if let Some(reference) = &state.result_ref {
            table.row(["result reference", &shown_reference(reference)]);
        }
    }
}

/// As text where it is some.
fn shown_reference(reference: &[u8]) -> String {
    match std::str::from_utf8(reference) {
        Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => text.to_owned(),
        Ok(_) | Err(_) => format!("0x{}", hex(reference)),
    }
}
