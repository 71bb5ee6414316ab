//! Runs a scenario: each strategy by itself, one after the other, with the same arrivals, a fresh dependency and a fresh
//! fleet.

mod gather;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use budget_client::boot_time_ns;
use futures::{StreamExt, stream::FuturesUnordered};
use tokio::time;

use crate::{
    Error,
    caller::{Told, Word},
    dependency::Counts,
    deployment::Deployment,
    fleet::{Cast, Done, Faults, Gathered, World},
    judge,
    record::{Mark, ScenarioRun, Verdict},
    report::{Live, Progress},
    scenario::{FaultKind, Scenario, Strategy},
};

/// How often the dependency is asked what it has received.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// What a busy machine may take longer than the load and the last deadline.
const END_SLACK: Duration = Duration::from_secs(60);

/// A generator that is later than this did not offer what was planned.
const STALL_MS: i64 = 250;
/// Runs of a strategy until one is under the planned load; the last one counts.
const RUNS_MAX: u32 = 3;

/// How scenarios are run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) quick: bool,
    /// Instead of the scenario's.
    pub(crate) seed: Option<u64>,
    /// Only these; empty: all of the scenario.
    pub(crate) strategies: Vec<Strategy>,
    /// For a test of the verdicts: each replica has all to itself.
    pub(crate) broken: bool,
    pub(crate) redis_server: PathBuf,
    /// Asked instead of a fleet of its own.
    pub(crate) deployment: Option<Deployment>,
}

/// Shows how far it is, over all runs of a scenario.
#[derive(Debug)]
struct Watch<'a> {
    progress: &'a mut Progress,
    /// Of the runs before this one.
    before_ms: u64,
    before: Live,
    latest: Live,
}

/// All that was seen of one strategy under one number of clients.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) strategy: Strategy,
    pub(crate) clients: u32,
    /// Empty where the scenario does not vary.
    pub(crate) variant: String,
    pub(crate) duration: Duration,
    pub(crate) counts: Counts,
    pub(crate) told: Vec<Told>,
    pub(crate) done: Vec<Done>,
    /// Settled beyond the limit of debt, as budgetd counted it; micro-tokens.
    pub(crate) overuse_micros: i64,
}

/// What all runs of a scenario have in common.
struct Runs<'a> {
    scenario: &'a Scenario,
    text: &'a str,
    settings: &'a Settings,
    duration: Duration,
    versions: &'a mut BTreeMap<String, String>,
    watch: Watch<'a>,
}

/// Runs all of a scenario and judges it. Versions of programs that took part are added to `versions`.
pub(crate) async fn run(
    scenario: &Scenario,
    text: &str,
    settings: &Settings,
    versions: &mut BTreeMap<String, String>,
    progress: &mut Progress,
) -> Result<ScenarioRun, Error> {
    let wanted = |strategy: &Strategy| settings.strategies.is_empty() || settings.strategies.contains(strategy);
    let strategies: Vec<Strategy> = scenario.strategies(settings.quick).iter().copied().filter(wanted).collect();
    let (duration, varied) = (scenario.duration(settings.quick), scenario.clients(settings.quick));
    let each_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let count = u64::try_from(strategies.len() * varied.len())?;
    progress.scenario(&scenario.name, each_ms.saturating_mul(count), strategies.len());
    let watch = Watch { progress, before_ms: 0, before: Live::default(), latest: Live::default() };
    let mut runs = Runs { scenario, text, settings, duration, versions, watch };
    let mut outcomes = Vec::new();
    for clients in &varied {
        for strategy in &strategies {
            let variant = if varied.len() == 1 { String::new() } else { format!("{clients} clients") };
            outcomes.push(runs.one(*strategy, *clients, variant).await?);
        }
    }
    let mut judged = judge::judge(scenario, &outcomes)?;
    let mut again = Vec::new();
    for _ in 1..RUNS_MAX {
        let stalled = runs.stalled(&outcomes);
        let all_passed = |verdicts: &[Verdict]| verdicts.iter().all(|verdict| verdict.passed);
        // A promise that was broken once is broken, whatever another run shows.
        if stalled.is_empty() || all_passed(&judged.accepted) || !all_passed(&judged.promises) {
            break;
        }
        for at in stalled {
            let Outcome { strategy, clients, variant, .. } = &outcomes[at];
            again.push(repeated(&outcomes[at]));
            outcomes[at] = runs.one(*strategy, *clients, variant.clone()).await?;
        }
        judged = judge::judge(scenario, &outcomes)?;
    }
    Ok(ScenarioRun {
        name: scenario.name.clone(),
        title: scenario.title.clone(),
        story: words(&scenario.story),
        policy: scenario.policy.trim().to_owned(),
        duration_ms: each_ms,
        bin_ms: scenario.bin_ms(),
        marks: marks(scenario),
        strategies: outcomes.iter().map(|outcome| gather::strategy_run(scenario, outcome)).collect(),
        verdicts: judged.promises.into_iter().chain(judged.accepted).chain(again).collect(),
        bound: judged.bound,
    })
}

