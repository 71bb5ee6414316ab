//! Integer units: micro-tokens, milliseconds, parts per million, and rates as reduced fractions.
//!
//! Amounts are `i64` micro-tokens (`_micros`), times `i64` milliseconds (`_ms`), ratios `i64` parts per million
//! (`_ppm`). Every intermediate result stays below 2^53, so that a second implementation that computes in doubles (Lua
//! inside Redis) gives the same integers. [`crate::policy`] refuses numbers for which that would not hold.

use std::fmt;

/// Micro-tokens in one token.
pub const MICROS_PER_TOKEN: i64 = 1_000_000;
/// Parts per million in one whole.
pub const PPM: i64 = 1_000_000;
/// The largest integer a double represents together with all below it.
pub const EXACT_MAX: i64 = (1 << 53) - 1;
/// The longest duration accepted anywhere: one year.
pub const DURATION_MS_MAX: i64 = 365 * 24 * 3600 * 1000;
/// Largest burst, in micro-tokens: 10^9 tokens.
pub const BURST_MICROS_MAX: i64 = 1_000_000_000 * MICROS_PER_TOKEN;

// The largest burst with as much debt stays exact for every rate whose denominator is at most 3: all whole-number rates
// per second or per minute.
const _: () = assert!(2 * BURST_MICROS_MAX * 3 < EXACT_MAX);

/// The time a rate is counted over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    /// Per second, `/s`.
    Second,
    /// Per minute, `/min`.
    Minute,
    /// Per hour, `/h`.
    Hour,
    /// Per day, `/d`.
    Day,
}

/// A rate such as `270/min`, exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count_micros: i64,
    period: Period,
}

/// Why a text is not a number of ours. The text itself is not repeated here: the caller knows field and value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNumber {
    /// Not of the form `<count>/<s|min|h|d>`.
    #[error("must look like \"500/s\", \"270/min\", \"100/h\" or \"2M/min\"")]
    RateForm,
    /// The count exceeds 10^9 tokens per period.
    #[error("must be at most 1G per period")]
    RateTooHigh,
    /// Not a plain decimal number.
    #[error("must be a plain decimal number with at most 6 decimals")]
    DecimalForm,
    /// Not a duration.
    #[error("must look like \"200ms\", \"60s\", \"10m\", \"2h\" or \"1d\", at most 365d")]
    DurationForm,
}

// === impl Period ===

impl Period {
    const fn ms(self) -> i64 {
        match self {
            Self::Second => 1_000,
            Self::Minute => 60_000,
            Self::Hour => 3_600_000,
            Self::Day => 86_400_000,
        }
    }

    const fn suffix(self) -> &'static str {
        match self {
            Self::Second => "s",
            Self::Minute => "min",
            Self::Hour => "h",
            Self::Day => "d",
        }
    }
}

// === impl Rate ===

impl Rate {
    /// Nothing per second.
    pub const ZERO: Self = Self { count_micros: 0, period: Period::Second };

    /// `tokens` per `period`.
    ///
    /// # Errors
    /// If the count is above 10^9.
    pub fn new(tokens: u32, period: Period) -> Result<Self, InvalidNumber> {
        Self::of_micros(i64::from(tokens).saturating_mul(MICROS_PER_TOKEN), period)
    }

    fn of_micros(count_micros: i64, period: Period) -> Result<Self, InvalidNumber> {
        if count_micros > BURST_MICROS_MAX {
            return Err(InvalidNumber::RateTooHigh);
        }
        Ok(Self { count_micros, period })
    }

    /// Parses `<count>[k|M|G]/<s|min|h|d>`; the count may have decimals.
    ///
    /// # Errors
    /// If the text has another form or the count is above 10^9.
    pub fn parse(text: &str) -> Result<Self, InvalidNumber> {
        let (count, period) = text.split_once('/').ok_or(InvalidNumber::RateForm)?;
        let period = match period.trim() {
            "s" => Period::Second,
            "min" => Period::Minute,
            "h" => Period::Hour,
            "d" => Period::Day,
            _ => return Err(InvalidNumber::RateForm),
        };
        let count = count.trim();
        let (digits, factor) = match count.as_bytes().last() {
            Some(b'k') => (count.trim_end_matches('k'), 1_000),
            Some(b'M') => (count.trim_end_matches('M'), 1_000_000),
            Some(b'G') => (count.trim_end_matches('G'), 1_000_000_000),
            _ => (count, 1),
        };
        if digits.len().saturating_add(1) < count.len() {
            return Err(InvalidNumber::RateForm);
        }
        let micros = parse_decimal_ppm(digits).map_err(|_| InvalidNumber::RateForm)?;
        Self::of_micros(micros.checked_mul(factor).ok_or(InvalidNumber::RateTooHigh)?, period)
    }

