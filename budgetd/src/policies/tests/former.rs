//! Leases of earlier policies that may still be out.

use std::sync::Arc;

use budget::{ids::PolicyVersion, policy::LeaseNumbers};

use super::*;

const HOUR_MS: i64 = 3_600_000;

fn set(text: &str) -> Arc<PolicySet> {
    Arc::new(PolicySet::parse("test", text).unwrap())
}

fn first(text: &str) -> Snapshot {
    Snapshot::new(PolicyVersion { number: 1, id: 1 }, set(text), Switches::default())
}

fn then(before: &Snapshot, text: &str, now_ms: i64) -> Snapshot {
    let number = before.version().number + 1;
    before.succeeded(PolicyVersion { number, id: 1 }, set(text), Switches::default(), now_ms)
}

fn lease(snapshot: &Snapshot, name: &str) -> Option<LeaseNumbers> {
    snapshot.resolve(&DependencyId::new(name).unwrap()).unwrap().numbers.lease.clone()
}

/// (part, widest part, longest curve)
fn terms(snapshot: &Snapshot, name: &str) -> Option<(i64, i64, i64)> {
    lease(snapshot, name).map(|lease| (lease.part_ppm, lease.widest_part_ppm, lease.longest_curve_ms))
}

const LONG: &str = "[dependency.a]\nlease = { enabled = true, part = 0.9, curve = [\"100% 20s\", \"50% 280s\"] }\n";
const SHORT: &str = "[dependency.a]\nlease = { enabled = true, part = 0.4, curve = [\"100% 30s\"] }\n";
const NONE: &str = "[dependency.a]\nmode = \"enforce\"\n";

/// Seen to fail with `succeeded` compiling the new rules alone.
#[test]
fn a_shorter_curve_and_a_smaller_part_are_not_believed_before_the_longer_ones_are_over() {
    let long = first(LONG);
    assert_eq!(terms(&long, "a"), Some((900_000, 900_000, 300_000)));
    let short = then(&long, SHORT, 1_000);
    assert_eq!(terms(&short, "a"), Some((400_000, 900_000, 300_000)));
    // Another change, just before and just after none of the long ones can be out: 300 s and the margin of 3 s.
    assert_eq!(terms(&then(&short, SHORT, 303_999), "a"), Some((400_000, 900_000, 300_000)));
    assert_eq!(terms(&then(&short, SHORT, 304_000), "a"), Some((400_000, 400_000, 30_000)));
}

#[test]
fn leases_that_are_forbidden_may_still_be_out_but_none_is_given() {
    let off = then(&first(LONG), NONE, 0);
    assert_eq!(terms(&off, "a"), Some((0, 900_000, 300_000)));
    assert!(!off.resolve(&DependencyId::new("a").unwrap()).unwrap().numbers.leases_permitted());
    assert_eq!(terms(&off, "b"), None);
    assert_eq!(terms(&then(&off, NONE, 303_000), "a"), None);
}

#[test]
fn rules_that_come_and_go_are_followed_by_name() {
    let defaults = "[defaults]\nlease = { enabled = true }\n";
    let family = "[dependency.\"x/*\"]\nlease = { enabled = true, part = 0.7 }\n";
    // A rule that takes a name out of the defaults, or out of a family.
    let own = "[dependency.\"x/a\"]\nlease = { enabled = false }\n";
    assert_eq!(terms(&then(&first(defaults), own, 0), "x/a"), Some((0, 800_000, 120_000)));
    assert_eq!(terms(&then(&first(family), own, 0), "x/a"), Some((0, 700_000, 120_000)));
    // A rule that is removed: its name falls under the family, or the defaults.
    let named = "[dependency.\"x/a\"]\nlease = { enabled = true, part = 0.9 }\n";
    assert_eq!(terms(&then(&first(named), "", 0), "x/a"), Some((0, 900_000, 120_000)));
    let both = then(&first(named), family, 0);
    assert_eq!(terms(&both, "x/a"), Some((700_000, 900_000, 120_000)));
    // What was never leased is not.
    assert_eq!(terms(&then(&first(named), "[dependency.y]\n", 0), "y"), None);
}

#[test]
fn before_the_first_version_nothing_was_in_force() {
    let nothing = Snapshot::new(PolicyVersion::default(), set(LONG), Switches::default());
    let first = nothing.succeeded(PolicyVersion { number: 1, id: 1 }, set(NONE), Switches::default(), HOUR_MS);
    assert_eq!(terms(&first, "a"), None);
}
