//! The documented bound.

pub mod checker;

use crate::{lease::Timing, policy::Policy};

/// How long a policy may go on to count after another has replaced it, where no epoch is opened meanwhile: a lease
/// granted at its last moment, the margin, and an overlap of masters.
#[must_use]
pub fn horizon_ms(policy: &Policy, timing: &Timing) -> i64 {
    let curve = policy.spec().lease.curve.iter();
    let curve_ms = curve.fold(0_i64, |sum, step| sum.saturating_add(step.duration_ms));
    curve_ms.saturating_add(timing.margin_ms).saturating_add(timing.overlap_ms)
}
