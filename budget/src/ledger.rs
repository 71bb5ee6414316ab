//! The ledger of one dependency: its buckets, open reservations and operations.
//!
//! A call on a ledger is [`Ledger::begin`] followed by [`Ledger::step`]s. `begin` brings everything to the present:
//! refills at the rates of the last call, adopts newer numbers, drops what ended. A step decides and charges all or
//! nothing. The scripts of the Redis store are the only second copy of what is here.

mod counters;
mod dump;
mod leases;
#[cfg(feature = "guards")]
mod probe;
mod release;
mod reservations;
mod reserve;

use std::sync::Arc;

pub use crate::lending::{DUE_PER_CALL_MAX, HolderView, LINGERING_MAX, MEASURE_MS_MIN, REPORTED_MAX, SHARE_BUCKETS};
use crate::{
    bucket::Bucket,
    decision::{Answer, Stale, Step},
    ids::{PolicyVersion, UnitId},
    lease::Ground,
    operation::Operations,
    policy::Numbers,
};
use counters::bump;
pub use counters::{COUNTERS, Counter, Counters};
use leases::Leases;
pub use leases::Lending;
pub use leases::{
    PRESENTED_MAX, PROOFS_MAX,
    time::{HOSTS_MAX, LAG_KEPT_MS},
};
pub use reservations::QUEUE_PER_CALL_MAX;
use reservations::Reservations;

/// How a ledger without state begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Empty, but for one admission token where leases are not permitted: a lost store looks the same as a new one.
    Empty,
    /// Admission and cost buckets full where leases are not permitted; for a store that dies with its only replica.
    Full,
}

/// The whole state of one dependency.
#[derive(Clone, Debug)]
pub struct Ledger {
    version: PolicyVersion,
    numbers: Arc<Numbers>,
    /// The clock's reading at the last call.
    clock_ms: i64,
    /// Ledger time: the sum of the clock's forward steps. A backward step moves nothing.
    now_ms: i64,
    admission: Bucket,
    retry: Bucket,
    units: Box<[(UnitId, Bucket)]>,
    in_flight: i64,
    reservations: Option<Box<Reservations>>,
    operations: Option<Box<Operations>>,
    /// Where leases are permitted, or some may still be out. `numbers` are then what is left for direct callers.
    leases: Option<Box<Leases>>,
    counters: Counters,
}

/// A ledger as it stands at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Version of the policies it was last decided with.
    pub version: PolicyVersion,
    /// Whether that policy only watches.
    pub shadow: bool,
    /// Absent where admission is unlimited.
    pub admission_balance_micros: Option<i64>,
    /// Retry tokens.
    pub retry_balance_micros: i64,
    /// Balances of the cost units.
    pub units: Vec<(UnitId, i64)>,
    /// Permits taken.
    pub in_flight: i64,
    /// Totals.
    pub counters: Counters,
    /// Where leases are permitted, or some are out.
    pub lending: Option<Box<Lending>>,
}

// === impl Ledger ===

impl Ledger {
    /// A ledger without history.
    #[must_use]
    pub fn new(version: PolicyVersion, numbers: Arc<Numbers>, start: Start, clock_ms: i64) -> Self {
        // Leases permitted: nothing is given to begin with, whatever the store.
        let full = start == Start::Full && numbers.lease.is_none();
        let admission = match numbers.admission {
            Some(bucket) if full => bucket.burst,
            Some(_) | None => numbers.absent_admission_micros,
        };
        let balance = |balance_micros| Bucket { balance_micros, remainder: 0 };
        Self {
            version,
            clock_ms,
            now_ms: clock_ms,
            admission: balance(admission),
            retry: Bucket::default(),
            units: (numbers.units.iter()).map(|(id, unit)| (*id, balance(if full { unit.burst } else { 0 }))).collect(),
            in_flight: 0,
            reservations: None,
            operations: None,
            leases: None,
            counters: Counters::default(),
            numbers,
        }
    }

    /// Brings the ledger to the present and to the newest numbers.
    ///
    /// `version` is the one `numbers` were resolved from. A higher one is adopted: balances are clipped to smaller
    /// bursts, nothing is refilled, permits and leases stay. A lower one decides nothing unless `force` says that a
    /// re-read gave no newer one; then the ledger's own numbers decide. `ground` matters where leases are permitted; of
    /// the same version the time limits of leases are taken over, since they are settings of the caller.
    ///
    /// # Errors
    /// [`Stale`], with nothing changed.
    pub fn begin(
        &mut self,
        version: PolicyVersion,
        numbers: &Arc<Numbers>,
        force: bool,
        clock_ms: i64,
        ground: &Ground,
    ) -> Result<(), Stale> {
        if version < self.version && !force {
            return Err(Stale { ledger_version: self.version });
        }
        let elapsed_ms = clock_ms.saturating_sub(self.clock_ms).max(0);
        self.clock_ms = clock_ms;
        let adopted = (version > self.version).then_some(numbers);
        if self.leases.is_none() && adopted.unwrap_or(&self.numbers).lease.is_none() {
            self.now_ms = self.now_ms.saturating_add(elapsed_ms);
            self.refill(elapsed_ms);
            if let Some(numbers) = adopted {
                self.fit(numbers);
            }
        } else {
            let same = (version == self.version).then_some(numbers);
            self.begin_leased(elapsed_ms, adopted, same, ground);
        }
        if adopted.is_some() {
            self.version = version;
        }
        self.drop_ended();
        Ok(())
    }

