//! What goes out comes in again, and whatever comes in is judged without a panic.

use budget::{
    decision::{Answer, Step},
    ids::{DependencyId, PolicyVersion},
};
use budget_proto::{
    UnitNames,
    convert::{
        Decided, Received, Reply, extend_request, release_request, reserve_request, session_call, session_reply,
        session_response,
    },
    pb,
};
use prost::Message;

use crate::random::{Random, UNITS};

const ROUNDS: usize = 20_000;

fn names() -> UnitNames {
    UnitNames::new(UNITS).unwrap()
}

fn call(dependency: &DependencyId, step: &Step, units: &UnitNames) -> pb::session_request::Call {
    use pb::session_request::Call;
    match step {
        Step::Reserve(reserve) => Call::Reserve(reserve_request(dependency, reserve, units).unwrap()),
        Step::Release(release) => Call::Release(release_request(dependency, release, units).unwrap()),
        Step::Extend(extend) => Call::Extend(extend_request(dependency, *extend).unwrap()),
    }
}

#[test]
fn steps_survive_the_wire() {
    let mut random = Random::seeded(1);
    for _ in 0..ROUNDS {
        let (dependency, step, correlation_id) = (random.dependency(), random.step(), random.next());
        let sent =
            pb::SessionRequest { correlation_id, call: Some(call(&dependency, &step, &names())) }.encode_to_vec();
        let (id, received) = session_call(pb::SessionRequest::decode(&*sent).unwrap());
        let received = received.unwrap();
        assert_eq!((id, received.dependency, received.step), (correlation_id, dependency, step));
    }
}

#[test]
fn answers_survive_the_wire() {
    let mut random = Random::seeded(2);
    // A Reserve whose costs name every unit, so that a denied one can be named.
    let costs = UNITS.map(|unit| crate::cost(unit, 1)).to_vec();
    let echo = Received::try_from(pb::ReserveRequest { costs, ..crate::reserve() }).unwrap().echo;
    for _ in 0..ROUNDS {
        let (answer, mode, correlation_id) = (random.answer(), random.mode(), random.next());
        let version = PolicyVersion { number: 5, id: (1 << 52) - 1 };
        let decided = Decided { answer: answer.clone(), mode, version };
        let sent = session_response(correlation_id, decided.session(&echo)).encode_to_vec();
        let (id, reply) = session_reply(pb::SessionResponse::decode(&*sent).unwrap());
        assert_eq!(id, correlation_id);
        let received = match reply.unwrap().unwrap() {
            Reply::Reserved(reserved) => {
                assert_eq!((reserved.mode, reserved.version), (mode, version));
                reserved.decision.into()
            }
            Reply::Released(released) => {
                assert_eq!(released.mode, mode);
                Answer::Released(released.result)
            }
            Reply::Extended(result) => Answer::Extended(result),
        };
        assert_eq!(received, answer);
    }
}

#[test]
fn what_a_request_cannot_say_stops_before_it_is_sent() {
    use budget::{
        decision::{Attempt, Cost, Extend, Outcome, Release, Reserve, Use},
        ids::{ReservationId, UnitId},
    };
    let dependency = DependencyId::new("payments").unwrap();
    let id = ReservationId([1; 16]);
    let plain = || Reserve::new(id, Attempt::ORIGINAL);
    let euros = |amount_micros| vec![Cost { unit: UnitId::of("eur").unwrap(), amount_micros }];
    let reserve = |reserve| reserve_request(&dependency, &reserve, &names()).unwrap_err().field();
    assert_eq!(reserve(Reserve { costs: euros(1), ..plain() }), "costs.unit");
    assert_eq!(reserve(Reserve { time_left_ms: Some(-1), ..plain() }), "time_left_ms");
    assert_eq!(reserve(Reserve { max_wait_ms: -1, ..plain() }), "max_wait_ms");
    assert_eq!(reserve(Reserve { permit_ttl_ms: Some(i64::MIN), ..plain() }), "permit_ttl_ms");
    let negative = vec![names().cost("usd", -1).unwrap()];
    assert_eq!(reserve(Reserve { costs: negative, ..plain() }), "costs.amount_micros");
    let mut report = Release::sent(id, Outcome::Success);
    let Use::Sent(sent) = &mut report.used else { panic!("not sent") };
    sent.costs = euros(1);
    assert_eq!(release_request(&dependency, &report, &names()).unwrap_err().field(), "sent.costs.unit");
    assert_eq!(extend_request(&dependency, Extend { id, permit_ttl_ms: -1 }).unwrap_err().field(), "permit_ttl_ms");
}

/// Random bytes rarely decode, so most rounds damage a few bytes of a valid message.
#[test]
fn nothing_received_makes_a_conversion_panic() {
    let mut random = Random::seeded(3);
    let (mut decoded, mut accepted, mut refused) = (0, 0, 0);
    for round in 0..ROUNDS * 5 {
        let mut bytes = if round % 10 == 0 {
            random.bytes(0, 64)
        } else {
            let (dependency, step) = (random.dependency(), random.step());
            pb::SessionRequest { correlation_id: 1, call: Some(call(&dependency, &step, &names())) }.encode_to_vec()
        };
        damage(&mut random, &mut bytes);
        let Ok(request) = pb::SessionRequest::decode(&*bytes) else { continue };
        decoded += 1;
        let (_, received) = session_call(request);
        match received {
            Ok(received) => {
                accepted += 1;
                // Whatever passed obeys the rules, and so passes again unchanged.
                let call = call(&received.dependency, &received.step, received.echo.units());
                assert_eq!(session_call(pb::SessionRequest { correlation_id: 1, call: Some(call) }).1, Ok(received));
            }
            Err(_) => refused += 1,
        }
    }
    println!("decoded {decoded}, accepted {accepted}, refused {refused}");
    assert!(accepted > ROUNDS / 2 && refused > ROUNDS / 10, "accepted {accepted}, refused {refused}");
}

#[test]
fn nothing_answered_makes_a_client_panic() {
    let mut random = Random::seeded(4);
    let echo = budget_proto::convert::Echo::default();
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..ROUNDS * 5 {
        let mut bytes = if round % 10 == 0 {
            random.bytes(0, 64)
        } else {
            let decided = Decided { answer: random.answer(), mode: random.mode(), version: PolicyVersion::default() };
            session_response(1, decided.session(&echo)).encode_to_vec()
        };
        damage(&mut random, &mut bytes);
        let Ok(response) = pb::SessionResponse::decode(&*bytes) else { continue };
        match session_reply(response).1 {
            Ok(_) => accepted += 1,
            Err(_) => refused += 1,
        }
    }
    println!("accepted {accepted}, refused {refused}");
    assert!(accepted > ROUNDS / 2 && refused > ROUNDS / 10, "accepted {accepted}, refused {refused}");
}

pub(crate) fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(4) {
            0 => bytes[at] = u8::try_from(random.next() >> 56).unwrap(),
            1 => bytes[at] ^= 1 << random.below(8),
            2 => drop(bytes.remove(at)),
            _ => bytes.truncate(at),
        }
    }
}
