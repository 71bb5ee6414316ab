//! Redis and Valkey as `deploy/redis` sets them up: the configuration, and a user that may do what budgetd needs and
//! nothing else. All other tests of this workspace run as that user too, but for keys of every namespace.

use std::{collections::BTreeSet, fs, process::Command, time::Duration};

use budget_tests::{
    daemon::Daemon,
    eventually::eventually,
    ports,
    process::{Gone, Process},
    redis_server::{self, Flavour, RedisServer},
    repository,
};
use deadpool_redis::redis::{self, RedisResult, Value};

use super::{BOUND, deploy, finish, prepared};
use crate::{conformance, redis_leases};

const PASSWORD: &str = "password-of-the-tests";
/// The first is said on a connection before it is anybody's; without the last two none can be left in order.
const ALWAYS_ALLOWED: [&str; 4] = ["auth", "hello", "quit", "reset"];

/// What the user may call, as `deploy/redis/acl` prints it.
fn granted() -> BTreeSet<String> {
    let acl = redis_server::acl("budgetd", PASSWORD);
    let words: Vec<&str> = acl.lines().nth(1).unwrap().split(' ').collect();
    assert_eq!(words[..4], ["user", "budgetd", "reset", "on"]);
    assert!(words[4].starts_with('#') && !acl.contains(PASSWORD), "the password itself is not shown: {acl}");
    assert_eq!(words[5], "~budgetd:*");
    let granted: Vec<String> = words[6..].iter().map(|word| word.strip_prefix('+').unwrap().to_owned()).collect();
    let set: BTreeSet<String> = granted.iter().cloned().collect();
    assert_eq!(set.len(), granted.len(), "twice in {acl}");
    set
}

/// The words between `before` and the next quotation mark, in all files of a directory.
fn words_after(directory: &str, before: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut directories = vec![repository().join(directory)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let text = fs::read_to_string(path).unwrap();
            let words = text.split(before).skip(1).map(|after| after.split(['\'', '"']).next().unwrap());
            found.extend(words.map(str::to_lowercase));
        }
    }
    found
}

/// Whoever calls another command, or one no more, has to say so in `deploy/redis/acl`.
#[test]
fn the_user_may_call_exactly_what_the_sources_call() {
    let in_lua = words_after("budgetd/lua", "redis.call('");
    let mut called: BTreeSet<String> = in_lua;
    for command in words_after("budgetd/src/store", "cmd(\"") {
        let sub = match command.as_str() {
            "script" => "script|load",
            "config" => "config|get",
            other => other,
        };
        called.insert(sub.to_owned());
    }
    // By `Script::call`, and by the pool of connections.
    called.extend(["eval", "evalsha", "ping", "unwatch"].map(str::to_owned));
    assert_eq!(called, granted());
}

/// Everything the server knows, subcommands as `config|get`, with the fewest words a call needs.
fn commands_of(server: &RedisServer) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let Value::Array(commands) = server.cli(&["COMMAND"]) else { panic!("no commands") };
    let mut rest = commands;
    while let Some(command) = rest.pop() {
        let Value::Array(parts) = command else { panic!("{command:?}") };
        let (name, arity): (String, i64) = match &parts[..2] {
            [name, Value::Int(arity)] => (redis::from_redis_value(name.clone()).unwrap(), *arity),
            other => panic!("{other:?}"),
        };
        match parts.last() {
            Some(Value::Array(subcommands)) if !subcommands.is_empty() => rest.extend(subcommands.iter().cloned()),
            _ => found.push((name.to_lowercase(), usize::try_from(arity.abs()).unwrap())),
        }
    }
    found
}

