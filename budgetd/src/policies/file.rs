//! Reading policy files. Nothing that can be wrong with a file passes for an empty set of policies.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::{TEXT_BYTES_MAX, set::PolicySet, text::InvalidText};
use crate::config::LeaseTiming;

/// Most policy files of a directory.
const FILES_MAX: usize = 1_000;

/// Policy files that were read and are valid.
#[derive(Clone, Debug)]
pub struct PolicyFile {
    /// Their rules.
    pub set: PolicySet,
    /// Digest of their bytes, to tell whether they have changed.
    pub hash: String,
    /// By rule: the file it stands in.
    pub origins: BTreeMap<Arc<str>, Arc<str>>,
}

/// Policy files as they lie there: one, or all of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    parts: Vec<(PathBuf, Vec<u8>)>,
    pub(super) is_directory: bool,
    pub(super) hash: String,
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
    /// A pipe or device, or a directory where a file was.
    #[error("policy file {}: is {found}, must be {wanted}", path.display())]
    NotAFile {
        /// As given.
        path: PathBuf,
        /// What is there.
        found: &'static str,
        /// What ought to be.
        wanted: &'static str,
    },
    /// The system does not let it be read.
    #[error("policy file {}: cannot be read: {reason}", path.display())]
    Unreadable {
        /// As given.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// Larger than any policies need to be, with the files read before it.
    #[error("policy file {}: has more than {TEXT_BYTES_MAX} bytes", path.display())]
    TooLarge {
        /// As given.
        path: PathBuf,
    },
    /// More files than any policies need.
    #[error("policy directory {}: has more than {FILES_MAX} files that end in .toml", path.display())]
    TooMany {
        /// As given.
        path: PathBuf,
    },
    /// A directory without policy files: most likely the wrong one, or a mount that failed.
    #[error("policy directory {}: has no file that ends in .toml", path.display())]
    NoFiles {
        /// As given.
        path: PathBuf,
    },
    /// Nothing is written there, where something was.
    #[error("policy file {}: holds no policy", path.display())]
    Empty {
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

// === impl PolicyFileError ===

impl PolicyFileError {
    /// The values of [`Self::kind`].
    pub const KINDS: [&'static str; 8] =
        ["missing", "not_a_file", "unreadable", "too_large", "too_many", "empty", "not_utf8", "invalid"];

    /// One word for metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "missing",
            Self::NotAFile { .. } => "not_a_file",
            Self::Unreadable { .. } => "unreadable",
            Self::TooLarge { .. } => "too_large",
            Self::TooMany { .. } => "too_many",
            Self::NoFiles { .. } | Self::Empty { .. } => "empty",
            Self::NotUtf8 { .. } => "not_utf8",
            Self::Invalid(_) => "invalid",
        }
    }
}

// === impl PolicyFile ===

impl PolicyFile {
    /// Reads and judges a file, or all files of a directory whose names end in `.toml` together.
    ///
    /// # Errors
    /// If one is no readable regular file, too large, no text, or breaks a rule.
    pub fn read(path: &Path) -> Result<Self, PolicyFileError> {
        Self::read_timed(path, LeaseTiming::default())
    }

    /// As [`Self::read`], with other time limits of leases.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_timed(path: &Path, timing: LeaseTiming) -> Result<Self, PolicyFileError> {
        Contents::read(path)?.judge(timing)
    }
}

// === impl Contents ===

impl Contents {
    /// Reads all bytes.
    pub(super) fn read(path: &Path) -> Result<Self, PolicyFileError> {
        // Judged before opening: opening a pipe waits for its writer.
        let kind = fs::metadata(path).map_err(|error| unreadable(path, &error))?.file_type();
        if !kind.is_dir() {
            let bytes = read_bytes(path, TEXT_BYTES_MAX)?;
            let hash = format!("{:032x}", xxh3_128(&bytes));
            return Ok(Self { parts: vec![(path.to_owned(), bytes)], is_directory: false, hash });
        }
        let mut room = TEXT_BYTES_MAX;
        let mut hasher = Xxh3::new();
        let mut parts = Vec::new();
        for path in files_of(path)? {
            let bytes = read_bytes(&path, room)?;
            room -= bytes.len();
            for part in [path.as_os_str().as_encoded_bytes(), &bytes] {
                hasher.update(&part.len().to_le_bytes());
                hasher.update(part);
            }
            parts.push((path, bytes));
        }
        Ok(Self { parts, is_directory: true, hash: format!("{:032x}", hasher.digest128()) })
    }

    /// Judges all texts together.
    pub(super) fn judge(&self, timing: LeaseTiming) -> Result<PolicyFile, PolicyFileError> {
        let mut texts = Vec::new();
        for (path, bytes) in &self.parts {
            let text = std::str::from_utf8(bytes).map_err(|error| {
                let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
                let newlines = valid.iter().filter(|byte| **byte == b'\n').count();
                PolicyFileError::NotUtf8 { path: path.clone(), line: newlines + 1 }
            })?;
            texts.push((path.display().to_string(), text));
        }
        let readings: Vec<_> = texts.iter().map(|(origin, text)| (origin.as_str(), *text)).collect();
        let (set, found) = PolicySet::parse_files(&readings, timing).map_err(PolicyFileError::Invalid)?;
        let origins: Vec<Arc<str>> = texts.iter().map(|(origin, _)| origin.as_str().into()).collect();
        let origin = |at: usize| Arc::clone(&origins[at]);
        let origins = found.into_iter().map(|(rule, at)| (rule, origin(at))).collect();
        Ok(PolicyFile { set, hash: self.hash.clone(), origins })
    }
}

fn unreadable(path: &Path, error: &io::Error) -> PolicyFileError {
    if error.kind() == io::ErrorKind::NotFound {
        return PolicyFileError::Missing { path: path.to_owned() };
    }
    PolicyFileError::Unreadable { path: path.to_owned(), reason: error.to_string() }
}

/// The policy files of a directory in the order of their names. Hidden ones are not: Kubernetes keeps its links there.
fn files_of(directory: &Path) -> Result<Vec<PathBuf>, PolicyFileError> {
    let mut files = Vec::new();
    let entries = fs::read_dir(directory).map_err(|error| unreadable(directory, &error))?;
    for entry in entries {
        let name = entry.map_err(|error| unreadable(directory, &error))?.file_name();
        let bytes = name.as_encoded_bytes();
        if bytes.ends_with(b".toml") && !bytes.starts_with(b".") {
            files.push(directory.join(name));
        }
        if files.len() > FILES_MAX {
            return Err(PolicyFileError::TooMany { path: directory.to_owned() });
        }
    }
    if files.is_empty() {
        return Err(PolicyFileError::NoFiles { path: directory.to_owned() });
    }
    files.sort();
    Ok(files)
}

fn read_bytes(path: &Path, room: usize) -> Result<Vec<u8>, PolicyFileError> {
    let kind = fs::metadata(path).map_err(|error| unreadable(path, &error))?.file_type();
    if !kind.is_file() {
        let found = if kind.is_dir() { "a directory" } else { "a pipe or device" };
        return Err(PolicyFileError::NotAFile { path: path.to_owned(), found, wanted: "a regular file" });
    }
    let mut bytes = Vec::new();
    let most = u64::try_from(room).unwrap_or(u64::MAX).saturating_add(1);
    let read = File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    read.map_err(|error| unreadable(path, &error))?;
    if bytes.len() > room {
        return Err(PolicyFileError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}
