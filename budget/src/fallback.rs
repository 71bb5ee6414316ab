//! What one process may admit while nobody can be asked, by the policy's `fallback`: a replica while the store is away, a
//! holder beyond its curve or before its first lease.
//!
//! Buckets of their own that start empty and keep their levels from one episode to the next; their tokens never mix with
//! those of a ledger or a lease. Nothing is remembered of a reservation, so a re-send is decided afresh and nothing can be
//! handed back. Where a replica and a holder differ is in what they know, which is in `Limits`; they decide alike.

mod limits;

use crate::{
    bucket::{Bucket, Short},
    decision::{Admitted, Answer, Attempt, Cost, Denied, DenyReason, Priority, Reserve},
    guard::{Guard, on},
    ids::UnitId,
    policy::{BucketNumbers, Numbers, Policy},
    units::MICROS_PER_TOKEN,
};
pub(crate) use limits::{Limits, Originals};

/// The fallback of one dependency in one process.
#[derive(Clone, Debug)]
pub struct Fallback {
    /// Earned up to here.
    clock_ms: i64,
    originals: Bucket,
    units: Vec<(UnitId, Bucket)>,
    /// Earned by originals admitted here, at most one token.
    retry_micros: i64,
}

/// An ask for one attempt.
pub(crate) struct Ask<'a> {
    pub(crate) attempt: Attempt,
    pub(crate) priority: Priority,
    pub(crate) costs: &'a [Cost],
    pub(crate) time_left_ms: Option<i64>,
}

// === impl Fallback ===

impl Fallback {
    /// Empty, from `clock_ms` on: a reading of any clock that does not go back.
    #[must_use]
    pub const fn new(clock_ms: i64) -> Self {
        Self { clock_ms, originals: Bucket { balance_micros: 0, remainder: 0 }, units: Vec::new(), retry_micros: 0 }
    }

    /// Decides for a replica. `sharers` is the number of processes that share a percentage, at least 1.
    pub fn reserve(
        &mut self,
        policy: &Policy,
        numbers: &Numbers,
        sharers: i64,
        clock_ms: i64,
        ask: &Reserve,
    ) -> Answer {
        if ask.operation.is_some() {
            return Answer::Denied(Denied::because(DenyReason::OperationStoreAway));
        }
        let Reserve { attempt, priority, costs, time_left_ms, .. } = ask;
        let (attempt, priority, time_left_ms) = (*attempt, *priority, *time_left_ms);
        let limits = Limits::of(policy, numbers, sharers);
        match self.decide(&limits, clock_ms, &Ask { attempt, priority, costs, time_left_ms }) {
            Ok(would_be_denied) => Answer::Admitted(Admitted {
                start_after_ms: 0,
                permit_ttl_ms: ask.permit_ttl_ms.unwrap_or(numbers.permit_ttl_ms),
                attempts_left: limits.attempts_left(attempt),
                replayed: false,
                would_be_denied,
            }),
            Err(denied) => Answer::Denied(denied),
        }
    }

    /// Whether an attempt is admitted. In shadow mode what would be refused is let through, charged nothing, and named.
    pub(crate) fn decide(
        &mut self,
        limits: &Limits,
        clock_ms: i64,
        ask: &Ask<'_>,
    ) -> Result<Option<DenyReason>, Denied> {
        self.refill(limits, clock_ms);
        match limits.judge(ask).and_then(|()| self.judge_levels(limits, ask)) {
            Ok(()) => {
                self.charge(limits, ask);
                Ok(None)
            }
            Err(denied) if limits.shadow && denied.reason.yields_to_shadow() => Ok(Some(denied.reason)),
            Err(denied) => Err(denied),
        }
    }

