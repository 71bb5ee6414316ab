//! Which policies are valid: every field's bounds, and what must hold between fields.

use super::{
    ATTEMPTS_MAX, CURVE_MS_MAX, CURVE_STEPS_MAX, FallbackOriginals, IN_FLIGHT_MAX, InvalidPolicy,
    LEASED_RATE_MICROS_MAX, Lease, Limit, MAX_WAIT_MS_MAX, PERMIT_TTL_MS_MAX, RATIO_PPM_MAX, RETRY_COST_TOKENS_MAX,
    Spec, UNITS_MAX, UnitLimit,
};
use crate::{
    decision::{Cause, Priority},
    ids::UnitId,
    units::{
        BURST_MICROS_MAX, Decimal, EXACT_MAX, MICROS_PER_TOKEN, PPM, Rate, checked_div, div_ceil, format_duration_ms,
    },
};

/// Judges every field; the first that breaks its rule is the error.
pub(super) fn judge(spec: &Spec) -> Result<(), InvalidPolicy> {
    let burst_tokens_max = checked_div(BURST_MICROS_MAX, MICROS_PER_TOKEN);
    if let Some(admission) = spec.admission {
        judge_rate("admission.rate", admission.rate)?;
        within("admission.burst", admission.burst_tokens, 1, burst_tokens_max)?;
        judge_exact("admission", admission, booked_micros(admission.rate, spec.max_wait_ms))?;
    }
    if let Some(max) = spec.max_in_flight {
        within("admission.max_in_flight", max.into(), 1, IN_FLIGHT_MAX.into())?;
    }
    duration_within("admission.permit_ttl", spec.permit_ttl_ms, 1, PERMIT_TTL_MS_MAX)?;
    duration_within("admission.max_wait", spec.max_wait_ms, 0, MAX_WAIT_MS_MAX)?;
    fraction_within("retry.ratio", spec.ratio_ppm, 0, RATIO_PPM_MAX)?;
    within("retry.burst", spec.retry_burst_tokens, 0, burst_tokens_max)?;
    let retry_limit = Limit { rate: spec.floor, burst_tokens: spec.retry_burst_tokens };
    judge_exact("retry", retry_limit, spec.retry_burst_tokens.saturating_mul(MICROS_PER_TOKEN))?;
    for (cause, cost) in Cause::ALL.into_iter().zip(spec.retry_cost_micros) {
        let most = RETRY_COST_TOKENS_MAX.saturating_mul(PPM);
        fraction_within(format!("retry_cost.{}", cause.name()), cost, PPM, most)?;
    }
    within("operation.max_attempts", spec.max_attempts.into(), 1, ATTEMPTS_MAX.into())?;
    duration_within("operation.retention", spec.retention_ms, 1_000, 30 * 86_400_000)?;
    if spec.retention_ms < spec.permit_ttl_ms {
        let rule = format!("must not be shorter than admission.permit_ttl, {}", format_duration_ms(spec.permit_ttl_ms));
        return Err(InvalidPolicy::new("operation.retention", format_duration_ms(spec.retention_ms), rule));
    }
    judge_priorities(spec)?;
    judge_units(&spec.units, burst_tokens_max)?;
    judge_lease(&spec.lease)?;
    judge_leased_rates(spec)?;
    judge_fallback(spec)
}

fn within(field: impl Into<String>, value: i64, min: i64, max: i64) -> Result<(), InvalidPolicy> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(InvalidPolicy::new(field, value, format!("must be between {min} and {max}")))
}

fn duration_within(field: &str, ms: i64, min: i64, max: i64) -> Result<(), InvalidPolicy> {
    if (min..=max).contains(&ms) {
        return Ok(());
    }
    let rule = format!("must be between {} and {}", format_duration_ms(min), format_duration_ms(max));
    Err(InvalidPolicy::new(field, format_duration_ms(ms), rule))
}

fn fraction_within(field: impl Into<String>, ppm: i64, min_ppm: i64, max_ppm: i64) -> Result<(), InvalidPolicy> {
    if (min_ppm..=max_ppm).contains(&ppm) {
        return Ok(());
    }
    let rule = format!("must be between {} and {}", Decimal(min_ppm), Decimal(max_ppm));
    Err(InvalidPolicy::new(field, Decimal(ppm), rule))
}

/// `(burst + debt)·den + num + den` must stay exact in a double.
fn judge_exact(field: &str, limit: Limit, debt_micros: i64) -> Result<(), InvalidPolicy> {
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

fn judge_rate(field: &str, rate: Rate) -> Result<(), InvalidPolicy> {
    if rate.is_zero() {
        return Err(InvalidPolicy::new(field, rate, "must be above 0"));
    }
    Ok(())
}

fn judge_priorities(spec: &Spec) -> Result<(), InvalidPolicy> {
    for (priority, share) in Priority::ALL.into_iter().zip(spec.priority_ppm) {
        fraction_within(format!("priority.{}", priority.name()), share, 0, PPM)?;
    }
    let [sheddable, default, critical] = spec.priority_ppm;
    if sheddable > default || default > critical {
        let value = format!("{}, {}, {}", Decimal(sheddable), Decimal(default), Decimal(critical));
        return Err(InvalidPolicy::new("priority", value, "must not decrease from sheddable over default to critical"));
    }
    Ok(())
}

fn judge_units(units: &[UnitLimit], burst_tokens_max: i64) -> Result<(), InvalidPolicy> {
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
        judge_rate(&format!("{field}.rate"), unit.limit.rate)?;
        within(format!("{field}.burst"), unit.limit.burst_tokens, 1, burst_tokens_max)?;
        judge_exact(&field, unit.limit, unit.limit.burst_tokens.saturating_mul(MICROS_PER_TOKEN))?;
    }
    Ok(())
}

fn judge_lease(lease: &Lease) -> Result<(), InvalidPolicy> {
    fraction_within("lease.part", lease.part_ppm, 1, PPM)?;
    if lease.curve.is_empty() || lease.curve.len() > CURVE_STEPS_MAX {
        let rule = format!("must have between 1 and {CURVE_STEPS_MAX} steps");
        return Err(InvalidPolicy::new("lease.curve", format!("{} steps", lease.curve.len()), rule));
    }
    let mut above = PPM;
    let mut total_ms = 0_i64;
    for step in &lease.curve {
        fraction_within("lease.curve", step.part_ppm, 1, PPM)?;
        duration_within("lease.curve", step.duration_ms, 1, CURVE_MS_MAX)?;
        if step.part_ppm > above {
            return Err(InvalidPolicy::new("lease.curve", "a rising step", "must never rise"));
        }
        above = step.part_ppm;
        total_ms = total_ms.saturating_add(step.duration_ms);
    }
    duration_within("lease.curve", total_ms, 1, CURVE_MS_MAX)
}

/// Where leases are permitted, rates are computed in whole micro-tokens per second.
fn judge_leased_rates(spec: &Spec) -> Result<(), InvalidPolicy> {
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

fn judge_fallback(spec: &Spec) -> Result<(), InvalidPolicy> {
    match spec.fallback_originals {
        Some(FallbackOriginals::Part(ppm)) => {
            fraction_within("fallback.originals", ppm, 0, PPM)?;
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
