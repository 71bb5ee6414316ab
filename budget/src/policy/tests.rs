//! Every bound of every field, and the numbers that come of it.

use super::*;
use crate::{bucket::Bucket, units::Rate};

fn limited(rate: &str, burst_tokens: i64) -> Option<Limit> {
    Some(Limit { rate: Rate::parse(rate).unwrap(), burst_tokens })
}

fn unit(name: &str, rate: &str, burst_tokens: i64) -> UnitLimit {
    UnitLimit { name: name.to_owned(), limit: limited(rate, burst_tokens).unwrap() }
}

fn curve(steps: &[(i64, i64)]) -> Lease {
    let curve =
        steps.iter().map(|(part_ppm, duration_ms)| CurveStep { part_ppm: *part_ppm, duration_ms: *duration_ms });
    Lease { curve: curve.collect(), ..Lease::default() }
}

/// The field that is refused, if any.
fn refused(change: impl FnOnce(&mut Spec)) -> Option<String> {
    let mut spec = Spec::default();
    change(&mut spec);
    Policy::new(spec).err().map(|error| {
        assert!(!error.value.is_empty() && !error.rule.is_empty(), "{error}");
        error.field
    })
}

#[test]
fn the_defaults_are_valid_and_as_documented() {
    let policy = Policy::new(Spec::default()).unwrap();
    assert_eq!(policy.fallback_originals(), FallbackOriginals::Allow);
    let numbers = policy.numbers(false, false);
    assert_eq!((numbers.deposit_micros, numbers.retry.burst, numbers.retry.num), (100_000, 10_000_000, 1_000));
    assert_eq!((numbers.max_attempts, numbers.permit_ttl_ms, numbers.retention_ms), (3, 60_000, 600_000));
    assert_eq!((numbers.max_in_flight, numbers.keep_in_flight), (1_000_000, [0; 3]));
    assert!(!numbers.shadow && !numbers.retries_off && !numbers.earn_on_success && numbers.admission.is_none());
    let limited = Policy::new(Spec { admission: limited("1/s", 1), ..Spec::default() }).unwrap();
    assert_eq!(limited.fallback_originals(), FallbackOriginals::Part(100_000));
    let set = Spec { fallback_originals: Some(FallbackOriginals::Deny), ..Spec::default() };
    assert_eq!(Policy::new(set).unwrap().fallback_originals(), FallbackOriginals::Deny);
}

#[test]
fn every_bound_is_the_last_value_allowed() {
    type Change = Box<dyn Fn(&mut Spec, i64)>;
    let small = |value: i64| u32::try_from(value).unwrap();
    let cases: Vec<(&str, i64, i64, Change)> = vec![
        ("admission.burst", 1, 1_000_000_000, Box::new(|spec, value| spec.admission = limited("1/s", value))),
        ("admission.max_in_flight", 1, 1_000_000, Box::new(move |spec, value| spec.max_in_flight = Some(small(value)))),
        (
            "admission.permit_ttl",
            1,
            3_600_000,
            Box::new(|spec, value| {
                spec.permit_ttl_ms = value;
                spec.retention_ms = 3_600_000;
            }),
        ),
        ("admission.max_wait", 0, 3_600_000, Box::new(|spec, value| spec.max_wait_ms = value)),
        ("retry.ratio", 0, 100_000_000, Box::new(|spec, value| spec.ratio_ppm = value)),
        ("retry.burst", 0, 1_000_000_000, Box::new(|spec, value| spec.retry_burst_tokens = value)),
        ("retry_cost.transient", 1_000_000, 1_000_000_000, Box::new(|spec, value| spec.retry_cost_micros[0] = value)),
        ("retry_cost.failover", 1_000_000, 1_000_000_000, Box::new(|spec, value| spec.retry_cost_micros[4] = value)),
        ("operation.max_attempts", 1, 100, Box::new(move |spec, value| spec.max_attempts = small(value))),
        (
            "operation.retention",
            1_000,
            2_592_000_000,
            Box::new(|spec, value| {
                spec.permit_ttl_ms = 1;
                spec.retention_ms = value;
            }),
        ),
        ("priority.critical", 0, 1_000_000, Box::new(|spec, value| spec.priority_ppm = [0, 0, value])),
        ("cost.t.burst", 1, 1_000_000_000, Box::new(|spec, value| spec.units = vec![unit("t", "1/s", value)])),
        ("lease.part", 1, 1_000_000, Box::new(|spec, value| spec.lease.part_ppm = value)),
        ("lease.curve", 1, 1_000_000, Box::new(|spec, value| spec.lease = curve(&[(value, 1)]))),
        ("lease.curve", 1, 3_600_000, Box::new(|spec, value| spec.lease = curve(&[(PPM, value)]))),
        ("lease.curve", 1, 3_599_990, Box::new(|spec, value| spec.lease = curve(&[(PPM, 10), (PPM, value)]))),
        (
            "fallback.originals",
            0,
            1_000_000,
            Box::new(|spec, value| {
                spec.admission = limited("1/s", 1);
                spec.fallback_originals = Some(FallbackOriginals::Part(value));
            }),
        ),
    ];
    for (field, min, max, change) in cases {
        for allowed in [min, max] {
            assert_eq!(refused(|spec| change(spec, allowed)), None, "{field} = {allowed}");
        }
        let below = (min > 0).then_some(min.saturating_sub(1));
        for beyond in below.into_iter().chain([max.saturating_add(1)]) {
            assert_eq!(refused(|spec| change(spec, beyond)).as_deref(), Some(field), "{field} = {beyond}");
        }
    }
}

