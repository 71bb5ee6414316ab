//! What stands between an operation and its next attempt: nothing, a budget of the client's own, or the fleet's.

use std::time::Duration;

use budget::{
    decision::{
        Attempt, Cause, Cost, Denied, OperationAsk, OperationState, Outcome, Priority, Release, Reserve, Sent,
        TerminalState, Use,
    },
    holder::LocalAsk,
    ids::{Fingerprint, OperationId, ReservationId},
    lease::HolderId,
    units::MICROS_PER_TOKEN,
};
use budget_client::{
    Ask, Client, Decision, Dependency, Handle, InFlight, LeasedClient, Mode, Refused, Reserved, Source, Standing,
    reservation_id,
};
use futures::future::join_all;
use tokio::{
    sync::Semaphore,
    time::{self, timeout},
};
use tower::retry::budget::{Budget, TpsBudget};

use super::{
    Cloned, Task, Via,
    twins::{TwinLocal, TwinSpent, Twins},
};
use crate::{
    Error,
    plan::Arrival,
    scenario::{DEPENDENCY, PriorityName, Scenario, Strategy},
};

/// How often readiness is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const RELEASE_WITHIN: Duration = Duration::from_secs(2);
const CALL_WITHIN: Duration = Duration::from_secs(2);

/// By strategy.
pub(super) enum Guard {
    Nothing,
    /// For each client and each layer.
    Own(Vec<TpsBudget>),
    /// budgetd decides each attempt; `leased`: from a lease of its own.
    Plain {
        clients: Vec<Client>,
        dependency: Dependency,
        leased: bool,
    },
    Holding {
        clients: Vec<LeasedClient>,
        handles: Vec<Handle>,
        waits: bool,
    },
    /// As [`Self::Holding`] with one holder, of which there is a copy from some time on.
    Copied {
        twins: Twins,
        client: Box<Client>,
        dependency: Dependency,
    },
}

/// Releases on their way: a process that has nothing more to do waits for them.
static RELEASES: Semaphore = Semaphore::const_new(RELEASES_MAX);
/// More at once are not sent: their permits end by themselves.
const RELEASES_MAX: usize = 10_000;

/// An attempt that may be sent.
pub(super) enum Held {
    Nothing,
    Plain(Box<(Client, Dependency)>, ReservationId, Option<OperationId>),
    Leased(InFlight, Dependency),
    Copied(TwinSpent),
    /// Not an attempt: the operation has some already.
    Known(Box<OperationState>),
}

/// What budgetd is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking<'a> {
    pub(super) arrival: &'a Arrival,
    /// From 1.
    pub(super) number: u32,
    pub(super) cause: Option<Cause>,
    pub(super) within: Duration,
}

// === impl Guard ===

impl Guard {
    pub(super) fn new(scenario: &Scenario, task: &Task) -> Result<Self, Error> {
        let units = scenario.load.iter().filter_map(|load| Some(load.cost.as_ref()?.unit.as_str()));
        let dependency = Dependency::new(task.named.as_deref().unwrap_or(DEPENDENCY))?.with_units(units)?;
        let layers = scenario.call.layers.len();
        Ok(match task.strategy {
            Strategy::Single | Strategy::Naive => Self::Nothing,
            Strategy::Tower => {
                let budgets = usize::try_from(task.clients)?.saturating_mul(layers);
                Self::Own((0..budgets).map(|_| TpsBudget::default()).collect())
            }
            Strategy::Exact | Strategy::Agent => {
                let clients = task.budgetd.iter().map(|endpoint| Client::new(endpoint)).collect::<Result<_, _>>()?;
                Self::Plain { clients, dependency, leased: task.strategy == Strategy::Agent }
            }
            Strategy::Leased if scenario.clones_at_ms(task.process).is_some() => {
                let endpoint = task.budgetd.first().ok_or("no address of budgetd")?;
                let holder = HolderId::new(&format!("{}-{}-0", task.tag, task.process))?;
                let twins = Twins::start(scenario, holder, task.seed, &dependency, task.budgetd.clone())?;
                Self::Copied { twins, client: Box::new(Client::new(endpoint)?), dependency }
            }
            Strategy::Leased => {
                let (mut clients, mut handles) = (Vec::new(), Vec::new());
                for holder in 0..scenario.holders {
                    // Each begins with another of the replicas.
                    let turn = usize::try_from(task.process + holder)? % task.budgetd.len().max(1);
                    let mut endpoints = task.budgetd.clone();
                    endpoints.rotate_left(turn);
                    let client = Client::builder()
                        .endpoints(endpoints)
                        .holder_id(HolderId::new(&format!("{}-{}-{holder}", task.tag, task.process))?)
                        .timing(scenario.timing()?.limits)
                        .connect()?;
                    handles.push(client.dependency(&dependency)?);
                    clients.push(client);
                }
                Self::Holding { clients, handles, waits: lends(scenario)? }
            }
        })
    }

