//! Every role at every method: what is not permitted is said so and changes nothing.

use tonic::{Code, Request, Status, metadata::MetadataValue};

use super::*;

const POLICIES: &str = "[dependency.\"pay\"]\nadmission = { rate = \"10/s\", burst = 20 }\nretry = { ratio = 0.2 }\n";

/// The tokens: each is its own name.
const NOBODY: &str = "";
const ALL: &str = "all";

/// A token for each role on `pay`, on the family `pay*`, on something else, and on everything.
fn auth() -> String {
    let entry = |name: &str, roles: &[(&str, &str)]| {
        let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
        let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let role = |(role, on): &(&str, &str)| format!("{{ role = \"{role}\", dependencies = [\"{on}\"] }}");
        let roles: Vec<_> = roles.iter().map(role).collect();
        format!("[[token]]\nname = \"{name}\"\nsha256 = \"{digest}\"\nroles = [{}]\n", roles.join(", "))
    };
    let mut text = entry(ALL, &[("reserve", "*"), ("operate", "*")]);
    for role in ["reserve", "operate", "read"] {
        for (suffix, on) in [("pay", "pay"), ("family", "pa*"), ("other", "other"), ("every", "*")] {
            text += &entry(&format!("{role}-{suffix}"), &[(role, on)]);
        }
    }
    text
}

struct Guarded {
    daemon: Daemon,
    directory: tempfile::TempDir,
    budgets: RetryBudgetClient<Channel>,
    admin: BudgetAdminClient<Channel>,
}

/// A request with a token, or without.
fn with<M>(token: &str, message: M) -> Request<M> {
    let mut request = Request::new(message);
    if token != NOBODY {
        let value: MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    request
}

// === impl Guarded ===

impl Guarded {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("auth.toml");
        fs::write(&file, auth()).unwrap();
        let daemon = Daemon::start_with(POLICIES, |config| config.security.auth = Some(file)).await;
        let (budgets, admin) = (daemon.budgets().await, daemon.admin().await);
        Self { daemon, directory, budgets, admin }
    }

    /// All that calls could change: the ledger, switches, the policies.
    async fn state(&self) -> String {
        let mut admin = self.admin.clone();
        let status = pb::GetStatusRequest { dependencies: vec!["pay".into(), "other".into()], ..Default::default() };
        let status = admin.get_status(with(ALL, status)).await.unwrap().into_inner();
        let policies = admin.list_policies(with(ALL, pb::ListPoliciesRequest::default())).await.unwrap().into_inner();
        format!("{:?} {policies:?}", status.dependencies)
    }

    async fn version(&self) -> Option<pb::PolicyVersion> {
        let request = with(ALL, pb::ListPoliciesRequest::default());
        self.admin.clone().list_policies(request).await.unwrap().into_inner().version
    }

    /// Each method, meant for `pay` where it names a dependency.
    async fn call(&self, method: &str, token: &str, number: u64) -> Result<(), Status> {
        let (mut budgets, mut admin) = (self.budgets.clone(), self.admin.clone());
        match method {
            "Reserve" => budgets.reserve(with(token, original("pay", number))).await.map(|_| ()),
            "Release" => budgets.release(with(token, success("pay", number))).await.map(|_| ()),
            "Extend" => {
                let message =
                    pb::ExtendRequest { dependency: "pay".into(), reservation_id: id(number), permit_ttl_ms: 1_000 };
                budgets.extend(with(token, message)).await.map(|_| ())
            }
            "Session" => {
                let call = pb::SessionRequest {
                    correlation_id: 1,
                    call: Some(pb::session_request::Call::Reserve(original("pay", number))),
                };
                let mut answers = budgets.session(with(token, tokio_stream::once(call))).await?.into_inner();
                refused_within(answers.message().await?.unwrap())
            }
            "Sync" => {
                let ask = pb::SyncAsk { dependency: "pay".into(), sequence: 1, nonce: 1, ..Default::default() };
                let message = pb::SyncRequest {
                    holder_id: "holder".into(),
                    incarnation: vec![1; 16],
                    weight: None,
                    asks: vec![ask],
                };
                let answers = budgets.sync(with(token, message)).await?.into_inner().answers;
                let answer = answers.into_iter().next().unwrap().answer.unwrap();
                if let pb::sync_answer::Answer::Failure(failed) = answer {
                    Err(Status::new(Code::from(failed.code), failed.message))
                } else {
                    Ok(())
                }
            }
            "ReportReceived" => {
                let message = pb::ReportReceivedRequest { dependency: "pay".into(), attempts: 1 };
                budgets.report_received(with(token, message)).await.map(|_| ())
            }
            "GetPolicy" => {
                admin.get_policy(with(token, pb::GetPolicyRequest { dependency: "pay".into() })).await.map(|_| ())
            }
            "GetStatus" => {
                let message = pb::GetStatusRequest { dependencies: vec!["pay".into()], ..Default::default() };
                admin.get_status(with(token, message)).await.map(|_| ())
            }
            "ListHolders" => {
                let message = pb::ListHoldersRequest { dependency: "pay".into(), ..Default::default() };
                admin.list_holders(with(token, message)).await.map(|_| ())
            }
            "GetStatus of all" => admin.get_status(with(token, pb::GetStatusRequest::default())).await.map(|_| ()),
            "ListPolicies" => admin.list_policies(with(token, pb::ListPoliciesRequest::default())).await.map(|_| ()),
            "PutPolicy" | "PutPolicy of the defaults" | "PutPolicy of a family" => {
                let name = match method {
                    "PutPolicy" => "pay",
                    "PutPolicy of a family" => "pay*",
                    _ => "defaults",
                };
                let message = pb::PutPolicyRequest {
                    name: name.into(),
                    source_toml: "retry = { ratio = 0.1 }".into(),
                    expected_version: self.version().await,
                    ..Default::default()
                };
                admin.put_policy(with(token, message)).await.map(|_| ())
            }
            "SetRetries" | "SetRetries of all" => {
                let target = if method == "SetRetries" { "pay" } else { "*" };
                let message = pb::SetRetriesRequest {
                    target: target.into(),
                    enabled: false,
                    why: "test".into(),
                    ..Default::default()
                };
                admin.set_retries(with(token, message)).await.map(|_| ())
            }
            "WatchStatus" | "WatchStatus of all" => {
                let dependencies = if method == "WatchStatus" { vec!["pay".into()] } else { Vec::new() };
                let message = pb::WatchStatusRequest { dependencies, ..Default::default() };
                admin.watch_status(with(token, message)).await.map(|_| ())
            }
            "PolicyHistory" => admin.policy_history(with(token, pb::PolicyHistoryRequest::default())).await.map(|_| ()),
            "TryPolicies" => {
                let message = pb::TryPoliciesRequest { rules: Vec::new(), for_ms: 1_000 };
                admin.try_policies(with(token, message)).await.map(|_| ())
            }
            "RollbackPolicies" => {
                let expected_version = self.version().await;
                let message = pb::RollbackPoliciesRequest { version_number: 1, expected_version, ..Default::default() };
                admin.rollback_policies(with(token, message)).await.map(|_| ())
            }
            "DeletePolicy" | "DeletePolicy of the defaults" => {
                let name = if method == "DeletePolicy" { "pay" } else { "defaults" };
                let expected_version = self.version().await;
                let message = pb::DeletePolicyRequest { name: name.into(), expected_version, ..Default::default() };
                admin.delete_policy(with(token, message)).await.map(|_| ())
            }
            "RevokeLease" => {
                let message = pb::RevokeLeaseRequest {
                    dependency: "pay".into(),
                    holder_id: "nobody".into(),
                    ..Default::default()
                };
                admin.revoke_lease(with(token, message)).await.map(|_| ())
            }
            other => panic!("{other}"),
        }
    }
}

