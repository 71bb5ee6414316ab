use budget::{
    decision::{
        Cost, Denied, DenyReason, Extend, ExtendResult, Invalid, OperationAsk, OperationState, Outcome, Priority,
        ReleaseResult, Sent,
    },
    ids::{DependencyId, Fingerprint},
    lease::{Amounts, Curve, Epoch, Ground, HolderId, Incarnation, LeaseName, Presented, SyncAsk, Usage},
    policy::{CurveStep, Policy, Spec},
    units::EXACT_MAX,
};

use super::*;
use crate::store::redis::keys::Keys;

fn id(byte: u8) -> ReservationId {
    ReservationId([byte; 16])
}

fn numbers() -> Numbers {
    Policy::new(Spec::default()).unwrap().numbers(false, false)
}

fn unit(name: &str) -> UnitId {
    UnitId::of(name).unwrap()
}

fn ints(list: &[i64]) -> Value {
    Value::Array(list.iter().copied().map(Value::Int).collect())
}

fn packed(step: &Step, waited_ms: i64) -> Vec<u8> {
    let mut packing = Packing::default();
    packing.step(step, waited_ms);
    packing.bytes
}

/// Numbers of so many bytes each, one behind the other.
fn fields(list: &[(usize, i64)]) -> Vec<u8> {
    list.iter().flat_map(|(bytes, value)| value.to_be_bytes()[8 - bytes..].to_vec()).collect()
}

/// A holder renews its lease of epoch 1.
fn ask() -> SyncAsk {
    let curve = Curve(vec![CurveStep { part_ppm: 1_000_000, duration_ms: 20_000 }].into());
    SyncAsk {
        holder: HolderId::new("holder").unwrap(),
        incarnation: Incarnation([7; 16]),
        sequence: 2,
        nonce: 9,
        epoch: Epoch::default(),
        lease: Some(Presented {
            name: LeaseName { epoch: Epoch { number: 1, id: 5 }, generation: 4 },
            value: Amounts::default(),
            curve,
            position_ms: 10,
        }),
        usage: Usage::default(),
        counted: Usage::default(),
        in_flight: 0,
        weight: 1,
        leave: false,
    }
}

fn operation(name: &str, expires_in_ms: Option<i64>) -> OperationAsk {
    OperationAsk {
        id: OperationId::new(name).unwrap(),
        fingerprint: Fingerprint::from_slice(&[7; 20]).unwrap(),
        expires_in_ms,
    }
}

#[test]
fn asks_are_packed_as_the_script_reads_them() {
    let plain = Step::Reserve(Reserve::new(id(1), Attempt::ORIGINAL));
    let none = [(1, 1), (4, 1), (1, 0), (7, -1), (7, 0), (7, -1), (1, 2), (1, 0), (2, 0), (1, 0)];
    assert_eq!(packed(&plain, 0), fields(&none));

    let full = Step::Reserve(Reserve {
        time_left_ms: Some(5_000),
        max_wait_ms: 200,
        permit_ttl_ms: Some(90_000),
        priority: Priority::Critical,
        costs: vec![Cost { unit: unit("a"), amount_micros: (1 << 53) - 1 }, Cost { unit: unit("b"), amount_micros: 0 }],
        operation: Some(operation("op", Some(60_000))),
        no_release: true,
        ..Reserve::new(id(2), Attempt::retry(2, Cause::Timeout))
    });
    let hash = OperationId::new("op").unwrap().hash();
    let mut expected =
        fields(&[(1, 1), (4, 2), (1, 3), (7, 5_000), (7, 200), (7, 90_000), (1, 3), (1, 1), (2, 1), (1, 2)]);
    expected.extend(fields(&[(7, hash), (7, 60_000), (1, 20)]));
    expected.extend([7; 20]);
    expected.extend(fields(&[(7, unit("a").raw()), (7, (1 << 53) - 1), (7, unit("b").raw()), (7, 0)]));
    assert_eq!(packed(&full, 0), expected);
}

