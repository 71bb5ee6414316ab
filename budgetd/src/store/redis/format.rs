//! In which format a namespace is written, so that two releases can share it: each reads what the other writes.
//!
//! A release reads the format before its own too. With each contact a replica says the newest one that it reads; those of the
//! first format say nothing. Once all in contact have said it for some seconds, one of them raises the format of the namespace, which
//! never goes back; in a namespace that is used for the first time that is at once. From the next contact on all write it.
//! A replica that is too old for the namespace leaves it alone: for it the store is away, and it says why.

use std::sync::atomic::{
    AtomicU8, AtomicU32,
    Ordering::{Relaxed, SeqCst},
};

use deadpool_redis::redis::{Value, cmd};

use super::{
    contact::{REPLICA_MEMORY_MS, REPLICAS_MAX},
    failure::{Effect, Failure, Refusal},
    layout::{FORMAT_NEWEST as NEWEST, FORMAT_OLDEST as FIRST},
    metrics::ErrorKind,
    scripts,
    topology::{Link, Redis},
    value,
};
use crate::policies::repository::StoredFormat;

/// So many contacts in a row all replicas must have said that they read a format. After a moment without the store, or with
/// its data lost, the others need not all be back yet.
const SETTLED_CONTACTS: u32 = 10;

/// What is known of the namespace's format.
#[derive(Debug, Default)]
pub(super) struct Formats {
    /// 0: nothing yet.
    found: AtomicU8,
    /// Contacts in a row at which all replicas read a newer format.
    settled: AtomicU32,
}

/// What a replica says that meets a namespace of a later release.
#[must_use]
pub fn too_new(format: u8) -> String {
    format!("the namespace is stored in format {format}, and this budgetd reads up to {NEWEST}: run a newer release")
}

// === impl Formats ===

impl Formats {
    fn found(&self) -> u8 {
        self.found.load(Relaxed)
    }
}

// === impl Redis ===

impl Redis {
    /// The format to write.
    #[must_use]
    pub fn format(&self) -> u8 {
        self.formats().found().clamp(FIRST, NEWEST)
    }

    /// The format of the namespace, as far as it is known: 0 before the first contact.
    #[must_use]
    pub fn format_found(&self) -> u8 {
        self.formats().found()
    }

    /// The format of the namespace if this release cannot read it.
    #[must_use]
    pub fn too_new(&self) -> Option<u8> {
        Some(self.formats().found()).filter(|found| *found > NEWEST)
    }

    /// Says that this replica lives and what it reads, and brings the format of the namespace forward if all do.
    /// Returns how many replicas there are.
    pub(super) async fn make_contact(&self) -> Result<i64, Failure> {
        let mut link = self.side_link().await?;
        // What a store has lost that this replica knows is written back.
        let remembered = self.formats().found();
        let stored = self.raise(&mut link, if remembered > NEWEST { 0 } else { remembered }).await?;
        self.formats().found.store(stored, Relaxed);
        if stored > NEWEST {
            // Before it counts as a replica: the others would wait for it.
            return Err(newer(too_new(stored)));
        }
        let (count, read_by_all) = self.tell(&mut link, stored < NEWEST).await?;
        if read_by_all <= stored.max(FIRST) {
            self.formats().settled.store(0, SeqCst);
            return Ok(count);
        }
        let settled = self.formats().settled.fetch_add(1, SeqCst).saturating_add(1);
        if settled >= SETTLED_CONTACTS || (stored == 0 && count == 1 && self.is_first_use(&mut link).await?) {
            let format = self.raise(&mut link, read_by_all).await?;
            self.formats().found.store(format, Relaxed);
            tracing::info!(format, "all replicas read this format: the namespace is written in it from now on");
        }
        Ok(count)
    }

    /// What `status` says of it.
    pub(super) async fn stored_format(&self) -> Result<StoredFormat, Failure> {
        let written = self.formats().found().max(FIRST);
        if written >= NEWEST {
            return Ok(StoredFormat { written, readable: NEWEST, held_back_by: Vec::new() });
        }
        let mut link = self.side_link().await?;
        let mut command = cmd("ZRANGE");
        command.arg(self.keys().replicas()).arg(0).arg(REPLICAS_MAX);
        let reply = link.command(command).await.map_err(|refusal| failure_of(refusal, "ZRANGE"))?;
        let said = value::array(reply).map_err(|_| Failure::unexpected_reply("no array of replicas"))?;
        let held_back_by = said.iter().filter_map(value::text).filter_map(|said| match said.split_once(' ') {
            None => Some(said),
            Some((id, reads)) => (reads.parse().unwrap_or(FIRST) < NEWEST).then(|| id.to_owned()),
        });
        Ok(StoredFormat { written, readable: NEWEST, held_back_by: held_back_by.collect() })
    }

    /// Counts the replicas; the newest format that all of them read, 0 if that is not wanted.
    async fn tell(&self, link: &mut Link, wanted: bool) -> Result<(i64, u8), Failure> {
        let (key, now_ms) = (self.keys().replicas(), self.injected_now());
        let said = format!("{} {NEWEST}", self.replica());
        let reply = link
            .script(&scripts::CONTACT, |call| {
                call.arg(&key).arg(&now_ms).arg(&said).arg(REPLICA_MEMORY_MS).arg(REPLICAS_MAX);
                call.arg(u8::from(wanted));
            })
            .await?;
        if !wanted && let Value::Int(count @ 1..) = reply {
            return Ok((count, 0));
        }
        if wanted
            && let Value::Array(items) = &reply
            && let [Value::Int(count @ 1..), Value::Int(read_by_all @ 1..)] = **items
        {
            // What is newer than ours is not ours to write.
            return Ok((count, u8::try_from(read_by_all).unwrap_or(NEWEST).min(NEWEST)));
        }
        Err(Failure::unexpected_reply(format_args!("{} for the number of replicas", value::type_name(&reply))))
    }

    /// The format of the namespace, after raising it.
    async fn raise(&self, link: &mut Link, least: u8) -> Result<u8, Failure> {
        let key = self.keys().format();
        let reply = link
            .script(&scripts::FORMAT, |call| {
                call.arg(&key).arg(least);
            })
            .await?;
        let Value::Int(format) = reply else { return Err(Failure::unexpected_reply("no format of the namespace")) };
        Ok(u8::try_from(format.max(0)).unwrap_or(u8::MAX))
    }

    /// Whether nobody has used the namespace yet.
    async fn is_first_use(&self, link: &mut Link) -> Result<bool, Failure> {
        for key in [self.keys().policies(), self.keys().known()] {
            let mut command = cmd("EXISTS");
            command.arg(key);
            let reply = link.command(command).await.map_err(|refusal| failure_of(refusal, "EXISTS"))?;
            if reply != Value::Int(0) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn newer(text: String) -> Failure {
    Failure { kind: ErrorKind::Newer, effect: Effect::None, discard: false, text }
}

fn failure_of(refusal: Refusal, command: &str) -> Failure {
    match refusal {
        Refusal::Failure(failure) => failure,
        Refusal::NoScript => Failure::unexpected_reply(format_args!("NOSCRIPT to {command}")),
    }
}
