//! Reserve: all or nothing, and Extend.

use super::{
    Ledger, bump,
    reservations::{Detail, Record, State},
};
use crate::{
    bucket::Short,
    decision::{Admitted, Answer, Denied, DenyReason, Extend, ExtendResult, Invalid, Reserve},
    operation::Operation,
    policy::Numbers,
    units::MICROS_PER_TOKEN,
};

impl Ledger {
    pub(super) fn reserve(&mut self, ask: &Reserve) -> Answer {
        if let Some(answer) = self.replay(ask) {
            return answer;
        }
        if let Some(invalid) = self.contradiction(ask) {
            return Answer::Invalid(invalid);
        }
        let judged = self.judge_operation(ask).and_then(|()| self.judge_numbers(ask));
        match judged {
            Ok(wait_ms) => Answer::Admitted(self.admit(ask, wait_ms, None)),
            Err(denied) if self.numbers.shadow && denied.reason.yields_to_shadow() => {
                Answer::Admitted(self.admit(ask, 0, Some(denied.reason)))
            }
            Err(denied) => {
                let counters = &mut self.counters;
                let counter =
                    if ask.attempt.is_retry() { &mut counters.retries_denied } else { &mut counters.originals_denied };
                bump(counter, 1);
                Answer::Denied(denied)
            }
        }
    }

    /// The stored admission of a reservation that was seen before. Nothing is charged.
    fn replay(&self, ask: &Reserve) -> Option<Answer> {
        let reservations = self.reservations.as_ref().filter(|_| !ask.no_release)?;
        let (record, detail) = reservations.get(ask.id)?;
        if record.state != State::Open || record.expires_ms <= self.now_ms {
            return Some(Answer::Denied(Denied::because(DenyReason::AlreadyReleased)));
        }
        if detail.map_or(0, |detail| detail.operation) != operation_hash(ask) {
            return Some(Answer::Invalid(Invalid::OperationMismatch));
        }
        let start_ms = detail.map_or(0, |detail| detail.start_ms).max(self.now_ms);
        Some(Answer::Admitted(Admitted {
            start_after_ms: start_ms.saturating_sub(self.now_ms),
            permit_ttl_ms: record.expires_ms.saturating_sub(start_ms),
            attempts_left: self.attempts_left(ask),
            replayed: true,
            would_be_denied: DenyReason::from_code(record.would_be.into()),
        }))
    }

    fn contradiction(&self, ask: &Reserve) -> Option<Invalid> {
        if let Some(cost) = ask.costs.iter().find(|cost| self.unit(cost.unit).is_none()) {
            return Some(Invalid::UnknownUnit(cost.unit));
        }
        let expires_in_ms = ask.operation.as_ref().and_then(|operation| operation.expires_in_ms)?;
        (expires_in_ms > self.numbers.retention_ms).then_some(Invalid::ExpiresInTooLong)
    }

    fn judge_operation(&self, ask: &Reserve) -> Result<(), Denied> {
        let Some(operation) = &ask.operation else { return Ok(()) };
        let known = self.operations.as_ref().and_then(|operations| operations.get(&operation.id, self.now_ms));
        Operation::judge(known, &operation.fingerprint, ask.attempt.number.into(), self.now_ms)
    }

    /// The checks in their fixed order. Returns how long the start must wait.
    fn judge_numbers(&self, ask: &Reserve) -> Result<i64, Denied> {
        let numbers = &self.numbers;
        if ask.attempt.is_retry() && numbers.retries_off {
            return Err(Denied::because(DenyReason::RetriesOff));
        }
        if ask.time_left_ms == Some(0) {
            return Err(Denied::because(DenyReason::NoTimeLeft));
        }
        if i64::from(ask.attempt.number) > numbers.max_attempts {
            return Err(Denied { impossible: true, ..Denied::because(DenyReason::AttemptLimit) });
        }
        if ask.attempt.is_retry() {
            let cost = self.retry_cost(ask);
            self.retry.covers(&numbers.retry, ask.priority, cost).map_err(|short| {
                denied(DenyReason::RetryBudget, self.unless_leased(short, cost, |whole| whole.retry.burst))
            })?;
        }
        if !ask.no_release {
            let [sheddable, default, critical] = numbers.keep_in_flight;
            let keep = match ask.priority {
                crate::decision::Priority::Sheddable => sheddable,
                crate::decision::Priority::Default => default,
                crate::decision::Priority::Critical => critical,
            };
            if self.in_flight >= numbers.max_in_flight.saturating_sub(keep) {
                return Err(Denied::because(DenyReason::InFlight));
            }
        }
        for cost in &ask.costs {
            if let (Some(bucket), Some(unit)) = (self.unit(cost.unit), numbers.unit(cost.unit))
                && cost.amount_micros > 0
            {
                bucket.covers(unit, ask.priority, cost.amount_micros).map_err(|short| {
                    let burst = |whole: &Numbers| whole.unit(cost.unit).map_or(0, |unit| unit.burst);
                    let short = self.unless_leased(short, cost.amount_micros, burst);
                    Denied { unit: Some(cost.unit), ..denied(DenyReason::Cost, short) }
                })?;
            }
        }
        self.judge_admission(ask)
    }

    fn judge_admission(&self, ask: &Reserve) -> Result<i64, Denied> {
        let Some(bucket) = &self.numbers.admission else { return Ok(0) };
        match self.admission.covers(bucket, ask.priority, MICROS_PER_TOKEN) {
            Ok(()) => Ok(0),
            Err(Short::Wait(Some(wait_ms))) if wait_ms <= ask.max_wait_ms.min(self.numbers.max_wait_ms) => {
                match ask.time_left_ms {
                    Some(left_ms) if wait_ms >= left_ms => {
                        Err(Denied { retry_after_ms: Some(wait_ms), ..Denied::because(DenyReason::NoTimeLeft) })
                    }
                    Some(_) | None => Ok(wait_ms),
                }
            }
            Err(short) => {
                let burst = |whole: &Numbers| whole.admission.map_or(0, |bucket| bucket.burst);
                Err(denied(DenyReason::Admission, self.unless_leased(short, MICROS_PER_TOKEN, burst)))
            }
        }
    }

