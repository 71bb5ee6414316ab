//! What one rule says itself, field by field, and how that together with what it inherits becomes a policy.

use std::collections::BTreeMap;

use budget::{
    decision::{Cause, Priority},
    policy::{
        CurveStep, EarnOn, FallbackOriginals, FallbackRetries, InvalidPolicy, Lease, Limit, Mode, Policy, Spec,
        UnitLimit,
    },
    units::{MICROS_PER_TOKEN, PPM, Rate, parse_decimal_ppm, parse_duration_ms},
};

use super::text::{Field, InvalidText};

/// Lifts an inherited limit.
pub(super) const UNLIMITED: &str = "unlimited";
const TABLES: [&str; 9] =
    ["mode", "admission", "retry", "retry_cost", "operation", "priority", "lease", "fallback", "cost"];
const CURVE_FORM: &str = "each step must look like \"100% 20s\": part of the share, for how long";

/// What becomes of dependencies that no rule names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownDependencies {
    /// They run under the defaults.
    #[default]
    Defaults,
    /// They are refused.
    Refuse,
}

/// A limit that may be lifted where it would be inherited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound<T> {
    Unlimited,
    At(T),
}

/// The fields one rule sets. None: inherited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) unknown_dependencies: Option<UnknownDependencies>,
    mode: Option<Mode>,
    admission: LimitFields,
    max_in_flight: Option<Bound<u32>>,
    permit_ttl_ms: Option<i64>,
    max_wait_ms: Option<i64>,
    ratio_ppm: Option<i64>,
    floor: Option<Rate>,
    retry_burst_tokens: Option<i64>,
    earn_on: Option<EarnOn>,
    retry_cost_micros: [Option<i64>; 5],
    max_attempts: Option<u32>,
    retention_ms: Option<i64>,
    priority_ppm: [Option<i64>; 3],
    lease_enabled: Option<bool>,
    lease_part_ppm: Option<i64>,
    lease_curve: Option<Vec<CurveStep>>,
    fallback_originals: Option<FallbackOriginals>,
    fallback_retries: Option<FallbackRetries>,
    units: BTreeMap<String, LimitFields>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LimitFields {
    rate: Option<Bound<Rate>>,
    burst_tokens: Option<i64>,
}

// === impl Fields ===

impl Fields {
    /// Reads one rule's fields. Only `[defaults]` says what becomes of unknown dependencies.
    pub(super) fn read(fields: Vec<Field<'_>>, defaults: bool) -> Result<Self, InvalidText> {
        let mut this = Self::default();
        for field in fields {
            match field.key {
                "mode" => this.mode = Some(field.word(&[("enforce", Mode::Enforce), ("shadow", Mode::Shadow)])?),
                "unknown_dependencies" if defaults => {
                    let words = [("defaults", UnknownDependencies::Defaults), ("refuse", UnknownDependencies::Refuse)];
                    this.unknown_dependencies = Some(field.word(&words)?);
                }
                "unknown_dependencies" => return Err(field.refuse("is allowed in [defaults] only")),
                "admission" => this.read_admission(&field)?,
                "retry" => this.read_retry(&field)?,
                "retry_cost" => this.read_retry_cost(&field)?,
                "operation" => this.read_operation(&field)?,
                "priority" => this.read_priority(&field)?,
                "lease" => this.read_lease(&field)?,
                "fallback" => this.read_fallback(&field)?,
                "cost" => {
                    for unit in field.fields()? {
                        this.units.insert(unit.key.to_owned(), LimitFields::read(&unit)?);
                    }
                }
                _ => return Err(field.unknown(&TABLES)),
            }
        }
        Ok(this)
    }

    fn read_admission(&mut self, table: &Field<'_>) -> Result<(), InvalidText> {
        for field in table.fields()? {
            match field.key {
                "rate" => self.admission.rate = Some(read_bound(&field, Field::rate)?),
                "burst" => self.admission.burst_tokens = Some(field.whole()?),
                "max_in_flight" => self.max_in_flight = Some(read_bound(&field, Field::count)?),
                "permit_ttl" => self.permit_ttl_ms = Some(field.duration_ms()?),
                "max_wait" => self.max_wait_ms = Some(field.duration_ms()?),
                _ => return Err(field.unknown(&["rate", "burst", "max_in_flight", "permit_ttl", "max_wait"])),
            }
        }
        Ok(())
    }

    fn read_retry(&mut self, table: &Field<'_>) -> Result<(), InvalidText> {
        for field in table.fields()? {
            match field.key {
                "ratio" => self.ratio_ppm = Some(field.decimal_ppm()?),
                "floor" => self.floor = Some(field.rate()?),
                "burst" => self.retry_burst_tokens = Some(field.whole()?),
                "earn_on" => {
                    let words = [("admitted", EarnOn::Admitted), ("success", EarnOn::Success)];
                    self.earn_on = Some(field.word(&words)?);
                }
                _ => return Err(field.unknown(&["ratio", "floor", "burst", "earn_on"])),
            }
        }
        Ok(())
    }

