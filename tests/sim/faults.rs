//! Faults as they strike.

use crate::{
    history::Widening,
    oracle::state::{Part, Twins},
    scenario::Fault,
    store::{Deed, bits},
    time::{HostClock, MS},
    world::{Event, World},
};

impl World {
    pub(crate) fn strike(&mut self, fault: &Fault) {
        match *fault {
            Fault::Weather(net) => self.net = net,
            Fault::CutProcess(process, cut) => self.processes[process].cut = cut,
            Fault::CutReplica(replica, cut) => self.coordinators.replicas[replica].cut = cut,
            Fault::Replica(replica, alive) => {
                let forgets = &mut self.coordinators.replicas[replica];
                forgets.alive = alive;
                forgets.remembered = budget::lease::Epoch::default();
                forgets.master = self.coordinators.current;
            }
            Fault::Reboot(replica) => {
                let boot = bits(&mut self.rng);
                let anew = &mut self.coordinators.replicas[replica];
                (anew.boot, anew.clock) = (boot, HostClock::booted(self.now));
            }
            Fault::StopStore => self.running(false),
            Fault::ContinueStore => self.running(true),
            Fault::RestartStore(back_ms) => {
                let old = self.coordinators.current;
                self.coordinators.replace(&mut self.rng, back_ms, self.now);
                self.coordinators.bury(old);
            }
            Fault::Flush => self.coordinators.flush(),
            Fault::FailOver { back_ms, overlap_ms, split } => self.fail_over(back_ms, overlap_ms, split),
            Fault::Jump(by_ms) => self.jump(by_ms),
            Fault::Pause(process, true) => self.processes[process].paused = true,
            Fault::Suspend(process, true) => {
                self.processes[process].paused = true;
                self.processes[process].suspended = Some(self.now);
            }
            Fault::Pause(process, false) | Fault::Suspend(process, false) => {
                if self.processes[process].paused {
                    self.go_on(process);
                }
            }
            Fault::Kill(process) => self.end(process),
            Fault::Start(process) => {
                if !self.processes[process].lives() {
                    self.start(process);
                }
            }
            Fault::Leave(process) => self.farewell(process),
            Fault::Clone(process) => self.clone_process(process),
            Fault::CloneHost(agent) => self.clone_host(agent),
            Fault::Publish(policy) => {
                self.coordinators.published = policy;
                // Most replicas read it at once.
                for replica in 0..self.coordinators.replicas.len() {
                    if self.rng.chance(1, 2) {
                        self.coordinators.replicas[replica].policy = policy;
                    }
                }
            }
            Fault::Demand(process, percent) => {
                self.processes[process].demand = percent;
                self.resume_asking(process);
            }
            Fault::Turn(process, agent) => self.processes[process].agent = agent,
            Fault::Revoke(process) => {
                let name = self.processes[process].name.clone();
                if let Some(agent) = self.processes[process].agent {
                    let agent = &mut self.processes[agent];
                    let tau = agent.clock.read(self.now);
                    if let Some(holder) = &mut agent.holder {
                        holder.revoke_lessee(tau, &name);
                    }
                    return;
                }
                let Self { coordinators, history, rng, now, .. } = self;
                let _ = coordinators.call(0, Deed::Revoke(&name), *now, rng, history);
            }
        }
    }

    fn running(&mut self, running: bool) {
        let current = self.coordinators.current;
        self.coordinators.masters[current].running = running;
    }

    /// A second master with an old copy of the state; the first lives on for a while.
    fn fail_over(&mut self, back_ms: i64, overlap_ms: i64, split: bool) {
        let old = self.coordinators.current;
        let new = self.coordinators.replace(&mut self.rng, Some(back_ms), self.now);
        for replica in 0..self.coordinators.replicas.len() {
            let at = match (split, replica) {
                (true, 0) => self.now + overlap_ms * MS,
                (true, _) => self.now,
                (false, _) => self.now + self.rng.between(0, overlap_ms * MS),
            };
            self.queue.push(at, Event::Turn(replica, new));
        }
        self.queue.push(self.now + overlap_ms * MS, Event::Bury(old));
        let too_long_ms = overlap_ms - (self.scenario.timing.overlap_ms - 2_000);
        if too_long_ms > 0 {
            self.two_until = self.now + overlap_ms * MS;
            let bound = self.history.bound();
            let admissions = bound.rate / 1_000 * too_long_ms + bound.burst;
            self.history.widenings.push(Widening { at: self.now, admissions, retries: bound.retry_burst });
        }
    }

