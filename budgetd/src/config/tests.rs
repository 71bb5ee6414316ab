//! Precedence, rules, and that no password shows.
#![allow(clippy::unwrap_used, reason = "tests")]

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    serve: ServeArgs,
}

fn parse(arguments: &[&str]) -> Result<ServeArgs, String> {
    let line = std::iter::once(&"budgetd").chain(arguments);
    Line::try_parse_from(line).map(|line| line.serve).map_err(|error| error.to_string())
}

fn load(arguments: &[&str]) -> Result<Config, String> {
    Config::load(parse(arguments)?).map_err(|error| error.to_string())
}

fn file(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("settings.toml");
    fs::write(&path, text).unwrap();
    let path = path.to_string_lossy().into_owned();
    (directory, path)
}

#[test]
fn nothing_given_is_the_default() {
    let config = load(&[]).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:7411");
    assert_eq!(config.http.to_string(), "127.0.0.1:7412");
    assert_eq!(config.store, StoreChoice::Memory);
    assert_eq!(config.limits, ServerLimits::default());
    let default = Config::default();
    assert_eq!((config.listen, config.http), (default.listen, default.http));
    assert_eq!(config.shutdown_timeout, default.shutdown_timeout);
}

#[test]
fn flags_beat_the_file() {
    let (_directory, path) = file("listen = \"127.0.0.1:1\"\nprefix = \"file\"\nstore = \"redis://host\"\n");
    let config = load(&["--config", &path, "--listen", "unix:/tmp/b.sock"]).unwrap();
    assert_eq!(config.listen, Listen::Unix("/tmp/b.sock".into()));
    let StoreChoice::Redis(redis) = config.store else { panic!("file not read") };
    assert_eq!((redis.prefix.as_str(), redis.url.reveal()), ("file", "redis://host"));
    assert_eq!(redis.connect_timeout, Duration::from_millis(500));
    assert_eq!(redis.response_timeout, Duration::from_millis(100));
}

#[test]
fn a_bad_file_names_line_and_key() {
    let (_directory, path) = file("prefix = \"a\"\nlistne = \"x\"\n");
    let error = load(&["--config", &path]).unwrap_err();
    assert!(error.contains("line 2") && error.contains("listne"), "{error}");
    let (_directory, path) = file("call_timeout = \"5\"\n");
    assert!(load(&["--config", &path]).unwrap_err().contains("line 1"));
    let directory = tempfile::tempdir().unwrap();
    let error = load(&["--config", &directory.path().to_string_lossy()]).unwrap_err();
    assert!(error.contains("settings file"), "{error}");
}

#[test]
fn other_addresses_need_a_word() {
    for address in ["0.0.0.0:7411", "[::]:7411", "192.0.2.1:7411", "[::ffff:192.0.2.1]:7411"] {
        let error = load(&["--listen", address]).unwrap_err();
        assert!(error.contains("--insecure") && error.contains("listen is"), "{error}");
        assert!(load(&["--http", address]).unwrap_err().contains("http is"));
        assert!(load(&["--listen", address, "--insecure"]).is_ok());
        assert!(load(&["--listen", address, "--insecure=false"]).is_err());
    }
    for address in ["127.0.0.1:0", "127.9.9.9:1", "[::1]:7411", "[::ffff:127.0.0.1]:7411", "unix:/x"] {
        assert!(load(&["--listen", address]).is_ok(), "{address}");
    }
}

#[test]
fn every_bad_value_is_refused() {
    for (flag, values) in [
        ("--listen", &["", "7411", "localhost", "unix:", "1.2.3.4"] as &[_]),
        ("--call-timeout", &["", "0ms", "-1s", "5", "2h", "99999999999999999999s"]),
        ("--max-concurrent", &["0", "-1", "1000001", "1.5", "18446744073709551616"]),
        ("--max-connections", &["0", "x"]),
        ("--redis-pool-size", &["0"]),
        ("--prefix", &["", "a{b", "a\nb", &"x".repeat(65)]),
        ("--store", &["", "redis", "http://x", "memory "]),
        ("--log-format", &["xml"]),
    ] {
        for value in values {
            assert!(load(&[&format!("{flag}={value}")]).is_err(), "{flag} {value:?}");
        }
    }
}

