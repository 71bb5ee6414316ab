//! What one rule says itself, field by field, and how that together with what it inherits becomes a policy.

use std::collections::BTreeMap;

use budget::{
    policy::{self, FIELDS, FallbackOriginals, InvalidPolicy, Limit, Policy, Spec, UnitLimit, Value},
    units::{MICROS_PER_TOKEN, Rate},
};

use super::{
    text::{Field, InvalidText},
    value::read,
};

/// The table in [`FIELDS`] that stands for the table of each unit.
const UNIT_TABLE: &str = "cost.UNIT";
const COST: &str = "cost";

/// What becomes of dependencies that no rule names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownDependencies {
    /// They run under the defaults.
    #[default]
    Defaults,
    /// They are refused.
    Refuse,
}

/// By the key in [`FIELDS`].
type Values = BTreeMap<&'static str, Value>;

/// The fields one rule sets. Those that are not here are inherited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    values: Values,
    units: BTreeMap<String, Values>,
}

// === impl UnknownDependencies ===

impl UnknownDependencies {
    pub(super) const KEY: &'static str = "unknown_dependencies";

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Defaults => "defaults",
            Self::Refuse => "refuse",
        }
    }
}

// === impl Fields ===

impl Fields {
    /// Reads one rule's fields.
    pub(super) fn read(fields: Vec<Field<'_>>, defaults: bool) -> Result<Self, InvalidText> {
        let mut this = Self::default();
        for field in fields {
            match find("", field.key) {
                Some(known) if known.only_in_defaults && !defaults => {
                    return Err(field.refuse("is allowed in [defaults] only"));
                }
                Some(known) => drop(this.values.insert(known.key, read(&field, &known.form)?)),
                None if field.key == COST => {
                    for unit in field.fields()? {
                        let mut values = Values::new();
                        read_table(&unit, UNIT_TABLE, &mut values)?;
                        this.units.insert(unit.key.to_owned(), values);
                    }
                }
                None if names().contains(&field.key) => read_table(&field, field.key, &mut this.values)?,
                None => return Err(field.unknown(&names())),
            }
        }
        Ok(this)
    }

    /// What becomes of dependencies that no rule names, by `[defaults]`.
    pub(super) fn unknown_dependencies(&self) -> UnknownDependencies {
        match self.values.get(UnknownDependencies::KEY) {
            Some(word) if *word == Value::Word(UnknownDependencies::Refuse.name()) => UnknownDependencies::Refuse,
            Some(_) | None => UnknownDependencies::Defaults,
        }
    }

    /// The policy of a rule with these fields of its own and all others from `defaults`.
    pub(super) fn policy(&self, defaults: &Self) -> Result<Policy, InvalidPolicy> {
        let admission = limit("admission", "admission", &self.values, &defaults.values)?;
        let units = self.units(defaults)?;
        let mut spec = Spec { admission, units, ..Spec::default() };
        let own = |field: &policy::Field| self.values.get(field.key);
        for field in FIELDS {
            let inherited = defaults.values.get(field.key).filter(|value| {
                // Said for all dependencies, a part of the admission rate means those that have one.
                admission.is_some() || !matches!(value, Value::Originals(FallbackOriginals::Part(_)))
            });
            if let Some(value) = own(field).or(inherited) {
                field.set(&mut spec, value);
            }
        }
        spec.fallback_originals = Some(spec.fallback_originals());
        Policy::new(spec)
    }

    fn units(&self, defaults: &Self) -> Result<Vec<UnitLimit>, InvalidPolicy> {
        let none = Values::new();
        let mut units = BTreeMap::new();
        for (name, inherited) in &defaults.units {
            let own = self.units.get(name).unwrap_or(&none);
            units.insert(name, limit(&format!("{COST}.{name}"), UNIT_TABLE, own, inherited)?);
        }
        for (name, own) in &self.units {
            let inherited = defaults.units.get(name).unwrap_or(&none);
            let field = format!("{COST}.{name}");
            if own.keys().chain(inherited.keys()).all(|key| *key != "cost.UNIT.rate") {
                return Err(InvalidPolicy::new(field, "a unit without rate", "must have a rate"));
            }
            units.insert(name, limit(&field, UNIT_TABLE, own, inherited)?);
        }
        let limited =
            units.into_iter().filter_map(|(name, limit)| Some(UnitLimit { name: name.clone(), limit: limit? }));
        Ok(limited.collect())
    }
}

fn in_table(table: &str) -> impl Iterator<Item = &'static policy::Field> {
    FIELDS.iter().filter(move |field| field.path().0 == table)
}

fn find(table: &str, name: &str) -> Option<&'static policy::Field> {
    in_table(table).find(|field| field.path().1 == name)
}

/// What may stand in a rule: fields of no table, and tables.
fn names() -> Vec<&'static str> {
    let anywhere = FIELDS.iter().filter(|field| !field.only_in_defaults && field.path().0 != UNIT_TABLE);
    let mut names: Vec<_> = anywhere
        .map(|field| match field.path() {
            ("", name) => name,
            (table, _) => table,
        })
        .collect();
    names.dedup();
    names.push(COST);
    names
}

fn read_table(table: &Field<'_>, name: &str, values: &mut Values) -> Result<(), InvalidText> {
    for field in table.fields()? {
        let known = find(name, field.key).ok_or_else(|| {
            let names: Vec<_> = in_table(name).map(|field| field.path().1).collect();
            field.unknown(&names)
        })?;
        values.insert(known.key, read(&field, &known.form)?);
    }
    Ok(())
}

/// The limit that `rate` and `burst` of a table make; `field` is that table in errors. None: unlimited. A burst that is
/// not set is what one second's refill brings, at least one token.
fn limit(field: &str, table: &str, own: &Values, inherited: &Values) -> Result<Option<Limit>, InvalidPolicy> {
    let (rate, burst) = (format!("{table}.rate"), format!("{table}.burst"));
    let number = |values: &Values| match values.get(burst.as_str()) {
        Some(Value::Number(tokens)) => Some(*tokens),
        Some(_) | None => None,
    };
    match (own.get(rate.as_str()).or(inherited.get(rate.as_str())), number(own)) {
        (Some(Value::Rate(rate)), burst) => {
            let burst = burst.or(number(inherited));
            Ok(Some(Limit { rate: *rate, burst_tokens: burst.unwrap_or_else(|| second_of(*rate)) }))
        }
        (_, Some(burst)) => {
            Err(InvalidPolicy::new(format!("{field}.burst"), burst, format!("needs a limit in {field}.rate")))
        }
        (_, None) => Ok(None),
    }
}

/// One second's refill in whole tokens, rounded up.
fn second_of(rate: Rate) -> i64 {
    let (num, den) = rate.fraction();
    let tokens_den = den.saturating_mul(MICROS_PER_TOKEN).max(1);
    let micros = num.saturating_mul(1000).saturating_add(tokens_den - 1);
    (micros / tokens_den).max(1)
}