fn refused_within(response: pb::SessionResponse) -> Result<(), Status> {
    if let pb::session_response::Answer::Failure(failed) = response.answer.unwrap() {
        Err(Status::new(Code::from(failed.code), failed.message))
    } else {
        Ok(())
    }
}

/// Method, the role it takes, and whether that must be on everything, or on the family at least.
const METHODS: [(&str, &str, &[&str]); 24] = [
    ("Reserve", "reserve", &["pay", "family", "every"]),
    ("Release", "reserve", &["pay", "family", "every"]),
    ("Extend", "reserve", &["pay", "family", "every"]),
    ("Session", "reserve", &["pay", "family", "every"]),
    ("Sync", "reserve", &["pay", "family", "every"]),
    ("ReportReceived", "reserve", &["pay", "family", "every"]),
    ("GetPolicy", "read", &["pay", "family", "every"]),
    ("GetStatus", "read", &["pay", "family", "every"]),
    ("ListHolders", "read", &["pay", "family", "every"]),
    ("GetStatus of all", "read", &["every"]),
    ("WatchStatus", "read", &["pay", "family", "every"]),
    ("WatchStatus of all", "read", &["every"]),
    ("ListPolicies", "read", &["every"]),
    ("PolicyHistory", "read", &["every"]),
    ("TryPolicies", "operate", &["every"]),
    ("RollbackPolicies", "operate", &["every"]),
    ("DeletePolicy", "operate", &["pay", "family", "every"]),
    ("DeletePolicy of the defaults", "operate", &["every"]),
    ("PutPolicy", "operate", &["pay", "family", "every"]),
    ("PutPolicy of a family", "operate", &["family", "every"]),
    ("PutPolicy of the defaults", "operate", &["every"]),
    ("SetRetries", "operate", &["pay", "family", "every"]),
    ("SetRetries of all", "operate", &["every"]),
    ("RevokeLease", "operate", &["pay", "family", "every"]),
];

