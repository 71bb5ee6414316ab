//! Calls that are given up at random moments, a hundred thousand of them, one by one and over Sessions: what remains is
//! what a model of the answers says.

use std::{
    future::{Future, poll_fn},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use budget::{
    decision::{Attempt, Outcome, Release, ReleaseResult, Reserve},
    ids::{DependencyId, ReservationId},
};
use budget_client::{Client, Dependency, Session};
use budget_tests::{daemon::Daemon, eventually::eventually, rng::Rng, security};
use tokio::task::JoinSet;

use crate::redis_world::fresh_id;

const CALLS: usize = 100_000;
const TASKS: usize = 40;
/// More than all calls can take, so that nothing is refused.
const BURST: i64 = 1_000_000;
const WITHIN: Duration = Duration::from_secs(20);

#[derive(Clone)]
enum Way {
    Unary(Arc<Client>),
    Session(Arc<Session>),
}

impl Way {
    async fn reserve(&self, dependency: &Dependency, ask: &Reserve) {
        let _given_up_or_not = match self {
            Self::Unary(client) => client.reserve(dependency, ask, WITHIN).await,
            Self::Session(session) => session.reserve(dependency, ask, WITHIN).await,
        };
    }

    async fn release(&self, dependency: &Dependency, release: &Release) -> Option<ReleaseResult> {
        match self {
            Self::Unary(client) => {
                client.release(dependency, release, WITHIN).await.ok().map(|released| released.result)
            }
            Self::Session(session) => {
                session.release(dependency, release, WITHIN).await.ok().map(|released| released.result)
            }
        }
    }
}

/// Polls a call a random number of times at most, then drops it.
async fn give_up_after(polls: u64, call: impl Future<Output = ()>) {
    let mut call = std::pin::pin!(call);
    for _ in 0..polls {
        let ready = poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_ready())).await;
        if ready {
            return;
        }
        tokio::task::yield_now().await;
    }
}

async fn storm(way: Way, mut rng: Rng, calls: usize) -> Vec<ReservationId> {
    let dependency = Dependency::new("stormy").unwrap();
    let mut ids = Vec::with_capacity(calls / 2);
    for _ in 0..calls / 2 {
        let ask = Reserve::new(fresh_id(), Attempt::ORIGINAL);
        ids.push(ask.id);
        give_up_after(rng.below(60), way.reserve(&dependency, &ask)).await;
        let release = Release::sent(ask.id, Outcome::Success);
        give_up_after(rng.below(60), async {
            way.release(&dependency, &release).await;
        })
        .await;
    }
    ids
}

async fn judge(name: &str, daemon: &Daemon, way: impl Fn(usize) -> Way) {
    let mut rng = Rng::seeded(name);
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        tasks.spawn(storm(way(task), rng.fork(), CALLS / TASKS));
    }
    let ids: Vec<ReservationId> = tasks.join_all().await.concat();
    assert_eq!(ids.len(), CALLS / 2);
    // What is left of a call that was given up may still be on its way: nothing is judged before all have ended.
    let client = Arc::new(security::client(&daemon.endpoint()));
    let dependency = Dependency::new("stormy").unwrap();
    let name_of_all = [DependencyId::new("stormy").unwrap()];
    eventually(Duration::from_secs(30), "no call is on its way", async || {
        let counted = async || {
            let page = client.get_status(&name_of_all, None, WITHIN).await.ok()?;
            page.dependencies.first().map(|status| (status.in_flight, format!("{:?}", status.counters)))
        };
        let first = counted().await;
        tokio::task::yield_now().await;
        first.is_some() && first == counted().await
    })
    .await;
    let (mut handed_back, mut ended, mut never) = (0, 0, 0);
    for id in ids {
        match client.release(&dependency, &Release::not_sent(id), WITHIN).await.expect("an answer").result {
            ReleaseResult::Applied => handed_back += 1,
            ReleaseResult::AlreadyReleased => ended += 1,
            ReleaseResult::Unknown => never += 1,
            ReleaseResult::Expired => panic!("permits live longer than the test"),
        }
    }
    println!("{name}: {handed_back} handed back, {ended} ended, {never} never admitted");
    assert!(handed_back > 100 && ended > 100 && never > 100, "every kind is reached");
    let page = client.get_status(&name_of_all, None, WITHIN).await.expect("a status");
    let status = &page.dependencies[0];
    assert_eq!(status.in_flight, 0);
    assert_eq!(status.counters.originals_admitted, handed_back + ended);
    assert_eq!(status.counters.not_sent, handed_back);
    let balance = status.admission.expect("a limit").balance_micros;
    // A day's token is not earned in the time of the test.
    let earned = balance - (BURST - ended) * 1_000_000;
    assert!((0..1_000_000).contains(&earned), "{balance}");
}

fn daemon() -> (Daemon, tempfile::NamedTempFile) {
    let policy = tempfile::NamedTempFile::new().unwrap();
    let admission = format!("admission = {{ rate = \"1/d\", burst = {BURST}, permit_ttl = \"1h\" }}");
    std::fs::write(
        policy.path(),
        format!("[dependency.\"stormy\"]\n{admission}\noperation = {{ retention = \"1h\" }}\n"),
    )
    .unwrap();
    (Daemon::start(&["--policy", policy.path().to_str().unwrap()]), policy)
}

mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a09_a_hundred_thousand_calls_given_up_leave_what_the_model_says() {
        let (daemon, _policy) = daemon();
        let clients: Vec<_> = (0..4).map(|_| Arc::new(security::client(&daemon.endpoint()))).collect();
        judge("unary", &daemon, |task| Way::Unary(Arc::clone(&clients[task % 4]))).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a09_a_hundred_thousand_calls_given_up_over_sessions_leave_what_the_model_says() {
        let (daemon, _policy) = daemon();
        let client = security::client(&daemon.endpoint());
        let mut sessions = Vec::new();
        for _ in 0..8 {
            sessions.push(Arc::new(client.session(WITHIN).await.unwrap()));
        }
        judge("session", &daemon, |task| Way::Session(Arc::clone(&sessions[task % 8]))).await;
    }
}
