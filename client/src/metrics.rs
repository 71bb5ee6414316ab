//! The client's counters for OpenTelemetry, read when they are exported: decisions pay nothing for them.

use std::sync::{Arc, Weak};

use opentelemetry::{KeyValue, metrics::Meter};

use crate::{
    leased::{Counts, Inner, LeasedClient},
    leasing::Standing,
};

// === impl LeasedClient ===

impl LeasedClient {
    /// Registers this client's counters with a meter. Labels are the dependencies named to this client, a bounded number.
    ///
    /// | name | labels | meaning |
    /// |---|---|---|
    /// | `budget.client.decisions` | dependency, kind, decision, source | local decisions |
    /// | `budget.client.standing` | dependency, standing | 1 for how each dependency stands |
    /// | `budget.client.not_sent` | dependency | permits handed back |
    /// | `budget.client.releases_lost` | | releases left to their permits' own end |
    pub fn observe(&self, meter: &Meter) {
        let inner = Arc::downgrade(self.inner());
        let each = move |inner: &Weak<Inner>, see: &mut dyn FnMut(&str, &Counts)| {
            // The instruments outlive the client.
            if let Some(inner) = inner.upgrade() {
                for (dependency, counts) in (LeasedClient::of(inner)).counts() {
                    see(dependency.id().as_str(), &counts);
                }
            }
        };
        let of = inner.clone();
        meter
            .u64_observable_counter("budget.client.decisions")
            .with_description("Decisions made here, without a coordinator.")
            .with_callback(move |observer| {
                each(&of, &mut |dependency, counts| {
                    let local = &counts.local;
                    for (kind, decision, source, value) in [
                        ("original", "admitted", "lease", local.originals_admitted),
                        ("retry", "admitted", "lease", local.retries_admitted),
                        ("original", "denied", "lease", local.originals_denied),
                        ("retry", "denied", "lease", local.retries_denied),
                        ("original", "admitted", "fallback", local.fallback_originals),
                        ("retry", "admitted", "fallback", local.fallback_retries),
                    ] {
                        observer.observe(
                            u64::try_from(value).unwrap_or(0),
                            &[
                                KeyValue::new("dependency", dependency.to_owned()),
                                KeyValue::new("kind", kind),
                                KeyValue::new("decision", decision),
                                KeyValue::new("source", source),
                            ],
                        );
                    }
                });
            })
            .build();
        let of = inner.clone();
        meter
            .u64_observable_counter("budget.client.not_sent")
            .with_description("Permits handed back unsent.")
            .with_callback(move |observer| {
                each(&of, &mut |dependency, counts| {
                    let value = u64::try_from(counts.local.not_sent).unwrap_or(0);
                    observer.observe(value, &[KeyValue::new("dependency", dependency.to_owned())]);
                });
            })
            .build();
        let of = inner.clone();
        meter
            .u64_observable_gauge("budget.client.standing")
            .with_description("1 for how each dependency stands.")
            .with_callback(move |observer| {
                each(&of, &mut |dependency, counts| {
                    for standing in Standing::ALL {
                        observer.observe(
                            u64::from(standing == counts.standing),
                            &[
                                KeyValue::new("dependency", dependency.to_owned()),
                                KeyValue::new("standing", standing.name()),
                            ],
                        );
                    }
                });
            })
            .build();
        meter
            .u64_observable_counter("budget.client.releases_lost")
            .with_description("Releases that found no room; their permits end by themselves.")
            .with_callback(move |observer| {
                if let Some(inner) = inner.upgrade() {
                    observer.observe(LeasedClient::of(inner).releases_lost(), &[]);
                }
            })
            .build();
    }
}
