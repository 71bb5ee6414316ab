//! What may be asked of the policies, and what a kill switch led to.

use budget::ids::PolicyVersion;

use crate::policies::By;

/// A change of one rule.
#[derive(Clone, Debug, Default)]
pub struct Edit {
    /// A name, a pattern ending in `*`, or `defaults`.
    pub name: String,
    /// Its new text; none: the rule goes, or its override ends.
    pub text: Option<String>,
    /// What the policies must be of.
    pub expected: PolicyVersion,
    /// How.
    pub how: How,
    /// Who, and why.
    pub by: By,
}

/// A return to the rules of an earlier version.
#[derive(Clone, Debug, Default)]
pub struct Rollback {
    /// That version's number.
    pub to: i64,
    /// What the policies must be of.
    pub expected: PolicyVersion,
    /// How.
    pub how: How,
    /// Who, and why.
    pub by: By,
}

/// How a change deals with the rules that files manage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum How {
    /// It is refused.
    #[default]
    Plain,
    /// It holds for so long, for other rules as well.
    OverrideForMs(i64),
    /// They no longer belong to their file, until its content changes.
    TakeOver,
}

/// A throw of the kill switch.
#[derive(Clone, Debug, Default)]
pub struct Switching {
    /// A name, a pattern ending in `*`, or `*` for everywhere.
    pub target: String,
    /// Retries on or off.
    pub enabled: bool,
    /// Off for so long.
    pub for_ms: Option<i64>,
    /// Who, and why.
    pub by: By,
}

/// What a switch of retries led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switched {
    /// Of the policies now.
    pub version: PolicyVersion,
    /// Retries were switched on for the target but stay off by this wider one.
    pub still_off_by: Option<String>,
    /// Retries are off until then.
    pub until_ms: Option<i64>,
    /// The store is away: so far this holds at this replica alone.
    pub pending: bool,
}
