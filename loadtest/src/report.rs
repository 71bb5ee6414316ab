//! What a run looks like: a summary for the terminal, a page for the browser, JSON for machines, and two runs compared.

mod cells;
mod compare;
mod compare_page;
mod html;
mod json;
mod page;
mod picture;
mod progress;
mod quantities;
#[cfg(test)]
mod sample;
mod terminal;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
pub(crate) use compare::{CompareOptions, main as compare_main};
pub(crate) use html::html;
pub(crate) use json::{json, read};
pub(crate) use picture::picture;
pub(crate) use progress::{Live, Progress};
pub(crate) use terminal::summary;

use crate::{Error, record::Run};

/// Where reports go unless the command line says otherwise.
pub(crate) const DIRECTORY: &str = "target/loadtest";

#[derive(Debug, Args)]
pub(crate) struct ShowOptions {
    /// JSON of a run.
    run: PathBuf,
    /// Write its page.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write its first scenario as a small picture, SVG.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

/// `loadtest show`: the reports of a run that is over.
pub(crate) fn show(options: &ShowOptions) -> Result<ExitCode, Error> {
    let run = read(&options.run)?;
    if let Some(path) = &options.html {
        save(path, &html(&run))?;
    }
    if let Some(path) = &options.picture {
        save_picture(&run, path)?;
    }
    print!("{}", summary(&run));
    Ok(ExitCode::SUCCESS)
}

/// Writes the picture of a run's first scenario.
///
/// # Errors
///
/// There is no scenario, or the file cannot be written.
pub(crate) fn save_picture(run: &Run, path: &Path) -> Result<(), Error> {
    let scenario = run.scenarios.first().ok_or("a run without scenarios has no picture")?;
    save(path, &picture(scenario))
}

fn save(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Writes the page and the JSON of a run, named by its scenario or `all`, and says where they are.
///
/// # Errors
///
/// The directory or a file cannot be written.
pub(crate) fn write(run: &Run, directory: &Path) -> Result<(PathBuf, PathBuf), Error> {
    let stem = match run.scenarios.as_slice() {
        [only] => file_stem(&only.name),
        _ => "all".to_owned(),
    };
    let (page, data) = (directory.join(format!("{stem}.html")), directory.join(format!("{stem}.json")));
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    save(&page, &html(run))?;
    save(&data, &json(run)?)?;
    Ok((page, data))
}

/// The name of a scenario as the name of a file: nothing in it leads out of the directory.
fn file_stem(name: &str) -> String {
    let safe: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
    if safe.is_empty() { "run".to_owned() } else { safe.chars().take(80).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_are_named_by_the_scenario_and_stay_in_the_directory() {
        let scratch = tempfile::TempDir::with_prefix("report-").expect("a directory");
        let mut run = sample::storm(7);
        let (page, data) = write(&run, &scratch.path().join("new")).expect("is written");
        assert_eq!(page.file_name().and_then(|name| name.to_str()), Some("storm.html"));
        assert_eq!(read(&data).expect("reads back").seed, 7);

        run.scenarios[0].name = "../../up".to_owned();
        let (page, _) = write(&run, scratch.path()).expect("is written");
        assert_eq!(page.parent(), Some(scratch.path()));
        run.scenarios.clear();
        assert!(write(&run, scratch.path()).expect("is written").0.ends_with("all.html"));
    }
}
