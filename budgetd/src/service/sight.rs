//! What operators look at beside ledgers: recent counts, trials of policies, what holders were told. All of it is bounded,
//! and of this replica.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use budget::{
    ids::{DependencyId, PolicyVersion},
    lease::HolderId,
    ledger::{Counters, View},
};
use budget_proto::pb;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::trial::Trials;
use crate::{
    policies::repository,
    telemetry::{
        Decisions,
        tally::{REASONS, Tally},
    },
};

/// Moments that are remembered: with one every 5 s, somewhat more than a minute.
const SAMPLES_MAX: usize = 14;
/// Lengths of the windows that are shown.
const LENGTHS_MS: [i64; 2] = [10_000, 60_000];
/// Streams of operators at a time.
const STREAMS_MAX: usize = 64;
/// Other replicas are told again after so long, before they forget.
const SHARE_EVERY_MS: i64 = 20 * 60_000;
/// Holders of which it is remembered what they were told: between this and twice as many.
const TOLD_MAX: usize = 10_000;

/// All of it.
#[derive(Debug)]
pub struct Sight {
    /// By label.
    answered: Mutex<HashMap<Arc<str>, Ring<Tally>>>,
    /// Of ledgers that are looked at, fleet-wide, with what the dependencies' own sides have received.
    ledgers: Mutex<HashMap<DependencyId, Ring<Both>>>,
    told: Mutex<Told>,
    streams: Arc<Semaphore>,
    /// Policies on trial.
    pub(super) trials: Arc<Trials>,
}

/// What a ledger counts, and what the dependency's own side has received, where it says so.
type Both = (Counters, Option<i64>);

/// What was counted by some moments, oldest first.
#[derive(Debug)]
struct Ring<T>(VecDeque<(i64, T)>);

/// Versions of the rules that holders were told, and when other replicas were told so; the older half goes when the younger
/// is full.
#[derive(Debug, Default)]
struct Told {
    younger: HashMap<(DependencyId, HolderId), (PolicyVersion, i64)>,
    older: HashMap<(DependencyId, HolderId), (PolicyVersion, i64)>,
    /// Whose word the other replicas have not heard.
    unshared: HashSet<(DependencyId, HolderId)>,
}

// === impl Ring ===

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Ring<T> {
    fn push(&mut self, at_ms: i64, value: T) {
        if self.0.back().is_some_and(|(last_ms, _)| *last_ms >= at_ms) {
            self.0.clear();
        }
        self.0.push_back((at_ms, value));
        if self.0.len() > SAMPLES_MAX {
            self.0.pop_front();
        }
    }

    /// The latest moment that is at least so long ago, else the first: how long ago, and what was counted by then.
    fn before(&self, now_ms: i64, length_ms: i64) -> Option<(i64, &T)> {
        let found = self.0.iter().rev().find(|(at_ms, _)| now_ms.saturating_sub(*at_ms) >= length_ms);
        let (at_ms, value) = found.or_else(|| self.0.front())?;
        Some((now_ms.saturating_sub(*at_ms), value)).filter(|(ago_ms, _)| *ago_ms > 0)
    }
}

// === impl Sight ===

impl Default for Sight {
    fn default() -> Self {
        Self {
            answered: Mutex::default(),
            ledgers: Mutex::default(),
            told: Mutex::default(),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            trials: Arc::default(),
        }
    }
}

impl Sight {
    /// Remembers what has been answered so far, how the ledgers that were looked at stand, and what the dependency of each has
    /// received, as far as that is known. To be called every 5 s.
    pub(crate) fn remember(
        &self,
        decisions: &Decisions,
        views: &[(DependencyId, View)],
        received: &[Option<i64>],
        now_ms: i64,
    ) {
        let tallies = decisions.tallies();
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = HashMap::with_capacity(tallies.len());
        for (label, tally) in tallies {
            let mut ring = answered.remove(&label).unwrap_or_default();
            ring.push(now_ms, tally);
            kept.insert(label, ring);
        }
        *answered = kept;
        drop(answered);
        let mut ledgers = self.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = HashMap::with_capacity(views.len());
        for ((name, view), received) in views.iter().zip(received.iter().chain(std::iter::repeat(&None))) {
            let mut ring = ledgers.remove(name).unwrap_or_default();
            ring.push(now_ms, (view.counters, *received));
            kept.insert(name.clone(), ring);
        }
        *ledgers = kept;
    }

