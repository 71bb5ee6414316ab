//! Sync: judge a holder's request, count its report, grant it what [`grants`](super::grants) says.

use super::{
    Leases, PRESENTED_MAX, PROOFS_MAX,
    holders::{Given, Life, Record},
    table::Held,
};
use crate::{
    guard::{Guard, on},
    lease::{
        Amounts, GRANTS_MAX, Grant, Ground, HolderId, INCARNATIONS_MAX, Incarnation, InvalidSync, LeaseName, NotLeased,
        Presented, SyncAnswer, SyncAsk, Usage,
    },
    ledger::Ledger,
    units::checked_div,
};

/// Reports, which may be forged, bring no counter further, so that it can go on exactly.
const REPORTED_MAX: i64 = 1 << 52;

/// A holder as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// Its name.
    pub holder: HolderId,
    /// Its latest incarnation.
    pub incarnation: Incarnation,
    /// Its weight.
    pub weight: i64,
    /// What it asks for, parts of [`SHARE_ONE`](crate::lease::SHARE_ONE).
    pub demand: i64,
    /// Its latest lease.
    pub value: Amounts,
    /// What is charged to all its incarnations.
    pub charged: Amounts,
    /// Of its latest lease.
    pub generation: i64,
    /// How long its latest lease lasts without renewal.
    pub expires_in_ms: i64,
    /// Its latest report.
    pub usage: Usage,
    /// An operator took its lease away.
    pub revoked: bool,
}

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
        let mut held = self.leases.as_mut().and_then(|leases| leases.take(&ask.holder));
        let answer = self.decide(&mut held, ask);
        if let Some(leases) = &mut self.leases {
            leases.put_back(held);
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
        match leases.recall(life_of(held, ask), ask, now_ms) {
            Recall::Answer(answer) => return answer,
            Recall::New => {}
        }
        if let Err(invalid) = leases.judge(life_of(held, ask), ask) {
            return SyncAnswer::Invalid(invalid);
        }
        if !leases.admit(held, ask, now_ms) {
            let permitted = leases.whole.leases_permitted();
            let reason = if permitted { NotLeased::TooManyHolders } else { NotLeased::NotPermitted };
            return SyncAnswer::NotLeased(reason);
        }
        if let Some(life) = life_of(held, ask) {
            self.count(life, ask);
        }
        let Some(leases) = &mut self.leases else { return SyncAnswer::NotLeased(NotLeased::NotPermitted) };
        leases.acknowledge(held, ask, now_ms);
        leases.prove(held, ask, now_ms, self.numbers.permit_ttl_ms);
        if ask.leave {
            leases.quote(held, ask, i64::MAX, now_ms);
            leases.refresh(held, now_ms);
            return SyncAnswer::Left;
        }
        self.grant(held, ask)
    }

    /// Adds what the report has more than the last one.
    fn count(&mut self, life: &mut Life, ask: &SyncAsk) {
        let base = std::mem::replace(&mut life.usage, ask.usage.clone());
        let more = |now: i64, then: i64| now.saturating_sub(then).max(0);
        let (now, then) = (&ask.usage, &base);
        let counters = &mut self.counters;
        let originals = more(now.originals_admitted, then.originals_admitted)
            .saturating_add(more(now.fallback_originals, then.fallback_originals));
        let retries = more(now.retries_admitted, then.retries_admitted)
            .saturating_add(more(now.fallback_retries, then.fallback_retries));
        report(&mut counters.originals_admitted, originals);
        report(&mut counters.retries_admitted, retries);
        report(&mut counters.originals_denied, more(now.originals_denied, then.originals_denied));
        report(&mut counters.retries_denied, more(now.retries_denied, then.retries_denied));
        report(&mut counters.not_sent, more(now.not_sent, then.not_sent));
        report(&mut counters.deposited_micros, more(now.deposited_micros, then.deposited_micros));
        report(&mut counters.overuse_micros, more(now.overuse_micros, then.overuse_micros));
        if !on(Guard::DepositsAreLocal) {
            let earned = originals.saturating_mul(self.numbers.deposit_micros);
            self.retry.deposit(&self.numbers.retry, earned);
        }
    }

    /// Chooses a share, clips it to what is free, and moves tokens into what grows.
    fn grant(&mut self, held: &mut Option<Held>, ask: &SyncAsk) -> SyncAnswer {
        let now_ms = self.now_ms;
        let direct = (self.in_flight, self.admission.balance_micros < 0);
        let Some(leases) = &mut self.leases else { return SyncAnswer::NotLeased(NotLeased::NotPermitted) };
        let Some(Held { record, .. }) = held else { return SyncAnswer::Dead };
        if record.life_mut(ask.incarnation).is_none_or(|life| life.grants.len() >= GRANTS_MAX) {
            return SyncAnswer::Dead;
        }
        let share = leases.choose_share(record, ask, now_ms);
        let value = leases.clip(record, ask, share, direct, now_ms);
        leases.generation = leases.generation.saturating_add(1);
        let name = LeaseName { epoch: leases.epoch, generation: leases.generation };
        let curve = leases.terms.curve.clone();
        let given = Given {
            generation: name.generation,
            granted_ms: now_ms,
            value: value.clone(),
            curve: curve.clone(),
            permit_ttl_ms: leases.whole.permit_ttl_ms,
        };
        let charge = |record: &mut Record| record.life_mut(ask.incarnation).map(|life| life.charge.clone());
        let before = charge(record).unwrap_or_default();
        leases.give(record, ask, given);
        let after = charge(record).unwrap_or_default();
        leases.refresh(held, now_ms);
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
        self.leases.as_ref().map_or(0, |leases| i64::try_from(leases.holders.len()).unwrap_or(i64::MAX))
    }

    /// Holders in the order of their names after `after`, at most `limit`.
    #[must_use]
    pub fn list_holders(&self, after: Option<&HolderId>, limit: usize) -> Vec<HolderView> {
        let Some(leases) = &self.leases else { return Vec::new() };
        let mut holders: Vec<_> =
            leases.holders.values().filter(|record| after.is_none_or(|after| record.name > *after)).collect();
        holders.sort_unstable_by_key(|record| &record.name);
        (holders.into_iter())
            .filter_map(|record| {
                let life = record.lives.last()?;
                let grant = life.grants.last();
                Some(HolderView {
                    holder: record.name.clone(),
                    incarnation: life.incarnation,
                    weight: record.weight,
                    demand: record.demand,
                    value: grant.map(|grant| grant.value.clone()).unwrap_or_default(),
                    charged: record.charge(),
                    generation: grant.map_or(0, |grant| grant.generation),
                    expires_in_ms: grant.map_or(0, |grant| {
                        grant.granted_ms.saturating_add(grant.curve.total_ms()).saturating_sub(self.now_ms).max(0)
                    }),
                    usage: life.usage.clone(),
                    revoked: record.revoked_until_ms > self.now_ms,
                })
            })
            .take(limit)
            .collect()
    }

    /// Takes a holder's lease away from its next sync on, for as long as one curve lasts. Until that sync, or the end of
    /// its curve, it goes on spending. False if no such holder is known.
    pub fn revoke(&mut self, holder: &HolderId) -> bool {
        let now_ms = self.now_ms;
        let Some(leases) = &mut self.leases else { return false };
        let until_ms = now_ms.saturating_add(leases.terms.curve.total_ms());
        leases.find_mut(holder).map(|record| record.revoked_until_ms = until_ms).is_some()
    }
}

