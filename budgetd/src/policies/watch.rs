//! Watching policy files by looking at them: their bytes, several times a second.
//!
//! Notifications miss what Kubernetes and bind mounts do, and times and sizes may be those of before; bytes tell always.
//! What is seen for the first time is waited for once more, so that a file being written is not taken for a whole one.

use std::{path::PathBuf, time::Duration};

use super::{
    Policies,
    file::{Contents, PolicyFile, PolicyFileError},
};
use crate::config::LeaseTiming;

/// How often files are looked at. A change is judged after the second look that finds it, and in force at every other
/// replica when that looks at the store next: well within 2 s.
pub const LOOK_EVERY: Duration = Duration::from_millis(400);

/// One file, or a directory of them.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    timing: LeaseTiming,
    is_directory: bool,
    last: Option<Result<String, PolicyFileError>>,
    /// What the last look was told apart from: told already.
    told: Option<Result<String, PolicyFileError>>,
}

/// What a look has found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing that was not told already, or not yet for certain.
    Nothing,
    /// Other contents.
    Contents(Contents),
    /// It cannot be read.
    Error(PolicyFileError),
}

// === impl Watch ===

impl Watch {
    /// Of what the policies began with; `hash` of its content then.
    pub(super) fn new(path: PathBuf, timing: LeaseTiming, hash: Option<String>) -> Self {
        let is_directory = path.is_dir();
        Self { path, timing, is_directory, last: None, told: hash.map(Ok) }
    }

    /// One look, and what follows from it.
    pub async fn look(&mut self, policies: &Policies) {
        let path = self.path.clone();
        let Ok(found) = tokio::task::spawn_blocking(move || Contents::read(&path)).await else { return };
        match self.see(found) {
            Seen::Nothing => {}
            Seen::Error(error) => policies.refused(error),
            Seen::Contents(contents) => {
                let (path, timing) = (self.path.clone(), self.timing);
                let judged = tokio::task::spawn_blocking(move || judge(path, &contents, timing)).await;
                match judged {
                    Ok(Ok(file)) => policies.take(file).await,
                    Ok(Err(error)) => policies.refused(error),
                    Err(_) => {}
                }
            }
        }
    }

    /// What there is to tell of a look.
    pub(super) fn see(&mut self, found: Result<Contents, PolicyFileError>) -> Seen {
        let is_directory = match &found {
            Ok(contents) => contents.is_directory,
            Err(PolicyFileError::NoFiles { .. }) => true,
            Err(_) => self.is_directory,
        };
        let found = if is_directory == self.is_directory {
            found
        } else {
            let (found, wanted) = match is_directory {
                true => ("a directory", "a regular file, as it was at the start"),
                false => ("a file", "a directory, as it was at the start"),
            };
            Err(PolicyFileError::NotAFile { path: self.path.clone(), found, wanted })
        };
        let name = found.as_ref().map(|contents| contents.hash.clone()).map_err(Clone::clone);
        let is_certain = self.last.replace(name.clone()).as_ref() == Some(&name);
        if !is_certain || self.told.as_ref() == Some(&name) {
            return Seen::Nothing;
        }
        self.told = Some(name);
        match found {
            Ok(contents) => Seen::Contents(contents),
            Err(error) => Seen::Error(error),
        }
    }
}

fn judge(path: PathBuf, contents: &Contents, timing: LeaseTiming) -> Result<PolicyFile, PolicyFileError> {
    let file = contents.judge(timing)?;
    // It must not wipe what is in force: whoever truncates a file before writing it means no such thing.
    if file.set.is_empty() { Err(PolicyFileError::Empty { path }) } else { Ok(file) }
}
