//! Bringing the replica and the repository in step: who of them is ahead, and what is written then.

use std::sync::{Arc, PoisonError, atomic::Ordering};

use budget::{ids::PolicyVersion, units::EXACT_MAX};
use tracing::{error, info, warn};

use super::{ATTEMPTS_MAX, Inner, Policies, PoliciesError};
use crate::{
    clock::Clock,
    policies::{
        body,
        repository::{Document, Replaced},
        set::PolicySet,
        snapshot::{Snapshot, Switches},
    },
};

/// Version ids are random in this many bits.
const ID_BITS: u32 = 52;

/// What became of a write.
pub(super) enum Written {
    Done(PolicyVersion),
    /// Another document was there.
    Conflict(Option<Document>),
}

impl Policies {
    /// Reads the document and brings this replica and the repository in step.
    pub(super) async fn follow(&self, inner: &mut Inner) -> Result<(), PoliciesError> {
        let result = match self.repository.load().await {
            Ok(stored) => self.settle(inner, stored).await,
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
            let hash = stored.as_ref().and_then(|stored| stored.import_hash.as_ref());
            let expected = stored.as_ref().map(|stored| stored.version);
            let import = inner.pending.as_ref().filter(|file| hash != Some(&file.hash)).cloned();
            let written = match (import, &stored, &inner.held) {
                (Some(file), _, _) => {
                    let switches = self.switches_kept(stored.as_ref());
                    let set = Arc::new(file.set);
                    self.write(inner, expected, set, switches, Some(file.hash)).await?
                }
                (None, None, None) => {
                    if self.snapshot().is_refusing() {
                        self.publish(PolicyVersion::default(), inner, Switches::default());
                    }
                    return Ok(());
                }
                (None, Some(stored), Some(held)) if stored.version == held.version => {
                    inner.pending = None;
                    return Ok(());
                }
                (None, Some(stored), held) if held.as_ref().is_none_or(|held| stored.version > held.version) => {
                    return self.adopt(inner, stored);
                }
                (None, _, _) => {
                    warn!("stored policies are missing or older than this replica's; writing them back");
                    self.rewrite(inner, expected).await?
                }
            };
            match written {
                Written::Done(_) => return Ok(()),
                Written::Conflict(now) => stored = now,
            }
        }
        Err(PoliciesError::Contended)
    }

    /// Takes a stored document over, unless it is invalid.
    fn adopt(&self, inner: &mut Inner, stored: &Document) -> Result<(), PoliciesError> {
        if let Some((_, error)) = inner.rejected.as_ref().filter(|(version, _)| *version == stored.version) {
            return Err(error.clone());
        }
        let decoded = if (0..EXACT_MAX).contains(&stored.version.number) {
            body::decode(&stored.body, &inner.set)
        } else {
            Err(format!("version must be between 0 and {EXACT_MAX}"))
        };
        match decoded {
            Ok((set, switches)) => {
                inner.set = Arc::new(set);
                inner.held = Some(stored.clone());
                inner.pending = None;
                inner.rejected = None;
                self.publish(stored.version, inner, switches);
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

    /// An import replaces rules, never switches.
    fn switches_kept(&self, stored: Option<&Document>) -> Switches {
        match stored.map(|stored| body::decode_switches(&stored.body)) {
            Some(Ok(switches)) => switches,
            Some(Err(why)) => {
                error!(why, "the import replaces a document that cannot be read; switched-off retries are switched on");
                self.snapshot().switches().clone()
            }
            None => self.snapshot().switches().clone(),
        }
    }

    /// Writes what is in force here over the document of version `expected`.
    pub(super) async fn rewrite(
        &self,
        inner: &mut Inner,
        expected: Option<PolicyVersion>,
    ) -> Result<Written, PoliciesError> {
        let snapshot = self.snapshot();
        let import_hash = inner.held.as_ref().and_then(|held| held.import_hash.clone());
        self.write(inner, expected, Arc::clone(snapshot.set()), snapshot.switches().clone(), import_hash).await
    }

    /// Writes a document above every version seen and, if it is stored, takes it over.
    pub(super) async fn write(
        &self,
        inner: &mut Inner,
        expected: Option<PolicyVersion>,
        set: Arc<PolicySet>,
        switches: Switches,
        import_hash: Option<String>,
    ) -> Result<Written, PoliciesError> {
        let version = self.next_version()?;
        let body = body::encode(&set, &switches);
        let document = Document { version, body, import_hash };
        match self.repository.replace(expected, &document).await? {
            Replaced::Done => {
                self.saw(version);
                inner.held = Some(document);
                inner.set = set;
                inner.pending = None;
                inner.rejected = None;
                self.publish(version, inner, switches);
                Ok(Written::Done(version))
            }
            Replaced::Conflict(stored) => Ok(Written::Conflict(stored)),
        }
    }

    fn next_version(&self) -> Result<PolicyVersion, PoliciesError> {
        let number = self.highest.load(Ordering::Relaxed).min(EXACT_MAX - 1) + 1;
        let random = getrandom::u64().map_err(|error| PoliciesError::Random(error.to_string()))?;
        let id = i64::try_from(random >> (u64::BITS - ID_BITS)).unwrap_or_default();
        Ok(PolicyVersion { number, id })
    }

    fn publish(&self, version: PolicyVersion, inner: &Inner, switches: Switches) {
        let now_ms = Clock::system().boot_ms();
        self.show(self.snapshot().succeeded(version, Arc::clone(&inner.set), switches, now_ms));
    }

    fn show(&self, snapshot: Snapshot) {
        let id = snapshot.version().id;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
        self.current_id.store(id, Ordering::Release);
    }

    /// Remembers why following the repository did not work, and logs it when that changes.
    pub(super) fn note(&self, result: &Result<(), PoliciesError>) {
        let mut last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        let now = result.as_ref().err().map(ToString::to_string);
        if *last != now {
            match &now {
                Some(why) => error!(why, "policies cannot be brought up to date; the last good ones stay"),
                None => info!("policies are up to date again"),
            }
            *last = now;
        }
    }
}
