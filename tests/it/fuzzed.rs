//! What fuzzing has reached so far, given to the same parsers once more, without a nightly compiler.

use std::fs;

use budget_tests::repository;

#[path = "../../fuzz/src/messages.rs"]
mod messages;
#[path = "../../fuzz/src/names.rs"]
mod names;
#[path = "../../fuzz/src/policies.rs"]
mod policies;
#[path = "../../fuzz/src/replies.rs"]
mod replies;
#[path = "../../fuzz/src/roles.rs"]
mod roles;

/// What a target does with its bytes.
type Judge = fn(&[u8]);

const TARGETS: [(&str, Judge); 5] = [
    ("messages", messages::judge),
    ("names", names::judge),
    ("policies", policies::judge),
    ("replies", replies::judge),
    ("roles", roles::judge),
];
/// What is kept of a target.
const FILES_MAX: usize = 300;
const BYTES_MAX: usize = 1 << 20;

#[test]
fn the_corpus_of_every_target_is_judged_without_a_panic() {
    for (target, judge) in TARGETS {
        let corpus = fs::read_dir(repository().join("fuzz/corpus").join(target)).unwrap();
        let inputs: Vec<_> = corpus.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
        let bytes: usize = inputs.iter().map(Vec::len).sum();
        println!("{target}: {} files, {bytes} bytes", inputs.len());
        assert!((20..=FILES_MAX).contains(&inputs.len()) && bytes <= BYTES_MAX, "{target}: run cargo fuzz cmin");
        inputs.iter().for_each(|input| judge(input));
    }
}

/// A target that nobody replays, or that is not fuzzed, is noticed.
#[test]
fn every_target_is_replayed() {
    let files = fs::read_dir(repository().join("fuzz/fuzz_targets")).unwrap();
    let mut found: Vec<_> =
        files.map(|file| file.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned()).collect();
    found.sort_unstable();
    assert_eq!(found, TARGETS.map(|(name, _)| name));
}