    /// Whether nothing is refilled.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.count_micros == 0
    }

    /// Micro-tokens per millisecond as a reduced fraction `(numerator, denominator)`; `(0, 1)` for zero.
    #[must_use]
    pub fn fraction(self) -> (i64, i64) {
        let divisor = gcd(self.count_micros, self.period.ms());
        (checked_div(self.count_micros, divisor), checked_div(self.period.ms(), divisor))
    }

    /// This rate times `part_ppm / 10^6`, divided among `sharers`, as `(numerator, denominator)` of micro-tokens per
    /// millisecond; rounded down to a numerator that keeps the denominator at the period.
    #[must_use]
    pub fn part_fraction(self, part_ppm: i64, sharers: i64) -> (i64, i64) {
        let share = i128::from(self.count_micros)
            .saturating_mul(i128::from(part_ppm))
            .checked_div(i128::from(PPM).saturating_mul(i128::from(sharers.max(1))))
            .unwrap_or(0);
        let count_micros = i64::try_from(share).unwrap_or(BURST_MICROS_MAX);
        Self { count_micros, period: self.period }.fraction()
    }

    /// Micro-tokens in one second, rounded down.
    #[must_use]
    pub fn micros_per_second(self) -> i64 {
        let (num, den) = self.fraction();
        checked_div(num.saturating_mul(1000), den)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Decimal(self.count_micros), self.period.suffix())
    }
}

/// Shows millionths as a decimal number without trailing zeros.
#[derive(Clone, Copy, Debug)]
pub struct Decimal(pub i64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.unsigned_abs();
        let (whole, part) = (magnitude.div_euclid(1_000_000), magnitude.rem_euclid(1_000_000));
        if self.0 < 0 {
            f.write_str("-")?;
        }
        if part == 0 {
            return write!(f, "{whole}");
        }
        write!(f, "{whole}.{}", format!("{part:06}").trim_end_matches('0'))
    }
}

/// Parses a plain non-negative decimal number (`0.0333`, `1.5`, `12`) into millionths, exactly.
///
/// # Errors
/// If it has a sign, an exponent, more than six decimals, or exceeds 10^12.
pub fn parse_decimal_ppm(text: &str) -> Result<i64, InvalidNumber> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |s: &str, most: usize| !s.is_empty() && s.len() <= most && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole, 12) || !digits(part, 6) {
        return Err(InvalidNumber::DecimalForm);
    }
    let whole: i64 = whole.parse().map_err(|_| InvalidNumber::DecimalForm)?;
    let part: i64 = format!("{part:0<6}").parse().map_err(|_| InvalidNumber::DecimalForm)?;
    Ok(whole.saturating_mul(PPM).saturating_add(part))
}

/// Parses a duration such as `200ms`, `60s`, `10m`, `2h`, `1d` into milliseconds.
///
/// # Errors
/// If the unit is missing or unknown, the number is not whole, or the result exceeds one year.
pub fn parse_duration_ms(text: &str) -> Result<i64, InvalidNumber> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or(InvalidNumber::DurationForm)?;
    let (count, unit) = text.split_at(unit_at);
    let count: i64 = count.parse().map_err(|_| InvalidNumber::DurationForm)?;
    let factor = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(InvalidNumber::DurationForm),
    };
    count.checked_mul(factor).filter(|ms| *ms <= DURATION_MS_MAX).ok_or(InvalidNumber::DurationForm)
}

/// Shows milliseconds in the largest unit that divides them: the inverse of [`parse_duration_ms`].
#[must_use]
pub fn format_duration_ms(ms: i64) -> String {
    for (factor, unit) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")] {
        if ms != 0 && ms.rem_euclid(factor) == 0 {
            return format!("{}{unit}", ms.div_euclid(factor));
        }
    }
    format!("{ms}ms")
}

