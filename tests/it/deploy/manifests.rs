//! The compose file and the manifests: the schema of each, what no schema sees, and their settings given to a daemon.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use budget_tests::{
    daemon::{self, Daemon},
    redis_server::{Flavour, RedisServer},
    security::Files,
};
use serde_json::Value;

use super::{deploy, finish, judge_settings, prepared, succeed, tool, yaml};

/// What an overlay expects to be there already: kind and name. Its comments say how to make them.
const EXPECTED: [(&str, &str); 5] = [
    ("Secret", "budgetd-store"),
    ("Secret", "budgetd-tls"),
    ("Secret", "budgetd-auth"),
    ("Secret", "budgetd-agent-tls"),
    ("Secret", "budgetd-agent-token"),
];
/// Where the secrets of TLS are mounted.
const TLS_MOUNTS: [&str; 3] = ["/etc/budgetd/tls/", "/etc/budgetd/auth/", "/etc/budgetd/token/"];

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn name(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

// === compose ===

#[test]
fn the_compose_file_fits_its_specification() {
    let check = |path: &Path| {
        let mut command = tool("check-jsonschema");
        command.args(["--builtin-schema", "vendor.compose-spec"]).arg(path);
        finish(command)
    };
    let checked = check(&deploy().join("compose/compose.yaml"));
    assert!(checked.status.success(), "{}{}", checked.stdout, checked.stderr);
    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("compose.yaml");
    fs::write(&broken, "services:\n  a:\n    imagee: b\n").unwrap();
    assert!(!check(&broken).status.success(), "the judge is blind");
}

/// What is mounted is there, what is named is defined, and each service is held as tightly as it can be.
#[test]
fn the_compose_file_is_complete_and_tight() {
    let prepared = prepared();
    let folder = prepared.path().join("deploy/compose");
    let compose = yaml(&folder.join("compose.yaml")).remove(0);
    let services = compose["services"].as_object().unwrap();
    assert_eq!(services.len(), 5);
    for (service, definition) in services {
        for volume in array(&definition["volumes"]) {
            let source = text(volume).split(':').next().unwrap();
            let there = match source.starts_with('.') {
                true => folder.join(source).exists(),
                false => compose["volumes"].get(source).is_some(),
            };
            assert!(there, "{service} mounts {source}");
        }
        for port in array(&definition["ports"]) {
            assert!(text(port).starts_with("127.0.0.1:"), "{service} is published to the world: {port}");
        }
        assert_eq!(definition["cap_drop"], serde_json::json!(["ALL"]), "{service}");
        assert_eq!(definition["security_opt"], serde_json::json!(["no-new-privileges:true"]), "{service}");
        assert!(definition["mem_limit"].is_string(), "{service}");
        assert!(definition["read_only"] == Value::Bool(true) || service == "grafana", "{service}");
    }
    for (name, secret) in compose["secrets"].as_object().unwrap() {
        assert!(folder.join(text(&secret["file"])).is_file(), "{name}: deploy/redis/secrets makes it");
    }
    let environment = services["budgetd-1"]["environment"].as_object().unwrap();
    judge_settings("compose.yaml", environment.keys().map(String::as_str));
    assert_eq!(environment, services["budgetd-2"]["environment"].as_object().unwrap());
    let health: Vec<&str> = array(&services["budgetd-1"]["healthcheck"]["test"]).iter().map(text).collect();
    assert_eq!(health, ["CMD", "/usr/bin/budgetd", "status", "--timeout", "2s"], "as the image is asked in its test");
    for file in ["prometheus.yml", "grafana/datasources/prometheus.yml", "grafana/dashboards/budgetd.yml"] {
        assert_eq!(yaml(&folder.join(file)).len(), 1, "{file}");
    }
    let redis = RedisServer::start(Flavour::Redis7);
    let settings = environment.iter().map(|(name, value)| (name.clone(), text(value).to_owned()));
    serves(settings.collect(), &folder.join("../config"), &redis.unix_url());
}

// === Kubernetes ===

struct Rendered {
    overlay: String,
    objects: Vec<Value>,
}

fn overlays() -> Vec<Rendered> {
    let prepared = prepared();
    let folder = prepared.path().join("deploy/kubernetes/overlays");
    let mut found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
        .iter()
        .map(|path| {
            let mut build = tool("kubectl");
            build.arg("kustomize").arg(path);
            let file = prepared.path().join("rendered.yaml");
            fs::write(&file, succeed(build)).unwrap();
            let mut validate = tool("kubernetes-validate");
            validate.args(["--strict", "--kubernetes-version", "1.37"]).arg(&file);
            succeed(validate);
            let overlay = path.file_name().unwrap().to_str().unwrap().to_owned();
            Rendered { overlay, objects: yaml(&file) }
        })
        .collect()
}

impl Rendered {
    fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |object| object["kind"] == kind)
    }

    fn workloads(&self) -> impl Iterator<Item = &Value> {
        ["Deployment", "DaemonSet", "StatefulSet"].into_iter().flat_map(|kind| self.of_kind(kind))
    }

    fn one<'a>(&'a self, kind: &'a str, wanted: &str) -> &'a Value {
        let found = self.of_kind(kind).find(|object| name(object).starts_with(wanted));
        found.unwrap_or_else(|| panic!("{}: no {kind} {wanted}", self.overlay))
    }

    fn has(&self, kind: &str, wanted: &str) -> bool {
        EXPECTED.contains(&(kind, wanted)) || self.of_kind(kind).any(|object| name(object) == wanted)
    }
}

