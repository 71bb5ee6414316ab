//! Coordinators that are dead for good, silent, overloaded, or refuse; and reports across an outage.

use std::{convert::Infallible, future::Ready, net::SocketAddr, task::Poll};

use budget_client::{Source, boot_time_ns};
use budget_tests::{
    eventually::{eventually, eventually_some},
    ports,
    proxy::{Proxy, Upstream},
    security,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tonic::{
    Code, Status,
    body::Body,
    codegen::{Service, http},
    server::NamedService,
    transport::Server,
};

use super::{
    fleet::{Admission, Demand, Fleet, WITHIN_MS},
    judge::Case,
    outages::{all_fresh, first_step_is_used, nothing_blocks, returned, settled},
    setting::{BOUND, CALL, On, POLICY, REST_MS, RETURN_MS, STEP_MS, Setting, pass_ms, pay_id, until_ns},
};

const MS: i64 = 1_000_000;

/// Answers every call with the same status.
#[derive(Clone, Copy)]
struct Always(Code);

impl NamedService for Always {
    const NAME: &'static str = "retrybudget.v1.RetryBudget";
}

impl<B> Service<http::Request<B>> for Always {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<B>) -> Self::Future {
        std::future::ready(Ok(Status::new(self.0, "always").into_http()))
    }
}

/// Takes the place of a daemon that has ended.
async fn takes_the_place(address: SocketAddr, code: Code, tasks: &mut JoinSet<()>) {
    let listener = eventually_some(BOUND, "the address is free", async || TcpListener::bind(address).await.ok()).await;
    let mut server = Server::builder();
    if let Some(tls) = security::server_tls() {
        server = server.tls_config(tls).unwrap();
    }
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    tasks.spawn(async move {
        server.add_service(Always(code)).serve_with_incoming(incoming).await.unwrap();
    });
}

/// A coordinator that refuses everything widens nothing. Per second at most what is lent, then the fallback, or nothing.
async fn refusals_widen_nothing(code: Code) -> Vec<Admission> {
    const MEMBERS: usize = 10;
    let mut setting = Setting::new(On::Memory, POLICY);
    let start_ns = boot_time_ns();
    let fleet = Fleet::start(&setting.endpoints(), MEMBERS, Demand::plenty(100, MEMBERS));
    fleet.all_leased(RETURN_MS, "first leases").await;
    fleet.works(0.8 * 100.0, "calm").await;
    let fresh = all_fresh(&setting.operator(), MEMBERS, fleet.pace, 2).await;
    let address = setting.daemons[0].grpc();
    setting.daemon().kill();
    let killed_ns = boot_time_ns();
    let mut tasks = JoinSet::new();
    takes_the_place(address, code, &mut tasks).await;
    let end_ns = killed_ns + 2 * STEP_MS * MS;
    // The half of such a share is less than a whole token.
    first_step_is_used(&fleet, killed_ns, fresh, "on the curve").await;
    until_ns(end_ns + 1_000 * MS).await;
    let beyond = {
        let within = end_ns..end_ns + 1_000 * MS;
        let admissions = fleet.seen.admissions.lock().unwrap();
        admissions.iter().filter(|seen| within.contains(&seen.from_ns)).copied().collect()
    };
    for second in 0..3 {
        let from_ns = killed_ns + second * 1_000 * MS;
        println!("second {second}: {} admitted", fleet.admitted(from_ns, from_ns + 1_000 * MS));
    }
    if code == Code::Unavailable {
        eventually(BOUND, "the fallback decides", async || {
            fleet.seen.admissions.lock().unwrap().iter().any(|seen| seen.source == Source::Fallback)
        })
        .await;
    }
    drop(tasks);
    nothing_blocks(&fleet);
    let mut case = Case::new(&setting.policy, MEMBERS, 0, start_ns);
    case.epoch(killed_ns);
    case.all_beyond();
    case.assert(&*fleet.end().await);
    beyond
}

/// Seen to fail with an overloaded coordinator taken for one that is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a16_a_coordinator_that_is_overloaded_does_not_widen_the_budget() {
    let beyond = refusals_widen_nothing(Code::ResourceExhausted).await;
    // Who hears nothing by the deadline, on a busy machine, cannot know of the overload.
    let heard = beyond.iter().filter(|seen| seen.until_ns - seen.from_ns < WITHIN_MS * MS).count();
    assert_eq!(heard, 0, "overload must not lead to the fallback: {beyond:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a16_a_coordinator_that_is_unavailable_leads_to_the_fallback_and_no_further() {
    let beyond = refusals_widen_nothing(Code::Unavailable).await;
    // A tenth of 100 per second, and each of ten holders at most one token at first.
    assert!(beyond.len() <= 20, "{} by the fallback in a second", beyond.len());
}

