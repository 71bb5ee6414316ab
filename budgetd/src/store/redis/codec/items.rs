//! The items of a script's reply, each judged when it is taken.

use std::vec;

use budget::{
    decision::{
        Admitted, Answer, Denied, DenyReason, ExtendResult, Invalid, OperationState, Outcome, ReleaseResult, Step,
        TerminalState,
    },
    ids::{PolicyVersion, RESULT_REF_BYTES_MAX, UnitId},
    policy::Numbers,
    units::EXACT_MAX,
};
use deadpool_redis::redis::Value;

use super::{Defaults, Unexpected};
use crate::store::redis::{
    layout::constants::{answer, status},
    value,
};

/// The items of a flat reply, one after the other.
pub(super) struct Items(pub(super) vec::IntoIter<Value>);

impl Items {
    pub(super) fn of(reply: Value) -> Result<Self, Unexpected> {
        match value::array(reply) {
            Ok(items) => Ok(Self(items.into_iter())),
            Err(other) => Err(Unexpected::NotAnArray(value::type_name(&other))),
        }
    }

    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    pub(super) fn end(&self) -> Result<(), Unexpected> {
        match self.left() {
            0 => Ok(()),
            more => Err(Unexpected::TooLong(more)),
        }
    }

    pub(super) fn int(&mut self, what: &'static str) -> Result<i64, Unexpected> {
        let item = self.0.next().ok_or(Unexpected::Ends(what))?;
        let Value::Int(value) = item else {
            let found = value::type_name(&item).to_owned();
            return Err(Unexpected::Field { what, found, rule: "an integer" });
        };
        Ok(value)
    }

    pub(super) fn bytes(&mut self, what: &'static str, max: usize) -> Result<Vec<u8>, Unexpected> {
        let item = self.0.next().ok_or(Unexpected::Ends(what))?;
        let Value::BulkString(bytes) = item else {
            let found = value::type_name(&item).to_owned();
            return Err(Unexpected::Field { what, found, rule: "a string" });
        };
        if bytes.len() > max {
            let found = format!("{} bytes", bytes.len());
            return Err(Unexpected::Field { what, found, rule: "shorter" });
        }
        Ok(bytes)
    }

    pub(super) fn within(&mut self, what: &'static str, min: i64, max: i64) -> Result<i64, Unexpected> {
        self.code(what, |code| Some(code).filter(|code| (min..=max).contains(code)))
    }

    pub(super) fn flag(&mut self, what: &'static str) -> Result<bool, Unexpected> {
        Ok(self.within(what, 0, 1)? == 1)
    }

    /// Never negative, and exact in a script.
    pub(super) fn amount(&mut self, what: &'static str) -> Result<i64, Unexpected> {
        self.within(what, 0, EXACT_MAX)
    }

    pub(super) fn balance(&mut self, what: &'static str) -> Result<i64, Unexpected> {
        self.within(what, -EXACT_MAX, EXACT_MAX)
    }

    pub(super) fn code<T>(&mut self, what: &'static str, from: impl Fn(i64) -> Option<T>) -> Result<T, Unexpected> {
        let code = self.int(what)?;
        from(code).ok_or_else(|| Unexpected::Field { what, found: code.to_string(), rule: "a known value" })
    }

    /// 0 stands for none.
    pub(super) fn maybe_code<T>(
        &mut self,
        what: &'static str,
        from: impl Fn(i64) -> Option<T>,
    ) -> Result<Option<T>, Unexpected> {
        self.code(what, |code| if code == 0 { Some(None) } else { from(code).map(Some) })
    }

    /// What decided: the numbers of the call, or the ledger's. None: they are stale, and the ledger's version follows.
    pub(super) fn status(
        &mut self,
        version: PolicyVersion,
        numbers: &Numbers,
    ) -> Result<Option<(PolicyVersion, bool, Defaults)>, Unexpected> {
        Ok(match self.within("status", status::DECIDED, status::FORCED)? {
            status::DECIDED => {
                let defaults = Defaults { permit_ttl_ms: numbers.permit_ttl_ms, max_attempts: numbers.max_attempts };
                Some((version, numbers.shadow, defaults))
            }
            status::STALE => None,
            _ => {
                let (version, shadow) = (self.version()?, self.flag("shadow")?);
                let permit_ttl_ms = self.amount("default permit_ttl")?;
                let defaults = Defaults { permit_ttl_ms, max_attempts: self.amount("default attempts")? };
                Some((version, shadow, defaults))
            }
        })
    }

