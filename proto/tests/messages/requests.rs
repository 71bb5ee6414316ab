//! Every field of every request with every kind of bad value.

use budget::{
    decision::{Attempt, Cause, Invalid, Priority, Step},
    ids::UnitId,
};
use budget_proto::{
    InvalidMessage,
    convert::{Received, policy_version, session_call},
    pb,
};

use crate::{cost, extend, operation, release, reserve, sent};

type Judged = Result<Received, InvalidMessage>;

fn on_reserve(change: impl FnOnce(&mut pb::ReserveRequest)) -> Judged {
    let mut request = reserve();
    change(&mut request);
    request.try_into()
}

fn on_operation(change: impl FnOnce(&mut pb::Operation)) -> Judged {
    let mut operation = operation();
    change(&mut operation);
    on_reserve(|r| r.operation = Some(operation))
}

fn on_cost(change: impl FnOnce(&mut pb::Cost)) -> Judged {
    let mut cost = cost("usd", 1);
    change(&mut cost);
    on_reserve(|r| r.costs = vec![cost])
}

fn on_release(change: impl FnOnce(&mut pb::ReleaseRequest)) -> Judged {
    let mut request = release(sent());
    change(&mut request);
    request.try_into()
}

fn on_sent(change: impl FnOnce(&mut pb::Sent)) -> Judged {
    let mut sent = sent();
    change(&mut sent);
    release(sent).try_into()
}

fn on_actual_cost(change: impl FnOnce(&mut pb::Cost)) -> Judged {
    let mut cost = cost("usd", 1);
    change(&mut cost);
    on_sent(|s| s.costs = vec![cost])
}

fn on_extend(change: impl FnOnce(&mut pb::ExtendRequest)) -> Judged {
    let mut request = extend();
    change(&mut request);
    request.try_into()
}

/// One probe: accepted, or refused with a text that starts with field and value and goes on with the rule.
fn check(judged: Judged, accepted: bool, field: &str, value: &str, rule: &str) {
    match judged {
        Ok(_) => assert!(accepted, "{field} = {value} was accepted"),
        Err(invalid) => {
            assert!(!accepted, "{field} = {value} was refused: {invalid}");
            let text = invalid.to_string();
            assert_eq!(invalid.field(), field, "{text}");
            assert!(text.starts_with(&format!("{field} is {value}")), "{text}, not {field} is {value}");
            assert!(text.contains(rule), "{text}, not {rule}");
            assert_eq!(tonic::Status::from(invalid).code(), tonic::Code::InvalidArgument);
        }
    }
}

const HOUR: u64 = 3_600_000;
const YEAR: u64 = 365 * 24 * HOUR;
const EXACT: u64 = (1 << 53) - 1;

#[test]
fn numbers_have_their_bounds() {
    type Set = fn(u64) -> Judged;
    let rows: [(&str, u64, u64, Set); 8] = [
        ("time_left_ms", 0, YEAR, |v| on_reserve(|r| r.time_left_ms = Some(v))),
        ("max_wait_ms", 0, HOUR, |v| on_reserve(|r| r.max_wait_ms = Some(v))),
        ("permit_ttl_ms", 1, HOUR, |v| on_reserve(|r| r.permit_ttl_ms = Some(v))),
        ("costs.amount_micros", 0, EXACT, |v| on_cost(|c| c.amount_micros = v)),
        ("operation.expires_in_ms", 1, 30 * 24 * HOUR, |v| on_operation(|o| o.expires_in_ms = Some(v))),
        ("sent.costs.amount_micros", 0, EXACT, |v| on_actual_cost(|c| c.amount_micros = v)),
        ("permit_ttl_ms", 1, HOUR, |v| on_extend(|e| e.permit_ttl_ms = v)),
        // A uint32: what is above cannot be sent.
        ("attempt.number", 1, 1_000_000, |v| {
            let number = u32::try_from(v).unwrap_or(u32::MAX);
            on_reserve(|r| r.attempt = Some(pb::Attempt { number, cause: Some(pb::Cause::Failover.into()) }))
        }),
    ];
    for (field, min, max, set) in rows {
        let huge = [1 << 31, 1 << 32, EXACT, EXACT + 1, EXACT + 2, i64::MAX as u64, 1 << 63, u64::MAX];
        for value in [0, 1, min, max, max + 1].into_iter().chain(huge) {
            let sent = if field == "attempt.number" { value.min(u32::MAX.into()) } else { value };
            let rule = format!("must be between {min} and {max}");
            check(set(value), (min..=max).contains(&value), field, &sent.to_string(), &rule);
        }
    }
}

