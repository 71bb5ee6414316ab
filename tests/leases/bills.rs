//! What attempts cost of a unit, as on a language model's bill, and how long they hold their permits: what is estimated
//! and what it is in the end, and a judge of all of it by the documented bound.

use std::sync::Mutex;

use budget::{
    bound::{
        Quantity,
        checker::{AllWindows, Event, Law, Slope},
    },
    decision::{Cost, Outcome},
};
use budget_client::{Dependency, InFlight, Source, boot_time_ns};
use budget_tests::rng::Rng;

use super::{
    judge::{Case, LONG_MS, count, steeper},
    setting::pay,
};

const MS: i64 = 1_000_000;
const MICROS: i64 = 1_000_000;
/// The one unit.
const UNIT: &str = "tokens";
/// An estimate, in tokens; and by how many the bill is less, or more.
const ESTIMATES: (u64, u64) = (6, 14);
const LESS: u64 = 3;
const MORE: u64 = 4;
/// What an attempt costs on the average: half a token more than is estimated.
pub(crate) const MEAN_COST: f64 = 10.5;

/// How attempts are billed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bill {
    /// Shortest and longest time that a permit is held.
    pub(crate) held_ms: (u64, u64),
    /// One of so many is never finished: its permit ends by itself.
    pub(crate) one_lost_of: u64,
    /// How long such a permit is out.
    pub(crate) lost_ms: u64,
}

/// What one attempt will cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Billing {
    pub(crate) estimate: i64,
    pub(crate) actual: i64,
    pub(crate) held_ns: i64,
    /// Never finished, and out for so long.
    pub(crate) lost_ns: Option<i64>,
}

/// An attempt that was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Billed {
    /// Right before it was asked for.
    pub(crate) from_ns: i64,
    /// Right after it was sent.
    pub(crate) sent_ns: i64,
    /// Right before it was settled; none: never.
    pub(crate) settled_ns: Option<i64>,
    /// Tokens.
    pub(crate) estimate: i64,
    pub(crate) actual: i64,
    pub(crate) source: Source,
}

/// All that were admitted, in the order of admission.
#[derive(Debug, Default)]
pub(crate) struct Bills(Mutex<Vec<Billed>>);

/// An attempt under way.
pub(crate) struct Open {
    /// None once it is lost.
    flight: Option<InFlight>,
    number: usize,
    source: Source,
    billing: Billing,
    ends_ns: i64,
}

/// Settled costs beyond the limit of debt, in tokens, and the pause of a holder that stood still meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Besides {
    pub(crate) overuse_micros: i64,
    /// From, to: whoever was in flight all that time settled late.
    pub(crate) paused_ns: Option<(i64, i64)>,
}

/// The dependency, with its unit.
pub(crate) fn pay_by_tokens() -> Dependency {
    pay().with_units([UNIT]).unwrap()
}

fn cost_of(tokens: i64) -> Cost {
    pay_by_tokens().cost(UNIT, tokens * MICROS).unwrap()
}

// === impl Open ===

impl Open {
    pub(crate) fn is_of_lease(&self) -> bool {
        self.source == Source::Lease
    }
}

// === impl Bill ===

impl Bill {
    pub(crate) fn next(self, rng: &mut Rng) -> Billing {
        let mut between = |least: u64, most: u64| i64::try_from(least + rng.below(most - least + 1)).unwrap();
        let estimate = between(ESTIMATES.0, ESTIMATES.1);
        let actual = estimate - i64::try_from(LESS).unwrap() + between(0, LESS + MORE);
        let held_ns = between(self.held_ms.0, self.held_ms.1) * MS;
        let lost_ns = (between(1, self.one_lost_of) == 1).then(|| i64::try_from(self.lost_ms).unwrap() * MS);
        Billing { estimate, actual, held_ns, lost_ns }
    }
}

// === impl Billing ===

impl Billing {
    pub(crate) fn estimated(&self) -> Cost {
        cost_of(self.estimate)
    }
}

// === impl Billed ===

impl Billed {
    /// What was charged at once and never given back.
    fn sure(&self) -> i64 {
        if self.settled_ns.is_some() { self.estimate.min(self.actual) } else { self.estimate }
    }

    /// What it cost in the end; who is not settled keeps the estimate.
    fn whole(&self) -> i64 {
        if self.settled_ns.is_some() { self.actual } else { self.estimate }
    }