/// Whether all labels that are asked for are there.
fn selects(selector: &Value, labels: &Value) -> bool {
    selector.as_object().is_some_and(|wanted| wanted.iter().all(|(key, value)| labels.get(key) == Some(value)))
}

fn judge_pod(rendered: &Rendered, workload: &Value) {
    let whose = format!("{}: {}", rendered.overlay, name(workload));
    let pod = &workload["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false, "{whose}");
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{whose}");
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{whose}");
    for container in array(&pod["containers"]) {
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false, "{whose}");
        assert_eq!(context["readOnlyRootFilesystem"], true, "{whose}");
        assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]), "{whose}");
        assert!(container["readinessProbe"].is_object() && container["livenessProbe"].is_object(), "{whose}");
        assert!(container["resources"]["limits"]["memory"].is_string(), "{whose}");
        for source in array(&container["envFrom"]) {
            assert!(rendered.has("ConfigMap", text(&source["configMapRef"]["name"])), "{whose}: {source}");
        }
        let ports: BTreeSet<&str> = array(&container["ports"]).iter().map(|port| text(&port["name"])).collect();
        for probe in ["readinessProbe", "livenessProbe", "startupProbe"] {
            let asked = ["httpGet", "tcpSocket"].iter().find_map(|kind| container[probe][kind]["port"].as_str());
            assert!(asked.is_none_or(|port| ports.contains(port)), "{whose}: {probe}");
        }
    }
    for volume in array(&pod["volumes"]) {
        let mut sources = vec![volume];
        sources.extend(array(&volume["projected"]["sources"]));
        for source in sources {
            if let Some(map) = source["configMap"]["name"].as_str() {
                assert!(rendered.has("ConfigMap", map), "{whose}: {map}");
            }
            if let Some(secret) = source["secret"]["secretName"].as_str().or(source["secret"]["name"].as_str()) {
                assert!(rendered.has("Secret", secret), "{whose}: {secret}");
            }
        }
    }
    let labels = &workload["spec"]["template"]["metadata"]["labels"];
    assert!(selects(&workload["spec"]["selector"]["matchLabels"], labels), "{whose}");
    let guarded = rendered.of_kind("NetworkPolicy").any(|policy| {
        selects(&policy["spec"]["podSelector"]["matchLabels"], labels)
            && policy["spec"]["policyTypes"] == serde_json::json!(["Ingress", "Egress"])
    });
    assert!(guarded, "{whose}: no NetworkPolicy says who reaches it");
}

#[test]
fn every_overlay_fits_kubernetes_and_itself() {
    let overlays = overlays();
    let names: Vec<&str> = overlays.iter().map(|rendered| rendered.overlay.as_str()).collect();
    assert_eq!(names, ["production", "production-tls", "trial"]);
    for rendered in &overlays {
        assert!(rendered.workloads().count() >= 1);
        rendered.workloads().for_each(|workload| judge_pod(rendered, workload));
        let pods: Vec<&Value> =
            rendered.workloads().map(|workload| &workload["spec"]["template"]["metadata"]["labels"]).collect();
        let selectors = (rendered.of_kind("Service").map(|service| &service["spec"]["selector"]))
            .chain(rendered.of_kind("PodDisruptionBudget").map(|budget| &budget["spec"]["selector"]["matchLabels"]))
            .chain(rendered.of_kind("NetworkPolicy").map(|policy| &policy["spec"]["podSelector"]["matchLabels"]));
        for selector in selectors {
            assert!(pods.iter().any(|labels| selects(selector, labels)), "{}: {selector}", rendered.overlay);
        }
        let space = rendered.of_kind("Namespace").next().map(name);
        for object in rendered.objects.iter().filter(|object| object["kind"] != "Namespace") {
            assert_eq!(object["metadata"]["namespace"].as_str(), space, "{}: {}", rendered.overlay, name(object));
        }
        let settings = settings_of(rendered.one("ConfigMap", "budgetd-settings"));
        judge_settings(&rendered.overlay, settings.keys().map(String::as_str));
        let policies = &rendered.one("ConfigMap", "budgetd-policies");
        assert_eq!(name(policies), "budgetd-policies", "a name with a hash would restart replicas at each change");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text(&policies["data"]["policies.toml"])).unwrap();
        let checked = daemon::run(&["check", &file.path().to_string_lossy()]);
        assert!(checked.status.success(), "{}: {}", rendered.overlay, checked.stderr);
    }
}

