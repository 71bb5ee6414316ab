//! Forgetting dependencies that nobody asks about any more.

use std::sync::{Arc, PoisonError};

use super::{Coordinator, Driver, Due, Leased, Machine, NANOS_PER_MS, lock, random_incarnation};

/// Looks at all dependencies in the time after which an idle one is forgotten.
const LOOKS: i64 = 4;
/// Who has a dependency that nobody uses: the set of names, and this task.
const OWNERS: usize = 2;

/// Since when nothing was asked.
#[derive(Debug)]
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
        for Due { leased, .. } in std::mem::take(&mut self.due) {
            let mut machine = lock(&leased.machine);
            let used = machine.is_used(&leased, now_ns);
            let mut changed = false;
            if machine.idle.parting {
                if !used {
                    drop(machine);
                    gone.push(leased);
                    continue;
                }
                if let Ok(incarnation) = random_incarnation() {
                    machine.holder.reincarnate(now_ns, incarnation);
                    machine.idle = Idle::since(now_ns);
                    changed = true;
                }
            } else if !used && now_ns.saturating_sub(machine.idle.since_ns) >= after_ns {
                machine.holder.leave(now_ns);
                machine.idle.parting = true;
                (parts, changed) = (true, true);
            }
            if changed {
                machine.due_ns = machine.holder.due_ns();
            }
            let at_ns = machine.due_ns;
            drop(machine);
            self.due.insert(Due { at_ns, leased });
        }
        let parting_ns = options.timing.renew_max_ms.saturating_mul(NANOS_PER_MS);
        let every_ns = after_ns / LOOKS;
        let next_ns = if parts { every_ns.min(parting_ns) } else { every_ns };
        self.look_ns = now_ns.saturating_add(next_ns.max(NANOS_PER_MS));
        self.forget(gone);
    }

    fn forget(&mut self, mut gone: Vec<Arc<Leased>>) {
        if gone.is_empty() {
            return;
        }
        if let Ok(incarnation) = random_incarnation() {
            *lock(&self.shared.incarnation) = incarnation;
            let mut leases = self.shared.leases.write().unwrap_or_else(PoisonError::into_inner);
            gone.retain(|leased| {
                // Who has come since holds it, or waits for the set.
                if Arc::strong_count(leased) > OWNERS {
                    return true;
                }
                tracing::debug!(dependency = %leased.dependency().id(), "forgotten: nobody asks about it");
                leases.remove(leased.dependency().id());
                false
            });
        }
        // The others stay until the next look.
        self.due.extend(gone.into_iter().map(|leased| {
            let at_ns = lock(&leased.machine).due_ns;
            Due { at_ns, leased }
        }));
    }
}

// === impl Machine ===

impl Machine {
    /// Whether somebody keeps it or has asked since the last look.
    fn is_used(&mut self, leased: &Arc<Leased>, now_ns: i64) -> bool {
        let asked = leased.share().usage().asked;
        let used = asked != self.idle.asked || Arc::strong_count(leased) > OWNERS || self.holder.has_lent();
        if used {
            self.idle.asked = asked;
            self.idle.since_ns = now_ns;
        }
        used
    }
}
