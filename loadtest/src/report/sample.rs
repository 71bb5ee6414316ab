//! Runs made up from a seed, in the shape of real ones; tests draw them without starting anything.

use crate::{
    record::{BoundLine, Latency, Mark, Run, SCHEMA, ScenarioRun, Series, StrategyRun, Totals, Verdict},
    wire::Ids,
};

const BIN_MS: u64 = 250;
/// Of the load; what it began ends some bins later.
const BINS: u64 = 80;
const BINS_AFTER: u64 = 8;
const OFFERED_PER_BIN: u64 = 25;
const CAPACITY_PER_BIN: u64 = 75;
const OUTAGE: std::ops::Range<u64> = 20..44;

/// Name, label, and attempts of an operation that fails throughout, in hundredths.
const STRATEGIES: [(&str, &str, u64); 6] = [
    ("single", "one attempt, no retries", 100),
    ("naive", "3 attempts in every layer", 2_700),
    ("tower", "a tower budget in every process", 1_190),
    ("exact", "budgetd, every attempt asked", 110),
    ("leased", "budgetd, leases in the client", 109),
    ("agent", "budgetd, an agent on the host", 110),
];

/// A run of the nested storm.
pub(crate) fn storm(seed: u64) -> Run {
    run(seed, vec![scenario(seed)])
}

/// A run of several scenarios: the storm, one with variants, one with a bound and a verdict that fails, one where
/// nothing happened.
pub(crate) fn all(seed: u64) -> Run {
    run(seed, vec![scenario(seed), clients(seed), outage(seed), nothing()])
}

/// One strategy of the storm.
pub(crate) fn strategy(name: &str) -> StrategyRun {
    let (_, label, per_100) = STRATEGIES.into_iter().find(|(known, ..)| *known == name).expect("a known strategy");
    made(1, name, label, "", per_100)
}

fn run(seed: u64, scenarios: Vec<ScenarioRun>) -> Run {
    let versions = [("budgetd", "0.1.0"), ("redis", "Redis 7.0.15"), ("tower", "0.5.3")];
    Run {
        schema: SCHEMA,
        seed,
        started_at: 1_767_225_600,
        arguments: ["storm", "--seed", "7"].map(str::to_owned).to_vec(),
        versions: versions.map(|(name, version)| (name.to_owned(), version.to_owned())).into(),
        scenarios,
    }
}

fn scenario(seed: u64) -> ScenarioRun {
    let strategies = STRATEGIES.iter().map(|&(name, label, per_100)| made(seed, name, label, "", per_100)).collect();
    ScenarioRun {
        name: "storm".to_owned(),
        title: "Nested retry storm, 3 × 3 × 3".to_owned(),
        story:
            "A workflow calls a gateway, the gateway a tool, the tool a dependency, and each layer tries three times. \
                The dependency fails completely for 6 seconds. Watch what it receives: without a budget an operation \
                becomes 27 calls, and the queue they leave behind keeps it down after it is well again."
                .to_owned(),
        policy: "[[dependency]]\nname = \"storm/dependency\"\n\n[dependency.retry]\nratio = \"10%\"\nfloor = \"1/s\"\n"
            .to_owned(),
        duration_ms: BIN_MS * BINS,
        bin_ms: BIN_MS,
        marks: vec![Mark {
            at_ms: OUTAGE.start * BIN_MS,
            until_ms: Some(OUTAGE.end * BIN_MS),
            label: "every call fails".to_owned(),
        }],
        strategies,
        verdicts: vec![
            verdict("exact: amplification within the budget", "≤ 1.12 = 1.1 + (20 + 1 × 20) / 2,000", "1.04", true),
            verdict("leased: amplification within the budget", "≤ 1.12 = 1.1 + (20 + 1 × 20) / 2,000", "1.04", true),
            verdict("naive: the storm is real", "≥ 5", "8.70", true),
        ],
        bound: vec![],
    }
}

fn clients(seed: u64) -> ScenarioRun {
    let mut scenario = scenario(seed);
    scenario.name = "clients".to_owned();
    scenario.title = "Amplification for 1 to 1,000 clients".to_owned();
    scenario.story =
        "The same load, from ever more clients, on a dependency that always fails. A budget of each process \
                      has a floor for each process; the budget of the fleet has one."
            .to_owned();
    scenario.marks.clear();
    scenario.strategies = [(1, 121), (10, 140), (100, 560), (1_000, 1_690)]
        .iter()
        .flat_map(|&(count, tower)| {
            STRATEGIES.iter().map(move |&(name, label, per_100)| {
                let variant = if count == 1 { "1 client".to_owned() } else { format!("{count} clients") };
                made(seed, name, label, &variant, if name == "tower" { tower } else { per_100 })
            })
        })
        .collect();
    scenario
}

