//! Starting, importing, changing: what is written and what is refused.

use std::{
    fs,
    sync::{Arc, atomic::Ordering::SeqCst},
};

use budget::ids::PolicyVersion;

use super::fake::{FIVE, Fake, SIX, TestFile, put, replica, state, version};
use crate::{
    policies::{Policies, PoliciesError, PolicyFileError, repository::MemoryRepository},
    store::StoreError,
};

#[tokio::test]
async fn with_neither_file_nor_document_the_defaults_are_in_force() {
    let fake = Fake::new();
    let policies = replica(&fake, None).await;
    assert_eq!(policies.snapshot().version(), PolicyVersion::default());
    assert_eq!(state(&policies, "d"), (10, false));
    assert_eq!((fake.document(), policies.last_error()), (None, None));
}

#[tokio::test]
async fn a_file_is_imported_once_and_taken_over_by_others() {
    let fake = Fake::new();
    let file = TestFile::new(FIVE);
    let first = replica(&fake, Some(&file)).await;
    let imported = first.snapshot().version();
    assert_eq!(imported.number, 1);
    assert!((0..1 << 52).contains(&imported.id));
    let (second, third) = (replica(&fake, Some(&file)).await, replica(&fake, None).await);
    assert_eq!((second.snapshot().version(), third.snapshot().version()), (imported, imported));
    assert_eq!((state(&second, "d"), state(&third, "d")), ((5, false), (5, false)));
    assert_eq!(fake.writes.load(SeqCst), 1);
}

#[tokio::test]
async fn changes_through_the_api_survive_a_restart_until_the_file_changes() {
    let fake = Fake::new();
    let file = TestFile::new(FIVE);
    let policies = replica(&fake, Some(&file)).await;
    let written = put(&policies, "d", "retry.burst = 8", policies.snapshot().version()).await.unwrap();
    policies.set_retries("d", false).await.unwrap();
    assert_eq!(written.number, 2);
    let restarted = replica(&fake, Some(&file)).await;
    assert_eq!((state(&restarted, "d"), restarted.snapshot().version().number), ((8, true), 3));
    // An import replaces rules. What an operator switched off stays off.
    file.write(SIX);
    let restarted = replica(&fake, Some(&file)).await;
    assert_eq!((state(&restarted, "d"), restarted.snapshot().version().number), ((6, true), 4));
    policies.refresh().await.unwrap();
    assert_eq!(state(&policies, "d"), (6, true));
}

#[tokio::test]
async fn replicas_with_different_files_agree_on_the_one_imported_last() {
    let fake = Fake::new();
    let (five, six) = (TestFile::new(FIVE), TestFile::new(SIX));
    let first = replica(&fake, Some(&five)).await;
    let second = replica(&fake, Some(&six)).await;
    for _ in 0..3 {
        first.refresh().await.unwrap();
        second.refresh().await.unwrap();
        assert_eq!((state(&first, "d"), state(&second, "d")), ((6, false), (6, false)));
        assert_eq!(first.snapshot().version(), second.snapshot().version());
    }
    assert_eq!(fake.writes.load(SeqCst), 2);
}

#[tokio::test]
async fn replicas_that_start_together_import_once() {
    let fake = Fake::new();
    let file = TestFile::new(FIVE);
    fake.races.store(1, SeqCst);
    let policies = replica(&fake, Some(&file)).await;
    // The other one had imported the same content.
    assert_eq!(policies.snapshot().version().id, 77);
    assert_eq!((state(&policies, "d"), fake.writes.load(SeqCst)), ((5, false), 1));
}

#[tokio::test]
async fn a_store_that_is_away_at_the_start_gets_the_file_later() {
    let fake = Fake::new();
    fake.away.store(true, SeqCst);
    let policies = replica(&fake, Some(&TestFile::new(FIVE))).await;
    assert_eq!((state(&policies, "d"), policies.snapshot().version()), ((5, false), PolicyVersion::default()));
    assert_eq!(policies.last_error().as_deref(), Some("policies: store is away: test"));
    assert!(matches!(policies.refresh().await, Err(PoliciesError::Store(StoreError::Away(_)))));
    assert!(put(&policies, "d", "", PolicyVersion::default()).await.is_err());
    fake.away.store(false, SeqCst);
    policies.refresh().await.unwrap();
    assert_eq!((policies.last_error(), policies.snapshot().version().number), (None, 1));
    assert_eq!(fake.document().unwrap().version, policies.snapshot().version());
}

