//! Release: hands back what was not sent, settles what was. Late, double and unknown releases change nothing.

use super::{Ledger, bump, reservations::State};
use crate::{
    decision::{Answer, Invalid, Outcome, Release, ReleaseResult, Sent, Use},
    ids::OperationId,
    ledger::reservations::{Detail, Record},
    units::MICROS_PER_TOKEN,
};

impl Ledger {
    pub(super) fn release(&mut self, release: &Release) -> Answer {
        let Some(reservations) = &mut self.reservations else {
            return Answer::Released(ReleaseResult::Unknown);
        };
        let Some(found) = reservations.get_mut(release.id) else {
            return Answer::Released(ReleaseResult::Unknown);
        };
        let record = *found.record;
        if record.state == State::Closed {
            return Answer::Released(ReleaseResult::AlreadyReleased);
        }
        if record.state == State::Expired || record.expires_ms <= self.now_ms {
            return Answer::Released(ReleaseResult::Expired);
        }
        let named = release.operation.as_ref().map_or(0, OperationId::hash);
        if found.detail().map_or(0, |detail| detail.operation) != named {
            return Answer::Invalid(Invalid::OperationMismatch);
        }
        let keep_permit = match &release.used {
            Use::NotSent => false,
            Use::Sent(sent) => sent.outcome == Outcome::Abandoned,
        };
        let detail = found.close(keep_permit);
        if record.permit && !keep_permit {
            self.in_flight = self.in_flight.saturating_sub(1);
        }
        match &release.used {
            Use::NotSent => self.hand_back(&record, &detail, release.operation.as_ref()),
            Use::Sent(sent) => self.settle(&record, &detail, sent, release.operation.as_ref()),
        }
        Answer::Released(ReleaseResult::Applied)
    }

    /// Undoes the charge of an attempt of which not one byte went out.
    fn hand_back(&mut self, record: &Record, detail: &Detail, operation: Option<&OperationId>) {
        bump(&mut self.counters.not_sent, 1);
        if let (true, Some(numbers)) = (record.admission, &self.numbers.admission) {
            self.admission.deposit(numbers, MICROS_PER_TOKEN);
        }
        for cost in &detail.costs {
            self.refund(cost.unit, cost.amount_micros);
        }
        self.retry.deposit(&self.numbers.retry, record.retry_cost.into());
        // What was earned and is already spent becomes a debt that later deposits pay.
        self.retry.charge(&self.numbers.retry, record.deposit.into());
        let now_ms = self.now_ms;
        if let Some(operation) = self.operation_mut(operation, now_ms) {
            operation.hand_back(detail.number);
        }
    }

    fn settle(&mut self, record: &Record, detail: &Detail, sent: &Sent, operation: Option<&OperationId>) {
        if sent.outcome == Outcome::Account {
            bump(&mut self.counters.account_signals, 1);
        }
        if record.would_be == 0 {
            for actual in &sent.costs {
                let estimate = (detail.costs.iter())
                    .find(|cost| cost.unit == actual.unit)
                    .map_or(0, |estimate| estimate.amount_micros);
                let more = actual.amount_micros.saturating_sub(estimate);
                if more < 0 {
                    self.refund(actual.unit, more.saturating_neg());
                } else if let (Some(numbers), Some(bucket)) =
                    (self.numbers.unit(actual.unit).copied(), self.unit_mut(actual.unit))
                {
                    let overuse = bucket.charge(&numbers, more);
                    bump(&mut self.counters.overuse_micros, overuse);
                }
            }
        }
        let (now_ms, retention_ms) = (self.now_ms, self.numbers.retention_ms);
        let succeeded = record.earn && sent.outcome == Outcome::Success;
        let mut earned = succeeded && operation.is_none();
        if let Some(operation) = self.operation_mut(operation, now_ms) {
            operation.report(sent, retention_ms, now_ms);
            earned = succeeded && !operation.earned;
            operation.earned |= succeeded;
        }
        if earned {
            let deposited = self.retry.deposit(&self.numbers.retry, self.numbers.deposit_micros);
            bump(&mut self.counters.deposited_micros, deposited);
        }
    }

    fn refund(&mut self, unit: crate::ids::UnitId, amount: i64) {
        if let (Some(numbers), Some(bucket)) = (self.numbers.unit(unit).copied(), self.unit_mut(unit)) {
            bucket.deposit(&numbers, amount);
        }
    }

    fn operation_mut(&mut self, id: Option<&OperationId>, now_ms: i64) -> Option<&mut crate::operation::Operation> {
        self.operations.as_mut()?.get_mut(id?, now_ms)
    }
}
