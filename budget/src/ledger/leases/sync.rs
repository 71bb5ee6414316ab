//! Sync: judge a holder's request, count its report, grant it the share that [`lending`](crate::lending) chooses.

use super::{Leases, PRESENTED_MAX, PROOFS_MAX};
use crate::{
    guard::{Guard, on},
    lease::{
        Amounts, Grant, Ground, HOLDERS_MAX, HolderId, LeaseName, NotLeased, Presented, SyncAnswer, SyncAsk, Usage,
    },
    ledger::Ledger,
    lending::{Beside, Given, Held, HolderView, Needs, Pool, Side, life_of, report},
    units::checked_div,
};

// === impl Ledger ===

impl Ledger {
    /// Decides a sync. Call [`Ledger::begin`] first, with the same `ground`.
    pub fn sync(&mut self, ask: &SyncAsk, ground: &Ground) -> SyncAnswer {
        let Some(leases) = &self.leases else { return SyncAnswer::NotLeased(NotLeased::NotPermitted) };
        if ask.epoch.number > 0 && ask.epoch.supersedes(leases.epoch) && on(Guard::RememberedOpensEpoch) {
            self.open_epoch(ground, ask.epoch, true);
        }
        let answer = self.answer(ask);
        self.set_direct();
        answer
    }

    fn answer(&mut self, ask: &SyncAsk) -> SyncAnswer {
        let mut held = self.leases.as_mut().and_then(|leases| leases.table.take(&ask.holder));
        let answer = self.decide(&mut held, ask);
        if let Some(leases) = &mut self.leases {
            leases.table.put_back(held);
        }
        answer
    }

    fn decide(&mut self, held: &mut Option<Held>, ask: &SyncAsk) -> SyncAnswer {
        let now_ms = self.now_ms;
        let Some(leases) = &mut self.leases else { return SyncAnswer::NotLeased(NotLeased::NotPermitted) };
        let waits_ms = leases.wait_until_ms.saturating_sub(now_ms);
        if waits_ms > 0 && on(Guard::NoGrantDuringOverlap) {
            if !on(Guard::NoProofDuringOverlap) {
                leases.prove(held, ask, now_ms, self.numbers.permit_ttl_ms);
            }
            return SyncAnswer::Wait(waits_ms);
        }
        if ask.epoch != leases.epoch {
            if !on(Guard::ProofQuotesEpoch) {
                leases.prove(held, ask, now_ms, self.numbers.permit_ttl_ms);
            }
            return SyncAnswer::Epoch(leases.epoch);
        }
        let (epoch, charging) = (leases.epoch, leases.charging());
        if let Some(life) = life_of(held, ask) {
            if let Some(answer) = life.recall(ask, epoch, leases.dead_generation, now_ms, charging) {
                return answer;
            }
            if let Err(invalid) = life.judge(ask, epoch, leases.generation) {
                return SyncAnswer::Invalid(invalid);
            }
        }
        if !leases.admit(held, ask, now_ms) {
            let permitted = leases.whole.leases_permitted();
            let reason = if permitted { NotLeased::TooManyHolders } else { NotLeased::NotPermitted };
            return SyncAnswer::NotLeased(reason);
        }
        if let Some(life) = life_of(held, ask) {
            self.count(&life.report(&ask.usage));
        }
        let Some(leases) = &mut self.leases else { return SyncAnswer::NotLeased(NotLeased::NotPermitted) };
        leases.acknowledge(held, ask, now_ms);
        leases.prove(held, ask, now_ms, self.numbers.permit_ttl_ms);
        if ask.leave {
            leases.table.quote(held, ask, i64::MAX, now_ms, charging);
            leases.table.refresh(held, now_ms, charging);
            return SyncAnswer::Left;
        }
        self.grant(held, ask)
    }

