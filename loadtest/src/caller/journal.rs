//! What a process of callers writes down as it goes, so that another can go on where it was killed. It is what a durable
//! queue of work knows: which operations have begun and which have ended, and nothing of attempts in between.

use std::{
    collections::HashSet,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::{Mutex, PoisonError},
};

use budget::decision::Cause;
use serde::{Deserialize, Serialize};

use super::{Ask, Ended, Told};

/// A line of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Entry {
    /// An ask of a budget was answered.
    Asked(Ask),
    /// An attempt of an operation is about to be sent; of a retry, the position of its cause among causes.
    Sent { key: u64, cause: Option<usize> },
    /// An operation has ended.
    Ended { key: u64, ended: Ended },
}

/// Appended to; a line that was written survives the process.
pub(super) struct Journal(Mutex<File>);

/// What a process that was killed has left.
#[derive(Clone, Debug, Default)]
pub(super) struct Left {
    pub(super) told: Told,
    pub(super) ended: HashSet<u64>,
    /// Operations that were under way with an attempt sent.
    pub(super) under_way: HashSet<u64>,
}

/// The position of a cause in what is told.
pub(super) const fn position(cause: Cause) -> usize {
    match cause {
        Cause::Transient | Cause::Hedge | Cause::Failover => 0,
        Cause::Throttled => 1,
        Cause::Timeout => 2,
    }
}

// === impl Journal ===

impl Journal {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(Mutex::new(OpenOptions::new().create(true).append(true).open(path)?)))
    }

    /// One write: a process that is killed leaves whole lines and at most one that is not.
    pub(super) fn write(&self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
    }
}

// === impl Left ===

impl Left {
    /// Of whoever wrote there before; nothing where nobody did.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        let mut left = Self::default();
        for entry in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
            left.add(entry);
        }
        Ok(left)
    }

    fn add(&mut self, entry: Entry) {
        let told = &mut self.told;
        match entry {
            Entry::Asked(ask) => told.asks.push(ask),
            Entry::Sent { key, cause } => {
                told.sent += 1;
                if let Some(count) = cause.and_then(|cause| told.retries_by_cause.get_mut(cause)) {
                    *count += 1;
                }
                self.under_way.insert(key);
            }
            Entry::Ended { key, ended } => {
                told.operations.push(ended);
                self.ended.insert(key);
                self.under_way.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::{End, Via};

    #[test]
    fn what_was_written_is_left_to_the_next_process() {
        let directory = tempfile::TempDir::with_prefix("journal-").expect("a directory");
        let path = directory.path().join("journal");
        assert!(Left::read(&path).expect("nobody wrote").ended.is_empty());
        let ask = Ask { from_ns: 1, until_ns: 2, is_retry: false, cost_micros: 0, via: Via::Coordinator };
        let ended = Ended { due_ns: 1, ended_ns: 9, load: 0, sent: 1, end: End::Completed };
        let journal = Journal::open(&path).expect("can be written");
        let entries = [
            Entry::Asked(ask),
            Entry::Sent { key: 1, cause: None },
            Entry::Sent { key: 2, cause: None },
            Entry::Sent { key: 2, cause: Some(position(Cause::Timeout)) },
            Entry::Ended { key: 1, ended },
        ];
        for entry in &entries {
            journal.write(entry).expect("is written");
        }
        // It was killed in the middle of a line.
        let mut file = OpenOptions::new().append(true).open(&path).expect("it is there");
        file.write_all(b"{\"Sent\":{\"ke").expect("is written");
        let left = Left::read(&path).expect("can be read");
        assert_eq!((left.told.sent, left.told.retries_by_cause, left.told.asks.len()), (3, [0, 0, 1], 1));
        assert_eq!((left.ended, left.under_way), (HashSet::from([1]), HashSet::from([2])));
        assert_eq!(left.told.operations, [ended]);
    }
}
