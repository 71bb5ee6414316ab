//! Logs: text on a terminal, one JSON object per line otherwise, always on standard error.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::{EnvFilter, fmt};

use crate::config::LogFormat;

/// The log level is not understood.
#[derive(Debug, thiserror::Error)]
#[error("log-level is {given:?}: {rule}")]
pub struct InvalidFilter {
    given: String,
    rule: String,
}

/// Starts logging for the whole process; a second call changes nothing.
///
/// # Errors
/// If `level` is no filter.
pub fn init(format: LogFormat, level: &str) -> Result<(), InvalidFilter> {
    let filter = EnvFilter::try_new(level)
        .map_err(|error| InvalidFilter { given: level.to_owned(), rule: error.to_string() })?;
    let text = match format {
        LogFormat::Text => true,
        LogFormat::Json => false,
        LogFormat::Auto => stderr().is_terminal(),
    };
    let builder = fmt().with_env_filter(filter).with_writer(stderr);
    // Somebody else, such as a test, may have begun to log already.
    let _second = if text {
        builder.with_target(false).with_ansi(stderr().is_terminal()).try_init()
    } else {
        builder.json().flatten_event(true).try_init()
    };
    Ok(())
}
