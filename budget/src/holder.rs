//! The lease side of one dependency in one process: what it may decide by itself, and when it asks for more.
//!
//! [`Share`] decides; any number of threads use it at once. [`Holder`] is the protocol: it says what to send and when,
//! takes answers, and gives the share its leases. Neither reads a clock nor does I/O. All times are nanoseconds of one
//! clock that goes on in suspend (`CLOCK_BOOTTIME`).

mod agent;
mod alike;
mod beyond;
mod control;
mod counts;
mod homes;
mod jitter;
mod lender;
#[cfg(feature = "guards")]
mod probe;
mod request;
mod segment;
mod share;
mod spent;
mod word;

use std::sync::Arc;

use crate::{
    guard::{Guard, on},
    lease::{
        Epoch, FallbackRules, Grant, HolderId, Incarnation, LeaseName, NotLeased, Presented, Rules, SyncAnswer,
        SyncAsk, Timing, Usage,
    },
};
pub use alike::Alike;
use control::Control;
use jitter::Jitter;
use lender::Lender;
use request::{Lease, Outstanding, is_higher, is_less, sane};
pub use share::{Local, LocalAsk, Share};
pub use spent::Spent;

const NANOS_PER_MS: i64 = 1_000_000;
/// Sending times kept of one request's attempts; an answer to an older one counts from the first.
const ATTEMPTS_KEPT: usize = 16;
/// Smaller leases are acknowledged at once so often in a row; then the usual interval holds.
const ACKNOWLEDGED_AT_ONCE_MAX: u32 = 2;
/// Where leases are not permitted, it is asked again after so many intervals.
const NOT_PERMITTED_INTERVALS: i64 = 6;

/// What the owner of a holder has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this and report the answer or the failure.
    Send {
        /// The request; a re-send is identical.
        ask: Box<SyncAsk>,
        /// Counts the sendings of one request from 0. A transport that can tell which one is answered says so.
        attempt: u32,
    },
    /// Nothing before this time, unless an answer comes or the holder is told to leave.
    Wait {
        /// Poll again then.
        until_ns: i64,
    },
}

/// An answer as it came.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// Of the request it answers.
    pub sequence: i64,
    /// Of the request it answers.
    pub nonce: i64,
    /// Which sending it answers; absent if the transport cannot tell: then the first is assumed, which is safe.
    pub attempt: Option<u32>,
    /// What it says.
    pub answer: &'a SyncAnswer,
    /// The rules told with it.
    pub rules: Option<&'a Rules>,
}

/// How a holder stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No lease yet, or no longer.
    Unleased,
    /// A lease is in force.
    Leased,
    /// Told to use Reserve: the share is too small, or leases are not permitted.
    Parked,
    /// Another process lives under this incarnation: [`Holder::reincarnate`].
    Fenced,
    /// Said good-bye.
    Left,
}

/// The lease side of one dependency: a machine that its owner drives.
#[derive(Debug)]
pub struct Holder {
    share: Arc<Share>,
    id: HolderId,
    incarnation: Incarnation,
    weight: i64,
    timing: Arc<Timing>,
    jitter: Jitter,
    state: State,
    /// The highest seen.
    epoch: Epoch,
    /// Of the last lease that was applied; kept beyond its end.
    name: LeaseName,
    /// Whether that lease may be presented as long as its curve lasts. The share keeps it.
    holds: bool,
    sequence: i64,
    outstanding: Option<Box<Outstanding>>,
    /// When the next request is due.
    due_ns: i64,
    acknowledged_at_once: u32,
    asked_anew_at_once: bool,
    /// Sendings without an answer since the last one.
    unanswered: u32,
    counted: Usage,
    leaving: bool,
    /// Where it lends of its leases.
    lender: Option<Box<Lender>>,
}

// === impl Holder ===

impl Holder {
    /// A holder that has no lease and asks for one at once. Holders of several dependencies may share `timing`. `fallback`
    /// holds until a policy is told; `seed` spreads the times of sending.
    #[must_use]
    pub fn new(
        id: HolderId,
        incarnation: Incarnation,
        weight: i64,
        timing: impl Into<Arc<Timing>>,
        fallback: FallbackRules,
        seed: u64,
        now_ns: i64,
    ) -> Self {
        Self {
            share: Arc::new(Share::new(fallback, now_ns)),
            id,
            incarnation,
            weight,
            timing: timing.into(),
            jitter: Jitter::new(seed),
            state: State::Unleased,
            epoch: Epoch::default(),
            name: LeaseName::default(),
            holds: false,
            sequence: 0,
            outstanding: None,
            due_ns: now_ns,
            acknowledged_at_once: 0,
            asked_anew_at_once: false,
            unanswered: 0,
            counted: Usage::default(),
            leaving: false,
            lender: None,
        }
    }

