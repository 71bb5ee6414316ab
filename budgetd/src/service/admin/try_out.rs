//! TryPolicies: rules that are not in force, on the calls of this replica.

use std::{sync::Arc, time::Duration};

use budget_proto::{InvalidMessage, convert, pb};
use futures::{StreamExt, stream, stream::BoxStream};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tonic::Status;

use super::{Admin, NAME_BYTES_MAX};
use crate::{
    policies::{PoliciesError, PolicySet, Snapshot},
    service::{
        sight::refusals,
        status::of_policies,
        trial::{Found, Running},
    },
    store::Store,
    telemetry::tally::Tally,
};

/// How long a trial may last.
const FOR_MS: std::ops::RangeInclusive<i64> = 1_000..=600_000;
/// Between two messages.
const EVERY: Duration = Duration::from_secs(1);
/// Dependencies of one message.
const TRIALS_SHOWN: usize = 1_000;

/// The answers of one trial.
pub(super) type Trying = BoxStream<'static, Result<pb::TryPoliciesResponse, Status>>;

// === impl Admin ===

impl<S: Store> Admin<S> {
    pub(super) fn try_out(&self, request: pb::TryPoliciesRequest) -> Result<Trying, Status> {
        let for_ms = convert::exact("for_ms", request.for_ms)?;
        if !FOR_MS.contains(&for_ms) {
            let rule = format!("must be between {} and {}", FOR_MS.start(), FOR_MS.end());
            return Err(InvalidMessage::number("for_ms", for_ms, rule).into());
        }
        let snapshot = self.0.policies.snapshot();
        let mut rules = snapshot.set().sources();
        for rule in request.rules {
            if rule.name.len() > NAME_BYTES_MAX {
                return Err(InvalidMessage::text("rules.name", &rule.name, "is too long for a name").into());
            }
            rules.insert(rule.name, rule.source_toml);
        }
        let set = PolicySet::of_rules(&rules, Some(snapshot.set()));
        let set = set.map_err(|error| of_policies(&PoliciesError::Invalid(error)))?;
        let candidate = Snapshot::new(snapshot.version(), Arc::new(set), snapshot.switches().clone());
        let permit = self.0.sight.open_stream()?;
        let running = self.0.sight.trials.begin(snapshot, candidate);
        let running = running.ok_or_else(|| Status::resource_exhausted("too many policies are on trial already"))?;
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let begun = Instant::now();
        let until = begun + Duration::from_millis(for_ms.unsigned_abs());
        let turn = move |state: Option<(Running, tokio::time::Interval, tokio::sync::OwnedSemaphorePermit)>| async move {
            let (running, mut ticks, permit) = state?;
            tokio::select! {
                _ = ticks.tick() => {}
                () = tokio::time::sleep_until(until) => {}
            }
            let now = Instant::now();
            let finished = now >= until;
            let response = message(&running, now.saturating_duration_since(begun), finished);
            Some((Ok(response), (!finished).then_some((running, ticks, permit))))
        };
        Ok(stream::unfold(Some((running, ticks, permit)), turn).take_until(self.0.stop.begun()).boxed())
    }
}

fn message(running: &Running, elapsed: Duration, finished: bool) -> pb::TryPoliciesResponse {
    let (found, left_out) = running.found();
    let trials = found.into_iter().take(TRIALS_SHOWN).map(|(name, Found { real, present, candidate })| pb::Trial {
        dependency: name.to_string(),
        real: Some(tally(&real)),
        present: Some(tally(&present)),
        candidate: Some(tally(&candidate)),
    });
    pb::TryPoliciesResponse {
        elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        finished,
        trials: trials.collect(),
        left_out,
    }
}

fn tally(tally: &Tally) -> pb::Tally {
    let [originals_admitted, retries_admitted] = tally.admitted;
    pb::Tally { originals_admitted, retries_admitted, refusals: refusals(&tally.denied) }
}
