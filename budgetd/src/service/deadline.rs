//! How long a call may take: the smaller of `grpc-timeout` and `time_left_ms`, else a bound of the server's own.

use std::time::{Duration, Instant};

use budget::decision::Step;
use budget_proto::InvalidMessage;
use tonic::{Status, codegen::http::HeaderName, metadata::MetadataMap};

const HEADER: &str = "grpc-timeout";
/// Parsed once, and not by each call.
static HEADER_NAME: HeaderName = HeaderName::from_static(HEADER);
const FORM: &str = "must be 1 to 8 digits and one of H, M, S, m, u, n";

/// The time a call has, counted from its arrival.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLimit {
    now: Instant,
    until: Option<Instant>,
}

// === impl TimeLimit ===

impl TimeLimit {
    /// Of a call that arrived at `now` with these headers.
    pub(crate) fn of(metadata: &MetadataMap, now: Instant) -> Result<Self, InvalidMessage> {
        let until = match metadata.as_ref().get(&HEADER_NAME) {
            None => None,
            Some(value) => {
                let text = value.to_str().unwrap_or("");
                let timeout = parse(text).ok_or_else(|| InvalidMessage::text(HEADER, text, FORM))?;
                now.checked_add(timeout)
            }
        };
        Ok(Self { now, until })
    }

    /// Of a call that arrived at `now` on a stream that has until `self` ends.
    pub(crate) const fn on_stream(self, now: Instant) -> Self {
        Self { now, until: self.until }
    }

    /// When a call that says nothing else of its time must have been answered.
    pub(crate) fn until(self, default: Duration) -> Result<Instant, Status> {
        match self.until {
            Some(until) if until <= self.now => Err(Status::deadline_exceeded("the call's deadline has passed")),
            Some(until) => Ok(until),
            None => Ok(self.now + default),
        }
    }

    /// Gives a Reserve what is left of its time, and says when the store must have answered.
    pub(crate) fn apply(self, step: &mut Step, default: Duration) -> Result<Instant, Status> {
        let left = self.until.map(|until| until.saturating_duration_since(self.now));
        if left == Some(Duration::ZERO) {
            return Err(Status::deadline_exceeded("the call's deadline has passed"));
        }
        let default = self.now + default;
        let until = self.until.unwrap_or(default);
        let Step::Reserve(ask) = step else { return Ok(until) };
        let Some(stated_ms) = ask.time_left_ms else {
            ask.time_left_ms = left.map(whole_ms);
            return Ok(until);
        };
        // That no time is left is for the ledger to say.
        if stated_ms == 0 {
            return Ok(default);
        }
        ask.time_left_ms = Some(left.map_or(stated_ms, |left| stated_ms.min(whole_ms(left))));
        let stated = Duration::from_millis(u64::try_from(stated_ms).unwrap_or(0));
        let stated_until = self.now.checked_add(stated).unwrap_or(default);
        Ok(self.until.map_or(stated_until, |until| until.min(stated_until)))
    }
}

fn whole_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// As the gRPC protocol writes time-outs.
fn parse(text: &str) -> Option<Duration> {
    let digits = text.get(..text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match text.as_bytes().last()? {
        b'H' => Some(Duration::from_secs(count * 3600)),
        b'M' => Some(Duration::from_secs(count * 60)),
        b'S' => Some(Duration::from_secs(count)),
        b'm' => Some(Duration::from_millis(count)),
        b'u' => Some(Duration::from_micros(count)),
        b'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use budget::{
        decision::{Attempt, Release, Reserve},
        ids::ReservationId,
    };

    use super::*;
    use crate::clock::Clock;

    const DEFAULT: Duration = Duration::from_secs(5);

    fn limit(header: Option<&str>) -> TimeLimit {
        let mut metadata = MetadataMap::new();
        if let Some(header) = header {
            metadata.insert(HEADER, header.parse().unwrap());
        }
        TimeLimit::of(&metadata, Clock::instant()).unwrap()
    }

    fn reserve(time_left_ms: Option<i64>) -> Step {
        Step::Reserve(Reserve { time_left_ms, ..Reserve::new(ReservationId([1; 16]), Attempt::ORIGINAL) })
    }

    fn applied(header: Option<&str>, stated: Option<i64>) -> (Option<i64>, Duration) {
        let limit = limit(header);
        let mut step = reserve(stated);
        let deadline = limit.apply(&mut step, DEFAULT).unwrap();
        let Step::Reserve(ask) = step else { panic!() };
        (ask.time_left_ms, deadline - limit.now)
    }

    #[test]
    fn the_smaller_holds() {
        let ms = Duration::from_millis;
        assert_eq!(applied(None, None), (None, DEFAULT));
        assert_eq!(applied(None, Some(70)), (Some(70), ms(70)));
        assert_eq!(applied(None, Some(0)), (Some(0), DEFAULT));
        assert_eq!(applied(Some("70m"), None), (Some(70), ms(70)));
        assert_eq!(applied(Some("70m"), Some(50)), (Some(50), ms(50)));
        assert_eq!(applied(Some("50m"), Some(70)), (Some(50), ms(50)));
        assert_eq!(applied(Some("1H"), None), (Some(3_600_000), ms(3_600_000)));
        assert_eq!(applied(Some("1500u"), None), (Some(1), Duration::from_micros(1500)));
        let mut release = Step::Release(Release::not_sent(ReservationId([1; 16])));
        let limit = limit(Some("70m"));
        assert_eq!(limit.apply(&mut release, DEFAULT).unwrap() - limit.now, ms(70));
    }

    #[test]
    fn a24_a_spent_deadline_never_reaches_the_store() {
        let status = limit(Some("0m")).apply(&mut reserve(None), DEFAULT).unwrap_err();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        // Queueing is counted: on a stream, time passes before a call is read.
        let limit = limit(Some("5m"));
        let late = limit.on_stream(limit.now + Duration::from_millis(5));
        assert!(late.apply(&mut reserve(Some(1000)), DEFAULT).is_err());
        let early = limit.on_stream(limit.now + Duration::from_millis(2));
        let mut step = reserve(Some(1000));
        early.apply(&mut step, DEFAULT).unwrap();
        assert_eq!(step, reserve(Some(3)));
    }

    #[test]
    fn malformed_headers_are_refused() {
        for text in ["", "m", "5", "-5m", "5.5S", "123456789m", "5x", "５m", "m5"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
    }
}
