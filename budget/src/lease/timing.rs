//! Time limits of the lease protocol, and how they fit each other and a policy's curve.

use crate::{
    policy::{CURVE_MS_MAX, InvalidPolicy, Policy},
    units::format_duration_ms,
};

/// What a margin has beyond the largest step of ledger time, for rounding and the way of a message.
const MARGIN_BEYOND_STEP_MS: i64 = 250;

/// Time limits of the protocol. Checked against each other where they are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How much later than the holder the ledger ends each step: m.
    pub margin_ms: i64,
    /// Longest overlap of two masters plus 2 s; 0 where only one master can exist: σ.
    pub overlap_ms: i64,
    /// Renewals are this far apart at least.
    pub renew_min_ms: i64,
    /// And at most.
    pub renew_max_ms: i64,
    /// A request without a reply is sent again after this at least.
    pub resend_min_ms: i64,
    /// And at most; doubled while nobody answers, up to `renew_max_ms`.
    pub resend_max_ms: i64,
    /// Heartbeats of a ledger are at most this far apart.
    pub heartbeat_ms: i64,
    /// Most milliseconds by which one call may advance ledger time where leases are permitted.
    pub step_max_ms: i64,
}

// === impl Timing ===

impl Timing {
    /// The margin for a curve: 2.25 s for a time-out, its re-send and rounding, and a thousandth of the curve for drift.
    #[must_use]
    pub const fn margin_ms_min(curve_ms: i64) -> i64 {
        2_250_i64.saturating_add(curve_ms.saturating_add(999).saturating_div(1_000))
    }

    /// Judges these limits against each other, fields named as in a settings file. `short`: the least margin that makes
    /// them safe is not demanded.
    ///
    /// # Errors
    /// The first field that breaks its rule.
    pub fn judge(&self, short: bool) -> Result<(), InvalidPolicy> {
        let fields = [
            ("timing.margin", self.margin_ms, 1),
            ("timing.overlap", self.overlap_ms, 0),
            ("timing.renew_min", self.renew_min_ms, 1),
            ("timing.renew_max", self.renew_max_ms, 1),
            ("timing.resend_min", self.resend_min_ms, 1),
            ("timing.resend_max", self.resend_max_ms, 1),
            ("timing.heartbeat", self.heartbeat_ms, 1),
            ("timing.step_max", self.step_max_ms, 1),
        ];
        for (field, ms, least) in fields {
            if !(least..=CURVE_MS_MAX).contains(&ms) {
                let rule =
                    format!("must be between {} and {}", format_duration_ms(least), format_duration_ms(CURVE_MS_MAX));
                return Err(InvalidPolicy::new(field, format_duration_ms(ms), rule));
            }
        }
        let at_most = |field: &str, ms: i64, other: &str, most_ms: i64| {
            if ms <= most_ms {
                return Ok(());
            }
            let rule = format!("must be at most {other}, which is {}", format_duration_ms(most_ms));
            Err(InvalidPolicy::new(field, format_duration_ms(ms), rule))
        };
        at_most("timing.renew_min", self.renew_min_ms, "timing.renew_max", self.renew_max_ms)?;
        at_most("timing.resend_min", self.resend_min_ms, "timing.resend_max", self.resend_max_ms)?;
        at_most("timing.resend_max", self.resend_max_ms, "timing.renew_max", self.renew_max_ms)?;
        at_most("timing.heartbeat", self.heartbeat_ms, "timing.step_max", self.step_max_ms)?;
        at_most("timing.step_max", self.step_max_ms, "timing.margin", self.margin_ms)?;
        let least_ms = self.step_max_ms.saturating_add(MARGIN_BEYOND_STEP_MS).max(Self::margin_ms_min(0));
        if self.margin_ms < least_ms && !short {
            let rule = format!(
                "must be at least {}: 250ms more than timing.step_max, and never less than 2250ms, unless \
                 timing.unsafe_short is set",
                format_duration_ms(least_ms)
            );
            return Err(InvalidPolicy::new("timing.margin", format_duration_ms(self.margin_ms), rule));
        }
        Ok(())
    }

