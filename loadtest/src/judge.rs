//! Verdicts: what a scenario wanted against what was seen. All of it is counts; no clock of this machine decides anything.

mod bound;
mod gauge;
#[cfg(test)]
mod tests;

use crate::{
    Error,
    caller::End,
    engine::{Outcome, count},
    record::{BoundLine, Verdict},
    scenario::{Accept, Gauge, Over, Scenario},
};
use gauge::Measured;

/// What was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judged {
    /// What no machine may break, however busy it is: accounts and bounds.
    pub(crate) promises: Vec<Verdict>,
    /// What shows in a run under the load that was planned.
    pub(crate) accepted: Vec<Verdict>,
    pub(crate) bound: Vec<BoundLine>,
}

/// Judges all runs of a scenario.
pub(crate) fn judge(scenario: &Scenario, outcomes: &[Outcome]) -> Result<Judged, Error> {
    let mut judged = Judged { promises: vec![accounts(outcomes)], ..Judged::default() };
    for accept in &scenario.accept {
        judged.accepted.extend(accepted(scenario, accept, outcomes)?);
    }
    if let Some(spec) = &scenario.bound {
        for outcome in outcomes.iter().filter(|outcome| outcome.strategy.has_budgetd()) {
            let Judged { promises, accepted, bound } = bound::judge(scenario, spec, outcome)?;
            judged.promises.extend(promises);
            judged.accepted.extend(accepted);
            judged.bound.extend(bound);
        }
    }
    Ok(judged)
}

/// Who a run was, in verdicts.
fn who(outcome: &Outcome) -> String {
    match outcome.variant.as_str() {
        "" => outcome.strategy.name().to_owned(),
        variant => format!("{}, {variant}", outcome.strategy.name()),
    }
}

/// Each operation has ended once, the dependency received nothing that was not sent, and nothing was sent that was not
/// admitted. Counted by three parties.
fn accounts(outcomes: &[Outcome]) -> Verdict {
    let mut wrong = Vec::new();
    let (mut ended, mut received, mut sent) = (0, 0, 0);
    for outcome in outcomes {
        let unended: u64 = outcome.told.iter().map(|told| told.unended).sum();
        let admitted = count(outcome.asks().filter(|ask| ask.via.admitted()));
        if unended > 0 {
            wrong.push(format!("{}: {unended} operations never ended", who(outcome)));
        }
        if outcome.counts.received > outcome.sent() {
            wrong.push(format!("{}: {} received of {} sent", who(outcome), outcome.counts.received, outcome.sent()));
        }
        if outcome.strategy.has_budgetd() && outcome.sent() > admitted {
            wrong.push(format!("{}: {} sent of {admitted} admitted", who(outcome), outcome.sent()));
        }
        ended += count(outcome.told.iter().flat_map(|told| &told.operations));
        received += outcome.counts.received;
        sent += outcome.sent();
    }
    let seen = format!("{ended} operations ended, {sent} attempts sent, {received} received");
    Verdict {
        says: "every operation ends once; the dependency receives what was sent, and budgetd admitted that".to_owned(),
        wanted: "received ≤ sent ≤ admitted".to_owned(),
        passed: wrong.is_empty(),
        seen: if wrong.is_empty() { seen } else { wrong.join("; ") },
    }
}

/// One acceptance, for each strategy it is about.
fn accepted(scenario: &Scenario, accept: &Accept, outcomes: &[Outcome]) -> Result<Vec<Verdict>, Error> {
    let mut verdicts = Vec::new();
    for strategy in accept.strategies(scenario) {
        let mine: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.strategy == strategy).collect();
        if accept.gauge == Gauge::AmplificationSpread {
            verdicts.extend(spread(accept, strategy.name(), &mine));
            continue;
        }
        for outcome in mine {
            let seen = gauge::measure(scenario, accept, outcome);
            let reference = match accept.of {
                None => None,
                Some(over) => match reference(scenario, accept, over, outcome, outcomes)? {
                    Some(reference) => Some(reference),
                    // Whom it would be compared with did not run.
                    None => continue,
                },
            };
            verdicts.push(limited(accept, &who(outcome), &seen, reference));
        }
    }
    Ok(verdicts)
}

