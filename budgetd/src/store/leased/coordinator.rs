//! The store inside as the coordinator of this replica's leases.

use std::{sync::Arc, time::Duration};

use budget::lease::Rules;
use budget_client::{
    Error,
    leasing::{Asked, Coordinator},
};
use budget_proto::{UnitNames, convert::SyncReply};
use futures::{StreamExt, stream};

use crate::{
    clock::Clock,
    policies::Policies,
    store::{
        Store, StoreError,
        fallback::{Sharers, WithFallback},
    },
};

/// Dependencies of one sync that wait for the store at a time.
const SYNCS_AT_ONCE: usize = 128;

/// Grants leases out of a store in this process.
pub struct Lender<S> {
    store: Arc<WithFallback<S>>,
    policies: Arc<Policies>,
    sharers: Arc<Sharers>,
    timeout: Duration,
}

// === impl Lender ===

impl<S: Store> Lender<S> {
    /// Each sync takes `timeout` at most.
    pub const fn new(
        store: Arc<WithFallback<S>>,
        policies: Arc<Policies>,
        sharers: Arc<Sharers>,
        timeout: Duration,
    ) -> Self {
        Self { store, policies, sharers, timeout }
    }

    async fn sync_one(&self, asked: &Asked) -> Result<SyncReply, Error> {
        let id = asked.dependency.id();
        let deadline = Clock::instant() + self.timeout;
        let synced = self.store.inner().sync(id, (*asked.ask).clone(), deadline).await.map_err(error)?;
        let resolved = self.policies.snapshot().resolve(id).map_err(Error::NotFound)?;
        let holders = self.store.fallbacks().told(id, synced.holders);
        let sharers = self.sharers.get().saturating_add(holders);
        let rules = Rules::of(&resolved.policy, &resolved.numbers, resolved.version, sharers);
        let names = resolved.policy.spec().units.iter().map(|unit| unit.name.as_str());
        // A policy's names are valid.
        let units = UnitNames::new(names).unwrap_or_default();
        Ok(SyncReply { answer: synced.answer, rules, units })
    }
}

impl<S: Store> Coordinator for Lender<S> {
    async fn sync(&self, asks: &[Asked]) -> Vec<Result<SyncReply, Error>> {
        // Owned: the compiler does not see through a borrow here.
        let asks: Vec<_> = asks.to_vec();
        stream::iter(asks)
            .map(|asked| async move { self.sync_one(&asked).await })
            .buffered(SYNCS_AT_ONCE)
            .collect()
            .await
    }
}

fn error(error: StoreError) -> Error {
    match error {
        StoreError::UnknownDependency(why) => Error::NotFound(why),
        StoreError::Overloaded => Error::Overloaded(error.to_string()),
        StoreError::DeadlinePassed => Error::DeadlinePassed,
        StoreError::Refused(why) => Error::InvalidArgument(why),
        StoreError::Away(_)
        | StoreError::Lost(_)
        | StoreError::Late
        | StoreError::NeverReached(_)
        | StoreError::Corrupt(_) => Error::Unavailable(error.to_string()),
    }
}
