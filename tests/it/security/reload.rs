//! Files that are replaced while the daemon serves.

use std::{fs, os::unix::fs::symlink};

use budget_client::Error;
use budget_tests::{
    certificates::{Authority, Valid},
    eventually::eventually,
    process::Stream,
};

use super::ground::{BOUND, Files, TOKEN, ask};

async fn metric(address: std::net::SocketAddr, name: &str, ca: &str) -> Option<f64> {
    let url = format!("https://{address}/metrics");
    let arguments = ["-s", "--max-time", "20", "--insecure", "--cacert", ca, &url];
    let curl = std::process::Command::new("curl").args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&curl.stdout).into_owned();
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// One before the other, in place, by rename and as Kubernetes does it; in between the old ones serve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_28_certificate_key_and_ca_change_one_after_the_other() {
    let files = Files::new();
    files.write_pair("client", &files.authority.client(&["a.example"], Valid::Now));
    let daemon = files.daemon(&["ca"]);
    let mut good = files.certified("client");
    ask(&daemon, &good, "pay").await.unwrap();
    let failing = async || metric(daemon.http(), "budgetd_tls_files_failing ", &files.text("ca")).await;
    assert_eq!(failing().await, Some(0.0));

    // A new authority: first its certificate alone, which does not fit the key.
    let next = Authority::new("next");
    let server = next.server(Valid::Now);
    files.write("nextca", next.pem());
    files.write("cert", &server.cert);
    eventually(BOUND, "the pair is called wrong", async || failing().await == Some(1.0)).await;
    ask(&daemon, &good, "pay").await.expect("the old pair stays");
    let told = daemon.process().printed(Stream::Err) + &daemon.process().printed(Stream::Out);
    assert!(told.contains("does not belong to the certificate"), "{told}");
    assert!(!told.contains("PRIVATE KEY"), "{told}");
    // Then the key, by rename.
    files.write("key.new", &server.key);
    fs::rename(files.path("key.new"), files.path("key")).unwrap();
    let credentials = files.certified("client").ca_file(files.path("nextca"));
    eventually(BOUND, "the new pair serves", async || ask(&daemon, &credentials, "pay").await.is_ok()).await;
    assert!(matches!(ask(&daemon, &good, "pay").await, Err(Error::Unreachable(_))), "the old one is gone");
    eventually(BOUND, "all is well again", async || failing().await == Some(0.0)).await;
    good = credentials;

    // Then the clients' authority, by a link that points elsewhere.
    files.write_pair("renewed", &next.client(&["a.example"], Valid::Now));
    let renewed = files.certified("renewed").ca_file(files.path("nextca"));
    assert!(ask(&daemon, &renewed, "pay").await.is_err(), "not known yet");
    fs::remove_file(files.path("ca")).unwrap();
    eventually(BOUND, "a missing file is noticed", async || failing().await == Some(1.0)).await;
    ask(&daemon, &good, "pay").await.expect("the old authority stays");
    symlink(files.path("nextca"), files.path("ca")).unwrap();
    eventually(BOUND, "the new authority counts", async || ask(&daemon, &renewed, "pay").await.is_ok()).await;
    assert!(ask(&daemon, &good, "pay").await.is_err(), "the former authority's client");

    // The certificate that serves expires; clients see it; the next one is taken up.
    files.write_pair("", &next.server(Valid::Before));
    eventually(BOUND, "an expired one is refused by clients", async || ask(&daemon, &renewed, "pay").await.is_err())
        .await;
    files.write_pair("", &next.server(Valid::Now));
    eventually(BOUND, "and replaced", async || ask(&daemon, &renewed, "pay").await.is_ok()).await;
}

/// Roles change under a client that is connected; a broken file changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_taken_away_is_gone_at_the_next_call() {
    let files = Files::new();
    files.write_auth(true);
    let daemon = files.daemon(&["auth"]);
    let token = files.credentials().token(TOKEN);
    ask(&daemon, &token, "pay").await.unwrap();
    files.write("auth", "[[token]]\nname = 5");
    let failing = async || metric(daemon.http(), "budgetd_auth_file_failing ", &files.text("ca")).await == Some(1.0);
    eventually(BOUND, "the file is called wrong", failing).await;
    ask(&daemon, &token, "pay").await.expect("the old roles stay");
    files.write_auth(false);
    let gone = async || matches!(ask(&daemon, &token, "pay").await, Err(Error::Unauthenticated(_)));
    eventually(BOUND, "the token is gone", gone).await;
    files.write_auth(true);
    eventually(BOUND, "and back", async || ask(&daemon, &token, "pay").await.is_ok()).await;
}