/// Division rounded down; a divisor of 0 gives 0. For non-negative operands.
#[must_use]
pub(crate) fn checked_div(dividend: i64, divisor: i64) -> i64 {
    dividend.checked_div(divisor).unwrap_or(0)
}

/// Division rounded up. For a positive divisor and a non-negative dividend.
#[must_use]
pub(crate) fn div_ceil(dividend: i64, divisor: i64) -> i64 {
    checked_div(dividend.saturating_add(divisor).saturating_sub(1), divisor)
}

/// `⌊amount · numerator / denominator⌋` for non-negative operands, exact without a product above 2^53 while numerator and
/// denominator are at most 10^7 and the result is below 2^53; scripts compute it the same way.
#[must_use]
pub(crate) fn scale_down(amount: i64, numerator: i64, denominator: i64) -> i64 {
    let whole = checked_div(amount, denominator);
    let rest = amount.saturating_sub(whole.saturating_mul(denominator));
    whole.saturating_mul(numerator).saturating_add(checked_div(rest.saturating_mul(numerator), denominator))
}

fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.max(0), b.max(1));
    while b != 0 {
        (a, b) = (b, a.checked_rem(b).unwrap_or(0));
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_reduce_to_fractions_of_micros_per_ms() {
        let check =
            |text: &str, fraction: (i64, i64)| assert_eq!(Rate::parse(text).unwrap().fraction(), fraction, "{text}");
        check("500/s", (500_000, 1));
        check("270/min", (4_500, 1));
        check("100/h", (250, 9));
        check("2M/min", (100_000_000, 3));
        check("0.5/s", (500, 1));
        check("1.5k/s", (1_500_000, 1));
        check("1/d", (5, 432));
        check("0/s", (0, 1));
    }

    #[test]
    fn malformed_rates_are_refused() {
        for text in ["", "5", "/s", "5/", "5/sec", "-5/s", "5kk/s", "1e3/s", "5.1234567/s", "NaN/s", "inf/s", "5 /m"] {
            assert!(Rate::parse(text).is_err(), "{text}");
        }
        assert_eq!(Rate::parse("2G/s"), Err(InvalidNumber::RateTooHigh));
        assert_eq!(Rate::parse("999999999999G/s"), Err(InvalidNumber::RateTooHigh));
        assert_eq!(Rate::parse("1G/s").unwrap().to_string(), "1000000000/s");
    }

    #[test]
    fn decimals_are_exact() {
        for (text, ppm) in [("0.1", 100_000), ("0.0333", 33_300), ("1.5", 1_500_000), ("0.000001", 1), ("7", 7_000_000)]
        {
            assert_eq!(parse_decimal_ppm(text), Ok(ppm));
            assert_eq!(Decimal(ppm).to_string(), text);
        }
        for text in ["", ".", "1.", ".5", "-1", "+1", "1e2", "0.0000001", "1_000", "nan", "9999999999999"] {
            assert!(parse_decimal_ppm(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_round_trip() {
        for (text, ms) in
            [("200ms", 200), ("60s", 60_000), ("90s", 90_000), ("2h", 7_200_000), ("365d", DURATION_MS_MAX)]
        {
            assert_eq!(parse_duration_ms(text), Ok(ms), "{text}");
        }
        for text in ["0ms", "1ms", "1500ms", "90s", "90m", "25h", "365d"] {
            assert_eq!(format_duration_ms(parse_duration_ms(text).unwrap()), text);
        }
        for text in ["", "5", "s", "-5s", "1.5s", "5 s", "366d", "99999999999999999999s", "5w"] {
            assert!(parse_duration_ms(text).is_err(), "{text}");
        }
    }

    #[test]
    fn parts_of_a_rate_round_down() {
        let rate = Rate::parse("10000/s").unwrap();
        assert_eq!(rate.part_fraction(100_000, 200), (5_000, 1));
        assert_eq!(Rate::parse("1/s").unwrap().part_fraction(100_000, 3), (33_333, 1000));
        assert_eq!(rate.micros_per_second(), 10_000 * MICROS_PER_TOKEN);
    }
}
