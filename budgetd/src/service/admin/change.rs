//! Changes: PutPolicy, DeletePolicy, RollbackPolicies and SetRetries.

use budget_proto::{InvalidMessage, convert, pb};
use tonic::Status;

use super::{Admin, WHY_BYTES_MAX, policies::moment};
use crate::{
    policies::{By, Edit, How, Rollback, Switching},
    service::status::of_policies,
    store::Store,
};

// === impl Admin ===

impl<S: Store> Admin<S> {
    pub(super) async fn put(&self, request: pb::PutPolicyRequest) -> Result<pb::PutPolicyResponse, Status> {
        let pb::PutPolicyRequest { name, source_toml, expected_version, who, why, override_for_ms, take_over } =
            request;
        let expected = convert::policy_version("expected_version", expected_version)?;
        let (how, by) = (how(override_for_ms, take_over)?, by(who, why)?);
        let text = (!source_toml.trim().is_empty()).then_some(source_toml);
        let edited = self.0.policies.edit(Edit { name, text, expected, how, by }).await;
        let version = edited.map_err(|error| of_policies(&error))?;
        Ok(pb::PutPolicyResponse { version: Some(version.into()) })
    }

    pub(super) async fn delete(&self, request: pb::DeletePolicyRequest) -> Result<pb::DeletePolicyResponse, Status> {
        let pb::DeletePolicyRequest { name, expected_version, who, why, override_for_ms, take_over } = request;
        let expected = convert::policy_version("expected_version", expected_version)?;
        let (how, by) = (how(override_for_ms, take_over)?, by(who, why)?);
        let edited = self.0.policies.edit(Edit { name, text: None, expected, how, by }).await;
        let version = edited.map_err(|error| of_policies(&error))?;
        Ok(pb::DeletePolicyResponse { version: Some(version.into()) })
    }

    pub(super) async fn roll_back(
        &self,
        request: pb::RollbackPoliciesRequest,
    ) -> Result<pb::RollbackPoliciesResponse, Status> {
        let pb::RollbackPoliciesRequest { version_number, expected_version, who, why, override_for_ms, take_over } =
            request;
        let to = convert::exact("version_number", version_number)?;
        let expected = convert::policy_version("expected_version", expected_version)?;
        let (how, by) = (how(override_for_ms, take_over)?, by(who, why)?);
        let rolled_back = self.0.policies.roll_back(Rollback { to, expected, how, by }).await;
        let version = rolled_back.map_err(|error| of_policies(&error))?;
        Ok(pb::RollbackPoliciesResponse { version: Some(version.into()) })
    }

    pub(super) async fn set_retries(&self, request: pb::SetRetriesRequest) -> Result<pb::SetRetriesResponse, Status> {
        let pb::SetRetriesRequest { target, enabled, why, who, for_ms } = request;
        if enabled && let Some(for_ms) = for_ms {
            return Err(InvalidMessage::number("for_ms", for_ms, "is for switching off only").into());
        }
        let for_ms = for_ms.map(|for_ms| convert::exact("for_ms", for_ms)).transpose()?;
        let by = by(who, why)?;
        let switching = Switching { target: target.clone(), enabled, for_ms, by: by.clone() };
        let switched = self.0.policies.switch(switching).await.map_err(|error| of_policies(&error))?;
        let By { who, why } = by;
        let still_off_by = switched.still_off_by;
        let (pending, version) = (switched.pending, switched.version.number);
        tracing::warn!(?target, enabled, ?who, ?why, version, pending, still_off_by, "retries switched by an operator");
        Ok(pb::SetRetriesResponse {
            version: Some(switched.version.into()),
            pending,
            until_ms: switched.until_ms.map(moment),
            still_off_by,
        })
    }
}

fn how(override_for_ms: Option<u64>, take_over: bool) -> Result<How, InvalidMessage> {
    match (override_for_ms, take_over) {
        (None, false) => Ok(How::Plain),
        (None, true) => Ok(How::TakeOver),
        (Some(for_ms), false) => Ok(How::OverrideForMs(convert::exact("override_for_ms", for_ms)?)),
        (Some(for_ms), true) => {
            Err(InvalidMessage::number("override_for_ms", for_ms, "must be absent where take_over is true"))
        }
    }
}

fn by(who: String, why: String) -> Result<By, InvalidMessage> {
    for (field, text) in [("who", &who), ("why", &why)] {
        if text.len() > WHY_BYTES_MAX {
            return Err(InvalidMessage::text(field, text, format!("must have at most {WHY_BYTES_MAX} bytes")));
        }
    }
    let who = if who.is_empty() { "unknown".to_owned() } else { who };
    Ok(By { who, why })
}
