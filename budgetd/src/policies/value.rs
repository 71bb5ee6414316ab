//! How the values of fields are written in TOML: read by the form of the field, and printed back.

use budget::{
    policy::{CurveStep, FallbackOriginals, Form, Value},
    units::{Decimal, InvalidNumber, PPM, Rate, format_duration_ms, parse_decimal_ppm, parse_duration_ms},
};
use toml::de::{DeFloat, DeInteger};

use super::text::{Field, InvalidText, Quoted};

/// Lifts an inherited limit.
const UNLIMITED: &str = "unlimited";
const CURVE_FORM: &str = "each step must look like \"100% 20s\": part of the share, for how long";
const ORIGINALS_FORM: &str = "must be \"deny\", \"allow\", a rate such as \"5/s\", or a part such as \"10%\"";

/// Reads what a field holds. A number beyond 64 bits becomes the nearest that fits: the field's own range refuses it.
pub(super) fn read(field: &Field<'_>, form: &Form) -> Result<Value, InvalidText> {
    let text = field.value().as_str();
    let value = match form {
        Form::OrUnlimited(_) if text == Some(UNLIMITED) => Ok(Value::Unlimited),
        Form::OrUnlimited(form) => return read(field, form),
        Form::Word(words) => {
            words.iter().find(|word| text == Some(**word)).map(|word| Value::Word(word)).ok_or_else(|| {
                let words: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
                format!("must be {}", words.join(" or "))
            })
        }
        Form::Flag => field.value().as_bool().map(Value::Flag).ok_or_else(|| "must be true or false".to_owned()),
        Form::Whole(..) => {
            let integer = field.value().as_integer().ok_or_else(|| "must be a whole number".to_owned());
            integer.map(|integer| Value::Number(saturated(integer)))
        }
        Form::Decimal(..) => match (field.value().as_integer(), field.value().as_float()) {
            (Some(integer), _) => Ok(Value::Number(saturated(integer).saturating_mul(PPM))),
            (None, Some(float)) => decimal_ppm(float).map(Value::Number).map_err(String::from),
            (None, None) => Err("must be a number".to_owned()),
        },
        Form::Duration(..) => {
            let ms = text.ok_or(InvalidNumber::DurationForm).and_then(parse_duration_ms);
            ms.map(Value::Number).map_err(String::from)
        }
        Form::Rate => text.ok_or(InvalidNumber::RateForm).and_then(Rate::parse).map(Value::Rate).map_err(String::from),
        Form::Curve => {
            let steps: Option<Vec<_>> = field.texts()?.into_iter().map(curve_step).collect();
            steps.map(Value::Curve).ok_or_else(|| CURVE_FORM.to_owned())
        }
        Form::Originals => text.and_then(originals).map(Value::Originals).ok_or_else(|| ORIGINALS_FORM.to_owned()),
    };
    value.map_err(|rule| field.refuse(rule))
}

/// A value as it could be written.
pub(super) fn written(form: &Form, value: &Value) -> String {
    let quoted = |text: &str| Quoted(text).to_string();
    match value {
        Value::Word(word) => quoted(word),
        Value::Flag(flag) => flag.to_string(),
        Value::Number(number) => match form {
            Form::Decimal(..) => Decimal(*number).to_string(),
            Form::Duration(..) => quoted(&format_duration_ms(*number)),
            Form::OrUnlimited(form) => written(form, value),
            Form::Whole(..) | Form::Word(_) | Form::Flag | Form::Rate | Form::Curve | Form::Originals => {
                number.to_string()
            }
        },
        Value::Rate(rate) => quoted(&rate.to_string()),
        Value::Curve(steps) => {
            let steps = steps.iter().map(|CurveStep { part_ppm, duration_ms }| {
                quoted(&format!("{} {}", percent(*part_ppm), format_duration_ms(*duration_ms)))
            });
            format!("[{}]", steps.collect::<Vec<_>>().join(", "))
        }
        Value::Originals(FallbackOriginals::Deny) => quoted("deny"),
        Value::Originals(FallbackOriginals::Allow) => quoted("allow"),
        Value::Originals(FallbackOriginals::Rate(rate)) => quoted(&rate.to_string()),
        Value::Originals(FallbackOriginals::Part(ppm)) => quoted(&percent(*ppm)),
        Value::Unlimited => quoted(UNLIMITED),
    }
}

fn percent(ppm: i64) -> String {
    format!("{}%", Decimal(ppm.saturating_mul(100)))
}

/// `12.5%` in parts per million.
fn percent_ppm(text: &str) -> Option<i64> {
    let hundredfold = parse_decimal_ppm(text.strip_suffix('%')?).ok()?;
    (hundredfold % 100 == 0).then_some(hundredfold / 100)
}

fn curve_step(text: &str) -> Option<CurveStep> {
    let (part, duration) = text.split_once(' ')?;
    Some(CurveStep { part_ppm: percent_ppm(part)?, duration_ms: parse_duration_ms(duration).ok()? })
}

fn originals(text: &str) -> Option<FallbackOriginals> {
    match text {
        "deny" => Some(FallbackOriginals::Deny),
        "allow" => Some(FallbackOriginals::Allow),
        part if part.ends_with('%') => percent_ppm(part).map(FallbackOriginals::Part),
        rate => Rate::parse(rate).ok().map(FallbackOriginals::Rate),
    }
}

fn saturated(integer: &DeInteger<'_>) -> i64 {
    let (text, radix) = (integer.as_str(), integer.radix());
    i64::from_str_radix(text, radix).unwrap_or(if text.starts_with('-') { i64::MIN } else { i64::MAX })
}

/// The decimal text decides, not the double nearest to it; only an exponent goes through one, whose shortest text is
/// then taken. A negative number keeps its sign, so that the field's own range refuses it.
fn decimal_ppm(float: &DeFloat<'_>) -> Result<i64, InvalidNumber> {
    let text = float.as_str();
    let (sign, magnitude) = match text.strip_prefix('-') {
        Some(magnitude) => (-1, magnitude),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let expanded;
    let magnitude = if magnitude.contains(['e', 'E']) {
        let double: f64 = magnitude.parse().map_err(|_| InvalidNumber::DecimalForm)?;
        expanded = double.to_string();
        expanded.as_str()
    } else {
        magnitude
    };
    let magnitude = match magnitude.split_once('.') {
        Some((whole, part)) if part.bytes().all(|digit| digit == b'0') => whole,
        Some(_) => magnitude.trim_end_matches('0'),
        None => magnitude,
    };
    Ok(sign * parse_decimal_ppm(magnitude)?)
}
