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

mod reports;
mod taking;

use super::{
    NANOS_PER_MS,
    request::{Lease, Parent},
};
use crate::{
    guard::{Guard, on},
    lease::{
        Amounts, Curve, Epoch, HolderId, Incarnation, LeaseName, LocalOriginals, NotLeased, Rules, SyncAnswer, SyncAsk,
        Timing, Usage,
    },
    lending::{Beside, Charging, Given, Held, HolderView, Measured, Needs, Pool, Record, Side, Table, life_of, raised},
    units::{PPM, checked_div, div_ceil},
};

/// Most sub-lessees of one dependency; later ones are told to use Reserve.
pub(super) const SUBLESSEES_MAX: usize = 1_000;
/// Most parents that are remembered to be presented. Of more, those between the first and the last are left out.
const PARENTS_MAX: usize = 8;
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
    table: Table,
    /// What the agent's own callers ask for, in parts of [`SHARE_ONE`](crate::lease::SHARE_ONE) of the lease in force. They
    /// count like one more sub-lessee.
    own_demand: i64,
    own_measured: Option<Measured>,
    /// What all sub-lessees reported to this incarnation of the agent.
    reported: Usage,
    /// When the own part took what had come free.
    grown_ms: i64,
}

fn is_within(part: &Amounts, whole: &Amounts) -> bool {
    part.join(whole, |part, whole| i64::from(part > whole)).is_zero()
}

/// For charges, which end late.
pub(super) const fn ms(now_ns: i64) -> i64 {
    now_ns.div_euclid(NANOS_PER_MS)
}

/// For what is told, which is never earlier than what is.
fn telling_ms(now_ns: i64) -> i64 {
    div_ceil(now_ns, NANOS_PER_MS)
}

// === impl Lender ===

impl Lender {
    pub(super) fn new(incarnation: Incarnation, timing: &Timing) -> Self {
        let mut table = Table::default();
        // The agent's own callers.
        table.shares.add(0, 1);
        Self {
            epoch: epoch_of(incarnation),
            fenced: Vec::new(),
            generation: 0,
            margin_ms: timing.margin_ms,
            parents: Vec::new(),
            least: Amounts::default(),
            forbidden: false,
            rules: None,
            table,
            own_demand: 0,
            own_measured: None,
            reported: Usage::default(),
            grown_ms: 0,
        }
    }

    const fn charging(&self) -> Charging {
        Charging { side: Side::Agent, margin_ms: self.margin_ms }
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
        let in_use = Amounts { slots: self.table.slots, ..self.table.charged.clone() };
        is_within(&in_use, &parent.lease.value) && self.is_of_curve(&parent.lease.curve)
    }

    /// Whether all that is in use is of the curve of one of the parents. Of a single one it is: all fitted into it before
    /// those before it were forgotten.
    fn is_of_curve(&self, curve: &Curve) -> bool {
        let mut given = self.table.records().flat_map(|record| record.lives.iter()).flat_map(|life| life.grants.iter());
        self.parents.len() <= 1 || given.all(|given| given.curve == *curve || given.value.is_zero())
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
        self.whole().zip(&self.table.charged, |whole, charged| whole.saturating_sub(charged).max(0))
    }

