//! Cost units and permits under faults: clients that estimate what an attempt costs, settle what it did cost, and hold a
//! permit meanwhile.
//!
//! Either tokens are scarce, or permits are: each fault meets both, and useful work is measured in what is scarce, by what
//! clients asked for.

use budget_client::{Standing, boot_time_ns};
use budget_tests::eventually::eventually;

use super::{
    bills::{Besides, Bill, Billed, MEAN_COST},
    fleet::{Demand, Fleet},
    holder::{HolderProcess, Start},
    judge::Case,
    outages::{all_fresh, nothing_blocks},
    pace::Pace,
    redis::alone,
    setting::{CALL, On, Operator, REST_MS, Setting, TIMING, pass_ms, pay_id, until_ns},
};

const MS: i64 = 1_000_000;
const MEMBERS: usize = 5;
/// Tokens per second; an attempt costs ten on the average.
const TOKENS: i64 = 1_000;
/// What a fleet asks for is a multiple of so many attempts per second.
const RATE: i64 = 100;
/// A permit's longest life: slots of a lost state are out for so long after its leases.
const LIFE_MS: i64 = 1_000;

/// Steps of the whole curve, of which the first is worth all of the lease, and the others half of it: long enough for what
/// is left in buckets at either end, less than an attempt costs, to be little.
const STEPS: i64 = 3;

/// A dead holder's share is others' after this, permits that it had given last included.
fn gone_ms(pace: Pace) -> i64 {
    STEPS * pace.step_ms() + pace.timing().margin_ms + pace.ms(LIFE_MS)
}

/// T4 where permits are limited.
fn back_ms(pace: Pace) -> i64 {
    gone_ms(pace) + 2 * pace.timing().renew_max_ms + pace.ms(2_000) + REST_MS
}

/// What there is too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scarce {
    Tokens,
    Permits,
}

/// What is lent, in all.
#[derive(Clone, Copy, Debug, Default)]
struct Lent {
    tokens: f64,
    permits: i64,
    /// At the second step of the curve: each holder rounds down.
    permits_at_half: i64,
    /// When no lease was older than a renewal.
    fresh_ns: i64,
}

struct Work {
    scarce: Scarce,
    fleet: Fleet,
    operator: Operator,
    start_ns: i64,
}

// === impl Scarce ===

impl Scarce {
    fn max_in_flight(self) -> i64 {
        match self {
            // A permit that is lost is out for up to two lives: of half a share some must be left.
            Self::Tokens => 80,
            Self::Permits => 20,
        }
    }

    /// Admissions, of which there are enough, are twice as many as tokens suffice for.
    fn policy(self, pace: Pace) -> String {
        let text = format!(
            "admission = {{ rate = \"{}/s\", burst = 60, max_in_flight = {}, permit_ttl = \"{}ms\" }}\n\
             retry = {{ ratio = 0.2, floor = \"2/s\", burst = 15 }}\n\
             lease = {{ enabled = true, part = 0.8, curve = [\"100% 1s\", \"50% 2s\"] }}\n\
             fallback = {{ originals = \"10%\", retries = \"earned\" }}\n\
             [dependency.pay.cost.tokens]\nrate = \"{}/s\"\nburst = 400\n",
            pace.rate(200),
            self.max_in_flight(),
            pace.ms(LIFE_MS),
            pace.rate(TOKENS)
        );
        pace.curved(&text)
    }

    fn bill(self, pace: Pace) -> Bill {
        let lost_ms = pace.ms(2 * LIFE_MS).unsigned_abs();
        let (shortest, longest, one_lost_of) = match self {
            Self::Tokens => (10, 50, 200),
            // A hundred per second, as tokens suffice for, would be 25 at once.
            Self::Permits => (150, 350, 1_000),
        };
        Bill { held_ms: (pace.ms(shortest).unsigned_abs(), pace.ms(longest).unsigned_abs()), one_lost_of, lost_ms }
    }

