//! A private redis-server (or valkey-server) on a unix socket in a scratch directory, killed when dropped.

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use deadpool_redis::redis::{self, AsyncConnectionConfig, aio::MultiplexedConnection};
use tokio::{
    process::{Child, Command},
    time,
};

use crate::{
    Error,
    server_process::{command, cpu_micros, log_tail},
};

/// Attempts to connect after the start, and the time between them.
const CONNECT_ATTEMPTS: u32 = 400;
const CONNECT_PAUSE: Duration = Duration::from_millis(25);
/// For an answer, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running server and a connection for questions.
pub(crate) struct RedisServer {
    child: Child,
    socket: PathBuf,
    url: String,
    connection: MultiplexedConnection,
    version: String,
}

/// The program, held by this one, so that it ends with it. A binary of tests cannot do that.
fn held(program: &Path, log: &Path) -> Result<Command, Error> {
    if cfg!(test) {
        return command(program, log);
    }
    let mut holding = command(env::current_exe()?, log)?;
    holding.arg("hold").arg(program);
    Ok(holding)
}

// === impl RedisServer ===

impl RedisServer {
    /// Starts `program` without persistence and waits until it answers.
    pub(crate) async fn start(program: &Path, scratch: &Path, name: &str) -> Result<Self, Error> {
        let socket: PathBuf = scratch.join(format!("{name}.sock"));
        let log = scratch.join(format!("{name}.log"));
        let mut child = held(program, &log)?
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"])
            .args(["--unixsocketperm", "700", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(scratch)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let url = format!("redis+unix://{}", socket.display());
        let client = redis::Client::open(url.as_str())?;
        let patient = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        for _ in 0..CONNECT_ATTEMPTS {
            if let Some(status) = child.try_wait()? {
                return Err(format!("redis-server ended with {status}: {}", log_tail(&log)).into());
            }
            if let Ok(connection) = client.get_multiplexed_async_connection_with_config(&patient).await {
                let mut server = Self { child, socket, url, connection, version: String::new() };
                server.version = server.identity().await?;
                return Ok(server);
            }
            time::sleep(CONNECT_PAUSE).await;
        }
        Err(format!("redis-server did not answer: {}", log_tail(&log)).into())
    }

    /// Ends it and waits for its end.
    pub(crate) async fn end(mut self) -> Result<(), Error> {
        Ok(self.child.kill().await?)
    }

    /// Kills it; [`Self::start`] under the same name puts another in its place.
    pub(crate) async fn kill(&mut self) -> Result<(), Error> {
        Ok(self.child.kill().await?)
    }

    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Deletes all.
    pub(crate) async fn flush(&mut self) -> Result<(), Error> {
        Ok(redis::cmd("FLUSHALL").query_async(&mut self.connection).await?)
    }

    /// Where its socket is.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// For budgetd.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Name and version, for people.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Processor time used so far.
    pub(crate) fn cpu_micros(&self) -> Option<u64> {
        cpu_micros(self.child.id()?)
    }

    /// Script calls since the start.
    pub(crate) async fn script_calls(&mut self) -> Result<u64, Error> {
        Ok(count_script_calls(&self.info("commandstats").await?))
    }

    /// Memory used, without the buffers of connections.
    pub(crate) async fn data_bytes(&mut self) -> Result<u64, Error> {
        let info = self.info("memory").await?;
        let number = |name| field(&info, name).and_then(|text| text.parse::<u64>().ok());
        let used = number("used_memory").ok_or("INFO memory has no used_memory")?;
        Ok(used.saturating_sub(number("mem_clients_normal").unwrap_or(0)))
    }

    async fn identity(&mut self) -> Result<String, Error> {
        let info = self.info("server").await?;
        Ok(match field(&info, "valkey_version") {
            Some(version) => format!("Valkey {version}"),
            None => format!("Redis {}", field(&info, "redis_version").unwrap_or("of unknown version")),
        })
    }

    async fn info(&mut self, section: &str) -> Result<String, Error> {
        Ok(redis::cmd("INFO").arg(section).query_async(&mut self.connection).await?)
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// Adds up the calls of every command that runs a script; `LOAD` and the like are not among them.
fn count_script_calls(commandstats: &str) -> u64 {
    ["eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro"]
        .into_iter()
        .filter_map(|command| field(commandstats, &format!("cmdstat_{command}")))
        .filter_map(|line| line.split(',').find_map(|part| part.strip_prefix("calls="))?.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_calls_add_up_over_the_commands_that_run_scripts() {
        let info = "# Commandstats\r\ncmdstat_evalsha:calls=120,usec=9,usec_per_call=1.0,failed_calls=0\r\n\
                    cmdstat_eval:calls=3,usec=9\r\ncmdstat_get:calls=500,usec=1\r\ncmdstat_script|load:calls=2,usec=1\r\n";
        assert_eq!(count_script_calls(info), 123);
        assert_eq!(count_script_calls("# Commandstats\r\n"), 0);
    }

    #[tokio::test]
    async fn a_private_server_counts_scripts_and_memory() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let mut server = RedisServer::start(Path::new("redis-server"), scratch.path(), "test").await.expect("starts");
        assert!(server.version().starts_with("Redis ") || server.version().starts_with("Valkey "));
        let (scripts, bytes) =
            (server.script_calls().await.expect("counts"), server.data_bytes().await.expect("weighs"));
        let script = "return redis.call('SET', KEYS[1], string.rep('x', 100000))";
        let mut eval = redis::cmd("EVAL");
        eval.arg(script).arg(1).arg("key");
        eval.exec_async(&mut server.connection).await.expect("runs");
        assert_eq!(server.script_calls().await.expect("counts"), scripts + 1);
        assert!(server.data_bytes().await.expect("weighs") > bytes + 90_000);
        server.end().await.expect("ends");
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let info = "# Memory\r\nused_memory_rss:7\r\nused_memory:42\r\n";
        assert_eq!(field(info, "used_memory"), Some("42"));
        assert_eq!(field(info, "used"), None);
    }
}
