//! Tokens, permits and costs over gRPC: nothing is charged that is refused, nothing is given back that was not taken, and
//! policies change in the middle of use.

use budget::decision::{Attempt, Cause, DenyReason, Outcome, Release, ReleaseResult, Reserve, Sent, Use};
use budget_client::{Decision, Error};
use budget_proto::pb;
use budget_tests::security;
use futures::future::join_all;

use super::ground::{Caller, Ground, On, Verdict, fresh_id, original};

const TOKEN: i64 = 1_000_000;

fn costing(caller: &Caller, unit: &str, amount_micros: i64) -> Reserve {
    let cost = caller.dependency.cost(unit, amount_micros).expect("a unit");
    Reserve { costs: vec![cost], ..original() }
}

fn denied(decision: Decision) -> budget::decision::Denied {
    match decision {
        Decision::Denied(denied) => denied,
        Decision::Admitted(admitted) => panic!("{admitted:?}"),
    }
}

fn retry(cause: Cause) -> Reserve {
    Reserve::new(fresh_id(), Attempt::retry(2, cause))
}

/// Micro-tokens that a bucket of one token a day earns while a test runs.
const DRIFT_MICROS: i64 = 10_000;

fn is_about(balance_micros: i64, tokens: i64) -> bool {
    (0..DRIFT_MICROS).contains(&(balance_micros - tokens * TOKEN))
}

async fn raw(ground: &Ground, costs: Vec<pb::Cost>) -> tonic::Status {
    let channel = security::channel(&ground.daemon().endpoint()).await;
    let request = pb::ReserveRequest {
        dependency: "pay".to_owned(),
        reservation_id: fresh_id().0.to_vec(),
        attempt: Some(pb::Attempt { number: 1, cause: None }),
        costs,
        ..Default::default()
    };
    pb::retry_budget_client::RetryBudgetClient::new(channel).reserve(request).await.unwrap_err()
}

/// Seen to fail with the costs of a refused ask charged (both copies).
async fn a05_refusal_charges_nothing(on: On) {
    let ground = Ground::new(on, "");
    let pay = ground.caller("pay").costing(&["tokens", "usd"]);
    let policy = |rate: &str| {
        format!(
            "admission = {{ rate = \"{rate}\", burst = 100 }}\nretry = {{ floor = \"{rate}\", burst = 1 }}\n\
             cost.usd = {{ rate = \"{rate}\", burst = 10 }}\ncost.tokens = {{ rate = \"{rate}\", burst = 10 }}\n"
        )
    };
    pay.filled(&policy("1M/s"), &policy("1/d")).await;
    assert!(pay.ask(&costing(&pay, "tokens", 8 * TOKEN)).await.admitted());
    let before = pay.status().await;
    let refused = denied(pay.ask(&costing(&pay, "tokens", 5 * TOKEN)).await);
    assert_eq!((refused.reason, refused.impossible), (DenyReason::Cost, false));
    assert!(refused.retry_after_ms.is_some_and(|ms| ms > 86_400_000), "{refused:?}");
    // One unit suffices, the other does not: neither is charged, nor is anything else.
    let usd = pay.dependency.cost("usd", 3 * TOKEN).unwrap();
    let both = costing(&pay, "tokens", 5 * TOKEN);
    let both = Reserve { costs: vec![usd, both.costs[0]], ..both };
    assert_eq!(denied(pay.ask(&both).await).reason, DenyReason::Cost);
    // What no wait will ever make possible says so.
    for amount in [11 * TOKEN, (1 << 31) * TOKEN, (1 << 53) - 1] {
        let refused = denied(pay.ask(&costing(&pay, "tokens", amount)).await);
        assert_eq!((refused.reason, refused.impossible, refused.retry_after_ms), (DenyReason::Cost, true, None));
    }
    let after = pay.status().await;
    assert_eq!((after.in_flight, after.counters.originals_admitted), (1, before.counters.originals_admitted));
    let balances = |seen: &budget_client::DependencyStatus| {
        let units: Vec<_> = seen.units.iter().map(|unit| unit.bucket.balance_micros).collect();
        [vec![seen.admission.unwrap().balance_micros, seen.retry.balance_micros], units].concat()
    };
    for (was, is) in balances(&before).into_iter().zip(balances(&after)) {
        assert!((0..DRIFT_MICROS).contains(&(is - was)), "{before:?}\n{after:?}");
    }
    assert!(pay.ask(&costing(&pay, "tokens", 2 * TOKEN)).await.admitted());
    // A retry refused for want of retry tokens takes no admission token.
    assert!(pay.ask(&retry(Cause::Transient)).await.admitted());
    let before = pay.status().await;
    assert_eq!(denied(pay.ask(&retry(Cause::Transient)).await).reason, DenyReason::RetryBudget);
    let after = pay.status().await;
    assert!(after.admission.unwrap().balance_micros >= before.admission.unwrap().balance_micros);
    assert_eq!(after.in_flight, before.in_flight);
    for amount_micros in [(1 << 53) + 1, u64::MAX] {
        let refused = raw(&ground, vec![pb::Cost { unit: "tokens".to_owned(), amount_micros }]).await;
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        for part in ["amount_micros", &amount_micros.to_string(), "must be"] {
            assert!(refused.message().contains(part), "{} lacks {part}", refused.message());
        }
    }
}
on_each_store!(a05_refusal_charges_nothing);

