//! Tests of everything but the pure crate: reading, resolving, printing, files, and following the stored document.

mod fake;
mod files;
mod following;
mod former;
mod printing;
mod reading;
mod reference;
mod registry;
mod resolving;

use std::sync::Arc;

use budget::{
    ids::{DependencyId, PolicyVersion},
    policy::Spec,
};

use super::{PolicySet, Resolved, Snapshot, Switches};
use crate::config::LeaseTiming;

/// The policy of the dependency `d` in a file of this text.
fn spec(text: &str) -> Spec {
    let set =
        PolicySet::parse_timed("test.toml", text, LeaseTiming::ANY).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let rule = set.rule("d").map_or(set.defaults(), |rule| &rule.policy);
    rule.spec().clone()
}

fn snapshot(text: &str, off: &[&str]) -> Snapshot {
    let set = PolicySet::parse("test.toml", text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    Snapshot::new(PolicyVersion { number: 7, id: 1 }, Arc::new(set), off.iter().copied().collect::<Switches>())
}

fn resolve(snapshot: &Snapshot, name: &str) -> Result<Arc<Resolved>, String> {
    snapshot.resolve(&DependencyId::new(name).unwrap())
}
