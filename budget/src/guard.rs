//! The lines that keep the bound of leases, each with a name, so that a simulation can switch one off and show that it is
//! missed.
//!
//! The crate that ships has no such switch: without the feature `guards`, which `budget/Cargo.toml` does not even
//! declare, [`on`] is the constant `true` and costs nothing. The simulator compiles these sources a second time, as a
//! library of its own that has the feature.

/// A line of the lease protocol that must not be left out. Names say what holds while it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Guard {
    /// Holder: a new lease keeps levels and adds what was moved; off: its buckets start full.
    RenewalKeepsLevels,
    /// Ledger: a new epoch starts with empty levels; off: full.
    EpochStartsEmpty,
    /// Ledger: what is granted into grown caps is withdrawn centrally; off: it is minted.
    MovedIsWithdrawn,
    /// Both sides that lend: all grants that may be in use are charged, component-wise maximum; off: the last one only.
    ChargeMaximum,
    /// Ledger: grants leave UNKNOWN alone.
    UnknownInGrants,
    /// Ledger: the direct part (rates and caps) leaves UNKNOWN alone.
    UnknownInDirect,
    /// Ledger: UNKNOWN is charged until the quarantine ends; off: it steps down along the curve.
    UnknownWholeCurve,
    /// Ledger: UNKNOWN is computed from the policy of the moment; off: from the one at the opening.
    UnknownFollowsPolicy,
    /// Ledger: a proof is charged beside the new grant; off: it is not.
    ChargePresented,
    /// Ledger: a proof counts only in a request that quotes the current epoch.
    ProofQuotesEpoch,
    /// Ledger: a proof joins C once per incarnation; off: each time.
    ProofOnce,
    /// Ledger: C is what was proved at its position on its curve; off: its full value.
    ProofAtPosition,
    /// Ledger: no grant before σ has passed.
    NoGrantDuringOverlap,
    /// Ledger: no proof before σ has passed.
    NoProofDuringOverlap,
    /// Ledger: nothing is refilled and no direct caller is served before σ has passed.
    NoRefillDuringOverlap,
    /// Ledger: the quarantine lasts the longest curve that may be out; off: the present policy's.
    LongestCurve,
    /// Ledger: what is unknown is reckoned with the largest part that may be out; off: with the present policy's.
    WidestPart,
    /// Ledger: a replayed reply tells its position on the curve; off: it starts anew.
    ReplayTellsPosition,
    /// Ledger: a replay that has ended or was overtaken by a lowered policy is DEAD; off: granted again.
    ReplayDies,
    /// Ledger: an older sequence, or the same with another nonce, is FENCED; off: treated as a new request.
    Fence,
    /// Both sides that lend: incarnations of one holder id are charged apart; off: they share one record.
    IncarnationsApart,
    /// Ledger: another store identity, or missing state, opens an epoch.
    IdentityOpensEpoch,
    /// Ledger: a caller that remembers a higher epoch makes the ledger open above it (rule 10).
    RememberedOpensEpoch,
    /// Ledger: one call advances time by a bounded step.
    ClampTime,
    /// Ledger: what the clock gained on the heartbeats is a debt, paid by standing still.
    ClockDebt,
    /// Ledger: all calls from one comparison with a host's clock to the next advance time by a bounded step together; off:
    /// each by one.
    OneStepTogether,
    /// Ledger: a host is remembered from one heartbeat to its next; off: whoever is not known takes the place of another.
    HostsStay,
    /// Ledger: a host that was not there at the last comparison finds no gain until time stands still, and then counts what
    /// it has not seen as gained; off: it takes the time of its first heartbeat for true.
    NewHostsWait,
    /// Ledger: after a large difference hosts that have not beaten since are forgotten; off: what a clock gains in the
    /// meantime passes for time that has to be made up for.
    LagForgets,
    /// Ledger: each step ends a margin later than the holder's.
    Margin,
    /// Ledger: a grant is at most what is free (rule 3).
    WithinFree,
    /// Both: parts round down; off: the holder's step rounds up.
    RoundDown,
    /// Ledger: reports deposit nothing; off: reported originals earn retry tokens centrally.
    DepositsAreLocal,
    /// Ledger: the direct rate is what is not charged at the moment; off: the part that is never leased.
    DirectIsDynamic,
    /// Ledger: refill uses the rate and cap of the last call; off: those of after stepping down.
    RefillBeforeStepping,
    /// Ledger: central levels are clipped to what is not charged.
    ClipCentral,
    /// Both sides that lend: the whole curve that the holder uses is charged; off: its first step.
    ChargeWholeCurve,
    /// Ledger: a smaller grant is charged like the older ones until the holder quotes it (rule 2).
    KeepUntilQuoted,
    /// Holder: levels are clipped at the end of a step.
    ClipHolder,
    /// Holder: refill is piecewise; off: across the end of a step at the old rate.
    RefillPiecewise,
    /// Holder: nothing is admitted from a lease beyond its curve.
    EndWithCurve,
    /// Holder: a lease starts when its request was sent; off: when the reply arrived.
    StartAtSending,
    /// Holder: a reply is applied only if it answers the outstanding request.
    AnswersOutstanding,
    /// Holder: a grant is applied only if its name is higher than the current one.
    NameRises,
    /// Holder: lower epochs are refused.
    EpochRises,
    /// Holder: the fallback's level stays from episode to episode; off: it starts full each time.
    FallbackKeepsLevel,
    /// Holder: tokens of the fallback never enter a lease.
    FallbackApart,
    /// Holder: the floor does not refill the fallback.
    FloorIsCentral,
    /// Holder: a permit is checked again right before it is sent.
    CheckBeforeSending,
    /// Holder: what is handed back goes to the same lease only, clipped at the cap.
    HandBackToSameLease,
    /// Holder: a deposit that is already spent becomes debt when its original is handed back.
    HandBackTakesDeposit,
    /// Holder: time goes on in suspend; off: the clock that the simulator gives it stops.
    SuspendCounts,
    /// Agent: sub-leases end no later than their parent: they are told with its position on its curve; off: they start
    /// anew.
    SubleaseEndsWithParent,
    /// Agent: a sub-lease is at most what no other sub-lessee is charged of the parent.
    SubleaseWithinParent,
    /// Agent: a sub-lease is charged until its holder quotes a newer one or it has ended; off: until a newer one is made.
    SubleaseUntilQuoted,
    /// Agent: the charge of a sub-lease ends a margin later than it does.
    SubleaseMargin,
    /// Agent: an older sequence, or the same with another nonce, is FENCED; off: treated as a new request.
    SubleasesFence,
    /// Agent: no parent is quoted into which not everything fits that is in use; off: the latest.
    SubleasesFitQuoted,
    /// Agent: its own part is what it has not lent; off: all of the parent.
    LentIsNotOwn,
    /// Agent: what comes with a sub-lease is withdrawn from its own levels; off: it is minted.
    LentLevelIsWithdrawn,
    /// Agent: it says no farewell while something that it has lent may be in use.
    LeavesWithNothingLent,
    /// Both sides that lend: who is revoked is lent nothing.
    RevokedIsNotLent,
    /// Agent: once a life of it is fenced, what that had lent ends with the next request of who lives by it; off: with its
    /// curve where there is nothing to lend instead.
    FencedSubleasesEnd,
    /// Holder: a sub-lease is never presented to a ledger, where its agent proves all of the parent.
    SubleaseIsNoProof,
    /// Both sides that lend: incarnations of one holder id share one fair share.
    OneShareById,
    /// Both sides that lend: an idle holder shrinks.
    IdleShrinks,
    /// Both sides that lend: where there is less for each than is of use, as many are served as fit; off: nobody is.
    CrowdedAreServed,
    /// Both sides that lend: slots dropped at a step stay charged for the life of a permit.
    SlotsLinger,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 68] = [
        Self::RenewalKeepsLevels,
        Self::EpochStartsEmpty,
        Self::MovedIsWithdrawn,
        Self::ChargeMaximum,
        Self::UnknownInGrants,
        Self::UnknownInDirect,
        Self::UnknownWholeCurve,
        Self::UnknownFollowsPolicy,
        Self::ChargePresented,
        Self::ProofQuotesEpoch,
        Self::ProofOnce,
        Self::ProofAtPosition,
        Self::NoGrantDuringOverlap,
        Self::NoProofDuringOverlap,
        Self::NoRefillDuringOverlap,
        Self::LongestCurve,
        Self::WidestPart,
        Self::ReplayTellsPosition,
        Self::ReplayDies,
        Self::Fence,
        Self::IncarnationsApart,
        Self::IdentityOpensEpoch,
        Self::RememberedOpensEpoch,
        Self::ClampTime,
        Self::ClockDebt,
        Self::OneStepTogether,
        Self::HostsStay,
        Self::NewHostsWait,
        Self::LagForgets,
        Self::Margin,
        Self::WithinFree,
        Self::RoundDown,
        Self::DepositsAreLocal,
        Self::DirectIsDynamic,
        Self::RefillBeforeStepping,
        Self::ClipCentral,
        Self::ChargeWholeCurve,
        Self::KeepUntilQuoted,
        Self::ClipHolder,
        Self::RefillPiecewise,
        Self::EndWithCurve,
        Self::StartAtSending,
        Self::AnswersOutstanding,
        Self::NameRises,
        Self::EpochRises,
        Self::FallbackKeepsLevel,
        Self::FallbackApart,
        Self::FloorIsCentral,
        Self::CheckBeforeSending,
        Self::HandBackToSameLease,
        Self::HandBackTakesDeposit,
        Self::SuspendCounts,
        Self::SubleaseEndsWithParent,
        Self::SubleaseWithinParent,
        Self::SubleaseUntilQuoted,
        Self::SubleaseMargin,
        Self::SubleasesFence,
        Self::SubleasesFitQuoted,
        Self::LentIsNotOwn,
        Self::LentLevelIsWithdrawn,
        Self::LeavesWithNothingLent,
        Self::RevokedIsNotLent,
        Self::FencedSubleasesEnd,
        Self::SubleaseIsNoProof,
        Self::OneShareById,
        Self::IdleShrinks,
        Self::CrowdedAreServed,
        Self::SlotsLinger,
    ];
}

/// Whether a guard is in force.
#[cfg(not(feature = "guards"))]
#[inline(always)]
#[must_use]
pub const fn on(_guard: Guard) -> bool {
    true
}

#[cfg(feature = "guards")]
mod switches {
    use super::Guard;

    thread_local! {
        static OFF: std::cell::Cell<[Option<Guard>; 3]> = const { std::cell::Cell::new([None; 3]) };
    }

    /// Whether a guard is in force on this thread.
    #[must_use]
    pub fn on(guard: Guard) -> bool {
        !OFF.get().contains(&Some(guard))
    }

    /// Switches up to three guards of this thread off, and all others on. Where two stand for each other, one alone is not
    /// missed.
    pub fn switch_off(guards: &[Guard]) {
        let mut off = [None; 3];
        for (place, guard) in off.iter_mut().zip(guards) {
            *place = Some(*guard);
        }
        OFF.set(off);
    }
}

#[cfg(feature = "guards")]
pub use switches::{on, switch_off};
