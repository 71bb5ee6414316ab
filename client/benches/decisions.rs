//! Local decisions against one direct `check()` of the crate governor with its default clock, in one run. A summary of
//! the ratios closes the output. Each decision reads the client's clock once, and so does sending.
//!
//! Governor's default clock reads the processor's counter where it can, in half the time of any system clock, and stops
//! in suspend, which a lease must not; the client's clock reads it too, but asks the kernel every millisecond. The ratios
//! are also given to governor with a system clock.

use std::{
    hint::black_box,
    num::NonZeroU32,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use budget::{
    decision::{Cause, Outcome},
    holder::{Action, Holder, Local, LocalAsk, Reply, Share},
    ids::PolicyVersion,
    lease::{
        Amounts, Curve, Epoch, FallbackRules, Grant, HolderId, Incarnation, LeaseName, LocalOriginals, Rules,
        SyncAnswer, Timing,
    },
    policy::CurveStep,
    units::{MICROS_PER_TOKEN, PPM},
};
use budget_client::{Client, boot_time_ns};
use criterion::{Criterion, Throughput};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter, clock::MonotonicClock};
use nix::time::{ClockId, clock_gettime};

/// Nanoseconds per operation by sample.
static SEEN: Mutex<Vec<(&str, f64)>> = Mutex::new(Vec::new());

/// Measures `operation` on `threads` threads; an iteration is one operation of each.
fn measure(criterion: &mut Criterion, name: &'static str, threads: usize, operation: impl Fn() + Sync) {
    let mut group = criterion.benchmark_group("local");
    group.throughput(Throughput::Elements(threads as u64));
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            if threads > 1 {
                return race(name, &operation, iterations, threads);
            }
            let took = run(&operation, iterations);
            note(name, took.as_nanos() as f64 / iterations as f64);
            took
        });
    });
    group.finish();
}

/// Time of this thread on a processor: nothing here waits, and what else the machine does must not count.
fn busy_ns() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
    now.tv_sec() * 1_000_000_000 + now.tv_nsec()
}

fn run(operation: &impl Fn(), iterations: u64) -> Duration {
    let start = busy_ns();
    for _ in 0..iterations {
        operation();
    }
    Duration::from_nanos((busy_ns() - start) as u64)
}

/// Iterations of one heat: short enough for both threads to be on a processor all the while.
const HEAT: u64 = 3_000;

/// Two threads in heats that begin together. Heats that did not overlap, since the machine had something else to do, say
/// nothing about contention, and the summary leaves them out.
fn race(name: &'static str, operation: &(impl Fn() + Sync), iterations: u64, threads: usize) -> Duration {
    let heats = iterations.div_ceil(HEAT).max(300);
    let gate = AtomicU64::new(0);
    let run = || {
        let mut spans = Vec::new();
        for heat in 1..=heats {
            gate.fetch_add(1, SeqCst);
            while gate.load(SeqCst) < heat * threads as u64 {
                std::hint::spin_loop();
            }
            let start = boot_time_ns();
            (0..HEAT).for_each(|_| operation());
            spans.push((start, boot_time_ns()));
        }
        spans
    };
    let of_threads: Vec<Vec<(i64, i64)>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        running.into_iter().map(|thread| thread.join().expect("a thread of the benchmark")).collect()
    });
    let mut all_ns = 0;
    for heat in 0..heats as usize {
        let spans = || of_threads.iter().map(|spans| spans[heat]);
        let first_ns = spans().map(|span| span.0).min().unwrap_or(0);
        let last_ns = spans().map(|span| span.1).max().unwrap_or(0);
        let together_ns = spans().map(|span| span.1).min().unwrap_or(0) - spans().map(|span| span.0).max().unwrap_or(0);
        let took_ns = last_ns - first_ns;
        all_ns += took_ns;
        if together_ns * 20 > took_ns * 17 {
            note(name, took_ns as f64 / HEAT as f64 / threads as f64);
        }
    }
    Duration::from_nanos((all_ns as f64 / (heats * HEAT) as f64 * iterations as f64) as u64)
}

fn note(name: &'static str, each: f64) {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).push((name, each));
}

