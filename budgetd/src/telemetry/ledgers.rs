//! How the ledgers of dependencies that a policy names stand, as seen by a periodic look.
//!
//! Looking costs a round trip per ledger where the store is elsewhere, so it happens beside the calls, for a bounded
//! number of names, and what is shown may be some seconds old.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use budget::{
    ids::{DependencyId, UnitId},
    ledger::{COUNTERS, Counters, Lending, View},
    policy::Policy,
};
use opentelemetry::{KeyValue, metrics::Meter};

/// Names that are looked at.
pub const WATCHED_MAX: usize = 500;

pub(super) const COST_BALANCE: &str = "budgetd_cost_balance_tokens";

/// The latest look.
#[derive(Debug, Default)]
pub struct Ledgers(Mutex<Vec<Seen>>);

/// One ledger.
#[derive(Debug)]
struct Seen {
    name: DependencyId,
    policy: Arc<Policy>,
    /// None: it has no state.
    view: Option<View>,
    /// The last that were seen.
    counters: Counters,
    /// Times that they fell: its state was lost, or went back.
    resets: u64,
}

/// A gauge, and its value of a ledger.
type Shown = (&'static str, &'static str, fn(&View) -> Option<i64>);

const SHOWN: [Shown; 12] = [
    ("budgetd_in_flight", "Permits taken, fleet-wide.", |view| Some(view.in_flight)),
    (
        "budgetd_admission_balance_tokens",
        "Admission tokens left, fleet-wide, rounded down; absent where admission is unlimited.",
        |view| view.admission_balance_micros.map(whole_tokens),
    ),
    ("budgetd_retry_balance_tokens", "Retry tokens left, fleet-wide, rounded down.", |view| {
        Some(whole_tokens(view.retry_balance_micros))
    }),
    ("budgetd_lease_holders", "Holders whose leases may still be in use.", |view| {
        lending(view).map(|lending| lending.holders)
    }),
    ("budgetd_leased_tokens_per_second", "Admission rate that is leased, rounded down.", |view| {
        lending(view).map(|lending| whole_tokens(lending.charged.rate))
    }),
    ("budgetd_leased_burst_tokens", "Admission burst that is leased, rounded down.", |view| {
        lending(view).map(|lending| whole_tokens(lending.charged.burst))
    }),
    ("budgetd_leased_retry_burst_tokens", "Retry burst that is leased, rounded down.", |view| {
        lending(view).map(|lending| whole_tokens(lending.charged.retry_burst))
    }),
    ("budgetd_leased_slots", "Permits that are leased.", |view| lending(view).map(|lending| lending.charged.slots)),
    (
        "budgetd_unknown_tokens_per_second",
        "Admission rate that may be in use from before state was lost, rounded down.",
        |view| lending(view).map(|lending| whole_tokens(lending.unknown.rate)),
    ),
    ("budgetd_lease_epoch", "Rises with every loss of a ledger's state.", |view| {
        lending(view).map(|lending| lending.epoch.number)
    }),
    ("budgetd_lease_quarantine_left_milliseconds", "Until nothing is unknown after a loss of state.", |view| {
        lending(view).map(|lending| lending.quarantine_left_ms)
    }),
    ("budgetd_lease_clock_debt_milliseconds", "What the store's clock has gained on those of the replicas.", |view| {
        lending(view).map(|lending| lending.clock_debt_ms)
    }),
];

fn lending(view: &View) -> Option<&Lending> {
    view.lending.as_deref()
}

const fn whole_tokens(micros: i64) -> i64 {
    micros.div_euclid(budget::units::MICROS_PER_TOKEN)
}

// === impl Ledgers ===

impl Ledgers {
    /// Replaces the latest look by this one.
    pub(crate) fn show(&self, looked_at: Vec<(DependencyId, Arc<Policy>, Option<View>)>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before: HashMap<DependencyId, Seen> = all.drain(..).map(|seen| (seen.name.clone(), seen)).collect();
        *all = looked_at
            .into_iter()
            .take(WATCHED_MAX)
            .map(|(name, policy, view)| {
                let (last, resets) =
                    before.remove(&name).map_or_else(Default::default, |seen| (seen.counters, seen.resets));
                let counters = view.as_ref().map_or(last, |view| view.counters);
                let fell = last.to_list().iter().zip(counters.to_list()).any(|(last, now)| now < *last);
                Seen { name, policy, view, counters, resets: resets + u64::from(fell) }
            })
            .collect();
    }

    /// Of each ledger that was looked at.
    #[cfg(test)]
    pub(super) fn resets(&self) -> Vec<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|seen| seen.resets).collect()
    }

    fn each(&self, mut see: impl FnMut(&Seen, KeyValue)) {
        for seen in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            see(seen, KeyValue::new("dependency", seen.name.as_str().to_owned()));
        }
    }

    fn each_value(&self, value: impl Fn(&View) -> Option<i64>, mut observe: impl FnMut(i64, &[KeyValue])) {
        self.each(|seen, dependency| {
            if let Some(value) = seen.view.as_ref().and_then(&value) {
                observe(value, &[dependency]);
            }
        });
    }
}

pub(super) fn register(ledgers: &Arc<Ledgers>, meter: &Meter) {
    for (name, description, value) in SHOWN {
        let ledgers = Arc::clone(ledgers);
        meter
            .i64_observable_gauge(name)
            .with_description(description)
            .with_callback(move |observer| {
                ledgers.each_value(value, |value, labels| observer.observe(value, labels));
            })
            .build();
    }
    for counter in COUNTERS.into_iter().filter(|counter| !counter.metric.is_empty()) {
        let ledgers = Arc::clone(ledgers);
        let value = move |view: &View| {
            let value = (counter.get)(&view.counters);
            Some(if counter.is_micros() { whole_tokens(value) } else { value })
        };
        meter
            .u64_observable_counter(counter.metric)
            .with_description(counter.help)
            .with_callback(move |observer| {
                ledgers.each_value(value, |value, labels| observer.observe(u64::try_from(value).unwrap_or(0), labels));
            })
            .build();
    }
    let all = Arc::clone(ledgers);
    meter
        .u64_observable_counter("budgetd_ledger_resets")
        .with_description(
            "Times a ledger was seen with less behind it than before: its state was lost or is an older one.",
        )
        .with_callback(move |observer| all.each(|seen, dependency| observer.observe(seen.resets, &[dependency])))
        .build();
    let all = Arc::clone(ledgers);
    meter
        .i64_observable_gauge(COST_BALANCE)
        .with_description("Tokens of a cost unit that are left, fleet-wide, rounded down; below 0: owed.")
        .with_callback(move |observer| {
            all.each(|seen, dependency| {
                for unit in &seen.policy.spec().units {
                    let name = unit.name.as_str();
                    let balance = UnitId::of(name).ok().and_then(|id| balance_of(seen.view.as_ref()?, id));
                    if let Some(micros) = balance {
                        let labels = [dependency.clone(), KeyValue::new("unit", name.to_owned())];
                        observer.observe(whole_tokens(micros), &labels);
                    }
                }
            });
        })
        .build();
}

fn balance_of(view: &View, unit: UnitId) -> Option<i64> {
    view.units.iter().find(|(id, _)| *id == unit).map(|(_, micros)| *micros)
}
