//! Whether the store answers: told by the store, shown as metrics, health and readiness.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use opentelemetry::metrics::Meter;
use tokio::sync::watch;

/// What there is to say about a store, as far as health goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreState {
    /// It has answered at least once since start.
    pub contacted: bool,
    /// It answers now.
    pub up: bool,
    /// It holds what a later release has written, in this format, and is left alone.
    pub too_new: Option<u8>,
}

/// The state of the store, and who wants to know it.
#[derive(Debug, Default)]
pub struct StoreHealth {
    state: watch::Sender<StoreState>,
    downs: AtomicU64,
}

// === impl StoreState ===

impl StoreState {
    /// It was there and is away: calls are answered without it.
    #[must_use]
    pub const fn is_degraded(self) -> bool {
        self.contacted && !self.up
    }
}

// === impl StoreHealth ===

impl StoreHealth {
    /// The store answers, or counts as away.
    pub fn set_up(&self, up: bool) {
        let changed = self.state.send_if_modified(|state| {
            let new = StoreState { contacted: state.contacted || up, up, too_new: None };
            std::mem::replace(state, new) != new
        });
        if changed && !up {
            self.downs.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The store is left alone: a later release has written in this format.
    pub fn set_too_new(&self, format: u8) {
        self.set_up(false);
        self.state.send_modify(|state| state.too_new = Some(format));
    }

    /// How it is now.
    #[must_use]
    pub fn state(&self) -> StoreState {
        *self.state.borrow()
    }

    /// Learns of changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<StoreState> {
        self.state.subscribe()
    }
}

pub(super) fn register(health: &Arc<StoreHealth>, meter: &Meter) {
    let downs = Arc::clone(health);
    meter
        .u64_observable_counter("budgetd_store_outages")
        .with_description("Times the store went away.")
        .with_callback(move |observer| observer.observe(downs.downs.load(Ordering::Relaxed), &[]))
        .build();
    let state = Arc::clone(health);
    meter
        .u64_observable_gauge("budgetd_store_up")
        .with_description("Whether the store answers.")
        .with_callback(move |observer| observer.observe(state.state().up.into(), &[]))
        .build();
}
