//! Every field of a sync, asked and answered, with every kind of bad value.

use budget::{
    ids::{DependencyId, PolicyVersion},
    lease::{
        Amounts, Curve, Epoch, FallbackRules, Grant, HolderId, Incarnation, InvalidSync, LeaseName, LocalOriginals,
        NotLeased, Rules, SyncAnswer, SyncAsk, Usage,
    },
    policy::CurveStep,
};
use budget_proto::{
    InvalidMessage, UnitNames,
    convert::{AskName, Asking, SyncAnswered, SyncReply, sync_answer, sync_asks, sync_replies, sync_requests},
    pb,
};
use tonic::{Code, Status};

const HOUR: u64 = 3_600_000;
const EXACT: u64 = (1 << 53) - 1;
const RANDOM: u64 = (1 << 52) - 1;
const RATE: u64 = 4_000_000_000_000;
const BURST: u64 = 1_000_000_000_000_000;

fn epoch(number: u64) -> Option<pb::Epoch> {
    Some(pb::Epoch { number, id: 7 })
}

fn amounts() -> pb::Amounts {
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

type Judged = Result<(), InvalidMessage>;

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
fn check(judged: Judged, accepted: bool, field: &str, value: &str, rule: &str) {
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
type Row<'a> = (&'a str, u64, u64, fn(u64) -> Judged);

fn check_numbers(rows: &[Row<'_>]) {
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
        ("asks.epoch.number", 1, RANDOM + 1, |v| on_ask(|a| (a.lease, a.epoch) = (None, epoch(v)))),
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

fn rules() -> Rules {
    Rules {
        version: PolicyVersion { number: 3, id: 4 },
        shadow: false,
        retries_off: true,
        limited: true,
        slots_limited: false,
        deposit_micros: 100_000,
        earn_on_success: false,
        retry_cost_micros: [1_000_000, 1_000_000, 2_000_000, 1_000_000, 1_000_000],
        max_attempts: 3,
        permit_ttl_ms: 60_000,
        priority_ppm: [500_000, 900_000, 1_000_000],
        units: Box::default(),
        fallback: FallbackRules {
            originals: LocalOriginals::Rate(5_000_000),
            retries_earned: true,
            units: Box::default(),
        },
    }
}

fn grant() -> Grant {
    let value = Amounts { rate: 10, burst: 20, retry_burst: 30, slots: 4, units: Box::default() };
    let moved = Amounts { rate: 0, burst: 20, retry_burst: 5, slots: 0, units: Box::default() };
    let curve = Curve([CurveStep { part_ppm: 1_000_000, duration_ms: 20_000 }].into());
    let name = LeaseName { epoch: Epoch { number: 2, id: 7 }, generation: 9 };
    Grant { name, position_ms: 3, value, moved, curve }
}

const ASKED: AskName = AskName { sequence: 3, nonce: 4 };

fn answer() -> pb::SyncAnswer {
    let answered = SyncAnswered { answer: SyncAnswer::Granted(grant()), rules: rules() };
    sync_answer(ASKED, Ok(answered), &UnitNames::default())
}

fn receive(answer: pb::SyncAnswer) -> Result<Result<SyncReply, Status>, InvalidMessage> {
    sync_replies(pb::SyncResponse { answers: vec![answer] }, &[ASKED]).unwrap().remove(0)
}

fn on_answer(change: impl FnOnce(&mut pb::SyncAnswer)) -> Judged {
    let mut answer = answer();
    change(&mut answer);
    receive(answer).map(drop)
}

fn on_grant(change: impl FnOnce(&mut pb::Grant)) -> Judged {
    on_answer(|answer| match answer.answer.as_mut() {
        Some(pb::sync_answer::Answer::Granted(grant)) => change(grant),
        other => panic!("{other:?}"),
    })
}

fn on_rules(change: impl FnOnce(&mut pb::Rules)) -> Judged {
    on_answer(|answer| change(answer.rules.as_mut().unwrap()))
}

fn on_fallback(change: impl FnOnce(&mut pb::FallbackRules)) -> Judged {
    on_rules(|rules| change(rules.fallback.as_mut().unwrap()))
}

#[test]
fn numbers_of_an_answer_have_their_bounds() {
    use pb::{fallback_rules::Originals, sync_answer::Answer};
    check_numbers(&[
        ("granted.epoch.number", 1, RANDOM + 1, |v| on_grant(|g| g.epoch = epoch(v))),
        ("granted.epoch.id", 0, RANDOM, |v| on_grant(|g| g.epoch = Some(pb::Epoch { number: 1, id: v }))),
        ("granted.generation", 1, EXACT, |v| on_grant(|g| g.generation = v)),
        ("granted.position_ms", 0, HOUR, |v| on_grant(|g| g.position_ms = v)),
        ("granted.value.rate_micros_per_second", 0, RATE, |v| {
            on_grant(|g| g.value.as_mut().unwrap().rate_micros_per_second = v)
        }),
        ("granted.value.burst_micros", 0, BURST, |v| {
            on_grant(|g| (g.value.as_mut().unwrap().burst_micros, g.moved) = (v, Some(pb::Amounts::default())))
        }),
        ("other_epoch.number", 1, RANDOM + 1, |v| {
            on_answer(|a| a.answer = Some(Answer::OtherEpoch(pb::Epoch { number: v, id: 1 })))
        }),
        ("wait_ms", 1, HOUR, |v| on_answer(|a| a.answer = Some(Answer::WaitMs(v)))),
        ("rules.deposit_micros", 0, 100_000_000, |v| on_rules(|r| r.deposit_micros = v)),
        ("rules.permit_ttl_ms", 1, HOUR, |v| on_rules(|r| r.permit_ttl_ms = v)),
        ("rules.retry_costs.timeout_micros", 1_000_000, 1_000_000_000, |v| {
            on_rules(|r| r.retry_costs.as_mut().unwrap().timeout_micros = v)
        }),
        ("rules.fallback.rate_micros_per_second", 0, BURST, |v| {
            on_fallback(|f| f.originals = Some(Originals::RateMicrosPerSecond(v)))
        }),
        ("rules.fallback.units.rate_micros_per_second", 0, BURST, |v| {
            on_fallback(|f| f.units = vec![pb::FallbackUnit { unit: "usd".to_owned(), rate_micros_per_second: v }])
        }),
    ]);
    for (value, accepted) in [(0, false), (1, true), (100, true), (101, false), (u32::MAX, false)] {
        let rule = "must be between 1 and 100";
        check(on_rules(|r| r.max_attempts = value), accepted, "rules.max_attempts", &value.to_string(), rule);
    }
}

#[test]
fn a_holder_judges_what_it_receives() {
    assert!(on_answer(|_| ()).is_ok());
    let table = [
        (on_answer(|a| a.sequence = 4), "answers.sequence is 4: must be that of the ask, which is 3"),
        (on_answer(|a| a.nonce = u64::MAX), "answers.nonce is 18446744073709551615: must be that of the ask"),
        (on_answer(|a| a.answer = None), "answer is absent: must be one of granted, other_epoch, wait_ms"),
        (on_answer(|a| a.rules = None), "rules is absent: is required"),
        (on_grant(|g| g.epoch = None), "granted.epoch is absent: is required"),
        (on_grant(|g| g.value = None), "granted.value is absent: is required"),
        (on_grant(|g| g.moved = None), "granted.moved is absent: is required"),
        (on_grant(|g| g.curve.clear()), "granted.curve is 0 steps: must be between 1 and 8 steps"),
        (
            on_grant(|g| g.moved.as_mut().unwrap().rate_micros_per_second = 1),
            "granted.moved.rate_micros_per_second is 1: must be 0",
        ),
        (
            on_grant(|g| g.moved.as_mut().unwrap().burst_micros = 21),
            "granted.moved.burst_micros is 21: must not exceed its peer in granted.value, which is 20",
        ),
        (
            on_grant(|g| g.moved.as_mut().unwrap().retry_burst_micros = 31),
            "granted.moved.retry_burst_micros is 31: must not exceed",
        ),
        (on_grant(|g| g.moved.as_mut().unwrap().slots = 5), "granted.moved.slots is 5: must not exceed"),
        (
            on_grant(|g| g.moved.as_mut().unwrap().units = amounts().units),
            "granted.moved.units.rate_micros_per_second is 3: must be 0",
        ),
        (on_rules(|r| r.version = None), "rules.version is absent: is required"),
        (on_rules(|r| r.retry_costs = None), "rules.retry_costs is absent: is required"),
        (on_rules(|r| r.priority_parts = None), "rules.priority_parts is absent: is required"),
        (
            on_rules(|r| r.priority_parts.as_mut().unwrap().default_ppm = 499_999),
            "rules.priority_parts.default_ppm is 499999: must not be below that of the class before, which is 500000",
        ),
        (
            on_rules(|r| r.priority_parts.as_mut().unwrap().critical_ppm = 1_000_001),
            "rules.priority_parts.critical_ppm is 1000001: must be between 0 and 1000000",
        ),
        (on_rules(|r| r.units = vec!["usd".into(); 2]), "rules.units is \"usd\": must be named at most once"),
        (on_rules(|r| r.units = (0..9).map(|n| n.to_string()).collect()), "rules.units is 9 units: must be at most 8"),
        (on_rules(|r| r.units = vec![String::new()]), "rules.units is \"\": is empty"),
        (on_rules(|r| r.fallback = None), "rules.fallback is absent: is required"),
        (on_fallback(|f| f.originals = None), "rules.fallback.originals is absent: must be one of deny, allow"),
        (on_fallback(|f| f.units = vec![pb::FallbackUnit::default()]), "rules.fallback.units.unit is \"\": is empty"),
    ];
    for (judged, expected) in table {
        let text = judged.unwrap_err().to_string();
        assert!(text.starts_with(expected), "{text}, not {expected}");
    }
    // Nothing needs no curve.
    let nothing = on_grant(|g| {
        (g.value, g.moved, g.curve) = (Some(pb::Amounts::default()), Some(pb::Amounts::default()), Vec::new());
    });
    assert!(nothing.is_ok());
}

#[test]
fn codes_of_an_answer_are_known_ones() {
    use pb::sync_answer::Answer;
    for code in [i32::MIN, -1, 0, 1, 2, 3, 99] {
        let rule = "must be one of 1 not_permitted, 2 too_many_holders";
        let judged = on_answer(|a| a.answer = Some(Answer::NotLeased(code)));
        check(judged, (1..=2).contains(&code), "not_leased", &code.to_string(), rule);
        let rule = "must be one of 1 usage_backwards, 2 unknown_generation";
        let judged = on_answer(|a| a.answer = Some(Answer::Invalid(code)));
        check(judged, (1..=2).contains(&code), "invalid", &code.to_string(), rule);
    }
    let reply = |answer: SyncAnswer| {
        let answered = SyncAnswered { answer, rules: rules() };
        receive(sync_answer(ASKED, Ok(answered), &UnitNames::default())).unwrap().unwrap().answer
    };
    for answer in [
        SyncAnswer::NotLeased(NotLeased::NotPermitted),
        SyncAnswer::NotLeased(NotLeased::TooManyHolders),
        SyncAnswer::Invalid(InvalidSync::UsageBackwards),
        SyncAnswer::Invalid(InvalidSync::UnknownGeneration),
    ] {
        assert_eq!(reply(answer.clone()), answer);
    }
    // As much as can be told.
    assert_eq!(reply(SyncAnswer::Wait(0)), SyncAnswer::Wait(1));
    assert_eq!(reply(SyncAnswer::Wait(i64::MAX)), SyncAnswer::Wait(3_600_000));
}

/// One ask that fails says nothing about the others, and neither does one answer that makes no sense.
#[test]
fn each_dependency_has_an_answer_of_its_own() {
    let failed = sync_answer(ASKED, Err(Status::not_found("no rule names it")), &UnitNames::default());
    assert_eq!(failed.rules, None);
    let broken = pb::SyncAnswer { nonce: 5, ..answer() };
    let answers = vec![failed, broken, answer()];
    let mut replies = sync_replies(pb::SyncResponse { answers: answers.clone() }, &[ASKED; 3]).unwrap();
    assert_eq!(replies.pop().unwrap().unwrap().unwrap().answer, SyncAnswer::Granted(grant()));
    assert_eq!(replies.pop().unwrap().unwrap_err().field(), "answers.nonce");
    let status = replies.pop().unwrap().unwrap().unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "no rule names it"));
    for asked in [0, 2, 4] {
        let error = sync_replies(pb::SyncResponse { answers: answers.clone() }, &vec![ASKED; asked]).unwrap_err();
        let expected = format!("answers is 3: must be as many as there were asks, which is {asked}");
        assert_eq!(error.to_string(), expected);
    }
    let ok = pb::Failure { code: 0, message: String::new() };
    let judged = on_answer(|a| a.answer = Some(pb::sync_answer::Answer::Failure(ok)));
    check(judged, false, "failure.code", "0", "must be a status other than OK");
}

/// A part that the holder could not name is one that it does not get; it is charged all the same.
#[test]
fn units_without_a_name_are_left_out_of_a_grant() {
    let names = UnitNames::new(["usd"]).unwrap();
    let unit = |name: &str, burst| {
        let unit = budget::ids::UnitId::of(name).unwrap();
        budget::lease::UnitAmounts { unit, rate: 1, burst }
    };
    let value = Amounts { units: [unit("usd", 5), unit("eur", 6)].into(), ..grant().value };
    let ids = [unit("usd", 0).unit, unit("eur", 0).unit];
    let fallback = FallbackRules { units: ids.map(|unit| (unit, 1)).into(), ..rules().fallback };
    let rules = Rules { units: ids.into(), fallback, ..rules() };
    let answer = SyncAnswer::Granted(Grant { value, ..grant() });
    let reply = receive(sync_answer(ASKED, Ok(SyncAnswered { answer, rules }), &names)).unwrap().unwrap();
    let SyncAnswer::Granted(received) = reply.answer else { panic!("no grant") };
    assert_eq!(received.value.units, [unit("usd", 5)].into());
    assert_eq!((&*reply.rules.units, &*reply.rules.fallback.units), (&[ids[0]][..], &[(ids[0], 1)][..]));
    assert_eq!(reply.units, names);
}
