//! Following the stored document: who wins, what stays, what is said.

use std::sync::{Arc, atomic::Ordering::SeqCst};

use budget::ids::PolicyVersion;
use tokio::sync::Semaphore;

use super::{
    fake::{FIVE, Fake, TestFile, put, replica, state, version},
    resolve,
};
use crate::policies::{
    Policies, PoliciesError,
    repository::{Document, MemoryRepository, Replaced, Repository},
};

#[tokio::test]
async fn a_document_that_is_missing_or_older_is_written_back() {
    let fake = Fake::new();
    let policies = replica(&fake, Some(&TestFile::new(FIVE))).await;
    policies.set_retries("d", false).await.unwrap();
    let old = fake.document().unwrap();
    put(&policies, "d", "retry.burst = 9", old.version).await.unwrap();

    let mut number = 3;
    for there in [None, Some(old.clone()), Some(Document { version: version(0, 5), ..old.clone() })] {
        fake.force(there.as_ref());
        policies.refresh().await.unwrap();
        number += 1;
        let now = fake.document().unwrap();
        assert_eq!((now.version.number, policies.snapshot().version()), (number, now.version));
        assert_eq!(state(&policies, "d"), (9, true));
        // The file that was imported is still known, so a restart does not import it again.
        assert_eq!(now.import_hash, old.import_hash);
        // Others take it over.
        assert_eq!(state(&replica(&fake, None).await, "d"), (9, true));
    }
}

#[tokio::test]
async fn of_equal_numbers_the_higher_id_wins_everywhere() {
    let fake = Fake::new();
    let policies = replica(&fake, Some(&TestFile::new(FIVE))).await;
    let mine = fake.document().unwrap();
    let six = mine.body.replace("burst = 5", "burst = 6");
    let higher = Document { version: version(1, mine.version.id + 1), body: six.clone(), import_hash: None };
    fake.force(Some(&higher));
    policies.refresh().await.unwrap();
    assert_eq!((state(&policies, "d"), policies.snapshot().version()), ((6, false), higher.version));
    let lower = Document { version: version(1, -1), body: mine.body, import_hash: None };
    fake.force(Some(&lower));
    policies.refresh().await.unwrap();
    assert_eq!((state(&policies, "d"), policies.snapshot().version().number), ((6, false), 2));
}

#[tokio::test]
async fn two_replicas_that_write_back_end_up_with_one_version() {
    let fake = Fake::new();
    let first = replica(&fake, Some(&TestFile::new(FIVE))).await;
    let second = replica(&fake, None).await;
    fake.force(None);
    let (one, two) = tokio::join!(first.refresh(), second.refresh());
    one.unwrap();
    two.unwrap();
    first.refresh().await.unwrap();
    assert_eq!(first.snapshot().version(), second.snapshot().version());
    assert_eq!(first.snapshot().version().number, 2);
}

/// Bodies that no replica may take over.
fn invalid_bodies() -> Vec<String> {
    let whole = |format: u32, off: &str, rules: &str, more: &str| {
        format!(
            "{{\"format\":{format},\"retries_off\":{{{off}}},\"rules\":{{{rules}}},\"files\":{{}},\"overrides\":{{}},\
             \"history\":[]{more}}}"
        )
    };
    let body = |rules: &str| whole(2, "", rules, "");
    let switch = "{\"at_ms\":0,\"until_ms\":null,\"who\":\"\",\"why\":\"\"}";
    vec![
        String::new(),
        "{".to_owned(),
        "[]".to_owned(),
        whole(3, "", "", ""),
        whole(2, "", "", ",\"later\":1"),
        whole(2, &format!("\"a**\":{switch}"), "", ""),
        body("\"d\":\"retry.burst = -1\""),
        body("\"a**\":\"\""),
        body("\"d\":\"later = 1\""),
    ]
}

#[tokio::test]
async fn an_invalid_document_leaves_the_last_good_policies() {
    for body in invalid_bodies() {
        let fake = Fake::new();
        let policies = replica(&fake, Some(&TestFile::new(FIVE))).await;
        let good = fake.document().unwrap();
        let bad = Document { version: version(9, 9), body: body.clone(), import_hash: None };
        fake.force(Some(&bad));
        for _ in 0..2 {
            let error = policies.refresh().await.unwrap_err();
            assert!(error.to_string().starts_with("stored policies of version 9 are invalid: "), "{error}");
            assert_eq!(policies.last_error(), Some(error.to_string()));
        }
        policies.poll().await;
        assert_eq!((state(&policies, "d"), policies.snapshot().version()), ((5, false), good.version), "{body}");
        // It may be of a newer budgetd: nobody writes over it.
        assert!(put(&policies, "d", "retry.burst = 6", version(9, 9)).await.is_err());
        assert!(policies.set_retries("d", false).await.is_err());
        assert_eq!(fake.document(), Some(bad));
        // A good one is taken over and the error goes.
        let fixed = Document { version: version(10, 1), body: good.body.replace('5', "6"), import_hash: None };
        fake.force(Some(&fixed));
        policies.refresh().await.unwrap();
        assert_eq!((state(&policies, "d"), policies.last_error()), ((6, false), None));
    }
}

#[tokio::test]
async fn a_version_that_no_script_can_compare_is_invalid() {
    for number in [1 << 53, i64::MAX] {
        let fake = Fake::new();
        let policies = replica(&fake, Some(&TestFile::new(FIVE))).await;
        let good = fake.document().unwrap();
        fake.force(Some(&Document { version: version(number, 1), ..good.clone() }));
        assert!(matches!(policies.refresh().await, Err(PoliciesError::Document { .. })), "{number}");
        assert_eq!(policies.snapshot().version(), good.version);
    }
}

