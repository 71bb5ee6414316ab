//! A child process with its output, that dies with its owner.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use budgetd::clock::Clock;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Older lines are dropped beyond this, so that a long run cannot fill the memory.
const LINES_MAX: usize = 20_000;
/// Lines shown when something went wrong.
const TAIL_LINES: usize = 40;
/// How long the pipes of an ended process may stay open: a process of its own may have inherited them.
const DRAIN: Duration = Duration::from_secs(1);
/// How often a condition is looked at while the process says nothing.
const POLL: Duration = Duration::from_millis(5);

/// Where a line was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// A running or ended child.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    output: Arc<Output>,
}

/// How a process ended before what was waited for.
#[derive(Debug)]
pub enum Gone {
    /// It has exited.
    Exited(ExitStatus),
    /// It runs, but the bound is over.
    TooSlow,
}

#[derive(Debug, Default)]
struct Output {
    printed: Mutex<Printed>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Printed {
    lines: VecDeque<(Stream, String)>,
    open_pipes: usize,
}

// === impl Process ===

impl Process {
    /// Starts it with no input, both outputs kept.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn spawn(name: impl Into<String>, mut command: Command) -> Self {
        let name = name.into();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name} did not start: {command:?}: {error}"));
        let output = Arc::new(Output::default());
        if let Some(pipe) = child.stdout.take() {
            output.follow(Stream::Out, pipe);
        }
        if let Some(pipe) = child.stderr.take() {
            output.follow(Stream::Err, pipe);
        }
        Self { name, child, output }
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it printed on one stream, the latest 20,000 lines.
    #[must_use]
    pub fn printed(&self, stream: Stream) -> String {
        let printed = self.output.lock();
        printed.lines.iter().filter(|(from, _)| *from == stream).fold(String::new(), |mut all, (_, line)| {
            all.push_str(line);
            all.push('\n');
            all
        })
    }

    /// What it printed on both streams, the latest 20,000 lines.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.output.lock().lines.iter().map(|(_, line)| line.clone()).collect()
    }

    /// Whether any line holds this text.
    #[must_use]
    pub fn logged(&self, text: &str) -> bool {
        self.output.lock().lines.iter().any(|(_, line)| line.contains(text))
    }

    /// The last lines, for a panic's message.
    #[must_use]
    pub fn tail(&self) -> String {
        let lines = &self.output.lock().lines;
        let mut tail = format!("last lines of {}:", self.name);
        for (_, line) in lines.iter().skip(lines.len().saturating_sub(TAIL_LINES)) {
            let _infallible = write!(tail, "\n  {line}");
        }
        tail
    }

    /// Its status if it has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it still runs after `bound`.
    pub fn wait(&mut self, bound: Duration) -> ExitStatus {
        match self.wait_until(bound, |_| None::<()>) {
            Ok(()) => unreachable!("the attempt never succeeds"),
            Err(Gone::Exited(status)) => status,
            Err(Gone::TooSlow) => panic!("{} still runs after {bound:?}; {}", self.name, self.tail()),
        }
    }

    /// Asks `attempt` until it has something: at every line printed, and now and then in between.
    ///
    /// # Errors
    /// If the process ends or the bound is over before that.
    pub fn wait_until<T>(
        &mut self,
        bound: Duration,
        mut attempt: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, Gone> {
        let deadline = Clock::instant() + bound;
        loop {
            // Asked for the status first: what it did and printed before it ended must still count.
            let status = self.exited();
            if status.is_some() {
                self.output.drain();
            }
            if let Some(found) = attempt(self) {
                return Ok(found);
            }
            if let Some(status) = status {
                return Err(Gone::Exited(status));
            }
            if Clock::instant() >= deadline {
                return Err(Gone::TooSlow);
            }
            let printed = self.output.lock();
            drop(self.output.changed.wait_timeout(printed, POLL));
        }
    }

    /// Sends SIGTERM.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        // Both fail only if it has ended already, which is what is wanted.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }

    /// Freezes it with SIGSTOP; it stands still when this returns.
    ///
    /// # Panics
    /// If it ends instead.
    pub fn freeze(&mut self) {
        self.signal(Signal::STOP);
        let stopped = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED);
        let stopped = stopped.ok().flatten().is_some_and(|(_, status)| status.stopped());
        assert!(stopped, "{} ended instead of stopping; {}", self.name, self.tail());
    }

    /// Lets it go on with SIGCONT.
    pub fn thaw(&mut self) {
        self.signal(Signal::CONT);
    }

    fn signal(&mut self, signal: Signal) {
        // The id of an ended child may belong to another process.
        if let Some(status) = self.exited() {
            panic!("{} has ended with {status} before {signal:?}; {}", self.name, self.tail());
        }
        if let Err(error) = kill_process(Pid::from_child(&self.child), signal) {
            panic!("{signal:?} did not reach {}: {error}", self.name);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

// === impl Output ===

impl Output {
    /// Reads a pipe to its end on a thread of its own, so that the child never blocks on a full one.
    fn follow(self: &Arc<Self>, stream: Stream, pipe: impl Read + Send + 'static) {
        self.lock().open_pipes += 1;
        let output = Arc::clone(self);
        thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            while matches!(pipe.read_until(b'\n', &mut line), Ok(1..)) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                let mut printed = output.lock();
                if printed.lines.len() == LINES_MAX {
                    printed.lines.pop_front();
                }
                printed.lines.push_back((stream, text));
                drop(printed);
                output.changed.notify_all();
                line.clear();
            }
            output.lock().open_pipes -= 1;
            output.changed.notify_all();
        });
    }

    /// Waits until the pipes are read to their end.
    fn drain(&self) {
        drop(self.changed.wait_timeout_while(self.lock(), DRAIN, |printed| printed.open_pipes > 0));
    }

    fn lock(&self) -> MutexGuard<'_, Printed> {
        self.printed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_secs(10);

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::spawn(script, command)
    }

    #[test]
    fn keeps_output_and_status() {
        let mut process = shell("echo one; echo two >&2; exit 3");
        assert_eq!(process.wait(BOUND).code(), Some(3));
        assert_eq!((process.printed(Stream::Out).as_str(), process.printed(Stream::Err).as_str()), ("one\n", "two\n"));
    }

    #[test]
    fn waits_for_a_line_but_not_beyond_the_end() {
        let mut process = shell("echo ready; read never");
        process.wait_until(BOUND, |process| process.logged("ready").then_some(())).unwrap();
        let mut ended = shell("exit 0");
        assert!(matches!(ended.wait_until(BOUND, |_| None::<()>), Err(Gone::Exited(_))));
    }

    #[test]
    fn a_frozen_process_goes_on_after_thawing() {
        let mut process = shell("trap 'echo got it; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
        process.wait_until(BOUND, |process| process.logged("ready").then_some(())).unwrap();
        process.freeze();
        process.terminate();
        assert!(process.exited().is_none());
        process.thaw();
        assert!(process.wait(BOUND).success());
    }
}
