//! What is known of one sub-lessee: its incarnations and the sub-leases of each that may still be in use.

use crate::{
    guard::{Guard, on},
    lease::{Amounts, Curve, GRANTS_MAX, INCARNATIONS_MAX, Incarnation, Usage},
    ledger::Lingering,
    units::div_ceil,
};

use super::{NANOS_PER_MS, joined};

/// One holder id.
#[derive(Clone, Debug)]
pub(super) struct Lessee {
    pub(super) weight: i64,
    /// What it asks for, in parts of [`SHARE_ONE`](crate::lease::SHARE_ONE).
    pub(super) demand: i64,
    /// What it was given last, likewise.
    pub(super) share: i64,
    /// Renewals in a row without a single ask.
    pub(super) idle: i64,
    /// An operator took its lease away until then.
    pub(super) revoked_until_ms: i64,
    /// When its charge changes next.
    pub(super) due_ms: Option<i64>,
    /// The latest last.
    pub(super) lives: Vec<Life>,
}

/// One incarnation.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) incarnation: Incarnation,
    /// Of its last request that was granted, and of that sub-lease.
    pub(super) sequence: i64,
    pub(super) nonce: i64,
    pub(super) answered: i64,
    /// Sub-leases that may still be in use, by rising generation.
    pub(super) grants: Vec<Given>,
    /// Slots of these, without the lingering ones.
    pub(super) slots: i64,
    /// Slots given up, whose permits may still be in flight, and slots that are waited for.
    lingering: Lingering,
    /// The maximum over the sub-leases, before the curve.
    pub(super) charge: Amounts,
    /// The last report.
    pub(super) usage: Usage,
    /// Since when demand is measured, and what had been asked for by then.
    pub(super) measured_ms: i64,
    pub(super) measured: Usage,
}

/// One sub-lease.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) generation: i64,
    pub(super) value: Amounts,
    pub(super) moved: Amounts,
    /// The parent's.
    pub(super) curve: Curve,
    /// The parent's, by the agent's clock.
    pub(super) start_ns: i64,
    /// Life of the permits taken under it.
    pub(super) permit_ttl_ms: i64,
}

// === impl Lessee ===

impl Lessee {
    pub(super) fn new(weight: i64, life: Life) -> Self {
        Self { weight, demand: 0, share: 0, idle: 0, revoked_until_ms: 0, due_ms: None, lives: vec![life] }
    }

    pub(super) const fn is_revoked(&self, now_ms: i64) -> bool {
        self.revoked_until_ms > now_ms
    }

    /// Whether there is room for another incarnation.
    pub(super) fn is_born(&mut self, life: impl FnOnce() -> Life) -> bool {
        let room = self.lives.len() < INCARNATIONS_MAX;
        if room {
            self.lives.push(life());
        }
        room
    }

    /// What is charged to all its incarnations, and how many of the slots are not only lingering.
    pub(super) fn charge(&self) -> (Amounts, i64) {
        let none = (Amounts::default(), 0_i64);
        self.lives.iter().fold(none, |(sum, slots), life| {
            (joined(&sum, &life.charge, i64::saturating_add), slots.saturating_add(life.slots))
        })
    }

    /// Drops what has ended a margin ago and charges the maximum of what is left.
    pub(super) fn charge_again(&mut self, now_ms: i64, margin_ms: i64) {
        for life in &mut self.lives {
            life.charge_again(now_ms, margin_ms);
        }
        self.lives.retain(|life| !life.is_over());
    }

    pub(super) fn next_change_ms(&self, margin_ms: i64) -> Option<i64> {
        self.lives.iter().filter_map(|life| life.next_change_ms(margin_ms)).min()
    }

    /// Counts its sub-leases by their curves, in or out.
    pub(super) fn count_curves(&self, curves: &mut Vec<(Curve, usize)>, counts: bool) {
        let in_use = |given: &&Given| !given.value.is_zero();
        for given in self.lives.iter().flat_map(|life| &life.grants).filter(in_use) {
            let known = curves.iter().position(|(curve, _)| *curve == given.curve);
            match (known.and_then(|at| curves.get_mut(at)), counts) {
                (Some((_, count)), true) => *count = count.saturating_add(1),
                (Some((_, count)), false) => *count = count.saturating_sub(1),
                (None, true) => curves.push((given.curve.clone(), 1)),
                (None, false) => {}
            }
        }
        curves.retain(|(_, count)| *count > 0);
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
            grants: Vec::new(),
            slots: 0,
            lingering: Lingering::default(),
            charge: Amounts::default(),
            measured: usage.clone(),
            usage,
            measured_ms: now_ms,
        }
    }

    /// No further sub-lease is made before an older one is quoted away or ends.
    pub(super) fn is_full(&self) -> bool {
        self.grants.len() >= GRANTS_MAX
    }

    /// Has so many slots charged until then, although it has not got them yet.
    pub(super) fn wait_for(&mut self, slots: i64, until_ms: i64) {
        self.lingering.add(slots, until_ms);
    }

    /// It had something, and has nothing any more.
    fn is_over(&self) -> bool {
        self.sequence > 0 && self.grants.is_empty() && self.lingering.is_empty()
    }

    fn charge_again(&mut self, now_ms: i64, margin_ms: i64) {
        self.lingering.drop_ended(now_ms);
        let ttl_ms = self.grants.iter().map(|given| given.permit_ttl_ms).max().unwrap_or(0);
        self.grants.retain(|given| given.until_ms(margin_ms) > now_ms);
        let none = Amounts::default();
        let charge = self.grants.iter().fold(none, |most, given| joined(&most, &given.value, i64::max));
        if charge.slots < self.slots {
            self.lingering.add(self.slots, now_ms.saturating_add(ttl_ms));
        }
        self.slots = charge.slots;
        self.charge = Amounts { slots: charge.slots.max(self.lingering.most()), ..charge };
    }

    fn next_change_ms(&self, margin_ms: i64) -> Option<i64> {
        let ends = self.grants.iter().map(|given| given.until_ms(margin_ms));
        ends.chain(self.lingering.first_end_ms()).min()
    }
}

// === impl Given ===

impl Given {
    /// Until when it is charged: a margin beyond its end.
    fn until_ms(&self, margin_ms: i64) -> i64 {
        let margin_ms = if on(Guard::SubleaseMargin) { margin_ms } else { 0 };
        div_ceil(self.start_ns, NANOS_PER_MS).saturating_add(self.curve.total_ms()).saturating_add(margin_ms)
    }
}
