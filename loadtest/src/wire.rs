//! What goes over the wire: requests encoded once and sent many times, and a codec that copies them.
//!
//! Client and servers share the machine's cores, so what the client spends per call hides differences between servers.
//! A call of the closed loop copies a few dozen bytes and a fresh reservation id, and allocates nothing beyond what
//! tonic itself allocates.

use std::marker::PhantomData;

use bytes::BufMut;
use prost::Message;
use tonic::{
    Status,
    codec::{BufferSettings, Codec, EncodeBuf, Encoder},
};
use tonic_prost::ProstDecoder;

use budget_proto::pb;

pub(crate) const RESERVE_PATH: &str = "/retrybudget.v1.RetryBudget/Reserve";
pub(crate) const RELEASE_PATH: &str = "/retrybudget.v1.RetryBudget/Release";
pub(crate) const SESSION_PATH: &str = "/retrybudget.v1.RetryBudget/Session";

/// Bounds what [`Prepared`] can hold; the names of the benchmark are short.
const PREPARED_BYTES_MAX: usize = 95;

/// Bytes of a reservation id.
const ID_BYTES: usize = 16;

/// Stands for the id in a message that is being prepared; found again in its encoding.
const ID_MARK: [u8; ID_BYTES] = [0xA5; ID_BYTES];

/// Buffers of a unary call hold one small message.
const UNARY_BUFFER_BYTES: usize = 256;

/// Buffers of a stream hold what is ready at once.
const STREAM_BUFFER_BYTES: usize = 8 * 1024;

/// An encoded request; only its reservation id differs from call to call, if it has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepared {
    bytes: [u8; PREPARED_BYTES_MAX],
    length: u8,
    /// Where there is one.
    id_at: Option<u8>,
}

/// Reserve and Release of an original at one dependency.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreparedPair {
    pub(crate) reserve: Prepared,
    pub(crate) release: Prepared,
}

/// Makes reservation ids: distinct within a process, and between runs in all likelihood.
#[derive(Clone, Debug)]
pub(crate) struct Ids {
    state: u64,
    salt: u64,
}

/// Sends [`Prepared`] requests and decodes answers with prost.
pub(crate) struct PreparedCodec<Answer> {
    buffers: BufferSettings,
    answer: PhantomData<Answer>,
}

/// Copies a [`Prepared`] request.
pub(crate) struct PreparedEncoder(BufferSettings);

/// What the closed loop wants to know of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// To a Reserve: admitted on the ledger or from a lease, not by a fallback.
    Admitted,
    /// To a Release: applied.
    Released,
    /// To either: anything else.
    Refused,
    /// This call failed.
    Failed,
}

// === impl Prepared ===

impl Prepared {
    fn new(message: &impl Message) -> Self {
        let encoded = message.encode_to_vec();
        assert!(encoded.len() <= PREPARED_BYTES_MAX, "a prepared request is {} bytes", encoded.len());
        let mut bytes = [0; PREPARED_BYTES_MAX];
        bytes[..encoded.len()].copy_from_slice(&encoded);
        let id_at = encoded.windows(ID_BYTES).position(|window| window == ID_MARK);
        Self { bytes, length: encoded.len() as u8, id_at: id_at.map(|at| at as u8) }
    }

    /// A request that is the same each time.
    pub(crate) fn without_id(message: &impl Message) -> Self {
        Self::new(message)
    }

    /// The same request for another reservation.
    pub(crate) fn with_id(mut self, id: [u8; ID_BYTES]) -> Self {
        if let Some(id_at) = self.id_at.map(usize::from) {
            self.bytes[id_at..id_at + ID_BYTES].copy_from_slice(&id);
        }
        self
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

// === impl PreparedPair ===

impl PreparedPair {
    /// For unary calls.
    pub(crate) fn unary(dependency: &str) -> Self {
        Self {
            reserve: Prepared::new(&original(dependency, &ID_MARK)),
            release: Prepared::new(&success(dependency, &ID_MARK)),
        }
    }

    /// For a Session stream.
    pub(crate) fn session(dependency: &str, correlation_id: u64) -> Self {
        let call = |call| pb::SessionRequest { correlation_id, call: Some(call) };
        Self {
            reserve: Prepared::new(&call(pb::session_request::Call::Reserve(original(dependency, &ID_MARK)))),
            release: Prepared::new(&call(pb::session_request::Call::Release(success(dependency, &ID_MARK)))),
        }
    }
}

/// An ask for the first attempt of an operation, nothing else set.
pub(crate) fn original(dependency: &str, id: &[u8; ID_BYTES]) -> pb::ReserveRequest {
    pb::ReserveRequest {
        dependency: dependency.to_owned(),
        reservation_id: id.to_vec(),
        attempt: Some(pb::Attempt { number: 1, cause: None }),
        ..pb::ReserveRequest::default()
    }
}

/// The end of an attempt that worked.
pub(crate) fn success(dependency: &str, id: &[u8; ID_BYTES]) -> pb::ReleaseRequest {
    let sent = pb::Sent { outcome: pb::Outcome::Success.into(), ..pb::Sent::default() };
    pb::ReleaseRequest {
        dependency: dependency.to_owned(),
        reservation_id: id.to_vec(),
        r#use: Some(pb::release_request::Use::Sent(sent)),
        operation_id: None,
    }
}

// === impl Ids ===

impl Ids {
    /// Distinct streams give distinct ids.
    pub(crate) fn new(run: u64, stream: u64) -> Self {
        Self { state: run, salt: stream }
    }

    /// 64 well mixed bits (splitmix64).
    pub(crate) fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state ^ self.salt.rotate_left(32))
    }

