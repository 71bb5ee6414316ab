//! Every guard is missed when it is switched off: by which oracle, in which family, within how many seeds.
//!
//! `SIM_HUNT=N` shows for each guard, or for the one that `SIM_GUARD` names, which families miss it how often among their
//! first N seeds.

use budget::guard::{self, Guard};

use crate::{
    run::{judge, of_family},
    schedule::directed::{Family, families},
};

/// Guards that are switched off together, the family that misses them, within how many seeds, and the oracle.
type Missed = (&'static [Guard], &'static str, u64, &'static str);

#[rustfmt::skip]
const MISSED: [Missed; 51] = [
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
    (&[Guard::FallbackKeepsLevel], "beyond", 40, "T2"),
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

/// Judged where there are agents.
const ELSEWHERE: [Guard; 1] = [Guard::SubleaseEndsWithParent];

/// What a run of one seed says while guards are off.
fn without(guards: &[Guard], family: Family, seed: u64) -> Option<String> {
    guard::switch_off(guards);
    let verdict = judge(seed, of_family(family, seed));
    guard::switch_off(&[]);
    verdict.err()
}

fn family(named: &str) -> Family {
    families().find(|(name, _)| *name == named).map_or_else(|| panic!("no family {named}"), |(_, family)| family)
}

#[test]
fn every_guard_is_missed() {
    if let Ok(count) = std::env::var("SIM_HUNT") {
        return hunt(count.parse().unwrap());
    }
    let mut unnoticed = Vec::new();
    for (guards, name, seeds, oracle) in MISSED {
        let family = family(name);
        let found = (1..=seeds).find_map(|seed| {
            without(guards, family, seed).filter(|what| what.starts_with(oracle)).map(|what| (seed, what))
        });
        match found {
            Some((seed, what)) => {
                println!("{guards:?}: {name} {seed}: {what}");
                // It is the guard that is missed, not something else.
                let with = judge(seed, of_family(family, seed));
                assert!(with.is_ok(), "{name} {seed} fails with all guards on: {:?}", with.err());
            }
            None => unnoticed.push(format!("{guards:?} is not missed by {oracle} in {seeds} seeds of {name}")),
        }
    }
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
}

#[test]
fn every_guard_has_its_line() {
    for guard in Guard::ALL {
        let listed = MISSED.iter().any(|(guards, ..)| guards.contains(&guard));
        assert!(listed != ELSEWHERE.contains(&guard), "{guard:?}");
    }
}

/// Shows which families miss which guard.
fn hunt(count: u64) {
    let only = std::env::var("SIM_GUARD").ok();
    for guard in Guard::ALL.into_iter().filter(|guard| only.as_ref().is_none_or(|only| *only == format!("{guard:?}"))) {
        let mut found = Vec::new();
        for (name, family) in families() {
            let caught: Vec<_> =
                (1..=count).filter_map(|seed| Some((seed, without(&[guard], family, seed)?))).collect();
            if let Some((seed, what)) = caught.first() {
                let oracle: String = what.chars().take(4).collect();
                found.push((caught.len(), name, *seed, oracle));
            }
        }
        found.sort_by(|a, b| b.cmp(a));
        println!("{guard:?}: {:?}", &found[..found.len().min(5)]);
    }
}
