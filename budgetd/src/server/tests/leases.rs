//! Sync over the wire, and what operators see and do.

use tonic::{Code, Request};

use super::*;

const POLICIES: &str = r#"
[defaults]
unknown_dependencies = "refuse"
[dependency."pay"]
admission = { rate = "1000/s", burst = 500, max_in_flight = 100 }
retry = { burst = 50 }
lease = { enabled = true }
[dependency."pay".cost.usd]
rate = "10/s"
burst = 100
[dependency."plain"]
[dependency."many/*"]
admission = { rate = "100/s", burst = 100 }
lease = { enabled = true }
"#;

/// What one holder says of one dependency.
fn ask(dependency: &str, sequence: u64, epoch: Option<pb::Epoch>) -> pb::SyncAsk {
    pb::SyncAsk { dependency: dependency.into(), sequence, nonce: 1, epoch, ..Default::default() }
}

fn sync(holder: &str, asks: Vec<pb::SyncAsk>) -> pb::SyncRequest {
    pb::SyncRequest { holder_id: holder.into(), incarnation: vec![holder.len() as u8; 16], weight: None, asks }
}

fn epoch(answer: &pb::SyncAnswer) -> Option<pb::Epoch> {
    let Some(pb::sync_answer::Answer::OtherEpoch(epoch)) = &answer.answer else { panic!("no epoch: {answer:?}") };
    Some(*epoch)
}

fn grant(answer: &pb::SyncAnswer) -> pb::Grant {
    let Some(pb::sync_answer::Answer::Granted(grant)) = &answer.answer else { panic!("no grant: {answer:?}") };
    grant.clone()
}

fn presented(grant: &pb::Grant) -> Option<pb::PresentedLease> {
    Some(pb::PresentedLease {
        epoch: grant.epoch,
        generation: grant.generation,
        value: grant.value.clone(),
        curve: grant.curve.clone(),
        position_ms: 0,
    })
}

impl Daemon {
    /// One ask, answered.
    async fn sync_one(&self, holder: &str, ask: pb::SyncAsk) -> pb::SyncAnswer {
        let answers = self.budgets().await.sync(sync(holder, vec![ask])).await.unwrap().into_inner().answers;
        assert_eq!(answers.len(), 1);
        answers.into_iter().next().unwrap()
    }

    /// The first lease of a holder.
    async fn lease(&self, holder: &str, dependency: &str) -> pb::Grant {
        let epoch = epoch(&self.sync_one(holder, ask(dependency, 1, None)).await);
        grant(&self.sync_one(holder, ask(dependency, 2, epoch)).await)
    }
}

