//! Any number of clients that share ten attempts per second: the real ledger and holders, in virtual time, since the
//! times that matter are the default ones.

use std::{collections::VecDeque, sync::Arc};

use budget::{
    bound::{
        checker::{AllWindows, Event, Law},
        horizon_ms,
    },
    decision::{Answer, Attempt, Reserve, Step},
    holder::{Action, Holder, Local, LocalAsk, Reply, State},
    ids::{PolicyVersion, ReservationId},
    lease::{Ground, HolderId, Incarnation, Rules, Timing},
    ledger::{Ledger, Start},
    policy::{Numbers, Policy},
};
use budget_tests::rng::Rng;
use budgetd::policies::PolicySet;

const MS: i64 = 1_000_000;
const TICK_MS: i64 = 20;
/// A client that was refused asks again after so long.
const AGAIN_MS: i64 = 200;
/// All ask in the first part, one in five in the second.
const PART_MS: i64 = 90_000;
/// No client waits longer while a token is free.
const WAIT_MAX_MS: i64 = 15_000;
const RATE: i64 = 10;
const VERSION: PolicyVersion = PolicyVersion { number: 1, id: 1 };

struct Client {
    holder: Holder,
    /// Since when it waits for its next admission, and when it asks.
    waits_since_ms: i64,
    asks_at_ms: i64,
    admitted: u64,
}

struct World {
    policy: Arc<Policy>,
    numbers: Arc<Numbers>,
    timing: Timing,
    ledger: Ledger,
    clients: Vec<Client>,
    now_ms: i64,
    admitted_ms: VecDeque<i64>,
    asked: u128,
    longest_wait_ms: i64,
    /// Latest time at which no token was free.
    none_free_ms: i64,
    rng: Rng,
}

// === impl World ===

impl World {
    fn new(clients: usize, burst: u32) -> Self {
        let text = format!(
            "[dependency.pay]\nadmission = {{ rate = \"{RATE}/s\", burst = {burst} }}\nretry = {{ burst = {burst} }}\n\
             lease = {{ enabled = true }}\n"
        );
        let set = PolicySet::parse("a test", &text).unwrap_or_else(|error| panic!("{error}"));
        let policy = Arc::clone(&set.rule("pay").unwrap().policy);
        let timing = Timing::default();
        let numbers = Arc::new(policy.numbers_timed(false, true, &timing));
        let ledger = Ledger::new(VERSION, Arc::clone(&numbers), Start::Empty, 0);
        let mut rng = Rng::seeded("sharing");
        let clients = (0..clients).map(|number| Client::new(number, timing, &mut rng)).collect();
        Self {
            policy,
            numbers,
            timing,
            ledger,
            clients,
            now_ms: 0,
            admitted_ms: VecDeque::new(),
            asked: 0,
            longest_wait_ms: 0,
            none_free_ms: 0,
            rng,
        }
    }

    fn ground(&self) -> Ground {
        Ground { identity: 1, fresh_id: 5, fresh_store: true, beat: Some((1, self.now_ms)), ..Ground::default() }
    }

    fn begin(&mut self) -> Ground {
        let ground = self.ground();
        self.ledger.begin(VERSION, &self.numbers, false, self.now_ms, &ground).unwrap();
        ground
    }

    fn run(&mut self, until_ms: i64, active: usize) {
        for client in &mut self.clients[..active] {
            client.waits_since_ms = self.now_ms;
        }
        while self.now_ms < until_ms {
            self.now_ms += TICK_MS;
            self.begin();
            for number in 0..self.clients.len() {
                self.renew(number);
                while number < active && self.clients[number].asks_at_ms <= self.now_ms {
                    self.ask(number);
                }
            }
            if self.free_tokens(active) == 0 {
                self.none_free_ms = self.now_ms;
            }
        }
    }

    fn renew(&mut self, number: usize) {
        let now_ns = self.now_ms * MS;
        let fresh = self.rng.next_u64();
        if self.clients[number].holder.due_ns() > now_ns {
            return;
        }
        if let Action::Send { ask, attempt } = self.clients[number].holder.poll(now_ns, fresh) {
            let ground = self.begin();
            let answer = self.ledger.sync(&ask, &ground);
            let rules = Rules::of(&self.policy, &self.numbers, VERSION, self.ledger.holders() + 1);
            let (sequence, nonce) = (ask.sequence, ask.nonce);
            let reply = Reply { sequence, nonce, attempt: Some(attempt), answer: &answer, rules: Some(&rules) };
            self.clients[number].holder.on_answer(now_ns, &reply);
        }
    }

