//! Leases as a holder lives by them.

mod beyond;
mod decide;
mod lending;
mod machine;
mod model;
mod steps;
mod threads;

use super::{
    Lease, Share,
    share::{Local, LocalAsk},
    spent::Spent,
};
use crate::{
    decision::{Attempt, Cause, Cost, DenyReason, Priority},
    ids::{PolicyVersion, UnitId},
    lease::{Amounts, Curve, FallbackRules, LocalOriginals, Rules, UnitAmounts},
    policy::CurveStep,
    units::{MICROS_PER_TOKEN, PPM},
};

const SECOND: i64 = 1_000_000_000;
const MS: i64 = 1_000_000;
const TOKEN: i64 = MICROS_PER_TOKEN;
/// When tests begin.
const T0: i64 = 1_000 * SECOND;

fn fallback(originals: LocalOriginals, retries_earned: bool) -> FallbackRules {
    FallbackRules { originals, retries_earned, units: Box::default() }
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
        retry_cost_micros: [TOKEN, TOKEN, 2 * TOKEN, TOKEN, TOKEN],
        max_attempts: 3,
        permit_ttl_ms: 60_000,
        priority_ppm: [PPM; 3],
        units: Box::default(),
        fallback: fallback(LocalOriginals::Rate(5 * TOKEN), true),
    }
}

/// Whole tokens per second, and tokens.
fn amounts(rate: i64, burst: i64, retry_burst: i64) -> Amounts {
    Amounts {
        rate: rate * TOKEN,
        burst: burst * TOKEN,
        retry_burst: retry_burst * TOKEN,
        slots: 0,
        units: Box::default(),
    }
}

fn with_unit(amounts: Amounts, rate: i64, burst: i64) -> Amounts {
    Amounts { units: [UnitAmounts { unit: tokens(), rate: rate * TOKEN, burst: burst * TOKEN }].into(), ..amounts }
}

fn tokens() -> UnitId {
    UnitId::of("tokens").unwrap()
}

fn curve() -> Curve {
    let step = |part_ppm, seconds: i64| CurveStep { part_ppm, duration_ms: seconds * 1_000 };
    Curve([step(PPM, 20), step(500_000, 100)].into())
}

/// A share with a lease from [`T0`] on.
fn leased(rules: &Rules, value: &Amounts, moved: &Amounts) -> Share {
    let share = Share::new(fallback(LocalOriginals::Deny, false), T0);
    renew(&share, T0, T0, rules, value, moved);
    share
}

fn renew(share: &Share, now_ns: i64, start_ns: i64, rules: &Rules, value: &Amounts, moved: &Amounts) {
    let lease = Lease { value: value.clone(), curve: curve(), start_ns };
    share.install(&mut share.lock(), now_ns, lease, moved, Some(rules));
}

fn admitted(local: Local) -> Spent {
    match local {
        Local::Admitted(spent) => spent,
        Local::Denied(_) | Local::Short => panic!("{local:?}"),
    }
}

fn denied(local: Local) -> DenyReason {
    match local {
        Local::Denied(denied) => denied.reason,
        Local::Admitted(_) | Local::Short => panic!("{local:?}"),
    }
}

fn retry() -> LocalAsk<'static> {
    LocalAsk::retry(2, Cause::Transient)
}

/// How many of `ask` are admitted at once.
fn drain(share: &Share, now_ns: i64, ask: &LocalAsk<'_>) -> i64 {
    (0..).take_while(|_| matches!(share.reserve(now_ns, ask), Local::Admitted(_))).count() as i64
}

fn costing(costs: &[Cost]) -> LocalAsk<'_> {
    LocalAsk { attempt: Attempt::ORIGINAL, priority: Priority::Default, costs }
}

fn cost(amount: i64) -> [Cost; 1] {
    [Cost { unit: tokens(), amount_micros: amount * TOKEN }]
}
