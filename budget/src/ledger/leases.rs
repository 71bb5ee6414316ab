//! The lending side of one ledger: who holds which part, along which curve, and what is unknown after a loss of state.
//!
//! Safety is one line: a grant is at most `part · quota − charges of the others − UNKNOWN`. Records, charges and the choice
//! of shares are those of [`lending`](crate::lending), which agents have too. Charges are the component-wise maximum of the
//! curves of every grant that may still be in use, each step ending a margin later than the holder's. What is charged too
//! long is only wasted.

mod sync;
pub(super) mod time;

use std::{collections::BTreeSet, sync::Arc};

use super::Ledger;
use crate::{
    bucket::Bucket,
    guard::{Guard, on},
    lease::{Amounts, EPOCH_NUMBER_MAX, Epoch, Ground, Incarnation},
    lending::{Charging, Side, Table},
    policy::{BucketNumbers, LeaseNumbers, Numbers},
    units::{MICROS_PER_TOKEN, PPM},
};

/// Most incarnations whose proofs are remembered; what others hold stays unknown until the quarantine ends.
pub const PROOFS_MAX: usize = 80_000;
/// What is presented is not vouched for: it never makes a sum exceed this, so that all sums stay exact in scripts. More
/// than twice any quota.
pub const PRESENTED_MAX: i64 = 1 << 52;

/// How lending stands, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lending {
    /// Rises with every loss of state.
    pub epoch: Epoch,
    /// Holders known.
    pub holders: i64,
    /// What is charged to them.
    pub charged: Amounts,
    /// What may still be out from before the epoch opened.
    pub unknown: Amounts,
    /// Until nothing is unknown any more.
    pub quarantine_left_ms: i64,
    /// Until anything is given at all.
    pub wait_left_ms: i64,
    /// What the store's clock has gained on the replicas', not yet paid.
    pub clock_debt_ms: i64,
}

/// The state of lending.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    /// The policy's numbers; the ledger's own are what is left of them for direct callers.
    pub(super) whole: Arc<Numbers>,
    /// What is left, as it was set last.
    direct: Option<Amounts>,
    /// Of the last policy that permitted leases.
    pub(super) terms: LeaseNumbers,
    /// The store's identity.
    pub(super) identity: i64,
    pub(super) epoch: Epoch,
    /// Of the last grant of this epoch.
    pub(super) generation: i64,
    /// Grants up to this one were made before a policy was lowered: a replay does not give them again.
    pub(super) dead_generation: i64,
    /// State was lost: nothing is given before `wait_until_ms`, not even to direct callers.
    pub(super) lost: bool,
    pub(super) wait_until_ms: i64,
    pub(super) quarantine_until_ms: i64,
    /// What holders have proved to hold since the epoch opened: C.
    pub(super) proved: Amounts,
    /// Who has.
    pub(super) proofs: BTreeSet<Incarnation>,
    /// What may be leased as it was when the epoch opened; only a guard that is switched off asks.
    pub(super) leasable_at_opening: Amounts,
    /// How ledger time stands against the clocks of hosts.
    pub(super) time: time::Time,
    pub(super) table: Table,
}

// === impl Leases ===

impl Leases {
    fn new(whole: Arc<Numbers>, terms: LeaseNumbers) -> Self {
        Self {
            whole,
            direct: None,
            terms,
            identity: 0,
            epoch: Epoch::default(),
            generation: 0,
            dead_generation: 0,
            lost: false,
            wait_until_ms: 0,
            quarantine_until_ms: 0,
            proved: Amounts::default(),
            proofs: BTreeSet::new(),
            leasable_at_opening: Amounts::default(),
            time: time::Time::default(),
            table: Table::default(),
        }
    }

    const fn charging(&self) -> Charging {
        Charging { side: Side::Ledger, margin_ms: self.terms.margin_ms }
    }

    /// What may be leased of the policy of the moment. A whole token of each burst stays for direct callers, who could do
    /// nothing with less, whatever their rate.
    pub(super) fn leasable(&self) -> Amounts {
        let quota = self.whole.quota();
        let most = |part: i64, whole: i64, one: i64| part.min(whole.saturating_sub(one)).max(0);
        let mut part = quota.scaled(self.terms.part_ppm, PPM);
        part.burst = most(part.burst, quota.burst, MICROS_PER_TOKEN);
        part.retry_burst = most(part.retry_burst, quota.retry_burst, MICROS_PER_TOKEN);
        part.slots = most(part.slots, quota.slots, 1);
        for (unit, whole) in part.units.iter_mut().zip(&quota.units) {
            unit.burst = most(unit.burst, whole.burst, MICROS_PER_TOKEN);
        }
        part
    }

