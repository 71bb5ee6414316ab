//! Judges what was admitted by the documented bound, all windows at once.

use std::sync::Arc;

use budget::{
    bound::{
        Bound, Causes, Fleet, Most, Quantity,
        checker::{AllWindows, Event, Law, Slope},
        horizon_ms,
    },
    policy::Policy,
};

use super::{
    fleet::{Admission, Seen},
    pace::Pace,
    setting::{Setting, judged},
};

/// Windows that the slope of a term is taken from.
pub(crate) const LONG_MS: i64 = 1_000_000;

/// What happened beside the admissions, and what the bound may count for it.
pub(crate) struct Case {
    policy: Arc<Policy>,
    events: Vec<(i64, Event)>,
    fleet: Fleet,
    pub(crate) causes: Causes,
    pace: Pace,
    start_ns: i64,
}

/// What the bound says, where it says anything.
pub(crate) fn count(most: Most) -> i64 {
    match most {
        Most::Count(count) => count,
        Most::Unbounded => panic!("the bound says nothing"),
    }
}

/// A term is a constant and a slope, by its excess in no time and in [`LONG_MS`]: the slope joins the rate, so that every
/// window is judged by its own length.
pub(crate) fn steeper(slope: Slope, constant: i64, long: i64) -> Slope {
    // Micro-tokens in a millisecond, on the slope's own denominator, rounded up.
    let more = ((long - constant) * slope.den).div_euclid(LONG_MS / 1_000_000) + i64::from(long > constant);
    Slope { num: slope.num + more, ..slope }
}

// === impl Case ===

impl Case {
    /// Nothing goes wrong.
    pub(crate) fn new(policy: &Arc<Policy>, holders: usize, replicas: usize, start_ns: i64) -> Self {
        let count = |number: usize| i64::try_from(number).unwrap();
        let fleet = Fleet { holders: count(holders), replicas: count(replicas) };
        let (events, causes) = (Vec::new(), Causes::default());
        Self { policy: Arc::clone(policy), events, fleet, causes, pace: Pace::FULL, start_ns }
    }

    /// Of a setting, at its speed.
    pub(crate) fn of(setting: &Setting, holders: usize, replicas: usize, start_ns: i64) -> Self {
        Self { pace: setting.pace, ..Self::new(&setting.policy, holders, replicas, start_ns) }
    }

    pub(crate) fn horizon_ms(&self) -> i64 {
        horizon_ms(&self.policy, &self.pace.timing())
    }

    /// The store loses its state at about this time.
    pub(crate) fn epoch(&mut self, at_ns: i64) {
        self.events.push((at_ns, Event::Epoch));
    }

    /// Another policy comes into force.
    pub(crate) fn policy(&mut self, at_ns: i64, policy: &str) {
        self.events.push((at_ns, Event::Policy(Law::of(&judged(self.pace, policy)))));
    }

    /// All of them may be beyond their curves at once.
    pub(crate) fn all_beyond(&mut self) {
        self.causes.beyond = self.fleet.holders;
    }

    /// The documented bound of windows of this length.
    pub(crate) fn bound(&self, window_ms: i64, causes: &Causes) -> Bound {
        Bound::new(&self.policy, &self.pace.timing(), self.fleet, window_ms, causes)
    }

    pub(crate) fn judged_by(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn start_ns(&self) -> i64 {
        self.start_ns
    }

    /// When the store lost its state.
    pub(crate) fn epochs(&self) -> impl Iterator<Item = i64> {
        self.events.iter().filter(|(_, event)| *event == Event::Epoch).map(|(at_ns, _)| *at_ns)
    }

    /// T1 and T2. Admissions are counted right after they were sent: the longest way there is a term of its own.
    pub(crate) fn assert(self, seen: &Seen) {
        let admissions = seen.admissions.lock().unwrap().clone();
        let longest_ns = seen.longest_ns.load(std::sync::atomic::Ordering::Relaxed);
        println!("longest ask: {} ms", longest_ns / 1_000_000);
        self.assert_of(admissions);
    }

    pub(crate) fn assert_of(mut self, admissions: Vec<Admission>) {
        assert!(admissions.iter().any(|seen| !seen.is_retry), "no original was admitted");
        assert!(admissions.iter().any(|seen| seen.is_retry), "no retry was admitted");
        let delay_ns = admissions.iter().map(|seen| seen.until_ns - seen.from_ns).max().unwrap_or(0);
        self.causes.arrival_delay_ms = self.causes.arrival_delay_ms.max(delay_ns / 1_000_000 + 1);
        let bound = |window_ms| self.bound(window_ms, &self.causes);
        let (short, long) = (bound(0), bound(LONG_MS));
        let excess = |quantity| (count(short.excess(&quantity)), count(long.excess(&quantity)));
        let ((admission, admission_long), (retry, retry_long)) =
            (excess(Quantity::Admissions), excess(Quantity::Retries));
        let law_of = |law: Law| Law {
            admission: law.admission.map(|slope| steeper(slope, admission, admission_long)),
            retry: steeper(law.retry, retry, retry_long),
            ..law
        };
        let horizon = self.horizon_ms();
        let mut events = self.events.clone();
        for (_, event) in &mut events {
            if let Event::Policy(law) = event {
                *law = law_of(*law);
            }
        }
        events.extend(
            admissions.iter().map(|seen| (seen.until_ns, if seen.is_retry { Event::Retry } else { Event::Original })),
        );
        let windows = AllWindows::of(horizon, self.start_ns, law_of(Law::of(&self.policy)), events);
        for term in &short.terms {
            println!("  term {}: {}", term.cause.name(), term.text);
        }
        for (name, worst, allowed) in
            [("T1 admissions", windows.admissions(), admission), ("T2 retries", windows.retries(), retry)]
        {
            let worst = worst.unwrap();
            let over = worst.micros as f64 / 1e6;
            let ms = (worst.until_ns - worst.from_ns) / 1_000_000;
            println!("{name}: the bound allows an excess of {allowed} (beside its slopes), seen {over:+.2} in {ms} ms");
            assert!(worst.micros <= allowed * 1_000_000, "{name}: {over:+.2} in {ms} ms, allowed {allowed}");
        }
    }
}
