//! The systemd units.

use std::{fs, process::Command};

use budget_tests::daemon::{self, Daemon};

use super::{deploy, finish, succeed};

/// Sum of all that a unit could still give up, as systemd counts it in tenths; a service without any hardening has 96.
const EXPOSURE_MAX: &str = "15";

fn analyze() -> Command {
    let mut command = Command::new("systemd-analyze");
    command.env("SYSTEMD_LOG_TARGET", "console");
    command
}

#[test]
fn the_units_are_valid_and_hardened() {
    let directory = tempfile::tempdir().unwrap();
    let binary = daemon::binary();
    let mut found = Vec::new();
    for entry in fs::read_dir(deploy().join("systemd")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "service") {
            let text = fs::read_to_string(&path).unwrap();
            // systemd wants to see what a unit starts.
            let here = text.replace("/usr/bin/budgetd", &binary.to_string_lossy());
            let unit = directory.path().join(path.file_name().unwrap());
            fs::write(&unit, here).unwrap();
            found.push(unit);
        }
    }
    assert_eq!(found.len(), 2);
    for unit in &found {
        let mut verify = analyze();
        verify.arg("verify").arg(unit);
        let verified = finish(verify);
        assert!(verified.status.success(), "{}", verified.stderr);
        // An unknown key is only a warning.
        assert!(!verified.stderr.contains("budgetd"), "{}", verified.stderr);
        let mut security = analyze();
        security.args(["security", "--offline=true", "--threshold", EXPOSURE_MAX]).arg(unit);
        succeed(security);
    }

    let broken = directory.path().join("broken.service");
    fs::write(&broken, format!("[Service]\nExecStart={}\nProtectSysten=strict\n", binary.display())).unwrap();
    let mut verify = analyze();
    verify.arg("verify").arg(&broken);
    assert!(finish(verify).stderr.contains("ProtectSysten"), "the judge is blind");
    let mut security = analyze();
    security.args(["security", "--offline=true", "--threshold", EXPOSURE_MAX]).arg(&broken);
    assert!(!finish(security).status.success(), "the judge is blind");
}

/// The words after `serve` in the unit's ExecStart.
fn arguments(unit: &str) -> Vec<String> {
    let text = fs::read_to_string(deploy().join("systemd").join(unit)).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/budgetd serve ")).unwrap();
    line.split(' ').map(str::to_owned).collect()
}

/// The commands of the units with the settings that their comments show, on other paths and ports.
#[test]
fn the_commands_of_the_units_serve() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let settings = file("budgetd.toml", "store = \"memory\"\n");
    assert_eq!(arguments("budgetd.service"), ["--config", "${CREDENTIALS_DIRECTORY}/budgetd.toml"]);
    let fleet = Daemon::start_with(&["--config", &settings], &[]);

    let upstream = file("agent.toml", &format!("store = \"grpc://{}\"\n", fleet.grpc()));
    let words = arguments("budgetd-agent.service");
    let shown: Vec<&str> = words.iter().map(String::as_str).collect();
    let listen = ["--listen", "unix:/run/budgetd-agent/budgetd.sock", "--http", "127.0.0.1:7413"];
    let holder = ["--holder-id", "%H"];
    assert_eq!(shown, [&["--config", "${CREDENTIALS_DIRECTORY}/agent.toml"], &listen[..], &holder].concat());
    let agent = Daemon::start_with(&["--config", &upstream, "--holder-id", "host-1.example"], &[]);
    let asked = agent.run(&["reserve", "payments"]);
    assert!(asked.status.success(), "{}{}", asked.stdout, asked.stderr);
}
