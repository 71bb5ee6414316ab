//! A private Redis that repeats what was written down.

use std::slice;

use budget_tests::redis_server::{Flavour, RedisServer};
use budgetd::store::redis::{
    codec::{Also, Apply, Lend, LendReply, Lent, Way, pack_numbers, pack_terms, read_lend_reply},
    keys::{DependencyKeys, Keys},
    scripts::{self, By, LEND, Script},
};
use deadpool_redis::redis::{self, Connection, Pipeline, Value, cmd};
use shipped::{decision::Step, ids::DependencyId, lease::SyncAsk};

use budget_sim::Said;

use crate::transcript::{Asked, Called, Entry, Expected};

/// Calls that travel together.
const CALLS: usize = 200;
/// Database of copies; each master has one of those behind it.
const COPIES: usize = 0;
/// So many masters can be in one schedule.
const DATABASES: usize = 64;

pub(crate) struct Replay {
    connection: Connection,
    dump: Script,
    keys: DependencyKeys,
    _server: RedisServer,
}

/// After one of so many calls that are no syncs the state is compared.
const STATES: u64 = 8;

/// What was compared.
#[derive(Default)]
pub(crate) struct Done {
    pub calls: u64,
    pub states: u64,
    /// Asks that shared their call with others.
    pub together: u64,
}

// === impl Replay ===

impl Replay {
    pub(crate) fn new(flavour: Flavour) -> Self {
        let server = RedisServer::start_with(flavour, &["--databases", &DATABASES.to_string()]);
        let client = redis::Client::open(server.admin_url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let dump = dump_script();
        for script in [&*LEND, &dump] {
            script.load().exec(&mut connection).unwrap();
        }
        let keys = Keys::new("sim").unwrap().dependency(&DependencyId::new("dependency").unwrap());
        Self { connection, dump, keys, _server: server }
    }

    /// Repeats one schedule; says where it first differs.
    ///
    /// The state is compared after each sync, after the first call on a state that was touched from outside, and after one
    /// of [`STATES`] other calls; where the calls then differ, once more after every call, to say which it was.
    pub(crate) fn judge(&mut self, entries: &[Entry]) -> Result<Done, String> {
        self.compare(entries, false).map_err(|late| self.compare(entries, true).err().unwrap_or(late))
    }

    fn compare(&mut self, entries: &[Entry], every_state: bool) -> Result<Done, String> {
        cmd("FLUSHALL").exec(&mut self.connection).unwrap();
        let mut done = Done::default();
        let mut database = usize::MAX;
        let mut touched = true;
        let mut number = 0_u64;
        for entries in entries.chunks(CALLS) {
            let mut pipeline = redis::pipe();
            let mut with_state = Vec::with_capacity(entries.len());
            for entry in entries {
                self.send(entry, &mut database, &mut pipeline);
                let Entry::Called(called) = entry else {
                    touched = true;
                    continue;
                };
                number += 1;
                let wanted = every_state
                    || touched
                    || number.is_multiple_of(STATES)
                    || !matches!(called.asked, Asked::Nothing | Asked::Step(_));
                touched = false;
                with_state.push(wanted);
                if wanted {
                    let mut dump = self.dump.call(By::Digest, 9);
                    dump.arg(&self.keys.of_every_batch()[..]).arg(&self.keys.of_lending()[..]);
                    pipeline.add_command(dump);
                }
            }
            let replies: Vec<Value> = pipeline.query(&mut self.connection).unwrap();
            let mut replies = replies.into_iter();
            let mut with_state = with_state.into_iter();
            for (at, entry) in entries.iter().enumerate() {
                let Entry::Called(called) = entry else { continue };
                let number = done.calls;
                let context = |what: String| {
                    let before = entries[at.saturating_sub(3)..at].iter().map(brief).collect::<Vec<_>>().join("\n");
                    format!("call {}: {what}\nafter {called:#?}\nwhich came after\n{before}", number)
                };
                called.compare(replies.next().unwrap()).map_err(context)?;
                done.calls += 1;
                if let Asked::Syncs(asks) = &called.asked
                    && asks.len() > 1
                {
                    done.together += asks.len() as u64;
                }
                if with_state.next().unwrap() {
                    called.compare_state(replies.next().unwrap()).map_err(context)?;
                    done.states += 1;
                }
            }
        }
        Ok(done)
    }

    fn send(&self, entry: &Entry, database: &mut usize, pipeline: &mut Pipeline) {
        let mut select = |pipeline: &mut Pipeline, wanted: usize| {
            assert!(wanted < DATABASES, "more masters than databases");
            if *database != wanted {
                pipeline.cmd("SELECT").arg(wanted).ignore();
                *database = wanted;
            }
        };
        let of = |master: usize| COPIES + 1 + master;
        let all = || self.keys.of_every_batch().into_iter().chain(self.keys.of_lending());
        match entry {
            Entry::Flushed { master } => {
                select(pipeline, of(*master));
                pipeline.cmd("FLUSHDB").ignore();
            }
            Entry::Copied { master, copy } => {
                select(pipeline, of(*master));
                for key in all() {
                    let saved = format!("{key}:{copy}");
                    pipeline.cmd("COPY").arg(key).arg(&saved).arg("DB").arg(COPIES).ignore();
                }
            }
            Entry::Begun { master, copy } => {
                if let Some(copy) = copy {
                    select(pipeline, COPIES);
                    for key in all() {
                        pipeline.cmd("COPY").arg(format!("{key}:{copy}")).arg(key).arg("DB").arg(of(*master)).ignore();
                    }
                }
            }
            Entry::Called(called) => {
                select(pipeline, of(called.master));
                called.send(&self.keys, pipeline);
            }
        }
    }
}

/// The script that shows the whole state, in one text.
fn dump_script() -> Script {
    let dump = ["local function dump()\n", include_str!("../../it/differential/dump.lua"), "\nend\n"].concat();
    Script::new(&[scripts::READING, &dump, "return table.concat(dump(), '\\n')"].concat())
}

/// One line about what came before a difference.
fn brief(entry: &Entry) -> String {
    match entry {
        Entry::Called(called) => {
            format!("master {} at {}: {:?} -> {:?}", called.master, called.clock_ms, called.asked, called.expected)
        }
        Entry::Copied { .. } | Entry::Begun { .. } | Entry::Flushed { .. } => format!("{entry:?}"),
    }
}

// === impl Called ===

impl Called {
    fn steps(&self) -> &[Step] {
        if let Asked::Step(step) = &self.asked { slice::from_ref(&**step) } else { &[] }
    }

