//! What a benchmark found: a table for people and JSON for machines.

use std::fmt;

use serde::Serialize;

use crate::{
    bench::{Round, Side, renewals::Renewals},
    bytes_per_item::Bytes,
    comparisons::{Comparison, Goals, Server},
    driver::Slice,
    stats::{OrNa, Spread, median, ratio},
};

/// The share of asks that must be admitted, and of releases that must be applied, for a comparison to mean anything.
const ADMITTED_SHARE_MIN: f64 = 0.99;

/// Everything a run found.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    #[serde(rename = "results")]
    pub(crate) rows: Vec<Row>,
    pub(crate) bytes: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) renewals: Option<Renewals>,
    #[serde(skip)]
    pub(crate) redis: Option<String>,
}

/// One comparison over all rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    name: String,
    /// Calls per second of the subject to those of the echo server, median over the rounds.
    ratio_to_echo: Option<f64>,
    /// The same where the baseline is unary calls to the same server.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_unary: Option<f64>,
    ratio: Option<Spread>,
    p99_ratio: Option<f64>,
    p99_ratio_spread: Option<Spread>,
    script_calls_per_1000: Option<f64>,
    calls_per_second: Option<Spread>,
    baseline_calls_per_second: Option<Spread>,
    p50_micros: Option<f64>,
    p99_micros: Option<f64>,
    baseline_p50_micros: Option<f64>,
    baseline_p99_micros: Option<f64>,
    server_cpu_micros_per_call: Option<f64>,
    baseline_cpu_micros_per_call: Option<f64>,
    redis_cpu_micros_per_call: Option<f64>,
    client_cpu_micros_per_call: Option<f64>,
    /// Of the side that admitted less.
    admitted_share: Option<f64>,
    released_share: Option<f64>,
    /// Of both sides; they count as not admitted or not released.
    failed_calls: u64,
    rounds: usize,
    targets: Goals,
    /// Absent where nothing is to be reached.
    reached: Option<bool>,
}

// === impl Report ===

impl Report {
    /// Some comparison was not a fair one.
    pub(crate) fn asks_refused(&self) -> bool {
        self.rows.iter().any(Row::asks_refused)
    }

    /// Some number to reach was not reached.
    pub(crate) fn goals_missed(&self) -> bool {
        self.rows.iter().any(|row| row.reached == Some(false))
            || self.bytes.goals_missed()
            || self.renewals.as_ref().is_some_and(|renewals| !renewals.reached())
    }

    /// For machines.
    pub(crate) fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.rows.is_empty() {
            if let Some(redis) = &self.redis {
                writeln!(f, "{redis}; ratios are medians with quartiles over the rounds")?;
            }
            writeln!(
                f,
                "{:<25} {:>22} {:>22} {:>9} {:>9} {:>13} {:>13} {:>8} {:>17} {:>8}  {:<34}",
                "comparison",
                "ratio of calls/s",
                "p99 ratio",
                "calls/s",
                "baseline",
                "p50/p99 ms",
                "baseline ms",
                "scripts",
                "cpu µs srv/base/r",
                "admitted",
                "target",
            )?;
            self.rows.iter().try_for_each(|row| row.fmt(f))?;
        }
        self.bytes.fmt(f)?;
        self.renewals.iter().try_for_each(|renewals| renewals.fmt(f))
    }
}

// === impl Row ===

