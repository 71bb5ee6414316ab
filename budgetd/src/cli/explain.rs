//! `budgetd explain`: why calls of one dependency are refused, what would help, and how much its policy can admit.

use std::{collections::BTreeMap, io::Write, time::Duration};

use budget::{
    bound::{Fleet, formula},
    decision::DenyReason,
    ids::DependencyId,
    policy::{Policy, Spec},
    units::{Decimal, MICROS_PER_TOKEN},
};
use budget_client::{Dependency, DependencyStatus, Mode, PolicyView, StatusPage};
use serde_json::{Value, json};

use super::{
    Connection, Failure, Verdict, arguments, one_line,
    policy::kill_switch_text,
    table::{duration, print_json, tokens},
};
use crate::{
    config::LeaseTiming,
    policies::{LeaseReport, PolicySet, Question},
};

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The dependency.
    dependency: String,
    /// Length of the window that the bound is for.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = arguments::positive_duration)]
    window: Duration,
    #[command(flatten)]
    connection: Connection,
}

/// Something that keeps calls from being admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// One word.
    pub(super) kind: &'static str,
    /// What is so.
    pub(super) what: String,
    /// What would help.
    pub(super) help: String,
}

pub(super) async fn run(args: &Args, out: &mut impl Write) -> Result<Verdict, Failure> {
    let Args { dependency, window, connection } = args;
    let client = connection.client()?;
    let dependency = Dependency::new(dependency).map_err(|invalid| Failure::Call(invalid.into()))?;
    let id = dependency.id();
    let view = client.get_policy(id, connection.timeout).await.map_err(|error| connection.failure(error))?;
    let ids = [id.clone()];
    let page = client.get_status(&ids, None, connection.timeout).await.map_err(|error| connection.failure(error))?;
    let Some(status) = page.dependencies.first() else {
        let missing = budget_client::Error::NotFound(format!("no status of {:?}", id.as_str()));
        return Err(connection.failure(missing));
    };
    let policy = policy_of(id, &view)
        .map_err(|error| Failure::RemotePolicies { endpoint: connection.endpoint.clone(), error: Box::new(error) })?;
    let findings = findings(&page, status, &policy);
    let window_ms = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
    let bound = bound(id, &policy, status, window_ms);
    if connection.json {
        let finding = |finding: &Finding| json!({ "kind": finding.kind, "what": finding.what, "help": finding.help });
        print_json(
            out,
            &json!({
                "dependency": id.as_str(),
                "rule": view.rule,
                "refused_lately": refused_lately(status),
                "findings": findings.iter().map(finding).collect::<Vec<_>>(),
                "bound": bound_json(id, &policy, status, window_ms),
                "effective_toml": view.effective_toml,
            }),
        )?;
        return Ok(Verdict::Yes);
    }
    writeln!(out, "{} runs under rule {}", one_line(id.as_str()), one_line(&view.rule))?;
    if let Some(file) = &view.file {
        writeln!(out, "which comes from {}", one_line(file))?;
    }
    if findings.is_empty() {
        writeln!(out, "\nNothing keeps calls from being admitted now, and none was refused here in the last minute.")?;
    }
    for Finding { what, help, .. } in &findings {
        writeln!(out, "\n- {what}\n  What helps: {help}")?;
    }
    if !findings.is_empty() {
        writeln!(out, "\n{}", how_to_change(id, &view))?;
    }
    writeln!(out, "\n{}", bound.trim_end())?;
    Ok(Verdict::Yes)
}

/// The commands that change what the dependency runs under.
fn how_to_change(id: &DependencyId, view: &PolicyView) -> String {
    let id = one_line(id.as_str());
    let instead = match &view.file {
        Some(file) => format!("edit {}, or `budgetd policy put {id} FILE --override-for 2h`", one_line(file)),
        None => format!("`budgetd policy put {id} FILE`"),
    };
    format!("To change the policy: `budgetd policy get {id}` shows all of its fields; {instead}.")
}

/// The effective policy, as a policy.
fn policy_of(id: &DependencyId, view: &PolicyView) -> Result<Policy, crate::policies::InvalidText> {
    let rules = BTreeMap::from([(id.to_string(), view.effective_toml.clone())]);
    let set = PolicySet::of_rules(&rules, Some(&PolicySet::timed(LeaseTiming::ANY)))?;
    Ok(set.rule(id.as_str()).map_or_else(|| (**set.defaults()).clone(), |rule| (*rule.policy).clone()))
}

