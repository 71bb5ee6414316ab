//! Which dependencies a replica deals with: what each runs under, how many there may be, and who is to be entered into the
//! index of known ones.
//!
//! Dependencies that no policy names cost memory here and in the store for as long as their state lives there, so a
//! replica deals with a bounded number of them. One counts from its first step until it has been idle so long that its
//! state is gone.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use budget::{
    ids::{DependencyId, PolicyVersion},
    policy::Numbers,
};

use super::{
    codec,
    keys::{DependencyKeys, Keys},
};
use crate::policies::{Resolved, Snapshot};

/// Most dependencies of one replica that no policy names.
pub const UNNAMED_MAX: usize = 10_000;
/// A name is entered into the index at most this often.
const INDEX_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Most names that wait to be entered.
const INDEX_WAITING_MAX: usize = 20_000;
/// Idle entries are looked for at most this often, but for a full census: then every second.
pub(super) const SWEEP_EVERY: Duration = Duration::from_secs(60);
const SWEEP_EVERY_WHEN_FULL: Duration = Duration::from_secs(1);
/// A dependency that a policy names is looked up again after this much idle time.
const NAMED_IDLE: Duration = Duration::from_secs(3600);

/// What the lanes of one replica share.
#[derive(Debug)]
pub(super) struct Census {
    unnamed: AtomicUsize,
    unnamed_max: usize,
    to_index: Mutex<HashSet<DependencyId>>,
}

/// What one lane knows of its dependencies.
#[derive(Debug)]
pub(super) struct Book {
    census: Arc<Census>,
    keys: Keys,
    entries: HashMap<DependencyId, Entry>,
    /// Packed numbers of the present policies, by the address of what they were packed from.
    packed: HashMap<usize, (Arc<Numbers>, Packed)>,
    packed_version: PolicyVersion,
    swept: Instant,
}

/// What a call for one dependency needs.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) resolved: Arc<Resolved>,
    pub(super) numbers: Arc<[u8]>,
    /// What the policy says of leases.
    pub(super) terms: Arc<[u8]>,
    pub(super) keys: DependencyKeys,
    used: Instant,
    indexed: Instant,
}

/// Numbers and terms as scripts receive them.
#[derive(Clone, Debug)]
struct Packed {
    numbers: Arc<[u8]>,
    terms: Arc<[u8]>,
}

// === impl Census ===

impl Census {
    pub(super) fn new(unnamed_max: usize) -> Self {
        Self { unnamed: AtomicUsize::new(0), unnamed_max, to_index: Mutex::new(HashSet::new()) }
    }

    /// Takes the names that wait to be entered into the index.
    pub(super) fn take_names(&self, most: usize) -> Vec<DependencyId> {
        let mut waiting = self.to_index.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() <= most {
            return std::mem::take(&mut *waiting).into_iter().collect();
        }
        let names: Vec<DependencyId> = waiting.iter().take(most).cloned().collect();
        for name in &names {
            waiting.remove(name);
        }
        names
    }

    /// They could not be entered, so they wait again.
    pub(super) fn put_back(&self, names: Vec<DependencyId>) {
        for name in names {
            self.wait_for_index(name);
        }
    }

    fn wait_for_index(&self, name: DependencyId) {
        let mut waiting = self.to_index.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < INDEX_WAITING_MAX {
            waiting.insert(name);
        }
    }

    fn enter(&self) -> bool {
        self.unnamed
            .fetch_update(Relaxed, Relaxed, |now| (now < self.unnamed_max).then(|| now.saturating_add(1)))
            .is_ok()
    }

    fn leave(&self) {
        self.unnamed.fetch_sub(1, Relaxed);
    }
}

// === impl Book ===

impl Book {
    pub(super) fn new(census: Arc<Census>, keys: Keys, now: Instant) -> Self {
        Self {
            census,
            keys,
            entries: HashMap::new(),
            packed: HashMap::new(),
            packed_version: PolicyVersion::default(),
            swept: now,
        }
    }

