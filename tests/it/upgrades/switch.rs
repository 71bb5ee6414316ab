//! Which format a namespace is written in: the newest from the first use on; where replicas of an earlier release are in
//! contact, theirs until they have gone; never an older one again. Who is too old for it leaves it alone.

use std::time::Duration;

use budget_tests::{
    daemon::{self, Daemon},
    eventually::eventually,
    redis_server::{Flavour, RedisServer},
};
use budgetd::{
    clock::Clock,
    store::{
        StoreError,
        redis::{
            State,
            format::{FIRST, NEWEST, too_new},
        },
    },
};
use deadpool_redis::redis::{self, Value};

use crate::{
    faults::ground::{Metrics, get},
    redis_world::{BOUND, Replica, fresh_id, original},
};

const FORMAT: &str = "budgetd:format";
const REPLICAS: &str = "budgetd:replicas";

fn stored(server: &RedisServer) -> Option<u8> {
    redis::from_redis_value(server.cli(&["GET", FORMAT])).unwrap()
}

/// A replica of the first release has been in contact: it says its name and nothing else.
fn contact_of_first_release(server: &RedisServer, name: &str) {
    let now_ms = Clock::system().now_ms().to_string();
    server.cli(&["ZADD", REPLICAS, &now_ms, name]);
}

async fn writes(replica: &Replica, format: u8) {
    let what = format!("format {format} is written");
    eventually(BOUND, &what, async || replica.redis.format() == format).await;
}

async fn held_back_by(replica: &Replica) -> Vec<String> {
    replica.policies.format().await.unwrap().unwrap().held_back_by
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q26_a_namespace_begins_with_the_newest_format() {
    for flavour in Flavour::ALL {
        let server = RedisServer::start(flavour);
        let first = Replica::connect(&server.unix_url()).await;
        assert_eq!((first.redis.format(), stored(&server)), (NEWEST, Some(NEWEST)), "{flavour:?}");
        let second = Replica::connect(&server.unix_url()).await;
        assert_eq!(second.redis.format(), NEWEST, "{flavour:?}");
        assert!(held_back_by(&second).await.is_empty(), "{flavour:?}");
    }
}

/// Seen to fail with replicas that say nothing taken for the newest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q26_replicas_of_the_first_release_hold_the_format_back_until_they_have_gone() {
    let server = RedisServer::start(Flavour::Redis7);
    contact_of_first_release(&server, "old-one");
    contact_of_first_release(&server, "old-two");
    let first = Replica::connect(&server.unix_url()).await;
    let second = Replica::connect(&server.unix_url()).await;
    assert_eq!((first.redis.format(), second.redis.format(), stored(&server)), (FIRST, FIRST, None));
    assert_eq!(held_back_by(&first).await, ["old-one", "old-two"]);
    server.cli(&["ZREM", REPLICAS, "old-one"]);
    eventually(BOUND, "one holds it back", async || held_back_by(&second).await == ["old-two"]).await;
    assert_eq!((first.redis.format(), stored(&server)), (FIRST, None));
    server.cli(&["ZREM", REPLICAS, "old-two"]);
    writes(&first, NEWEST).await;
    writes(&second, NEWEST).await;
    // A straggler changes nothing for the others.
    contact_of_first_release(&server, "old-three");
    let third = Replica::connect(&server.unix_url()).await;
    assert_eq!((third.redis.format(), stored(&server)), (NEWEST, Some(NEWEST)));
    // Nor does a store that has lost the word.
    server.cli(&["DEL", FORMAT]);
    eventually(BOUND, "it is written back", async || stored(&server) == Some(NEWEST)).await;
    server.cli(&["FLUSHALL"]);
    eventually(BOUND, "it is written back", async || stored(&server) == Some(NEWEST)).await;
}

/// What was used before is not taken for new because nobody is there at the moment: others may be on their way back.
///
/// Seen to fail with the first contact raising the format wherever nobody objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q26_a_namespace_that_was_used_is_not_switched_before_others_can_be_back() {
    let server = RedisServer::start(Flavour::Redis7);
    server.cli(&["ZADD", "budgetd:known", "1", "pay"]);
    let replica = Replica::connect(&server.unix_url()).await;
    assert_eq!((replica.redis.format(), stored(&server)), (FIRST, None));
    contact_of_first_release(&server, "back-again");
    eventually(BOUND, "it is seen", async || held_back_by(&replica).await == ["back-again"]).await;
    assert_eq!(replica.redis.format(), FIRST);
}

/// Seen to fail with the format looked at only when a replica starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q26_a_replica_too_old_for_its_namespace_leaves_it_alone_and_says_so() {
    let server = RedisServer::start(Flavour::Redis7);
    let daemon = Daemon::start(&["--store", &server.unix_url()]);
    let replica = Replica::connect(&server.unix_url()).await;
    let id = fresh_id();
    assert!(replica.admits("pay", id).await);
    let newer = NEWEST + 1;
    server.cli(&["SET", FORMAT, &newer.to_string()]);
    let sentence = too_new(newer);
    eventually(BOUND, "it goes away", async || replica.state() == State::Down).await;
    assert_eq!(&*replica.redis.health().borrow().reason, sentence);
    match replica.step("pay", original(fresh_id())).await {
        Err(StoreError::Away(why)) => assert_eq!(why, sentence),
        other => panic!("{other:?}"),
    }
    let ready = async || get(daemon.http(), "/readyz").await;
    eventually(BOUND, "it is not ready", async || ready().await.0 == 503).await;
    let (_, said) = ready().await;
    assert!(said.contains(&sentence) && said.contains(r#""up":false"#), "{said}");
    assert!(daemon.process().logged(&sentence), "{}", daemon.process().tail());
    let metrics = Metrics::of(&daemon).await;
    assert!((metrics.sum("budgetd_store_format", &[]) - f64::from(newer)).abs() < 0.5);
    assert!(metrics.sum("budgetd_store_errors_total", &["kind=\"newer\""]) > 0.5);
    // At start it is the end.
    let url = server.unix_url();
    let finished = daemon::run(&["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", &url]);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.ends_with(&format!("budgetd: {sentence}\n")), "{}", finished.stderr);
    assert_eq!(server.cli(&["GET", FORMAT]), Value::BulkString(newer.to_string().into_bytes()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q26_status_says_which_format_is_written_and_who_holds_the_next_one_back() {
    let server = RedisServer::start(Flavour::Redis7);
    contact_of_first_release(&server, "old-one");
    let daemon = Daemon::start(&["--store", &server.unix_url()]);
    let shown = |arguments: &[&str]| daemon.run(arguments).stdout;
    let text = shown(&["status"]);
    let line = "stored in format 1, in format 2 once these have been away for two minutes: old-one";
    assert!(text.contains(line), "{text}");
    let json: serde_json::Value = serde_json::from_str(&shown(&["status", "--json"])).unwrap();
    let expected = serde_json::json!({ "written": FIRST, "readable": NEWEST, "held_back_by": ["old-one"] });
    assert_eq!(json["store_format"], expected);
    let metrics = Metrics::of(&daemon).await;
    assert!(metrics.sum("budgetd_store_format", &[]) < 1.5);
    server.cli(&["ZREM", REPLICAS, "old-one"]);
    eventually(Duration::from_secs(60), "it is switched", async || {
        shown(&["status"]).lines().any(|line| line == "stored in format 2")
    })
    .await;
}