    /// The hot part.
    #[must_use]
    pub const fn share(&self) -> &Arc<Share> {
        &self.share
    }

    /// Its life.
    #[must_use]
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The highest epoch seen.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// How it stands.
    #[must_use]
    pub fn state(&self, now_ns: i64) -> State {
        if self.state != State::Leased {
            return self.state;
        }
        let in_force = self.held(&self.share.lock()).is_some_and(|held| !held.is_over(now_ns));
        if in_force { State::Leased } else { State::Unleased }
    }

    /// The lease in force: its name, value before the curve, and position.
    #[must_use]
    pub fn lease(&self, now_ns: i64) -> Option<Presented> {
        self.held(&self.share.lock()).and_then(|held| held.present(self.name, now_ns))
    }

    /// The lease as it was granted. The share of an agent has only a part of it.
    fn held<'a>(&'a self, control: &'a Control) -> Option<&'a Lease> {
        match &self.lender {
            _ if !self.holds => None,
            Some(lender) => lender.latest(),
            None => control.lease.as_ref(),
        }
    }

    /// Sendings since the last answer: the coordinator is away, as far as it can be seen from here.
    #[must_use]
    pub const fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// When it wants to be polled; `i64::MAX`: not before an answer, a new life or never.
    #[must_use]
    pub fn due_ns(&self) -> i64 {
        match (self.state, &self.outstanding) {
            (State::Fenced | State::Left, _) => i64::MAX,
            (_, Some(outstanding)) => outstanding.resend_ns,
            (_, None) => self.due_ns,
        }
    }

    /// Makes the next request due now, so that it shares a message with others. One that is on its way stays.
    pub fn hasten(&mut self, now_ns: i64) {
        if self.outstanding.is_none() {
            self.due_ns = self.due_ns.min(now_ns);
        }
    }

    /// What to do now. `fresh` are random bits that a clone of this process would not repeat: from the operating system,
    /// new at each call.
    pub fn poll(&mut self, now_ns: i64, fresh: u64) -> Action {
        if matches!(self.state, State::Fenced | State::Left) {
            return Action::Wait { until_ns: i64::MAX };
        }
        if let Some(outstanding) = &mut self.outstanding {
            if now_ns < outstanding.resend_ns {
                return Action::Wait { until_ns: outstanding.resend_ns };
            }
            outstanding.attempt = outstanding.attempt.saturating_add(1);
        } else {
            if now_ns < self.due_ns {
                return Action::Wait { until_ns: self.due_ns };
            }
            let ask = self.ask(now_ns, fresh);
            let outstanding = Outstanding { ask, sent: Vec::new(), attempt: 0, resend_ns: 0 };
            self.outstanding = Some(Box::new(outstanding));
        }
        self.send(now_ns)
    }

    fn ask(&mut self, now_ns: i64, fresh: u64) -> SyncAsk {
        self.tidy(now_ns);
        self.sequence = self.sequence.saturating_add(1);
        SyncAsk {
            holder: self.id.clone(),
            incarnation: self.incarnation,
            sequence: self.sequence,
            nonce: self.jitter.nonce(fresh),
            epoch: self.epoch,
            lease: self.quoted(now_ns),
            usage: self.usage(),
            counted: self.counted.clone(),
            in_flight: self.share.in_flight(),
            weight: self.weight,
            leave: self.leaving,
        }
    }

    fn send(&mut self, now_ns: i64) -> Action {
        let timing = &self.timing;
        let Some(outstanding) = &mut self.outstanding else { return Action::Wait { until_ns: self.due_ns } };
        let attempt = outstanding.attempt;
        let wait_ms = self.jitter.between(timing.resend_min_ms, timing.resend_max_ms);
        let doubled_ms = wait_ms.saturating_mul(1_i64 << attempt.min(20)).min(timing.renew_max_ms.max(wait_ms));
        outstanding.resend_ns = now_ns.saturating_add(doubled_ms.saturating_mul(NANOS_PER_MS));
        if outstanding.sent.len() >= ATTEMPTS_KEPT {
            // The first stays: an unknown sending counts from there.
            outstanding.sent.remove(1);
        }
        outstanding.sent.push((attempt, now_ns));
        self.unanswered = self.unanswered.saturating_add(1);
        Action::Send { ask: Box::new(outstanding.ask.clone()), attempt }
    }

