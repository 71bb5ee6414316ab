//! What operators ask: policies, the kill switch, status.

use std::time::Duration;

use budget::{
    ids::{DependencyId, PolicyVersion},
    lease::HolderId,
    ledger::{Counters, HolderView, Lending},
};
use budget_proto::convert::{Mode, Named};

use crate::{Client, Error, client::deadline};

/// What one dependency runs under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyView {
    /// Of all policies.
    pub version: PolicyVersion,
    /// The rule that applies: a name, a pattern ending in `*`, or `defaults`.
    pub rule: String,
    /// That rule as it was written.
    pub source_toml: String,
    /// Every field with the value in force.
    pub effective_toml: String,
    /// Retries are switched off.
    pub retries_off: bool,
}

/// One rule as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRule {
    /// A name, a pattern ending in `*`, or `defaults`.
    pub name: String,
    /// Its fields.
    pub source_toml: String,
}

/// Some of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPage {
    /// Of all policies.
    pub version: PolicyVersion,
    /// In name order.
    pub rules: Vec<PolicyRule>,
    /// Names, patterns, or `*` for all.
    pub retries_off: Vec<String>,
    /// For the next page; none on the last.
    pub next: Option<String>,
}

/// A bucket as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Negative while booked ahead or in debt.
    pub balance_micros: i64,
    /// The most it holds.
    pub burst_micros: i64,
}

/// A cost unit as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitStatus {
    /// Its name.
    pub unit: String,
    /// Its bucket.
    pub bucket: Balance,
}

/// One dependency as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DependencyStatus {
    /// Its name.
    pub name: String,
    /// The rule that applies.
    pub rule: String,
    /// Retries are switched off.
    pub retries_off: bool,
    /// How it is decided now.
    pub mode: Mode,
    /// None where admission is unlimited.
    pub admission: Option<Balance>,
    /// Retry tokens.
    pub retry: Balance,
    /// Further units.
    pub units: Vec<UnitStatus>,
    /// Permits taken.
    pub in_flight: i64,
    /// Most permits; none where the policy sets no limit.
    pub max_in_flight: Option<i64>,
    /// Totals since the ledger's state began.
    pub counters: Counters,
    /// The version the ledger was last decided with; none without state.
    pub ledger_version: Option<PolicyVersion>,
    /// How leases stand; none where they are not permitted and none is out.
    pub lending: Option<Lending>,
}

/// Some of the holders of one dependency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderPage {
    /// In name order.
    pub holders: Vec<Holder>,
    /// For the next page; none on the last.
    pub next: Option<String>,
}

/// A holder, and the names of the units it holds parts of.
pub type Holder = Named<HolderView>;

/// Some of the dependencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusPage {
    /// Of all policies.
    pub version: PolicyVersion,
    /// `memory` or `redis`.
    pub store: String,
    /// Whether the store answers.
    pub store_up: bool,
    /// In name order.
    pub dependencies: Vec<DependencyStatus>,
    /// For the next page; none on the last.
    pub next: Option<String>,
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
        self.transport().list_policies(page, deadline(within)).await
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
        self.transport().put_policy(rule, expected, deadline(within)).await
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
        self.transport().set_retries(target, enabled, why, deadline(within)).await
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
