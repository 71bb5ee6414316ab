//! The report as JSON. What has no limit is `"unbounded"`.

use budget::bound::{Base, Flow, Most, Part, Quantity, Term};
use serde_json::{Value, json};

use super::LeaseReport;

// === impl LeaseReport ===

impl LeaseReport {
    /// As one JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let outage = &self.outage;
        let steps = outage.steps.iter().map(|step| {
            json!({
                "from_ms": step.from_ms,
                "until_ms": step.until_ms,
                "by": if step.leased { "lease" } else { "fallback" },
                "admissions_micros_per_second": flow(step.admissions),
                "retries": step.retries,
            })
        });
        let sharing = self.sharing.iter().map(|sharing| {
            json!({
                "field": sharing.field,
                "value": sharing.value,
                "holders": sharing.holders,
                "holders_most": sharing.holders_most,
            })
        });
        json!({
            "rule": self.rule,
            "holders": self.question.fleet.holders,
            "replicas": self.question.fleet.replicas,
            "beyond": self.question.beyond,
            "window_ms": self.question.window_ms,
            "bound": self.bound.bases.iter().map(base).collect::<Vec<_>>(),
            "more_only_if": self.bound.terms.iter().map(term).collect::<Vec<_>>(),
            "share": {
                "rate_micros_per_second": outage.share.rate,
                "burst_micros": outage.share.burst,
                "retry_burst_micros": outage.share.retry_burst,
                "permits": outage.share.slots,
            },
            "outage": steps.collect::<Vec<_>>(),
            "outage_reserve_micros_per_second": flow(outage.reserve),
            "wait_ms": outage.wait_ms,
            "quarantine_ms": outage.quarantine_ms,
            "quarantine_reserve_micros_per_second": flow(outage.direct),
            "leased_again_ms": outage.leased_again_ms,
            "returned_ms": outage.returned_ms,
            "sharing": sharing.collect::<Vec<_>>(),
            "warnings": self.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    }
}

fn most(most: Most) -> Value {
    match most {
        Most::Count(count) => count.into(),
        Most::Unbounded => "unbounded".into(),
    }
}

fn flow(flow: Flow) -> Value {
    match flow {
        Flow::PerSecond(micros) => micros.into(),
        Flow::Unlimited => "unbounded".into(),
    }
}

/// The unit is null for all but cost units.
fn part(part: &Part) -> Value {
    let (quantity, unit) = quantity(&part.quantity);
    json!({ "of": quantity, "unit": unit, "name": part.name, "formula": part.formula, "most": most(part.most) })
}

fn quantity(quantity: &Quantity) -> (&'static str, Option<&str>) {
    match quantity {
        Quantity::Admissions => ("admissions", None),
        Quantity::Retries => ("retries", None),
        Quantity::Unit(name) => ("unit", Some(name)),
        Quantity::InFlight => ("in_flight", None),
    }
}

fn base(base: &Base) -> Value {
    let (quantity, unit) = quantity(&base.quantity);
    json!({
        "of": quantity,
        "unit": unit,
        "most": most(base.most()),
        "per_original_ppm": base.per_original_ppm,
        "parts": base.parts.iter().map(part).collect::<Vec<_>>(),
    })
}

fn term(term: &Term) -> Value {
    json!({
        "cause": term.cause.name(),
        "text": term.text,
        "parts": term.parts.iter().map(part).collect::<Vec<_>>(),
    })
}
