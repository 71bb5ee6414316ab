//! Arguments, tables and documents, without a server.
#![allow(clippy::unwrap_used, reason = "tests")]

mod checked;
mod leases;
mod served;

use budget::{
    decision::{Admitted, Attempt, Cause, Denied, DenyReason, OperationState, Outcome, Reserve, TerminalState},
    ids::{PolicyVersion, ReservationId},
    ledger::Counters,
};
use budget_client::{
    About, Balance, By, Decision, Dependency, DependencyStatus, KillSwitch, Mode, PolicyPage, PolicyRule, Recent,
    Refusals, Reserved, StatusPage, UnitStatus, Window,
};
use clap::{CommandFactory, Parser};

use super::{Command, Failure, Verdict, arguments, execute, one_line, policy, reserve, status, table};

#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const ID: &str = "00112233445566778899aabbccddeeff";

fn parse(line: &str) -> Result<Command, clap::Error> {
    Cli::try_parse_from(line.split(' ')).map(|cli| cli.command)
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn arguments_that_make_sense() {
    let lines = [
        "b check policies.toml",
        "b check policies.toml --holders 200 --replicas 3 --beyond 0 --window 1m --json",
        "b reserve payments",
        "b reserve payments --attempt 2 --cause timeout --priority critical --cost a=b=1.5 --cost usd=0.000001 --json",
        "b reserve payments --time-left 2s --max-wait 1s --permit-ttl 60s --id 00112233445566778899aabbccddeeff",
        "b reserve payments --operation o --fingerprint 00112233445566778899aabbccddeeff --expires-in 1d",
        "b reserve payments --no-release --endpoint unix:/run/b.sock --timeout 500ms",
        "b release payments 00112233445566778899AABBCCDDEEFF --outcome success --cost usd=1",
        "b release payments 00112233445566778899aabbccddeeff --not-sent",
        "b release payments 00112233445566778899aabbccddeeff --outcome unknown --operation o --terminal failed",
        "b policy get payments",
        "b policy list --json",
        "b policy put fam/* file.toml",
        "b policy put payments --remove --expect 7:99",
        "b policy diff policies.toml",
        "b policy diff --from 3 --to 5",
        "b policy delete fam/* --override-for 2h --why incident",
        "b policy put payments - --take-over --who ann",
        "b policy history --json",
        "b policy rollback 12 --expect 7:99",
        "b policy try policies.toml --for 30s",
        "b explain payments --json",
        "b retries off payments --for 30m --why incident --who ann",
        "b status",
        "b status a b --watch --every 500ms",
        "b retries off payments --why incident",
        "b retries on --all",
        "b check policies.toml --config budgetd.toml --json",
        "b holders payments --json",
        "b lease revoke payments pod-1 --why incident",
    ];
    for line in lines {
        assert!(parse(line).is_ok(), "{line}: {}", parse(line).unwrap_err());
    }
}

#[test]
fn arguments_that_make_none_are_usage_errors() {
    let lines = [
        "b check",
        "b check policies.toml --holders 0",
        "b check policies.toml --holders 1000001",
        "b check policies.toml --replicas -1",
        "b check policies.toml --window 0s",
        "b reserve",
        "b reserve payments --attempt -1",
        "b reserve payments --attempt 4294967296",
        "b reserve payments --cause unspecified",
        "b reserve payments --priority 1",
        "b reserve payments --cost usd",
        "b reserve payments --cost usd=",
        "b reserve payments --cost usd=-1",
        "b reserve payments --cost usd=1e3",
        "b reserve payments --cost usd=0.0000001",
        "b reserve payments --cost usd=NaN",
        "b reserve payments --time-left 5",
        "b reserve payments --time-left 366d",
        "b reserve payments --max-wait -1s",
        "b reserve payments --timeout 0ms",
        "b reserve payments --id 00",
        "b reserve payments --id 0011223344556677889900aabbccddeef",
        "b reserve payments --id zz112233445566778899aabbccddeeff",
        "b reserve payments --id 😀😀😀😀😀😀😀😀",
        "b reserve payments --operation o",
        "b reserve payments --fingerprint 00112233445566778899aabbccddeeff",
        "b reserve payments --operation o --fingerprint 0011",
        "b reserve payments --operation o --fingerprint 00112233445566778899aabbccddeeff --no-release",
        "b release payments",
        "b release payments 00112233445566778899aabbccddeeff",
        "b release payments 00112233445566778899aabbccddeeff --outcome success --not-sent",
        "b release payments 00112233445566778899aabbccddeeff --not-sent --cost usd=1",
        "b release payments 00112233445566778899aabbccddeeff --outcome success --terminal completed",
        "b release payments 00112233445566778899aabbccddeeff --outcome success --result-ref r",
        "b policy",
        "b policy put payments",
        "b policy put payments f.toml --remove",
        "b policy put payments f.toml --expect 7",
        "b policy put payments f.toml --expect 7:-1",
        "b status --every 1s",
        "b retries off",
        "b retries on payments --for 30m",
        "b policy diff",
        "b policy diff policies.toml --to 5",
        "b policy put payments - --take-over --override-for 2h",
        "b policy rollback -1",
        "b policy try policies.toml --for 0s",
        "b retries off payments --all",
        "b retries maybe payments",
        "b holders",
        "b lease",
        "b lease revoke payments",
        "b lease grant payments pod-1",
    ];
    for line in lines {
        let error = parse(line).err().unwrap_or_else(|| panic!("{line} was accepted"));
        assert_eq!(error.exit_code(), 2, "{line}: {error}");
    }
}

#[test]
fn amounts_are_exact() {
    let cost = |text: &str| arguments::cost(text).map(|cost| (cost.unit, cost.amount_micros));
    assert_eq!(cost("usd=0.1"), Ok(("usd".to_owned(), 100_000)));
    assert_eq!(cost("a=b=1200"), Ok(("a=b".to_owned(), 1_200_000_000)));
    assert_eq!(cost("usd=0.000001"), Ok(("usd".to_owned(), 1)));
    assert_eq!(cost("usd=1,5").unwrap_err(), "the amount must be a plain decimal number with at most 6 decimals");
    for (micros, shown) in
        [(0, "0"), (1, "0"), (-1, "-0.001"), (1_500_000, "1.5"), (9_333_333, "9.333"), (-5_000_000, "-5")]
    {
        assert_eq!(table::tokens(micros), shown);
    }
}

fn reserved(decision: Decision) -> Reserved {
    Reserved { decision, mode: Mode::Exact, version: PolicyVersion { number: 3, id: 99 } }
}

fn shown(ask: &Reserve, reserved: &Reserved) -> (String, String) {
    let dependency = Dependency::new("payments").unwrap().with_units(["usd"]).unwrap();
    let mut text = Vec::new();
    reserve::table(ask, &dependency, reserved).print(&mut text).unwrap();
    (String::from_utf8(text).unwrap(), reserve::document(ask.id, &dependency, reserved).to_string())
}

fn original() -> Reserve {
    Reserve::new(ReservationId::from_slice(&[0xab; 16]).unwrap(), Attempt::ORIGINAL)
}

#[test]
fn an_admission_is_shown() {
    let admitted = Admitted {
        start_after_ms: 230,
        permit_ttl_ms: 60_000,
        attempts_left: 2,
        replayed: false,
        would_be_denied: Some(DenyReason::RetryBudget),
    };
    let (text, json) = shown(&original(), &reserved(Decision::Admitted(admitted)));
    let expected = "\
decision         admitted
reservation      abababababababababababababababab
start            after 230ms
permit           ends 1m after the start
attempts left    2
would be denied  retry_budget
mode             exact
policy version   3
";
    assert_eq!(text, expected);
    let expected = serde_json::json!({
        "decision": "admitted",
        "reservation_id": "abababababababababababababababab",
        "start_after_ms": 230,
        "permit_ttl_ms": 60_000,
        "attempts_left": 2,
        "replayed": false,
        "would_be_denied": "retry_budget",
        "mode": "exact",
        "policy_version": { "number": 3, "id": 99 },
    });
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), expected);
    let unrecorded = Reserve { no_release: true, ..original() };
    let (text, _) = shown(&unrecorded, &reserved(Decision::Admitted(Admitted { start_after_ms: 0, ..admitted })));
    assert!(text.contains("reservation      none, nothing to release\nstart            now\nattempts"), "{text}");
}

