//! What lies in Redis: how long keys live, what becomes of foreign, missing and forged ones, and whose they are.

use budget_tests::redis_server::RedisServer;
use deadpool_redis::redis::from_redis_value;

/// A key as Redis shows it.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) pttl_ms: i64,
}

/// All keys of a server.
pub(crate) fn keys(redis: &RedisServer) -> Vec<Key> {
    let script = "local out = {} for _, key in ipairs(redis.call('KEYS', '*')) do out[#out + 1] = key \
                  out[#out + 1] = redis.call('PTTL', key) end return out";
    let pairs: Vec<(Vec<u8>, i64)> = from_redis_value(redis.cli(&["EVAL", script, "0"])).unwrap();
    let key = |(name, pttl_ms): (Vec<u8>, i64)| Key { name: String::from_utf8_lossy(&name).into_owned(), pttl_ms };
    pairs.into_iter().map(key).collect()
}

/// Only the policies of the namespace, which are one key, may stay for ever.
pub(crate) fn assert_no_key_stays(redis: &RedisServer, prefix: &str) {
    let policies = format!("{prefix}:policies");
    let stay: Vec<_> = keys(redis).into_iter().filter(|key| key.pttl_ms < 0 && key.name != policies).collect();
    assert!(stay.is_empty(), "{stay:?}");
}
