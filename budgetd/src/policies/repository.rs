//! Where the policies of a namespace are kept: one document under one rising version, written by compare-and-set.

use std::{
    future::Future,
    pin::Pin,
    sync::{Mutex, PoisonError},
};

use budget::{
    ids::{DependencyId, PolicyVersion},
    lease::HolderId,
};

use crate::store::StoreError;

/// All policies and switches as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Rises with every change.
    pub version: PolicyVersion,
    /// Rules and switches; only [`super::Policies`] reads it.
    pub body: String,
    /// Digest of the file that was imported last.
    pub import_hash: Option<String>,
}

/// What became of a [`Repository::replace`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// The document is stored.
    Done,
    /// Another version was there: this one.
    Conflict(Option<Document>),
}

/// What a replica tells the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// Of the policies in force there.
    pub version: PolicyVersion,
    /// They may not be those written last.
    pub is_stale: bool,
}

/// A replica that has told lately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its name: random, one for each start.
    pub id: String,
    /// What it told.
    pub presence: Presence,
    /// How long ago.
    pub age_ms: i64,
}

/// In which format the store is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFormat {
    /// By all replicas.
    pub written: u8,
    /// The newest that this one reads.
    pub readable: u8,
    /// Replicas that do not read that one, by name: it is not written before they have gone.
    pub held_back_by: Vec<String>,
}

/// What a holder of one dependency's leases was told last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Whose leases.
    pub dependency: DependencyId,
    /// To whom.
    pub holder: HolderId,
    /// Of the rules.
    pub version: PolicyVersion,
}

/// Keeps one document. Implementations bound their own waiting and do not retry.
pub trait Repository: Send + Sync + 'static {
    /// The document, if there is one.
    fn load(&self) -> impl Future<Output = Result<Option<Document>, StoreError>> + Send;

    /// Stores a document in one atomic step if the one that is there has the version `expected`, or if none is expected
    /// and none is there.
    fn replace(
        &self,
        expected: Option<PolicyVersion>,
        new: &Document,
    ) -> impl Future<Output = Result<Replaced, StoreError>> + Send;

    /// What the store's clock showed at the last load, in ms since the Unix epoch; none if it has no clock of its own.
    fn now_ms(&self) -> Option<i64> {
        None
    }

    /// Tells the other replicas about this one, until it is forgotten some seconds later.
    fn tell(&self, presence: Presence) -> impl Future<Output = Result<(), StoreError>> + Send {
        let _nobody_else = presence;
        std::future::ready(Ok(()))
    }

    /// This replica's name; none if there can be only one.
    fn replica(&self) -> Option<&str> {
        None
    }

    /// What replicas have told; empty if there can be only one.
    fn replicas(&self) -> impl Future<Output = Result<Vec<Replica>, StoreError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// The format of the store; none if it has but one.
    fn format(&self) -> impl Future<Output = Result<Option<StoredFormat>, StoreError>> + Send {
        std::future::ready(Ok(None))
    }

    /// Tells the other replicas what holders were told here. It is remembered for one to two hours.
    fn tell_holders(&self, told: &[Told]) -> impl Future<Output = Result<(), StoreError>> + Send {
        let _nobody_else = told;
        std::future::ready(Ok(()))
    }

    /// For each of these holders, what a replica told it last, as far as that was told to the others lately.
    fn holders_told(
        &self,
        dependency: &DependencyId,
        holders: &[HolderId],
    ) -> impl Future<Output = Result<Vec<Option<PolicyVersion>>, StoreError>> + Send {
        let _nobody_else = dependency;
        std::future::ready(Ok(vec![None; holders.len()]))
    }
}

