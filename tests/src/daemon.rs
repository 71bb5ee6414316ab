//! The built `budgetd` as a child process, and its command line.

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    ports,
    process::{Gone, Process, Stream},
    security::{self, Files},
};

/// Names another executable than the one beside the tests.
pub const BINARY_VARIABLE: &str = "BUDGETD";

/// How long a daemon may take until it serves.
const READY_BOUND: Duration = Duration::from_secs(20);
/// How long one command of [`run`] may take.
const COMMAND_BOUND: Duration = Duration::from_secs(30);
/// How often a start is tried when somebody else takes a port.
const STARTS_MAX: u32 = 5;

/// A serving daemon.
#[derive(Debug)]
pub struct Daemon {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    executable: PathBuf,
    grpc: SocketAddr,
    http: SocketAddr,
    process: Process,
    directory: TempDir,
    /// By which it is secured, if the run is.
    security: Option<&'static Files>,
}

/// A command line that has ended.
#[derive(Debug)]
pub struct Finished {
    /// How.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

/// Why a daemon does not serve.
#[derive(Debug)]
enum Failed {
    PortTaken,
    Other(String),
}

/// The executable: the one `BUDGETD` names, or else the one in the target directory of this test.
///
/// # Panics
/// If it is missing; the message says how to build it.
#[must_use]
pub fn binary() -> PathBuf {
    if let Some(path) = env::var_os(BINARY_VARIABLE) {
        return path.into();
    }
    let test = env::current_exe().unwrap_or_else(|error| panic!("this test has no path: {error}"));
    // Test executables lie in `deps` below the profile's directory, the daemon in that directory itself.
    let found = test.ancestors().skip(1).take(2).map(|directory| directory.join("budgetd")).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("budgetd is not built beside {}: run cargo build -p budgetd", test.display()))
}

/// Runs a command line to its end, such as `["check", "policy.toml"]`.
///
/// # Panics
/// If it does not end in time.
#[must_use]
pub fn run(arguments: &[&str]) -> Finished {
    let mut process = Process::spawn(format!("budgetd {}", arguments.join(" ")), command(&binary(), arguments, &[]));
    let status = process.wait(COMMAND_BOUND);
    Finished { status, stdout: process.printed(Stream::Out), stderr: process.printed(Stream::Err) }
}

fn command(executable: &Path, arguments: &[impl AsRef<str>], environment: &[(String, String)]) -> Command {
    let mut command = Command::new(executable);
    // What the developer's shell says to budgetd must not reach the tests.
    for (name, _) in env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("BUDGETD_") || name_text.starts_with("OTEL_") || name_text == "RUST_LOG" {
            command.env_remove(&name);
        }
    }
    command.args(arguments.iter().map(AsRef::as_ref));
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command
}

// === impl Daemon ===