fn median(name: &str) -> f64 {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut of: Vec<_> = seen.iter().filter(|(seen, _)| *seen == name).map(|(_, each)| *each).collect();
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

fn rules() -> Rules {
    Rules {
        version: PolicyVersion { number: 1, id: 1 },
        shadow: false,
        retries_off: false,
        limited: true,
        slots_limited: false,
        deposit_micros: 100_000,
        earn_on_success: false,
        retry_cost_micros: [MICROS_PER_TOKEN; 5],
        max_attempts: 3,
        permit_ttl_ms: 60_000,
        priority_ppm: [PPM; 3],
        units: Box::default(),
        fallback: FallbackRules { originals: LocalOriginals::Deny, retries_earned: false, units: Box::default() },
    }
}

/// A share whose lease lasts for the run. Retry tokens: as many as given.
fn leased(rules: &Rules, retry_tokens: i64) -> Arc<Share> {
    let now = boot_time_ns();
    let id = HolderId::new("bench").expect("a name");
    let mut holder = Holder::new(id, Incarnation([1; 16]), 1, Timing::default(), rules.fallback.clone(), 1, now);
    let Action::Send { ask, attempt } = holder.poll(now, 1) else { panic!("a new holder asks at once") };
    let value = Amounts {
        rate: 4_000_000 * MICROS_PER_TOKEN,
        burst: 900_000_000 * MICROS_PER_TOKEN,
        retry_burst: retry_tokens * MICROS_PER_TOKEN,
        slots: if rules.slots_limited { 1_000 } else { 0 },
        units: Box::default(),
    };
    let answer = SyncAnswer::Granted(Grant {
        name: LeaseName { epoch: Epoch { number: 1, id: 1 }, generation: 1 },
        position_ms: 0,
        moved: value.clone(),
        value,
        curve: Curve([CurveStep { part_ppm: PPM, duration_ms: 3_600_000 }].into()),
    });
    let reply =
        Reply { sequence: ask.sequence, nonce: ask.nonce, attempt: Some(attempt), answer: &answer, rules: Some(rules) };
    holder.on_answer(now, &reply);
    Arc::clone(holder.share())
}

fn whole_cycle(share: &Share) {
    let Local::Admitted(spent) = share.reserve(boot_time_ns(), black_box(&LocalAsk::ORIGINAL)) else { return };
    let now = boot_time_ns();
    if share.check(&spent, now) {
        share.settle(spent, now, black_box(Outcome::Success), &[]);
    }
}

/// Until the client's clock has measured the processor's counter, if the kernel uses it; as in any process that has a
/// leased client for a while.
fn settle_clock() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = runtime.block_on(async { Client::builder().endpoints(["unix:nowhere"]).connect() });
    drop((client.expect("an endpoint"), runtime));
    let start_ns = boot_time_ns();
    while boot_time_ns() < start_ns + 500_000_000 {
        std::hint::spin_loop();
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    settle_clock();
    // As fast as a lease can be, and never empty in a run.
    let per_second = NonZeroU32::new(4_000_000).unwrap_or(NonZeroU32::MIN);
    let governor: DefaultDirectRateLimiter =
        RateLimiter::direct(Quota::per_second(per_second).allow_burst(NonZeroU32::MAX));
    let quota = Quota::per_second(per_second).allow_burst(NonZeroU32::MAX);
    let governor_clock = RateLimiter::direct_with_clock(quota, MonotonicClock);
    let slots = Rules { slots_limited: true, ..rules() };
    let retry = LocalAsk::retry(2, Cause::Transient);
    let plain = leased(&rules(), 10);
    let with_slots = leased(&slots, 10);
    let rich = leased(&rules(), 1_000_000_000);
    let poor = leased(&rules(), 0);
    for _ in 0..2 {
        // Twice, so that neither side has the quieter half of the run.
        measure(&mut criterion, "clock", 1, || {
            black_box(boot_time_ns());
        });
        measure(&mut criterion, "clock_boottime", 1, || {
            let _ = black_box(clock_gettime(ClockId::CLOCK_BOOTTIME));
        });
        measure(&mut criterion, "governor_check", 1, || drop(black_box(governor.check())));
        measure(&mut criterion, "governor_check_system_clock", 1, || drop(black_box(governor_clock.check())));
        measure(&mut criterion, "reserve_original", 1, || {
            drop(black_box(plain.reserve(boot_time_ns(), black_box(&LocalAsk::ORIGINAL))));
        });
        measure(&mut criterion, "reserve_sent_outcome", 1, || whole_cycle(&plain));
        measure(&mut criterion, "reserve_sent_outcome_slots", 1, || whole_cycle(&with_slots));
        measure(&mut criterion, "retry_granted", 1, || {
            drop(black_box(rich.reserve(boot_time_ns(), black_box(&retry))))
        });
        measure(&mut criterion, "retry_denied", 1, || drop(black_box(poor.reserve(boot_time_ns(), black_box(&retry)))));
        measure(&mut criterion, "governor_check_2_threads", 2, || drop(black_box(governor.check())));
        measure(&mut criterion, "governor_check_system_clock_2_threads", 2, || drop(black_box(governor_clock.check())));
        measure(&mut criterion, "reserve_original_2_threads", 2, || {
            drop(black_box(plain.reserve(boot_time_ns(), black_box(&LocalAsk::ORIGINAL))));
        });
    }
    criterion.final_summary();
    let ratio = |over: &str, under: &str| median(over) / median(under);
    println!("\n{:60} {:>8} {:>8}", "ratios to one check() of governor, by its clock:", "default", "system");
    for (what, ours, one, system, limit) in [
        ("reserve", "reserve_original", "governor_check", "governor_check_system_clock", "at most 2"),
        (
            "reserve + sent + outcome",
            "reserve_sent_outcome",
            "governor_check",
            "governor_check_system_clock",
            "at most 3",
        ),
        ("the same with permits", "reserve_sent_outcome_slots", "governor_check", "governor_check_system_clock", ""),
    ] {
        println!("{what:60} {:8.2} {:8.2}  {limit}", ratio(ours, one), ratio(ours, system));
    }
    let both = "reserve_original_2_threads";
    println!(
        "{:60} {:8.2} {:8.2}  at least 0.8",
        "throughput of 2 threads that reserve",
        ratio("governor_check_2_threads", both),
        ratio("governor_check_system_clock_2_threads", both)
    );
    println!(
        "{:60} {:8.2}           at most 1",
        "denied retry / granted retry",
        ratio("retry_denied", "retry_granted")
    );
    println!(
        "{:60} {:8.1} {:8.1}",
        "ns: governor's check",
        median("governor_check"),
        median("governor_check_system_clock")
    );
    println!(
        "{:60} {:8.1} {:8.1} {:8.1}",
        "ns: CLOCK_BOOTTIME; the client's clock; reserve",
        median("clock_boottime"),
        median("clock"),
        median("reserve_original")
    );
}
