//! What is known of one holder id: its incarnations and the grants of each that may still be in use.

use super::{Charging, Side, choice::Measured, few::Few, lingering::Lingering};
use crate::{
    guard::{Guard, on},
    lease::{
        Amounts, Curve, Epoch, GRANTS_MAX, Grant, HolderId, Incarnation, InvalidSync, LeaseName, SyncAnswer, SyncAsk,
        Usage,
    },
    policy::CurveStep,
};

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

/// One holder id. All that a renewal of a common one reads and writes is in one piece of memory: with thousands of holders
/// each is met cold, and what costs is how many places are looked at.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) name: HolderId,
    /// In the [queue](super::queue) of those that are due.
    pub(crate) place: usize,
    pub(crate) weight: i64,
    /// What it asks for, in parts of [`SHARE_ONE`](crate::lease::SHARE_ONE).
    pub(crate) demand: i64,
    /// What it was given last, likewise.
    pub(crate) share: i64,
    /// Renewals in a row without a single ask.
    pub(crate) idle: i64,
    /// An operator took its lease away until then.
    pub(crate) revoked_until_ms: i64,
    /// It began a new life while an earlier one was charged: until then it may do so again.
    pub(crate) restarted_until_ms: i64,
    /// The latest last.
    pub(crate) lives: Few<Life, 1>,
}

/// One incarnation.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) incarnation: Incarnation,
    /// Of its last request that was granted, and of that grant.
    pub(crate) sequence: i64,
    pub(crate) nonce: i64,
    pub(crate) answered: i64,
    /// What came with that grant.
    pub(crate) moved: Amounts,
    /// Grants that may still be in use, by rising generation: one that is quoted and one that is new.
    pub(crate) grants: Few<Given, 2>,
    /// Slots of the grants, without the lingering ones.
    pub(crate) slots: i64,
    /// Slots of ended steps, whose permits may still be in flight.
    pub(crate) lingering: Lingering,
    /// What is charged now: the maximum over the grants.
    pub(crate) charge: Amounts,
    /// The last report.
    pub(crate) usage: Usage,
    pub(crate) measured: Measured,
}

/// One grant.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    /// 0: presented as a lease of an earlier epoch.
    pub(crate) generation: i64,
    /// When its curve began, rounded down: what is told of its position is never earlier than what is. The margin is what
    /// makes up for it in charges.
    pub(crate) granted_ms: i64,
    pub(crate) value: Amounts,
    pub(crate) curve: Curve,
    /// Life of the permits taken under it.
    pub(crate) permit_ttl_ms: i64,
}

// === impl Record ===

impl Record {
    pub(crate) fn new(name: HolderId, place: usize, weight: i64) -> Self {
        Self {
            name,
            place,
            weight,
            demand: 0,
            share: 0,
            idle: 0,
            revoked_until_ms: 0,
            restarted_until_ms: 0,
            lives: Few::default(),
        }
    }

    /// What is charged to all its incarnations.
    pub(crate) fn charge(&self) -> Amounts {
        self.lives.iter().fold(Amounts::default(), |total, life| total.join(&life.charge, i64::saturating_add))
    }

    /// Slots of all its incarnations, without the lingering ones.
    pub(super) fn slots(&self) -> i64 {
        self.lives.iter().fold(0, |total, life| total.saturating_add(life.slots))
    }

    pub(super) fn step_down(&mut self, now_ms: i64, charging: Charging) {
        for life in self.lives.iter_mut() {
            life.step_down(now_ms, charging);
        }
        self.lives.retain(|life| !life.grants.is_empty() || !life.lingering.is_empty());
    }

    pub(super) fn next_change_ms(&self, now_ms: i64, charging: Charging) -> Option<i64> {
        self.lives.iter().filter_map(|life| life.next_change_ms(now_ms, charging)).min()
    }

    pub(crate) fn life_mut(&mut self, incarnation: Incarnation) -> Option<&mut Life> {
        self.lives.iter_mut().find(|life| life.incarnation == incarnation || !on(Guard::IncarnationsApart))
    }

