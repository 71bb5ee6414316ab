//! The subcommands that run scenarios.

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::PathBuf,
    process::{Command, ExitCode},
    time::{SystemTime, UNIX_EPOCH},
};

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    Error,
    deployment::{Deployment, DeploymentOptions},
    engine::{self, Settings},
    record::{Run, SCHEMA},
    repeat::{REPEATS_MAX, Repeats},
    report::{self, Progress},
    scenario::{Scenario, Strategy, find, library},
};

/// What all of them understand.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Shorter runs, with the same verdicts.
    #[arg(long)]
    quick: bool,
    /// Another seed than the scenario's: the same seed gives the same arrivals and the same answers of the dependency.
    #[arg(long)]
    seed: Option<u64>,
    /// Run only these strategies, separated by commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_strategy)]
    strategies: Vec<Strategy>,
    /// Write the run as JSON to this file too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report, a page and JSON, into this directory.
    #[arg(long, value_name = "DIR", default_value = report::DIRECTORY)]
    out: PathBuf,
    /// Write the first scenario as a small picture, SVG, to this file too.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Open the page in a browser.
    #[arg(long)]
    open: bool,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
    /// redis-server or valkey-server to start.
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    redis_server: PathBuf,
    /// A budget that does not work, for a test of the verdicts.
    #[arg(long, hide = true)]
    broken: bool,
}

/// What running one of them understands besides.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunOptions {
    /// As `list` shows it, or a path.
    #[arg(required_unless_present = "named", conflicts_with = "named")]
    scenario: Option<String>,
    /// The same, in other words.
    #[arg(long = "scenario", value_name = "SCENARIO")]
    named: Option<String>,
    /// Print the policy that the scenario is made for, as a deployment can be given it, and run nothing.
    #[arg(long)]
    show_policy: bool,
    /// So many runs, each with the next seed: a line for each, and how close all of them came to the documented bound.
    #[arg(long, value_name = "N", conflicts_with = "endpoint", value_parser = clap::value_parser!(u32).range(1..=i64::from(REPEATS_MAX)))]
    repeat: Option<u32>,
    #[command(flatten)]
    deployment: DeploymentOptions,
    #[command(flatten)]
    options: Options,
}

/// The demonstration.
pub(crate) fn storm(options: &Options) -> Result<ExitCode, Error> {
    run_all(vec![find("storm")?], options, None)
}

/// One scenario, by name or from a file.
pub(crate) fn run(options: &RunOptions) -> Result<ExitCode, Error> {
    let name = options.scenario.as_ref().or(options.named.as_ref()).ok_or("no scenario is named")?;
    let (scenario, text) = find(name)?;
    if options.show_policy {
        println!("{}", scenario.policy.trim());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(times) = options.repeat {
        return repeat(scenario, text, &options.options, times);
    }
    let deployment = options.deployment.deployment()?;
    let against = deployment.map(|deployment| Against { deployment, limits: &options.deployment });
    run_all(vec![(scenario, text)], &options.options, against)
}

/// One scenario with one seed after the other. The report is that of the first run that failed, else of the last.
fn repeat(scenario: Scenario, text: String, options: &Options, times: u32) -> Result<ExitCode, Error> {
    let first = options.seed.unwrap_or(scenario.seed);
    let name = scenario.name.clone();
    let (mut repeats, mut kept) = (Repeats::default(), None);
    for seed in (first..).take(usize::try_from(times)?) {
        let options = Options { seed: Some(seed), ..options.clone() };
        let run = blocking(vec![(scenario.clone(), text.clone())], &options, None);
        if let Err(Ended::Told(why)) = run {
            print!("{}", repeats.summary(&name));
            return Err(why.into());
        }
        let run = run.map_err(Ended::error);
        println!("{}", repeats.add(seed, &run));
        if !repeats.has_failed() || repeats.has_just_failed_first(seed) {
            kept = run.ok().or(kept);
        }
    }
    print!("{}", repeats.summary(&name));
    if let Some(run) = kept {
        written(&run, options)?;
    }
    Ok(repeats.exit_code())
}

/// Every scenario that comes with the program.
pub(crate) fn all(options: &Options) -> Result<ExitCode, Error> {
    let wanted = library()?.into_iter().filter(|(scenario, _)| !(options.quick && scenario.extra));
    run_all(wanted.map(|(scenario, text)| (scenario, text.to_owned())).collect(), options, None)
}

/// Shows what there is.
pub(crate) fn list() -> Result<ExitCode, Error> {
    for (scenario, _) in library()? {
        println!("{:<20} {}", scenario.name, scenario.title);
    }
    Ok(ExitCode::SUCCESS)
}

/// A deployment to run against, within limits.
struct Against<'a> {
    deployment: Deployment,
    limits: &'a DeploymentOptions,
}