    /// What a lost ledger may have leased of it: a part that was lowered a moment ago still counts.
    fn lendable_before(&self) -> Amounts {
        let part_ppm = if on(Guard::WidestPart) {
            self.terms.widest_part_ppm.max(self.terms.part_ppm)
        } else {
            self.terms.part_ppm
        };
        self.whole.quota().scaled(part_ppm, PPM)
    }

    /// What may still be out from before the epoch opened: charged like one more holder until the quarantine ends.
    pub(super) fn unknown(&self, now_ms: i64) -> Amounts {
        if now_ms >= self.quarantine_until_ms {
            // Permits that were taken at the very end of an unknown lease.
            let slots = if now_ms < self.slots_until_ms() { self.lendable_before().slots } else { 0 };
            return Amounts { slots: slots.saturating_sub(self.proved.slots).max(0), ..Amounts::default() };
        }
        let mut leasable =
            if on(Guard::UnknownFollowsPolicy) { self.lendable_before() } else { self.leasable_at_opening.clone() };
        if !on(Guard::UnknownWholeCurve) {
            let total_ms = self.terms.longest_curve_ms.saturating_add(self.terms.margin_ms);
            let opened_ms = self.quarantine_until_ms.saturating_sub(self.terms.overlap_ms).saturating_sub(total_ms);
            let position_ms = now_ms.saturating_sub(opened_ms).saturating_sub(self.terms.margin_ms);
            leasable = self.terms.curve.at(position_ms).map_or_else(Amounts::default, |(step, _)| leasable.step(step));
        }
        leasable.zip(&self.proved, |leasable, proved| leasable.saturating_sub(proved).max(0))
    }

    /// Until when permits of unknown leases may be in flight: for their life after the quarantine.
    fn slots_until_ms(&self) -> i64 {
        let nothing_out = self.quarantine_until_ms <= self.wait_until_ms;
        if nothing_out || !self.whole.slots_limited || !on(Guard::SlotsLinger) {
            return self.quarantine_until_ms;
        }
        self.quarantine_until_ms.saturating_add(self.whole.permit_ttl_ms)
    }

    /// What is left for direct callers.
    fn direct(&self, now_ms: i64) -> Amounts {
        let quota = self.whole.quota();
        if self.lost && now_ms < self.wait_until_ms && on(Guard::NoRefillDuringOverlap) {
            return quota.map(|_| 0);
        }
        let unknown = if on(Guard::UnknownInDirect) { self.unknown(now_ms) } else { Amounts::default() };
        if !on(Guard::DirectIsDynamic) {
            return quota.zip(&self.leasable(), i64::saturating_sub);
        }
        quota
            .zip(&self.table.charged, |quota, charged| quota.saturating_sub(charged))
            .zip(&unknown, |left, unknown| left.saturating_sub(unknown).max(0))
    }

    /// Whether nothing is lent and nothing unknown, so that a policy without leases needs none of this.
    fn is_over(&self, now_ms: i64) -> bool {
        self.table.is_empty() && now_ms >= self.slots_until_ms() && now_ms >= self.wait_until_ms
    }
}

// === impl Ledger ===

