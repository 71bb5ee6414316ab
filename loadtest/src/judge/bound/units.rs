//! The bound of cost units: every admission weighs what it was estimated to cost.

use budget::{bound::Quantity, policy::UnitLimit};

use super::{Case, float, tokens, whole};
use crate::{
    judge::Judged,
    record::{BoundLine, Verdict},
};

/// The window of a unit that comes closest to its bound.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Worst {
    /// Micro-tokens beyond rate and burst; negative where the bound is kept.
    micros: f64,
    spent: f64,
    from_ns: i64,
    until_ns: i64,
}

pub(super) fn judge(case: &Case<'_>, judged: &mut Judged) {
    for unit in &case.policy.spec().units {
        let quantity = Quantity::Unit(unit.name.clone());
        // Where estimates may be too low, what it really cost; that the estimates keep the bound follows.
        let load = case.scenario.load.iter().filter_map(|load| load.cost.as_ref());
        let actual = load.filter(|cost| cost.unit == unit.name).map(|cost| cost.actual).fold(1.0, f64::max);
        let weight = |micros: i64| {
            if case.spec.underestimated || case.spec.overuse { float(micros) * actual } else { float(micros) }
        };
        let admitted = case.outcome.asks().filter(|ask| ask.via.admitted());
        let mut costs: Vec<(i64, f64)> = admitted.map(|ask| (ask.until_ns, weight(ask.cost_micros))).collect();
        costs.sort_by_key(|(at_ns, _)| *at_ns);
        let Some(worst) = worst(unit, &costs) else { continue };
        let window_ms = (worst.until_ns - worst.from_ns) / 1_000_000 + 1;
        let bound = case.bound(window_ms);
        let (most, more) = (whole(bound.most(&quantity)), whole(bound.excess(&quantity)));
        let strategy = super::super::who(case.outcome);
        let spent = worst.spent / 1e6;
        judged.promises.push(Verdict {
            says: format!("{strategy}: {} of every window keep the documented bound", unit.name),
            wanted: format!("≤ {} in the window that comes closest, of {window_ms} ms", most.map_or(f64::NAN, float)),
            seen: format!("{spent:.0}, {:+.0} from the bound without terms", worst.micros / 1e6),
            passed: more.is_none_or(|more| worst.micros <= float(more) * 1e6),
        });
        if let (Some(reaches), Some(allowed)) = (case.spec.reaches, more)
            && case.spec.reached.as_ref() == Some(&unit.name)
        {
            let part = worst.micros / 1e6 / float(allowed.max(1));
            judged.accepted.push(Verdict {
                says: format!("{strategy}: {}", super::REACHES),
                wanted: format!("≥ {reaches} of the {allowed} that may come on top in {window_ms} ms"),
                seen: format!("{:.0} came on top, {part:.2} of it", worst.micros / 1e6),
                passed: part >= reaches,
            });
        }
        judged.bound.push(BoundLine {
            strategy,
            quantity: unit.name.clone(),
            term: "sum".to_owned(),
            formula: format!(
                "burst {} + rate × {window_ms} ms, and {} by terms",
                unit.limit.burst_tokens,
                tokens(more.unwrap_or(0).saturating_mul(1_000_000))
            ),
            allowed: most.map(float),
            seen: Some(spent),
        });
    }
}

/// In one pass: `spent` is the largest sum beyond the rate of all windows that end now.
fn worst(unit: &UnitLimit, costs: &[(i64, f64)]) -> Option<Worst> {
    let (num, den) = unit.limit.rate.fraction();
    let per_ns = float(num) / float(den) / 1e6 * 1.001;
    let burst = float(unit.limit.burst_tokens) * 1e6;
    let (mut beyond, mut spent, mut from_ns, mut at_ns) = (0.0, 0.0, 0, i64::MIN);
    let mut worst: Option<Worst> = None;
    for (until_ns, micros) in costs {
        if at_ns > i64::MIN {
            beyond -= float(until_ns - at_ns) * per_ns;
        }
        if beyond <= 0.0 {
            (beyond, spent, from_ns) = (0.0, 0.0, *until_ns);
        }
        at_ns = *until_ns;
        beyond += micros;
        spent += micros;
        // A millisecond of the rate for counting in whole ones.
        let excess = beyond - burst - per_ns * 1e6;
        if worst.is_none_or(|worst| excess > worst.micros) {
            worst = Some(Worst { micros: excess, spent, from_ns, until_ns: *until_ns });
        }
    }
    worst
}

#[cfg(test)]
mod tests {
    use budget::{
        policy::Limit,
        units::{Period, Rate},
    };

    use super::*;

    #[test]
    fn the_worst_window_is_found_by_weight() {
        let rate = Rate::new(1_000, Period::Second).expect("a rate");
        let unit = UnitLimit { name: "tokens".to_owned(), limit: Limit { rate, burst_tokens: 500 } };
        let second = 1_000_000_000;
        let costs = [(0, 400e6), (second / 2, 400e6), (10 * second, 700e6)];
        let worst = worst(&unit, &costs).expect("there are windows");
        assert_eq!((worst.from_ns, worst.until_ns, worst.spent), (10 * second, 10 * second, 700e6));
        assert!((198e6..200e6).contains(&worst.micros), "{worst:?}");
    }
}
