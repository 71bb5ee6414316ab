//! One call as it is sent, and its replies as they are judged.

use budget::{decision::Step, ids::OperationId, lease::SyncAsk};
use budgetd::store::redis::{
    codec::{
        Also, Apply, Lend, LendReply, Lent, Reply, pack_numbers, pack_terms, read_lend_reply, read_reply, split_reply,
    },
    keys::DependencyKeys,
    scripts::By,
};
use deadpool_redis::redis::{Cmd, Pipeline, Value, cmd};

use super::{Call, Deed, Expected, Fate, OPERATIONS};

// === impl Call ===

impl Call {
    pub(super) fn steps(&self) -> &[Step] {
        if let Deed::Steps(steps) = &self.deed { steps } else { &[] }
    }

    fn asks(&self) -> Vec<&SyncAsk> {
        if let Deed::Syncs(asks) = &self.deed { asks.iter().collect() } else { Vec::new() }
    }

    fn also<'a>(&'a self, asks: &'a [&'a SyncAsk]) -> Also<'a> {
        match &self.deed {
            Deed::Steps(_) | Deed::Beat => Also::Nothing,
            Deed::Syncs(_) => Also::Syncs(asks),
            Deed::Revoke(holder) => Also::Revoke(holder),
        }
    }

    /// Adds what is sent; returns how many replies precede that of the dump.
    pub(super) fn send(&self, keys: &DependencyKeys, pipeline: &mut Pipeline) -> usize {
        let operations = OPERATIONS.map(|id| keys.operation(&OperationId::new(id).expect("an id")));
        let all: Vec<String> = keys.of_every_batch().into_iter().chain(keys.of_lending()).chain(operations).collect();
        let saved = |key: &String| format!("{key}:saved");
        match self.fate {
            Fate::Stays => {}
            Fate::Lost => {
                pipeline.add_command(deletion(&all)).ignore();
            }
            Fate::Saved => {
                pipeline.add_command(deletion(&all.iter().map(saved).collect::<Vec<_>>())).ignore();
                for key in &all {
                    pipeline.cmd("COPY").arg(key).arg(saved(key)).ignore();
                    pipeline.cmd("PERSIST").arg(saved(key)).ignore();
                }
            }
            Fate::Older => {
                pipeline.add_command(deletion(&all)).ignore();
                for key in &all {
                    pipeline.cmd("COPY").arg(saved(key)).arg(key).ignore();
                }
            }
        }
        let now_ms = self.now_ms.to_string();
        let numbers = pack_numbers(&self.numbers);
        let apply =
            Apply { keys, now_ms: &now_ms, version: self.version, force: self.force, way: self.way, numbers: &numbers };
        let steps = self.steps().iter().map(|step| (step, 0));
        if self.plain {
            pipeline.add_command(apply.command(By::Digest, steps.clone()));
        }
        if !self.plain || self.lends {
            let terms = pack_terms(&self.numbers);
            let lend = Lend { apply, terms: &terms, ground: &self.ground };
            pipeline.add_command(lend.command(By::Digest, steps, self.also(&self.asks())));
        }
        usize::from(self.plain) + usize::from(!self.plain || self.lends)
    }

    pub(super) fn check(&self, replies: &[Value], expected: &Expected, context: &dyn Fn() -> String) {
        let mut replies = replies.iter();
        let mut next = || replies.next().expect("a reply").clone();
        if self.plain {
            let reply = split_reply(next(), 1).remove(0);
            let plain = read_reply(reply.clone(), self.version, &self.numbers, self.steps().iter())
                .unwrap_or_else(|error| panic!("{error}: {reply:?} in {}", context()));
            match (plain, expected) {
                (Reply::Lends, _) if self.lends => {}
                (Reply::Stale { version }, Expected::Stale(stale)) => assert_eq!(version, stale.ledger_version),
                (Reply::Done { answers, .. }, Expected::Done { answers: expected, .. }) if !self.lends => {
                    let answers: Vec<_> = answers.into_iter().map(Some).collect();
                    assert_eq!(&answers, expected, "answers differ (left Redis) in {}", context());
                }
                (plain, expected) => panic!("{plain:?} against {expected:?} in {}", context()),
            }
        }
        if self.plain && !self.lends {
            return;
        }
        let reply = next();
        let asks = self.asks();
        let lent = read_lend_reply(reply.clone(), self.version, &self.numbers, self.steps().iter(), self.also(&asks))
            .unwrap_or_else(|error| panic!("{error}: {reply:?} in {}", context()));
        match (lent, expected) {
            (LendReply::Stale { version }, Expected::Stale(stale)) => assert_eq!(version, stale.ledger_version),
            (LendReply::Done(lent), Expected::Done { answers, also, epoch, holders, needs_beats }) => {
                let Lent {
                    version: _,
                    shadow: _,
                    answers: a,
                    epoch: e,
                    holders: h,
                    needs_beats: n,
                    quiet_ms: _,
                    also: o,
                } = *lent;
                assert_eq!(
                    (&a, &o, &e, &h, &n),
                    (answers, also, epoch, holders, needs_beats),
                    "answers differ (left Redis) in {}",
                    context()
                );
            }
            (lent, expected) => panic!("{lent:?} against {expected:?} in {}", context()),
        }
    }
}

fn deletion(keys: &[String]) -> Cmd {
    let mut command = cmd("DEL");
    command.arg(keys);
    command
}