/// Everything that refuses calls now, or has done so in the last minute, the widest first.
pub(super) fn findings(page: &StatusPage, status: &DependencyStatus, policy: &Policy) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut find = |kind, what: String, help: String| found.push(Finding { kind, what, help });
    let spec = policy.spec();
    if !page.store_up || status.mode == Mode::Degraded {
        find(
            "store_away",
            format!(
                "the store ({}) is away: each replica admits by the policy's fallback alone",
                one_line(&page.store)
            ),
            "bring the store back; until then, fallback.originals and fallback.retries say what is admitted".to_owned(),
        );
    }
    if let Some(error) = &page.about.policy_error {
        let what = format!("the policies in force may not be those written last: {}", one_line(error));
        find("policy_error", what, "correct the policy file or the store, then look again".to_owned());
    }
    if let Some(switch) = &status.recent.kill_switch {
        let what = format!("retries are switched {}", kill_switch_text(switch));
        let target = if switch.target == "*" { "--all".to_owned() } else { one_line(&switch.target) };
        find("retries_off", what, format!("budgetd retries on {target}"));
    }
    if spec.mode == budget::policy::Mode::Shadow {
        let count = status.recent.replica.last().map_or(0, |window| window.would_be_denied);
        find(
            "shadow",
            format!(
                "the policy is in shadow mode: nothing is refused; {count} calls would have been in the last minute"
            ),
            "nothing is needed; mode = \"enforce\" makes the policy bite".to_owned(),
        );
    }
    if let Some(lending) = &status.lending
        && lending.quarantine_left_ms.max(lending.wait_left_ms) > 0
    {
        let left = duration(lending.quarantine_left_ms.max(lending.wait_left_ms));
        find(
            "quarantine",
            format!("state was lost or is new: what may still be leased from before is held back for {left}"),
            "wait; callers without a lease share the part that is never leased".to_owned(),
        );
    }
    found.extend(refused(status, spec));
    found.extend(standing(status, spec));
    found
}

fn refused_lately(status: &DependencyStatus) -> Value {
    let refusals = status.recent.replica.last().map(|window| super::status::refusals_json(&window.refusals));
    refusals.unwrap_or_else(|| json!([]))
}

/// What was refused in the last minute, by reason.
fn refused(status: &DependencyStatus, spec: &Spec) -> Vec<Finding> {
    let window = status.recent.replica.last();
    let refusals = window.map(|window| window.refusals.as_slice()).unwrap_or_default();
    let each = refusals.iter().filter_map(|refusals| {
        let count = refusals.originals.saturating_add(refusals.retries);
        let (why, help) = reason(refusals.reason, spec)?;
        let seconds = window.map_or(0, |window| window.length_ms / 1_000);
        let what = format!("{count} calls were refused at this replica in the last {seconds} s: {why}");
        Some(Finding { kind: refusals.reason.name(), what, help })
    });
    each.collect()
}

/// Why, and what helps. None: said already by another finding.
fn reason(reason: DenyReason, spec: &Spec) -> Option<(String, String)> {
    let said = |why: &str, help: &str| Some((why.to_owned(), help.to_owned()));
    match reason {
        DenyReason::RetriesOff => None,
        DenyReason::RetryBudget => Some((
            format!(
                "the retry budget was empty; it earns {} for each original and {} whatever the traffic, and holds at most {}",
                Decimal(spec.ratio_ppm), spec.floor, spec.retry_burst_tokens
            ),
            "fewer failures; or raise retry.ratio, retry.floor or retry.burst if the dependency can bear it".to_owned(),
        )),
        DenyReason::Admission => {
            let limit = spec.admission.map_or_else(String::new, |limit| {
                format!("; it allows {} and {} at once", limit.rate, limit.burst_tokens)
            });
            Some((
                format!("the admission budget was empty{limit}"),
                "send less; or raise admission.rate or admission.burst; or set admission.max_wait for callers that can wait"
                    .to_owned(),
            ))
        }
        DenyReason::InFlight => Some((
            format!(
                "all permits were taken{}",
                spec.max_in_flight.map_or_else(String::new, |most| format!("; there are {most}"))
            ),
            "release permits as soon as calls end; or raise admission.max_in_flight; permits that nobody releases end after \
             admission.permit_ttl"
                .to_owned(),
        )),
        DenyReason::Cost => said("a cost unit was exhausted", "cheaper calls; or raise rate or burst of cost.UNIT"),
        DenyReason::AttemptLimit => Some((
            format!("the operation had used its {} attempts", spec.max_attempts),
            "give up earlier in the caller; or raise operation.max_attempts".to_owned(),
        )),
        DenyReason::NoTimeLeft => said("the caller's deadline had passed or would have", "longer deadlines in the caller"),
        DenyReason::Fallback => {
            said("the store was away and the fallback had nothing left", "bring the store back; or raise fallback.originals")
        }
        DenyReason::OperationStoreAway => {
            said("the store was away and tracked operations need it", "bring the store back")
        }
        DenyReason::AlreadyReleased
        | DenyReason::InProgress
        | DenyReason::Completed
        | DenyReason::Conflict
        | DenyReason::OutcomeUnknown
        | DenyReason::OutOfOrder => said(
            "the caller asked again for what is under way or over",
            "nothing in the policy: it keeps duplicates out",
        ),
    }
}

