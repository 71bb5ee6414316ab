//! Sub-leases: clients that hold leases of the agent of their host, which lends parts of its own.

use std::net::SocketAddr;

use budget::lease::HolderId;
use budget_client::{Client, Standing, boot_time_ns};
use budget_tests::{eventually::eventually, ports, security};

use super::{
    agents::Agent,
    fleet::{Demand, Fleet},
    judge::Case,
    outages::{Fresh, fresh_until},
    setting::{
        BOUND, CALL, On, Operator, POLICY, QUARANTINE_MS, REST_MS, RETURN_MS, STEP_MS, Setting, TIMING, pass_ms,
        pay_id, policy_of, until_ns,
    },
};

const MS: i64 = 1_000_000;
const RATE: f64 = 100.0;
/// Clients of the agent, and one that asks the daemon.
const LESSEES: usize = 3;
const CLIENTS: usize = LESSEES + 1;
/// Agent and clients.
const HOLDERS: usize = CLIENTS + 1;
/// What an agent lends it must have first: two more renewals, and a wait.
const LENT_MS: i64 = RETURN_MS + 4 * TIMING.renew_max_ms + TIMING.resend_max_ms;

/// A sub-lease that is no older than a renewal, of a lease that was no older when it was lent on, lasts so long.
const LEAST_MS: i64 = 2 * STEP_MS - 2 * TIMING.renew_max_ms;

/// An agent, leased clients of it, and one of the daemon behind it, all leased and at work.
async fn at_work(setting: &Setting) -> (Agent, Fleet) {
    let agent = Agent::start(setting, 0).await;
    let mut fleet = Fleet::empty();
    let demand = Demand::plenty(100, CLIENTS);
    for _ in 0..LESSEES {
        fleet.add(&[agent.endpoint()], None, demand);
    }
    fleet.add(&setting.endpoints(), None, demand);
    fleet.all_leased(LENT_MS, "first leases and sub-leases").await;
    fleet.works(0.7 * RATE, "calm, by an agent that lends").await;
    (agent, fleet)
}

/// The rates that the agent has lent, in whole attempts per second, and to how many.
async fn sublet(agent: &Agent) -> (f64, usize) {
    Operator::of(&agent.endpoint()).lent().await
}

/// The clients of an agent go on along the curve of what it had lent to them, until its first step must be over.
async fn curve_is_used(fleet: &Fleet, away_ns: i64, fresh: Fresh, what: &str) {
    let first_ns = fresh.at_ns + (LEAST_MS - STEP_MS - 50) * MS;
    until_ns(first_ns).await;
    fleet.assert_useful(away_ns, first_ns, 0.8 * fresh.per_second, what);
}

/// Clients of an agent decide by themselves; the daemon knows only the agent, which shows its sub-lessees. When it is
/// killed they go on along its curve, and when it is back they are leased again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q14_clients_of_an_agent_decide_by_themselves_and_outlive_it_by_its_curve() {
    let setting = Setting::new(On::Memory, POLICY);
    let start_ns = boot_time_ns();
    let (mut agent, fleet) = at_work(&setting).await;
    let fresh = fresh_until(&Operator::of(&agent.endpoint()), LESSEES, fleet.pace, LEAST_MS).await;
    let page = setting.operator().holders().await;
    let leased: Vec<_> = page.holders.iter().filter(|holder| holder.value.value.rate > 0).collect();
    assert_eq!(leased.len(), 2, "the agent and the other client: {leased:?}");
    let parent = leased.iter().find(|holder| holder.value.holder.as_str() == "host0").unwrap();
    assert!(fresh.per_second <= parent.value.value.rate as f64 / 1e6, "{fresh:?} of {parent:?}");

    agent.process.kill();
    let killed_ns = boot_time_ns();
    curve_is_used(&fleet, killed_ns, fresh, "along the dead agent's curve").await;
    until_ns(killed_ns + QUARANTINE_MS * MS).await;
    agent.restart().await;
    fleet.all_leased(LENT_MS + REST_MS, "T4: leased again by the agent that came back").await;
    let mut case = Case::new(&setting.policy, HOLDERS, 1, start_ns);
    case.all_beyond();
    case.assert(&*fleet.end().await);
}

/// An agent is killed and started again at once, over and over: what the dead ones had lent is charged to them, and the
/// next one lends of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q14_an_agent_that_lends_and_is_started_again_costs_no_more_than_the_bound() {
    let setting = Setting::new(On::Memory, POLICY);
    let start_ns = boot_time_ns();
    let (mut agent, fleet) = at_work(&setting).await;
    for _ in 0..3 {
        agent.restart().await;
        pass_ms(400).await;
    }
    fleet.all_leased(LENT_MS + REST_MS, "T4: leased again after the restarts").await;
    let mut case = Case::new(&setting.policy, HOLDERS, 1, start_ns);
    case.all_beyond();
    case.assert(&*fleet.end().await);
}

