//! Policies that are missing or bad when the daemon starts, and a store that does not let it in.

use std::{fs, path::Path};

use budget_client::Error;
use budget_tests::{
    daemon::{self, Finished},
    eventually::eventually,
    redis_server::{Flavour, RedisServer},
};

use super::ground::{BOUND, CALL, Ground, Metrics, On, get, original};

fn serve(policy: &Path, store: &str) -> Finished {
    let policy = policy.to_string_lossy();
    let free = "127.0.0.1:0";
    daemon::run(&["serve", "--listen", free, "--http", free, "--store", store, "--policy", &policy])
}

/// It ends with status 1, says all of this, and has not begun to serve.
fn assert_refused(policy: &Path, parts: &[&str]) {
    let finished = serve(policy, "memory");
    let shown = format!("{}{}", finished.stdout, finished.stderr);
    assert_eq!(finished.status.code(), Some(1), "{shown}");
    let path = policy.to_string_lossy();
    for part in [&[&*path], parts].concat() {
        assert!(finished.stderr.contains(part), "stderr lacks {part:?}: {shown}");
    }
    assert!(!shown.contains("serving") && !shown.contains("panicked"), "{shown}");
}

/// Seen to fail with `PolicyFile::read` taking an unreadable file for an empty one (`unwrap_or_default`), with
/// `String::from_utf8_lossy` in it, and with the errors of single rules dropped.
#[test]
fn a14_a_bad_policy_file_keeps_the_daemon_from_starting() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policy.toml");
    assert_refused(&path, &["does not exist"]);
    assert_refused(directory.path(), &["policy directory", "has no file that ends in .toml"]);
    let below_a_file = path.join("deeper.toml");
    fs::write(&path, "").unwrap();
    assert_refused(&below_a_file, &["cannot be read"]);
    let head = "[dependency.\"a\"]\nretry.ratio = 0.5\n\n";
    for (rest, parts) in [
        ("[dependency.\"b\"]\nadmission = { rate = \"5", &["line 5"][..]),
        ("[dependency.\"a\"]\nretry.burst = 1\n", &["line 4", "[dependency.\"a\"]", "duplicate key"]),
        ("[dependency.b]\nretry.burst = 1\nretry.burst = 1\n", &["line 6", "burst"]),
        ("[dependency.b]\nretry.rato = 0.1\n", &["line 5", "retry.rato", "must be"]),
        ("[dependency.b]\nadmission.max_in_flight = 9999999\n", &["line 5", "max_in_flight", "9999999", "1000000"]),
        ("[dependency.b]\nadmission.rate = \"fast\"\n", &["line 5", "admission.rate", "fast", "500/s"]),
        ("[defaults]\n[defaults]\n", &["line 5", "defaults"]),
    ] {
        fs::write(&path, format!("{head}{rest}")).unwrap();
        assert_refused(&path, parts);
    }
    fs::write(&path, [head.as_bytes(), b"# \xff\n"].concat()).unwrap();
    assert_refused(&path, &["line 4", "UTF-8"]);
}

/// Seen to fail with the warning of `read_file` taken out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a14_without_a_policy_it_says_so_and_answers_operators() {
    let ground = Ground::new(On::Memory, "# nothing yet\n");
    let daemon = ground.daemon();
    eventually(BOUND, "it says so", async || daemon.process().logged("policy.toml")).await;
    let finished = daemon.run(&["policy", "list", "--json"]);
    assert!(finished.status.success(), "{}", finished.stderr);
    let pay = ground.caller("pay");
    assert_eq!(pay.client.get_policy(&pay.id(), CALL).await.unwrap().rule, "defaults");
    assert!(pay.status().await.ledger_version.is_none());
    assert!(pay.original().await.is_some());
    let metrics = Metrics::of(daemon).await;
    assert!(metrics.sum("budgetd_policy_error", &[]) < 0.5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a02_a_daemon_with_a_wrong_password_says_so_and_lives() {
    let redis = RedisServer::start_with(Flavour::Redis7, &["--requirepass", "secret-of-the-server"]);
    let url = redis.url().replace("redis://", "redis://:wrong-guess@");
    let mut ground = Ground::by(redis, &url, "", &[]);
    eventually(BOUND, "it says so", async || ground.daemon().process().logged("Password authentication failed")).await;
    assert!(ground.daemon().process().logged("store cannot be reached"));
    let http = ground.daemon().http();
    assert_eq!((get(http, "/livez").await.0, get(http, "/readyz").await.0), (200, 503));
    let pay = ground.caller("pay");
    let refused = pay.client.reserve(&pay.dependency, &original(), CALL).await;
    assert!(matches!(&refused, Err(Error::Unavailable(why)) if why.contains("authentication failed")), "{refused:?}");
    let shown = ground.daemon().process().tail();
    assert!(!shown.contains("wrong-guess"), "{shown}");
    ground.redis().cli(&["ACL", "SETUSER", "default", ">wrong-guess"]);
    pay.decided_exactly_within(BOUND).await;
    ground.all_live();
}