    /// The next id.
    pub(crate) fn id(&mut self) -> [u8; ID_BYTES] {
        let high = self.bits();
        // The state never repeats within a stream, and `mix` is a bijection: equal ids would need equal streams.
        let low = mix(self.state.wrapping_add(self.salt));
        ((u128::from(high) << 64) | u128::from(low)).to_be_bytes()
    }
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

// === impl PreparedCodec ===

impl<Answer> PreparedCodec<Answer> {
    /// For one message each way.
    pub(crate) fn unary() -> Self {
        Self { buffers: BufferSettings::new(UNARY_BUFFER_BYTES, UNARY_BUFFER_BYTES), answer: PhantomData }
    }

    /// For many.
    pub(crate) fn stream() -> Self {
        Self { buffers: BufferSettings::new(STREAM_BUFFER_BYTES, 4 * STREAM_BUFFER_BYTES), answer: PhantomData }
    }
}

impl<Answer: Message + Default + Send + 'static> Codec for PreparedCodec<Answer> {
    type Encode = Prepared;
    type Decode = Answer;
    type Encoder = PreparedEncoder;
    type Decoder = ProstDecoder<Answer>;

    fn encoder(&mut self) -> PreparedEncoder {
        PreparedEncoder(self.buffers)
    }

    fn decoder(&mut self) -> ProstDecoder<Answer> {
        ProstDecoder::new(self.buffers)
    }
}

// === impl PreparedEncoder ===

impl Encoder for PreparedEncoder {
    type Item = Prepared;
    type Error = Status;

    fn encode(&mut self, item: Prepared, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(item.as_bytes());
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0
    }
}

// === impl Verdict ===

impl From<&pb::ReserveResponse> for Verdict {
    fn from(answer: &pb::ReserveResponse) -> Self {
        match &answer.decision {
            Some(pb::reserve_response::Decision::Admitted(_))
                if matches!(answer.mode(), pb::Mode::Exact | pb::Mode::Leased) =>
            {
                Self::Admitted
            }
            Some(pb::reserve_response::Decision::Admitted(_) | pb::reserve_response::Decision::Denied(_)) | None => {
                Self::Refused
            }
        }
    }
}

impl From<&pb::ReleaseResponse> for Verdict {
    fn from(answer: &pb::ReleaseResponse) -> Self {
        if answer.result() == pb::ReleaseResult::Applied { Self::Released } else { Self::Refused }
    }
}

impl From<&pb::SessionResponse> for Verdict {
    fn from(answer: &pb::SessionResponse) -> Self {
        match &answer.answer {
            Some(pb::session_response::Answer::Reserve(answer)) => answer.into(),
            Some(pb::session_response::Answer::Release(answer)) => answer.into(),
            Some(pb::session_response::Answer::Extend(_)) | None => Self::Refused,
            Some(pb::session_response::Answer::Failure(_)) => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn prepared_requests_decode_with_the_id_put_in() {
        let id = [7; ID_BYTES];
        let pair = PreparedPair::unary("bench/one/0000");
        let reserve = pb::ReserveRequest::decode(pair.reserve.with_id(id).as_bytes()).expect("decodes");
        assert_eq!(reserve, original("bench/one/0000", &id));
        let release = pb::ReleaseRequest::decode(pair.release.with_id(id).as_bytes()).expect("decodes");
        assert_eq!(release, success("bench/one/0000", &id));
    }

    #[test]
    fn prepared_session_calls_carry_their_correlation_id() {
        let id = [9; ID_BYTES];
        let pair = PreparedPair::session("bench/one/0000", 300);
        let reserve = pb::SessionRequest::decode(pair.reserve.with_id(id).as_bytes()).expect("decodes");
        assert_eq!(reserve.correlation_id, 300);
        let expected = original("bench/one/0000", &id);
        assert_eq!(reserve.call, Some(pb::session_request::Call::Reserve(expected)));
    }

    #[test]
    fn requests_without_an_id_stay_as_they_are() {
        let message = crate::rate_limit::request("bench/one/0000");
        let prepared = Prepared::without_id(&message);
        assert_eq!(prepared.with_id([7; ID_BYTES]).as_bytes(), message.encode_to_vec());
    }

    #[test]
    fn ids_are_distinct_within_and_between_streams() {
        let mut seen = HashSet::new();
        for stream in 0..64 {
            let mut ids = Ids::new(42, stream);
            for _ in 0..1000 {
                assert!(seen.insert(ids.id()));
            }
        }
    }

    #[test]
    fn an_admission_by_fallback_is_not_an_admission() {
        let admitted = pb::reserve_response::Decision::Admitted(pb::Admitted::default());
        let mut answer = pb::ReserveResponse { decision: Some(admitted), ..pb::ReserveResponse::default() };
        answer.set_mode(pb::Mode::Degraded);
        assert_eq!(Verdict::from(&answer), Verdict::Refused);
        answer.set_mode(pb::Mode::Exact);
        assert_eq!(Verdict::from(&answer), Verdict::Admitted);
        assert_eq!(Verdict::from(&pb::ReserveResponse::default()), Verdict::Refused);
    }
}
