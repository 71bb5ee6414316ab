//! Bounds, idleness, policy changes, and that steps are atomic.
#![allow(clippy::unwrap_used, reason = "tests")]

mod leases;

use budget::{
    decision::{Attempt, Cost, DenyReason, Outcome, Release, Reserve},
    ids::{ReservationId, UnitId},
};

use super::*;
use crate::{
    clock::Hands,
    config::LeaseTiming,
    policies::{Edit, How, repository::MemoryRepository},
};

const START_MS: i64 = 1_700_000_000_000;

struct World {
    store: MemoryStore,
    policies: Arc<Policies>,
    hands: Hands,
    next_id: u128,
    _file: tempfile::TempDir,
}

// === impl World ===

impl World {
    async fn new(text: &str) -> Self {
        Self::timed(text, LeaseTiming::default()).await
    }

    async fn timed(text: &str, timing: LeaseTiming) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("policy.toml");
        std::fs::write(&file, text).unwrap();
        let policies =
            Policies::start_timed(MemoryRepository::default(), Some(&file), timing, Clock::system()).await.unwrap();
        let policies = Arc::new(policies);
        let (clock, hands) = Clock::manual(START_MS);
        let store = MemoryStore::new(Arc::clone(&policies), clock);
        Self { store, policies, hands, next_id: 0, _file: directory }
    }

    async fn put(&self, rule: &str, text: &str) {
        let version = self.policies.snapshot().version();
        let edit = Edit {
            name: rule.to_owned(),
            text: (!text.is_empty()).then(|| text.to_owned()),
            expected: version,
            ..Edit::default()
        };
        self.policies.edit(Edit { how: How::TakeOver, ..edit }).await.unwrap();
    }

    fn apply(&self, name: &str, step: Step) -> Result<Answered, StoreError> {
        self.store.apply(&dependency(name), &step)
    }

    fn try_reserve(&mut self, name: &str) -> Result<Answered, StoreError> {
        self.next_id += 1;
        self.apply(name, Step::Reserve(Reserve::new(self.id(), Attempt::ORIGINAL)))
    }

    fn reserve(&mut self, name: &str) -> Answered {
        self.try_reserve(name).unwrap()
    }

    /// Of the latest reserve.
    fn id(&self) -> ReservationId {
        ReservationId(self.next_id.to_be_bytes())
    }

    async fn view(&self, name: &str) -> Option<View> {
        self.store.view(&dependency(name), Clock::instant()).await.unwrap()
    }

    fn sweep_all(&self) -> usize {
        (0..SHARDS).map(|_| self.store.sweep_next()).sum()
    }
}

fn dependency(name: &str) -> DependencyId {
    DependencyId::new(name).unwrap()
}

fn is_admitted(answered: &Answered) -> bool {
    matches!(answered.answer, Answer::Admitted(_))
}

/// As allocators round: to 16 bytes, with a header of 8.
const fn allocated(bytes: usize) -> usize {
    (bytes + 8).next_multiple_of(16)
}

#[test]
fn an_idle_dependency_takes_at_most_400_bytes() {
    const NAME_BYTES: usize = 24;
    const COUNTS_OF_ARC: usize = 16;
    let name = allocated(COUNTS_OF_ARC + NAME_BYTES);
    let entry = allocated(size_of::<Entry>());
    // One byte of control for each slot; between 7/16 and 7/8 of all slots are full, on average 5/8 or more.
    let slot = size_of::<(DependencyId, Box<Entry>)>() + 1;
    let worst = name + entry + slot * 16 / 7;
    assert!(worst <= 340, "{worst} bytes");
    let units = allocated(3 * size_of::<(UnitId, budget::bucket::Bucket)>());
    let with_units = name + entry + units + slot * 8 / 5;
    assert!(with_units <= 400, "{with_units} bytes with three units");
}

#[tokio::test]
async fn a_release_of_something_unknown_makes_no_state() {
    let world = World::new("").await;
    let id = ReservationId([7; 16]);
    let answered = world.apply("pay", Step::Release(Release::not_sent(id))).unwrap();
    assert_eq!(answered.answer, Answer::Released(ReleaseResult::Unknown));
    let extend = budget::decision::Extend { id, permit_ttl_ms: 5 };
    let answered = world.apply("pay", Step::Extend(extend)).unwrap();
    assert_eq!(answered.answer, Answer::Extended(ExtendResult::Unknown));
    assert_eq!((world.store.len(), world.view("pay").await), ((0, 0), None));
}

