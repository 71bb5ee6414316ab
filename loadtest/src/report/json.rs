//! A run as JSON, written and read back.

use std::{fs, path::Path};

use serde::Deserialize;

use crate::{
    Error,
    record::{Run, SCHEMA},
};

/// A run's file is no larger than this; a larger one is not one of ours.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Read before the rest, so that a file of another layout is told from a broken one.
#[derive(Deserialize)]
struct Layout {
    schema: Option<u64>,
}

/// The run, for machines.
///
/// # Errors
///
/// None that a run can cause.
pub(crate) fn json(run: &Run) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(run)? + "\n")
}

/// Reads a run back.
///
/// # Errors
///
/// It cannot be read, is not the JSON of a run, or has another layout; the message names the file.
pub(crate) fn read(path: &Path) -> Result<Run, Error> {
    let named = |what: String| -> Error { format!("{}: {what}", path.display()).into() };
    let length = fs::metadata(path).map_err(|error| named(error.to_string()))?.len();
    if length > FILE_BYTES_MAX {
        return Err(named(format!("is {length} bytes, a run has at most {FILE_BYTES_MAX}")));
    }
    let text = fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
    parse(&text).map_err(|error| named(error.to_string()))
}

fn parse(text: &str) -> Result<Run, Error> {
    let layout: Layout = serde_json::from_str(text).map_err(|error| format!("not the JSON of a run: {error}"))?;
    match layout.schema {
        Some(schema) if schema == u64::from(SCHEMA) => {}
        Some(schema) => {
            return Err(format!("has schema {schema}, this loadtest reads {SCHEMA}; run it again with this one").into());
        }
        None => return Err("not the JSON of a run: it has no field schema".into()),
    }
    Ok(serde_json::from_str(text).map_err(|error| format!("not the JSON of a run: {error}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn a_run_comes_back_as_it_was() {
        let run = sample::all(3);
        let text = json(&run).expect("is written");
        let back = parse(&text).expect("is read");
        assert_eq!(json(&back).expect("is written"), text);
        assert_eq!(back.scenarios[0].strategies[0].totals, run.scenarios[0].strategies[0].totals);
        assert_eq!(back.scenarios[0].strategies[0].series, run.scenarios[0].strategies[0].series);
    }

    #[test]
    fn another_layout_is_refused_by_its_number() {
        let error = |text: &str| parse(text).map(|_| ()).expect_err("is refused").to_string();
        assert_eq!(error(r#"{"schema":99}"#), "has schema 99, this loadtest reads 1; run it again with this one");
        assert!(error(r#"{"results":[]}"#).contains("no field schema"));
        assert!(error(r#"{"schema":1}"#).contains("missing field `seed`"));
        assert!(error("<html>").contains("not the JSON of a run"));
        assert!(error(r#"{"schema":-1}"#).contains("not the JSON of a run"));
    }

    #[test]
    fn errors_name_the_file() {
        let error = read(Path::new("/nowhere/run.json")).map(|_| ()).expect_err("is not there");
        assert!(error.to_string().starts_with("/nowhere/run.json: "));
    }
}
