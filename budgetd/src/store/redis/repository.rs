//! The policies of the namespace in one key of Redis, replaced by compare-and-set.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};

use budget::{
    ids::{DependencyId, PolicyVersion},
    lease::HolderId,
    units::EXACT_MAX,
};
use deadpool_redis::redis::{Pipeline, Value, cmd};

use super::{
    failure::{Effect, Failure, Refusal},
    metrics::ErrorKind,
    scripts,
    topology::{Link, Redis},
    value,
};
use crate::{
    policies::repository::{Document, Presence, Replaced, Replica, Repository, StoredFormat, Told},
    store::StoreError,
};

/// [`Repository`] in Redis.
#[derive(Debug)]
pub struct RedisRepository {
    redis: Arc<Redis>,
    /// What was read or written last: the body is fetched only when the version has changed.
    latest: Mutex<Option<Document>>,
    /// The server's clock at the last load; negative before the first.
    now_ms: AtomicI64,
}

/// A replica that has not told anything for so long is forgotten.
const TOLD_MEMORY_MS: i64 = 15_000;
/// Most replicas remembered.
const TOLD_MAX: i64 = 10_000;

/// What holders were told is kept by the hour, and for as long again: so those that have gone are forgotten.
const HOUR_MS: i64 = 3_600_000;

/// The fields of the key as they came: number, id, body, import hash.
type Fields = [Option<String>; 4];

// === impl RedisRepository ===

impl RedisRepository {
    /// Keeps the policies of the namespace in this Redis.
    #[must_use]
    pub const fn new(redis: Arc<Redis>) -> Self {
        Self { redis, latest: Mutex::new(None), now_ms: AtomicI64::new(-1) }
    }

