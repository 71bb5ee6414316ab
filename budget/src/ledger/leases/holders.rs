//! What is known of one holder id: its incarnations and the grants of each that may still be in use.

use super::{few::Few, lingering::Lingering};
use crate::{
    guard::{Guard, on},
    ids::UnitId,
    lease::{Amounts, Curve, HolderId, Incarnation, Usage},
    policy::CurveStep,
};

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
    /// Since when demand is measured, and what had been asked for by then.
    pub(crate) measured_ms: i64,
    pub(crate) measured: Asked,
}

/// What had been asked for, of [`Usage`].
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) attempts: i64,
    pub(crate) units: Box<[(UnitId, i64)]>,
}

/// One grant.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    /// 0: presented as a lease of an earlier epoch.
    pub(crate) generation: i64,
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
        self.lives.iter().fold(Amounts::default(), |total, life| super::sum(&total, &life.charge))
    }

    pub(crate) fn step_down(&mut self, now_ms: i64, margin_ms: i64) {
        for life in self.lives.iter_mut() {
            life.step_down(now_ms, margin_ms);
        }
        self.lives.retain(|life| !life.grants.is_empty() || !life.lingering.is_empty());
    }

    pub(crate) fn next_change_ms(&self, now_ms: i64, margin_ms: i64) -> Option<i64> {
        self.lives.iter().filter_map(|life| life.next_change_ms(now_ms, margin_ms)).min()
    }

    pub(crate) fn life_mut(&mut self, incarnation: Incarnation) -> Option<&mut Life> {
        self.lives.iter_mut().find(|life| life.incarnation == incarnation || !on(Guard::IncarnationsApart))
    }
}

// === impl Life ===

impl Life {
    pub(crate) fn new(incarnation: Incarnation, usage: Usage, now_ms: i64) -> Self {
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
            measured: Asked::of(&usage),
            usage,
            measured_ms: now_ms,
        }
    }

    /// Drops what has ended and charges the maximum of what is left.
    pub(crate) fn step_down(&mut self, now_ms: i64, margin_ms: i64) {
        self.lingering.drop_ended(now_ms);
        let ttl_ms = self.grants.iter().map(|grant| grant.permit_ttl_ms).max().unwrap_or(0);
        self.grants.retain(|grant| grant.step_at(now_ms, margin_ms).is_some());
        self.charge_again(now_ms, margin_ms, ttl_ms);
    }

    /// Drops the grants before `generation`, which the holder has quoted.
    pub(crate) fn quoted(&mut self, generation: i64, now_ms: i64, margin_ms: i64) {
        let ttl_ms = self.grants.iter().map(|grant| grant.permit_ttl_ms).max().unwrap_or(0);
        self.grants.retain(|grant| grant.generation >= generation);
        self.charge_again(now_ms, margin_ms, ttl_ms);
    }

    /// Computes the charge. Slots that go are charged for the life of the permits taken in them.
    pub(crate) fn charge_again(&mut self, now_ms: i64, margin_ms: i64, permit_ttl_ms: i64) {
        let left_out = if on(Guard::ChargeMaximum) { 0 } else { self.grants.len().saturating_sub(1) };
        let charge = self.grants.iter().skip(left_out).fold(Amounts::default(), |most, grant| {
            let position_ms = now_ms.saturating_sub(grant.granted_ms);
            let step = if on(Guard::ChargeWholeCurve) {
                grant.step_at(now_ms, margin_ms)
            } else {
                grant.curve.0.first().filter(|step| position_ms < step.duration_ms)
            };
            step.map_or_else(|| most.clone(), |step| maximum(&most, &grant.value.step(step)))
        });
        if charge.slots < self.slots && on(Guard::SlotsLinger) {
            self.lingering.add(self.slots, now_ms.saturating_add(permit_ttl_ms));
        }
        self.slots = charge.slots;
        self.charge = Amounts { slots: charge.slots.max(self.lingering.most()), ..charge };
    }

    fn next_change_ms(&self, now_ms: i64, margin_ms: i64) -> Option<i64> {
        let ends = self.grants.iter().filter_map(|grant| grant.step_end_ms(now_ms, margin_ms));
        ends.chain(self.lingering.first_end_ms()).min()
    }
}

// === impl Asked ===

impl Asked {
    pub(crate) fn of(usage: &Usage) -> Self {
        Self { attempts: usage.asked, units: usage.units_asked.clone() }
    }
}

// === impl Given ===

impl Given {
    /// The step that is charged: each ends a margin later than the holder's.
    pub(crate) fn step_at(&self, now_ms: i64, margin_ms: i64) -> Option<&CurveStep> {
        self.curve.at(now_ms.saturating_sub(self.charged_from_ms(margin_ms))).map(|(step, _)| step)
    }

    fn step_end_ms(&self, now_ms: i64, margin_ms: i64) -> Option<i64> {
        let from_ms = self.charged_from_ms(margin_ms);
        self.curve.at(now_ms.saturating_sub(from_ms)).map(|(_, end_ms)| from_ms.saturating_add(end_ms))
    }

    fn charged_from_ms(&self, margin_ms: i64) -> i64 {
        self.granted_ms.saturating_add(if on(Guard::Margin) { margin_ms } else { 0 })
    }
}

/// Component-wise maximum over the units of both.
pub(crate) fn maximum(a: &Amounts, b: &Amounts) -> Amounts {
    let mut most = a.zip(b, i64::max);
    let more = b.units.iter().filter(|unit| a.unit(unit.unit).is_none());
    most.units = most.units.iter().chain(more).copied().collect();
    most
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
