//! ListHolders and RevokeLease.

use std::time::Instant;

use budget::{
    ids::{DependencyId, PolicyVersion},
    lease::HolderId,
    ledger::HolderView,
};
use budget_proto::{InvalidMessage, convert, pb};
use tonic::Status;

use super::{Admin, Page, WHY_BYTES_MAX, page_size, page_token};
use crate::{
    clock::Clock,
    service::{status::of_store, sync::unit_names},
    store::Store,
};

/// What a holder without a name and units takes of a page, about.
const HOLDER_BYTES: usize = 128;

// === impl Admin ===

impl<S: Store> Admin<S> {
    pub(super) async fn holders(&self, request: &pb::ListHoldersRequest) -> Result<pb::ListHoldersResponse, Status> {
        let dependency = convert::dependency("dependency", &request.dependency)?;
        let size = page_size(request.page_size)?;
        let after = page_token(request.page_token.as_deref())?;
        let after = after.map(|name| convert::holder_id("page_token", name)).transpose()?;
        let resolved = self.0.policies.snapshot().resolve(&dependency).map_err(Status::not_found)?;
        let deadline = Clock::instant() + self.0.call_timeout();
        let views = self.0.store.list_holders(&dependency, after.as_ref(), size + 1, deadline).await;
        let views = views.map_err(|error| of_store(&error, &dependency))?;
        let names = unit_names(&resolved);
        let mut page = Page::new(size);
        for (view, version) in views.iter().zip(self.told(&dependency, &views, deadline).await) {
            let mut holder = convert::holder_message(view, &names);
            holder.version = version.map(Into::into);
            let units = view.value.units.len() + view.charged.units.len() + view.usage.units_asked.len();
            if !page.takes(HOLDER_BYTES + holder.holder_id.len() + units * HOLDER_BYTES) {
                break;
            }
            page.entries.push(holder);
        }
        let next_page_token = page.token(|last| last.holder_id.clone());
        Ok(pb::ListHoldersResponse { holders: page.entries, next_page_token })
    }

    /// What each was told last, by whichever replica; where the others cannot be asked, by this one.
    async fn told(
        &self,
        dependency: &DependencyId,
        views: &[HolderView],
        deadline: Instant,
    ) -> Vec<Option<PolicyVersion>> {
        let holders: Vec<_> = views.iter().map(|view| view.holder.clone()).collect();
        let asked = self.0.policies.holders_told(dependency, &holders);
        let told = tokio::time::timeout_at(deadline.into(), asked).await.ok().and_then(Result::ok);
        let elsewhere = told.unwrap_or_default().into_iter().chain(std::iter::repeat(None));
        let here = |holder| self.0.sight.told(dependency, holder);
        // Versions only rise.
        holders.iter().zip(elsewhere).map(|(holder, elsewhere)| here(holder).max(elsewhere)).collect()
    }

    pub(super) async fn revoke(&self, request: &pb::RevokeLeaseRequest) -> Result<pb::RevokeLeaseResponse, Status> {
        let dependency = convert::dependency("dependency", &request.dependency)?;
        let holder: HolderId = convert::holder_id("holder_id", &request.holder_id)?;
        let why = &request.why;
        if why.len() > WHY_BYTES_MAX {
            return Err(InvalidMessage::text("why", why, format!("must have at most {WHY_BYTES_MAX} bytes")).into());
        }
        self.0.policies.snapshot().resolve(&dependency).map_err(Status::not_found)?;
        let deadline = Clock::instant() + self.0.call_timeout();
        let revoked = self.0.store.revoke(&dependency, &holder, deadline).await;
        let revoked = revoked.map_err(|error| of_store(&error, &dependency))?;
        tracing::warn!(dependency = ?dependency, holder = ?holder, revoked, ?why, "lease revoked by an operator");
        Ok(pb::RevokeLeaseResponse { revoked })
    }
}
