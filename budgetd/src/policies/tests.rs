//! Tests of everything but the pure crate: reading, resolving, printing, files, and following the stored document.

mod fake;
mod files;
mod following;
mod former;
mod operating;
mod overriding;
mod printing;
mod reading;
mod reference;
mod registry;
mod resolving;
mod watching;

use std::sync::Arc;

use budget::{
    ids::{DependencyId, PolicyVersion},
    policy::Spec,
};

use super::{PolicySet, Resolved, Snapshot, Switch, Switches};
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
    Snapshot::new(PolicyVersion { number: 7, id: 1 }, Arc::new(set), switched_off(off))
}

fn switched_off(targets: &[&str]) -> Switches {
    targets.iter().map(|target| (*target, Switch::default())).collect()
}

fn resolve(snapshot: &Snapshot, name: &str) -> Result<Arc<Resolved>, String> {
    snapshot.resolve(&DependencyId::new(name).unwrap())
}
