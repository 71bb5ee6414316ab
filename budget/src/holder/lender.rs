//! What an agent lends of the lease it holds: sub-leases, each a part of the parent that runs along the parent's curve.
//!
//! A sub-lease is told with its parent's curve and position, so each of its steps ends with the parent's, and its own end
//! does. What is lent is taken from the agent's own part, value and level. The coordinator charges all of the parent to the
//! agent; it knows nothing of sub-leases.
//!
//! Each sub-lessee is charged the maximum of the sub-leases that it may still use, whole as before the curve, until it
//! quotes a newer one or a margin after the end. A sub-lease is at most `parent − what the others are charged`, and the
//! agent's own part is what is left of the parent. So in every component, at every time, all that is in use is at most one
//! of the parents the coordinator still charges at its step: of the sub-leases in use, the one made last was made within
//! its parent beside all the others, whose curves are no later.
//!
//! The agent goes on presenting an older parent until all that is charged fits into a newer one: until then the
//! coordinator charges both. This argument wants one curve; while sub-leases of another curve are out, nothing is lent
//! beyond the smallest of the parents, and no newer parent is presented.

mod choice;
mod lessee;
mod reports;
mod taking;

use std::collections::{BTreeSet, HashMap};

use super::{
    NANOS_PER_MS,
    request::{Lease, Parent},
};
use crate::{
    guard::{Guard, on},
    lease::{
        Amounts, Curve, Epoch, Grant, HolderId, Incarnation, InvalidSync, LeaseName, LocalOriginals, NotLeased, Rules,
        SyncAnswer, SyncAsk, Timing, UnitAmounts, Usage,
    },
    ledger::{HolderView, Shares},
    units::{checked_div, div_ceil},
};
use choice::Own;
use lessee::{Given, Lessee, Life};

/// Most sub-lessees of one dependency; later ones are told to use Reserve.
pub(super) const SUBLESSEES_MAX: usize = 1_000;
/// Most parents that are remembered to be presented. Of more, those between the first and the last are left out.
const PARENTS_MAX: usize = 8;
/// Most sub-lessees whose charges end in one call. Ending late is safe.
const DUE_PER_CALL_MAX: usize = 64;
/// What comes free goes to the agent's own part at most this often.
const GROWS_EVERY_MS: i64 = 250;

/// The lending side of one dependency.
#[derive(Clone, Debug)]
pub(super) struct Lender {
    /// Of this incarnation of the agent. Its number is 0, which is no ledger's.
    epoch: Epoch,
    /// Those of its fenced lives.
    fenced: Vec<Epoch>,
    generation: i64,
    margin_ms: i64,
    /// Leases of the agent under which something may be in use. The first is presented, the last is in force.
    parents: Vec<Parent>,
    /// The smallest of them, component by component.
    least: Amounts,
    /// The agent was told that leases are not permitted.
    forbidden: bool,
    /// As the coordinator told them last.
    pub(super) rules: Option<Rules>,
    lessees: HashMap<HolderId, Lessee>,
    /// The sum of all charges.
    charged: Amounts,
    /// Of all slots that are charged, those that are not only lingering.
    slots: i64,
    /// How many sub-leases of which curve are charged.
    curves: Vec<(Curve, usize)>,
    /// When charges of a sub-lessee change next.
    due: BTreeSet<(i64, HolderId)>,
    shares: Shares,
    own: Own,
    /// What all sub-lessees reported to this incarnation of the agent.
    reported: Usage,
    /// When the own part took what had come free.
    grown_ms: i64,
}

/// What an earlier request says about this one.
pub(super) enum Recall {
    New,
    Answer(SyncAnswer),
}

/// Component-wise over the units of both.
pub(super) fn joined(a: &Amounts, b: &Amounts, f: impl Fn(i64, i64) -> i64) -> Amounts {
    let mut both = a.zip(b, &f);
    let more = b.units.iter().filter(|unit| a.unit(unit.unit).is_none());
    let more = more.map(|unit| UnitAmounts { unit: unit.unit, rate: f(0, unit.rate), burst: f(0, unit.burst) });
    both.units = both.units.iter().copied().chain(more).collect();
    both
}

