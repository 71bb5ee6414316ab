//! What one run consists of: policies, processes, and the faults with their times. A seed makes one.

use budget::{
    ids::UnitId,
    lease::Timing,
    policy::{FallbackOriginals, FallbackRetries, Lease, Limit, Policy, Spec},
    units::Rate,
};

use crate::net::Net;

/// Something that happens to the world.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Network conditions change.
    Weather(Net),
    /// No messages between a process and all replicas.
    CutProcess(usize, bool),
    /// No messages between a replica and the stores.
    CutReplica(usize, bool),
    /// A replica dies, or starts again knowing nothing.
    Replica(usize, bool),
    /// The host of a replica starts anew.
    Reboot(usize),
    /// The master stops answering; its state stays.
    StopStore,
    /// It answers again, the same process with the same state.
    ContinueStore,
    /// The master starts again as another process: with its state of so many milliseconds ago, or with none.
    RestartStore(Option<i64>),
    /// The state is deleted; the process stays.
    Flush,
    /// A second master starts with the state of `back_ms` ago; the old one lives on for `overlap_ms`, and replicas turn to
    /// the new one one by one meanwhile; or, `split`, the first at the very end and all others at once.
    FailOver { back_ms: i64, overlap_ms: i64, split: bool },
    /// The masters' clocks jump.
    Jump(i64),
    /// No code of a process runs, its clock goes on; then it does again.
    Pause(usize, bool),
    /// As `Pause`, with the whole host suspended.
    Suspend(usize, bool),
    /// A process dies.
    Kill(usize),
    /// It starts again under the same id with another incarnation.
    Start(usize),
    /// It says farewell and ends.
    Leave(usize),
    /// A copy of it comes to life beside it: a VM snapshot.
    Clone(usize),
    /// A copy of an agent and of those it lends to, beside them: a VM snapshot of their host.
    CloneHost(usize),
    /// A policy is published.
    Publish(usize),
    /// A process asks so many times as much as before, in percent of what it began with.
    Demand(usize, u64),
    /// An operator takes a lease away, from whoever lends it.
    Revoke(usize),
    /// From now on this agent lends to it, or replicas do.
    Turn(usize, Option<usize>),
}

/// A process that asks.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    /// Its holder id.
    pub name: String,
    pub weight: i64,
    /// Originals per second.
    pub originals: f64,
    /// It is alive from the beginning.
    pub starts: bool,
    /// The only replica it talks to; none: any.
    pub endpoint: Option<usize>,
    /// It lends of its leases.
    pub lends: bool,
    /// The process that lends to it, by its index; none: replicas do.
    pub agent: Option<usize>,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub family: &'static str,
    pub(crate) timing: Timing,
    /// The first is in force from the beginning.
    pub(crate) policies: Vec<Spec>,
    pub(crate) askers: Vec<Asker>,
    pub(crate) replicas: usize,
    /// Originals per second of callers that hold no lease.
    pub(crate) direct: f64,
    /// Reserves reach the store only in the first of these out of each of the second, in milliseconds; none: always. Where a
    /// call costs more than it does in the ledger's own process, there are fewer of the commonest kind.
    pub reserves_in: Option<(i64, i64)>,
    /// Asks of holders reach the store together, so many milliseconds apart; none: each by itself.
    pub asks_apart_ms: Option<i64>,
    /// Retries asked for per original.
    pub(crate) retries: f64,
    /// Permits are held for up to so many milliseconds before they are sent, in one case of a hundred.
    pub(crate) late_send_ms: i64,
    /// Life of a reservation in flight where permits are limited.
    pub(crate) hold_ms: i64,
    /// What an attempt costs of the policy's cost unit at most, in tokens; 0: there is none.
    pub(crate) cost: i64,
    pub(crate) net: Net,
    /// An operator's word that the store is new.
    pub(crate) fresh: bool,
    /// With the milliseconds at which they happen.
    pub(crate) faults: Vec<(i64, Fault)>,
    pub duration_ms: i64,
    /// Nothing is wrong from here on: everybody must be leased again at the end.
    pub(crate) calm_from_ms: Option<i64>,
    /// Useful work is judged in these.
    pub(crate) work: Vec<Work>,
}

/// A stretch of time in which useful work is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Everything is well: at least so many percent of the policy are admitted.
    Calm { from_ms: i64, to_ms: i64, percent: i64 },
    /// Nothing answers from then on: at least 90% of what the curves carry is admitted.
    Outage { from_ms: i64, to_ms: i64 },
    /// This process admits nothing by a lease.
    Revoked { process: usize, from_ms: i64, to_ms: i64 },
}

// === impl Scenario ===

impl Scenario {
    pub(crate) fn at(&mut self, at_ms: i64, fault: Fault) {
        self.faults.push((at_ms, fault));
    }

    /// The longest curve of any policy of this run.
    pub(crate) fn longest_curve_ms(&self) -> i64 {
        let total = |spec: &Spec| spec.lease.curve.iter().map(|step| step.duration_ms).sum();
        self.policies.iter().map(total).max().unwrap_or(0)
    }

    /// Longest life of what a lost ledger granted: curve + m + σ.
    pub(crate) fn quarantine_ms(&self) -> i64 {
        self.longest_curve_ms() + self.timing.margin_ms + self.timing.overlap_ms
    }

    /// And of the permits taken under it, which are charged as long where their number is limited: who found none hears of
    /// their end with its next renewal.
    pub(crate) fn all_back_ms(&self) -> i64 {
        let limited = self.policies.iter().filter(|policy| policy.max_in_flight.is_some());
        let heard_ms = limited.map(|policy| policy.permit_ttl_ms + self.timing.renew_max_ms).max().unwrap_or(0);
        self.quarantine_ms() + heard_ms
    }
}

/// The cost unit of scenarios that have one.
pub(crate) fn unit() -> UnitId {
    UnitId::of(UNIT).unwrap()
}

pub(crate) const UNIT: &str = "input_tokens";

/// A policy with leases: so many per second, bursts, a ratio and a floor per second.
pub(crate) fn spec(rate: u32, burst: i64, ratio_ppm: i64, retry_burst: i64, floor: u32, curve: &[(i64, i64)]) -> Spec {
    let per_second = |tokens| Rate::new(tokens, budget::units::Period::Second).unwrap();
    let curve = curve.iter().map(|(percent, duration_ms)| budget::policy::CurveStep {
        part_ppm: percent * 10_000,
        duration_ms: *duration_ms,
    });
    let spec = Spec {
        admission: Some(Limit { rate: per_second(rate), burst_tokens: burst }),
        ratio_ppm,
        retry_burst_tokens: retry_burst,
        floor: per_second(floor),
        lease: Lease { enabled: true, curve: curve.collect(), ..Lease::default() },
        fallback_originals: Some(FallbackOriginals::Part(100_000)),
        fallback_retries: FallbackRetries::Earned,
        ..Spec::default()
    };
    let policy = Policy::new(spec).unwrap_or_else(|error| panic!("{error}"));
    policy.spec().clone()
}
