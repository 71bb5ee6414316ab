//! A budgetd that is there already, as the one that a scenario's callers ask. The dependency is still our own, nothing is
//! done to the deployment but to ask it, and how much and for how long has limits.

use std::{net::SocketAddr, time::Duration};

use budget::ids::DependencyId;
use budget_client::Client;
use budgetd::policies::PolicySet;
use clap::Args;

use crate::{
    Error,
    scenario::{DEPENDENCY, Scenario, Strategy},
};

/// Most operations per second, and seconds of load over all runs, that can be asked for.
const RATE_MAX: u32 = 2_000;
const SECONDS_MAX: u32 = 3_600;
/// For the deployment to say what policy it has.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Args)]
pub(crate) struct DeploymentOptions {
    /// Ask the budgetd at this address, http://HOST:PORT, instead of starting one. May be repeated for its replicas.
    #[arg(long, value_name = "URL", value_parser = parse_endpoint, requires = "dependency")]
    endpoint: Vec<Endpoint>,
    /// The dependency of the deployment whose budget the run spends. Take one that nobody else uses.
    #[arg(long, value_name = "NAME", requires = "endpoint", value_parser = parse_dependency)]
    dependency: Option<DependencyId>,
    /// Endpoints may be on other machines.
    #[arg(long, requires = "endpoint")]
    allow_remote: bool,
    /// The dependency may be in use by others, whose budget the run then spends.
    #[arg(long, requires = "endpoint")]
    allow_shared: bool,
    /// Refuse scenarios that offer a deployment more operations per second than this.
    #[arg(long, value_name = "PER_SECOND", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=i64::from(RATE_MAX)))]
    max_rate: u32,
    /// Refuse scenarios that ask a deployment for longer than this, over all their runs.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=i64::from(SECONDS_MAX)))]
    max_seconds: u32,
}

/// An address of a budgetd.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Endpoint {
    /// HOST:PORT.
    host: String,
    is_loopback: bool,
}

/// What callers ask instead of a budgetd of the run's own.
#[derive(Clone, Debug)]
pub(crate) struct Deployment {
    hosts: Vec<String>,
    /// As the deployment knows it.
    pub(crate) dependency: DependencyId,
}

fn parse_endpoint(text: &str) -> Result<Endpoint, String> {
    let host = text.strip_prefix("http://").ok_or("must begin with http://")?;
    let host = host.strip_suffix('/').unwrap_or(host);
    let strange = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '?' | '#' | '@' | ',' | '%');
    let (name, port) = host.rsplit_once(':').ok_or("must have a port, as in http://127.0.0.1:7401")?;
    if name.is_empty() || host.contains(strange) || port.parse::<u16>().map_or(true, |port| port == 0) {
        return Err("must be http://HOST:PORT and nothing else".to_owned());
    }
    let is_loopback = host.parse::<SocketAddr>().map_or(name == "localhost", |address| address.ip().is_loopback());
    Ok(Endpoint { host: host.to_owned(), is_loopback })
}

fn parse_dependency(text: &str) -> Result<DependencyId, String> {
    DependencyId::new(text).map_err(|error| error.to_string())
}

// === impl DeploymentOptions ===

impl DeploymentOptions {
    /// The deployment that was named; none where the run is to have its own.
    ///
    /// # Errors
    ///
    /// It is on another machine, and nobody said that it may be.
    pub(crate) fn deployment(&self) -> Result<Option<Deployment>, Error> {
        let Some(dependency) = self.dependency.clone() else { return Ok(None) };
        if let Some(remote) = self.endpoint.iter().find(|endpoint| !endpoint.is_loopback && !self.allow_remote) {
            let host = &remote.host;
            return Err(format!(
                "{host} is not on this machine: the run would spend the budget of {dependency} there; if that is meant, add --allow-remote"
            )
            .into());
        }
        let hosts = self.endpoint.iter().map(|endpoint| endpoint.host.clone()).collect();
        Ok(Some(Deployment { hosts, dependency }))
    }

    /// Whether a scenario may be run against a deployment at all.
    fn judge(&self, scenario: &Scenario, runs: usize, quick: bool) -> Result<(), Error> {
        let name = &scenario.name;
        if let Some(fault) = scenario.faults.first() {
            let label = fault.label();
            return Err(
                format!("{name} does something to the fleet ({label}), which no run does to a deployment").into()
            );
        }
        let rate = scenario.rate_max();
        if rate > f64::from(self.max_rate) {
            let most = self.max_rate;
            return Err(format!("{name} offers {rate} operations per second, at most {most} are let at a deployment; --max-rate says otherwise").into());
        }
        let seconds = scenario.duration(quick).as_secs_f64() * f64::from(u32::try_from(runs)?);
        if seconds > f64::from(self.max_seconds) {
            let most = self.max_seconds;
            return Err(format!("{name} would ask for {seconds:.0} s in {runs} runs, at most {most} s are let at a deployment; --strategies or --quick make it shorter, --max-seconds says otherwise").into());
        }
        Ok(())
    }

