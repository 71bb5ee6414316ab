//! Holders that stand still, crash again and again, split, or are copied.

use budget::lease::{Epoch, SyncAnswer, SyncAsk, Usage};
use budget_client::{
    Coordinators, Source, Standing, boot_time_ns,
    leasing::{Asked, Coordinator},
};
use budget_tests::{
    eventually::{eventually, eventually_some},
    security,
};

use super::{
    fleet::{Admission, Demand, Fleet},
    holder::{HolderProcess, Start},
    judge::Case,
    preload,
    setting::{BOUND, CALL, On, POLICY, QUARANTINE_MS, RETURN_MS, STEP_MS, Setting, TIMING, pass_ms, pay},
};

const MS: i64 = 1_000_000;
const RATE: f64 = 100.0;
/// How much longer than the longest renewal a client decides without its driver.
const ALIVE_SLACK_MS: i64 = 4_000;

/// All that was admitted, by clients of this process and others.
fn together(fleet: &Fleet, holders: &[&HolderProcess]) -> Vec<Admission> {
    let mut all = fleet.seen.admissions.lock().unwrap().clone();
    all.extend(holders.iter().flat_map(|holder| holder.admissions()).map(|(admission, _)| admission));
    all
}

/// It wakes with a lease whose end has passed, and admits nothing by it; its share was others' meanwhile.
///
/// Seen to fail with leases that do not end with their curve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_a_holder_that_stands_still_beyond_its_curve_admits_nothing_by_it() {
    const OTHERS: usize = 3;
    let mut setting = Setting::new(On::Memory, POLICY);
    let start_ns = boot_time_ns();
    let mut fleet = Fleet::start(&setting.endpoints(), OTHERS, Demand::plenty(100, OTHERS + 1));
    fleet.all_leased(RETURN_MS, "first leases").await;
    let endpoint = setting.daemons[0].endpoint();
    let mut holder = HolderProcess::start(Start { endpoint: &endpoint, originals: 50.0, ..Start::default() });
    holder.leased().await;
    pass_ms(1_000).await;
    holder.0.freeze();
    let frozen_ns = boot_time_ns();
    pass_ms(QUARANTINE_MS + 500).await;
    // What it held is others'.
    fleet.works(0.8 * RATE, "the others").await;
    let thawed_ns = boot_time_ns();
    // Nobody can give it a new lease at first.
    setting.daemon().freeze();
    holder.0.thaw();
    pass_ms(500).await;
    let by_lease = |(seen, _): &(Admission, u32)| seen.from_ns > thawed_ns && seen.source == Source::Lease;
    assert_eq!(holder.admissions().iter().filter(|seen| by_lease(seen)).count(), 0, "by a lease that has ended");
    setting.daemon().thaw();
    eventually(BOUND, "it is leased again", async || holder.admissions().iter().any(by_lease)).await;
    println!("leased again {} ms after; on an idle machine {RETURN_MS} ms", (boot_time_ns() - thawed_ns) / MS);
    pass_ms(500).await;
    let admissions = together(&fleet, &[&holder]);
    // Those it was stopped with between the decision and the note of it.
    let asleep = |seen: &&Admission| seen.from_ns < frozen_ns && seen.until_ns > thawed_ns;
    let unsent = i64::try_from(admissions.iter().filter(asleep).count()).unwrap();
    assert!(unsent <= 2, "{unsent}");
    let mut case = Case::new(&setting.policy, OTHERS + 1, 0, start_ns);
    case.causes.unsent = (unsent, unsent);
    case.causes.beyond = 1;
    let awake = admissions.into_iter().filter(|seen| !asleep(&seen)).collect();
    case.assert_of(awake);
    fleet.members.clear();
}

/// A crash loop under one name strands no more than one fair share, and gives back all of it in time.
///
/// Seen to fail with a share for each incarnation instead of each name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_a_crash_loop_under_one_holder_id_strands_one_share_at_most() {
    const OTHERS: usize = 3;
    let setting = Setting::new(On::Memory, POLICY);
    let start_ns = boot_time_ns();
    let fleet = Fleet::start(&setting.endpoints(), OTHERS, Demand::plenty(100, OTHERS + 1));
    fleet.all_leased(RETURN_MS, "first leases").await;
    let operator = setting.operator();
    let endpoint = setting.daemons[0].endpoint();
    let from_ns = boot_time_ns();
    let mut ended = Vec::new();
    for life in 0..6 {
        let start = Start { endpoint: &endpoint, holder: Some("crashing"), originals: 50.0, ..Start::default() };
        let mut holder = HolderProcess::start(start);
        holder.leased().await;
        let page = operator.holders().await;
        let charged: i64 = (page.holders.iter())
            .filter(|holder| holder.value.holder.as_str() == "crashing")
            .map(|holder| holder.value.charged.rate)
            .sum();
        println!("life {life}: {} micros/s are charged to its name", charged);
        // A fair share is a quarter of 80 per second.
        assert!(charged <= 80 * 1_000_000 / 4 + 1_000_000, "{charged}");
        holder.0.kill();
        ended.push(holder);
    }
    // The useful work of a fleet with one that crashes is judged in virtual time: `stranded` of tests/sim.
    fleet.assert_useful(from_ns, boot_time_ns(), 0.6 * RATE, "the others meanwhile");
    let dead_ns = boot_time_ns();
    let gone =
        async || operator.holders().await.holders.iter().all(|holder| holder.value.holder.as_str() != "crashing");
    eventually(BOUND, "the dead holder's share is back", gone).await;
    let took_ms = (boot_time_ns() - dead_ns) / MS;
    println!("a crashed holder's share is back after {took_ms} ms; on an idle machine {QUARANTINE_MS} ms");
    let admissions = together(&fleet, &ended.iter().collect::<Vec<_>>());
    Case::new(&setting.policy, OTHERS + 1, 0, start_ns).assert_of(admissions);
    drop(fleet.end().await);
}