    fn remember(&self, document: &Document) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(document.clone());
    }

    fn remembered(&self, version: PolicyVersion) -> Option<Document> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.as_ref().filter(|latest| latest.version == version).cloned()
    }

    async fn try_load(&self) -> Result<Option<Document>, Failure> {
        let mut link = self.redis.side_link().await?;
        let key = self.redis.keys().policies();
        let hmget = |fields: &[&str]| {
            let mut command = cmd("HMGET");
            command.arg(&key).arg(fields);
            command
        };
        self.now_ms.store(self.read_clock(&mut link).await?, Relaxed);
        let version = fields_of(link.command(hmget(&["number", "id"])).await.map_err(failure_of)?)?;
        if let Some(version) = version_of(&version)?
            && let Some(document) = self.remembered(version)
        {
            return Ok(Some(document));
        }
        // Read in one go: it may have been replaced meanwhile.
        let fields = link.command(hmget(&["number", "id", "body", "import"])).await.map_err(failure_of)?;
        document_of(fields_of(fields)?)
    }

    /// The clock that scripts go by.
    async fn read_clock(&self, link: &mut Link) -> Result<i64, Failure> {
        if let Some(injected_ms) = self.redis.clock().injected_ms() {
            return Ok(injected_ms);
        }
        let reply = link.command(cmd("TIME")).await.map_err(failure_of)?;
        let items = value::array(reply).map_err(|_| Failure::unexpected_reply("no array for TIME"))?;
        let number = |at: usize| items.get(at).and_then(value::text)?.parse::<i64>().ok();
        match (number(0), number(1)) {
            (Some(seconds), Some(micros)) => Ok(seconds.saturating_mul(1_000).saturating_add(micros / 1_000)),
            (None, _) | (_, None) => Err(Failure::unexpected_reply("no two numbers for TIME")),
        }
    }

    async fn try_tell(&self, Presence { version, is_stale }: Presence) -> Result<(), Failure> {
        let mut link = self.redis.side_link().await?;
        let (key, now_ms) = (self.redis.keys().versions(), self.redis.injected_now());
        let told = format!("{} {} {} {}", self.redis.replica(), version.number, version.id, u8::from(is_stale));
        link.script(&scripts::CONTACT, |call| {
            call.arg(&key).arg(&now_ms).arg(&told).arg(TOLD_MEMORY_MS).arg(TOLD_MAX);
        })
        .await?;
        Ok(())
    }

    async fn try_replicas(&self) -> Result<Vec<Replica>, Failure> {
        let mut link = self.redis.side_link().await?;
        let now_ms = self.read_clock(&mut link).await?;
        let mut command = cmd("ZRANGE");
        command.arg(self.redis.keys().versions()).arg(0).arg(TOLD_MAX).arg("WITHSCORES");
        let reply = link.command(command).await.map_err(failure_of)?;
        Ok(replicas_of(&value::array(reply).map_err(|_| Failure::unexpected_reply("no array of replicas"))?, now_ms))
    }

    async fn try_tell_holders(&self, told: &[Told]) -> Result<(), Failure> {
        let mut link = self.redis.side_link().await?;
        let hour = self.read_clock(&mut link).await?.div_euclid(HOUR_MS);
        let mut by_dependency: HashMap<&DependencyId, Vec<&Told>> = HashMap::new();
        for one in told {
            by_dependency.entry(&one.dependency).or_default().push(one);
        }
        let mut commands = Pipeline::with_capacity(2 * by_dependency.len());
        for (dependency, told) in by_dependency {
            let key = self.redis.keys().told(hour, dependency);
            let mut hset = cmd("HSET");
            hset.arg(&key);
            for Told { holder, version, .. } in told {
                hset.arg(holder.as_str()).arg(format!("{} {}", version.number, version.id));
            }
            let mut expire = cmd("PEXPIRE");
            expire.arg(key).arg(2 * HOUR_MS);
            commands.add_command(hset).add_command(expire);
        }
        for reply in link.send(&commands).await? {
            if let Value::ServerError(error) = reply {
                return Err(failure_of(Refusal::of(&error)));
            }
        }
        Ok(())
    }

    async fn try_holders_told(
        &self,
        dependency: &DependencyId,
        holders: &[HolderId],
    ) -> Result<Vec<Option<PolicyVersion>>, Failure> {
        let mut link = self.redis.side_link().await?;
        let hour = self.read_clock(&mut link).await?.div_euclid(HOUR_MS);
        let mut told = vec![None; holders.len()];
        // The later word counts.
        for hour in [hour - 1, hour] {
            let mut command = cmd("HMGET");
            command.arg(self.redis.keys().told(hour, dependency));
            for holder in holders {
                command.arg(holder.as_str());
            }
            let reply = link.command(command).await.map_err(failure_of)?;
            let found = value::array(reply).map_err(|_| Failure::unexpected_reply("no array of versions"))?;
            for (told, found) in told.iter_mut().zip(&found) {
                *told = told_of(found).or(*told);
            }
        }
        Ok(told)
    }

    async fn try_replace(&self, expected: Option<PolicyVersion>, new: &Document) -> Result<Replaced, Failure> {
        let mut link = self.redis.side_link().await?;
        let key = self.redis.keys().policies();
        let old = expected.unwrap_or_default();
        let reply = link
            .script(&scripts::POLICIES_REPLACE, |call| {
                call.arg(&key).arg(u8::from(expected.is_some())).arg(old.number).arg(old.id);
                call.arg(new.version.number).arg(new.version.id).arg(&new.body);
                call.arg(u8::from(new.import_hash.is_some())).arg(new.import_hash.as_deref().unwrap_or_default());
            })
            .await?;
        let unexpected = || Failure::unexpected_reply("not one of policies_replace");
        let mut items = value::array(reply).map_err(|_| unexpected())?;
        let fields = items.split_off(items.len().min(1));
        match &*items {
            [Value::Int(1)] => Ok(Replaced::Done),
            [Value::Int(0)] => Ok(Replaced::Conflict(document_of(fields_of(Value::Array(fields))?)?)),
            _ => Err(unexpected()),
        }
    }
}

impl Repository for RedisRepository {
    async fn load(&self) -> Result<Option<Document>, StoreError> {
        self.redis.admit()?;
        let loaded = self.try_load().await;
        self.redis.note(&loaded);
        let document = loaded.map_err(|failure| failure.to_store_error())?;
        if let Some(document) = &document {
            self.remember(document);
        }
        Ok(document)
    }