#[tokio::test]
async fn a_store_that_goes_away_leaves_the_policies_in_force() {
    let fake = Fake::new();
    let policies = replica(&fake, Some(&TestFile::new(FIVE))).await;
    fake.away.store(true, SeqCst);
    assert!(policies.refresh().await.is_err());
    assert_eq!(state(&policies, "d"), (5, false));
}

#[tokio::test]
async fn a_put_needs_the_expected_version_and_a_valid_text() {
    let fake = Fake::new();
    let policies = replica(&fake, None).await;
    let first = put(&policies, "d", "retry.burst = 5", PolicyVersion::default()).await.unwrap();
    assert_eq!((first.number, state(&policies, "d")), (1, (5, false)));
    let before = fake.document();
    for wrong in [PolicyVersion::default(), version(1, first.id ^ 1), version(2, first.id), version(-1, 0)] {
        let error = put(&policies, "d", "retry.burst = 6", wrong).await.unwrap_err();
        assert!(matches!(error, PoliciesError::Conflict { current } if current == first), "{error}");
    }
    let error = put(&policies, "d", "retry.burst = -1", first).await.unwrap_err();
    assert_eq!(error.to_string(), "rule \"d\", line 1: retry.burst is -1: must be between 0 and 1000000000");
    for (name, text) in
        [("", "retry.burst = 6"), ("a**", "mode = 'shadow'"), ("a\nb", "mode = 'shadow'"), ("d", "a = [")]
    {
        assert!(matches!(put(&policies, name, text, first).await, Err(PoliciesError::Invalid(_))), "{name:?}");
    }
    assert!(matches!(put(&policies, "e", "", first).await, Err(PoliciesError::NoSuchRule(_))));
    assert!(matches!(put(&policies, "defaults", " \n", first).await, Err(PoliciesError::NoSuchRule(_))));
    // None of these changed anything.
    assert_eq!((fake.document(), policies.snapshot().version()), (before, first));
    let second = put(&policies, "defaults", "retry.burst = 7", first).await.unwrap();
    let third = put(&policies, "d", "  \n", second).await.unwrap();
    assert_eq!((second.number, third.number, state(&policies, "d")), (2, 3, (7, false)));
    assert!(first.id != second.id && second.id != third.id);
}