/// Seen to fail with the check of `admission.burst` in `policy/judge.rs` taken out, and with `settle` charging without a
/// debt limit (both copies).
async fn a06_zeros_have_one_meaning_and_more_is_never_given_back(on: On) {
    let ground = Ground::new(on, "");
    let pay = ground.caller("pay").costing(&["tokens"]);
    for (key, toml) in [
        ("admission.rate", "admission.rate = \"0/s\""),
        ("admission.rate", "admission.rate = \"5/0s\""),
        ("admission.burst", "admission = { rate = \"1/s\", burst = 0 }"),
        ("admission.burst", "admission = { rate = \"1/s\", burst = -1 }"),
        ("admission.max_in_flight", "admission.max_in_flight = 0"),
        ("admission.permit_ttl", "admission.permit_ttl = \"0s\""),
        ("retry.ratio", "retry.ratio = -0.1"),
        ("retry.ratio", "retry.ratio = nan"),
        ("retry.ratio", "retry.ratio = inf"),
        ("retry.burst", "retry.burst = -1"),
        ("operation.max_attempts", "operation.max_attempts = 0"),
        ("cost.tokens.rate", "cost.tokens.rate = \"0/s\""),
        ("cost.tokens.burst", "cost.tokens = { rate = \"1/s\", burst = 0 }"),
    ] {
        match pay.try_put(toml).await {
            Err(Error::InvalidArgument(text)) => assert!(text.contains(key), "{toml}: {text}"),
            other => panic!("{toml}: {other:?}"),
        }
    }
    // Ratio and floor 0: no retry is ever earned. Burst 0: none ever fits.
    pay.put("retry = { ratio = 0, floor = \"0/s\" }").await;
    let id = pay.original().await.expect("originals are unlimited");
    assert_eq!(pay.succeed(id).await, ReleaseResult::Applied);
    let refused = denied(pay.ask(&retry(Cause::Transient)).await);
    assert_eq!((refused.reason, refused.retry_after_ms, refused.impossible), (DenyReason::RetryBudget, None, false));
    pay.put("retry.burst = 0").await;
    let refused = denied(pay.ask(&retry(Cause::Transient)).await);
    assert_eq!((refused.reason, refused.impossible), (DenyReason::RetryBudget, true));

    let policy = |rate: &str| {
        format!(
            "admission.max_in_flight = 3\nretry = {{ floor = \"{rate}\", burst = 1 }}\n\
             cost.tokens = {{ rate = \"{rate}\", burst = 10 }}\n"
        )
    };
    pay.filled(&policy("1M/s"), &policy("1/d")).await;
    let balance = async || pay.status().await.units[0].bucket.balance_micros;
    let free = costing(&pay, "tokens", 0);
    assert!(pay.ask(&free).await.admitted());
    assert!(is_about(balance().await, 10), "an ask that costs nothing costs nothing");
    assert_eq!(pay.succeed(free.id).await, ReleaseResult::Applied);
    let settled = |ask: &Reserve, amount: i64| Release {
        id: ask.id,
        used: Use::Sent(Sent {
            outcome: Outcome::Success,
            costs: vec![pay.dependency.cost("tokens", amount).unwrap()],
            terminal: None,
            result_ref: None,
        }),
        operation: None,
    };
    // More than reserved: at most one burst of debt, the rest is counted.
    let ask = costing(&pay, "tokens", 2 * TOKEN);
    assert!(pay.ask(&ask).await.admitted());
    assert_eq!(pay.release(&settled(&ask, 1_000 * TOKEN)).await, ReleaseResult::Applied);
    let owing = pay.status().await;
    assert!(is_about(owing.units[0].bucket.balance_micros, -10), "{owing:?}");
    assert!((980 * TOKEN - DRIFT_MICROS..=980 * TOKEN).contains(&owing.counters.overuse_micros), "{owing:?}");
    assert_eq!(pay.release(&settled(&ask, 0)).await, ReleaseResult::AlreadyReleased);
    // Given back when nothing is left, and never above the burst.
    pay.filled(&policy("1M/s"), &policy("1/d")).await;
    let ask = costing(&pay, "tokens", 10 * TOKEN);
    assert!(pay.ask(&ask).await.admitted());
    assert!(is_about(balance().await, 0));
    let not_sent = Release::not_sent(ask.id);
    let answers = join_all((0..8).map(|_| pay.release(&not_sent))).await;
    assert_eq!(answers.iter().filter(|answer| **answer == ReleaseResult::Applied).count(), 1, "{answers:?}");
    assert!(answers.iter().all(|answer| matches!(answer, ReleaseResult::Applied | ReleaseResult::AlreadyReleased)));
    assert_eq!(pay.release(&Release::not_sent(fresh_id())).await, ReleaseResult::Unknown);
    let back = pay.status().await;
    assert_eq!((back.units[0].bucket.balance_micros, back.in_flight), (10 * TOKEN, 0));
    assert_eq!(pay.admitted_of(5).await, 3, "as many permits as there are");
}
on_each_store!(a06_zeros_have_one_meaning_and_more_is_never_given_back);