#[test]
fn beyond_the_range_of_a_field_it_is_that_field_that_is_refused() {
    let mut tried = 0;
    for field in FIELDS {
        let (Form::Whole(min, max) | Form::Decimal(min, max) | Form::Duration(min, max)) = field.form else { continue };
        if field.get(&Spec::default()).is_none() {
            continue;
        }
        for beyond in [min - 1, max + 1] {
            let refused = refused(|spec| field.set(spec, &Value::Number(beyond)));
            assert_eq!(refused.as_deref(), Some(field.key), "{} = {beyond}", field.key);
        }
        tried += 1;
    }
    assert!(tried >= 15, "{tried}");
}

#[test]
fn a_field_gives_what_it_took() {
    let taken = |field: &Field, value: &Value| {
        let mut spec = Spec::default();
        field.set(&mut spec, value);
        field.get(&spec)
    };
    for field in FIELDS.iter().filter(|field| field.get(&Spec::default()).is_some() && field.key != "admission.rate") {
        let values = match field.form {
            Form::Word(words) => words.iter().map(|word| Value::Word(word)).collect(),
            Form::Flag => vec![Value::Flag(true), Value::Flag(false)],
            Form::Whole(..) | Form::Decimal(..) | Form::Duration(..) => vec![Value::Number(7), Value::Number(9)],
            Form::Rate => vec![Value::Rate(Rate::ZERO)],
            Form::Curve => vec![Value::Curve(vec![CurveStep { part_ppm: 1, duration_ms: 2 }])],
            Form::Originals => vec![Value::Originals(FallbackOriginals::Deny)],
            Form::OrUnlimited(_) => vec![Value::Number(7), Value::Unlimited],
        };
        for value in values {
            assert_eq!(taken(field, &value), Some(value), "{}", field.key);
        }
    }
}