#[tokio::test]
async fn a_put_that_comes_second_is_told_and_changes_nothing() {
    let fake = Fake::new();
    let policies = replica(&fake, Some(&TestFile::new(FIVE))).await;
    fake.races.store(1, SeqCst);
    let error = put(&policies, "d", "retry.burst = 9", policies.snapshot().version()).await.unwrap_err();
    assert!(matches!(error, PoliciesError::Conflict { current } if current == version(2, 77)), "{error}");
    assert_eq!((state(&policies, "d"), policies.snapshot().version()), ((5, false), version(2, 77)));
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_found_by_the_next_refresh() {
    let fake = Fake::new();
    let policies = replica(&fake, Some(&TestFile::new(FIVE))).await;
    fake.lose_answers.store(true, SeqCst);
    let error = put(&policies, "d", "retry.burst = 9", policies.snapshot().version()).await.unwrap_err();
    assert!(matches!(error, PoliciesError::Store(StoreError::Lost(_))), "{error}");
    assert_eq!(state(&policies, "d"), (5, false));
    policies.refresh().await.unwrap();
    assert_eq!((state(&policies, "d"), policies.snapshot().version().number), ((9, false), 2));
}

#[tokio::test]
async fn q13_retries_are_switched_off_and_on() {
    let fake = Fake::new();
    let (policies, other) = (replica(&fake, None).await, replica(&fake, None).await);
    let check = async |target: &str, enabled: bool, number: i64, still_off_by: Option<&str>, off: &[&str]| {
        let switched = policies.set_retries(target, enabled).await.unwrap();
        assert_eq!((switched.version.number, switched.still_off_by.as_deref()), (number, still_off_by), "{target}");
        other.refresh().await.unwrap();
        for policies in [&policies, &other] {
            let found: Vec<_> = ["a", "f/x", "f/y"].into_iter().filter(|name| state(policies, name).1).collect();
            assert_eq!(found, off, "{target} {enabled}");
        }
    };
    check("f/x", false, 1, None, &["f/x"]).await;
    check("f/x", false, 1, None, &["f/x"]).await;
    check("f/*", false, 2, None, &["f/x", "f/y"]).await;
    check("*", false, 3, None, &["a", "f/x", "f/y"]).await;
    check("f/y", true, 3, Some("*"), &["a", "f/x", "f/y"]).await;
    check("*", true, 4, None, &["f/x", "f/y"]).await;
    check("f/x", true, 5, Some("f/*"), &["f/x", "f/y"]).await;
    check("f/*", true, 6, None, &[]).await;
    for bad in ["", "a**", "a\nb", &"x".repeat(257)] {
        assert!(matches!(policies.set_retries(bad, false).await, Err(PoliciesError::Target { .. })), "{bad:?}");
    }
}

#[tokio::test]
async fn a_switch_wins_over_races_within_bounds() {
    let fake = Fake::new();
    let policies = replica(&fake, Some(&TestFile::new(FIVE))).await;
    fake.races.store(15, SeqCst);
    policies.set_retries("d", false).await.unwrap();
    assert_eq!(state(&policies, "d"), (5, true));
    fake.races.store(usize::MAX, SeqCst);
    let writes = fake.writes.load(SeqCst);
    assert!(matches!(policies.set_retries("d", true).await, Err(PoliciesError::Contended)));
    assert_eq!(fake.writes.load(SeqCst) - writes, 16);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_on_several_replicas_lose_nothing() {
    let fake = Fake::new();
    let mut tasks = Vec::new();
    for replica_index in 0..4 {
        let policies = replica(&fake, None).await;
        tasks.push(tokio::spawn(async move {
            for n in 0..25 {
                let target = format!("r{replica_index}/{n}");
                let mut done = false;
                for _ in 0..100 {
                    done = done || policies.set_retries(&target, false).await.is_ok();
                }
                assert!(done, "{target}");
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let policies = replica(&fake, None).await;
    assert_eq!(policies.snapshot().switches().len(), 100);
    assert_eq!(policies.snapshot().version().number, 100);
}

/// Fails if `read_file` takes a refused file for none, and if it imports an empty one.
#[tokio::test]
async fn a14_a_bad_file_is_refused_at_start_and_leaves_the_policies_at_reload() {
    let fake = Fake::new();
    let file = TestFile::new(FIVE);
    let policies = replica(&fake, Some(&file)).await;
    let before = fake.document();
    let bad: [(&str, &[u8]); 5] = [
        ("half written", b"[dependency.d]\nretry = { bur"),
        ("unknown field", b"[dependency.d]\nretries = 1"),
        ("duplicate dependency", b"[dependency.d]\n[dependency.d]"),
        ("invalid UTF-8", b"[dependency.d]\n# \xff"),
        ("value out of range", b"[dependency.d]\nretry.ratio = -1"),
    ];
    for (what, bytes) in bad {
        fs::write(file.path(), bytes).unwrap();
        let error = policies.import(&file.path()).await.unwrap_err();
        assert_eq!(policies.last_error(), Some(error.to_string()), "{what}");
        assert!(error.to_string().contains("policies.toml, line "), "{error}");
        assert!(Policies::start(Arc::new(MemoryRepository::default()), Some(&file.path())).await.is_err(), "{what}");
    }
    fs::remove_file(file.path()).unwrap();
    let error = policies.import(&file.path()).await.unwrap_err();
    assert!(matches!(error, PoliciesError::File(PolicyFileError::Missing { .. })), "{error}");
    assert!(Policies::start(Arc::clone(&fake), Some(&file.path())).await.is_err());
    // A directory without policy files holds no policy either.
    let error = policies.import(file.0.path()).await.unwrap_err().to_string();
    assert!(error.ends_with("has no file that ends in .toml"), "{error}");
    assert_eq!(policies.source_error().unwrap().kind, "empty");
    // Truncated to nothing: it holds no policy, and wipes none.
    file.write("");
    policies.import(&file.path()).await.unwrap();
    assert_eq!(state(&replica(&fake, Some(&file)).await, "d"), (5, false));
    assert_eq!((state(&policies, "d"), fake.document()), ((5, false), before));
    // A good one is imported, and the error goes.
    file.write(SIX);
    policies.import(&file.path()).await.unwrap();
    assert_eq!((state(&policies, "d"), policies.last_error()), ((6, false), None));
}

#[tokio::test]
async fn an_import_that_the_store_does_not_take_is_tried_again() {
    let fake = Fake::new();
    let file = TestFile::new(FIVE);
    let policies = replica(&fake, Some(&file)).await;
    fake.away.store(true, SeqCst);
    file.write(SIX);
    assert!(policies.import(&file.path()).await.is_err());
    assert_eq!(state(&policies, "d"), (5, false));
    fake.away.store(false, SeqCst);
    policies.poll().await;
    assert_eq!((state(&policies, "d"), policies.last_error()), ((6, false), None));
}