/// Says that a run was not counted.
fn repeated(outcome: &Outcome) -> Verdict {
    Verdict {
        says: format!(
            "{} was run again: the load was not the planned one",
            name_of(outcome.strategy, &outcome.variant)
        ),
        wanted: format!("operations begin less than {STALL_MS} ms late"),
        seen: format!("{} ms late, the machine stood still", outcome.late_ms()),
        passed: true,
    }
}

fn name_of(strategy: Strategy, variant: &str) -> String {
    let name = strategy.name();
    if variant.is_empty() { name.to_owned() } else { format!("{name}, {variant}") }
}

/// A scenario that did not come to its end: that is a failed acceptance too.
pub(crate) fn failed(scenario: &Scenario, error: &Error) -> ScenarioRun {
    let verdict = Verdict {
        says: "the scenario runs".to_owned(),
        wanted: "to its end".to_owned(),
        seen: error.to_string(),
        passed: false,
    };
    ScenarioRun {
        name: scenario.name.clone(),
        title: scenario.title.clone(),
        story: words(&scenario.story),
        policy: scenario.policy.trim().to_owned(),
        duration_ms: 0,
        bin_ms: scenario.bin_ms(),
        marks: Vec::new(),
        strategies: Vec::new(),
        verdicts: vec![verdict],
        bound: Vec::new(),
    }
}

/// Faults of the fleet and the dependency's script.
fn marks(scenario: &Scenario) -> Vec<Mark> {
    let script = scenario.dependency.script.iter();
    let script = script.map(|step| Mark { at_ms: step.at_ms(), until_ms: step.until_ms(), label: step.label.clone() });
    let faults = scenario.faults.iter();
    let faults = faults.map(|fault| Mark { at_ms: fault.at_ms(), until_ms: fault.until_ms(), label: fault.label() });
    let mut marks: Vec<Mark> = script.chain(faults).collect();
    marks.sort_by_key(|mark| mark.at_ms);
    marks
}

async fn run_one(
    cast: Cast<'_>,
    duration: Duration,
    versions: &mut BTreeMap<String, String>,
    watch: &mut Watch<'_>,
) -> Result<(Gathered, Vec<Done>), Error> {
    let scenario = cast.scenario;
    let mut world = World::start(cast).await?;
    if let Some((name, version)) = world.redis_version.as_deref().and_then(|text| text.split_once(' ')) {
        versions.insert(name.to_lowercase(), version.to_owned());
    }
    let start_ns = world.start_callers().await?;
    let mut faults = Faults::new(&scenario.faults, start_ns);
    let patience = duration.saturating_add(scenario.call.deadline()).saturating_add(END_SLACK);
    let watched = time::timeout(patience, attend(&mut world, &mut faults, start_ns, watch)).await;
    watched.map_err(|_| format!("callers had not ended after {} s", patience.as_secs()))??;
    let gathered = world.gather().await?;
    world.end().await?;
    Ok((gathered, faults.done))
}

/// Does what the scenario does to the fleet, and listens to the callers, until all of them have ended.
async fn attend(world: &mut World<'_>, faults: &mut Faults, start_ns: i64, watch: &mut Watch<'_>) -> Result<(), Error> {
    let mut last: Vec<Option<(u64, u64, u64)>> = vec![Some((0, 0, 0)); world.callers.len()];
    let mut closed = vec![false; world.callers.len()];
    let mut looks = time::interval(LOOK_EVERY);
    while closed.contains(&false) {
        let fault_ns = faults.next_ns().map(|at_ns| u64::try_from(at_ns - boot_time_ns()).unwrap_or(0));
        let fault_due = async {
            match fault_ns {
                Some(ns) => time::sleep(Duration::from_nanos(ns)).await,
                None => std::future::pending().await,
            }
        };
        let lines = world.callers.iter_mut().enumerate().filter(|(at, _)| !closed[*at]);
        let mut lines: FuturesUnordered<_> =
            lines.map(|(at, caller)| async move { (at, caller.next_line().await) }).collect();
        enum Event {
            Line(usize, Option<String>),
            Fault,
            Look,
        }
        let event = tokio::select! {
            Some((at, line)) = lines.next() => Event::Line(at, line),
            () = fault_due => Event::Fault,
            _ = looks.tick() => Event::Look,
        };
        drop(lines);
        match event {
            Event::Line(at, None) => closed[at] = true,
            Event::Line(at, Some(line)) => {
                if let Ok(Word::Live { offered, useful, refused }) = serde_json::from_str(&line) {
                    last[at] = Some((offered, useful, refused));
                }
            }
            Event::Fault => faults.act(world).await?,
            Event::Look => {
                let received = world.received().await?;
                let sum = |of: fn(&(u64, u64, u64)) -> u64| last.iter().flatten().map(of).sum();
                let live = Live {
                    offered: sum(|live| live.0),
                    received,
                    useful: sum(|live| live.1),
                    refused: sum(|live| live.2),
                };
                watch.look(u64::try_from((boot_time_ns() - start_ns) / 1_000_000).unwrap_or(0), live);
            }
        }
    }
    Ok(())
}

