//! Bringing the replica and the repository in step: who of them is ahead, and what is written then.

use std::sync::{Arc, PoisonError, atomic::Ordering};

use budget::{ids::PolicyVersion, units::EXACT_MAX};
use tracing::{error, info, warn};

use super::{ATTEMPTS_MAX, Inner, Policies, PoliciesError, SWITCHES_MAX, Switched, Thrown, drafts::Draft};
use crate::{
    clock::Clock,
    policies::{
        By, Change, body,
        history::altered,
        managed::Content,
        repository::{Document, Replaced},
        set::PolicySet,
        snapshot::{Snapshot, Switches},
    },
    store::StoreError,
};

/// Version ids are random in this many bits.
const ID_BITS: u32 = 52;

/// What became of a write.
pub(super) enum Written {
    Done(PolicyVersion),
    /// Another document was there.
    Conflict(Option<Document>),
}

// === impl Inner ===

impl Inner {
    /// Lets go of switches thrown here that are stored, or that somebody has since then thrown otherwise elsewhere: the
    /// later word counts.
    fn forget_overtaken(&mut self) {
        let stored = &self.content.switches;
        self.thrown.retain(|target, thrown| match (stored.get(target), &thrown.switch) {
            (None, None) => false,
            (None, Some(_)) => true,
            (Some(there), new) => there.at_ms <= thrown.at_ms && Some(there) != new.as_ref(),
        });
    }
}

// === impl Policies ===

impl Policies {
    /// Reads the document and brings this replica and the repository in step.
    pub(super) async fn follow(&self, inner: &mut Inner) -> Result<(), PoliciesError> {
        let result = match self.repository.load().await {
            Ok(stored) => {
                let store_ms = self.repository.now_ms().unwrap_or_else(|| self.clock.now_ms());
                self.time.observe(store_ms, self.clock.boot_ms());
                self.settle(inner, stored).await
            }
            Err(error) => Err(error.into()),
        };
        self.note(&result);
        result
    }

    pub(super) async fn settle(&self, inner: &mut Inner, mut stored: Option<Document>) -> Result<(), PoliciesError> {
        for _ in 0..ATTEMPTS_MAX {
            if let Some(stored) = &stored {
                self.saw(stored.version);
            }
            let expected = stored.as_ref().map(|stored| stored.version);
            let Some(draft) = self.next_draft(inner, stored.as_ref())? else { return Ok(()) };
            stored = match self.write(inner, expected, draft).await? {
                Written::Done(_) => inner.held.clone(),
                Written::Conflict(now) => now,
            };
        }
        Err(PoliciesError::Contended)
    }

    /// Takes over what is stored if it is newer, and says what is to be written now.
    fn next_draft(&self, inner: &mut Inner, stored: Option<&Document>) -> Result<Option<Draft>, PoliciesError> {
        match (stored, &inner.held) {
            (None, None) => {}
            (Some(stored), Some(held)) if stored.version == held.version => {}
            (Some(stored), held) if held.as_ref().is_none_or(|held| stored.version > held.version) => {
                if let Err(error) = self.adopt(inner, stored) {
                    return self.replacing(inner, stored).transpose().unwrap_or(Err(error)).map(Some);
                }
            }
            (_, _) => {
                warn!("stored policies are missing or older than this replica's; writing them back");
                return Ok(Some(Draft::again(inner)));
            }
        }
        let imported = inner.held.as_ref().and_then(|held| held.import_hash.as_ref());
        if inner.pending.as_ref().is_some_and(|file| imported == Some(&file.hash)) {
            inner.pending = None;
        }
        inner.forget_overtaken();
        let due = Draft::due(inner, self.now_ms())?;
        if due.is_none() && inner.held.is_none() && self.snapshot().is_refusing() {
            self.publish(PolicyVersion::default(), inner);
        }
        Ok(due)
    }

    /// Files replace a document that cannot be read. None: it was made by these same files, or there are none.
    fn replacing(&self, inner: &Inner, stored: &Document) -> Result<Option<Draft>, PoliciesError> {
        let Some(file) = inner.pending.as_ref().filter(|file| stored.import_hash.as_ref() != Some(&file.hash)) else {
            return Ok(None);
        };
        // An import replaces rules, never switches.
        let switches = body::decode_switches(&stored.body).unwrap_or_else(|why| {
            error!(why, "the import replaces a document that cannot be read; switched-off retries are switched on");
            self.snapshot().switches().clone()
        });
        let empty = Content::of(Arc::new(PolicySet::timed(self.timing)));
        Draft::import(&Content { switches, ..empty }, file).map(Some)
    }

    /// Takes a stored document over, unless it is invalid.
    fn adopt(&self, inner: &mut Inner, stored: &Document) -> Result<(), PoliciesError> {
        if let Some((_, error)) = inner.rejected.as_ref().filter(|(version, _)| *version == stored.version) {
            return Err(error.clone());
        }
        let decoded = if (0..EXACT_MAX).contains(&stored.version.number) {
            body::decode(&stored.body, &inner.content.set)
        } else {
            Err(format!("version must be between 0 and {EXACT_MAX}"))
        };
        match decoded {
            Ok(content) => {
                inner.content = content;
                inner.forget_overtaken();
                inner.held = Some(stored.clone());
                inner.rejected = None;
                self.publish(stored.version, inner);
                info!(version = stored.version.number, "policies taken over");
                Ok(())
            }
            Err(why) => {
                let error = PoliciesError::Document { version: stored.version, why };
                if inner.held.is_none() {
                    // There are policies, and none is known: better none at all than the built-in defaults.
                    self.show(Snapshot::refusing(&error.to_string()));
                }
                inner.rejected = Some((stored.version, error.clone()));
                Err(error)
            }
        }
    }