    /// The scenario as it can be run against the deployment: under the policy that is in force there.
    ///
    /// # Errors
    ///
    /// The scenario may not be run there, the deployment does not answer, or others use the dependency.
    pub(crate) async fn adapt(
        &self,
        deployment: &Deployment,
        mut scenario: Scenario,
        only: &[Strategy],
        quick: bool,
    ) -> Result<Scenario, Error> {
        let asks = |strategy: &&Strategy| strategy.has_budgetd() && (only.is_empty() || only.contains(strategy));
        let runs = scenario.strategies(quick).iter().filter(asks).count() * scenario.clients(quick).len();
        self.judge(&scenario, runs, quick)?;
        let client = Client::new(&format!("http://{}", deployment.hosts.first().ok_or("no endpoint")?))?;
        let dependency = &deployment.dependency;
        let away = |error: budget_client::Error| format!("{}: {error}", deployment.hosts.join(", "));
        let policy = client.get_policy(dependency, LOOK_WITHIN).await.map_err(away)?;
        let status = client.get_status(std::slice::from_ref(dependency), None, LOOK_WITHIN).await.map_err(away)?;
        let in_use = status.dependencies.iter().any(|status| {
            status.in_flight > 0 || status.lending.as_ref().is_some_and(|lending| !lending.charged.is_zero())
        });
        if in_use && !self.allow_shared {
            return Err(format!("{dependency} has permits or leases out: others use it, or a run against it has just ended; wait, or name a dependency that is for tests, or add --allow-shared").into());
        }
        scenario.policy = format!("[dependency.{DEPENDENCY}]\n{}", policy.effective_toml);
        // What else the deployment serves is not known, so its bound is not either.
        scenario.bound = None;
        let set = PolicySet::parse_timed("the deployment's policy", &scenario.policy, scenario.timing()?);
        let set = set.map_err(|error| error.to_string())?;
        let lends = set.rule(DEPENDENCY).is_some_and(|rule| rule.policy.spec().lease.enabled);
        if !lends {
            scenario.drop_strategies(&[Strategy::Leased, Strategy::Agent]);
        }
        let hosts = deployment.hosts.join(", ");
        let without = if lends { "" } else { " It permits no leases, so what needs them did not run." };
        scenario.story = format!(
            "{}\nRun against the budgetd at {hosts}: dependency {dependency}, under the policy of its rule {}.{without} \
             The scenario's limits are made for the scenario's own policy. The documented bound of all windows is \
             not judged here: what else the deployment serves is not known.",
            scenario.story.trim(),
            policy.rule,
        );
        Ok(scenario)
    }
}

// === impl Deployment ===

impl Deployment {
    /// For clients.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.hosts.iter().map(|host| format!("http://{host}")).collect()
    }

    /// For an agent.
    pub(crate) fn store(&self) -> String {
        format!("grpc://{}", self.hosts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::scenario::find;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: DeploymentOptions,
    }

    fn options(line: &str) -> Result<DeploymentOptions, clap::Error> {
        let words = ["run"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.options)
    }

    fn refused(line: &str, scenario: &str, runs: usize) -> String {
        let scenario = find(scenario).expect("the library has it").0;
        options(line).expect("valid").judge(&scenario, runs, false).expect_err("is refused").to_string()
    }

    #[test]
    fn other_machines_need_a_word() {
        for local in ["127.0.0.1:7401", "[::1]:7401", "localhost:7401", "127.9.9.9:1"] {
            let line = format!("--endpoint http://{local} --dependency test");
            assert!(options(&line).expect("valid").deployment().is_ok(), "{local}");
        }
        for remote in ["10.0.0.1:7401", "0.0.0.0:7401", "budgetd.example:7401", "localhost.example:7401", "[::]:7401"] {
            let line = format!("--endpoint http://127.0.0.1:1 --endpoint http://{remote} --dependency test");
            let error = options(&line).expect("valid").deployment().expect_err("remote").to_string();
            assert!(error.contains(remote) && error.contains("--allow-remote"), "{error}");
            let allowed = options(&format!("{line} --allow-remote")).expect("valid").deployment().expect("allowed");
            assert_eq!(allowed.expect("named").urls(), ["http://127.0.0.1:1".to_owned(), format!("http://{remote}")]);
        }
    }

    #[test]
    fn endpoints_are_hosts_and_ports_and_nothing_else() {
        for bad in ["127.0.0.1:1", "https://127.0.0.1:1", "http://127.0.0.1", "http://127.0.0.1:0", "http://:1"] {
            assert!(parse_endpoint(bad).is_err(), "{bad}");
        }
        for bad in ["http://127.0.0.1@far:1", "http://a,b:1", "http://127.0.0.1:1/x", "http://127.0.0.1:99999"] {
            assert!(parse_endpoint(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_endpoint_needs_a_dependency_and_limits_have_limits() {
        assert!(options("--endpoint http://127.0.0.1:1").is_err());
        assert!(options("--dependency test").is_err());
        assert!(options("").expect("valid").deployment().expect("none").is_none());
        for bad in ["--max-rate 2001", "--max-rate 0", "--max-seconds 3601", "--max-seconds 0"] {
            assert!(options(&format!("--endpoint http://127.0.0.1:1 --dependency test {bad}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn too_much_too_long_and_harm_are_refused() {
        let local = "--endpoint http://127.0.0.1:1 --dependency test";
        let storm = find("storm").expect("the library has it").0;
        assert!(options(local).expect("valid").judge(&storm, 3, false).is_ok());
        assert!(refused(&format!("{local} --max-rate 10"), "storm", 3).contains("--max-rate"));
        assert!(refused(local, "storm", 100).contains("--max-seconds"));
        assert!(refused(local, "redis_killed", 1).contains("which no run does to a deployment"));
    }
}
