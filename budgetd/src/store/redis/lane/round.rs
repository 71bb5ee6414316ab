//! One round of a lane: send, and send again what may and must be, until every step has its answer.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use budget::{
    decision::{Answer, Step},
    ids::PolicyVersion,
    lease::Synced,
};
use deadpool_redis::redis::{Pipeline, Value};

use super::{Call, Lane, count};
use crate::{
    clock::Clock,
    store::{
        Answered, StoreError,
        redis::{
            codec::{AlsoAnswer, LendReply, Lent, Reply, read_lend_reply, read_reply, split_reply},
            failure::{Failure, Refusal},
            metrics::ErrorKind,
            queue::{Done, Waiting, Work},
            scripts::{self, By},
        },
    },
};

/// After reading the policies again did not give newer ones, they are not read again for stale calls for this long.
const REFRESH_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What has been done once in this round, and is not done again.
#[derive(Default)]
struct Tried {
    load: bool,
    source: bool,
    connection: bool,
    refresh: bool,
}

/// How a call ended.
enum End {
    /// All its steps are answered.
    Answered,
    /// The ledger has newer numbers; nothing was done.
    Stale(Call, PolicyVersion),
    /// The ledger lends, so another script is to be called; nothing was done.
    Lends(Call),
    /// The server does not know the script; nothing was done.
    NoScript(Call),
    /// Its ledgers are in several hash slots; nothing was done.
    CrossSlot(Call),
    /// The server refused; what is left of the call may be sent again on another connection.
    Refused(Call, Failure),
}

impl Lane {
    /// Sends one round. Returns how many steps it carried.
    pub(super) async fn round(&mut self) -> usize {
        let mut calls = self.choose(Clock::instant());
        let steps = calls.iter().map(|call| call.waiting.len()).sum();
        let mut tried = Tried::default();
        // Ends because each reason to go on holds once, but for the second kind of a stale call.
        while !calls.is_empty() {
            calls = self.send(calls, &mut tried).await;
        }
        steps
    }

    /// Sends these calls; returns those that are to be sent again.
    async fn send(&mut self, calls: Vec<Call>, tried: &mut Tried) -> Vec<Call> {
        let mut calls = match self.prepare(calls).await {
            Ok(calls) if calls.is_empty() => return Vec::new(),
            Ok(calls) => calls,
            Err((failure, calls)) => return self.after_failure(calls, &failure, tried),
        };
        let replies = match self.exchange(&mut calls, tried).await {
            Ok(replies) => replies,
            Err(failure) => return self.after_failure(calls, &failure, tried),
        };
        let (mut again, mut reload, mut stale, mut refused) = (Vec::new(), Vec::new(), Vec::new(), None);
        let mut answered = false;
        for (call, reply) in calls.into_iter().zip(replies) {
            match self.end(call, reply) {
                End::Answered => answered = true,
                End::Stale(call, version) => {
                    answered = true;
                    self.policies.saw(version);
                    stale.push(call);
                }
                End::Lends(call) => {
                    answered = true;
                    again.push(Call { lends: true, ..call });
                }
                End::NoScript(call) => reload.push(call),
                End::CrossSlot(call) => {
                    answered = true;
                    self.one_slot = true;
                    again.push(Call { apart: true, ..call });
                }
                End::Refused(call, failure) => {
                    // Another server may stand behind the address now.
                    if failure.kind == ErrorKind::ReadOnly && !tried.connection {
                        again.push(call);
                    } else {
                        call.answer_all(&failure.to_store_error());
                    }
                    refused = Some(failure);
                }
            }
        }
        if let Some(failure) = refused {
            if failure.discard {
                self.discard_link();
            }
            if failure.kind == ErrorKind::ReadOnly && !tried.connection && !again.is_empty() {
                tried.connection = true;
                count(&self.redis.metrics().steps_resent, again.iter().map(|call| call.waiting.len()).sum());
                self.redis.metrics().error(failure.kind);
                self.redis.forget_idle_connections();
            } else if !answered {
                self.redis.note_failure(&failure);
            } else {
                self.redis.metrics().error(failure.kind);
            }
        } else if answered {
            self.redis.note_success();
        }
        if !reload.is_empty() {
            again.extend(self.reload(reload, tried));
        }
        if !stale.is_empty() {
            again.extend(self.refresh(stale, tried).await);
        }
        self.still_wanted(again, tried)
    }

