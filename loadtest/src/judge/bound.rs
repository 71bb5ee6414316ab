//! The documented bound against what was admitted, all windows of a run at once.

mod units;

use std::sync::Arc;

use budget::{
    bound::{
        Bound, Causes, Fleet, Most, Quantity, UNTOLD_TOKENS_PER_SECOND,
        checker::{AllWindows, Event, Excess, Law, Slope},
        horizon_ms,
    },
    lease::Amounts,
    policy::Policy,
    units::{Period, Rate},
};
use budgetd::policies::PolicySet;

use super::Judged;
use crate::{
    Error,
    caller::Cloned,
    engine::Outcome,
    fleet::Done,
    record::{BoundLine, Verdict},
    scenario::{BoundSpec, DEPENDENCY, FaultKind, Scenario, StoreSpec, Strategy},
};

/// Windows that the slope of a term is taken from.
const LONG_MS: i64 = 1_000_000;
const NANOS_PER_MS: i64 = 1_000_000;
/// Of a scenario that aims at one term.
const REACHES: &str = "the fault costs a good part of what is documented for it, so the term says something";

/// A policy and what went wrong under it, as the bound sees them.
struct Case<'a> {
    scenario: &'a Scenario,
    spec: &'a BoundSpec,
    outcome: &'a Outcome,
    policy: Arc<Policy>,
    fleet: Fleet,
    causes: Causes,
}

pub(super) fn judge(scenario: &Scenario, spec: &BoundSpec, outcome: &Outcome) -> Result<Judged, Error> {
    let case = Case::new(scenario, spec, outcome)?;
    let mut judged = Judged::default();
    for quantity in [Quantity::Admissions, Quantity::Retries] {
        // Admissions that are not limited are not judged.
        if quantity == Quantity::Admissions && case.policy.spec().admission.is_none() {
            continue;
        }
        let windows = case.windows(true);
        if let Some(worst) = excess(&windows, &quantity) {
            case.explain(&quantity, worst, &mut judged);
        }
    }
    units::judge(&case, &mut judged);
    judged.accepted.extend(case.reach());
    let cloned = outcome.told.iter().filter_map(|told| told.cloned.as_ref());
    judged.promises.extend(cloned.map(|cloned| case.fenced(cloned)));
    Ok(judged)
}

fn excess(windows: &AllWindows, quantity: &Quantity) -> Option<Excess> {
    match quantity {
        Quantity::Admissions => windows.admissions(),
        Quantity::Retries => windows.retries(),
        Quantity::Unit(_) | Quantity::InFlight => None,
    }
}

/// The policy of the dependency in a policy file.
pub(super) fn policy_of(scenario: &Scenario, text: &str) -> Result<Arc<Policy>, Error> {
    let set = PolicySet::parse_timed("policy", text, scenario.timing()?).map_err(|error| error.to_string())?;
    Ok(Arc::clone(&set.rule(DEPENDENCY).ok_or("the policy names no such dependency")?.policy))
}

/// The times at which the state of the store was lost.
fn losses(scenario: &Scenario, outcome: &Outcome) -> Vec<i64> {
    let memory = scenario.fleet.store == StoreSpec::Memory;
    let loses = |done: &&Done| match done.fault.kind {
        FaultKind::KillRedis | FaultKind::FlushRedis | FaultKind::SplitRedis => done.begins,
        FaultKind::KillBudgetd => memory && done.begins,
        FaultKind::StopRedis
        | FaultKind::StopBudgetd
        | FaultKind::KillAgent
        | FaultKind::Partition
        | FaultKind::PauseCallers
        | FaultKind::RestartCallers
        | FaultKind::Grow
        | FaultKind::Clone
        | FaultKind::SetClock
        | FaultKind::Policy => false,
    };
    outcome.done.iter().filter(loses).map(|done| done.from_ns).collect()
}

