//! ReportReceived: what a dependency's own side has received, beside what was admitted.

use budget_proto::{convert, pb};
use tonic::{Request, Status};

use super::{Core, deadline::TimeLimit};
use crate::{
    clock::Clock,
    security::{Access, Role},
    store::Store,
};

// === impl Core ===

impl<S: Store> Core<S> {
    /// Judges a report and has it counted, within its time.
    pub(super) async fn report_received(
        &self,
        request: &Request<pb::ReportReceivedRequest>,
    ) -> Result<pb::ReportReceivedResponse, Status> {
        let limit = TimeLimit::of(request.metadata(), Clock::instant())?;
        let (dependency, attempts) = convert::report_received(request.get_ref())?;
        Access::of(request.extensions()).permit(Role::Reserve, dependency.as_str())?;
        self.policies.snapshot().resolve(&dependency).map_err(Status::not_found)?;
        let deadline = limit.until(self.call_timeout())?;
        let counted = self.store.report_received(&dependency, attempts, deadline).await;
        let counted = counted.map_err(|error| self.failure(&error, &dependency))?;
        Ok(pb::ReportReceivedResponse { counted })
    }
}
