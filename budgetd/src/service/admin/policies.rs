//! Looking at policies: GetPolicy, ListPolicies and PolicyHistory.

use std::{collections::BTreeMap, sync::Arc};

use budget::ids::DependencyId;
use budget_proto::{InvalidMessage, convert, pb};
use tonic::Status;

use super::{Admin, Page, page_size, page_token};
use crate::{
    policies::{Change, Managed, Override, Snapshot, Switch, effective_toml},
    service::status::of_policies,
    store::Store,
};

/// Rules of a change that are named.
const CHANGED_MAX: usize = 100;

// === impl Admin ===

impl<S: Store> Admin<S> {
    pub(super) fn policy(&self, request: &pb::GetPolicyRequest) -> Result<pb::GetPolicyResponse, Status> {
        let dependency = convert::dependency("dependency", &request.dependency)?;
        let snapshot = self.0.policies.snapshot();
        let resolved = snapshot.resolve(&dependency).map_err(Status::not_found)?;
        let (file, policy_override) = origin(snapshot.managed(), &resolved.rule);
        Ok(pb::GetPolicyResponse {
            version: Some(snapshot.version().into()),
            rule: resolved.rule.to_string(),
            source_toml: snapshot.source(&resolved.rule).map(ToString::to_string).unwrap_or_default(),
            effective_toml: effective_toml(&resolved.policy),
            retries_off: resolved.retries_off,
            kill_switch: kill_switch_of(&snapshot, &dependency),
            file,
            policy_override,
        })
    }

    pub(super) async fn policies(&self, request: &pb::ListPoliciesRequest) -> Result<pb::ListPoliciesResponse, Status> {
        let size = page_size(request.page_size)?;
        let after = page_token(request.page_token.as_deref())?;
        let snapshot = self.0.policies.snapshot();
        let is_after = |name: &str| after.is_none_or(|after| name > after);
        let mut page = Page::new(size);
        let version = match request.version_number {
            None => {
                for (name, rule) in snapshot.set().rules().skip_while(|(name, _)| !is_after(name)) {
                    if !page.takes(name.len() + rule.source.len()) {
                        break;
                    }
                    page.entries.push(rule_message(name, &rule.source, snapshot.managed()));
                }
                snapshot.version().into()
            }
            Some(number) => {
                let number = convert::exact("version_number", number)?;
                let (history, set, current) = self.0.policies.history().await;
                let rules = history.rules_at(number, &set, current);
                let rules: BTreeMap<_, _> =
                    rules.map_err(|rule| InvalidMessage::number("version_number", number, rule))?;
                for (name, source) in rules.iter().skip_while(|(name, _)| !is_after(name)) {
                    if !page.takes(name.len() + source.len()) {
                        break;
                    }
                    page.entries.push(rule_message(name, source, &Managed::default()));
                }
                let found = history.iter().map(|change| change.version).find(|version| version.number == number);
                found.unwrap_or(current).into()
            }
        };
        let next_page_token = page.token(|last| last.name.clone());
        let retries_off = snapshot.switches().iter().map(|(target, _)| target.to_owned()).collect();
        Ok(pb::ListPoliciesResponse { version: Some(version), rules: page.entries, retries_off, next_page_token })
    }

    pub(super) async fn history(
        &self,
        request: &pb::PolicyHistoryRequest,
    ) -> Result<pb::PolicyHistoryResponse, Status> {
        let size = page_size(request.page_size)?;
        let token = page_token(request.page_token.as_deref())?;
        let before = token.map(|token| {
            let number = token.parse::<i64>();
            number.map_err(|_| InvalidMessage::text("page_token", token, "must be taken from the previous answer"))
        });
        let before = before.transpose()?;
        // As stored now, where the store answers.
        let refreshed = self.0.policies.refresh().await;
        if let Err(error @ crate::policies::PoliciesError::Document { .. }) = &refreshed {
            return Err(of_policies(error));
        }
        let (history, _, version) = self.0.policies.history().await;
        let mut page = Page::new(size);
        for change in history.iter().skip_while(|change| before.is_some_and(|before| change.version.number >= before)) {
            let message = change_message(change);
            if !page.takes(prost_bytes(&message)) {
                break;
            }
            page.entries.push(message);
        }
        let token = |last: &pb::PolicyChange| last.version.map_or(0, |version| version.number).to_string();
        let next_page_token = page.token(token);
        Ok(pb::PolicyHistoryResponse { version: Some(version.into()), changes: page.entries, next_page_token })
    }
}

/// About.
fn prost_bytes(change: &pb::PolicyChange) -> usize {
    128 + change.who.len() + change.why.len() + change.what.len() + change.rules.iter().map(String::len).sum::<usize>()
}

fn change_message(change: &Change) -> pb::PolicyChange {
    let rules = change.before.iter().flatten().map(|(name, _)| name.clone()).take(CHANGED_MAX).collect();
    pb::PolicyChange {
        version: Some(change.version.into()),
        at_ms: moment(change.at_ms),
        who: change.by.who.clone(),
        why: change.by.why.clone(),
        what: change.what.clone(),
        rules,
        rules_count: change.before.as_ref().map(|before| u64::try_from(before.len()).unwrap_or(u64::MAX)),
    }
}

fn rule_message(name: &str, source: &str, managed: &Managed) -> pb::PolicyRule {
    let (file, policy_override) = origin(managed, name);
    pb::PolicyRule { name: name.to_owned(), source_toml: source.to_owned(), file, policy_override }
}

/// The file a rule comes from, and whether it is in force for a time only.
pub(super) fn origin(managed: &Managed, rule: &str) -> (Option<String>, Option<pb::PolicyOverride>) {
    let over = |over: &Override| pb::PolicyOverride {
        until_ms: moment(over.until_ms),
        who: over.by.who.clone(),
        why: over.by.why.clone(),
    };
    let file: Option<&Arc<str>> = managed.files.get(rule);
    (file.map(ToString::to_string), managed.overrides.get(rule).map(over))
}

pub(super) fn kill_switch_of(snapshot: &Snapshot, dependency: &DependencyId) -> Option<pb::KillSwitch> {
    snapshot.switch_of(dependency).map(|(target, switch)| kill_switch(target, switch))
}

pub(super) fn kill_switch(target: &str, switch: &Switch) -> pb::KillSwitch {
    pb::KillSwitch {
        target: target.to_owned(),
        since_ms: moment(switch.at_ms),
        until_ms: switch.until_ms.map(moment),
        who: switch.by.who.clone(),
        why: switch.by.why.clone(),
    }
}

/// Nothing of ours happened before 1970.
pub(super) fn moment(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0)
}