fn may(server: &RedisServer, name: &str, words: usize) -> bool {
    let mut call = vec!["ACL", "DRYRUN", "budgetd"];
    call.extend(name.split('|'));
    while call.len() < words + 3 {
        // A key of the namespace where one is expected, and a number of keys.
        call.push(if name.starts_with("eval") && call.len() == 5 { "0" } else { "budgetd:x" });
    }
    match server.try_cli(&call) {
        Ok(Value::Okay) => true,
        Ok(Value::BulkString(why)) => {
            let why = String::from_utf8(why).unwrap();
            assert!(why.contains("permission"), "{name}: {why}");
            !why.contains("to run the")
        }
        other => panic!("{name}: {other:?}"),
    }
}

/// The server's own user, held to keys of `budgetd:`; every kind of call, from steps to policies; then everything else.
fn holds_on(flavour: Flavour) {
    let server = RedisServer::start(flavour);
    let acl = redis_server::acl("budgetd", PASSWORD);
    let line = acl.lines().nth(1).unwrap();
    let words: Vec<&str> = ["ACL", "SETUSER"].into_iter().chain(line.split(' ').skip(1)).collect();
    server.cli(&words);
    server.cli(&["ACL", "LOG", "RESET"]);

    conformance::hold_at(&server.unix_url(), "budgetd:c");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(redis_leases::holders_come_and_go(server));
    server.cli(&["FLUSHALL"]);
    let server = runtime.block_on(redis_leases::leases_end(server));
    runtime.block_on(a_daemon_works(&server));
    assert_eq!(server.cli(&["ACL", "LOG"]), Value::Array(vec![]), "something was refused");

    let mut allowed: BTreeSet<String> = BTreeSet::new();
    let commands = commands_of(&server);
    assert!(commands.len() > 200, "{}", commands.len());
    for (name, words) in commands {
        if !ALWAYS_ALLOWED.contains(&name.as_str()) && may(&server, &name, words) {
            allowed.insert(name);
        }
    }
    assert_eq!(allowed, granted(), "{}", flavour.name());

    let as_budgetd = |words: &[&str]| -> RedisResult<Value> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query(&mut redis::Client::open(server.unix_url()).unwrap().get_connection().unwrap())
    };
    assert!(as_budgetd(&["SET", "budgetd:x", "1"]).is_ok());
    for refused in [
        &["SET", "other:x", "1"][..],
        &["GET", "budgetdx"],
        &["EVAL", "return redis.call('SET', 'other:x', 1)", "0"],
        &["EVAL", "return redis.call('KEYS', '*')", "0"],
        &["FLUSHALL"],
        &["CONFIG", "SET", "maxmemory", "1"],
        &["SCRIPT", "FLUSH"],
        &["PUBLISH", "x", "y"],
    ] {
        let error = as_budgetd(refused).unwrap_err().to_string();
        let is_refusal = ["permission", "NOPERM", "can't"].iter().any(|word| error.contains(word));
        assert!(is_refusal, "{refused:?}: {error}");
    }
}

/// Through the daemon and its command line: start, warnings, decisions, operators, a server that forgets its scripts.
async fn a_daemon_works(server: &RedisServer) {
    let daemon = Daemon::start(&["--store", &server.unix_url()]);
    eventually(BOUND, "it has a store", async || daemon.run(&["reserve", "payments"]).status.success()).await;
    server.cli(&["SCRIPT", "FLUSH"]);
    for words in [
        &["reserve", "payments"][..],
        &["status"],
        &["policy", "list"],
        &["policy", "get", "payments"],
        &["retries", "off", "payments"],
        &["retries", "on", "payments"],
        &["holders", "payments"],
    ] {
        let finished = daemon.run(words);
        assert!(finished.status.success(), "{words:?}: {}", finished.stderr);
    }
    assert!(daemon.process().logged("nothing is persisted"), "the server's settings are read");
}

#[test]
fn budgetd_works_with_the_deployed_user_and_may_nothing_else_on_redis_7() {
    holds_on(Flavour::Redis7);
}

#[test]
fn budgetd_works_with_the_deployed_user_and_may_nothing_else_on_valkey_9() {
    holds_on(Flavour::Valkey9);
}

