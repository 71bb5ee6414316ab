//! Waiting for what another process does, where nothing can be awaited.

use std::time::Duration;

use tokio::time;

/// How often the condition is looked at.
const POLL: Duration = Duration::from_millis(5);

/// Looks at `condition` until it holds.
///
/// Needs tokio's running clock: under a paused one the bound is used up at once.
///
/// # Panics
/// If it does not hold within `bound`; `what` says what was waited for.
pub async fn eventually(bound: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    eventually_some(bound, what, async || condition().await.then_some(())).await;
}

/// Asks `attempt` until it has something, and returns that.
///
/// # Panics
/// If it has nothing within `bound`; `what` says what was waited for.
pub async fn eventually_some<T>(bound: Duration, what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let found = time::timeout(bound, async {
        loop {
            if let Some(found) = attempt().await {
                return found;
            }
            time::sleep(POLL).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("not within {bound:?}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn returns_as_soon_as_the_condition_holds() {
        let mut asked = 0;
        let start = time::Instant::now();
        let found = eventually_some(Duration::from_secs(1), "the third time", async || {
            asked += 1;
            (asked == 3).then_some(asked)
        });
        assert_eq!(found.await, 3);
        assert_eq!(start.elapsed(), 2 * POLL);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "not within 1s: pigs fly")]
    async fn the_bound_holds() {
        eventually(Duration::from_secs(1), "pigs fly", async || false).await;
    }
}