    fn demand(self, pace: Pace, members: usize) -> Demand {
        Demand { bill: Some(self.bill(pace)), ..Demand::plenty_at(pace, RATE, members) }
    }

    /// Of what is scarce, all that a fleet can use; of permits those of leases.
    fn whole(self, pace: Pace) -> f64 {
        match self {
            Self::Tokens => pace.rate(TOKENS) as f64,
            Self::Permits => 0.7 * self.max_in_flight() as f64,
        }
    }
}

// === impl Work ===

impl Work {
    /// Clients that have had leases for a while.
    async fn settled(setting: &Setting, scarce: Scarce) -> (Self, Lent) {
        let fleet = Fleet::start(&setting.endpoints(), MEMBERS, scarce.demand(setting.pace, MEMBERS));
        let work = Self { scarce, fleet, operator: setting.operator(), start_ns: boot_time_ns() };
        work.fleet.all_leased(back_ms(setting.pace), "first leases").await;
        // Slots that the first ones gave up for the last one are out for a permit's life; half of what it has until then
        // may be none.
        let least = 7 * scarce.max_in_flight() / 10;
        eventually(setting.pace.bound(), "permits are shared", async || work.lent().await.permits >= least).await;
        work.flows("shares have settled").await;
        let fresh_ns = all_fresh(&work.operator, MEMBERS, setting.pace, STEPS).await.at_ns;
        let lent = Lent { fresh_ns, ..work.lent().await };
        println!("settled: {lent:?}");
        (work, lent)
    }

    /// What the coordinator says is lent.
    async fn lent(&self) -> Lent {
        let holders = self.operator.try_holders().await.map_or_else(Vec::new, |page| page.holders);
        let values = holders.iter().map(|holder| &holder.value.value);
        values.fold(Lent::default(), |lent, value| Lent {
            tokens: lent.tokens + value.units.first().map_or(0.0, |unit| unit.rate as f64 / 1e6),
            permits: lent.permits + value.slots,
            permits_at_half: lent.permits_at_half + value.slots / 2,
            ..lent
        })
    }

    /// Of what is scarce, what was used in a time, and the least that is useful work of so much by what was asked.
    fn useful(&self, from_ns: i64, until_ns: i64, there_is: f64, what: &str) -> (f64, f64) {
        let (seen, askers) = (&self.fleet.seen, self.fleet.askers());
        let (used, wanted) = match self.scarce {
            Scarce::Tokens => {
                let attempts = seen.rounds.fewest(from_ns, until_ns, there_is / MEAN_COST, askers);
                (seen.bills.tokens(from_ns, until_ns) as f64, attempts as f64 * MEAN_COST)
            }
            Scarce::Permits => seen.rounds.held(from_ns, until_ns, askers).map_or((0.0, 0.0), |held| (held, there_is)),
        };
        println!("{what}: {used:.1} {:?} are used, {wanted:.1} are useful work of {there_is:.1}", self.scarce);
        (used, wanted)
    }

    fn assert_useful(&self, from_ns: i64, until_ns: i64, there_is: f64, what: &str) {
        let (used, wanted) = self.useful(from_ns, until_ns, there_is, what);
        assert!(used >= wanted, "{what}: {used:.1} of {wanted:.1}; {}", self.fleet.summary());
    }

    /// Waits until most of what is scarce is used in a second.
    async fn flows(&self, what: &str) {
        let pace = self.fleet.pace;
        eventually(pace.bound(), what, async || {
            let from_ns = boot_time_ns();
            pass_ms(pace.ms(1_000)).await;
            let (used, wanted) = self.useful(from_ns, boot_time_ns(), 0.95 * self.scarce.whole(pace), what);
            wanted > 0.0 && used >= wanted
        })
        .await;
    }

