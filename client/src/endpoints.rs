//! Several budgetd for one client: which is asked, and when one that failed is tried again.
//!
//! One endpoint is asked until it fails; then the next. An endpoint that failed rests for a jittered time that doubles up
//! to a cap, for ever. While all rest the coordinator counts as away, and nobody waits for it.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{Error, Options, transport::Transport};

/// An endpoint rests about this long after its first failure.
const REST_FIRST: Duration = Duration::from_millis(100);
/// And at most this long.
const REST_MAX: Duration = Duration::from_secs(5);

/// The endpoints of one client.
#[derive(Debug)]
pub(crate) struct Endpoints {
    options: Options,
    slots: Box<[Mutex<Slot>]>,
    current: AtomicUsize,
    jitter: Mutex<u64>,
}

#[derive(Debug)]
struct Slot {
    uri: String,
    transport: Transport,
    failures: u32,
    rests_until: Option<Instant>,
}

/// One that may be asked now.
#[derive(Debug)]
pub(crate) struct Picked {
    at: usize,
    pub(crate) transport: Transport,
}

// === impl Endpoints ===

impl Endpoints {
    /// Nothing is sent yet.
    pub(crate) fn new(uris: Vec<String>, options: &Options, seed: u64) -> Result<Self, Error> {
        let slots = uris
            .into_iter()
            .map(|uri| {
                let transport = Transport::new(&uri, options)?;
                Ok(Mutex::new(Slot { uri, transport, failures: 0, rests_until: None }))
            })
            .collect::<Result<Box<[_]>, Error>>()?;
        // Clients start at different endpoints.
        let current = AtomicUsize::new(usize::try_from(seed % slots.len().max(1) as u64).unwrap_or(0));
        Ok(Self { options: options.clone(), slots, current, jitter: Mutex::new(seed) })
    }

    /// The endpoint to ask now; none while all rest.
    pub(crate) fn pick(&self, now: Instant) -> Option<Picked> {
        let first = self.current.load(Ordering::Relaxed);
        (0..self.slots.len()).find_map(|step| {
            let at = (first + step) % self.slots.len();
            let slot = self.slot(at);
            let rests = slot.rests_until.is_some_and(|until| until > now);
            (!rests).then(|| Picked { at, transport: slot.transport.clone() })
        })
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// When the first of the resting endpoints may be asked again.
    #[cfg(test)]
    fn back_at(&self) -> Option<Instant> {
        (0..self.slots.len()).filter_map(|at| self.slot(at).rests_until).min()
    }

    /// It answered, whatever it said.
    pub(crate) fn answered(&self, picked: &Picked) {
        let mut slot = self.slot(picked.at);
        slot.failures = 0;
        slot.rests_until = None;
        drop(slot);
        self.current.store(picked.at, Ordering::Relaxed);
    }

    /// It did not answer: it rests, and its connection is made anew, so that a half-open one is left behind and a name is
    /// looked up again.
    pub(crate) fn failed(&self, picked: &Picked, now: Instant) {
        let mut slot = self.slot(picked.at);
        if slot.rests_until.is_some_and(|until| until > now) {
            // Several calls failed together: one failure.
            return;
        }
        let rest = (REST_FIRST * 2_u32.saturating_pow(slot.failures.min(16))).min(REST_MAX);
        slot.failures = slot.failures.saturating_add(1);
        slot.rests_until = Some(now + rest.mul_f64(0.5 + self.random() / 2.0));
        if let Ok(transport) = Transport::new(&slot.uri, &self.options) {
            slot.transport = transport;
        }
        drop(slot);
        let _ = self.current.compare_exchange(
            picked.at,
            (picked.at + 1) % self.slots.len(),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    fn slot(&self, at: usize) -> MutexGuard<'_, Slot> {
        self.slots[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Between 0 and 1 (SplitMix64, Steele et al. 2014).
    fn random(&self) -> f64 {
        let mut state = self.jitter.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Whether the coordinator did not answer. One that is overloaded did: overload never widens a budget.
pub(crate) const fn is_away(error: &Error) -> bool {
    match error {
        Error::Unreachable(_)
        | Error::DeadlineExceeded
        | Error::OutcomeUnknown(_)
        | Error::SessionEnded(_)
        | Error::Unavailable(_)
        | Error::UnexpectedAnswer(_)
        | Error::Failed { .. } => true,
        Error::Unsendable(_)
        | Error::NoRuntime
        | Error::NoRandomness(_)
        | Error::DeadlinePassed
        | Error::InvalidArgument(_)
        | Error::NotFound(_)
        | Error::Conflict(_)
        | Error::Overloaded(_)
        | Error::Unauthenticated(_)
        | Error::PermissionDenied(_) => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn endpoints(count: usize) -> Endpoints {
        let uris = (1..=count).map(|port| format!("http://127.0.0.1:{port}")).collect();
        Endpoints::new(uris, &Options::default(), 0).unwrap()
    }

    #[tokio::test]
    async fn a17_a_failed_endpoint_rests_and_the_next_is_asked() {
        let endpoints = endpoints(2);
        let now = Instant::now();
        let first = endpoints.pick(now).unwrap();
        endpoints.failed(&first, now);
        let second = endpoints.pick(now).unwrap();
        assert_ne!(first.at, second.at);
        endpoints.failed(&second, now);
        assert!(endpoints.pick(now).is_none());
        let back = endpoints.back_at().unwrap();
        assert!(back > now && back <= now + REST_FIRST);
        assert!(endpoints.pick(now + REST_FIRST).is_some());
    }

    #[tokio::test]
    async fn a17_rests_double_to_a_cap_for_ever_and_end_with_an_answer() {
        let endpoints = endpoints(1);
        let mut now = Instant::now();
        let mut rests = Vec::new();
        for _ in 0..100 {
            let picked = endpoints.pick(now).unwrap();
            endpoints.failed(&picked, now);
            // Calls that fail together are one failure.
            endpoints.failed(&picked, now);
            let back = endpoints.back_at().unwrap();
            rests.push(back - now);
            now = back;
        }
        assert!(rests.iter().all(|rest| *rest >= REST_FIRST / 2 && *rest <= REST_MAX));
        assert!(rests[50..].iter().all(|rest| *rest >= REST_MAX / 2));
        assert!(rests[50..].iter().collect::<std::collections::HashSet<_>>().len() > 40, "jittered");
        let picked = endpoints.pick(now).unwrap();
        endpoints.answered(&picked);
        endpoints.failed(&picked, now);
        assert!(endpoints.back_at().unwrap() - now <= REST_FIRST);
    }

    #[test]
    fn overload_is_an_answer() {
        assert!(!is_away(&Error::Overloaded(String::new())));
        assert!(is_away(&Error::DeadlineExceeded));
    }
}
