//! The scenarios of `tests/vectors` once more, by a client over gRPC with TLS and roles: spent by a token, operated by a
//! certificate. What a client is answered is what the store answers.

use std::time::Duration;

use budget::{
    decision::{Answer, ExtendResult, Invalid, Step},
    ids::{PolicyVersion, UnitId},
    ledger::View,
};
use budget_client::{Client, Decision, Dependency, Error, Mode, Options, PolicyRule};
use budget_tests::{
    redis_server::{Flavour, RedisServer},
    security::Files,
    vectors::{self, Act, Seen},
};
use budgetd::{
    Server,
    clock::{Clock, Hands},
    config::{Config, Settings},
    policies::effective_toml,
};
use tokio::{runtime::Runtime, sync::oneshot};

use crate::conformance::{DEPENDENCY, scenarios};

/// For each call.
const WITHIN: Duration = Duration::from_secs(30);
/// Units that the scenarios speak of.
const UNITS: [&str; 7] = ["input", "output", "money", "new", "t", "tokens", "z"];

/// A daemon in this process, whose ledgers live by a clock that is set by hand.
struct Ground {
    hands: Hands,
    dependency: Dependency,
    caller: Client,
    operator: Client,
    _stop: oneshot::Sender<()>,
}

// === impl Ground ===

impl Ground {
    async fn start(files: &Files, url: &str, prefix: &str) -> Self {
        let [_, cert, _, key, _, ca, _, auth] = files.daemon();
        let settings = format!(
            "listen = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\nstore = \"{url}\"\nprefix = \"{prefix}\"\n\
             tls_cert = \"{cert}\"\ntls_key = \"{key}\"\ntls_client_ca = \"{ca}\"\nauth = \"{auth}\"\n\
             redis_connect_timeout = \"5s\"\nredis_wait_timeout = \"5s\"\nredis_response_timeout = \"5s\"\n"
        );
        let config = Config::judge(Settings::parse(&settings).unwrap()).unwrap();
        let (clock, hands) = Clock::manual(0);
        let server = Server::bind(config).await.unwrap().with_clock(clock);
        let endpoint = format!("https://{}", server.addresses().grpc);
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(server.serve(async move { drop(stopped.await) }));
        let client = |credentials| {
            let options = Options { credentials, connect_timeout: WITHIN, ..Options::default() };
            Client::with_options(&endpoint, &options).unwrap()
        };
        let (caller, operator) = (client(files.caller()), client(files.operator()));
        let dependency = Dependency::new(DEPENDENCY).unwrap().with_units(UNITS).unwrap();
        Self { hands, dependency, caller, operator, _stop: stop }
    }

    async fn act(&self, act: Act) -> Seen {
        match act {
            Act::Policy(policy, retries_off) => {
                let page = self.operator.list_policies(None, WITHIN).await.unwrap();
                let rule = PolicyRule { name: DEPENDENCY.to_owned(), source_toml: effective_toml(&policy) };
                self.operator.put_policy(rule, page.version, WITHIN).await.unwrap();
                if page.retries_off.iter().any(|target| target == DEPENDENCY) != retries_off {
                    self.operator.set_retries(DEPENDENCY, !retries_off, "a test", WITHIN).await.unwrap();
                }
                Seen::Nothing
            }
            Act::Step(at_ms, step) => {
                self.hands.set(at_ms);
                Seen::Answer(self.step(step).await)
            }
            Act::View(at_ms) => {
                self.hands.set(at_ms);
                Seen::View(Box::new(self.view().await))
            }
        }
    }

    async fn step(&self, step: Step) -> Answer {
        let Self { caller, dependency, .. } = self;
        let answered = match step {
            Step::Reserve(reserve) => caller.reserve(dependency, &reserve, WITHIN).await.map(|reserved| {
                assert_ne!(reserved.mode, Mode::Degraded);
                match reserved.decision {
                    Decision::Admitted(admitted) => Answer::Admitted(admitted),
                    Decision::Denied(denied) => Answer::Denied(denied),
                }
            }),
            Step::Release(release) => {
                caller.release(dependency, &release, WITHIN).await.map(|released| Answer::Released(released.result))
            }
            Step::Extend(extend) => {
                caller.extend(dependency, extend, WITHIN).await.map(|extended: ExtendResult| Answer::Extended(extended))
            }
        };
        answered.unwrap_or_else(|error| Answer::Invalid(invalid(&error)))
    }

    async fn view(&self) -> View {
        let page = self.operator.get_status(&[self.dependency.id().clone()], None, WITHIN).await.unwrap();
        let status = page.dependencies.into_iter().next().expect("what was asked for");
        View {
            version: PolicyVersion::default(),
            shadow: status.mode == Mode::Shadow,
            admission_balance_micros: status.admission.map(|bucket| bucket.balance_micros),
            retry_balance_micros: status.retry.balance_micros,
            units: status
                .units
                .iter()
                .map(|unit| (UnitId::of(&unit.unit).unwrap(), unit.bucket.balance_micros))
                .collect(),
            in_flight: status.in_flight,
            counters: status.counters,
            lending: None,
        }
    }
}

/// What the caller is told to be at fault.
fn invalid(error: &Error) -> Invalid {
    let Error::InvalidArgument(text) = error else { panic!("{error:?}") };
    match text {
        _ if text.contains("unit") => Invalid::UnknownUnit(UnitId::of("money").unwrap()),
        _ if text.contains("expires_in_ms") => Invalid::ExpiresInTooLong,
        _ if text.contains("operation") => Invalid::OperationMismatch,
        other => panic!("{other}"),
    }
}

#[test]
fn every_scenario_holds_by_tls_and_roles() {
    let (files, server) = (Files::made(), RedisServer::start(Flavour::Redis7));
    let runtime = Runtime::new().unwrap();
    // One asks seventy thousand times to see that nothing is lost by rounding: that is for the stores alone.
    let asked = scenarios().into_iter().filter(|(_, text)| !text.contains("x10000"));
    for (index, (name, text)) in asked.enumerate() {
        let ground = runtime.block_on(Ground::start(&files, &server.unix_url(), &format!("s{index}")));
        vectors::run(&name, &text, |act| runtime.block_on(ground.act(act)));
    }
}
