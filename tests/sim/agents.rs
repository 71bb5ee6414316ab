//! Agents and those they lend to: processes that talk to a process instead of a replica.

use std::rc::Rc;

use budget::lease::{SyncAnswer, SyncAsk};

use crate::{
    oracle::state::Held,
    time::MS,
    world::{Event, Inside, Reply, Request, World},
};

impl World {
    /// A request goes to an agent.
    pub(crate) fn ask_agent(&mut self, index: usize, agent: usize, ask: &Rc<SyncAsk>, attempt: u32) {
        if self.processes[index].cut || !self.processes[agent].lives() {
            return;
        }
        let life = self.processes[index].life;
        let request = Rc::new(Request { process: index, life, ask: Rc::clone(ask), attempt });
        for delay in self.net.deliveries(&mut self.rng).into_iter().flatten() {
            self.later(agent, self.now + delay, Inside::Lend(Rc::clone(&request)));
        }
    }

    pub(crate) fn reaches_agent(&self, index: usize, agent: usize) -> bool {
        let agent = &self.processes[agent];
        !self.processes[index].cut && agent.lives() && !agent.paused
    }

    /// The agent decides by its own part, or asks further.
    pub(crate) fn ask_agent_for_one(&mut self, index: usize, retry: bool) {
        let Some(agent) = self.processes[index].agent else { return };
        let delay = self.rng.between(MS / 10, MS);
        self.later(agent, self.now + delay, Inside::Serve { retry });
    }

    /// An agent answers.
    pub(crate) fn lend(&mut self, index: usize, request: &Request) {
        if self.processes[request.process].cut {
            return;
        }
        let process = &mut self.processes[index];
        let tau = process.clock.read(self.now);
        let Some(holder) = &mut process.holder else { return };
        let Some((answer, rules)) = holder.lend(tau, &request.ask) else { return };
        let mut moved = None;
        // A replay moves nothing again.
        if let SyncAnswer::Granted(grant) = &answer
            && grant.name.generation > process.lent
        {
            process.lent = grant.name.generation;
            moved = Some(&grant.moved);
        }
        self.note_part(index, moved);
        self.wake(index, self.now);
        self.check_state();
        let reply = Rc::new(Reply { sequence: request.ask.sequence, nonce: request.ask.nonce, answer, rules });
        for delay in self.net.deliveries(&mut self.rng).into_iter().flatten() {
            let what = Inside::Reply { attempt: request.attempt, reply: Rc::clone(&reply) };
            let (process, life) = (request.process, request.life);
            self.queue.push(self.now + delay, Event::Process { process, life, what });
        }
    }

    /// Notes what an agent has left for itself.
    pub(crate) fn note_part(&mut self, index: usize, moved: Option<&budget::lease::Amounts>) {
        let process = &mut self.processes[index];
        let tau = process.clock.read(self.now);
        let Some(holder) = &process.holder else { return };
        process.level.advance(process.held.as_ref(), tau);
        let held = Held::new(&holder.share().steps(tau));
        process.level.part_with(&held, tau, moved);
        process.held = Some(held);
    }
}