    /// Adds what a report has more than the last one.
    fn count(&mut self, more: &Usage) {
        let counters = &mut self.counters;
        let originals = more.originals_admitted.saturating_add(more.fallback_originals);
        let retries = more.retries_admitted.saturating_add(more.fallback_retries);
        for (counter, more) in [
            (&mut counters.originals_admitted, originals),
            (&mut counters.retries_admitted, retries),
            (&mut counters.originals_denied, more.originals_denied),
            (&mut counters.retries_denied, more.retries_denied),
            (&mut counters.not_sent, more.not_sent),
            (&mut counters.deposited_micros, more.deposited_micros),
            (&mut counters.overuse_micros, more.overuse_micros),
        ] {
            *counter = report(*counter, more);
        }
        if !on(Guard::DepositsAreLocal) {
            let earned = originals.saturating_mul(self.numbers.deposit_micros);
            self.retry.deposit(&self.numbers.retry, earned);
        }
    }

    /// Chooses a share, clips it to what is free, and moves tokens into what grows.
    fn grant(&mut self, held: &mut Option<Held>, ask: &SyncAsk) -> SyncAnswer {
        let now_ms = self.now_ms;
        let (in_flight, booked) = (self.in_flight, self.admission.balance_micros < 0);
        let Some(leases) = &mut self.leases else { return SyncAnswer::NotLeased(NotLeased::NotPermitted) };
        let Some(Held { record, .. }) = held else { return SyncAnswer::Dead };
        let Some(before) = record.life_mut(ask.incarnation).filter(|life| !life.is_full()) else {
            return SyncAnswer::Dead;
        };
        let before = before.charge.clone();
        let charging = leases.charging();
        let (quota, lendable, curve) = (leases.whole.quota(), leases.leasable(), leases.terms.curve.clone());
        let unknown = if on(Guard::UnknownInGrants) { leases.unknown(now_ms) } else { Amounts::default() };
        let pool = Pool {
            side: Side::Ledger,
            quota: &quota,
            lendable: &lendable,
            curve: &curve,
            needs: Needs {
                admission: leases.whole.admission.is_some(),
                retries: leases.whole.retry.burst > 0,
                slots: leases.whole.slots_limited,
            },
            permitted: leases.whole.leases_permitted(),
        };
        let share = leases.table.choose(record, ask, &pool, now_ms);
        let beside = Beside { unknown: &unknown, in_flight, booked };
        let value = leases.table.clip(record, ask, share, &pool, &beside, now_ms);
        leases.generation = leases.generation.saturating_add(1);
        let name = LeaseName { epoch: leases.epoch, generation: leases.generation };
        let given = Given {
            generation: name.generation,
            granted_ms: now_ms,
            value: value.clone(),
            curve: curve.clone(),
            permit_ttl_ms: leases.whole.permit_ttl_ms,
        };
        leases.table.give(record, ask, given, charging, now_ms);
        let after = record.life_mut(ask.incarnation).map(|life| life.charge.clone()).unwrap_or_default();
        leases.table.refresh(held, now_ms, charging);
        // Caps grow by what is charged more, never by more than was asked to be moved.
        let growth = value.zip(&after, i64::min).zip(&before, |after, before| after.saturating_sub(before).max(0));
        let moved = self.move_levels(&growth);
        if let Some(life) = life_of(held, ask) {
            life.moved = moved.clone();
        }
        SyncAnswer::Granted(Grant { name, position_ms: 0, value, moved, curve })
    }

    /// Withdraws from the central levels what goes into grown caps: half of a level, or what would be clipped.
    fn move_levels(&mut self, growth: &Amounts) -> Amounts {
        let Some(leases) = &self.leases else { return Amounts::default() };
        let after = leases.whole.within(&leases.direct(self.now_ms));
        let take = |level: &mut i64, growth: i64, cap_after: i64| {
            let held = (*level).max(0);
            let moved = growth.min(checked_div(held, 2).max(held.saturating_sub(cap_after)));
            if on(Guard::MovedIsWithdrawn) {
                *level = level.saturating_sub(moved);
            }
            moved
        };
        let mut moved = growth.map(|_| 0);
        moved.burst = take(
            &mut self.admission.balance_micros,
            growth.burst,
            after.admission.as_ref().map_or(0, |bucket| bucket.burst),
        );
        moved.retry_burst = take(&mut self.retry.balance_micros, growth.retry_burst, after.retry.burst);
        for unit in &mut moved.units {
            let growth = growth.unit(unit.unit).map_or(0, |part| part.burst);
            if let (Some((_, bucket)), Some(numbers)) =
                (self.units.iter_mut().find(|(id, _)| *id == unit.unit), after.unit(unit.unit))
            {
                unit.burst = take(&mut bucket.balance_micros, growth, numbers.burst);
            }
        }
        moved
    }

