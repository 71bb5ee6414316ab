//! What one renewal costs a ledger, by the number of its holders: the sums are running sums, so it must not grow with
//! them. The ratio is printed at the end; 1.2 is the most that is accepted from 10 to 10,000 holders.
//!
//! Every renewal has a jitter of its own, so holders come in an order that has nothing to do with that of their first
//! lease, and every request brings the name anew: neither order nor a shared name helps the memory of the machine. On the
//! other hand holders live elsewhere: of them so little is kept here that it leaves the caches to the ledger.

use std::{sync::Arc, time::Duration};

use budget::{
    ids::PolicyVersion,
    lease::{Amounts, Curve, Ground, HolderId, Incarnation, LeaseName, Presented, SyncAnswer, SyncAsk, Usage},
    ledger::{Ledger, Start},
    policy::{Lease, Limit, Numbers, Policy, Spec},
    units::Rate,
};
use criterion::Criterion;

const RATIO_MAX: f64 = 1.2;
/// Renewals timed at once; no more than the fewest holders, so that each has heard its last answer.
const BATCH: usize = 10;
/// Renewals of all holders are spread over this.
const ROUND_MS: i64 = 5_000;

/// What a request is made of.
#[derive(Clone, Default)]
struct Holder {
    sequence: i64,
    /// Of its last lease, and what that was.
    generation: i64,
    value: Amounts,
}

struct World {
    ledger: Ledger,
    numbers: Arc<Numbers>,
    curve: Curve,
    holders: Vec<Holder>,
    /// In which order they renew, and who is next in it.
    order: Vec<usize>,
    next: usize,
    clock_ms: i64,
    /// Thousandths of a millisecond that are not in `clock_ms` yet.
    fraction: i64,
}

impl World {
    fn new(holders: usize) -> Self {
        let spec = Spec {
            admission: Some(Limit { rate: Rate::parse("1M/s").expect("a rate"), burst_tokens: 1_000_000 }),
            retry_burst_tokens: 100_000,
            lease: Lease { enabled: true, ..Lease::default() },
            ..Spec::default()
        };
        let numbers = Arc::new(Policy::new(spec).expect("a policy").numbers(false, true));
        let ledger = Ledger::new(PolicyVersion { number: 1, id: 1 }, Arc::clone(&numbers), Start::Empty, 0);
        let mut world = Self {
            ledger,
            curve: numbers.lease.as_ref().expect("leases").curve.clone(),
            numbers,
            holders: vec![Holder::default(); holders],
            order: shuffled(holders),
            next: 0,
            clock_ms: 0,
            fraction: 0,
        };
        world.begin();
        // Until shares have settled.
        for _ in 0..holders * 8 {
            world.renew();
        }
        world
    }

    fn begin(&mut self) {
        let ground = Ground { identity: 1, fresh_id: 1, fresh_store: true, ..Ground::default() };
        let version = PolicyVersion { number: 1, id: 1 };
        self.ledger.begin(version, &self.numbers, false, self.clock_ms, &ground).expect("never stale");
    }

    /// The next ask, as it would come off the wire.
    fn ask(&mut self) -> SyncAsk {
        let at = self.order[self.next];
        self.next = (self.next + 1) % self.order.len();
        let epoch = self.ledger.epoch();
        let holder = &mut self.holders[at];
        holder.sequence += 1;
        let usage = |asks: i64| Usage { asked: asks * 100, originals_admitted: asks * 90, ..Usage::default() };
        SyncAsk {
            holder: HolderId::new(&format!("holder-{at}")).expect("a name"),
            incarnation: Incarnation((at as u128).to_be_bytes()),
            sequence: holder.sequence,
            nonce: holder.sequence,
            epoch,
            lease: (holder.generation > 0).then(|| Presented {
                name: LeaseName { epoch, generation: holder.generation },
                value: holder.value.clone(),
                curve: self.curve.clone(),
                position_ms: 0,
            }),
            usage: usage(holder.sequence),
            counted: usage(holder.sequence - 1),
            in_flight: 0,
            weight: 1,
            leave: false,
        }
    }

    /// One renewal, with the time that passes between two of them.
    fn decide(&mut self, ask: &SyncAsk) -> SyncAnswer {
        self.fraction += ROUND_MS * 1_000 / self.order.len() as i64;
        self.clock_ms += self.fraction / 1_000;
        self.fraction %= 1_000;
        self.begin();
        self.ledger.sync(ask, &Ground { identity: 1, fresh_id: 1, ..Ground::default() })
    }

    /// What the holder does with the answer.
    fn hear(&mut self, turn: usize, answer: &SyncAnswer) {
        let SyncAnswer::Granted(grant) = answer else { panic!("{answer:?}") };
        let holder = &mut self.holders[self.order[turn % self.order.len()]];
        (holder.generation, holder.value) = (grant.name.generation, grant.value.clone());
    }

    fn renew(&mut self) {
        let turn = self.next;
        let ask = self.ask();
        let answer = self.decide(&ask);
        self.hear(turn, &answer);
    }

    /// Nanoseconds for each of some renewals: of the ledger alone, not of the holders.
    fn time(&mut self, answers: &mut Vec<SyncAnswer>) -> f64 {
        let first = self.next;
        let asks: Vec<SyncAsk> = (0..BATCH).map(|_| self.ask()).collect();
        let start = thread_time_ns();
        answers.extend(asks.iter().map(|ask| self.decide(ask)));
        let took = thread_time_ns() - start;
        for (step, answer) in answers.drain(..).enumerate() {
            self.hear(first + step, &answer);
        }
        took as f64 / BATCH as f64
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    let mut group = criterion.benchmark_group("renewal");
    // Rounds alternate, so that other load on the machine meets all alike; the medians are compared.
    let sizes = [10, 100, 1_000, 10_000];
    let mut worlds = sizes.map(World::new);
    for (holders, world) in sizes.iter().zip(&mut worlds) {
        group.bench_function(format!("{holders} holders"), |bencher| bencher.iter(|| world.renew()));
    }
    group.finish();

    let mut medians = sizes.map(|_| Vec::new());
    let mut answers = Vec::with_capacity(BATCH);
    for _ in 0..20_000 {
        for (world, times) in worlds.iter_mut().zip(&mut medians) {
            times.push(world.time(&mut answers));
        }
    }
    let medians = medians.map(|mut times| {
        times.sort_unstable_by(f64::total_cmp);
        times[times.len() / 2]
    });
    println!();
    for (holders, median) in sizes.iter().zip(medians) {
        println!("{holders:>6} holders  {median:>8.0} ns per renewal  {:>5.2} x", median / medians[0]);
    }
    let ratio = medians[3] / medians[0];
    println!(
        "from 10 to 10,000 holders {ratio:.2} x, at most {RATIO_MAX} x: {}",
        if ratio <= RATIO_MAX { "ok" } else { "MISSED" }
    );
}

/// The numbers below `count` in an order that is the same in every run.
fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut random = 1_u64;
    for at in (1..count).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(at, (random >> 33) as usize % (at + 1));
    }
    order
}

/// Processor time of this thread, in nanoseconds: what other processes do does not count.
fn thread_time_ns() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
