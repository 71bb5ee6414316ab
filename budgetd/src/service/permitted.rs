//! BudgetAdmin for those who may use it: judges the names in a message by the role of whoever sent it, and hands it on.

use budget_proto::pb::{self, budget_admin_server::BudgetAdmin};
use tonic::{Request, Response, Status};

use crate::{
    policies::DEFAULTS,
    security::{Access, Refused, Role},
};

/// A service, for those who may use it.
pub struct Permitted<A>(A);

// === impl Permitted ===

impl<A> Permitted<A> {
    /// Judges what comes to `service`.
    #[must_use]
    pub const fn new(service: A) -> Self {
        Self(service)
    }
}

/// The name of a rule; the defaults concern all dependencies.
fn judge_rule<M>(request: &Request<M>, role: Role, name: &str) -> Result<(), Refused> {
    let access = Access::of(request.extensions());
    if name == DEFAULTS { access.permit_all(role) } else { access.permit(role, name) }
}

fn judge_all<M>(request: &Request<M>, role: Role) -> Result<(), Refused> {
    Access::of(request.extensions()).permit_all(role)
}

/// Names; none at all means all.
fn judge_names<M>(request: &Request<M>, role: Role, names: &[String]) -> Result<(), Refused> {
    let access = Access::of(request.extensions());
    if names.is_empty() {
        return access.permit_all(role);
    }
    names.iter().try_for_each(|name| access.permit(role, name))
}

#[tonic::async_trait]
impl<A: BudgetAdmin> BudgetAdmin for Permitted<A> {
    async fn get_policy(
        &self,
        request: Request<pb::GetPolicyRequest>,
    ) -> Result<Response<pb::GetPolicyResponse>, Status> {
        judge_rule(&request, Role::Read, &request.get_ref().dependency)?;
        self.0.get_policy(request).await
    }

    async fn list_policies(
        &self,
        request: Request<pb::ListPoliciesRequest>,
    ) -> Result<Response<pb::ListPoliciesResponse>, Status> {
        judge_all(&request, Role::Read)?;
        self.0.list_policies(request).await
    }

    async fn put_policy(
        &self,
        request: Request<pb::PutPolicyRequest>,
    ) -> Result<Response<pb::PutPolicyResponse>, Status> {
        judge_rule(&request, Role::Operate, &request.get_ref().name)?;
        self.0.put_policy(request).await
    }

    async fn get_status(
        &self,
        request: Request<pb::GetStatusRequest>,
    ) -> Result<Response<pb::GetStatusResponse>, Status> {
        judge_names(&request, Role::Read, &request.get_ref().dependencies)?;
        self.0.get_status(request).await
    }

    async fn set_retries(
        &self,
        request: Request<pb::SetRetriesRequest>,
    ) -> Result<Response<pb::SetRetriesResponse>, Status> {
        judge_rule(&request, Role::Operate, &request.get_ref().target)?;
        self.0.set_retries(request).await
    }

    async fn list_holders(
        &self,
        request: Request<pb::ListHoldersRequest>,
    ) -> Result<Response<pb::ListHoldersResponse>, Status> {
        judge_rule(&request, Role::Read, &request.get_ref().dependency)?;
        self.0.list_holders(request).await
    }

    async fn revoke_lease(
        &self,
        request: Request<pb::RevokeLeaseRequest>,
    ) -> Result<Response<pb::RevokeLeaseResponse>, Status> {
        judge_rule(&request, Role::Operate, &request.get_ref().dependency)?;
        self.0.revoke_lease(request).await
    }
}
