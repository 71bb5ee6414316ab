//! The complete logical state of a ledger as text, for comparing stores step by step.

use super::{Ledger, reservations::State};
use crate::decision::{Outcome, TerminalState};

impl Ledger {
    /// One line per part of the state, in an order of its own: equal states give equal lines.
    #[must_use]
    pub fn dump(&self) -> Vec<String> {
        let mut lines = vec![
            format!("version {} {}", self.version.number, self.version.id),
            format!("time {} {}", self.clock_ms, self.now_ms),
            format!("admission {} {}", self.admission.balance_micros, self.admission.remainder),
            format!("retry {} {}", self.retry.balance_micros, self.retry.remainder),
            format!("in_flight {}", self.in_flight),
            format!("counters {}", self.counters.to_list().map(|counter| counter.to_string()).join(" ")),
        ];
        for (id, bucket) in &self.units {
            lines.push(format!("unit {} {} {}", id.raw(), bucket.balance_micros, bucket.remainder));
        }
        let mut more = Vec::new();
        let shape = self.reservations.as_ref().map(|reservations| reservations.shape()).unwrap_or_default();
        let [first, second, queue] = shape;
        lines.push(format!("generations {} {} {} {} {}", first.0, first.1, second.0, second.1, queue.1));
        for (id, record, detail) in self.reservations.iter().flat_map(|reservations| reservations.iter()) {
            let state = match record.state {
                State::Open => 0,
                State::Closed => 1,
                State::Expired => 2,
            };
            let permit = i64::from(record.permit);
            let mut line = format!("reservation {id:?} {state} {permit}");
            // What a closed one still remembers decides nothing.
            if record.state == State::Open {
                let (start, operation, number) =
                    detail.map_or((0, 0, 0), |detail| (detail.start_ms, detail.operation, detail.number));
                // The number matters only within an operation.
                let number = if operation == 0 { 0 } else { number };
                line.push_str(&format!(
                    " {} {} {} {} {} {} {start} {operation} {number}",
                    record.expires_ms,
                    i64::from(record.admission),
                    record.deposit,
                    record.retry_cost,
                    i64::from(record.earn),
                    record.would_be,
                ));
                for cost in detail.iter().flat_map(|detail| &detail.costs) {
                    line.push_str(&format!(" {}={}", cost.unit.raw(), cost.amount_micros));
                }
            }
            more.push(line);
        }
        for (id, operation) in self.operations.iter().flat_map(|operations| operations.iter()) {
            if operation.keep_until_ms > self.now_ms {
                more.push(format!(
                    "operation {} {:?} {} {} {} {} {} {} {} {} {}",
                    id.as_str(),
                    operation.fingerprint,
                    operation.expires_ms,
                    operation.keep_until_ms,
                    operation.used,
                    operation.open,
                    operation.open_until_ms,
                    operation.last_outcome.map_or(0, Outcome::code),
                    operation.terminal.map_or(0, TerminalState::code),
                    i64::from(operation.earned),
                    operation
                        .result_ref
                        .as_ref()
                        .map_or("-".to_owned(), |bytes| { bytes.iter().map(|byte| format!("{byte:02x}")).collect() }),
                ));
            }
        }
        more.sort_unstable();
        lines.append(&mut more);
        lines
    }
}