    /// Judges the curve of a policy that permits leases against these limits.
    ///
    /// # Errors
    /// If the margin does not cover how far clocks drift along the curve (not demanded if `short`), or a holder that
    /// renews in time could reach the end of its first part.
    pub fn judge_curve(&self, policy: &Policy, short: bool) -> Result<(), InvalidPolicy> {
        let lease = &policy.spec().lease;
        if !lease.enabled {
            return Ok(());
        }
        let sum = |sum: i64, ms: i64| sum.saturating_add(ms);
        let total_ms = lease.curve.iter().map(|step| step.duration_ms).fold(0, sum);
        let least_ms = Self::margin_ms_min(total_ms);
        if self.margin_ms < least_ms && !short {
            let rule = format!(
                "is too long for timing.margin, which is {} and must be 2250ms and a thousandth of the curve, here {}",
                format_duration_ms(self.margin_ms),
                format_duration_ms(least_ms)
            );
            return Err(InvalidPolicy::new("lease.curve", format_duration_ms(total_ms), rule));
        }
        let first = lease.curve.first().map_or(0, |step| step.part_ppm);
        let first_ms =
            lease.curve.iter().take_while(|step| step.part_ppm == first).map(|step| step.duration_ms).fold(0, sum);
        let renewed_ms = self.renewed_within_ms();
        if first_ms <= renewed_ms {
            let rule = format!(
                "must keep its first part for more than {}: timing.renew_max, twice timing.resend_max and \
                 timing.overlap, within which a holder has its next lease even if a message is lost",
                format_duration_ms(renewed_ms)
            );
            return Err(InvalidPolicy::new("lease.curve", format_duration_ms(first_ms), rule));
        }
        Ok(())
    }

    /// A holder has its next lease within this time even if one message is lost, and after a fail-over.
    #[must_use]
    pub const fn renewed_within_ms(&self) -> i64 {
        self.renew_max_ms.saturating_add(self.resend_max_ms.saturating_mul(2)).saturating_add(self.overlap_ms)
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            margin_ms: 3_000,
            overlap_ms: 0,
            renew_min_ms: 4_000,
            renew_max_ms: 6_000,
            resend_min_ms: 700,
            resend_max_ms: 1_500,
            heartbeat_ms: 500,
            step_max_ms: 2_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::{CurveStep, Limit, Spec},
        units::Rate,
    };

    fn limited(text: &str) -> Spec {
        let rate = Rate::parse(text).unwrap();
        Spec { admission: Some(Limit { rate, burst_tokens: 100 }), ..Spec::default() }
    }