#[tokio::test]
async fn a_ledger_begins_full_unless_told_otherwise() {
    let text = "[dependency.\"pay\"]\nadmission = { rate = \"1/h\", burst = 3 }\n";
    let mut world = World::new(text).await;
    let admitted = (0..5).filter(|_| is_admitted(&world.reserve("pay"))).count();
    assert_eq!(admitted, 3);
    let (clock, _) = Clock::manual(START_MS);
    world.store = MemoryStore::starting(Arc::clone(&world.policies), clock, Start::Empty);
    let admitted = (0..5).filter(|_| is_admitted(&world.reserve("pay"))).count();
    assert_eq!(admitted, 1);
}

/// Seen to fail without the bound, and when idle names stayed.
#[tokio::test]
async fn a30_idle_unknown_names_go_and_make_room() {
    let mut world = World::new("[dependency.\"named\"]\n").await;
    world.reserve("named");
    for number in 0..UNNAMED_MAX {
        world.reserve(&format!("name-{number}"));
    }
    let refused = world.try_reserve("one more").unwrap_err();
    assert!(matches!(&refused, StoreError::UnknownDependency(rule) if rule.contains("10000")), "{refused}");
    assert!(is_admitted(&world.reserve("name-0")), "known ones go on");
    assert_eq!(world.sweep_all(), 0);

    let snapshot = world.policies.snapshot();
    let idle_ttl_ms = snapshot.resolve(&dependency("name-0")).unwrap().numbers.idle_ttl_ms;
    assert!(idle_ttl_ms > 0);
    world.hands.advance(idle_ttl_ms - 1);
    world.reserve("name-1");
    assert_eq!(world.sweep_all(), 0);
    world.hands.advance(1_000);
    assert!(is_admitted(&world.reserve("one more")), "a call at the bound makes room itself");
    let (_, unnamed) = world.store.len();
    assert!((UNNAMED_MAX - 500..UNNAMED_MAX).contains(&unnamed), "{unnamed}: a bounded part of the work");
    world.hands.advance(1_000);
    world.sweep_all();
    // The named one, the two that were used since.
    assert_eq!(world.store.len(), (3, 2));
    let capacity: usize = (0..SHARDS).map(|at| world.store.locked(at).entries.capacity()).sum();
    assert!(capacity < 4096, "{capacity} slots are kept");
}

/// Seen to fail when the sweep only looked for idle names.
#[tokio::test]
async fn a30_an_idle_ledger_lets_go_of_what_has_ended() {
    let mut world = World::new("[dependency.\"pay\"]\nadmission = { permit_ttl = \"1s\" }\n").await;
    for _ in 0..1_000 {
        world.reserve("pay");
    }
    let lines = |world: &World| world.store.dump(&dependency("pay")).unwrap().len();
    assert!(lines(&world) > 1_000);
    world.hands.advance(TIDY_AFTER_MS);
    world.sweep_all();
    assert!(lines(&world) < 20);
    let view = world.view("pay").await.unwrap();
    assert_eq!((view.in_flight, view.counters.permits_expired), (0, 1_000));
}

#[tokio::test]
async fn a_policy_change_acts_on_the_next_call_and_keeps_state() {
    let mut world = World::new("[dependency.\"pay\"]\nadmission = { rate = \"1/h\", burst = 100 }\n").await;
    for _ in 0..80 {
        assert!(is_admitted(&world.reserve("pay")));
    }
    let before = world.policies.snapshot().version();
    world.put("pay", "admission = { rate = \"1/h\", burst = 50, max_in_flight = 85 }").await;
    assert!(is_admitted(&world.reserve("pay")));
    let view = world.view("pay").await.unwrap();
    assert!(view.version > before);
    assert_eq!((view.in_flight, view.admission_balance_micros), (81, Some(19_000_000)));
    world.put("pay", "admission = { rate = \"1/h\", burst = 50, max_in_flight = 10 }").await;
    let Answer::Denied(denied) = world.reserve("pay").answer else { panic!() };
    assert_eq!(denied.reason, DenyReason::InFlight);
    let release = Release::sent(ReservationId(1_u128.to_be_bytes()), Outcome::Success);
    let answered = world.apply("pay", Step::Release(release)).unwrap();
    assert_eq!(answered.answer, Answer::Released(ReleaseResult::Applied));
    assert_eq!(answered.version, world.policies.snapshot().version());
}

