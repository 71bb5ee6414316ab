//! The agent of a host: leases for callers in any language, by a socket.

use std::{net::SocketAddr, process::Command};

use budget::decision::{Attempt, Reserve};
use budget_client::{Mode, Source, boot_time_ns, reservation_id};
use budget_tests::{daemon, eventually::eventually, ports, process::Process, security};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    fleet::{Demand, Fleet},
    judge::Case,
    outages::{all_fresh, steps_are_used},
    pace::Pace,
    setting::{BOUND, CALL, On, POLICY, REST_MS, RETURN_MS, Setting, pass_ms, pay, pay_id, until_ns},
};

const MS: i64 = 1_000_000;
const RATE: f64 = 100.0;
const AGENTS: usize = 2;
const CALLERS: usize = 3;

/// An agent that serves a unix socket, or a port.
pub(crate) struct Agent {
    pub(crate) process: Process,
    listen: String,
    http: SocketAddr,
    arguments: Vec<String>,
}

// === impl Agent ===

impl Agent {
    pub(crate) async fn start(setting: &Setting, number: usize) -> Self {
        let listen = format!("unix:{}", setting.path(&format!("agent{number}.sock")).display());
        Self::at(setting, number, &listen, security::upstream(setting.daemons[0].grpc())).await
    }

    /// One that listens there, and asks those whom `upstream` names.
    pub(crate) async fn at(setting: &Setting, number: usize, listen: &str, upstream: Vec<String>) -> Self {
        let http = SocketAddr::from(([127, 0, 0, 1], ports::pick()));
        let config = setting.text_path("budgetd.toml");
        let name = format!("host{number}");
        let http_text = http.to_string();
        let arguments = ["serve", "--listen", listen, "--http", &http_text, "--config", &config, "--holder-id", &name];
        let arguments: Vec<String> = arguments.map(str::to_owned).into_iter().chain(upstream).collect();
        let mut agent = Self { process: spawn(&arguments), listen: listen.to_owned(), http, arguments };
        agent.serves().await;
        agent
    }

    pub(crate) async fn serves(&mut self) {
        eventually(BOUND, "the agent serves", async || {
            assert!(self.process.exited().is_none(), "{}", self.process.tail());
            match self.listen.strip_prefix("unix:") {
                Some(socket) => tokio::net::UnixStream::connect(socket).await.is_ok(),
                None => TcpStream::connect(&self.listen).await.is_ok(),
            }
        })
        .await;
    }

    pub(crate) async fn restart(&mut self) {
        self.process.kill();
        self.process = spawn(&self.arguments);
        self.serves().await;
    }

    pub(crate) fn endpoint(&self) -> String {
        if self.listen.starts_with("unix:") { self.listen.clone() } else { format!("http://{}", self.listen) }
    }

    /// Status and body of `/readyz`.
    async fn readiness(&self) -> (bool, String) {
        let mut stream = TcpStream::connect(self.http).await.unwrap();
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
        (answer.starts_with("HTTP/1.1 200"), body)
    }
}

fn spawn(arguments: &[String]) -> Process {
    let mut command = Command::new(daemon::binary());
    command.args(arguments);
    Process::spawn("agent", command)
}

async fn agents(setting: &Setting) -> (Vec<Agent>, Fleet) {
    let mut agents = Vec::new();
    let pace = setting.pace;
    let mut fleet = Fleet::paced(pace, 100);
    for number in 0..AGENTS {
        let agent = Agent::start(setting, number).await;
        for _ in 0..CALLERS {
            fleet.add_caller(&agent.endpoint(), Demand::plenty_at(pace, 100, AGENTS * CALLERS));
        }
        agents.push(agent);
    }
    lent(setting, pace.return_ms(), "first leases of agents").await;
    fleet.works(0.8 * fleet.rate as f64, "calm, by agents").await;
    (agents, fleet)
}

/// Waits until all agents are leased.
async fn lent(setting: &Setting, should_ms: i64, what: &str) {
    let operator = setting.operator();
    let start_ns = boot_time_ns();
    eventually(setting.pace.bound(), what, async || operator.lent().await.1 >= AGENTS).await;
    println!("{what}: within {} ms; on an idle machine {should_ms} ms", (boot_time_ns() - start_ns) / MS);
}

