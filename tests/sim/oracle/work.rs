//! Useful work: a budget that admits nothing keeps every bound. And what an operator takes away must stop.

use crate::{
    history::{Admission, History, Source},
    scenario::Work,
    time::{MS, S},
};

/// Judges the stretches that a scenario names; what is asked for there is more than what may be admitted. `streams`: of the
/// latest incarnation of each process.
pub(crate) fn judge(history: &History, streams: &[u32], works: &[Work]) -> Result<(), String> {
    for work in works {
        let (from_ms, to_ms) = match *work {
            Work::Calm { from_ms, to_ms, .. } | Work::Outage { from_ms, to_ms } => (from_ms, to_ms),
            Work::Revoked { process, from_ms, to_ms } => {
                judge_revoked(history, process, streams[process], from_ms * MS..to_ms * MS)?;
                continue;
            }
        };
        let (from, to) = (from_ms * MS, to_ms * MS);
        let within = history.admissions.iter().filter(|admission| (from..to).contains(&admission.at));
        let admitted = within.filter(|admission| !admission.unsent && admission.source != Source::Fallback).count();
        let admitted = i64::try_from(admitted).unwrap_or(i64::MAX);
        let (expected, percent, what) = match *work {
            Work::Calm { percent, .. } => {
                let rate = history.bounds.last().map_or(0, |(_, bound)| bound.rate);
                (rate / 1_000 * (to_ms - from_ms) / 1_000_000, percent, "policy")
            }
            Work::Outage { .. } | Work::Revoked { .. } => (history.held_between(from, to), 90, "curves"),
        };
        if admitted * 100 < expected * percent {
            return Err(format!(
                "work from {} s to {} s: {admitted} admitted, {percent}% of what the {what} carry ({expected}) are required",
                from / S,
                to / S
            ));
        }
    }
    Ok(())
}

fn judge_revoked(history: &History, process: usize, stream: u32, within: std::ops::Range<i64>) -> Result<(), String> {
    let by_lease = |it: &&Admission| it.stream == stream && it.source == Source::Lease && within.contains(&it.at);
    match history.admissions.iter().find(by_lease) {
        Some(it) => Err(format!("revoked: process {process} admits by a lease at {} ms", it.at / MS)),
        None => Ok(()),
    }
}
