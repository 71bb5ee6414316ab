//! What a fleet admits while nothing answers, and how it comes back.

use super::{
    Fleet, horizon_ms,
    terms::{Alone, alone},
};
use crate::{
    lease::{Amounts, Curve, HOLDERS_MAX, NEWCOMERS_SHARE, SHARE_ONE, Timing},
    policy::{FallbackRetries, Policy},
    units::{MICROS_PER_TOKEN, PPM, checked_div, div_ceil},
};

/// A rate of the whole fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Micro-tokens per second.
    PerSecond(i64),
    /// Not limited.
    Unlimited,
}

/// A stretch of the outage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutageStep {
    /// Since the last renewal.
    pub from_ms: i64,
    /// None: until somebody answers again.
    pub until_ms: Option<i64>,
    /// By the lease; otherwise by the fallback.
    pub leased: bool,
    /// Attempts admitted in sum.
    pub admissions: Flow,
    /// Whether retries are admitted at all.
    pub retries: bool,
}

/// The fleet with everything down, and afterwards, at equal demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// What each holder has before; nothing where the quotas are too small to be shared among so many.
    pub share: Amounts,
    /// The curve, then the fallback.
    pub steps: Vec<OutageStep>,
    /// What callers of Reserve get by the fallback of all replicas, while only the store is away.
    pub reserve: Flow,
    /// After a loss of state nothing is granted for so long.
    pub wait_ms: i64,
    /// And for so long no more than what holders have proved.
    pub quarantine_ms: i64,
    /// Meanwhile callers of Reserve get this at least, after the wait.
    pub direct: Flow,
    /// Once a coordinator answers, every live holder is leased again after so long, whatever happened.
    pub leased_again_ms: i64,
    /// The share of a crashed holder is free again after so long; and a lowered policy holds everywhere.
    pub returned_ms: i64,
}

/// Among how many holders one quota can be leased: each needs a token of burst, or a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// The field that says so, such as `retry.burst`.
    pub field: String,
    /// What stands there.
    pub value: i64,
    /// At equal demand.
    pub holders: i64,
    /// In no case more.
    pub holders_most: i64,
    /// What each holder needs, in the unit that leases count this quota in.
    one: i64,
    part_ppm: i64,
}

/// All quotas as leases count them.
fn quotas(policy: &Policy) -> Amounts {
    policy.numbers(false, true).quota()
}

/// The share of one of so many holders at equal demand.
#[must_use]
pub(super) fn equal_share(policy: &Policy, holders: i64) -> Amounts {
    let part = checked_div(SHARE_ONE.saturating_sub(NEWCOMERS_SHARE), holders.max(1));
    let leasable = quotas(policy).scaled(policy.spec().lease.part_ppm, PPM);
    let shared = Sharing::all(policy).iter().all(|sharing| sharing.holders >= holders);
    leasable.scaled(if shared { part } else { 0 }, SHARE_ONE)
}

/// Whether a holder with this much can admit anything at all.
pub(super) fn admits(policy: &Policy, amounts: &Amounts) -> bool {
    let spec = policy.spec();
    (spec.admission.is_none() || amounts.burst >= MICROS_PER_TOKEN)
        && (spec.max_in_flight.is_none() || amounts.slots >= 1)
}

fn flow(alone: Alone, processes: i64) -> Flow {
    match alone {
        Alone::Nothing => Flow::PerSecond(0),
        Alone::Everything => Flow::Unlimited,
        Alone::Bucket(own) => Flow::PerSecond(own.rate.saturating_mul(processes)),
    }
}

// === impl Outage ===

