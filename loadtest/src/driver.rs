//! The closed loop: a fixed number of callers, each of which sends its next call when the last one is answered.
//!
//! The callers of one connection are polled by one task. Every server is driven by the same loop, and a slice counts
//! the calls that were started in it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use budgetd::clock::Clock;
use futures::{StreamExt, future, stream::FuturesUnordered};
use prost::Message;
use tokio::{task::JoinSet, time};
use tonic::{
    Request, Status,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};

use budget_proto::pb;

use crate::{
    Error,
    policies::name,
    rate_limit::{self, RateLimitResponse, SHOULD_RATE_LIMIT_PATH},
    session,
    stats::{percentile, ratio},
    wire::{Ids, Prepared, PreparedCodec, PreparedPair, RELEASE_PATH, RESERVE_PATH, Verdict},
};

/// How long a server may take to accept a connection or to answer the last calls of a slice.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server may lose an answer on a machine that stalls. More than one call in this many is a server that does not work.
const CALLS_PER_FAILURE_MIN: u64 = 100;

/// What is sent over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Reserve, then Release of what was admitted: two unary calls.
    Pair,
    /// Reserve alone; its permit ends by itself.
    ReserveOnly,
    /// As `Pair`, over one Session stream per connection.
    Session,
    /// As `ReserveOnly`, asked of a server that speaks Envoy's RateLimitService.
    RateLimit,
}

/// A closed loop against one server.
pub(crate) struct Driver {
    connections: Vec<Channel>,
    /// Callers of each connection.
    callers: Vec<usize>,
    run: u64,
    slices: u64,
}

/// The dependencies a loop draws from, prepared.
#[derive(Clone)]
pub(crate) struct Dependencies {
    pub(crate) names: Arc<[String]>,
    pub(crate) calls: Arc<[PreparedPair]>,
    pub(crate) rate_limits: Arc<[Prepared]>,
}

/// What a slice measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Slice {
    pub(crate) calls: u64,
    pub(crate) asks: u64,
    pub(crate) admitted: u64,
    pub(crate) releases: u64,
    pub(crate) released: u64,
    /// Among the asks and releases.
    pub(crate) failed: u64,
    pub(crate) calls_per_second: f64,
    pub(crate) p50_micros: Option<u32>,
    pub(crate) p99_micros: Option<u32>,
}

/// What one caller or connection counts; latencies in microseconds.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) asks: u64,
    pub(crate) admitted: u64,
    pub(crate) releases: u64,
    pub(crate) released: u64,
    pub(crate) failed: u64,
    pub(crate) first_failure: Option<Status>,
    pub(crate) latencies: Vec<u32>,
}

// === impl Driver ===

impl Driver {
    /// Opens the connections and spreads the callers over them. `run` seeds reservation ids.
    pub(crate) async fn connect(
        address: &str,
        connections: usize,
        concurrency: usize,
        run: u64,
    ) -> Result<Self, Error> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true).connect_timeout(PATIENCE);
        let connections = future::try_join_all((0..connections).map(|_| endpoint.connect())).await?;
        let callers = spread(concurrency, connections.len());
        Ok(Self { connections, callers, run, slices: 0 })
    }

    /// Drives the server for `length`, then waits for what is unanswered. Fails if more than a few calls do.
    pub(crate) async fn slice(
        &mut self,
        shape: Shape,
        dependencies: &Dependencies,
        length: Duration,
    ) -> Result<Slice, Error> {
        self.slices += 1;
        let start = Clock::instant();
        let end = start + length;
        let mut tasks = JoinSet::new();
        for (index, (channel, &callers)) in self.connections.iter().zip(&self.callers).enumerate() {
            let ids = Ids::new(self.run.wrapping_add(self.slices), index as u64);
            let (channel, dependencies) = (channel.clone(), dependencies.clone());
            tasks.spawn(async move {
                match shape {
                    Shape::Pair | Shape::ReserveOnly | Shape::RateLimit => {
                        Ok(unary(&channel, callers, shape, &dependencies, ids, end).await)
                    }
                    Shape::Session => session::drive(channel, callers, &dependencies, ids, end).await,
                }
            });
        }
        let mut tally = Tally::default();
        let gather = async {
            while let Some(joined) = tasks.join_next().await {
                tally.add(joined??);
            }
            Ok::<_, Error>(())
        };
        time::timeout(length + PATIENCE, gather)
            .await
            .map_err(|_| format!("calls were unanswered {} s after the end of a slice", PATIENCE.as_secs()))??;
        let (slice, first_failure) = tally.into_slice(start.elapsed());
        match first_failure {
            Some(status) if slice.failed.saturating_mul(CALLS_PER_FAILURE_MIN) > slice.calls => {
                Err(format!("{} of {} calls failed, the first with {status}", slice.failed, slice.calls).into())
            }
            Some(_) | None => Ok(slice),
        }
    }
}

