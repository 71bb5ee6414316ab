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

/// Each with the least number of inputs in its corpus. Whoever packs fewer has lost some, or lowers the number on purpose.
const TARGETS: [(&str, Judge, usize); 5] = [
    ("messages", messages::judge, 290),
    ("names", names::judge, 52),
    ("policies", policies::judge, 289),
    ("replies", replies::judge, 175),
    ("roles", roles::judge, 290),
];
/// What is kept of a target.
const INPUTS_MAX: usize = 300;
const BYTES_MAX: usize = 1 << 20;
/// A tar archive consists of blocks of this size: one for the header of each file, then its bytes, filled up with zeros.
const BLOCK: usize = 512;

/// The files in a ustar archive.
fn files_of_archive(archive: &[u8]) -> Vec<&[u8]> {
    let mut files = Vec::new();
    let mut rest = archive;
    // The end is a block of zeros.
    while rest.len() >= BLOCK && rest[0] != 0 {
        let (header, after) = rest.split_at(BLOCK);
        assert_eq!(&header[257..262], b"ustar");
        let size = header[124..136].iter().take_while(|digit| digit.is_ascii_digit());
        let size = size.fold(0, |size, digit| size * 8 + usize::from(digit - b'0'));
        if header[156] == b'0' {
            files.push(&after[..size]);
        }
        rest = &after[size.next_multiple_of(BLOCK)..];
    }
    files
}

#[test]
fn the_corpus_of_every_target_is_judged_without_a_panic() {
    for (target, judge, inputs_min) in TARGETS {
        let archive = fs::read(repository().join(format!("fuzz/corpus/{target}.tar"))).unwrap();
        let inputs = files_of_archive(&archive);
        let bytes: usize = inputs.iter().map(|input| input.len()).sum();
        println!("{target}: {} inputs, {bytes} bytes", inputs.len());
        assert!(inputs.len() >= inputs_min, "{target}: {} inputs, there were {inputs_min}", inputs.len());
        assert!(inputs.len() <= INPUTS_MAX && bytes <= BYTES_MAX, "{target}: see fuzz/README.md for making it smaller");
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
    assert_eq!(found, TARGETS.map(|(name, ..)| name));
}
