//! BudgetAdmin: policies, status, the kill switch, and holders of leases.

mod change;
mod holders;
mod policies;
mod status_page;
mod try_out;
mod watch;

use std::sync::Arc;

use budget_proto::{InvalidMessage, pb};
use tonic::{Request, Response, Status};

use super::Core;
use crate::{store::Store, telemetry::Call};

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
        self.policies(request.get_ref()).await.inspect_err(self.0.failed(Call::Admin)).map(Response::new)
    }

    async fn put_policy(
        &self,
        request: Request<pb::PutPolicyRequest>,
    ) -> Result<Response<pb::PutPolicyResponse>, Status> {
        self.put(request.into_inner()).await.inspect_err(self.0.failed(Call::Admin)).map(Response::new)
    }

    async fn delete_policy(
        &self,
        request: Request<pb::DeletePolicyRequest>,
    ) -> Result<Response<pb::DeletePolicyResponse>, Status> {
        self.delete(request.into_inner()).await.inspect_err(self.0.failed(Call::Admin)).map(Response::new)
    }

    async fn policy_history(
        &self,
        request: Request<pb::PolicyHistoryRequest>,
    ) -> Result<Response<pb::PolicyHistoryResponse>, Status> {
        self.history(request.get_ref()).await.inspect_err(self.0.failed(Call::Admin)).map(Response::new)
    }

    async fn rollback_policies(
        &self,
        request: Request<pb::RollbackPoliciesRequest>,
    ) -> Result<Response<pb::RollbackPoliciesResponse>, Status> {
        self.roll_back(request.into_inner()).await.inspect_err(self.0.failed(Call::Admin)).map(Response::new)
    }

    type TryPoliciesStream = try_out::Trying;

    async fn try_policies(
        &self,
        request: Request<pb::TryPoliciesRequest>,
    ) -> Result<Response<Self::TryPoliciesStream>, Status> {
        self.try_out(request.into_inner()).inspect_err(self.0.failed(Call::Admin)).map(Response::new)
    }

    type WatchStatusStream = watch::Watching;

    async fn watch_status(
        &self,
        request: Request<pb::WatchStatusRequest>,
    ) -> Result<Response<Self::WatchStatusStream>, Status> {
        self.watch(request.into_inner()).inspect_err(self.0.failed(Call::Admin)).map(Response::new)
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