    /// Holders whose leases may still be in use.
    #[must_use]
    pub fn holders(&self) -> i64 {
        self.leases.as_ref().map_or(0, |leases| i64::try_from(leases.table.len()).unwrap_or(i64::MAX))
    }

    /// Holders in the order of their names after `after`, at most `limit`.
    #[must_use]
    pub fn list_holders(&self, after: Option<&HolderId>, limit: usize) -> Vec<HolderView> {
        self.leases.as_ref().map_or_else(Vec::new, |leases| leases.table.list(after, limit, self.now_ms))
    }

    /// Takes a holder's lease away from its next sync on, for as long as one curve lasts. Until that sync, or the end of
    /// its curve, it goes on spending. False if no such holder is known.
    pub fn revoke(&mut self, holder: &HolderId) -> bool {
        let now_ms = self.now_ms;
        let Some(leases) = &mut self.leases else { return false };
        let until_ms = now_ms.saturating_add(leases.terms.curve.total_ms());
        leases.table.revoke(holder, until_ms)
    }
}

// === impl Leases ===

impl Leases {
    /// Makes sure there is a record; false if the limits of what is kept are reached or leases are not permitted.
    fn admit(&mut self, held: &mut Option<Held>, ask: &SyncAsk, now_ms: i64) -> bool {
        if life_of(held, ask).is_some() {
            return true;
        }
        // A holder of an earlier lease may prove it even if no new one is permitted.
        let newcomers = self.whole.leases_permitted() || ask.lease.is_some();
        if !newcomers {
            return false;
        }
        let watched_ms = self.terms.curve.total_ms().saturating_add(self.terms.margin_ms);
        self.table.admit(held, ask, now_ms, watched_ms, HOLDERS_MAX)
    }

    /// Drops the grants that the holder has left behind.
    fn acknowledge(&mut self, held: &mut Option<Held>, ask: &SyncAsk, now_ms: i64) {
        if let Some(lease) = ask.lease.as_ref().filter(|lease| lease.name.epoch == self.epoch) {
            self.table.quote(held, ask, lease.name.generation, now_ms, self.charging());
        }
    }

    /// Rule 9: a lease of an earlier epoch joins C once per incarnation and is charged beside any new grant.
    fn prove(&mut self, held: &mut Option<Held>, ask: &SyncAsk, now_ms: i64, permit_ttl_ms: i64) {
        let Some(lease) = ask.lease.as_ref().filter(|lease| lease.name.epoch != self.epoch) else { return };
        let Some((step, _)) = lease.curve.at(lease.position_ms) else { return };
        let full = self.proofs.len() >= PROOFS_MAX;
        if now_ms >= self.quarantine_until_ms || full || !self.admit(held, ask, now_ms) {
            return;
        }
        let value = lease
            .value
            .zip(&self.table.charged, |value, charged| value.min(PRESENTED_MAX.saturating_sub(charged).max(0)));
        let first = self.proofs.insert(ask.incarnation);
        if first || !on(Guard::ProofOnce) {
            let part = if on(Guard::ProofAtPosition) { value.step(step) } else { value.clone() };
            self.proved = self.proved.join(&part, i64::saturating_add).map(|proved| proved.min(PRESENTED_MAX));
        }
        if !on(Guard::ChargePresented) || !first {
            return;
        }
        let Some(Held { record, .. }) = held else { return };
        let charging = self.charging();
        self.table.change(record, |record| {
            if let Some(life) = record.life_mut(ask.incarnation) {
                life.grants.push_front(given_before(lease, value, now_ms, permit_ttl_ms));
                life.charge_again(now_ms, charging, permit_ttl_ms);
            }
        });
        self.table.refresh(held, now_ms, charging);
    }
}

/// A presented lease of an earlier epoch as a grant, charged from its position on.
fn given_before(lease: &Presented, value: Amounts, now_ms: i64, permit_ttl_ms: i64) -> Given {
    Given {
        generation: 0,
        granted_ms: now_ms.saturating_sub(lease.position_ms),
        value,
        curve: lease.curve.clone(),
        permit_ttl_ms,
    }
}
