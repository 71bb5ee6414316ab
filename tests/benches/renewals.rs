//! What one renewal of a lease costs Redis, by the number of holders of a dependency and of asks that share a call: its own
//! processor time, whatever else the machine does. `cargo bench -p budget-tests --bench renewals`; the profile does not
//! matter, since only the server is measured.
//!
//! At 10,000 holders of 10 dependencies that renew every 5 s, 25 µs each are half a core.
#![allow(clippy::unwrap_used, reason = "a benchmark")]

use std::sync::Arc;

use budget::{
    ids::{DependencyId, PolicyVersion},
    lease::{Epoch, Ground, HolderId, Incarnation, Presented, SyncAnswer, SyncAsk, Usage},
    policy::{Lease, Limit, Numbers, Policy, Spec},
    units::Rate,
};
use budget_tests::redis_server::{Flavour, RedisServer};
use budgetd::store::redis::{
    codec::{ASKS_MAX, Also, AlsoAnswer, Apply, Lend, LendReply, Way, pack_numbers, pack_terms, read_lend_reply},
    keys::{DependencyKeys, Keys},
    scripts::{By, LEND},
};
use deadpool_redis::redis::{self, Connection, Value};

const ROUND_MS: i64 = 5_000;
/// Renewals that are measured in one go.
const RENEWALS: usize = 20_000;
/// Calls that travel together, so that the server seldom waits.
const PIPELINE: usize = 16;
const VERSION: PolicyVersion = PolicyVersion { number: 1, id: 1 };

struct World {
    connection: Connection,
    keys: DependencyKeys,
    numbers: Arc<Numbers>,
    asks: Vec<SyncAsk>,
    next: usize,
    now_ms: i64,
}

