//! T4: when all is well again everybody is leased again. T5: permits in flight.

use std::collections::{BTreeMap, BTreeSet};

use budget::lease::HolderId;

use crate::{
    history::History,
    process::Process,
    store::{Called, Deed},
    time::MS,
    world::World,
};

impl World {
    /// T4, at the end of a run that ended well.
    pub(crate) fn judge_return(&mut self) -> Result<(), String> {
        let scenario = std::rc::Rc::clone(&self.scenario);
        let Some(calm_from_ms) = scenario.calm_from_ms else { return Ok(()) };
        let timing = &scenario.timing;
        let needed_ms = scenario.all_back_ms() + 2 * timing.renew_max_ms + 2_000;
        let calm_ms = scenario.duration_ms - calm_from_ms;
        assert!(calm_ms >= needed_ms, "{}: {calm_ms} ms of calm do not suffice", scenario.family);
        let mut alive = BTreeSet::new();
        let mut leased = BTreeSet::new();
        for index in 0..self.processes.len() {
            let process = &self.processes[index];
            if !process.lives() || process.paused || process.demand == 0 || process.originals <= 0.0 {
                continue;
            }
            alive.insert(process.name.clone());
            // Two processes of one name share one share, and one may have it all.
            if self.held_now(index).rate > 0 || self.has_lent(index) {
                leased.insert(process.name.clone());
            }
        }
        if let Some(name) = alive.iter().find(|name| !leased.contains(*name) && self.is_worth_a_lease(name)) {
            return Err(format!("T4: {name:?} has no lease after {calm_ms} ms of calm: {}", self.lending()));
        }
        // What the dead had is back.
        let Self { coordinators, history, rng, now, .. } = self;
        let Called::Done(_) = coordinators.call(0, Deed::Look, *now, rng, history) else {
            return Err("T4: nothing answers".to_owned());
        };
        let ledger = &coordinators.masters[coordinators.replicas[0].master].ledger;
        let holders = ledger.as_ref().map_or_else(Vec::new, |ledger| ledger.list_holders(None, 1_000));
        match holders
            .iter()
            .find(|view| (view.charged.rate > 0 || view.charged.slots > 0) && !alive.contains(&view.holder))
        {
            Some(view) => Err(format!("T4: {:?} is dead and still charged {:?}", view.holder, view.charged)),
            None => Ok(()),
        }
    }
}

impl World {
    /// Whether the fair share of a holder has a whole token of every burst, with some room; otherwise it uses Reserve.
    fn is_worth_a_lease(&self, name: &HolderId) -> bool {
        let known = &self.coordinators.known[self.coordinators.published];
        let Some(lease) = &known.numbers.lease else { return false };
        let quota = known.numbers.quota();
        let Some(index) = self.processes.iter().position(|process| process.name == *name) else { return false };
        let part = |amount: i64| self.fair_part(index, amount / 1_000 * lease.part_ppm / 1_000);
        part(quota.burst) >= 1_000_000
            && part(quota.retry_burst) >= 1_000_000
            && quota.units.iter().all(|unit| part(unit.burst) >= 1_000_000)
            && (!known.numbers.slots_limited || part(quota.slots * 1_000_000) >= 1_000_000)
    }

    /// What a process is due of `leasable`, from whoever lends to it, with some room.
    fn fair_part(&self, index: usize, leasable: i64) -> i64 {
        let Process { weight, agent, .. } = self.processes[index];
        let of_same: BTreeMap<_, _> = (self.processes.iter().filter(|it| it.agent == agent))
            .map(|process| (&process.name, process.weight))
            .collect();
        let whole: i64 = of_same.values().sum();
        // An agent's own callers count as one more.
        let (lent, whole) = match agent {
            None => (leasable, whole),
            // Of two agents under one name each may have half.
            Some(agent) => (self.fair_part(agent, leasable) / self.living(&self.processes[agent].name), whole + 1),
        };
        // 95% are for those who hold leases already; a quarter is room.
        lent * 95 / 125 * weight / whole
    }

    fn living(&self, name: &HolderId) -> i64 {
        let living = self.processes.iter().filter(|process| process.name == *name && process.lives()).count();
        i64::try_from(living.max(1)).unwrap_or(1)
    }

    /// Whether an agent has a lease, however much of it is lent.
    fn has_lent(&self, index: usize) -> bool {
        let process = &self.processes[index];
        let tau = process.clock.read(self.now);
        let lease = process.holder.as_ref().filter(|_| process.lends).and_then(|holder| holder.lease(tau));
        lease.is_some_and(|lease| lease.value.rate > 0)
    }

    /// How the current master lends.
    pub(crate) fn lending(&self) -> String {
        let Some(ledger) = &self.coordinators.masters[self.coordinators.current].ledger else { return String::new() };
        let views: Vec<_> = (ledger.list_holders(None, 1_000).iter())
            .map(|view| {
                let (value, charged) = (view.value.rate, view.charged.rate);
                format!("{:?}: demand {}, value {value}, charged {charged}", view.holder, view.demand)
            })
            .collect();
        format!("{views:?}, {:?}", ledger.lending())
    }
}

/// T5: permits in flight are at most `max_in_flight`, and as many again for each epoch opened within a permit's life.
pub(crate) fn judge_permits(history: &History) -> Result<(), String> {
    let mut ends = Vec::new();
    // By the ledger's clock a permit may end earlier: by its drift, and by what a jump gains.
    let ttl = history.permit_ttl_ms * MS;
    let gained = if history.jumps.is_empty() { 0 } else { 2_000 * MS };
    let surely = ttl - ttl / 1_000 - 5 * MS - gained;
    for (from, to) in &history.permits {
        ends.push((*from, 1_i64));
        ends.push(((*to).min(from + surely.max(0)), -1));
    }
    // At equal times what ends comes first.
    ends.sort_unstable();
    let mut in_flight = 0;
    let mut bounds = history.bounds.iter().peekable();
    // Earlier policies' permits live on.
    let mut slots: Vec<(i64, i64)> = Vec::new();
    for (at, change) in ends {
        in_flight += change;
        while let Some((from, bound)) = bounds.next_if(|(from, _)| *from <= at) {
            if let Some(last) = slots.last_mut() {
                last.0 = *from;
            }
            slots.push((i64::MAX, bound.slots));
        }
        let most = slots.iter().filter(|(until, _)| *until >= at - ttl).map(|(_, slots)| *slots).max().unwrap_or(0);
        let allowed = most * (1 + history.epochs_between(at - ttl, at));
        if in_flight > allowed {
            return Err(format!("T5 at {} ms: {in_flight} permits are in flight, allowed are {allowed}", at / MS));
        }
    }
    Ok(())
}
