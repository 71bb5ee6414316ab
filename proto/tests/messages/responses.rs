//! What a server sends, and what a client refuses to believe.

use budget::{
    decision::{
        Admitted, Answer, Cause, Denied, DenyReason, ExtendResult, Invalid, Outcome, Priority, ReleaseResult,
        TerminalState,
    },
    ids::{PolicyVersion, UnitId},
};
use budget_proto::{
    InvalidMessage,
    convert::{Decided, Echo, Mode, Received, Released, Reserved, session_reply, session_response},
    pb,
};
use tonic::{Code, Status};

use crate::{cost, reserve};

const VERSION: PolicyVersion = PolicyVersion { number: 3, id: 99 };
const ADMITTED: Admitted =
    Admitted { start_after_ms: 0, permit_ttl_ms: 60_000, attempts_left: 2, replayed: false, would_be_denied: None };

fn decided(answer: Answer) -> Decided {
    Decided { answer, mode: Mode::Exact, version: VERSION }
}

/// The names in the protocol are the names in the budget crate, and neither side has a value the other lacks.
#[test]
fn enums_agree_with_the_protocol() {
    fn check(prefix: &str, names: &[&str], wire: fn(i32) -> Option<&'static str>) {
        for (index, name) in names.iter().enumerate() {
            let code = i32::try_from(index).unwrap() + 1;
            assert_eq!(wire(code), Some(&*format!("{prefix}_{}", name.to_uppercase())));
        }
        assert_eq!(wire(0), Some(&*format!("{prefix}_UNSPECIFIED")));
        assert_eq!(wire(i32::try_from(names.len()).unwrap() + 1), None, "{prefix} has a further value");
    }
    check("CAUSE", &Cause::ALL.map(Cause::name), |code| Some(pb::Cause::try_from(code).ok()?.as_str_name()));
    check("PRIORITY", &Priority::ALL.map(Priority::name), |code| {
        Some(pb::Priority::try_from(code).ok()?.as_str_name())
    });
    check("OUTCOME", &Outcome::ALL.map(Outcome::name), |code| Some(pb::Outcome::try_from(code).ok()?.as_str_name()));
    check("TERMINAL_STATE", &TerminalState::ALL.map(TerminalState::name), |code| {
        Some(pb::TerminalState::try_from(code).ok()?.as_str_name())
    });
    check("DENY_REASON", &DenyReason::ALL.map(DenyReason::name), |code| {
        Some(pb::DenyReason::try_from(code).ok()?.as_str_name())
    });
    check("RELEASE_RESULT", &ReleaseResult::ALL.map(ReleaseResult::name), |code| {
        Some(pb::ReleaseResult::try_from(code).ok()?.as_str_name())
    });
    check("MODE", &Mode::ALL.map(Mode::name), |code| Some(pb::Mode::try_from(code).ok()?.as_str_name()));
}

#[test]
fn a_denied_unit_is_named() {
    let request = pb::ReserveRequest { costs: vec![cost("usd", 1), cost("input_tokens", 2)], ..reserve() };
    let echo = Received::try_from(request).unwrap().echo;
    let unit = Some(UnitId::of("input_tokens").unwrap());
    let denied = Denied { unit, ..Denied::because(DenyReason::Cost) };
    let response = decided(Answer::Denied(denied)).reserve(&echo).unwrap();
    let Some(pb::reserve_response::Decision::Denied(sent)) = &response.decision else { panic!("{response:?}") };
    assert_eq!((sent.unit.as_deref(), sent.retry_after_ms), (Some("input_tokens"), None));
    assert_eq!(response.policy_version, Some(pb::PolicyVersion { number: 3, id: 99 }));
}

#[test]
fn mistakes_become_invalid_argument_and_mismatches_internal() {
    let echo = Echo::default();
    let mistake = || decided(Answer::Invalid(Invalid::OperationMismatch));
    let code = |status: Status| status.code();
    assert_eq!(mistake().reserve(&echo).map_err(code), Err(Code::InvalidArgument));
    assert_eq!(mistake().release(&echo).map_err(code), Err(Code::InvalidArgument));
    assert_eq!(mistake().extend(&echo).map_err(code), Err(Code::InvalidArgument));
    assert_eq!(mistake().session(&echo).map_err(code), Err(Code::InvalidArgument));
    let released = || decided(Answer::Released(ReleaseResult::Applied));
    assert_eq!(released().reserve(&echo).map_err(code), Err(Code::Internal));
    assert_eq!(released().extend(&echo).map_err(code), Err(Code::Internal));
    assert_eq!(decided(Answer::Admitted(ADMITTED)).release(&echo).map_err(code), Err(Code::Internal));
    assert!(decided(Answer::Admitted(ADMITTED)).session(&echo).is_ok());
}

