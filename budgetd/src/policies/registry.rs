//! The policies of this replica: follows the stored document and writes it.

mod follow;

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use budget::{ids::PolicyVersion, units::EXACT_MAX};
use tracing::{info, warn};

use self::follow::Written;
use super::{
    SWITCHES_MAX,
    file::{PolicyFile, PolicyFileError},
    repository::{AnyRepository, Document, Repository},
    set::{PolicySet, judge_pattern},
    snapshot::{Snapshot, Switches},
    text::InvalidText,
};
use crate::{config::LeaseTiming, store::StoreError};

/// Most times one change is tried again because others changed the document meanwhile.
const ATTEMPTS_MAX: usize = 16;
/// Ledgers know a version that the document has not reached for so many polls: whoever wrote it is gone.
const POLLS_BEHIND_MAX: u32 = 5;

/// Why policies cannot be read or changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PoliciesError {
    /// The policy file is refused.
    #[error(transparent)]
    File(#[from] PolicyFileError),
    /// A rule's text is refused.
    #[error(transparent)]
    Invalid(#[from] InvalidText),
    /// The stored document is not valid, or is of a newer budgetd.
    #[error("stored policies of version {} are invalid: {why}", version.number)]
    Document {
        /// Of the document.
        version: PolicyVersion,
        /// What is wrong.
        why: String,
    },
    /// The policies are of another version than expected.
    #[error("policies have version {}:{}, not the expected one", current.number, current.id)]
    Conflict {
        /// The version now.
        current: PolicyVersion,
    },
    /// Others changed the policies each time.
    #[error("policies were changed by others {ATTEMPTS_MAX} times meanwhile")]
    Contended,
    /// There is nothing to remove.
    #[error("there is no rule {0:?}")]
    NoSuchRule(String),
    /// Not a name, a pattern ending in `*`, or `*`; or one too many.
    #[error("target is {value:?}: {rule}")]
    Target {
        /// As given.
        value: String,
        /// What is required.
        rule: String,
    },
    /// The system gives no random numbers.
    #[error("no random version id: {0}")]
    Random(String),
    /// The repository did not answer.
    #[error("policies: {0}")]
    Store(#[from] StoreError),
}

/// What a switch of retries led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switched {
    /// Of the policies now.
    pub version: PolicyVersion,
    /// Retries were switched on for the target but stay off by this wider one.
    pub still_off_by: Option<String>,
}

/// The policies of this replica. [`Policies::snapshot`] is what is in force.
pub struct Policies {
    repository: Box<dyn AnyRepository>,
    current: RwLock<Arc<Snapshot>>,
    /// The id of `current`'s version, set after it.
    current_id: AtomicI64,
    last_error: Mutex<Option<String>>,
    /// Highest version number seen anywhere.
    highest: AtomicI64,
    /// Refreshes that have begun.
    begun: AtomicU64,
    timing: LeaseTiming,
    inner: tokio::sync::Mutex<Inner>,
}

/// Held through reads and writes of the repository, so that this replica asks one thing at a time.
struct Inner {
    /// The document behind the snapshot.
    held: Option<Document>,
    set: Arc<PolicySet>,
    /// To be imported as soon as the repository answers.
    pending: Option<PolicyFile>,
    /// A stored document that was found invalid, and why.
    rejected: Option<(PolicyVersion, PoliciesError)>,
    /// The last refresh that ended, by the count of those begun, and how.
    finished: u64,
    result: Result<(), PoliciesError>,
    polls_behind: u32,
}

// === impl Policies ===

impl Policies {
    /// Reads the file, if one is given, and follows the repository. A file is imported only if its content differs from
    /// the one imported last, so that later changes through the API survive restarts. Starts with neither file nor
    /// document: then everything runs under the built-in defaults. A repository that does not answer does not keep this
    /// from starting: the file is in force here and is imported as soon as it answers.
    ///
    /// # Errors
    /// If the file is refused, or the stored document is invalid.
    pub async fn start(repository: impl Repository, file: Option<&Path>) -> Result<Self, PoliciesError> {
        Self::start_timed(repository, file, LeaseTiming::default()).await
    }

    /// As [`Self::start`], with other time limits of leases.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_timed(
        repository: impl Repository,
        file: Option<&Path>,
        timing: LeaseTiming,
    ) -> Result<Self, PoliciesError> {
        let pending = file.map(|path| read_file(path, timing)).transpose()?.flatten();
        let set = pending.as_ref().map_or_else(|| PolicySet::timed(timing), |file| file.set.clone());
        let set = Arc::new(set);
        let snapshot = Snapshot::new(PolicyVersion::default(), Arc::clone(&set), Switches::default());
        let inner = Inner { held: None, set, pending, rejected: None, finished: 0, result: Ok(()), polls_behind: 0 };
        let this = Self {
            repository: Box::new(repository),
            current: RwLock::new(Arc::new(snapshot)),
            current_id: AtomicI64::new(PolicyVersion::default().id),
            last_error: Mutex::new(None),
            highest: AtomicI64::new(0),
            begun: AtomicU64::new(0),
            timing,
            inner: tokio::sync::Mutex::new(inner),
        };
        match this.refresh().await {
            Ok(()) | Err(PoliciesError::Store(_) | PoliciesError::Contended) => Ok(this),
            Err(error) => Err(error),
        }
    }

    /// What is in force.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the snapshot is still of this version, by its random id. Every call on every processor asks that, and it
    /// costs less than to take the snapshot.
    #[must_use]
    pub fn is_current(&self, version: PolicyVersion) -> bool {
        self.current_id.load(Ordering::Acquire) == version.id
    }

    /// Why the snapshot may not be what was written last; none while all is well.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A ledger was decided with this version: what is written next must be above it.
    pub fn saw(&self, version: PolicyVersion) {
        if version.number < EXACT_MAX {
            self.highest.fetch_max(version.number, Ordering::Relaxed);
        }
    }

    /// Reads the document again. Any number of concurrent calls share at most two reads.
    ///
    /// # Errors
    /// If the repository does not answer or its document is invalid; the snapshot stays as it was.
    pub async fn refresh(&self) -> Result<(), PoliciesError> {
        let begun = self.begun.load(Ordering::Acquire);
        let mut inner = self.inner.lock().await;
        if inner.finished > begun {
            return inner.result.clone();
        }
        let turn = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let result = self.follow(&mut inner).await;
        inner.finished = turn;
        inner.result.clone_from(&result);
        result
    }

    /// To be called once a second: [`Self::refresh`], and heals ledgers that know a higher version than any document,
    /// because the replica that wrote it and the repository have both lost it.
    pub async fn poll(&self) {
        let result = self.refresh().await;
        let mut inner = self.inner.lock().await;
        let behind = |held: &Document| held.version.number < self.highest.load(Ordering::Relaxed);
        if result.is_err() || !inner.held.as_ref().is_some_and(behind) {
            inner.polls_behind = 0;
            return;
        }
        inner.polls_behind += 1;
        if inner.polls_behind >= POLLS_BEHIND_MAX {
            inner.polls_behind = 0;
            warn!("ledgers know a version of the policies that nobody has; writing the present one above it");
            let expected = inner.held.as_ref().map(|held| held.version);
            let result = self.rewrite(&mut inner, expected).await;
            self.note(&result.map(drop));
        }
    }

    /// Imports a file now. If the repository does not answer, the import is tried again at each refresh.
    ///
    /// # Errors
    /// If the file is refused or the repository does not take it; the snapshot stays as it was.
    pub async fn import(&self, path: &Path) -> Result<(), PoliciesError> {
        let file = read_file(path, self.timing).inspect_err(|error| self.note(&Err(error.clone())))?;
        let mut inner = self.inner.lock().await;
        inner.pending = file.or_else(|| inner.pending.take());
        self.follow(&mut inner).await
    }

    /// Replaces the text of one rule, or removes the rule if the text is empty.
    ///
    /// # Errors
    /// If the policies are not of the expected version, the text is refused, or the repository does not take it.
    pub async fn put(&self, name: &str, toml: &str, expected: PolicyVersion) -> Result<PolicyVersion, PoliciesError> {
        let mut inner = self.inner.lock().await;
        self.follow(&mut inner).await?;
        let snapshot = self.snapshot();
        if snapshot.version() != expected {
            return Err(PoliciesError::Conflict { current: snapshot.version() });
        }
        let text = (!toml.trim().is_empty()).then_some(toml);
        if text.is_none() && snapshot.set().rule(name).is_none() {
            return Err(PoliciesError::NoSuchRule(name.to_owned()));
        }
        let set = Arc::new(snapshot.set().with(name, text)?);
        let held = inner.held.as_ref();
        let import_hash = held.and_then(|held| held.import_hash.clone());
        let expected = held.map(|held| held.version);
        match self.write(&mut inner, expected, set, snapshot.switches().clone(), import_hash).await? {
            Written::Done(version) => {
                info!(rule = name, version = version.number, "policy changed");
                Ok(version)
            }
            Written::Conflict(stored) => {
                let current = stored.as_ref().map_or_else(PolicyVersion::default, |stored| stored.version);
                self.settle(&mut inner, stored).await?;
                Err(PoliciesError::Conflict { current })
            }
        }
    }

    /// Switches retries on or off for a dependency, a family ending in `*`, or `*` for everywhere. Each target is a switch
    /// of its own: switching on the wider one leaves narrower ones as they are.
    ///
    /// # Errors
    /// If the target is no name or pattern, or the repository does not take it.
    pub async fn set_retries(&self, target: &str, enabled: bool) -> Result<Switched, PoliciesError> {
        let refuse = |rule: String| PoliciesError::Target { value: target.to_owned(), rule };
        judge_pattern(target).map_err(|rule| refuse(rule.to_string()))?;
        let mut inner = self.inner.lock().await;
        for _ in 0..ATTEMPTS_MAX {
            self.follow(&mut inner).await?;
            let snapshot = self.snapshot();
            let mut switches = snapshot.switches().clone();
            let changed = switches.set(target, enabled);
            let still_off_by = switches.wider(target).filter(|_| enabled).map(str::to_owned);
            if !changed {
                return Ok(Switched { version: snapshot.version(), still_off_by });
            }
            if switches.len() > SWITCHES_MAX {
                return Err(refuse(format!("there must be at most {SWITCHES_MAX} targets")));
            }
            let held = inner.held.as_ref();
            let (expected, hash) = (held.map(|held| held.version), held.and_then(|held| held.import_hash.clone()));
            let written = self.write(&mut inner, expected, Arc::clone(snapshot.set()), switches, hash).await?;
            if let Written::Done(version) = written {
                info!(target, enabled, version = version.number, "retries switched");
                return Ok(Switched { version, still_off_by });
            }
        }
        Err(PoliciesError::Contended)
    }
}

/// None: the file holds no policy at all, so there is nothing to import. It must not wipe what is stored.
fn read_file(path: &Path, timing: LeaseTiming) -> Result<Option<PolicyFile>, PoliciesError> {
    let file = PolicyFile::read_timed(path, timing)?;
    if file.set.is_empty() {
        warn!(path = %path.display(), "the policy file holds no policy; it is not imported");
        return Ok(None);
    }
    Ok(Some(file))
}