    /// Has a connection ready, and gives calls on ledgers that lend what they bring.
    async fn prepare(&mut self, mut calls: Vec<Call>) -> Result<Vec<Call>, (Failure, Vec<Call>)> {
        if self.link.is_none() {
            match self.redis.lane_link().await {
                Ok(link) => self.link = Some(link),
                Err(failure) => return Err((failure, calls)),
            }
        }
        let Some(link) = self.link.as_mut().filter(|_| calls.iter().any(|call| call.lends)) else { return Ok(calls) };
        let error = match link.identity().await {
            Ok(identity) => {
                let now = Clock::instant();
                let brought = calls.iter_mut().filter(|call| call.lends).try_for_each(|call| {
                    call.ground = self.lenders.ground(&call.dependency, identity, call.is_beat(), now)?;
                    Ok(())
                });
                match brought {
                    Ok(()) => return Ok(calls),
                    Err(error) => error,
                }
            }
            Err(failure) if failure.discard => return Err((failure, calls)),
            // Who may not ask which server it is cannot lend.
            Err(failure) => StoreError::Away(failure.text),
        };
        tracing::warn!(%error, "leases are not possible with this store");
        let (lending, others): (Vec<_>, Vec<_>) = calls.into_iter().partition(|call| call.lends);
        for call in lending {
            call.answer_all(&error);
        }
        Ok(others)
    }