#[test]
fn releases_and_extensions_are_packed_as_the_script_reads_them() {
    let not_sent = Step::Release(Release::not_sent(id(4)));
    assert_eq!(packed(&not_sent, 0), fields(&[(1, 2), (1, 1), (1, 0), (1, 0), (2, 0), (1, 0)]));

    let sent = |result_ref: Option<&[u8]>| {
        Step::Release(Release {
            id: id(5),
            used: Use::Sent(Sent {
                outcome: Outcome::Unknown,
                costs: vec![Cost { unit: unit("a"), amount_micros: 9 }],
                terminal: Some(TerminalState::Failed),
                result_ref: result_ref.map(Box::from),
            }),
            operation: Some(OperationId::new("other").unwrap()),
        })
    };
    let hash = OperationId::new("other").unwrap().hash();
    for (given, has, bytes) in [(None, 0, &[][..]), (Some(&[][..]), 1, &[]), (Some(&[1, 0xff]), 1, &[1, 0xff])] {
        let mut expected = fields(&[(1, 2), (1, 0), (1, 6), (1, 2), (2, 1), (1, 1), (7, hash), (1, has)]);
        expected.push(u8::try_from(bytes.len()).unwrap());
        expected.extend(bytes);
        expected.extend(fields(&[(7, unit("a").raw()), (7, 9)]));
        assert_eq!(packed(&sent(given), 0), expected);
    }
    let extend = Step::Extend(Extend { id: id(7), permit_ttl_ms: 1 });
    assert_eq!(packed(&extend, 0), fields(&[(1, 3), (7, 1)]));
}

#[test]
fn time_in_the_queue_counts() {
    for (given, waited_ms, sent) in
        [(None, 70, -1), (Some(100), 0, 100), (Some(100), 70, 30), (Some(100), 170, 0), (Some(i64::MAX), 1, EXACT_MAX)]
    {
        let step = Step::Reserve(Reserve { time_left_ms: given, ..Reserve::new(id(1), Attempt::ORIGINAL) });
        assert_eq!(packed(&step, waited_ms)[6..13], fields(&[(7, sent)]), "{given:?} after {waited_ms}");
    }
}

#[test]
fn numbers_are_packed_in_their_order_and_length() {
    let numbers = Policy::new(Spec::default()).unwrap().numbers(true, false);
    let packed = pack_numbers(&numbers);
    assert_eq!(packed.len(), 146, "NUMBERS_BYTES of bucket.lua");
    assert_eq!(packed[0], 0, "not limited");
    assert_eq!(packed[109..111], [0, 1], "shadow, retries off");
    let spec = Spec {
        units: vec![budget::policy::UnitLimit {
            name: "a".to_owned(),
            limit: budget::policy::Limit { rate: budget::units::Rate::parse("7/h").unwrap(), burst_tokens: 9 },
        }],
        ..Spec::default()
    };
    let packed = pack_numbers(&Policy::new(spec).unwrap().numbers(false, false));
    assert_eq!(packed.len(), 146 + 46, "UNIT_NUMBERS_BYTES of bucket.lua");
    let (num, den) = budget::units::Rate::parse("7/h").unwrap().fraction();
    assert_eq!(packed[146..171], fields(&[(7, unit("a").raw()), (7, num), (4, den), (7, 9_000_000)]));
}

