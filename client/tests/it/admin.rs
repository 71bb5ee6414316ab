//! What operators ask.

use budget::{
    ids::{DependencyId, PolicyVersion},
    lease::HolderId,
};
use budget_client::{Balance, By, Client, Error, How, PolicyEdit, PolicyRule};

use crate::{LONG, fake::Fake};

const VERSION: PolicyVersion = PolicyVersion { number: 7, id: 8 };

#[tokio::test]
async fn policies_are_read_by_page_and_written_by_version() {
    let fake = Fake::new();
    let client = Client::new(&fake.serve().await).unwrap();
    let policy = client.get_policy(&DependencyId::new("payments").unwrap(), LONG).await.unwrap();
    assert_eq!((policy.rule.as_str(), policy.version, policy.retries_off), ("payments", VERSION, true));
    let first = client.list_policies(None, LONG).await.unwrap();
    assert_eq!((first.rules[0].name.as_str(), first.retries_off), ("first", vec!["*".to_owned()]));
    let second = client.list_policies(first.next, LONG).await.unwrap();
    assert_eq!((second.rules[0].name.as_str(), second.next), ("second", None));

    let rule = || PolicyRule { name: "payments".to_owned(), source_toml: "mode = \"shadow\"".to_owned() };
    assert_eq!(client.put_policy(rule(), VERSION, LONG).await.unwrap(), PolicyVersion { number: 8, id: 9 });
    assert_eq!(fake.0.put.lock().unwrap().as_ref().unwrap().source_toml, "mode = \"shadow\"");
    let error = client.put_policy(rule(), PolicyVersion::default(), LONG).await.unwrap_err();
    assert!(matches!(error, Error::Conflict(_)), "{error}");
}

#[tokio::test]
async fn the_kill_switch_and_status_are_carried() {
    let fake = Fake::new();
    let client = Client::new(&fake.serve().await).unwrap();
    assert_eq!(client.set_retries("fam/*", false, "incident 7", LONG).await.unwrap(), VERSION);
    let error = client.set_retries("other", true, "", LONG).await.unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");

    let names = |names: &[&str]| names.iter().map(|name| DependencyId::new(name).unwrap()).collect::<Vec<_>>();
    let status = client.get_status(&names(&["a", "b"]), None, LONG).await.unwrap();
    assert_eq!((status.store.as_str(), status.store_up, status.version), ("memory", true, VERSION));
    let [a, b] = &status.dependencies[..] else { panic!("{status:?}") };
    assert_eq!((a.name.as_str(), b.name.as_str()), ("a", "b"));
    assert_eq!(a.admission, Some(Balance { balance_micros: -5, burst_micros: 10 }));
    assert_eq!(a.units[0].bucket, Balance { balance_micros: -1, burst_micros: 2 });
    assert_eq!((a.in_flight, a.max_in_flight, a.ledger_version), (3, None, None));
    let error = client.get_status(&names(&["nonsense"]), None, LONG).await.unwrap_err();
    assert_eq!(error.to_string(), "unexpected answer: counters is absent: is required");
}

#[tokio::test]
async fn holders_are_listed_by_page_and_lose_their_leases() {
    let fake = Fake::new();
    let client = Client::new(&fake.serve().await).unwrap();
    let payments = DependencyId::new("payments").unwrap();
    let first = client.list_holders(&payments, None, LONG).await.unwrap();
    let [holder] = &first.holders[..] else { panic!("{first:?}") };
    let unit = holder.value.value.units[0].unit;
    assert_eq!((holder.value.holder.as_str(), holder.value.weight, holder.value.demand), ("first", 2, 30));
    assert_eq!((holder.value.value.rate, holder.units.name(unit)), (7, Some("usd")));
    let second = client.list_holders(&payments, first.next, LONG).await.unwrap();
    assert_eq!((second.holders[0].value.holder.as_str(), second.next), ("second", None));
    let error = client.list_holders(&DependencyId::new("nonsense").unwrap(), None, LONG).await.unwrap_err();
    assert!(error.to_string().contains("holders.incarnation is 010101: has 3 bytes, must have 16"), "{error}");

    let holder = |name: &str| HolderId::new(name).unwrap();
    assert!(client.revoke_lease(&payments, &holder("pod-1"), "incident 7", LONG).await.unwrap());
    assert!(!client.revoke_lease(&payments, &holder("pod-2"), "incident 7", LONG).await.unwrap());
}

#[tokio::test]
async fn changes_name_who_and_how_and_streams_end() {
    let fake = Fake::new();
    let client = Client::new(&fake.serve().await).unwrap();
    let edit = |how| PolicyEdit { name: "payments".to_owned(), expected: VERSION, how, ..PolicyEdit::default() };
    assert_eq!(client.edit_policy(edit(How::OverrideForMs(7_200_000)), LONG).await.unwrap(), VERSION);
    let error = client.edit_policy(edit(How::Plain), LONG).await.unwrap_err();
    assert!(error.to_string().contains("comes from policy file p.toml"), "{error}");
    let history = client.policy_history(None, LONG).await.unwrap();
    assert_eq!((history.changes[0].at_ms, history.changes[0].by.who.as_str()), (5, "ann"));
    let by = || By { who: "ann".to_owned(), why: String::new() };
    assert_eq!(client.roll_back(5, VERSION, How::Plain, by(), LONG).await.unwrap(), VERSION);
    assert!(client.roll_back(4, VERSION, How::TakeOver, by(), LONG).await.is_err());

    let mut trial = client.try_policies(Vec::new(), 1_000, LONG).await.unwrap();
    assert!(!trial.next().await.unwrap().unwrap().finished);
    let last = trial.next().await.unwrap().unwrap();
    assert_eq!((last.finished, last.trials[0].candidate.refusals[0].retries), (true, 9));
    assert_eq!(trial.next().await.unwrap(), None);

    let mut pages = client.watch_status(&[], std::time::Duration::from_secs(1), LONG).await.unwrap();
    assert_eq!(pages.next().await.unwrap().unwrap().store, "one");
    assert_eq!(pages.next().await.unwrap().unwrap().store, "two");
    assert!(matches!(pages.next().await, Err(Error::Unavailable(_))));
}