/// The daemon behind two agents is killed, and comes back: they go on along their curves, then by the fallback, and are
/// leased again. Their health says what is the matter.
///
/// Seen to fail with an agent that does not follow whether its daemon can be reached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a27_agents_go_on_while_the_daemon_behind_them_is_away_and_say_so() {
    let pace = Pace::of_machine();
    let mut setting = Setting::paced(pace, On::Memory, &pace.policy(100, 25, 15), 1, &[]);
    let start_ns = boot_time_ns();
    let (agents, fleet) = agents(&setting).await;
    let well = |up: bool| format!("\"up\":{up},\"degraded\":{}", !up);
    for agent in &agents {
        let (ready, body) = agent.readiness().await;
        assert!(ready && body.contains(&well(true)), "{body}");
    }
    let fresh = all_fresh(&setting.operator(), AGENTS, pace, 2).await;
    setting.daemon().kill();
    let killed_ns = boot_time_ns();
    steps_are_used(&fleet, killed_ns, fresh, "agents on the curve").await;
    for agent in &agents {
        // Taken out of service it would help nobody: ready, and degraded.
        eventually(BOUND, "the agent says so", async || {
            let (ready, body) = agent.readiness().await;
            ready && body.contains(&well(false))
        })
        .await;
    }
    until_ns(killed_ns + (2 * pace.step_ms() + pace.ms(500)) * MS).await;
    setting.restart_on_memory();
    lent(&setting, pace.return_ms() + REST_MS, "T4: agents leased again").await;
    fleet.works(0.4 * fleet.rate as f64, "agents after the return").await;
    for agent in &agents {
        eventually(BOUND, "the agent is well", async || agent.readiness().await.1.contains(&well(true))).await;
    }
    fleet.assert_none_failed();
    let mut case = Case::of(&setting, AGENTS, 0, start_ns);
    case.epoch(killed_ns);
    case.all_beyond();
    case.assert(&*fleet.end().await);
}

/// An agent is killed and started again under its name: its callers fail at once meanwhile, and nothing is admitted twice.
///
/// Seen to fail with renewals whose buckets start full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q11_an_agent_that_is_killed_and_started_again_costs_no_more_than_the_bound() {
    let setting = Setting::new(On::Memory, POLICY);
    let start_ns = boot_time_ns();
    let (mut agents, fleet) = agents(&setting).await;
    for _ in 0..3 {
        agents[0].process.kill();
        pass_ms(200).await;
        agents[0].restart().await;
        pass_ms(300).await;
    }
    let from_ns = boot_time_ns();
    lent(&setting, RETURN_MS, "T4: the agent leased again").await;
    eventually(BOUND, "by its lease", async || {
        let admissions = fleet.seen.admissions.lock().unwrap();
        admissions.iter().any(|seen| seen.from_ns > from_ns && seen.source == Source::Lease)
    })
    .await;
    fleet.works(0.5 * RATE, "after the restarts").await;
    println!("{}", fleet.summary());
    let mut case = Case::new(&setting.policy, AGENTS, 0, start_ns);
    case.all_beyond();
    case.assert(&*fleet.end().await);
}

/// What a lease decides under a policy that is only tried is told as such, like all else.
///
/// Seen to fail with answers that say they are of a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q13_an_agent_says_that_a_policy_is_only_tried() {
    let setting = Setting::new(On::Memory, &format!("mode = \"shadow\"\n{POLICY}"));
    let agent = Agent::start(&setting, 0).await;
    let client = security::client(&agent.endpoint());
    let reserve = async || {
        let ask = Reserve { no_release: true, ..Reserve::new(reservation_id().unwrap(), Attempt::ORIGINAL) };
        client.reserve(&pay(), &ask, CALL).await.unwrap()
    };
    let operator = setting.operator();
    let admitted = async || {
        let page = operator.client().get_status(&[pay_id()], None, CALL).await.unwrap();
        page.dependencies.first().map(|status| status.counters.originals_admitted)
    };
    // Once it holds a lease, the daemon behind it hears of no call.
    eventually(BOUND, "calls are decided by the lease", async || {
        reserve().await;
        let before = admitted().await;
        for _ in 0..5 {
            assert_eq!(reserve().await.mode, Mode::Shadow);
        }
        operator.lent().await.0 > 0.0 && before == admitted().await
    })
    .await;
    for _ in 0..20 {
        assert_eq!(reserve().await.mode, Mode::Shadow);
    }
}
