//! The scenarios of `tests/vectors` on the pure ledger.

#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "shared with the tests of the stores")]
#[path = "../../tests/src/vectors.rs"]
mod vectors;

use std::{fs, path::Path, sync::Arc};

use budget::{
    ids::PolicyVersion,
    lease::Ground,
    ledger::{Ledger, Start},
    policy::Numbers,
};
use vectors::{Act, Seen};

fn run(name: &str, text: &str) {
    let mut ledger: Option<Ledger> = None;
    let mut version = PolicyVersion::default();
    let mut numbers: Option<Arc<Numbers>> = None;
    vectors::run(name, text, |act| match act {
        Act::Policy(policy, retries_off) => {
            version.number += 1;
            numbers = Some(Arc::new(policy.numbers(retries_off, false)));
            Seen::Nothing
        }
        Act::Step(at_ms, step) => {
            let numbers = numbers.as_ref().expect("a policy line comes first");
            let ledger = ledger.get_or_insert_with(|| Ledger::new(version, Arc::clone(numbers), Start::Empty, at_ms));
            ledger.begin(version, numbers, false, at_ms, &Ground::default()).expect("versions rise");
            Seen::Answer(ledger.step(&step))
        }
        Act::View(at_ms) => Seen::View(Box::new(ledger.as_ref().expect("a step comes first").view(at_ms))),
    });
}

#[test]
fn every_scenario_holds_on_the_pure_ledger() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors");
    let mut names: Vec<_> =
        fs::read_dir(folder).expect("tests/vectors").map(|entry| entry.expect("an entry").path()).collect();
    names.sort();
    assert!(names.len() >= 8, "scenarios are missing");
    let mut failed = 0;
    for path in names {
        let judged = std::panic::catch_unwind(|| {
            run(&path.file_name().expect("a name").to_string_lossy(), &fs::read_to_string(&path).expect("a text file"))
        });
        failed += usize::from(judged.is_err());
    }
    assert_eq!(failed, 0, "scenarios failed");
}
