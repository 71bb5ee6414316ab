//! Spans: what was asked and how it was answered, for a share of the calls.
//!
//! Whether a call is traced is decided before anything is put together for it: the others pay for one random number. A span
//! whose call is over waits in a bounded queue, and is dropped when that is full: no call waits for a collector.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use budget::{
    decision::{Answer, ExtendResult, Step, Use},
    ids::{PolicyVersion, ReservationId},
};
use budget_proto::convert::{Mode, Received};
use opentelemetry::{
    InstrumentationScope, KeyValue, Value,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::trace::{
    IdGenerator, RandomIdGenerator, Sampler, SamplingDecision, ShouldSample, SpanData, SpanEvents, SpanLinks,
};
use tokio::sync::mpsc;
use tonic::{Code, codegen::http::HeaderName, metadata::MetadataMap};

use crate::clock::Clock;

/// Spans that wait to be sent.
const QUEUE_MAX: usize = 2_048;
/// Longest `traceparent` that is looked at, in bytes: later versions may be longer than this one's 55.
const TRACEPARENT_BYTES_MAX: usize = 256;
/// Parsed once, and not by each call.
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Makes spans, or none.
#[derive(Debug, Default)]
pub struct Traces(Option<Arc<Making>>);

#[derive(Debug)]
struct Making {
    sampler: Sampler,
    ids: RandomIdGenerator,
    scope: InstrumentationScope,
    queue: mpsc::Sender<SpanData>,
    dropped: AtomicU64,
}

/// The span of the caller, as far as it says.
#[derive(Debug, Default)]
pub(crate) struct Parent(Option<SpanContext>);

/// The span of a call that is going on. Dropped before its end, it says that the call was cancelled.
pub(crate) struct Recording {
    span: Option<SpanData>,
    making: Arc<Making>,
}

// === impl Traces ===

impl Traces {
    /// Begins a trace for this share of the calls whose callers are not traced. The spans come out of the receiver.
    pub(super) fn new(share: f64) -> (Self, mpsc::Receiver<SpanData>) {
        let (queue, spans) = mpsc::channel(QUEUE_MAX);
        let making = Making {
            sampler: Sampler::TraceIdRatioBased(share),
            ids: RandomIdGenerator::default(),
            scope: InstrumentationScope::builder("budgetd").with_version(env!("CARGO_PKG_VERSION")).build(),
            queue,
            dropped: AtomicU64::new(0),
        };
        (Self(Some(Arc::new(making))), spans)
    }

    /// Spans that found no room.
    pub(super) fn dropped(&self) -> u64 {
        self.0.as_ref().map_or(0, |making| making.dropped.load(Ordering::Relaxed))
    }

    /// What the headers of a call say of its caller's span. Anything but one well-formed `traceparent` says nothing.
    pub(crate) fn parent(&self, metadata: &MetadataMap) -> Parent {
        if self.0.is_none() {
            return Parent(None);
        }
        let mut values = metadata.as_ref().get_all(&TRACEPARENT).iter();
        Parent(match (values.next(), values.next()) {
            (Some(value), None) => value.to_str().ok().and_then(parse),
            (_, _) => None,
        })
    }

    /// The span of a call, if it shall have one.
    pub(crate) fn begin(&self, parent: &Parent, received: &Received) -> Option<Box<Recording>> {
        let making = self.0.as_ref()?;
        let trace_id = match &parent.0 {
            Some(parent) if parent.is_sampled() => parent.trace_id(),
            Some(_) => return None,
            None => making.new_trace()?,
        };
        let parent_span_id = parent.0.as_ref().map_or(SpanId::INVALID, SpanContext::span_id);
        let now = Clock::wall();
        let span = SpanData {
            span_context: SpanContext::new(
                trace_id,
                making.ids.new_span_id(),
                TraceFlags::SAMPLED,
                false,
                TraceState::default(),
            ),
            parent_span_id,
            parent_span_is_remote: parent.0.is_some(),
            span_kind: SpanKind::Server,
            name: name(&received.step).into(),
            start_time: now,
            end_time: now,
            attributes: asked(received),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: making.scope.clone(),
        };
        Some(Box::new(Recording { span: Some(span), making: Arc::clone(making) }))
    }
}

// === impl Making ===

impl Making {
    /// The id of a new trace, if one shall begin.
    fn new_trace(&self) -> Option<TraceId> {
        let id = self.ids.new_trace_id();
        let sampled = self.sampler.should_sample(None, id, "", &SpanKind::Server, &[], &[]);
        (sampled.decision == SamplingDecision::RecordAndSample).then_some(id)
    }
}

// === impl Recording ===

impl Recording {
    /// The call was answered, or failed.
    pub(crate) fn end(mut self: Box<Self>, answered: Result<(&Answer, Mode, PolicyVersion), &tonic::Status>) {
        let Some(span) = &mut self.span else { return };
        let code = match answered {
            Ok((answer, mode, version)) => {
                span.attributes.push(KeyValue::new("budgetd.mode", mode.name()));
                span.attributes.push(KeyValue::new("budgetd.policy_version", version.number));
                span.attributes.extend(told(answer));
                if matches!(answer, Answer::Invalid(_)) { Code::InvalidArgument } else { Code::Ok }
            }
            Err(status) => {
                span.status = Status::error(status.message().to_owned());
                status.code()
            }
        };
        self.send(code);
    }

    fn send(&mut self, code: Code) {
        let Some(mut span) = self.span.take() else { return };
        span.attributes.push(KeyValue::new("rpc.grpc.status_code", i64::from(i32::from(code))));
        span.end_time = Clock::wall();
        if self.making.queue.try_send(span).is_err() {
            self.making.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.send(Code::Cancelled);
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Recording").field(&self.span).finish()
    }
}

/// A `traceparent` as W3C Trace Context has it.
fn parse(text: &str) -> Option<SpanContext> {
    if text.len() > TRACEPARENT_BYTES_MAX {
        return None;
    }
    let mut parts = text.splitn(5, '-');
    let mut hex = |digits: usize| {
        let is_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        parts.next().filter(|part| part.len() == digits && is_hex(part))
    };
    let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    // Later versions may say more after these.
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let context = SpanContext::new(trace, span, flags, true, TraceState::default());
    context.is_valid().then_some(context)
}

const fn name(step: &Step) -> &'static str {
    match step {
        Step::Reserve(_) => "retrybudget.v1.RetryBudget/Reserve",
        Step::Release(_) => "retrybudget.v1.RetryBudget/Release",
        Step::Extend(_) => "retrybudget.v1.RetryBudget/Extend",
    }
}

/// What a call asks.
fn asked(received: &Received) -> Vec<KeyValue> {
    let method = |name: &'static str, reservation: ReservationId| {
        vec![
            KeyValue::new("rpc.system", "grpc"),
            KeyValue::new("rpc.service", "retrybudget.v1.RetryBudget"),
            KeyValue::new("rpc.method", name),
            KeyValue::new("budgetd.dependency", received.dependency.as_str().to_owned()),
            // In hex, as the command line shows it.
            KeyValue::new("budgetd.reservation_id", format!("{reservation:?}")),
        ]
    };
    match &received.step {
        Step::Reserve(ask) => {
            let mut asked = method("Reserve", ask.id);
            asked.push(KeyValue::new("budgetd.attempt", i64::from(ask.attempt.number)));
            asked.push(KeyValue::new("budgetd.priority", ask.priority.name()));
            push(&mut asked, "budgetd.cause", ask.attempt.cause.map(|cause| cause.name()));
            push(&mut asked, "budgetd.operation_id", ask.operation.as_ref().map(|own| own.id.as_str().to_owned()));
            push(&mut asked, "budgetd.max_wait_ms", (ask.max_wait_ms > 0).then_some(ask.max_wait_ms));
            push(&mut asked, "budgetd.time_left_ms", ask.time_left_ms);
            asked
        }
        Step::Release(release) => {
            let mut asked = method("Release", release.id);
            let (outcome, terminal) = match &release.used {
                Use::NotSent => ("not_sent", None),
                Use::Sent(sent) => (sent.outcome.name(), sent.terminal),
            };
            asked.push(KeyValue::new("budgetd.outcome", outcome));
            push(&mut asked, "budgetd.terminal_state", terminal.map(|state| state.name()));
            push(&mut asked, "budgetd.operation_id", release.operation.as_ref().map(|id| id.as_str().to_owned()));
            asked
        }
        Step::Extend(extend) => method("Extend", extend.id),
    }
}

