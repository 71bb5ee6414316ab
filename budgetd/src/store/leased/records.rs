//! Permits taken from leases, by reservation id, until they end.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use budget::{
    decision::{Admitted, Answer, Denied, DenyReason},
    holder::Spent,
    ids::ReservationId,
};
use budget_client::leasing::Leased;

const SHARDS: usize = 64;
/// Most records; what finds no room is decided by the inner store.
const RECORDS_MAX: usize = 1 << 20;
/// Most ends that are waited for, those of records that have gone before their time included.
const ENDS_MAX: usize = 4 * RECORDS_MAX;
/// Ended records that are dropped by one call.
const DROPPED_PER_CALL_MAX: usize = 8;
const NANOS_PER_MS: i64 = 1_000_000;

/// All permits of this process.
pub(super) struct Records {
    shards: Box<[Mutex<Shard>; SHARDS]>,
}

#[derive(Default)]
struct Shard {
    records: HashMap<ReservationId, Record>,
    /// An end for every record, and for those that went before their time.
    ends: BinaryHeap<Reverse<(i64, ReservationId)>>,
}

struct Record {
    /// None once it is closed.
    open: Option<(Arc<Leased>, Spent)>,
    admitted: Admitted,
    until_ns: i64,
}

/// What is known of a permit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    admitted: Admitted,
    /// None: closed, or expired.
    pub(super) left_ms: Option<i64>,
    pub(super) expired: bool,
}

/// What a release finds.
#[derive(Debug)]
pub(super) enum Closed {
    /// It is closed by this.
    Now(Arc<Leased>, Spent),
    Before,
    Expired,
}

// === impl Records ===

impl Default for Records {
    fn default() -> Self {
        Self { shards: Box::new(std::array::from_fn(|_| Mutex::default())) }
    }
}

impl Records {
    fn shard(&self, id: ReservationId) -> MutexGuard<'_, Shard> {
        // Random by the protocol; whoever chooses them badly slows only himself down, up to one lock for all.
        let at = usize::from(id.0[15]) % SHARDS;
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_room(&self, id: ReservationId) -> bool {
        let shard = self.shard(id);
        shard.records.len() < RECORDS_MAX / SHARDS && shard.ends.len() < ENDS_MAX / SHARDS
    }

    pub(super) fn open(
        &self,
        id: ReservationId,
        leased: Arc<Leased>,
        spent: Spent,
        admitted: Admitted,
        until_ns: i64,
        now_ns: i64,
    ) {
        let mut shard = self.shard(id);
        shard.drop_ended(now_ns);
        shard.records.insert(id, Record { open: Some((leased, spent)), admitted, until_ns });
        shard.ends.push(Reverse((until_ns, id)));
    }

    pub(super) fn find(&self, id: ReservationId, now_ns: i64) -> Option<Known> {
        let shard = self.shard(id);
        let record = shard.records.get(&id)?;
        let left_ns = record.until_ns.saturating_sub(now_ns);
        Some(Known {
            admitted: record.admitted,
            left_ms: (record.open.is_some() && left_ns > 0).then(|| left_ns.div_euclid(NANOS_PER_MS)),
            expired: record.open.is_some() && left_ns <= 0,
        })
    }

    /// None if it is not known here.
    pub(super) fn close(&self, id: ReservationId, now_ns: i64) -> Option<Closed> {
        let mut shard = self.shard(id);
        let record = shard.records.get_mut(&id)?;
        let until_ns = record.until_ns;
        let closed = match record.open.take() {
            None => Closed::Before,
            // The slot has ended with the permit; dropped, it stays spent.
            Some(_) if until_ns <= now_ns => Closed::Expired,
            Some((leased, spent)) => Closed::Now(leased, spent),
        };
        if shard.records.len() > RECORDS_MAX / SHARDS / 2 {
            // Open ones need the room; a second release is answered by the inner store then, which does not know it.
            shard.records.remove(&id);
        }
        shard.drop_ended(now_ns);
        Some(closed)
    }
}

// === impl Shard ===

impl Shard {
    /// Closed ones are remembered for as long as the open ones live, so that a second release is told so.
    fn drop_ended(&mut self, now_ns: i64) {
        for _ in 0..DROPPED_PER_CALL_MAX {
            match self.ends.peek() {
                Some(Reverse((until_ns, _))) if *until_ns <= now_ns => {}
                Some(_) | None => return,
            }
            // An id whose record went before its time may have come back with a later end.
            if let Some(Reverse((_, id))) = self.ends.pop()
                && self.records.get(&id).is_some_and(|record| record.until_ns <= now_ns)
            {
                self.records.remove(&id);
            }
        }
    }
}

// === impl Known ===

impl Known {
    /// The answer to a Reserve sent again.
    pub(super) fn replayed(&self) -> Answer {
        match self.left_ms {
            Some(left_ms) => Answer::Admitted(Admitted { permit_ttl_ms: left_ms, replayed: true, ..self.admitted }),
            None => Answer::Denied(Denied::because(DenyReason::AlreadyReleased)),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use budget::{
        holder::{Local, LocalAsk},
        lease::{FallbackRules, LocalOriginals},
    };
    use budget_client::{
        Dependency, Error,
        leasing::{Asked, Coordinator, Leasing, LeasingOptions},
    };
    use budget_proto::convert::SyncReply;

    use super::*;

    struct Silent;

    impl Coordinator for Silent {
        async fn sync(&self, _: &[Asked]) -> Vec<Result<SyncReply, Error>> {
            std::future::pending().await
        }
    }

    /// Seen to fail with ends that take whatever record has their id.
    #[tokio::test]
    async fn an_earlier_end_of_the_same_id_takes_no_later_record() {
        let fallback = FallbackRules { originals: LocalOriginals::Allow, retries_earned: false, units: Box::default() };
        let leasing = Leasing::start(Silent, LeasingOptions { fallback, ..LeasingOptions::default() }).unwrap();
        let leased = leasing.dependency(&Dependency::new("pay").unwrap()).unwrap();
        let records = Records::default();
        let open = |id: u8, until_ns, now_ns| {
            let Local::Admitted(spent) = leased.reserve_beyond(&LocalAsk::ORIGINAL) else { panic!("not admitted") };
            let admitted = Admitted {
                start_after_ms: 0,
                permit_ttl_ms: 1,
                attempts_left: 1,
                replayed: false,
                would_be_denied: None,
            };
            // Equal last bytes: one shard.
            let mut bytes = [0; 16];
            bytes[0] = id;
            records.open(ReservationId(bytes), Arc::clone(&leased), spent, admitted, until_ns, now_ns);
            ReservationId(bytes)
        };
        let first = open(1, 10, 0);
        open(1, 1_000, 1);
        open(2, 1_000, 20);
        assert!(matches!(records.close(first, 21), Some(Closed::Now(..))));
        assert!(matches!(records.close(first, 22), Some(Closed::Before)));
        open(3, 5_000, 2_000);
        assert!(records.find(first, 2_000).is_none(), "gone at its own end");
    }
}