/// The daemon behind the agent is killed and comes back with nothing: agent and clients go on along one curve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q14_sub_leases_end_with_the_lease_of_the_agent_while_the_daemon_is_away() {
    let mut setting = Setting::new(On::Memory, POLICY);
    let start_ns = boot_time_ns();
    let (agent, fleet) = at_work(&setting).await;
    let fresh = fresh_until(&Operator::of(&agent.endpoint()), LESSEES, fleet.pace, LEAST_MS).await;
    setting.daemon().kill();
    let killed_ns = boot_time_ns();
    curve_is_used(&fleet, killed_ns, fresh, "along the agent's curve").await;
    until_ns(killed_ns + (2 * STEP_MS + 300) * MS).await;
    let after_ns = boot_time_ns();
    pass_ms(500).await;
    assert_eq!(fleet.by_lease_since(after_ns), 0, "no sub-lease outlives its parent: {}", fleet.summary());
    setting.restart_on_memory();
    fleet.all_leased(LENT_MS + REST_MS, "T4: leased again by agent and daemon").await;
    let mut case = Case::new(&setting.policy, HOLDERS, 1, start_ns);
    case.epoch(killed_ns);
    case.all_beyond();
    case.assert(&*fleet.end().await);
}

/// A policy is cut to less than half: the agent gives up what it had when its clients have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q14_a_policy_that_is_cut_reaches_the_clients_of_an_agent() {
    let setting = Setting::new(On::Memory, POLICY);
    let start_ns = boot_time_ns();
    let (agent, fleet) = at_work(&setting).await;
    let low = policy_of(40, 20, 12);
    setting.operator().put(&low).await;
    let put_ns = boot_time_ns();
    // What the agent has, and has acknowledged: its charge as well.
    eventually(BOUND, "the agent's lease is small", async || {
        let page = setting.operator().holders().await;
        let charged: i64 = page.holders.iter().map(|holder| holder.value.charged.rate).sum();
        let (rate, _) = sublet(&agent).await;
        charged <= 32_000_000 && rate <= 32.0
    })
    .await;
    let settled_ms = (boot_time_ns() - put_ns) / MS;
    println!("cut: acknowledged after {settled_ms} ms");
    pass_ms(2_000).await;
    let mut case = Case::new(&setting.policy, HOLDERS, 1, start_ns);
    case.policy(put_ns, &low);
    case.assert(&*fleet.end().await);
}

/// An operator takes the lease of one client away, at the agent that lends it: that one stops, the others go on, and it is
/// leased again when the word is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q14_a_client_of_an_agent_is_revoked_at_the_agent_and_the_others_go_on() {
    let setting = Setting::new(On::Memory, POLICY);
    let start_ns = boot_time_ns();
    let agent = Agent::start(&setting, 0).await;
    let mut fleet = Fleet::empty();
    for number in 0..LESSEES {
        fleet.add(&[agent.endpoint()], Some(&format!("client-{number}")), Demand::plenty(100, LESSEES));
    }
    fleet.all_leased(LENT_MS, "first sub-leases").await;
    let (name, why) = (HolderId::new("client-1").unwrap(), "runs wild");
    let client = Client::new(&agent.endpoint()).unwrap();
    let at_daemon = Client::new(&setting.endpoints()[0]).unwrap();
    assert!(!at_daemon.revoke_lease(&pay_id(), &name, why, CALL).await.unwrap(), "the daemon knows the agent only");
    let nobody = HolderId::new("nobody").unwrap();
    assert!(!client.revoke_lease(&pay_id(), &nobody, why, CALL).await.unwrap());
    assert!(client.revoke_lease(&pay_id(), &name, why, CALL).await.unwrap());
    eventually(BOUND, "the client has given its lease up", async || {
        fleet.members[1].handle.standing() == Standing::Direct && fleet.standing(Standing::Leased) == LESSEES - 1
    })
    .await;
    fleet.all_leased(2 * STEP_MS + LENT_MS, "leased again after one curve").await;
    let mut case = Case::new(&setting.policy, LESSEES + 1, 1, start_ns);
    case.all_beyond();
    case.assert(&*fleet.end().await);
}

/// An agent has its leases of another agent. When that is killed, it and its clients go on along that one's curve, and no
/// longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q14_an_agent_of_an_agent_lends_along_the_curve_of_that_one() {
    // What comes through two agents is to have whole tokens for each.
    let setting = Setting::new(On::Memory, &policy_of(100, 60, 60));
    let start_ns = boot_time_ns();
    let address = SocketAddr::from(([127, 0, 0, 1], ports::pick()));
    let upstream = security::upstream(setting.daemons[0].grpc());
    let mut outer = Agent::at(&setting, 0, &address.to_string(), upstream).await;
    let listen = format!("unix:{}", setting.path("inner.sock").display());
    let inner = Agent::at(&setting, 1, &listen, vec!["--store".to_owned(), format!("grpc://{address}")]).await;
    let mut fleet = Fleet::empty();
    for _ in 0..LESSEES {
        fleet.add(&[inner.endpoint()], None, Demand::plenty(100, LESSEES));
    }
    fleet.all_leased(LENT_MS + RETURN_MS, "first leases behind two agents").await;
    eventually(BOUND, "the first lends to the second, and that to the clients", async || {
        (sublet(&outer).await.1, sublet(&inner).await.1) == (1, LESSEES)
    })
    .await;
    outer.process.kill();
    let killed_ns = boot_time_ns();
    until_ns(killed_ns + (2 * STEP_MS + 300) * MS).await;
    let after_ns = boot_time_ns();
    pass_ms(500).await;
    assert_eq!(fleet.by_lease_since(after_ns), 0, "no lease outlives that of the first agent: {}", fleet.summary());
    outer.restart().await;
    fleet.all_leased(LENT_MS + RETURN_MS + REST_MS, "T4: leased again behind two agents").await;
    let mut case = Case::new(&setting.policy, LESSEES + 2, 1, start_ns);
    case.all_beyond();
    case.assert(&*fleet.end().await);
}