impl World {
    fn new(server: &RedisServer, holders: usize) -> Self {
        let spec = Spec {
            admission: Some(Limit { rate: Rate::parse("1M/s").unwrap(), burst_tokens: 1_000_000 }),
            retry_burst_tokens: 100_000,
            lease: Lease { enabled: true, ..Lease::default() },
            ..Spec::default()
        };
        let numbers = Arc::new(Policy::new(spec).unwrap().numbers(false, true));
        let mut connection = redis::Client::open(server.admin_url()).unwrap().get_connection().unwrap();
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
        LEND.load().exec(&mut connection).unwrap();
        let keys = Keys::new("bench").unwrap().dependency(&DependencyId::new("dependency").unwrap());
        let ask = |number: usize| SyncAsk {
            holder: HolderId::new(&format!("holder-{number}")).unwrap(),
            incarnation: Incarnation(
                (number as u128).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835).to_be_bytes(),
            ),
            sequence: 0,
            nonce: 0,
            epoch: Epoch { number: 1, id: 9 },
            lease: None,
            usage: Usage::default(),
            counted: Usage::default(),
            in_flight: 0,
            weight: 1,
            leave: false,
        };
        let asks = (0..holders).map(ask).collect();
        Self { connection, keys, numbers, asks, next: 0, now_ms: 1_000_000 }
    }

    /// Renews that many leases, so many in each call, at the usual pace.
    fn renew(&mut self, renewals: usize, together: usize) {
        let (numbers, terms) = (pack_numbers(&self.numbers), pack_terms(&self.numbers));
        let ground = Ground { identity: 5, fresh_id: 9, fresh_store: true, ..Ground::default() };
        let mut left = renewals;
        while left > 0 {
            let mut pipeline = redis::pipe();
            let mut sent: Vec<Vec<usize>> = Vec::with_capacity(PIPELINE);
            while sent.len() < PIPELINE.min(self.asks.len().div_ceil(together)) && left > 0 {
                let count = together.min(left).min(self.asks.len());
                let holders: Vec<usize> = (self.next..self.next + count).map(|at| at % self.asks.len()).collect();
                (self.next, left) = (self.next + count, left - count);
                self.now_ms += ROUND_MS * count as i64 / self.asks.len() as i64;
                for holder in &holders {
                    let ask = &mut self.asks[*holder];
                    ask.sequence += 1;
                    ask.nonce += 1;
                    ask.usage.asked += 50 + (*holder as i64) % 7;
                    ask.usage.originals_admitted += 40;
                    ask.usage.retries_admitted += 4;
                    ask.usage.deposited_micros += 4_000_000;
                }
                let now_ms = self.now_ms.to_string();
                let apply = Apply {
                    keys: &self.keys,
                    now_ms: &now_ms,
                    version: VERSION,
                    force: false,
                    way: Way::default(),
                    numbers: &numbers,
                };
                let asks: Vec<&SyncAsk> = holders.iter().map(|holder| &self.asks[*holder]).collect();
                let lend = Lend { apply, terms: &terms, ground: &ground };
                pipeline.add_command(lend.command(By::Digest, std::iter::empty(), Also::Syncs(&asks)));
                sent.push(holders);
            }
            let replies: Vec<Value> = pipeline.query(&mut self.connection).unwrap();
            for (reply, holders) in replies.into_iter().zip(sent) {
                self.hear(reply, &holders);
            }
        }
    }

    fn hear(&mut self, reply: Value, holders: &[usize]) {
        let asks: Vec<&SyncAsk> = holders.iter().map(|holder| &self.asks[*holder]).collect();
        let lent = read_lend_reply(reply, VERSION, &self.numbers, std::iter::empty(), Also::Syncs(&asks)).unwrap();
        let LendReply::Done(lent) = lent else { panic!("{lent:?}") };
        let AlsoAnswer::Syncs(answers) = lent.also else { panic!("{:?}", lent.also) };
        for (holder, answer) in holders.iter().zip(answers) {
            let Some(SyncAnswer::Granted(grant)) = answer else { panic!("{answer:?}") };
            let ask = &mut self.asks[*holder];
            ask.counted = ask.usage.clone();
            ask.lease =
                Some(Presented { name: grant.name, value: grant.value, curve: grant.curve, position_ms: 4_990 });
        }
    }

    /// Processor time of the server so far, in microseconds.
    fn cpu_micros(&mut self) -> f64 {
        let info: String = redis::cmd("INFO").arg("cpu").query(&mut self.connection).unwrap();
        let of = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.parse::<f64>().unwrap() * 1e6
        };
        of("used_cpu_user_main_thread:") + of("used_cpu_sys_main_thread:")
    }

    fn commands_micros(&mut self) -> (f64, f64) {
        let info: String = redis::cmd("INFO").arg("commandstats").query(&mut self.connection).unwrap();
        let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
        let of = |name: &str| {
            let rest = line.split_once(name).unwrap().1;
            rest.split(',').next().unwrap().parse::<f64>().unwrap()
        };
        (of("calls="), of("usec="))
    }
}

fn main() {
    let server = RedisServer::start(Flavour::Redis7);
    let renewals = std::env::var("RENEWALS").map_or(RENEWALS, |text| text.parse().unwrap());
    println!("holders  asks per call  µs of Redis per renewal  in scripts  cores at 20,000/s");
    for holders in [10, 10_000] {
        let mut world = World::new(&server, holders);
        // Until shares have settled.
        world.renew(holders * 4, ASKS_MAX.min(holders));
        for together in [1, 4, 16, 64].into_iter().filter(|together| *together <= holders) {
            let (cpu, (calls, script)) = (world.cpu_micros(), world.commands_micros());
            world.renew(renewals, together);
            let (cpu_after, (calls_after, script_after)) = (world.cpu_micros(), world.commands_micros());
            let micros = (cpu_after - cpu) / renewals as f64;
            let in_scripts = (script_after - script) / renewals as f64;
            println!(
                "{holders:>7}  {together:>13}  {micros:>23.1}  {in_scripts:>10.1}  {:>17.2}",
                micros * 20_000.0 / 1e6
            );
            assert!(calls_after > calls, "scripts were called");
        }
    }
}