#[tokio::test]
async fn every_role_at_every_method() {
    let guarded = Guarded::start().await;
    let refused = async |method: &str, token: &str, code: Code| {
        let before = guarded.state().await;
        let status = guarded.call(method, token, 7).await.expect_err(&format!("{method} by {token:?}"));
        assert_eq!(status.code(), code, "{method} by {token:?}: {status:?}");
        assert_eq!(guarded.state().await, before, "{method} by {token:?} has changed something");
        status.message().to_owned()
    };
    let mut number = 100;
    for (method, needed, scopes) in METHODS {
        assert!(refused(method, NOBODY, Code::Unauthenticated).await.contains("no credentials"));
        assert!(refused(method, "stranger", Code::Unauthenticated).await.contains("not known here"));
        for role in ["reserve", "operate", "read"] {
            for scope in ["pay", "family", "other", "every"] {
                let token = format!("{role}-{scope}");
                let has_role = role == needed || (role == "operate" && needed == "read");
                if has_role && scopes.contains(&scope) {
                    continue;
                }
                let message = refused(method, &token, Code::PermissionDenied).await;
                assert!(message.starts_with(&format!("token \"{token}\" may not")), "{method}: {message}");
            }
        }
    }
    for (method, needed, scopes) in METHODS {
        for role in ["reserve", "operate", "read"] {
            for scope in scopes {
                if role == needed || (role == "operate" && needed == "read") {
                    number += 1;
                    if let Err(status) = guarded.call(method, &format!("{role}-{scope}"), number).await {
                        let refused = [Code::PermissionDenied, Code::Unauthenticated].contains(&status.code());
                        assert!(!refused, "{method} by {role} on {scope}: {status:?}");
                    }
                }
            }
        }
    }
    assert!(guarded.daemon.metric("budgetd_permission_denied_total").unwrap() > 100.0);
    assert!(guarded.daemon.metric("budgetd_unauthenticated_total").unwrap() >= 30.0);
    guarded.daemon.end().await;
}

#[tokio::test]
async fn each_ask_of_a_sync_and_each_call_of_a_session_is_judged_by_itself() {
    let guarded = Guarded::start().await;
    let ask = |name: &str| pb::SyncAsk { dependency: name.into(), sequence: 1, nonce: 1, ..Default::default() };
    let asks = vec![ask("pay"), ask("other")];
    let message = pb::SyncRequest { holder_id: "h".into(), incarnation: vec![1; 16], weight: None, asks };
    let answers = guarded.budgets.clone().sync(with("reserve-pay", message)).await.unwrap().into_inner().answers;
    let codes: Vec<_> = (answers.iter())
        .map(|answer| {
            let pb::sync_answer::Answer::Failure(failed) = answer.answer.as_ref().unwrap() else { return Code::Ok };
            Code::from(failed.code)
        })
        .collect();
    // What the policy says of leases is not asked here.
    assert_ne!(codes[0], Code::PermissionDenied);
    assert_eq!(codes[1], Code::PermissionDenied);

    let (calls, queued) = tokio::sync::mpsc::channel(8);
    let calls_of = tokio_stream::wrappers::ReceiverStream::new(queued);
    let mut answers = guarded.budgets.clone().session(with("reserve-pay", calls_of)).await.unwrap().into_inner();
    let mut ask = async |name: &str, number: u64| {
        let call = Some(pb::session_request::Call::Reserve(original(name, number)));
        calls.send(pb::SessionRequest { correlation_id: number, call }).await.unwrap();
        refused_within(bounded(answers.message()).await.unwrap().unwrap()).map_err(|status| status.code())
    };
    assert_eq!(ask("pay", 1).await, Ok(()));
    assert_eq!(ask("other", 2).await, Err(Code::PermissionDenied));
    assert_eq!(ask("pay", 3).await, Ok(()));
    // The token is taken away while the session is open.
    let file = guarded.directory.path().join("auth.toml");
    let others: Vec<_> =
        auth().split("[[token]]").filter(|entry| !entry.contains("\"reserve-pay\"")).map(str::to_owned).collect();
    fs::write(&file, others.join("[[token]]")).unwrap();
    let mut number = 10;
    loop {
        number += 1;
        match ask("pay", number).await {
            Ok(()) => sleep(Duration::from_millis(20)).await,
            Err(code) => break assert_eq!(code, Code::Unauthenticated),
        }
        assert!(number < 1_000, "a token that is gone goes on");
    }
    guarded.daemon.end().await;
}

#[tokio::test]
async fn probes_need_nothing_and_reflection_somebody() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

    let guarded = Guarded::start().await;
    let mut health = HealthClient::new(guarded.daemon.channel().await);
    assert!(health.check(HealthCheckRequest { service: String::new() }).await.is_ok());
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest,
    };
    let mut reflection = ServerReflectionClient::new(guarded.daemon.channel().await);
    let mut ask = async |token: &str| {
        let message_request = Some(MessageRequest::ListServices(String::new()));
        let request = ServerReflectionRequest { host: String::new(), message_request };
        reflection
            .server_reflection_info(with(token, tokio_stream::once(request)))
            .await
            .map(|_| ())
            .map_err(|s| s.code())
    };
    assert_eq!(ask(NOBODY).await, Err(Code::Unauthenticated));
    assert_eq!(ask("read-other").await, Ok(()));
    assert_eq!(guarded.daemon.get("/livez").await.0, 200);
    assert_eq!(guarded.daemon.get("/readyz").await.0, 200);
    assert_eq!(guarded.daemon.get("/metrics").await.0, 200, "from this machine");
    guarded.daemon.end().await;
}