/// The number that limits are multiples of, and its name.
fn reference(
    scenario: &Scenario,
    accept: &Accept,
    over: Over,
    outcome: &Outcome,
    outcomes: &[Outcome],
) -> Result<Option<(f64, String)>, Error> {
    let others = outcomes.iter().filter(|other| other.variant == outcome.variant);
    let measured = |other: &Outcome| gauge::measure(scenario, accept, other).value;
    let of = |name: &str| {
        let mut others = others.clone().filter(|other| other.strategy.name() == name);
        others.next().and_then(measured).map(|value| (value, name.to_owned()))
    };
    Ok(match over {
        Over::Budget => gauge::allowed_amplification(scenario, outcome)?,
        Over::Naive => of("naive"),
        Over::Single => of("single"),
        Over::Tower => of("tower"),
        Over::BestOther => {
            let others = others.filter(|other| !other.strategy.has_budgetd());
            let values = others.filter_map(|other| Some((measured(other)?, other.strategy.name())));
            let best = values.max_by(|one, other| one.0.total_cmp(&other.0));
            best.map(|(value, name)| (value, format!("the best other, {name}")))
        }
        Over::FewestClients => {
            let mine = outcomes.iter().filter(|other| other.strategy == outcome.strategy);
            let fewest = mine.min_by_key(|other| other.clients);
            fewest
                .filter(|fewest| fewest.clients != outcome.clients)
                .and_then(|fewest| Some((measured(fewest)?, format!("with {}", fewest.variant))))
        }
    })
}

fn limited(accept: &Accept, who: &str, seen: &Measured, reference: Option<(f64, String)>) -> Verdict {
    let limit = |times: f64| reference.as_ref().map_or(times, |(value, _)| times * value);
    let worded = |sign: &str, times: f64| match &reference {
        None => format!("{sign} {}", shown(times)),
        Some((value, name)) if (times - 1.0).abs() < 1e-9 => format!("{sign} {} ({name})", shown(*value)),
        Some((value, name)) => {
            format!("{sign} {} ({} × {}, {name})", shown(times * value), shown(times), shown(*value))
        }
    };
    let (most, least) = (accept.at_most, accept.at_least);
    let wanted: Vec<String> =
        most.map(|times| worded("≤", times)).into_iter().chain(least.map(|times| worded("≥", times))).collect();
    // Nothing to measure is nothing to pass.
    let keeps = |value: f64| {
        most.is_none_or(|times| value <= limit(times) + 1e-9) && least.is_none_or(|times| value >= limit(times) - 1e-9)
    };
    Verdict {
        says: format!("{who}: {}", seen.says),
        wanted: wanted.join(" and "),
        seen: seen.value.map_or_else(|| "n/a".to_owned(), shown),
        passed: seen.value.is_some_and(keeps),
    }
}

/// How much amplification differs between numbers of clients.
fn spread(accept: &Accept, name: &str, outcomes: &[&Outcome]) -> Option<Verdict> {
    let values: Vec<f64> = outcomes.iter().filter_map(|outcome| outcome.amplification()).collect();
    let (least, most) = (values.iter().copied().reduce(f64::min)?, values.iter().copied().reduce(f64::max)?);
    let says = format!("amplification from {} to {}", outcomes.first()?.variant, outcomes.last()?.variant);
    let seen = Measured { says, value: Some(most / least) };
    Some(limited(accept, name, &seen, None))
}

/// Few digits, but no more than needed.
fn shown(value: f64) -> String {
    let text = if value.abs() >= 1_000.0 { format!("{value:.0}") } else { format!("{value:.3}") };
    match text.split_once('.') {
        Some((whole, part)) => match part.trim_end_matches('0') {
            "" => whole.to_owned(),
            part => format!("{whole}.{part}"),
        },
        None => text,
    }
}

/// Whether an operation has an accepted result.
fn is_useful(end: End) -> bool {
    end == End::Completed
}
