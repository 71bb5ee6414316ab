//! The stored form of rules and switches: canonical JSON, so that equal policies are equal text.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    SWITCHES_MAX,
    set::{PolicySet, judge_pattern},
    snapshot::Switches,
};

const FORMAT: u32 = 1;

/// A reader that does not know a field must not write the document back without it: unknown ones are refused.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    format: u32,
    retries_off: Vec<String>,
    rules: BTreeMap<String, String>,
}

pub(super) fn encode(set: &PolicySet, switches: &Switches) -> String {
    let retries_off = switches.iter().map(str::to_owned).collect();
    let body = Body { format: FORMAT, retries_off, rules: set.sources() };
    serde_json::to_string(&body).expect("strings and numbers become JSON")
}

/// `previous` spares reading rules that have not changed.
pub(super) fn decode(body: &str, previous: &PolicySet) -> Result<(PolicySet, Switches), String> {
    let body = Body::read(body)?;
    let set = PolicySet::of_rules(&body.rules, Some(previous)).map_err(|error| error.to_string())?;
    Ok((set, body.retries_off.into_iter().collect()))
}

/// The switches alone, for a body whose rules are about to be replaced.
pub(super) fn decode_switches(body: &str) -> Result<Switches, String> {
    Ok(Body::read(body)?.retries_off.into_iter().collect())
}

// === impl Body ===

impl Body {
    fn read(body: &str) -> Result<Self, String> {
        let body: Self = serde_json::from_str(body).map_err(|error| error.to_string())?;
        let targets = &body.retries_off;
        if body.format != FORMAT {
            return Err(format!("format is {}, must be {FORMAT}", body.format));
        }
        if targets.len() > SWITCHES_MAX {
            return Err(format!("retries_off has {} targets, must have at most {SWITCHES_MAX}", targets.len()));
        }
        for target in targets {
            judge_pattern(target).map_err(|error| format!("retries_off: {target:?} {error}"))?;
        }
        Ok(body)
    }
}
