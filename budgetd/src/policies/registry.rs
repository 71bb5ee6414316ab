//! The policies of this replica: follows the stored document and writes it.

mod asks;
mod drafts;
mod follow;
mod source;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use budget::{
    ids::{DependencyId, PolicyVersion},
    lease::HolderId,
    units::EXACT_MAX,
};
use tracing::warn;

pub use self::{
    asks::{Edit, How, Rollback, Switched, Switching},
    source::SourceError,
};
use self::{drafts::Draft, follow::Written, source::Source};
use super::{
    By, SWITCHES_MAX,
    file::{PolicyFile, PolicyFileError},
    history::History,
    managed::Content,
    repository::{AnyRepository, Document, Presence, Replica, Repository, StoredFormat, Told},
    set::{PolicySet, judge_pattern},
    snapshot::{Snapshot, Switch, Switches},
    text::InvalidText,
    time::StoreTime,
};
use crate::{clock::Clock, config::LeaseTiming, store::StoreError};

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
    /// A file manages the rule.
    #[error(
        "rule {rule:?} comes from policy file {file}: change it there, or override it for a time (--override-for), or \
         take it over from the file (--take-over)"
    )]
    Managed {
        /// The rule.
        rule: String,
        /// The file, as its replica names it.
        file: String,
    },
    /// A number that breaks its rule.
    #[error("{field} is {value}: {rule}")]
    Range {
        /// What it is called.
        field: &'static str,
        /// As given.
        value: i64,
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

/// The policies of this replica. [`Policies::snapshot`] is what is in force.
pub struct Policies {
    repository: Box<dyn AnyRepository>,
    current: RwLock<Arc<Snapshot>>,
    /// The id of `current`'s version, set after it.
    current_id: AtomicI64,
    last_error: Mutex<Option<PoliciesError>>,
    source: Source,
    /// Highest version number seen anywhere.
    highest: AtomicI64,
    /// Refreshes that have begun.
    begun: AtomicU64,
    timing: LeaseTiming,
    clock: Clock,
    time: StoreTime,
    inner: tokio::sync::Mutex<Inner>,
}

/// Held through reads and writes of the repository, so that this replica asks one thing at a time.
struct Inner {
    /// The document behind the snapshot.
    held: Option<Document>,
    /// What it says.
    content: Content,
    /// To be imported as soon as the repository answers.
    pending: Option<PolicyFile>,
    /// Switches thrown while the repository was away, by target: in force here, and to be written when it answers.
    thrown: BTreeMap<String, Thrown>,
    /// A stored document that was found invalid, and why.
    rejected: Option<(PolicyVersion, PoliciesError)>,
    /// The last refresh that ended, by the count of those begun, and how.
    finished: u64,
    result: Result<(), PoliciesError>,
    polls_behind: u32,
}

/// A kill switch that is thrown here alone.
struct Thrown {
    /// None: retries on.
    switch: Option<Switch>,
    at_ms: i64,
    by: By,
}

/// Longest time for which an override or a kill switch may hold: 30 days.
const FOR_MS_MAX: i64 = 30 * 24 * 3_600_000;

// === impl Policies ===

impl Policies {
    /// Reads the files, if any are given, and follows the repository. Files are imported only if their content differs from
    /// what was imported last, so that what was changed beside them survives restarts. Starts with neither file nor
    /// document: then everything runs under the built-in defaults. A repository that does not answer does not keep this
    /// from starting: the file is in force here and is imported as soon as it answers.
    ///
    /// # Errors
    /// If the file is refused, or the stored document is invalid.
    pub async fn start(repository: impl Repository, file: Option<&Path>) -> Result<Self, PoliciesError> {
        Self::start_timed(repository, file, LeaseTiming::default(), Clock::system()).await
    }

    /// As [`Self::start`], with other time limits of leases, and by another clock.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_timed(
        repository: impl Repository,
        file: Option<&Path>,
        timing: LeaseTiming,
        clock: Clock,
    ) -> Result<Self, PoliciesError> {
        let source = Source::default();
        let read = |path: &Path| PolicyFile::read_timed(path, timing).map(|file| (path.to_owned(), file));
        let pending = match file.map(read).transpose()? {
            Some((path, file)) if file.set.is_empty() => {
                source.empty(&path, file.hash);
                None
            }
            Some((_, file)) => {
                source.good(&file.hash);
                Some(file)
            }
            None => None,
        };
        let set = pending.as_ref().map_or_else(|| PolicySet::timed(timing), |file| file.set.clone());
        let content = Content::of(Arc::new(set));
        let snapshot = Snapshot::new(PolicyVersion::default(), Arc::clone(&content.set), Switches::default());
        let inner = Inner {
            held: None,
            content,
            pending,
            thrown: BTreeMap::new(),
            rejected: None,
            finished: 0,
            result: Ok(()),
            polls_behind: 0,
        };
        let this = Self {
            repository: Box::new(repository),
            current: RwLock::new(Arc::new(snapshot)),
            current_id: AtomicI64::new(PolicyVersion::default().id),
            last_error: Mutex::new(None),
            source,
            highest: AtomicI64::new(0),
            begun: AtomicU64::new(0),
            timing,
            clock,
            time: StoreTime::default(),
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
        let stored = self.last_error.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(ToString::to_string);
        stored.or_else(|| self.source.error().map(|error| error.text))
    }

    /// The same, but for a store that is away, which is told elsewhere: what somebody has written is wrong.
    #[must_use]
    pub fn written_wrong(&self) -> Option<String> {
        let last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        let by_store = |error: &&PoliciesError| matches!(error, PoliciesError::Store(_) | PoliciesError::Contended);
        let stored = last.as_ref().filter(|error| !by_store(error)).map(ToString::to_string);
        stored.or_else(|| self.source.error().map(|error| error.text))
    }

    /// The time by which switches and overrides end.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        self.time.at(self.clock.boot_ms()).unwrap_or_else(|| self.clock.now_ms())
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

    /// To be called several times a second: [`Self::refresh`], ends what is over, and heals ledgers that know a higher
    /// version than any document, because the replica that wrote it and the repository have both lost it.
    pub async fn poll(&self) {
        let result = self.refresh().await;
        let mut inner = self.inner.lock().await;
        if result.is_err() {
            // Nobody can write that a switch is over; here it is.
            self.show_switches(&inner);
        }
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
            let draft = Draft::again(&inner);
            let result = self.write(&mut inner, expected, draft).await;
            self.note(&result.map(drop));
        }
    }

    /// Replaces the text of one rule that no file manages, or removes the rule if the text is empty.
    ///
    /// # Errors
    /// As [`Self::edit`].
    pub async fn put(&self, name: &str, toml: &str, expected: PolicyVersion) -> Result<PolicyVersion, PoliciesError> {
        let text = (!toml.trim().is_empty()).then(|| toml.to_owned());
        self.edit(Edit { name: name.to_owned(), text, expected, ..Edit::default() }).await
    }

    /// Changes one rule.
    ///
    /// # Errors
    /// If the policies are not of the expected version, a file manages the rule, the text is refused, or the repository
    /// does not take it.
    pub async fn edit(&self, edit: Edit) -> Result<PolicyVersion, PoliciesError> {
        self.change(edit.expected, |inner, now_ms| Draft::edit(inner, &edit, now_ms)).await
    }

    /// Returns to the rules of an earlier version. Switches stay as they are.
    ///
    /// # Errors
    /// As [`Self::edit`], and if the history does not reach back so far.
    pub async fn roll_back(&self, rollback: Rollback) -> Result<PolicyVersion, PoliciesError> {
        self.change(rollback.expected, |inner, now_ms| Draft::roll_back(inner, &rollback, now_ms)).await
    }

    async fn change(
        &self,
        expected: PolicyVersion,
        draft: impl FnOnce(&Inner, i64) -> Result<Draft, PoliciesError>,
    ) -> Result<PolicyVersion, PoliciesError> {
        let mut inner = self.inner.lock().await;
        self.follow(&mut inner).await?;
        let current = self.snapshot().version();
        if current != expected {
            return Err(PoliciesError::Conflict { current });
        }
        let draft = draft(&inner, self.now_ms())?;
        let held = inner.held.as_ref().map(|held| held.version);
        match self.write(&mut inner, held, draft).await? {
            Written::Done(version) => Ok(version),
            Written::Conflict(stored) => {
                let current = stored.as_ref().map_or_else(PolicyVersion::default, |stored| stored.version);
                self.settle(&mut inner, stored).await?;
                Err(PoliciesError::Conflict { current })
            }
        }
    }

    /// Switches retries on or off for a dependency, a family ending in `*`, or `*` for everywhere, until they are switched
    /// again.
    ///
    /// # Errors
    /// As [`Self::switch`].
    pub async fn set_retries(&self, target: &str, enabled: bool) -> Result<Switched, PoliciesError> {
        self.switch(Switching { target: target.to_owned(), enabled, ..Switching::default() }).await
    }

    /// Throws the kill switch. Each target is a switch of its own: switching on the wider one leaves narrower ones as they
    /// are. While the repository is away the switch is thrown here alone, and for all as soon as it answers.
    ///
    /// # Errors
    /// If the target is no name or pattern, or the time is out of range, or the stored policies cannot be read.
    pub async fn switch(&self, switching: Switching) -> Result<Switched, PoliciesError> {
        let Switching { target, enabled, for_ms, by } = switching;
        let refuse = |rule: String| PoliciesError::Target { value: target.clone(), rule };
        judge_pattern(&target).map_err(|rule| refuse(rule.to_string()))?;
        judge_for("for_ms", for_ms)?;
        let mut inner = self.inner.lock().await;
        for _ in 0..ATTEMPTS_MAX {
            let followed = self.follow(&mut inner).await;
            let now_ms = self.now_ms();
            let until_ms = for_ms.filter(|_| !enabled).map(|for_ms| now_ms.saturating_add(for_ms));
            let switch = (!enabled).then(|| Switch { at_ms: now_ms, until_ms, by: by.clone() });
            if let Err(error) = followed {
                return self.throw(&mut inner, error, target, Thrown { switch, at_ms: now_ms, by });
            }
            let mut switches = inner.content.switches.clone();
            let changed = switches.set(&target, switch.clone());
            let still_off_by = switches.wider(&target).filter(|_| enabled).map(str::to_owned);
            if !changed {
                let version = self.snapshot().version();
                return Ok(Switched { version, still_off_by, until_ms, pending: false });
            }
            if switches.len() > SWITCHES_MAX {
                return Err(refuse(format!("there must be at most {SWITCHES_MAX} targets")));
            }
            let expected = inner.held.as_ref().map(|held| held.version);
            let draft = Draft::switched(&inner, switches, &target, enabled, by.clone());
            match self.write(&mut inner, expected, draft).await {
                Ok(Written::Done(version)) => {
                    return Ok(Switched { version, still_off_by, until_ms, pending: false });
                }
                Ok(Written::Conflict(_)) => {}
                Err(error) => return self.throw(&mut inner, error, target, Thrown { switch, at_ms: now_ms, by }),
            }
        }
        Err(PoliciesError::Contended)
    }

    /// The history, and the rules now with their version.
    pub async fn history(&self) -> (Arc<History>, Arc<PolicySet>, PolicyVersion) {
        let inner = self.inner.lock().await;
        let version = inner.held.as_ref().map_or_else(PolicyVersion::default, |held| held.version);
        (Arc::clone(&inner.content.history), Arc::clone(&inner.content.set), version)
    }

    /// Tells the other replicas what is in force here.
    ///
    /// # Errors
    /// If the repository does not answer.
    pub async fn tell(&self) -> Result<(), StoreError> {
        let (version, is_stale) = (self.snapshot().version(), self.last_error().is_some());
        self.repository.tell(Presence { version, is_stale }).await
    }

    /// This replica's name among them; empty if there can be only one.
    #[must_use]
    pub fn replica(&self) -> &str {
        self.repository.replica().unwrap_or_default()
    }

    /// What is in force at the other replicas, as far as they have told lately, this one included.
    ///
    /// # Errors
    /// If the repository does not answer.
    pub async fn replicas(&self) -> Result<Vec<Replica>, StoreError> {
        self.repository.replicas().await
    }

    /// In which format the store is written; none if it has but one.
    ///
    /// # Errors
    /// If the repository does not answer.
    pub async fn format(&self) -> Result<Option<StoredFormat>, StoreError> {
        self.repository.format().await
    }

    /// Tells the other replicas what holders were told here.
    ///
    /// # Errors
    /// If the repository does not answer.
    pub async fn tell_holders(&self, told: &[Told]) -> Result<(), StoreError> {
        self.repository.tell_holders(told).await
    }

    /// What replicas told these holders last, as far as they have told each other.
    ///
    /// # Errors
    /// If the repository does not answer.
    pub async fn holders_told(
        &self,
        dependency: &DependencyId,
        holders: &[HolderId],
    ) -> Result<Vec<Option<PolicyVersion>>, StoreError> {
        self.repository.holders_told(dependency, holders).await
    }
}

fn judge_for(field: &'static str, for_ms: Option<i64>) -> Result<(), PoliciesError> {
    match for_ms {
        Some(value) if !(1..=FOR_MS_MAX).contains(&value) => {
            Err(PoliciesError::Range { field, value, rule: "must be between 1 ms and 30 days".to_owned() })
        }
        Some(_) | None => Ok(()),
    }
}
