//! What operators ask: policies, the kill switch, status.

mod answers;

use std::time::Duration;

use budget::{
    ids::{DependencyId, PolicyVersion},
    lease::HolderId,
};

pub use self::answers::*;
use crate::{
    Client, Error,
    client::deadline,
    transport::{StatusAnswers, TrialAnswers},
};

/// Who changes something, and why; for budgetd's log and history, at most 256 bytes each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct By {
    /// A person or a program.
    pub who: String,
    /// Their reason.
    pub why: String,
}

/// How a change deals with rules that policy files manage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum How {
    /// It is refused.
    #[default]
    Plain,
    /// It holds for so many milliseconds, for other rules as well.
    OverrideForMs(i64),
    /// They no longer belong to their file, until its content changes.
    TakeOver,
}

/// A change of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyEdit {
    /// A name, a pattern ending in `*`, or `defaults`.
    pub name: String,
    /// Its fields; none: the rule goes, or its override ends.
    pub source_toml: Option<String>,
    /// What the policies must be of.
    pub expected: PolicyVersion,
    /// What if a file manages it.
    pub how: How,
    /// Who, and why.
    pub by: By,
}

/// A throw of the kill switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetrySwitch {
    /// A name, a pattern ending in `*`, or `*` for all.
    pub target: String,
    /// Retries on or off.
    pub enabled: bool,
    /// Off for so many milliseconds; none: until they are switched on.
    pub for_ms: Option<i64>,
    /// Who, and why.
    pub by: By,
}

/// Pages of status as they come.
#[derive(Debug)]
pub struct StatusStream(StatusAnswers);

/// A trial as it goes.
#[derive(Debug)]
pub struct TrialStream(TrialAnswers);

// === impl StatusStream ===

impl StatusStream {
    /// The next page; none at the end of the stream. Pages of one round follow each other; the last has no
    /// [`StatusPage::next`].
    ///
    /// # Errors
    /// What ended the stream.
    pub async fn next(&mut self) -> Result<Option<StatusPage>, Error> {
        self.0.next().await
    }
}

// === impl TrialStream ===

impl TrialStream {
    /// What was found so far; none at the end of the stream.
    ///
    /// # Errors
    /// What ended the stream.
    pub async fn next(&mut self) -> Result<Option<TrialState>, Error> {
        self.0.next().await
    }
}

// === impl Client ===

impl Client {
    /// What one dependency runs under.
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn get_policy(&self, dependency: &DependencyId, within: Duration) -> Result<PolicyView, Error> {
        self.transport().get_policy(dependency, deadline(within)).await
    }

    /// One page of the rules; `page` is [`PolicyPage::next`] of the previous one.
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn list_policies(&self, page: Option<String>, within: Duration) -> Result<PolicyPage, Error> {
        self.transport().list_policies(None, page, deadline(within)).await
    }

    /// Writes one rule if the policies still have the expected version; an empty text removes it.
    ///
    /// # Errors
    /// [`Error::Conflict`] if they have another version; otherwise whatever is not an answer.
    pub async fn put_policy(
        &self,
        rule: PolicyRule,
        expected: PolicyVersion,
        within: Duration,
    ) -> Result<PolicyVersion, Error> {
        let PolicyRule { name, source_toml } = rule;
        let source_toml = (!source_toml.trim().is_empty()).then_some(source_toml);
        self.edit_policy(PolicyEdit { name, source_toml, expected, ..PolicyEdit::default() }, within).await
    }

    /// As [`Self::list_policies`], of the rules of an earlier version, by its number.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the history does not reach back so far; otherwise whatever is not an answer.
    pub async fn list_policies_at(
        &self,
        number: i64,
        page: Option<String>,
        within: Duration,
    ) -> Result<PolicyPage, Error> {
        self.transport().list_policies(Some(number), page, deadline(within)).await
    }

    /// Writes or removes one rule if the policies still have the expected version.
    ///
    /// # Errors
    /// [`Error::Conflict`] if they have another version; otherwise whatever is not an answer.
    pub async fn edit_policy(&self, edit: PolicyEdit, within: Duration) -> Result<PolicyVersion, Error> {
        self.transport().edit_policy(edit, deadline(within)).await
    }

    /// One page of the changes, the latest first; `page` is [`HistoryPage::next`] of the previous one.
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn policy_history(&self, page: Option<String>, within: Duration) -> Result<HistoryPage, Error> {
        self.transport().policy_history(page, deadline(within)).await
    }

    /// Returns to the rules of an earlier version, by its number.
    ///
    /// # Errors
    /// As [`Self::edit_policy`].
    pub async fn roll_back(
        &self,
        to: i64,
        expected: PolicyVersion,
        how: How,
        by: By,
        within: Duration,
    ) -> Result<PolicyVersion, Error> {
        self.transport().roll_back(to, expected, how, by, deadline(within)).await
    }

    /// Compares rules with those in force, on the traffic of the replica that is asked, for so many milliseconds.
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn try_policies(
        &self,
        rules: Vec<PolicyRule>,
        for_ms: u64,
        within: Duration,
    ) -> Result<TrialStream, Error> {
        Ok(TrialStream(self.transport().try_policies(rules, for_ms, deadline(within)).await?))
    }

    /// The kill switch: retries of a dependency, a family (`fam/*`) or all (`*`).
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn set_retries(
        &self,
        target: &str,
        enabled: bool,
        why: &str,
        within: Duration,
    ) -> Result<PolicyVersion, Error> {
        let by = By { who: String::new(), why: why.to_owned() };
        let switch = RetrySwitch { target: target.to_owned(), enabled, for_ms: None, by };
        Ok(self.switch_retries(switch, within).await?.version)
    }

    /// The same, with who it is and for how long.
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn switch_retries(&self, switch: RetrySwitch, within: Duration) -> Result<Switched, Error> {
        self.transport().switch_retries(switch, deadline(within)).await
    }

    /// Status again and again: of these dependencies, or of all if there are none, with this pause between rounds.
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn watch_status(
        &self,
        dependencies: &[DependencyId],
        every: Duration,
        within: Duration,
    ) -> Result<StatusStream, Error> {
        let every_ms = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
        Ok(StatusStream(self.transport().watch_status(dependencies, every_ms, deadline(within)).await?))
    }

    /// One page of status: of these dependencies, or of all if there are none; `page` is [`StatusPage::next`] of the
    /// previous one.
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn get_status(
        &self,
        dependencies: &[DependencyId],
        page: Option<String>,
        within: Duration,
    ) -> Result<StatusPage, Error> {
        self.transport().get_status(dependencies, page, deadline(within)).await
    }

    /// One page of the holders of a dependency's leases; `page` is [`HolderPage::next`] of the previous one.
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn list_holders(
        &self,
        dependency: &DependencyId,
        page: Option<String>,
        within: Duration,
    ) -> Result<HolderPage, Error> {
        self.transport().list_holders(dependency, page, deadline(within)).await
    }

    /// Takes a holder's lease away from its next sync on. False: no such holder is known.
    ///
    /// # Errors
    /// Whatever is not an answer.
    pub async fn revoke_lease(
        &self,
        dependency: &DependencyId,
        holder: &HolderId,
        why: &str,
        within: Duration,
    ) -> Result<bool, Error> {
        self.transport().revoke_lease(dependency, holder, why, deadline(within)).await
    }
}