#[test]
fn a_denial_is_shown() {
    let usd = Dependency::new("payments").unwrap().with_units(["usd"]).unwrap().cost("usd", 1).unwrap();
    let denied = Denied { unit: Some(usd.unit), retry_after_ms: Some(1500), ..Denied::because(DenyReason::Cost) };
    let (text, json) = shown(&original(), &reserved(Decision::Denied(denied)));
    let expected = "\
decision        denied
reason          cost
unit            usd
retry after     1500ms
mode            exact
policy version  3
";
    assert_eq!(text, expected);
    assert!(json.contains(r#""unit":"usd""#) && json.contains(r#""retry_after_ms":1500"#), "{json}");

    let impossible = Denied { impossible: true, ..Denied::because(DenyReason::RetryBudget) };
    let (text, _) = shown(&original(), &reserved(Decision::Denied(impossible)));
    assert!(text.contains("retry after     never: it exceeds what the policy can ever give"), "{text}");
}

#[test]
fn a_stored_operation_is_shown() {
    let state = |result_ref: &[u8]| OperationState {
        attempts_used: 2,
        last_outcome: Some(Outcome::Success),
        terminal: Some(TerminalState::Completed),
        result_ref: Some(result_ref.into()),
    };
    let completed = |reference| {
        let operation = Some(Box::new(state(reference)));
        reserved(Decision::Denied(Denied { operation, ..Denied::because(DenyReason::Completed) }))
    };
    let (text, json) = shown(&original(), &completed(b"order-1"));
    assert!(text.contains("attempts used     2\nlast outcome      success\nfinished          completed\n"), "{text}");
    assert!(text.contains("result reference  order-1\n") && json.contains(r#""result_ref_hex":"6f726465722d31""#));
    let (text, _) = shown(&original(), &completed(b"\x1b[2J"));
    assert!(text.contains("result reference  0x1b5b324a\n"), "{text}");
}

fn payments(counters: Counters) -> DependencyStatus {
    DependencyStatus {
        name: "payments".to_owned(),
        rule: "pay*".to_owned(),
        retries_off: true,
        mode: Mode::Exact,
        admission: Some(Balance { balance_micros: -1_500_000, burst_micros: 10_000_000 }),
        retry: Balance { balance_micros: 9_333_333, burst_micros: 10_000_000 },
        units: vec![UnitStatus {
            unit: "usd".to_owned(),
            bucket: Balance { balance_micros: 250_000, burst_micros: 1_000_000 },
        }],
        in_flight: 3,
        max_in_flight: Some(200),
        counters,
        ledger_version: Some(PolicyVersion { number: 3, id: 99 }),
        lending: None,
        recent: Recent::default(),
    }
}

fn recent() -> Recent {
    let window = |length_ms| Window {
        length_ms,
        originals_admitted: 52,
        retries_admitted: 5,
        retries_denied: 15,
        amplification_ppm: Some(1_096_153),
        refusals: vec![Refusals { reason: DenyReason::RetryBudget, originals: 0, retries: 9 }],
        ..Window::default()
    };
    let by = By { who: "ann@ops".to_owned(), why: "incident 42".to_owned() };
    let switch = KillSwitch { target: "pay*".to_owned(), since_ms: 0, until_ms: Some(1_800_000), by };
    Recent {
        fleet: vec![window(10_000), window(60_000)],
        replica: vec![window(10_000), window(60_000)],
        kill_switch: Some(switch),
        ..Recent::default()
    }
}

#[test]
fn what_refuses_calls_is_explained_with_what_helps() {
    let rule = "admission = { rate = \"10/s\", burst = 10 }\nretry = { ratio = 0.25, floor = \"6/min\", burst = 10 }";
    let rules = std::collections::BTreeMap::from([("payments".to_owned(), rule.to_owned())]);
    let set = crate::policies::PolicySet::of_rules(&rules, None).unwrap();
    let policy = std::sync::Arc::clone(&set.rule("payments").unwrap().policy);
    let page = |status: &DependencyStatus, store_up| StatusPage {
        version: PolicyVersion { number: 3, id: 99 },
        store: "redis".to_owned(),
        store_up,
        dependencies: vec![status.clone()],
        next: None,
        about: About::default(),
    };
    let kinds = |status: &DependencyStatus, store_up| {
        let found = super::explain::findings(&page(status, store_up), status, &policy);
        found.iter().map(|finding| finding.kind).collect::<Vec<_>>()
    };
    let calm = DependencyStatus {
        retries_off: false,
        admission: Some(Balance { balance_micros: 5_000_000, burst_micros: 10_000_000 }),
        units: Vec::new(),
        ..payments(Counters::default())
    };
    assert_eq!(kinds(&calm, true), Vec::<&str>::new());
    assert_eq!(kinds(&calm, false), ["store_away"]);
    let retry = Balance { balance_micros: 300_000, burst_micros: 10_000_000 };
    let admission = Some(Balance { balance_micros: 999_999, burst_micros: 10_000_000 });
    let busy = DependencyStatus { retry, admission, in_flight: 200, recent: recent(), ..calm };
    let expected = ["retries_off", "retry_budget", "retry_budget_now", "admission_now", "in_flight_now"];
    assert_eq!(kinds(&busy, true), expected);
    let found = super::explain::findings(&page(&busy, true), &busy, &policy);
    assert!(found[0].what.contains("until 1970-01-01T00:30:00Z, by ann@ops: incident 42"), "{found:?}");
    assert_eq!(found[0].help, "budgetd retries on pay*");
    let now =
        "0.3 of the 1 retry tokens it costs are there; 3 originals would earn the rest, and the floor gives 6/min";
    assert!(found[2].what.contains(now), "{found:?}");
}

#[test]
fn status_is_shown() {
    let counters = Counters { originals_admitted: 12, retries_denied: 4, not_sent: 1, ..Counters::default() };
    let plain = DependencyStatus {
        name: "search".to_owned(),
        rule: "defaults".to_owned(),
        retries_off: false,
        admission: None,
        units: Vec::new(),
        max_in_flight: None,
        ..payments(Counters::default())
    };
    let status = |dependencies| StatusPage {
        version: PolicyVersion { number: 3, id: 99 },
        store: "redis".to_owned(),
        store_up: false,
        dependencies,
        next: None,
        about: About::default(),
    };
    let show = |json, dependencies| {
        let mut text = Vec::new();
        status::show(&status(dependencies), json, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    };
    let expected = "\
store redis is DOWN, policy version 3
DEPENDENCY  RULE      MODE   ADMISSION  RETRY     IN FLIGHT  ORIGINALS  RETRIES  DENIED  PER SECOND           AMPLIFICATION  NOTES
payments    pay*      exact  -1.5/10    9.333/10  3/200      12         0        0+4     5.2+0.5, 1.5 denied  1.09           RETRIES OFF until 1970-01-01T00:30:00Z, 1 not sent, lately 9 retry_budget
  usd                        0.25/1
search      defaults  exact  unlimited  9.333/10  3          0          0        0+0     n/a                  n/a
";
    assert_eq!(show(false, vec![DependencyStatus { recent: recent(), ..payments(counters) }, plain]), expected);
    assert_eq!(show(false, vec![]), "store redis is DOWN, policy version 3\nno dependency is known yet\n");
    let json: serde_json::Value = serde_json::from_str(&show(true, vec![payments(counters)])).unwrap();
    let payments = &json["dependencies"][0];
    assert_eq!(payments["admission"]["balance_micros"], -1_500_000);
    assert_eq!(payments["units"][0]["unit"], "usd");
    assert_eq!(payments["counters"]["originals_admitted"], 12);
    assert_eq!(payments["ledger_version"]["id"], 99);
    assert_eq!(json["store_up"], false);
}

#[test]
fn policies_are_listed() {
    let page = |rules, retries_off| PolicyPage {
        version: PolicyVersion { number: 3, id: 99 },
        rules,
        retries_off,
        next: None,
    };
    let show = |page: &PolicyPage| {
        let mut text = Vec::new();
        policy::show_all(page, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    };
    let rule = PolicyRule { name: "fam/*".to_owned(), source_toml: "mode = \"shadow\"\n".to_owned() };
    let expected = "# policy version 3:99\n# retries are off for \"*\"\n\n# fam/*\nmode = \"shadow\"\n";
    assert_eq!(show(&page(vec![rule], vec!["*".to_owned()])), expected);
    let none = "# policy version 3:99\n# no rules: every dependency runs under the built-in defaults\n";
    assert_eq!(show(&page(vec![], vec![])), none);
}

#[test]
fn errors_are_one_line() {
    assert_eq!(one_line("a\nb\u{1b}[2Jc 😀"), "a\\nb\\u{1b}[2Jc 😀");
}

async fn outcome(line: &str) -> Result<(Verdict, String), Failure> {
    let mut out = Vec::new();
    let verdict = execute(parse(line).unwrap(), false, &mut out).await?;
    Ok((verdict, String::from_utf8(out).unwrap()))
}

#[tokio::test]
async fn check_prints_every_effective_policy() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policies.toml");
    std::fs::write(&file, "[dependency.\"payments\"]\nretry = { ratio = 0.3 }\n").unwrap();
    let (verdict, text) = outcome(&format!("b check {}", file.display())).await.unwrap();
    assert_eq!(verdict, Verdict::Yes);
    assert!(text.starts_with("[defaults]\n") && text.contains("[dependency.\"payments\"]\n"), "{text}");
    assert!(text.contains("ratio = 0.3"), "{text}");
    let (_, json) = outcome(&format!("b check --json {}", file.display())).await.unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["valid"], &json["rules"][1]["rule"]), (&true.into(), &"payments".into()));

    std::fs::write(&file, "[dependency.\"payments\"]\nretry = { ratio = -1 }\n").unwrap();
    let error = outcome(&format!("b check {}", file.display())).await.unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("ratio"), "{error}");
    let error = outcome(&format!("b check {}", directory.path().display())).await.unwrap_err().to_string();
    assert!(error.contains("policies.toml, line 2"), "a directory is all its files: {error}");
}

#[tokio::test]
async fn what_cannot_be_sent_names_its_reason() {
    let nobody = "--endpoint http://127.0.0.1:1 --timeout 5s";
    let error = async |line: String| outcome(&line).await.unwrap_err().to_string();
    let text = error(format!("b reserve payments {nobody}")).await;
    assert!(text.starts_with("budgetd was not reached: ") && text.ends_with("(endpoint http://127.0.0.1:1)"), "{text}");
    let text = error(format!("b release fam* {ID} --not-sent {nobody}")).await;
    assert!(text.starts_with("dependency is \"fam*\": ends in '*'"), "{text}");
    let text = error("b status --endpoint https://example.com".to_owned()).await;
    assert_eq!(
        text,
        "endpoint is \"https://example.com\": must look like http://host:port, https://host:port or unix:PATH"
    );
    let text = error("b status --endpoint https://example.com:1".to_owned()).await;
    assert_eq!(text, "ca is absent: is needed for an https:// endpoint");
    let text = error(format!("b reserve payments --cost =1 {nobody}")).await;
    assert_eq!(text, "unit is \"\": is empty");
    let text = error(format!("b policy put payments /nowhere/at/all {nobody}")).await;
    assert_eq!(text, "/nowhere/at/all: No such file or directory (os error 2)");
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().join("empty.toml");
    std::fs::write(&empty, " \n").unwrap();
    let text = error(format!("b policy put payments {} {nobody}", empty.display())).await;
    assert!(text.ends_with("empty.toml: is empty; use --remove to remove a rule"), "{text}");
    let text = error(format!("b policy put payments {} {nobody}", directory.path().display())).await;
    assert!(text.contains("Is a directory"), "{text}");
}

#[test]
fn causes_are_listed_by_name() {
    let help = Cli::command().find_subcommand_mut("reserve").unwrap().render_help().to_string();
    for cause in Cause::ALL {
        assert!(help.contains(cause.name()), "{help}");
    }
}
