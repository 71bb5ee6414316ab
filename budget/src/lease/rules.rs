//! What a holder is told of a policy.

use super::{FallbackRules, LocalOriginals, Rules};
use crate::{
    fallback::{Limits, Originals},
    ids::PolicyVersion,
    policy::{Numbers, Policy},
};

// === impl Rules ===

impl Rules {
    /// What a holder needs of `policy`, of which `numbers` are the compiled form. `sharers`: how many share a percentage
    /// beyond the curve, replicas and holders, at least 1; a part of theirs is rounded down.
    #[must_use]
    pub fn of(policy: &Policy, numbers: &Numbers, version: PolicyVersion, sharers: i64) -> Self {
        Self {
            version,
            shadow: numbers.shadow,
            retries_off: numbers.retries_off,
            limited: numbers.admission.is_some(),
            slots_limited: numbers.slots_limited,
            deposit_micros: numbers.deposit_micros,
            earn_on_success: numbers.earn_on_success,
            retry_cost_micros: numbers.retry_cost_micros,
            max_attempts: numbers.max_attempts,
            permit_ttl_ms: numbers.permit_ttl_ms,
            priority_ppm: numbers.priority_ppm,
            units: numbers.units.iter().map(|(unit, _)| *unit).collect(),
            fallback: FallbackRules::of(policy, numbers, sharers.max(1)),
        }
    }
}

// === impl FallbackRules ===

impl FallbackRules {
    fn of(policy: &Policy, numbers: &Numbers, sharers: i64) -> Self {
        let limits = Limits::of(policy, numbers, sharers);
        Self {
            originals: match limits.originals {
                Originals::Deny => LocalOriginals::Deny,
                Originals::Allow => LocalOriginals::Allow,
                Originals::Limited(bucket) => LocalOriginals::Rate(bucket.per_second()),
            },
            retries_earned: limits.retries_earned,
            units: limits.units.iter().map(|(unit, bucket)| (*unit, bucket.per_second())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::UnitId,
        policy::{FallbackOriginals, FallbackRetries, Limit, Spec, UnitLimit},
        units::Rate,
    };

    const VERSION: PolicyVersion = PolicyVersion { number: 3, id: 4 };

    fn rate(text: &str) -> Rate {
        Rate::parse(text).unwrap()
    }

    fn limited(text: &str) -> Spec {
        Spec { admission: Some(Limit { rate: rate(text), burst_tokens: 100 }), ..Spec::default() }
    }

    fn rules(spec: Spec, sharers: i64) -> Rules {
        let policy = Policy::new(spec).unwrap();
        Rules::of(&policy, &policy.numbers(false, true), VERSION, sharers)
    }

    #[test]
    fn rules_say_what_the_policy_says() {
        let spec = Spec {
            mode: crate::policy::Mode::Shadow,
            max_in_flight: Some(7),
            earn_on: crate::policy::EarnOn::Success,
            retry_cost_micros: [1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000],
            priority_ppm: [1, 2, 3],
            max_attempts: 9,
            permit_ttl_ms: 5_000,
            ratio_ppm: 250_000,
            units: vec![UnitLimit { name: "usd".into(), limit: Limit { rate: rate("60/min"), burst_tokens: 9 } }],
            ..limited("10/s")
        };
        let policy = Policy::new(spec).unwrap();
        let told = Rules::of(&policy, &policy.numbers(true, false), VERSION, 2);
        let usd = UnitId::of("usd").unwrap();
        let expected = Rules {
            version: VERSION,
            shadow: true,
            retries_off: true,
            limited: true,
            slots_limited: true,
            deposit_micros: 250_000,
            earn_on_success: true,
            retry_cost_micros: [1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000],
            max_attempts: 9,
            permit_ttl_ms: 5_000,
            priority_ppm: [1, 2, 3],
            units: [usd].into(),
            // A tenth of 10/s and of 1/s, for two.
            fallback: FallbackRules {
                originals: LocalOriginals::Rate(500_000),
                retries_earned: true,
                units: [(usd, 50_000)].into(),
            },
        };
        assert_eq!(told, expected);
        let unlimited = rules(Spec::default(), 5);
        assert!(!unlimited.limited && !unlimited.slots_limited && !unlimited.shadow && !unlimited.retries_off);
        assert_eq!(unlimited.fallback.originals, LocalOriginals::Allow);
    }

    /// What all sharers may do together is never more than the percentage.
    #[test]
    fn a_percentage_is_divided_and_rounded_down() {
        let of = |text: &str, sharers| match rules(limited(text), sharers).fallback.originals {
            LocalOriginals::Rate(micros) => micros,
            other @ (LocalOriginals::Deny | LocalOriginals::Allow) => panic!("{other:?}"),
        };
        assert_eq!(of("10000/s", 200), 5_000_000);
        assert_eq!(of("10000/s", 1), 1_000_000_000);
        assert_eq!(of("10000/s", 0), 1_000_000_000);
        assert_eq!(of("10000/s", -5), 1_000_000_000);
        assert_eq!(of("1/s", 3), 33_333);
        assert_eq!(of("100/h", 7), 396);
        for sharers in 1..2_000 {
            for (text, tenth_micros) in [("270/min", 450_000), ("1/s", 100_000), ("7777/s", 777_700_000)] {
                let each = of(text, sharers);
                assert!(each * sharers <= tenth_micros && (each + 2) * sharers > tenth_micros, "{text} {sharers}");
            }
        }
        assert_eq!(of("1/d", 1_000_000), 0);
    }

    #[test]
    fn every_rule_of_originals_is_told() {
        let of = |originals, retries| {
            let units = vec![UnitLimit { name: "usd".into(), limit: Limit { rate: rate("100/s"), burst_tokens: 100 } }];
            let spec =
                Spec { fallback_originals: Some(originals), fallback_retries: retries, units, ..limited("50/s") };
            let fallback = rules(spec, 4).fallback;
            (
                fallback.originals,
                fallback.retries_earned,
                fallback.units.iter().map(|(_, rate)| *rate).collect::<Vec<_>>(),
            )
        };
        let (earned, deny) = (FallbackRetries::Earned, FallbackRetries::Deny);
        assert_eq!(of(FallbackOriginals::Deny, deny), (LocalOriginals::Deny, false, vec![0]));
        assert_eq!(of(FallbackOriginals::Allow, earned), (LocalOriginals::Allow, true, vec![]));
        // Per holder, so not divided; the unit gets the same part of its rate.
        let five = of(FallbackOriginals::Rate(rate("5/s")), earned);
        assert_eq!(five, (LocalOriginals::Rate(5_000_000), true, vec![10_000_000]));
        let part = of(FallbackOriginals::Part(200_000), earned);
        assert_eq!(part, (LocalOriginals::Rate(2_500_000), true, vec![5_000_000]));
    }
}
