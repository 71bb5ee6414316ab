//! The lease that a holder lives by, the request it waits for an answer to, and how grants compare.

use super::NANOS_PER_MS;
use crate::{
    lease::{Amounts, Curve, LeaseName, Presented, SyncAsk},
    policy::{IN_FLIGHT_MAX, LEASED_RATE_MICROS_MAX},
    units::BURST_MICROS_MAX,
};

/// A lease along its curve.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    /// Before the curve.
    pub(super) value: Amounts,
    pub(super) curve: Curve,
    pub(super) start_ns: i64,
}

/// A lease of an agent, as it presents it.
#[derive(Clone, Debug)]
pub(super) struct Parent {
    pub(super) name: LeaseName,
    pub(super) lease: Lease,
}

#[derive(Debug)]
pub(super) struct Outstanding {
    pub(super) ask: SyncAsk,
    /// Number and time of sendings: the first, then the latest ones.
    pub(super) sent: Vec<(u32, i64)>,
    pub(super) attempt: u32,
    pub(super) resend_ns: i64,
}

/// Rule 5: a later grant of the same epoch, or one of an epoch that supersedes it.
pub(super) fn is_higher(name: LeaseName, current: LeaseName) -> bool {
    if name.epoch == current.epoch {
        name.generation > current.generation
    } else {
        name.epoch.supersedes(current.epoch)
    }
}

/// What arithmetic here can carry; a ledger never grants more.
pub(super) fn sane(amounts: &Amounts) -> Amounts {
    let kept = amounts.map(|amount| amount.clamp(0, BURST_MICROS_MAX));
    Amounts { rate: kept.rate.min(LEASED_RATE_MICROS_MAX), slots: kept.slots.min(IN_FLIGHT_MAX.into()), ..kept }
}

/// Whether any component is smaller: what is given up is usable once that is acknowledged.
pub(super) fn is_less(value: &Amounts, before: &Amounts) -> bool {
    let less = before.zip(value, |before, now| i64::from(now < before));
    !less.is_zero()
}

// === impl Lease ===

impl Lease {
    pub(super) fn position_ms(&self, now_ns: i64) -> i64 {
        now_ns.saturating_sub(self.start_ns).div_euclid(NANOS_PER_MS).max(0)
    }

    /// Whether its curve is over.
    pub(super) fn is_over(&self, now_ns: i64) -> bool {
        self.position_ms(now_ns) >= self.curve.total_ms()
    }

    /// The part of it that the step in force carries.
    pub(super) fn part_ppm(&self, now_ns: i64) -> i64 {
        self.curve.at(self.position_ms(now_ns)).map_or(0, |(step, _)| step.part_ppm)
    }

    pub(super) fn present(&self, name: LeaseName, now_ns: i64) -> Option<Presented> {
        let position_ms = self.position_ms(now_ns);
        (!self.is_over(now_ns)).then(|| Presented {
            name,
            value: self.value.clone(),
            curve: self.curve.clone(),
            position_ms,
        })
    }
}

// === impl Outstanding ===

impl Outstanding {
    /// When a sending went out; the first, if it is not known which.
    pub(super) fn sent_ns(&self, attempt: Option<u32>) -> i64 {
        let first = self.sent.first().map_or(0, |(_, at_ns)| *at_ns);
        let found = self.sent.iter().find(|(number, _)| attempt == Some(*number));
        found.map_or(first, |(_, at_ns)| *at_ns)
    }
}