/// Why there is no run.
enum Ended {
    /// Whoever started it wants it to end.
    Told(&'static str),
    By(Error),
}

impl Ended {
    fn error(self) -> Error {
        match self {
            Self::Told(why) => why.into(),
            Self::By(error) => error,
        }
    }
}

fn blocking(scenarios: Vec<(Scenario, String)>, options: &Options, against: Option<Against<'_>>) -> Result<Run, Ended> {
    let by = |error: io::Error| Ended::By(error.into());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(by)?;
    runtime.block_on(async {
        let mut interrupted = signal(SignalKind::interrupt()).map_err(by)?;
        let mut terminated = signal(SignalKind::terminate()).map_err(by)?;
        tokio::select! {
            run = gathered(scenarios, options, against) => run.map_err(Ended::By),
            _ = interrupted.recv() => Err(Ended::Told("interrupted")),
            _ = terminated.recv() => Err(Ended::Told("terminated")),
        }
    })
}

fn run_all(
    scenarios: Vec<(Scenario, String)>,
    options: &Options,
    against: Option<Against<'_>>,
) -> Result<ExitCode, Error> {
    let run = blocking(scenarios, options, against).map_err(Ended::error)?;
    print!("{}", report::summary(&run));
    written(&run, options)?;
    let mut verdicts = run.scenarios.iter().flat_map(|scenario| &scenario.verdicts);
    Ok(if verdicts.all(|verdict| verdict.passed) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes all reports that are asked for.
fn written(run: &Run, options: &Options) -> Result<(), Error> {
    let (page, _) = report::write(run, &options.out)?;
    if let Some(path) = &options.json {
        fs::write(path, report::json(run)?).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if let Some(path) = &options.picture {
        report::save_picture(run, path)?;
    }
    // Terminals make a link of it.
    println!("file://{}", page.canonicalize().unwrap_or(page.clone()).display());
    if options.open {
        let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
        Command::new(opener).arg(&page).spawn().map_err(|error| format!("{opener}: {error}"))?;
    }
    Ok(())
}

async fn gathered(
    mut scenarios: Vec<(Scenario, String)>,
    options: &Options,
    against: Option<Against<'_>>,
) -> Result<Run, Error> {
    let mut versions = BTreeMap::from([("budgetd".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    if let Some(Against { deployment, limits }) = &against {
        for (scenario, _) in &mut scenarios {
            let own = scenario.clone();
            *scenario = limits.adapt(deployment, own, &options.strategies, options.quick).await?;
        }
        versions = BTreeMap::from([("loadtest".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    }
    let settings = Settings {
        quick: options.quick,
        seed: options.seed,
        strategies: options.strategies.clone(),
        broken: options.broken,
        redis_server: options.redis_server.clone(),
        deployment: against.map(|against| against.deployment),
    };
    let started_at = started_at();
    let mut progress = Progress::new(options.quiet);
    let mut runs = Vec::new();
    for (scenario, text) in &scenarios {
        let run = match engine::run(scenario, text, &settings, &mut versions, &mut progress).await {
            Ok(run) => run,
            // The others say something all the same.
            Err(error) if scenarios.len() > 1 => engine::failed(scenario, &error),
            Err(error) => return Err(error),
        };
        progress.done();
        if !options.quiet && scenarios.len() > 1 {
            let passed = run.verdicts.iter().filter(|verdict| verdict.passed).count();
            eprintln!("{}: {passed} of {} acceptances passed", run.name, run.verdicts.len());
        }
        runs.push(run);
    }
    progress.done();
    let seed = options.seed.or_else(|| Some(scenarios.first()?.0.seed)).unwrap_or(1);
    let arguments = env::args().skip(1).collect();
    Ok(Run { schema: SCHEMA, seed, started_at, arguments, versions, scenarios: runs })
}

#[expect(clippy::disallowed_methods, reason = "the date of the report")]
fn started_at() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn parse_strategy(text: &str) -> Result<Strategy, String> {
    let found = Strategy::ALL.into_iter().find(|strategy| strategy.name() == text);
    found.ok_or_else(|| format!("must be one of {}", Strategy::ALL.map(Strategy::name).join(", ")))
}
