//! Open and closed reservations of one ledger.
//!
//! Most permits live equally long, so they are kept in two generations that end as a whole: no queue, no scan. A
//! generation takes what expires before its end; when neither can, and one has ended, a new one begins and ends two
//! permit lives later. What fits in neither waits in a queue of its own, by expiry. A closed
//! reservation is remembered as long as its generation.

use std::collections::{BTreeSet, HashMap};

use crate::{decision::Cost, ids::ReservationId};

/// Most entries of the queue handled in one call.
pub const QUEUE_PER_CALL_MAX: usize = 16;

/// Where a reservation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    Closed,
    Expired,
}

/// What every reservation remembers. Kept small and free of heap parts, so that a generation is dropped at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) expires_ms: i64,
    /// Micro-tokens added to the retry bucket, not above the ratio's limit of 10^8.
    pub(crate) deposit: u32,
    /// Micro-tokens taken from the retry bucket, not above 10^9.
    pub(crate) retry_cost: u32,
    pub(crate) state: State,
    /// Holds an in-flight permit. An abandoned attempt is closed and still holds one.
    pub(crate) permit: bool,
    /// Took an admission token.
    pub(crate) admission: bool,
    /// Deposits at its success.
    pub(crate) earn: bool,
    /// The code of what shadow mode would have refused, or 0; then nothing was charged.
    pub(crate) would_be: u8,
}

/// What only some reservations remember, while open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Detail {
    /// When it may start, if not at once.
    pub(crate) start_ms: i64,
    /// Hash of its operation's id, or 0.
    pub(crate) operation: i64,
    /// Its attempt number within the operation.
    pub(crate) number: i64,
    pub(crate) costs: Box<[Cost]>,
}

#[derive(Clone, Debug, Default)]
struct Generation {
    end_ms: i64,
    permits: i64,
    records: HashMap<ReservationId, Record>,
    details: HashMap<ReservationId, Detail>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    First,
    Second,
    Queue,
}

/// One that was looked up, and what has to change along with it.
pub(crate) struct Found<'a> {
    pub(crate) record: &'a mut Record,
    id: ReservationId,
    permits: &'a mut i64,
    details: &'a mut HashMap<ReservationId, Detail>,
}

/// All reservations of one ledger.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reservations {
    first: Generation,
    second: Generation,
    /// The one that takes new reservations.
    newer_is_second: bool,
    queued: Generation,
    queue: BTreeSet<(i64, ReservationId)>,
}

// === impl Detail ===

impl Detail {
    fn is_default(&self) -> bool {
        self.start_ms == 0 && self.operation == 0 && self.costs.is_empty()
    }
}

// === impl Generation ===

impl Generation {
    fn insert(&mut self, id: ReservationId, record: Record, detail: Detail) {
        self.permits = self.permits.saturating_add(i64::from(record.permit));
        self.records.insert(id, record);
        if !detail.is_default() {
            self.details.insert(id, detail);
        }
    }

    fn remove(&mut self, id: ReservationId) -> Option<(Record, Detail)> {
        let record = self.records.remove(&id)?;
        self.permits = self.permits.saturating_sub(i64::from(record.permit));
        Some((record, self.details.remove(&id).unwrap_or_default()))
    }

    /// Ends the generation and returns the permits that ended with it.
    fn end(&mut self) -> i64 {
        std::mem::take(self).permits
    }
}

// === impl Found ===

impl Found<'_> {
    pub(crate) fn detail(&self) -> Option<&Detail> {
        self.details.get(&self.id)
    }

    /// Closes an open reservation; its permit goes unless it is kept. Returns what it remembered.
    pub(crate) fn close(self, keep_permit: bool) -> Detail {
        self.record.state = State::Closed;
        if self.record.permit && !keep_permit {
            self.record.permit = false;
            *self.permits = self.permits.saturating_sub(1);
        }
        self.details.remove(&self.id).unwrap_or_default()
    }
}

// === impl Reservations ===