    /// A lease is over: it earns from here. `left_micros` is what the lease did not spend.
    pub(crate) fn begin(&mut self, limits: &Limits, clock_ms: i64, left_micros: i64) {
        self.clock_ms = self.clock_ms.max(clock_ms);
        if !on(Guard::FallbackApart) {
            self.originals.balance_micros = self.originals.balance_micros.saturating_add(left_micros.max(0));
        }
        if let (Originals::Limited(numbers), false) = (&limits.originals, on(Guard::FallbackKeepsLevel)) {
            self.originals.balance_micros = numbers.burst;
            self.retry_micros = MICROS_PER_TOKEN;
        }
    }

    /// Earns a part of a retry.
    pub(crate) fn deposit(&mut self, micros: i64) {
        self.retry_micros = self.retry_micros.saturating_add(micros.max(0)).min(MICROS_PER_TOKEN);
    }

    /// What is left for originals.
    pub(crate) fn level(&self) -> i64 {
        self.originals.balance_micros.max(0)
    }

    fn judge_levels(&self, limits: &Limits, ask: &Ask<'_>) -> Result<(), Denied> {
        let retry = match limits.retry_cost(ask.attempt) {
            Some(_) if !limits.retries_earned => Err(Short::Wait(None)),
            Some(cost) if cost > MICROS_PER_TOKEN => Err(Short::Impossible),
            Some(cost) if cost > self.retry_micros => Err(Short::Wait(None)),
            Some(_) | None => Ok(()),
        };
        let judged = retry.and_then(|()| match &limits.originals {
            Originals::Deny => Err(Short::Wait(None)),
            Originals::Allow => Ok(()),
            Originals::Limited(numbers) => {
                self.originals.covers(numbers, ask.priority, MICROS_PER_TOKEN)?;
                let costs = ask.costs.iter().filter(|cost| cost.amount_micros > 0);
                costs.filter_map(|cost| Some((cost, limits.unit(cost.unit)?))).try_for_each(|(cost, numbers)| {
                    let state = self.units.iter().find(|(id, _)| *id == cost.unit).map(|(_, state)| *state);
                    state.unwrap_or_default().covers(numbers, ask.priority, cost.amount_micros)
                })
            }
        });
        let denied = Denied::because(DenyReason::Fallback);
        judged.map_err(|short| match short {
            Short::Impossible => Denied { impossible: true, ..denied },
            Short::Wait(retry_after_ms) => Denied { retry_after_ms, ..denied },
        })
    }

    fn charge(&mut self, limits: &Limits, ask: &Ask<'_>) {
        if let Originals::Limited(_) = limits.originals {
            self.originals.withdraw(MICROS_PER_TOKEN);
            for cost in ask.costs {
                if let Some((_, state)) = self.units.iter_mut().find(|(id, _)| *id == cost.unit) {
                    state.withdraw(cost.amount_micros.max(0));
                }
            }
        }
        match limits.retry_cost(ask.attempt) {
            Some(cost) => self.retry_micros = self.retry_micros.saturating_sub(cost),
            None => self.deposit(limits.deposit_micros),
        }
    }

    fn refill(&mut self, limits: &Limits, clock_ms: i64) {
        let elapsed_ms = clock_ms.saturating_sub(self.clock_ms).max(0);
        self.clock_ms = self.clock_ms.max(clock_ms);
        if !on(Guard::FloorIsCentral) {
            self.deposit(elapsed_ms.saturating_mul(1_000));
        }
        let Originals::Limited(numbers) = &limits.originals else { return };
        refill(&mut self.originals, numbers, elapsed_ms);
        self.units.retain(|(id, _)| limits.unit(*id).is_some());
        for (unit, numbers) in &limits.units {
            match self.units.iter_mut().find(|(id, _)| id == unit) {
                Some((_, state)) => refill(state, numbers, elapsed_ms),
                // A unit's time starts when the fallback first hears of it.
                None => self.units.push((*unit, Bucket::default())),
            }
        }
    }
}

/// A remainder of another denominator would mint a micro-token.
fn refill(bucket: &mut Bucket, numbers: &BucketNumbers, elapsed_ms: i64) {
    if bucket.remainder >= numbers.den {
        bucket.remainder = 0;
    }
    bucket.refill(numbers, elapsed_ms);
}

#[cfg(test)]
mod tests;
