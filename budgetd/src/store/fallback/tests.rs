use std::time::Duration;

use budget::{
    decision::{Answer, Attempt, Cause, DenyReason, Extend, OperationAsk, Release},
    ids::{Fingerprint, OperationId, PolicyVersion, ReservationId},
    lease::{Epoch, Incarnation, SyncAnswer, Usage},
};

use super::*;
use crate::{
    clock::Hands,
    policies::repository::{Document, MemoryRepository, Repository},
};

/// A store that always fails in the same way.
struct Failing(Mutex<StoreError>);

impl Store for Failing {
    async fn step(&self, _: &DependencyId, _: Step, _: Instant) -> Result<Answered, StoreError> {
        Err(self.0.lock().unwrap().clone())
    }

    async fn view(&self, _: &DependencyId, _: Instant) -> Result<Option<View>, StoreError> {
        Err(self.0.lock().unwrap().clone())
    }

    async fn known(&self, _: Option<&str>, _: usize, _: Instant) -> Result<Vec<DependencyId>, StoreError> {
        Err(self.0.lock().unwrap().clone())
    }

    /// Answers, since it tells the holders.
    async fn sync(&self, _: &DependencyId, ask: SyncAsk, _: Instant) -> Result<Synced, StoreError> {
        let (answer, version) = (SyncAnswer::Left, PolicyVersion::default());
        Ok(Synced { answer, version, epoch: Epoch::default(), holders: ask.in_flight })
    }

    async fn list_holders(
        &self,
        _: &DependencyId,
        _: Option<&HolderId>,
        _: usize,
        _: Instant,
    ) -> Result<Vec<HolderView>, StoreError> {
        Err(self.0.lock().unwrap().clone())
    }

    async fn revoke(&self, _: &DependencyId, _: &HolderId, _: Instant) -> Result<bool, StoreError> {
        Err(self.0.lock().unwrap().clone())
    }
}

fn away() -> StoreError {
    StoreError::Away("gone".to_owned())
}

fn dependency() -> DependencyId {
    DependencyId::new("payments").unwrap()
}

async fn policies(toml: &str) -> Arc<Policies> {
    let policies = Policies::start(MemoryRepository::default(), None).await.unwrap();
    if !toml.is_empty() {
        policies.put("payments", toml, policies.snapshot().version()).await.unwrap();
    }
    Arc::new(policies)
}

async fn store(toml: &str, sharers: i64, error: StoreError) -> (WithFallback<Failing>, Hands) {
    let (clock, hands) = Clock::manual(1_000_000);
    let inner = Failing(Mutex::new(error));
    (WithFallback::new(inner, policies(toml).await, Arc::new(Sharers::new(sharers)), clock), hands)
}

fn soon() -> Instant {
    Clock::instant() + Duration::from_secs(60)
}

fn original() -> Reserve {
    Reserve::new(ReservationId([1; 16]), Attempt::ORIGINAL)
}

fn retry() -> Reserve {
    Reserve::new(ReservationId([2; 16]), Attempt::retry(2, Cause::Transient))
}

async fn ask(store: &WithFallback<Failing>, ask: Reserve) -> Answer {
    let answered = store.step(&dependency(), Step::Reserve(ask), soon()).await.unwrap();
    assert!(answered.degraded);
    answered.answer
}

async fn admits(store: &WithFallback<Failing>, reserve: Reserve) -> bool {
    match ask(store, reserve).await {
        Answer::Admitted(_) => true,
        Answer::Denied(denied) => {
            assert_eq!(denied.reason, DenyReason::Fallback);
            false
        }
        Answer::Released(_) | Answer::Extended(_) | Answer::Invalid(_) => panic!("no answer to an ask"),
    }
}

const LIMITED: &str = "admission = { rate = \"1000/s\", burst = 1000 }\n";

/// Seen to fail with `sharers` taken as 1: five replicas admit 500/s.
#[tokio::test]
async fn a16_the_fleet_s_sum_stays_within_the_part_for_every_kind_of_outage() {
    const REPLICAS: i64 = 5;
    for error in [away(), StoreError::Lost("no reply".to_owned())] {
        let mut fleet = Vec::new();
        for _ in 0..REPLICAS {
            fleet.push(store(&format!("{LIMITED}fallback = {{ originals = \"10%\" }}"), REPLICAS, error.clone()).await);
        }
        let mut admitted = 0;
        for _ in 0..1_000 {
            for (store, hands) in &fleet {
                hands.advance(10);
                while admits(store, original()).await {
                    admitted += 1;
                }
            }
        }
        // 10% of 1000/s for 10 s, and at most one second of it held by each.
        assert!((990..=1_000 + 100).contains(&admitted), "{admitted} admitted after {error}");
    }
}