    pub(crate) const fn is_revoked(&self, now_ms: i64) -> bool {
        self.revoked_until_ms > now_ms
    }

    pub(super) fn view(&self, now_ms: i64) -> Option<HolderView> {
        let life = self.lives.last()?;
        let given = life.grants.last();
        let left_ms = |given: &Given| given.curve.total_ms().saturating_sub(given.position_ms(now_ms)).max(0);
        Some(HolderView {
            holder: self.name.clone(),
            incarnation: life.incarnation,
            weight: self.weight,
            demand: self.demand,
            value: given.map(|given| given.value.clone()).unwrap_or_default(),
            charged: self.charge(),
            generation: given.map_or(0, |given| given.generation),
            expires_in_ms: given.map_or(0, left_ms),
            usage: life.usage.clone(),
            revoked: self.is_revoked(now_ms),
        })
    }
}

// === impl Life ===

impl Life {
    pub(super) fn new(incarnation: Incarnation, usage: Usage, now_ms: i64) -> Self {
        Self {
            incarnation,
            sequence: 0,
            nonce: 0,
            answered: 0,
            moved: Amounts::default(),
            grants: Few::default(),
            slots: 0,
            lingering: Lingering::default(),
            charge: Amounts::default(),
            measured: Measured::new(&usage, now_ms),
            usage,
        }
    }

    /// Rule 6: the same request gets the same grant at its present position; an older one, or a twin, is fenced. None: it
    /// is a new one. Grants up to generation `dead` are not given again.
    pub(crate) fn recall(
        &self,
        ask: &SyncAsk,
        epoch: Epoch,
        dead: i64,
        now_ms: i64,
        charging: Charging,
    ) -> Option<SyncAnswer> {
        if ask.sequence > self.sequence {
            return None;
        }
        if ask.sequence < self.sequence || ask.nonce != self.nonce {
            return charging.side.on(Guard::Fence, Guard::SubleasesFence).then_some(SyncAnswer::Fenced);
        }
        let given = self.grants.iter().find(|given| given.generation == self.answered);
        let given = given.filter(|given| given.step_at(now_ms, charging).is_some() && given.generation > dead);
        let told = given.and_then(|given| self.told(given, epoch, now_ms, charging.side));
        Some(told.map_or(SyncAnswer::Dead, SyncAnswer::Granted))
    }

    /// A grant as it is told now; none once it has ended.
    pub(crate) fn told(&self, given: &Given, epoch: Epoch, now_ms: i64, side: Side) -> Option<Grant> {
        let position_ms = given.position_ms(now_ms);
        let tells_position = side.on(Guard::ReplayTellsPosition, Guard::SubleaseEndsWithParent);
        (position_ms < given.curve.total_ms()).then(|| Grant {
            name: LeaseName { epoch, generation: given.generation },
            position_ms: if tells_position { position_ms } else { 0 },
            value: given.value.clone(),
            moved: self.moved.clone(),
            curve: given.curve.clone(),
        })
    }

    /// Whether a request can be true. `latest`: the generation granted last in `epoch`.
    pub(crate) fn judge(&self, ask: &SyncAsk, epoch: Epoch, latest: i64) -> Result<(), InvalidSync> {
        if ask.usage.is_below(&self.usage) {
            return Err(InvalidSync::UsageBackwards);
        }
        let granted = |name: LeaseName| {
            name.epoch != epoch
                || self.grants.iter().any(|given| given.generation == name.generation)
                // One that has ended, or was quoted away, is not remembered.
                || (name.generation <= latest && self.grants.last().is_none_or(|last| name.generation < last.generation))
        };
        match &ask.lease {
            Some(lease) if !granted(lease.name) => Err(InvalidSync::UnknownGeneration),
            Some(_) | None => Ok(()),
        }
    }

    /// Takes note of a report, and returns what it has more than the last one.
    pub(crate) fn report(&mut self, usage: &Usage) -> Usage {
        let before = std::mem::replace(&mut self.usage, usage.clone());
        usage.zip(&before, |now, then| now.saturating_sub(then).max(0))
    }