fn is_within(part: &Amounts, whole: &Amounts) -> bool {
    joined(part, whole, |part, whole| i64::from(part > whole)).is_zero()
}

/// How far along its curve a lease is, rounded up: what is told is never earlier than what is.
fn position_ms(start_ns: i64, now_ns: i64) -> i64 {
    div_ceil(now_ns.saturating_sub(start_ns).max(0), NANOS_PER_MS)
}

pub(super) const fn ms(now_ns: i64) -> i64 {
    now_ns.div_euclid(NANOS_PER_MS)
}

// === impl Lender ===

impl Lender {
    pub(super) fn new(incarnation: Incarnation, timing: &Timing) -> Self {
        let mut shares = Shares::default();
        // The agent's own callers.
        shares.add(0, 1);
        Self {
            epoch: epoch_of(incarnation),
            fenced: Vec::new(),
            generation: 0,
            margin_ms: timing.margin_ms,
            parents: Vec::new(),
            least: Amounts::default(),
            forbidden: false,
            rules: None,
            lessees: HashMap::new(),
            charged: Amounts::default(),
            slots: 0,
            curves: Vec::new(),
            due: BTreeSet::new(),
            shares,
            own: Own::default(),
            reported: Usage::default(),
            grown_ms: 0,
        }
    }

    // --- parents ---

    /// The agent lives by another lease.
    pub(super) fn on_parent(&mut self, name: LeaseName, lease: Lease) {
        self.forbidden = false;
        let value = &lease.value;
        self.least = if self.parents.is_empty() { value.clone() } else { self.least.zip(value, i64::min) };
        self.parents.push(Parent { name, lease });
        self.settle();
        if self.parents.len() > PARENTS_MAX {
            self.parents.remove(1);
        }
    }

    /// Nothing may be lent any more; what is out runs down.
    pub(super) const fn on_refusal(&mut self) {
        self.forbidden = true;
    }

    /// Forgets the parents before the latest into which everything fits that is in use.
    pub(super) fn settle(&mut self) {
        let fitting = self.parents.iter().rposition(|parent| self.fits(parent) || !on(Guard::SubleasesFitQuoted));
        self.parents.drain(..fitting.unwrap_or(0));
        if let [only] = self.parents.as_slice() {
            self.least = only.lease.value.clone();
        }
    }

    fn fits(&self, parent: &Parent) -> bool {
        let in_use = Amounts { slots: self.slots, ..self.charged.clone() };
        self.is_of_curve(&parent.lease.curve) && is_within(&in_use, &parent.lease.value)
    }

    fn is_of_curve(&self, curve: &Curve) -> bool {
        self.curves.iter().all(|(other, _)| other == curve)
    }

    /// Whether something lent does not fit into the agent's latest lease.
    pub(super) const fn is_behind(&self) -> bool {
        self.parents.len() > 1
    }

    /// The lease to present.
    pub(super) fn quoted(&self) -> Option<&Parent> {
        self.parents.first()
    }

    /// The lease in force.
    pub(super) fn latest(&self) -> Option<&Lease> {
        self.parents.last().map(|parent| &parent.lease)
    }

    /// What own part and sub-leases share.
    fn whole(&self) -> Amounts {
        match self.latest() {
            Some(parent) if !self.forbidden => {
                if self.is_of_curve(&parent.curve) {
                    parent.value.clone()
                } else {
                    self.least.clone()
                }
            }
            Some(_) | None => Amounts::default(),
        }
    }

    /// The agent's own part, before the curve.
    pub(super) fn own_part(&self) -> Amounts {
        if !on(Guard::LentIsNotOwn) {
            return self.whole();
        }
        self.whole().zip(&self.charged, |whole, charged| whole.saturating_sub(charged).max(0))
    }

    /// Whether a sub-lease may be in use.
    pub(super) fn has_lent(&self) -> bool {
        !self.charged.is_zero()
    }

    /// Whether the own part may take what has come free. Not each time: a share's segments are numbered, and a number must
    /// not come again soon.
    pub(super) fn may_grow(&mut self, now_ns: i64) -> bool {
        let now_ms = ms(now_ns);
        let may = now_ms >= self.grown_ms.saturating_add(GROWS_EVERY_MS);
        if may {
            self.grown_ms = now_ms;
        }
        may
    }

