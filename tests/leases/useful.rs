//! Useful work, judged by what was asked for: whoever has a share and asks for more is admitted what the share earns
//! between two of its asks. How often a client asks is up to the machine, so a busy one makes less wanted of the same
//! share, never less than is wanted. That nine tenths of all curves, and 95% of a policy, are used is judged in virtual
//! time: `Work` of tests/sim, and `sharing`.

use std::{collections::HashMap, sync::Mutex};

use budget_client::boot_time_ns;
use budget_tests::eventually::eventually;

use super::{fleet::Fleet, setting::pass_ms};

/// A client asked for originals.
#[derive(Clone, Copy, Debug)]
struct Round {
    asker: usize,
    at_ns: i64,
    /// Permits of its lease that were out afterwards.
    held: usize,
}

/// When clients asked.
#[derive(Debug, Default)]
pub(crate) struct Rounds(Mutex<Vec<Round>>);

// === impl Rounds ===

impl Rounds {
    pub(crate) fn note(&self, asker: usize, at_ns: i64, held: usize) {
        self.0.lock().unwrap().push(Round { asker, at_ns, held });
    }

    /// The fewest attempts that buckets of one token admit, of which each asker has one that begins empty and is filled at
    /// its part of a rate. Larger ones admit no fewer.
    pub(crate) fn fewest(&self, from_ns: i64, until_ns: i64, per_second: f64, askers: usize) -> usize {
        let token_ns = (1e9 * askers as f64 / per_second) as i64;
        let mut emptied_ns = HashMap::new();
        let mut fewest = 0;
        for Round { asker, at_ns, .. } in self.0.lock().unwrap().iter() {
            let emptied_ns = emptied_ns.entry(*asker).or_insert(from_ns);
            if *at_ns < until_ns && *at_ns - *emptied_ns >= token_ns {
                *emptied_ns = *at_ns;
                fewest += 1;
            }
        }
        fewest
    }

    /// Permits of leases that were out when clients had just asked for more, the averages of all askers together; none if
    /// one of them did not ask.
    pub(crate) fn held(&self, from_ns: i64, until_ns: i64, askers: usize) -> Option<f64> {
        let mut sums = HashMap::new();
        for round in self.0.lock().unwrap().iter().filter(|round| (from_ns..until_ns).contains(&round.at_ns)) {
            let (held, rounds) = sums.entry(round.asker).or_insert((0, 0));
            *held += round.held;
            *rounds += 1;
        }
        (sums.len() == askers).then(|| sums.values().map(|(held, rounds)| *held as f64 / f64::from(*rounds)).sum())
    }
}

// === impl Fleet ===

impl Fleet {
    /// Admitted in a time, and how much of a rate is useful work by what was asked.
    fn useful(&self, from_ns: i64, until_ns: i64, per_second: f64, what: &str) -> (usize, usize) {
        let wanted = self.seen.rounds.fewest(from_ns, until_ns, per_second, self.askers());
        let admitted = self.admitted(from_ns, until_ns);
        let ms = (until_ns - from_ns) / 1_000_000;
        println!("{what}: {admitted} admitted in {ms} ms, {wanted} are useful work of {per_second:.1}/s");
        (admitted, wanted)
    }

    /// Asserts that so much was used of what there was.
    pub(crate) fn assert_useful(&self, from_ns: i64, until_ns: i64, per_second: f64, what: &str) {
        let (admitted, wanted) = self.useful(from_ns, until_ns, per_second, what);
        assert!(admitted >= wanted, "{what}: {admitted} of {wanted}; {}", self.summary());
    }

    /// Waits until so much is used.
    pub(crate) async fn works(&self, per_second: f64, what: &str) {
        eventually(self.pace.bound(), what, async || {
            let from_ns = boot_time_ns();
            pass_ms(self.pace.ms(1_000)).await;
            let (admitted, wanted) = self.useful(from_ns, boot_time_ns(), per_second, what);
            wanted > 0 && admitted >= wanted
        })
        .await;
    }
}

#[test]
fn what_is_useful_depends_on_what_was_asked() {
    const MS: i64 = 1_000_000;
    let rounds = Rounds::default();
    // One asks every 10 ms, the other is away for all but two asks.
    (1..=100).for_each(|at| rounds.note(0, at * 10 * MS, 1));
    [500, 505].into_iter().for_each(|at| rounds.note(1, at * MS, 3));
    assert_eq!(rounds.fewest(0, 1_001 * MS, 20.0, 2), 10 + 1);
    assert_eq!(rounds.fewest(0, 500 * MS, 20.0, 2), 4);
    assert_eq!(rounds.held(0, 1_001 * MS, 2), Some(4.0));
    assert_eq!(rounds.held(0, 500 * MS, 2), None);
}