#[test]
fn a19_names_are_judged_by_length_and_content() {
    type Set = fn(String) -> Judged;
    let rows: [(&str, usize, Set); 8] = [
        ("dependency", 256, |v| on_reserve(|r| r.dependency = v)),
        ("dependency", 256, |v| on_release(|r| r.dependency = v)),
        ("dependency", 256, |v| on_extend(|r| r.dependency = v)),
        ("costs.unit", 64, |v| on_cost(|c| c.unit = v)),
        ("sent.costs.unit", 64, |v| on_actual_cost(|c| c.unit = v)),
        ("operation.id", 128, |v| on_operation(|o| o.id = v)),
        ("operation_id", 128, |v| on_release(|r| r.operation_id = Some(v))),
        ("operation.parent_id", 0, |v| on_operation(|o| o.parent_id = Some(v))),
    ];
    for (field, max, set) in rows {
        let reserved = max == 0;
        let legal = |value: &str| (!reserved, value.to_owned());
        let probes = [
            legal("a"),
            legal("a{b}c"),
            legal("{}"),
            legal("a:b%7Bc%"),
            legal("😀"),
            legal("Größe / 大小"),
            legal("*x"),
            legal(" "),
            (!reserved, "x".repeat(max)),
            (!reserved, format!("{}é", "x".repeat(max.saturating_sub(2)))),
            (false, String::new()),
            (false, "x".repeat(max + 1)),
            (false, "x".repeat(4096)),
            (false, "😀".repeat(1024)),
            (false, "a\nb".to_owned()),
            (false, "\0".to_owned()),
            (false, "tab\t".to_owned()),
            (false, "\u{7f}".to_owned()),
            (false, "\u{85}".to_owned()),
            (false, "\u{1b}[31m".to_owned()),
        ];
        for (accepted, value) in probes {
            check(set(value.clone()), accepted, field, "\"", "");
        }
        check(set("family/*".to_owned()), field != "dependency" && !reserved, field, "\"family/*\"", "");
    }
    let text = on_reserve(|r| r.dependency = "fam/*".to_owned()).unwrap_err().to_string();
    assert_eq!(text, r#"dependency is "fam/*": ends in '*', which is reserved for families in policies"#);
}

#[test]
fn bytes_have_their_sizes() {
    type Set = fn(Vec<u8>) -> Judged;
    let rows: [(&str, std::ops::RangeInclusive<usize>, Set); 5] = [
        ("reservation_id", 16..=16, |v| on_reserve(|r| r.reservation_id = v)),
        ("reservation_id", 16..=16, |v| on_release(|r| r.reservation_id = v)),
        ("reservation_id", 16..=16, |v| on_extend(|r| r.reservation_id = v)),
        ("operation.fingerprint", 16..=32, |v| on_operation(|o| o.fingerprint = v)),
        ("sent.result_ref", 0..=128, |v| {
            on_sent(|s| (s.terminal_state, s.result_ref) = (Some(pb::TerminalState::Completed.into()), Some(v)))
        }),
    ];
    for (field, sizes, set) in rows {
        for size in [0, 1, 15, 16, 17, 20, 31, 32, 33, 127, 128, 129, 4096] {
            let shown = if size == 0 { "empty" } else { "ab" };
            check(set(vec![0xab; size]), sizes.contains(&size), field, shown, "");
        }
    }
}

#[test]
fn unknown_enum_values_are_refused() {
    type Set = fn(i32) -> Judged;
    let rows: [(&str, i32, Set); 4] = [
        // As attempt number 2, where every cause is legal.
        ("attempt.cause", 5, |v| on_reserve(|r| r.attempt = Some(pb::Attempt { number: 2, cause: Some(v) }))),
        ("priority", 3, |v| on_reserve(|r| r.priority = Some(v))),
        ("sent.outcome", 8, |v| on_sent(|s| s.outcome = v)),
        ("sent.terminal_state", 6, |v| on_sent(|s| s.terminal_state = Some(v))),
    ];
    for (field, last, set) in rows {
        for code in (0..=last + 1).chain([i32::MIN, -1, 99, i32::MAX]) {
            check(set(code), (1..=last).contains(&code), field, &code.to_string(), "must be one of 1 ");
        }
    }
    let text = on_reserve(|r| r.priority = Some(9)).unwrap_err().to_string();
    assert_eq!(text, "priority is 9: must be one of 1 sheddable, 2 default, 3 critical");
}

#[test]
fn absence_is_either_a_default_or_refused() {
    check(on_reserve(|r| r.attempt = None), false, "attempt", "absent", "is required");
    check(on_release(|r| r.r#use = None), false, "use", "absent", "must be one of not_sent, sent");
    let Ok(Received { step: Step::Reserve(reserve), .. }) = on_reserve(|_| ()) else { panic!("not a Reserve") };
    assert_eq!(reserve.attempt, Attempt::ORIGINAL);
    assert_eq!((reserve.time_left_ms, reserve.max_wait_ms, reserve.permit_ttl_ms), (None, 0, None));
    assert_eq!((reserve.priority, reserve.no_release), (Priority::Default, false));
    assert!(reserve.costs.is_empty() && reserve.operation.is_none());
    // A message of nothing but defaults is refused at its first field.
    check(pb::ReserveRequest::default().try_into(), false, "dependency", "\"\"", "is empty");
    check(pb::ReleaseRequest::default().try_into(), false, "dependency", "\"\"", "is empty");
    check(pb::ExtendRequest::default().try_into(), false, "dependency", "\"\"", "is empty");
}

#[test]
fn number_and_cause_belong_together() {
    let judge = |number, cause: Option<Cause>| {
        let cause = cause.map(|cause| i32::try_from(cause.code()).unwrap());
        on_reserve(|r| r.attempt = Some(pb::Attempt { number, cause }))
    };
    check(judge(1, None), true, "", "", "");
    check(judge(2, None), false, "attempt.cause", "absent", "is required from attempt number 2 on");
    for cause in Cause::ALL {
        let rule = "must be absent or failover for attempt number 1";
        check(judge(1, Some(cause)), cause == Cause::Failover, "attempt.cause", cause.name(), rule);
        check(judge(2, Some(cause)), true, "", "", "");
        check(judge(0, Some(cause)), false, "attempt.number", "0", "must be between 1 and 1000000");
    }
    check(judge(0, None), false, "attempt.number", "0", "must be between 1 and 1000000");
}

#[test]
fn costs_are_few_and_differ() {
    let many = |count: usize| (0..count).map(|n| cost(&format!("unit-{n}"), 1)).collect::<Vec<_>>();
    for (count, accepted) in [(0, true), (1, true), (8, true), (9, false), (1000, false)] {
        let value = format!("{count} units");
        check(on_reserve(|r| r.costs = many(count)), accepted, "costs", &value, "must be at most 8");
        check(on_sent(|s| s.costs = many(count)), accepted, "sent.costs", &value, "must be at most 8");
    }
    let twice = vec![cost("usd", 1), cost("eur", 1), cost("usd", 1)];
    let rule = "must be named at most once";
    check(on_reserve(|r| r.costs = twice.clone()), false, "costs.unit", "\"usd\"", rule);
    check(on_sent(|s| s.costs = twice), false, "sent.costs.unit", "\"usd\"", rule);
}

#[test]
fn fields_that_exclude_or_need_each_other() {
    let rule = "must not be set together with operation";
    let untracked = on_reserve(|r| (r.no_release, r.operation) = (true, Some(operation())));
    check(untracked, false, "no_release", "true", rule);
    check(on_reserve(|r| r.no_release = true), true, "", "", "");

    let completed = Some(pb::TerminalState::Completed.into());
    let without = |sent: pb::Sent| on_release(|r| *r = pb::ReleaseRequest { operation_id: None, ..release(sent) });
    check(without(sent()), true, "", "", "");
    let terminal = pb::Sent { terminal_state: completed, ..sent() };
    check(without(terminal), false, "sent.terminal_state", "completed", "needs operation_id");
    let reference = on_sent(|s| s.result_ref = Some(vec![1]));
    check(reference, false, "sent.result_ref", "01", "must come with terminal_state");
}

#[test]
fn fields_reserved_for_later_are_refused() {
    let rule = "is reserved and must be absent in this version";
    for ms in [0, 1, u64::MAX] {
        check(on_sent(|s| s.hold_ms = Some(ms)), false, "sent.hold_ms", &ms.to_string(), rule);
    }
    for scope in [0, 1, 2, 99, -1] {
        check(on_sent(|s| s.hold_scope = Some(scope)), false, "sent.hold_scope", &scope.to_string(), rule);
    }
    check(on_operation(|o| o.parent_id = Some("p".to_owned())), false, "operation.parent_id", "\"p\"", rule);
}

#[test]
fn mistakes_only_the_ledger_sees_are_named_alike() {
    let received = on_reserve(|r| {
        r.costs = vec![cost("usd", 1), cost("eur", 1)];
        r.operation = Some(pb::Operation { expires_in_ms: Some(5000), ..operation() });
    })
    .unwrap();
    let explain = |invalid| received.echo.explain(&invalid).to_string();
    assert_eq!(
        explain(Invalid::UnknownUnit(UnitId::of("eur").unwrap())),
        r#"costs.unit is "eur": must be a unit of the dependency's policy"#
    );
    assert_eq!(
        explain(Invalid::ExpiresInTooLong),
        "operation.expires_in_ms is 5000: must be at most the policy's operation.retention"
    );
    let released = on_release(|_| ()).unwrap();
    assert_eq!(
        released.echo.explain(&Invalid::OperationMismatch).to_string(),
        r#"operation_id is "order-1": must be the operation named at Reserve"#
    );
    let bare = on_release(|r| r.operation_id = None).unwrap();
    assert_eq!(
        bare.echo.explain(&Invalid::OperationMismatch).to_string(),
        "operation_id is absent: must be the operation named at Reserve"
    );
}

#[test]
fn versions_are_exact_numbers() {
    let judge = |number, id| policy_version("expected_version", Some(pb::PolicyVersion { number, id }));
    assert!(judge(0, 0).is_ok() && judge(EXACT, EXACT).is_ok());
    assert_eq!(policy_version("v", None).unwrap_err().to_string(), "v is absent: is required");
    for bad in [EXACT + 1, 1 << 63, u64::MAX] {
        assert!(judge(bad, 0).is_err() && judge(0, bad).is_err());
    }
}

#[test]
fn a_bad_call_of_a_session_keeps_its_correlation_id() {
    use pb::session_request::Call;
    let request = |call| pb::SessionRequest { correlation_id: 42, call };
    let (id, received) = session_call(request(Some(Call::Reserve(pb::ReserveRequest::default()))));
    assert_eq!((id, received.unwrap_err().field()), (42, "dependency"));
    let (id, received) = session_call(request(None));
    assert_eq!(
        (id, received.unwrap_err().to_string()),
        (42, "call is absent: must be one of reserve, release, extend".into())
    );
    for call in [Call::Reserve(reserve()), Call::Release(release(sent())), Call::Extend(extend())] {
        assert!(session_call(request(Some(call))).1.is_ok());
    }
}
