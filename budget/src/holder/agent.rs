//! A holder that lends: an agent, which decides for callers by its own part of its lease and lends other parts to holders.

use std::sync::Arc;

use super::{
    Holder, State,
    control::{Control, Turn},
    lender::Lender,
    request::Lease,
    share::Share,
};
use crate::{
    guard::{Guard, on},
    lease::{Amounts, HolderId, LeaseName, NotLeased, Presented, Rules, SyncAnswer, SyncAsk, Usage},
    lending::{Held, HolderView},
    units::{PPM, scale_down},
};

impl Holder {
    /// Has it lend of its leases from now on. Before its first.
    #[must_use]
    pub fn lending(mut self) -> Self {
        self.lender = Some(Box::new(Lender::new(self.incarnation, &self.timing)));
        self
    }

    /// Decides what a sub-lessee tells and asks, and says by which rules. None if this holder does not lend, or was never
    /// told the rules.
    pub fn lend(&mut self, now_ns: i64, ask: &SyncAsk) -> Option<(SyncAnswer, Rules)> {
        let is_gone = matches!(self.state, State::Fenced | State::Left) || self.leaving;
        let wait_ms = self.timing.resend_min_ms;
        let lender = self.lender.as_mut()?;
        let rules = lender.rules.clone()?;
        lender.step(now_ns);
        let mut held = lender.take(&ask.holder);
        let answer = if is_gone {
            SyncAnswer::NotLeased(NotLeased::TooManyHolders)
        } else if let Some(answer) = lender.judge(now_ns, &mut held, ask, wait_ms) {
            answer
        } else {
            self.sublease(now_ns, &mut held, ask)
        };
        self.lender.as_mut()?.put_back(now_ns, held);
        self.tidy(now_ns);
        let lender = self.lender.as_ref()?;
        Some((answer, lender.divided(&rules)))
    }

    /// Whether something that it has lent may still be in use.
    #[must_use]
    pub fn has_lent(&self) -> bool {
        self.lender.as_ref().is_some_and(|lender| lender.has_lent())
    }

    /// Its sub-lessees in the order of their names after `after`, at most `limit`.
    #[must_use]
    pub fn list_lessees(&self, now_ns: i64, after: Option<&HolderId>, limit: usize) -> Vec<HolderView> {
        self.lender.as_ref().map_or_else(Vec::new, |lender| lender.list(now_ns, after, limit))
    }

    /// Lends a sub-lessee nothing from its next request on, for as long as one curve lasts. Until that request, or the end of
    /// its curve, it goes on spending. False if no such sub-lessee is known.
    pub fn revoke_lessee(&mut self, now_ns: i64, holder: &HolderId) -> bool {
        self.lender.as_mut().is_some_and(|lender| lender.revoke(now_ns, holder))
    }

    fn sublease(&mut self, now_ns: i64, held: &mut Option<Held>, ask: &SyncAsk) -> SyncAnswer {
        let share = Arc::clone(&self.share);
        let (Some(lender), Some(Held { record, .. })) = (&mut self.lender, held) else { return SyncAnswer::Dead };
        let Some(life) = record.life_mut(ask.incarnation).filter(|life| !life.is_full()) else {
            return SyncAnswer::Dead;
        };
        let (before, slots_before) = (life.charge.clone(), life.slots);
        let has_nothing = life.grants.is_empty();
        let value = lender.choose(now_ns, record, ask, &share.usage(), share.in_flight());
        if value.is_zero() && has_nothing && lender.lent_elsewhere(ask) && !lender.takes_away(now_ns, Some(record), ask)
        {
            // What an earlier life of the agent lent it is worth more, and ends by itself.
            return SyncAnswer::Wait(self.timing.renew_min_ms);
        }
        let growth = value.zip(&before, |after, before| after.saturating_sub(before).max(0));
        let slots = value.slots;
        if lender.give(now_ns, record, ask, value).is_none() {
            return SyncAnswer::Dead;
        }
        let own = lender.own_part();
        let charged_slots = record.life_mut(ask.incarnation).map_or(0, |life| life.charge.slots);
        let waited_for = charged_slots.saturating_sub(slots).max(0);
        let (moved, takes_slots) = share.lend(now_ns, &own, &growth, own.slots.saturating_add(waited_for));
        lender.moved(now_ns, record, ask, &moved, takes_slots.then_some(slots_before))
    }