    /// Takes an answer. One that does not answer the outstanding request changes nothing.
    pub fn on_answer(&mut self, now_ns: i64, reply: &Reply<'_>) {
        let Some(outstanding) = &self.outstanding else { return };
        let answers = outstanding.ask.sequence == reply.sequence && outstanding.ask.nonce == reply.nonce;
        if !answers && on(Guard::AnswersOutstanding) {
            return;
        }
        if self.is_of_the_past(reply.answer) {
            return;
        }
        let Some(outstanding) = self.outstanding.take() else { return };
        self.unanswered = 0;
        self.counted = outstanding.ask.usage.clone();
        let sent_ns = outstanding.sent_ns(reply.attempt);
        self.due_ns = self.after(now_ns, self.timing.renew_min_ms, self.timing.renew_max_ms);
        let asked_anew_at_once = std::mem::take(&mut self.asked_anew_at_once);
        let own_rules = self.own_rules(reply.rules);
        let mut rules = own_rules.as_ref().or(reply.rules);
        match reply.answer {
            SyncAnswer::Granted(grant) => {
                if self.on_grant(now_ns, if on(Guard::StartAtSending) { sent_ns } else { now_ns }, grant, rules) {
                    rules = None;
                }
            }
            SyncAnswer::Epoch(epoch) => {
                self.epoch = *epoch;
                self.ask_anew(now_ns, asked_anew_at_once);
            }
            SyncAnswer::Dead => self.ask_anew(now_ns, asked_anew_at_once),
            SyncAnswer::Wait(ms) => {
                let earliest_ns = now_ns.saturating_add(ms.clamp(&0, &MAX_WAIT_MS).saturating_mul(NANOS_PER_MS));
                self.due_ns = self.after(earliest_ns, 0, self.timing.resend_min_ms);
            }
            SyncAnswer::Fenced | SyncAnswer::Invalid(_) => self.fence(now_ns),
            SyncAnswer::NotLeased(why) => self.on_refusal(now_ns, *why),
            SyncAnswer::Left => self.state = State::Left,
        }
        if let Some(rules) = rules {
            let share = Arc::clone(&self.share);
            share.adopt(&mut share.lock(), now_ns, rules);
        }
    }

    /// Rule 10: what a holder of a higher epoch does not listen to.
    fn is_of_the_past(&self, answer: &SyncAnswer) -> bool {
        let told = match answer {
            SyncAnswer::Granted(grant) => grant.name.epoch,
            SyncAnswer::Epoch(epoch) => *epoch,
            SyncAnswer::Wait(_)
            | SyncAnswer::Dead
            | SyncAnswer::Fenced
            | SyncAnswer::NotLeased(_)
            | SyncAnswer::Invalid(_)
            | SyncAnswer::Left => return false,
        };
        told.number < self.epoch.number && on(Guard::EpochRises)
    }

    /// Whether the lease was applied, and the rules with it.
    fn on_grant(&mut self, now_ns: i64, sent_ns: i64, grant: &Grant, rules: Option<&Rules>) -> bool {
        if grant.name.epoch.supersedes(self.epoch) {
            self.epoch = grant.name.epoch;
        }
        if !is_higher(grant.name, self.name) && on(Guard::NameRises) {
            return false;
        }
        let share = Arc::clone(&self.share);
        let mut control = share.lock();
        if rules.is_none() && control.rules.version == crate::ids::PolicyVersion::default() {
            // A lease is nothing without the rules to spend it by.
            return false;
        }
        let before = self.held(&control).filter(|held| !held.is_over(now_ns));
        let shrinks = before.is_some_and(|held| is_less(&grant.value, &held.value));
        let start_ns = sent_ns.saturating_sub(grant.position_ms.max(0).saturating_mul(NANOS_PER_MS));
        self.name = grant.name;
        let granted = Lease { value: sane(&grant.value), curve: grant.curve.clone(), start_ns };
        let over = granted.is_over(now_ns);
        let own = self.own_part(grant.name, granted);
        if grant.value.is_zero() {
            share.withdraw(&mut control, now_ns);
            control.lease = Some(own);
            self.state = State::Parked;
        } else {
            share.install(&mut control, now_ns, own, &sane(&grant.moved), rules);
            self.state = State::Leased;
        }
        self.holds = true;
        let may_quote = self.lender.as_ref().is_none_or(|lender| !lender.is_behind());
        if shrinks && may_quote && self.acknowledged_at_once < ACKNOWLEDGED_AT_ONCE_MAX {
            self.acknowledged_at_once = self.acknowledged_at_once.saturating_add(1);
            self.due_ns = now_ns;
        } else {
            self.acknowledged_at_once = 0;
        }
        if over {
            // The answer was under way for a whole curve.
            self.due_ns = self.after(now_ns, 0, self.timing.resend_min_ms);
        }
        !grant.value.is_zero()
    }