/// Keeps the document in this process.
#[derive(Debug, Default)]
pub struct MemoryRepository(Mutex<Option<Document>>);

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// [`Repository`] for any implementation behind one type, so that who uses policies need not name the store.
pub(super) trait AnyRepository: Send + Sync {
    fn load(&self) -> Answer<'_, Option<Document>>;
    fn replace<'a>(&'a self, expected: Option<PolicyVersion>, new: &'a Document) -> Answer<'a, Replaced>;
    fn now_ms(&self) -> Option<i64>;
    fn tell(&self, presence: Presence) -> Answer<'_, ()>;
    fn replica(&self) -> Option<&str>;
    fn replicas(&self) -> Answer<'_, Vec<Replica>>;
    fn format(&self) -> Answer<'_, Option<StoredFormat>>;
    fn tell_holders<'a>(&'a self, told: &'a [Told]) -> Answer<'a, ()>;
    fn holders_told<'a>(
        &'a self,
        dependency: &'a DependencyId,
        holders: &'a [HolderId],
    ) -> Answer<'a, Vec<Option<PolicyVersion>>>;
}

// === impl AnyRepository ===

impl<R: Repository> AnyRepository for R {
    fn load(&self) -> Answer<'_, Option<Document>> {
        Box::pin(Repository::load(self))
    }

    fn replace<'a>(&'a self, expected: Option<PolicyVersion>, new: &'a Document) -> Answer<'a, Replaced> {
        Box::pin(Repository::replace(self, expected, new))
    }

    fn now_ms(&self) -> Option<i64> {
        Repository::now_ms(self)
    }

    fn tell(&self, presence: Presence) -> Answer<'_, ()> {
        Box::pin(Repository::tell(self, presence))
    }

    fn replica(&self) -> Option<&str> {
        Repository::replica(self)
    }

    fn replicas(&self) -> Answer<'_, Vec<Replica>> {
        Box::pin(Repository::replicas(self))
    }

    fn format(&self) -> Answer<'_, Option<StoredFormat>> {
        Box::pin(Repository::format(self))
    }

    fn tell_holders<'a>(&'a self, told: &'a [Told]) -> Answer<'a, ()> {
        Box::pin(Repository::tell_holders(self, told))
    }

    fn holders_told<'a>(
        &'a self,
        dependency: &'a DependencyId,
        holders: &'a [HolderId],
    ) -> Answer<'a, Vec<Option<PolicyVersion>>> {
        Box::pin(Repository::holders_told(self, dependency, holders))
    }
}

// === impl MemoryRepository ===

impl Repository for MemoryRepository {
    async fn load(&self) -> Result<Option<Document>, StoreError> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn replace(&self, expected: Option<PolicyVersion>, new: &Document) -> Result<Replaced, StoreError> {
        let mut stored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if stored.as_ref().map(|document| document.version) != expected {
            return Ok(Replaced::Conflict(stored.clone()));
        }
        *stored = Some(new.clone());
        Ok(Replaced::Done)
    }
}

impl<R: Repository> Repository for std::sync::Arc<R> {
    fn load(&self) -> impl Future<Output = Result<Option<Document>, StoreError>> + Send {
        (**self).load()
    }

    fn replace(
        &self,
        expected: Option<PolicyVersion>,
        new: &Document,
    ) -> impl Future<Output = Result<Replaced, StoreError>> + Send {
        (**self).replace(expected, new)
    }

    fn now_ms(&self) -> Option<i64> {
        (**self).now_ms()
    }

    fn tell(&self, presence: Presence) -> impl Future<Output = Result<(), StoreError>> + Send {
        (**self).tell(presence)
    }

    fn replica(&self) -> Option<&str> {
        (**self).replica()
    }

    fn replicas(&self) -> impl Future<Output = Result<Vec<Replica>, StoreError>> + Send {
        (**self).replicas()
    }

    fn format(&self) -> impl Future<Output = Result<Option<StoredFormat>, StoreError>> + Send {
        (**self).format()
    }

    fn tell_holders(&self, told: &[Told]) -> impl Future<Output = Result<(), StoreError>> + Send {
        (**self).tell_holders(told)
    }

    fn holders_told(
        &self,
        dependency: &DependencyId,
        holders: &[HolderId],
    ) -> impl Future<Output = Result<Vec<Option<PolicyVersion>>, StoreError>> + Send {
        (**self).holders_told(dependency, holders)
    }
}
