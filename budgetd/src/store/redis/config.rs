//! How to reach Redis, judged once. The URL may hold a password: it is never shown as it was given.

use std::{fmt, ops::RangeInclusive, time::Duration};

use deadpool_redis::redis::{self, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, io::tcp::TcpSettings};

use super::keys::{InvalidPrefix, Keys};

/// What an operator may set, every field with its default.
#[derive(Clone)]
pub struct Settings {
    /// `redis://[user:password@]host[:port][/db]` or `unix:///path[?db=0&user=…&pass=…]`.
    pub url: String,
    /// Namespace: instances with different prefixes share nothing.
    pub prefix: String,
    /// Tasks that send batches, each with one connection; a dependency always belongs to the same.
    pub lanes: usize,
    /// Steps that may wait in one lane; more are refused as overload.
    pub queue_per_lane: usize,
    /// Connections for everything but steps: views, policies, contact.
    pub side_connections: usize,
    /// Longest time to establish a connection.
    pub connect_timeout_ms: u64,
    /// Longest wait for a free connection.
    pub wait_timeout_ms: u64,
    /// Longest wait for a reply.
    pub response_timeout_ms: u64,
    /// After this many failures in a row the store counts as down.
    pub failures_to_down: u32,
    /// Shortest and longest pause between two probes of a store that is down; each is drawn at random.
    pub probe_pause_ms: (u64, u64),
}

/// Judged settings.
#[derive(Clone)]
pub struct Config {
    pub(super) connection: ConnectionInfo,
    pub(super) address: String,
    pub(super) keys: Keys,
    pub(super) lanes: usize,
    pub(super) queue_per_lane: usize,
    pub(super) side_connections: usize,
    pub(super) connect_timeout: Duration,
    pub(super) wait_timeout: Duration,
    pub(super) response_timeout: Duration,
    pub(super) failures_to_down: u32,
    pub(super) probe_pause_ms: RangeInclusive<u64>,
}

/// Why settings are refused. The URL itself is left out: it may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    /// Not of a known form.
    #[error(
        "the store's URL cannot be read: must look like redis://[user:password@]host[:port][/db] or \
         unix:///path/to/socket"
    )]
    Url,
    /// Understood, but not offered by this build.
    #[error("the store's URL has the scheme {0}, must be redis, valkey, unix, redis+unix or valkey+unix")]
    Scheme(String),
    /// The namespace's prefix.
    #[error("the store's prefix is {prefix:?}: {rule}")]
    Prefix {
        /// As given.
        prefix: String,
        /// What is required.
        rule: InvalidPrefix,
    },
    /// A number.
    #[error("the store's {field} is {value}, must be between {min} and {max}")]
    Number {
        /// Which.
        field: &'static str,
        /// As given.
        value: u64,
        /// Smallest allowed.
        min: u64,
        /// Largest allowed.
        max: u64,
    },
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            url: "redis://127.0.0.1:6379".to_owned(),
            prefix: "budgetd".to_owned(),
            lanes: 2,
            queue_per_lane: 4096,
            side_connections: 4,
            connect_timeout_ms: 500,
            wait_timeout_ms: 50,
            response_timeout_ms: 100,
            failures_to_down: 3,
            probe_pause_ms: (100, 500),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = parse(&self.url).map_or_else(|_| "(unreadable)".to_owned(), |info| address_of(&info));
        f.debug_struct("Settings").field("url", &address).field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

// === impl Config ===

impl Config {
    /// Judges settings.
    ///
    /// # Errors
    /// If the URL or the prefix cannot be used, or a number is out of its range.
    pub fn new(settings: &Settings) -> Result<Self, InvalidConfig> {
        let connection = parse(&settings.url)?;
        let keys = Keys::new(&settings.prefix)
            .map_err(|rule| InvalidConfig::Prefix { prefix: settings.prefix.clone(), rule })?;
        let (shortest, longest) = settings.probe_pause_ms;
        for (field, value, allowed) in [
            ("lanes", count(settings.lanes), 1..=64),
            ("queue per lane", count(settings.queue_per_lane), 1..=1_000_000),
            ("number of side connections", count(settings.side_connections), 1..=1_000),
            ("connect time-out in ms", settings.connect_timeout_ms, 1..=60_000),
            ("wait time-out in ms", settings.wait_timeout_ms, 1..=60_000),
            ("response time-out in ms", settings.response_timeout_ms, 1..=60_000),
            ("number of failures to down", settings.failures_to_down.into(), 1..=1_000),
            ("longest pause between probes in ms", longest, 1..=60_000),
            ("shortest pause between probes in ms", shortest, 1..=longest),
        ] {
            if !allowed.contains(&value) {
                return Err(InvalidConfig::Number { field, value, min: *allowed.start(), max: *allowed.end() });
            }
        }
        Ok(Self {
            address: address_of(&connection),
            connection: connection.set_tcp_settings(TcpSettings::default().set_nodelay(true)),
            keys,
            lanes: settings.lanes,
            queue_per_lane: settings.queue_per_lane,
            side_connections: settings.side_connections,
            connect_timeout: Duration::from_millis(settings.connect_timeout_ms),
            wait_timeout: Duration::from_millis(settings.wait_timeout_ms),
            response_timeout: Duration::from_millis(settings.response_timeout_ms),
            failures_to_down: settings.failures_to_down,
            probe_pause_ms: shortest..=longest,
        })
    }