/// As even as possible.
fn spread(callers: usize, connections: usize) -> Vec<usize> {
    (0..connections).map(|index| callers / connections + usize::from(index < callers % connections)).collect()
}

async fn unary(
    channel: &Channel,
    callers: usize,
    shape: Shape,
    dependencies: &Dependencies,
    mut ids: Ids,
    end: Instant,
) -> Tally {
    let mut running: FuturesUnordered<_> = (0..callers)
        .map(|caller| {
            let ids = Ids::new(ids.bits(), caller as u64);
            call_until(Grpc::new(channel.clone()), shape, dependencies, ids, end)
        })
        .collect();
    let mut total = Tally::default();
    while let Some(tally) = running.next().await {
        total.add(tally);
    }
    total
}

/// One caller.
async fn call_until(
    mut grpc: Grpc<Channel>,
    shape: Shape,
    dependencies: &Dependencies,
    mut ids: Ids,
    end: Instant,
) -> Tally {
    let reserve_path = PathAndQuery::from_static(RESERVE_PATH);
    let release_path = PathAndQuery::from_static(RELEASE_PATH);
    let rate_limit_path = PathAndQuery::from_static(SHOULD_RATE_LIMIT_PATH);
    let mut tally = Tally::default();
    let mut sent_at = Clock::instant();
    while sent_at < end {
        let index = pick(ids.bits(), dependencies.calls.len());
        if shape == Shape::RateLimit {
            let answer = call(&mut grpc, &rate_limit_path, dependencies.rate_limits[index]).await;
            let verdict = tally.judge::<RateLimitResponse>(answer);
            sent_at = tally.note_ask(verdict, sent_at);
            continue;
        }
        let pair = &dependencies.calls[index];
        let id = ids.id();
        let answer = call::<pb::ReserveResponse>(&mut grpc, &reserve_path, pair.reserve.with_id(id)).await;
        let verdict = tally.judge(answer);
        sent_at = tally.note_ask(verdict, sent_at);
        if shape == Shape::Pair && verdict == Verdict::Admitted {
            let answer = call::<pb::ReleaseResponse>(&mut grpc, &release_path, pair.release.with_id(id)).await;
            let verdict = tally.judge(answer);
            sent_at = tally.note_release(verdict, sent_at);
        }
    }
    tally
}

async fn call<Answer: Message + Default + 'static>(
    grpc: &mut Grpc<Channel>,
    path: &PathAndQuery,
    request: Prepared,
) -> Result<Answer, Status> {
    grpc.ready().await.map_err(|error| Status::unavailable(format!("connection lost: {error}")))?;
    let answer = grpc.unary(Request::new(request), path.clone(), PreparedCodec::unary()).await?;
    Ok(answer.into_inner())
}

/// An index below `count` from random bits.
pub(crate) fn pick(bits: u64, count: usize) -> usize {
    ((u128::from(bits) * count as u128) >> 64) as usize
}

// === impl Dependencies ===

impl Dependencies {
    /// `count` names under `family`.
    pub(crate) fn new(family: &str, count: usize) -> Self {
        let names: Arc<[String]> = (0..count).map(|index| name(family, index)).collect();
        let calls = names.iter().map(|name| PreparedPair::unary(name)).collect();
        let rate_limits = names.iter().map(|name| rate_limit::prepared(name)).collect();
        Self { names, calls, rate_limits }
    }
}

// === impl Tally ===

impl Tally {
    /// What an answer says; a failure is kept for the report.
    pub(crate) fn judge<Answer>(&mut self, answer: Result<Answer, Status>) -> Verdict
    where
        for<'a> Verdict: From<&'a Answer>,
    {
        match answer {
            Ok(answer) => Verdict::from(&answer),
            Err(status) => {
                self.failed += 1;
                self.first_failure.get_or_insert(status);
                Verdict::Failed
            }
        }
    }

    /// Counts an answer to a Reserve and returns when it came.
    pub(crate) fn note_ask(&mut self, verdict: Verdict, sent_at: Instant) -> Instant {
        self.asks += 1;
        self.admitted += u64::from(verdict == Verdict::Admitted);
        self.note_latency(sent_at)
    }

    /// Counts an answer to a Release and returns when it came.
    pub(crate) fn note_release(&mut self, verdict: Verdict, sent_at: Instant) -> Instant {
        self.releases += 1;
        self.released += u64::from(verdict == Verdict::Released);
        self.note_latency(sent_at)
    }

    fn note_latency(&mut self, sent_at: Instant) -> Instant {
        let now = Clock::instant();
        let micros = now.saturating_duration_since(sent_at).as_micros();
        self.latencies.push(u32::try_from(micros).unwrap_or(u32::MAX));
        now
    }

