//! The complete logical state of a ledger as text, for comparing stores step by step.

use super::{Ledger, leases::Leases, reservations::State};
use crate::{
    decision::{Outcome, TerminalState},
    lease::Amounts,
};

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
        if let Some(leases) = &self.leases {
            more.extend(leases.dump());
        }
        more.sort_unstable();
        lines.append(&mut more);
        lines
    }
}

fn amounts(amounts: &Amounts) -> String {
    let mut text = format!("{}/{}/{}/{}", amounts.rate, amounts.burst, amounts.retry_burst, amounts.slots);
    let mut units: Vec<_> = amounts.units.iter().filter(|unit| unit.rate != 0 || unit.burst != 0).collect();
    units.sort_unstable_by_key(|unit| unit.unit);
    for unit in units {
        text.push_str(&format!("/{}:{}:{}", unit.unit.raw(), unit.rate, unit.burst));
    }
    text
}

impl Leases {
    fn dump(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "lease epoch {} {} identity {} generation {} dead {} lost {} wait {} quarantine {} debt {}",
                self.epoch.number,
                self.epoch.id,
                self.identity,
                self.generation,
                self.dead_generation,
                i64::from(self.lost),
                self.wait_until_ms,
                self.quarantine_until_ms,
                self.time.debt_ms
            ),
            format!("lease time {} {}", self.time.compared_ms, self.time.replaced_ms),
            format!("lease charged {} proved {}", amounts(&self.table.charged), amounts(&self.proved)),
            format!("lease shares {} {} {:?}", self.table.shares.weight, self.table.shares.demand, {
                self.table.shares.buckets().collect::<Vec<_>>()
            }),
        ];
        lines.extend(self.proofs.iter().map(|incarnation| format!("lease proof {incarnation:?}")));
        lines.extend(
            (self.time.beats.iter()).map(|beat| format!("lease beat {} {} {}", beat.boot, beat.clock_ms, beat.net_ms)),
        );
        for record in self.table.records() {
            let holder = &record.name;
            lines.push(format!(
                "lease holder {holder:?} {} {} {} {} {} {} {:?}",
                record.weight,
                record.demand,
                record.share,
                record.idle,
                record.revoked_until_ms,
                record.restarted_until_ms,
                self.table.queue.due_ms(record.place)
            ));
            for life in record.lives.iter() {
                lines.push(format!(
                    "lease life {holder:?} {:?} {} {} {} slots {} {:?} charge {} usage {:?} {:?} measured {} {} {:?}",
                    life.incarnation,
                    life.sequence,
                    life.nonce,
                    life.answered,
                    life.slots,
                    life.lingering.iter().collect::<Vec<_>>(),
                    amounts(&life.charge),
                    life.usage.counters(),
                    life.usage.units_asked,
                    life.measured.since_ms,
                    life.measured.attempts,
                    life.measured.units,
                ));
                for grant in life.grants.iter() {
                    lines.push(format!(
                        "lease grant {holder:?} {:?} {} {} value {} moved {} curve {:?} ttl {}",
                        life.incarnation,
                        grant.generation,
                        grant.granted_ms,
                        amounts(&grant.value),
                        if grant.generation == life.answered { amounts(&life.moved) } else { "-".to_owned() },
                        grant.curve.0.iter().map(|step| (step.part_ppm, step.duration_ms)).collect::<Vec<_>>(),
                        grant.permit_ttl_ms,
                    ));
                }
            }
        }
        lines
    }
}