    /// Where the store is, without user and password.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("address", &self.address).finish_non_exhaustive()
    }
}

fn count(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

fn parse(text: &str) -> Result<ConnectionInfo, InvalidConfig> {
    let url = redis::parse_redis_url(text).ok_or(InvalidConfig::Url)?;
    let scheme = url.scheme().to_owned();
    if !matches!(&*scheme, "redis" | "valkey" | "unix" | "redis+unix" | "valkey+unix") {
        return Err(InvalidConfig::Scheme(scheme));
    }
    // The parser's own errors may quote what they were given.
    let info = url.into_connection_info().map_err(|_| InvalidConfig::Url)?;
    // Its name on each new connection would be one command more that budgetd's user must be allowed, and Redis 7.0 lacks.
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    Ok(info.set_redis_settings(settings))
}

fn address_of(info: &ConnectionInfo) -> String {
    let db = info.redis_settings().db();
    if let ConnectionAddr::Unix(path) = info.addr() {
        return format!("unix://{}?db={db}", path.display());
    }
    format!("redis://{}/{db}", info.addr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_url(url: &str) -> Settings {
        Settings { url: url.to_owned(), ..Settings::default() }
    }

    #[test]
    fn addresses_are_shown_without_secrets() {
        for (url, shown) in [
            ("redis://127.0.0.1", "redis://127.0.0.1:6379/0"),
            ("redis://user:hunter2@example.org:7000/3", "redis://example.org:7000/3"),
            ("redis://:hunter2@[::1]:7000", "redis://::1:7000/0"),
            ("valkey://:hunter2@h", "redis://h:6379/0"),
            ("unix:///run/redis.sock?db=2&user=u&pass=hunter2", "unix:///run/redis.sock?db=2"),
        ] {
            let settings = with_url(url);
            let config = Config::new(&settings).unwrap();
            assert_eq!(config.address(), shown);
            let printed = format!("{settings:?} {config:?}");
            assert!(printed.contains(shown) && !printed.contains("hunter2"), "{printed}");
        }
    }

    #[test]
    fn refused_urls_are_not_quoted() {
        for url in
            ["", "hunter2", "http://:hunter2@h", "redis://:hunter2@h:99999", "redis://:hunter2@h/x", "redis:hunter2"]
        {
            let error = Config::new(&with_url(url)).unwrap_err();
            assert_eq!(error, InvalidConfig::Url, "{url}");
            assert!(!format!("{error} {error:?} {:?}", with_url(url)).contains("hunter2"));
        }
        let error = Config::new(&with_url("rediss://:hunter2@h")).unwrap_err();
        assert_eq!(error, InvalidConfig::Scheme("rediss".to_owned()));
    }

    #[test]
    fn numbers_are_judged() {
        let check = |settings: Settings, text: &str| {
            assert_eq!(Config::new(&settings).unwrap_err().to_string(), text);
        };
        check(Settings { lanes: 0, ..Settings::default() }, "the store's lanes is 0, must be between 1 and 64");
        check(
            Settings { response_timeout_ms: u64::MAX, ..Settings::default() },
            "the store's response time-out in ms is 18446744073709551615, must be between 1 and 60000",
        );
        check(
            Settings { probe_pause_ms: (500, 100), ..Settings::default() },
            "the store's shortest pause between probes in ms is 500, must be between 1 and 100",
        );
        check(
            Settings { prefix: "a{b".to_owned(), ..Settings::default() },
            "the store's prefix is \"a{b\": must not contain '{', '}' or control characters",
        );
    }
}
