//! What the tests of the Redis store share: replicas as the daemon builds them, without the daemon.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use budget::{
    decision::{Answer, Attempt, Cause, Outcome, Release, ReleaseResult, Reserve, Step},
    ids::{DependencyId, ReservationId},
    ledger::View,
};
use budgetd::{
    clock::Clock,
    policies::Policies,
    store::{
        Answered, Store, StoreError,
        fallback::Sharers,
        redis::{Config, Redis, RedisRepository, RedisStore, Settings, State, StoreMetrics},
    },
};

/// Longer than anything here takes; what is bounded is asserted by itself.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// One replica.
pub(crate) struct Replica {
    pub(crate) redis: Arc<Redis>,
    pub(crate) policies: Arc<Policies>,
    pub(crate) sharers: Arc<Sharers>,
    pub(crate) store: Arc<RedisStore>,
}

/// Settings for tests on a busy machine: a slow moment must not look like an outage.
pub(crate) fn patient(url: &str) -> Settings {
    Settings {
        url: url.to_owned(),
        connect_timeout_ms: 5_000,
        wait_timeout_ms: 5_000,
        response_timeout_ms: 5_000,
        ..Settings::default()
    }
}

/// A store in a namespace of its own, with its policies.
pub(crate) async fn store(url: &str, prefix: &str, clock: Clock) -> (Arc<Policies>, RedisStore) {
    let settings = Settings { prefix: prefix.to_owned(), ..patient(url) };
    let Replica { policies, store, .. } = Replica::start(&settings, clock).await;
    (policies, Arc::into_inner(store).expect("nobody else has it"))
}

// === impl Replica ===

impl Replica {
    pub(crate) async fn start(settings: &Settings, clock: Clock) -> Self {
        let redis = Redis::start(Config::new(settings).unwrap(), clock).await;
        let repository = RedisRepository::new(Arc::clone(&redis));
        let policies = Arc::new(Policies::start(repository, None).await.unwrap());
        let sharers = Arc::new(Sharers::new(1));
        let store = RedisStore::start(Arc::clone(&redis), Arc::clone(&policies), Arc::clone(&sharers), false).await;
        Self { redis, policies, sharers, store: Arc::new(store) }
    }

    /// With the server's own time.
    pub(crate) async fn connect(url: &str) -> Self {
        Self::start(&patient(url), Clock::system()).await
    }

    pub(crate) async fn put(&self, name: &str, toml: &str) {
        self.policies.put(name, toml, self.policies.snapshot().version()).await.unwrap();
    }

    pub(crate) async fn step(&self, name: &str, step: Step) -> Result<Answered, StoreError> {
        self.store.step(&dependency(name), step, soon()).await
    }

    pub(crate) async fn answer(&self, name: &str, step: Step) -> Answer {
        self.step(name, step).await.unwrap().answer
    }

    /// Asks for an original.
    pub(crate) async fn admits(&self, name: &str, id: ReservationId) -> bool {
        is_admitted(&self.answer(name, original(id)).await)
    }

    pub(crate) async fn release(&self, name: &str, id: ReservationId) -> ReleaseResult {
        let answer = self.answer(name, success(id)).await;
        let Answer::Released(result) = answer else { panic!("{answer:?} to a release") };
        result
    }

    pub(crate) async fn view(&self, name: &str) -> Option<View> {
        self.store.view(&dependency(name), soon()).await.unwrap()
    }

    pub(crate) fn metrics(&self) -> &StoreMetrics {
        self.redis.metrics()
    }

    pub(crate) fn state(&self) -> State {
        self.redis.health().borrow().state
    }
}

pub(crate) fn dependency(name: &str) -> DependencyId {
    DependencyId::new(name).unwrap()
}

pub(crate) fn soon() -> Instant {
    Clock::instant() + BOUND
}

pub(crate) fn fresh_id() -> ReservationId {
    let mut id = [0; 16];
    getrandom::fill(&mut id).unwrap();
    ReservationId(id)
}

pub(crate) fn original(id: ReservationId) -> Step {
    Step::Reserve(Reserve::new(id, Attempt::ORIGINAL))
}

pub(crate) fn retry(id: ReservationId) -> Step {
    Step::Reserve(Reserve::new(id, Attempt::retry(2, Cause::Transient)))
}

pub(crate) fn success(id: ReservationId) -> Step {
    Step::Release(Release::sent(id, Outcome::Success))
}

pub(crate) fn is_admitted(answer: &Answer) -> bool {
    match answer {
        Answer::Admitted(_) => true,
        Answer::Denied(_) => false,
        Answer::Released(_) | Answer::Extended(_) | Answer::Invalid(_) => panic!("{answer:?} to an ask"),
    }
}
