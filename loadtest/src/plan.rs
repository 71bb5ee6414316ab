//! The arrivals of a run, computed from the seed before it begins: what is offered depends on nothing that happens.

use std::time::Duration;

use crate::{
    random::{Random, mixed},
    scenario::Scenario,
};

/// An operation that is due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Arrival {
    /// Since the start, nanoseconds.
    pub(crate) due_ns: i64,
    /// Its stream: a position in the scenario's load.
    pub(crate) load: usize,
    /// The logical client, from 0.
    pub(crate) client: u32,
    /// Unlike any other of the run.
    pub(crate) key: u64,
    /// What it is estimated to cost, whole tokens.
    pub(crate) cost: u32,
}

/// All arrivals within `duration` in the order of their times. The same seed gives the same.
pub(crate) fn arrivals(scenario: &Scenario, seed: u64, clients: u32, duration: Duration) -> Vec<Arrival> {
    let mut all = Vec::new();
    for load in 0..scenario.load.len() {
        stream(scenario, seed, load, clients, duration, &mut all);
    }
    all.sort_by_key(|arrival| (arrival.due_ns, arrival.load));
    all
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times and costs are small and positive")]
fn stream(scenario: &Scenario, seed: u64, at: usize, clients: u32, duration: Duration, all: &mut Vec<Arrival>) {
    let load = &scenario.load[at];
    let stream = u64::try_from(at).unwrap_or(u64::MAX);
    let mut random = Random::new(mixed(&[seed, stream]));
    let end_s = duration.as_secs_f64();
    let mut at_s = 0.0;
    for number in 0_u64.. {
        // A wait that began under one rate goes on under the next: the rest of it is scaled.
        let mut wait = if load.even { 1.0 } else { random.exponential(1.0) };
        loop {
            let at_ms = (at_s * 1_000.0) as u64;
            let (rate, change) = (load.rate_at(at_ms), load.change_after(at_ms));
            let change_s = change.map(|ms| Duration::from_millis(ms).as_secs_f64());
            let next_s = if rate > 0.0 { at_s + wait / rate } else { f64::INFINITY };
            match change_s {
                Some(change_s) if next_s > change_s => {
                    wait -= (change_s - at_s) * rate;
                    at_s = change_s;
                }
                _ => {
                    at_s = next_s;
                    break;
                }
            }
        }
        if at_s >= end_s {
            return;
        }
        let client = u32::try_from(random.below(clients.into())).unwrap_or(0);
        let spread = random.share() + 0.5;
        let cost = load.cost.as_ref().map_or(0, |cost| (f64::from(cost.mean) * spread).round() as u32);
        let due_ns = (at_s * 1e9) as i64;
        all.push(Arrival { due_ns, load: at, client, key: mixed(&[seed, stream, number]), cost });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::find;

    fn storm() -> Scenario {
        find("storm").expect("the library has it").0
    }

    #[test]
    fn the_same_seed_gives_the_same_arrivals() {
        let (scenario, second) = (storm(), Duration::from_secs(1));
        let plan = |seed| arrivals(&scenario, seed, 10, second);
        assert_eq!(plan(1), plan(1));
        assert_ne!(plan(1), plan(2));
        assert!(plan(1).is_sorted_by_key(|arrival| arrival.due_ns));
        assert!(plan(1).iter().all(|arrival| arrival.client < 10 && arrival.due_ns < 1_000_000_000));
    }

    #[test]
    fn the_number_of_clients_changes_who_calls_and_not_when() {
        let (scenario, second) = (storm(), Duration::from_secs(1));
        let times = |clients| {
            let plan = arrivals(&scenario, 1, clients, second);
            plan.iter().map(|arrival| (arrival.due_ns, arrival.key)).collect::<Vec<_>>()
        };
        assert_eq!(times(1), times(1_000));
    }

    #[test]
    fn rates_are_kept_and_change_when_they_should() {
        let text = crate::scenario::find("storm").expect("the library has it").1;
        let changed = text.replacen(
            "[[load]]\n",
            "[[load]]\nthen = [{ at = \"2s\", rate = 0.0 }, { at = \"3s\", rate = 400.0 }]\n",
            1,
        );
        let scenario = Scenario::parse("a test", &changed).expect("valid");
        let plan = arrivals(&scenario, 1, 10, Duration::from_secs(5));
        let within = |from: i64, until: i64| {
            plan.iter().filter(|arrival| (from..until).contains(&(arrival.due_ns / 1_000_000_000))).count()
        };
        assert_eq!(within(2, 3), 0);
        assert!((700..900).contains(&within(3, 5)), "{}", within(3, 5));
    }
}
