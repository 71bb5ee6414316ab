//! What a holder has to know of a policy, in both directions.

use budget::{
    ids::UnitId,
    lease::{FallbackRules, LocalOriginals, Rules},
    policy::{ATTEMPTS_MAX, PERMIT_TTL_MS_MAX, RATIO_PPM_MAX, RETRY_COST_TOKENS_MAX, UNITS_MAX},
    units::{BURST_MICROS_MAX, MICROS_PER_TOKEN, PPM},
};

use super::{
    lease::{at_most, once},
    policy_version, unit, unsigned, within,
};
use crate::{InvalidMessage, UnitNames, pb};

const RETRY_COSTS: [&str; 5] = [
    "rules.retry_costs.transient_micros",
    "rules.retry_costs.throttled_micros",
    "rules.retry_costs.timeout_micros",
    "rules.retry_costs.hedge_micros",
    "rules.retry_costs.failover_micros",
];
const PRIORITY_PARTS: [&str; 3] =
    ["rules.priority_parts.sheddable_ppm", "rules.priority_parts.default_ppm", "rules.priority_parts.critical_ppm"];

/// Rules as a holder receives them. The names of their units are added to `names`.
pub(super) fn rules(rules: Option<pb::Rules>, names: &mut UnitNames) -> Result<Rules, InvalidMessage> {
    let rules = rules.ok_or_else(|| InvalidMessage::absent("rules", "is required"))?;
    at_most("rules.units", "units", rules.units.len(), UNITS_MAX)?;
    let mut units: Vec<UnitId> = Vec::with_capacity(rules.units.len());
    for name in rules.units {
        let id = unit("rules.units", &name)?;
        once("rules.units", &name, units.contains(&id))?;
        units.push(id);
        names.insert(id, name);
    }
    Ok(Rules {
        version: policy_version("rules.version", rules.version)?,
        shadow: rules.shadow,
        retries_off: rules.retries_off,
        limited: rules.limited,
        slots_limited: rules.slots_limited,
        deposit_micros: within("rules.deposit_micros", rules.deposit_micros, 0, RATIO_PPM_MAX)?,
        earn_on_success: rules.earn_on_success,
        retry_cost_micros: retry_costs(rules.retry_costs)?,
        max_attempts: within("rules.max_attempts", rules.max_attempts.into(), 1, ATTEMPTS_MAX.into())?,
        permit_ttl_ms: within("rules.permit_ttl_ms", rules.permit_ttl_ms, 1, PERMIT_TTL_MS_MAX)?,
        priority_ppm: priority_parts(rules.priority_parts)?,
        units: units.into(),
        fallback: fallback(rules.fallback, names)?,
    })
}

fn retry_costs(costs: Option<pb::RetryCosts>) -> Result<[i64; 5], InvalidMessage> {
    let costs = costs.ok_or_else(|| InvalidMessage::absent("rules.retry_costs", "is required"))?;
    let pb::RetryCosts { transient_micros, throttled_micros, timeout_micros, hedge_micros, failover_micros } = costs;
    let given = [transient_micros, throttled_micros, timeout_micros, hedge_micros, failover_micros];
    let mut judged = [0; 5];
    for ((judged, field), cost) in judged.iter_mut().zip(RETRY_COSTS).zip(given) {
        // Less than one token would break the bound.
        *judged = within(field, cost, MICROS_PER_TOKEN, RETRY_COST_TOKENS_MAX * MICROS_PER_TOKEN)?;
    }
    Ok(judged)
}

fn priority_parts(parts: Option<pb::PriorityParts>) -> Result<[i64; 3], InvalidMessage> {
    let parts = parts.ok_or_else(|| InvalidMessage::absent("rules.priority_parts", "is required"))?;
    let given = [parts.sheddable_ppm, parts.default_ppm, parts.critical_ppm];
    let mut judged = [0; 3];
    let mut below = 0;
    for ((judged, field), part) in judged.iter_mut().zip(PRIORITY_PARTS).zip(given) {
        *judged = within(field, part.into(), 0, PPM)?;
        if *judged < below {
            let rule = format!("must not be below that of the class before, which is {below}");
            return Err(InvalidMessage::number(field, *judged, rule));
        }
        below = *judged;
    }
    Ok(judged)
}