impl Row {
    /// Sums up the rounds of one comparison.
    pub(crate) fn new(comparison: &Comparison, rounds: &[Round]) -> Self {
        let subject = || rounds.iter().map(|round| round.subject);
        let baseline = || rounds.iter().map(|round| round.baseline);
        let spread = |values: &dyn Fn(&Round) -> Option<f64>| Spread::of(rounds.iter().filter_map(values));
        let ratios =
            spread(&|round| ratio(round.subject.slice.calls_per_second, round.baseline.slice.calls_per_second));
        let p99_ratios = spread(&|round| {
            ratio(f64::from(round.subject.slice.p99_micros?), f64::from(round.baseline.slice.p99_micros?))
        });
        let micros = |value: fn(&Slice) -> Option<u32>, sides: &mut dyn Iterator<Item = Side>| {
            median(sides.filter_map(|side| value(&side.slice).map(f64::from)))
        };
        let on_redis = matches!(comparison.subject.server, Server::Redis | Server::Leased);
        let script_calls =
            per_call(subject(), |side| side.script_calls).filter(|_| on_redis).map(|calls| calls * 1000.0);
        let both = |parts| min(share(subject(), parts), share(baseline(), parts));
        let ratio_median = ratios.map(|spread| spread.median);
        let p99_ratio = p99_ratios.map(|spread| spread.median);
        Self {
            name: comparison.name.to_string(),
            ratio_to_echo: ratio_median.filter(|_| comparison.is_to_echo()),
            ratio_to_unary: ratio_median.filter(|_| !comparison.is_to_echo()),
            ratio: ratios,
            p99_ratio,
            p99_ratio_spread: p99_ratios,
            script_calls_per_1000: script_calls,
            calls_per_second: Spread::of(subject().map(|side| side.slice.calls_per_second)),
            baseline_calls_per_second: Spread::of(baseline().map(|side| side.slice.calls_per_second)),
            p50_micros: micros(|slice| slice.p50_micros, &mut subject()),
            p99_micros: micros(|slice| slice.p99_micros, &mut subject()),
            baseline_p50_micros: micros(|slice| slice.p50_micros, &mut baseline()),
            baseline_p99_micros: micros(|slice| slice.p99_micros, &mut baseline()),
            server_cpu_micros_per_call: per_call(subject(), |side| side.server_cpu_micros),
            baseline_cpu_micros_per_call: per_call(baseline(), |side| side.server_cpu_micros),
            redis_cpu_micros_per_call: per_call(subject(), |side| side.redis_cpu_micros),
            client_cpu_micros_per_call: per_call(subject(), |side| side.client_cpu_micros),
            admitted_share: both(|slice| (slice.admitted, slice.asks)),
            released_share: both(|slice| (slice.released, slice.releases)),
            failed_calls: subject().chain(baseline()).map(|side| side.slice.failed).sum(),
            rounds: rounds.len(),
            targets: comparison.goals,
            reached: comparison.goals.reached(ratio_median, p99_ratio, script_calls),
        }
    }

    fn asks_refused(&self) -> bool {
        // No release at all is what a loop without releases does.
        self.admitted_share.is_none_or(|share| share < ADMITTED_SHARE_MIN)
            || self.released_share.is_some_and(|share| share < ADMITTED_SHARE_MIN)
    }

    fn verdict(&self) -> &'static str {
        if self.asks_refused() {
            "NOT ADMITTED"
        } else {
            match self.reached {
                Some(true) => "ok",
                Some(false) => "SHORT",
                None => "",
            }
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |p50: Option<f64>, p99: Option<f64>| {
            let text = |micros: Option<f64>| OrNa(micros.map(|micros| format!("{:.1}", micros / 1000.0)));
            format!("{}/{}", text(p50), text(p99))
        };
        let whole = |spread: Option<Spread>| OrNa(spread.map(|spread| format!("{:.0}", spread.median)));
        let one = |value: Option<f64>| OrNa(value.map(|value| format!("{value:.1}")));
        let cpu = format!(
            "{}/{}/{}",
            one(self.server_cpu_micros_per_call),
            one(self.baseline_cpu_micros_per_call),
            one(self.redis_cpu_micros_per_call)
        );
        // Rounded down, so that 99% is never shown for less.
        let admitted = self.admitted_share.map(|share| format!("{:.1}%", (share * 1000.0).floor() / 10.0));
        let line = format!(
            "{:<25} {:>22} {:>22} {:>9} {:>9} {:>13} {:>13} {:>8} {:>17} {:>8}  {} {}",
            self.name,
            OrNa(self.ratio),
            OrNa(self.p99_ratio_spread),
            whole(self.calls_per_second),
            whole(self.baseline_calls_per_second),
            millis(self.p50_micros, self.p99_micros),
            millis(self.baseline_p50_micros, self.baseline_p99_micros),
            one(self.script_calls_per_1000),
            cpu,
            OrNa(admitted),
            self.targets,
            self.verdict(),
        );
        writeln!(f, "{}", line.trim_end())
    }
}

/// Over all rounds.
fn per_call(sides: impl Iterator<Item = Side>, value: fn(&Side) -> Option<u64>) -> Option<f64> {
    let (mut total, mut calls) = (0, 0);
    for side in sides {
        total += value(&side)?;
        calls += side.slice.calls;
    }
    ratio(total as f64, calls as f64)
}

/// The smaller; one that is missing does not count.
fn min(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).min_by(f64::total_cmp)
}

