//! Every field of what a holder is answered, with every kind of bad value.

use budget::{
    ids::PolicyVersion,
    lease::{
        Amounts, Curve, Epoch, FallbackRules, Grant, InvalidSync, LeaseName, LocalOriginals, NotLeased, Rules,
        SyncAnswer,
    },
    policy::CurveStep,
};
use budget_proto::{
    InvalidMessage, UnitNames,
    convert::{AskName, SyncAnswered, SyncReply, sync_answer, sync_replies},
    pb,
};
use tonic::{Code, Status};

use crate::leases::{BURST, EXACT, HOUR, Judged, RANDOM, RATE, amounts, check, check_numbers, epoch};

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
        ("granted.epoch.number", 0, RANDOM + 1, |v| on_grant(|g| g.epoch = epoch(v))),
        ("granted.epoch.id", 0, RANDOM, |v| on_grant(|g| g.epoch = Some(pb::Epoch { number: 1, id: v }))),
        ("granted.epoch.id", 1, RANDOM, |v| on_grant(|g| g.epoch = Some(pb::Epoch { number: 0, id: v }))),
        ("granted.generation", 1, EXACT, |v| on_grant(|g| g.generation = v)),
        ("granted.position_ms", 0, HOUR, |v| on_grant(|g| g.position_ms = v)),
        ("granted.value.rate_micros_per_second", 0, RATE, |v| {
            on_grant(|g| g.value.as_mut().unwrap().rate_micros_per_second = v)
        }),
        ("granted.value.burst_micros", 0, BURST, |v| {
            on_grant(|g| (g.value.as_mut().unwrap().burst_micros, g.moved) = (v, Some(pb::Amounts::default())))
        }),
        ("other_epoch.number", 0, RANDOM + 1, |v| {
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
