//! Reading a policy file. Nothing that can be wrong with a file passes for an empty set of policies.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::xxh3_128;

use super::{TEXT_BYTES_MAX, set::PolicySet, text::InvalidText};
use crate::config::LeaseTiming;

/// A policy file that was read and is valid.
#[derive(Clone, Debug)]
pub struct PolicyFile {
    /// Its rules.
    pub set: PolicySet,
    /// Digest of its bytes, to tell whether it has changed.
    pub hash: String,
}

/// Why a policy file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyFileError {
    /// Nothing is there.
    #[error("policy file {}: does not exist", path.display())]
    Missing {
        /// As given.
        path: PathBuf,
    },
    /// A directory, pipe or device.
    #[error("policy file {}: is {found}, must be a regular file", path.display())]
    NotAFile {
        /// As given.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// The system does not let it be read.
    #[error("policy file {}: cannot be read: {reason}", path.display())]
    Unreadable {
        /// As given.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// Larger than any policy file needs to be.
    #[error("policy file {}: has more than {TEXT_BYTES_MAX} bytes", path.display())]
    TooLarge {
        /// As given.
        path: PathBuf,
    },
    /// Not text.
    #[error("policy file {}, line {line}: is not valid UTF-8", path.display())]
    NotUtf8 {
        /// As given.
        path: PathBuf,
        /// Of the first byte that is none.
        line: usize,
    },
    /// The text breaks a rule.
    #[error("policy file {0}")]
    Invalid(InvalidText),
}

// === impl PolicyFile ===

impl PolicyFile {
    /// Reads and judges a file.
    ///
    /// # Errors
    /// If it is no readable regular file, too large, no text, or breaks a rule.
    pub fn read(path: &Path) -> Result<Self, PolicyFileError> {
        Self::read_timed(path, LeaseTiming::default())
    }

    /// As [`Self::read`], with other time limits of leases.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_timed(path: &Path, timing: LeaseTiming) -> Result<Self, PolicyFileError> {
        let bytes = read_bytes(path)?;
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let newlines = valid.iter().filter(|byte| **byte == b'\n').count();
            PolicyFileError::NotUtf8 { path: path.to_owned(), line: newlines + 1 }
        })?;
        let origin = path.display().to_string();
        let set = PolicySet::parse_timed(&origin, text, timing).map_err(PolicyFileError::Invalid)?;
        Ok(Self { set, hash: format!("{:032x}", xxh3_128(&bytes)) })
    }
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, PolicyFileError> {
    let unreadable = |error: io::Error| {
        if error.kind() == io::ErrorKind::NotFound {
            return PolicyFileError::Missing { path: path.to_owned() };
        }
        PolicyFileError::Unreadable { path: path.to_owned(), reason: error.to_string() }
    };
    // Judged before opening: opening a pipe waits for its writer.
    let kind = fs::metadata(path).map_err(unreadable)?.file_type();
    if !kind.is_file() {
        let found = if kind.is_dir() { "a directory" } else { "a pipe or device" };
        return Err(PolicyFileError::NotAFile { path: path.to_owned(), found });
    }
    let mut bytes = Vec::new();
    let most = u64::try_from(TEXT_BYTES_MAX).unwrap_or(u64::MAX);
    File::open(path).and_then(|file| file.take(most.saturating_add(1)).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() > TEXT_BYTES_MAX {
        return Err(PolicyFileError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}