    /// Both steps of the curve are used, and then the lease is over.
    async fn curve_is_followed(&self, away_ns: i64, lent: Lent) {
        let pace = self.fleet.pace;
        let step_ns = pace.step_ms() * MS;
        let first_ns = lent.fresh_ns + step_ns - pace.ms(TIMING.renew_max_ms + 50) * MS;
        until_ns(first_ns).await;
        let (whole, half) = match self.scarce {
            Scarce::Tokens => (lent.tokens, 0.5 * lent.tokens),
            Scarce::Permits => (lent.permits as f64, lent.permits_at_half as f64),
        };
        self.assert_useful(away_ns, first_ns, 0.9 * whole, "on the curve");
        let (half_ns, end_ns) = (away_ns + step_ns, first_ns + (STEPS - 1) * step_ns);
        until_ns(end_ns).await;
        self.assert_useful(half_ns, end_ns, 0.9 * half, "on the half of it");
        self.fleet.stand(Standing::Fallback, self.fleet.members.len()).await;
        pass_ms(pace.ms(500)).await;
        assert_eq!(self.fleet.by_lease_since(away_ns + STEPS * step_ns), 0, "a lease goes on beyond its curve");
    }

    /// T4, and useful work again.
    async fn returned(&self, what: &str) {
        self.fleet.all_leased(back_ms(self.fleet.pace), what).await;
        self.flows("after the return").await;
        nothing_blocks(&self.fleet);
    }

    /// Judges T1 and T2, the unit, and T5.
    async fn judge(self, mut case: Case, others: Vec<Billed>, overuse_micros: Option<i64>, paused: Option<(i64, i64)>) {
        let local = |(_, counts): (_, budget_client::Counts)| counts.local.overuse_micros;
        let of_members = self.fleet.members.iter().flat_map(|member| member.client.counts()).map(local).sum();
        let seen = self.fleet.end().await;
        let mut bills = seen.bills.all();
        bills.extend(others);
        let besides = Besides { overuse_micros: overuse_micros.unwrap_or(of_members), paused_ns: paused };
        println!("{besides:?}");
        case.all_beyond();
        case.assert_bills(&bills, besides);
        case.assert(&seen);
    }
}

async fn killed_and_started_again(scarce: Scarce) {
    let pace = Pace::of_machine();
    let mut setting = Setting::paced(pace, On::Memory, &scarce.policy(pace), 1, &[]);
    let (work, lent) = Work::settled(&setting, scarce).await;
    setting.daemon().kill();
    let killed_ns = boot_time_ns();
    work.curve_is_followed(killed_ns, lent).await;
    setting.restart_on_memory();
    work.returned("T4 after a restart").await;
    let mut case = Case::of(&setting, MEMBERS, 0, work.start_ns);
    case.epoch(killed_ns);
    work.judge(case, Vec::new(), None, None).await;
}

/// Seen to fail with renewals whose buckets start full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_tokens_of_bills_keep_the_bound_when_a_daemon_is_killed() {
    killed_and_started_again(Scarce::Tokens).await;
}

/// Seen to fail with slots that are others' as soon as a holder has given them up, permits out or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_permits_that_are_held_keep_the_bound_when_a_daemon_is_killed() {
    killed_and_started_again(Scarce::Permits).await;
}

