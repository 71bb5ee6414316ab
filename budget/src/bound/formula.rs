//! Numbers as formulas show them: digits in groups of three, at most three decimals, rounded up.

use super::Most;
use crate::units::{Decimal, Rate, format_duration_ms};

/// `102,110`.
#[must_use]
pub fn count(count: i64) -> String {
    grouped(&count.to_string())
}

/// `102,110`, or `unbounded`.
#[must_use]
pub fn most(most: Most) -> String {
    match most {
        Most::Count(most) => count(most),
        Most::Unbounded => "unbounded".to_owned(),
    }
}

/// Tokens: `7.6`.
#[must_use]
pub fn tokens(micros: i64) -> String {
    let thousandths = micros.saturating_neg().div_euclid(1_000).saturating_neg();
    grouped(&Decimal(thousandths.saturating_mul(1_000)).to_string())
}

/// Micro-tokens per second: `4.927/s`.
#[must_use]
pub fn per_second(micros: i64) -> String {
    format!("{}/s", tokens(micros))
}

/// As the policy has it: `10,000/s`, `270/min`.
#[must_use]
pub fn rate(rate: Rate) -> String {
    grouped(&rate.to_string())
}

/// `10s`.
#[must_use]
pub fn duration(ms: i64) -> String {
    if ms == 0 { "0s".to_owned() } else { format_duration_ms(ms) }
}

/// Commas into the digits that `text` begins with.
fn grouped(text: &str) -> String {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (whole, rest) = text.split_at(digits);
    let mut shown = String::with_capacity(text.len().saturating_add(digits));
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && digits.saturating_sub(at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        for (number, shown) in
            [(0, "0"), (999, "999"), (1_000, "1,000"), (102_110, "102,110"), (1_234_567, "1,234,567")]
        {
            assert_eq!(count(number), shown);
        }
        assert_eq!(tokens(7_600_000), "7.6");
        assert_eq!(tokens(4_926_108), "4.927");
        assert_eq!(tokens(1), "0.001");
        assert_eq!(per_second(38_000_000_000), "38,000/s");
        assert_eq!(rate(Rate::parse("1500.25/min").unwrap()), "1,500.25/min");
        assert_eq!((duration(0).as_str(), duration(123_000).as_str()), ("0s", "123s"));
    }
}
