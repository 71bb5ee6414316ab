//! Every field of a policy, declared once: what it is called in a file, how it is written, what is allowed, what it means,
//! and its place in a [`Spec`]. Reading, judging, printing, comparing and the reference follow [`FIELDS`].

use super::{
    ATTEMPTS_MAX, CurveStep, EarnOn, FallbackOriginals, FallbackRetries,
    Form::{self, Curve, Decimal, Duration, Flag, OrUnlimited, Originals, Rate, Whole, Word},
    IN_FLIGHT_MAX, InvalidPolicy, Lease, Limit, MAX_WAIT_MS_MAX, Mode, PERMIT_TTL_MS_MAX, RATIO_PPM_MAX,
    RETRY_COST_TOKENS_MAX, UnitLimit, Value, judge,
    value::Place,
};
use crate::{
    decision::{Cause, Priority},
    units::{self, BURST_MICROS_MAX, MICROS_PER_TOKEN, PPM},
};

/// The policy of one dependency before validation, every field with its default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Whether refusals bite.
    pub mode: Mode,
    /// Limit of all attempts; none means unlimited.
    pub admission: Option<Limit>,
    /// Most permits at once; none means [`IN_FLIGHT_MAX`].
    pub max_in_flight: Option<u32>,
    /// When a permit ends by itself.
    pub permit_ttl_ms: i64,
    /// How far admission may be booked ahead.
    pub max_wait_ms: i64,
    /// Retry tokens per original (or success), parts per million.
    pub ratio_ppm: i64,
    /// Retry tokens per time for the whole fleet, whatever the traffic.
    pub floor: units::Rate,
    /// Most retry tokens held.
    pub retry_burst_tokens: i64,
    /// When the ratio is deposited.
    pub earn_on: EarnOn,
    /// Retry tokens (micro) one retry costs, by [`Cause`](crate::decision::Cause).
    pub retry_cost_micros: [i64; 5],
    /// Attempts of one operation, the first included.
    pub max_attempts: u32,
    /// How long a tracked operation is remembered after its time.
    pub retention_ms: i64,
    /// Part of each bucket a class may drain, by [`Priority`](crate::decision::Priority), parts per million.
    pub priority_ppm: [i64; 3],
    /// Further units.
    pub units: Vec<UnitLimit>,
    /// Leases.
    pub lease: Lease,
    /// Originals without lease and store; none means 10%, or allow where admission is unlimited.
    pub fallback_originals: Option<FallbackOriginals>,
    /// Retries without lease and store.
    pub fallback_retries: FallbackRetries,
}

/// One field. Its row in [`FIELDS`] is all that files, the admin API, the command line and the reference know of it.
#[derive(Debug)]
pub struct Field {
    /// Table and key; `UNIT` stands for a name.
    pub key: &'static str,
    /// How it is written, and its range.
    pub form: Form,
    /// As it would be written; empty where it depends on other fields.
    pub default: &'static str,
    /// In words, what may be written.
    pub allowed: &'static str,
    /// In words, what it does.
    pub meaning: &'static str,
    /// Values that tests expect to be accepted, as they would be written.
    pub accepted: &'static [&'static str],
    /// Values that tests expect to be refused.
    pub refused: &'static [&'static str],
    /// It may be set in `[defaults]` only.
    pub only_in_defaults: bool,
    get: fn(&Spec) -> Option<Value>,
    set: fn(&mut Spec, &Value),
    /// What must hold beside its range, together with the fields above it in [`FIELDS`].
    rule: fn(&Spec) -> Result<(), InvalidPolicy>,
}

/// A field that has no place of its own in a [`Spec`].
const APART: Field = Field {
    key: "",
    form: Flag,
    default: "",
    allowed: "",
    meaning: "",
    accepted: &[],
    refused: &[],
    only_in_defaults: false,
    get: |_| None,
    set: |_, _| {},
    rule: |_| Ok(()),
};

/// A field with a place of its own in a [`Spec`].
macro_rules! at {
    ($($place:tt)+) => {
        Field { get: |spec| Some(spec.$($place)+.value()), set: |spec, value| spec.$($place)+.put(value), ..APART }
    };
}

pub(super) const BURST: Form = Whole(1, BURST_TOKENS_MAX);
const BURST_TOKENS_MAX: i64 = BURST_MICROS_MAX.div_euclid(MICROS_PER_TOKEN);
const RETRY_COST: Form = Decimal(PPM, RETRY_COST_TOKENS_MAX * PPM);