    fn read_retry_cost(&mut self, table: &Field<'_>) -> Result<(), InvalidText> {
        let names = Cause::ALL.map(Cause::name);
        read_decimals(table, &names, &mut self.retry_cost_micros)
    }

    fn read_operation(&mut self, table: &Field<'_>) -> Result<(), InvalidText> {
        for field in table.fields()? {
            match field.key {
                "max_attempts" => self.max_attempts = Some(field.count()?),
                "retention" => self.retention_ms = Some(field.duration_ms()?),
                _ => return Err(field.unknown(&["max_attempts", "retention"])),
            }
        }
        Ok(())
    }

    fn read_priority(&mut self, table: &Field<'_>) -> Result<(), InvalidText> {
        let names = Priority::ALL.map(Priority::name);
        read_decimals(table, &names, &mut self.priority_ppm)
    }

    fn read_lease(&mut self, table: &Field<'_>) -> Result<(), InvalidText> {
        for field in table.fields()? {
            match field.key {
                "enabled" => self.lease_enabled = Some(field.flag()?),
                "part" => self.lease_part_ppm = Some(field.decimal_ppm()?),
                "curve" => {
                    let steps: Option<Vec<_>> = field.texts()?.into_iter().map(curve_step).collect();
                    self.lease_curve = Some(steps.ok_or_else(|| field.refuse(CURVE_FORM))?);
                }
                _ => return Err(field.unknown(&["enabled", "part", "curve"])),
            }
        }
        Ok(())
    }

    fn read_fallback(&mut self, table: &Field<'_>) -> Result<(), InvalidText> {
        for field in table.fields()? {
            match field.key {
                "originals" => {
                    let form = "must be \"deny\", \"allow\", a rate such as \"5/s\", or a part such as \"10%\"";
                    let originals = field.value().as_str().and_then(fallback_originals);
                    self.fallback_originals = Some(originals.ok_or_else(|| field.refuse(form))?);
                }
                "retries" => {
                    let words = [("earned", FallbackRetries::Earned), ("deny", FallbackRetries::Deny)];
                    self.fallback_retries = Some(field.word(&words)?);
                }
                _ => return Err(field.unknown(&["originals", "retries"])),
            }
        }
        Ok(())
    }

    /// The policy of a rule with these fields of its own and all others from `defaults`.
    pub(super) fn policy(&self, defaults: &Self) -> Result<Policy, InvalidPolicy> {
        let admission = self.admission.limit("admission", &defaults.admission)?;
        let units = self.units(defaults)?;
        // Said for all dependencies, a part of the admission rate means those that have one.
        let inherited = match defaults.fallback_originals {
            Some(FallbackOriginals::Part(_)) if admission.is_none() => None,
            originals => originals,
        };
        let fallback = self.fallback_originals.or(inherited).unwrap_or(match admission {
            Some(_) => FallbackOriginals::Part(PPM / 10),
            None => FallbackOriginals::Allow,
        });
        let builtin = Spec::default();
        let mut retry_cost_micros = builtin.retry_cost_micros;
        overlay(&mut retry_cost_micros, &defaults.retry_cost_micros);
        overlay(&mut retry_cost_micros, &self.retry_cost_micros);
        let mut priority_ppm = builtin.priority_ppm;
        overlay(&mut priority_ppm, &defaults.priority_ppm);
        overlay(&mut priority_ppm, &self.priority_ppm);
        Policy::new(Spec {
            mode: self.mode.or(defaults.mode).unwrap_or(builtin.mode),
            admission,
            max_in_flight: match self.max_in_flight.or(defaults.max_in_flight) {
                Some(Bound::At(most)) => Some(most),
                Some(Bound::Unlimited) | None => None,
            },
            permit_ttl_ms: self.permit_ttl_ms.or(defaults.permit_ttl_ms).unwrap_or(builtin.permit_ttl_ms),
            max_wait_ms: self.max_wait_ms.or(defaults.max_wait_ms).unwrap_or(builtin.max_wait_ms),
            ratio_ppm: self.ratio_ppm.or(defaults.ratio_ppm).unwrap_or(builtin.ratio_ppm),
            floor: self.floor.or(defaults.floor).unwrap_or(builtin.floor),
            retry_burst_tokens: (self.retry_burst_tokens.or(defaults.retry_burst_tokens))
                .unwrap_or(builtin.retry_burst_tokens),
            earn_on: self.earn_on.or(defaults.earn_on).unwrap_or(builtin.earn_on),
            retry_cost_micros,
            max_attempts: self.max_attempts.or(defaults.max_attempts).unwrap_or(builtin.max_attempts),
            retention_ms: self.retention_ms.or(defaults.retention_ms).unwrap_or(builtin.retention_ms),
            priority_ppm,
            units,
            lease: Lease {
                enabled: self.lease_enabled.or(defaults.lease_enabled).unwrap_or(builtin.lease.enabled),
                part_ppm: self.lease_part_ppm.or(defaults.lease_part_ppm).unwrap_or(builtin.lease.part_ppm),
                curve: (self.lease_curve.as_ref().or(defaults.lease_curve.as_ref()))
                    .unwrap_or(&builtin.lease.curve)
                    .clone(),
            },
            fallback_originals: Some(fallback),
            fallback_retries: (self.fallback_retries.or(defaults.fallback_retries)).unwrap_or(builtin.fallback_retries),
        })
    }