    /// For another process: `prefix` and the numbers.
    fn line(&self, number: usize) -> String {
        let Self { from_ns, sent_ns, estimate, actual, source, .. } = self;
        format!("billed {number} {from_ns} {sent_ns} {estimate} {actual} {source:?}")
    }

    fn parse(line: &str) -> Option<(usize, Self)> {
        let words: Vec<&str> = line.strip_prefix("billed ")?.split(' ').collect();
        let [number, from_ns, sent_ns, estimate, actual, source] = words[..] else { return None };
        let sources = [Source::Lease, Source::Coordinator, Source::Degraded, Source::Fallback];
        let billed = Self {
            from_ns: from_ns.parse().ok()?,
            sent_ns: sent_ns.parse().ok()?,
            settled_ns: None,
            estimate: estimate.parse().ok()?,
            actual: actual.parse().ok()?,
            source: sources.into_iter().find(|one| format!("{one:?}") == source)?,
        };
        Some((number.parse().ok()?, billed))
    }
}

// === impl Bills ===

impl Bills {
    /// What another process printed.
    pub(crate) fn parse(printed: &str) -> Vec<Billed> {
        let mut all: Vec<Billed> = Vec::new();
        for line in printed.lines().map(str::trim) {
            if let Some((number, billed)) = Billed::parse(line) {
                assert_eq!(number, all.len(), "{line}");
                all.push(billed);
            } else if let Some((number, ns)) = line.strip_prefix("settled ").and_then(|rest| rest.split_once(' ')) {
                let number: usize = number.parse().unwrap();
                all[number].settled_ns = ns.parse().ok();
            }
        }
        all
    }

    /// An attempt was sent.
    pub(crate) fn open(
        &self,
        (from_ns, sent_ns): (i64, i64),
        source: Source,
        billing: Billing,
        flight: InFlight,
        prints: bool,
    ) -> Open {
        let Billing { estimate, actual, held_ns, .. } = billing;
        let billed = Billed { from_ns, sent_ns, settled_ns: None, estimate, actual, source };
        let mut all = self.0.lock().unwrap();
        let number = all.len();
        if prints {
            println!("{}", billed.line(number));
        }
        all.push(billed);
        Open { flight: Some(flight), number, source, billing, ends_ns: sent_ns + held_ns }
    }

    /// Settles those whose time has come.
    pub(crate) fn settle(&self, open: &mut Vec<Open>, prints: bool) {
        let now_ns = boot_time_ns();
        for lost in open.iter_mut().filter(|open| open.ends_ns <= now_ns) {
            if let Some(lost_ns) = lost.billing.lost_ns
                && let Some(flight) = lost.flight.take()
            {
                flight.finish(Outcome::Abandoned);
                lost.ends_ns = lost.ends_ns.saturating_add(lost_ns);
            }
        }
        for Open { flight, number, billing, .. } in open.extract_if(.., |open| open.ends_ns <= now_ns) {
            let Some(flight) = flight else { continue };
            // Before: what is in flight is counted too short rather than too long.
            let settled_ns = boot_time_ns();
            self.0.lock().unwrap()[number].settled_ns = Some(settled_ns);
            if prints {
                println!("settled {number} {settled_ns}");
            }
            flight.finish_with(Outcome::Success, &[cost_of(billing.actual)]);
        }
    }

    pub(crate) fn all(&self) -> Vec<Billed> {
        self.0.lock().unwrap().clone()
    }

    /// Tokens of what was sent in a time.
    pub(crate) fn tokens(&self, from_ns: i64, until_ns: i64) -> i64 {
        let all = self.0.lock().unwrap();
        let sent = all.iter().filter(|billed| (from_ns..until_ns).contains(&billed.sent_ns));
        sent.map(Billed::whole).sum()
    }
}

// === impl Case ===

impl Case {
    /// The bound of the unit, all windows at once, and T5. Judged twice: what estimates took for good, as if nothing cost
    /// more; and what it cost in the end, with the terms that are documented for that.
    pub(crate) fn assert_bills(&self, bills: &[Billed], besides: Besides) {
        assert!(bills.iter().any(|billed| billed.settled_ns.is_some() && billed.actual > billed.estimate));
        assert!(bills.iter().any(|billed| billed.settled_ns.is_some() && billed.actual < billed.estimate));
        let slept = |billed: &&Billed| {
            besides.paused_ns.is_none_or(|(from_ns, until_ns)| billed.sent_ns > from_ns || billed.end_ns() < until_ns)
        };
        let longest = |ns: fn(&Billed) -> i64| bills.iter().filter(slept).map(ns).max().unwrap_or(0) / MS + 1;
        let asked_ms = longest(|billed| billed.sent_ns - billed.from_ns);
        let settled_ms = longest(|billed| billed.settled_ns.unwrap_or(billed.from_ns) - billed.from_ns);
        let mut causes = self.causes.clone();
        causes.arrival_delay_ms = asked_ms;
        self.assert_unit("estimates", bills, Billed::sure, &causes);
        causes.arrival_delay_ms = settled_ms.max(asked_ms);
        causes.underestimated = true;
        if besides.overuse_micros > 0 {
            causes.overuse.push((UNIT.to_owned(), besides.overuse_micros));
        }
        self.assert_unit("actual costs", bills, Billed::whole, &causes);
        self.assert_permits(bills);
    }

