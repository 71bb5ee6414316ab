//! Does acts on the ledger of a frozen namespace with the present scripts, and says what they answered.

use std::sync::Arc;

use budget::{
    decision::Step,
    ids::{DependencyId, PolicyVersion},
    lease::{Ground, Timing},
    policy::{Numbers, Policy, Spec},
};
use budget_tests::{
    frozen::Call,
    redis_server::RedisServer,
    vectors::{Act, Seen},
};
use budgetd::{
    clock::Clock,
    store::{
        Store,
        redis::{
            codec::{
                Also, AlsoAnswer, Apply, Lend, LendReply, Reply, Way, pack_numbers, pack_terms, read_lend_reply,
                read_reply, read_view, split_reply,
            },
            keys::{DependencyKeys, Keys},
            layout::FORMAT_OLDEST,
            scripts::{APPLY, By, LEND, Script, VIEW},
        },
    },
};
use deadpool_redis::redis::{self, Arg, Cmd, Connection, Value};
use tokio::runtime::Runtime;

use super::acts::{Deed, Told, holder_text, read};
use crate::redis_world;

/// Of all keys.
pub(crate) const PREFIX: &str = "frozen";
/// A name that would break out of a careless hash tag.
pub(crate) const DEPENDENCY: &str = "pay{ments}:%7B é";
/// By so much ledger time advances at most by a call, where leases are permitted.
pub(crate) const STEP_MS: i64 = 10_000;
/// Boot id of a host whose clock is the store's.
const STEADY_HOST: i64 = 4_242;
/// Times of acts begin here.
pub(crate) const BASE_MS: i64 = 1_700_000_000_000;

/// The scripts that change or show a ledger, as fixtures name them.
pub(crate) fn scripts() -> [(&'static str, &'static Script); 3] {
    [("apply", &*APPLY), ("lend", &*LEND), ("view", &*VIEW)]
}

/// One ledger, whoever calls it.
pub(crate) struct World {
    connection: Connection,
    keys: DependencyKeys,
    version: PolicyVersion,
    numbers: Arc<Numbers>,
    ground: Ground,
    /// How the present scripts are to do it.
    pub(crate) way: Way,
}

/// A call, and the text of a script instead of its name.
struct Sent {
    script: &'static str,
    command: Cmd,
}

pub(crate) fn dependency() -> DependencyId {
    DependencyId::new(DEPENDENCY).unwrap()
}

/// Holders as operators see them at a time.
pub(crate) fn holders(server: &RedisServer, at_ms: i64) -> Vec<String> {
    Runtime::new().unwrap().block_on(async {
        let (_policies, store) = redis_world::store(&server.unix_url(), PREFIX, Clock::manual(BASE_MS + at_ms).0).await;
        let holders = store.list_holders(&dependency(), None, 100, redis_world::soon()).await.unwrap();
        holders.iter().map(|holder| format!("{at_ms} {}", holder_text(holder))).collect()
    })
}

// === impl World ===

