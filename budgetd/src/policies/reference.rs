//! Every field of a policy in words: what `budgetd policy fields` prints and `docs/policy-reference.md` is.
//!
//! Tests hold it to the code: no field is missing or unknown, each default is what is in force without it, and examples
//! within and beyond each range are accepted and refused.

/// One field, for people.
pub(super) struct Field {
    /// Table and key; UNIT stands for a name.
    pub(super) key: &'static str,
    /// As it would be written; empty where it depends on other fields.
    pub(super) default: &'static str,
    allowed: &'static str,
    meaning: &'static str,
    /// Values that are accepted, as they would be written.
    #[cfg(test)]
    pub(super) accepted: &'static [&'static str],
    /// Values that are refused.
    #[cfg(test)]
    pub(super) refused: &'static [&'static str],
}

pub(super) const FIELDS: &[Field] = &[
    Field {
        key: "mode",
        default: "\"enforce\"",
        allowed: "`\"enforce\"`, `\"shadow\"`",
        meaning: "In shadow mode a would-be refusal is admitted, counted, and charged nothing, also while the store is away.",
        #[cfg(test)]
        accepted: &["\"shadow\""],
        #[cfg(test)]
        refused: &["\"off\"", "true"],
    },
    Field {
        key: "unknown_dependencies",
        default: "\"defaults\"",
        allowed: "`\"defaults\"`, `\"refuse\"`",
        meaning: "Only in `[defaults]`: whether a name without a table runs under the defaults or is answered NOT_FOUND.",
        #[cfg(test)]
        accepted: &["\"refuse\""],
        #[cfg(test)]
        refused: &["\"deny\""],
    },
    Field {
        key: "admission.rate",
        default: "\"unlimited\"",
        allowed: "a rate above 0, `\"unlimited\"`",
        meaning: "Attempts admitted, originals and retries.",
        #[cfg(test)]
        accepted: &["\"500/s\"", "\"2M/min\""],
        #[cfg(test)]
        refused: &["\"0/s\"", "500"],
    },
    Field {
        key: "admission.burst",
        default: "",
        allowed: "1 to 10^9",
        meaning: "Most tokens saved up; needs a rate. Not set: what one second brings, at least 1.",
        #[cfg(test)]
        accepted: &["1", "1_000_000_000"],
        #[cfg(test)]
        refused: &["0", "1_000_000_001", "\"10\""],
    },
    Field {
        key: "admission.max_in_flight",
        default: "\"unlimited\"",
        allowed: "1 to 1,000,000, `\"unlimited\"`",
        meaning: "Attempts under way at once.",
        #[cfg(test)]
        accepted: &["1", "1_000_000"],
        #[cfg(test)]
        refused: &["0", "1_000_001"],
    },
    Field {
        key: "admission.permit_ttl",
        default: "\"60s\"",
        allowed: "1 ms to 1 h, not above `operation.retention`",
        meaning: "When an attempt that is never released stops counting; a caller may ask for another time, and extend it.",
        #[cfg(test)]
        accepted: &["\"1ms\"", "\"1h\""],
        #[cfg(test)]
        refused: &["\"0s\"", "\"61m\"", "60"],
    },
    Field {
        key: "admission.max_wait",
        default: "\"0s\"",
        allowed: "0 to 1 h",
        meaning: "How far ahead a start may be booked, for callers that say they can wait.",
        #[cfg(test)]
        accepted: &["\"0s\"", "\"1h\""],
        #[cfg(test)]
        refused: &["\"61m\""],
    },
    Field {
        key: "retry.ratio",
        default: "0.1",
        allowed: "0 to 100, six decimals",
        meaning: "Retry tokens that each admitted original earns.",
        #[cfg(test)]
        accepted: &["0", "0.000001", "100"],
        #[cfg(test)]
        refused: &["100.1", "-0.1", "0.0000001"],
    },
    Field {
        key: "retry.floor",
        default: "\"1/s\"",
        allowed: "a rate, also `\"0/s\"`",
        meaning: "Retry tokens for the whole fleet, whatever the traffic.",
        #[cfg(test)]
        accepted: &["\"0/s\"", "\"100/h\""],
        #[cfg(test)]
        refused: &["\"1\"", "1"],
    },
    Field {
        key: "retry.burst",
        default: "10",
        allowed: "0 to 10^9",
        meaning: "Most retry tokens saved up.",
        #[cfg(test)]
        accepted: &["0", "1_000_000"],
        #[cfg(test)]
        refused: &["-1", "1_000_000_001"],
    },
    Field {
        key: "retry.earn_on",
        default: "\"admitted\"",
        allowed: "`\"admitted\"`, `\"success\"`",
        meaning: "Whether an original earns when it is admitted, or at its operation's first success.",
        #[cfg(test)]
        accepted: &["\"success\""],
        #[cfg(test)]
        refused: &["\"failure\""],
    },
    Field {
        key: "retry_cost.transient",
        default: "1.0",
        allowed: "1 to 1000",
        meaning: "Tokens a retry costs after a failure that may pass.",
        #[cfg(test)]
        accepted: &["1.5", "1000"],
        #[cfg(test)]
        refused: &["0.5", "1001"],
    },
    Field {
        key: "retry_cost.throttled",
        default: "1.0",
        allowed: "1 to 1000",
        meaning: "… after a refusal for load.",
        #[cfg(test)]
        accepted: &["1.5", "1000"],
        #[cfg(test)]
        refused: &["0.5", "1001"],
    },
    Field {
        key: "retry_cost.timeout",
        default: "1.0",
        allowed: "1 to 1000",
        meaning: "… after no answer in time: the first attempt may still be running.",
        #[cfg(test)]
        accepted: &["1.5", "1000"],
        #[cfg(test)]
        refused: &["0.5", "1001"],
    },
    Field {
        key: "retry_cost.hedge",
        default: "1.0",
        allowed: "1 to 1000",
        meaning: "… sent beside an attempt that is slow.",
        #[cfg(test)]
        accepted: &["1.5", "1000"],
        #[cfg(test)]
        refused: &["0.5", "1001"],
    },
    Field {
        key: "retry_cost.failover",
        default: "1.0",
        allowed: "1 to 1000",
        meaning: "… at another dependency after the first has failed; charged there.",
        #[cfg(test)]
        accepted: &["1.5", "1000"],
        #[cfg(test)]
        refused: &["0.5", "1001"],
    },
    Field {
        key: "operation.max_attempts",
        default: "3",
        allowed: "1 to 100",
        meaning: "Attempts of one operation, the first included.",
        #[cfg(test)]
        accepted: &["1", "100"],
        #[cfg(test)]
        refused: &["0", "101"],
    },
    Field {
        key: "operation.retention",
        default: "\"10m\"",
        allowed: "1 s to 30 d, not below `permit_ttl`",
        meaning: "How long a tracked operation is remembered after its time.",
        #[cfg(test)]
        accepted: &["\"1m\"", "\"30d\""],
        #[cfg(test)]
        refused: &["\"999ms\"", "\"31d\"", "\"59s\""],
    },
    Field {
        key: "priority.sheddable",
        default: "1.0",
        allowed: "0 to 1, never falling from one class to the next",
        meaning: "Share of each bucket and of the permits that the class may drain; one token or permit is always within reach.",
        #[cfg(test)]
        accepted: &["0", "0.5"],
        #[cfg(test)]
        refused: &["1.1", "-0.1"],
    },
    Field {
        key: "priority.default",
        default: "1.0",
        allowed: "0 to 1, never falling from one class to the next",
        meaning: "… for callers that name no class.",
        #[cfg(test)]
        accepted: &["1.0"],
        #[cfg(test)]
        refused: &["0.5", "1.1"],
    },
    Field {
        key: "priority.critical",
        default: "1.0",
        allowed: "0 to 1, never falling from one class to the next",
        meaning: "… for what must go on.",
        #[cfg(test)]
        accepted: &["1"],
        #[cfg(test)]
        refused: &["0.9", "1.1"],
    },
    Field {
        key: "cost.UNIT.rate",
        default: "",
        allowed: "a rate above 0, `\"unlimited\"`; required in a new unit",
        meaning: "A further unit, such as `input_tokens`; at most 8, names of 1 to 64 bytes. `\"unlimited\"` lifts an inherited one.",
        #[cfg(test)]
        accepted: &["\"2M/min\"", "\"unlimited\""],
        #[cfg(test)]
        refused: &["\"0/s\""],
    },
    Field {
        key: "cost.UNIT.burst",
        default: "",
        allowed: "1 to 10^9",
        meaning: "Most of it saved up, and the most one attempt may cost. Not set: what one second brings, at least 1.",
        #[cfg(test)]
        accepted: &[],
        #[cfg(test)]
        refused: &["0", "10"],
    },
    Field {
        key: "lease.enabled",
        default: "false",
        allowed: "`true`, `false`",
        meaning: "Whether parts of the quotas may be leased to holders, which decide by themselves; such a dependency starts empty.",
        #[cfg(test)]
        accepted: &["true"],
        #[cfg(test)]
        refused: &["\"yes\"", "1"],
    },
    Field {
        key: "lease.part",
        default: "0.8",
        allowed: "above 0, to 1",
        meaning: "At most this part of each quota is leased.",
        #[cfg(test)]
        accepted: &["0.000001", "1"],
        #[cfg(test)]
        refused: &["0", "1.1"],
    },
    Field {
        key: "lease.curve",
        default: "[\"100% 20s\", \"50% 100s\"]",
        allowed: "1 to 8 steps, never rising, 1 h in all, and fitting `[timing]`",
        meaning: "What a lease carries, and for how long, if it is not renewed.",
        #[cfg(test)]
        accepted: &["[\"100% 60s\"]", "[\"100% 20s\", \"50% 100s\", \"10% 10m\"]"],
        #[cfg(test)]
        refused: &["[]", "[\"50% 20s\", \"100% 20s\"]", "[\"100% 2h\"]", "[\"100% 1s\"]", "[\"100%\"]"],
    },
    Field {
        key: "fallback.originals",
        default: "",
        allowed: "`\"deny\"`, `\"allow\"`, a rate, a part",
        meaning: "Without the store: originals for each process (`\"5/s\"`), or a part of `admission.rate` shared by all (`\"10%\"`). Not set: `\"10%\"`, and `\"allow\"` without admission limit.",
        #[cfg(test)]
        accepted: &["\"deny\"", "\"allow\"", "\"5/s\""],
        #[cfg(test)]
        refused: &["\"ten\"", "5"],
    },
    Field {
        key: "fallback.retries",
        default: "\"earned\"",
        allowed: "`\"earned\"`, `\"deny\"`",
        meaning: "Without the store: retries earned by the originals admitted meanwhile, at most one token saved up.",
        #[cfg(test)]
        accepted: &["\"deny\""],
        #[cfg(test)]
        refused: &["\"allow\""],
    },
];