    fn units(&self, defaults: &Self) -> Result<Vec<UnitLimit>, InvalidPolicy> {
        let none = LimitFields::default();
        let mut units = BTreeMap::new();
        for (name, inherited) in &defaults.units {
            units.insert(name, self.units.get(name).unwrap_or(&none).limit(&format!("cost.{name}"), inherited)?);
        }
        for (name, own) in &self.units {
            let inherited = defaults.units.get(name).unwrap_or(&none);
            if own.rate.or(inherited.rate).is_none() {
                return Err(InvalidPolicy::new(format!("cost.{name}"), "a unit without rate", "must have a rate"));
            }
            units.insert(name, own.limit(&format!("cost.{name}"), inherited)?);
        }
        let limited =
            units.into_iter().filter_map(|(name, limit)| Some(UnitLimit { name: name.clone(), limit: limit? }));
        Ok(limited.collect())
    }
}

/// Reads a value that may also lift a limit.
fn read_bound<'a, T>(
    field: &Field<'a>,
    read: impl FnOnce(&Field<'a>) -> Result<T, InvalidText>,
) -> Result<Bound<T>, InvalidText> {
    match field.value().as_str() {
        Some(UNLIMITED) => Ok(Bound::Unlimited),
        Some(_) | None => read(field).map(Bound::At),
    }
}

fn read_decimals(table: &Field<'_>, names: &[&str], places: &mut [Option<i64>]) -> Result<(), InvalidText> {
    for field in table.fields()? {
        let place = names.iter().zip(places.iter_mut()).find(|(name, _)| **name == field.key);
        let (_, place) = place.ok_or_else(|| field.unknown(names))?;
        *place = Some(field.decimal_ppm()?);
    }
    Ok(())
}

fn overlay<const N: usize>(values: &mut [i64; N], set: &[Option<i64>; N]) {
    for (value, set) in values.iter_mut().zip(set) {
        *value = set.unwrap_or(*value);
    }
}

/// `12.5%` in parts per million.
fn percent_ppm(text: &str) -> Option<i64> {
    let hundredfold = parse_decimal_ppm(text.strip_suffix('%')?).ok()?;
    (hundredfold % 100 == 0).then_some(hundredfold / 100)
}

fn curve_step(text: &str) -> Option<CurveStep> {
    let (part, duration) = text.split_once(' ')?;
    Some(CurveStep { part_ppm: percent_ppm(part)?, duration_ms: parse_duration_ms(duration).ok()? })
}

fn fallback_originals(text: &str) -> Option<FallbackOriginals> {
    match text {
        "deny" => Some(FallbackOriginals::Deny),
        "allow" => Some(FallbackOriginals::Allow),
        part if part.ends_with('%') => percent_ppm(part).map(FallbackOriginals::Part),
        rate => Rate::parse(rate).ok().map(FallbackOriginals::Rate),
    }
}

// === impl LimitFields ===

impl LimitFields {
    fn read(table: &Field<'_>) -> Result<Self, InvalidText> {
        let mut this = Self::default();
        for field in table.fields()? {
            match field.key {
                "rate" => this.rate = Some(read_bound(&field, Field::rate)?),
                "burst" => this.burst_tokens = Some(field.whole()?),
                _ => return Err(field.unknown(&["rate", "burst"])),
            }
        }
        Ok(this)
    }

    /// None: unlimited. A burst that is not set is what one second's refill brings, at least one token.
    fn limit(&self, field: &str, inherited: &Self) -> Result<Option<Limit>, InvalidPolicy> {
        match self.rate.or(inherited.rate) {
            Some(Bound::At(rate)) => {
                let burst = self.burst_tokens.or(inherited.burst_tokens);
                Ok(Some(Limit { rate, burst_tokens: burst.unwrap_or_else(|| second_of(rate)) }))
            }
            Some(Bound::Unlimited) | None => match self.burst_tokens {
                Some(burst) => {
                    Err(InvalidPolicy::new(format!("{field}.burst"), burst, format!("needs a limit in {field}.rate")))
                }
                None => Ok(None),
            },
        }
    }
}

/// One second's refill in whole tokens, rounded up.
fn second_of(rate: Rate) -> i64 {
    let (num, den) = rate.fraction();
    let tokens_den = den.saturating_mul(MICROS_PER_TOKEN).max(1);
    let micros = num.saturating_mul(1000).saturating_add(tokens_den - 1);
    (micros / tokens_den).max(1)
}
