//! A service that calls a flaky dependency through the client: each call is one original, and failed ones are retried as
//! far as the budget of the whole fleet allows.
//!
//! Start budgetd with leases permitted, and then this, in as many terminals as you like:
//!
//! ```text
//! cargo run -p budgetd -- serve --policies deploy/config/leased.toml
//! cargo run -p budget-client --example flaky
//! ```
//!
//! Stop budgetd and watch it go on along its curve; start it again and watch it come back.

use std::time::Duration;

use budget::decision::{Cause, Outcome};
use budget_client::{Client, Dependency, Refused};
use tokio::time::Instant;

/// Of a hundred calls so many fail at first.
const FAILING: u64 = 30;
const CALLS_PER_SECOND: u32 = 200;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let endpoints = std::env::args().skip(1).collect::<Vec<_>>();
    let endpoints = if endpoints.is_empty() { vec!["http://127.0.0.1:7411".to_owned()] } else { endpoints };
    let client = Client::builder().endpoints(endpoints).connect()?;
    let payments = client.dependency(&Dependency::new("payments")?)?;

    let mut ticks = tokio::time::interval(Duration::from_secs(1) / CALLS_PER_SECOND);
    let mut stop = std::pin::pin!(tokio::signal::ctrl_c());
    let (mut calls, mut retries, mut failed, mut refused) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut shown = Instant::now();
    println!("{:>8} {:>8} {:>8} {:>8}  lease", "calls/s", "retries", "failed", "refused");
    loop {
        tokio::select! {
            _ = &mut stop => break,
            _ = ticks.tick() => {}
        }
        // One call: the original, and a retry if it fails and the budget has one.
        let within = Duration::from_millis(200);
        match payments.reserve_original(within).await {
            Ok(permit) => {
                let attempt = permit.sent()?;
                calls += 1;
                if call_the_dependency() {
                    attempt.finish(Outcome::Success);
                } else {
                    attempt.finish(Outcome::Transient);
                    match payments.reserve_retry(2, Cause::Transient, within).await {
                        Ok(permit) => {
                            permit.sent()?.finish(Outcome::Success);
                            retries += 1;
                        }
                        // Final: the caller is told so, and nobody tries again behind its back.
                        Err(Refused::Denied(_) | Refused::Overloaded) => failed += 1,
                        Err(Refused::Failed(error)) => return Err(error.into()),
                    }
                }
            }
            Err(Refused::Denied(_) | Refused::Overloaded) => refused += 1,
            Err(Refused::Failed(error)) => return Err(error.into()),
        }
        if shown.elapsed() >= Duration::from_secs(1) {
            println!("{calls:>8} {retries:>8} {failed:>8} {refused:>8}  {:?}", payments.standing());
            (calls, retries, failed, refused) = (0, 0, 0, 0);
            shown = Instant::now();
        }
    }
    // Others have our share at once, not only when its curve ends.
    client.leave(Duration::from_secs(2)).await;
    Ok(())
}

/// Stands for the real thing.
fn call_the_dependency() -> bool {
    getrandom::u64().unwrap_or(0) % 100 >= FAILING
}