    fn assert_unit(&self, what: &str, bills: &[Billed], tokens: fn(&Billed) -> i64, causes: &budget::bound::Causes) {
        let quantity = Quantity::Unit(UNIT.to_owned());
        let excess = |window_ms| count(self.bound(window_ms, causes).excess(&quantity));
        let (allowed, long) = (excess(0), excess(LONG_MS));
        let numbers = self.judged_by().numbers(false, true).units[0].1;
        let unit = Slope { num: numbers.num, den: numbers.den, burst_micros: numbers.burst };
        // The checker counts whole ones: a cost of ten is ten admissions at once. Retries are judged elsewhere.
        let law = Law { admission: Some(steeper(unit, allowed, long)), ..Law::of(self.judged_by()) };
        let each = |billed: &Billed| {
            let event = (billed.sent_ns, Event::Admission);
            std::iter::repeat_n(event, usize::try_from(tokens(billed)).unwrap())
        };
        let epochs = self.epochs().map(|at_ns| (at_ns, Event::Epoch));
        let events = bills.iter().flat_map(each).chain(epochs).collect();
        let windows = AllWindows::of(self.horizon_ms(), self.start_ns(), law, events);
        let worst = windows.admissions().unwrap();
        for term in &self.bound(0, causes).terms {
            for part in term.parts.iter().filter(|part| part.quantity == quantity) {
                println!("  term {}: {} {:?}", term.cause.name(), part.formula, part.most);
            }
        }
        let (over, ms) = (worst.micros as f64 / 1e6, (worst.until_ns - worst.from_ns) / MS);
        let all: i64 = bills.iter().map(tokens).sum();
        println!(
            "T1 {UNIT}, {what}: the bound allows an excess of {allowed} (beside its slopes), seen {over:+.2} in {ms} ms; \
             {all} in all"
        );
        assert!(worst.micros <= allowed * MICROS, "{UNIT}, {what}: {over:+.2} in {ms} ms, allowed {allowed}");
    }

    /// T5: permits end when they are settled, or by themselves; the fallback limits rates and gives none.
    fn assert_permits(&self, bills: &[Billed]) {
        let spec = self.judged_by().spec();
        let (most, ttl_ns) = (i64::from(spec.max_in_flight.unwrap()), spec.permit_ttl_ms * MS);
        // By the clock of whoever counts them they may end a little sooner.
        let life_ns = ttl_ns - ttl_ns / 1_000 - 5 * MS;
        let mut changes = Vec::new();
        for billed in bills.iter().filter(|one| matches!(one.source, Source::Lease | Source::Coordinator)) {
            // A coordinator's begin before they are heard of.
            let end_ns = billed.end_ns().min(billed.from_ns + life_ns);
            if end_ns > billed.sent_ns {
                changes.extend([(billed.sent_ns, 1), (end_ns, -1)]);
            }
        }
        // Of those at the same time, what ends comes first.
        changes.sort_unstable();
        let (mut out, mut highest) = (0_i64, (0, most));
        for (at_ns, change) in changes {
            out += change;
            let lost = self.epochs().filter(|epoch_ns| (at_ns - ttl_ns..=at_ns).contains(epoch_ns)).count();
            let allowed = most * (1 + i64::try_from(lost).unwrap());
            if out - allowed > highest.0 - highest.1 || highest.0 == 0 {
                highest = (out, allowed);
            }
        }
        println!("T5 permits: the bound allows {} in flight, seen {}", highest.1, highest.0);
        assert!(highest.0 > 0 && highest.0 <= highest.1, "{highest:?}");
    }
}

impl Billed {
    fn end_ns(&self) -> i64 {
        self.settled_ns.unwrap_or(i64::MAX)
    }
}