impl Daemon {
    /// Starts `budgetd serve` with further arguments on free ports and waits until it serves; with TLS and roles where this
    /// run has them.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_of(&binary(), arguments)
    }

    /// The same with environment variables, and with TLS and roles only if the arguments say so.
    ///
    /// # Panics
    /// If it does not serve in time.
    #[must_use]
    pub fn start_with(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::try_start(arguments, environment).unwrap_or_else(|reason| panic!("{reason}"))
    }

    /// The same, for starts that shall fail.
    ///
    /// # Errors
    /// What it printed, if it ends or does not serve in time.
    ///
    /// # Panics
    /// If others take all the ports.
    pub fn try_start(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Self, String> {
        Self::try_start_of(&binary(), arguments, environment)
    }

    /// Starts the executable of another release, as [`Self::start`] does.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    pub fn start_of(executable: &Path, arguments: &[&str]) -> Self {
        let security = security::secured();
        let flags = security.map(Files::daemon);
        let flags = flags.iter().flatten().map(String::as_str);
        let all: Vec<&str> = arguments.iter().copied().chain(flags).collect();
        let daemon = Self::try_start_of(executable, &all, &[]).unwrap_or_else(|reason| panic!("{reason}"));
        Self { security, ..daemon }
    }

    fn try_start_of(executable: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<Self, String> {
        let directory = tempfile::Builder::new().prefix("budgetd-").tempdir();
        let directory = directory.unwrap_or_else(|error| panic!("no temporary directory: {error}"));
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let environment: Vec<(String, String)> =
            environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        for _ in 0..STARTS_MAX {
            // Not port 0: a daemon must be able to come back on its addresses.
            let asked = [ports::pick(), ports::pick()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
            match launch(executable, asked, &arguments, &environment, &directory) {
                Ok((process, [grpc, http])) => {
                    let executable = executable.to_owned();
                    let security = None;
                    return Ok(Self { arguments, environment, executable, grpc, http, process, directory, security });
                }
                Err(Failed::PortTaken) => {}
                Err(Failed::Other(reason)) => return Err(reason),
            }
        }
        panic!("somebody else took a port {STARTS_MAX} times");
    }

    /// Where it serves gRPC; the same after a restart.
    #[must_use]
    pub const fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// Where it serves `/metrics`, `/livez` and `/readyz`; the same after a restart.
    #[must_use]
    pub const fn http(&self) -> SocketAddr {
        self.http
    }

    /// `http://127.0.0.1:…` for gRPC clients and `--endpoint`; `https://` where it is secured as the run is.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let scheme = if self.security.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.grpc)
    }

    /// The process, for its log.
    #[must_use]
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// The process, for waiting on its log or end.
    pub const fn process_mut(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Runs another command of the command line against this daemon.
    ///
    /// # Panics
    /// If it does not end in time.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Finished {
        let way = self.flags();
        let way = way.iter().map(String::as_str);
        run(&arguments.iter().copied().chain(way).collect::<Vec<_>>())
    }

    /// How another command of the command line reaches it.
    #[must_use]
    pub fn flags(&self) -> Vec<String> {
        security::flags(&self.endpoint())
    }

    /// Sends SIGTERM.
    pub fn terminate(&mut self) {
        self.process.terminate();
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Freezes it with SIGSTOP: connections stay open, nothing answers.
    pub fn freeze(&mut self) {
        self.process.freeze();
    }

    /// Lets it go on.
    pub fn thaw(&mut self) {
        self.process.thaw();
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it still runs after `bound`.
    pub fn wait(&mut self, bound: Duration) -> ExitStatus {
        self.process.wait(bound)
    }

    /// Starts it again with the same arguments on the same addresses, after killing it if it still runs.
    ///
    /// # Panics
    /// If it does not serve in time, or somebody else took a port meanwhile.
    pub fn restart(&mut self) {
        self.process.kill();
        match launch(&self.executable, [self.grpc, self.http], &self.arguments, &self.environment, &self.directory) {
            Ok((process, _)) => self.process = process,
            Err(Failed::PortTaken) => panic!("somebody else took {} or {}", self.grpc, self.http),
            Err(Failed::Other(reason)) => panic!("{reason}"),
        }
    }

    /// The same with other arguments, from now on; secured as before.
    ///
    /// # Panics
    /// As [`Self::restart`].
    pub fn restart_with(&mut self, arguments: Vec<String>) {
        self.arguments = arguments;
        self.arguments.extend(self.security.map(Files::daemon).into_iter().flatten());
        self.restart();
    }
}

fn launch(
    executable: &Path,
    asked: [SocketAddr; 2],
    arguments: &[String],
    environment: &[(String, String)],
    directory: &TempDir,
) -> Result<(Process, [SocketAddr; 2]), Failed> {
    let ready_file = directory.path().join("ready.json");
    let _absent = fs::remove_file(&ready_file);
    let [grpc, http] = asked.map(|address| address.to_string());
    let ready_text = ready_file.to_string_lossy();
    let fixed = ["serve", "--listen", &grpc, "--http", &http, "--ready-file", &ready_text];
    let all: Vec<&str> = fixed.into_iter().chain(arguments.iter().map(String::as_str)).collect();
    let mut process = Process::spawn("budgetd", command(executable, &all, environment));
    let serves = |_: &mut Process| {
        // Until it is complete it does not parse, and is looked at again.
        let ready: Value = serde_json::from_slice(&fs::read(&ready_file).ok()?).ok()?;
        let address = |name: &str| ready.get(name)?.as_str()?.parse::<SocketAddr>().ok();
        Some([address("grpc")?, address("http")?])
    };
    match process.wait_until(READY_BOUND, serves) {
        Ok(bound) => Ok((process, bound)),
        Err(Gone::Exited(_)) if process.logged("in use") => Err(Failed::PortTaken),
        Err(Gone::Exited(status)) => Err(Failed::Other(format!("budgetd ended with {status}; {}", process.tail()))),
        Err(Gone::TooSlow) => {
            Err(Failed::Other(format!("budgetd does not serve after {READY_BOUND:?}; {}", process.tail())))
        }
    }
}
