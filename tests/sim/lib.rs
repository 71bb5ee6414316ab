//! Leases under faults in virtual time, with the real ledger and the real holder: a world is made from a seed, runs, and is
//! judged. `main.rs` has its tests; a test of the package `tests` has the same schedules decided by the scripts.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "tests")]

// Modules here read as any user of the crate would write them.
extern crate budget_guarded as budget;

mod agents;
mod faults;
mod history;
pub mod missed;
mod net;
mod oracle;
mod process;
#[path = "../src/rng.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the other tests")]
mod rng;
pub mod run;
mod scenario;
mod schedule;
mod store;
mod time;
mod world;

pub use scenario::Scenario;
pub use schedule::directed::{Family, families, family};
pub use store::{Call, Deed, Said, Witness};
