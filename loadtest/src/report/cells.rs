//! Numbers as people read them; the same in every report.

/// What stands where there is nothing to divide by, or nothing was measured.
pub(super) const NA: &str = "n/a";

/// `1,234,567`.
pub(super) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// About three significant digits, or more where they stand before the point: `0.042`, `1.07`, `26.9`, `1,234`.
pub(super) fn number(value: f64) -> String {
    if !value.is_finite() {
        return NA.to_owned();
    }
    let size = value.abs();
    match size {
        _ if size >= 100.0 => {
            let sign = if value < 0.0 { "−" } else { "" };
            format!("{sign}{}", count(whole(size)))
        }
        _ if size == 0.0 => "0".to_owned(),
        _ if size >= 10.0 => signed(value, 1),
        _ if size >= 0.1 => signed(value, 2),
        _ if size >= 0.0005 => signed(value, 3),
        _ => format!("{}{}0.001", if value < 0.0 { "−" } else { "" }, '<'),
    }
}

/// The same, but whole numbers without places: `12`, `1,240`, `0.5`.
pub(super) fn amount(value: f64) -> String {
    if value.is_finite() && value.fract() == 0.0 && value.abs() < 100.0 { signed(value, 0) } else { number(value) }
}

/// `97.3%` of a share.
pub(super) fn percent(share: f64) -> String {
    if share.is_finite() { format!("{}%", signed(share * 100.0, 1)) } else { NA.to_owned() }
}

/// `42 ms`, `1.52 s`.
pub(super) fn millis(value: f64) -> String {
    match value {
        _ if !value.is_finite() => NA.to_owned(),
        _ if value >= 1_000.0 => format!("{} s", signed(value / 1_000.0, 2)),
        _ if value >= 10.0 => format!("{} ms", signed(value, 0)),
        _ => format!("{} ms", signed(value, 1)),
    }
}

/// A time since the load began: `5 s`, `12.5 s`.
pub(super) fn moment(at_ms: u64) -> String {
    let (whole, rest) = (at_ms / 1_000, at_ms % 1_000);
    if rest == 0 { format!("{whole} s") } else { format!("{whole}.{} s", rest / 100) }
}

fn signed(value: f64, places: usize) -> String {
    let text = format!("{:.places$}", value.abs());
    // What rounds to nothing has no sign.
    let nothing = text.chars().all(|c| c == '0' || c == '.');
    if value < 0.0 && !nothing { format!("−{text}") } else { text }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and saturates")]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ];
        for (value, text) in cases {
            assert_eq!(count(value), text);
        }
    }

    #[test]
    fn numbers_have_about_three_digits() {
        let cases = [
            (0.0, "0"),
            (0.0001, "<0.001"),
            (0.042, "0.042"),
            (1.0, "1.00"),
            (26.94, "26.9"),
            (1234.5, "1,235"),
            (-3.5, "−3.50"),
            (-1234.0, "−1,234"),
            (f64::NAN, "n/a"),
            (f64::INFINITY, "n/a"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!((amount(12.0), amount(-3.0), amount(0.0)), ("12".into(), "−3".into(), "0".into()));
        assert_eq!((amount(1_240.0), amount(0.5), amount(f64::NAN)), ("1,240".into(), "0.50".into(), "n/a".into()));
    }

    #[test]
    fn shares_and_times_carry_their_unit() {
        assert_eq!((percent(0.9731), percent(0.0), percent(-0.00001)), ("97.3%".into(), "0.0%".into(), "0.0%".into()));
        assert_eq!((millis(0.42), millis(42.4), millis(1_520.0)), ("0.4 ms".into(), "42 ms".into(), "1.52 s".into()));
        assert_eq!((moment(5_000), moment(12_500)), ("5 s".into(), "12.5 s".into()));
    }
}
