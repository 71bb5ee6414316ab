//! The policies of the namespace in one key of Redis, replaced by compare-and-set.

use std::sync::{Arc, Mutex, PoisonError};

use budget::{ids::PolicyVersion, units::EXACT_MAX};
use deadpool_redis::redis::{Value, cmd};

use super::{
    failure::{Effect, Failure, Refusal},
    metrics::ErrorKind,
    scripts,
    topology::Redis,
    value,
};
use crate::{
    policies::repository::{Document, Replaced, Repository},
    store::StoreError,
};

/// [`Repository`] in Redis.
#[derive(Debug)]
pub struct RedisRepository {
    redis: Arc<Redis>,
    /// What was read or written last: the body is fetched only when the version has changed.
    latest: Mutex<Option<Document>>,
}

/// The fields of the key as they came: number, id, body, import hash.
type Fields = [Option<String>; 4];

// === impl RedisRepository ===

impl RedisRepository {
    /// Keeps the policies of the namespace in this Redis.
    #[must_use]
    pub const fn new(redis: Arc<Redis>) -> Self {
        Self { redis, latest: Mutex::new(None) }
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