    /// Whether a sub-lease may be in use.
    pub(super) fn has_lent(&self) -> bool {
        !self.table.charged.is_zero()
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

    /// Takes a sub-lessee out, to be [put back](Self::put_back).
    pub(super) fn take(&mut self, holder: &HolderId) -> Option<Held> {
        self.table.take(holder)
    }

    pub(super) fn put_back(&mut self, now_ns: i64, mut held: Option<Held>) {
        self.table.refresh(&mut held, ms(now_ns), self.charging());
        self.table.put_back(held);
    }

    /// What to answer before anything is granted; none: grant. Without a parent it is asked again after `wait_ms`.
    pub(super) fn judge(
        &mut self,
        now_ns: i64,
        held: &mut Option<Held>,
        ask: &SyncAsk,
        wait_ms: i64,
    ) -> Option<SyncAnswer> {
        if ask.epoch.number > 0 {
            // A holder of a ledger's lease; it would not listen to an epoch of ours.
            return Some(SyncAnswer::NotLeased(NotLeased::TooManyHolders));
        }
        if ask.epoch != self.epoch {
            return Some(SyncAnswer::Epoch(self.epoch));
        }
        let charging = self.charging();
        if let Some(life) = life_of(held, ask) {
            if let Some(answer) = life.recall(ask, self.epoch, 0, telling_ms(now_ns), charging) {
                return Some(answer);
            }
            if let Err(invalid) = life.judge(ask, self.epoch, self.generation) {
                return Some(SyncAnswer::Invalid(invalid));
            }
        }
        let takes_away = self.takes_away(now_ns, held.as_ref().map(|held| held.record.as_ref()), ask);
        let unleased = || match (ask.leave, self.forbidden || takes_away) {
            (true, _) => SyncAnswer::Left,
            (false, true) => SyncAnswer::NotLeased(NotLeased::NotPermitted),
            (false, false) => SyncAnswer::Wait(wait_ms),
        };
        let unleased = (!self.lends(now_ns) || ask.leave).then(unleased);
        if unleased.is_some() && life_of(held, ask).is_none() {
            return unleased;
        }
        let curve_ms = self.latest().map_or(0, |parent| parent.curve.total_ms());
        let watched_ms = curve_ms.saturating_add(self.margin_ms);
        if !self.table.admit(held, ask, ms(now_ns), watched_ms, SUBLESSEES_MAX) {
            return Some(SyncAnswer::NotLeased(NotLeased::TooManyHolders));
        }
        if let Some(life) = life_of(held, ask) {
            self.count(life.report(&ask.usage));
        }
        let quoted = ask.lease.as_ref().filter(|lease| lease.name.epoch == self.epoch);
        if let Some(generation) = if ask.leave { Some(i64::MAX) } else { quoted.map(|lease| lease.name.generation) } {
            self.table.quote(held, ask, generation, ms(now_ns), charging);
        }
        unleased
    }

    /// Whether it lives by a lease that was not lent here.
    pub(super) fn lent_elsewhere(&self, ask: &SyncAsk) -> bool {
        ask.lease.as_ref().is_some_and(|lease| lease.name.epoch != self.epoch)
    }

    /// Ends charges whose time has come.
    pub(super) fn step(&mut self, now_ns: i64) {
        self.table.step_down(ms(now_ns), self.charging());
    }

    // --- grants ---

    /// Chooses what a sub-lessee gets of the parent in force. `own` is what the agent's own callers did; `in_flight` the
    /// permits they hold.
    pub(super) fn choose(
        &mut self,
        now_ns: i64,
        record: &mut Record,
        ask: &SyncAsk,
        own: &Usage,
        in_flight: i64,
    ) -> Amounts {
        let now_ms = ms(now_ns);
        let whole = self.whole();
        self.measure_own(&whole, own, now_ms);
        let Some(parent) = self.latest() else { return whole.map(|_| 0) };
        let (curve, part_ppm) = (parent.curve.clone(), parent.part_ppm(now_ns));
        let rules = self.rules.as_ref();
        let needs = Needs {
            admission: rules.is_none_or(|rules| rules.limited),
            retries: whole.retry_burst > 0,
            slots: rules.is_some_and(|rules| rules.slots_limited),
        };
        let pool = Pool {
            side: Side::Agent,
            quota: &whole,
            lendable: &whole,
            curve: &curve,
            needs,
            permitted: !self.forbidden,
        };
        let share = self.table.choose(record, ask, &pool, now_ms);
        // At the step in force as many slots stay as are taken.
        let in_flight = div_ceil(in_flight.saturating_mul(PPM), part_ppm.max(1));
        let beside = Beside { unknown: &Amounts::default(), in_flight, booked: false };
        self.table.clip(record, ask, share, &pool, &beside, now_ms)
    }

    fn measure_own(&mut self, whole: &Amounts, usage: &Usage, now_ms: i64) {
        let Some(measured) = &mut self.own_measured else {
            self.own_measured = Some(Measured::new(usage, now_ms));
            return;
        };
        if let Some((demand, _)) = measured.measure(whole, usage, now_ms) {
            self.table.shares.remove(self.own_demand, 1);
            self.own_demand = raised(demand, self.own_demand);
            self.table.shares.add(self.own_demand, 1);
        }
    }

    /// Makes a sub-lease of `value` under the parent in force; nothing has moved with it yet. None if there is no parent.
    pub(super) fn give(&mut self, now_ns: i64, record: &mut Record, ask: &SyncAsk, value: Amounts) -> Option<()> {
        let parent = self.latest().filter(|_| !self.forbidden)?;
        let (curve, granted_ms) = (parent.curve.clone(), ms(parent.start_ns));
        let permit_ttl_ms = self.rules.as_ref().map_or(0, |rules| rules.permit_ttl_ms);
        self.generation = self.generation.saturating_add(1);
        let given = Given { generation: self.generation, granted_ms, value, curve, permit_ttl_ms };
        self.table.give(record, ask, given, self.charging(), ms(now_ns));
        Some(())
    }

    /// What comes with the sub-lease just made, and whether it gets no more slots than `slots_before`, after all.
    pub(super) fn moved(
        &mut self,
        now_ns: i64,
        record: &mut Record,
        ask: &SyncAsk,
        moved: &Amounts,
        slots_before: Option<i64>,
    ) -> SyncAnswer {
        let charging = self.charging();
        self.table.change(record, |record| {
            let Some(life) = record.life_mut(ask.incarnation) else { return };
            life.moved = moved.clone();
            if let (Some(given), Some(slots)) = (life.grants.last_mut(), slots_before) {
                given.value.slots = given.value.slots.min(slots);
                let permit_ttl_ms = given.permit_ttl_ms;
                life.charge_again(ms(now_ns), charging, permit_ttl_ms);
            }
        });
        let told = record.life_mut(ask.incarnation).and_then(|life| {
            let given = life.grants.last()?;
            life.told(given, self.epoch, telling_ms(now_ns), Side::Agent)
        });
        told.map_or(SyncAnswer::Dead, SyncAnswer::Granted)
    }

    /// Whether a lease of the agent is in force that something may be lent of.
    pub(super) fn lends(&self, now_ns: i64) -> bool {
        let parent = self.latest().filter(|_| !self.forbidden);
        parent.is_some_and(|parent| telling_ms(now_ns).saturating_sub(ms(parent.start_ns)) < parent.curve.total_ms())
    }

    /// Sub-lessees as operators see them.
    pub(super) fn list(&self, now_ns: i64, after: Option<&HolderId>, limit: usize) -> Vec<HolderView> {
        self.table.list(after, limit, telling_ms(now_ns))
    }

    /// The rules to tell a sub-lessee: what the policy gives the agent beyond the curve it divides among all who live by
    /// its lease, itself included.
    pub(super) fn divided(&self, rules: &Rules) -> Rules {
        let sharers = i64::try_from(self.table.len()).unwrap_or(i64::MAX).saturating_add(1);
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