/// All fields, in the order of the reference, in which they are also judged.
pub static FIELDS: &[Field] = &[
    Field {
        key: "mode",
        form: Word(Mode::WORDS),
        default: "\"enforce\"",
        allowed: "`\"enforce\"`, `\"shadow\"`",
        meaning: "In shadow mode a would-be refusal is admitted, counted, and charged nothing, also while the store is away.",
        accepted: &["\"shadow\""],
        refused: &["\"off\"", "true"],
        ..at!(mode)
    },
    Field {
        key: "unknown_dependencies",
        form: Word(&["defaults", "refuse"]),
        default: "\"defaults\"",
        allowed: "`\"defaults\"`, `\"refuse\"`",
        meaning: "Only in `[defaults]`: whether a name without a table runs under the defaults or is answered NOT_FOUND.",
        accepted: &["\"refuse\""],
        refused: &["\"deny\""],
        only_in_defaults: true,
        ..APART
    },
    Field {
        key: "admission.rate",
        form: OrUnlimited(&Rate),
        default: "\"unlimited\"",
        allowed: "a rate above 0, `\"unlimited\"`",
        meaning: "Attempts admitted, originals and retries.",
        accepted: &["\"500/s\"", "\"2M/min\""],
        refused: &["\"0/s\"", "500"],
        get: |spec| Some(spec.admission.map_or(Value::Unlimited, |limit| Value::Rate(limit.rate))),
        rule: judge::admission_rate,
        ..APART
    },
    Field {
        key: "admission.burst",
        form: BURST,
        default: "",
        allowed: "1 to 10^9",
        meaning: "Most tokens saved up; needs a rate. Not set: what one second brings, at least 1.",
        accepted: &["1", "1_000_000_000"],
        refused: &["0", "1_000_000_001", "\"10\""],
        get: |spec| spec.admission.map(|limit| Value::Number(limit.burst_tokens)),
        rule: judge::admission_exact,
        ..APART
    },
    Field {
        key: "admission.max_in_flight",
        form: OrUnlimited(&Whole(1, count(IN_FLIGHT_MAX))),
        default: "\"unlimited\"",
        allowed: "1 to 1,000,000, `\"unlimited\"`",
        meaning: "Attempts under way at once.",
        accepted: &["1", "1_000_000"],
        refused: &["0", "1_000_001"],
        ..at!(max_in_flight)
    },
    Field {
        key: "admission.permit_ttl",
        form: Duration(1, PERMIT_TTL_MS_MAX),
        default: "\"60s\"",
        allowed: "1 ms to 1 h, not above `operation.retention`",
        meaning: "When an attempt that is never released stops counting; a caller may ask for another time, and extend it.",
        accepted: &["\"1ms\"", "\"1h\""],
        refused: &["\"0s\"", "\"61m\"", "60"],
        ..at!(permit_ttl_ms)
    },
    Field {
        key: "admission.max_wait",
        form: Duration(0, MAX_WAIT_MS_MAX),
        default: "\"0s\"",
        allowed: "0 to 1 h",
        meaning: "How far ahead a start may be booked, for callers that say they can wait.",
        accepted: &["\"0s\"", "\"1h\""],
        refused: &["\"61m\""],
        ..at!(max_wait_ms)
    },
    Field {
        key: "retry.ratio",
        form: Decimal(0, RATIO_PPM_MAX),
        default: "0.1",
        allowed: "0 to 100, six decimals",
        meaning: "Retry tokens that each admitted original earns.",
        accepted: &["0", "0.000001", "100"],
        refused: &["100.1", "-0.1", "0.0000001"],
        ..at!(ratio_ppm)
    },
    Field {
        key: "retry.floor",
        form: Rate,
        default: "\"1/s\"",
        allowed: "a rate, also `\"0/s\"`",
        meaning: "Retry tokens for the whole fleet, whatever the traffic.",
        accepted: &["\"0/s\"", "\"100/h\""],
        refused: &["\"1\"", "1"],
        ..at!(floor)
    },
    Field {
        key: "retry.burst",
        form: Whole(0, BURST_TOKENS_MAX),
        default: "10",
        allowed: "0 to 10^9",
        meaning: "Most retry tokens saved up.",
        accepted: &["0", "1_000_000"],
        refused: &["-1", "1_000_000_001"],
        rule: judge::retry_exact,
        ..at!(retry_burst_tokens)
    },
    Field {
        key: "retry.earn_on",
        form: Word(EarnOn::WORDS),
        default: "\"admitted\"",
        allowed: "`\"admitted\"`, `\"success\"`",
        meaning: "Whether an original earns when it is admitted, or at its operation's first success.",
        accepted: &["\"success\""],
        refused: &["\"failure\""],
        ..at!(earn_on)
    },
    Field {
        key: "retry_cost.transient",
        form: RETRY_COST,
        default: "1.0",
        allowed: "1 to 1000",
        meaning: "Tokens a retry costs after a failure that may pass.",
        accepted: &["1.5", "1000"],
        refused: &["0.5", "1001"],
        ..at!(retry_cost_micros[Cause::Transient.index()])
    },
    Field {
        key: "retry_cost.throttled",
        form: RETRY_COST,
        default: "1.0",
        allowed: "1 to 1000",
        meaning: "… after a refusal for load.",
        accepted: &["1.5", "1000"],
        refused: &["0.5", "1001"],
        ..at!(retry_cost_micros[Cause::Throttled.index()])
    },
    Field {
        key: "retry_cost.timeout",
        form: RETRY_COST,
        default: "1.0",
        allowed: "1 to 1000",
        meaning: "… after no answer in time: the first attempt may still be running.",
        accepted: &["1.5", "1000"],
        refused: &["0.5", "1001"],
        ..at!(retry_cost_micros[Cause::Timeout.index()])
    },
    Field {
        key: "retry_cost.hedge",
        form: RETRY_COST,
        default: "1.0",
        allowed: "1 to 1000",
        meaning: "… sent beside an attempt that is slow.",
        accepted: &["1.5", "1000"],
        refused: &["0.5", "1001"],
        ..at!(retry_cost_micros[Cause::Hedge.index()])
    },
    Field {
        key: "retry_cost.failover",
        form: RETRY_COST,
        default: "1.0",
        allowed: "1 to 1000",
        meaning: "… at another dependency after the first has failed; charged there.",
        accepted: &["1.5", "1000"],
        refused: &["0.5", "1001"],
        ..at!(retry_cost_micros[Cause::Failover.index()])
    },
    Field {
        key: "operation.max_attempts",
        form: Whole(1, count(ATTEMPTS_MAX)),
        default: "3",
        allowed: "1 to 100",
        meaning: "Attempts of one operation, the first included.",
        accepted: &["1", "100"],
        refused: &["0", "101"],
        ..at!(max_attempts)
    },
    Field {
        key: "operation.retention",
        form: Duration(1_000, 30 * 86_400_000),
        default: "\"10m\"",
        allowed: "1 s to 30 d, not below `permit_ttl`",
        meaning: "How long a tracked operation is remembered after its time.",
        accepted: &["\"1m\"", "\"30d\""],
        refused: &["\"999ms\"", "\"31d\"", "\"59s\""],
        rule: judge::retention,
        ..at!(retention_ms)
    },
    Field {
        key: "priority.sheddable",
        form: Decimal(0, PPM),
        default: "1.0",
        allowed: "0 to 1, never falling from one class to the next",
        meaning: "Share of each bucket and of the permits that the class may drain; one token or permit is always within reach.",
        accepted: &["0", "0.5"],
        refused: &["1.1", "-0.1"],
        ..at!(priority_ppm[Priority::Sheddable.index()])
    },
    Field {
        key: "priority.default",
        form: Decimal(0, PPM),
        default: "1.0",
        allowed: "0 to 1, never falling from one class to the next",
        meaning: "… for callers that name no class.",
        accepted: &["1.0"],
        refused: &["0.5", "1.1"],
        ..at!(priority_ppm[Priority::Default.index()])
    },
    Field {
        key: "priority.critical",
        form: Decimal(0, PPM),
        default: "1.0",
        allowed: "0 to 1, never falling from one class to the next",
        meaning: "… for what must go on.",
        accepted: &["1"],
        refused: &["0.9", "1.1"],
        rule: judge::priorities,
        ..at!(priority_ppm[Priority::Critical.index()])
    },
    Field {
        key: "cost.UNIT.rate",
        form: OrUnlimited(&Rate),
        default: "",
        allowed: "a rate above 0, `\"unlimited\"`; required in a new unit",
        meaning: "A further unit, such as `input_tokens`; at most 8, names of 1 to 64 bytes. `\"unlimited\"` lifts an inherited one.",
        accepted: &["\"2M/min\"", "\"unlimited\""],
        refused: &["\"0/s\""],
        ..APART
    },
    Field {
        key: "cost.UNIT.burst",
        form: BURST,
        default: "",
        allowed: "1 to 10^9",
        meaning: "Most of it saved up, and the most one attempt may cost. Not set: what one second brings, at least 1.",
        accepted: &[],
        refused: &["0", "10"],
        rule: judge::units,
        ..APART
    },
    Field {
        key: "lease.enabled",
        form: Flag,
        default: "false",
        allowed: "`true`, `false`",
        meaning: "Whether parts of the quotas may be leased to holders, which decide by themselves; such a dependency starts empty.",
        accepted: &["true"],
        refused: &["\"yes\"", "1"],
        ..at!(lease.enabled)
    },
    Field {
        key: "lease.part",
        form: Decimal(1, PPM),
        default: "0.8",
        allowed: "above 0, to 1",
        meaning: "At most this part of each quota is leased.",
        accepted: &["0.000001", "1"],
        refused: &["0", "1.1"],
        ..at!(lease.part_ppm)
    },
    Field {
        key: "lease.curve",
        form: Curve,
        default: "[\"100% 20s\", \"50% 100s\"]",
        allowed: "1 to 8 steps, never rising, 1 h in all, and fitting `[timing]`",
        meaning: "What a lease carries, and for how long, if it is not renewed.",
        accepted: &["[\"100% 60s\"]", "[\"100% 20s\", \"50% 100s\", \"10% 10m\"]"],
        refused: &["[]", "[\"50% 20s\", \"100% 20s\"]", "[\"100% 2h\"]", "[\"100% 1s\"]", "[\"100%\"]"],
        rule: judge::lease,
        ..at!(lease.curve)
    },
    Field {
        key: "fallback.originals",
        form: Originals,
        default: "",
        allowed: "`\"deny\"`, `\"allow\"`, a rate, a part",
        meaning: "Without the store: originals for each process (`\"5/s\"`), or a part of `admission.rate` shared by all (`\"10%\"`). Not set: `\"10%\"`, and `\"allow\"` without admission limit.",
        accepted: &["\"deny\"", "\"allow\"", "\"5/s\""],
        refused: &["\"ten\"", "5"],
        get: |spec| Some(Value::Originals(spec.fallback_originals())),
        rule: judge::fallback,
        ..at!(fallback_originals)
    },
    Field {
        key: "fallback.retries",
        form: Word(FallbackRetries::WORDS),
        default: "\"earned\"",
        allowed: "`\"earned\"`, `\"deny\"`",
        meaning: "Without the store: retries earned by the originals admitted meanwhile, at most one token saved up.",
        accepted: &["\"deny\""],
        refused: &["\"allow\""],
        ..at!(fallback_retries)
    },
];