    fn add(&mut self, other: Self) {
        self.asks += other.asks;
        self.admitted += other.admitted;
        self.releases += other.releases;
        self.released += other.released;
        self.failed += other.failed;
        self.first_failure = self.first_failure.take().or(other.first_failure);
        self.latencies.extend(other.latencies);
    }

    fn into_slice(mut self, took: Duration) -> (Slice, Option<Status>) {
        let calls = self.asks + self.releases;
        let slice = Slice {
            calls,
            asks: self.asks,
            admitted: self.admitted,
            releases: self.releases,
            released: self.released,
            failed: self.failed,
            calls_per_second: ratio(calls as f64, took.as_secs_f64()).unwrap_or(0.0),
            p50_micros: percentile(&mut self.latencies, 0.5),
            p99_micros: percentile(&mut self.latencies, 0.99),
        };
        (slice, self.first_failure)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{net::TcpListener, sync::oneshot};

    use super::*;
    use crate::echo;

    async fn echo_slice(shape: Shape) -> Slice {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let (end, ended) = oneshot::channel::<()>();
        let server = tokio::spawn(echo::run(listener, async move { drop(ended.await) }));
        let mut driver = Driver::connect(&address, 2, 9, 1).await.expect("connects");
        let dependencies = Dependencies::new("bench/all/", 3);
        let slice = driver.slice(shape, &dependencies, Duration::from_millis(50)).await.expect("answers");
        drop((end, driver));
        server.await.expect("ends").expect("served");
        slice
    }

    #[tokio::test]
    async fn every_shape_counts_its_calls_and_measures_them() {
        for shape in [Shape::Pair, Shape::ReserveOnly, Shape::Session, Shape::RateLimit] {
            let slice = echo_slice(shape).await;
            assert!(slice.asks >= 9, "{shape:?}: {slice:?}");
            assert_eq!(slice.admitted, slice.asks, "{shape:?}");
            let releases = if matches!(shape, Shape::ReserveOnly | Shape::RateLimit) { 0 } else { slice.asks };
            assert_eq!((slice.releases, slice.released), (releases, releases), "{shape:?}");
            assert_eq!(slice.calls, slice.asks + releases, "{shape:?}");
            assert!(slice.calls_per_second > 0.0 && slice.p50_micros <= slice.p99_micros, "{shape:?}: {slice:?}");
        }
    }

    #[tokio::test]
    async fn a_server_that_goes_away_fails_the_slice() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        // The connection waits in the backlog, and is reset with it.
        let mut driver = Driver::connect(&address, 1, 4, 1).await.expect("connects");
        drop(listener);
        let dependencies = Dependencies::new("bench/one/", 1);
        for shape in [Shape::Pair, Shape::Session] {
            let slice = driver.slice(shape, &dependencies, Duration::from_millis(50));
            assert!(slice.await.is_err(), "{shape:?}");
        }
    }

    #[test]
    fn callers_are_spread_evenly() {
        assert_eq!(spread(256, 4), [64, 64, 64, 64]);
        assert_eq!(spread(10, 4), [3, 3, 2, 2]);
        assert_eq!(spread(1, 2), [1, 0]);
    }

    #[test]
    fn picks_cover_all_and_stay_below_the_count() {
        assert_eq!(pick(0, 1000), 0);
        assert_eq!(pick(u64::MAX, 1000), 999);
        assert_eq!(pick(u64::MAX / 2 + 1, 2), 1);
        assert_eq!(pick(12345, 1), 0);
    }

    #[test]
    fn a_slice_counts_both_calls_of_a_pair() {
        let mut tally = Tally::default();
        let at = Clock::instant();
        tally.note_ask(Verdict::Admitted, at);
        tally.note_release(Verdict::Released, at);
        tally.note_ask(Verdict::Refused, at);
        let (slice, _) = tally.into_slice(Duration::from_secs(1));
        assert_eq!((slice.calls, slice.asks, slice.admitted), (3, 2, 1));
        assert_eq!((slice.releases, slice.released), (1, 1));
        assert!((slice.calls_per_second - 3.0).abs() < 1e-9);
        assert_eq!(Tally::default().into_slice(Duration::ZERO).0, Slice::default());
    }

    #[test]
    fn failed_calls_are_counted_and_the_first_is_kept() {
        let mut tally = Tally::default();
        for text in ["first", "second"] {
            assert_eq!(tally.judge::<pb::ReserveResponse>(Err(Status::unavailable(text))), Verdict::Failed);
            tally.note_ask(Verdict::Failed, Clock::instant());
        }
        let (slice, first) = tally.into_slice(Duration::from_secs(1));
        assert_eq!((slice.asks, slice.admitted, slice.failed), (2, 0, 2));
        assert_eq!(first.expect("kept").message(), "first");
    }
}
