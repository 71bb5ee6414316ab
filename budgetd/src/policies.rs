//! Policies: what is written in files and through the admin API, kept in one document per namespace, compiled for
//! ledgers.
//!
//! ```text
//! files ──┐ watch, text, fields  document (version, rules, switches, history)  snapshot
//!         ├───────────────► PolicySet ──► Repository (compare-and-set) ──► name → numbers
//! API  ───┘                     ▲                 │ twice a second
//!                               └─────────────────┘ and when a ledger knows a newer version
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
mod history;
mod managed;
mod print;
mod reference;
mod registry;
pub mod repository;
mod set;
mod snapshot;
mod sources;
mod text;
mod time;
mod value;
mod watch;

pub use self::{
    bound::{LeaseReport, Question},
    fields::UnknownDependencies,
    file::{PolicyFile, PolicyFileError},
    history::{Change, HISTORY_MAX, History},
    managed::{By, Managed, Override},
    print::{RuleReport, check_report, diff, effective_toml, reports},
    reference::reference,
    registry::{Edit, How, Policies, PoliciesError, Rollback, SourceError, Switched, Switching},
    set::{DEFAULTS, PolicySet, Rule},
    snapshot::{Resolved, Snapshot, Switch, Switches},
    text::InvalidText,
    watch::{LOOK_EVERY, Watch},
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