    #[test]
    fn time_limits_fit_each_other() {
        assert_eq!(Timing::default().judge(false), Ok(()));
        let refused = |change: &dyn Fn(&mut Timing), short| {
            let mut timing = Timing::default();
            change(&mut timing);
            timing.judge(short).map_err(|invalid| invalid.to_string())
        };
        type Case<'a> = (&'a dyn Fn(&mut Timing), &'a str);
        let table: [Case<'_>; 14] = [
            (&|t| t.margin_ms = 0, "timing.margin is 0ms: must be between 1ms and 1h"),
            (&|t| t.overlap_ms = -1, "timing.overlap is -1ms: must be between 0ms and 1h"),
            (&|t| t.renew_min_ms = 0, "timing.renew_min is 0ms: must be between"),
            (&|t| t.renew_max_ms = 3_600_001, "timing.renew_max is 3600001ms: must be between"),
            (&|t| t.resend_min_ms = 0, "timing.resend_min is 0ms"),
            (&|t| t.resend_max_ms = i64::MIN, "timing.resend_max is"),
            (&|t| t.heartbeat_ms = 0, "timing.heartbeat is 0ms"),
            (&|t| t.step_max_ms = i64::MAX, "timing.step_max is"),
            (&|t| t.renew_min_ms = 6_001, "timing.renew_min is 6001ms: must be at most timing.renew_max, which is 6s"),
            (&|t| t.resend_min_ms = 1_501, "timing.resend_min is 1501ms: must be at most timing.resend_max"),
            (&|t| t.resend_max_ms = 6_001, "timing.resend_max is 6001ms: must be at most timing.renew_max"),
            (&|t| t.heartbeat_ms = 2_001, "timing.heartbeat is 2001ms: must be at most timing.step_max, which is 2s"),
            (&|t| t.margin_ms = 1_999, "timing.step_max is 2s: must be at most timing.margin, which is 1999ms"),
            (&|t| t.step_max_ms = 3_000, "timing.margin is 3s: must be at least 3250ms: 250ms more than"),
        ];
        for (change, expected) in table {
            let text = refused(change, false).unwrap_err();
            assert!(text.starts_with(expected), "{text}, not {expected}");
        }
        let at_floor =
            |ms, short| refused(&|t| (t.margin_ms, t.step_max_ms, t.heartbeat_ms) = (ms, ms / 3, ms / 6), short);
        assert_eq!(at_floor(2_250, false), Ok(()));
        let text = at_floor(2_249, false).unwrap_err();
        assert_eq!(
            text,
            "timing.margin is 2249ms: must be at least 2250ms: 250ms more than timing.step_max, and never less than \
             2250ms, unless timing.unsafe_short is set"
        );
        assert_eq!(at_floor(100, true), Ok(()));
    }

    #[test]
    fn a_curve_fits_the_time_limits() {
        let judge = |timing: &Timing, steps: &[(i64, i64)], short| {
            let mut spec = limited("10/s");
            spec.lease.enabled = true;
            spec.lease.curve =
                steps.iter().map(|&(part_ppm, duration_ms)| CurveStep { part_ppm, duration_ms }).collect();
            timing.judge_curve(&Policy::new(spec).unwrap(), short).map_err(|invalid| invalid.to_string())
        };
        let usual = Timing::default();
        assert_eq!(usual.renewed_within_ms(), 9_000);
        assert_eq!(judge(&usual, &[(1_000_000, 20_000), (500_000, 100_000)], false), Ok(()));
        assert_eq!(judge(&usual, &[(1_000_000, 750_000)], false), Ok(()));
        let text = judge(&usual, &[(1_000_000, 750_001)], false).unwrap_err();
        let expected = "lease.curve is 750001ms: is too long for timing.margin, which is 3s and must be 2250ms and a \
                        thousandth of the curve, here 3001ms";
        assert_eq!(text, expected);
        assert_eq!(judge(&usual, &[(1_000_000, 750_001)], true), Ok(()));
        assert_eq!(judge(&Timing { margin_ms: 5_850, ..usual }, &[(1_000_000, 3_600_000)], false), Ok(()));

        assert_eq!(judge(&usual, &[(1_000_000, 9_001), (1, 100_000)], false), Ok(()));
        // Steps of the same part are one.
        assert_eq!(judge(&usual, &[(7, 4_500), (7, 4_501), (1, 100_000)], false), Ok(()));
        for short in [false, true] {
            let text = judge(&usual, &[(1_000_000, 9_000), (999_999, 100_000)], short).unwrap_err();
            assert!(text.starts_with("lease.curve is 9s: must keep its first part for more than 9s"), "{text}");
        }
        let failing_over = Timing { overlap_ms: 6_000, ..usual };
        assert!(judge(&failing_over, &[(1_000_000, 15_000)], false).is_err());
        assert_eq!(judge(&failing_over, &[(1_000_000, 15_001)], false), Ok(()));

        // Where leases are not permitted, the curve does not matter.
        let mut spec = limited("10/s");
        spec.lease.curve = vec![CurveStep { part_ppm: 1, duration_ms: 1 }];
        assert_eq!(usual.judge_curve(&Policy::new(spec).unwrap(), false), Ok(()));
    }
}