/// One endpoint is dead for good, one accepts and never answers, and the one that lives is started again.
///
/// Seen to fail with an endpoint that failed and is not left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a17_dead_and_silent_endpoints_are_passed_over_and_a_restart_is_noticed() {
    let mut setting = Setting::new(On::Memory, POLICY);
    let start_ns = boot_time_ns();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dead = format!("http://127.0.0.1:{}", ports::pick());
    let mut endpoints = vec![dead, format!("http://{}", silent.local_addr().unwrap())];
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut kept: Vec<TcpStream> = Vec::new();
        while let Ok((stream, _)) = silent.accept().await {
            kept.push(stream);
        }
    });
    endpoints.extend(setting.endpoints());
    let (fleet, _) = settled(&setting, &endpoints).await;
    let mut case = Case::new(&setting.policy, 5, 0, start_ns);
    case.epoch(boot_time_ns());
    setting.daemon().kill();
    pass_ms(500).await;
    setting.restart_on_memory();
    returned(&setting, &fleet, RETURN_MS + REST_MS, "T4 with one of three endpoints").await;
    nothing_blocks(&fleet);
    case.all_beyond();
    case.assert(&*fleet.end().await);
}

/// Reports are held up, sent again, and arrive in the end: the ledger's counters are what was admitted, once.
///
/// Seen to fail with a ledger that adds whole reports instead of what is new in them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a18_usage_is_reported_once_across_an_outage() {
    let setting = Setting::new(On::Memory, POLICY);
    let start_ns = boot_time_ns();
    let proxy = Proxy::start(Upstream::Tcp(setting.daemons[0].grpc())).await;
    let demand = Demand { local_only: true, ..Demand::plenty(100, 5) };
    let fleet = Fleet::start(&[proxy.endpoint()], 5, demand);
    fleet.all_leased(RETURN_MS, "first leases").await;
    pass_ms(1_500).await;
    // Reports arrive and nobody hears that they did; then none arrive; then connections break in the middle.
    proxy.hold_replies();
    pass_ms(700).await;
    proxy.blackhole();
    pass_ms(700).await;
    proxy.cut().await;
    proxy.pass();
    fleet.all_leased(RETURN_MS + REST_MS, "T4 after lost reports").await;
    fleet.stop_asking();
    let admitted = || {
        let counts = fleet.members.iter().flat_map(|member| member.client.counts());
        counts.fold((0, 0), |(originals, retries), (_, counts)| {
            let local = counts.local;
            let (more_originals, more_retries) =
                (local.originals_admitted + local.fallback_originals, local.retries_admitted + local.fallback_retries);
            (originals + more_originals, retries + more_retries)
        })
    };
    let operator = setting.operator();
    let mut reported = (0, 0);
    // Calls that are on their way come in.
    pass_ms(500).await;
    let holders = async || {
        let page = operator.holders().await;
        page.holders.iter().fold((0, 0), |(originals, retries), holder| {
            let usage = &holder.value.usage;
            let (more_originals, more_retries) =
                (usage.originals_admitted + usage.fallback_originals, usage.retries_admitted + usage.fallback_retries);
            (originals + more_originals, retries + more_retries)
        })
    };
    eventually(BOUND, "all is reported", async || {
        reported = holders().await;
        reported == admitted()
    })
    .await;
    let status = operator.client().get_status(&[pay_id()], None, CALL).await.unwrap();
    let counters = status.dependencies[0].counters;
    let seen = fleet.seen.admissions.lock().unwrap().clone();
    println!("reported {reported:?}, ledger {} + {}", counters.originals_admitted, counters.retries_admitted);
    let local = i64::try_from(seen.len()).unwrap();
    assert_eq!(reported.0 + reported.1, local, "what was admitted here, once");
    assert_eq!((counters.originals_admitted, counters.retries_admitted), reported, "the ledger counts each once");
    let mut case = Case::new(&setting.policy, 5, 0, start_ns);
    case.all_beyond();
    case.assert(&*fleet.end().await);
}