    // --- sub-lessees ---

    /// What to answer before anything is granted; none: grant. Without a parent it is asked again after `wait_ms`.
    pub(super) fn judge(&mut self, now_ns: i64, ask: &SyncAsk, wait_ms: i64) -> Option<SyncAnswer> {
        if ask.epoch.number > 0 {
            // A holder of a ledger's lease; it would not listen to an epoch of ours.
            return Some(SyncAnswer::NotLeased(NotLeased::TooManyHolders));
        }
        if ask.epoch != self.epoch {
            return Some(SyncAnswer::Epoch(self.epoch));
        }
        if let Recall::Answer(answer) = self.recall(now_ns, ask) {
            return Some(answer);
        }
        if let Err(invalid) = self.judge_report(ask) {
            return Some(SyncAnswer::Invalid(invalid));
        }
        let lends = self.lends(now_ns);
        let unleased = || match (ask.leave, self.forbidden || self.takes_away(now_ns, ask)) {
            (true, _) => SyncAnswer::Left,
            (false, true) => SyncAnswer::NotLeased(NotLeased::NotPermitted),
            (false, false) => SyncAnswer::Wait(wait_ms),
        };
        let unleased = (!lends || ask.leave).then(unleased);
        if unleased.is_some() && self.life(ask).is_none() {
            return unleased;
        }
        if !self.has_record_of(ask, ms(now_ns)) {
            return Some(SyncAnswer::NotLeased(NotLeased::TooManyHolders));
        }
        self.count(ask);
        let quoted = ask.lease.as_ref().filter(|lease| lease.name.epoch == self.epoch);
        if ask.leave {
            self.change(ask, now_ns, |life| life.grants.clear());
        } else if let Some(lease) = quoted {
            self.change(ask, now_ns, |life| life.grants.retain(|given| given.generation >= lease.name.generation));
        }
        unleased
    }

    /// Rule 6 towards sub-lessees.
    fn recall(&self, now_ns: i64, ask: &SyncAsk) -> Recall {
        let Some(life) = self.life(ask) else { return Recall::New };
        if ask.sequence > life.sequence {
            return Recall::New;
        }
        if ask.sequence < life.sequence || ask.nonce != life.nonce {
            return if on(Guard::SubleasesFence) { Recall::Answer(SyncAnswer::Fenced) } else { Recall::New };
        }
        let given = life.grants.iter().find(|given| given.generation == life.answered);
        let granted = given.and_then(|given| self.told(given, now_ns));
        Recall::Answer(granted.unwrap_or(SyncAnswer::Dead))
    }

    fn judge_report(&self, ask: &SyncAsk) -> Result<(), InvalidSync> {
        let Some(life) = self.life(ask) else { return Ok(()) };
        if ask.usage.is_below(&life.usage) {
            return Err(InvalidSync::UsageBackwards);
        }
        let quoted = ask.lease.as_ref().filter(|lease| lease.name.epoch == self.epoch);
        match quoted {
            Some(lease) if lease.name.generation > life.answered => Err(InvalidSync::UnknownGeneration),
            Some(_) | None => Ok(()),
        }
    }

    fn has_record_of(&mut self, ask: &SyncAsk, now_ms: i64) -> bool {
        if self.life(ask).is_some() {
            return true;
        }
        let life = || Life::new(ask.incarnation, ask.counted.clone(), now_ms);
        let full = self.lessees.len() >= SUBLESSEES_MAX;
        match self.lessees.get_mut(&ask.holder) {
            Some(lessee) => lessee.is_born(life),
            None if full => false,
            None => {
                self.shares.add(0, ask.weight);
                self.lessees.insert(ask.holder.clone(), Lessee::new(ask.weight, life()));
                true
            }
        }
    }

    pub(super) fn is_full(&self, ask: &SyncAsk) -> bool {
        self.life(ask).is_none_or(Life::is_full)
    }