    fn on_refusal(&mut self, now_ns: i64, why: NotLeased) {
        match why {
            NotLeased::NotPermitted => {
                let share = Arc::clone(&self.share);
                share.withdraw(&mut share.lock(), now_ns);
                self.holds = false;
                if let Some(lender) = &mut self.lender {
                    lender.on_refusal();
                }
                self.state = State::Parked;
                let intervals = |ms: i64| ms.saturating_mul(NOT_PERMITTED_INTERVALS);
                self.due_ns =
                    self.after(now_ns, intervals(self.timing.renew_min_ms), intervals(self.timing.renew_max_ms));
            }
            // A lease that is still in force goes on along its curve.
            NotLeased::TooManyHolders => {
                if self.state(now_ns) != State::Leased {
                    self.state = State::Parked;
                }
            }
        }
    }

    /// A request failed: refused connection, time-out, an error in place of an answer. Whether it was granted is unknown;
    /// it is sent again when its time has come.
    pub fn on_failure(&mut self, now_ns: i64, sequence: i64, nonce: i64) {
        let Some(outstanding) = &mut self.outstanding else { return };
        if outstanding.ask.sequence == sequence && outstanding.ask.nonce == nonce {
            // Not earlier than planned: failures that come fast must not be answered with requests as fast.
            outstanding.resend_ns = outstanding.resend_ns.max(now_ns);
        }
    }

    /// Stops: nothing is spent of a lease from now on, and the next poll says so to the coordinator.
    pub fn leave(&mut self, now_ns: i64) {
        if matches!(self.state, State::Fenced | State::Left) {
            return;
        }
        let share = Arc::clone(&self.share);
        share.withdraw(&mut share.lock(), now_ns);
        self.leaving = true;
        self.outstanding = None;
        if self.has_lent() && on(Guard::LeavesWithNothingLent) {
            // What is lent runs on, and so must its charge: nothing is said, and the lease ends by its curve.
            self.state = State::Left;
            return;
        }
        self.state = State::Unleased;
        // The lease is presented once more, so that the ledger knows which one is given up.
        self.due_ns = now_ns;
    }

    /// Begins a new life: without a lease, with counters at 0.
    pub fn reincarnate(&mut self, now_ns: i64, incarnation: Incarnation) {
        let share = Arc::clone(&self.share);
        share.reincarnate(&mut share.lock(), now_ns);
        self.incarnation = incarnation;
        self.state = State::Unleased;
        self.holds = false;
        self.name = LeaseName::default();
        self.sequence = 0;
        self.outstanding = None;
        self.counted = Usage::default();
        self.leaving = false;
        if let Some(lender) = &mut self.lender {
            lender.reincarnate(incarnation, &self.timing);
        }
        self.acknowledged_at_once = 0;
        self.asked_anew_at_once = false;
        self.due_ns = self.after(now_ns, 0, self.timing.resend_min_ms);
    }

    fn fence(&mut self, now_ns: i64) {
        let share = Arc::clone(&self.share);
        share.withdraw(&mut share.lock(), now_ns);
        self.holds = false;
        self.state = State::Fenced;
    }

    /// A new request: at once, but not twice in a row.
    fn ask_anew(&mut self, now_ns: i64, again: bool) {
        self.asked_anew_at_once = true;
        self.due_ns =
            if again { self.after(now_ns, self.timing.resend_min_ms, self.timing.resend_max_ms) } else { now_ns };
    }

    fn after(&mut self, now_ns: i64, min_ms: i64, max_ms: i64) -> i64 {
        now_ns.saturating_add(self.jitter.between(min_ms, max_ms).saturating_mul(NANOS_PER_MS))
    }
}

/// Longest wait a coordinator may ask for.
const MAX_WAIT_MS: i64 = 600_000;

#[cfg(test)]
mod tests;
