//! What a run says while it lasts: a bar on a terminal, nothing elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::cells;

/// Counts so far of the scenario that is running, over all strategies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) offered: u64,
    /// By the dependency.
    pub(crate) received: u64,
    pub(crate) useful: u64,
    /// Originals and retries.
    pub(crate) refused: u64,
}

/// The bar of the scenario that is running, on standard error.
#[derive(Debug)]
pub(crate) struct Progress {
    quiet: bool,
    bar: ProgressBar,
    /// What of the scenario is running.
    run: String,
}

// === impl Progress ===

impl Progress {
    /// Draws only on a terminal, and not there if it is to be quiet.
    pub(crate) fn new(quiet: bool) -> Self {
        Self { quiet, bar: ProgressBar::hidden(), run: String::new() }
    }

    /// A scenario begins, with so many strategies side by side; the one before has ended.
    pub(crate) fn scenario(&mut self, name: &str, total_ms: u64, strategies: usize) {
        self.bar.finish_and_clear();
        let target = if self.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        self.bar = ProgressBar::with_draw_target(Some(total_ms), target).with_style(style());
        let side_by_side = if strategies == 1 { "1 strategy".to_owned() } else { format!("{strategies} strategies") };
        self.bar.set_prefix(format!("{name} ({side_by_side})"));
        self.run.clear();
        self.bar.set_message("starting");
        self.bar.enable_steady_tick(Duration::from_millis(120));
    }

    /// A run of the scenario begins, such as `naive, 100 clients`.
    pub(crate) fn run(&mut self, name: &str) {
        name.clone_into(&mut self.run);
        self.bar.set_message(format!("{name}: starting"));
    }

    /// So far into the load.
    pub(crate) fn tick(&self, elapsed_ms: u64, live: &Live) {
        self.bar.set_position(elapsed_ms);
        let run = if self.run.is_empty() { String::new() } else { format!("{}: ", self.run) };
        self.bar.set_message(format!("{run}{}", says(live)));
    }

    /// Nothing runs any more; the terminal is as before.
    pub(crate) fn done(&self) {
        self.bar.finish_and_clear();
    }
}

fn says(live: &Live) -> String {
    let Live { offered, received, useful, refused } = *live;
    let [offered, received, useful, refused] = [offered, received, useful, refused].map(cells::count);
    format!("offered {offered} · received {received} · useful {useful} · refused {refused}")
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{spinner:.cyan} {prefix:.bold} {bar:24.cyan/dim} {percent:>3}%  {wide_msg:.dim}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("━╸─")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_right() {
        let template = "{spinner:.cyan} {prefix:.bold} {bar:24.cyan/dim} {percent:>3}%  {wide_msg:.dim}";
        assert!(ProgressStyle::with_template(template).is_ok());
    }

    #[test]
    fn a_quiet_run_draws_nothing() {
        let mut progress = Progress::new(true);
        progress.scenario("storm", 1_000, 6);
        progress.run("naive");
        progress.tick(500, &Live { offered: 1_500, received: 40_000, useful: 12, refused: 3 });
        assert!(progress.bar.is_hidden());
        assert_eq!(progress.bar.position(), 500);
        assert_eq!(progress.bar.message(), "naive: offered 1,500 · received 40,000 · useful 12 · refused 3");
        progress.done();
        assert!(progress.bar.is_finished());
    }
}