#[test]
fn fields_that_depend_on_each_other() {
    let field = |change: &dyn Fn(&mut Spec)| refused(change).unwrap_or_default();
    assert_eq!(field(&|spec| spec.admission = limited("0/s", 5)), "admission.rate");
    assert_eq!(field(&|spec| spec.units = vec![unit("t", "0/s", 5)]), "cost.t.rate");
    assert_eq!(field(&|spec| spec.units = vec![unit("t", "1/s", 5), unit("t", "1/s", 5)]), "cost.t");
    assert_eq!(field(&|spec| spec.units = vec![unit("", "1/s", 5)]), "cost.");
    assert_eq!(field(&|spec| spec.units = vec![unit("a\nb", "1/s", 5)]), "cost.a\nb");
    assert_eq!(field(&|spec| spec.units = (0..9).map(|n| unit(&n.to_string(), "1/s", 5)).collect()), "cost");
    assert_eq!(field(&|spec| spec.units = (0..8).map(|n| unit(&n.to_string(), "1/s", 5)).collect()), "");
    assert_eq!(field(&|spec| spec.retention_ms = 59_999), "operation.retention");
    assert_eq!(field(&|spec| spec.retention_ms = 60_000), "");
    assert_eq!(field(&|spec| spec.priority_ppm = [500_000, 400_000, PPM]), "priority");
    assert_eq!(field(&|spec| spec.priority_ppm = [0, PPM, 900_000]), "priority");
    assert_eq!(field(&|spec| spec.lease = curve(&[])), "lease.curve");
    assert_eq!(field(&|spec| spec.lease = curve(&[(1, 1); 9])), "lease.curve");
    assert_eq!(field(&|spec| spec.lease = curve(&[(1, 1); 8])), "");
    assert_eq!(field(&|spec| spec.lease = curve(&[(1, 1), (2, 1)])), "lease.curve");
    assert_eq!(field(&|spec| spec.fallback_originals = Some(FallbackOriginals::Part(1))), "fallback.originals");
    assert_eq!(field(&|spec| spec.fallback_originals = Some(FallbackOriginals::Rate(Rate::ZERO))), "");
    // What a double cannot hold: a burst with as much debt, times the rate's denominator.
    assert_eq!(field(&|spec| spec.units = vec![unit("t", "1000003/h", 1_000_000_000)]), "cost.t.burst");
    assert_eq!(field(&|spec| spec.units = vec![unit("t", "1000003/h", 1_000_000)]), "");
    assert_eq!(
        field(&|spec| {
            spec.floor = Rate::parse("7/d").unwrap();
            spec.retry_burst_tokens = 1_000_000_000;
        }),
        "retry.burst"
    );
    assert_eq!(
        field(&|spec| {
            spec.admission = limited("1M/s", 1_000_000_000);
            spec.max_wait_ms = 3_600_000;
        }),
        ""
    );
    assert_eq!(
        field(&|spec| {
            spec.admission = limited("1M/min", 1_000_000_000);
            spec.max_wait_ms = 3_600_000;
        }),
        ""
    );
    assert_eq!(
        field(&|spec| {
            spec.admission = limited("1G/s", 1_000_000_000);
            spec.max_wait_ms = 3_600_000;
        }),
        "admission.burst"
    );
}

#[test]
fn what_a_double_cannot_hold_is_refused_to_the_last_token() {
    // 782 tokens come to 2^53 - 1 exactly: 782·10^6 + num·3_599_248 + 3·num + 2.
    let booked = |burst_tokens| {
        refused(|spec| {
            spec.admission = limited("2502520.239/s", burst_tokens);
            spec.max_wait_ms = 3_599_248;
        })
    };
    assert_eq!(booked(781), None);
    assert_eq!(booked(782).as_deref(), Some("admission.burst"));
}

#[test]
fn a_malformed_number_is_a_rule_broken() {
    let error = InvalidPolicy::new("retry.floor", "2G/s", InvalidNumber::RateTooHigh);
    assert_eq!(error.to_string(), "retry.floor is 2G/s: must be at most 1G per period");
}

#[test]
fn the_longest_exact_refill_fills_the_deepest_debt() {
    for (rate, burst) in [("1/s", 1), ("1G/s", 1_000_000_000), ("7/d", 5_000), ("100/h", 1_000_000), ("270/min", 10)] {
        let numbers = BucketNumbers::new(limited(rate, burst).unwrap(), [PPM; 3]);
        let needed = i128::from(numbers.burst) * 2 * i128::from(numbers.den);
        let most = i128::from(numbers.num) * i128::from(numbers.elapsed_ms_max);
        assert!(most >= needed, "{rate} {burst}");
        assert!(most + 2 * i128::from(numbers.den) < 1 << 53, "{rate} {burst}");
        assert!(numbers.debt_max >= numbers.burst, "{rate} {burst}");
        let deepest = (i128::from(numbers.debt_max) + i128::from(numbers.burst)) * i128::from(numbers.den);
        assert!(deepest + 2 * i128::from(numbers.num) + 2 * i128::from(numbers.den) < 1 << 53, "{rate} {burst}");
    }
}

/// Seen to fail with debts that are computed exactly counted below 0: an empty bucket was given tokens by a change of numbers.
#[test]
fn a_large_burst_beside_leases_gives_no_tokens() {
    let numbers = Policy::new(Spec { units: vec![unit("tokens", "60M/min", 12_000_000)], ..Spec::default() })
        .unwrap()
        .numbers(false, true);
    let left = numbers.within(&numbers.quota());
    let (_, of_unit) = left.units[0];
    assert!(of_unit.burst > 9_007_199_254_740, "beyond what thousandths count exactly: {of_unit:?}");
    let mut bucket = Bucket::default();
    bucket.adopt(&of_unit);
    assert_eq!(bucket, Bucket::default());
}