#[test]
fn a_command_names_each_operation_once_and_each_reservation() {
    let keys = Keys::new("p").unwrap().dependency(&DependencyId::new("d{").unwrap());
    let ask = |byte: u8, name: &str| {
        Step::Reserve(Reserve { operation: Some(operation(name, None)), ..Reserve::new(id(byte), Attempt::ORIGINAL) })
    };
    let steps = [ask(1, "x"), ask(2, "y"), ask(3, "x")];
    let other_keys = Keys::new("p").unwrap().dependency(&DependencyId::new("e").unwrap());
    let other_steps = [ask(4, "x"), Step::Release(Release::not_sent(id(5)))];
    let group = Group { now_ms: "", version: PolicyVersion { number: 3, id: 4 }, force: true, way: Way::default() };
    let steps_of = |steps: &'static [Step]| steps.iter().map(|step| (step, 0));
    let (steps, other_steps) = (&*Vec::from(steps).leak(), &*Vec::from(other_steps).leak());
    let members = [
        Member { keys: &keys, numbers: b"n", steps: steps_of(steps) },
        Member { keys: &other_keys, numbers: b"m", steps: steps_of(&other_steps[..1]) },
        Member { keys: &keys, numbers: b"n", steps: steps_of(&other_steps[1..]) },
    ];
    let command = group.command(By::Digest, &members);
    let arguments: Vec<Vec<u8>> = command
        .args_iter()
        .map(|argument| match argument {
            deadpool_redis::redis::Arg::Simple(bytes) => bytes.to_vec(),
            deadpool_redis::redis::Arg::Cursor => panic!("no cursor"),
            _ => panic!("unknown argument"),
        })
        .collect();
    let text = |at: usize| String::from_utf8(arguments[at].clone()).unwrap();
    let (first, second) = ("p:{d%7B}:", "p:{e}:");
    let of = |base: &str, parts: &[&str]| parts.iter().map(|part| format!("{base}{part}")).collect::<Vec<_>>();
    let keys = [
        of(first, &["s"]),
        of(second, &["s"]),
        // No two members of a real call are one ledger.
        of(first, &["s", "a", "b", "l", "z", "o:x", "o:y"]),
        of(second, &["a", "b", "l", "z", "o:x"]),
        of(first, &["a", "b", "l", "z"]),
    ];
    assert_eq!(text(2), "18");
    assert_eq!((3..21).map(text).collect::<Vec<_>>(), keys.concat());
    assert_eq!((21..27).map(text).collect::<Vec<_>>(), ["", "3", "4", "1", "2", "1"]);
    assert_eq!(arguments[27], [2, 1, 0, 2, 0, 3, 2, 0, 1, 0, 1, 1, 0, 0, 0, 1], "the plan");
    assert_eq!((28..30).map(text).collect::<Vec<_>>(), ["n", "m"]);
    assert_eq!(arguments[31..34], [vec![1; 16], vec![2; 16], vec![3; 16]]);
    assert_eq!((arguments[34].clone(), arguments[35].clone()), (packed(&other_steps[0], 0), vec![4; 16]));
    assert_eq!((arguments[36].clone(), arguments[37].clone()), (packed(&other_steps[1], 0), vec![5; 16]));
    assert_eq!(arguments.len(), 38);
}

#[test]
fn a_reply_falls_into_those_of_its_ledgers() {
    let both = [ints(&[0, 0]), Value::Int(11)];
    assert_eq!(split_reply(Value::Array(both.to_vec()), 2), both);
    for wrong in [ints(&[0]), ints(&[0, 0, 0]), Value::Int(0), Value::Nil] {
        assert_eq!(split_reply(wrong, 2), [Value::Nil, Value::Nil]);
    }
    let error = deadpool_redis::redis::parse_redis_value(b"-OOM no room\r\n").unwrap();
    assert_eq!(split_reply(error.clone(), 2), [error.clone(), error]);
}