impl World {
    pub(crate) fn of(server: &RedisServer) -> Self {
        let client = redis::Client::open(server.admin_url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        for (_, script) in scripts() {
            script.load().exec(&mut connection).unwrap();
        }
        let numbers = Policy::new(Spec::default()).unwrap().numbers(false, true);
        Self {
            connection,
            keys: Keys::new(PREFIX).unwrap().dependency(&dependency()),
            version: PolicyVersion { number: 0, id: 7 },
            numbers: Arc::new(numbers),
            ground: Ground { identity: 5, fresh_id: 77, ..Ground::default() },
            way: Way { format: FORMAT_OLDEST, ..Way::default() },
        }
    }

    /// Does one act. None: it changed what later ones are told.
    pub(crate) fn act(&mut self, line: &str) -> Option<(Told, Call)> {
        let deed = read(line, line);
        let Some(sent) = self.sent(&deed) else {
            self.prepare(deed);
            return None;
        };
        let reply: Value = sent.command.query(&mut self.connection).unwrap_or_else(|error| panic!("{line}: {error}"));
        Some((self.told(&deed, reply.clone(), line), sent.into_call(reply)))
    }

    /// Takes note of an act that another budgetd did.
    pub(crate) fn skip(&mut self, line: &str) {
        let deed = read(line, line);
        if self.sent(&deed).is_none() {
            self.prepare(deed);
        }
    }

    /// Does what was once called, with the scripts of that time.
    pub(crate) fn replay(&mut self, call: &Call, script: &str) -> Value {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(call.keys).arg(&call.arguments);
        command.query(&mut self.connection).unwrap_or_else(|error| panic!("{call:?}: {error}"))
    }

    /// Whether an act only changes what later ones are told.
    pub(crate) fn is_no_call(&self, line: &str) -> bool {
        self.sent(&read(line, line)).is_none()
    }

    fn prepare(&mut self, deed: Deed) {
        match deed {
            Deed::Act(Act::Policy(policy, off)) => {
                let timing = Timing { step_max_ms: STEP_MS, margin_ms: STEP_MS + 250, ..Timing::default() };
                self.version.number += 1;
                self.numbers = Arc::new(policy.numbers_timed(off, true, &timing));
            }
            Deed::Store(identity, fresh_store) => self.ground = Ground { identity, fresh_store, ..self.ground },
            Deed::Act(_) | Deed::Sync(..) | Deed::Beat(..) | Deed::Revoke(..) => unreachable!("it is a call"),
        }
    }

    /// None: there is nothing to send.
    fn sent(&self, deed: &Deed) -> Option<Sent> {
        let ms = |at_ms: i64| (BASE_MS + at_ms).to_string();
        let packed = pack_numbers(&self.numbers);
        let (lends, way) = (self.numbers.lease.is_some(), self.way);
        let lend = |at_ms: i64, beat: Option<(i64, i64)>, steps: &[Step], also: Also<'_>| {
            // Since format 2 ledger time advances by a step at most between two heartbeats. What was recorded went on for longer:
            // a host that always beats says that the time is right.
            let steady = (way.format > FORMAT_OLDEST).then_some((STEADY_HOST, at_ms));
            let ground = Ground { beat: beat.or(steady), ..self.ground };
            let (now_ms, terms) = (ms(at_ms), pack_terms(&self.numbers));
            let apply =
                Apply { keys: &self.keys, now_ms: &now_ms, version: self.version, force: false, way, numbers: &packed };
            let call = Lend { apply, terms: &terms, ground: &ground };
            Sent { script: "lend", command: call.command(By::Digest, steps.iter().map(|step| (step, 0)), also) }
        };
        Some(match deed {
            Deed::Act(Act::Policy(..)) | Deed::Store(..) => return None,
            Deed::Act(Act::View(at_ms)) => {
                let [lending, ..] = self.keys.of_lending();
                let mut command = VIEW.call(By::Digest, 2);
                command.arg(self.keys.ledger()).arg(lending).arg(ms(*at_ms));
                Sent { script: "view", command }
            }
            Deed::Act(Act::Step(at_ms, step)) if lends => lend(*at_ms, None, std::slice::from_ref(step), Also::Nothing),
            Deed::Act(Act::Step(at_ms, step)) => {
                let now_ms = ms(*at_ms);
                let (keys, version) = (&self.keys, self.version);
                let apply = Apply { keys, now_ms: &now_ms, version, force: false, way, numbers: &packed };
                Sent { script: "apply", command: apply.command(By::Digest, std::iter::once((step, 0))) }
            }
            Deed::Sync(at_ms, ask) => lend(*at_ms, None, &[], Also::Syncs(&[&**ask])),
            Deed::Beat(at_ms, host, up_ms) => lend(*at_ms, Some((*host, *up_ms)), &[], Also::Nothing),
            Deed::Revoke(at_ms, holder) => lend(*at_ms, None, &[], Also::Revoke(holder)),
        })
    }

    fn told(&self, deed: &Deed, reply: Value, line: &str) -> Told {
        let lent = |reply: Value, steps: &[Step], also: Also<'_>| match read_lend_reply(
            reply,
            self.version,
            &self.numbers,
            steps.iter(),
            also,
        ) {
            Ok(LendReply::Done(lent)) => *lent,
            other => panic!("{line}: {other:?}"),
        };
        match deed {
            Deed::Act(Act::View(_)) => {
                let view = read_view(reply).unwrap_or_else(|error| panic!("{line}: {error}"));
                Told::Seen(view.map_or(Seen::Nothing, |view| Seen::View(Box::new(view))))
            }
            Deed::Act(Act::Step(_, step)) if self.numbers.lease.is_some() => {
                let mut answers = lent(reply, std::slice::from_ref(step), Also::Nothing).answers;
                Told::Seen(answers.remove(0).map_or(Seen::Nothing, Seen::Answer))
            }
            Deed::Act(Act::Step(_, step)) => {
                let reply = split_reply(reply, 1).remove(0);
                match read_reply(reply, self.version, &self.numbers, std::iter::once(step)) {
                    Ok(Reply::Done { mut answers, .. }) => Told::Seen(Seen::Answer(answers.remove(0))),
                    other => panic!("{line}: {other:?}"),
                }
            }
            Deed::Sync(_, ask) => match lent(reply, &[], Also::Syncs(&[&**ask])).also {
                AlsoAnswer::Syncs(mut answers) => Told::Synced(Box::new(answers.remove(0).unwrap())),
                other @ (AlsoAnswer::Nothing | AlsoAnswer::Revoked(_)) => panic!("{line}: {other:?}"),
            },
            Deed::Revoke(_, holder) => match lent(reply, &[], Also::Revoke(holder)).also {
                AlsoAnswer::Revoked(known) => Told::Revoked(known),
                other @ (AlsoAnswer::Nothing | AlsoAnswer::Syncs(_)) => panic!("{line}: {other:?}"),
            },
            Deed::Beat(..) => {
                drop(lent(reply, &[], Also::Nothing));
                Told::Beaten
            }
            Deed::Act(Act::Policy(..)) | Deed::Store(..) => unreachable!("it is no call"),
        }
    }
}

// === impl Sent ===

impl Sent {
    fn into_call(self, reply: Value) -> Call {
        let mut words = self.command.args_iter().map(|word| {
            let Arg::Simple(bytes) = word else { panic!("{}: an argument that is no text", self.script) };
            bytes.to_vec()
        });
        // EVALSHA and the digest.
        let (_, _) = (words.next(), words.next());
        let keys = words.next().and_then(|word| String::from_utf8(word).ok()?.parse().ok()).unwrap();
        Call { script: self.script.to_owned(), keys, arguments: words.collect(), reply }
    }
}