/// Redis, and every daemon with it.
async fn all_killed(scarce: Scarce) {
    const REPLICAS: usize = 2;
    let (_alone, pace) = alone().await;
    let mut setting = Setting::paced(pace, On::Redis7, &scarce.policy(pace), REPLICAS, &[]);
    let (work, lent) = Work::settled(&setting, scarce).await;
    let killed_ns = boot_time_ns();
    setting.redis.as_mut().unwrap().kill();
    setting.daemons.iter_mut().for_each(budget_tests::daemon::Daemon::kill);
    work.curve_is_followed(killed_ns, lent).await;
    setting.redis.as_mut().unwrap().restart();
    setting.daemons.iter_mut().for_each(budget_tests::daemon::Daemon::restart);
    work.returned("T4 after the end of everything").await;
    let mut case = Case::of(&setting, MEMBERS, REPLICAS, work.start_ns);
    case.epoch(killed_ns);
    work.judge(case, Vec::new(), None, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_tokens_of_bills_keep_the_bound_when_redis_and_every_daemon_are_killed() {
    all_killed(Scarce::Tokens).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_permits_that_are_held_keep_the_bound_when_redis_and_every_daemon_are_killed() {
    all_killed(Scarce::Permits).await;
}

/// Redis forgets everything, three times, sooner than permits end and quarantines do.
async fn flushed(on: On, scarce: Scarce) {
    let (_alone, pace) = alone().await;
    let mut setting = Setting::paced(pace, on, &scarce.policy(pace), 1, &[]);
    let (work, _) = Work::settled(&setting, scarce).await;
    let mut case = Case::of(&setting, MEMBERS, 1, work.start_ns);
    for _ in 0..3 {
        case.epoch(boot_time_ns());
        setting.redis.as_mut().unwrap().cli(&["FLUSHALL"]);
        pass_ms(pace.ms(400)).await;
    }
    work.returned("T4 after three flushes").await;
    work.judge(case, Vec::new(), None, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_tokens_of_bills_keep_the_bound_when_redis_is_flushed() {
    flushed(On::Redis7, Scarce::Tokens).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_permits_that_are_held_keep_the_bound_when_valkey_is_flushed() {
    flushed(On::Valkey9, Scarce::Permits).await;
}

/// A holder stands still beyond its curve, with permits out and bills to settle: both end without it. What it settles when
/// it wakes is charged to nobody's share.
async fn stands_still(scarce: Scarce) {
    let pace = Pace::of_machine();
    let mut setting = Setting::paced(pace, On::Memory, &scarce.policy(pace), 1, &[]);
    let endpoint = setting.daemons[0].endpoint();
    let (work, _) = Work::settled(&setting, scarce).await;
    let start = Start {
        endpoint: &endpoint,
        originals: 40.0 / pace.factor() as f64,
        bill: Some(scarce.bill(pace)),
        pace,
        ..Start::default()
    };
    let mut holder = HolderProcess::start(start);
    holder.leased().await;
    pass_ms(pace.ms(1_500)).await;
    holder.0.freeze();
    let frozen_ns = boot_time_ns();
    pass_ms(gone_ms(pace)).await;
    work.flows("the others").await;
    // Nobody can give it a new lease at first.
    setting.daemon().freeze();
    let thawed_ns = boot_time_ns();
    holder.0.thaw();
    pass_ms(pace.ms(500)).await;
    let of_lease = |billed: &&Billed| billed.sent_ns > thawed_ns && billed.source == budget_client::Source::Lease;
    assert_eq!(holder.bills().iter().filter(of_lease).count(), 0, "by a lease that has ended");
    setting.daemon().thaw();
    eventually(pace.bound(), "it is leased again", async || holder.bills().iter().any(|billed| of_lease(&billed)))
        .await;
    pass_ms(pace.ms(500)).await;
    let asleep =
        holder.bills().iter().filter(|one| one.sent_ns < frozen_ns && one.settled_ns > Some(thawed_ns)).count();
    println!("{asleep} attempts were under way while it stood still");
    holder.0.freeze();
    let status = setting.operator().client().get_status(&[pay_id()], None, CALL).await.unwrap();
    let overuse_micros = status.dependencies[0].counters.overuse_micros;
    let admissions = holder.admissions().into_iter().map(|(admission, _)| admission);
    work.fleet.seen.admissions.lock().unwrap().extend(admissions);
    let case = Case::of(&setting, MEMBERS + 1, 0, work.start_ns);
    work.judge(case, holder.bills(), Some(overuse_micros), Some((frozen_ns, thawed_ns))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_a_holder_that_stands_still_with_bills_to_settle_keeps_the_bound() {
    stands_still(Scarce::Tokens).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_a_holder_that_stands_still_with_permits_out_keeps_the_bound() {
    stands_still(Scarce::Permits).await;
}