    fn ask(&mut self, number: usize) {
        let local = self.clients[number].holder.share().reserve(self.now_ms * MS, &LocalAsk::ORIGINAL);
        let admitted = match local {
            Local::Admitted(_) => true,
            Local::Denied(_) => false,
            Local::Short => {
                self.begin();
                self.asked += 1;
                let id = ReservationId(self.asked.to_be_bytes());
                let ask = Reserve { no_release: true, ..Reserve::new(id, Attempt::ORIGINAL) };
                matches!(self.ledger.step(&Step::Reserve(ask)), Answer::Admitted(_))
            }
        };
        let now_ms = self.now_ms;
        let waited_ms = now_ms - self.clients[number].waits_since_ms;
        if admitted {
            self.admitted_ms.push_back(now_ms);
            self.longest_wait_ms = self.longest_wait_ms.max(waited_ms);
            let client = &mut self.clients[number];
            (client.waits_since_ms, client.asks_at_ms) = (now_ms, now_ms + TICK_MS);
            client.admitted += 1;
            return;
        }
        self.clients[number].asks_at_ms = now_ms + AGAIN_MS;
        if waited_ms > WAIT_MAX_MS {
            assert!(
                self.none_free_ms > now_ms - WAIT_MAX_MS,
                "client {number} of {} waits for {waited_ms} ms while tokens are free; {:?}",
                self.clients.len(),
                self.clients[number].holder.state(now_ms * MS)
            );
        }
    }

    /// Whole tokens that nobody is about to spend: in the middle, and in shares of those that are idle.
    fn free_tokens(&self, active: usize) -> i64 {
        let middle = self.ledger.view(self.now_ms).admission_balance_micros;
        let idle = &self.clients[active..];
        let shares = idle.iter().map(|client| client.holder.share().levels(self.now_ms * MS).0);
        shares.chain(middle).map(|micros| (micros / 1_000_000).max(0)).sum()
    }

    fn admitted_since(&self, from_ms: i64) -> f64 {
        self.admitted_ms.iter().rev().take_while(|at_ms| **at_ms > from_ms).count() as f64
    }

    fn leased(&self) -> usize {
        self.clients.iter().filter(|client| client.holder.state(self.now_ms * MS) == State::Leased).count()
    }

    /// T1, for every window.
    fn judge(&self) {
        let events = self.admitted_ms.iter().map(|at_ms| (at_ms * MS, Event::Original)).collect();
        let horizon = horizon_ms(&self.policy, &self.timing);
        let worst = AllWindows::of(horizon, 0, Law::of(&self.policy), events).admissions().unwrap();
        println!("  T1: {:+.2} of 0 allowed", worst.micros as f64 / 1e6);
        assert!(worst.micros <= 0, "{worst:?}");
    }
}

// === impl Client ===

impl Client {
    fn new(number: usize, timing: Timing, rng: &mut Rng) -> Self {
        let id = HolderId::new(&format!("client{number}")).unwrap();
        let incarnation = Incarnation((number as u128 + 1).to_be_bytes());
        let fallback = budget_client::leasing::LeasingOptions::default().fallback;
        let holder = Holder::new(id, incarnation, 1, timing, fallback, rng.next_u64(), 0);
        let asks_at_ms = i64::try_from(rng.below(200)).unwrap();
        Self { holder, waits_since_ms: 0, asks_at_ms, admitted: 0 }
    }
}

/// With 1, 10, 50 and 200: the fleet's total keeps the policy in every window, all of it is used, an idle majority's shares
/// are others' after two renewals, and nobody waits longer than 15 s while a token is free.
#[test]
fn q11_any_number_of_clients_share_ten_per_second() {
    // Where a share is less than a whole token of burst, a client asks the coordinator; else it has a lease.
    for (clients, burst) in [1_usize, 10, 12, 50, 200].into_iter().flat_map(|clients| [(clients, 10), (clients, 300)]) {
        let mut world = World::new(clients, burst);
        world.run(PART_MS, clients);
        let settled = world.admitted_since(PART_MS / 3) / 60.0;
        let fewest = world.clients.iter().map(|client| client.admitted).min().unwrap();
        println!(
            "{clients} clients, burst {burst}: {settled:.2}/s of {RATE}/s, {} leased, fewest {fewest}, longest wait {} ms",
            world.leased(),
            world.longest_wait_ms
        );
        assert!(settled >= 0.95 * RATE as f64, "{settled}/s");
        // Of ten tokens eight can be leased, and one place stays free: a few more than fit are served in part, many more
        // would starve, were others served at their cost.
        let leased = match (clients, burst) {
            (10 | 12, 10) => 7,
            (50 | 200, 10) => 0,
            (1, _) | (_, 300) => clients,
            other => panic!("{other:?}"),
        };
        assert_eq!(world.leased(), leased);
        let active = (clients / 5).max(1);
        let idle_ms = world.now_ms;
        world.run(2 * PART_MS, active);
        // Two renewals, and what is late of a second one.
        let back_ms = idle_ms + 2 * world.timing.renew_max_ms + 1_000;
        let after = world.admitted_since(back_ms) * 1_000.0 / (world.now_ms - back_ms) as f64;
        println!("  {active} go on: {after:.2}/s, longest wait {} ms", world.longest_wait_ms);
        assert!(after >= 0.95 * RATE as f64, "{after}/s");
        world.judge();
    }
}
