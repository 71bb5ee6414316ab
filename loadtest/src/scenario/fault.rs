//! What is done to the fleet while it is under load.

use budgetd::{config::Span, policies::PolicySet};
use serde::Deserialize;

use super::{DEPENDENCY, Scenario, StoreSpec, Strategy, ms};

/// One thing that happens, and for how long.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    at: Span,
    /// When it is undone; absent: never.
    until: Option<Span>,
    #[serde(rename = "do")]
    pub(crate) kind: Kind,
    /// Numbers of the replicas or processes it hits; empty: all.
    #[serde(default)]
    which: Vec<u32>,
    /// For `policy`: what then stands in the dependency's section.
    pub(crate) policy: Option<String>,
    /// It happens so often, this far apart.
    #[serde(default = "once")]
    times: u32,
    every: Option<Span>,
    /// For `set_clock`: by so much forward.
    by: Option<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Killed; started again, empty, at the end.
    KillRedis,
    /// Stands still, and goes on.
    StopRedis,
    /// All is deleted.
    FlushRedis,
    /// The copy becomes a master of its own.
    SplitRedis,
    /// Killed; started again at the end.
    KillBudgetd,
    /// Stands still, and goes on.
    StopBudgetd,
    /// Agents of hosts are killed; started again under their names at the end.
    KillAgent,
    /// The processes' connections to budgetd are cut, and none are made.
    Partition,
    /// Processes of callers are killed, and others go on with what they had not ended.
    RestartCallers,
    /// Processes of callers stand still, and go on.
    PauseCallers,
    /// These processes of callers begin now.
    Grow,
    /// These processes' holders are copied as they are, and both go on.
    Clone,
    /// Another policy.
    Policy,
    /// The clock of the memory store is set forward.
    SetClock,
}

const fn once() -> u32 {
    1
}

// === impl Fault ===

impl Fault {
    pub(super) fn judge(&self, scenario: &Scenario) -> Result<(), String> {
        let label = self.label();
        if self.until.is_some_and(|until| until.0 <= self.at.0) {
            return Err(format!("fault {label:?} ends before it begins"));
        }
        if self.times == 0 || self.times > 1_000 || (self.times > 1 && (self.every.is_none() || self.until.is_some())) {
            return Err(format!("fault {label:?}: times is 1 to 1000; more than once needs `every` and no `until`"));
        }
        let redis = scenario.fleet.store != StoreSpec::Memory;
        match self.kind {
            Kind::KillRedis | Kind::StopRedis | Kind::FlushRedis if !redis => {
                Err(format!("fault {label:?} needs store = \"redis\""))
            }
            Kind::SplitRedis if scenario.fleet.store != StoreSpec::TwoRedis => {
                Err(format!("fault {label:?} needs store = \"two_redis\""))
            }
            Kind::SetClock if redis => Err(format!("fault {label:?} needs store = \"memory\"")),
            Kind::SetClock if self.by.is_none() => Err(format!("fault {label:?} needs `by`")),
            Kind::Partition if !scenario.fleet.proxied => Err(format!("fault {label:?} needs fleet.proxied = true")),
            Kind::KillAgent if scenario.fleet.agents == 0 => Err(format!("fault {label:?} needs fleet.agents")),
            Kind::Policy => {
                let body = self.policy.as_ref().ok_or_else(|| format!("fault {label:?} needs `policy`"))?;
                let text = format!("[dependency.{DEPENDENCY}]\n{body}");
                let judged = PolicySet::parse_timed("fault.policy", &text, scenario.timing()?);
                judged.map(drop).map_err(|error| error.to_string())
            }
            Kind::Clone if scenario.strategies != [Strategy::Leased] || scenario.holders != 1 => {
                Err(format!("fault {label:?} needs strategies = [\"leased\"] and holders = 1"))
            }
            Kind::Clone if scenario.load.iter().any(|load| load.cost.is_some()) => {
                Err(format!("fault {label:?} needs load without cost"))
            }
            Kind::RestartCallers if self.until.is_some() || scenario.strategies.iter().any(|of| !of.restarts()) => {
                Err(format!("fault {label:?} has no `until`, and none of leased, agent and tower"))
            }
            Kind::Grow | Kind::PauseCallers | Kind::RestartCallers | Kind::Partition | Kind::Clone => {
                let outside = self.which.iter().find(|process| **process >= scenario.processes);
                match outside {
                    Some(process) => Err(format!("fault {label:?} names process {process}, which there is not")),
                    None => Ok(()),
                }
            }
            Kind::KillRedis
            | Kind::StopRedis
            | Kind::FlushRedis
            | Kind::SplitRedis
            | Kind::KillBudgetd
            | Kind::StopBudgetd
            | Kind::KillAgent
            | Kind::SetClock => Ok(()),
        }
    }

    pub(crate) fn at_ms(&self) -> u64 {
        ms(self.at)
    }

    /// Each time that it happens.
    pub(crate) fn times_ms(&self) -> impl Iterator<Item = u64> {
        let every_ms = self.every.map_or(0, ms);
        (0..u64::from(self.times)).map(move |number| self.at_ms().saturating_add(number * every_ms))
    }

    pub(crate) fn until_ms(&self) -> Option<u64> {
        self.until.map(ms)
    }

    pub(crate) fn by_ms(&self) -> i64 {
        self.by.map_or(0, |by| i64::try_from(ms(by)).unwrap_or(0))
    }

    /// Whether it is one of those that it hits.
    pub(crate) fn hits(&self, number: u32) -> bool {
        self.which.is_empty() || self.which.contains(&number)
    }

    /// Whether whoever depends on budgetd may be left alone by it.
    pub(crate) const fn takes_budgetd_away(&self) -> bool {
        match self.kind {
            Kind::KillRedis
            | Kind::StopRedis
            | Kind::FlushRedis
            | Kind::KillBudgetd
            | Kind::StopBudgetd
            | Kind::KillAgent
            | Kind::Partition => true,
            Kind::SplitRedis
            | Kind::PauseCallers
            | Kind::RestartCallers
            | Kind::Grow
            | Kind::Clone
            | Kind::Policy
            | Kind::SetClock => false,
        }
    }

    /// For people.
    pub(crate) fn label(&self) -> String {
        let some = |what: &str| match &self.which[..] {
            [] => format!("all {what}"),
            [one] => format!("{what} {one}"),
            several => format!("{} {what}", several.len()),
        };
        match self.kind {
            Kind::KillRedis => "Redis killed".to_owned(),
            Kind::StopRedis => "Redis stopped".to_owned(),
            Kind::FlushRedis => "Redis wiped".to_owned(),
            Kind::SplitRedis => "two masters of Redis".to_owned(),
            Kind::KillBudgetd => format!("{} killed", some("budgetd")),
            Kind::StopBudgetd => format!("{} stopped", some("budgetd")),
            Kind::KillAgent => format!("{} killed", some("agents")),
            Kind::Partition => format!("{} cut off", some("callers")),
            Kind::RestartCallers => format!("{} killed and started again", some("callers")),
            Kind::PauseCallers => format!("{} paused", some("callers")),
            Kind::Grow => format!("{} join", some("callers")),
            Kind::Clone => format!("the holder of {} is copied", some("callers")),
            Kind::Policy => format!("policy of {DEPENDENCY} changed"),
            Kind::SetClock => "the store's clock set forward".to_owned(),
        }
    }
}
