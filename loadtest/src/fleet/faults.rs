//! What a scenario does to the fleet, at its times.

use std::time::Duration;

use budget_client::{Client, How, PolicyEdit, boot_time_ns};
use rustix::process::Signal;
use tokio::time;

use super::{Replica, World, process::signal};
use crate::{
    Error,
    proxy::Upstream,
    redis_server::RedisServer,
    scenario::{DEPENDENCY, Fault, FaultKind},
};

/// For a change of policy, which may find a replica away.
const POLICY_WITHIN: Duration = Duration::from_secs(5);

/// What is still to be done, the latest first.
#[derive(Debug)]
pub(crate) struct Faults {
    left: Vec<Deed>,
    start_ns: i64,
    /// When each thing that opens an epoch or changes the policy was really done, since the start.
    pub(crate) done: Vec<Done>,
}

/// A fault that begins or ends.
#[derive(Clone, Debug)]
struct Deed {
    at_ms: u64,
    fault: Fault,
    begins: bool,
}

/// A fault that has begun or ended.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    /// Right before, since the start.
    pub(crate) from_ns: i64,
    pub(crate) fault: Fault,
    pub(crate) begins: bool,
}

// === impl Faults ===

impl Faults {
    pub(crate) fn new(faults: &[Fault], start_ns: i64) -> Self {
        let begins = faults
            .iter()
            .flat_map(|fault| fault.times_ms().map(|at_ms| Deed { at_ms, fault: fault.clone(), begins: true }));
        let ends = faults
            .iter()
            .filter_map(|fault| Some(Deed { at_ms: fault.until_ms()?, fault: fault.clone(), begins: false }));
        let mut left: Vec<Deed> = begins.chain(ends).collect();
        left.sort_by_key(|deed| std::cmp::Reverse(deed.at_ms));
        Self { left, start_ns, done: Vec::new() }
    }

    /// When the next is due, since boot.
    pub(crate) fn next_ns(&self) -> Option<i64> {
        let at_ns = i64::try_from(self.left.last()?.at_ms).unwrap_or(i64::MAX).saturating_mul(1_000_000);
        Some(self.start_ns.saturating_add(at_ns))
    }

    /// Does what is due.
    pub(crate) async fn act(&mut self, world: &mut World<'_>) -> Result<(), Error> {
        while self.next_ns().is_some_and(|at_ns| at_ns <= boot_time_ns()) {
            let Some(Deed { fault, begins, .. }) = self.left.pop() else { return Ok(()) };
            let from_ns = boot_time_ns() - self.start_ns;
            world.suffer(&fault, begins, self.start_ns).await.map_err(|error| format!("{}: {error}", fault.label()))?;
            self.done.push(Done { from_ns, fault, begins });
        }
        Ok(())
    }
}

// === impl World ===