    /// Decides one step. Call [`Self::begin`] first.
    pub fn step(&mut self, step: &Step) -> Answer {
        match step {
            Step::Reserve(ask) => self.reserve(ask),
            Step::Release(release) => self.release(release),
            Step::Extend(extend) => self.extend(*extend),
        }
    }

    fn refill(&mut self, elapsed_ms: i64) {
        if let Some(numbers) = &self.numbers.admission {
            self.admission.refill(numbers, elapsed_ms);
        }
        self.retry.refill(&self.numbers.retry, elapsed_ms);
        for ((_, bucket), (_, numbers)) in self.units.iter_mut().zip(&self.numbers.units) {
            bucket.refill(numbers, elapsed_ms);
        }
    }

    /// Computes with other numbers from now on: clips, never refills.
    fn fit(&mut self, numbers: &Arc<Numbers>) {
        match &numbers.admission {
            Some(new) => self.admission.adopt(new),
            None => self.admission = Bucket::default(),
        }
        self.retry.adopt(&numbers.retry);
        self.units = (numbers.units.iter())
            .map(|(id, new)| {
                let mut bucket = self.unit(*id).copied().unwrap_or_default();
                bucket.adopt(new);
                (*id, bucket)
            })
            .collect();
        self.numbers = Arc::clone(numbers);
    }

    fn drop_ended(&mut self) {
        if let Some(reservations) = &mut self.reservations {
            let ended = reservations.drop_ended(self.now_ms, self.numbers.permit_ttl_ms);
            self.in_flight = self.in_flight.saturating_sub(ended);
            bump(&mut self.counters.permits_expired, ended);
            if reservations.is_empty() {
                self.reservations = None;
            }
        }
        if let Some(operations) = &mut self.operations {
            operations.forget(self.now_ms);
            if operations.is_empty() {
                self.operations = None;
            }
        }
    }

    fn unit(&self, id: UnitId) -> Option<&Bucket> {
        self.units.iter().find(|(unit, _)| *unit == id).map(|(_, bucket)| bucket)
    }

    fn unit_mut(&mut self, id: UnitId) -> Option<&mut Bucket> {
        self.units.iter_mut().find(|(unit, _)| *unit == id).map(|(_, bucket)| bucket)
    }

    /// The version of the numbers in force.
    #[must_use]
    pub const fn version(&self) -> PolicyVersion {
        self.version
    }

    /// Whether the policy in force only watches.
    #[must_use]
    pub fn shadow(&self) -> bool {
        self.numbers.shadow
    }

    /// The clock's reading at the last call.
    #[must_use]
    pub const fn idle_since_ms(&self) -> i64 {
        self.clock_ms
    }

    /// After this much idle time the ledger may be forgotten; 0: never.
    #[must_use]
    pub fn idle_ttl_ms(&self) -> i64 {
        self.numbers.idle_ttl_ms
    }

    /// How the ledger stands at `clock_ms`, without changing it.
    #[must_use]
    pub fn view(&self, clock_ms: i64) -> View {
        let elapsed_ms = clock_ms.saturating_sub(self.clock_ms).max(0);
        let elapsed_ms = self
            .leases
            .as_ref()
            .map_or(elapsed_ms, |leases| leases.time.advance(self.now_ms, elapsed_ms, leases.terms.step_max_ms).0);
        let now_ms = self.now_ms.saturating_add(elapsed_ms);
        let balance = |mut bucket: Bucket, numbers| {
            bucket.refill(numbers, elapsed_ms);
            bucket.balance_micros
        };
        let ended = self.reservations.as_ref().map_or(0, |reservations| reservations.permits_ended(now_ms));
        View {
            version: self.version,
            shadow: self.numbers.shadow,
            admission_balance_micros: self.numbers.admission.as_ref().map(|numbers| balance(self.admission, numbers)),
            retry_balance_micros: balance(self.retry, &self.numbers.retry),
            units: (self.units.iter().zip(&self.numbers.units))
                .map(|((id, bucket), (_, numbers))| (*id, balance(*bucket, numbers)))
                .collect(),
            in_flight: self.in_flight.saturating_sub(ended).max(0),
            counters: self.counters,
            lending: self.lending_at(now_ms).map(Box::new),
        }
    }
}

#[cfg(test)]
mod tests;
