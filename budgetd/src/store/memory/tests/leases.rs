//! Leases in memory: quarantine, heartbeats, and what is never forgotten too early.

use budget::lease::{Incarnation, InvalidSync, LeaseName, NotLeased, Presented, SyncAnswer, Timing, Usage};

use super::*;

const LENT: &str = "[dependency.\"pay\"]\nadmission = { rate = \"100/s\", burst = 100 }\nretry.burst = 20\n\
                    lease.enabled = true\n[dependency.\"plain\"]\nadmission = { rate = \"100/s\", burst = 100 }\n";
/// Curve and margin, by default.
const QUARANTINE_MS: i64 = 123_000;

/// A holder as simple as can be.
struct Pod {
    ask: SyncAsk,
}

// === impl Pod ===

impl Pod {
    fn new(name: &str) -> Self {
        let ask = SyncAsk {
            holder: HolderId::new(name).unwrap(),
            incarnation: Incarnation([7; 16]),
            sequence: 0,
            nonce: 5,
            epoch: Epoch::default(),
            lease: None,
            usage: Usage::default(),
            counted: Usage::default(),
            in_flight: 0,
            weight: 1,
            leave: false,
        };
        Self { ask }
    }

    fn sync(&mut self, world: &World, name: &str) -> SyncAnswer {
        self.ask.sequence += 1;
        let synced = world.store.sync_now(&dependency(name), &self.ask).unwrap();
        self.ask.counted = self.ask.usage.clone();
        if let SyncAnswer::Epoch(epoch) = &synced.answer {
            self.ask.epoch = *epoch;
        }
        if let SyncAnswer::Granted(grant) = &synced.answer {
            let (value, curve) = (grant.value.clone(), grant.curve.clone());
            self.ask.lease = Some(Presented { name: grant.name, value, curve, position_ms: grant.position_ms });
        }
        synced.answer
    }

    /// Until it has one, or is granted nothing; the rate it was granted.
    fn lease(&mut self, world: &World, name: &str) -> i64 {
        for _ in 0..3 {
            if let SyncAnswer::Granted(grant) = self.sync(world, name) {
                return grant.value.rate;
            }
        }
        panic!("no grant")
    }
}

// === impl World ===

impl World {
    fn lending(&self, name: &str) -> Option<budget::ledger::Lending> {
        self.store.shard(&dependency(name)).entries.get(&dependency(name))?.ledger.lending()
    }

    /// Lets time pass with the heartbeats that belong to it.
    fn pass(&self, ms: i64) {
        for _ in 0..ms / 500 {
            self.hands.advance(500);
            self.store.beat();
        }
    }

    async fn with_word(text: &str) -> Self {
        let mut world = Self::new(text).await;
        let (policies, clock) = (Arc::clone(&world.policies), world.store.clock.clone());
        world.store = MemoryStore::new(policies, clock).with_no_leases_out();
        world
    }
}

#[tokio::test]
async fn a_ledger_begins_in_quarantine_since_an_earlier_process_may_have_lent() {
    let mut world = World::new(LENT).await;
    let mut pod = Pod::new("pod-1");
    assert_eq!(pod.lease(&world, "pay"), 0, "all that may be leased may be out");
    let lending = world.lending("pay").unwrap();
    assert_eq!((lending.epoch.number, lending.quarantine_left_ms), (1, QUARANTINE_MS));
    assert_eq!((lending.unknown.rate, lending.charged.rate), (80_000_000, 0));
    // What is never leased is there for direct callers, from empty.
    assert!(!is_admitted(&world.reserve("pay")));
    world.pass(1_000);
    assert_eq!((0..200).filter(|_| is_admitted(&world.reserve("pay"))).count(), 20);

    world.pass(QUARANTINE_MS - 1_000);
    assert_eq!(world.lending("pay").unwrap().quarantine_left_ms, 0);
    let mut usage = Usage { asked: 1_000, ..Usage::default() };
    pod.ask.usage = usage.clone();
    assert!(pod.lease(&world, "pay") > 0);
    usage.asked += 1_000;
    let lending = world.lending("pay").unwrap();
    assert_eq!((lending.holders, lending.unknown.rate), (1, 0));
    assert!(lending.charged.rate > 0 && lending.charged.rate <= 80_000_000);
}

