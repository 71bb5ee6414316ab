//! What one leased dependency costs a client in memory. In a test program of its own: it counts all that is allocated.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{alloc::System, sync::Arc, time::Duration};

use budget::{
    holder::LocalAsk,
    ids::PolicyVersion,
    lease::{Amounts, Curve, Epoch, FallbackRules, Grant, HolderId, LeaseName, LocalOriginals, Rules, SyncAnswer},
    policy::{CurveStep, Policy, Spec},
};
use budget_client::{
    Dependency, Error, Standing,
    leasing::{Asked, Coordinator, Leased, Leasing, LeasingOptions},
};
use budget_proto::{UnitNames, convert::SyncReply};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// All that a leased dependency costs, 996 at the moment: its share (528) and its handle with the machine that drives it
/// (352), each with the two counts of an `Arc`, its name (40), and its entries in the set of names and the set of what is
/// due. Rules and curve are kept once for all dependencies that have the same. Limits of cost units, a fallback that was
/// asked, and lanes for threads that collide come on top where they are used.
const BYTES_MAX: usize = 1_024;
const FEW: usize = 100;
const MANY: usize = 1_000;

/// Grants the same to everybody and keeps nothing.
struct Generous;

impl Coordinator for Generous {
    async fn sync(&self, asks: &[Asked]) -> Vec<Result<SyncReply, Error>> {
        let policy = Policy::new(Spec::default()).unwrap();
        let numbers = policy.numbers(false, true);
        let answer = |asked: &Asked| {
            let step = |part_ppm, duration_ms| CurveStep { part_ppm, duration_ms };
            let answer = SyncAnswer::Granted(Grant {
                name: LeaseName { epoch: Epoch { number: 1, id: 1 }, generation: asked.ask.sequence },
                position_ms: 0,
                value: Amounts { rate: 5_000_000, burst: 5_000_000, retry_burst: 2_000_000, ..Amounts::default() },
                moved: Amounts { burst: 1_000_000, ..Amounts::default() },
                curve: Curve([step(1_000_000, 20_000), step(500_000, 100_000)].as_slice().into()),
            });
            let rules = Rules {
                fallback: FallbackRules {
                    originals: LocalOriginals::Rate(1_000_000),
                    retries_earned: true,
                    units: Box::default(),
                },
                ..Rules::of(&policy, &numbers, PolicyVersion { number: 1, id: 1 }, 2)
            };
            Ok(SyncReply { answer, rules, units: UnitNames::default() })
        };
        asks.iter().map(answer).collect()
    }
}

fn live_bytes() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// Names more dependencies, and waits until all hold leases that they spend.
async fn lease(leasing: &Leasing, handles: &mut Vec<Arc<Leased>>, until: usize) {
    for n in handles.len()..until {
        handles.push(leasing.dependency(&Dependency::new(&format!("service/operation-{n:05}")).unwrap()).unwrap());
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while handles.iter().any(|handle| handle.standing() != Standing::Leased) {
        let leased = handles.iter().filter(|handle| handle.standing() == Standing::Leased).count();
        assert!(tokio::time::Instant::now() < deadline, "{leased} of {} are leased", handles.len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for handle in handles {
        let _ = handle.reserve(&LocalAsk::ORIGINAL);
    }
}

/// The least that is seen for a while: messages come and go.
async fn settled_bytes() -> usize {
    let mut least = usize::MAX;
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        least = least.min(live_bytes());
    }
    least
}

#[tokio::test]
async fn a_leased_dependency_costs_at_most_a_kibibyte() {
    let options = LeasingOptions {
        holder_id: Some(HolderId::new("test").unwrap()),
        sync_timeout: Duration::from_secs(20),
        ..LeasingOptions::default()
    };
    let leasing = Leasing::start(Generous, options).unwrap();
    let mut handles = Vec::with_capacity(FEW + MANY);
    lease(&leasing, &mut handles, FEW).await;
    let before = settled_bytes().await;
    lease(&leasing, &mut handles, FEW + MANY).await;
    let bytes = settled_bytes().await.saturating_sub(before) / MANY;
    println!("{bytes} bytes per leased dependency");
    assert!((200..=BYTES_MAX).contains(&bytes), "{bytes} bytes per leased dependency, at most {BYTES_MAX}");
}