impl Ledger {
    /// The part of [`Ledger::begin`] that concerns leases, in the order of rule 2: refill at the rates and caps of the
    /// last call, advance time, adopt newer numbers, step charges down, then set rates and caps anew and clip.
    pub(super) fn begin_leased(
        &mut self,
        elapsed_ms: i64,
        adopted: Option<&Arc<Numbers>>,
        same: Option<&Arc<Numbers>>,
        ground: &Ground,
    ) {
        // What passed before an epoch opened earns nothing in it.
        let elapsed_ms = if self.open_epoch_if_lost(adopted, ground) { 0 } else { elapsed_ms };
        let Some(leases) = &mut self.leases else { return };
        let (advanced_ms, debt_ms) = leases.time.advance(self.now_ms, elapsed_ms, leases.terms.step_max_ms);
        leases.time.debt_ms = debt_ms;
        self.now_ms = self.now_ms.saturating_add(advanced_ms);
        if on(Guard::RefillBeforeStepping) {
            self.refill(advanced_ms);
        }
        let Some(leases) = &mut self.leases else { return };
        if let Some(beat) = ground.beat {
            leases.time.beat(beat, self.now_ms, self.clock_ms, leases.terms.step_max_ms);
        }
        if let Some(numbers) = adopted {
            leases.adopt(numbers);
        }
        if let Some(numbers) = same {
            leases.follow(numbers);
        }
        leases.table.step_down(self.now_ms, leases.charging());
        if self.now_ms >= leases.quarantine_until_ms {
            leases.proofs.clear();
        }
        if self.now_ms >= leases.slots_until_ms() {
            leases.proved = Amounts::default();
        }
        if leases.whole.lease.is_none() && leases.is_over(self.now_ms) {
            let whole = Arc::clone(&leases.whole);
            self.leases = None;
            self.fit(&whole);
            return;
        }
        self.set_direct();
        if !on(Guard::RefillBeforeStepping) {
            self.refill(advanced_ms);
        }
    }

    /// Opens an epoch where state is missing, is another store's, or is older than what the caller remembers.
    fn open_epoch_if_lost(&mut self, adopted: Option<&Arc<Numbers>>, ground: &Ground) -> bool {
        match &self.leases {
            None => {
                let whole = Arc::clone(adopted.unwrap_or(&self.numbers));
                let Some(terms) = whole.lease.clone() else { return false };
                self.leases = Some(Box::new(Leases::new(whole, terms)));
                // Nothing was ever decided here: the state is missing. Otherwise leases are permitted from now on, and
                // direct callers keep what they have.
                let missing = self.counters == super::Counters::default();
                self.open_epoch(ground, Epoch::default(), missing);
                true
            }
            Some(leases) => {
                let other = leases.identity != ground.identity && on(Guard::IdentityOpensEpoch);
                let older = ground.remembered.number > 0
                    && ground.remembered.supersedes(leases.epoch)
                    && on(Guard::RememberedOpensEpoch);
                if other || older {
                    self.open_epoch(ground, Epoch::default(), true);
                }
                other || older
            }
        }
    }

    /// Opens an epoch above every one that is known. `lost`: with empty levels and no permits.
    pub(super) fn open_epoch(&mut self, ground: &Ground, presented: Epoch, lost: bool) {
        let Some(leases) = &mut self.leases else { return };
        let highest = leases.epoch.number.max(ground.remembered.number).max(presented.number);
        // At the end of all numbers another id is what counts as higher.
        let number = highest.saturating_add(1).min(EPOCH_NUMBER_MAX);
        let mut fresh = Leases::new(Arc::clone(&leases.whole), leases.terms.clone());
        fresh.identity = ground.identity;
        fresh.epoch = Epoch { number, id: ground.fresh_id };
        fresh.lost = lost;
        fresh.time = time::Time::of_epoch(self.now_ms);
        fresh.leasable_at_opening = fresh.lendable_before();
        let terms = &fresh.terms;
        if ground.fresh_store {
            fresh.wait_until_ms = self.now_ms;
            fresh.quarantine_until_ms = self.now_ms;
        } else {
            let curve_ms = if on(Guard::LongestCurve) { terms.longest_curve_ms } else { terms.curve.total_ms() };
            fresh.wait_until_ms = self.now_ms.saturating_add(terms.overlap_ms);
            fresh.quarantine_until_ms =
                self.now_ms.saturating_add(curve_ms).saturating_add(terms.margin_ms).saturating_add(terms.overlap_ms);
        }
        **leases = fresh;
        if lost {
            self.reservations = None;
            self.in_flight = 0;
            if on(Guard::EpochStartsEmpty) {
                self.admission = Bucket::default();
                self.retry = Bucket::default();
                for (_, bucket) in &mut self.units {
                    *bucket = Bucket::default();
                }
            } else {
                self.admission.balance_micros = leases.whole.quota().burst;
                self.retry.balance_micros = leases.whole.quota().retry_burst;
            }
        }
        self.set_direct();
    }