    /// What is too much for the part that is left beside leases is not impossible: leases end.
    fn unless_leased(&self, short: Short, cost: i64, whole_burst: impl Fn(&Numbers) -> i64) -> Short {
        match (short, self.leases.as_ref()) {
            (Short::Impossible, Some(leases)) if cost <= whole_burst(&leases.whole) => Short::Wait(None),
            (short, _) => short,
        }
    }

    /// Charges an ask that passed every check, or records one that shadow mode lets through with zero charge.
    fn admit(&mut self, ask: &Reserve, wait_ms: i64, would_be_denied: Option<DenyReason>) -> Admitted {
        let charged = would_be_denied.is_none();
        let permit_ttl_ms = ask.permit_ttl_ms.unwrap_or(self.numbers.permit_ttl_ms);
        let start_ms = self.now_ms.saturating_add(wait_ms);
        let expires_ms = start_ms.saturating_add(permit_ttl_ms);
        let mut record = Record {
            expires_ms,
            deposit: 0,
            retry_cost: 0,
            state: State::Open,
            permit: charged && !ask.no_release,
            admission: charged && self.numbers.admission.is_some(),
            earn: charged && self.numbers.earn_on_success,
            would_be: would_be_denied.map_or(0, |reason| u8::try_from(reason.code()).unwrap_or(0)),
        };
        if charged {
            self.charge(ask, &mut record);
        } else {
            bump(&mut self.counters.would_be_denied, 1);
        }
        if let Some(operation) = &ask.operation {
            self.operations.get_or_insert_default().entry(operation, self.numbers.retention_ms, self.now_ms).admit(
                ask.attempt.number.into(),
                expires_ms,
                self.now_ms,
            );
        }
        if !ask.no_release {
            let detail = Detail {
                start_ms: if wait_ms > 0 { start_ms } else { 0 },
                operation: operation_hash(ask),
                number: ask.attempt.number.into(),
                costs: if charged { ask.costs.as_slice().into() } else { Box::default() },
            };
            let ttl_ms = self.numbers.permit_ttl_ms;
            self.reservations.get_or_insert_default().insert(ask.id, record, detail, self.now_ms, ttl_ms);
        }
        Admitted {
            start_after_ms: wait_ms,
            permit_ttl_ms,
            attempts_left: self.attempts_left(ask),
            replayed: false,
            would_be_denied,
        }
    }

    fn charge(&mut self, ask: &Reserve, record: &mut Record) {
        if record.admission {
            self.admission.withdraw(MICROS_PER_TOKEN);
        }
        for cost in &ask.costs {
            if let Some(bucket) = self.unit_mut(cost.unit) {
                bucket.withdraw(cost.amount_micros);
            }
        }
        if record.permit {
            self.in_flight = self.in_flight.saturating_add(1);
        }
        if ask.attempt.is_retry() {
            let cost = self.retry_cost(ask);
            self.retry.withdraw(cost);
            record.retry_cost = u32::try_from(cost).unwrap_or(u32::MAX);
            bump(&mut self.counters.retries_admitted, 1);
        } else {
            if !self.numbers.earn_on_success {
                let deposited = self.retry.deposit(&self.numbers.retry, self.numbers.deposit_micros);
                record.deposit = u32::try_from(deposited).unwrap_or(u32::MAX);
                bump(&mut self.counters.deposited_micros, deposited);
            }
            bump(&mut self.counters.originals_admitted, 1);
        }
    }

    fn retry_cost(&self, ask: &Reserve) -> i64 {
        let by_cause = self.numbers.retry_cost_micros;
        ask.attempt.cause.map_or(0, |cause| by_cause.get(cause.index()).copied().unwrap_or(MICROS_PER_TOKEN))
    }

    fn attempts_left(&self, ask: &Reserve) -> i64 {
        self.numbers.max_attempts.saturating_sub(ask.attempt.number.into()).max(0)
    }

    pub(super) fn extend(&mut self, extend: Extend) -> Answer {
        let Some(reservations) = &mut self.reservations else { return Answer::Extended(ExtendResult::Unknown) };
        let Some(record) = reservations.get(extend.id).map(|(record, _)| *record) else {
            return Answer::Extended(ExtendResult::Unknown);
        };
        if record.state == State::Closed {
            return Answer::Extended(ExtendResult::AlreadyReleased);
        }
        if record.state == State::Expired || record.expires_ms <= self.now_ms {
            return Answer::Extended(ExtendResult::Expired);
        }
        let expires_ms = self.now_ms.saturating_add(extend.permit_ttl_ms).max(record.expires_ms);
        if expires_ms > record.expires_ms {
            reservations.extend(extend.id, expires_ms);
        }
        Answer::Extended(ExtendResult::Extended(expires_ms.saturating_sub(self.now_ms)))
    }
}

fn denied(reason: DenyReason, short: Short) -> Denied {
    match short {
        Short::Impossible => Denied { impossible: true, ..Denied::because(reason) },
        Short::Wait(retry_after_ms) => Denied { retry_after_ms, ..Denied::because(reason) },
    }
}

fn operation_hash(ask: &Reserve) -> i64 {
    ask.operation.as_ref().map_or(0, |operation| operation.id.hash())
}
