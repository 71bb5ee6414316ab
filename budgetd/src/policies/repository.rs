//! Where the policies of a namespace are kept: one document under one rising version, written by compare-and-set.

use std::{
    future::Future,
    pin::Pin,
    sync::{Mutex, PoisonError},
};

use budget::ids::PolicyVersion;

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
}

/// Keeps the document in this process.
#[derive(Debug, Default)]
pub struct MemoryRepository(Mutex<Option<Document>>);

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// [`Repository`] for any implementation behind one type, so that who uses policies need not name the store.
pub(super) trait AnyRepository: Send + Sync {
    fn load(&self) -> Answer<'_, Option<Document>>;
    fn replace<'a>(&'a self, expected: Option<PolicyVersion>, new: &'a Document) -> Answer<'a, Replaced>;
}

// === impl AnyRepository ===

impl<R: Repository> AnyRepository for R {
    fn load(&self) -> Answer<'_, Option<Document>> {
        Box::pin(Repository::load(self))
    }

    fn replace<'a>(&'a self, expected: Option<PolicyVersion>, new: &'a Document) -> Answer<'a, Replaced> {
        Box::pin(Repository::replace(self, expected, new))
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
}