/// Seen to fail with `Overloaded` among the errors that call for the fallback.
#[tokio::test]
async fn a16_overload_and_other_failures_never_loosen_a_budget() {
    let (store, hands) = store(&format!("{LIMITED}fallback = {{ originals = \"allow\" }}"), 1, away()).await;
    hands.advance(10_000);
    assert!(admits(&store, original()).await);
    for error in [
        StoreError::Overloaded,
        StoreError::DeadlinePassed,
        StoreError::Late,
        StoreError::NeverReached("x".to_owned()),
        StoreError::Corrupt("x".to_owned()),
        StoreError::UnknownDependency("x".to_owned()),
    ] {
        *store.inner().0.lock().unwrap() = error.clone();
        let failed = store.step(&dependency(), Step::Reserve(original()), soon()).await.unwrap_err();
        assert_eq!(failed.to_string(), error.to_string());
    }
}

#[tokio::test]
async fn a24_a_passed_deadline_takes_nothing() {
    let (store, hands) = store(&format!("{LIMITED}fallback = {{ originals = \"1/s\" }}"), 1, away()).await;
    // It is known from now on, and begins empty.
    assert!(!admits(&store, original()).await);
    hands.advance(1_000);
    let past = Clock::instant();
    let late = async |error: StoreError| {
        *store.inner().0.lock().unwrap() = error;
        store.step(&dependency(), Step::Reserve(original()), past).await.unwrap_err()
    };
    assert!(matches!(late(StoreError::Lost("no reply".to_owned())).await, StoreError::Late));
    assert!(matches!(late(away()).await, StoreError::DeadlinePassed));
    assert!(admits(&store, original()).await, "the one token is still there");
    assert!(!admits(&store, original()).await);
}

#[tokio::test]
async fn originals_are_denied_allowed_or_limited_as_the_policy_says() {
    let count = async |toml: &str, sharers: i64| {
        let (store, hands) = store(&format!("{LIMITED}{toml}"), sharers, away()).await;
        let mut admitted = 0;
        for _ in 0..10 {
            for _ in 0..200 {
                admitted += i64::from(admits(&store, original()).await);
            }
            hands.advance(1_000);
        }
        admitted
    };
    assert_eq!(count("fallback = { originals = \"deny\" }", 1).await, 0);
    assert_eq!(count("fallback = { originals = \"allow\" }", 1).await, 2_000);
    // Empty at first, then a second's worth each time; a rate is for each process, a part is shared.
    assert_eq!(count("fallback = { originals = \"5/s\" }", 4).await, 9 * 5);
    assert_eq!(count("fallback = { originals = \"10%\" }", 1).await, 9 * 100);
    assert_eq!(count("fallback = { originals = \"10%\" }", 4).await, 9 * 25);
    assert_eq!(count("", 4).await, 9 * 25, "10% is the default");
}

#[tokio::test]
async fn retries_are_earned_or_denied_as_the_policy_says() {
    let retries = async |toml: &str| {
        let (store, _hands) = store(&format!("{toml}retry = {{ ratio = 0.1 }}"), 1, away()).await;
        let mut admitted = 0;
        for _ in 0..100 {
            assert!(admits(&store, original()).await);
            admitted += i64::from(admits(&store, retry()).await);
        }
        admitted
    };
    assert_eq!(retries("fallback = { retries = \"earned\" }\n").await, 10);
    assert_eq!(retries("fallback = { retries = \"deny\" }\n").await, 0);
    assert_eq!(retries("").await, 10, "earned is the default");
}

#[tokio::test]
async fn tracked_operations_need_the_store() {
    let (store, hands) = store("fallback = { originals = \"allow\" }", 1, away()).await;
    hands.advance(10_000);
    let operation = OperationAsk {
        id: OperationId::new("op").unwrap(),
        fingerprint: Fingerprint::from_slice(&[1; 16]).unwrap(),
        expires_in_ms: None,
    };
    let Answer::Denied(denied) = ask(&store, Reserve { operation: Some(operation), ..original() }).await else {
        panic!("a duplicate could be let in later");
    };
    assert_eq!(denied.reason, DenyReason::OperationStoreAway);
}

#[tokio::test]
async fn shadow_mode_watches_during_an_outage_too() {
    let (store, _hands) = store(&format!("mode = \"shadow\"\n{LIMITED}"), 1, away()).await;
    for reserve in [original(), retry()] {
        let Answer::Admitted(admitted) = ask(&store, reserve).await else { panic!("shadow mode refuses nothing") };
        assert_eq!(admitted.would_be_denied, Some(DenyReason::Fallback));
    }
}