#[tokio::test]
async fn nobody_starts_on_an_invalid_document_unless_a_new_file_replaces_it() {
    let fake = Fake::new();
    let bad = Document { version: version(9, 9), body: "{".to_owned(), import_hash: Some("x".to_owned()) };
    fake.force(Some(&bad));
    let started = Policies::start(Arc::clone(&fake), None).await.map(drop);
    assert!(matches!(started, Err(PoliciesError::Document { .. })));
    let policies = replica(&fake, Some(&TestFile::new(FIVE))).await;
    assert_eq!((state(&policies, "d"), policies.snapshot().version().number), ((5, false), 10));
}

#[tokio::test]
async fn an_invalid_document_at_first_contact_refuses_every_dependency() {
    let fake = Fake::new();
    fake.away.store(true, SeqCst);
    let policies = replica(&fake, None).await;
    let bad = Document { version: version(9, 9), body: "{".to_owned(), import_hash: None };
    fake.force(Some(&bad));
    fake.away.store(false, SeqCst);
    assert!(policies.refresh().await.is_err());
    let why = resolve(&policies.snapshot(), "d").unwrap_err();
    assert!(why.starts_with("stored policies of version 9 are invalid: "), "{why}");
    // Taken away by an operator, there is nothing left that could be meant.
    fake.force(None);
    policies.refresh().await.unwrap();
    assert_eq!(state(&policies, "d"), (10, false));
}

#[tokio::test]
async fn versions_that_only_ledgers_know_are_passed_after_some_polls() {
    let fake = Fake::new();
    let policies = replica(&fake, Some(&TestFile::new(FIVE))).await;
    policies.saw(version(57, 3));
    for _ in 0..4 {
        policies.poll().await;
        assert_eq!(policies.snapshot().version().number, 1);
    }
    policies.poll().await;
    assert_eq!((policies.snapshot().version().number, state(&policies, "d")), (58, (5, false)));
    for _ in 0..10 {
        policies.poll().await;
    }
    assert_eq!(policies.snapshot().version().number, 58);
    // The next change is above what was seen, polled or not; nonsense is not believed.
    policies.saw(version(70, 0));
    policies.saw(version(i64::MAX, 0));
    let written = put(&policies, "d", "retry.burst = 6", policies.snapshot().version()).await.unwrap();
    assert_eq!(written.number, 71);
    // Who holds no policies has nothing to pass them with.
    let empty = replica(&Fake::new(), None).await;
    empty.saw(version(57, 3));
    for _ in 0..10 {
        empty.poll().await;
    }
    assert_eq!(empty.snapshot().version(), PolicyVersion::default());
}

#[tokio::test]
async fn concurrent_refreshes_share_reads() {
    let fake = Fake::new();
    let policies = Arc::new(replica(&fake, Some(&TestFile::new(FIVE))).await);
    let loads = fake.loads.load(SeqCst);
    fake.gate.forget_permits(Semaphore::MAX_PERMITS);
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let policies = Arc::clone(&policies);
            tokio::spawn(async move { policies.refresh().await })
        })
        .collect();
    tokio::task::yield_now().await;
    fake.gate.add_permits(Semaphore::MAX_PERMITS);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert!(fake.loads.load(SeqCst) - loads <= 2);
    // One that is dropped half-way answers for nobody.
    fake.gate.forget_permits(Semaphore::MAX_PERMITS);
    let half = tokio::time::timeout(std::time::Duration::ZERO, policies.refresh()).await;
    assert!(half.is_err());
    fake.gate.add_permits(Semaphore::MAX_PERMITS);
    let other = replica(&fake, None).await;
    put(&other, "d", "retry.burst = 9", other.snapshot().version()).await.unwrap();
    policies.refresh().await.unwrap();
    assert_eq!(state(&policies, "d"), (9, false));
}

/// Fails if `adopt` takes over the version but keeps the old set, i.e. without `inner.set = Arc::new(set)`.
#[tokio::test]
async fn a13_every_replica_obeys_a_change_after_one_refresh() {
    let fake = Fake::new();
    let (first, second) = (replica(&fake, Some(&TestFile::new(FIVE))).await, replica(&fake, None).await);
    assert_eq!((state(&first, "d"), state(&second, "d")), ((5, false), (5, false)));
    for burst in 6..106 {
        let written = put(&first, "d", &format!("retry.burst = {burst}"), first.snapshot().version()).await.unwrap();
        second.refresh().await.unwrap();
        for policies in [&first, &second] {
            let resolved = resolve(&policies.snapshot(), "d").unwrap();
            assert_eq!((resolved.version, resolved.numbers.retry.burst), (written, burst * 1_000_000));
        }
    }
}

#[tokio::test]
async fn the_memory_repository_compares_and_sets() {
    let repository = MemoryRepository::default();
    let document = |number| Document { version: version(number, 0), body: String::new(), import_hash: None };
    let check = async |expected: Option<i64>, new: i64, there: Result<(), Option<i64>>| {
        let replaced = repository.replace(expected.map(|number| version(number, 0)), &document(new)).await.unwrap();
        let wanted = match there {
            Ok(()) => Replaced::Done,
            Err(there) => Replaced::Conflict(there.map(document)),
        };
        assert_eq!(replaced, wanted, "{expected:?} {new}");
    };
    check(Some(1), 2, Err(None)).await;
    check(None, 1, Ok(())).await;
    check(None, 2, Err(Some(1))).await;
    check(Some(2), 3, Err(Some(1))).await;
    check(Some(1), 2, Ok(())).await;
    assert_eq!(repository.load().await.unwrap(), Some(document(2)));
}