    /// Sets what direct callers share to what is not charged, and clips the levels.
    pub(super) fn set_direct(&mut self) {
        let Some(leases) = &mut self.leases else { return };
        let direct = leases.direct(self.now_ms);
        if leases.direct.as_ref() == Some(&direct) {
            return;
        }
        let numbers = Arc::new(leases.whole.within(&direct));
        leases.direct = Some(direct);
        if on(Guard::ClipCentral) {
            self.fit(&numbers);
        } else {
            self.numbers = numbers;
        }
    }

    /// How long direct callers wait for σ to pass after a loss of state; 0: not at all. Until then the store counts as
    /// away. Call [`Ledger::begin`] first.
    #[must_use]
    pub fn direct_wait_ms(&self) -> i64 {
        match &self.leases {
            Some(leases) if leases.lost && on(Guard::NoRefillDuringOverlap) => {
                leases.wait_until_ms.saturating_sub(self.now_ms).max(0)
            }
            Some(_) | None => 0,
        }
    }

    /// The epoch of this state; number 0 where leases are not permitted.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.leases.as_ref().map_or_else(Epoch::default, |leases| leases.epoch)
    }

    /// How lending stands after the last call; none where leases are not permitted and none is out.
    #[must_use]
    pub fn lending(&self) -> Option<Lending> {
        self.lending_at(self.now_ms)
    }

    /// How it stands once ledger time has come to `now_ms`, as far as no charge steps down until then.
    pub(super) fn lending_at(&self, now_ms: i64) -> Option<Lending> {
        let leases = self.leases.as_ref()?;
        Some(Lending {
            epoch: leases.epoch,
            holders: self.holders(),
            charged: leases.table.charged.clone(),
            unknown: leases.unknown(now_ms),
            quarantine_left_ms: leases.quarantine_until_ms.saturating_sub(now_ms).max(0),
            wait_left_ms: leases.wait_until_ms.saturating_sub(now_ms).max(0),
            clock_debt_ms: leases.time.debt_ms,
        })
    }

    /// Whether time needs heartbeats: something is lent or unknown; or it brings something back, in steps, as leases need.
    #[must_use]
    pub fn needs_beats(&self) -> bool {
        self.leases.as_ref().is_some_and(|leases| {
            !leases.is_over(self.now_ms) || (leases.whole.leases_permitted() && self.gains_by_time(&leases.whole))
        })
    }

    /// Whether a bucket is not full that time fills, or a permit is out that time ends.
    fn gains_by_time(&self, whole: &Numbers) -> bool {
        let fills = |bucket: &Bucket, numbers: &BucketNumbers| numbers.num > 0 && bucket.balance_micros < numbers.burst;
        self.numbers.admission.as_ref().is_some_and(|numbers| fills(&self.admission, numbers))
            || fills(&self.retry, &self.numbers.retry)
            || self.units.iter().zip(&self.numbers.units).any(|((_, bucket), (_, numbers))| fills(bucket, numbers))
            || (whole.slots_limited && self.in_flight > 0)
    }
}

impl Leases {
    /// Takes what may differ in numbers of the same version, since it is not in the policies: time limits, which are
    /// settings of the caller, and whether it remembers that leases were permitted a moment ago.
    fn follow(&mut self, numbers: &Arc<Numbers>) {
        if let Some(given) = &numbers.lease {
            self.terms.margin_ms = given.margin_ms;
            self.terms.overlap_ms = given.overlap_ms;
            self.terms.step_max_ms = given.step_max_ms;
        } else if !self.whole.leases_permitted() {
            self.whole = Arc::clone(numbers);
        }
    }

    /// Takes newer numbers. A lowered quota makes earlier grants dead for replays.
    fn adopt(&mut self, numbers: &Arc<Numbers>) {
        let before = self.leasable();
        let before_curve_ms = self.terms.curve.total_ms();
        self.whole = Arc::clone(numbers);
        self.direct = None;
        if let Some(terms) = &numbers.lease {
            self.terms = terms.clone();
        }
        let after = self.leasable();
        let lower = |now: i64, then: i64| i64::from(now < then);
        let lowered = !after.zip(&before, lower).is_zero()
            || after.units.len() < before.units.len()
            || !numbers.leases_permitted()
            || self.terms.curve.total_ms() < before_curve_ms;
        if lowered && on(Guard::ReplayDies) {
            self.dead_generation = self.generation;
        }
    }
}

#[cfg(test)]
mod tests;