#[test]
fn answers_are_read_for_each_step() {
    let reserve = Step::Reserve(Reserve::new(id(1), Attempt::retry(2, Cause::Hedge)));
    let release = Step::Release(Release::not_sent(id(1)));
    let extend = Step::Extend(Extend { id: id(1), permit_ttl_ms: 1 });
    let steps =
        [&reserve, &reserve, &reserve, &reserve, &reserve, &release, &extend, &extend, &reserve, &reserve, &release];
    let unit = unit("a");
    let mut reply = Vec::new();
    for list in [
        &[2, 7, 8, 1, 60_000, 3][..],
        &[0],
        &[1, 5, 70_000, 1, 7],
        &[2, 6, unit.raw(), 12, 0],
        &[2, 7, 0, -1, 1],
        &[3, 10, 3, 1, 1, 1],
    ] {
        reply.extend(list.iter().copied().map(Value::Int));
    }
    reply.push(Value::BulkString(vec![9, 9]));
    for list in [&[13][..], &[21, 500], &[24], &[31, unit.raw()], &[32], &[33]] {
        reply.extend(list.iter().copied().map(Value::Int));
    }
    let plain =
        Admitted { start_after_ms: 0, permit_ttl_ms: 60_000, attempts_left: 1, replayed: false, would_be_denied: None };
    let state = OperationState {
        attempts_used: 3,
        last_outcome: Some(Outcome::Success),
        terminal: Some(TerminalState::Completed),
        result_ref: Some(Box::from([9, 9])),
    };
    let answers = vec![
        Answer::Admitted(plain),
        Answer::Admitted(Admitted {
            start_after_ms: 5,
            permit_ttl_ms: 70_000,
            replayed: true,
            would_be_denied: Some(DenyReason::Admission),
            ..plain
        }),
        Answer::Denied(Denied { unit: Some(unit), retry_after_ms: Some(12), ..Denied::because(DenyReason::Cost) }),
        Answer::Denied(Denied { impossible: true, ..Denied::because(DenyReason::Admission) }),
        Answer::Denied(Denied { operation: Some(Box::new(state)), ..Denied::because(DenyReason::Completed) }),
        Answer::Released(ReleaseResult::Expired),
        Answer::Extended(ExtendResult::Extended(500)),
        Answer::Extended(ExtendResult::Unknown),
        Answer::Invalid(Invalid::UnknownUnit(unit)),
        Answer::Invalid(Invalid::ExpiresInTooLong),
        Answer::Invalid(Invalid::OperationMismatch),
    ];
    let version = PolicyVersion { number: 7, id: 8 };
    let (sent, numbers) = (PolicyVersion { number: 6, id: 5 }, numbers());
    let read = |values: &[Value]| read_reply(Value::Array(values.to_vec()), sent, &numbers, steps.into_iter());
    assert_eq!(read(&reply), Ok(Reply::Done { version, shadow: true, answers }));

    for len in 0..reply.len() {
        assert!(read(&reply[..len]).is_err(), "the first {len} items must not pass for all");
    }
    reply.push(Value::Int(0));
    assert_eq!(read(&reply), Err(Unexpected::TooLong(1)));
    let stale = Reply::Stale { version: PolicyVersion { number: 9, id: 3 } };
    assert_eq!(read_reply(ints(&[1, 9, 3]), sent, &numbers, steps.into_iter()), Ok(stale));
    let sent_decided = read_reply(ints(&[0, 0]), sent, &numbers, steps.into_iter().take(1));
    let defaults = Admitted { permit_ttl_ms: numbers.permit_ttl_ms, attempts_left: numbers.max_attempts - 2, ..plain };
    let answers = vec![Answer::Admitted(defaults)];
    assert_eq!(sent_decided, Ok(Reply::Done { version: sent, shadow: numbers.shadow, answers }));
    assert_eq!(read_reply(Value::Int(0), sent, &numbers, steps.into_iter().take(1)), sent_decided, "a bare answer");
    assert!(read_reply(Value::Int(0), sent, &numbers, steps.into_iter().take(2)).is_err());
    assert!(read_reply(Value::Int(11), sent, &numbers, steps.into_iter().take(1)).is_err());
}

#[test]
fn an_answer_to_another_kind_of_step_is_refused() {
    let release = Step::Release(Release::not_sent(id(1)));
    let (sent, numbers) = (PolicyVersion { number: 1, id: 1 }, numbers());
    let error = read_reply(ints(&[0, 21, 5]), sent, &numbers, [&release].into_iter()).unwrap_err();
    assert_eq!(error.to_string(), "answer is 21, must be one to this step");
    let error = read_reply(Value::Nil, sent, &numbers, [&release].into_iter()).unwrap_err();
    assert_eq!(error.to_string(), "is nil, must be an array");
}

