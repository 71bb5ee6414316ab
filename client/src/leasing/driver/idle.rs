//! Forgetting dependencies that nobody asks about any more.

use std::sync::{Arc, PoisonError};

use budget::ids::DependencyId;

use super::{Coordinator, Driver, Machine, NANOS_PER_MS, lock, random_incarnation};

/// Looks at all dependencies in the time after which an idle one is forgotten.
const LOOKS: i64 = 4;
/// Who has a dependency that nobody uses: the map of names, and this task.
const OWNERS: usize = 2;

/// Since when nothing was asked.
pub(super) struct Idle {
    asked: i64,
    since_ns: i64,
    /// Its lease is being given back.
    parting: bool,
}

// === impl Idle ===

impl Idle {
    pub(super) const fn since(now_ns: i64) -> Self {
        Self { asked: 0, since_ns: now_ns, parting: false }
    }
}

// === impl Driver ===

impl<C: Coordinator> Driver<C> {
    /// What has been idle for long gives its lease back, and is forgotten when there was time to say so, unless somebody
    /// came meanwhile.
    pub(super) fn forget_idle(&mut self, now_ns: i64) {
        if now_ns < self.look_ns || !self.leaving.is_empty() {
            return;
        }
        let options = &self.shared.options;
        let after_ms = i64::try_from(options.forget_after.as_millis()).unwrap_or(i64::MAX);
        let after_ns = after_ms.saturating_mul(NANOS_PER_MS);
        let (mut gone, mut parts) = (Vec::new(), false);
        for (id, machine) in &mut self.machines {
            let used = machine.is_used(now_ns);
            if machine.idle.parting && !used {
                gone.push(id.clone());
                continue;
            }
            if machine.idle.parting {
                let Ok(incarnation) = random_incarnation() else { continue };
                machine.holder.reincarnate(now_ns, incarnation);
                machine.idle = Idle::since(now_ns);
            } else if !used && now_ns.saturating_sub(machine.idle.since_ns) >= after_ns {
                machine.holder.leave(now_ns);
                machine.idle.parting = true;
                parts = true;
            } else {
                continue;
            }
            self.due.remove(&(machine.due_ns, id.clone()));
            machine.due_ns = machine.holder.due_ns();
            self.due.insert((machine.due_ns, id.clone()));
        }
        let parting_ns = options.timing.renew_max_ms.saturating_mul(NANOS_PER_MS);
        let every_ns = after_ns / LOOKS;
        let next_ns = if parts { every_ns.min(parting_ns) } else { every_ns };
        self.look_ns = now_ns.saturating_add(next_ns.max(NANOS_PER_MS));
        self.forget(gone);
    }

    fn forget(&mut self, gone: Vec<DependencyId>) {
        if gone.is_empty() {
            return;
        }
        let Ok(incarnation) = random_incarnation() else { return };
        *lock(&self.shared.incarnation) = incarnation;
        let mut leases = self.shared.leases.write().unwrap_or_else(PoisonError::into_inner);
        for id in gone {
            // Who has come since holds it, or waits for the map.
            let Some(machine) = self.machines.get(&id).filter(|machine| machine.owners() <= OWNERS) else { continue };
            self.due.remove(&(machine.due_ns, id.clone()));
            self.machines.remove(&id);
            leases.remove(&id);
            tracing::debug!(dependency = %id, "forgotten: nobody asks about it");
        }
    }
}

// === impl Machine ===

impl Machine {
    fn owners(&self) -> usize {
        Arc::strong_count(&self.leased)
    }

    /// Whether somebody keeps it or has asked since the last look.
    fn is_used(&mut self, now_ns: i64) -> bool {
        let asked = self.leased.share().usage().asked;
        let used = asked != self.idle.asked || self.owners() > OWNERS || self.holder.has_lent();
        if used {
            self.idle.asked = asked;
            self.idle.since_ns = now_ns;
        }
        used
    }
}
