//! BudgetAdmin: policies, status, the kill switch, and holders of leases.

mod holders;
mod status_page;

use std::sync::Arc;

use budget_proto::{InvalidMessage, convert, pb};
use tonic::{Request, Response, Status};

use super::{Core, status::of_policies};
use crate::{policies::effective_toml, store::Store, telemetry::Call};

/// Entries of a page where the request does not say.
const PAGE_SIZE: usize = 100;
const PAGE_SIZE_MAX: u32 = 1_000;
/// A page ends before it exceeds this, so that any client can receive it.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Longest name of a rule.
const NAME_BYTES_MAX: usize = 512;
const WHY_BYTES_MAX: usize = 256;

/// The service that operators use.
pub struct Admin<S>(Arc<Core<S>>);

// === impl Admin ===

impl<S: Store> Admin<S> {
    /// Of this core.
    #[must_use]
    pub const fn new(core: Arc<Core<S>>) -> Self {
        Self(core)
    }

    fn policy(&self, request: &pb::GetPolicyRequest) -> Result<pb::GetPolicyResponse, Status> {
        let dependency = convert::dependency("dependency", &request.dependency)?;
        let snapshot = self.0.policies.snapshot();
        let resolved = snapshot.resolve(&dependency).map_err(Status::not_found)?;
        Ok(pb::GetPolicyResponse {
            version: Some(snapshot.version().into()),
            rule: resolved.rule.to_string(),
            source_toml: snapshot.source(&resolved.rule).map(ToString::to_string).unwrap_or_default(),
            effective_toml: effective_toml(&resolved.policy),
            retries_off: resolved.retries_off,
        })
    }

    fn policies(&self, request: &pb::ListPoliciesRequest) -> Result<pb::ListPoliciesResponse, Status> {
        let size = page_size(request.page_size)?;
        let after = page_token(request.page_token.as_deref())?;
        let snapshot = self.0.policies.snapshot();
        let mut page = Page::new(size);
        for (name, rule) in snapshot.set().rules().skip_while(|(name, _)| after.is_some_and(|after| ***name <= *after))
        {
            if !page.takes(name.len() + rule.source.len()) {
                break;
            }
            page.entries.push(pb::PolicyRule { name: name.to_string(), source_toml: rule.source.to_string() });
        }
        let next_page_token = page.token(|last| last.name.clone());
        let retries_off = snapshot.switches().iter().map(str::to_owned).collect();
        let version = Some(snapshot.version().into());
        Ok(pb::ListPoliciesResponse { version, rules: page.entries, retries_off, next_page_token })
    }

    async fn put(&self, request: pb::PutPolicyRequest) -> Result<pb::PutPolicyResponse, Status> {
        let expected = convert::policy_version("expected_version", request.expected_version)?;
        let put = self.0.policies.put(&request.name, &request.source_toml, expected).await;
        let version = put.map_err(|error| of_policies(&error))?;
        Ok(pb::PutPolicyResponse { version: Some(version.into()) })
    }

    async fn set_retries(&self, request: pb::SetRetriesRequest) -> Result<pb::SetRetriesResponse, Status> {
        let pb::SetRetriesRequest { target, enabled, why } = request;
        if why.len() > WHY_BYTES_MAX {
            return Err(InvalidMessage::text("why", &why, format!("must have at most {WHY_BYTES_MAX} bytes")).into());
        }
        let switched = self.0.policies.set_retries(&target, enabled).await.map_err(|error| of_policies(&error))?;
        let still_off_by = switched.still_off_by.as_deref();
        tracing::warn!(?target, enabled, ?why, still_off_by, "retries switched by an operator");
        Ok(pb::SetRetriesResponse { version: Some(switched.version.into()) })
    }
}

#[tonic::async_trait]
impl<S: Store> pb::budget_admin_server::BudgetAdmin for Admin<S> {
    async fn get_policy(
        &self,
        request: Request<pb::GetPolicyRequest>,
    ) -> Result<Response<pb::GetPolicyResponse>, Status> {
        self.policy(request.get_ref()).inspect_err(self.0.failed(Call::Admin)).map(Response::new)
    }

    async fn list_policies(
        &self,
        request: Request<pb::ListPoliciesRequest>,
    ) -> Result<Response<pb::ListPoliciesResponse>, Status> {
        self.policies(request.get_ref()).inspect_err(self.0.failed(Call::Admin)).map(Response::new)
    }

    async fn put_policy(
        &self,
        request: Request<pb::PutPolicyRequest>,
    ) -> Result<Response<pb::PutPolicyResponse>, Status> {
        self.put(request.into_inner()).await.inspect_err(self.0.failed(Call::Admin)).map(Response::new)
    }

    async fn get_status(
        &self,
        request: Request<pb::GetStatusRequest>,
    ) -> Result<Response<pb::GetStatusResponse>, Status> {
        self.status(request.get_ref()).await.inspect_err(self.0.failed(Call::Admin)).map(Response::new)
    }

    async fn set_retries(
        &self,
        request: Request<pb::SetRetriesRequest>,
    ) -> Result<Response<pb::SetRetriesResponse>, Status> {
        self.set_retries(request.into_inner()).await.inspect_err(self.0.failed(Call::Admin)).map(Response::new)
    }

    async fn list_holders(
        &self,
        request: Request<pb::ListHoldersRequest>,
    ) -> Result<Response<pb::ListHoldersResponse>, Status> {
        self.holders(request.get_ref()).await.inspect_err(self.0.failed(Call::Admin)).map(Response::new)
    }

    async fn revoke_lease(
        &self,
        request: Request<pb::RevokeLeaseRequest>,
    ) -> Result<Response<pb::RevokeLeaseResponse>, Status> {
        self.revoke(request.get_ref()).await.inspect_err(self.0.failed(Call::Admin)).map(Response::new)
    }
}

fn page_size(size: Option<u32>) -> Result<usize, InvalidMessage> {
    match size {
        None => Ok(PAGE_SIZE),
        Some(size) if (1..=PAGE_SIZE_MAX).contains(&size) => Ok(usize::try_from(size).unwrap_or(PAGE_SIZE)),
        Some(size) => Err(InvalidMessage::number("page_size", size, format!("must be between 1 and {PAGE_SIZE_MAX}"))),
    }
}

/// The last name of the page before.
fn page_token(token: Option<&str>) -> Result<Option<&str>, InvalidMessage> {
    match token {
        Some(token) if token.is_empty() || token.len() > NAME_BYTES_MAX => {
            Err(InvalidMessage::text("page_token", token, "must be taken from the previous answer"))
        }
        token => Ok(token),
    }
}

/// A page being filled.
struct Page<T> {
    entries: Vec<T>,
    size: usize,
    bytes: usize,
    more: bool,
}

// === impl Page ===

impl<T> Page<T> {
    const fn new(size: usize) -> Self {
        Self { entries: Vec::new(), size, bytes: 0, more: false }
    }

    /// Whether there is room for one more; the first always fits.
    fn takes(&mut self, bytes: usize) -> bool {
        let fits = self.entries.len() < self.size && self.bytes + bytes <= PAGE_BYTES_MAX;
        self.more = !(fits || self.entries.is_empty());
        self.bytes += bytes;
        !self.more
    }

    fn token(&self, name: impl Fn(&T) -> String) -> Option<String> {
        self.entries.last().filter(|_| self.more).map(name)
    }
}
