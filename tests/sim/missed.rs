//! Where the absence of each guard shows.

use budget::guard::Guard;

/// Guards that are switched off together, the family that misses them, within how many seeds, and the oracle.
pub type Missed = (&'static [Guard], &'static str, u64, &'static str);

#[rustfmt::skip]
pub const MISSED: [Missed; 55] = [
    (&[Guard::RenewalKeepsLevels], "suspend", 3, "T3"),
    (&[Guard::EpochStartsEmpty], "proved-twice", 80, "T1"),
    (&[Guard::MovedIsWithdrawn], "lower-lose-raise", 80, "T1"),
    (&[Guard::ChargeMaximum], "outage", 3, "T3"),
    (&[Guard::UnknownInGrants], "cut-and-lend", 8, "T3"),
    (&[Guard::UnknownInDirect], "proofs", 3, "T3"),
    (&[Guard::UnknownWholeCurve], "proofs", 8, "T3"),
    (&[Guard::UnknownFollowsPolicy], "lower-lose-raise", 8, "T3"),
    (&[Guard::ChargePresented], "lend-in-overlap", 8, "T3"),
    (&[Guard::ProofQuotesEpoch], "cut-and-lend", 20, "T3"),
    (&[Guard::ProofOnce], "proved-twice", 20, "T3"),
    (&[Guard::ProofAtPosition], "cut-and-lend", 120, "T3"),
    (&[Guard::NoGrantDuringOverlap], "lend-in-overlap", 30, "T3"),
    (&[Guard::NoProofDuringOverlap], "lend-in-overlap", 30, "T3"),
    (&[Guard::NoRefillDuringOverlap], "lend-in-overlap", 5, "T3"),
    (&[Guard::LongestCurve], "curves", 30, "T3"),
    (&[Guard::WidestPart], "curves", 10, "T3"),
    (&[Guard::ReplayTellsPosition], "late-replies", 20, "T3"),
    (&[Guard::ReplayDies], "old-replies", 10, "T3"),
    (&[Guard::Fence], "clones", 150, "T3"),
    (&[Guard::IncarnationsApart], "farewell", 40, "T3"),
    (&[Guard::IdentityOpensEpoch], "overlap", 10, "T3"),
    (&[Guard::RememberedOpensEpoch], "cut-and-lend", 10, "T4"),
    (&[Guard::ClampTime], "clock", 5, "T3"),
    (&[Guard::ClockDebt], "clock", 5, "T3"),
    (&[Guard::OneStepTogether], "jump-trains", 10, "T3"),
    (&[Guard::HostsStay], "jump-crowds", 20, "work"),
    (&[Guard::NewHostsWait], "jump-turns", 20, "T3"),
    (&[Guard::LagForgets], "jump-behind", 20, "T3"),
    (&[Guard::Margin], "clock", 5, "T3"),
    (&[Guard::WithinFree], "proofs", 5, "T3"),
    (&[Guard::RoundDown], "late-replies", 10, "T3"),
    (&[Guard::DepositsAreLocal], "newcomers", 40, "T2"),
    (&[Guard::DirectIsDynamic], "curves", 5, "T3"),
    (&[Guard::RefillBeforeStepping], "raise", 10, "T1"),
    (&[Guard::ClipCentral], "lower-lose-raise", 30, "T3"),
    (&[Guard::ChargeWholeCurve], "suspend", 10, "T3"),
    (&[Guard::KeepUntilQuoted], "outage", 5, "T3"),
    (&[Guard::ClipHolder], "suspend", 8, "T3"),
    (&[Guard::RefillPiecewise], "proved-twice", 5, "T3"),
    (&[Guard::EndWithCurve], "clock", 5, "T3"),
    (&[Guard::StartAtSending], "late-replies", 10, "T3"),
    (&[Guard::AnswersOutstanding], "late-replies", 30, "T3"),
    // Rules 5 and 10 stand for each other: a grant of the past answers no outstanding request, or its name is not higher.
    (&[Guard::AnswersOutstanding, Guard::NameRises], "late-replies", 10, "T3"),
    (&[Guard::AnswersOutstanding, Guard::NameRises, Guard::EpochRises], "late-replies", 10, "T3"),
    (&[Guard::FallbackKeepsLevel], "beyond", 60, "T2"),
    (&[Guard::FallbackApart], "beyond", 10, "T3"),
    (&[Guard::FloorIsCentral], "beyond", 30, "T2"),
    (&[Guard::CheckBeforeSending], "late-sends", 3, "T5"),
    (&[Guard::HandBackToSameLease], "late-sends", 3, "T3"),
    (&[Guard::HandBackTakesDeposit], "newcomers", 5, "T3"),
    (&[Guard::SuspendCounts], "suspend", 3, "T3"),
    (&[Guard::OneShareById], "stranded", 10, "work"),
    (&[Guard::IdleShrinks], "idle", 3, "work"),
    (&[Guard::SlotsLinger], "permits", 30, "T5"),
];

/// The same where there are agents.
#[rustfmt::skip]
pub const MISSED_BY_AGENTS: [Missed; 13] = [
    (&[Guard::SubleaseEndsWithParent], "agents-end", 10, "T3"),
    (&[Guard::SubleaseWithinParent], "agents-late", 10, "T3"),
    (&[Guard::SubleaseUntilQuoted], "agents-end", 10, "T3"),
    (&[Guard::SubleaseMargin], "agents-late", 20, "T3"),
    (&[Guard::SubleasesFence], "agents-clones", 40, "T3"),
    (&[Guard::SubleasesFitQuoted], "agents-shrink", 10, "T3"),
    (&[Guard::LentIsNotOwn], "agents-calm", 10, "T3"),
    (&[Guard::LentLevelIsWithdrawn], "agents-calm", 10, "T3"),
    (&[Guard::LeavesWithNothingLent], "agents-leave", 10, "T3"),
    (&[Guard::SubleaseIsNoProof], "agents-turn", 150, "T3"),
    (&[Guard::RevokedIsNotLent], "agents-revoke", 10, "revoked"),
    (&[Guard::FencedSubleasesEnd], "agents-copied", 20, "T3"),
    (&[Guard::CrowdedAreServed], "agents-crowded", 10, "work"),
];
