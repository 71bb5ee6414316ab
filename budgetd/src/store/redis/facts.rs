//! What an operator should hear about the server at first contact: settings that endanger budgets.

use std::collections::HashMap;

use deadpool_redis::redis::{Pipeline, Value, cmd};

use super::{topology::Redis, value::text};

/// Oldest version the scripts are tested with.
const OLDEST_MAJOR: u64 = 7;

/// The settings that matter. None: could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Facts {
    version: Option<String>,
    maxmemory_policy: Option<String>,
    appendonly: Option<String>,
    save: Option<String>,
}

/// Reads the server's settings and logs what endangers budgets. Never fails: many servers forbid to read them.
pub(super) async fn warn_about_server(redis: &Redis) {
    let mut commands = Pipeline::new();
    commands.add_command(cmd("INFO"));
    commands.arg("server");
    for setting in ["maxmemory-policy", "appendonly", "save"] {
        commands.cmd("CONFIG").arg("GET").arg(setting);
    }
    let replies = match redis.side_link().await {
        Ok(mut link) => link.send(&commands).await,
        Err(failure) => Err(failure),
    };
    let store = redis.config().address();
    match replies {
        Ok(replies) => {
            for reply in &replies {
                if let Value::ServerError(error) = reply {
                    tracing::debug!(store, %error, "a setting of the store could not be read");
                }
            }
            for warning in Facts::read(&replies).warnings() {
                tracing::warn!(store, "{warning}");
            }
        }
        Err(failure) => tracing::debug!(store, reason = failure.text, "the store's settings could not be read"),
    }
}

// === impl Facts ===

impl Facts {
    fn read(replies: &[Value]) -> Self {
        let info = replies.first().and_then(text).unwrap_or_default();
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        let mut settings: HashMap<String, String> = HashMap::new();
        for reply in replies.iter().skip(1) {
            if let Value::Array(pair) = reply
                && let [key, value] = &**pair
                && let (Some(key), Some(value)) = (text(key), text(value))
            {
                settings.insert(key, value);
            }
        }
        Self {
            version: version.map(|version| version.trim().to_owned()),
            maxmemory_policy: settings.remove("maxmemory-policy"),
            appendonly: settings.remove("appendonly"),
            save: settings.remove("save"),
        }
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(policy) = self.maxmemory_policy.as_deref().filter(|policy| *policy != "noeviction") {
            warnings.push(format!(
                "maxmemory-policy is {policy}, should be noeviction: an evicted budget starts again from nothing, and \
                 its permits and operations are forgotten"
            ));
        }
        if self.appendonly.as_deref() == Some("no") && self.save.as_deref() == Some("") {
            warnings.push(
                "nothing is persisted (appendonly is no, save is empty): a restart of the store empties all budgets \
                 and forgets permits and operations"
                    .to_owned(),
            );
        }
        if let Some(version) = &self.version
            && version
                .split('.')
                .next()
                .and_then(|major| major.parse().ok())
                .is_none_or(|major: u64| major < OLDEST_MAJOR)
        {
            warnings.push(format!("the server's version is {version}, should be at least {OLDEST_MAJOR}.0"));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn replies(version: &str, policy: &str, appendonly: &str, save: &str) -> Vec<Value> {
        let setting = |key: &str, value: &str| Value::Array(vec![bulk(key), bulk(value)]);
        vec![
            bulk(&format!("# Server\r\nredis_version:{version}\r\nredis_git_sha1:0\r\n")),
            setting("maxmemory-policy", policy),
            setting("appendonly", appendonly),
            setting("save", save),
        ]
    }

    #[test]
    fn a30_eviction_missing_persistence_and_old_versions_are_named() {
        let warnings = |version, policy, appendonly, save| {
            Facts::read(&replies(version, policy, appendonly, save)).warnings().join("; ")
        };
        assert_eq!(warnings("7.0.15", "noeviction", "yes", ""), "");
        assert_eq!(warnings("8.1.0", "noeviction", "no", "3600 1 300 100"), "");
        assert!(warnings("7.2.4", "allkeys-lru", "yes", "").starts_with("maxmemory-policy is allkeys-lru"));
        assert!(warnings("7.2.4", "noeviction", "no", "").starts_with("nothing is persisted"));
        assert_eq!(
            warnings("6.2.14", "noeviction", "yes", ""),
            "the server's version is 6.2.14, should be at least 7.0"
        );
        assert!(warnings("10.0.0", "noeviction", "yes", "").is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_not_judged() {
        assert_eq!(Facts::read(&[]).warnings(), Vec::<String>::new());
        assert_eq!(Facts::read(&[Value::Nil, Value::Nil, Value::Int(3), Value::Array(vec![])]), Facts::default());
        let odd = Value::Array(vec![bulk("maxmemory-policy"), Value::Int(3)]);
        assert_eq!(Facts::read(&[Value::Nil, odd]), Facts::default());
    }
}
