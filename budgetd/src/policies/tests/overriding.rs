//! Rules that files manage, and how they are changed all the same.

use std::sync::{Arc, atomic::Ordering::SeqCst};

use budget::ids::PolicyVersion;

use super::fake::{FIVE, Fake, SIX, TestFile, put, replica, state};
use crate::{
    clock::Clock,
    config::LeaseTiming,
    policies::{By, Edit, How, Policies, PoliciesError, Rollback},
};

fn edit(text: Option<&str>, policies: &Policies, how: How) -> Edit {
    let by = By { who: "ann".to_owned(), why: "night shift".to_owned() };
    let expected = policies.snapshot().version();
    Edit { name: "d".to_owned(), text: text.map(str::to_owned), expected, how, by }
}

const HOURS_2: How = How::OverrideForMs(7_200_000);

/// Seen to fail with `How::Plain` accepted for every rule.
#[tokio::test]
async fn a_files_rule_is_protected_and_the_error_names_the_file() {
    let fake = Fake::new();
    let file = TestFile::new(FIVE);
    let policies = replica(&fake, Some(&file)).await;
    let before = fake.document();
    for text in [Some("retry.burst = 9"), None] {
        let error = policies.edit(edit(text, &policies, How::Plain)).await.unwrap_err();
        assert!(matches!(&error, PoliciesError::Managed { rule, .. } if rule == "d"), "{error}");
        let path = file.path();
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert!(error.to_string().contains("--override-for"), "{error}");
    }
    assert_eq!(fake.document(), before);
    // What no file names is the API's.
    policies.put("e", "retry.burst = 3", policies.snapshot().version()).await.unwrap();
    file.write(SIX);
    policies.import(&file.path()).await.unwrap();
    assert_eq!((state(&policies, "d"), state(&policies, "e")), ((6, false), (3, false)), "an import leaves it alone");
    // Until one does.
    file.write("[dependency.e]\nretry.burst = 4");
    policies.import(&file.path()).await.unwrap();
    assert_eq!((state(&policies, "d"), state(&policies, "e")), ((10, false), (4, false)));
    let error = policies.put("e", "retry.burst = 3", policies.snapshot().version()).await.unwrap_err();
    assert!(matches!(error, PoliciesError::Managed { .. }), "{error}");
    // Taken over, it is the API's, until the file changes again.
    put(&policies, "e", "retry.burst = 8", policies.snapshot().version()).await.unwrap();
    policies.put("e", "retry.burst = 7", policies.snapshot().version()).await.unwrap();
    policies.import(&file.path()).await.unwrap();
    assert_eq!(state(&policies, "e"), (7, false));
    file.write("[dependency.e]\nretry.burst = 5");
    policies.import(&file.path()).await.unwrap();
    assert_eq!(state(&policies, "e"), (5, false));
}

/// Seen to fail with overrides left out of `due`.
#[tokio::test]
async fn an_override_ends_by_itself_and_the_files_rule_of_then_is_in_force() {
    let fake = Fake::new();
    let file = TestFile::new(FIVE);
    fake.clock_ms.store(0, SeqCst);
    let (clock, hands) = Clock::manual(77);
    let path = file.path();
    let policies = Policies::start_timed(Arc::clone(&fake), Some(&path), LeaseTiming::default(), clock).await.unwrap();
    let pass = async |ms: i64| {
        hands.advance(ms);
        fake.clock_ms.fetch_add(ms, SeqCst);
        policies.poll().await;
    };
    policies.edit(edit(Some("retry.burst = 9"), &policies, HOURS_2)).await.unwrap();
    let snapshot = policies.snapshot();
    let over = snapshot.managed().overrides["d"].clone();
    assert_eq!(
        (over.until_ms, over.beneath.as_deref(), over.by.who.as_str()),
        (7_200_000, Some("retry.burst = 5"), "ann")
    );
    pass(3_600_000).await;
    // The file changes beneath.
    file.write(SIX);
    policies.import(&path).await.unwrap();
    assert_eq!(state(&policies, "d"), (9, false));
    // A replica that starts now knows it as well.
    assert_eq!(state(&replica(&fake, Some(&file)).await, "d"), (9, false));
    pass(3_599_999).await;
    assert_eq!(state(&policies, "d"), (9, false));
    pass(1).await;
    assert_eq!(state(&policies, "d"), (6, false));
    let (history, ..) = policies.history().await;
    assert_eq!(history.iter().next().unwrap().what, "the override of \"d\" ended");
    // It may be ended sooner, and a rule may be overridden with nothing.
    policies.edit(edit(None, &policies, HOURS_2)).await.unwrap();
    assert_eq!(state(&policies, "d"), (10, false));
    policies.edit(edit(None, &policies, How::Plain)).await.unwrap();
    assert_eq!(state(&policies, "d"), (6, false));
    let error = policies.edit(edit(None, &policies, How::Plain)).await.unwrap_err();
    assert!(matches!(error, PoliciesError::Managed { .. }), "{error}");
    let error = policies.edit(edit(None, &policies, How::OverrideForMs(0))).await.unwrap_err();
    assert_eq!(error.to_string(), "override_for_ms is 0: must be between 1 ms and 30 days");
}

