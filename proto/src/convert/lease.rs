//! The values of leases, in both directions.

use budget::{
    ids::UnitId,
    lease::{Amounts, Curve, EPOCH_NUMBER_MAX, Epoch, Grant, LeaseName, Presented, UnitAmounts, Usage},
    policy::{CURVE_MS_MAX, CURVE_STEPS_MAX, CurveStep, IN_FLIGHT_MAX, LEASED_RATE_MICROS_MAX, UNITS_MAX},
    units::{BURST_MICROS_MAX, EXACT_MAX, PPM},
};

use super::{not_negative, optional, unit, unsigned, within};
use crate::{InvalidMessage, UnitNames, pb};

/// Ids of epochs and nonces are random in 52 bits.
pub(super) const RANDOM_MAX: i64 = (1 << 52) - 1;

/// What the fields of some [`pb::Amounts`] are called.
pub(super) struct AmountsFields {
    whole: &'static str,
    rate: &'static str,
    burst: &'static str,
    retry_burst: &'static str,
    slots: &'static str,
    units: &'static str,
    unit: &'static str,
    unit_rate: &'static str,
    unit_burst: &'static str,
}

/// What the fields of some [`pb::Usage`] are called.
pub(super) struct UsageFields {
    counters: [&'static str; COUNTERS],
    units: &'static str,
    unit: &'static str,
    unit_asked: &'static str,
}

/// What the fields of an epoch, a generation or a curve are called.
pub(super) struct EpochFields {
    pub(super) whole: &'static str,
    pub(super) number: &'static str,
    pub(super) id: &'static str,
}

struct CurveFields {
    whole: &'static str,
    part: &'static str,
    duration: &'static str,
}

/// Counters of a [`Usage`] beside those of its units.
const COUNTERS: usize = 10;

macro_rules! amounts_fields {
    ($whole:literal) => {
        AmountsFields {
            whole: $whole,
            rate: concat!($whole, ".rate_micros_per_second"),
            burst: concat!($whole, ".burst_micros"),
            retry_burst: concat!($whole, ".retry_burst_micros"),
            slots: concat!($whole, ".slots"),
            units: concat!($whole, ".units"),
            unit: concat!($whole, ".units.unit"),
            unit_rate: concat!($whole, ".units.rate_micros_per_second"),
            unit_burst: concat!($whole, ".units.burst_micros"),
        }
    };
}

macro_rules! usage_fields {
    ($whole:literal) => {
        UsageFields {
            counters: [
                concat!($whole, ".asked"),
                concat!($whole, ".originals_admitted"),
                concat!($whole, ".retries_admitted"),
                concat!($whole, ".originals_denied"),
                concat!($whole, ".retries_denied"),
                concat!($whole, ".not_sent"),
                concat!($whole, ".fallback_originals"),
                concat!($whole, ".fallback_retries"),
                concat!($whole, ".deposited_micros"),
                concat!($whole, ".overuse_micros"),
            ],
            units: concat!($whole, ".units"),
            unit: concat!($whole, ".units.unit"),
            unit_asked: concat!($whole, ".units.asked_micros"),
        }
    };
}

macro_rules! epoch_fields {
    ($whole:literal) => {
        EpochFields { whole: $whole, number: concat!($whole, ".number"), id: concat!($whole, ".id") }
    };
}

macro_rules! curve_fields {
    ($whole:literal) => {
        CurveFields { whole: $whole, part: concat!($whole, ".part_ppm"), duration: concat!($whole, ".duration_ms") }
    };
}

const PRESENTED_EPOCH: EpochFields = epoch_fields!("asks.lease.epoch");
const PRESENTED_VALUE: AmountsFields = amounts_fields!("asks.lease.value");
const PRESENTED_CURVE: CurveFields = curve_fields!("asks.lease.curve");
const GRANTED_EPOCH: EpochFields = epoch_fields!("granted.epoch");
const GRANTED_VALUE: AmountsFields = amounts_fields!("granted.value");
const GRANTED_MOVED: AmountsFields = amounts_fields!("granted.moved");
const GRANTED_CURVE: CurveFields = curve_fields!("granted.curve");
pub(super) const ASK_EPOCH: EpochFields = epoch_fields!("asks.epoch");
pub(super) const OTHER_EPOCH: EpochFields = epoch_fields!("other_epoch");
pub(super) const USAGE: UsageFields = usage_fields!("asks.usage");
pub(super) const COUNTED: UsageFields = usage_fields!("asks.counted");
pub(super) const HOLDER_VALUE: AmountsFields = amounts_fields!("holders.value");
pub(super) const HOLDER_CHARGED: AmountsFields = amounts_fields!("holders.charged");
pub(super) const HOLDER_USAGE: UsageFields = usage_fields!("holders.usage");
pub(super) const LENDING_EPOCH: EpochFields = epoch_fields!("lending.epoch");
pub(super) const LENDING_CHARGED: AmountsFields = amounts_fields!("lending.charged");
pub(super) const LENDING_UNKNOWN: AmountsFields = amounts_fields!("lending.unknown");

// Inward.

pub(super) fn epoch(fields: &EpochFields, epoch: Option<pb::Epoch>) -> Result<Epoch, InvalidMessage> {
    let pb::Epoch { number, id } = epoch.ok_or_else(|| InvalidMessage::absent(fields.whole, "is required"))?;
    // An agent's has number 0 and an id; without both there is none.
    let id_min = i64::from(number == 0);
    Ok(Epoch {
        number: within(fields.number, number, 0, EPOCH_NUMBER_MAX)?,
        id: within(fields.id, id, id_min, RANDOM_MAX)?,
    })
}

pub(super) fn presented(lease: pb::PresentedLease, seen: Epoch) -> Result<Presented, InvalidMessage> {
    let epoch = epoch(&PRESENTED_EPOCH, lease.epoch)?;
    if epoch.number > seen.number {
        let rule = format!("must not be above asks.epoch.number, which is {}", seen.number);
        return Err(InvalidMessage::number(PRESENTED_EPOCH.number, epoch.number, rule));
    }
    if epoch.number == 0 && seen.number > 0 {
        let rule = "must be at least 1 where asks.epoch.number is: what an agent lent proves nothing elsewhere";
        return Err(InvalidMessage::number(PRESENTED_EPOCH.number, epoch.number, rule));
    }
    let curve = curve(&PRESENTED_CURVE, &lease.curve, 1)?;
    Ok(Presented {
        name: LeaseName { epoch, generation: within("asks.lease.generation", lease.generation, 1, EXACT_MAX)? },
        value: amounts(&PRESENTED_VALUE, lease.value, &mut UnitNames::default())?,
        curve,
        position_ms: within("asks.lease.position_ms", lease.position_ms, 0, CURVE_MS_MAX)?,
    })
}

/// The names of its units are added to `names`.
pub(super) fn granted(grant: pb::Grant, names: &mut UnitNames) -> Result<Grant, InvalidMessage> {
    let epoch = epoch(&GRANTED_EPOCH, grant.epoch)?;
    let value = amounts(&GRANTED_VALUE, grant.value, names)?;
    let moved = amounts(&GRANTED_MOVED, grant.moved, names)?;
    judge_moved(&moved, &value)?;
    let steps_min = usize::from(!value.is_zero());
    Ok(Grant {
        name: LeaseName { epoch, generation: within("granted.generation", grant.generation, 1, EXACT_MAX)? },
        position_ms: within("granted.position_ms", grant.position_ms, 0, CURVE_MS_MAX)?,
        curve: curve(&GRANTED_CURVE, &grant.curve, steps_min)?,
        value,
        moved,
    })
}

/// Levels, which fit the caps that they go into.
fn judge_moved(moved: &Amounts, value: &Amounts) -> Result<(), InvalidMessage> {
    let fields = &GRANTED_MOVED;
    let within_value = |field, moved: i64, value: i64| {
        let rule = || format!("must not exceed its peer in granted.value, which is {value}");
        if moved <= value { Ok(()) } else { Err(InvalidMessage::number(field, moved, rule())) }
    };
    let no_rate = |field, rate: i64| {
        if rate == 0 { Ok(()) } else { Err(InvalidMessage::number(field, rate, "must be 0, levels have no rate")) }
    };
    no_rate(fields.rate, moved.rate)?;
    within_value(fields.burst, moved.burst, value.burst)?;
    within_value(fields.retry_burst, moved.retry_burst, value.retry_burst)?;
    within_value(fields.slots, moved.slots, value.slots)?;
    for part in &moved.units {
        no_rate(fields.unit_rate, part.rate)?;
        within_value(fields.unit_burst, part.burst, value.unit(part.unit).map_or(0, |unit| unit.burst))?;
    }
    Ok(())
}

pub(super) fn amounts(
    fields: &AmountsFields,
    amounts: Option<pb::Amounts>,
    names: &mut UnitNames,
) -> Result<Amounts, InvalidMessage> {
    let amounts = amounts.ok_or_else(|| InvalidMessage::absent(fields.whole, "is required"))?;
    at_most(fields.units, "units", amounts.units.len(), UNITS_MAX)?;
    let mut units: Vec<UnitAmounts> = Vec::with_capacity(amounts.units.len());
    for part in amounts.units {
        let id = unit(fields.unit, &part.unit)?;
        once(fields.unit, &part.unit, units.iter().any(|known| known.unit == id))?;
        units.push(UnitAmounts {
            unit: id,
            rate: within(fields.unit_rate, part.rate_micros_per_second, 0, LEASED_RATE_MICROS_MAX)?,
            burst: within(fields.unit_burst, part.burst_micros, 0, BURST_MICROS_MAX)?,
        });
        names.insert(id, part.unit);
    }
    Ok(Amounts {
        rate: within(fields.rate, amounts.rate_micros_per_second, 0, LEASED_RATE_MICROS_MAX)?,
        burst: within(fields.burst, amounts.burst_micros, 0, BURST_MICROS_MAX)?,
        retry_burst: within(fields.retry_burst, amounts.retry_burst_micros, 0, BURST_MICROS_MAX)?,
        slots: within(fields.slots, amounts.slots, 0, IN_FLIGHT_MAX.into())?,
        units: units.into(),
    })
}

fn curve(fields: &CurveFields, steps: &[pb::CurveStep], steps_min: usize) -> Result<Curve, InvalidMessage> {
    if !(steps_min..=CURVE_STEPS_MAX).contains(&steps.len()) {
        let rule = format!("must be between {steps_min} and {CURVE_STEPS_MAX} steps");
        return Err(InvalidMessage::number(fields.whole, format!("{} steps", steps.len()), rule));
    }
    let mut judged = Vec::with_capacity(steps.len());
    let (mut above, mut total_ms) = (PPM, 0_i64);
    for step in steps {
        let part_ppm = within(fields.part, step.part_ppm.into(), 1, PPM)?;
        if part_ppm > above {
            let rule = format!("must never rise, and the step before has {above}");
            return Err(InvalidMessage::number(fields.part, part_ppm, rule));
        }
        let duration_ms = within(fields.duration, step.duration_ms.into(), 1, CURVE_MS_MAX)?;
        (above, total_ms) = (part_ppm, total_ms.saturating_add(duration_ms));
        judged.push(CurveStep { part_ppm, duration_ms });
    }
    if total_ms > CURVE_MS_MAX {
        let rule = format!("must be at most {CURVE_MS_MAX} in total, and the total is {total_ms}");
        return Err(InvalidMessage::number(fields.duration, total_ms, rule));
    }
    Ok(Curve(judged.into()))
}

/// The names of its units are added to `names`.
pub(super) fn usage(
    fields: &UsageFields,
    usage: Option<pb::Usage>,
    names: &mut UnitNames,
) -> Result<Usage, InvalidMessage> {
    let Some(usage) = usage else { return Ok(Usage::default()) };
    let counters = [
        usage.asked,
        usage.originals_admitted,
        usage.retries_admitted,
        usage.originals_denied,
        usage.retries_denied,
        usage.not_sent,
        usage.fallback_originals,
        usage.fallback_retries,
        usage.deposited_micros,
        usage.overuse_micros,
    ];
    let mut judged = [0; COUNTERS];
    for ((judged, field), value) in judged.iter_mut().zip(fields.counters).zip(counters) {
        *judged = within(field, value, 0, EXACT_MAX)?;
    }
    at_most(fields.units, "units", usage.units.len(), UNITS_MAX)?;
    let mut units: Vec<(UnitId, i64)> = Vec::with_capacity(usage.units.len());
    for pb::UnitAsked { unit: name, asked_micros } in usage.units {
        let id = unit(fields.unit, &name)?;
        once(fields.unit, &name, units.iter().any(|(known, _)| *known == id))?;
        units.push((id, within(fields.unit_asked, asked_micros, 0, EXACT_MAX)?));
        names.insert(id, name);
    }
    Ok(usage_of(judged, units.into()))
}

/// What was counted before is part of what there is now.
pub(super) fn judge_counted(counted: &Usage, usage: &Usage) -> Result<(), InvalidMessage> {
    let exceeds = |field, counted: i64, usage: i64| {
        let rule = || format!("must not exceed its peer in asks.usage, which is {usage}");
        if counted <= usage { Ok(()) } else { Err(InvalidMessage::number(field, counted, rule())) }
    };
    let peers = counted.counters().into_iter().zip(usage.counters());
    for (field, (counted, usage)) in COUNTED.counters.into_iter().zip(peers) {
        exceeds(field, counted, usage)?;
    }
    for (unit, counted) in &counted.units_asked {
        let usage = usage.units_asked.iter().find(|(known, _)| known == unit).map_or(0, |(_, asked)| *asked);
        exceeds(COUNTED.unit_asked, *counted, usage)?;
    }
    Ok(())
}

fn usage_of(counters: [i64; COUNTERS], units_asked: Box<[(UnitId, i64)]>) -> Usage {
    let [
        asked,
        originals_admitted,
        retries_admitted,
        originals_denied,
        retries_denied,
        not_sent,
        fallback_originals,
        fallback_retries,
        deposited_micros,
        overuse_micros,
    ] = counters;
    Usage {
        asked,
        originals_admitted,
        retries_admitted,
        originals_denied,
        retries_denied,
        not_sent,
        fallback_originals,
        fallback_retries,
        deposited_micros,
        units_asked,
        overuse_micros,
    }
}

pub(super) fn at_most(field: &'static str, what: &str, count: usize, max: usize) -> Result<(), InvalidMessage> {
    if count <= max {
        return Ok(());
    }
    Err(InvalidMessage::number(field, format!("{count} {what}"), format!("must be at most {max}")))
}

pub(super) fn once(field: &'static str, name: &str, known: bool) -> Result<(), InvalidMessage> {
    if known { Err(InvalidMessage::text(field, name, "must be named at most once")) } else { Ok(()) }
}

// Outward: a holder's side, which names every unit and sends nothing negative, or nothing at all.

pub(super) fn epoch_message(fields: &EpochFields, epoch: Epoch) -> Result<Option<pb::Epoch>, InvalidMessage> {
    if epoch == Epoch::default() {
        return Ok(None);
    }
    let message =
        pb::Epoch { number: not_negative(fields.number, epoch.number)?, id: not_negative(fields.id, epoch.id)? };
    Ok(Some(message))
}

pub(super) fn presented_message(lease: &Presented, names: &UnitNames) -> Result<pb::PresentedLease, InvalidMessage> {
    Ok(pb::PresentedLease {
        epoch: epoch_message(&PRESENTED_EPOCH, lease.name.epoch)?,
        generation: not_negative("asks.lease.generation", lease.name.generation)?,
        value: Some(presented_value(&lease.value, names)?),
        curve: curve_message(&lease.curve),
        position_ms: not_negative("asks.lease.position_ms", lease.position_ms)?,
    })
}

fn presented_value(value: &Amounts, names: &UnitNames) -> Result<pb::Amounts, InvalidMessage> {
    let fields = &PRESENTED_VALUE;
    let part = |part: &UnitAmounts| {
        Ok(pb::UnitAmounts {
            unit: name_of(fields.unit, part.unit, names)?,
            rate_micros_per_second: not_negative(fields.unit_rate, part.rate)?,
            burst_micros: not_negative(fields.unit_burst, part.burst)?,
        })
    };
    Ok(pb::Amounts {
        rate_micros_per_second: not_negative(fields.rate, value.rate)?,
        burst_micros: not_negative(fields.burst, value.burst)?,
        retry_burst_micros: not_negative(fields.retry_burst, value.retry_burst)?,
        slots: not_negative(fields.slots, value.slots)?,
        units: value.units.iter().map(part).collect::<Result<_, _>>()?,
    })
}

pub(super) fn usage_message(
    fields: &UsageFields,
    usage: &Usage,
    names: &UnitNames,
) -> Result<Option<pb::Usage>, InvalidMessage> {
    if *usage == Usage::default() {
        return Ok(None);
    }
    for (field, value) in fields.counters.into_iter().zip(usage.counters()) {
        not_negative(field, value)?;
    }
    let unit = |(id, asked): &(UnitId, i64)| {
        let asked_micros = not_negative(fields.unit_asked, *asked)?;
        Ok(pb::UnitAsked { unit: name_of(fields.unit, *id, names)?, asked_micros })
    };
    Ok(Some(usage_of_counters(usage, usage.units_asked.iter().map(unit).collect::<Result<_, _>>()?)))
}

fn usage_of_counters(usage: &Usage, units: Vec<pb::UnitAsked>) -> pb::Usage {
    pb::Usage {
        asked: unsigned(usage.asked),
        originals_admitted: unsigned(usage.originals_admitted),
        retries_admitted: unsigned(usage.retries_admitted),
        originals_denied: unsigned(usage.originals_denied),
        retries_denied: unsigned(usage.retries_denied),
        not_sent: unsigned(usage.not_sent),
        fallback_originals: unsigned(usage.fallback_originals),
        fallback_retries: unsigned(usage.fallback_retries),
        deposited_micros: unsigned(usage.deposited_micros),
        units,
        overuse_micros: unsigned(usage.overuse_micros),
    }
}

fn name_of(field: &'static str, unit: UnitId, names: &UnitNames) -> Result<String, InvalidMessage> {
    let rule = "has no name: name the units of the dependency first";
    names.name(unit).map(str::to_owned).ok_or_else(|| InvalidMessage::number(field, unit.raw(), rule))
}

fn curve_message(curve: &Curve) -> Vec<pb::CurveStep> {
    let narrow = |value: i64| u32::try_from(value).unwrap_or_default();
    let step =
        |step: &CurveStep| pb::CurveStep { part_ppm: narrow(step.part_ppm), duration_ms: narrow(step.duration_ms) };
    curve.0.iter().map(step).collect()
}

// Outward: the coordinator's side. A unit without a name is of a policy that this replica does not know yet: its part is
// left out, so the holder has less than it is charged for.

impl From<Epoch> for pb::Epoch {
    fn from(epoch: Epoch) -> Self {
        Self { number: unsigned(epoch.number), id: unsigned(epoch.id) }
    }
}

pub(super) fn grant_message(grant: &Grant, names: &UnitNames) -> pb::Grant {
    pb::Grant {
        epoch: Some(grant.name.epoch.into()),
        generation: unsigned(grant.name.generation),
        position_ms: unsigned(grant.position_ms),
        value: Some(amounts_message(&grant.value, names)),
        moved: Some(amounts_message(&grant.moved, names)),
        curve: curve_message(&grant.curve),
    }
}

/// A report as it is shown.
pub(super) fn report_message(usage: &Usage, names: &UnitNames) -> pb::Usage {
    let unit = |(id, asked): &(UnitId, i64)| {
        Some(pb::UnitAsked { unit: names.name(*id)?.to_owned(), asked_micros: unsigned(*asked) })
    };
    usage_of_counters(usage, usage.units_asked.iter().filter_map(unit).collect())
}

/// Amounts as they are sent. A unit that has no name in `names` is left out.
pub(super) fn amounts_message(amounts: &Amounts, names: &UnitNames) -> pb::Amounts {
    let part = |part: &UnitAmounts| {
        Some(pb::UnitAmounts {
            unit: names.name(part.unit)?.to_owned(),
            rate_micros_per_second: unsigned(part.rate),
            burst_micros: unsigned(part.burst),
        })
    };
    pb::Amounts {
        rate_micros_per_second: unsigned(amounts.rate),
        burst_micros: unsigned(amounts.burst),
        retry_burst_micros: unsigned(amounts.retry_burst),
        slots: unsigned(amounts.slots),
        units: amounts.units.iter().filter_map(part).collect(),
    }
}

pub(super) fn optional_epoch(fields: &EpochFields, given: Option<pb::Epoch>) -> Result<Epoch, InvalidMessage> {
    Ok(optional(given, |given| epoch(fields, Some(given)))?.unwrap_or_default())
}
