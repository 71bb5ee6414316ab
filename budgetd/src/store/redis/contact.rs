//! Once a second a replica says that it lives, learns how many others do, and enters names into the index of known
//! dependencies. While nobody calls, this is also what notices that the store is away.

use std::{sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use super::{census::Census, failure::Failure, scripts, topology::Redis};
use crate::store::fallback::Sharers;

const EVERY: Duration = Duration::from_secs(1);
/// A replica counts as long as its share of a fallback may last: one default lease curve.
pub(super) const REPLICA_MEMORY_MS: i64 = 120_000;
/// Most replicas counted.
pub(super) const REPLICAS_MAX: i64 = 10_000;
/// A name leaves the index after this much disuse.
const NAME_MEMORY_MS: i64 = 30 * 24 * 3_600_000;
/// Most names in the index.
pub(super) const NAMES_MAX: i64 = 50_000;
/// Names of one call, and calls of one contact.
const NAMES_PER_CALL: usize = 500;
const CALLS_PER_CONTACT: usize = 10;

/// Keeps one replica in contact.
pub(super) struct Contact {
    redis: Arc<Redis>,
    sharers: Arc<Sharers>,
    census: Arc<Census>,
}

// === impl Contact ===

impl Contact {
    pub(super) const fn new(redis: Arc<Redis>, sharers: Arc<Sharers>, census: Arc<Census>) -> Self {
        Self { redis, sharers, census }
    }

    /// Stays in contact until the task is aborted.
    pub(super) async fn run(self) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first comes at once; that contact has been made.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            self.once().await;
        }
    }

    /// One contact, unless the store is away.
    pub(super) async fn once(&self) {
        if self.redis.admit().is_err() {
            return;
        }
        let replicas = self.redis.make_contact().await;
        self.redis.note(&replicas);
        self.redis.leave_if_too_new();
        match replicas {
            Ok(count) => self.sharers.set(count),
            Err(failure) => {
                tracing::debug!(reason = failure.text, "no contact with the store");
                return;
            }
        }
        for _ in 0..CALLS_PER_CONTACT {
            let names = self.census.take_names(NAMES_PER_CALL);
            if names.is_empty() {
                break;
            }
            let entered = self.enter(&names).await;
            self.redis.note(&entered);
            if let Err(failure) = entered {
                tracing::debug!(reason = failure.text, "known dependencies could not be entered");
                self.census.put_back(names);
                break;
            }
        }
    }

    async fn enter(&self, names: &[budget::ids::DependencyId]) -> Result<(), Failure> {
        let mut link = self.redis.side_link().await?;
        let (key, now_ms) = (self.redis.keys().known(), self.redis.injected_now());
        link.script(&scripts::KNOWN, |call| {
            call.arg(&key).arg(&now_ms).arg(NAME_MEMORY_MS).arg(NAMES_MAX);
            for name in names {
                call.arg(name.as_str());
            }
        })
        .await?;
        Ok(())
    }
}