#[tokio::test]
async fn a_word_lends_at_once_and_is_withdrawn_when_an_earlier_lease_turns_up() {
    let world = World::with_word(LENT).await;
    let mut pod = Pod::new("pod-1");
    assert!(matches!(pod.sync(&world, "pay"), SyncAnswer::Epoch(Epoch { number: 1, .. })));
    let SyncAnswer::Granted(grant) = pod.sync(&world, "pay") else { panic!("no grant") };
    assert!(grant.value.rate > 0 && grant.value.burst > 0 && grant.value.retry_burst > 0);
    assert_eq!(world.lending("pay").unwrap().quarantine_left_ms, 0);

    // It lives by what an earlier daemon granted.
    let mut survivor = Pod::new("pod-2");
    survivor.ask.epoch = Epoch { number: 1, id: 77 };
    let name = LeaseName { epoch: survivor.ask.epoch, generation: 3 };
    survivor.ask.lease = Some(Presented { name, value: grant.value, curve: grant.curve, position_ms: 0 });
    let SyncAnswer::Epoch(epoch) = survivor.sync(&world, "pay") else { panic!("no epoch") };
    assert_eq!(epoch.number, 2);
    let lending = world.lending("pay").unwrap();
    assert_eq!((lending.quarantine_left_ms, lending.unknown.rate), (QUARANTINE_MS, 80_000_000));
    assert!(!world.store.grounds.no_leases_out());
    // Others begin in quarantine now.
    world.put("more", "admission = { rate = \"1/s\" }\nlease.enabled = true\n").await;
    Pod::new("pod-1").lease(&world, "more");
    assert_eq!(world.lending("more").unwrap().quarantine_left_ms, QUARANTINE_MS);
}

/// Calls advance time by two seconds at most, so a budget that is called once a minute refilled two seconds' worth. Seen to
/// fail with heartbeats only where something is lent.
#[tokio::test]
async fn a_budget_that_nobody_leases_refills_between_rare_calls_and_then_rests() {
    let slow = "[dependency.\"pay\"]\nadmission = { rate = \"1/s\", burst = 30 }\nlease.enabled = true\n\
                retry = { burst = 1, floor = \"1/s\" }\n";
    let mut world = World::with_word(slow).await;
    world.reserve("pay");
    for _ in 0..3 {
        world.pass(29_500);
        assert_eq!(world.store.beat(), 1);
        world.pass(500);
        assert_eq!(world.store.beat(), 0, "full: nothing can change");
        assert_eq!((0..40).filter(|_| is_admitted(&world.reserve("pay"))).count(), 30);
    }
}

/// Seen to fail without heartbeats: after 23.5 s the whole lease was still charged.
#[tokio::test]
async fn heartbeats_keep_the_time_of_leases_and_end_with_them() {
    let mut world = World::with_word(LENT).await;
    assert_eq!(world.store.beat(), 0);
    world.reserve("plain");
    assert_eq!(world.store.beat(), 0, "nothing is lent there");
    let rate = Pod::new("pod-1").lease(&world, "pay");
    assert_eq!(world.store.beat(), 1);
    // The first step, and its margin.
    world.pass(22_500);
    assert_eq!(world.lending("pay").unwrap().charged.rate, rate);
    world.pass(1_000);
    assert_eq!(world.lending("pay").unwrap().charged.rate, rate / 2);
    world.pass(98_500);
    assert_eq!(world.lending("pay").unwrap().charged.rate, rate / 2);
    world.pass(1_500);
    let lending = world.lending("pay").unwrap();
    assert_eq!((lending.charged.rate, lending.holders), (0, 0));
    // What was lent comes back empty.
    world.pass(30_000);
    assert_eq!(world.store.beat(), 0);
    assert!(world.store.shard(&dependency("pay")).beating.is_empty());
}

/// Seen to fail when heartbeats brought no time since boot: after 18 s half of the lease was lent to others.
#[tokio::test]
async fn a_clock_set_forward_ends_no_lease_early() {
    let world = World::with_word(LENT).await;
    let rate = Pod::new("pod-1").lease(&world, "pay");
    world.store.beat();
    for _ in 0..18 {
        world.hands.set(world.store.clock.now_ms() + 3_600_000);
        world.pass(500);
        world.pass(500);
    }
    let lending = world.lending("pay").unwrap();
    assert_eq!(
        lending.charged.rate, rate,
        "18 s have passed, and not the 36 s more that the jumps would add: {lending:?}"
    );
}

#[tokio::test]
async fn a_ledger_is_never_forgotten_before_its_leases_end() {
    let text = "[defaults]\nadmission = { rate = \"100/s\", burst = 100 }\nlease.enabled = true\n";
    let world = World::with_word(text).await;
    Pod::new("pod-1").lease(&world, "any");
    let idle_ttl_ms = world.store.shard(&dependency("any")).entries[&dependency("any")].ledger.idle_ttl_ms();
    assert!(idle_ttl_ms >= 24 * 3_600_000);
    // As after a long suspend: the wall clock has gone on, ledger time has not.
    world.hands.advance(idle_ttl_ms + 60_000);
    assert_eq!(world.sweep_all(), 0);
    assert_eq!(world.store.len(), (1, 1));
    world.pass(QUARANTINE_MS + 2_000);
    assert_eq!(world.sweep_all(), 1);
    assert_eq!(world.store.len(), (0, 0));
    // A lease of the forgotten life is none of the next one, which needs no quarantine: all have ended.
    Pod::new("pod-1").lease(&world, "any");
    let lending = world.lending("any").unwrap();
    assert_eq!((lending.epoch.number, lending.quarantine_left_ms), (2, 0));
}