    /// What a dependency runs under now.
    ///
    /// # Errors
    /// The text of NOT_FOUND, naming the rule that refuses it.
    pub(super) fn look_up(
        &mut self,
        dependency: &DependencyId,
        snapshot: &Snapshot,
        now: Instant,
    ) -> Result<Entry, String> {
        if let Some(entry) = self.entries.get_mut(dependency)
            && entry.resolved.version == snapshot.version()
        {
            entry.used = now;
            if now.saturating_duration_since(entry.indexed) >= INDEX_AGAIN_AFTER {
                entry.indexed = now;
                self.census.wait_for_index(dependency.clone());
            }
            return Ok(entry.clone());
        }
        let resolved = snapshot.resolve(dependency).inspect_err(|_| {
            // Its state stays in the store until it expires, but nobody adds to it.
            self.forget(dependency);
        })?;
        self.enter(dependency, resolved, now)
    }

    fn enter(&mut self, dependency: &DependencyId, resolved: Arc<Resolved>, now: Instant) -> Result<Entry, String> {
        let counted = self.entries.get(dependency).is_some_and(Entry::is_counted);
        if resolved.named && counted {
            self.census.leave();
        }
        if !resolved.named && !counted && !self.census.enter() {
            self.sweep(now, SWEEP_EVERY_WHEN_FULL);
            if !self.census.enter() {
                return Err(format!(
                    "dependency {:?}: no policy names it, and {} such dependencies are in use, which is the most",
                    dependency.as_str(),
                    self.census.unnamed_max
                ));
            }
        }
        self.sweep(now, SWEEP_EVERY);
        let known = self.entries.get(dependency).map(|entry| entry.indexed);
        if known.is_none() {
            self.census.wait_for_index(dependency.clone());
        }
        let Packed { numbers, terms } = self.pack(&resolved);
        let entry = Entry {
            numbers,
            terms,
            keys: self.keys.dependency(dependency),
            resolved,
            used: now,
            indexed: known.unwrap_or(now),
        };
        self.entries.insert(dependency.clone(), entry.clone());
        Ok(entry)
    }

    /// To be called now and then, so that idle entries leave even if no new ones come.
    pub(super) fn tend(&mut self, now: Instant) {
        self.sweep(now, SWEEP_EVERY);
    }

    fn forget(&mut self, dependency: &DependencyId) {
        if self.entries.remove(dependency).is_some_and(|entry| entry.is_counted()) {
            self.census.leave();
        }
    }

    fn pack(&mut self, resolved: &Resolved) -> Packed {
        if self.packed_version != resolved.version {
            self.packed.clear();
            self.packed_version = resolved.version;
        }
        let address = Arc::as_ptr(&resolved.numbers).addr();
        let pack = || {
            let numbers = codec::pack_numbers(&resolved.numbers).into();
            (Arc::clone(&resolved.numbers), Packed { numbers, terms: codec::pack_terms(&resolved.numbers).into() })
        };
        let (_, packed) = self.packed.entry(address).or_insert_with(pack);
        packed.clone()
    }

    /// Forgets what has been idle for so long that its state is gone, unless that was done less than `every` ago.
    fn sweep(&mut self, now: Instant, every: Duration) {
        if now.saturating_duration_since(self.swept) < every {
            return;
        }
        self.swept = now;
        let census = &self.census;
        self.entries.retain(|_, entry| {
            let stays = now.saturating_duration_since(entry.used) < entry.idle_ttl();
            if !stays && entry.is_counted() {
                census.leave();
            }
            stays
        });
    }
}

impl Drop for Book {
    fn drop(&mut self) {
        self.entries.values().filter(|entry| entry.is_counted()).for_each(|_| self.census.leave());
    }
}

// === impl Entry ===

impl Entry {
    fn is_counted(&self) -> bool {
        !self.resolved.named
    }

