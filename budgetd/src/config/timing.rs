//! Time limits of the lease protocol, as they are written and as they are judged.

use budget::{
    lease::Timing,
    policy::{InvalidPolicy, Policy},
};

use super::Span;

/// The section `[timing]` of a settings file. All replicas of a namespace must have the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimingSettings {
    /// How much later than its holder the ledger ends each step of a lease [default: 3s]
    pub margin: Option<Span>,
    /// Longest time for which two masters of the store may both answer, and 2 s more; 0ms where there can be only one
    /// [default: 0ms]
    pub overlap: Option<Span>,
    /// Renewals are this far apart at least [default: 4s]
    pub renew_min: Option<Span>,
    /// And at most [default: 6s]
    pub renew_max: Option<Span>,
    /// A request without an answer is sent again after this at least [default: 700ms]
    pub resend_min: Option<Span>,
    /// And at most, at first [default: 1500ms]
    pub resend_max: Option<Span>,
    /// The clock of a ledger with leases is looked at this often [default: 500ms]
    pub heartbeat: Option<Span>,
    /// Most by which one call advances the time of a ledger with leases [default: 2s]
    pub step_max: Option<Span>,
    /// Accepts a margin below the least that makes leases safe, so that tests take less time [default: false]
    pub unsafe_short: Option<bool>,
}

/// Time limits that fit each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseTiming {
    /// The limits.
    pub limits: Timing,
    /// The least margin is not demanded.
    pub unsafe_short: bool,
}

// === impl TimingSettings ===

impl TimingSettings {
    /// Fills in defaults and judges.
    ///
    /// # Errors
    /// The first limit that breaks its rule.
    pub fn judge(self) -> Result<LeaseTiming, InvalidPolicy> {
        let defaults = Timing::default();
        let ms = |given: Option<Span>, default: i64| {
            given.map_or(default, |span| i64::try_from(span.0.as_millis()).unwrap_or(i64::MAX))
        };
        let limits = Timing {
            margin_ms: ms(self.margin, defaults.margin_ms),
            overlap_ms: ms(self.overlap, defaults.overlap_ms),
            renew_min_ms: ms(self.renew_min, defaults.renew_min_ms),
            renew_max_ms: ms(self.renew_max, defaults.renew_max_ms),
            resend_min_ms: ms(self.resend_min, defaults.resend_min_ms),
            resend_max_ms: ms(self.resend_max, defaults.resend_max_ms),
            heartbeat_ms: ms(self.heartbeat, defaults.heartbeat_ms),
            step_max_ms: ms(self.step_max, defaults.step_max_ms),
        };
        let unsafe_short = self.unsafe_short.unwrap_or(false);
        limits.judge(unsafe_short)?;
        Ok(LeaseTiming { limits, unsafe_short })
    }
}

// === impl LeaseTiming ===

impl LeaseTiming {
    /// Accepts every curve: for reading what another process judges.
    pub const ANY: Self = Self {
        limits: Timing {
            margin_ms: 0,
            overlap_ms: 0,
            renew_min_ms: 0,
            renew_max_ms: 0,
            resend_min_ms: 0,
            resend_max_ms: 0,
            heartbeat_ms: 0,
            step_max_ms: 0,
        },
        unsafe_short: true,
    };

    /// Judges the curve of a policy that permits leases.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn judge_policy(&self, policy: &Policy) -> Result<(), InvalidPolicy> {
        self.limits.judge_curve(policy, self.unsafe_short)
    }
}