fn fallback(rules: Option<pb::FallbackRules>, names: &mut UnitNames) -> Result<FallbackRules, InvalidMessage> {
    use pb::fallback_rules::Originals;
    let rules = rules.ok_or_else(|| InvalidMessage::absent("rules.fallback", "is required"))?;
    let originals = match rules.originals {
        Some(Originals::Deny(pb::FallbackDeny {})) => LocalOriginals::Deny,
        Some(Originals::Allow(pb::FallbackAllow {})) => LocalOriginals::Allow,
        Some(Originals::RateMicrosPerSecond(rate)) => {
            let field = "rules.fallback.rate_micros_per_second";
            LocalOriginals::Rate(within(field, rate, 0, BURST_MICROS_MAX)?)
        }
        None => {
            let rule = "must be one of deny, allow, rate_micros_per_second";
            return Err(InvalidMessage::absent("rules.fallback.originals", rule));
        }
    };
    at_most("rules.fallback.units", "units", rules.units.len(), UNITS_MAX)?;
    let mut units: Vec<(UnitId, i64)> = Vec::with_capacity(rules.units.len());
    for pb::FallbackUnit { unit: name, rate_micros_per_second } in rules.units {
        let id = unit("rules.fallback.units.unit", &name)?;
        once("rules.fallback.units.unit", &name, units.iter().any(|(known, _)| *known == id))?;
        let field = "rules.fallback.units.rate_micros_per_second";
        units.push((id, within(field, rate_micros_per_second, 0, BURST_MICROS_MAX)?));
        names.insert(id, name);
    }
    Ok(FallbackRules { originals, retries_earned: rules.retries_earned, units: units.into() })
}

/// Rules as the coordinator sends them. A unit that has no name in `names` is left out.
pub(super) fn rules_message(rules: &Rules, names: &UnitNames) -> pb::Rules {
    let name = |unit: UnitId| names.name(unit).map(str::to_owned);
    let [transient, throttled, timeout, hedge, failover] = rules.retry_cost_micros.map(unsigned);
    let narrow = |value: i64| u32::try_from(value).unwrap_or_default();
    let [sheddable_ppm, default_ppm, critical_ppm] = rules.priority_ppm.map(narrow);
    let fallback_unit = |(unit, rate): &(UnitId, i64)| {
        Some(pb::FallbackUnit { unit: name(*unit)?, rate_micros_per_second: unsigned(*rate) })
    };
    pb::Rules {
        version: Some(rules.version.into()),
        shadow: rules.shadow,
        retries_off: rules.retries_off,
        limited: rules.limited,
        slots_limited: rules.slots_limited,
        deposit_micros: unsigned(rules.deposit_micros),
        earn_on_success: rules.earn_on_success,
        retry_costs: Some(pb::RetryCosts {
            transient_micros: transient,
            throttled_micros: throttled,
            timeout_micros: timeout,
            hedge_micros: hedge,
            failover_micros: failover,
        }),
        max_attempts: narrow(rules.max_attempts),
        permit_ttl_ms: unsigned(rules.permit_ttl_ms),
        priority_parts: Some(pb::PriorityParts { sheddable_ppm, default_ppm, critical_ppm }),
        units: rules.units.iter().filter_map(|unit| name(*unit)).collect(),
        fallback: Some(pb::FallbackRules {
            originals: Some(match rules.fallback.originals {
                LocalOriginals::Deny => pb::fallback_rules::Originals::Deny(pb::FallbackDeny {}),
                LocalOriginals::Allow => pb::fallback_rules::Originals::Allow(pb::FallbackAllow {}),
                LocalOriginals::Rate(rate) => pb::fallback_rules::Originals::RateMicrosPerSecond(unsigned(rate)),
            }),
            retries_earned: rules.fallback.retries_earned,
            units: rules.fallback.units.iter().filter_map(fallback_unit).collect(),
        }),
    }
}
