//! What happened to the states of the masters in one schedule.

use std::{cell::RefCell, collections::HashSet, mem, rc::Rc, sync::Arc};

use budget::{decision::Stale, lease::Epoch, ledger::Ledger, policy};
use budgetd::store::redis::codec::ASKS_MAX;
use shipped::{
    decision::Step,
    ids::PolicyVersion,
    lease::{Ground, HolderId, SyncAsk},
    policy::Numbers,
};

use budget_sim::{Call, Deed, Said, Scenario, Witness, run};

use crate::convert;

/// In schedules longer than a minute Reserves are made in bursts: by far the most calls would be Reserves that find nothing
/// left.
const RESERVES_IN_MS: (i64, i64) = (100, 2_700);
const WHOLE_MS_MAX: i64 = 60_000;
/// In every second schedule asks of holders come together, so that one call answers several.
const ASKS_APART_MS: i64 = 250;

/// One of the things that happen to a state.
#[derive(Debug)]
pub(crate) enum Entry {
    Called(Box<Called>),
    Copied { master: usize, copy: u64 },
    Begun { master: usize, copy: Option<u64> },
    Flushed { master: usize },
}

/// One call, as the codec knows it, and what the ledger in Rust made of it.
#[derive(Debug)]
pub(crate) struct Called {
    pub master: usize,
    pub version: PolicyVersion,
    pub numbers: Arc<Numbers>,
    pub force: bool,
    pub clock_ms: i64,
    pub ground: Ground,
    pub asked: Asked,
    pub expected: Expected,
    /// The ledger after it.
    pub state: Vec<String>,
}

/// What a call asks.
#[derive(Debug)]
pub(crate) enum Asked {
    Nothing,
    Syncs(Vec<SyncAsk>),
    Step(Box<Step>),
    Revoke(HolderId),
}

/// What the ledger said.
#[derive(Debug)]
pub(crate) enum Expected {
    Stale(Stale),
    Said { said: Vec<Said>, epoch: Epoch, holders: i64, needs_beats: bool },
}

#[derive(Default)]
struct Written {
    entries: Vec<Entry>,
    /// Numbers that were converted before.
    known: Vec<(Arc<policy::Numbers>, Arc<Numbers>)>,
}

#[derive(Clone, Default)]
struct Scribe(Rc<RefCell<Written>>);

/// Runs a schedule and writes down what happened; copies that nobody needed are left out.
pub(crate) fn of(seed: u64, mut scenario: Scenario) -> Vec<Entry> {
    let scribe = Scribe::default();
    scenario.reserves_in = (scenario.duration_ms > WHOLE_MS_MAX).then_some(RESERVES_IN_MS);
    scenario.asks_apart_ms = seed.is_multiple_of(2).then_some(ASKS_APART_MS);
    run::witnessed(seed, scenario, Box::new(scribe.clone()));
    let mut entries = mem::take(&mut scribe.0.borrow_mut().entries);
    let needed: HashSet<u64> =
        entries.iter().filter_map(|entry| if let Entry::Begun { copy, .. } = entry { *copy } else { None }).collect();
    entries.retain(|entry| !matches!(entry, Entry::Copied { copy, .. } if !needed.contains(copy)));
    entries
}

// === impl Called ===

impl Called {
    /// Whether the asks of the next call might have come with this one: at the same moment, on a ledger to which nothing
    /// happened between them but what the first did.
    fn may_answer(&self, next: &Self) -> bool {
        let (Expected::Said { epoch, .. }, Expected::Said { epoch: of_next, .. }) = (&self.expected, &next.expected)
        else {
            return false;
        };
        let (Asked::Syncs(asks), Asked::Syncs(_)) = (&self.asked, &next.asked) else { return false };
        asks.len() < ASKS_MAX
            && epoch == of_next
            && (self.master, self.version, self.force, self.clock_ms)
                == (next.master, next.version, next.force, next.clock_ms)
            && Arc::ptr_eq(&self.numbers, &next.numbers)
    }

    fn answer_too(&mut self, next: Self) {
        if let (Asked::Syncs(asks), Asked::Syncs(more)) = (&mut self.asked, next.asked) {
            asks.extend(more);
        }
        let before = std::mem::replace(&mut self.expected, next.expected);
        if let (Expected::Said { said: first, .. }, Expected::Said { said, .. }) = (before, &mut self.expected) {
            said.splice(..0, first);
        }
        self.state = next.state;
    }
}

// === impl Scribe ===

impl Scribe {
    fn write(&self, entry: Entry) {
        self.0.borrow_mut().entries.push(entry);
    }

    fn numbers(&self, numbers: &Arc<policy::Numbers>) -> Arc<Numbers> {
        let known = &mut self.0.borrow_mut().known;
        if let Some((_, converted)) = known.iter().find(|(from, _)| Arc::ptr_eq(from, numbers)) {
            return Arc::clone(converted);
        }
        let converted = convert::numbers(numbers);
        known.push((Arc::clone(numbers), Arc::clone(&converted)));
        converted
    }
}

impl Witness for Scribe {
    fn called(&mut self, call: &Call<'_>, said: Result<&Said, Stale>, ledger: Option<&Ledger>) {
        let asked = match call.deed {
            Deed::Look | Deed::Beat => Asked::Nothing,
            Deed::Sync(ask) => Asked::Syncs(vec![convert::ask(ask)]),
            Deed::Step(step) => Asked::Step(Box::new(convert::step(step))),
            Deed::Revoke(holder) => Asked::Revoke(convert::holder(holder)),
        };
        let expected = match said {
            Err(stale) => Expected::Stale(stale),
            Ok(said) => Expected::Said {
                said: vec![said.clone()],
                epoch: ledger.map_or_else(Epoch::default, Ledger::epoch),
                holders: ledger.map_or(0, Ledger::holders),
                needs_beats: ledger.is_some_and(Ledger::needs_beats),
            },
        };
        let called = Called {
            master: call.master,
            version: convert::version(call.version),
            numbers: self.numbers(call.numbers),
            force: call.force,
            clock_ms: call.clock_ms,
            ground: convert::ground(call.ground),
            asked,
            expected,
            state: ledger.map_or_else(|| vec!["absent".to_owned()], Ledger::dump),
        };
        let Self(written) = self;
        let entries = &mut written.borrow_mut().entries;
        match entries.last_mut() {
            Some(Entry::Called(before)) if before.may_answer(&called) => before.answer_too(called),
            Some(_) | None => entries.push(Entry::Called(Box::new(called))),
        }
    }

    fn copied(&mut self, master: usize, copy: u64) {
        self.write(Entry::Copied { master, copy });
    }

    fn begun(&mut self, master: usize, copy: Option<u64>) {
        self.write(Entry::Begun { master, copy });
    }

    fn flushed(&mut self, master: usize) {
        self.write(Entry::Flushed { master });
    }
}