#[test]
fn the_judge_of_manifests_sees_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("broken.yaml");
    fs::write(&file, "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {portz: []}\n").unwrap();
    let mut validate = tool("kubernetes-validate");
    validate.args(["--strict", "--kubernetes-version", "1.37"]).arg(&file);
    assert!(!finish(validate).status.success());
    let mut build = tool("kubectl");
    build.arg("kustomize").arg(directory.path());
    assert!(!finish(build).status.success());
}

/// Settings of a config map or of compose, on a daemon: files and addresses are those of this machine.
fn serves(mut settings: BTreeMap<String, String>, policies: &Path, store: &str) -> Daemon {
    if let Some(policy) = settings.get_mut("BUDGETD_POLICY") {
        let file = Path::new(policy).file_name().unwrap().to_owned();
        *policy = policies.join(file).to_string_lossy().into_owned();
    }
    if settings.remove("BUDGETD_CONFIG").is_some() || settings.contains_key("BUDGETD_STORE") {
        settings.insert("BUDGETD_STORE".to_owned(), store.to_owned());
    }
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut daemon = Daemon::start_with(&[], &settings);
    let works = daemon.grpc().to_string();
    let of = |name: &str| settings.iter().find(|(found, _)| *found == name).map(|(_, value)| *value);
    // Of a caller that has what the agents have.
    let secured = of("BUDGETD_TLS_CLIENT_CA").map(|ca| {
        let token = Path::new(ca).with_file_name("token").to_string_lossy().into_owned();
        [format!("https://{works}"), "--tls-ca".to_owned(), ca.to_owned(), "--token-file".to_owned(), token].to_vec()
    });
    let way = secured.unwrap_or_else(|| vec![format!("http://{works}")]);
    let way = way.iter().map(String::as_str);
    let reserve: Vec<&str> = ["reserve", "payments", "--endpoint"].into_iter().chain(way).collect();
    let admitted =
        daemon.process_mut().wait_until(super::BOUND, |_| daemon::run(&reserve).status.success().then_some(()));
    assert!(admitted.is_ok(), "{}", daemon.process().tail());
    daemon
}

fn settings_of(map: &Value) -> BTreeMap<String, String> {
    map["data"].as_object().unwrap().iter().map(|(name, value)| (name.clone(), text(value).to_owned())).collect()
}

/// Replicas and agents of the manifests, without a cluster.
#[test]
fn the_settings_of_the_manifests_make_a_fleet() {
    let overlays = overlays();
    let redis = RedisServer::start(Flavour::Valkey9);
    for rendered in &overlays {
        let mut replica = settings_of(rendered.one("ConfigMap", "budgetd-settings"));
        let mut agent = settings_of(rendered.one("ConfigMap", "budgetd-agent-settings"));
        judge_settings(&rendered.overlay, replica.keys().chain(agent.keys()).map(String::as_str));
        let services: BTreeSet<&str> = rendered.of_kind("Service").map(name).collect();
        let scheme = if rendered.overlay == "production-tls" { "grpcs://" } else { "grpc://" };
        let upstream = agent["BUDGETD_STORE"].strip_prefix(scheme).and_then(|url| url.strip_suffix(":7411"));
        assert!(upstream.is_some_and(|service| services.contains(service)), "{agent:?}");

        let directory = tempfile::tempdir().unwrap();
        write_secrets(directory.path());
        for setting in replica.values_mut().chain(agent.values_mut()) {
            if let Some(file) = TLS_MOUNTS.iter().find_map(|mount| setting.strip_prefix(mount)) {
                *setting = directory.path().join(file).to_string_lossy().into_owned();
            }
        }
        let policies = text(&rendered.one("ConfigMap", "budgetd-policies")["data"]["policies.toml"]).to_owned();
        fs::write(directory.path().join("policies.toml"), policies).unwrap();
        // Each overlay is a fleet of its own; with leases, what is direct comes after a while only.
        redis.cli(&["FLUSHALL"]);
        let fleet = serves(replica, directory.path(), &redis.unix_url());
        serves(agent, directory.path(), &format!("{scheme}{}", fleet.grpc()));
    }
}

/// What the secrets of TLS hold, of one authority, and a token with the roles of an agent.
fn write_secrets(directory: &Path) {
    let files = Files::made();
    for name in ["ca.crt", "tls.crt", "tls.key", "token", "auth.toml"] {
        fs::copy(files.text(name), directory.join(name)).unwrap();
    }
}

/// The folders that people are told to apply are the ones that are judged here.
#[test]
fn every_shell_file_of_deploy_parses() {
    for file in ["redis/acl", "redis/secrets", "image/build", "image/reproduce", "image/rootfs"] {
        let mut parse = Command::new("sh");
        parse.arg("-n").arg(deploy().join(file));
        succeed(parse);
    }
}
