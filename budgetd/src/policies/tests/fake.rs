//! A repository that misbehaves on demand, and replicas on it.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::SeqCst},
    },
};

use budget::ids::PolicyVersion;
use tokio::sync::Semaphore;

use super::resolve;
use crate::{
    policies::{
        By, Edit, How, Policies, PoliciesError,
        repository::{Document, Replaced, Repository},
    },
    store::StoreError,
};

/// A repository that can be away, lose answers, be raced and be held up.
pub(super) struct Fake {
    stored: Mutex<Option<Document>>,
    /// The store's clock; negative: it has none.
    pub(super) clock_ms: AtomicI64,
    pub(super) away: AtomicBool,
    /// Writes are stored, but their answers are lost.
    pub(super) lose_answers: AtomicBool,
    /// So many writes come second to another one.
    pub(super) races: AtomicUsize,
    pub(super) loads: AtomicUsize,
    pub(super) writes: AtomicUsize,
    /// Each load takes one permit.
    pub(super) gate: Semaphore,
}

impl Fake {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            stored: Mutex::new(None),
            clock_ms: AtomicI64::new(-1),
            away: AtomicBool::new(false),
            lose_answers: AtomicBool::new(false),
            races: AtomicUsize::new(0),
            loads: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
            gate: Semaphore::new(Semaphore::MAX_PERMITS),
        })
    }

    pub(super) fn document(&self) -> Option<Document> {
        self.stored.lock().unwrap().clone()
    }

    /// Puts a document in place whatever is there.
    pub(super) fn force(&self, new: Option<&Document>) {
        *self.stored.lock().unwrap() = new.cloned();
    }

    fn judge(&self) -> Result<(), StoreError> {
        if self.away.load(SeqCst) { Err(StoreError::Away("test".into())) } else { Ok(()) }
    }
}

impl Repository for Fake {
    async fn load(&self) -> Result<Option<Document>, StoreError> {
        self.loads.fetch_add(1, SeqCst);
        self.gate.acquire().await.unwrap().forget();
        self.judge()?;
        Ok(self.document())
    }

    async fn replace(&self, expected: Option<PolicyVersion>, new: &Document) -> Result<Replaced, StoreError> {
        self.judge()?;
        self.writes.fetch_add(1, SeqCst);
        if self.races.fetch_update(SeqCst, SeqCst, |races| races.checked_sub(1)).is_ok() {
            let mut other = self.document().unwrap_or_else(|| new.clone());
            other.version = PolicyVersion { number: other.version.number + 1, id: 77 };
            self.force(Some(&other));
        }
        let mut stored = self.stored.lock().unwrap();
        let done = stored.as_ref().map(|document| document.version) == expected;
        if done {
            *stored = Some(new.clone());
        }
        if self.lose_answers.load(SeqCst) {
            return Err(StoreError::Lost("test".into()));
        }
        Ok(if done { Replaced::Done } else { Replaced::Conflict(stored.clone()) })
    }

    fn now_ms(&self) -> Option<i64> {
        Some(self.clock_ms.load(SeqCst)).filter(|ms| *ms >= 0)
    }
}

/// Writes a rule, also where a file manages it.
pub(super) async fn put(
    policies: &Policies,
    name: &str,
    text: &str,
    expected: PolicyVersion,
) -> Result<PolicyVersion, PoliciesError> {
    let text = (!text.trim().is_empty()).then(|| text.to_owned());
    let edit = Edit { name: name.to_owned(), text, expected, how: How::TakeOver, by: By::default() };
    policies.edit(edit).await
}

/// A file in a directory of its own.
pub(super) struct TestFile(pub(super) tempfile::TempDir);

impl TestFile {
    pub(super) fn new(text: &str) -> Self {
        let file = Self(tempfile::tempdir().unwrap());
        file.write(text);
        file
    }

    pub(super) fn path(&self) -> PathBuf {
        self.0.path().join("policies.toml")
    }

    pub(super) fn write(&self, text: &str) {
        fs::write(self.path(), text).unwrap();
    }
}

pub(super) async fn replica(fake: &Arc<Fake>, file: Option<&TestFile>) -> Policies {
    Policies::start(Arc::clone(fake), file.map(TestFile::path).as_deref()).await.unwrap()
}

/// Retry burst of a dependency and whether its retries are off: enough to tell policies apart.
pub(super) fn state(policies: &Policies, name: &str) -> (i64, bool) {
    let resolved = resolve(&policies.snapshot(), name).unwrap();
    (resolved.policy.spec().retry_burst_tokens, resolved.retries_off)
}

pub(super) fn version(number: i64, id: i64) -> PolicyVersion {
    PolicyVersion { number, id }
}

pub(super) const FIVE: &str = "[dependency.d]\nretry.burst = 5";
pub(super) const SIX: &str = "[dependency.d]\nretry.burst = 6";
