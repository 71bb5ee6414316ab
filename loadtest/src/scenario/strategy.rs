//! What keeps retries in bounds, or does not.

use serde::{Deserialize, Serialize};

/// What keeps retries in bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Strategy {
    /// One attempt.
    Single,
    /// Each layer retries.
    Naive,
    /// Each layer of each client has a budget of its own.
    Tower,
    /// budgetd decides each attempt.
    Exact,
    /// Processes hold leases.
    Leased,
    /// An agent on the host holds a lease and decides.
    Agent,
}

// === impl Strategy ===

impl Strategy {
    pub(crate) const ALL: [Self; 6] = [Self::Single, Self::Naive, Self::Tower, Self::Exact, Self::Leased, Self::Agent];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Naive => "naive",
            Self::Tower => "tower",
            Self::Exact => "exact",
            Self::Leased => "leased",
            Self::Agent => "agent",
        }
    }

    pub(crate) fn label(self, attempts: u32) -> String {
        match self {
            Self::Single => "one attempt".to_owned(),
            Self::Naive => format!("{attempts} attempts in every layer"),
            Self::Tower => "a tower budget in every layer of every client".to_owned(),
            Self::Exact => "budgetd, asked for each attempt".to_owned(),
            Self::Leased => "budgetd, leases held by each process".to_owned(),
            Self::Agent => "budgetd, an agent on the host".to_owned(),
        }
    }

    /// Whether another process can go on where one was killed: with nothing of its own, or with what budgetd keeps.
    pub(crate) const fn restarts(self) -> bool {
        match self {
            Self::Single | Self::Naive | Self::Exact => true,
            Self::Tower | Self::Leased | Self::Agent => false,
        }
    }

    /// Whether budgetd decides.
    pub(crate) const fn has_budgetd(self) -> bool {
        match self {
            Self::Exact | Self::Leased | Self::Agent => true,
            Self::Single | Self::Naive | Self::Tower => false,
        }
    }
}
