//! BudgetAdmin over the wire.

use tonic::Code;

use super::*;

const POLICIES: &str = r#"
[defaults]
retry = { ratio = 0.2 }
[dependency."pay"]
admission = { rate = "10/s", burst = 20, max_in_flight = 7 }
[dependency."pay".cost.tokens]
rate = "1/s"
burst = 5
[dependency."fam/*"]
mode = "shadow"
admission = { rate = "1/s", burst = 1 }
"#;

async fn status(daemon: &Daemon, names: &[&str]) -> pb::GetStatusResponse {
    let dependencies = names.iter().map(ToString::to_string).collect();
    let request = pb::GetStatusRequest { dependencies, ..Default::default() };
    daemon.admin().await.get_status(request).await.unwrap().into_inner()
}

#[tokio::test]
async fn policies_are_shown_listed_and_changed() {
    let daemon = Daemon::start(POLICIES).await;
    let mut admin = daemon.admin().await;
    let mut get = async |name: &str| {
        admin.get_policy(pb::GetPolicyRequest { dependency: name.into() }).await.map(tonic::Response::into_inner)
    };
    let pay = get("pay").await.unwrap();
    assert_eq!(pay.rule, "pay");
    assert!(pay.source_toml.contains("10/s") && pay.effective_toml.contains("ratio = 0.2"), "{pay:?}");
    assert_eq!(get("fam/x").await.unwrap().rule, "fam/*");
    assert_eq!(get("else").await.unwrap().rule, "defaults");
    assert_eq!(get("").await.unwrap_err().code(), Code::InvalidArgument);

    let mut admin = daemon.admin().await;
    let mut token = None;
    let mut names = Vec::new();
    loop {
        let request = pb::ListPoliciesRequest { page_size: Some(1), page_token: token.clone(), version_number: None };
        let page = admin.list_policies(request).await.unwrap().into_inner();
        assert_eq!(page.rules.len(), 1);
        names.extend(page.rules.into_iter().map(|rule| rule.name));
        token = page.next_page_token;
        if token.is_none() {
            break;
        }
    }
    assert_eq!(names, ["defaults", "fam/*", "pay"]);
    for (page_size, page_token) in [(Some(0), None), (Some(1001), None), (None, Some(String::new()))] {
        let status = admin
            .list_policies(pb::ListPoliciesRequest { page_size, page_token, version_number: None })
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
    }

    let put = |version, text: &str| pb::PutPolicyRequest {
        name: "pay".into(),
        source_toml: text.into(),
        expected_version: version,
        take_over: true,
        ..Default::default()
    };
    let text = "admission = { rate = \"10/s\", burst = 3 }";
    let stale = pb::PolicyVersion { number: 99, id: 1 };
    assert_eq!(admin.put_policy(put(None, text)).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(admin.put_policy(put(Some(stale), text)).await.unwrap_err().code(), Code::Aborted);
    let bad = admin.put_policy(put(pay.version, "admision = 1")).await.unwrap_err();
    assert_eq!(bad.code(), Code::InvalidArgument);
    assert!(bad.message().contains("admision"), "{}", bad.message());
    let written = admin.put_policy(put(pay.version, text)).await.unwrap().into_inner();
    assert_eq!(written.version.unwrap().number, pay.version.unwrap().number + 1);
    assert_eq!(status(&daemon, &["pay"]).await.dependencies[0].admission_burst_micros, Some(3_000_000));
    daemon.end().await;
}

#[tokio::test]
async fn status_shows_ledgers_as_they_are_or_would_begin() {
    let daemon = Daemon::start(POLICIES).await;
    let mut budgets = daemon.budgets().await;
    let costs = vec![pb::Cost { unit: "tokens".into(), amount_micros: 2_000_000 }];
    admitted(budgets.reserve(pb::ReserveRequest { costs, ..original("pay", 1) }).await.unwrap().into_inner());
    for number in [1, 2] {
        admitted(budgets.reserve(original("fam/x", number)).await.unwrap().into_inner());
    }

    let answer = status(&daemon, &[]).await;
    assert_eq!((answer.store.as_str(), answer.store_up), ("memory", true));
    let names: Vec<_> = answer.dependencies.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["fam/x", "pay"]);
    let [family, pay] = &answer.dependencies[..] else { panic!() };
    assert_eq!(family.mode, i32::from(pb::Mode::Shadow));
    assert_eq!(family.counters.unwrap().would_be_denied, 1);
    assert_eq!((pay.in_flight, pay.max_in_flight), (1, Some(7)));
    assert_eq!((pay.admission_balance_micros, pay.admission_burst_micros), (Some(19_000_000), Some(20_000_000)));
    assert_eq!(pay.retry_balance_micros, 200_000);
    let unit = pb::UnitStatus { unit: "tokens".into(), balance_micros: 3_000_000, burst_micros: 5_000_000 };
    assert_eq!(pay.units, [unit]);
    assert_eq!(pay.ledger_version, answer.version);

    let fresh = status(&daemon, &["fam/new"]).await;
    let [fresh] = &fresh.dependencies[..] else { panic!() };
    assert_eq!((fresh.ledger_version, fresh.admission_balance_micros), (None, Some(1_000_000)));
    assert_eq!(daemon.store.inner.len(), (2, 1));

    let mut admin = daemon.admin().await;
    let request = pb::GetStatusRequest { page_size: Some(1), ..Default::default() };
    let page = admin.get_status(request.clone()).await.unwrap().into_inner();
    assert_eq!((page.dependencies.len(), page.next_page_token.as_deref()), (1, Some("fam/x")));
    let page = admin.get_status(pb::GetStatusRequest { page_token: page.next_page_token, ..request }).await;
    let page = page.unwrap().into_inner();
    assert_eq!((page.dependencies[0].name.as_str(), page.next_page_token), ("pay", None));
    let many = pb::GetStatusRequest { dependencies: vec!["a".into(); 1001], ..Default::default() };
    assert_eq!(admin.get_status(many).await.unwrap_err().code(), Code::InvalidArgument);
    daemon.end().await;
}

