//! The scenarios that come with the program.

use std::{fs, path::Path};

use super::Scenario;
use crate::Error;

/// Names of files and what stands in them, in the order of running.
const FILES: [(&str, &str); 1] = [("storm", include_str!("../../scenarios/storm.toml"))];

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