/// Seen to fail with `deposit` doing nothing for an empty bucket, and with `retry_cost` not charged, so that only the
/// attempt limit holds (both copies).
async fn a10_an_empty_retry_budget_recovers_by_its_ratio_alone(on: On) {
    let ground = Ground::new(on, "");
    for earn_on in ["admitted", "success"] {
        let pay = ground.caller(earn_on);
        let policy = |floor: &str, attempts: u32| {
            format!(
                "retry = {{ ratio = 0.1, floor = \"{floor}\", burst = 10, earn_on = \"{earn_on}\" }}\n\
                 operation.max_attempts = {attempts}\n"
            )
        };
        pay.filled(&policy("1M/s", 3), &policy("0/s", 3)).await;
        let drained = join_all((0..30).map(|_| pay.reserve_retry())).await;
        assert_eq!(drained.into_iter().filter(|admitted| *admitted).count(), 10);
        // Only originals that succeed from here on: each tenth earns one retry.
        for round in 0..3 {
            for done in 1..=10 {
                let id = pay.original().await.expect("originals are unlimited");
                pay.succeed(id).await;
                assert_eq!(pay.reserve_retry().await, done == 10, "{earn_on}: round {round}, original {done}");
            }
        }
        // Everything fails, and the policy caps attempts at 100: the budget alone stops the retries.
        pay.put(&policy("0/s", 100)).await;
        let before = pay.status().await.counters;
        for _ in 0..20 {
            let id = pay.original().await.expect("originals are unlimited");
            let failed = if earn_on == "success" { Outcome::Success } else { Outcome::Transient };
            pay.release(&Release::sent(id, failed)).await;
            for number in 2..100 {
                if !pay.ask(&Reserve::new(fresh_id(), Attempt::retry(number, Cause::Timeout))).await.admitted() {
                    break;
                }
            }
        }
        let after = pay.status().await.counters;
        let spent = after.retries_admitted - before.retries_admitted;
        assert_eq!((after.originals_admitted - before.originals_admitted, spent), (20, 2), "{earn_on}");
    }
}
on_each_store!(a10_an_empty_retry_budget_recovers_by_its_ratio_alone);

impl Caller {
    async fn reserve_retry(&self) -> bool {
        self.ask(&retry(Cause::Transient)).await.admitted()
    }

    async fn attempt(&self, operation: &str, number: u32) -> Decision {
        let attempt = if number == 1 { Attempt::ORIGINAL } else { Attempt::retry(number, Cause::Transient) };
        let operation = super::ground::operation(operation);
        let ask = Reserve { operation: Some(operation.clone()), ..Reserve::new(fresh_id(), attempt) };
        let decision = self.ask(&ask).await;
        if decision.admitted() {
            let release = Release { operation: Some(operation.id), ..Release::sent(ask.id, Outcome::Transient) };
            assert_eq!(self.release(&release).await, ReleaseResult::Applied);
        }
        decision
    }
}

/// Seen to fail with the attempts of an operation counted for the whole ledger (both copies).
async fn a10_one_operations_exhaustion_leaves_others_alone(on: On) {
    let ground = Ground::new(on, "");
    let pay = ground.caller("pay");
    let policy = |floor: &str| format!("retry = {{ floor = \"{floor}\", burst = 10 }}\noperation.max_attempts = 3\n");
    pay.filled(&policy("1M/s"), &policy("0/s")).await;
    for operation in ["first", "second"] {
        for number in 1..=3 {
            assert!(pay.attempt(operation, number).await.admitted(), "{operation} {number}");
        }
        assert_eq!(denied(pay.attempt(operation, 4).await).reason, DenyReason::AttemptLimit);
    }
}
on_each_store!(a10_one_operations_exhaustion_leaves_others_alone);
