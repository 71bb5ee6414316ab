//! Names that differ never share state, whatever stands in them; those that are no names are refused at the door.

use budget::decision::{DenyReason, Release, ReleaseResult, Reserve};
use budget_client::{Client, Decision};
use budget_proto::pb::{
    self, budget_admin_client::BudgetAdminClient, retry_budget_client::RetryBudgetClient, session_request::Call,
};
use budget_tests::security;
use tonic::Code;

use super::ground::{BOUND, CALL, Caller, Ground, On, PATIENT, Verdict, fresh_id, operation, original};

const POLICY: &str = "[defaults]\nadmission.max_in_flight = 1\n";

fn odd_names() -> Vec<String> {
    let odd = [
        "a",
        "A",
        "a ",
        " a",
        "a:b",
        "a:b:c",
        ":",
        "s",
        "a:s",
        "{",
        "}",
        "{}",
        "}{",
        "{a}",
        "a{b}c{d}",
        "a}:s",
        "%",
        "%7B",
        "%257B",
        "%s",
        "\"",
        "\\",
        "'",
        "*a",
        "a*b",
        "é",
        "e\u{301}",
        "😀",
        "\u{202e}a",
        "known",
        "policies",
        "defaults",
        "other",
        "o:job",
    ];
    odd.into_iter().map(String::from).chain(["x".repeat(256), "{".repeat(256), "😀".repeat(64)]).collect()
}

/// Two daemons that share a Redis and nothing else, or, on memory, one.
fn two_namespaces(on: On) -> Ground {
    let mut ground = Ground::with(on, POLICY, 1, &PATIENT);
    if on == On::Redis7 {
        let url = ground.redis().unix_url();
        ground.add(&url, &[&PATIENT[..], &["--prefix", "budgetd:a"]].concat());
    }
    ground
}

/// Seen to fail with `%` written into the tag unescaped (`{` and `%7B` meet), with names brought to lower case, and with
/// the prefix left out of the keys.
async fn a20_names_and_namespaces_that_differ_share_nothing(on: On) {
    let mut ground = two_namespaces(on);
    let mut taken: Vec<(Caller, Reserve)> = Vec::new();
    for replica in 0..ground.daemons.len() {
        let first = ground.caller_at(replica, "first");
        for name in odd_names() {
            let (caller, ask) = (first.of(&name), original());
            assert!(caller.ask(&ask).await.admitted(), "{name:?} shares the permit of another");
            taken.push((caller, ask));
        }
    }
    for (caller, _) in &taken {
        let refused = caller.ask(&original()).await;
        let in_flight = matches!(&refused, Decision::Denied(denied) if denied.reason == DenyReason::InFlight);
        assert!(in_flight, "{}: {refused:?}", caller.dependency.id());
        assert_eq!(caller.status().await.in_flight, 1);
    }
    // Each gives back its own, and nobody else's.
    for (at, (caller, ask)) in taken.iter().enumerate() {
        let (other, _) = &taken[(at + 1) % taken.len()];
        assert_eq!(other.release(&Release::not_sent(ask.id)).await, ReleaseResult::Unknown);
        assert_eq!(caller.release(&Release::not_sent(ask.id)).await, ReleaseResult::Applied);
        assert!(caller.original().await.is_some());
    }
    ground.all_live();
}
on_each_store!(a20_names_and_namespaces_that_differ_share_nothing);

/// Seen to fail with the dependency left out of the operation's key, and with braces written into the tag unescaped.
async fn a20_operations_belong_to_their_dependency(on: On) {
    let ground = Ground::new(on, "");
    let pairs = [
        ("a", "b:c"),
        ("a:b", "c"),
        ("a", "c"),
        ("a:o", "b:c"),
        ("a{", "b:c"),
        ("a", "s"),
        // Unescaped, the operation of one would be the ledger of the other.
        ("a", "x}:s"),
        ("a}:o:x", "s"),
    ];
    for (name, id) in pairs {
        let caller = ground.caller(name);
        let ask = || Reserve { operation: Some(operation(id)), ..original() };
        assert!(caller.ask(&ask()).await.admitted(), "{name} {id}");
        let second = caller.ask(&ask()).await;
        let in_progress = matches!(&second, Decision::Denied(denied) if denied.reason == DenyReason::InProgress);
        assert!(in_progress, "{name} {id}: {second:?}");
    }
}
on_each_store!(a20_operations_belong_to_their_dependency);