/// What would be refused now.
fn standing(status: &DependencyStatus, spec: &Spec) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut find = |kind, what: String, help: &str| found.push(Finding { kind, what, help: help.to_owned() });
    let retry = status.retry.balance_micros;
    let cost = spec.retry_cost_micros.into_iter().min().unwrap_or(MICROS_PER_TOKEN);
    if retry < cost {
        let missing = cost.saturating_sub(retry);
        // An original earns as many micro-tokens as the ratio has parts per million.
        let originals = missing.saturating_add(spec.ratio_ppm - 1).checked_div(spec.ratio_ppm);
        let earned = originals.map_or_else(
            || "no original earns anything (retry.ratio is 0)".to_owned(),
            |count| format!("{count} originals would earn the rest"),
        );
        find(
            "retry_budget_now",
            format!(
                "the next retry is refused: {} of the {} retry tokens it costs are there; {earned}, and the floor gives {}",
                tokens(retry.max(0)),
                tokens(cost),
                spec.floor
            ),
            "wait for traffic or the floor; or raise retry.ratio or retry.floor",
        );
    }
    if let Some(admission) = status.admission
        && admission.balance_micros < MICROS_PER_TOKEN
    {
        let rate = spec.admission.map_or_else(String::new, |limit| format!(" at {}", limit.rate));
        find(
            "admission_now",
            format!("the next call is refused: less than one admission token is there; they come back{rate}"),
            "wait; or raise admission.rate",
        );
    }
    if let Some(most) = status.max_in_flight
        && status.in_flight >= most
    {
        find(
            "in_flight_now",
            format!("the next call is refused: {} of {most} permits are taken", status.in_flight),
            "release permits as soon as calls end; or raise admission.max_in_flight",
        );
    }
    for unit in status.units.iter().filter(|unit| unit.bucket.balance_micros <= 0) {
        let what = format!("calls that cost {} are refused: nothing of it is left", one_line(&unit.unit));
        find("cost_now", what, "wait; or raise its rate");
    }
    found
}

/// Holders, as far as they are known.
fn question(status: &DependencyStatus, window_ms: i64) -> Question {
    let holders = status.lending.as_ref().map_or(0, |lending| lending.holders).max(1);
    Question { fleet: Fleet { holders, replicas: 0 }, beyond: holders, window_ms }
}

/// How much any window may hold, in words.
fn bound(id: &DependencyId, policy: &Policy, status: &DependencyStatus, window_ms: i64) -> String {
    if policy.spec().lease.enabled {
        let timing = LeaseTiming::default().limits;
        return LeaseReport::new(id.as_str(), policy, &timing, question(status, window_ms)).text();
    }
    let spec = policy.spec();
    let window = formula::duration(window_ms);
    let seconds = Decimal(window_ms.saturating_mul(1_000));
    let mut text = format!("THE BOUND: in any {window}, the whole fleet sends at most\n");
    match spec.admission {
        Some(limit) => {
            let most = most(limit.burst_tokens, limit.rate, window_ms);
            text.push_str(&format!(
                "  attempts  burst {} + {} x {seconds} s = {most}\n",
                limit.burst_tokens, limit.rate
            ));
        }
        None => text.push_str("  attempts  as many as are asked for: admission is unlimited\n"),
    }
    let most = most(spec.retry_burst_tokens, spec.floor, window_ms);
    text.push_str(&format!(
        "  retries   burst {} + {} x {seconds} s + {} x originals = {most} + {} x originals\n",
        spec.retry_burst_tokens,
        spec.floor,
        Decimal(spec.ratio_ppm),
        Decimal(spec.ratio_ppm),
    ));
    text
}

/// `burst + rate · window`, in tokens, rounded down.
fn most(burst_tokens: i64, rate: budget::units::Rate, window_ms: i64) -> i64 {
    let (num, den) = rate.fraction();
    let earned = i128::from(num) * i128::from(window_ms) / i128::from(den);
    let tokens = i128::from(burst_tokens) + earned / i128::from(MICROS_PER_TOKEN);
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

fn bound_json(id: &DependencyId, policy: &Policy, status: &DependencyStatus, window_ms: i64) -> Value {
    if policy.spec().lease.enabled {
        let timing = LeaseTiming::default().limits;
        return LeaseReport::new(id.as_str(), policy, &timing, question(status, window_ms)).json();
    }
    let spec = policy.spec();
    json!({
        "window_ms": window_ms,
        "attempts": spec.admission.map(|limit| most(limit.burst_tokens, limit.rate, window_ms)),
        "retries_without_originals": most(spec.retry_burst_tokens, spec.floor, window_ms),
        "retries_per_original_ppm": spec.ratio_ppm,
    })
}