impl Reservations {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.end_ms == 0 && self.second.end_ms == 0 && self.queued.records.is_empty()
    }

    fn generation(&self, place: Place) -> &Generation {
        match place {
            Place::First => &self.first,
            Place::Second => &self.second,
            Place::Queue => &self.queued,
        }
    }

    fn generation_mut(&mut self, place: Place) -> &mut Generation {
        match place {
            Place::First => &mut self.first,
            Place::Second => &mut self.second,
            Place::Queue => &mut self.queued,
        }
    }

    /// The generations, the one that takes new reservations first, and the queue.
    const fn places(&self) -> [Place; 3] {
        if self.newer_is_second {
            [Place::Second, Place::First, Place::Queue]
        } else {
            [Place::First, Place::Second, Place::Queue]
        }
    }

    pub(crate) fn get(&self, id: ReservationId) -> Option<(&Record, Option<&Detail>)> {
        self.places().into_iter().find_map(|place| {
            let generation = self.generation(place);
            generation.records.get(&id).map(|record| (record, generation.details.get(&id)))
        })
    }

    /// Each look-up costs a miss of the cache where there are many.
    pub(crate) fn get_mut(&mut self, id: ReservationId) -> Option<Found<'_>> {
        let newer_first = if self.newer_is_second {
            [&mut self.second, &mut self.first, &mut self.queued]
        } else {
            [&mut self.first, &mut self.second, &mut self.queued]
        };
        newer_first.into_iter().find_map(|Generation { records, details, permits, .. }| {
            records.get_mut(&id).map(|record| Found { record, id, permits, details })
        })
    }

    /// Remembers a reservation where its expiry fits.
    pub(crate) fn insert(&mut self, id: ReservationId, record: Record, detail: Detail, now_ms: i64, ttl_ms: i64) {
        let [newer, older, _] = self.places();
        // A generation made under a longer permit life would return slots too late.
        let end_ms = now_ms.saturating_add(ttl_ms.saturating_mul(2));
        let fits = |generation: &Generation| (record.expires_ms..=end_ms).contains(&generation.end_ms);
        let place = if let Some(place) = [newer, older].into_iter().find(|place| fits(self.generation(*place))) {
            place
        } else if let Some(place) = [older, newer].into_iter().find(|place| self.generation(*place).end_ms == 0)
            && record.expires_ms <= end_ms
        {
            self.newer_is_second = place == Place::Second;
            // It will take about as many as the one before it, and must not stop to grow.
            let expected = self.generation(if place == newer { older } else { newer }).records.len();
            let generation = self.generation_mut(place);
            generation.end_ms = end_ms;
            generation.records.reserve(expected);
            place
        } else {
            self.queue.insert((record.expires_ms, id));
            Place::Queue
        };
        self.generation_mut(place).insert(id, record, detail);
    }

    /// Gives an open reservation a later end.
    pub(crate) fn extend(&mut self, id: ReservationId, expires_ms: i64) {
        let holds = |place: &Place| self.generation(*place).records.contains_key(&id);
        let Some(place) = self.places().into_iter().find(holds) else { return };
        let fits = place != Place::Queue && expires_ms <= self.generation(place).end_ms;
        if fits {
            if let Some(record) = self.generation_mut(place).records.get_mut(&id) {
                record.expires_ms = expires_ms;
            }
            return;
        }
        if let Some((mut record, detail)) = self.generation_mut(place).remove(id) {
            self.queue.remove(&(record.expires_ms, id));
            record.expires_ms = expires_ms;
            self.queue.insert((expires_ms, id));
            self.queued.insert(id, record, detail);
        }
    }

    /// Permits that will have ended with their generation at `now_ms`.
    pub(crate) fn permits_ended(&self, now_ms: i64) -> i64 {
        [&self.first, &self.second]
            .into_iter()
            .filter(|generation| generation.end_ms != 0 && generation.end_ms <= now_ms)
            .fold(0, |sum, generation| sum.saturating_add(generation.permits))
    }

    /// Drops generations that ended and works off the queue, a bounded number per call. Returns the permits that ended.
    /// What leaves the queue is remembered for another `ttl_ms`, so that a late release learns of it.
    pub(crate) fn drop_ended(&mut self, now_ms: i64, ttl_ms: i64) -> i64 {
        let mut ended = 0_i64;
        for generation in [&mut self.first, &mut self.second] {
            if generation.end_ms != 0 && generation.end_ms <= now_ms {
                ended = ended.saturating_add(generation.end());
            }
        }
        for _ in 0..QUEUE_PER_CALL_MAX {
            let Some((due_ms, id)) = self.queue.first().copied().filter(|(due_ms, _)| *due_ms <= now_ms) else { break };
            self.queue.remove(&(due_ms, id));
            let Some((mut record, _)) = self.queued.remove(id) else { continue };
            if record.permit || record.state == State::Open {
                ended = ended.saturating_add(i64::from(record.permit));
                record.permit = false;
                if record.state == State::Open {
                    record.state = State::Expired;
                }
                self.queued.insert(id, record, Detail::default());
                self.queue.insert((now_ms.saturating_add(ttl_ms), id));
            }
        }
        ended
    }

    /// Ends of the generations, newest marked; for comparing stores.
    pub(crate) fn shape(&self) -> [(i64, i64); 3] {
        let pair = |generation: &Generation| (generation.end_ms, generation.permits);
        [pair(&self.first), pair(&self.second), pair(&self.queued)]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ReservationId, &Record, Option<&Detail>)> {
        [&self.first, &self.second, &self.queued].into_iter().flat_map(|generation| {
            generation.records.iter().map(|(id, record)| (*id, record, generation.details.get(id)))
        })
    }
}
