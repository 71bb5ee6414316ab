//! BudgetAdmin for those who may use it: judges the names in a message by the role of whoever sent it, and hands it on.

use budget_proto::pb::{self, budget_admin_server::BudgetAdmin};
use tonic::{Request, Response, Status};

use crate::{
    policies::DEFAULTS,
    security::{Access, Refused, Role},
};

/// As the service judges it.
const WHO_BYTES_MAX: usize = 256;

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

/// Who it is, for log and history: what was found out comes before what is claimed.
fn name_asker<M>(request: &mut Request<M>, who: impl FnOnce(&mut M) -> &mut String) {
    let access = Access::of(request.extensions());
    if let Some(known) = access.who() {
        let claimed = who(request.get_mut());
        let mut named = if claimed.is_empty() { known.to_owned() } else { format!("{known} ({claimed})") };
        // What is too long by itself is refused as ever.
        if claimed.len() <= WHO_BYTES_MAX {
            while named.len() > WHO_BYTES_MAX {
                named.pop();
            }
        }
        *claimed = named;
    }
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
        mut request: Request<pb::PutPolicyRequest>,
    ) -> Result<Response<pb::PutPolicyResponse>, Status> {
        judge_rule(&request, Role::Operate, &request.get_ref().name)?;
        name_asker(&mut request, |message| &mut message.who);
        self.0.put_policy(request).await
    }

    async fn delete_policy(
        &self,
        mut request: Request<pb::DeletePolicyRequest>,
    ) -> Result<Response<pb::DeletePolicyResponse>, Status> {
        judge_rule(&request, Role::Operate, &request.get_ref().name)?;
        name_asker(&mut request, |message| &mut message.who);
        self.0.delete_policy(request).await
    }

    async fn policy_history(
        &self,
        request: Request<pb::PolicyHistoryRequest>,
    ) -> Result<Response<pb::PolicyHistoryResponse>, Status> {
        judge_all(&request, Role::Read)?;
        self.0.policy_history(request).await
    }

    async fn rollback_policies(
        &self,
        mut request: Request<pb::RollbackPoliciesRequest>,
    ) -> Result<Response<pb::RollbackPoliciesResponse>, Status> {
        judge_all(&request, Role::Operate)?;
        name_asker(&mut request, |message| &mut message.who);
        self.0.rollback_policies(request).await
    }

    type TryPoliciesStream = A::TryPoliciesStream;

    async fn try_policies(
        &self,
        request: Request<pb::TryPoliciesRequest>,
    ) -> Result<Response<A::TryPoliciesStream>, Status> {
        judge_all(&request, Role::Operate)?;
        self.0.try_policies(request).await
    }

    type WatchStatusStream = A::WatchStatusStream;

    async fn watch_status(
        &self,
        request: Request<pb::WatchStatusRequest>,
    ) -> Result<Response<A::WatchStatusStream>, Status> {
        judge_names(&request, Role::Read, &request.get_ref().dependencies)?;
        self.0.watch_status(request).await
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
        mut request: Request<pb::SetRetriesRequest>,
    ) -> Result<Response<pb::SetRetriesResponse>, Status> {
        judge_rule(&request, Role::Operate, &request.get_ref().target)?;
        name_asker(&mut request, |message| &mut message.who);
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
