//! Answers to Reserve, counted by kind of attempt, decision and reason: small enough to be kept for many moments.

use budget::decision::{Answer, DenyReason};

pub(crate) const REASONS: usize = DenyReason::ALL.len();

/// Each by kind: originals, then retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Would-be refusals included, re-sends not.
    pub(crate) admitted: [u64; 2],
    pub(crate) denied: [[u64; REASONS]; 2],
    pub(crate) would_be_denied: [[u64; REASONS]; 2],
}

// === impl Tally ===

impl Tally {
    /// One more answer.
    pub(crate) fn count(&mut self, is_retry: bool, answer: &Answer) {
        let kind = usize::from(is_retry);
        match answer {
            Answer::Admitted(admitted) if admitted.replayed => {}
            Answer::Admitted(admitted) => {
                self.admitted[kind] += 1;
                if let Some(reason) = admitted.would_be_denied {
                    self.would_be_denied[kind][reason.index()] += 1;
                }
            }
            Answer::Denied(denied) => self.denied[kind][denied.reason.index()] += 1,
            Answer::Released(_) | Answer::Extended(_) | Answer::Invalid(_) => {}
        }
    }

    /// What has been added since an earlier moment.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let each = |now: [[u64; REASONS]; 2], then: [[u64; REASONS]; 2]| {
            let mut more = now;
            for (more, then) in more.iter_mut().flatten().zip(then.iter().flatten()) {
                *more = more.saturating_sub(*then);
            }
            more
        };
        let admitted = [0, 1].map(|kind: usize| self.admitted[kind].saturating_sub(earlier.admitted[kind]));
        Self {
            admitted,
            denied: each(self.denied, earlier.denied),
            would_be_denied: each(self.would_be_denied, earlier.would_be_denied),
        }
    }
}