#[test]
fn a_password_never_shows() {
    let url = "redis://user:hunter2@host:6379";
    let config = load(&["--store", url]).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(!format!("{:?}", parse(&["--store", url]).unwrap()).contains("hunter2"));
    for bad in ["http://user:hunter2@host", "redis:/user:hunter2@host"] {
        let error = load(&["--store", bad]).unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }
    let (_directory, path) = file("store = \"http://user:hunter2@host\"\n");
    assert!(!load(&["--config", &path]).unwrap_err().contains("hunter2"));
    let (_directory, path) = file("store = \"redis://user:hunter2@host\" x\n");
    assert!(!load(&["--config", &path]).unwrap_err().contains("hunter2"));
}

#[test]
fn time_limits_of_leases_stand_in_a_file() {
    let of = |text: &str| {
        let (_directory, path) = file(text);
        let from_file = Config::timing_of(Path::new(&path)).map_err(|error| error.to_string());
        let loaded = load(&["--config", &path]).map(|config| config.timing);
        assert_eq!(from_file.is_ok(), loaded.is_ok());
        assert!(from_file.is_err() || from_file == loaded);
        loaded
    };
    assert_eq!(load(&[]).unwrap().timing, LeaseTiming::default());
    assert_eq!(of("").unwrap().limits, budget::lease::Timing::default());
    let short = of("[timing]\nunsafe_short = true\nmargin = \"300ms\"\nstep_max = \"200ms\"\nheartbeat = \"50ms\"\n\
                    renew_min = \"100ms\"\nrenew_max = \"150ms\"\nresend_min = \"20ms\"\nresend_max = \"40ms\"\n\
                    overlap = \"1s\"\n");
    let limits = budget::lease::Timing {
        margin_ms: 300,
        overlap_ms: 1_000,
        renew_min_ms: 100,
        renew_max_ms: 150,
        resend_min_ms: 20,
        resend_max_ms: 40,
        heartbeat_ms: 50,
        step_max_ms: 200,
    };
    assert_eq!(short.unwrap(), LeaseTiming { limits, unsafe_short: true });
    for (text, expected) in [
        ("margin = \"2s\"", "timing.margin is 2s: must be at least 2250ms"),
        ("margin = \"1s\"\nunsafe_short = true", "timing.step_max is 2s: must be at most timing.margin"),
        ("renew_min = \"7s\"", "timing.renew_min is 7s: must be at most timing.renew_max, which is 6s"),
        ("heartbeat = \"0ms\"", "timing.heartbeat is 0ms: must be between 1ms and 1h"),
        ("overlap = \"2h\"", "timing.overlap is 2h: must be between 0ms and 1h"),
        ("margins = \"3s\"", "unknown field `margins`"),
        ("margin = 3", "line 2"),
        ("margin = \"3\"", "must look like"),
        ("unsafe_short = \"yes\"", "line 2"),
    ] {
        let error = of(&format!("[timing]\n{text}\n")).unwrap_err();
        assert!(error.contains(expected), "{error}, not {expected}");
    }
}

#[test]
fn a_word_about_leases_is_given_on_the_command_line_and_for_this_process_only() {
    assert!(!load(&[]).unwrap().no_leases_out);
    assert!(load(&["--no-leases-out"]).unwrap().no_leases_out);
    assert!(!load(&["--no-leases-out=false"]).unwrap().no_leases_out);
    assert!(load(&["--no-leases-out", "--store", "redis://127.0.0.1:1"]).unwrap().no_leases_out);
    let error = load(&["--no-leases-out", "--store", "grpc://host:1", "--insecure"]).unwrap_err();
    assert!(error.starts_with("no-leases-out is true: is a word to whoever has the ledgers"), "{error}");
    let (_directory, path) = file("no_leases_out = true\n");
    assert!(load(&["--config", &path]).unwrap_err().contains("no_leases_out"));
}