    fn asks(&self) -> Vec<&SyncAsk> {
        if let Asked::Syncs(asks) = &self.asked { asks.iter().collect() } else { Vec::new() }
    }

    fn also<'a>(&'a self, asks: &'a [&'a SyncAsk]) -> Also<'a> {
        match &self.asked {
            Asked::Nothing | Asked::Step(_) => Also::Nothing,
            Asked::Syncs(_) => Also::Syncs(asks),
            Asked::Revoke(holder) => Also::Revoke(holder),
        }
    }

    fn send(&self, keys: &DependencyKeys, pipeline: &mut Pipeline) {
        let now_ms = self.clock_ms.to_string();
        let numbers = pack_numbers(&self.numbers);
        let terms = pack_terms(&self.numbers);
        let apply = Apply {
            keys,
            now_ms: &now_ms,
            version: self.version,
            force: self.force,
            way: Way::default(),
            numbers: &numbers,
        };
        let lend = Lend { apply, terms: &terms, ground: &self.ground };
        pipeline.add_command(lend.command(
            By::Digest,
            self.steps().iter().map(|step| (step, 0)),
            self.also(&self.asks()),
        ));
    }

    fn compare(&self, reply: Value) -> Result<(), String> {
        let text = format!("{reply:?}");
        let lent = read_lend_reply(reply, self.version, &self.numbers, self.steps().iter(), self.also(&self.asks()))
            .map_err(|error| format!("{error}: {text}"))?;
        // Two builds of one crate have types of their own; what they show of themselves is the same.
        let (shown, expected) = match (&lent, &self.expected) {
            (LendReply::Stale { version }, Expected::Stale(stale)) => {
                (format!("{version:?}"), format!("{:?}", stale.ledger_version))
            }
            (LendReply::Done(lent), Expected::Said { said, epoch, holders, needs_beats }) => {
                let Lent {
                    version: _,
                    shadow: _,
                    answers: a,
                    epoch: e,
                    holders: h,
                    needs_beats: n,
                    quiet_ms: _,
                    also: o,
                } = &**lent;
                let said = match &said[..] {
                    [Said::Nothing] => "[] Nothing".to_owned(),
                    [Said::Stepped(answer)] => format!("[{answer:?}] Nothing"),
                    [Said::Revoked(known)] => format!("[] Revoked({known})"),
                    answers => {
                        let answer = |said: &Said| {
                            let Said::Synced(answer) = said else { panic!("{said:?} is no answer to an ask") };
                            format!("Some({answer:?})")
                        };
                        format!("[] Syncs([{}])", answers.iter().map(answer).collect::<Vec<_>>().join(", "))
                    }
                };
                (format!("{a:?} {o:?} {e:?} {h} {n}"), format!("{said} {epoch:?} {holders} {needs_beats}"))
            }
            (LendReply::Stale { .. } | LendReply::Done(_), Expected::Stale(_) | Expected::Said { .. }) => {
                return Err(format!("Redis answers {lent:?}"));
            }
        };
        let same = shown == expected;
        if same { Ok(()) } else { Err(format!("Redis answers {shown}\nand not {expected}")) }
    }

    fn compare_state(&self, reply: Value) -> Result<(), String> {
        let text: Vec<u8> = redis::from_redis_value(reply).map_err(|error| error.to_string())?;
        let text = String::from_utf8(text).map_err(|error| error.to_string())?;
        let mut state: Vec<&str> = text.split('\n').collect();
        let mut model: Vec<&str> = self.state.iter().map(String::as_str).collect();
        state.sort_unstable();
        model.sort_unstable();
        if state == model {
            return Ok(());
        }
        let only = |these: &[&str], those: &[&str]| -> Vec<String> {
            these.iter().filter(|line| !those.contains(line)).map(|line| (*line).to_owned()).collect()
        };
        Err(format!("Redis has {:#?}, the ledger in Rust {:#?}", only(&state, &model), only(&model, &state)))
    }
}