    /// What is charged to one life.
    pub(super) fn charge_of(&self, ask: &SyncAsk) -> Amounts {
        self.life(ask).map(|life| life.charge.clone()).unwrap_or_default()
    }

    /// Whether it lives by a lease that was not lent here.
    pub(super) fn has_other(&self, ask: &SyncAsk) -> bool {
        let other = ask.lease.as_ref().is_some_and(|lease| lease.name.epoch != self.epoch);
        other && self.life(ask).is_none_or(|life| life.grants.is_empty())
    }

    /// It gets nothing now: it is not remembered, and the same request is DEAD.
    pub(super) fn dismiss(&mut self, now_ns: i64, ask: &SyncAsk) {
        self.change(ask, now_ns, |life| (life.sequence, life.nonce) = (ask.sequence, ask.nonce));
    }

    /// Slots of one life, without those that are charged beside.
    pub(super) fn slots_of(&self, ask: &SyncAsk) -> i64 {
        self.life(ask).map_or(0, |life| life.slots)
    }

    fn life(&self, ask: &SyncAsk) -> Option<&Life> {
        self.lessees.get(&ask.holder)?.lives.iter().find(|life| life.incarnation == ask.incarnation)
    }

    /// Changes the sub-leases of one life and all sums with them.
    fn change(&mut self, ask: &SyncAsk, now_ns: i64, change: impl FnOnce(&mut Life)) {
        self.change_lessee(&ask.holder, now_ns, |lessee| {
            if let Some(life) = lessee.lives.iter_mut().find(|life| life.incarnation == ask.incarnation) {
                change(life);
            }
        });
    }

    fn change_lessee(&mut self, holder: &HolderId, now_ns: i64, change: impl FnOnce(&mut Lessee)) {
        let Some(lessee) = self.lessees.get_mut(holder) else { return };
        if let Some(due_ms) = lessee.due_ms.take() {
            self.due.remove(&(due_ms, holder.clone()));
        }
        let (before, slots_before) = lessee.charge();
        lessee.count_curves(&mut self.curves, false);
        change(lessee);
        lessee.charge_again(ms(now_ns), self.margin_ms);
        lessee.count_curves(&mut self.curves, true);
        let (after, slots_after) = lessee.charge();
        lessee.due_ms = lessee.next_change_ms(self.margin_ms);
        match lessee.due_ms {
            Some(at_ms) => {
                self.due.insert((at_ms, holder.clone()));
            }
            None if lessee.lives.is_empty() => {
                self.shares.remove(lessee.demand, lessee.weight);
                self.lessees.remove(holder);
            }
            None => {}
        }
        self.charged = joined(&joined(&self.charged, &after, i64::saturating_add), &before, i64::saturating_sub);
        self.charged.units =
            self.charged.units.iter().filter(|unit| unit.rate != 0 || unit.burst != 0).copied().collect();
        self.slots = self.slots.saturating_add(slots_after).saturating_sub(slots_before);
    }

    /// Ends charges whose time has come.
    pub(super) fn step(&mut self, now_ns: i64) {
        for _ in 0..DUE_PER_CALL_MAX {
            if self.due.first().is_none_or(|(at_ms, _)| *at_ms > ms(now_ns)) {
                return;
            }
            let Some((_, holder)) = self.due.pop_first() else { return };
            self.change_lessee(&holder, now_ns, |_| {});
        }
    }

    // --- grants ---

    /// Makes a sub-lease of `value` under the parent in force; nothing has moved with it yet. None if there is no parent.
    pub(super) fn give(&mut self, now_ns: i64, ask: &SyncAsk, value: Amounts) -> Option<()> {
        let parent = self.latest().filter(|_| !self.forbidden)?;
        let (curve, start_ns) = (parent.curve.clone(), parent.start_ns);
        let permit_ttl_ms = self.rules.as_ref().map_or(0, |rules| rules.permit_ttl_ms);
        self.generation = self.generation.saturating_add(1);
        let generation = self.generation;
        self.change(ask, now_ns, |life| {
            if !on(Guard::SubleaseUntilQuoted) {
                life.grants.clear();
            }
            let moved = Amounts::default();
            life.grants.push(Given { generation, value, moved, curve, start_ns, permit_ttl_ms });
            (life.sequence, life.nonce, life.answered) = (ask.sequence, ask.nonce, generation);
        });
        Some(())
    }