impl World<'_> {
    /// A fault begins or ends. Where there is no budgetd, faults of its own do not concern the run.
    async fn suffer(&mut self, fault: &Fault, begins: bool, start_ns: i64) -> Result<(), Error> {
        match fault.kind {
            FaultKind::KillRedis => self.kill_redis(begins).await,
            FaultKind::StopRedis => {
                let sent = if begins { Signal::STOP } else { Signal::CONT };
                self.redis.iter().try_for_each(|server| signal(server.id(), sent))
            }
            FaultKind::FlushRedis => match self.redis.first_mut() {
                Some(server) if begins => server.flush().await,
                Some(_) | None => Ok(()),
            },
            FaultKind::SplitRedis => {
                let other = if begins { self.redis.last() } else { self.redis.first() };
                if let (Some(proxy), Some(server)) = (&self.store_proxy, other) {
                    proxy.lead(Upstream::Unix(server.socket().to_owned()));
                }
                Ok(())
            }
            FaultKind::KillBudgetd | FaultKind::StopBudgetd => self.harm_replicas(fault, begins).await,
            FaultKind::KillAgent => self.kill_agents(fault, begins).await,
            FaultKind::Partition => {
                self.cut_off(fault, begins);
                Ok(())
            }
            FaultKind::PauseCallers => {
                for (caller, _) in self.callers.iter().zip(0_u32..).filter(|(_, number)| fault.hits(*number)) {
                    if begins { caller.stop()? } else { caller.go_on()? }
                }
                Ok(())
            }
            FaultKind::RestartCallers => self.restart_callers(fault, start_ns).await,
            // Callers do it by themselves, at its time.
            FaultKind::Grow | FaultKind::Clone => Ok(()),
            FaultKind::Policy => self.change_policy(fault, begins).await,
            FaultKind::SetClock => {
                let ahead_ms = if begins { fault.by_ms() } else { 0 };
                Ok(std::fs::write(self.scratch.path().join("clock"), ahead_ms.to_string())?)
            }
        }
    }

    async fn kill_redis(&mut self, begins: bool) -> Result<(), Error> {
        for (number, server) in self.redis.iter_mut().enumerate() {
            if begins {
                server.kill().await?;
            } else {
                let name = format!("redis-{number}");
                *server = RedisServer::start(self.cast.redis_server, self.scratch.path(), &name).await?;
            }
        }
        Ok(())
    }

    async fn harm_replicas(&mut self, fault: &Fault, begins: bool) -> Result<(), Error> {
        for at in 0..self.replicas.len() {
            if !fault.hits(u32::try_from(at)?) {
                continue;
            }
            match (fault.kind == FaultKind::KillBudgetd, begins) {
                (true, true) => self.replicas[at].process.kill().await?,
                (true, false) => {
                    let (number, address) = (self.replicas[at].number, self.replicas[at].address);
                    let store = self.replicas[at].store.clone();
                    let (process, _) = self.start_replica(number, &store, Some(address), false).await?;
                    self.replicas[at].process = process;
                }
                (false, true) => self.replicas[at].process.stop()?,
                (false, false) => self.replicas[at].process.go_on()?,
            }
        }
        Ok(())
    }

    async fn kill_agents(&mut self, fault: &Fault, begins: bool) -> Result<(), Error> {
        for at in 0..self.agents.len() {
            if !fault.hits(u32::try_from(at)?) {
                continue;
            }
            if begins {
                self.agents[at].process.kill().await?;
                continue;
            }
            let Replica { number, address, store, .. } = &self.agents[at];
            let (process, _) = self.start_replica(*number, store, Some(*address), false).await?;
            self.agents[at].process = process;
        }
        Ok(())
    }

    fn cut_off(&self, fault: &Fault, begins: bool) {
        for (ways, number) in self.ways.iter().zip(0_u32..).filter(|(_, number)| fault.hits(*number)) {
            for (way, address) in ways.iter().zip(self.addresses(number)) {
                way.lead(if begins { Upstream::Nowhere } else { Upstream::Tcp(address) });
            }
        }
    }

    /// Puts the policy on whichever replica answers.
    async fn change_policy(&self, fault: &Fault, begins: bool) -> Result<(), Error> {
        let Some(policy) = fault.policy.as_ref().filter(|_| begins && !self.replicas.is_empty()) else {
            return Ok(());
        };
        let mut last = None;
        for replica in &self.replicas {
            let client = Client::new(&format!("http://{}", replica.address))?;
            let changed = time::timeout(POLICY_WITHIN, async {
                let expected = client.list_policies(None, POLICY_WITHIN).await?.version;
                let (name, source_toml) = (DEPENDENCY.to_owned(), Some(policy.clone()));
                let how = How::TakeOver;
                let edit = PolicyEdit { name, source_toml, expected, how, ..PolicyEdit::default() };
                client.edit_policy(edit, POLICY_WITHIN).await
            });
            match changed.await {
                // On memory each has its own.
                Ok(Ok(_)) if !self.cast.broken => return Ok(()),
                Ok(Ok(_)) => last = None,
                Ok(Err(error)) => last = Some(error.to_string()),
                Err(_elapsed) => last = Some("no answer".to_owned()),
            }
        }
        last.map_or(Ok(()), |error| Err(error.into()))
    }
}
