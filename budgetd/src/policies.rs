//! Policies: what is written in files and through the admin API, kept in one document per namespace, compiled for
//! ledgers.
//!
//! ```text
//! file ──┐ text, fields        document (version, rules, switches)        snapshot
//!        ├───────────────► PolicySet ──► Repository (compare-and-set) ──► name → numbers
//! API  ──┘                     ▲                 │ every second
//!                              └─────────────────┘ and when a ledger knows a newer version
//! ```
//!
//! Invariants:
//! - a [`PolicySet`] is valid as a whole: every rule has been judged together with what it inherits;
//! - a [`Snapshot`] never changes; a change of anything is a new version and a new snapshot;
//! - what is invalid never replaces what is valid: the last good snapshot stays, and [`Policies::last_error`] says why.

mod body;
mod bound;
mod fields;
mod file;
mod former;
mod print;
mod reference;
mod registry;
pub mod repository;
mod set;
mod snapshot;
mod sources;
mod text;

pub use self::{
    bound::{LeaseReport, Question},
    fields::UnknownDependencies,
    file::{PolicyFile, PolicyFileError},
    print::{RuleReport, check_report, diff, effective_toml, reports},
    reference::reference,
    registry::{Policies, PoliciesError, Switched},
    set::{DEFAULTS, PolicySet, Rule},
    snapshot::{Resolved, Snapshot, Switches},
    text::InvalidText,
};

/// Most rules beside the defaults.
pub const RULES_MAX: usize = 10_000;
/// Most targets at which retries are switched off.
pub const SWITCHES_MAX: usize = 10_000;
/// Largest policy file, and all rules of a namespace together.
pub const TEXT_BYTES_MAX: usize = 4 << 20;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;