/// After the longest curve there is, no lease of an earlier process can be in use, whatever its policy was.
#[tokio::test]
async fn a_process_that_has_lived_long_enough_needs_no_word() {
    let world = World::new(LENT).await;
    world.hands.advance(7_200_000);
    Pod::new("pod-1").lease(&world, "pay");
    assert_eq!(world.lending("pay").unwrap().quarantine_left_ms, QUARANTINE_MS);
    let world = World::new(LENT).await;
    world.hands.advance(7_200_001);
    assert!(Pod::new("pod-1").lease(&world, "pay") > 0);
}

/// Until two masters can no longer both answer, direct callers get the fallback.
#[tokio::test]
async fn direct_callers_get_the_fallback_while_another_master_may_answer() {
    let limits = Timing { overlap_ms: 6_000, ..Timing::default() };
    let text = format!("{LENT}[defaults]\nfallback.originals = \"5/s\"\n");
    let mut world = World::timed(&text, LeaseTiming { limits, unsafe_short: false }).await;
    let first = world.reserve("pay");
    assert!(first.degraded && !is_admitted(&first), "the fallback begins empty");
    world.hands.advance(1_000);
    let second = world.reserve("pay");
    assert!(second.degraded && is_admitted(&second));
    let SyncAnswer::Wait(ms) = Pod::new("pod-1").sync(&world, "pay") else { panic!("no wait") };
    assert_eq!(ms, 5_000);
    // A release of what is lost is known to be of nothing.
    let released = world.apply("pay", Step::Release(Release::not_sent(world.id()))).unwrap();
    assert_eq!((released.answer, released.degraded), (Answer::Released(ReleaseResult::Unknown), false));
    assert!(!world.reserve("plain").degraded, "where leases are not permitted nobody waits");
    world.pass(5_000);
    assert!(!world.reserve("pay").degraded);
    let lending = world.lending("pay").unwrap();
    assert_eq!((lending.wait_left_ms, lending.quarantine_left_ms), (0, QUARANTINE_MS));
}

#[tokio::test]
async fn what_cannot_be_leased_leaves_no_state() {
    let refusing = "[defaults]\nunknown_dependencies = \"refuse\"\n";
    let world = World::with_word(&format!("{LENT}{refusing}")).await;
    let mut pod = Pod::new("pod-1");
    assert_eq!(pod.sync(&world, "plain"), SyncAnswer::NotLeased(NotLeased::NotPermitted));
    pod.ask.leave = true;
    assert_eq!(pod.sync(&world, "pay"), SyncAnswer::Left);
    let error = world.store.sync_now(&dependency("nobody"), &pod.ask).unwrap_err();
    assert!(matches!(error, StoreError::UnknownDependency(_)), "{error}");
    let (name, pod) = (dependency("pay"), HolderId::new("pod-1").unwrap());
    assert!(!world.store.revoke(&name, &pod, Clock::instant()).await.unwrap());
    assert!(world.store.list_holders(&name, None, 10, Clock::instant()).await.unwrap().is_empty());
    assert_eq!(world.store.len(), (0, 0));
}

#[tokio::test]
async fn holders_are_listed_in_order_and_lose_their_leases() {
    let world = World::with_word(LENT).await;
    let mut pods: Vec<_> = ["c", "a", "b"].map(Pod::new).into();
    for pod in &mut pods {
        pod.lease(&world, "pay");
    }
    let list = async |after: Option<&str>, limit| {
        let after = after.map(|name| HolderId::new(name).unwrap());
        let listed = world.store.list_holders(&dependency("pay"), after.as_ref(), limit, Clock::instant()).await;
        listed.unwrap().into_iter().map(|view| view.holder.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(list(None, 10).await, ["a", "b", "c"]);
    assert_eq!(list(Some("a"), 1).await, ["b"]);
    assert_eq!(list(Some("c"), 1).await, [""; 0]);

    let revoke =
        async |name| world.store.revoke(&dependency("pay"), &HolderId::new(name).unwrap(), Clock::instant()).await;
    assert!(revoke("c").await.unwrap());
    assert!(!revoke("d").await.unwrap());
    world.pass(5_000);
    pods[0].ask.usage.asked = 500;
    let SyncAnswer::Granted(grant) = pods[0].sync(&world, "pay") else { panic!("no grant") };
    assert!(grant.value.is_zero());
    pods[1].ask.usage.asked = 500;
    let SyncAnswer::Granted(grant) = pods[1].sync(&world, "pay") else { panic!("no grant") };
    assert!(!grant.value.is_zero());
    // A mistake is told and changes nothing.
    pods[1].ask.usage.asked = 1;
    assert_eq!(pods[1].sync(&world, "pay"), SyncAnswer::Invalid(InvalidSync::UsageBackwards));
}

/// A policy that is lowered counts for leases from the next heartbeat on.
#[tokio::test]
async fn heartbeats_bring_newer_policies() {
    let mut world = World::with_word(LENT).await;
    Pod::new("pod-1").lease(&world, "pay");
    world.put("pay", "admission = { rate = \"1/s\", burst = 1 }\nlease.enabled = true\n").await;
    world.store.beat();
    let newest = world.policies.snapshot().version();
    assert_eq!(world.store.shard(&dependency("pay")).entries[&dependency("pay")].ledger.version(), newest);
    assert!(!is_admitted(&world.reserve("pay")), "more is leased than there is now");
}