/// The child has the lease and no driver: it decides along the curve at most, and no longer than a client without a
/// sign of life does.
///
/// Seen to fail with `alive_until_ns` at the end of time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_a_forked_holder_stops_by_itself() {
    // A curve that outlasts what a client decides without its driver.
    let long = POLICY.replace("[\"100% 1s\", \"50% 1s\"]", "[\"100% 12s\"]");
    let setting = Setting::new(On::Memory, &long);
    let start_ns = boot_time_ns();
    let fleet = Fleet::start(&setting.endpoints(), 2, Demand::plenty(100, 3));
    fleet.all_leased(RETURN_MS, "first leases").await;
    let endpoint = setting.daemons[0].endpoint();
    let library = preload::library(setting.directory.path());
    let holder = HolderProcess::start(Start { endpoint: &endpoint, splits: Some(&library), ..Start::default() });
    holder.leased().await;
    let operator = setting.operator();
    eventually(BOUND, "it has split", async || holder.0.logged("split ")).await;
    let split_ns = boot_time_ns();
    let page = operator.holders().await;
    let share =
        (page.holders.iter()).find(|holder| holder.value.holder.as_str() == "split").unwrap().value.value.clone();
    let alive_ms = TIMING.renew_max_ms + ALIVE_SLACK_MS;
    let parent = holder.0.id();
    let split = || -> (Vec<_>, Vec<_>) { holder.admissions().into_iter().partition(|(_, process)| *process != parent) };
    let last = |seen: &[(Admission, u32)]| {
        seen.iter().map(|(seen, _)| (seen.from_ns - split_ns) / MS).max().unwrap_or(i64::MIN)
    };
    eventually(BOUND, "the child decides for a while", async || !split().0.is_empty()).await;
    pass_ms(alive_ms + 1_500).await;
    eventually(BOUND, "the parent goes on", async || last(&split().1) > alive_ms).await;
    let (of_child, of_parent) = split();
    println!(
        "child: {} admissions, the last after {} ms, at most {alive_ms} ms; parent: {}, {} ms",
        of_child.len(),
        last(&of_child),
        of_parent.len(),
        last(&of_parent)
    );
    assert!(last(&of_child) <= alive_ms, "{} ms", last(&of_child));
    let mut case = Case::new(&setting.policy, 3, 0, start_ns);
    case.causes.clones = vec![(share, alive_ms)];
    case.assert_of(together(&fleet, &[&holder]));
    drop(fleet.end().await);
}

/// A copy of a running holder, as from a snapshot of its machine, goes ahead under the same incarnation: the other is
/// fenced at its next renewal, and starts anew without a lease.
///
/// Seen to fail with a ledger that does not fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_a_copied_holder_is_fenced_and_starts_anew() {
    let setting = Setting::new(On::Memory, POLICY);
    let start_ns = boot_time_ns();
    let mut fleet = Fleet::start(&setting.endpoints(), 2, Demand::plenty(100, 3));
    fleet.add(&setting.endpoints(), Some("copied"), Demand::plenty(100, 3));
    fleet.all_leased(RETURN_MS, "first leases").await;
    pass_ms(1_000).await;
    let operator = setting.operator();
    let copied = async || {
        let page = operator.holders().await;
        page.holders.into_iter().map(|holder| holder.value).find(|holder| holder.holder.as_str() == "copied")
    };
    let coordinators = Coordinators::new(setting.endpoints(), &security::caller(), CALL).unwrap();
    // The epoch is not told to operators: the copy learns it. What it gets then it does not spend.
    let mut epoch = Epoch::default();
    let mut sequence = 1_000_000;
    let before = eventually_some(BOUND, "the copy is leased", async || {
        let before = copied().await?;
        sequence += 1;
        let ask = SyncAsk {
            holder: before.holder.clone(),
            incarnation: before.incarnation,
            sequence,
            nonce: 1,
            epoch,
            lease: None,
            usage: before.usage.clone(),
            counted: Usage::default(),
            in_flight: 0,
            weight: 1,
            leave: false,
        };
        let ask = Asked { dependency: pay(), ask: Box::new(ask) };
        let reply = coordinators.sync(&[ask]).await.pop()?.unwrap_or_else(|error| panic!("{error}"));
        match reply.answer {
            SyncAnswer::Granted(_) => Some(before),
            SyncAnswer::Epoch(told) => {
                epoch = told;
                None
            }
            // The holder has reported more meanwhile.
            SyncAnswer::Invalid(_) => None,
            answer @ (SyncAnswer::Wait(_)
            | SyncAnswer::Dead
            | SyncAnswer::Fenced
            | SyncAnswer::NotLeased(_)
            | SyncAnswer::Left) => panic!("{answer:?}"),
        }
    })
    .await;
    eventually(BOUND, "another incarnation", async || {
        copied().await.is_some_and(|holder| holder.incarnation != before.incarnation && holder.value.rate > 0)
    })
    .await;
    fleet.all_leased(QUARANTINE_MS + RETURN_MS, "leased after being fenced").await;
    assert_eq!(fleet.standing(Standing::Leased), 3);
    let mut case = Case::new(&setting.policy, 3, 0, start_ns);
    case.causes.clones = vec![(before.value, STEP_MS)];
    case.assert(&*fleet.end().await);
}
