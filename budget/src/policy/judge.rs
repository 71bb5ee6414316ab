//! What must hold between the fields of a policy, and of values that a range does not describe. [`super::FIELDS`] says
//! which field each rule belongs to.

use super::{
    CURVE_MS_MAX, CURVE_STEPS_MAX, FallbackOriginals, Form, InvalidPolicy, LEASED_RATE_MICROS_MAX, Limit, Spec,
    UNITS_MAX, fields::BURST,
};
use crate::{
    ids::UnitId,
    units::{Decimal, EXACT_MAX, MICROS_PER_TOKEN, PPM, Rate, div_ceil, format_duration_ms},
};

pub(super) fn admission_rate(spec: &Spec) -> Result<(), InvalidPolicy> {
    spec.admission.map_or(Ok(()), |admission| above_zero("admission.rate", admission.rate))
}

pub(super) fn admission_exact(spec: &Spec) -> Result<(), InvalidPolicy> {
    let Some(admission) = spec.admission else { return Ok(()) };
    exact("admission", admission, booked_micros(admission.rate, spec.max_wait_ms))
}

pub(super) fn retry_exact(spec: &Spec) -> Result<(), InvalidPolicy> {
    let limit = Limit { rate: spec.floor, burst_tokens: spec.retry_burst_tokens };
    exact("retry", limit, spec.retry_burst_tokens.saturating_mul(MICROS_PER_TOKEN))
}

pub(super) fn retention(spec: &Spec) -> Result<(), InvalidPolicy> {
    if spec.retention_ms >= spec.permit_ttl_ms {
        return Ok(());
    }
    let rule = format!("must not be shorter than admission.permit_ttl, {}", format_duration_ms(spec.permit_ttl_ms));
    Err(InvalidPolicy::new("operation.retention", format_duration_ms(spec.retention_ms), rule))
}

/// `(burst + debt)·den + num + den` must stay exact in a double.
fn exact(field: &str, limit: Limit, debt_micros: i64) -> Result<(), InvalidPolicy> {
    let (num, den) = limit.rate.fraction();
    let burst = limit.burst_tokens.saturating_mul(MICROS_PER_TOKEN);
    let largest = i128::from(burst)
        .saturating_add(i128::from(debt_micros))
        .saturating_add(i128::from(num))
        .saturating_mul(i128::from(den))
        .saturating_add(i128::from(num).saturating_mul(2))
        .saturating_add(i128::from(den).saturating_mul(2));
    if largest < i128::from(EXACT_MAX) {
        return Ok(());
    }
    let rule = format!("burst and waiting time are too large for the exact arithmetic at rate {}", limit.rate);
    Err(InvalidPolicy::new(format!("{field}.burst"), limit.burst_tokens, rule))
}

fn above_zero(field: &str, rate: Rate) -> Result<(), InvalidPolicy> {
    if rate.is_zero() {
        return Err(InvalidPolicy::new(field, rate, "must be above 0"));
    }
    Ok(())
}

pub(super) fn priorities(spec: &Spec) -> Result<(), InvalidPolicy> {
    let [sheddable, default, critical] = spec.priority_ppm;
    if sheddable > default || default > critical {
        let value = format!("{}, {}, {}", Decimal(sheddable), Decimal(default), Decimal(critical));
        return Err(InvalidPolicy::new("priority", value, "must not decrease from sheddable over default to critical"));
    }
    Ok(())
}

pub(super) fn units(spec: &Spec) -> Result<(), InvalidPolicy> {
    let units = &spec.units;
    if units.len() > UNITS_MAX {
        return Err(InvalidPolicy::new(
            "cost",
            format!("{} units", units.len()),
            format!("must be at most {UNITS_MAX}"),
        ));
    }
    let mut ids = Vec::new();
    for unit in units {
        let field = format!("cost.{}", unit.name);
        let id = UnitId::of(&unit.name)
            .map_err(|rule| InvalidPolicy::new(field.as_str(), "a unit name", rule.to_string()))?;
        if ids.contains(&id) {
            return Err(InvalidPolicy::new(field, "a unit", "collides with another unit of the same name or hash"));
        }
        ids.push(id);
        above_zero(&format!("{field}.rate"), unit.limit.rate)?;
        BURST.judge(&format!("{field}.burst"), unit.limit.burst_tokens)?;
        exact(&field, unit.limit, unit.limit.burst_tokens.saturating_mul(MICROS_PER_TOKEN))?;
    }
    Ok(())
}

pub(super) fn lease(spec: &Spec) -> Result<(), InvalidPolicy> {
    let lease = &spec.lease;
    if lease.curve.is_empty() || lease.curve.len() > CURVE_STEPS_MAX {
        let rule = format!("must have between 1 and {CURVE_STEPS_MAX} steps");
        return Err(InvalidPolicy::new("lease.curve", format!("{} steps", lease.curve.len()), rule));
    }
    let mut above = PPM;
    let mut total_ms = 0_i64;
    for step in &lease.curve {
        Form::Decimal(1, PPM).judge("lease.curve", step.part_ppm)?;
        Form::Duration(1, CURVE_MS_MAX).judge("lease.curve", step.duration_ms)?;
        if step.part_ppm > above {
            return Err(InvalidPolicy::new("lease.curve", "a rising step", "must never rise"));
        }
        above = step.part_ppm;
        total_ms = total_ms.saturating_add(step.duration_ms);
    }
    Form::Duration(1, CURVE_MS_MAX).judge("lease.curve", total_ms)?;
    leased_rates(spec)
}

/// Where leases are permitted, rates are computed in whole micro-tokens per second.
fn leased_rates(spec: &Spec) -> Result<(), InvalidPolicy> {
    if !spec.lease.enabled {
        return Ok(());
    }
    let admission = spec.admission.map(|limit| ("admission.rate".to_owned(), limit.rate));
    let units = spec.units.iter().map(|unit| (format!("cost.{}.rate", unit.name), unit.limit.rate));
    match admission.into_iter().chain(units).find(|(_, rate)| rate.micros_per_second() > LEASED_RATE_MICROS_MAX) {
        Some((field, rate)) => Err(InvalidPolicy::new(field, rate, "must be at most 4M/s where leases are enabled")),
        None => Ok(()),
    }
}

pub(super) fn fallback(spec: &Spec) -> Result<(), InvalidPolicy> {
    match spec.fallback_originals {
        Some(FallbackOriginals::Part(ppm)) => {
            Form::Decimal(0, PPM).judge("fallback.originals", ppm)?;
            if spec.admission.is_none() {
                let rule = "a percentage needs an admission limit; use \"deny\", \"allow\" or a rate";
                return Err(InvalidPolicy::new("fallback.originals", "a percentage", rule));
            }
            Ok(())
        }
        Some(FallbackOriginals::Deny | FallbackOriginals::Allow | FallbackOriginals::Rate(_)) | None => Ok(()),
    }
}

fn booked_micros(rate: Rate, max_wait_ms: i64) -> i64 {
    let (num, den) = rate.fraction();
    div_ceil(num.saturating_mul(max_wait_ms), den)
}