/// Over all rounds.
fn share(sides: impl Iterator<Item = Side>, parts: fn(&Slice) -> (u64, u64)) -> Option<f64> {
    let (part, whole) =
        sides.map(|side| parts(&side.slice)).fold((0, 0), |sum, (part, whole)| (sum.0 + part, sum.1 + whole));
    ratio(part as f64, whole as f64)
}

// === impl Goals ===

impl Goals {
    /// Nothing if there is nothing to reach; a number that is missing is not reached.
    fn reached(&self, ratio: Option<f64>, p99_ratio: Option<f64>, script_calls: Option<f64>) -> Option<bool> {
        let checks = [
            self.ratio_min.map(|goal| ratio.is_some_and(|ratio| ratio >= goal)),
            self.p99_ratio_max.map(|goal| p99_ratio.is_some_and(|ratio| ratio <= goal)),
            self.script_calls_per_1000_max.map(|goal| script_calls.is_some_and(|calls| calls <= goal)),
        ];
        checks.into_iter().flatten().reduce(|all, one| all && one)
    }
}

impl fmt::Display for Goals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.ratio_min.map(|goal| format!("≥{goal:.2}")),
            self.p99_ratio_max.map(|goal| format!("p99≤{goal}")),
            self.script_calls_per_1000_max.map(|goal| format!("scripts≤{goal}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.pad(&parts.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparisons::COMPARISONS;

    fn side(calls_per_second: f64, p99_micros: u32, admitted: u64, script_calls: Option<u64>) -> Side {
        let slice = Slice {
            calls: 2000,
            asks: 1000,
            admitted,
            releases: admitted,
            released: admitted,
            failed: 0,
            calls_per_second,
            p50_micros: Some(p99_micros / 2),
            p99_micros: Some(p99_micros),
        };
        Side { slice, script_calls, ..Side::default() }
    }

    fn row(name: &str, rounds: &[Round]) -> Row {
        let comparison = COMPARISONS.iter().find(|comparison| comparison.name == name).expect("a known name");
        Row::new(comparison, rounds)
    }

    #[test]
    fn a_row_takes_medians_of_ratios_within_rounds() {
        let round = |subject, baseline| Round {
            subject: side(subject, 2000, 1000, Some(40)),
            baseline: side(baseline, 1000, 1000, None),
        };
        // The machine slowed down in the middle: the ratios stay.
        let row = row("redis_hot", &[round(70.0, 100.0), round(7.0, 10.0), round(80.0, 100.0)]);
        assert_eq!(row.ratio_to_echo, Some(0.7));
        assert_eq!(row.p99_ratio, Some(2.0));
        assert_eq!(row.script_calls_per_1000, Some(20.0));
        assert_eq!(row.reached, Some(true));
        assert!(!row.asks_refused());
    }

    #[test]
    fn refused_asks_are_seen_whatever_the_ratio() {
        let round = Round { subject: side(100.0, 1, 970, Some(1)), baseline: side(100.0, 1, 1000, None) };
        let row = row("redis_hot", &[round]);
        assert!(row.asks_refused());
        let report = Report { rows: vec![row], ..Report::default() };
        assert!(report.asks_refused() && !report.goals_missed());
        assert!(report.to_string().contains("NOT ADMITTED"));
    }

    #[test]
    fn no_rounds_print_as_na_and_reach_nothing() {
        let row = row("memory_hot", &[]);
        assert_eq!((row.ratio_to_echo, row.reached), (None, Some(false)));
        assert!(row.asks_refused());
        assert!(row.to_string().contains("n/a"));
    }

    #[test]
    fn json_has_the_agreed_names() {
        let round = Round { subject: side(95.0, 10, 1000, None), baseline: side(100.0, 10, 1000, None) };
        let rows = vec![row("memory_hot", &[round]), row("session", &[round])];
        let json: serde_json::Value =
            serde_json::from_str(&Report { rows, ..Report::default() }.to_json().expect("serialises"))
                .expect("is JSON");
        assert_eq!(json["results"][0]["name"], "memory_hot");
        assert_eq!(json["results"][0]["ratio_to_echo"], 0.95);
        assert_eq!(json["results"][0]["p99_ratio"], 1.0);
        assert!(json["results"][0]["script_calls_per_1000"].is_null());
        assert!(json["results"][1]["ratio_to_echo"].is_null());
        assert_eq!(json["results"][1]["ratio_to_unary"], 0.95);
        assert!(json["bytes"].is_object());
        assert_eq!(json.as_object().map(serde_json::Map::len), Some(2));
    }
}