/// What would be invalid when the override ends is refused when it begins.
#[tokio::test]
async fn what_is_beneath_an_override_stays_valid() {
    let fake = Fake::new();
    let policies = replica(&fake, None).await;
    let defaults = "admission = { rate = \"10/s\", burst = 10 }";
    policies.put("defaults", defaults, PolicyVersion::default()).await.unwrap();
    policies.put("d", "admission.burst = 20", policies.snapshot().version()).await.unwrap();
    policies.edit(edit(Some("retry.burst = 1"), &policies, HOURS_2)).await.unwrap();
    // Without a rate, the burst that waits beneath would be none.
    let error = policies.put("defaults", "retry.ratio = 0.2", policies.snapshot().version()).await.unwrap_err();
    assert!(matches!(error, PoliciesError::Invalid(_)), "{error}");
}

#[tokio::test]
async fn a_rollback_restores_all_rules_at_once_and_keeps_switches() {
    let fake = Fake::new();
    let policies = replica(&fake, None).await;
    let mut versions = vec![PolicyVersion::default()];
    for (name, text) in [("a", "retry.burst = 1"), ("b", "retry.burst = 2"), ("a", "retry.burst = 3"), ("b", "")] {
        versions.push(policies.put(name, text, policies.snapshot().version()).await.unwrap());
    }
    policies.set_retries("a", false).await.unwrap();
    let roll_back = |to: i64, how| Rollback { to, expected: policies.snapshot().version(), how, by: By::default() };
    policies.roll_back(roll_back(2, How::Plain)).await.unwrap();
    assert_eq!((state(&policies, "a"), state(&policies, "b")), ((1, true), (2, false)));
    let (history, ..) = policies.history().await;
    assert_eq!(history.iter().next().unwrap().what, "rolled back to version 2: a, b");
    // And back again.
    policies.roll_back(roll_back(4, How::Plain)).await.unwrap();
    assert_eq!((state(&policies, "a"), state(&policies, "b")), ((3, true), (10, false)));
    let error = policies.roll_back(roll_back(0, How::Plain)).await.unwrap_err();
    assert_eq!(error.to_string(), "version is 0: must be between 1 and 7, which is what the history holds");
    let stale = Rollback { expected: versions[1], ..roll_back(2, How::Plain) };
    assert!(matches!(policies.roll_back(stale).await, Err(PoliciesError::Conflict { .. })));

    // What a file manages is as protected as from any other change.
    let file = TestFile::new("[dependency.a]\nretry.burst = 4");
    policies.import(&file.path()).await.unwrap();
    let error = policies.roll_back(roll_back(2, How::Plain)).await.unwrap_err();
    assert!(matches!(error, PoliciesError::Managed { .. }), "{error}");
    policies.roll_back(roll_back(2, HOURS_2)).await.unwrap();
    assert_eq!((state(&policies, "a"), state(&policies, "b")), ((1, true), (2, false)));
    assert_eq!(policies.snapshot().managed().overrides.len(), 2);
}
