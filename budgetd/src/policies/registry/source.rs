//! The policy files of this replica: what they were last, and what is wrong with them.

use std::{
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tracing::{error, info, warn};

use super::{Policies, PoliciesError};
use crate::policies::{
    Watch,
    file::{PolicyFile, PolicyFileError},
};

/// What is wrong with the policy files now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceError {
    /// One of [`PolicyFileError::KINDS`].
    pub kind: &'static str,
    /// For people.
    pub text: String,
}

/// What is known of the files.
#[derive(Debug, Default)]
pub(super) struct Source {
    error: Mutex<Option<SourceError>>,
    /// Of the content read at the start.
    hash: Mutex<Option<String>>,
    good: AtomicU64,
    refused: AtomicU64,
}

// === impl Source ===

impl Source {
    pub(super) fn error(&self) -> Option<SourceError> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn good(&self, hash: &str) {
        *self.hash.lock().unwrap_or_else(PoisonError::into_inner) = Some(hash.to_owned());
        self.good.fetch_add(1, Ordering::Relaxed);
        if self.error.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            info!("policy files are good again");
        }
    }

    /// At the start nothing is in force that an empty file could wipe.
    pub(super) fn empty(&self, path: &Path, hash: String) {
        warn!(path = %path.display(), "the policy file holds no policy; it is not imported");
        *self.hash.lock().unwrap_or_else(PoisonError::into_inner) = Some(hash);
    }

    fn refuse(&self, refused: &PolicyFileError) {
        let why = refused.to_string();
        error!(why, "policy files are refused; the last good policies stay");
        self.refused.fetch_add(1, Ordering::Relaxed);
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(SourceError { kind: refused.kind(), text: why });
    }
}

// === impl Policies ===

impl Policies {
    /// What is wrong with the policy files now, if anything is.
    #[must_use]
    pub fn source_error(&self) -> Option<SourceError> {
        self.source.error()
    }

    /// How often policy files were read anew and found good, and refused.
    #[must_use]
    pub fn source_reads(&self) -> (u64, u64) {
        (self.source.good.load(Ordering::Relaxed), self.source.refused.load(Ordering::Relaxed))
    }

    /// Watches the files that the policies began with.
    #[must_use]
    pub fn watch(&self, path: PathBuf) -> Watch {
        let hash = self.source.hash.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Watch::new(path, self.timing, hash)
    }

    /// Imports files now. If the repository does not answer, the import is tried again at each refresh.
    ///
    /// # Errors
    /// If a file is refused or the repository does not take it; the snapshot stays as it was.
    pub async fn import(&self, path: &Path) -> Result<(), PoliciesError> {
        let file = PolicyFile::read_timed(path, self.timing).inspect_err(|error| self.refused(error.clone()))?;
        if file.set.is_empty() {
            self.refused(PolicyFileError::Empty { path: path.to_owned() });
            return Ok(());
        }
        self.take_in(file).await
    }

    /// Good files, seen by their watch.
    pub(in crate::policies) async fn take(&self, file: PolicyFile) {
        // An error is noted, and what could not be done is tried again at each refresh.
        let _noted = self.take_in(file).await;
    }

    /// Bad files.
    pub(in crate::policies) fn refused(&self, error: PolicyFileError) {
        self.source.refuse(&error);
    }

    async fn take_in(&self, file: PolicyFile) -> Result<(), PoliciesError> {
        self.source.good(&file.hash);
        let mut inner = self.inner.lock().await;
        inner.pending = Some(file);
        self.follow(&mut inner).await
    }
}