    /// No further grant is made before an older one is quoted away or ends.
    pub(crate) fn is_full(&self) -> bool {
        self.grants.len() >= GRANTS_MAX
    }

    /// Drops what has ended and charges the maximum of what is left.
    fn step_down(&mut self, now_ms: i64, charging: Charging) {
        self.lingering.drop_ended(now_ms);
        let ttl_ms = self.longest_permit_ms();
        self.grants.retain(|given| given.step_at(now_ms, charging).is_some());
        self.charge_again(now_ms, charging, ttl_ms);
    }

    /// Drops the grants before `generation`, which the holder has quoted.
    pub(super) fn quoted(&mut self, generation: i64, now_ms: i64, charging: Charging) {
        let ttl_ms = self.longest_permit_ms();
        self.grants.retain(|given| given.generation >= generation);
        self.charge_again(now_ms, charging, ttl_ms);
    }

    fn longest_permit_ms(&self) -> i64 {
        self.grants.iter().map(|given| given.permit_ttl_ms).max().unwrap_or(0)
    }

    /// Computes the charge. Slots that go are charged for the life of the permits taken in them.
    pub(crate) fn charge_again(&mut self, now_ms: i64, charging: Charging, permit_ttl_ms: i64) {
        let left_out = if on(Guard::ChargeMaximum) { 0 } else { self.grants.len().saturating_sub(1) };
        let charge = self.grants.iter().skip(left_out).fold(Amounts::default(), |most, given| {
            given.charge(now_ms, charging).map_or_else(|| most.clone(), |charge| most.join(&charge, i64::max))
        });
        if charge.slots < self.slots && on(Guard::SlotsLinger) {
            self.lingering.add(self.slots, now_ms.saturating_add(permit_ttl_ms));
        }
        self.slots = charge.slots;
        self.charge = Amounts { slots: charge.slots.max(self.lingering.most()), ..charge };
    }

    fn next_change_ms(&self, now_ms: i64, charging: Charging) -> Option<i64> {
        let ends = self.grants.iter().filter_map(|given| given.step_end_ms(now_ms, charging));
        ends.chain(self.lingering.first_end_ms()).min()
    }
}

// === impl Given ===

impl Given {
    /// How far along its curve it is.
    fn position_ms(&self, now_ms: i64) -> i64 {
        now_ms.saturating_sub(self.granted_ms)
    }

    /// What is charged for it. A sub-lease is charged whole: its curve is its parent's, by which the agent is charged.
    fn charge(&self, now_ms: i64, charging: Charging) -> Option<Amounts> {
        let step = if on(Guard::ChargeWholeCurve) {
            self.step_at(now_ms, charging)
        } else {
            self.curve.0.first().filter(|step| self.position_ms(now_ms) < step.duration_ms)
        };
        step.map(|step| match charging.side {
            Side::Ledger => self.value.step(step),
            Side::Agent => self.value.clone(),
        })
    }

    /// The step that is charged: each ends a margin later than the holder's.
    fn step_at(&self, now_ms: i64, charging: Charging) -> Option<&CurveStep> {
        self.curve.at(now_ms.saturating_sub(self.charged_from_ms(charging))).map(|(step, _)| step)
    }

    fn step_end_ms(&self, now_ms: i64, charging: Charging) -> Option<i64> {
        let from_ms = self.charged_from_ms(charging);
        self.curve.at(now_ms.saturating_sub(from_ms)).map(|(_, end_ms)| from_ms.saturating_add(end_ms))
    }

    fn charged_from_ms(&self, charging: Charging) -> i64 {
        let on = charging.side.on(Guard::Margin, Guard::SubleaseMargin);
        self.granted_ms.saturating_add(if on { charging.margin_ms } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With its name, its place in the queue and in the table this is what a holder costs.
    #[test]
    fn a_common_holder_is_one_small_piece_of_memory() {
        assert!(size_of::<Record>() <= 576, "{}", size_of::<Record>());
    }
}