    /// Until budgetd answers, and until leases are held where they are permitted.
    pub(super) async fn until_ready(&self) -> Result<(), Error> {
        match self {
            Self::Nothing | Self::Own(_) => {}
            Self::Copied { twins, .. } => {
                while !twins.is_leased() {
                    twins.want();
                    time::sleep(LOOK_EVERY).await;
                }
            }
            Self::Plain { clients, dependency, leased } => {
                for client in clients {
                    until_answered(client, dependency, *leased).await?;
                }
            }
            Self::Holding { handles, waits, .. } => {
                while *waits && handles.iter().any(|handle| handle.standing() != Standing::Leased) {
                    // Who asks for nothing is lent nothing. What is not sent is handed back.
                    join_all(handles.iter().map(|handle| handle.reserve_original(LOOK_EVERY))).await;
                    time::sleep(LOOK_EVERY).await;
                }
            }
        }
        Ok(())
    }

    /// A layer has its result.
    pub(super) fn succeeded(&self, client: u32, layer: usize, layers: usize) {
        if let Some(budget) = self.own(client, layer, layers) {
            budget.deposit();
        }
    }

    /// Whether a layer may try again; budgetd is asked later, for the attempt itself.
    pub(super) fn may_retry(&self, client: u32, layer: usize, layers: usize) -> bool {
        self.own(client, layer, layers).is_none_or(Budget::withdraw)
    }

    fn own(&self, client: u32, layer: usize, layers: usize) -> Option<&TpsBudget> {
        match self {
            Self::Own(budgets) => budgets.get(usize::try_from(client).ok()? * layers + layer),
            Self::Nothing | Self::Plain { .. } | Self::Holding { .. } | Self::Copied { .. } => None,
        }
    }

    /// From this time since boot on there is a copy of the holder.
    pub(super) fn copies_at(&self, at_ns: i64) {
        if let Self::Copied { twins, .. } = self {
            twins.part_at(at_ns);
        }
    }

    /// What became of the copy.
    pub(super) fn cloned(&self) -> Option<Cloned> {
        match self {
            Self::Copied { twins, .. } => twins.told(),
            Self::Nothing | Self::Own(_) | Self::Plain { .. } | Self::Holding { .. } => None,
        }
    }

    /// Asks for one attempt. None: nobody has to be asked.
    pub(super) async fn ask(&self, scenario: &Scenario, asking: Asking<'_>) -> Option<(Via, Held, i64)> {
        let load = &scenario.load[asking.arrival.load];
        let priority = match load.priority {
            PriorityName::Sheddable => Priority::Sheddable,
            PriorityName::Default => Priority::Default,
            PriorityName::Critical => Priority::Critical,
        };
        let micros = i64::from(asking.arrival.cost) * MICROS_PER_TOKEN;
        let cost = |dependency: &Dependency| load.cost.as_ref().and_then(|cost| dependency.cost(&cost.unit, micros));
        let attempt = match asking.cause {
            Some(cause) => Attempt::retry(asking.number, cause),
            None => Attempt::ORIGINAL,
        };
        let client = usize::try_from(asking.arrival.client / scenario.processes).unwrap_or(0);
        let (via, held) = match self {
            Self::Nothing | Self::Own(_) => return None,
            Self::Plain { clients, dependency, .. } => {
                let costs = cost(dependency).into_iter().collect();
                let operation = tracked(scenario, asking.arrival.key);
                let ask = Plainly { attempt, priority, costs, operation, within: asking.within };
                ask.of(&clients[client % clients.len()], dependency).await
            }
            Self::Copied { twins, client: plain, dependency } => {
                // Half of the clients are the copy's.
                match twins.reserve(client % 2 == 1, &LocalAsk { attempt, priority, costs: &[] }) {
                    TwinLocal::Admitted(spent) => (Via::Lease, Held::Copied(spent)),
                    TwinLocal::Denied => (Via::Refused, Held::Nothing),
                    TwinLocal::Short => {
                        let ask =
                            Plainly { attempt, priority, costs: Vec::new(), operation: None, within: asking.within };
                        ask.of(plain, dependency).await
                    }
                }
            }
            Self::Holding { handles, .. } => {
                let handle = &handles[client % handles.len()];
                let ask = match asking.cause {
                    Some(cause) => Ask::retry(asking.number, cause),
                    None => Ask::original(),
                };
                leased(handle, &ask.priority(priority).costs(cost(handle.dependency())), asking.within).await
            }
        };
        Some((via, held, micros))
    }

    /// Until all that was to be told has been told.
    pub(super) async fn finish(&self) {
        let all = u32::try_from(RELEASES_MAX).unwrap_or(u32::MAX);
        // Each ends by itself soon.
        let _told = timeout(RELEASE_WITHIN, RELEASES.acquire_many(all)).await;
    }

    pub(super) fn releases_lost(&self) -> u64 {
        match self {
            Self::Holding { clients, .. } => clients.iter().map(LeasedClient::releases_lost).sum(),
            Self::Nothing | Self::Own(_) | Self::Plain { .. } | Self::Copied { .. } => 0,
        }
    }
}