/// What a call is answered.
fn told(answer: &Answer) -> Vec<KeyValue> {
    let mut told = Vec::with_capacity(4);
    let mut decision = |decision: &'static str| told.push(KeyValue::new("budgetd.decision", decision));
    match answer {
        Answer::Admitted(admitted) => {
            decision(match admitted.would_be_denied {
                _ if admitted.replayed => "replayed",
                None => "admitted",
                Some(_) => "would_be_denied",
            });
            push(&mut told, "budgetd.reason", admitted.would_be_denied.map(|reason| reason.name()));
            push(&mut told, "budgetd.wait_ms", (admitted.start_after_ms > 0).then_some(admitted.start_after_ms));
            told.push(KeyValue::new("budgetd.attempts_left", admitted.attempts_left));
        }
        Answer::Denied(denied) => {
            decision("denied");
            told.push(KeyValue::new("budgetd.reason", denied.reason.name()));
            push(&mut told, "budgetd.wait_ms", denied.retry_after_ms);
        }
        Answer::Released(result) => told.push(KeyValue::new("budgetd.result", result.name())),
        Answer::Extended(result) => told.push(KeyValue::new(
            "budgetd.result",
            match result {
                ExtendResult::Extended(_) => "extended",
                ExtendResult::AlreadyReleased => "already_released",
                ExtendResult::Expired => "expired",
                ExtendResult::Unknown => "unknown",
            },
        )),
        Answer::Invalid(why) => told.push(KeyValue::new("budgetd.invalid", why.to_string())),
    }
    told
}

fn push(attributes: &mut Vec<KeyValue>, name: &'static str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        attributes.push(KeyValue::new(name, value));
    }
}
