//! Every field of what a holder tells and asks, with every kind of bad value.

use budget::{
    ids::DependencyId,
    lease::{Epoch, HolderId, Incarnation, SyncAsk, Usage},
};
use budget_proto::{
    InvalidMessage, UnitNames,
    convert::{Asking, sync_asks, sync_requests},
    pb,
};
use tonic::{Code, Status};

pub(crate) const HOUR: u64 = 3_600_000;
pub(crate) const EXACT: u64 = (1 << 53) - 1;
pub(crate) const RANDOM: u64 = (1 << 52) - 1;
pub(crate) const RATE: u64 = 4_000_000_000_000;
pub(crate) const BURST: u64 = 1_000_000_000_000_000;

pub(crate) fn epoch(number: u64) -> Option<pb::Epoch> {
    Some(pb::Epoch { number, id: 7 })
}

pub(crate) fn amounts() -> pb::Amounts {
    let unit = pb::UnitAmounts { unit: "usd".to_owned(), rate_micros_per_second: 3, burst_micros: 4 };
    pb::Amounts { rate_micros_per_second: 5, burst_micros: 6, retry_burst_micros: 7, slots: 8, units: vec![unit] }
}

fn curve() -> Vec<pb::CurveStep> {
    [(1_000_000, 20_000), (500_000, 100_000)]
        .map(|(part_ppm, duration_ms)| pb::CurveStep { part_ppm, duration_ms })
        .into()
}

fn lease() -> pb::PresentedLease {
    pb::PresentedLease { epoch: epoch(2), generation: 9, value: Some(amounts()), curve: curve(), position_ms: 5_000 }
}

fn usage() -> pb::Usage {
    let units = vec![pb::UnitAsked { unit: "usd".to_owned(), asked_micros: 12 }];
    pb::Usage {
        asked: 1,
        originals_admitted: 2,
        retries_admitted: 3,
        originals_denied: 4,
        retries_denied: 5,
        not_sent: 6,
        fallback_originals: 7,
        fallback_retries: 8,
        deposited_micros: 9,
        units,
        overuse_micros: 10,
    }
}

fn ask(dependency: &str) -> pb::SyncAsk {
    pb::SyncAsk {
        dependency: dependency.to_owned(),
        sequence: 3,
        nonce: 4,
        epoch: epoch(2),
        lease: Some(lease()),
        usage: Some(usage()),
        counted: Some(usage()),
        in_flight: 5,
        leave: false,
    }
}

fn request() -> pb::SyncRequest {
    pb::SyncRequest {
        holder_id: "pod-1".to_owned(),
        incarnation: vec![9; 16],
        weight: None,
        asks: vec![ask("payments"), ask("search")],
    }
}

pub(crate) type Judged = Result<(), InvalidMessage>;

fn on(change: impl FnOnce(&mut pb::SyncRequest)) -> Judged {
    let mut request = request();
    change(&mut request);
    sync_asks(request).map(drop)
}

fn on_ask(change: impl FnOnce(&mut pb::SyncAsk)) -> Judged {
    on(|request| change(&mut request.asks[1]))
}

fn on_lease(change: impl FnOnce(&mut pb::PresentedLease)) -> Judged {
    on_ask(|ask| change(ask.lease.as_mut().unwrap()))
}

fn on_value(change: impl FnOnce(&mut pb::Amounts)) -> Judged {
    on_lease(|lease| change(lease.value.as_mut().unwrap()))
}

fn on_usage(change: impl FnOnce(&mut pb::Usage)) -> Judged {
    on_ask(|ask| (change(ask.usage.as_mut().unwrap()), ask.counted = None).0)
}

/// One probe: accepted, or refused with a text that starts with field and value and goes on with the rule.
pub(crate) fn check(judged: Judged, accepted: bool, field: &str, value: &str, rule: &str) {
    match judged {
        Ok(()) => assert!(accepted, "{field} = {value} was accepted"),
        Err(invalid) => {
            let text = invalid.to_string();
            assert!(!accepted, "{field} = {value} was refused: {text}");
            assert_eq!(invalid.field(), field, "{text}");
            assert!(text.starts_with(&format!("{field} is {value}")), "{text}, not {field} is {value}");
            assert!(text.contains(rule), "{text}, not {rule}");
            assert_eq!(Status::from(invalid).code(), Code::InvalidArgument);
        }
    }
}