impl Outage {
    /// Of a policy that permits leases, in a fleet.
    #[must_use]
    pub fn new(policy: &Policy, timing: &Timing, fleet: Fleet) -> Self {
        let spec = policy.spec();
        let share = equal_share(policy, fleet.holders);
        let curve = Curve(spec.lease.curve.as_slice().into());
        let own = alone(policy, fleet.holders.saturating_add(fleet.replicas));
        let mut steps = Vec::new();
        let mut from_ms = 0;
        for step in curve.0.iter().filter(|_| !share.is_zero()) {
            let until_ms = step.duration_ms.saturating_add(from_ms);
            let amounts = share.step(step);
            let admissions = match (admits(policy, &amounts), spec.admission) {
                (false, _) => Flow::PerSecond(0),
                (true, None) => Flow::Unlimited,
                (true, Some(_)) => Flow::PerSecond(amounts.rate.saturating_mul(fleet.holders)),
            };
            let retries = amounts.retry_burst >= MICROS_PER_TOKEN && admissions != Flow::PerSecond(0);
            steps.push(OutageStep { from_ms, until_ms: Some(until_ms), leased: true, admissions, retries });
            from_ms = until_ms;
        }
        let retries = spec.fallback_retries == FallbackRetries::Earned && own != Alone::Nothing && spec.ratio_ppm > 0;
        let admissions = flow(own, fleet.holders);
        steps.push(OutageStep { from_ms, until_ms: None, leased: false, admissions, retries });
        // Where permits are limited, those that were taken last are charged for their life.
        let permits_ms = if spec.max_in_flight.is_some() { spec.permit_ttl_ms } else { 0 };
        let quarantine_ms = horizon_ms(policy, timing).saturating_add(permits_ms);
        let direct = spec.admission.map_or(Flow::Unlimited, |limit| {
            let rate = limit.rate.micros_per_second();
            Flow::PerSecond(rate.saturating_sub(quotas(policy).scaled(spec.lease.part_ppm, PPM).rate))
        });
        Self {
            share,
            steps,
            reserve: flow(own, fleet.replicas),
            wait_ms: timing.overlap_ms,
            quarantine_ms,
            direct,
            leased_again_ms: timing.renew_max_ms.saturating_mul(2).saturating_add(quarantine_ms).saturating_add(2_000),
            returned_ms: curve.total_ms().saturating_add(timing.margin_ms).saturating_add(permits_ms),
        }
    }
}

// === impl Sharing ===

impl Sharing {
    /// Of each quota that is leased.
    #[must_use]
    pub fn all(policy: &Policy) -> Vec<Self> {
        let spec = policy.spec();
        let part = spec.lease.part_ppm;
        let mut all = Vec::new();
        let mut add = |field: String, value: i64, one: i64| {
            if value > 0 {
                all.push(Self::new(field, value, one, part));
            }
        };
        if let Some(limit) = spec.admission {
            add("admission.burst".to_owned(), limit.burst_tokens, MICROS_PER_TOKEN);
        }
        add("retry.burst".to_owned(), spec.retry_burst_tokens, MICROS_PER_TOKEN);
        for unit in &spec.units {
            add(format!("cost.{}.burst", unit.name), unit.limit.burst_tokens, MICROS_PER_TOKEN);
        }
        if let Some(permits) = spec.max_in_flight {
            add("admission.max_in_flight".to_owned(), permits.into(), 1);
        }
        all
    }

    fn new(field: String, value: i64, one: i64, part_ppm: i64) -> Self {
        let amounts = Amounts { burst: value.saturating_mul(one), ..Amounts::default() };
        let leasable = amounts.scaled(part_ppm, PPM).burst;
        let smallest = div_ceil(one.saturating_mul(SHARE_ONE), leasable);
        let among = |parts: i64| {
            let holders = if leasable < one { 0 } else { checked_div(parts, smallest) };
            holders.min(i64::try_from(HOLDERS_MAX).unwrap_or(i64::MAX))
        };
        let (holders, holders_most) = (among(SHARE_ONE.saturating_sub(NEWCOMERS_SHARE)), among(SHARE_ONE));
        Self { field, value, holders, holders_most, one, part_ppm }
    }

    /// The value that would do for so many holders at equal demand.
    #[must_use]
    pub fn needed(&self, holders: i64) -> i64 {
        let parts = i128::from(SHARE_ONE).saturating_mul(PPM.into()).saturating_mul(holders.into());
        let each = i128::from(SHARE_ONE.saturating_sub(NEWCOMERS_SHARE)).saturating_mul(self.part_ppm.into());
        let value = i64::try_from(super::ceil_div(parts, each)).unwrap_or(i64::MAX);
        let enough = |value: &i64| Self::new(String::new(), *value, self.one, self.part_ppm).holders >= holders;
        // What is leased and the shares of it are whole, which takes a little more.
        let little = value.saturating_add(value.div_euclid(100)).saturating_add(10);
        (value..little).find(enough).unwrap_or(little)
    }
}
