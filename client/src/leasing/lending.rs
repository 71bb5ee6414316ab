//! Lending of the leases held: what the agent of a host does for holders there.

use std::{sync::Arc, time::Duration};

use budget::{
    ids::DependencyId,
    lease::{HolderId, Rules, SyncAnswer, SyncAsk},
    ledger::HolderView,
};
use budget_proto::convert::SyncReply;
use tokio::sync::oneshot;

use super::{
    Command, Coordinator, Leasing,
    driver::{Driver, Due},
    lock,
};
use crate::{Dependency, Error, clock::boot_time_ns};

/// A holder asks for a lease.
#[derive(Debug)]
pub(super) struct Lend {
    dependency: DependencyId,
    ask: Box<SyncAsk>,
    /// None: no coordinator has told the rules yet.
    done: oneshot::Sender<Option<(SyncAnswer, Rules)>>,
}

/// An operator asks who holds leases.
#[derive(Debug)]
pub(super) struct List {
    dependency: DependencyId,
    after: Option<HolderId>,
    limit: usize,
    done: oneshot::Sender<Vec<HolderView>>,
}

/// An operator takes away what was lent to a holder.
#[derive(Debug)]
pub(super) struct Revoke {
    dependency: DependencyId,
    holder: HolderId,
    done: oneshot::Sender<bool>,
}

// === impl Leasing ===

impl Leasing {
    /// Decides what a holder tells and asks about a dependency, by the lease held here. Of the first lease it waits for the
    /// coordinator, no longer than `within`.
    ///
    /// # Errors
    /// If no coordinator tells the policy in time, or there are too many dependencies.
    pub async fn lend(&self, dependency: &Dependency, ask: SyncAsk, within: Duration) -> Result<SyncReply, Error> {
        let leased = self.dependency(dependency).map_err(|error| Error::Overloaded(error.to_string()))?;
        let id = dependency.id();
        let lending = async {
            loop {
                let told = self.shared.told.notified();
                let (done, answered) = oneshot::channel();
                let lend = Lend { dependency: id.clone(), ask: Box::new(ask.clone()), done };
                self.commands.send(Command::Lend(lend)).await.ok()?;
                if let Some(answer) = answered.await.ok()? {
                    return Some(answer);
                }
                told.await;
            }
        };
        let lent = tokio::time::timeout(within, lending).await.ok().flatten();
        let untold = || Error::Unavailable("no coordinator has told the policy yet".to_owned());
        let (answer, rules) = lent.ok_or_else(untold)?;
        Ok(SyncReply { answer, rules, units: leased.known().units().clone() })
    }

    /// Who holds leases of a dependency that were lent here, after `after` in the order of their names.
    pub async fn lessees(&self, dependency: &DependencyId, after: Option<&HolderId>, limit: usize) -> Vec<HolderView> {
        let (done, listed) = oneshot::channel();
        let list = List { dependency: dependency.clone(), after: after.cloned(), limit, done };
        if self.commands.send(Command::List(list)).await.is_err() {
            return Vec::new();
        }
        listed.await.unwrap_or_default()
    }

    /// Lends a holder nothing from its next request on, for as long as one curve lasts. False if nothing was lent to it here.
    pub async fn revoke_lessee(&self, dependency: &DependencyId, holder: &HolderId) -> bool {
        let (done, revoked) = oneshot::channel();
        let revoke = Revoke { dependency: dependency.clone(), holder: holder.clone(), done };
        self.commands.send(Command::Revoke(revoke)).await.is_ok() && revoked.await.unwrap_or(false)
    }
}

// === impl Driver ===

impl<C: Coordinator> Driver<C> {
    pub(super) fn lend(&mut self, lend: Lend) {
        let now_ns = boot_time_ns();
        self.take_over(now_ns);
        let Lend { dependency, ask, done } = lend;
        let Some(leased) = self.shared.find(&dependency) else { return };
        let mut machine = lock(&leased.machine);
        let answer = machine.holder.lend(now_ns, &ask);
        // What was given up may be acknowledged now.
        if self.due.remove(&Due { at_ns: machine.due_ns, leased: Arc::clone(&leased) }) {
            machine.due_ns = machine.holder.due_ns();
            self.due.insert(Due { at_ns: machine.due_ns, leased: Arc::clone(&leased) });
        }
        // Nobody may wait any more; the holder asks again.
        let _ = done.send(answer);
    }

    pub(super) fn list(&self, list: List) {
        let List { dependency, after, limit, done } = list;
        let now_ns = boot_time_ns();
        let leased = self.shared.find(&dependency);
        let views = leased.map(|leased| lock(&leased.machine).holder.list_lessees(now_ns, after.as_ref(), limit));
        let _ = done.send(views.unwrap_or_default());
    }

    pub(super) fn revoke(&self, revoke: Revoke) {
        let Revoke { dependency, holder, done } = revoke;
        let leased = self.shared.find(&dependency);
        let revoked = leased.is_some_and(|leased| lock(&leased.machine).holder.revoke_lessee(boot_time_ns(), &holder));
        let _ = done.send(revoked);
    }
}
