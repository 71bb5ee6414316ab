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
    /// Of the runs before this one.
    before_ms: u64,
    run_ms: u64,
}

// === impl Progress ===

impl Progress {
    /// Draws only on a terminal, and not there if it is to be quiet.
    pub(crate) fn new(quiet: bool) -> Self {
        Self { quiet, bar: ProgressBar::hidden(), before_ms: 0, run_ms: 0 }
    }

    /// A scenario begins, of so many runs one after the other; the one before has ended.
    pub(crate) fn scenario(&mut self, name: &str, run_ms: u64, runs: usize) {
        self.bar.finish_and_clear();
        let target = if self.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let total_ms = run_ms.saturating_mul(u64::try_from(runs).unwrap_or(u64::MAX));
        self.bar = ProgressBar::with_draw_target(Some(total_ms), target).with_style(style());
        (self.before_ms, self.run_ms) = (0, 0);
        self.bar.set_prefix(name.to_owned());
        self.bar.set_message("starting");
        self.bar.enable_steady_tick(Duration::from_millis(120));
    }

    /// A run of the scenario begins, such as `naive, 100 clients`; the one before has ended.
    pub(crate) fn run(&mut self, name: &str, run_ms: u64) {
        self.before_ms = self.before_ms.saturating_add(self.run_ms);
        self.run_ms = run_ms;
        self.bar.set_position(self.before_ms);
        self.bar.set_message(format!("{name}: starting"));
    }

    /// So far into the run.
    pub(crate) fn tick(&self, elapsed_ms: u64, name: &str, live: &Live) {
        self.bar.set_position(self.before_ms.saturating_add(elapsed_ms.min(self.run_ms)));
        self.bar.set_message(format!("{name}: {}", says(live)));
    }

    /// What is going on outside the load, such as `gathering counts`.
    pub(crate) fn note(&self, what: &str) {
        self.bar.set_message(what.to_owned());
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
        progress.run("single", 1_000);
        progress.run("naive", 1_000);
        progress.tick(500, "naive", &Live { offered: 1_500, received: 40_000, useful: 12, refused: 3 });
        assert!(progress.bar.is_hidden());
        assert_eq!(progress.bar.position(), 1_500);
        assert_eq!(progress.bar.message(), "naive: offered 1,500 · received 40,000 · useful 12 · refused 3");
        progress.note("gathering counts");
        progress.done();
        assert!(progress.bar.is_finished());
    }
}