/// Seen to fail with ledgers begun anew under a new policy, and with balances filled up to a larger burst.
#[tokio::test]
async fn a13_a_thousand_reloads_of_a_file_neither_refill_nor_lose_anything() {
    let text = |burst: i64| {
        format!(
            "[dependency.\"pay\"]\nadmission = {{ rate = \"1/h\", burst = {burst}, max_in_flight = {burst} }}\n\
             retry = {{ ratio = 0.1, floor = \"0/s\", burst = {burst} }}\n"
        )
    };
    let mut world = World::new(&text(100)).await;
    for _ in 0..60 {
        assert!(is_admitted(&world.reserve("pay")));
    }
    let file = world._file.path().join("policy.toml");
    for round in 0..500 {
        for burst in [90 + round % 5, 200] {
            std::fs::write(&file, text(burst)).unwrap();
            world.policies.import(&file).await.unwrap();
            let view = world.view("pay").await.unwrap();
            assert_eq!(view.in_flight, 60);
            assert_eq!((view.admission_balance_micros, view.retry_balance_micros), (Some(40_000_000), 6_000_000));
        }
    }
    let version = world.policies.snapshot().version();
    assert_eq!(version.number, 1_001);
    let release = Release::sent(ReservationId(1_u128.to_be_bytes()), Outcome::Success);
    let answered = world.apply("pay", Step::Release(release)).unwrap();
    assert_eq!((answered.answer, answered.version), (Answer::Released(ReleaseResult::Applied), version));
    assert_eq!(world.view("pay").await.unwrap().in_flight, 59);
}

#[tokio::test]
async fn names_are_counted_as_rules_come_and_go() {
    let mut world = World::new("[dependency.\"a\"]\n[dependency.\"fam/*\"]\n").await;
    for name in ["a", "b", "fam/x"] {
        world.reserve(name);
    }
    assert_eq!(world.store.len(), (3, 2));
    world.put("b", "mode = \"enforce\"").await;
    world.put("a", "").await;
    for name in ["a", "b", "fam/x"] {
        world.reserve(name);
    }
    assert_eq!(world.store.len(), (3, 2));
    world.put("defaults", "unknown_dependencies = \"refuse\"").await;
    assert!(matches!(world.try_reserve("a"), Err(StoreError::UnknownDependency(_))));
    assert!(is_admitted(&world.reserve("fam/x")));
    world.hands.advance(365 * 86_400_000);
    assert_eq!(world.sweep_all(), 2, "a, refused by now, and fam/x");
    assert_eq!(world.store.len(), (1, 0));
}

#[tokio::test]
async fn a07_a_clock_set_back_neither_fills_nor_forgets() {
    let mut world = World::new("[defaults]\nadmission = { rate = \"1/s\", burst = 5 }\n").await;
    let drain = |world: &mut World| (0..20).filter(|_| is_admitted(&world.reserve("x"))).count();
    assert_eq!(drain(&mut world), 5);
    world.hands.set(START_MS - 1_000_000);
    assert_eq!(drain(&mut world), 0);
    assert_eq!(world.sweep_all(), 0);
    world.hands.advance(2_000);
    assert_eq!(drain(&mut world), 2);
    world.hands.advance(365 * 86_400_000);
    assert_eq!(drain(&mut world), 5);
}

#[tokio::test]
async fn known_names_come_in_pages_by_name() {
    let mut world = World::new("").await;
    for number in 0..100 {
        world.reserve(&format!("{number:03}"));
    }
    let mut after: Option<String> = None;
    let mut all = Vec::new();
    loop {
        let page = world.store.known(after.as_deref(), 7, Clock::instant()).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.to_string());
        all.extend(page.into_iter().map(|name| name.to_string()));
    }
    assert_eq!(all, (0..100).map(|number| format!("{number:03}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn q5_steps_of_many_threads_are_atomic() {
    let text = "[dependency.\"pay\"]\nadmission = { rate = \"1/d\", burst = 1_000 }\n\
                [dependency.\"pay\".cost.tokens]\nrate = \"1/d\"\nburst = 100_000\n";
    let world = World::new(text).await;
    let (store, unit) = (&world.store, UnitId::of("tokens").unwrap());
    let admitted: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4_u128)
            .map(|worker| {
                scope.spawn(move || {
                    let asks = (0..500_u128).map(|number| Reserve {
                        costs: vec![Cost { unit, amount_micros: 50_000_000 }],
                        ..Reserve::new(ReservationId((worker << 64 | number).to_be_bytes()), Attempt::ORIGINAL)
                    });
                    let answers = asks.map(|ask| store.apply(&dependency("pay"), &Step::Reserve(ask)).unwrap());
                    answers.filter(is_admitted).count()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert_eq!(admitted, 1_000);
    let view = world.view("pay").await.unwrap();
    assert_eq!((view.admission_balance_micros, view.in_flight), (Some(0), 1_000));
    assert_eq!(view.units, [(unit, 50_000_000_000)]);
    assert_eq!((view.counters.originals_admitted, view.counters.originals_denied), (1_000, 1_000));
}
