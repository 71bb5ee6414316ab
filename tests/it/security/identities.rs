//! Who is let in, and as whom.

use budget_client::{Credentials, Error, Mode};
use budget_tests::{
    certificates::{Authority, Valid},
    daemon::{self, Daemon},
    eventually::eventually,
    process::Stream,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::ground::{BOUND, Files, TOKEN, ask, ask_at, endpoint, mode_at};

fn is_no_connection(result: &Result<(), Error>) -> bool {
    matches!(result, Err(Error::Unreachable(_) | Error::OutcomeUnknown(_)))
}

/// With a CA of clients and no roles, a certificate is all it takes, and nothing else will do.
#[tokio::test]
async fn only_certificates_of_the_authority_come_in() {
    let files = Files::new();
    files.write_pair("good", &files.authority.client(&["anybody.example"], Valid::Now));
    files.write_pair("expired", &files.authority.client(&["anybody.example"], Valid::Before));
    files.write_pair("future", &files.authority.client(&["anybody.example"], Valid::Later));
    files.write_pair("server", &files.authority.server(Valid::Now));
    let other = Authority::new("other");
    files.write_pair("stranger", &other.client(&["anybody.example"], Valid::Now));
    files.write("other", other.pem());
    let daemon = files.daemon(&["ca"]);

    ask(&daemon, &files.certified("good"), "pay").await.unwrap();
    for wrong in ["expired", "future", "stranger", "server"] {
        let result = ask(&daemon, &files.certified(wrong), "pay").await;
        assert!(is_no_connection(&result), "{wrong}: {result:?}");
    }
    for (what, credentials) in [("none", files.credentials()), ("token", files.credentials().token(TOKEN))] {
        let result = ask(&daemon, &credentials, "pay").await;
        assert!(is_no_connection(&result), "{what}: {result:?}");
    }
    // The client is as strict: another authority, another name, no TLS at all.
    let result = ask(&daemon, &Credentials::default().ca_file(files.path("other")), "pay").await;
    assert!(is_no_connection(&result), "{result:?}");
    let result = ask(&daemon, &files.certified("good").server_name("elsewhere.example"), "pay").await;
    assert!(is_no_connection(&result), "{result:?}");
    let result = ask_at(&daemon.endpoint(), &Credentials::default(), "pay").await;
    assert!(is_no_connection(&result), "{result:?}");
    ask(&daemon, &files.certified("good").server_name("localhost"), "pay").await.unwrap();
}

/// With roles, whoever is nobody known is told so, and so is whoever may not.
#[tokio::test]
async fn certificates_and_tokens_have_their_roles() {
    let files = Files::new();
    files.write_auth(true);
    files.write("token", &format!("{TOKEN}\n"));
    files.write_pair("uri", &files.authority.client(&["spiffe://fleet/gateway"], Valid::Now));
    files.write_pair("dns", &files.authority.client(&["Gateway.Example"], Valid::Now));
    files.write_pair("common", &files.authority.client_called("old gateway"));
    files.write_pair("unknown", &files.authority.client(&["spiffe://fleet/other"], Valid::Now));
    let daemon = files.daemon(&["ca", "auth"]);
    let token = files.credentials().token_file(files.path("token"));
    for (who, credentials) in [
        ("certificate \"spiffe://fleet/gateway\"", files.certified("uri")),
        ("certificate \"gateway.example\"", files.certified("dns")),
        ("certificate \"old gateway\"", files.certified("common")),
        ("token \"caller\"", token.clone()),
        ("token \"caller\"", files.certified("unknown").token(TOKEN)),
    ] {
        ask(&daemon, &credentials, "payments").await.unwrap_or_else(|error| panic!("{who}: {error}"));
        match ask(&daemon, &credentials, "billing").await {
            Err(Error::PermissionDenied(why)) => {
                assert_eq!(why, format!("{who} may not reserve \"billing\"; it has reserve on pay*"));
            }
            other => panic!("{who}: {other:?}"),
        }
    }
    for (credentials, expected) in [
        (files.credentials(), "no credentials"),
        (files.certified("unknown"), "no name of the client certificate is known here"),
        (files.credentials().token("correct horse"), "the token is not known here"),
        (files.certified("uri").token("correct horse"), "the token is not known here"),
    ] {
        match ask(&daemon, &credentials, "payments").await {
            Err(Error::Unauthenticated(why)) => assert!(why.contains(expected), "{why}"),
            other => panic!("{expected}: {other:?}"),
        }
    }
    let run = |more: &[&str]| {
        let (endpoint, ca) = (endpoint(&daemon), files.text("ca"));
        let fixed = ["reserve", "payments", "--endpoint", &endpoint, "--tls-ca", &ca];
        daemon::run(&[&fixed[..], more].concat())
    };
    let token_file = files.text("token");
    let finished = run(&["--token-file", &token_file]);
    assert!(finished.status.success(), "{}", finished.stderr);
    let (cert, key) = (files.text("uricert"), files.text("urikey"));
    let finished = run(&["--tls-cert", &cert, "--tls-key", &key]);
    assert!(finished.status.success(), "{}", finished.stderr);
    let finished = run(&[]);
    assert!(finished.stderr.contains("not authenticated: no credentials"), "{}", finished.stderr);
    // The log says who, and no token.
    let printed = daemon.process().printed(Stream::Err) + &daemon.process().printed(Stream::Out);
    for secret in ["correct horse", "c4bbcb1fbec99d65", "PRIVATE KEY"] {
        assert!(!printed.contains(secret), "{printed}");
    }
}

/// An agent is a client like any other: by TLS, with a token of its own, which it keeps to itself.
#[tokio::test]
async fn an_agent_shows_its_own_credentials() {
    let files = Files::new();
    files.write_auth(true);
    files.write("token", TOKEN);
    let daemon = files.daemon(&["ca", "auth"]);
    let (store, ca, token) = (format!("grpcs://{}", daemon.grpc()), files.text("ca"), files.text("token"));
    let agent = Daemon::start_with(&["--store", &store, "--upstream-ca", &ca, "--upstream-token-file", &token], &[]);
    let mode = async |agent: &Daemon| mode_at(&agent.endpoint(), &Credentials::default(), "payments").await.unwrap();
    eventually(BOUND, "the budgetd behind answers", async || mode(&agent).await == Mode::Exact).await;
    let stranger = Daemon::start_with(&["--store", &store, "--upstream-ca", &ca], &[]);
    // Whom it asks knows it not, so it goes by the fallback, as if nobody had answered.
    assert_eq!(mode(&stranger).await, Mode::Degraded);
    let printed = agent.process().printed(Stream::Err);
    assert!(!printed.contains("correct horse"), "{printed}");
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let files = Files::new();
    files.write_auth(true);
    let (cert, key, ca, auth) = (files.text("cert"), files.text("key"), files.text("ca"), files.text("auth"));
    let token = files.text("token");
    for (flags, expected) in [
        (&["--tls-cert", &*cert][..], "needs --tls-key as well"),
        (&["--tls-key", &key], "needs --tls-cert as well"),
        (&["--tls-client-ca", &ca], "needs --tls-cert and --tls-key as well"),
        (&["--tls-cert", &cert, "--tls-key", &cert], "has no private key"),
        (&["--tls-cert", &cert, "--tls-key", "/nowhere"], "tls-key /nowhere: No such file"),
        (&["--auth", &cert], "auth /"),
        (&["--upstream-ca", &ca], "is for an agent"),
        (&["--store", "grpcs://host:1"], "upstream-ca is absent"),
        (&["--store", "grpcs://host:1,grpc://host:2", "--upstream-ca", &ca], "must look like"),
        (&["--store", "grpc://127.0.0.1:1", "--upstream-ca", &ca], "needs a store with TLS"),
        (&["--store", "grpcs://127.0.0.1:1", "--upstream-ca", &ca, "--upstream-cert", &cert], "needs --upstream-key"),
        (&["--store", "grpcs://127.0.0.1:1", "--upstream-ca", &ca, "--upstream-token-file", &token], "token"),
        (&["--store", "grpcs://127.0.0.1:1", "--upstream-ca", &auth], "ca"),
    ] {
        let error = Daemon::try_start(flags, &[]).map(|_| ()).expect_err(&format!("{flags:?}"));
        assert!(error.contains(expected), "{flags:?}: {error}");
    }
    // Elsewhere than on loopback it takes both, or a word. (The last of two flags would be an error.)
    let exposed = |more: &[&str]| {
        let finished = daemon::run(&[&["serve", "--http", "127.0.0.1:0", "--listen", "203.0.113.1:0"], more].concat());
        assert!(!finished.status.success());
        finished.stderr
    };
    let tls = ["--tls-cert", &*cert, "--tls-key", &*key];
    for refused in [&[][..], &tls[..], &["--auth", &auth]] {
        let error = exposed(refused);
        assert!(error.contains("listen is 203.0.113.1:0: must be a loopback address"), "{refused:?}: {error}");
    }
    for accepted in [["--auth", &*auth], ["--tls-client-ca", &*ca]] {
        // Not an address of this machine.
        let error = exposed(&[&tls[..], &accepted[..]].concat());
        assert!(error.contains("cannot listen on 203.0.113.1:0"), "{accepted:?}: {error}");
    }
}

/// Probes of a kubelet have neither certificate nor token; without TLS the port says nothing.
#[tokio::test]
async fn the_http_port_speaks_tls_as_well() {
    let files = Files::new();
    files.write_auth(true);
    let daemon = files.daemon(&["ca", "auth"]);
    let mut plain = TcpStream::connect(daemon.http()).await.unwrap();
    plain.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _cut = plain.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1"), "{answer:?}");
    for (path, expected) in [("/livez", "200"), ("/readyz", "200"), ("/metrics", "200")] {
        let url = format!("https://{}{path}", daemon.http());
        let ca = files.text("ca");
        let arguments = ["-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "20", "--cacert", &ca, &url];
        let curl = std::process::Command::new("curl").args(arguments).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&curl.stdout), expected, "{path}: {curl:?}");
    }
}