fn outage(seed: u64) -> ScenarioRun {
    let mut scenario = scenario(seed);
    scenario.name = "redis-killed".to_owned();
    scenario.title = "Redis killed under leases".to_owned();
    scenario.story =
        "Redis is killed and comes back empty. Holders decide on by what they hold, and the bound says how \
                      much more than usual that can be."
            .to_owned();
    let moment = |at_ms, label: &str| Mark { at_ms, until_ms: None, label: label.to_owned() };
    scenario.marks = vec![
        moment(5_000, "Redis killed"),
        moment(7_500, "Redis started, empty"),
        Mark { at_ms: 7_500, until_ms: Some(12_000), label: "quarantine".to_owned() },
    ];
    scenario.strategies.retain(|run| ["exact", "leased", "agent"].contains(&run.name.as_str()));
    scenario.verdicts = vec![
        verdict("leased: admissions within the bound, all windows", "≤ 1,240", "1,107", true),
        verdict("leased: half of the documented term is reached", "≥ 120", "87", false),
        verdict("agent: useful completions come back", "≥ 95% of offered", "n/a", false),
    ];
    let line = |term: &str, formula: &str, allowed, seen| BoundLine {
        strategy: "leased".to_owned(),
        quantity: "admissions".to_owned(),
        term: term.to_owned(),
        formula: formula.to_owned(),
        allowed,
        seen,
    };
    scenario.bound = vec![
        line("base", "burst 100 + 100/s × 10 s", Some(1_100.0), None),
        line("store lost", "lent 140 at the end of the epoch", Some(140.0), None),
        line("total", "worst window 10 s", Some(1_240.0), Some(1_107.0)),
        line("fallback", "open: no limit without a store", None, Some(12.0)),
    ];
    scenario
}

fn nothing() -> ScenarioRun {
    let mut scenario = scenario(1);
    scenario.name = "nothing".to_owned();
    scenario.title = "No load at all".to_owned();
    scenario.marks.clear();
    scenario.verdicts.clear();
    scenario.strategies = vec![StrategyRun {
        name: "single".to_owned(),
        label: "one attempt".to_owned(),
        variant: String::new(),
        totals: Totals::default(),
        latency: Latency::default(),
        series: Series::default(),
    }];
    scenario
}

fn verdict(says: &str, wanted: &str, seen: &str, passed: bool) -> Verdict {
    Verdict { says: says.to_owned(), wanted: wanted.to_owned(), seen: seen.to_owned(), passed }
}

/// A dependency with a queue, fed by callers whose failed attempts come back.
fn made(seed: u64, name: &str, label: &str, variant: &str, per_100: u64) -> StrategyRun {
    // One plan of arrivals for all.
    let (mut plan, mut random) = (Ids::new(seed, 0), Ids::new(seed, per_100));
    let mut series = Series::default();
    let mut queue = 0;
    for bin in 0..BINS + BINS_AFTER {
        let down = OUTAGE.contains(&bin);
        let offered = if bin < BINS { OFFERED_PER_BIN - 4 + plan.bits() % 9 } else { 0 };
        let refused = if offered == 0 || per_100 == 100 || per_100 > 200 || !down { 0 } else { random.bits() % 3 };
        let late = queue > 4 * CAPACITY_PER_BIN;
        let factor = if down || late { per_100 } else { 100 + random.bits() % 3 };
        let admitted = offered - refused;
        let received = if bin < BINS {
            admitted * factor / 100
        } else if bin < BINS + 3 && per_100 > 200 {
            90
        } else {
            0
        };
        queue = if down { received * 2 } else { (queue + received).saturating_sub(CAPACITY_PER_BIN).min(4_000) };
        series.offered.push(offered);
        series.admitted.push(admitted);
        series.refused.push(refused);
        series.retries_refused.push(if down && per_100 < 200 && per_100 > 100 { offered * 2 } else { 0 });
        series.received.push(received);
        series.retries.push(received.saturating_sub(admitted));
        series.useful.push(if down {
            0
        } else if late {
            admitted / 9
        } else {
            admitted
        });
        series.queue_age_ms.push(queue * BIN_MS / CAPACITY_PER_BIN);
        series.in_flight.push((received / 4 + queue / 8).min(100));
    }
    let sum = |values: &[u64]| values.iter().sum::<u64>();
    let (received, useful) = (sum(&series.received), sum(&series.useful));
    let totals = Totals {
        offered: sum(&series.offered),
        started: sum(&series.offered),
        late_max_ms: 3,
        admitted: sum(&series.admitted),
        refused: sum(&series.refused),
        errors: 0,
        retries_refused: sum(&series.retries_refused),
        sent: received,
        retries: sum(&series.retries),
        received,
        executed: useful + useful / 50,
        duplicates: useful / 50,
        concurrency_max: 100,
        queue_max: series.queue_age_ms.iter().max().copied().unwrap_or(0) / 4,
        ended: [("completed".to_owned(), useful), ("retry budget exhausted".to_owned(), sum(&series.offered) - useful)]
            .into(),
        useful,
        retries_by_cause: [
            ("timeout".to_owned(), sum(&series.retries) / 3),
            ("transient".to_owned(), sum(&series.retries) * 2 / 3),
        ]
        .into(),
        cost: [("requests".to_owned(), received)].into(),
    };
    let slow = if per_100 > 200 { 1_900.0 } else { 61.0 };
    let latency = Latency {
        p50: Some(11.0),
        p90: Some(slow / 2.0),
        p99: Some(slow),
        p999: Some(slow * 1.3),
        max: Some(slow * 2.0),
    };
    StrategyRun { name: name.to_owned(), label: label.to_owned(), variant: variant.to_owned(), totals, latency, series }
}
