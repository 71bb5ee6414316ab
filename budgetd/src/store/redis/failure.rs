//! What went wrong with a call to the store: whether it may have been applied, whether the connection is still good, and
//! whether it speaks against the whole store or against one dependency.

use deadpool_redis::{
    PoolError, TimeoutType,
    redis::{RedisError, ServerError},
};

use super::metrics::ErrorKind;
use crate::store::StoreError;

/// How far a failed call got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Certainly not applied.
    None,
    /// Perhaps applied.
    Unknown,
    /// Not applied; the state of one dependency is to blame, the store is well.
    Corrupt,
}

/// A failed call.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: ErrorKind,
    pub(super) effect: Effect,
    /// The connection must not be used again.
    pub(super) discard: bool,
    pub(super) text: String,
}

/// An error reply to one script call.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    /// The server does not know the script (any more).
    NoScript,
    /// Anything else.
    Failure(Failure),
}

// === impl Failure ===

impl Failure {
    /// The store does not answer, so its health is in doubt.
    pub(super) fn speaks_against_the_store(&self) -> bool {
        self.effect != Effect::Corrupt && self.kind != ErrorKind::Newer
    }

    /// No reply came, and the connection is known to be gone: what carries an id may be sent again on another.
    pub(super) fn is_broken_connection(&self) -> bool {
        self.kind == ErrorKind::Broken
    }

    pub(super) fn to_store_error(&self) -> StoreError {
        if self.kind == ErrorKind::PoolWait {
            return StoreError::Overloaded;
        }
        match self.effect {
            Effect::None => StoreError::Away(self.text.clone()),
            Effect::Unknown => StoreError::Lost(self.text.clone()),
            Effect::Corrupt => StoreError::Corrupt(self.text.clone()),
        }
    }

    /// A reply that no script of ours gives.
    pub(super) fn unexpected_reply(what: impl std::fmt::Display) -> Self {
        Self {
            kind: ErrorKind::UnexpectedReply,
            effect: Effect::Corrupt,
            discard: false,
            text: format!("unexpected reply: {what}"),
        }
    }

    /// No connection could be had, so nothing was sent.
    pub(super) fn of_pool(error: &PoolError) -> Self {
        let (kind, text) = match error {
            PoolError::Timeout(TimeoutType::Wait) => {
                (ErrorKind::PoolWait, "all connections are in use and none became free in time".to_owned())
            }
            PoolError::Timeout(TimeoutType::Create | TimeoutType::Recycle) => {
                (ErrorKind::Connect, "no connection within the time-out".to_owned())
            }
            PoolError::Backend(error) => (ErrorKind::Connect, format!("no connection: {error}")),
            PoolError::Closed | PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => {
                (ErrorKind::Connect, error.to_string())
            }
        };
        Self { kind, effect: Effect::None, discard: true, text }
    }

    /// A connection failed after something was sent.
    pub(super) fn of_connection(error: &RedisError) -> Self {
        let (kind, text) = if error.is_timeout() {
            (ErrorKind::Timeout, "no reply within the time-out".to_owned())
        } else {
            (ErrorKind::Broken, format!("connection broke: {error}"))
        };
        Self { kind, effect: Effect::Unknown, discard: true, text }
    }
}

// === impl Refusal ===

impl Refusal {
    /// Judges an error reply. Scripts compute first and write last, so a refused write means that nothing was written.
    pub(super) fn of(error: &ServerError) -> Self {
        let code = error.code();
        let details = error.details().unwrap_or_default();
        let (kind, effect, discard) = match code {
            "NOSCRIPT" => return Self::NoScript,
            "CORRUPT" | "WRONGTYPE" => (ErrorKind::Corrupt, Effect::Corrupt, false),
            // State of a later release: left alone, and decided as if the store were away.
            "NEWER" => (ErrorKind::Newer, Effect::None, false),
            "READONLY" => (ErrorKind::ReadOnly, Effect::None, true),
            "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" | "CROSSSLOT" | "MASTERDOWN" | "LOADING" => {
                (ErrorKind::Topology, Effect::None, true)
            }
            "NOAUTH" | "WRONGPASS" => (ErrorKind::Auth, Effect::None, true),
            "NOPERM" => (ErrorKind::Auth, Effect::None, false),
            "OOM" => (ErrorKind::OutOfMemory, Effect::None, false),
            "BUSY" | "MISCONF" | "NOREPLICAS" => (ErrorKind::Server, Effect::None, false),
            // A script that stumbles over the state of its dependency.
            "ERR" if details.contains("user_script") => (ErrorKind::Corrupt, Effect::Corrupt, false),
            _ => (ErrorKind::Server, Effect::Unknown, false),
        };
        let text = if details.is_empty() { code.to_owned() } else { format!("{code} {details}") };
        Self::Failure(Failure { kind, effect, discard, text })
    }
}

#[cfg(test)]
mod tests {
    use deadpool_redis::redis::{Value, parse_redis_value};

    use super::*;

    fn refusal(line: &str) -> Refusal {
        let reply = parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let Value::ServerError(error) = reply else { panic!("{reply:?} is no error") };
        Refusal::of(&error)
    }

    #[test]
    fn error_replies_are_told_apart() {
        let check = |line: &str, kind: ErrorKind, effect: Effect, discard: bool| match refusal(line) {
            Refusal::NoScript => panic!("{line}"),
            Refusal::Failure(failure) => {
                assert_eq!((failure.kind, failure.effect, failure.discard), (kind, effect, discard), "{line}");
            }
        };
        assert!(matches!(refusal("NOSCRIPT No matching script. Please use EVAL."), Refusal::NoScript));
        check("CORRUPT ledger cannot be read", ErrorKind::Corrupt, Effect::Corrupt, false);
        check("NEWER ledger is of format 9", ErrorKind::Newer, Effect::None, false);
        check("WRONGTYPE Operation against a key", ErrorKind::Corrupt, Effect::Corrupt, false);
        check("ERR user_script:12: attempt to index nil", ErrorKind::Corrupt, Effect::Corrupt, false);
        check("ERR unknown command", ErrorKind::Server, Effect::Unknown, false);
        check("READONLY You can't write against a read only replica.", ErrorKind::ReadOnly, Effect::None, true);
        check("LOADING Redis is loading the dataset in memory", ErrorKind::Topology, Effect::None, true);
        check("MOVED 3999 127.0.0.1:6381", ErrorKind::Topology, Effect::None, true);
        check("CLUSTERDOWN The cluster is down", ErrorKind::Topology, Effect::None, true);
        check("MASTERDOWN Link with MASTER is down", ErrorKind::Topology, Effect::None, true);
        check("OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::OutOfMemory, Effect::None, false);
        check("NOAUTH Authentication required.", ErrorKind::Auth, Effect::None, true);
        check("MISCONF Errors writing to the AOF file", ErrorKind::Server, Effect::None, false);
        check("SOMETHING new", ErrorKind::Server, Effect::Unknown, false);
    }
}
