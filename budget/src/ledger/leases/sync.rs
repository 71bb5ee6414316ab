//! Sync: judge a holder's request, count its report, choose its share and grant it.

use super::{
    Leases,
    holders::{Given, Life, Record},
};
use crate::{
    guard::{Guard, on},
    lease::{
        Amounts, GRANTS_MAX, Grant, Ground, HOLDERS_MAX, HolderId, INCARNATIONS_MAX, Incarnation, InvalidSync,
        LeaseName, NEWCOMERS_SHARE, NotLeased, Presented, SHARE_ONE, SyncAnswer, SyncAsk, Usage,
    },
    ledger::{Ledger, bump},
    policy::Numbers,
    units::{MICROS_PER_TOKEN, checked_div, div_ceil},
};

/// Demand is measured over at least this long.
const MEASURE_MS_MIN: i64 = 1_000;

/// A holder as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// Its name.
    pub holder: HolderId,
    /// Its latest incarnation.
    pub incarnation: Incarnation,
    /// Its weight.
    pub weight: i64,
    /// What it asks for, parts of [`SHARE_ONE`].
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
        let now_ms = self.now_ms;
        let Some(leases) = &mut self.leases else { return SyncAnswer::NotLeased(NotLeased::NotPermitted) };
        let waits_ms = leases.wait_until_ms.saturating_sub(now_ms);
        if waits_ms > 0 && on(Guard::NoGrantDuringOverlap) {
            if !on(Guard::NoProofDuringOverlap) {
                leases.prove(ask, now_ms, self.numbers.permit_ttl_ms);
            }
            return SyncAnswer::Wait(waits_ms);
        }
        if ask.epoch != leases.epoch {
            if !on(Guard::ProofQuotesEpoch) {
                leases.prove(ask, now_ms, self.numbers.permit_ttl_ms);
            }
            return SyncAnswer::Epoch(leases.epoch);
        }
        match leases.recall(ask, now_ms) {
            Recall::Answer(answer) => return answer,
            Recall::New => {}
        }
        if let Err(invalid) = leases.judge(ask) {
            return SyncAnswer::Invalid(invalid);
        }
        if leases.record_of(ask, now_ms).is_none() {
            let permitted = leases.whole.leases_permitted();
            let reason = if permitted { NotLeased::TooManyHolders } else { NotLeased::NotPermitted };
            return SyncAnswer::NotLeased(reason);
        }
        self.count(ask);
        let Some(leases) = &mut self.leases else { return SyncAnswer::NotLeased(NotLeased::NotPermitted) };
        leases.acknowledge(ask, now_ms);
        leases.prove(ask, now_ms, self.numbers.permit_ttl_ms);
        if ask.leave {
            leases.part(ask, now_ms);
            return SyncAnswer::Left;
        }
        self.grant(ask)
    }

    /// Adds what the report has more than the last one.
    fn count(&mut self, ask: &SyncAsk) {
        let Some(life) = self.leases.as_mut().and_then(|leases| leases.life_mut(ask)) else { return };
        let base = std::mem::replace(&mut life.usage, ask.usage.clone());
        let more = |now: i64, then: i64| now.saturating_sub(then).max(0);
        let (now, then) = (&ask.usage, &base);
        let counters = &mut self.counters;
        let originals = more(now.originals_admitted, then.originals_admitted)
            .saturating_add(more(now.fallback_originals, then.fallback_originals));
        bump(&mut counters.originals_admitted, originals);
        bump(
            &mut counters.retries_admitted,
            more(now.retries_admitted, then.retries_admitted)
                .saturating_add(more(now.fallback_retries, then.fallback_retries)),
        );
        bump(&mut counters.originals_denied, more(now.originals_denied, then.originals_denied));
        bump(&mut counters.retries_denied, more(now.retries_denied, then.retries_denied));
        bump(&mut counters.not_sent, more(now.not_sent, then.not_sent));
        bump(&mut counters.deposited_micros, more(now.deposited_micros, then.deposited_micros));
        bump(&mut counters.overuse_micros, more(now.overuse_micros, then.overuse_micros));
        if !on(Guard::DepositsAreLocal) {
            let earned = originals.saturating_mul(self.numbers.deposit_micros);
            self.retry.deposit(&self.numbers.retry, earned);
        }
    }

    /// Chooses a share, clips it to what is free, and moves tokens into what grows.
    fn grant(&mut self, ask: &SyncAsk) -> SyncAnswer {
        let now_ms = self.now_ms;
        let (in_flight, booked) = (self.in_flight, self.admission.balance_micros < 0);
        let Some(leases) = &mut self.leases else { return SyncAnswer::NotLeased(NotLeased::NotPermitted) };
        if leases.life_mut(ask).is_none_or(|life| life.grants.len() >= GRANTS_MAX) {
            return SyncAnswer::Dead;
        }
        let share = leases.choose_share(ask, now_ms);
        let value = leases.clip(ask, share, in_flight, booked, now_ms);
        let before = leases.life_mut(ask).map(|life| life.charge.clone()).unwrap_or_default();
        leases.generation = leases.generation.saturating_add(1);
        let name = LeaseName { epoch: leases.epoch, generation: leases.generation };
        let (curve, margin_ms) = (leases.terms.curve.clone(), leases.terms.margin_ms);
        let permit_ttl_ms = leases.whole.permit_ttl_ms;
        let record_before = leases.holders.get(&ask.holder).map(Record::charge).unwrap_or_default();
        let mut after = Amounts::default();
        if let Some(life) = leases.life_mut(ask) {
            if !on(Guard::KeepUntilQuoted) {
                life.grants.clear();
            }
            life.grants.push(Given {
                generation: name.generation,
                granted_ms: now_ms,
                value: value.clone(),
                moved: Amounts::default(),
                curve: curve.clone(),
                permit_ttl_ms,
            });
            life.charge_again(now_ms, margin_ms, permit_ttl_ms);
            (life.sequence, life.nonce, life.answered) = (ask.sequence, ask.nonce, name.generation);
            after = life.charge.clone();
        }
        let record_after = leases.holders.get(&ask.holder).map(Record::charge).unwrap_or_default();
        leases.recharge(&record_before, &record_after);
        leases.refresh(&ask.holder, now_ms);
        // Caps grow by what is charged more, never by more than was asked to be moved.
        let growth = value.zip(&after, i64::min).zip(&before, |after, before| after.saturating_sub(before).max(0));
        let moved = self.move_levels(&growth);
        if let Some(life) = self.leases.as_mut().and_then(|leases| leases.life_mut(ask))
            && let Some(given) = life.grants.last_mut()
        {
            given.moved = moved.clone();
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
        use std::ops::Bound;
        let Some(leases) = &self.leases else { return Vec::new() };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        (leases.holders.range::<HolderId, _>((from, Bound::Unbounded)))
            .filter_map(|(holder, record)| {
                let life = record.lives.last()?;
                let grant = life.grants.last();
                Some(HolderView {
                    holder: holder.clone(),
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
        leases.holders.get_mut(holder).map(|record| record.revoked_until_ms = until_ms).is_some()
    }
}

// === impl Leases ===

/// What an earlier request says about this one.
enum Recall {
    New,
    Answer(SyncAnswer),
}

impl Leases {
    fn life_mut(&mut self, ask: &SyncAsk) -> Option<&mut Life> {
        let record = self.holders.get_mut(&ask.holder)?;
        let at = record.life(ask.incarnation)?;
        record.lives.get_mut(at)
    }

    /// Rule 6: the same request gets the same grant at its present position; an older one, or a twin, is fenced.
    fn recall(&mut self, ask: &SyncAsk, now_ms: i64) -> Recall {
        let (name_epoch, dead, margin_ms) = (self.epoch, self.dead_generation, self.terms.margin_ms);
        let Some(life) = self.life_mut(ask) else { return Recall::New };
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
            name: LeaseName { epoch: name_epoch, generation: answered },
            position_ms: if on(Guard::ReplayTellsPosition) { position_ms } else { 0 },
            value: given.value.clone(),
            moved: given.moved.clone(),
            curve: given.curve.clone(),
        }))
    }

    fn judge(&mut self, ask: &SyncAsk) -> Result<(), InvalidSync> {
        let epoch = self.epoch;
        let highest = self.generation;
        let Some(life) = self.life_mut(ask) else { return Ok(()) };
        if ask.usage.is_below(&life.usage) {
            return Err(InvalidSync::UsageBackwards);
        }
        let granted = |name: LeaseName| {
            name.epoch != epoch
                || life.grants.iter().any(|grant| grant.generation == name.generation)
                // One that has ended, or was quoted away, is not remembered.
                || (name.generation <= highest && life.grants.last().is_none_or(|last| name.generation < last.generation))
        };
        match &ask.lease {
            Some(lease) if !granted(lease.name) => Err(InvalidSync::UnknownGeneration),
            Some(_) | None => Ok(()),
        }
    }

    /// Makes sure there is a record; none if the limits of what is kept are reached or leases are not permitted.
    fn record_of(&mut self, ask: &SyncAsk, now_ms: i64) -> Option<()> {
        if self.life_mut(ask).is_some() {
            return Some(());
        }
        // A holder of an earlier lease may prove it even if no new one is permitted.
        let newcomers = self.whole.leases_permitted() || ask.lease.is_some();
        let full = self.holders.len() >= HOLDERS_MAX && !self.holders.contains_key(&ask.holder);
        if !newcomers || full {
            return None;
        }
        let life = Life::new(ask.incarnation, ask.counted.clone(), now_ms);
        match self.holders.get_mut(&ask.holder) {
            Some(record) if record.lives.len() >= INCARNATIONS_MAX => return None,
            Some(record) => record.lives.push(life),
            None => {
                let record = Record {
                    weight: ask.weight,
                    demand: 0,
                    share: 0,
                    idle: 0,
                    revoked_until_ms: 0,
                    due_ms: None,
                    lives: vec![life],
                };
                self.shares.add(0, record.weight);
                self.holders.insert(ask.holder.clone(), record);
            }
        }
        Some(())
    }

    /// Drops the grants that the holder has left behind.
    fn acknowledge(&mut self, ask: &SyncAsk, now_ms: i64) {
        let Some(lease) = &ask.lease else { return };
        if lease.name.epoch != self.epoch {
            return;
        }
        let margin_ms = self.terms.margin_ms;
        let before = self.holders.get(&ask.holder).map(Record::charge).unwrap_or_default();
        if let Some(life) = self.life_mut(ask) {
            life.quoted(lease.name.generation, now_ms, margin_ms);
        }
        let after = self.holders.get(&ask.holder).map(Record::charge).unwrap_or_default();
        self.recharge(&before, &after);
    }

    /// Rule 9: a lease of an earlier epoch joins C once per incarnation and is charged beside any new grant.
    fn prove(&mut self, ask: &SyncAsk, now_ms: i64, permit_ttl_ms: i64) {
        let Some(lease) = ask.lease.as_ref().filter(|lease| lease.name.epoch != self.epoch) else { return };
        let margin_ms = self.terms.margin_ms;
        let Some((step, _)) = lease.curve.at(lease.position_ms) else { return };
        if now_ms >= self.quarantine_until_ms || self.record_of(ask, now_ms).is_none() {
            return;
        }
        let first = self.proofs.insert(ask.incarnation);
        if first || !on(Guard::ProofOnce) {
            let part = if on(Guard::ProofAtPosition) { lease.value.step(step) } else { lease.value.clone() };
            self.proved = super::sum(&self.proved, &part);
        }
        if !on(Guard::ChargePresented) || !first {
            return;
        }
        let before = self.holders.get(&ask.holder).map(Record::charge).unwrap_or_default();
        if let Some(life) = self.life_mut(ask) {
            life.grants.insert(0, given_before(lease, now_ms, permit_ttl_ms));
            life.charge_again(now_ms, margin_ms, permit_ttl_ms);
        }
        let after = self.holders.get(&ask.holder).map(Record::charge).unwrap_or_default();
        self.recharge(&before, &after);
        self.refresh(&ask.holder.clone(), now_ms);
    }

    /// A holder that stops has nothing in use but permits.
    fn part(&mut self, ask: &SyncAsk, now_ms: i64) {
        let margin_ms = self.terms.margin_ms;
        let before = self.holders.get(&ask.holder).map(Record::charge).unwrap_or_default();
        if let Some(life) = self.life_mut(ask) {
            life.quoted(i64::MAX, now_ms, margin_ms);
        }
        let after = self.holders.get(&ask.holder).map(Record::charge).unwrap_or_default();
        self.recharge(&before, &after);
        self.refresh(&ask.holder, now_ms);
    }

    /// The holder's fair share by its demand, in parts of [`SHARE_ONE`].
    fn choose_share(&mut self, ask: &SyncAsk, now_ms: i64) -> i64 {
        let permitted = self.whole.leases_permitted();
        let smallest = smallest_share(&self.leasable(), &self.whole);
        let quota = self.whole.quota();
        let Some(life) = self.life_mut(ask) else { return 0 };
        let elapsed_ms = now_ms.saturating_sub(life.measured_ms);
        let fresh = life.answered == 0;
        let mut measured = None;
        if !fresh && elapsed_ms >= MEASURE_MS_MIN {
            measured =
                Some((demand(&quota, &life.measured, &ask.usage, elapsed_ms), ask.usage.asked == life.measured.asked));
            life.measured = ask.usage.clone();
            life.measured_ms = now_ms;
        }
        let Some(record) = self.holders.get_mut(&ask.holder) else { return 0 };
        self.shares.remove(record.demand, record.weight);
        record.weight = ask.weight;
        let others = self.shares.weight;
        if let Some((demand, silent)) = measured {
            let raised = demand.saturating_add(checked_div(demand, 4));
            record.demand = raised.max(record.demand.saturating_sub(checked_div(record.demand, 4))).min(SHARE_ONE);
            record.idle = if silent { record.idle.saturating_add(1) } else { 0 };
            if silent && on(Guard::IdleShrinks) {
                record.demand = 0;
            }
        } else if fresh && record.share == 0 {
            // Nothing is known of a newcomer: its fair part, at most a quarter.
            let weight = others.saturating_add(record.weight);
            let fair = checked_div(SHARE_ONE.saturating_mul(record.weight), weight);
            record.demand = fair.min(SHARE_ONE / 4);
        }
        self.shares.add(record.demand, record.weight);
        let available = SHARE_ONE.saturating_sub(NEWCOMERS_SHARE);
        let level = self.shares.level(available);
        let (wanted, fits) = match level {
            Some(level) => {
                let most = level.saturating_mul(record.weight);
                (record.demand.min(most), smallest <= most)
            }
            None => {
                let spare = checked_div(record.demand.saturating_mul(available), self.shares.demand.max(1));
                let room = available.saturating_sub(self.shares.demand).saturating_add(record.demand);
                // What nobody asks for is spread over those who ask, but a guess is not doubled.
                let most = if fresh { record.demand } else { record.demand.saturating_mul(2) };
                (most.min(spare), smallest <= room)
            }
        };
        let idle = record.idle > 0 && on(Guard::IdleShrinks);
        let mut share = match (idle, record.idle) {
            (true, 1) => smallest.min(record.share),
            (true, _) => 0,
            (false, _) if fits => wanted.max(smallest),
            (false, _) => wanted,
        };
        // Small changes are not worth a message, unless there is not enough for all: what one keeps another lacks.
        let change = share.saturating_sub(record.share).saturating_abs();
        let matters = level.is_some() && share < record.share;
        if !idle && !matters && change <= checked_div(record.share, 8) {
            share = record.share;
        }
        if !permitted || smallest > SHARE_ONE || share < smallest || record.revoked_until_ms > now_ms {
            share = 0;
        }
        record.share = share;
        share
    }

    /// Rule 3, and what else limits a grant: the other incarnations of the same holder, permits in flight centrally, and
    /// an admission bucket that is booked ahead and needs its rate.
    fn clip(&mut self, ask: &SyncAsk, share: i64, in_flight: i64, booked: bool, now_ms: i64) -> Amounts {
        let leasable = self.leasable();
        let unknown = if on(Guard::UnknownInGrants) { self.unknown(now_ms) } else { Amounts::default() };
        let whole_slots = self.whole.quota().slots;
        let own = self.life_mut(ask).map(|life| life.charge.clone()).unwrap_or_default();
        let of_holder = self.holders.get(&ask.holder).map(Record::charge).unwrap_or_default();
        let siblings = super::sum(&of_holder, &Amounts::default()).zip(&own, i64::saturating_sub);
        let others = self.charged.zip(&own, i64::saturating_sub);
        let less = |left: i64, taken: i64| left.saturating_sub(taken).max(0);
        let mut value = leasable.scaled(share, SHARE_ONE);
        if on(Guard::OneShareById) {
            value = value.zip(&siblings, less);
        }
        if on(Guard::WithinFree) {
            let mut free = leasable.zip(&others, less).zip(&unknown, less);
            // Slots that direct callers have in flight are charged already, so that they come free one by one and a later
            // request finds them; else direct callers would take them again for ever.
            let slots = value.slots.min(free.slots);
            let direct_slots = less(less(less(whole_slots, others.slots), unknown.slots), in_flight);
            free.slots = free.slots.min(direct_slots);
            let step_ms = self.terms.curve.0.first().map_or(0, |step| step.duration_ms);
            if slots > free.slots
                && let Some(life) = self.life_mut(ask)
            {
                life.slots_linger = life.slots_linger.max(slots);
                life.slots_until_ms = life.slots_until_ms.max(now_ms.saturating_add(step_ms));
            }
            if booked {
                free.rate = free.rate.min(own.rate);
                free.burst = free.burst.min(own.burst);
            }
            value = value.zip(&free, i64::min);
        }
        if is_too_small(&value, &self.whole) { value.map(|_| 0) } else { value }
    }
}

/// A presented lease of an earlier epoch as a grant, charged from its position on.
fn given_before(lease: &Presented, now_ms: i64, permit_ttl_ms: i64) -> Given {
    Given {
        generation: 0,
        granted_ms: now_ms.saturating_sub(lease.position_ms),
        value: lease.value.clone(),
        moved: Amounts::default(),
        curve: lease.curve.clone(),
        permit_ttl_ms,
    }
}

/// The bursts of which a lease must hold a whole token (or slot) to be of use, quota and part.
fn needed<'a>(amounts: &'a Amounts, numbers: &'a Numbers) -> impl Iterator<Item = (i64, i64)> + 'a {
    let admission = numbers.admission.is_some().then_some((amounts.burst, MICROS_PER_TOKEN));
    let retry = (numbers.retry.burst > 0).then_some((amounts.retry_burst, MICROS_PER_TOKEN));
    let slots = numbers.slots_limited.then_some((amounts.slots, 1));
    let units = amounts.units.iter().map(|unit| (unit.burst, MICROS_PER_TOKEN));
    admission.into_iter().chain(retry).chain(slots).chain(units)
}

fn is_too_small(value: &Amounts, numbers: &Numbers) -> bool {
    needed(value, numbers).any(|(held, least)| held < least) || (numbers.admission.is_some() && value.rate == 0)
}

/// The smallest share that is of use; above [`SHARE_ONE`] if there is none.
fn smallest_share(leasable: &Amounts, numbers: &Numbers) -> i64 {
    needed(leasable, numbers)
        .map(
            |(whole, least)| {
                if whole < least {
                    SHARE_ONE.saturating_add(1)
                } else {
                    div_ceil(least.saturating_mul(SHARE_ONE), whole)
                }
            },
        )
        .max()
        .unwrap_or(1)
        .max(1)
}

/// The largest part of a quota that was asked for per second, in parts of [`SHARE_ONE`].
fn demand(quota: &Amounts, before: &Usage, now: &Usage, elapsed_ms: i64) -> i64 {
    let part = |asked_micros: i64, rate: i64| {
        if rate == 0 {
            return 0;
        }
        // Below 2^53 throughout: 10^9 tokens, 4·10^12 micro-tokens per second.
        let per_ms = checked_div(asked_micros, elapsed_ms).min(checked_div(rate, 1_000).saturating_add(1));
        let per_second = per_ms.saturating_mul(1_000).min(rate);
        let unit = div_ceil(rate, 100_000_000);
        checked_div(checked_div(per_second, unit).saturating_mul(SHARE_ONE), checked_div(rate, unit).max(1))
    };
    let more = |now: i64, then: i64| now.saturating_sub(then).clamp(0, 1_000_000_000);
    let attempts = more(now.asked, before.asked).saturating_mul(MICROS_PER_TOKEN);
    let admission = if quota.rate > 0 { part(attempts, quota.rate) } else { SHARE_ONE / 16 };
    let units = now.units_asked.iter().map(|(unit, asked)| {
        let then = before.units_asked.iter().find(|(id, _)| id == unit).map_or(0, |(_, asked)| *asked);
        let asked = asked.saturating_sub(then).clamp(0, crate::units::BURST_MICROS_MAX);
        part(asked, quota.unit(*unit).map_or(0, |unit| unit.rate))
    });
    units.fold(admission, i64::max).min(SHARE_ONE)
}
