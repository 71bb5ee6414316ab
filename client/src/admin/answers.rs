//! What operators are answered.

use budget::{
    decision::DenyReason,
    ids::PolicyVersion,
    ledger::{Counters, HolderView, Lending},
};
use budget_proto::convert::{Mode, Named};

use super::By;

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
    /// By whom, and until when.
    pub kill_switch: Option<KillSwitch>,
    /// The policy file that the rule comes from.
    pub file: Option<String>,
    /// The rule is in force for a time only.
    pub over: Option<PolicyOverride>,
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
    /// What was counted lately, and what else there is to say.
    pub recent: Recent,
}

/// Some of the holders of one dependency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderPage {
    /// In name order.
    pub holders: Vec<Holder>,
    /// For each of them: of the rules that it was told last, by whichever replica; none if not in the last hour.
    pub versions: Vec<Option<PolicyVersion>>,
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
    /// The replica and the others; complete on the first page only.
    pub about: About,
}

/// Retries that an operator has switched off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KillSwitch {
    /// A name, a pattern ending in `*`, or `*` for all.
    pub target: String,
    /// In milliseconds since the Unix epoch, by the store's clock.
    pub since_ms: i64,
    /// Until when; none: until they are switched on.
    pub until_ms: Option<i64>,
    /// By whom, and why.
    pub by: By,
}

/// A rule in place of another for a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyOverride {
    /// In milliseconds since the Unix epoch, by the store's clock.
    pub until_ms: i64,
    /// By whom, and why.
    pub by: By,
}

/// One change of the policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyChange {
    /// Since this version they have been so.
    pub version: PolicyVersion,
    /// In milliseconds since the Unix epoch, by the store's clock.
    pub at_ms: i64,
    /// By whom, and why.
    pub by: By,
    /// In words.
    pub what: String,
    /// Names of rules that it altered, some of them.
    pub rules: Vec<String>,
    /// How many there were; none: too large to be remembered.
    pub rules_count: Option<u64>,
}

/// Some of the changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryPage {
    /// In force now.
    pub version: PolicyVersion,
    /// The latest first.
    pub changes: Vec<PolicyChange>,
    /// For the next page; none on the last.
    pub next: Option<String>,
}

/// What a throw of the kill switch led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switched {
    /// Of the policies now.
    pub version: PolicyVersion,
    /// The store is away: so far this holds at one replica alone.
    pub pending: bool,
    /// When retries will be on again, in milliseconds since the Unix epoch, by the store's clock.
    pub until_ms: Option<i64>,
    /// Retries stay off by this wider target.
    pub still_off_by: Option<String>,
}

/// A replica that has told lately what is in force there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Its name: random, one for each start.
    pub replica_id: String,
    /// Of its policies.
    pub version: PolicyVersion,
    /// How long ago it told.
    pub age_ms: i64,
    /// They may not be those written last.
    pub policy_error: bool,
}

/// The replica that answered, and the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Its name; empty where there can be only one.
    pub replica_id: String,
    /// All that have told lately.
    pub replicas: Vec<ReplicaStatus>,
    /// All that are thrown.
    pub kill_switches: Vec<KillSwitch>,
    /// Why the policies in force may not be those written last.
    pub policy_error: Option<String>,
    /// In milliseconds since the Unix epoch, by the store's clock.
    pub now_ms: i64,
    /// In which format the store is written.
    pub store_format: Option<StoreFormat>,
}

/// In which format a store is written that replicas of two releases may share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFormat {
    /// By all.
    pub written: u32,
    /// The newest that the replica which answered reads.
    pub readable: u32,
    /// Replicas that do not read that one.
    pub held_back_by: Vec<String>,
}

/// What was counted of a dependency lately, and by what it is governed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    /// Of the whole fleet, about 10 s and about 60 s; empty where ledgers are not looked at.
    pub fleet: Vec<Window>,
    /// Of the replica that answered, under the dependency's rule.
    pub replica: Vec<Window>,
    /// By whom retries are switched off.
    pub kill_switch: Option<KillSwitch>,
    /// The policy file that the rule comes from.
    pub file: Option<String>,
    /// The rule is in force for a time only.
    pub over: Option<PolicyOverride>,
    /// Of the policies in force at the replica.
    pub policy_version: Option<PolicyVersion>,
}

/// What was counted in a stretch of time that ends now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// How long it is.
    pub length_ms: u64,
    /// Would-be refusals included.
    pub originals_admitted: u64,
    /// Likewise.
    pub retries_admitted: u64,
    /// For any reason.
    pub originals_denied: u64,
    /// Likewise.
    pub retries_denied: u64,
    /// Admitted only because the policy is in shadow mode.
    pub would_be_denied: u64,
    /// Attempts for each original, in millionths; none without originals.
    pub amplification_ppm: Option<u64>,
    /// By reason; empty for the fleet.
    pub refusals: Vec<Refusals>,
    /// In shadow mode, by reason.
    pub would_be_refusals: Vec<Refusals>,
    /// What the dependency's own side reported, see [`crate::Received`]; none for one replica, and if it reports nothing.
    pub received: Option<u64>,
}

/// Refusals for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusals {
    /// Which.
    pub reason: DenyReason,
    /// Originals refused.
    pub originals: u64,
    /// Retries refused.
    pub retries: u64,
}

/// How a trial of policies goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialState {
    /// How long it has lasted.
    pub elapsed_ms: u64,
    /// Nothing more follows.
    pub finished: bool,
    /// In name order.
    pub trials: Vec<Trial>,
    /// Calls that were not compared.
    pub left_out: u64,
}

/// One dependency of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Its name.
    pub dependency: String,
    /// What callers were answered.
    pub real: Tally,
    /// What the policy in force says of this replica's calls alone.
    pub present: Tally,
    /// What the candidate says of them.
    pub candidate: Tally,
}

/// Answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Originals admitted.
    pub originals_admitted: u64,
    /// Retries admitted.
    pub retries_admitted: u64,
    /// The rest.
    pub refusals: Vec<Refusals>,
}