// === impl Leases ===

/// What an earlier request says about this one.
enum Recall {
    New,
    Answer(SyncAnswer),
}

impl Leases {
    /// Rule 6: the same request gets the same grant at its present position; an older one, or a twin, is fenced.
    fn recall(&self, life: Option<&mut Life>, ask: &SyncAsk, now_ms: i64) -> Recall {
        let (dead, margin_ms) = (self.dead_generation, self.terms.margin_ms);
        let Some(life) = life else { return Recall::New };
        if ask.sequence > life.sequence {
            return Recall::New;
        }
        if ask.sequence < life.sequence || ask.nonce != life.nonce {
            return if on(Guard::Fence) { Recall::Answer(SyncAnswer::Fenced) } else { Recall::New };
        }
        let answered = life.answered;
        let given = life.grants.iter().find(|grant| grant.generation == answered);
        let Some(given) = given.filter(|given| given.step_at(now_ms, margin_ms).is_some() && given.generation > dead)
        else {
            return Recall::Answer(SyncAnswer::Dead);
        };
        let position_ms = now_ms.saturating_sub(given.granted_ms);
        if position_ms >= given.curve.total_ms() {
            return Recall::Answer(SyncAnswer::Dead);
        }
        Recall::Answer(SyncAnswer::Granted(Grant {
            name: LeaseName { epoch: self.epoch, generation: answered },
            position_ms: if on(Guard::ReplayTellsPosition) { position_ms } else { 0 },
            value: given.value.clone(),
            moved: life.moved.clone(),
            curve: given.curve.clone(),
        }))
    }

