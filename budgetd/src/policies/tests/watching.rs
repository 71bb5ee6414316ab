//! Watching files: whatever happens to them, the last good policies stay, and every way to change them is seen.

use std::{fs, os::unix::fs::symlink, path::Path, sync::Arc};

use super::fake::{FIVE, Fake, SIX, TestFile, replica, state};
use crate::{
    config::LeaseTiming,
    policies::{Policies, PolicyFileError, Watch, file::Contents, watch::Seen},
};

/// Looks until what is there is certain.
async fn look(watch: &mut Watch, policies: &Policies) {
    watch.look(policies).await;
    watch.look(policies).await;
}

/// Seen to fail with the stat of the file compared instead of its bytes (same size and time), and with the link resolved
/// once (Kubernetes).
#[tokio::test]
async fn every_way_to_change_a_file_is_seen() {
    let fake = Fake::new();
    let file = TestFile::new(FIVE);
    let policies = replica(&fake, Some(&file)).await;
    let mut watch = policies.watch(file.path());
    look(&mut watch, &policies).await;
    assert_eq!(policies.snapshot().version().number, 1, "nothing has changed");
    // In place, of the same size, and with the same time.
    let before = fs::metadata(file.path()).unwrap().modified().unwrap();
    file.write(SIX);
    fs::File::options().write(true).open(file.path()).unwrap().set_modified(before).unwrap();
    look(&mut watch, &policies).await;
    assert_eq!(state(&policies, "d"), (6, false));
    // Renamed over.
    fs::write(file.0.path().join("new"), FIVE).unwrap();
    fs::rename(file.0.path().join("new"), file.path()).unwrap();
    look(&mut watch, &policies).await;
    assert_eq!(state(&policies, "d"), (5, false));
    // As Kubernetes does: a link to a file behind a link to a directory, of which the latter is exchanged.
    let version = |name: &str, text: &str| {
        fs::create_dir(file.0.path().join(name)).unwrap();
        fs::write(file.0.path().join(name).join("policies.toml"), text).unwrap();
    };
    let swap = |name: &str| {
        symlink(name, file.0.path().join("..data_tmp")).unwrap();
        fs::rename(file.0.path().join("..data_tmp"), file.0.path().join("..data")).unwrap();
    };
    version("..1", SIX);
    version("..2", FIVE);
    swap("..1");
    fs::remove_file(file.path()).unwrap();
    symlink(Path::new("..data").join("policies.toml"), file.path()).unwrap();
    look(&mut watch, &policies).await;
    assert_eq!(state(&policies, "d"), (6, false));
    swap("..2");
    look(&mut watch, &policies).await;
    assert_eq!(state(&policies, "d"), (5, false));
    assert_eq!((policies.source_error(), policies.last_error()), (None, None));
}

#[tokio::test]
async fn a14_whatever_is_wrong_with_a_file_the_last_good_policies_stay_and_it_is_told_once() {
    let fake = Fake::new();
    let file = TestFile::new(FIVE);
    let policies = replica(&fake, Some(&file)).await;
    let before = fake.document();
    let mut watch = policies.watch(file.path());
    let bytes: [(&str, &[u8]); 5] = [
        ("empty", b""),
        ("empty", b"# all of it is gone\n"),
        ("invalid", b"[dependency.d]\nretry = { bur"),
        ("invalid", b"[dependency.d]\nretry.ratio = -1"),
        ("not_utf8", b"[dependency.d]\n# \xff"),
    ];
    let mut refused = 0;
    for (kind, bytes) in bytes {
        fs::write(file.path(), bytes).unwrap();
        for _ in 0..4 {
            watch.look(&policies).await;
        }
        refused += 1;
        assert_eq!(policies.source_error().unwrap().kind, kind);
        assert_eq!(policies.source_reads().1, refused, "told once: {kind}");
        assert!(policies.last_error().is_some());
    }
    fs::remove_file(file.path()).unwrap();
    look(&mut watch, &policies).await;
    assert_eq!(policies.source_error().unwrap().kind, "missing");
    fs::create_dir(file.path()).unwrap();
    look(&mut watch, &policies).await;
    assert_eq!(policies.source_error().unwrap().kind, "not_a_file");
    fs::remove_dir(file.path()).unwrap();
    assert_eq!((state(&policies, "d"), fake.document()), ((5, false), before));
    // The former content is no change, but no longer an error.
    file.write(FIVE);
    look(&mut watch, &policies).await;
    assert_eq!((policies.source_error(), policies.last_error()), (None, None));
    assert_eq!(policies.snapshot().version().number, 1);
    file.write(SIX);
    look(&mut watch, &policies).await;
    assert_eq!(state(&policies, "d"), (6, false));
}

/// A file that is being written may be valid half-way: here one rule of two.
#[test]
fn what_is_seen_once_is_not_believed() {
    let file = TestFile::new(FIVE);
    let read = || Contents::read(&file.path());
    let mut watch = Watch::new(file.path(), LeaseTiming::default(), Some(read().unwrap().hash));
    assert_eq!(watch.see(read()), Seen::Nothing);
    assert_eq!(watch.see(read()), Seen::Nothing, "known from the start");
    file.write("[dependency.a]\n");
    assert_eq!(watch.see(read()), Seen::Nothing);
    file.write("[dependency.a]\n[dependency.b]\n");
    assert_eq!(watch.see(read()), Seen::Nothing);
    let whole = read().unwrap();
    assert_eq!(watch.see(read()), Seen::Contents(whole));
    assert_eq!(watch.see(read()), Seen::Nothing);
    fs::remove_file(file.path()).unwrap();
    assert_eq!(watch.see(read()), Seen::Nothing);
    assert!(matches!(watch.see(read()), Seen::Error(PolicyFileError::Missing { .. })));
    assert_eq!(watch.see(read()), Seen::Nothing);
}

#[tokio::test]
async fn files_of_a_directory_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("a.toml", FIVE);
    let fake = Fake::new();
    let policies = Policies::start(Arc::clone(&fake), Some(directory.path())).await.unwrap();
    let mut watch = policies.watch(directory.path().to_owned());
    write("b.toml", "[dependency.e]\nretry.burst = 2");
    look(&mut watch, &policies).await;
    assert_eq!((state(&policies, "d"), state(&policies, "e")), ((5, false), (2, false)));
    write("c.toml", "[dependency.e]\nretry.burst = 3");
    look(&mut watch, &policies).await;
    let error = policies.source_error().unwrap();
    assert_eq!(error.kind, "invalid");
    assert!(error.text.contains("c.toml, line 1: dependency.e") && error.text.contains("b.toml as well"), "{error:?}");
    assert_eq!(state(&policies, "e"), (2, false));
    fs::remove_file(directory.path().join("b.toml")).unwrap();
    look(&mut watch, &policies).await;
    assert_eq!((state(&policies, "e"), policies.source_error()), ((3, false), None));
    fs::remove_file(directory.path().join("c.toml")).unwrap();
    look(&mut watch, &policies).await;
    assert_eq!(state(&policies, "e"), (10, false), "by the defaults");
    fs::remove_file(directory.path().join("a.toml")).unwrap();
    look(&mut watch, &policies).await;
    assert_eq!((state(&policies, "d"), policies.source_error().unwrap().kind), ((5, false), "empty"));
}