    /// Writes a document above every version seen and, if it is stored, takes it over.
    pub(super) async fn write(
        &self,
        inner: &mut Inner,
        expected: Option<PolicyVersion>,
        draft: Draft,
    ) -> Result<Written, PoliciesError> {
        let version = self.next_version()?;
        let Draft { mut content, import_hash, done, stores } = draft;
        if let Some((what, by)) = done.clone() {
            let before = Some(altered(&inner.content.set, &content.set));
            let change = Change { version, at_ms: self.now_ms(), by, what, before };
            content.history = Arc::new(content.history.with(change));
        }
        let document = Document { version, body: body::encode(&content), import_hash };
        match self.repository.replace(expected, &document).await? {
            Replaced::Done => {
                self.saw(version);
                inner.pending = inner.pending.take().filter(|file| document.import_hash.as_ref() != Some(&file.hash));
                inner.held = Some(document);
                inner.content = content;
                if let Some(target) = stores {
                    inner.thrown.remove(&target);
                }
                inner.rejected = None;
                self.publish(version, inner);
                if let Some((what, By { who, why })) = done {
                    info!(version = version.number, who, why, what, "policies changed");
                }
                Ok(Written::Done(version))
            }
            Replaced::Conflict(stored) => Ok(Written::Conflict(stored)),
        }
    }

    /// Throws a switch at this replica alone, since the repository does not answer.
    pub(super) fn throw(
        &self,
        inner: &mut Inner,
        error: PoliciesError,
        target: String,
        thrown: Thrown,
    ) -> Result<Switched, PoliciesError> {
        let is_away = matches!(
            error,
            PoliciesError::Store(
                StoreError::Away(_) | StoreError::Lost(_) | StoreError::NeverReached(_) | StoreError::Overloaded
            )
        );
        if !is_away || inner.thrown.len() >= SWITCHES_MAX {
            return Err(error);
        }
        let enabled = thrown.switch.is_none();
        let until_ms = thrown.switch.as_ref().and_then(|switch| switch.until_ms);
        let By { who, why } = thrown.by.clone();
        warn!(target, enabled, who, why, %error, "retries switched at this replica alone: the store is away");
        inner.thrown.insert(target.clone(), thrown);
        self.show_switches(inner);
        let snapshot = self.snapshot();
        let still_off_by = snapshot.switches().wider(&target).filter(|_| enabled).map(str::to_owned);
        Ok(Switched { version: snapshot.version(), still_off_by, until_ms, pending: true })
    }

    /// Brings the switches of the snapshot up to date while nobody can write them: the version stays.
    pub(super) fn show_switches(&self, inner: &Inner) {
        let snapshot = self.snapshot();
        if !snapshot.is_refusing() && *snapshot.switches() != self.switches(inner) {
            self.publish(snapshot.version(), inner);
        }
    }

    /// Those in force here: as stored, without what is over, and as thrown here.
    fn switches(&self, inner: &Inner) -> Switches {
        let mut switches = inner.content.switches.clone();
        for (target, thrown) in &inner.thrown {
            switches.set(target, thrown.switch.clone());
        }
        for target in switches.ended(self.now_ms()) {
            switches.set(&target, None);
        }
        switches
    }

    fn next_version(&self) -> Result<PolicyVersion, PoliciesError> {
        let number = self.highest.load(Ordering::Relaxed).min(EXACT_MAX - 1) + 1;
        let random = getrandom::u64().map_err(|error| PoliciesError::Random(error.to_string()))?;
        let id = i64::try_from(random >> (u64::BITS - ID_BITS)).unwrap_or_default();
        Ok(PolicyVersion { number, id })
    }

    fn publish(&self, version: PolicyVersion, inner: &Inner) {
        let now_ms = Clock::system().boot_ms();
        let Content { set, managed, .. } = &inner.content;
        let snapshot = self.snapshot().succeeded(version, Arc::clone(set), self.switches(inner), now_ms);
        self.show(snapshot.with_managed(Arc::clone(managed)));
    }

    fn show(&self, snapshot: Snapshot) {
        let id = snapshot.version().id;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
        self.current_id.store(id, Ordering::Release);
    }

    /// Remembers why following the repository did not work, and logs it when that changes.
    pub(super) fn note(&self, result: &Result<(), PoliciesError>) {
        let mut last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        let now = result.as_ref().err();
        let why = now.map(ToString::to_string);
        if last.as_ref().map(ToString::to_string) != why {
            match why {
                Some(why) => error!(why, "policies cannot be brought up to date; the last good ones stay"),
                None => info!("policies are up to date again"),
            }
            *last = now.cloned();
        }
    }
}