    /// One pipeline, there and back: a reply for each call. Puts the calls in another order.
    async fn exchange(&mut self, calls: &mut [Call], tried: &Tried) -> Result<Vec<Value>, Failure> {
        let now_ms = self.redis.injected_now();
        let Some(link) = &mut self.link else { return Err(Failure::unexpected_reply("no link")) };
        let sent = Clock::instant();
        // Under an injected clock no time passes in the queue.
        let now = (!self.redis.clock_is_injected()).then_some(sent);
        let by = if tried.source { By::Source } else { By::Digest };
        let load = tried.load && !tried.source;
        // Those that can share a call stand together.
        calls.sort_by_key(|call| call.lends);
        let mut commands = Pipeline::with_capacity(4);
        let scripts = [(&*scripts::APPLY, false), (&*scripts::LEND, true)];
        let mut loaded = 0_usize;
        for (script, lends) in scripts {
            if load && calls.iter().any(|call| call.lends == lends) {
                commands.add_command(script.load());
                loaded += 1;
            }
        }
        let metrics = self.redis.metrics();
        let (mut shares, mut rest) = (Vec::new(), &*calls);
        while !rest.is_empty() {
            let (sharing, others) = rest.split_at(Call::sharing(rest, self.one_slot).clamp(1, rest.len()));
            commands.add_command(Call::command(sharing, by, self.redis.way(), &now_ms, now));
            let steps = sharing.iter().map(|call| call.waiting.len()).sum();
            count(&metrics.steps, steps);
            metrics.batch_size.observe(u64::try_from(steps).unwrap_or(u64::MAX));
            shares.push(sharing.len());
            rest = others;
        }
        count(&metrics.script_calls, shares.len());
        let replies = link.send(&commands).await;
        let took = Clock::instant().saturating_duration_since(sent);
        metrics.round_trip_micros.observe(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        // If loading failed, the calls behind it say so.
        let replies = replies?.into_iter().skip(loaded);
        let mut split = Vec::with_capacity(calls.len());
        for (reply, sharing) in replies.zip(shares) {
            match calls.get(split.len()) {
                Some(call) if call.lends => split.push(reply),
                _ => split.extend(split_reply(reply, sharing)),
            }
        }
        Ok(split)
    }

    /// No replies: nothing was sent, or it is unknown what was applied.
    fn after_failure(&mut self, calls: Vec<Call>, failure: &Failure, tried: &mut Tried) -> Vec<Call> {
        self.discard_link();
        let resend = failure.is_broken_connection() && !tried.connection;
        if !resend {
            self.redis.note_failure(failure);
            for call in calls {
                call.answer_all(&failure.to_store_error());
            }
            return Vec::new();
        }
        tried.connection = true;
        self.redis.metrics().error(failure.kind);
        self.redis.forget_idle_connections();
        let now = Clock::instant();
        let mut again = Vec::with_capacity(calls.len());
        for mut call in calls {
            let (resent, lost): (Vec<_>, Vec<_>) =
                call.waiting.into_iter().partition(|waiting| carries_id(&waiting.work) && waiting.is_wanted(now));
            super::answer_all(lost, &failure.to_store_error());
            count(&self.redis.metrics().steps_resent, resent.len());
            if !resent.is_empty() {
                call.waiting = resent;
                again.push(call);
            }
        }
        again
    }

    /// Gives the steps of one call their answers, or says why there are none.
    fn end(&self, mut call: Call, reply: Value) -> End {
        let failure = if let Value::ServerError(error) = reply {
            if error.code() == "CROSSSLOT" && !call.lends && !call.apart {
                return End::CrossSlot(call);
            }
            match Refusal::of(&error) {
                Refusal::NoScript => return End::NoScript(call),
                Refusal::Failure(failure) if failure.speaks_against_the_store() => return End::Refused(call, failure),
                Refusal::Failure(failure) => failure,
            }
        } else {
            let sent = &call.entry.resolved;
            let steps = call.waiting.iter().filter_map(Waiting::step);
            if call.lends {
                let read = read_lend_reply(reply, sent.version, &sent.numbers, steps, call.also(&call.asks()));
                match read {
                    Ok(LendReply::Done(lent)) => {
                        self.lent(call, *lent);
                        return End::Answered;
                    }
                    Ok(LendReply::Stale { version }) => return End::Stale(call, version),
                    Err(unexpected) => Failure::unexpected_reply(unexpected),
                }
            } else {
                match read_reply(reply, sent.version, &sent.numbers, steps) {
                    Ok(Reply::Done { version, shadow, answers }) => {
                        let waiting = std::mem::take(&mut call.waiting);
                        for (waiting, answer) in waiting.into_iter().zip(answers) {
                            waiting.answer(Ok(answered(answer, version, shadow)));
                        }
                        return End::Answered;
                    }
                    Ok(Reply::Stale { version }) => return End::Stale(call, version),
                    Ok(Reply::Lends) => return End::Lends(call),
                    Err(unexpected) => Failure::unexpected_reply(unexpected),
                }
            }
        };
        self.redis.metrics().error(failure.kind);
        tracing::warn!(dependency = call.dependency.as_str(), reason = failure.text, "ledger cannot be read");
        call.answer_all(&failure.to_store_error());
        End::Answered
    }

    /// Answers what a ledger that lends was called for.
    fn lent(&self, call: Call, lent: Lent) {
        let Lent { version, shadow, answers, epoch, holders, needs_beats, quiet_ms, also } = lent;
        let quiet_ms = needs_beats.then_some(quiet_ms);
        self.lenders.learned(&call.dependency, &call.ground, epoch, quiet_ms, Clock::instant());
        let mut answers = answers.into_iter();
        let (mut synced, revoked) = match also {
            AlsoAnswer::Syncs(answers) => (answers.into_iter(), false),
            AlsoAnswer::Revoked(known) => (Vec::new().into_iter(), known),
            AlsoAnswer::Nothing => (Vec::new().into_iter(), false),
        };
        for waiting in call.waiting {
            let outcome = match &waiting.work {
                Work::Step(_) => match answers.next() {
                    Some(Some(answer)) => Ok(answered(answer, version, shadow)),
                    Some(None) | None => Err(StoreError::Away(
                        "its state was lost a moment ago, and whoever had it may still decide".to_owned(),
                    )),
                },
                Work::Sync(_) => match synced.next() {
                    Some(Some(answer)) => Ok(Done::Sync(Box::new(Synced { answer, version, epoch, holders }))),
                    Some(None) | None => {
                        Err(StoreError::Corrupt("what is kept of this holder cannot be read".to_owned()))
                    }
                },
                Work::Revoke(_) => Ok(Done::Revoked(revoked)),
                Work::Beat => Ok(Done::Beaten),
            };
            waiting.answer(outcome);
        }
    }

    /// The script is loaded in front of the calls. Should it be forgotten even between the two, each call carries it.
    fn reload(&self, calls: Vec<Call>, tried: &mut Tried) -> Vec<Call> {
        if tried.source {
            for call in calls {
                call.answer_all(&StoreError::Away("the server does not know a script it was given".to_owned()));
            }
            return Vec::new();
        }
        self.redis.metrics().noscript_reloads.fetch_add(1, Relaxed);
        tried.source = tried.load;
        tried.load = true;
        calls
    }

    /// Newer policies decide; if there are none, the ledger's own numbers do.
    async fn refresh(&mut self, calls: Vec<Call>, tried: &mut Tried) -> Vec<Call> {
        count(&self.redis.metrics().stale, calls.len());
        let before = self.policies.snapshot().version();
        let asked_lately = self.no_newer.is_some_and(|(version, at)| {
            version == before && Clock::instant().saturating_duration_since(at) < REFRESH_AGAIN_AFTER
        });
        if !tried.refresh && !asked_lately {
            if let Err(error) = self.policies.refresh().await {
                tracing::debug!(%error, "policies could not be read again");
            }
            if self.policies.snapshot().version() == before {
                self.no_newer = Some((before, Clock::instant()));
            }
        }
        tried.refresh = true;
        let snapshot = self.policies.snapshot();
        let now = Clock::instant();
        let mut again = Vec::with_capacity(calls.len());
        for mut call in calls {
            // A forced call is never stale.
            if call.force {
                call.answer_all(&StoreError::Corrupt(
                    "stale though the ledger's own numbers were to decide".to_owned(),
                ));
                continue;
            }
            call.force = call.entry.resolved.version == snapshot.version();
            match self.book.look_up(&call.dependency, &snapshot, now) {
                Ok(entry) => {
                    call.entry = entry;
                    again.push(call);
                }
                Err(text) => call.answer_all(&StoreError::UnknownDependency(text)),
            }
        }
        again
    }

    /// Before steps are sent again: those nobody waits for any more are not.
    fn still_wanted(&self, calls: Vec<Call>, tried: &Tried) -> Vec<Call> {
        let now = Clock::instant();
        // What was under way when a connection broke may have been applied.
        let error = if tried.connection {
            StoreError::Lost("the deadline passed before it could be sent again".to_owned())
        } else {
            StoreError::DeadlinePassed
        };
        let mut wanted = Vec::with_capacity(calls.len());
        for mut call in calls {
            let (stay, go): (Vec<_>, Vec<_>) = call.waiting.into_iter().partition(|waiting| waiting.is_wanted(now));
            count(&self.redis.metrics().steps_skipped, go.len());
            super::answer_all(go, &error);
            if !stay.is_empty() {
                call.waiting = stay;
                wanted.push(call);
            }
        }
        wanted
    }

    fn discard_link(&mut self) {
        if let Some(link) = self.link.take() {
            link.discard();
        }
    }
}

fn answered(answer: Answer, version: PolicyVersion, shadow: bool) -> Done {
    Done::Step(Answered { answer, version, shadow, degraded: false, leased: false })
}

/// Applied twice it has the effect of once.
fn carries_id(work: &Work) -> bool {
    match work {
        Work::Step(Step::Reserve(ask)) => !ask.no_release,
        Work::Step(Step::Release(_) | Step::Extend(_)) | Work::Sync(_) | Work::Revoke(_) | Work::Beat => true,
    }
}

#[cfg(test)]
mod tests {
    use budget::{
        decision::{Attempt, Release, Reserve},
        ids::ReservationId,
    };

    use super::*;

    #[test]
    fn a_reserve_without_record_is_never_sent_twice() {
        let id = ReservationId([1; 16]);
        let ask = Reserve::new(id, Attempt::ORIGINAL);
        let carries = |step| carries_id(&Work::Step(step));
        assert!(carries(Step::Reserve(ask.clone())));
        assert!(!carries(Step::Reserve(Reserve { no_release: true, ..ask })));
        assert!(carries(Step::Release(Release::not_sent(id))));
    }
}