#[test]
fn a_client_judges_what_it_receives() {
    let good = decided(Answer::Admitted(ADMITTED)).reserve(&Echo::default()).unwrap();
    assert!(Reserved::try_from(good.clone()).is_ok());
    let refused = |response: pb::ReserveResponse| Reserved::try_from(response).map_err(|invalid| invalid.to_string());
    let on = |change: fn(&mut pb::ReserveResponse)| {
        let mut response = good.clone();
        change(&mut response);
        refused(response).unwrap_err()
    };
    let admitted = |change: fn(&mut pb::Admitted)| {
        let mut admitted = pb::Admitted::from(ADMITTED);
        change(&mut admitted);
        refused(pb::ReserveResponse {
            decision: Some(pb::reserve_response::Decision::Admitted(admitted)),
            ..good.clone()
        })
    };
    let denied = |change: fn(&mut pb::Denied)| {
        let mut denied = pb::Denied { reason: 7, ..pb::Denied::default() };
        change(&mut denied);
        refused(pb::ReserveResponse { decision: Some(pb::reserve_response::Decision::Denied(denied)), ..good.clone() })
    };
    let state = |state: pb::OperationState| {
        let denied = pb::Denied { reason: 10, operation: Some(state), ..pb::Denied::default() };
        refused(pb::ReserveResponse { decision: Some(pb::reserve_response::Decision::Denied(denied)), ..good.clone() })
    };
    let table = [
        (on(|r| r.decision = None), "decision is absent: must be one of admitted, denied"),
        (on(|r| r.mode = 0), "mode is 0: must be one of 1 exact, 2 leased, 3 degraded, 4 shadow"),
        (on(|r| r.mode = 5), "mode is 5: must be one of"),
        (on(|r| r.policy_version = None), "policy_version is absent: is required"),
        (
            admitted(|a| a.start_after_ms = u64::MAX).unwrap_err(),
            "admitted.start_after_ms is 18446744073709551615: must be",
        ),
        (admitted(|a| a.permit_ttl_ms = 3_600_001).unwrap_err(), "admitted.permit_ttl_ms is 3600001: must be between"),
        (admitted(|a| a.would_be_denied = Some(0)).unwrap_err(), "admitted.would_be_denied is 0: must be one of"),
        (denied(|d| d.reason = 0).unwrap_err(), "denied.reason is 0: must be one of"),
        (denied(|d| d.reason = 16).unwrap_err(), "denied.reason is 16: must be one of"),
        (denied(|d| d.unit = Some("\n".into())).unwrap_err(), r#"denied.unit is "\n": contains the control"#),
        (denied(|d| d.retry_after_ms = Some(0)).unwrap_err(), "denied.retry_after_ms is 0: must be between 1"),
        (
            state(pb::OperationState { result_ref: Some(vec![1; 129]), ..pb::OperationState::default() }).unwrap_err(),
            "denied.operation.result_ref is 0101",
        ),
        (
            state(pb::OperationState { last_outcome: Some(0), ..pb::OperationState::default() }).unwrap_err(),
            "denied.operation.last_outcome is 0: must be one of",
        ),
        (
            state(pb::OperationState { terminal_state: Some(7), ..pb::OperationState::default() }).unwrap_err(),
            "denied.operation.terminal_state is 7: must be one of",
        ),
    ];
    for (text, expected) in table {
        assert!(text.starts_with(expected), "{text}, not {expected}");
    }
    // A server that does not count: the careful reading is that none is left.
    assert!(admitted(|a| a.attempts_left = None).is_ok());
    assert!(denied(|_| ()).is_ok());
}

#[test]
fn a_client_judges_release_and_extend() {
    let release = |result, mode| Released::try_from(pb::ReleaseResponse { result, mode }).map_err(|i| i.to_string());
    assert!(release(1, 1).is_ok());
    assert_eq!(
        release(0, 1).unwrap_err(),
        "result is 0: must be one of 1 applied, 2 already_released, 3 expired, 4 unknown"
    );
    assert!(release(5, 1).is_err() && release(1, 0).is_err() && release(1, i32::MIN).is_err());
    let extend = |result, permit_ttl_ms| ExtendResult::try_from(pb::ExtendResponse { result, permit_ttl_ms });
    assert_eq!(extend(1, Some(5)), Ok(ExtendResult::Extended(5)));
    assert_eq!(extend(3, None), Ok(ExtendResult::Expired));
    let text = |judged: Result<ExtendResult, InvalidMessage>| judged.unwrap_err().to_string();
    assert_eq!(text(extend(1, None)), "permit_ttl_ms is absent: is required");
    assert!(text(extend(1, Some(u64::MAX))).starts_with("permit_ttl_ms is 18446744073709551615: must be between"));
    for code in [0, 5, -1] {
        assert!(text(extend(code, None)).starts_with(&format!("result is {code}: must be one of 1 extended")));
    }
}

#[test]
fn a_failed_call_of_a_session_is_a_status() {
    let (id, reply) = session_reply(session_response(7, Err(Status::not_found("no such rule"))));
    let status = reply.unwrap().unwrap_err();
    assert_eq!((id, status.code(), status.message()), (7, Code::NotFound, "no such rule"));
    let failure = |code| {
        let failure = pb::Failure { code, message: String::new() };
        let answer = Some(pb::session_response::Answer::Failure(failure));
        session_reply(pb::SessionResponse { correlation_id: 1, answer }).1
    };
    assert_eq!(failure(0).unwrap_err().to_string(), "failure.code is 0: must be a status other than OK");
    assert_eq!(failure(99).unwrap().unwrap_err().code(), Code::Unknown);
    assert_eq!(failure(-1).unwrap().unwrap_err().code(), Code::Unknown);
    let empty = session_reply(pb::SessionResponse { correlation_id: 1, answer: None }).1;
    assert_eq!(empty.unwrap_err().field(), "answer");
}