    /// The clocks of the living masters jump.
    fn jump(&mut self, by_ms: i64) {
        for master in &mut self.coordinators.masters {
            master.clock.jump(by_ms);
        }
        if by_ms > 0 {
            self.history.jumps(self.now, self.scenario.timing.step_max_ms);
        }
    }

    /// It tells the coordinator that it stops, and stops a moment later.
    fn farewell(&mut self, process: usize) {
        let tau = self.processes[process].clock.read(self.now);
        if let Some(holder) = &mut self.processes[process].holder {
            holder.leave(tau);
            self.processes[process].demand = 0;
            self.processes[process].held = None;
            self.wake(process, self.now);
        }
    }

    /// A copy beside the process, with all it has, until the ledger finds out.
    fn clone_process(&mut self, index: usize) {
        let lease = self.held_now(index);
        if let Some(clone) = self.copied(index) {
            self.twins(&[index, clone], lease, 0);
        }
    }

    /// Copies of an agent and of those it lends to, who turn to the copy, until the ledger finds out and they have heard of
    /// it with their next renewals.
    fn clone_host(&mut self, agent: usize) {
        // All that is lent is a part of what is charged to the agent.
        let lease = self.charged_to(agent);
        let lessees = (0..self.processes.len()).filter(|index| self.processes[*index].agent == Some(agent));
        let lessees: Vec<_> = lessees.collect();
        let Some(clone) = self.copied(agent) else { return };
        for lessee in lessees {
            if let Some(copy) = self.copied(lessee) {
                self.processes[copy].agent = Some(clone);
            }
        }
        let timing = &self.scenario.timing;
        let heard_ms = timing.renew_max_ms + timing.resend_max_ms;
        self.twins(&[agent, clone], lease, heard_ms);
    }

    fn charged_to(&self, index: usize) -> Part {
        let ledger = &self.coordinators.masters[self.coordinators.current].ledger;
        let holders = ledger.as_ref().map_or_else(Vec::new, |ledger| ledger.list_holders(None, 1_000));
        let record = holders.iter().find(|view| view.holder == self.processes[index].name);
        record.map_or_else(Part::default, |view| Part::of(&view.charged))
    }

    /// A copy of a process that lives.
    fn copied(&mut self, index: usize) -> Option<usize> {
        let copy = self.processes[index].copy()?;
        self.processes.push(copy);
        let clone = self.processes.len() - 1;
        self.new_stream(clone);
        // It was told what the first was told.
        let stream = |process: usize| usize::try_from(self.processes[process].stream).unwrap_or(0);
        let (from, to) = (stream(index), stream(clone));
        self.beyond[to] = self.beyond[from];
        self.wake(clone, self.now);
        self.resume_asking(clone);
        Some(clone)
    }

    /// Two processes live under one incarnation, with so much; `heard_ms` after one is fenced the last one stops that lives
    /// by what it lent.
    fn twins(&mut self, both: &[usize; 2], lease: Part, heard_ms: i64) {
        let curve_ms = self.history.bound().curve_ms;
        self.history.widenings.push(Widening { at: self.now, admissions: 0, retries: lease.retry_burst * 2 });
        let widening = self.history.widenings.len() - 1;
        let sequence = self.processes[both[0]].sequence;
        let until = self.now + curve_ms * MS;
        self.twins.push(Twins { since: self.now, until, lease, sequence, widening, heard_ms });
        let case = self.twins.len() - 1;
        self.widen(case);
        for twin in both {
            self.processes[*twin].twin = Some(case);
        }
    }

    /// One of two has found out.
    pub(crate) fn fenced(&mut self, process: usize) {
        if let Some(case) = self.processes[process].twin.take() {
            let heard = self.now + self.twins[case].heard_ms * MS;
            self.twins[case].until = self.twins[case].until.min(heard);
            self.widen(case);
        }
    }

    /// What a request from before there were two brings is what both have.
    pub(crate) fn note_twin(&mut self, process: usize, sequence: i64) {
        let Some(case) = self.processes[process].twin else { return };
        if sequence <= self.twins[case].sequence {
            self.twins[case].lease = self.twins[case].lease.most(self.held_now(process));
            self.widen(case);
        }
    }

    /// What the second of two may admit until one is fenced: its level, and its rate in that time.
    fn widen(&mut self, case: usize) {
        let Twins { since, until, lease, widening, .. } = self.twins[case];
        let ms = (until - since) / MS + 1;
        let widening = &mut self.history.widenings[widening];
        widening.admissions = lease.burst + lease.rate / 1_000 * ms + ms;
        widening.retries = lease.retry_burst * 2;
    }
}