    /// What this replica answered under a label lately, where `now` is what it has answered so far.
    pub(super) fn answered(&self, label: &str, now: &Tally, now_ms: i64) -> Vec<pb::Window> {
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ring) = answered.get(label) else { return Vec::new() };
        let window = |length_ms| ring.before(now_ms, length_ms).map(|(ms, then)| of_tally(ms, &now.since(then)));
        LENGTHS_MS.into_iter().filter_map(window).collect()
    }

    /// What was counted of a dependency lately, fleet-wide; nothing if it is not looked at.
    pub(super) fn fleet(&self, dependency: &DependencyId) -> Vec<pb::Window> {
        let ledgers = self.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ring) = ledgers.get(dependency) else { return Vec::new() };
        let Some((now_ms, now)) = ring.0.back() else { return Vec::new() };
        let window = |length_ms| ring.before(*now_ms, length_ms).map(|(ms, then)| of_counters(ms, now, then));
        LENGTHS_MS.into_iter().filter_map(window).collect()
    }

    /// A holder was told the rules of this version.
    pub(super) fn tell(&self, dependency: &DependencyId, holder: HolderId, version: PolicyVersion, now_ms: i64) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (dependency.clone(), holder);
        let known = |(before, shared_ms): &(PolicyVersion, i64)| {
            *before == version && now_ms.saturating_sub(*shared_ms) < SHARE_EVERY_MS
        };
        if told.younger.get(&key).is_some_and(known) {
            return;
        }
        if told.younger.len() >= TOLD_MAX {
            told.older = std::mem::take(&mut told.younger);
            told.unshared.clear();
        }
        told.unshared.insert(key.clone());
        told.younger.insert(key, (version, now_ms));
    }

    /// Of the rules that a holder was told here last.
    pub(super) fn told(&self, dependency: &DependencyId, holder: &HolderId) -> Option<PolicyVersion> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (dependency.clone(), holder.clone());
        told.younger.get(&key).or_else(|| told.older.get(&key)).map(|(version, _)| *version)
    }

    /// Takes some of what other replicas have not heard.
    pub(crate) fn take_unshared(&self, most: usize) -> Vec<repository::Told> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let keys: Vec<_> = told.unshared.iter().take(most).cloned().collect();
        let taken = keys.into_iter().filter_map(|key| {
            told.unshared.remove(&key);
            let (version, _) = *told.younger.get(&key)?;
            let (dependency, holder) = key;
            Some(repository::Told { dependency, holder, version })
        });
        taken.collect()
    }

    /// The others could not be told: they are told later.
    pub(crate) fn put_back(&self, unshared: Vec<repository::Told>) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for one in unshared {
            let key = (one.dependency, one.holder);
            if told.younger.contains_key(&key) {
                told.unshared.insert(key);
            }
        }
    }

    /// One more stream, unless there are too many.
    pub(super) fn open_stream(&self) -> Result<OwnedSemaphorePermit, tonic::Status> {
        let too_many =
            |_| tonic::Status::resource_exhausted(format!("there are {STREAMS_MAX} streams of operators already"));
        Arc::clone(&self.streams).try_acquire_owned().map_err(too_many)
    }
}

fn of_tally(length_ms: i64, tally: &Tally) -> pb::Window {
    let sum = |counts: &[u64; REASONS]| counts.iter().sum();
    let [originals_denied, retries_denied] = [sum(&tally.denied[0]), sum(&tally.denied[1])];
    let would_be_denied = sum(&tally.would_be_denied[0]) + sum(&tally.would_be_denied[1]);
    let [originals_admitted, retries_admitted] = tally.admitted;
    pb::Window {
        length_ms: u64::try_from(length_ms).unwrap_or(0),
        originals_admitted,
        retries_admitted,
        originals_denied,
        retries_denied,
        would_be_denied,
        amplification_ppm: amplification_ppm(originals_admitted, retries_admitted),
        refusals: refusals(&tally.denied),
        would_be_refusals: refusals(&tally.would_be_denied),
        received: None,
    }
}

