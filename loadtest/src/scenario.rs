//! A scenario: who calls what, how often, under which policy, what breaks, and what must hold. Read from TOML; a key that
//! is not known is an error that names it.

mod accept;
mod dependency;
mod fault;
mod library;
mod strategy;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, time::Duration};

use budgetd::{
    config::{LeaseTiming, Span, TimingSettings},
    policies::PolicySet,
};
use serde::{Deserialize, Serialize};

pub(crate) use accept::{Accept, Gauge, Over};
pub(crate) use dependency::{Answer, DependencySpec};
pub(crate) use fault::{Fault, Kind as FaultKind};
pub(crate) use library::{find, library};
pub(crate) use strategy::Strategy;

use crate::Error;

/// The one dependency that is called; its policy stands under this name.
pub(crate) const DEPENDENCY: &str = "tool";

/// Most arrivals per second of a scenario: what a small machine can offer honestly, with all processes on it.
const RATE_MAX: f64 = 2_000.0;
const CLIENTS_MAX: u32 = 100_000;
const PROCESSES_MAX: u32 = 16;
const DURATION_MAX: Duration = Duration::from_secs(600);

/// Everything about a run but the machine it is on.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    /// One line.
    pub(crate) title: String,
    /// What to see in it, a few sentences.
    pub(crate) story: String,
    /// Left out of `all --quick`: long, or about a single rule.
    #[serde(default)]
    pub(crate) extra: bool,
    #[serde(default = "one_u64")]
    pub(crate) seed: u64,
    /// Of the load; what is still under way then is waited for.
    duration: Span,
    /// The same under `--quick`.
    quick_duration: Option<Span>,
    #[serde(default = "bin")]
    bin: Span,
    /// Logical clients: each has its own budget where a strategy keeps one in each client.
    pub(crate) clients: u32,
    /// Processes that the clients are spread over.
    #[serde(default = "two")]
    pub(crate) processes: u32,
    /// Holders of leases in each process, where the strategy leases.
    #[serde(default = "one")]
    pub(crate) holders: u32,
    #[serde(default)]
    pub(crate) fleet: FleetSpec,
    /// TOML, as for budgetd; the dependency is called `tool`.
    pub(crate) policy: String,
    /// Time limits of leases; budgetd's own unless given.
    timing: Option<TimingSettings>,
    pub(crate) dependency: DependencySpec,
    pub(crate) load: Vec<Load>,
    pub(crate) call: CallSpec,
    strategies: Vec<Strategy>,
    /// The same under `--quick`.
    quick_strategies: Option<Vec<Strategy>>,
    /// Numbers of clients to compare; empty: [`Self::clients`] alone.
    #[serde(default)]
    pub(crate) vary_clients: Vec<u32>,
    /// The same under `--quick`.
    quick_vary_clients: Option<Vec<u32>>,
    #[serde(default, rename = "fault")]
    pub(crate) faults: Vec<Fault>,
    #[serde(default)]
    pub(crate) accept: Vec<Accept>,
    /// Quantities whose documented bound is judged over all windows, and the causes that may add to it.
    pub(crate) bound: Option<BoundSpec>,
}

/// budgetd and what it needs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FleetSpec {
    pub(crate) replicas: usize,
    pub(crate) store: StoreSpec,
    /// A proxy stands between callers and budgetd, so that a partition can be made.
    pub(crate) proxied: bool,
    /// Hosts with an agent, where processes hold leases: the first processes are on one each and hold leases of its agent,
    /// the others ask budgetd itself. The strategy `agent` has one of its own.
    pub(crate) agents: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoreSpec {
    #[default]
    Memory,
    Redis,
    /// Two servers, the second a copy of the first until it is split off; the last replica of budgetd uses the second.
    TwoRedis,
}