    /// Looks after what is lent: ends what has ended, and lets the agent's own part have what is free.
    pub(super) fn tidy(&mut self, now_ns: i64) {
        let Some(lender) = &mut self.lender else { return };
        lender.step(now_ns);
        let was_behind = lender.is_behind();
        lender.settle();
        if lender.may_grow(now_ns) {
            self.share.grow_to(now_ns, &lender.own_part());
        }
        if was_behind && !lender.is_behind() {
            // What the agent gives up is usable once that is acknowledged.
            self.hasten(now_ns);
        }
    }

    /// The lease to present: the one whose successors are not enough for all that is in use.
    pub(super) fn quoted(&self, now_ns: i64) -> Option<Presented> {
        let lease = match &self.lender {
            Some(lender) => lender.quoted().and_then(|parent| parent.lease.present(parent.name, now_ns)),
            None => self.lease(now_ns),
        };
        // Whoever has gone from an agent to a ledger proves nothing by what that lent: it would be counted twice.
        let proves = |lease: &Presented| lease.name.epoch.number > 0 || self.epoch.number == 0;
        lease.filter(|lease| proves(lease) || !on(Guard::SubleaseIsNoProof))
    }

    /// What is reported.
    pub(super) fn usage(&self) -> Usage {
        let own = self.share.usage();
        match &self.lender {
            Some(lender) => lender.usage(&own),
            None => own,
        }
    }

    /// The rules as they hold here: an agent divides what it may admit beyond its curve with its sub-lessees.
    pub(super) fn own_rules(&mut self, rules: Option<&Rules>) -> Option<Rules> {
        let (lender, rules) = (self.lender.as_mut()?, rules?);
        lender.rules = Some(rules.clone());
        Some(lender.divided(rules))
    }

    /// What of a new lease is for its own use.
    pub(super) fn own_part(&mut self, name: LeaseName, granted: Lease) -> Lease {
        let Some(lender) = &mut self.lender else { return granted };
        lender.on_parent(name, granted.clone());
        Lease { value: lender.own_part(), ..granted }
    }
}

// === impl Share ===

impl Share {
    /// Leaves `own` of the lease in force and parts its levels, for caps that grow by `growth` elsewhere. Returns what goes
    /// there, and whether more permits are in flight than `slots` permit.
    pub(super) fn lend(&self, now_ns: i64, own: &Amounts, growth: &Amounts, slots: i64) -> (Amounts, bool) {
        let parted = self.part_with(&mut self.lock(), now_ns, own, growth);
        match parted {
            // Seen after the change: whoever takes a permit after this finds it.
            Some((moved, part_ppm)) => (moved, self.in_flight() > scale_down(slots, part_ppm, PPM)),
            None => (growth.map(|_| 0), true),
        }
    }

    /// Leaves `own` of the lease in force and parts its levels, for caps elsewhere that grow by `growth` before the curve.
    /// Returns what goes there, and the part of the curve that is in force; none if nothing is.
    fn part_with(&self, control: &mut Control, now_ns: i64, own: &Amounts, growth: &Amounts) -> Option<(Amounts, i64)> {
        self.turn_locked(control, now_ns);
        let now_ns = now_ns.max(self.current(control).start_ns);
        let lease = control.lease.as_mut().filter(|_| control.in_force)?;
        let position_ms = now_ns.saturating_sub(lease.start_ns).div_euclid(super::NANOS_PER_MS);
        let (step, _) = lease.curve.at(position_ms)?;
        let (growth, part_ppm) = (growth.step(step), step.part_ppm);
        lease.value = own.clone();
        let lent = self.shift_lending(control, &Turn { at_ns: now_ns, now_ns, moved: None }, &growth);
        Some((lent, part_ppm))
    }

    /// Raises what is left of the lease in force to `own`, with empty caps.
    fn grow_to(&self, now_ns: i64, own: &Amounts) {
        let mut control = self.lock();
        let Some(lease) = control.running().filter(|lease| lease.value != *own).cloned() else { return };
        let nothing = own.map(|_| 0);
        self.install(&mut control, now_ns, Lease { value: own.clone(), ..lease }, &nothing, None);
    }
}

/// What of a level goes into a cap that grows by so much elsewhere, and what stays: half goes, or what a smaller cap here
/// would not hold.
pub(super) fn parted(level: i64, growth: i64, cap: i64) -> (i64, i64) {
    let held = level.max(0);
    let out = growth.min(held.div_euclid(2).max(held.saturating_sub(cap)));
    (out, if on(Guard::LentLevelIsWithdrawn) { level.saturating_sub(out) } else { level })
}