    fn idle_ttl(&self) -> Duration {
        match u64::try_from(self.resolved.numbers.idle_ttl_ms) {
            Ok(0) | Err(_) => NAMED_IDLE,
            Ok(ms) => Duration::from_millis(ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Clock,
        policies::{PolicySet, Switches},
    };

    fn snapshot(number: i64, rules: &[(&str, &str)]) -> Snapshot {
        let set = rules.iter().fold(PolicySet::default(), |set, (name, toml)| set.with(name, Some(toml)).unwrap());
        Snapshot::new(PolicyVersion { number, id: 1 }, Arc::new(set), Switches::default())
    }

    fn name(text: &str) -> DependencyId {
        DependencyId::new(text).unwrap()
    }

    fn book(most: usize, now: Instant) -> Book {
        Book::new(Arc::new(Census::new(most)), Keys::new("p").unwrap(), now)
    }

    #[test]
    fn a30_unnamed_dependencies_are_bounded_and_idle_ones_make_room() {
        let start = Clock::instant();
        let policies = snapshot(1, &[("named", "retry = { ratio = 0.2 }"), ("fam/*", "retry = { ratio = 0.3 }")]);
        let mut book = book(3, start);
        for unnamed in ["a", "b", "fam/x"] {
            assert!(book.look_up(&name(unnamed), &policies, start).is_ok(), "{unnamed}");
        }
        let error = book.look_up(&name("c"), &policies, start).unwrap_err();
        assert!(error.contains("\"c\": no policy names it, and 3 such"), "{error}");
        assert!(book.look_up(&name("named"), &policies, start).is_ok(), "named ones do not count");
        assert!(book.look_up(&name("a"), &policies, start).is_ok(), "known ones stay");

        let idle = Duration::from_millis(u64::try_from(book.entries[&name("b")].resolved.numbers.idle_ttl_ms).unwrap());
        let nearly = start + idle - Duration::from_millis(1);
        assert!(book.look_up(&name("a"), &policies, nearly).is_ok());
        assert!(book.look_up(&name("c"), &policies, nearly).is_err());
        let later = start + idle + SWEEP_EVERY_WHEN_FULL;
        assert!(book.look_up(&name("c"), &policies, later).is_ok());
        assert!(book.look_up(&name("d"), &policies, later).is_ok());
        assert!(book.look_up(&name("e"), &policies, later).is_err(), "a was in use");
    }

    #[test]
    fn a_new_version_is_taken_over_and_naming_makes_room() {
        let now = Clock::instant();
        let mut book = book(1, now);
        let first = book.look_up(&name("a"), &snapshot(1, &[]), now).unwrap();
        let second = book.look_up(&name("a"), &snapshot(2, &[("a", "retry = { ratio = 0.2 }")]), now).unwrap();
        assert!(first.numbers != second.numbers && second.resolved.named);
        assert!(book.look_up(&name("b"), &snapshot(2, &[("a", "retry = { ratio = 0.2 }")]), now).is_ok());
        assert!(book.look_up(&name("a"), &snapshot(3, &[]), now).is_err(), "it is unnamed again, and there is no room");
    }

    #[test]
    fn refused_dependencies_leave_no_trace() {
        let now = Clock::instant();
        let mut book = book(1, now);
        assert!(book.look_up(&name("a"), &snapshot(1, &[]), now).is_ok());
        let refusing = snapshot(2, &[("defaults", "unknown_dependencies = \"refuse\"")]);
        assert!(book.look_up(&name("a"), &refusing, now).unwrap_err().contains("unknown_dependencies"));
        assert!(book.look_up(&name("b"), &snapshot(3, &[]), now).is_ok());
    }

    #[test]
    fn names_are_entered_once_a_minute() {
        let start = Clock::instant();
        let policies = snapshot(1, &[]);
        let mut book = book(10, start);
        let census = Arc::clone(&book.census);
        let mut use_at = |seconds| book.look_up(&name("a"), &policies, start + Duration::from_secs(seconds)).unwrap();
        use_at(0);
        use_at(1);
        assert_eq!(census.take_names(10), [name("a")]);
        use_at(59);
        assert!(census.take_names(10).is_empty());
        use_at(60);
        assert_eq!(census.take_names(10), [name("a")]);
        census.put_back(vec![name("a"), name("b"), name("c")]);
        assert_eq!(census.take_names(2).len(), 2);
        assert_eq!(census.take_names(2).len(), 1);
    }

    #[test]
    fn equal_numbers_are_packed_once() {
        let now = Clock::instant();
        let policies = snapshot(1, &[]);
        let mut book = book(10, now);
        let a = book.look_up(&name("a"), &policies, now).unwrap();
        let b = book.look_up(&name("b"), &policies, now).unwrap();
        assert!(Arc::ptr_eq(&a.numbers, &b.numbers));
    }
}