    async fn replace(&self, expected: Option<PolicyVersion>, new: &Document) -> Result<Replaced, StoreError> {
        self.redis.admit()?;
        let replaced = self.try_replace(expected, new).await;
        self.redis.note(&replaced);
        let replaced = replaced.map_err(|failure| failure.to_store_error())?;
        match &replaced {
            Replaced::Done => self.remember(new),
            Replaced::Conflict(Some(document)) => self.remember(document),
            Replaced::Conflict(None) => {}
        }
        Ok(replaced)
    }

    fn now_ms(&self) -> Option<i64> {
        Some(self.now_ms.load(Relaxed)).filter(|now_ms| *now_ms >= 0)
    }

    async fn tell(&self, presence: Presence) -> Result<(), StoreError> {
        self.redis.admit()?;
        let told = self.try_tell(presence).await;
        self.redis.note(&told);
        told.map_err(|failure| failure.to_store_error())
    }

    fn replica(&self) -> Option<&str> {
        Some(self.redis.replica())
    }

    async fn replicas(&self) -> Result<Vec<Replica>, StoreError> {
        self.redis.admit()?;
        let replicas = self.try_replicas().await;
        self.redis.note(&replicas);
        replicas.map_err(|failure| failure.to_store_error())
    }

    async fn format(&self) -> Result<Option<StoredFormat>, StoreError> {
        self.redis.admit()?;
        let format = self.redis.stored_format().await;
        self.redis.note(&format);
        format.map(Some).map_err(|failure| failure.to_store_error())
    }

    async fn tell_holders(&self, told: &[Told]) -> Result<(), StoreError> {
        self.redis.admit()?;
        let told = self.try_tell_holders(told).await;
        self.redis.note(&told);
        told.map_err(|failure| failure.to_store_error())
    }

    async fn holders_told(
        &self,
        dependency: &DependencyId,
        holders: &[HolderId],
    ) -> Result<Vec<Option<PolicyVersion>>, StoreError> {
        if holders.is_empty() {
            return Ok(Vec::new());
        }
        self.redis.admit()?;
        let told = self.try_holders_told(dependency, holders).await;
        self.redis.note(&told);
        told.map_err(|failure| failure.to_store_error())
    }
}

/// What is no version was not written by us.
fn told_of(found: &Value) -> Option<PolicyVersion> {
    let text = value::text(found)?;
    let (number, id) = text.split_once(' ')?;
    Some(PolicyVersion { number: number.parse().ok()?, id: id.parse().ok()? })
}

/// What replicas have told, each its latest word. What is no such word was not written by us.
fn replicas_of(items: &[Value], now_ms: i64) -> Vec<Replica> {
    let mut latest: HashMap<String, Replica> = HashMap::new();
    for pair in items.chunks_exact(2) {
        let [told, score] = [&pair[0], &pair[1]].map(value::text);
        let (Some(told), Some(at_ms)) = (told, score.and_then(|score| score.parse::<i64>().ok())) else { continue };
        let words: Vec<_> = told.split(' ').collect();
        let [id, number, version_id, is_stale] = *words else { continue };
        let (Ok(number), Ok(version_id)) = (number.parse(), version_id.parse()) else { continue };
        let version = PolicyVersion { number, id: version_id };
        let presence = Presence { version, is_stale: is_stale == "1" };
        let age_ms = now_ms.saturating_sub(at_ms).max(0);
        let replica = Replica { id: id.to_owned(), presence, age_ms };
        match latest.get(id) {
            // Of equal times the higher version is the later word: versions never fall.
            Some(known) if known.age_ms < age_ms => {}
            Some(known) if known.age_ms == age_ms && known.presence.version > version => {}
            Some(_) | None => drop(latest.insert(id.to_owned(), replica)),
        }
    }
    let mut replicas: Vec<_> = latest.into_values().filter(|replica| replica.age_ms <= TOLD_MEMORY_MS).collect();
    replicas.sort_by(|a, b| a.id.cmp(&b.id));
    replicas
}

fn failure_of(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::Failure(failure) => failure,
        Refusal::NoScript => Failure::unexpected_reply("NOSCRIPT to HMGET"),
    }
}