const HEAD: &str = "# Policy reference

Printed by `budgetd policy fields`; a test holds this page and each default and range in it to the code.

A policy file has `[defaults]` and one table for each dependency, `[dependency.\"NAME\"]`. A name that ends in `*` stands for
all names that begin so and have no table of their own; the longest wins. A field that a table does not set comes from
`[defaults]`, field by field, and from the defaults below.

- **Rates** are written `\"500/s\"`, `\"270/min\"`, `\"100/h\"`, `\"1000/d\"`, with `k`, `M` or `G` after the number if you like,
  at most `1G` a period.
- **Durations** are written `\"200ms\"`, `\"60s\"`, `\"10m\"`, `\"2h\"`, `\"1d\"`.
- **Tokens** are whole numbers; `4_000_000` is the same as `4000000`.

A burst must not be too large for its rate to be computed exactly; the error says so. Unknown keys, values out of range and
anything written twice are errors that name line, key, value and rule.

| field | default | allowed | meaning |
|---|---|---|---|
";

/// The reference as Markdown.
#[must_use]
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    for Field { key, default, allowed, meaning, .. } in FIELDS {
        let default = if default.is_empty() { "–".to_owned() } else { format!("`{default}`") };
        text.push_str(&format!("| `{key}` | {default} | {allowed} | {meaning} |\n"));
    }
    text
}