/// A stream of operations.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Load {
    #[serde(default = "everyone")]
    pub(crate) name: String,
    /// Operations per second from the start on.
    pub(crate) rate: f64,
    /// Other rates from these times on.
    #[serde(default)]
    pub(crate) then: Vec<Then>,
    /// Poisson arrivals unless even.
    #[serde(default)]
    pub(crate) even: bool,
    #[serde(default)]
    pub(crate) priority: PriorityName,
    pub(crate) cost: Option<CostSpec>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Then {
    at: Span,
    pub(crate) rate: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PriorityName {
    Sheddable,
    #[default]
    Default,
    Critical,
}

/// What an operation costs of a unit: what is estimated, and what it is in the end.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CostSpec {
    pub(crate) unit: String,
    /// Whole tokens on the average; each operation has between half and one and a half of it.
    pub(crate) mean: u32,
    /// Actual costs are so many times the estimate.
    #[serde(default = "one_f64")]
    pub(crate) actual: f64,
}

/// How an operation is carried out, whatever the strategy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallSpec {
    #[serde(default)]
    pub(crate) protocol: Protocol,
    /// Layers, the outermost first; the last one calls the dependency.
    pub(crate) layers: Vec<String>,
    /// Attempts of each layer where it retries.
    #[serde(default = "three")]
    pub(crate) attempts: u32,
    /// Of one call of the dependency.
    timeout: Span,
    /// Of one attempt of each outer layer, the outermost first; absent: until the deadline.
    #[serde(default)]
    outer_timeouts: Vec<Span>,
    /// Of the whole operation.
    deadline: Span,
    /// Full jitter: a wait is random up to `base` doubled for each attempt, at most `cap`.
    backoff_base: Span,
    backoff_cap: Span,
    /// How long an ask of budgetd may take.
    ask_within: Option<Span>,
    /// Admitted attempts are sent so much later, up to a time.
    held_back: Option<HeldBack>,
    /// Operations are tracked: budgetd keeps how often each was tried, and how it ended.
    #[serde(default)]
    pub(crate) tracked: bool,
    /// A stream of so many parts instead of one answer.
    #[serde(default)]
    pub(crate) parts: u32,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeldBack {
    by: Span,
    until: Span,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Protocol {
    #[default]
    Grpc,
    Http,
}

/// Judges all windows by the documented bound.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BoundSpec {
    /// Processes that may be beyond their curves at once; `all` where absent and a fault takes budgetd or its store away.
    pub(crate) beyond: Option<u32>,
    /// Processes that never learn the policy.
    pub(crate) untold: u32,
    pub(crate) clock_jumps: u32,
    pub(crate) losses: u32,
    overlap: Option<Span>,
    pub(crate) underestimated: bool,
    /// And by more than a unit may be in debt: how much that was is asked of budgetd.
    pub(crate) overuse: bool,
    /// The excess over the bound without terms must be at least this part of the term.
    pub(crate) reaches: Option<f64>,
    /// Which quantity that is of; admissions unless given.
    pub(crate) reached: Option<String>,
    /// Attempts are counted where they arrive at the dependency.
    pub(crate) at_arrival: bool,
}

fn one() -> u32 {
    1
}

fn two() -> u32 {
    2
}

fn three() -> u32 {
    3
}

fn one_u64() -> u64 {
    1
}

fn one_f64() -> f64 {
    1.0
}

fn everyone() -> String {
    "all".to_owned()
}

fn bin() -> Span {
    Span(Duration::from_millis(100))
}

/// Whole milliseconds.
pub(crate) fn ms(span: Span) -> u64 {
    u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX)
}

// === impl Scenario ===

impl Scenario {
    /// Reads and judges a scenario; `origin` is named in errors.
    pub(crate) fn parse(origin: &str, text: &str) -> Result<Self, Error> {
        let scenario: Self = toml::from_str(text).map_err(|error| format!("{origin}: {error}"))?;
        scenario.judge().map_err(|rule| format!("{origin}: {rule}"))?;
        Ok(scenario)
    }