#[tokio::test]
async fn each_dependency_of_a_message_has_its_own_answer() {
    let daemon = Daemon::start(POLICIES).await;
    let asks = ["nobody", "pay", "plain"].map(|name| ask(name, 1, None)).to_vec();
    let answers = daemon.budgets().await.sync(sync("pod-1", asks)).await.unwrap().into_inner().answers;
    let [nobody, pay, plain] = &answers[..] else { panic!("{answers:?}") };
    let Some(pb::sync_answer::Answer::Failure(failure)) = &nobody.answer else { panic!("{nobody:?}") };
    assert_eq!((failure.code, &nobody.rules), (Code::NotFound.into(), &None));
    assert!(failure.message.contains("unknown_dependencies"), "{}", failure.message);
    assert_eq!(epoch(pay).unwrap().number, 1);
    let not_permitted = pb::sync_answer::Answer::NotLeased(pb::NotLeased::NotPermitted.into());
    assert_eq!(plain.answer, Some(not_permitted));
    let rules = plain.rules.as_ref().unwrap();
    assert!(!rules.limited && rules.units.is_empty());
    assert!(matches!(
        rules.fallback.as_ref().unwrap().originals,
        Some(pb::fallback_rules::Originals::Allow(pb::FallbackAllow {}))
    ));
    assert_eq!(daemon.metric(r#"budgetd_failures_total{call="sync",code="NotFound"}"#), Some(1.0));
    assert_eq!(daemon.metric(r#"budgetd_syncs_total{answer="other_epoch",dependency="pay"}"#), Some(1.0));
    assert_eq!(daemon.metric(r#"budgetd_syncs_total{answer="not_leased",dependency="plain"}"#), Some(1.0));
    daemon.end().await;
}

#[tokio::test]
async fn a_lease_comes_with_the_rules_to_decide_by() {
    let daemon = Daemon::start(POLICIES).await;
    let epoch = epoch(&daemon.sync_one("pod-1", ask("pay", 1, None)).await);
    let answer = daemon.sync_one("pod-1", ask("pay", 2, epoch)).await;
    let first = grant(&answer);
    let value = first.value.as_ref().unwrap();
    assert!(value.rate_micros_per_second > 0 && value.slots > 0 && value.retry_burst_micros > 0);
    assert_eq!(value.units.iter().map(|unit| unit.unit.as_str()).collect::<Vec<_>>(), ["usd"]);
    assert_eq!((first.position_ms, first.curve.len()), (0, 2));
    let rules = answer.rules.unwrap();
    assert!(rules.limited && rules.slots_limited && !rules.retries_off);
    assert_eq!(rules.units, ["usd"]);
    // 10% of 1000/s for this replica and this holder.
    let half = pb::fallback_rules::Originals::RateMicrosPerSecond(50_000_000);
    assert_eq!(rules.fallback.unwrap().originals, Some(half));

    // A re-send gets the same grant, further along.
    daemon.hands.advance(700);
    let again = grant(&daemon.sync_one("pod-1", ask("pay", 2, epoch)).await);
    assert_eq!((again.generation, again.position_ms, &again.value), (first.generation, 700, &first.value));

    // The next one reports; what it says is in the sum of the ledger and in the metrics, once.
    daemon.hands.advance(4_000);
    let usage =
        pb::Usage { asked: 12, originals_admitted: 9, retries_admitted: 2, fallback_retries: 1, ..Default::default() };
    let renewal = pb::SyncAsk { lease: presented(&first), usage: Some(usage), ..ask("pay", 3, epoch) };
    for _ in 0..3 {
        grant(&daemon.sync_one("pod-1", renewal.clone()).await);
        daemon.hands.advance(1);
    }
    let reported = |kind: &str| daemon.metric(&format!(r#"budgetd_reported_total{{dependency="pay",kind="{kind}"}}"#));
    assert_eq!((reported("asked"), reported("originals_admitted")), (Some(12.0), Some(9.0)));
    assert_eq!((reported("fallback_retries"), reported("not_sent")), (Some(1.0), None));
    let view = daemon.store.inner.view(&DependencyId::new("pay").unwrap(), Clock::instant()).await.unwrap().unwrap();
    assert_eq!((view.counters.originals_admitted, view.counters.retries_admitted), (9, 3));
    daemon.end().await;
}

#[tokio::test]
async fn rules_follow_the_policies() {
    let daemon = Daemon::start(POLICIES).await;
    let mut admin = daemon.admin().await;
    let epoch = epoch(&daemon.sync_one("pod-1", ask("pay", 1, None)).await);
    admin
        .set_retries(pb::SetRetriesRequest { target: "pay".into(), enabled: false, ..Default::default() })
        .await
        .unwrap();
    let answer = daemon.sync_one("pod-1", ask("pay", 2, epoch)).await;
    let rules = answer.rules.unwrap();
    assert!(rules.retries_off);
    let version =
        daemon.store.inner.view(&DependencyId::new("pay").unwrap(), Clock::instant()).await.unwrap().unwrap().version;
    assert_eq!(rules.version.unwrap(), version.into());
    daemon.end().await;
}

#[tokio::test]
async fn bad_asks_name_their_field_and_nothing_is_granted() {
    let daemon = Daemon::start(POLICIES).await;
    let mut budgets = daemon.budgets().await;
    let good = || sync("pod-1", vec![ask("pay", 1, None)]);
    let with = |ask: pb::SyncAsk| sync("pod-1", vec![self::ask("many/1", 1, None), ask]);
    let far = pb::Epoch { number: u64::MAX, id: 0 };
    let cases = [
        ("holder_id", pb::SyncRequest { holder_id: String::new(), ..good() }),
        ("incarnation", pb::SyncRequest { incarnation: vec![1; 15], ..good() }),
        ("weight", pb::SyncRequest { weight: Some(0), ..good() }),
        ("asks", sync("pod-1", Vec::new())),
        ("asks", sync("pod-1", (0..1_001).map(|number| ask(&format!("many/{number}"), 1, None)).collect())),
        ("asks.dependency", sync("pod-1", vec![ask("pay", 1, None), ask("pay", 1, None)])),
        ("asks.dependency", with(ask("a\nb", 1, None))),
        ("asks.sequence", with(ask("pay", 0, None))),
        ("asks.epoch.number", with(ask("pay", 1, Some(far)))),
        ("asks.in_flight", with(pb::SyncAsk { in_flight: u64::MAX, ..ask("pay", 1, None) })),
        (
            "asks.usage.asked",
            with(pb::SyncAsk {
                usage: Some(pb::Usage { asked: 1 << 60, ..Default::default() }),
                ..ask("pay", 1, None)
            }),
        ),
        ("asks.lease.epoch", with(pb::SyncAsk { lease: Some(pb::PresentedLease::default()), ..ask("pay", 1, None) })),
    ];
    let count = cases.len();
    for (field, request) in cases {
        let status = budgets.sync(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{request:?}");
        assert!(status.message().starts_with(&format!("{field} is ")), "{field}: {}", status.message());
    }
    assert_eq!(daemon.store.inner.len(), (0, 0));
    let failed = daemon.metric(r#"budgetd_failures_total{call="sync",code="InvalidArgument"}"#);
    assert_eq!(failed, Some(count as f64));
    // More than any message of ours can be.
    let huge = pb::SyncRequest { incarnation: vec![1; (1 << 20) + 1], ..good() };
    assert_eq!(budgets.sync(huge).await.unwrap_err().code(), Code::OutOfRange);
    daemon.end().await;
}

#[tokio::test]
async fn a_thousand_dependencies_are_answered_in_order() {
    let daemon = Daemon::start(POLICIES).await;
    let name = |number: u64| format!("many/{number}{}", "x".repeat(200));
    let asks = (0..1_000).map(|number| ask(&name(number), number + 1, None)).collect();
    let answers = daemon.budgets().await.sync(sync("pod-1", asks)).await.unwrap().into_inner().answers;
    let epochs: Vec<_> = answers.iter().map(epoch).collect();
    assert!(answers.iter().map(|answer| answer.sequence).eq(1..=1_000));
    let asks = (0..1_000).zip(epochs).map(|(number, epoch)| ask(&name(number), number + 2, epoch)).collect();
    let answers = daemon.budgets().await.sync(sync("pod-1", asks)).await.unwrap().into_inner().answers;
    assert!(answers.iter().all(|answer| grant(answer).value.unwrap().rate_micros_per_second > 0));
    assert_eq!(daemon.store.inner.beat(), 1_000);
    assert_eq!(daemon.metric(r#"budgetd_syncs_total{answer="granted",dependency="many/*"}"#), Some(1_000.0));
    daemon.end().await;
}

/// What the store did not decide in time is told for each dependency; what was decided stands.
#[tokio::test]
async fn a_sync_ends_by_its_deadline() {
    let daemon = Daemon::start(POLICIES).await;
    let mut budgets = daemon.budgets().await;
    daemon.gate.send(false).unwrap();
    let mut request = Request::new(sync("pod-1", vec![ask("pay", 1, None), ask("plain", 1, None)]));
    request.metadata_mut().insert("grpc-timeout", "30m".parse().unwrap());
    let begun = Clock::instant();
    match bounded(budgets.sync(request)).await {
        Ok(response) => {
            for answer in response.into_inner().answers {
                let Some(pb::sync_answer::Answer::Failure(failure)) = answer.answer else { panic!("{answer:?}") };
                assert_eq!(failure.code, i32::from(Code::DeadlineExceeded));
            }
        }
        // The client may look at its clock first.
        Err(status) => assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}"),
    }
    assert!(Clock::instant() - begun < BOUND);
    eventually("nothing waits any more", || daemon.store.waiting.load(Ordering::SeqCst) == 0).await;
    daemon.gate.send(true).unwrap();
    let mut spent = Request::new(sync("pod-1", vec![ask("pay", 1, None)]));
    spent.metadata_mut().insert("grpc-timeout", "0n".parse().unwrap());
    let status = budgets.sync(spent).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
    daemon.end().await;
}

#[tokio::test]
async fn too_many_calls_turn_a_sync_away_at_once() {
    let daemon = Daemon::start_with(POLICIES, |config| config.limits.calls = 1).await;
    daemon.gate.send(false).unwrap();
    let mut budgets = daemon.budgets().await;
    let mut waiting = budgets.clone();
    let first = tokio::spawn(async move { waiting.reserve(original("pay", 1)).await });
    eventually("one waits", || daemon.store.waiting.load(Ordering::SeqCst) == 1).await;
    let status = budgets.sync(sync("pod-1", vec![ask("pay", 1, None)])).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    daemon.gate.send(true).unwrap();
    bounded(first).await.unwrap().unwrap();
    daemon.end().await;
}

#[tokio::test]
async fn operators_see_holders_and_take_leases_away() {
    let daemon = Daemon::start(POLICIES).await;
    let mut admin = daemon.admin().await;
    let grants = [daemon.lease("pod-a", "pay").await, daemon.lease("pod-bb", "pay").await];
    let list = |page_size, page_token: Option<String>| pb::ListHoldersRequest {
        dependency: "pay".into(),
        page_size,
        page_token,
    };
    let page = admin.list_holders(list(Some(1), None)).await.unwrap().into_inner();
    let [holder] = &page.holders[..] else { panic!("{page:?}") };
    assert_eq!((holder.holder_id.as_str(), holder.generation, holder.expires_in_ms), ("pod-a", 1, 120_000));
    assert_eq!((&holder.value, holder.revoked, holder.weight), (&grants[0].value, false, 1));
    let page = admin.list_holders(list(Some(1), page.next_page_token)).await.unwrap().into_inner();
    assert_eq!((page.holders[0].holder_id.as_str(), &page.next_page_token), ("pod-bb", &None));

    let status = admin
        .get_status(pb::GetStatusRequest { dependencies: vec!["pay".into(), "plain".into()], ..Default::default() });
    let status = status.await.unwrap().into_inner().dependencies;
    let lending = status[0].lending.as_ref().unwrap();
    assert_eq!((lending.holders, lending.quarantine_left_ms, lending.epoch), (2, 0, grants[0].epoch));
    let rates = grants.iter().map(|grant| grant.value.as_ref().unwrap().rate_micros_per_second).sum::<u64>();
    assert_eq!(lending.charged.as_ref().unwrap().rate_micros_per_second, rates);
    assert_eq!(status[1].lending, None);

    let revoke = |holder: &str| pb::RevokeLeaseRequest {
        dependency: "pay".into(),
        holder_id: holder.into(),
        why: "incident 7".into(),
    };
    assert!(admin.revoke_lease(revoke("pod-a")).await.unwrap().into_inner().revoked);
    assert!(!admin.revoke_lease(revoke("pod-c")).await.unwrap().into_inner().revoked);
    let listed = admin.list_holders(list(None, None)).await.unwrap().into_inner().holders;
    assert_eq!(listed.iter().map(|holder| holder.revoked).collect::<Vec<_>>(), [true, false]);
    daemon.hands.advance(4_000);
    let renewal = pb::SyncAsk { lease: presented(&grants[0]), ..ask("pay", 3, grants[0].epoch) };
    let next = grant(&daemon.sync_one("pod-a", renewal).await).value.unwrap();
    assert_eq!((next.rate_micros_per_second, next.burst_micros, next.slots), (0, 0, 0));
    assert_eq!(daemon.metric(r#"budgetd_syncs_total{answer="nothing",dependency="pay"}"#), Some(1.0));

    let bad = [
        admin.list_holders(list(Some(0), None)).await.unwrap_err(),
        admin.list_holders(list(None, Some("a\nb".into()))).await.unwrap_err(),
        admin.revoke_lease(revoke("")).await.unwrap_err(),
        admin.revoke_lease(pb::RevokeLeaseRequest { why: "x".repeat(257), ..revoke("pod-a") }).await.unwrap_err(),
    ];
    let fields = ["page_size", "page_token", "holder_id", "why"];
    for (status, field) in bad.iter().zip(fields) {
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with(field), "{}", status.message());
    }
    let nobody = pb::ListHoldersRequest { dependency: "nobody".into(), ..Default::default() };
    assert_eq!(admin.list_holders(nobody).await.unwrap_err().code(), Code::NotFound);
    let nobody = pb::RevokeLeaseRequest { dependency: "nobody".into(), ..revoke("pod-a") };
    assert_eq!(admin.revoke_lease(nobody).await.unwrap_err().code(), Code::NotFound);
    daemon.end().await;
}