fn whole(most: Most) -> Option<i64> {
    match most {
        Most::Count(count) => Some(count),
        Most::Unbounded => None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
fn float(count: i64) -> f64 {
    count as f64
}

// === impl Case ===

impl<'a> Case<'a> {
    fn new(scenario: &'a Scenario, spec: &'a BoundSpec, outcome: &'a Outcome) -> Result<Self, Error> {
        let policy = policy_of(scenario, &scenario.policy)?;
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let replicas = number(scenario.fleet.replicas);
        let holders = match outcome.strategy {
            // Clients of an agent beside it.
            Strategy::Leased => {
                i64::from(scenario.processes) * i64::from(scenario.holders) + i64::from(scenario.fleet.agents)
            }
            Strategy::Agent => 1,
            Strategy::Exact | Strategy::Single | Strategy::Naive | Strategy::Tower => 0,
        };
        let away = scenario.faults.iter().any(|fault| fault.takes_budgetd_away());
        let all = if away { holders + replicas } else { 0 };
        let lost = number(losses(scenario, outcome).len());
        let delay_ns = outcome.asks().filter(|ask| ask.via.admitted()).map(|ask| ask.until_ns - ask.from_ns).max();
        let arrival_ns = outcome.told.iter().map(|told| told.arrival_max_ns).max();
        // An actual cost is charged when the attempt is settled: until then refill goes on to pay.
        let later = spec.at_arrival || spec.underestimated || spec.overuse;
        let delay_ns = if later { arrival_ns } else { delay_ns };
        let unsent = if spec.at_arrival { paused(scenario, outcome) } else { (0, 0) };
        let causes = Causes {
            beyond: spec.beyond.map_or(all, i64::from),
            untold: untold_rate()
                .filter(|_| spec.untold > 0)
                .map(|rate| (i64::from(spec.untold) * i64::from(scenario.holders), rate)),
            clock_jumps: spec.clock_jumps.into(),
            overlap_ms: spec.overlap_ms(),
            arrival_delay_ms: delay_ns.unwrap_or(0) / NANOS_PER_MS + 1,
            unsent,
            losses: if spec.losses > 0 { spec.losses.into() } else { lost },
            underestimated: spec.underestimated,
            clones: clones(outcome),
            overuse: overuse(scenario, spec, outcome),
        };
        Ok(Self { scenario, spec, outcome, policy, fleet: Fleet { holders, replicas }, causes })
    }

    fn bound(&self, window_ms: i64) -> Bound {
        let limits = self.scenario.timing().unwrap_or_default().limits;
        Bound::new(&self.policy, &limits, self.fleet, window_ms, &self.causes)
    }

    /// Everything admitted, judged by the bound; `slopes`: the part of each term that grows with the window joins the rate.
    fn windows(&self, slopes: bool) -> AllWindows {
        let law = |policy: &Policy| if slopes { self.with_slopes(Law::of(policy)) } else { Law::of(policy) };
        let mut events: Vec<(i64, Event)> = Vec::new();
        if self.spec.at_arrival {
            let event = |is_retry| if is_retry { Event::Retry } else { Event::Original };
            events.extend(self.outcome.counts.arrivals.iter().map(|(at_ns, is_retry)| (*at_ns, event(*is_retry))));
        } else {
            let admitted = self.outcome.asks().filter(|ask| ask.via.admitted());
            let event = |is_retry| if is_retry { Event::Retry } else { Event::Original };
            events.extend(admitted.map(|ask| (ask.until_ns, event(ask.is_retry))));
        }
        events.extend(losses(self.scenario, self.outcome).into_iter().map(|at_ns| (at_ns, Event::Epoch)));
        for done in self.outcome.done.iter().filter(|done| done.begins) {
            let Some(body) = &done.fault.policy else { continue };
            // It was judged with the scenario. Whichever of both is in force while it changes.
            if let Ok(policy) = policy_of(self.scenario, &format!("[dependency.{DEPENDENCY}]\n{body}")) {
                events.push((done.from_ns, Event::Policy(law(&policy))));
            }
        }
        let limits = self.scenario.timing().unwrap_or_default().limits;
        // What is admitted before the first arrival was handed back.
        AllWindows::of(horizon_ms(&self.policy, &limits), -1_000 * NANOS_PER_MS, law(&self.policy), events)
    }

    fn with_slopes(&self, law: Law) -> Law {
        let (short, long) = (self.bound(0), self.bound(LONG_MS));
        let steeper = |slope: Slope, quantity: &Quantity| {
            let (constant, at_long) = (whole(short.excess(quantity)), whole(long.excess(quantity)));
            let grown = at_long.zip(constant).map_or(0, |(long, constant)| long - constant);
            // Micro-tokens in a millisecond, on the slope's own denominator, rounded up.
            let more = (grown * slope.den).div_euclid(LONG_MS / 1_000_000) + i64::from(grown > 0);
            Slope { num: slope.num + more, ..slope }
        };
        Law {
            admission: law.admission.map(|slope| steeper(slope, &Quantity::Admissions)),
            retry: steeper(law.retry, &Quantity::Retries),
            ..law
        }
    }

    /// How many were admitted in a window.
    fn admitted(&self, from_ns: i64, until_ns: i64, retries: bool) -> i64 {
        let times: Vec<(i64, bool)> = if self.spec.at_arrival {
            self.outcome.counts.arrivals.clone()
        } else {
            let admitted = self.outcome.asks().filter(|ask| ask.via.admitted());
            admitted.map(|ask| (ask.until_ns, ask.is_retry)).collect()
        };
        let counted =
            times.iter().filter(|(at_ns, is_retry)| (from_ns..=until_ns).contains(at_ns) && (!retries || *is_retry));
        i64::try_from(counted.count()).unwrap_or(i64::MAX)
    }

    /// The verdict on one quantity, and the bound of its worst window in parts.
    fn explain(&self, quantity: &Quantity, worst: Excess, judged: &mut Judged) {
        let window_ms = (worst.until_ns - worst.from_ns).div_euclid(NANOS_PER_MS) + 1;
        let bound = self.bound(window_ms);
        let is_retries = *quantity == Quantity::Retries;
        let seen = self.admitted(worst.from_ns, worst.until_ns, is_retries);
        let all = self.admitted(worst.from_ns, worst.until_ns, false);
        let most = if is_retries { bound.retries(&self.policy, all - seen) } else { bound.most(quantity) };
        let constant = self.bound(0).excess(quantity);
        // The slopes are in the rate already: what is left is the constant part of the terms.
        let allowed = whole(constant);
        let passed = allowed.is_none_or(|allowed| worst.micros <= allowed.saturating_mul(1_000_000));
        let strategy = super::who(self.outcome);
        let worded = |most: Most| whole(most).map_or_else(|| "unbounded".to_owned(), |count| count.to_string());
        judged.promises.push(Verdict {
            says: format!("{strategy}: {} of every window keep the documented bound", quantity.name()),
            wanted: format!("≤ {} in the window that comes closest, of {window_ms} ms", worded(most)),
            seen: format!("{seen}, {} from the bound", tokens(worst.micros - allowed.unwrap_or(0) * 1_000_000)),
            passed,
        });
        let mut line = |term: &str, formula: String, allowed: Option<f64>, seen: Option<f64>| {
            let (strategy, quantity) = (strategy.clone(), quantity.name().to_owned());
            judged.bound.push(BoundLine { strategy, quantity, term: term.to_owned(), formula, allowed, seen });
        };
        if let Some(base) = bound.base(quantity) {
            let formula = base.parts.iter().map(|part| match part.formula.as_str() {
                "" => format!("{} {}", part.name, worded(part.most)),
                formula => format!("{} {formula}", part.name),
            });
            let formula = format!("{} in {window_ms} ms", formula.collect::<Vec<_>>().join(" + "));
            line("base", formula, whole(base.most()).map(float), None);
        }
        for term in &bound.terms {
            for part in term.parts.iter().filter(|part| part.quantity == *quantity) {
                let formula = format!("{}: {}", term.text, part.formula);
                line(term.cause.name(), formula, whole(part.most).map(float), None);
            }
        }
        line(
            "sum",
            "all of these, in the window that comes closest".to_owned(),
            whole(most).map(float),
            Some(float(seen)),
        );
    }

    /// A copy is found out when both have renewed: how soon that is depends on the machine, that it happens does not.
    fn fenced(&self, cloned: &Cloned) -> Verdict {
        let renew_max_ms = self.scenario.timing().unwrap_or_default().limits.renew_max_ms;
        Verdict {
            says: format!("{}: the ledger fences one of two holders that are copies", super::who(self.outcome)),
            wanted: format!("at its next renewal, within {renew_max_ms} ms and the time for an answer"),
            seen: if cloned.fenced { format!("after {} ms", cloned.alive_ms) } else { "never".to_owned() },
            passed: cloned.fenced,
        }
    }

    /// That the terms are not empty words: what came on top of the bound without them, as a part of what they allow.
    fn reach(&self) -> Option<Verdict> {
        let reaches = self.spec.reaches?;
        let quantity = match self.spec.reached.as_deref() {
            Some("retries") => Quantity::Retries,
            Some("admissions") | None => Quantity::Admissions,
            // Units judge their own.
            Some(_) => return None,
        };
        let worst = excess(&self.windows(false), &quantity)?;
        let window_ms = (worst.until_ns - worst.from_ns).div_euclid(NANOS_PER_MS) + 1;
        let allowed = whole(self.bound(window_ms).excess(&quantity))?;
        let part = float(worst.micros) / 1e6 / float(allowed.max(1));
        Some(Verdict {
            says: format!("{}: {REACHES}", super::who(self.outcome)),
            wanted: format!("≥ {reaches} of the {allowed} that may come on top in {window_ms} ms"),
            seen: format!("{} came on top, {part:.2} of it", tokens(worst.micros)),
            passed: part >= reaches,
        })
    }
}

/// Copies of holders, each with what it had and how long nobody knew of it.
fn clones(outcome: &Outcome) -> Vec<(Amounts, i64)> {
    let amounts = |cloned: &Cloned| {
        let Cloned { rate, burst, retry_burst, slots, alive_ms, .. } = *cloned;
        (Amounts { rate, burst, retry_burst, slots, units: Box::default() }, alive_ms)
    };
    outcome.told.iter().filter_map(|told| told.cloned.as_ref()).map(amounts).collect()
}

/// What was settled beyond the limit of debt, as budgetd counted it; all of it of the one unit that the load spends.
fn overuse(scenario: &Scenario, spec: &BoundSpec, outcome: &Outcome) -> Vec<(String, i64)> {
    let unit = scenario.load.iter().find_map(|load| Some(load.cost.as_ref()?.unit.clone()));
    unit.filter(|_| spec.overuse).map(|unit| (unit, outcome.overuse_micros)).into_iter().collect()
}

/// Attempts that were admitted before a pause and arrived after it: originals, retries.
fn paused(scenario: &Scenario, outcome: &Outcome) -> (i64, i64) {
    let pauses = outcome.done.iter().filter(|done| done.begins && done.fault.kind == FaultKind::PauseCallers);
    if pauses.count() == 0 {
        return (0, 0);
    }
    // Those between the decision and the note of it when the process stood still: as many as it had at once.
    let most = i64::from(scenario.clients);
    (most, most)
}

/// What a process admits that never learnt the policy: the client's own default.
fn untold_rate() -> Option<Rate> {
    Rate::new(UNTOLD_TOKENS_PER_SECOND, Period::Second).ok()
}

/// Whole tokens with a sign.
fn tokens(micros: i64) -> String {
    format!("{:+.1}", float(micros) / 1e6)
}