    fn judge(&self) -> Result<(), String> {
        let within = |name: &str, value: u32, most: u32| {
            let fits = (1..=most).contains(&value);
            if fits { Ok(()) } else { Err(format!("{name} is {value}, must be 1 to {most}")) }
        };
        within("clients", self.clients, CLIENTS_MAX)?;
        within("processes", self.processes, PROCESSES_MAX)?;
        within("holders", self.holders, 100)?;
        for clients in self.vary_clients.iter().chain(self.quick_vary_clients.iter().flatten()) {
            within("vary_clients", *clients, CLIENTS_MAX)?;
        }
        within("fleet.replicas", u32::try_from(self.fleet.replicas).unwrap_or(0), 8)?;
        within("call.attempts", self.call.attempts, 10)?;
        if !(Duration::from_millis(500)..=DURATION_MAX).contains(&self.duration.0) {
            return Err(format!("duration is {}, must be 500ms to 10m", self.duration));
        }
        if self.bin.0 < Duration::from_millis(10) {
            return Err(format!("bin is {}, must be at least 10ms", self.bin));
        }
        if self.strategies.is_empty() || self.load.is_empty() || self.call.layers.is_empty() {
            return Err("strategies, load and call.layers must not be empty".to_owned());
        }
        let rate = self.rate_max();
        if !(0.1..=RATE_MAX).contains(&rate) {
            return Err(format!("load offers {rate} per second at its peak, must be 0.1 to {RATE_MAX}"));
        }
        let names: BTreeSet<&str> = self.load.iter().map(|load| load.name.as_str()).collect();
        if names.len() != self.load.len() {
            return Err("two streams of load have one name".to_owned());
        }
        if self.fleet.store == StoreSpec::Memory && self.fleet.replicas > 1 {
            return Err("fleet.replicas is more than 1, which needs store = \"redis\"".to_owned());
        }
        if self.fleet.agents > self.processes {
            return Err(format!("fleet.agents is {}, more than there are processes", self.fleet.agents));
        }
        let timing = self.timing()?;
        let policies = PolicySet::parse_timed("policy", &self.policy, timing).map_err(|error| error.to_string())?;
        let rule = policies.rule(DEPENDENCY).ok_or_else(|| format!("policy has no section for {DEPENDENCY}"))?;
        for cost in self.load.iter().filter_map(|load| load.cost.as_ref()) {
            if rule.policy.spec().units.iter().all(|unit| unit.name != cost.unit) {
                return Err(format!("load costs {:?}, a unit that policy does not have", cost.unit));
            }
        }
        let leases = |of: &Strategy| matches!(of, Strategy::Leased | Strategy::Agent);
        if self.call.tracked && self.strategies.iter().any(leases) {
            return Err("call.tracked needs a ledger for each attempt: leased and agent have none".to_owned());
        }
        self.dependency.judge()?;
        for fault in &self.faults {
            fault.judge(self)?;
        }
        self.accept.iter().try_for_each(|accept| accept.judge(self))
    }

    /// How long load is offered.
    pub(crate) fn duration(&self, quick: bool) -> Duration {
        self.quick_duration.filter(|_| quick).unwrap_or(self.duration).0
    }

    /// Strategies to run.
    pub(crate) fn strategies(&self, quick: bool) -> &[Strategy] {
        self.quick_strategies.as_ref().filter(|_| quick).unwrap_or(&self.strategies)
    }

    /// Without these.
    pub(crate) fn drop_strategies(&mut self, dropped: &[Strategy]) {
        for strategies in [Some(&mut self.strategies), self.quick_strategies.as_mut()].into_iter().flatten() {
            strategies.retain(|strategy| !dropped.contains(strategy));
        }
    }

    /// Operations per second at the peak of all streams.
    pub(crate) fn rate_max(&self) -> f64 {
        self.load.iter().map(Load::rate_max).sum()
    }

    pub(crate) fn bin_ms(&self) -> u64 {
        ms(self.bin)
    }

    /// Numbers of clients to run with.
    pub(crate) fn clients(&self, quick: bool) -> Vec<u32> {
        let varied = self.quick_vary_clients.as_ref().filter(|_| quick).unwrap_or(&self.vary_clients);
        if varied.is_empty() { vec![self.clients] } else { varied.clone() }
    }