/// Seen to fail with the prefix left out of the key of the policies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a20_namespaces_have_policies_of_their_own() {
    let ground = two_namespaces(On::Redis7);
    let [one, two] = [0, 1].map(|replica| ground.caller_at(replica, "pay"));
    one.put("admission.max_in_flight = 7").await;
    one.client.set_retries("pay", false, "a test", CALL).await.unwrap();
    assert_eq!(two.status().await.rule, "defaults");
    two.put("admission.max_in_flight = 3").await;
    let (of_one, of_two) = (one.status().await, two.status().await);
    assert_eq!((of_one.max_in_flight, of_one.retries_off), (Some(7), true));
    assert_eq!((of_two.max_in_flight, of_two.retries_off), (Some(3), false));
    let names = |client: Client| async move { client.get_status(&[], None, CALL).await.unwrap().dependencies.len() };
    two.of("only here").original().await.unwrap();
    budget_tests::eventually::eventually(BOUND, "the name is indexed", async || names(two.client.clone()).await == 1)
        .await;
    assert_eq!(names(one.client.clone()).await, 1, "its own pay");
}

/// Seen to fail with control characters allowed in names.
async fn a19_what_is_no_name_is_refused_at_the_door(on: On) {
    let mut ground = Ground::new(on, POLICY);
    let channel = security::channel(&ground.daemon().endpoint()).await;
    let mut budgets = RetryBudgetClient::new(channel.clone());
    let mut admin = BudgetAdminClient::new(channel);
    let reserve = |dependency: &str| pb::ReserveRequest {
        dependency: dependency.to_owned(),
        reservation_id: fresh_id().0.to_vec(),
        attempt: Some(pb::Attempt { number: 1, cause: None }),
        ..Default::default()
    };
    let refused = |status: tonic::Status, field: &str, what: &str| {
        assert_eq!(status.code(), Code::InvalidArgument, "{what:?}: {status:?}");
        let text = status.message();
        assert!(text.contains(field), "{what:?}: {text}");
        assert!(text.len() < 1_000 && !text.contains(char::is_control), "{what:?}: {text:?}");
    };
    for bad in ["", "a\nb", "a\0b", "a\u{7f}", "\r\n", "\u{85}", "fam/*", "*", &"x".repeat(257), &"x".repeat(4096)] {
        refused(budgets.reserve(reserve(bad)).await.unwrap_err(), "dependency", bad);
        let release = pb::ReleaseRequest {
            dependency: bad.to_owned(),
            reservation_id: fresh_id().0.to_vec(),
            r#use: Some(pb::release_request::Use::NotSent(pb::NotSent {})),
            operation_id: None,
        };
        refused(budgets.release(release).await.unwrap_err(), "dependency", bad);
        let extend = pb::ExtendRequest {
            dependency: bad.to_owned(),
            reservation_id: fresh_id().0.to_vec(),
            permit_ttl_ms: 1_000,
        };
        refused(budgets.extend(extend).await.unwrap_err(), "dependency", bad);
        let status = pb::GetStatusRequest { dependencies: vec![bad.to_owned()], ..Default::default() };
        refused(admin.get_status(status).await.unwrap_err(), "dependencies", bad);
        // On a stream the refusal is the answer to that call; the stream goes on.
        let call = |id, name: &str| pb::SessionRequest { correlation_id: id, call: Some(Call::Reserve(reserve(name))) };
        let calls = [call(1, bad), call(2, "good enough")];
        let mut answers = budgets.session(tokio_stream::iter(calls)).await.unwrap().into_inner();
        let mut seen = [false; 2];
        while let Some(answer) = answers.message().await.unwrap() {
            let is_refusal = matches!(answer.answer, Some(pb::session_response::Answer::Failure(_)));
            seen[usize::from(answer.correlation_id == 2)] = is_refusal == (answer.correlation_id == 1);
        }
        assert_eq!(seen, [true; 2], "{bad:?}");
    }
    for bad in ["", "a\nb", &"x".repeat(129)] {
        let named = pb::Operation { id: bad.to_owned(), fingerprint: vec![7; 16], ..Default::default() };
        let request = pb::ReserveRequest { operation: Some(named), ..reserve("pay") };
        refused(budgets.reserve(request).await.unwrap_err(), "operation.id", bad);
        let cost = pb::Cost { unit: if bad.is_empty() { String::new() } else { bad.to_owned() }, amount_micros: 1 };
        let request = pb::ReserveRequest { costs: vec![cost], ..reserve("pay") };
        refused(budgets.reserve(request).await.unwrap_err(), "unit", bad);
    }
    assert_eq!(ground.caller("pay").status().await.ledger_version, None, "nothing has touched it");
    ground.all_live();
}
on_each_store!(a19_what_is_no_name_is_refused_at_the_door);
