//! What a field of a policy may hold: how it is written, within which range, and how its place in a
//! [`Spec`](super::Spec) gives and takes it.

use super::{CurveStep, EarnOn, FallbackOriginals, FallbackRetries, InvalidPolicy, Mode};
use crate::units::{self, Rate, format_duration_ms};

/// How a field is written. Ranges include both ends.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// One of these.
    Word(&'static [&'static str]),
    /// True or false.
    Flag,
    /// A whole number.
    Whole(i64, i64),
    /// A number with up to six decimals; the range and the value are in millionths.
    Decimal(i64, i64),
    /// A time such as `60s`; the range and the value are in milliseconds.
    Duration(i64, i64),
    /// A rate such as `500/s`.
    Rate,
    /// The steps of a lease curve.
    Curve,
    /// What happens to originals without lease and store.
    Originals,
    /// As the form inside, or `unlimited`.
    OrUnlimited(&'static Form),
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// One of the words of the form.
    Word(&'static str),
    /// True or false.
    Flag(bool),
    /// In the unit of the form.
    Number(i64),
    /// A rate.
    Rate(Rate),
    /// Steps as written, judged later.
    Curve(Vec<CurveStep>),
    /// What happens to originals without lease and store.
    Originals(FallbackOriginals),
    /// No limit, where one might be inherited.
    Unlimited,
}

/// The type of a field's place in a [`Spec`](super::Spec). A value of another form changes nothing.
pub(super) trait Place {
    fn value(&self) -> Value;
    fn put(&mut self, value: &Value);
}

// === impl Form ===

impl Form {
    /// Judges a number by the range.
    pub(super) fn judge(&self, field: &str, number: i64) -> Result<(), InvalidPolicy> {
        type Show = fn(i64) -> String;
        let (min, max, show): (i64, i64, Show) = match *self {
            Self::Whole(min, max) => (min, max, |number| number.to_string()),
            Self::Decimal(min, max) => (min, max, |ppm| units::Decimal(ppm).to_string()),
            Self::Duration(min, max) => (min, max, format_duration_ms),
            Self::OrUnlimited(form) => return form.judge(field, number),
            Self::Word(_) | Self::Flag | Self::Rate | Self::Curve | Self::Originals => return Ok(()),
        };
        if (min..=max).contains(&number) {
            return Ok(());
        }
        Err(InvalidPolicy::new(field, show(number), format!("must be between {} and {}", show(min), show(max))))
    }
}

// === impl Place ===

macro_rules! places {
    ($($type:ty: $value:ident;)+) => {
        $(impl Place for $type {
            fn value(&self) -> Value {
                Value::$value(self.clone())
            }

            fn put(&mut self, value: &Value) {
                if let Value::$value(value) = value {
                    *self = value.clone();
                }
            }
        })+
    };
}

places! {
    bool: Flag;
    i64: Number;
    Rate: Rate;
    Vec<CurveStep>: Curve;
}

impl Place for u32 {
    fn value(&self) -> Value {
        Value::Number((*self).into())
    }

    /// What does not fit becomes the nearest that does: the field's range refuses it.
    fn put(&mut self, value: &Value) {
        if let Value::Number(number) = value {
            *self = Self::try_from((*number).max(0)).unwrap_or(Self::MAX);
        }
    }
}

impl Place for Option<u32> {
    fn value(&self) -> Value {
        self.map_or(Value::Unlimited, |most| most.value())
    }

    fn put(&mut self, value: &Value) {
        if *value == Value::Unlimited {
            *self = None;
        } else {
            self.get_or_insert_default().put(value);
        }
    }
}

impl Place for Option<FallbackOriginals> {
    fn value(&self) -> Value {
        self.map_or(Value::Unlimited, Value::Originals)
    }

    fn put(&mut self, value: &Value) {
        if let Value::Originals(originals) = value {
            *self = Some(*originals);
        }
    }
}

macro_rules! words {
    ($($type:ident { $($variant:ident = $word:literal),+ })+) => {
        $(impl $type {
            pub(super) const WORDS: &'static [&'static str] = &[$($word),+];
        }

        impl Place for $type {
            fn value(&self) -> Value {
                Value::Word(match self { $(Self::$variant => $word),+ })
            }

            fn put(&mut self, value: &Value) {
                $(if *value == Value::Word($word) {
                    *self = Self::$variant;
                })+
            }
        })+
    };
}

words! {
    Mode { Enforce = "enforce", Shadow = "shadow" }
    EarnOn { Admitted = "admitted", Success = "success" }
    FallbackRetries { Earned = "earned", Deny = "deny" }
}