/// A field, its bounds, and how to set it.
pub(crate) type Row<'a> = (&'a str, u64, u64, fn(u64) -> Judged);

pub(crate) fn check_numbers(rows: &[Row<'_>]) {
    for (field, min, max, set) in rows {
        let huge = [1 << 31, 1 << 32, RANDOM, RANDOM + 1, EXACT, EXACT + 1, i64::MAX as u64, 1 << 63, u64::MAX];
        for value in [0, 1, *min, *max, max + 1].into_iter().chain(huge) {
            let rule = format!("must be between {min} and {max}");
            check(set(value), (*min..=*max).contains(&value), field, &value.to_string(), &rule);
        }
    }
}

#[test]
fn numbers_of_an_ask_have_their_bounds() {
    check_numbers(&[
        ("asks.sequence", 1, EXACT, |v| on_ask(|a| a.sequence = v)),
        ("asks.nonce", 0, RANDOM, |v| on_ask(|a| a.nonce = v)),
        ("asks.in_flight", 0, 1_000_000, |v| on_ask(|a| a.in_flight = v)),
        ("asks.epoch.number", 0, RANDOM + 1, |v| on_ask(|a| (a.lease, a.epoch) = (None, epoch(v)))),
        ("asks.epoch.id", 0, RANDOM, |v| on_ask(|a| a.epoch.as_mut().unwrap().id = v)),
        ("asks.lease.epoch.id", 0, RANDOM, |v| on_lease(|l| l.epoch.as_mut().unwrap().id = v)),
        ("asks.lease.generation", 1, EXACT, |v| on_lease(|l| l.generation = v)),
        ("asks.lease.position_ms", 0, HOUR, |v| on_lease(|l| l.position_ms = v)),
        ("asks.lease.value.rate_micros_per_second", 0, RATE, |v| on_value(|a| a.rate_micros_per_second = v)),
        ("asks.lease.value.burst_micros", 0, BURST, |v| on_value(|a| a.burst_micros = v)),
        ("asks.lease.value.retry_burst_micros", 0, BURST, |v| on_value(|a| a.retry_burst_micros = v)),
        ("asks.lease.value.slots", 0, 1_000_000, |v| on_value(|a| a.slots = v)),
        ("asks.lease.value.units.rate_micros_per_second", 0, RATE, |v| {
            on_value(|a| a.units[0].rate_micros_per_second = v)
        }),
        ("asks.lease.value.units.burst_micros", 0, BURST, |v| on_value(|a| a.units[0].burst_micros = v)),
        ("asks.usage.asked", 0, EXACT, |v| on_usage(|u| u.asked = v)),
        ("asks.usage.originals_admitted", 0, EXACT, |v| on_usage(|u| u.originals_admitted = v)),
        ("asks.usage.retries_admitted", 0, EXACT, |v| on_usage(|u| u.retries_admitted = v)),
        ("asks.usage.originals_denied", 0, EXACT, |v| on_usage(|u| u.originals_denied = v)),
        ("asks.usage.retries_denied", 0, EXACT, |v| on_usage(|u| u.retries_denied = v)),
        ("asks.usage.not_sent", 0, EXACT, |v| on_usage(|u| u.not_sent = v)),
        ("asks.usage.fallback_originals", 0, EXACT, |v| on_usage(|u| u.fallback_originals = v)),
        ("asks.usage.fallback_retries", 0, EXACT, |v| on_usage(|u| u.fallback_retries = v)),
        ("asks.usage.deposited_micros", 0, EXACT, |v| on_usage(|u| u.deposited_micros = v)),
        ("asks.usage.overuse_micros", 0, EXACT, |v| on_usage(|u| u.overuse_micros = v)),
        ("asks.usage.units.asked_micros", 0, EXACT, |v| on_usage(|u| u.units[0].asked_micros = v)),
    ]);
    for (weight, accepted) in [(1, true), (1000, true), (0, false), (1001, false), (u32::MAX, false)] {
        let rule = "must be between 1 and 1000";
        check(on(|r| r.weight = Some(weight)), accepted, "weight", &weight.to_string(), rule);
    }
}

#[test]
fn names_and_sizes_of_a_sync_are_judged() {
    for size in [0, 1, 15, 17, 32, 4096] {
        let shown = if size == 0 { "empty" } else { "ab" };
        check(on(|r| r.incarnation = vec![0xab; size]), false, "incarnation", shown, "must have 16");
    }
    for bad in ["", "a\nb", &"x".repeat(129)] {
        check(on(|r| r.holder_id = bad.to_owned()), false, "holder_id", "\"", "");
    }
    check(on(|r| r.holder_id = "*😀{}*".to_owned()), true, "", "", "");
    for bad in ["", "fam/*", "a\0b", &"x".repeat(257)] {
        check(on_ask(|a| a.dependency = bad.to_owned()), false, "asks.dependency", "\"", "");
    }
    for bad in ["", "a\nb", &"x".repeat(65)] {
        let unit = bad.to_owned();
        check(on_value(|a| a.units[0].unit = unit.clone()), false, "asks.lease.value.units.unit", "\"", "");
        check(on_usage(|u| u.units[0].unit = unit), false, "asks.usage.units.unit", "\"", "");
    }
}

#[test]
fn a_message_names_each_dependency_once_and_at_most_a_thousand() {
    let many = |count: usize| (0..count).map(|number| ask(&format!("d-{number}"))).collect::<Vec<_>>();
    for (count, accepted) in [(0, false), (1, true), (1000, true), (1001, false), (5000, false)] {
        let value = format!("{count} dependencies");
        check(on(|r| r.asks = many(count)), accepted, "asks", &value, "must be between 1 and 1000 dependencies");
    }
    let twice = on(|r| r.asks = vec![ask("a"), ask("b"), ask("a")]);
    check(twice, false, "asks.dependency", "\"a\"", "must be named at most once");
    let unit = |number: usize| pb::UnitAmounts { unit: format!("u-{number}"), ..pb::UnitAmounts::default() };
    let units = |count: usize| (0..count).map(unit).collect::<Vec<_>>();
    check(on_value(|a| a.units = units(8)), true, "", "", "");
    check(on_value(|a| a.units = units(9)), false, "asks.lease.value.units", "9 units", "must be at most 8");
    let doubled = on_value(|a| a.units = vec![unit(1), unit(1)]);
    check(doubled, false, "asks.lease.value.units.unit", "\"u-1\"", "must be named at most once");
    let asked = |number: usize| pb::UnitAsked { unit: format!("u-{number}"), asked_micros: 0 };
    let nine = on_usage(|u| u.units = (0..9).map(asked).collect());
    check(nine, false, "asks.usage.units", "9 units", "must be at most 8");
    let doubled = on_usage(|u| u.units = vec![asked(1), asked(1)]);
    check(doubled, false, "asks.usage.units.unit", "\"u-1\"", "must be named at most once");
}

#[test]
fn curves_fall_and_end() {
    let judge = |steps: &[(u32, u32)]| {
        let step = |&(part_ppm, duration_ms): &(u32, u32)| pb::CurveStep { part_ppm, duration_ms };
        on_lease(|l| l.curve = steps.iter().map(step).collect())
    };
    check(judge(&[(1, 1)]), true, "", "", "");
    check(judge(&[(1_000_000, 450_000); 8]), true, "", "", "");
    check(judge(&[]), false, "asks.lease.curve", "0 steps", "must be between 1 and 8 steps");
    check(judge(&[(1, 1); 9]), false, "asks.lease.curve", "9 steps", "must be between 1 and 8 steps");
    for part in [0, 1_000_001, u32::MAX] {
        let rule = "must be between 1 and 1000000";
        check(judge(&[(part, 1)]), false, "asks.lease.curve.part_ppm", &part.to_string(), rule);
    }
    for duration in [0, 3_600_001, u32::MAX] {
        let rule = "must be between 1 and 3600000";
        check(judge(&[(1, duration)]), false, "asks.lease.curve.duration_ms", &duration.to_string(), rule);
    }
    check(
        judge(&[(5, 1), (6, 1)]),
        false,
        "asks.lease.curve.part_ppm",
        "6",
        "must never rise, and the step before has 5",
    );
    let long = judge(&[(5, 3_600_000), (5, 1)]);
    check(long, false, "asks.lease.curve.duration_ms", "3600001", "must be at most 3600000 in total");
}

#[test]
fn what_belongs_together_fits_together() {
    let rule = "must not be above asks.epoch.number, which is 2";
    check(on_lease(|l| l.epoch = epoch(3)), false, "asks.lease.epoch.number", "3", rule);
    let none_seen = on_ask(|a| a.epoch = None);
    check(none_seen, false, "asks.lease.epoch.number", "2", "must not be above asks.epoch.number, which is 0");
    check(on_lease(|l| l.epoch = Some(pb::Epoch { number: 2, id: 999 })), true, "", "", "");
    let rule = "must be at least 1 where asks.epoch.number is: what an agent lent proves nothing elsewhere";
    check(on_lease(|l| l.epoch = epoch(0)), false, "asks.lease.epoch.number", "0", rule);
    let of_an_agent = on_ask(|a| {
        a.epoch = Some(pb::Epoch { number: 0, id: 8 });
        a.lease.as_mut().unwrap().epoch = epoch(0);
    });
    check(of_an_agent, true, "", "", "");
    check(on_lease(|l| l.epoch = None), false, "asks.lease.epoch", "absent", "is required");
    check(on_lease(|l| l.value = None), false, "asks.lease.value", "absent", "is required");
    type Change = fn(&mut pb::Usage);
    let more: [(&str, Change); 11] = [
        ("asks.counted.asked", |u| u.asked += 1),
        ("asks.counted.originals_admitted", |u| u.originals_admitted += 1),
        ("asks.counted.retries_admitted", |u| u.retries_admitted += 1),
        ("asks.counted.originals_denied", |u| u.originals_denied += 1),
        ("asks.counted.retries_denied", |u| u.retries_denied += 1),
        ("asks.counted.not_sent", |u| u.not_sent += 1),
        ("asks.counted.fallback_originals", |u| u.fallback_originals += 1),
        ("asks.counted.fallback_retries", |u| u.fallback_retries += 1),
        ("asks.counted.deposited_micros", |u| u.deposited_micros += 1),
        ("asks.counted.overuse_micros", |u| u.overuse_micros += 1),
        ("asks.counted.units.asked_micros", |u| u.units[0].asked_micros += 1),
    ];
    for (field, change) in more {
        let judged = on_ask(|a| change(a.counted.as_mut().unwrap()));
        check(judged, false, field, "", "must not exceed its peer in asks.usage");
    }
    let nothing = on_ask(|a| a.usage = None);
    check(nothing, false, "asks.counted.asked", "1", "must not exceed its peer in asks.usage, which is 0");
}

#[test]
fn what_is_absent_is_the_beginning() {
    let first = pb::SyncAsk { dependency: "payments".to_owned(), sequence: 1, ..pb::SyncAsk::default() };
    let asks = sync_asks(pb::SyncRequest { asks: vec![first], ..request() }).unwrap();
    let expected = SyncAsk {
        holder: HolderId::new("pod-1").unwrap(),
        incarnation: Incarnation([9; 16]),
        sequence: 1,
        nonce: 0,
        epoch: Epoch::default(),
        lease: None,
        usage: Usage::default(),
        counted: Usage::default(),
        in_flight: 0,
        weight: 1,
        leave: false,
    };
    assert_eq!(asks, [(DependencyId::new("payments").unwrap(), expected)]);
    check(sync_asks(pb::SyncRequest::default()).map(drop), false, "holder_id", "\"\"", "is empty");
}

/// More than fits one message goes into several, and none is left out.
#[test]
fn a_holder_with_many_dependencies_sends_several_messages() {
    let asks = sync_asks(request()).unwrap();
    let units = UnitNames::new(["usd"]).unwrap();
    let messages = |names: Vec<DependencyId>| {
        let asking: Vec<_> =
            names.iter().map(|dependency| Asking { dependency, ask: &asks[0].1, units: &units }).collect();
        let requests = sync_requests(&asking).unwrap();
        let received: Vec<_> = requests.iter().cloned().flat_map(|request| sync_asks(request).unwrap()).collect();
        assert!(received.iter().map(|(name, _)| name).eq(names.iter()));
        requests
    };
    let short = |count: usize| (0..count).map(|number| DependencyId::new(&format!("d-{number}")).unwrap()).collect();
    let sizes = |requests: Vec<pb::SyncRequest>| requests.iter().map(|r| r.asks.len()).collect::<Vec<_>>();
    assert_eq!(sizes(messages(Vec::new())), [0; 0]);
    assert_eq!(sizes(messages(short(1000))), [1000]);
    assert_eq!(sizes(messages(short(2001))), [1000, 1000, 1]);

    // The largest asks there are.
    let units = UnitNames::new((0..8).map(|number| format!("{number}{}", "u".repeat(63)))).unwrap();
    let ids = (0..8).map(|number| units.cost(&format!("{number}{}", "u".repeat(63)), 1).unwrap().unit);
    let mut largest = asks[0].1.clone();
    let max = i64::try_from(EXACT).unwrap();
    largest.usage.units_asked = ids.clone().map(|unit| (unit, max)).collect();
    largest.counted.units_asked = largest.usage.units_asked.clone();
    let unit = |unit| budget::lease::UnitAmounts { unit, rate: RATE as i64, burst: BURST as i64 };
    largest.lease.as_mut().unwrap().value.units = ids.map(unit).collect();
    let names: Vec<_> = (0..1000).map(|n| DependencyId::new(&format!("{n:04}{}", "d".repeat(252))).unwrap()).collect();
    let asking: Vec<_> = names.iter().map(|dependency| Asking { dependency, ask: &largest, units: &units }).collect();
    let requests = sync_requests(&asking).unwrap();
    assert!(requests.len() > 1 && requests.iter().map(|request| request.asks.len()).sum::<usize>() == 1000);
    assert!(requests.iter().all(|request| prost::Message::encoded_len(request) <= 1 << 20));
}

#[test]
fn what_a_holder_cannot_say_stops_before_it_is_sent() {
    let (dependency, good) = sync_asks(request()).unwrap().remove(0);
    let units = UnitNames::new(["usd"]).unwrap();
    let field = |change: &dyn Fn(&mut SyncAsk)| {
        let mut ask = good.clone();
        change(&mut ask);
        sync_requests(&[Asking { dependency: &dependency, ask: &ask, units: &units }]).unwrap_err().field()
    };
    assert_eq!(field(&|a| a.sequence = -1), "asks.sequence");
    assert_eq!(field(&|a| a.nonce = -1), "asks.nonce");
    assert_eq!(field(&|a| a.in_flight = -1), "asks.in_flight");
    assert_eq!(field(&|a| a.weight = -1), "weight");
    assert_eq!(field(&|a| a.epoch.number = -1), "asks.epoch.number");
    assert_eq!(field(&|a| a.usage.asked = -1), "asks.usage.asked");
    assert_eq!(field(&|a| a.counted.units_asked[0].1 = -1), "asks.counted.units.asked_micros");
    assert_eq!(field(&|a| a.lease.as_mut().unwrap().value.burst = -1), "asks.lease.value.burst_micros");
    assert_eq!(field(&|a| a.lease.as_mut().unwrap().position_ms = -1), "asks.lease.position_ms");
    // A part that is left out would be a part that is not charged.
    let unnamed = sync_requests(&[Asking { dependency: &dependency, ask: &good, units: &UnitNames::default() }]);
    assert_eq!(unnamed.unwrap_err().field(), "asks.lease.value.units.unit");
    let other = SyncAsk { incarnation: Incarnation([1; 16]), ..good.clone() };
    let asking = |ask| Asking { dependency: &dependency, ask, units: &units };
    assert_eq!(sync_requests(&[asking(&good), asking(&other)]).unwrap_err().field(), "holder_id");
}