    /// What comes with the sub-lease just made, and whether it gets no more slots than `slots_before`, after all.
    pub(super) fn moved(
        &mut self,
        now_ns: i64,
        ask: &SyncAsk,
        moved: &Amounts,
        slots_before: Option<i64>,
    ) -> SyncAnswer {
        self.change(ask, now_ns, |life| {
            if let Some(given) = life.grants.last_mut() {
                given.value.slots = given.value.slots.min(slots_before.unwrap_or(i64::MAX));
                given.moved = moved.clone();
            }
        });
        let given = self.life(ask).and_then(|life| life.grants.last());
        given.and_then(|given| self.told(given, now_ns)).unwrap_or(SyncAnswer::Dead)
    }

    /// A sub-lease as it is told now; none once it has ended.
    fn told(&self, given: &Given, now_ns: i64) -> Option<SyncAnswer> {
        let position_ms = position_ms(given.start_ns, now_ns);
        let position_ms = if on(Guard::SubleaseEndsWithParent) { position_ms } else { 0 };
        (position_ms < given.curve.total_ms()).then(|| {
            SyncAnswer::Granted(Grant {
                name: LeaseName { epoch: self.epoch, generation: given.generation },
                position_ms,
                value: given.value.clone(),
                moved: given.moved.clone(),
                curve: given.curve.clone(),
            })
        })
    }

    /// Whether a lease of the agent is in force that something may be lent of.
    pub(super) fn lends(&self, now_ns: i64) -> bool {
        let parent = self.latest().filter(|_| !self.forbidden);
        parent.is_some_and(|parent| position_ms(parent.start_ns, now_ns) < parent.curve.total_ms())
    }

    /// Sub-lessees as operators see them.
    pub(super) fn list(&self, now_ns: i64, after: Option<&HolderId>, limit: usize) -> Vec<HolderView> {
        let mut lessees: Vec<_> =
            self.lessees.iter().filter(|(holder, _)| after.is_none_or(|after| *holder > after)).collect();
        lessees.sort_unstable_by_key(|(holder, _)| *holder);
        let view = |(holder, lessee): (&HolderId, &Lessee)| {
            let life = lessee.lives.last()?;
            let given = life.grants.last();
            let left_ms =
                |given: &Given| given.curve.total_ms().saturating_sub(position_ms(given.start_ns, now_ns)).max(0);
            Some(HolderView {
                holder: holder.clone(),
                incarnation: life.incarnation,
                weight: lessee.weight,
                demand: lessee.demand,
                value: given.map(|given| given.value.clone()).unwrap_or_default(),
                charged: lessee.charge().0,
                generation: given.map_or(0, |given| given.generation),
                expires_in_ms: given.map_or(0, left_ms),
                usage: life.usage.clone(),
                revoked: lessee.is_revoked(ms(now_ns)),
            })
        };
        lessees.into_iter().filter_map(view).take(limit).collect()
    }

    /// The rules to tell a sub-lessee: what the policy gives the agent beyond the curve it divides among all who live by
    /// its lease, itself included.
    pub(super) fn divided(&self, rules: &Rules) -> Rules {
        let sharers = i64::try_from(self.lessees.len()).unwrap_or(i64::MAX).saturating_add(1);
        let mut rules = rules.clone();
        if let LocalOriginals::Rate(rate) = rules.fallback.originals {
            rules.fallback.originals = LocalOriginals::Rate(checked_div(rate, sharers));
            for (_, rate) in &mut rules.fallback.units {
                *rate = checked_div(*rate, sharers);
            }
        }
        rules
    }
}

/// Other for each life of an agent, and below that of any ledger: no coordinator takes it for its own past, and a holder
/// that has seen a ledger's does not listen to it.
fn epoch_of(incarnation: Incarnation) -> Epoch {
    let Incarnation([a, b, c, d, e, f, ..]) = incarnation;
    let id = i64::from_be_bytes([0, 0, a, b, c, d, e, f]);
    Epoch { number: 0, id: id.max(1) }
}