    fn judge(&self, life: Option<&mut Life>, ask: &SyncAsk) -> Result<(), InvalidSync> {
        let Some(life) = life else { return Ok(()) };
        if ask.usage.is_below(&life.usage) {
            return Err(InvalidSync::UsageBackwards);
        }
        let granted = |name: LeaseName| {
            name.epoch != self.epoch
                || life.grants.iter().any(|grant| grant.generation == name.generation)
                // One that has ended, or was quoted away, is not remembered.
                || (name.generation <= self.generation && life.grants.last().is_none_or(|last| name.generation < last.generation))
        };
        match &ask.lease {
            Some(lease) if !granted(lease.name) => Err(InvalidSync::UnknownGeneration),
            Some(_) | None => Ok(()),
        }
    }

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
        match held {
            Some(held) if held.record.lives.len() >= INCARNATIONS_MAX => return false,
            Some(held) => held.record.restarted_until_ms = now_ms.saturating_add(watched_ms),
            None => *held = self.enter(&ask.holder, ask.weight),
        }
        let Some(held) = held else { return false };
        held.record.lives.push(Life::new(ask.incarnation, ask.counted.clone(), now_ms));
        true
    }

    /// Drops the grants that the holder has left behind.
    fn acknowledge(&mut self, held: &mut Option<Held>, ask: &SyncAsk, now_ms: i64) {
        if let Some(lease) = ask.lease.as_ref().filter(|lease| lease.name.epoch == self.epoch) {
            self.quote(held, ask, lease.name.generation, now_ms);
        }
    }

    /// Drops the grants before `generation`. A holder that stops has nothing in use but permits: all of them.
    fn quote(&mut self, held: &mut Option<Held>, ask: &SyncAsk, generation: i64, now_ms: i64) {
        let Some(Held { record, .. }) = held else { return };
        let margin_ms = self.terms.margin_ms;
        self.change(record, |record| {
            if let Some(life) = record.life_mut(ask.incarnation) {
                life.quoted(generation, now_ms, margin_ms);
            }
        });
    }

    /// Keeps a grant beside those that may still be in use, and charges it.
    fn give(&mut self, record: &mut Record, ask: &SyncAsk, given: Given) {
        let margin_ms = self.terms.margin_ms;
        self.change(record, |record| {
            let Some(life) = record.life_mut(ask.incarnation) else { return };
            if !on(Guard::KeepUntilQuoted) {
                life.grants.clear();
            }
            (life.sequence, life.nonce, life.answered) = (ask.sequence, ask.nonce, given.generation);
            let (now_ms, permit_ttl_ms) = (given.granted_ms, given.permit_ttl_ms);
            life.grants.push(given);
            life.charge_again(now_ms, margin_ms, permit_ttl_ms);
        });
    }

    /// Rule 9: a lease of an earlier epoch joins C once per incarnation and is charged beside any new grant.
    fn prove(&mut self, held: &mut Option<Held>, ask: &SyncAsk, now_ms: i64, permit_ttl_ms: i64) {
        let Some(lease) = ask.lease.as_ref().filter(|lease| lease.name.epoch != self.epoch) else { return };
        let Some((step, _)) = lease.curve.at(lease.position_ms) else { return };
        let full = self.proofs.len() >= PROOFS_MAX;
        if now_ms >= self.quarantine_until_ms || full || !self.admit(held, ask, now_ms) {
            return;
        }
        let value =
            lease.value.zip(&self.charged, |value, charged| value.min(PRESENTED_MAX.saturating_sub(charged).max(0)));
        let first = self.proofs.insert(ask.incarnation);
        if first || !on(Guard::ProofOnce) {
            let part = if on(Guard::ProofAtPosition) { value.step(step) } else { value.clone() };
            self.proved = super::sum(&self.proved, &part).map(|proved| proved.min(PRESENTED_MAX));
        }
        if !on(Guard::ChargePresented) || !first {
            return;
        }
        let Some(Held { record, .. }) = held else { return };
        let margin_ms = self.terms.margin_ms;
        self.change(record, |record| {
            if let Some(life) = record.life_mut(ask.incarnation) {
                life.grants.push_front(given_before(lease, value, now_ms, permit_ttl_ms));
                life.charge_again(now_ms, margin_ms, permit_ttl_ms);
            }
        });
        self.refresh(held, now_ms);
    }
}

/// The life that asks.
fn life_of<'a>(held: &'a mut Option<Held>, ask: &SyncAsk) -> Option<&'a mut Life> {
    held.as_mut()?.record.life_mut(ask.incarnation)
}

/// Adds what a holder reports.
fn report(counter: &mut i64, more: i64) {
    *counter = counter.saturating_add(more).min(REPORTED_MAX).max(*counter);
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