#[tokio::test]
async fn releases_and_extensions_are_passed_on() {
    let (store, _hands) = store("", 1, away()).await;
    let id = ReservationId([1; 16]);
    for step in [Step::Release(Release::not_sent(id)), Step::Extend(Extend { id, permit_ttl_ms: 1 })] {
        assert!(matches!(store.step(&dependency(), step, soon()).await, Err(StoreError::Away(_))));
    }
    assert!(store.view(&dependency(), soon()).await.is_err());
    assert!(store.known(None, 1, soon()).await.is_err());
}

#[tokio::test]
async fn the_level_is_kept_from_one_outage_to_the_next() {
    let (store, hands) = store(&format!("{LIMITED}fallback = {{ originals = \"10/s\" }}"), 1, away()).await;
    assert!(!admits(&store, original()).await);
    hands.advance(1_000);
    for _ in 0..10 {
        assert!(admits(&store, original()).await);
    }
    assert!(!admits(&store, original()).await, "a new episode gives no new burst");
}

#[tokio::test]
async fn refused_dependencies_stay_refused() {
    let policies = Policies::start(MemoryRepository::default(), None).await.unwrap();
    let version = policies.snapshot().version();
    policies.put("defaults", "unknown_dependencies = \"refuse\"", version).await.unwrap();
    let inner = Failing(Mutex::new(away()));
    let store = WithFallback::new(inner, Arc::new(policies), Arc::new(Sharers::new(1)), Clock::system());
    let failed = store.step(&dependency(), Step::Reserve(original()), soon()).await;
    assert!(matches!(failed, Err(StoreError::UnknownDependency(_))));
}

#[test]
fn a30_what_is_kept_is_bounded_and_the_idle_make_room() {
    let name = |at: usize| DependencyId::new(&format!("d{at}")).unwrap();
    let mut kept = Kept::default();
    for at in 0..KEPT_MAX {
        assert!(kept.get(&name(at), 1_000).is_some());
    }
    assert!(kept.get(&name(KEPT_MAX), 2_000).is_none());
    assert!(kept.get(&name(0), 2_000).is_some());
    assert!(kept.get(&name(KEPT_MAX), 1_000 + IDLE_MS).is_some());
    assert_eq!(kept.fallbacks.len(), 2);
}

#[test]
fn there_is_always_one_sharer() {
    let sharers = Sharers::new(0);
    assert_eq!(sharers.get(), 1);
    sharers.set(7);
    assert_eq!(sharers.get(), 7);
    sharers.set(-3);
    assert_eq!(sharers.get(), 1);
}

/// The memory repository stands for the one that is away here: policies stay known during an outage.
#[tokio::test]
async fn policies_outlive_their_repository() {
    let repository = MemoryRepository::default();
    assert_eq!(repository.load().await.unwrap(), None::<Document>);
    let policies = policies(LIMITED).await;
    assert!(policies.snapshot().version() > PolicyVersion::default());
}

/// A percentage is shared with the holders of the dependency, and with those that were there a curve ago.
#[tokio::test]
async fn holders_share_the_percentage() {
    let (store, hands) = store(&format!("{LIMITED}fallback = {{ originals = \"10%\" }}"), 1, away()).await;
    let tell = async |holders| {
        let ask = SyncAsk {
            holder: HolderId::new("pod").unwrap(),
            incarnation: Incarnation([0; 16]),
            sequence: 1,
            nonce: 0,
            epoch: Epoch::default(),
            lease: None,
            usage: Usage::default(),
            counted: Usage::default(),
            in_flight: holders,
            weight: 1,
            leave: false,
        };
        store.sync(&dependency(), ask, soon()).await.unwrap().holders
    };
    let in_a_second = async || {
        // The first ask adopts the smaller burst.
        hands.advance(10_000);
        let mut admitted = 0;
        while admits(&store, original()).await {
            admitted += 1;
        }
        admitted
    };
    assert_eq!(in_a_second().await, 0, "it begins empty");
    assert_eq!(in_a_second().await, 100);
    assert_eq!(tell(9).await, 9);
    assert_eq!(in_a_second().await, 10);
    assert_eq!(tell(4).await, 9, "those that left may be beyond their curve");
    hands.advance(HOLDERS_WINDOW_MS);
    assert_eq!(tell(4).await, 9);
    hands.advance(HOLDERS_WINDOW_MS);
    assert_eq!(tell(4).await, 4);
    assert_eq!(in_a_second().await, 20);
    // While the store is away nobody tells; after the longest curve they are gone.
    hands.advance(CURVE_MS_MAX);
    assert_eq!(in_a_second().await, 100);
}