/// The same for every process that carries the operation out.
fn tracked(scenario: &Scenario, key: u64) -> Option<OperationAsk> {
    let name = format!("{key:016x}");
    let (id, fingerprint) = (OperationId::new(&name).ok()?, Fingerprint::from_slice(name.as_bytes()).ok()?);
    scenario.call.tracked.then_some(OperationAsk { id, fingerprint, expires_in_ms: None })
}

/// Whether the policy permits leases.
fn lends(scenario: &Scenario) -> Result<bool, Error> {
    let set = budgetd::policies::PolicySet::parse_timed("policy", &scenario.policy, scenario.timing()?);
    let set = set.map_err(|error| error.to_string())?;
    Ok(set.rule(DEPENDENCY).is_some_and(|rule| rule.policy.spec().lease.enabled))
}

/// Asks for attempts that are handed back unsent.
async fn until_answered(client: &Client, dependency: &Dependency, leased: bool) -> Result<(), Error> {
    loop {
        let id = reservation_id()?;
        let reserve = Reserve::new(id, Attempt::ORIGINAL);
        if let Ok(Reserved { decision, mode, .. }) = client.reserve(dependency, &reserve, CALL_WITHIN).await {
            if let Decision::Admitted(_) = decision {
                client.release(dependency, &Release::not_sent(id), CALL_WITHIN).await?;
            }
            if !leased || mode == Mode::Leased {
                return Ok(());
            }
        }
        time::sleep(LOOK_EVERY).await;
    }
}

async fn leased(handle: &Handle, ask: &Ask, within: Duration) -> (Via, Held) {
    match handle.reserve(ask, within).await {
        Ok(permit) => {
            let via = match permit.source() {
                Source::Lease => Via::Lease,
                Source::Coordinator => Via::Coordinator,
                Source::Degraded => Via::Degraded,
                Source::Fallback => Via::Fallback,
            };
            match permit.sent() {
                Ok(flight) => (via, Held::Leased(flight, handle.dependency().clone())),
                // Handed back.
                Err(_expired) => (Via::Refused, Held::Nothing),
            }
        }
        Err(Refused::Denied(_) | Refused::Overloaded) => (Via::Refused, Held::Nothing),
        Err(Refused::Failed(_)) => (Via::Error, Held::Nothing),
    }
}

/// An ask of budgetd itself.
struct Plainly {
    attempt: Attempt,
    priority: Priority,
    costs: Vec<Cost>,
    operation: Option<OperationAsk>,
    within: Duration,
}

// === impl Plainly ===

impl Plainly {
    async fn of(self, client: &Client, dependency: &Dependency) -> (Via, Held) {
        let Ok(id) = reservation_id() else { return (Via::Error, Held::Nothing) };
        let (priority, costs, operation) = (self.priority, self.costs, self.operation);
        let named = operation.as_ref().map(|operation| operation.id.clone());
        let reserve = Reserve { priority, costs, operation, ..Reserve::new(id, self.attempt) };
        match client.reserve(dependency, &reserve, self.within).await {
            Ok(Reserved { decision: Decision::Admitted(_), mode, .. }) => {
                let via = match mode {
                    Mode::Leased => Via::Lease,
                    Mode::Exact | Mode::Shadow => Via::Coordinator,
                    Mode::Degraded => Via::Degraded,
                };
                (via, Held::Plain(Box::new((client.clone(), dependency.clone())), id, named))
            }
            // Of attempts that are not the next one: whoever was here before has used some.
            Ok(Reserved { decision: Decision::Denied(Denied { operation: Some(state), .. }), .. })
                if !self.attempt.is_retry() && (state.attempts_used > 0 || state.terminal.is_some()) =>
            {
                (Via::Refused, Held::Known(state))
            }
            Ok(Reserved { decision: Decision::Denied(_), .. }) | Err(budget_client::Error::Overloaded(_)) => {
                (Via::Refused, Held::Nothing)
            }
            Err(_) => (Via::Error, Held::Nothing),
        }
    }
}

// === impl Held ===

impl Held {
    /// Tells how the attempt went, beside what follows.
    pub(super) fn finish(self, outcome: Outcome, unit: Option<&str>, actual_micros: i64) {
        match self {
            Self::Nothing | Self::Known(_) => {}
            Self::Copied(spent) => spent.settle(outcome),
            Self::Leased(flight, dependency) => {
                let cost = unit.and_then(|unit| dependency.cost(unit, actual_micros));
                flight.finish_with(outcome, cost.as_slice());
            }
            Self::Plain(way, id, operation) => {
                let (client, dependency) = *way;
                let costs = unit.and_then(|unit| dependency.cost(unit, actual_micros)).into_iter().collect();
                let done = operation.is_some() && outcome == Outcome::Success;
                let terminal = done.then_some(TerminalState::Completed);
                let used = Use::Sent(Sent { outcome, costs, terminal, result_ref: None });
                let release = Release { id, used, operation };
                let Ok(on_its_way) = RELEASES.try_acquire() else { return };
                tokio::spawn(async move {
                    let _on_its_way = on_its_way;
                    // A release that is lost leaves the permit to its own end.
                    let _lost = client.release(&dependency, &release, RELEASE_WITHIN).await;
                });
            }
        }
    }
}
