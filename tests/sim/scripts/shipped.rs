//! What the simulator's build of the pure crate calls, as the shipped build calls it: the codec of the scripts knows only
//! the latter.

use std::sync::Arc;

use budget::{decision, ids, lease, policy};
use shipped::{
    decision::{Attempt, Cause, Cost, Outcome, Release, Reserve, Step},
    ids::{PolicyVersion, ReservationId, UnitId},
    lease::{Amounts, Curve, Epoch, Ground, HolderId, Incarnation, LeaseName, Presented, SyncAsk, UnitAmounts, Usage},
    policy::{BucketNumbers, CurveStep, LeaseNumbers, Numbers},
};

pub(crate) fn version(from: ids::PolicyVersion) -> PolicyVersion {
    PolicyVersion { number: from.number, id: from.id }
}

fn unit(from: ids::UnitId) -> UnitId {
    UnitId::from_raw(from.raw())
}

fn epoch(from: lease::Epoch) -> Epoch {
    Epoch { number: from.number, id: from.id }
}

pub(crate) fn ground(from: &lease::Ground) -> Ground {
    Ground {
        identity: from.identity,
        remembered: epoch(from.remembered),
        fresh_id: from.fresh_id,
        fresh_store: from.fresh_store,
        beat: from.beat,
    }
}

pub(crate) fn holder(from: &lease::HolderId) -> HolderId {
    HolderId::new(from.as_str()).unwrap()
}

fn curve(from: &lease::Curve) -> Curve {
    Curve(from.0.iter().map(|step| CurveStep { part_ppm: step.part_ppm, duration_ms: step.duration_ms }).collect())
}

fn presented(from: &lease::Presented) -> Presented {
    let value = &from.value;
    let units = value.units.iter();
    Presented {
        name: LeaseName { epoch: epoch(from.name.epoch), generation: from.name.generation },
        value: Amounts {
            rate: value.rate,
            burst: value.burst,
            retry_burst: value.retry_burst,
            slots: value.slots,
            units: units.map(|it| UnitAmounts { unit: unit(it.unit), rate: it.rate, burst: it.burst }).collect(),
        },
        curve: curve(&from.curve),
        position_ms: from.position_ms,
    }
}

fn usage(from: &lease::Usage) -> Usage {
    Usage {
        asked: from.asked,
        originals_admitted: from.originals_admitted,
        retries_admitted: from.retries_admitted,
        originals_denied: from.originals_denied,
        retries_denied: from.retries_denied,
        not_sent: from.not_sent,
        fallback_originals: from.fallback_originals,
        fallback_retries: from.fallback_retries,
        deposited_micros: from.deposited_micros,
        units_asked: from.units_asked.iter().map(|(id, asked)| (unit(*id), *asked)).collect(),
        overuse_micros: from.overuse_micros,
    }
}

pub(crate) fn ask(from: &lease::SyncAsk) -> SyncAsk {
    SyncAsk {
        holder: holder(&from.holder),
        incarnation: Incarnation(from.incarnation.0),
        sequence: from.sequence,
        nonce: from.nonce,
        epoch: epoch(from.epoch),
        lease: from.lease.as_ref().map(presented),
        usage: usage(&from.usage),
        counted: usage(&from.counted),
        in_flight: from.in_flight,
        weight: from.weight,
        leave: from.leave,
    }
}

/// Reserves and Releases as the simulator makes them.
pub(crate) fn step(from: &decision::Step) -> Step {
    match from {
        decision::Step::Reserve(ask) => {
            let cause = |from: decision::Cause| {
                let at = decision::Cause::ALL.iter().position(|cause| *cause == from).unwrap();
                Cause::ALL[at]
            };
            let attempt = Attempt { number: ask.attempt.number, cause: ask.attempt.cause.map(cause) };
            let costs = ask.costs.iter();
            let plain = decision::Reserve::new(ask.id, ask.attempt);
            let plain = decision::Reserve { costs: ask.costs.clone(), no_release: ask.no_release, ..plain };
            assert_eq!(*ask, plain, "the simulator uses more than is told here");
            Step::Reserve(Reserve {
                costs: costs.map(|cost| Cost { unit: unit(cost.unit), amount_micros: cost.amount_micros }).collect(),
                no_release: ask.no_release,
                ..Reserve::new(ReservationId(ask.id.0), attempt)
            })
        }
        decision::Step::Release(release) => {
            let plain = decision::Release::sent(release.id, decision::Outcome::Success);
            assert_eq!(*release, plain, "the simulator uses more than is told here");
            Step::Release(Release::sent(ReservationId(release.id.0), Outcome::Success))
        }
        decision::Step::Extend(_) => unreachable!("the simulator prolongs nothing"),
    }
}

fn bucket(from: policy::BucketNumbers) -> BucketNumbers {
    BucketNumbers {
        num: from.num,
        den: from.den,
        burst: from.burst,
        elapsed_ms_max: from.elapsed_ms_max,
        debt_max: from.debt_max,
        keep: from.keep,
    }
}

pub(crate) fn numbers(from: &policy::Numbers) -> Arc<Numbers> {
    let terms = |from: &policy::LeaseNumbers| LeaseNumbers {
        part_ppm: from.part_ppm,
        widest_part_ppm: from.widest_part_ppm,
        curve: curve(&from.curve),
        longest_curve_ms: from.longest_curve_ms,
        margin_ms: from.margin_ms,
        overlap_ms: from.overlap_ms,
        step_max_ms: from.step_max_ms,
    };
    Arc::new(Numbers {
        shadow: from.shadow,
        retries_off: from.retries_off,
        admission: from.admission.map(bucket),
        max_in_flight: from.max_in_flight,
        keep_in_flight: from.keep_in_flight,
        permit_ttl_ms: from.permit_ttl_ms,
        max_wait_ms: from.max_wait_ms,
        retry: bucket(from.retry),
        deposit_micros: from.deposit_micros,
        earn_on_success: from.earn_on_success,
        retry_cost_micros: from.retry_cost_micros,
        max_attempts: from.max_attempts,
        retention_ms: from.retention_ms,
        absent_admission_micros: from.absent_admission_micros,
        priority_ppm: from.priority_ppm,
        slots_limited: from.slots_limited,
        lease: from.lease.as_ref().map(terms),
        idle_ttl_ms: from.idle_ttl_ms,
        units: from.units.iter().map(|(id, numbers)| (unit(*id), bucket(*numbers))).collect(),
    })
}
