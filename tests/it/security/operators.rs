//! What is kept of operators, and who sees the metrics.

use std::{
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    process::Command,
};

use budget_client::{By, Client, How, Options, PolicyEdit, RetrySwitch};
use budget_tests::{daemon, process::Process};
use serde_json::Value;

use super::ground::{BOUND, Files, endpoint};

/// Tokens and their SHA-256, made with sha256sum.
const CONSOLE: (&str, &str) =
    ("a token of the console", "f7c48a4da73e2fd4ac25170e2c3694a686361aec951351ee869daaf7ba8af000");
const SCRAPER: (&str, &str) =
    ("a token of the scraper", "4b024bc01b552361d9616177b6e88b4ddb07d3216b2f0ca00e8e8b4caabca6bf");

fn write_auth(files: &Files) {
    let entry = |name: &str, sha256: &str, role: &str| {
        format!(
            "[[token]]\nname = \"{name}\"\nsha256 = \"{sha256}\"\nroles = [{{ role = \"{role}\", dependencies = [\"*\"] }}]\n"
        )
    };
    files.write("auth", &(entry("console", CONSOLE.1, "operate") + &entry("scraper", SCRAPER.1, "read")));
}

/// Whatever somebody calls himself, it is told who it was.
#[tokio::test]
async fn changes_are_kept_under_the_name_that_was_proved() {
    let files = Files::new();
    write_auth(&files);
    let daemon = files.daemon(&["auth"]);
    let options = Options { credentials: files.credentials().token(CONSOLE.0), ..Options::default() };
    let client = Client::with_options(&endpoint(&daemon), &options).unwrap();
    let by = |who: &str| By { who: who.to_owned(), why: "a test".to_owned() };
    let expected = client.list_policies(None, BOUND).await.unwrap().version;
    let edit = PolicyEdit {
        name: "pay".to_owned(),
        source_toml: Some("retry.ratio = 0.2".to_owned()),
        expected,
        how: How::Plain,
        by: by("token \"root\""),
    };
    client.edit_policy(edit, BOUND).await.unwrap();
    let switch = RetrySwitch { target: "pay".to_owned(), enabled: false, for_ms: None, by: by("") };
    client.switch_retries(switch, BOUND).await.unwrap();
    let history = client.policy_history(None, BOUND).await.unwrap();
    let who: Vec<&str> = history.changes.iter().map(|change| &*change.by.who).collect();
    assert_eq!(who, ["token \"console\"", "token \"console\" (token \"root\")"]);
    let page = client.get_status(&[], None, BOUND).await.unwrap();
    assert_eq!(page.about.kill_switches[0].by.who, "token \"console\"");
}

/// An address of this machine that is not loopback: who comes by it is no local asker. Nothing is sent.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("198.51.100.1:9").expect("a network interface other than loopback");
    socket.local_addr().unwrap().ip()
}

/// A daemon whose HTTP port is open to others.
fn exposed(files: &Files, flags: &[&str]) -> (Process, SocketAddr) {
    let ready = files.path("ready");
    let _absent = fs::remove_file(&ready);
    let mut command = Command::new(daemon::binary());
    command.args(["serve", "--listen", "127.0.0.1:0", "--http", "0.0.0.0:0", "--ready-file"]).arg(&ready).args(flags);
    let mut process = Process::spawn("budgetd", command);
    let http = process.wait_until(BOUND, |_| http_of(&ready));
    let http = http.unwrap_or_else(|gone| panic!("{gone:?}; {}", process.tail()));
    (process, http)
}

fn http_of(ready: &Path) -> Option<SocketAddr> {
    let ready: Value = serde_json::from_slice(&fs::read(ready).ok()?).ok()?;
    ready.get("http")?.as_str()?.parse().ok()
}

/// The status code of a GET by TLS.
fn get(files: &Files, address: SocketAddr, path: &str, more: &[&str]) -> String {
    let port = address.port();
    let (url, way) = (format!("https://localhost:{port}{path}"), format!("localhost:{port}:{address}"));
    let mut curl = Command::new("curl");
    curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "20", "--connect-to", &way]);
    let curl = curl.args(["--cacert", &files.text("ca")]).args(more).arg(&url).output().unwrap();
    String::from_utf8_lossy(&curl.stdout).into_owned()
}

/// Seen to fail with an asker from elsewhere taken for one of this machine.
#[test]
fn metrics_are_for_this_machine_and_for_those_who_may_read_everything() {
    let files = Files::new();
    write_auth(&files);
    let flags = files.flags(&["auth"]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (_daemon, http) = exposed(&files, &flags);
    let (remote, local) =
        (SocketAddr::new(own_address(), http.port()), SocketAddr::from(([127, 0, 0, 1], http.port())));
    let bearer = |token: &str| format!("authorization: Bearer {token}");
    let (scraper, stranger) = (bearer(SCRAPER.0), bearer("somebody"));
    for (what, address, path, more, expected) in [
        ("local", local, "/metrics", &[][..], "200"),
        ("remote", remote, "/metrics", &[], "401"),
        ("remote and unknown", remote, "/metrics", &["-H", &stranger], "401"),
        ("remote and known", remote, "/metrics", &["-H", &scraper], "200"),
        ("a remote probe", remote, "/livez", &[], "200"),
        ("a remote probe", remote, "/readyz", &[], "200"),
    ] {
        assert_eq!(get(&files, address, path, more), expected, "{what}: {path}");
    }
    // One who may do something, but not read everything.
    files.write_auth(true);
    let caller = bearer(super::ground::TOKEN);
    let (_daemon, http) = exposed(&files, &flags);
    let remote = SocketAddr::new(own_address(), http.port());
    assert_eq!(get(&files, remote, "/metrics", &["-H", &caller]), "403");
}

/// By default nobody else reaches the port at all.
#[test]
fn the_http_port_is_not_opened_to_others_without_a_word() {
    let files = Files::new();
    let start = |more: &[&str]| {
        let fixed = ["serve", "--listen", "127.0.0.1:0", "--http", "203.0.113.1:0"];
        let finished = daemon::run(&[&fixed[..], more].concat());
        assert!(!finished.status.success());
        finished.stderr
    };
    let refused = "http is 203.0.113.1:0: must be a loopback address";
    let (cert, key) = (files.text("cert"), files.text("key"));
    for flags in [&[][..], &["--tls-cert", &cert, "--tls-key", &key]] {
        let error = start(flags);
        assert!(error.contains(refused), "{flags:?}: {error}");
    }
    // Not an address of this machine: it would be opened.
    let error = start(&["--insecure"]);
    assert!(error.contains("cannot listen on 203.0.113.1:0"), "{error}");
}