// === impl Runs ===

impl Runs<'_> {
    /// One strategy under one number of clients.
    async fn one(&mut self, strategy: Strategy, clients: u32, variant: String) -> Result<Outcome, Error> {
        let (scenario, settings, duration) = (self.scenario, self.settings, self.duration);
        self.watch.progress.run(&name_of(strategy, &variant));
        let cast = Cast {
            scenario,
            text: self.text,
            strategy,
            clients,
            seed: settings.seed.unwrap_or(scenario.seed),
            quick: settings.quick,
            broken: settings.broken,
            redis_server: &settings.redis_server,
            deployment: settings.deployment.as_ref(),
        };
        let ran = run_one(cast, duration, self.versions, &mut self.watch).await;
        let (gathered, done) = ran.map_err(|error| format!("{}, {}: {error}", scenario.name, strategy.name()))?;
        let Gathered { counts, told, overuse_micros } = gathered;
        self.watch.next(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
        Ok(Outcome { strategy, clients, variant, duration, counts, told, done, overuse_micros })
    }

    /// Runs in which the generator itself was late: what was offered then came in heaps, and was not what the scenario is
    /// about. Where callers are stopped on purpose, and at a deployment, nothing is repeated.
    fn stalled(&self, outcomes: &[Outcome]) -> Vec<usize> {
        let stops = |kind| matches!(kind, FaultKind::PauseCallers | FaultKind::RestartCallers);
        let stopped = self.scenario.faults.iter().any(|fault| stops(fault.kind));
        if stopped || self.settings.deployment.is_some() {
            return Vec::new();
        }
        let late = outcomes.iter().enumerate().filter(|(_, outcome)| outcome.late_ms() > STALL_MS);
        late.map(|(at, _)| at).collect()
    }
}

// === impl Watch ===

impl Watch<'_> {
    fn look(&mut self, elapsed_ms: u64, live: Live) {
        self.latest = live;
        self.progress.tick(self.before_ms.saturating_add(elapsed_ms), &self.sum());
    }

    /// This run is over.
    fn next(&mut self, ms: u64) {
        self.before = self.sum();
        self.latest = Live::default();
        self.before_ms = self.before_ms.saturating_add(ms);
    }

    const fn sum(&self) -> Live {
        let (before, latest) = (self.before, self.latest);
        Live {
            offered: before.offered + latest.offered,
            received: before.received + latest.received,
            useful: before.useful + latest.useful,
            refused: before.refused + latest.refused,
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// The longest time after it was due that an operation began.
    pub(crate) fn late_ms(&self) -> i64 {
        self.told.iter().map(|told| told.late_max_ns / 1_000_000).max().unwrap_or(0)
    }

    /// All operations in the order in which they were due.
    pub(crate) fn operations(&self) -> Vec<crate::caller::Ended> {
        let mut all: Vec<_> = self.told.iter().flat_map(|told| told.operations.iter().copied()).collect();
        all.sort_by_key(|operation| operation.due_ns);
        all
    }

    pub(crate) fn asks(&self) -> impl Iterator<Item = &crate::caller::Ask> {
        self.told.iter().flat_map(|told| &told.asks)
    }

    /// Operations whose first attempt was admitted.
    pub(crate) fn originals(&self) -> u64 {
        if self.strategy.has_budgetd() {
            count(self.asks().filter(|ask| !ask.is_retry && ask.via.admitted()))
        } else {
            count(self.told.iter().flat_map(|told| &told.operations).filter(|operation| operation.sent > 0))
        }
    }

    pub(crate) fn amplification(&self) -> Option<f64> {
        ratio(self.counts.received, self.originals())
    }

    /// Attempts that callers sent.
    pub(crate) fn sent(&self) -> u64 {
        self.told.iter().map(|told| told.sent).sum()
    }
}

/// One line, however it was broken into several.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// How many.
pub(crate) fn count(items: impl Iterator) -> u64 {
    u64::try_from(items.count()).unwrap_or(u64::MAX)
}

/// None where there is nothing to divide by.
#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
pub(crate) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
