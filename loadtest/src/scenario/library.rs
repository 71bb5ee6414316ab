//! The scenarios that come with the program.

use std::{fs, path::Path};

use super::Scenario;
use crate::Error;

/// Names of files and what stands in them, in the order of running.
const FILES: [(&str, &str); 35] = [
    ("storm", include_str!("../../scenarios/storm.toml")),
    ("amplification", include_str!("../../scenarios/amplification.toml")),
    ("metastable", include_str!("../../scenarios/metastable.toml")),
    ("overload", include_str!("../../scenarios/overload.toml")),
    ("recovery", include_str!("../../scenarios/recovery.toml")),
    ("flake", include_str!("../../scenarios/flake.toml")),
    ("floor", include_str!("../../scenarios/floor.toml")),
    ("read_timeouts", include_str!("../../scenarios/read_timeouts.toml")),
    ("noisy_neighbour", include_str!("../../scenarios/noisy_neighbour.toml")),
    ("cost", include_str!("../../scenarios/cost.toml")),
    ("rollout", include_str!("../../scenarios/rollout.toml")),
    ("redis_killed", include_str!("../../scenarios/redis_killed.toml")),
    ("redis_stopped", include_str!("../../scenarios/redis_stopped.toml")),
    ("redis_wiped", include_str!("../../scenarios/redis_wiped.toml")),
    ("budgetd_one_by_one", include_str!("../../scenarios/budgetd_one_by_one.toml")),
    ("all_killed", include_str!("../../scenarios/all_killed.toml")),
    ("partition", include_str!("../../scenarios/partition.toml")),
    ("agents", include_str!("../../scenarios/agents.toml")),
    ("paused_holders", include_str!("../../scenarios/paused_holders.toml")),
    ("growing_fleet", include_str!("../../scenarios/growing_fleet.toml")),
    ("policy_cut", include_str!("../../scenarios/policy_cut.toml")),
    ("restart", include_str!("../../scenarios/restart.toml")),
    ("lost_answer", include_str!("../../scenarios/lost_answer.toml")),
    ("stream_cut", include_str!("../../scenarios/stream_cut.toml")),
    ("throttled", include_str!("../../scenarios/throttled.toml")),
    ("defaults", include_str!("../../scenarios/defaults.toml")),
    ("term_beyond", include_str!("../../scenarios/term_beyond.toml")),
    ("term_untold", include_str!("../../scenarios/term_untold.toml")),
    ("term_clock_jump", include_str!("../../scenarios/term_clock_jump.toml")),
    ("term_clone", include_str!("../../scenarios/term_clone.toml")),
    ("term_two_masters", include_str!("../../scenarios/term_two_masters.toml")),
    ("term_state_lost", include_str!("../../scenarios/term_state_lost.toml")),
    ("term_arrival", include_str!("../../scenarios/term_arrival.toml")),
    ("term_underestimated", include_str!("../../scenarios/term_underestimated.toml")),
    ("term_overuse", include_str!("../../scenarios/term_overuse.toml")),
];

/// All of them.
pub(crate) fn library() -> Result<Vec<(Scenario, &'static str)>, Error> {
    FILES.iter().map(|(name, text)| Ok((Scenario::parse(&format!("{name}.toml"), text)?, *text))).collect()
}

/// One by its name, or from a file; with its text.
pub(crate) fn find(name: &str) -> Result<(Scenario, String), Error> {
    if let Some((_, text)) = FILES.iter().find(|(known, _)| *known == name) {
        return Ok((Scenario::parse(&format!("{name}.toml"), text)?, (*text).to_owned()));
    }
    if !Path::new(name).exists() {
        let known: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        return Err(format!("no scenario and no file is called {name}; there are {}", known.join(", ")).into());
    }
    let text = fs::read_to_string(name).map_err(|error| format!("{name}: {error}"))?;
    Ok((Scenario::parse(name, &text)?, text))
}