/// Missing fields, also those a reply leaves out at its end, are none.
fn fields_of(reply: Value) -> Result<Fields, Failure> {
    let items = value::array(reply).map_err(|_| Failure::unexpected_reply("no array of fields"))?;
    let mut fields = Fields::default();
    for (field, item) in fields.iter_mut().zip(items) {
        if let Value::BulkString(bytes) = item {
            *field = Some(String::from_utf8(bytes).map_err(|_| corrupt("not UTF-8"))?);
        } else if item != Value::Nil {
            return Err(Failure::unexpected_reply("a field that is no string"));
        }
    }
    Ok(fields)
}

fn version_of(fields: &Fields) -> Result<Option<PolicyVersion>, Failure> {
    let number = |text: &str| text.parse().ok().filter(|number| (0..=EXACT_MAX).contains(number));
    match fields {
        [None, None, ..] => Ok(None),
        [Some(first), Some(second), ..] => match (number(first), number(second)) {
            (Some(number), Some(id)) => Ok(Some(PolicyVersion { number, id })),
            (None, _) | (_, None) => Err(corrupt("their version is not a number below 2^53")),
        },
        [None, Some(_), ..] | [Some(_), None, ..] => Err(corrupt("half of their version is missing")),
    }
}

fn document_of(fields: Fields) -> Result<Option<Document>, Failure> {
    let version = version_of(&fields)?;
    let [_, _, body, import_hash] = fields;
    match (version, body) {
        (Some(version), Some(body)) => Ok(Some(Document { version, body, import_hash })),
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => Err(corrupt("version or body is missing")),
    }
}

fn corrupt(what: &str) -> Failure {
    Failure {
        kind: ErrorKind::Corrupt,
        effect: Effect::Corrupt,
        discard: false,
        text: format!("stored policies cannot be read: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_a_replica_told_the_latest_counts() {
        let items = [
            ("a 3 7 0", "1000"),
            ("a 4 8 1", "1000"),
            ("b 3 7 0", "900"),
            ("b 5 9 0", "1200"),
            ("gone 1 1 0", "1"),
            ("not ours", "1200"),
        ];
        let items: Vec<_> = items.iter().flat_map(|(told, score)| [bulk(told), bulk(score)]).collect();
        let seen = replicas_of(&items, TOLD_MEMORY_MS + 500);
        let seen: Vec<_> = seen.iter().map(|r| (&*r.id, r.presence.version.number, r.presence.is_stale)).collect();
        assert_eq!(seen, [("a", 4, true), ("b", 5, false)]);
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn read(items: Vec<Value>) -> Result<Option<Document>, String> {
        fields_of(Value::Array(items)).and_then(document_of).map_err(|failure| failure.text)
    }

    #[test]
    fn documents_are_read_completely_or_not_at_all() {
        let version = PolicyVersion { number: 9_007_199_254_740_991, id: 4 };
        let (number, id, body) = (bulk("9007199254740991"), bulk("4"), bulk("{}"));
        let whole = vec![number.clone(), id.clone(), body.clone(), bulk("hash")];
        let document = Document { version, body: "{}".to_owned(), import_hash: Some("hash".to_owned()) };
        assert_eq!(read(whole), Ok(Some(document.clone())));
        assert_eq!(
            read(vec![number.clone(), id.clone(), body.clone(), Value::Nil]),
            Ok(Some(Document { import_hash: None, ..document }))
        );
        assert_eq!(read(vec![Value::Nil, Value::Nil, Value::Nil, Value::Nil]), Ok(None));
        for bad in [
            vec![number.clone(), Value::Nil, body.clone()],
            vec![number.clone(), id.clone(), Value::Nil],
            vec![Value::Nil, Value::Nil, body.clone()],
            vec![bulk("9007199254740992"), id.clone(), body.clone()],
            vec![bulk("-1"), id.clone(), body.clone()],
            vec![bulk("1.5"), id.clone(), body.clone()],
            vec![number, id, Value::BulkString(vec![0xff])],
            vec![Value::Int(1)],
        ] {
            assert!(read(bad.clone()).is_err(), "{bad:?}");
        }
        assert!(fields_of(Value::Nil).is_err());
    }
}