/// A ledger that has lost its state counts from 0: then the window shows nothing.
fn of_counters(length_ms: i64, (now, received): &Both, (then, received_then): &Both) -> pb::Window {
    let more = |now: i64, then: i64| u64::try_from(now.saturating_sub(then)).unwrap_or(0);
    let originals_admitted = more(now.originals_admitted, then.originals_admitted);
    let retries_admitted = more(now.retries_admitted, then.retries_admitted);
    pb::Window {
        length_ms: u64::try_from(length_ms).unwrap_or(0),
        originals_admitted,
        retries_admitted,
        originals_denied: more(now.originals_denied, then.originals_denied),
        retries_denied: more(now.retries_denied, then.retries_denied),
        would_be_denied: more(now.would_be_denied, then.would_be_denied),
        amplification_ppm: amplification_ppm(originals_admitted, retries_admitted),
        refusals: Vec::new(),
        would_be_refusals: Vec::new(),
        received: received.map(|received| more(received, received_then.unwrap_or(0))),
    }
}

fn amplification_ppm(originals: u64, retries: u64) -> Option<u64> {
    originals.saturating_add(retries).saturating_mul(1_000_000).checked_div(originals)
}

/// Those that are not zero.
pub(super) fn refusals(counts: &[[u64; REASONS]; 2]) -> Vec<pb::Refusals> {
    let each = budget::decision::DenyReason::ALL.into_iter().map(|reason| {
        let (originals, retries) = (counts[0][reason.index()], counts[1][reason.index()]);
        pb::Refusals { reason: i32::try_from(reason.code()).unwrap_or_default(), originals, retries }
    });
    each.filter(|refusals| refusals.originals + refusals.retries > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_reaches_back_to_the_nearest_moment_that_is_long_enough_ago() {
        let mut ring = Ring::default();
        assert_eq!(ring.before(0, 10_000), None);
        ring.push(0, 0);
        assert_eq!(ring.before(0, 10_000), None, "no time has passed");
        for at in 1..=20 {
            ring.push(at * 5_000, at);
        }
        assert_eq!(ring.before(102_000, 10_000), Some((12_000, &18)));
        assert_eq!(ring.before(102_000, 60_000), Some((62_000, &8)));
        assert_eq!(ring.before(102_000, 3_600_000), Some((67_000, &7)), "as far as is remembered");
        assert_eq!(ring.0.len(), SAMPLES_MAX);
        ring.push(1, 0);
        assert_eq!(ring.0.len(), 1, "a clock that was set back begins anew");
    }

    #[test]
    fn what_holders_were_told_is_bounded_and_the_latest_stays() {
        let sight = Sight::default();
        let name = |n: usize| (DependencyId::new(&format!("d{n}")).unwrap(), HolderId::new("h").unwrap());
        for n in 0..5 * TOLD_MAX {
            let (dependency, holder) = name(n);
            sight.tell(&dependency, holder, PolicyVersion { number: 1, id: 1 }, 0);
        }
        let told = sight.told.lock().unwrap();
        assert!(told.younger.len() + told.older.len() <= 2 * TOLD_MAX && told.unshared.len() <= TOLD_MAX);
        drop(told);
        let (dependency, holder) = name(5 * TOLD_MAX - 1);
        assert!(sight.told(&dependency, &holder).is_some());
        let (dependency, holder) = name(0);
        assert_eq!(sight.told(&dependency, &holder), None);
    }

    #[test]
    fn other_replicas_hear_of_each_word_once_and_again_before_they_forget() {
        let sight = Sight::default();
        let (dependency, holder) = (DependencyId::new("d").unwrap(), HolderId::new("h").unwrap());
        let version = |number| PolicyVersion { number, id: 1 };
        let shared = |number, now_ms| {
            sight.tell(&dependency, holder.clone(), version(number), now_ms);
            sight.take_unshared(9).into_iter().map(|told| told.version.number).collect::<Vec<_>>()
        };
        assert_eq!(shared(1, 0), [1]);
        assert!(shared(1, 1).is_empty());
        assert_eq!(shared(2, 2), [2]);
        assert_eq!(shared(2, SHARE_EVERY_MS + 2), [2]);
        // What did not get through is told later, as it is then.
        sight.tell(&dependency, holder.clone(), version(3), SHARE_EVERY_MS + 3);
        let lost = sight.take_unshared(9);
        sight.put_back(lost);
        assert_eq!(shared(3, SHARE_EVERY_MS + 4), [3]);
    }

    #[test]
    fn amplification_needs_originals() {
        assert_eq!(amplification_ppm(0, 5), None);
        assert_eq!(amplification_ppm(10, 1), Some(1_100_000));
    }
}