#[test]
fn views_are_read() {
    assert_eq!(read_view(ints(&[0])), Ok(None));
    let mut items = vec![1, 4, 5, 0, 1, -3, 7, 2];
    items.extend(11..21);
    items.extend([0, unit("a").raw(), -9]);
    let view = read_view(ints(&items)).unwrap().unwrap();
    assert_eq!(view.admission_balance_micros, Some(-3));
    assert_eq!((view.retry_balance_micros, view.in_flight, view.counters.would_be_denied), (7, 2, 20));
    assert_eq!(view.units, [(unit("a"), -9)]);
    items[4] = 0;
    assert_eq!(read_view(ints(&items)).unwrap().unwrap().admission_balance_micros, None);
    items.pop();
    assert!(read_view(ints(&items)).is_err());
    assert!(read_view(ints(&[0, 0])).is_err());
}

#[test]
fn only_a_lease_of_another_epoch_is_presented_in_full() {
    let (numbers, terms) = (numbers(), pack_terms(&numbers()));
    let keys = Keys::new("test").unwrap().dependency(&DependencyId::new("a").unwrap());
    let numbers = pack_numbers(&numbers);
    let bytes = |epoch: Epoch| {
        let ask = SyncAsk { epoch, ..ask() };
        let apply = Apply {
            keys: &keys,
            now_ms: "",
            version: PolicyVersion::default(),
            force: false,
            way: Way::default(),
            numbers: &numbers,
        };
        let lend = Lend { apply, terms: &terms, ground: &Ground::default() };
        let command = lend.command(By::Digest, std::iter::empty(), Also::Syncs(&[&ask]));
        command.get_packed_command().len()
    };
    let curve_and_count = 9;
    assert_eq!(bytes(Epoch { number: 2, id: 5 }) - bytes(Epoch { number: 1, id: 5 }), 7 + 29 + curve_and_count);
}

#[test]
fn no_reply_makes_the_reader_panic() {
    let mut state = getrandom::u64().unwrap();
    eprintln!("seed {state}");
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((state >> 33) % below).unwrap()
    };
    let small = |value: usize| Value::Int(i64::try_from(value).unwrap());
    let steps = [
        Step::Reserve(Reserve::new(id(1), Attempt::ORIGINAL)),
        Step::Release(Release::not_sent(id(1))),
        Step::Extend(Extend { id: id(1), permit_ttl_ms: 1 }),
    ];
    let (sent, numbers) = (PolicyVersion { number: 1, id: 1 }, numbers());
    let (mut good, mut bad) = (0, 0);
    for _ in 0..200_000 {
        let kinds: Vec<&Step> = (0..random(4)).map(|_| &steps[random(3)]).collect();
        let mut items: Vec<Value> = [2, 1, 1, 0, 60_000, 3].map(Value::Int).to_vec();
        if random(2) == 0 {
            items = vec![Value::Int(0)];
        }
        for step in &kinds {
            let (kind, len) = match step {
                Step::Reserve(_) => [(0, 0), (1, 4), (2, 4), (3, 5), (31, 1), (32, 0)][random(6)],
                Step::Release(_) => (11 + i64::try_from(random(5)).unwrap(), 0),
                Step::Extend(_) => [(21, 1), (22, 0), (24, 0)][random(3)],
            };
            items.push(Value::Int(kind));
            items.extend((0..len).map(|_| small(random(3))));
            if kind == 3 {
                items.push(Value::BulkString(vec![0; random(200)]));
            }
        }
        for _ in 0..random(3) {
            let at = random(items.len() as u64);
            items[at] = match random(9) {
                0 => Value::Nil,
                1 => Value::Int(i64::MIN),
                2 => Value::Int(i64::MAX),
                3 => Value::Double(f64::NAN),
                4 => Value::Array(vec![Value::Nil]),
                5 => Value::Okay,
                6 => Value::BulkString(vec![0xff; random(200)]),
                7 => Value::SimpleString("1".to_owned()),
                _ => Value::Int(-1),
            };
        }
        items.truncate(items.len() - random(2));
        match read_reply(Value::Array(items.clone()), sent, &numbers, kinds.into_iter()) {
            Ok(_) => good += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                bad += 1;
            }
        }
        drop(read_view(Value::Array(items)));
    }
    assert!(good > 1_000 && bad > 1_000, "{good} good, {bad} bad");
}
