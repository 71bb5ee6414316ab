//! What a dependency receives, counted in its own process and told to budgetd.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{MissedTickBehavior, interval};
use tower_layer::Layer;
use tower_service::Service;

use crate::{Client, Dependency, Error};

/// Most that one report counts; more waits for the next.
const REPORT_MAX: u64 = 1_000_000_000;
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);
const EVERY_MIN: Duration = Duration::from_millis(1);

/// Counts attempts on the side of the dependency, so that `budgetd status` can compare what came with what was admitted: a layer
/// that retries without asking shows there, whoever it belongs to.
///
/// It is a layer for tower services, such as those of axum and tonic, and [`Self::add`] for everything else. A background
/// task tells budgetd now and then, as long as this or a clone of it lives. What may have been counted is never told again: the
/// count may be too small, not too large. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Received(Arc<AtomicU64>);

/// A service that counts its calls.
#[derive(Clone, Debug)]
pub struct CountReceived<S> {
    inner: S,
    received: Received,
}

// === impl Received ===

impl Received {
    /// Starts counting for a dependency; budgetd is told `every` so long, 5 s being often enough, and at most every
    /// millisecond.
    ///
    /// # Errors
    /// If there is no tokio runtime.
    pub fn start(client: Client, dependency: Dependency, every: Duration) -> Result<Self, Error> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let counted = Arc::<AtomicU64>::default();
        let weak = Arc::downgrade(&counted);
        runtime.spawn(async move {
            let mut turns = interval(every.max(EVERY_MIN));
            turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                turns.tick().await;
                let Some(counted) = weak.upgrade() else { return };
                let attempts = counted.swap(0, Ordering::Relaxed);
                if attempts > 0 {
                    let left = tell(&client, &dependency, attempts).await;
                    counted.fetch_add(left, Ordering::Relaxed);
                }
            }
        });
        Ok(Self(counted))
    }

    /// So many more came.
    pub fn add(&self, attempts: u64) {
        self.0.fetch_add(attempts, Ordering::Relaxed);
    }
}

/// How many are still to be told.
async fn tell(client: &Client, dependency: &Dependency, attempts: u64) -> u64 {
    let told = attempts.min(REPORT_MAX);
    match client.report_received(dependency, told, REPORT_TIMEOUT).await {
        // Not counted: nobody has asked for it yet, so there is nothing to compare with.
        Ok(_) => attempts - told,
        Err(error) => {
            tracing::debug!(dependency = %dependency.id(), %error, "what was received is not told");
            if error.may_have_been_applied() { attempts - told } else { attempts }
        }
    }
}

impl<S> Layer<S> for Received {
    type Service = CountReceived<S>;

    fn layer(&self, inner: S) -> CountReceived<S> {
        CountReceived { inner, received: self.clone() }
    }
}

// === impl CountReceived ===

impl<S: Service<R>, R> Service<R> for CountReceived<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.received.add(1);
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by it")]

    use std::{
        convert::Infallible,
        future::{Ready, ready},
    };

    use super::*;

    struct Echo;

    impl Service<u32> for Echo {
        type Response = u32;
        type Error = Infallible;
        type Future = Ready<Result<u32, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: u32) -> Self::Future {
            ready(Ok(request))
        }
    }

    #[tokio::test]
    async fn a_layer_counts_calls_and_what_does_not_arrive_is_told_later() {
        // Nobody listens there: what is not told stays.
        let client = Client::new("http://127.0.0.1:1").unwrap();
        let received = Received::start(client, Dependency::new("pay").unwrap(), Duration::ZERO).unwrap();
        let mut service = received.layer(Echo);
        for request in 0..50 {
            assert_eq!(service.call(request).await, Ok(request));
            tokio::task::yield_now().await;
        }
        received.add(7);
        let whole = async {
            while received.0.load(Ordering::Relaxed) != 57 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), whole).await.unwrap();
    }
}