#[expect(clippy::as_conversions, reason = "lossless, and `From` is not const")]
const fn count(count: u32) -> i64 {
    count as i64
}

// === impl Spec ===

impl Default for Spec {
    fn default() -> Self {
        Self {
            mode: Mode::Enforce,
            admission: None,
            max_in_flight: None,
            permit_ttl_ms: 60_000,
            max_wait_ms: 0,
            ratio_ppm: PPM.div_euclid(10),
            floor: units::Rate::parse("1/s").unwrap_or(units::Rate::ZERO),
            retry_burst_tokens: 10,
            earn_on: EarnOn::Admitted,
            retry_cost_micros: [MICROS_PER_TOKEN; 5],
            max_attempts: 3,
            retention_ms: 600_000,
            priority_ppm: [PPM; 3],
            units: Vec::new(),
            lease: Lease::default(),
            fallback_originals: None,
            fallback_retries: FallbackRetries::Earned,
        }
    }
}

impl Spec {
    /// The rule for originals without store, the default filled in.
    pub fn fallback_originals(&self) -> FallbackOriginals {
        self.fallback_originals.unwrap_or(match self.admission {
            Some(_) => FallbackOriginals::Part(PPM.div_euclid(10)),
            None => FallbackOriginals::Allow,
        })
    }
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            enabled: false,
            part_ppm: 800_000,
            curve: vec![
                CurveStep { part_ppm: PPM, duration_ms: 20_000 },
                CurveStep { part_ppm: 500_000, duration_ms: 100_000 },
            ],
        }
    }
}

// === impl Field ===

impl Field {
    /// The table it stands in, empty at the top, and its name in there.
    #[must_use]
    pub fn path(&self) -> (&'static str, &'static str) {
        self.key.rsplit_once('.').unwrap_or(("", self.key))
    }

    /// Its value; none where the policy has no such limit, or where it is none of a [`Spec`]'s own.
    #[must_use]
    pub fn get(&self, spec: &Spec) -> Option<Value> {
        (self.get)(spec)
    }

    /// Takes over a value of this field's form. Of a limit, rate and burst are set together by whoever reads them.
    pub fn set(&self, spec: &mut Spec, value: &Value) {
        (self.set)(spec, value);
    }

    pub(super) fn judge(&self, spec: &Spec) -> Result<(), InvalidPolicy> {
        if let Some(Value::Number(number)) = self.get(spec) {
            self.form.judge(self.key, number)?;
        }
        (self.rule)(spec)
    }
}
