//! Memory per item: what a store grows by when it keeps many of one kind.
//!
//! Redis: growth of `used_memory` without the buffers of connections, so hash tables, keys and allocator rounding are
//! in it. Memory store: growth of the daemon's anonymous resident memory. Both are read after a first step of the same
//! kind and after further ones, so what the first calls allocate once is not in it. Servers are started for this alone.

use std::{fmt, ops::Range, path::Path, time::Duration};

use serde::Serialize;
use tokio::time;

use crate::{
    Error,
    calls::{Caller, Deed, Kind},
    policies::{IDLE_WITH_UNITS, OPEN, OPEN_WITH_UNITS, OPERATIONS, SHORT_PERMIT_TTL_MS, UNITS, UNNAMED, name},
    redis_server::RedisServer,
    server_process::ServerProcess,
    stats::OrNa,
    wire::Ids,
};

/// The first ones are not counted.
const FIRST_IDLE_DEPENDENCIES: usize = 1000;
const IDLE_DEPENDENCIES: usize = 4000;
const OPEN_RESERVATIONS: usize = 20_000;
const TRACKED_OPERATIONS: usize = 5000;

/// Dependencies of one step and number of steps on the memory store; it takes 10,000 unnamed ones.
const MEMORY_STEP: usize = 1000;
const MEMORY_STEPS: usize = 9;

/// Whole operations at every dependency that is to be idle.
const VISITS: usize = 3;

/// A record lives up to two permit TTLs; then the next call drops it.
const RECORDS_GONE: Duration = Duration::from_millis(SHORT_PERMIT_TTL_MS * 5 / 2);

/// Calls that let one busy ledger drop its ended records, each a bounded part.
const NUDGES: usize = 200;

/// Memory stands still when it moved by at most this between readings.
const STEADY_BYTES: u64 = 512;
const STEADY_PAUSE: Duration = Duration::from_millis(200);
const STEADY_READINGS: u32 = 3;
const STEADY_ATTEMPTS: u32 = 50;

/// Bytes per item; absent where they were not measured.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Bytes {
    /// With three cost units.
    redis_idle_dependency: Option<f64>,
    redis_open_reservation: Option<f64>,
    redis_open_reservation_with_3_costs: Option<f64>,
    /// Completed, with a result reference.
    redis_tracked_operation: Option<f64>,
    memory_idle_dependency: Option<f64>,
    memory_idle_dependency_with_3_units: Option<f64>,
}

/// Weighs what Redis keeps.
pub(crate) async fn measure_redis(
    bytes: &mut Bytes,
    redis_program: &Path,
    policy_file: &Path,
    scratch: &Path,
) -> Result<(), Error> {
    let mut redis = RedisServer::start(redis_program, scratch, "bytes-redis").await?;
    let mut process = ServerProcess::start_daemon("redis-bytes", redis.url(), policy_file, scratch).await?;
    let filled = fill_redis(bytes, &mut redis, process.address()).await;
    filled.map_err(|error| process.blame(&error))?;
    process.end().await?;
    redis.end().await
}

async fn fill_redis(bytes: &mut Bytes, redis: &mut RedisServer, address: &str) -> Result<(), Error> {
    let caller = Caller::connect(address).await?;
    let mut ids = Ids::new(1, 1);
    // Everything that exists once, and every busy ledger, is there before the first reading.
    let first = [
        (name(IDLE_WITH_UNITS, 0), Deed::Whole(Kind::WithCosts(&UNITS))),
        (name(OPEN, 0), Deed::Open(Kind::Plain)),
        (name(OPEN_WITH_UNITS, 0), Deed::Open(Kind::WithCosts(&UNITS))),
        (name(OPERATIONS, 0), Deed::Whole(Kind::Tracked(0))),
    ];
    caller.all(&mut ids, first).await?;

    let kind = Kind::WithCosts(&UNITS);
    make_idle(&caller, &mut ids, IDLE_WITH_UNITS, kind, 0..FIRST_IDLE_DEPENDENCIES).await?;
    let before = steady(redis).await?;
    let further = FIRST_IDLE_DEPENDENCIES..FIRST_IDLE_DEPENDENCIES + IDLE_DEPENDENCIES;
    make_idle(&caller, &mut ids, IDLE_WITH_UNITS, kind, further).await?;
    bytes.redis_idle_dependency = Some(per_item(before, steady(redis).await?, IDLE_DEPENDENCIES));

    let before = steady(redis).await?;
    caller.all(&mut ids, (0..OPEN_RESERVATIONS).map(|_| (name(OPEN, 0), Deed::Open(Kind::Plain)))).await?;
    bytes.redis_open_reservation = Some(per_item(before, steady(redis).await?, OPEN_RESERVATIONS));

    let before = steady(redis).await?;
    let open = Deed::Open(Kind::WithCosts(&UNITS));
    caller.all(&mut ids, (0..OPEN_RESERVATIONS).map(|_| (name(OPEN_WITH_UNITS, 0), open))).await?;
    bytes.redis_open_reservation_with_3_costs = Some(per_item(before, steady(redis).await?, OPEN_RESERVATIONS));

    let before = steady(redis).await?;
    let operations = (1..=TRACKED_OPERATIONS).map(|number| (name(OPERATIONS, 0), Deed::Whole(Kind::Tracked(number))));
    caller.all(&mut ids, operations).await?;
    time::sleep(RECORDS_GONE).await;
    caller.all(&mut ids, (0..NUDGES).map(|_| (name(OPERATIONS, 0), Deed::Nudge))).await?;
    bytes.redis_tracked_operation = Some(per_item(before, steady(redis).await?, TRACKED_OPERATIONS));
    Ok(())
}