#[tokio::test]
async fn the_kill_switch_acts_on_the_next_call() {
    let daemon = Daemon::start(POLICIES).await;
    let (mut budgets, mut admin) = (daemon.budgets().await, daemon.admin().await);
    let retry = |number| {
        let attempt = pb::Attempt { number: 2, cause: Some(pb::Cause::Transient.into()) };
        pb::ReserveRequest { attempt: Some(attempt), ..original("pay", number) }
    };
    for number in 0..5 {
        admitted(budgets.reserve(original("pay", number)).await.unwrap().into_inner());
    }
    let switch = |enabled| pb::SetRetriesRequest {
        target: "*".into(),
        enabled,
        why: "fire\ndrill".into(),
        ..Default::default()
    };
    admin.set_retries(switch(false)).await.unwrap();
    let off = denied(budgets.reserve(retry(10)).await.unwrap().into_inner());
    assert_eq!(off.reason, i32::from(pb::DenyReason::RetriesOff));
    assert!(status(&daemon, &["pay"]).await.dependencies[0].retries_off);
    let listed = admin.list_policies(pb::ListPoliciesRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.retries_off, ["*"]);
    admin.set_retries(switch(true)).await.unwrap();
    admitted(budgets.reserve(retry(11)).await.unwrap().into_inner());
    for (target, why) in [("", ""), ("a\nb", ""), ("pay", &"x".repeat(257) as &str)] {
        let request =
            pb::SetRetriesRequest { target: target.into(), enabled: false, why: why.into(), ..Default::default() };
        assert_eq!(admin.set_retries(request).await.unwrap_err().code(), Code::InvalidArgument, "{target:?}");
    }
    daemon.end().await;
}
