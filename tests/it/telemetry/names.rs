//! Dashboard, alerts and documentation name what daemons really export, and the documentation all of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write as _,
    fs,
};

use budget::decision::{Attempt, Cause, Outcome, Release, Reserve, Sent, TerminalState, Use};
use budget_proto::pb::{self, budget_admin_client::BudgetAdminClient, retry_budget_client::RetryBudgetClient};
use budget_tests::{collector::Collector, daemon::Daemon, eventually::eventually, repository};

use super::{BOUND, channel};
use crate::{
    deploy::alerts::{dashboard, expressions, rules, rules_with, text},
    faults::ground::{Caller, Ground, Metrics, On, PATIENT, fresh_id, operation, original},
};

const UPDATE: &str = "UPDATE_DOCS=1 cargo test -p budget-tests --test it telemetry::names";
const PAGE: &str = "# Metrics reference

Generated from what daemons export at `/metrics`; a test holds this page to it. A collector gets the same by OTLP, under the
same names without `_total`. Each metric without the label `dependency` is of one replica. Those that say *fleet-wide* are read
from a ledger, so every replica shows the same: take the largest, not the sum.

`dependency` is the name or pattern of a rule; whatever no rule names is `other`, and so are rules after the first 999. No label
comes from a caller.

| name | kind | labels | meaning |
|---|---|---|---|
";
const ROLES: &str = "
[[token]]
name = \"nobody\"
sha256 = \"50d858e0985ecc7f60418aaf0cc5ab587f42c2570a884095a9e8ccacd0f6545c\"
roles = [{ role = \"read\", dependencies = [\"*\"] }]
";

/// Names of metrics in an expression, recorded ones left out.
fn names_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.split(|c: char| !is_part(c)).filter(|word| word.starts_with("budgetd_")).map(str::to_owned).collect()
}

/// Metrics by name.
#[derive(Default)]
struct Exported(BTreeMap<String, Metric>);

/// What `/metrics` says of one.
#[derive(Default)]
struct Metric {
    kind: String,
    meaning: String,
    labels: BTreeSet<String>,
}

impl Exported {
    fn add(&mut self, scraped: &str) {
        for line in scraped.lines() {
            let words = |start: &str| line.strip_prefix(start).and_then(|line| line.split_once(' '));
            if let Some((name, kind)) = words("# TYPE ") {
                self.0.entry(name.to_owned()).or_default().kind = kind.to_owned();
            } else if let Some((name, meaning)) = words("# HELP ") {
                self.0.entry(name.to_owned()).or_default().meaning = meaning.to_owned();
            } else if let Some((name, labels)) = line.split_once('{')
                && let Some(metric) = self.0.get_mut(name)
            {
                let keys = labels.split("=\"").filter_map(|part| part.rsplit([',', '"', '{']).next());
                metric.labels.extend(keys.filter(|key| !key.starts_with(['}', ' '])).map(str::to_owned));
            }
        }
    }

    /// Whether there are series of this name.
    fn has(&self, name: &str) -> bool {
        let of_histogram = |ending| {
            let base = name.strip_suffix(ending).and_then(|base| self.0.get(base));
            base.is_some_and(|metric| metric.kind == "histogram")
        };
        self.0.contains_key(name) || ["_bucket", "_sum", "_count"].into_iter().any(of_histogram)
    }

    fn page(&self) -> String {
        let mut page = PAGE.to_owned();
        for (name, Metric { kind, meaning, labels }) in &self.0 {
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            writeln!(page, "| `{name}` | {kind} | {} | {meaning} |", labels.join(", ")).unwrap();
        }
        page
    }
}

const POLICY: &str = "
[dependency.payments]
retry = { ratio = 0.5, floor = \"1/s\", burst = 10 }
[dependency.llm]
admission = { rate = \"1000/s\", burst = 100 }
cost.tokens = { rate = \"1000/s\", burst = 100 }
[dependency.leased]
admission = { rate = \"1000/s\", burst = 200 }
retry = { ratio = 0.5, burst = 100 }
lease = { enabled = true }
";

/// One of each event, on a replica with Redis and a collector, an agent that asks it, and a daemon with roles.
async fn exported() -> Exported {
    let collector = Collector::start().await;
    let endpoint = collector.endpoint();
    let arguments = [&PATIENT[..], &["--otlp-endpoint", &endpoint, "--no-leases-out"]].concat();
    let ground = Ground::with(On::Redis7, POLICY, 1, &arguments);
    let caller = ground.caller("payments");
    let job = operation("job");
    let first = Reserve { operation: Some(job.clone()), ..original() };
    caller.ask(&first).await;
    let sent =
        Sent { outcome: Outcome::Success, costs: vec![], terminal: Some(TerminalState::Completed), result_ref: None };
    caller.release(&Release { id: first.id, used: Use::Sent(sent), operation: Some(job.id.clone()) }).await;
    caller.ask(&Reserve::new(fresh_id(), Attempt::retry(2, Cause::Timeout))).await;
    let channel = channel(ground.daemon()).await;
    let extend = pb::ExtendRequest {
        dependency: "payments".into(),
        reservation_id: fresh_id().0.to_vec(),
        permit_ttl_ms: 1_000,
    };
    RetryBudgetClient::new(channel.clone()).extend(extend).await.unwrap();
    BudgetAdminClient::new(channel.clone()).get_status(pb::GetStatusRequest::default()).await.unwrap();
    let agent = Daemon::start(&["--store", &format!("grpc://{}", ground.daemon().grpc())]);
    let through = Caller::new(&agent.endpoint(), "leased");
    eventually(BOUND, "a lease that was used and reported", async || {
        let _asked = through.original().await;
        let metrics = Metrics::of(ground.daemon()).await;
        metrics.sum("budgetd_reported_total", &[]) > 0.0 && metrics.sum("budgetd_lease_holders", &[]) > 0.0
    })
    .await;
    // Each with a balance, once the ledgers were looked at after the calls.
    ground.caller("llm").original().await;
    eventually(BOUND, "all ledgers looked at", async || {
        Metrics::of(ground.daemon()).await.0.contains("budgetd_cost_balance_tokens{dependency=\"llm\",unit=\"tokens\"}")
    })
    .await;
    RetryBudgetClient::new(channel).reserve(pb::ReserveRequest::default()).await.unwrap_err();
    let mut exported = Exported::default();
    exported.add(&Metrics::of(ground.daemon()).await.0);

    let roles = tempfile::NamedTempFile::new().unwrap();
    fs::write(roles.path(), ROLES).unwrap();
    let guarded = Daemon::start(&["--auth", &roles.path().to_string_lossy()]);
    exported.add(&Metrics::of(&guarded).await.0);
    exported
}

/// Those that the rules record, in an expression.
fn recorded_in(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':')).filter(|word| word.contains(":budgetd"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_e3_what_is_named_is_exported_and_what_is_exported_is_documented() {
    let exported = exported().await;
    let rules = rules();
    let of_rules = ["alert", "record"].into_iter().flat_map(|key| rules_with(&rules, key).collect::<Vec<_>>());
    let mut asked = expressions(&dashboard());
    asked.extend(of_rules.map(|rule| text(&rule["expr"]).to_owned()));
    let recorded: BTreeSet<&str> = rules_with(&rules, "record").map(|rule| text(&rule["record"])).collect();
    let mut named = BTreeSet::new();
    for expression in &asked {
        for name in names_in(expression) {
            assert!(exported.has(&name), "{name} in {expression}");
            named.insert(name);
        }
        for name in recorded_in(expression) {
            assert!(recorded.contains(name), "{name} is not recorded: {expression}");
        }
    }
    assert!(named.len() > 40, "{named:?}");

    let path = repository().join("docs/metrics-reference.md");
    if env::var_os("UPDATE_DOCS").is_some_and(|value| value == "1") {
        fs::write(&path, exported.page()).unwrap();
    }
    let page = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        page == exported.page(),
        "docs/metrics-reference.md is not what is exported: {UPDATE}\n{}",
        exported.page()
    );
}
