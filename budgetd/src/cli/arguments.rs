//! Arguments that are more than text: durations, ids, costs, names of enum values.

use std::{env, fs, time::Duration};

use budget::{
    ids::{Fingerprint, ReservationId},
    lease::HolderId,
    units::{parse_decimal_ppm, parse_duration_ms},
};
use budget_client::By;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// Who changes something, and why.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Author {
    /// Who you are, for log and history, at most 256 bytes [default: user@host]
    #[arg(long, value_name = "TEXT")]
    who: Option<String>,
    /// Your reason, for log and history, at most 256 bytes.
    #[arg(long, value_name = "TEXT", default_value = "")]
    why: String,
}

/// `unit=amount`, the amount in millionths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CostArgument {
    pub(super) unit: String,
    pub(super) amount_micros: i64,
}

// === impl Author ===

impl Author {
    pub(super) fn by(&self) -> By {
        By { who: self.who.clone().unwrap_or_else(user_at_host), why: self.why.clone() }
    }
}

/// As far as the system says.
fn user_at_host() -> String {
    let user = ["USER", "LOGNAME"].into_iter().find_map(|name| env::var(name).ok().filter(|user| !user.is_empty()));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| fs::read_to_string("/etc/hostname"));
    let host = host.map(|host| host.trim().to_owned()).unwrap_or_default();
    let user = user.unwrap_or_else(|| "unknown".to_owned());
    let who: String = if host.is_empty() { user } else { format!("{user}@{host}") };
    // Neither name is ours to bound.
    who.chars().take(64).collect()
}

/// `200ms`, `60s`, `10m`, `2h`, `1d` in milliseconds.
pub(super) fn duration_ms(text: &str) -> Result<i64, String> {
    Ok(parse_duration_ms(text)?)
}

/// The same, above zero.
pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration_ms(text)? {
        0 => Err("must be above 0".to_owned()),
        ms => Ok(Duration::from_millis(ms.unsigned_abs())),
    }
}

/// 32 hexadecimal digits.
pub(super) fn reservation_id(text: &str) -> Result<ReservationId, String> {
    let rule = "must be 32 hexadecimal digits";
    ReservationId::from_slice(&hex(text).ok_or(rule)?).map_err(|_| rule.to_owned())
}

/// The name of a holder.
pub(super) fn holder_id(text: &str) -> Result<HolderId, String> {
    HolderId::new(text).map_err(|rule| rule.to_string())
}

/// 32 to 64 hexadecimal digits.
pub(super) fn fingerprint(text: &str) -> Result<Fingerprint, String> {
    let rule = "must be 32 to 64 hexadecimal digits, an even number of them";
    Fingerprint::from_slice(&hex(text).ok_or(rule)?).map_err(|_| rule.to_owned())
}

/// `input_tokens=1200` or `usd=0.015`; the last `=` counts, since a unit's name may have some.
pub(super) fn cost(text: &str) -> Result<CostArgument, String> {
    let (unit, amount) = text.rsplit_once('=').ok_or("must look like unit=amount")?;
    let amount_micros = parse_decimal_ppm(amount).map_err(|rule| format!("the amount {rule}"))?;
    Ok(CostArgument { unit: unit.to_owned(), amount_micros })
}

/// One of the names of an enum's values.
pub(super) fn named<E: Copy + Send + Sync + 'static, const N: usize>(
    all: [E; N],
    name: fn(E) -> &'static str,
) -> impl TypedValueParser<Value = E> {
    PossibleValuesParser::new(all.map(name)).try_map(move |given| {
        all.into_iter().find(|value| name(*value) == given).ok_or("must be one of the values listed in --help")
    })
}

fn hex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? * 16 + digit(*low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}