/// The file itself, with users.acl and budgetd.toml as `deploy/redis/secrets` makes them.
#[test]
fn a_server_with_the_deployed_configuration_serves_budgetd_and_keeps_its_state() {
    for flavour in Flavour::ALL {
        let prepared = prepared();
        let data = tempfile::tempdir().unwrap();
        let secrets = prepared.path().join("deploy/compose/secrets");
        let settings = fs::read_to_string(secrets.join("budgetd.toml")).unwrap();
        let start = |port: u16| {
            let mut command = Command::new(flavour.binary());
            command.arg(deploy().join("redis/redis.conf")).args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
            command.arg("--dir").arg(data.path()).arg("--aclfile").arg(secrets.join("users.acl"));
            let mut process = Process::spawn(flavour.name(), command);
            match process.wait_until(BOUND, |process| process.logged("eady to accept connections").then_some(())) {
                Ok(()) => Some(process),
                Err(Gone::Exited(_)) if process.logged("in use") => None,
                Err(gone) => panic!("{gone:?}; {}", process.tail()),
            }
        };
        let (port, mut process) = (0..5)
            .find_map(|_| {
                let port = ports::pick();
                Some((port, start(port)?))
            })
            .expect("a free port");
        let file = secrets.join("here.toml");
        fs::write(&file, settings.replace("redis:6379", &format!("127.0.0.1:{port}"))).unwrap();
        let mut daemon = Daemon::start(&["--config", &file.to_string_lossy()]);
        let works = |daemon: &Daemon| daemon.run(&["reserve", "payments"]).status.success();
        assert!(process.wait_until(BOUND, |_| works(&daemon).then_some(())).is_ok(), "{}", daemon.process().tail());
        assert!(!daemon.process().logged("WARN"), "no warning: {}", daemon.process().tail());
        assert!(daemon.run(&["retries", "off", "payments"]).status.success());

        let stranger = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
        let mut connection = stranger.get_connection_with_timeout(Duration::from_secs(5)).unwrap();
        assert!(redis::cmd("PING").exec(&mut connection).is_err(), "who says no name may nothing");

        // Everything but the last second is there again.
        assert!(process.wait_until(BOUND, |_| fsynced(data.path())).is_ok());
        process.kill();
        let mut process = start(port).expect("its port");
        daemon.restart();
        assert!(process.wait_until(BOUND, |_| works(&daemon).then_some(())).is_ok(), "{}", daemon.process().tail());
        let off = daemon.run(&["policy", "get", "payments"]).stdout;
        assert!(off.contains("OFF"), "the kill switch outlives the server: {off}");
    }
}

/// Whether the switch has reached the append-only file.
fn fsynced(directory: &std::path::Path) -> Option<()> {
    let files = fs::read_dir(directory.join("appendonlydir")).ok()?;
    let holds = |path: std::path::PathBuf| fs::read(path).is_ok_and(|bytes| bytes.windows(8).any(|w| w == b"payments"));
    files.flatten().any(|file| holds(file.path())).then_some(())
}

#[test]
fn secrets_are_made_once_and_each_anew() {
    let directory = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let mut command = Command::new(deploy().join("redis/secrets"));
        command.arg(directory.path().join(name)).arg("10.0.0.5:6379");
        finish(command)
    };
    assert!(make("a").status.success() && make("b").status.success());
    assert!(!make("a").status.success(), "a password in use is not overwritten");
    let read = |path: &str| fs::read_to_string(directory.path().join(path)).unwrap();
    assert_ne!(read("a/budgetd.toml"), read("b/budgetd.toml"));
    assert!(read("a/budgetd.toml").ends_with("@10.0.0.5:6379\"\n"));
    let password = read("a/budgetd.toml").split([':', '@']).nth(2).unwrap().to_owned();
    assert_eq!(password.len(), 64);
    assert_eq!(read("a/users.acl"), redis_server::acl("budgetd", &password));
}