    pub(super) fn version(&mut self) -> Result<PolicyVersion, Unexpected> {
        Ok(PolicyVersion { number: self.amount("version number")?, id: self.amount("version id")? })
    }

    pub(super) fn answer(&mut self, step: &Step, defaults: Defaults) -> Result<Answer, Unexpected> {
        let what = "answer";
        let kind = self.int(what)?;
        Ok(match (step, kind) {
            (Step::Reserve(ask), answer::ADMITTED_PLAIN) => Answer::Admitted(defaults.admitted(ask.attempt)),
            (Step::Reserve(ask), answer::ADMITTED) => Answer::Admitted(Admitted {
                start_after_ms: self.amount("start_after")?,
                permit_ttl_ms: self.amount("permit_ttl")?,
                replayed: self.flag("replayed")?,
                would_be_denied: self.maybe_code("would-be reason", DenyReason::from_code)?,
                ..defaults.admitted(ask.attempt)
            }),
            (Step::Reserve(_), answer::DENIED) => Answer::Denied(self.denied()?),
            (Step::Reserve(_), answer::DENIED_BY_OPERATION) => Answer::Denied(self.denied_by_operation()?),
            (Step::Release(_), answer::APPLIED) => Answer::Released(ReleaseResult::Applied),
            (Step::Release(_), answer::RELEASED_BEFORE) => Answer::Released(ReleaseResult::AlreadyReleased),
            (Step::Release(_), answer::RELEASED_LATE) => Answer::Released(ReleaseResult::Expired),
            (Step::Release(_), answer::RELEASED_UNKNOWN) => Answer::Released(ReleaseResult::Unknown),
            (Step::Extend(_), answer::EXTENDED) => {
                Answer::Extended(ExtendResult::Extended(self.amount("extended permit_ttl")?))
            }
            (Step::Extend(_), answer::EXTENDED_RELEASED) => Answer::Extended(ExtendResult::AlreadyReleased),
            (Step::Extend(_), answer::EXTENDED_LATE) => Answer::Extended(ExtendResult::Expired),
            (Step::Extend(_), answer::EXTENDED_UNKNOWN) => Answer::Extended(ExtendResult::Unknown),
            (Step::Reserve(_), answer::UNKNOWN_UNIT) => {
                Answer::Invalid(Invalid::UnknownUnit(UnitId::from_raw(self.amount("unknown unit")?)))
            }
            (Step::Reserve(_), answer::EXPIRES_IN_TOO_LONG) => Answer::Invalid(Invalid::ExpiresInTooLong),
            (Step::Reserve(_) | Step::Release(_), answer::OPERATION_MISMATCH) => {
                Answer::Invalid(Invalid::OperationMismatch)
            }
            (Step::Reserve(_) | Step::Release(_) | Step::Extend(_), _) => {
                return Err(Unexpected::Field { what, found: kind.to_string(), rule: "one to this step" });
            }
        })
    }

    pub(super) fn denied(&mut self) -> Result<Denied, Unexpected> {
        Ok(Denied {
            reason: self.code("reason", DenyReason::from_code)?,
            unit: self.maybe_code("unit", |raw| Some(UnitId::from_raw(raw)).filter(|_| raw > 0))?,
            retry_after_ms: Some(self.within("retry_after", -1, i64::MAX)?).filter(|ms| *ms >= 0),
            impossible: self.flag("impossible")?,
            operation: None,
        })
    }

    pub(super) fn denied_by_operation(&mut self) -> Result<Denied, Unexpected> {
        let reason = self.code("reason", DenyReason::from_code)?;
        let attempts_used = self.amount("attempts used")?;
        let last_outcome = self.maybe_code("last outcome", Outcome::from_code)?;
        let terminal = self.maybe_code("terminal state", TerminalState::from_code)?;
        let has_reference = self.flag("whether there is a result reference")?;
        let reference = self.bytes("result reference", RESULT_REF_BYTES_MAX)?;
        let result_ref = has_reference.then(|| reference.into_boxed_slice());
        let state = OperationState { attempts_used, last_outcome, terminal, result_ref };
        Ok(Denied { operation: Some(Box::new(state)), ..Denied::because(reason) })
    }
}