    /// Time limits of leases.
    pub(crate) fn timing(&self) -> Result<LeaseTiming, String> {
        self.timing.clone().unwrap_or_default().judge().map_err(|error| error.to_string())
    }

    /// The section of a settings file that says so.
    pub(crate) fn timing_toml(&self) -> String {
        let Some(timing) = &self.timing else { return String::new() };
        let fields = [
            ("margin", timing.margin),
            ("overlap", timing.overlap),
            ("renew_min", timing.renew_min),
            ("renew_max", timing.renew_max),
            ("resend_min", timing.resend_min),
            ("resend_max", timing.resend_max),
            ("heartbeat", timing.heartbeat),
            ("step_max", timing.step_max),
        ];
        let mut text = "[timing]\n".to_owned();
        for (name, span) in fields {
            text.extend(span.map(|span| format!("{name} = \"{span}\"\n")));
        }
        text.extend(timing.unsafe_short.map(|short| format!("unsafe_short = {short}\n")));
        text
    }

    /// Processes that start with the others; the rest join later.
    pub(crate) fn joins_at_ms(&self, process: u32) -> u64 {
        let grows = self.faults.iter().filter(|fault| fault.kind == FaultKind::Grow && fault.hits(process));
        grows.map(Fault::at_ms).min().unwrap_or(0)
    }

    /// Whether processes of callers are killed, and others go on for them.
    pub(crate) fn restarts(&self) -> bool {
        self.faults.iter().any(|fault| fault.kind == FaultKind::RestartCallers)
    }

    /// When a copy of the process's holder goes on beside it.
    pub(crate) fn clones_at_ms(&self, process: u32) -> Option<u64> {
        let clones = self.faults.iter().filter(|fault| fault.kind == FaultKind::Clone && fault.hits(process));
        clones.map(Fault::at_ms).min()
    }
}

// === impl FleetSpec ===

impl Default for FleetSpec {
    fn default() -> Self {
        Self { replicas: 1, store: StoreSpec::Memory, proxied: false, agents: 0 }
    }
}

// === impl Load ===

impl Load {
    fn rate_max(&self) -> f64 {
        self.then.iter().map(|then| then.rate).fold(self.rate, f64::max)
    }

    /// Operations per second at this time.
    pub(crate) fn rate_at(&self, at_ms: u64) -> f64 {
        let latest = self.then.iter().rev().find(|then| ms(then.at) <= at_ms);
        latest.map_or(self.rate, |then| then.rate)
    }

    /// When the rate changes next.
    pub(crate) fn change_after(&self, at_ms: u64) -> Option<u64> {
        self.then.iter().map(|then| ms(then.at)).filter(|change| *change > at_ms).min()
    }
}

// === impl CallSpec ===

impl CallSpec {
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout.0
    }

    pub(crate) const fn deadline(&self) -> Duration {
        self.deadline.0
    }

    pub(crate) fn outer_timeout(&self, layer: usize) -> Option<Duration> {
        self.outer_timeouts.get(layer).map(|span| span.0)
    }

    pub(crate) fn ask_within(&self) -> Duration {
        self.ask_within.map_or(self.timeout.0, |span| span.0)
    }

    /// How long an attempt that is admitted at this time is held back.
    pub(crate) fn held_back(&self, at_ms: u64) -> Duration {
        self.held_back.filter(|held| at_ms < ms(held.until)).map_or(Duration::ZERO, |held| held.by.0)
    }

    /// The longest wait before attempt `number`.
    pub(crate) fn backoff_max(&self, number: u32) -> Duration {
        self.backoff_base.0.saturating_mul(1 << number.saturating_sub(2).min(16)).min(self.backoff_cap.0)
    }
}

// === impl BoundSpec ===

impl BoundSpec {
    pub(crate) fn overlap_ms(&self) -> i64 {
        self.overlap.map_or(0, |span| i64::try_from(ms(span)).unwrap_or(0))
    }
}