/// Weighs what the memory store keeps.
pub(crate) async fn measure_memory(bytes: &mut Bytes, policy_file: &Path, scratch: &Path) -> Result<(), Error> {
    let (server, kind) = ("memory-plain", Kind::Plain);
    bytes.memory_idle_dependency = weigh_idle(server, UNNAMED, kind, policy_file, scratch).await?;
    let (server, kind) = ("memory-units", Kind::WithCosts(&UNITS));
    bytes.memory_idle_dependency_with_3_units = weigh_idle(server, IDLE_WITH_UNITS, kind, policy_file, scratch).await?;
    Ok(())
}

async fn weigh_idle(
    server: &'static str,
    family: &str,
    kind: Kind,
    policy_file: &Path,
    scratch: &Path,
) -> Result<Option<f64>, Error> {
    let mut process = ServerProcess::start_daemon(server, "memory", policy_file, scratch).await?;
    let filled = fill_memory(&process, family, kind).await;
    let bytes = filled.map_err(|error| process.blame(&error))?;
    process.end().await?;
    Ok(bytes)
}

async fn fill_memory(process: &ServerProcess, family: &str, kind: Kind) -> Result<Option<f64>, Error> {
    let caller = Caller::connect(process.address()).await?;
    let mut ids = Ids::new(1, 2);
    let mut after_first_step = None;
    for step in 0..MEMORY_STEPS {
        make_idle(&caller, &mut ids, family, kind, step * MEMORY_STEP..(step + 1) * MEMORY_STEP).await?;
        if step == 0 {
            after_first_step = process.anonymous_bytes();
        }
    }
    let measured = after_first_step.zip(process.anonymous_bytes());
    Ok(measured.map(|(before, after)| per_item(before, after, (MEMORY_STEPS - 1) * MEMORY_STEP)))
}

/// Uses dependencies and lets them lie until no record of a reservation is left.
async fn make_idle(
    caller: &Caller,
    ids: &mut Ids,
    family: &str,
    kind: Kind,
    members: Range<usize>,
) -> Result<(), Error> {
    let names = || members.clone().map(|index| name(family, index));
    for _ in 0..VISITS {
        caller.all(ids, names().map(|name| (name, Deed::Whole(kind)))).await?;
    }
    time::sleep(RECORDS_GONE).await;
    caller.all(ids, names().map(|name| (name, Deed::Nudge))).await
}

/// What Redis uses once it has stopped changing: tables are rehashed and keys expire in the background.
async fn steady(redis: &mut RedisServer) -> Result<u64, Error> {
    let (mut last, mut still) = (redis.data_bytes().await?, 0);
    for _ in 0..STEADY_ATTEMPTS {
        time::sleep(STEADY_PAUSE).await;
        let now = redis.data_bytes().await?;
        still = if now.abs_diff(last) <= STEADY_BYTES { still + 1 } else { 0 };
        last = now;
        if still == STEADY_READINGS {
            return Ok(last);
        }
    }
    Err("the memory of redis-server does not come to rest".into())
}

fn per_item(before: u64, after: u64, items: usize) -> f64 {
    (after as f64 - before as f64) / items as f64
}

// === impl Bytes ===

impl Bytes {
    /// What is printed: name, bytes, and the most it may be.
    fn lines(&self) -> [(&'static str, Option<f64>, Option<f64>); 6] {
        [
            ("redis: idle dependency, 3 cost units", self.redis_idle_dependency, Some(800.0)),
            ("redis: open reservation", self.redis_open_reservation, Some(200.0)),
            ("redis: open reservation, 3 costs", self.redis_open_reservation_with_3_costs, None),
            ("redis: tracked operation, finished", self.redis_tracked_operation, Some(400.0)),
            ("memory: idle dependency", self.memory_idle_dependency, Some(400.0)),
            ("memory: idle dependency, 3 cost units", self.memory_idle_dependency_with_3_units, None),
        ]
    }

    /// Something takes more than it may.
    pub(crate) fn goals_missed(&self) -> bool {
        self.lines().into_iter().any(|(_, bytes, most)| bytes.zip(most).is_some_and(|(bytes, most)| bytes > most))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lines().iter().all(|(_, bytes, _)| bytes.is_none()) {
            return Ok(());
        }
        writeln!(f, "{:<40} {:>9}  {:<8}", "memory per item", "bytes", "target")?;
        for (name, bytes, most) in self.lines() {
            let target = most.map_or(String::new(), |most| format!("≤{most}"));
            let verdict = match bytes.zip(most) {
                Some((bytes, most)) if bytes > most => "SHORT",
                Some(_) => "ok",
                None => "",
            };
            let bytes = OrNa(bytes.map(|bytes| format!("{bytes:.1}")));
            writeln!(f, "{}", format!("{name:<40} {bytes:>9}  {target:<8} {verdict}").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_allowed_is_missed_and_not_measured_is_not() {
        assert!(!Bytes::default().goals_missed());
        assert_eq!(Bytes::default().to_string(), "");
        let bytes = Bytes { redis_idle_dependency: Some(801.0), ..Bytes::default() };
        assert!(bytes.goals_missed());
        assert!(bytes.to_string().contains("SHORT"));
        let bytes = Bytes { redis_idle_dependency: Some(800.0), ..Bytes::default() };
        assert!(!bytes.goals_missed());
        assert!(bytes.to_string().contains("n/a"));
    }

    #[test]
    fn growth_is_divided_by_the_items() {
        assert!((per_item(1000, 3000, 10) - 200.0).abs() < 1e-9);
        assert!((per_item(3000, 1000, 10) + 200.0).abs() < 1e-9);
    }
}
