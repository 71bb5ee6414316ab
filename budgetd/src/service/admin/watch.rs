//! WatchStatus: GetStatus again and again, as fast as it is read, but no faster than asked for.

use std::{sync::Arc, time::Duration};

use budget_proto::{InvalidMessage, pb};
use futures::{StreamExt, stream, stream::BoxStream};
use tokio::time::{MissedTickBehavior, interval};
use tonic::Status;

use super::{Admin, page_size, status_page::asked};
use crate::store::Store;

/// Between two rounds.
const EVERY_MS: std::ops::RangeInclusive<u64> = 200..=60_000;
const EVERY_MS_DEFAULT: u64 = 1_000;

/// The answers.
pub(super) type Watching = BoxStream<'static, Result<pb::GetStatusResponse, Status>>;

/// A watch that goes on.
struct Round<S> {
    admin: Admin<S>,
    request: pb::GetStatusRequest,
    ticks: tokio::time::Interval,
    _permit: tokio::sync::OwnedSemaphorePermit,
}

// === impl Admin ===

impl<S: Store> Admin<S> {
    pub(super) fn watch(&self, request: pb::WatchStatusRequest) -> Result<Watching, Status> {
        let pb::WatchStatusRequest { dependencies, page_size: size, every_ms } = request;
        let every_ms = every_ms.unwrap_or(EVERY_MS_DEFAULT);
        if !EVERY_MS.contains(&every_ms) {
            let rule = format!("must be between {} and {}", EVERY_MS.start(), EVERY_MS.end());
            return Err(InvalidMessage::number("every_ms", every_ms, rule).into());
        }
        page_size(size)?;
        asked(&dependencies)?;
        let _permit = self.0.sight.open_stream()?;
        let mut ticks = interval(Duration::from_millis(every_ms));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let request = pb::GetStatusRequest { dependencies, page_size: size, page_token: None };
        let round = Round { admin: Self(Arc::clone(&self.0)), request, ticks, _permit };
        Ok(stream::unfold(Some(round), turn).take_until(self.0.stop.begun()).boxed())
    }
}

/// One page. An error ends the stream.
async fn turn<S: Store>(round: Option<Round<S>>) -> Option<(Result<pb::GetStatusResponse, Status>, Option<Round<S>>)> {
    let mut round = round?;
    if round.request.page_token.is_none() {
        round.ticks.tick().await;
    }
    match round.admin.status(&round.request).await {
        Ok(page) => {
            round.request.page_token.clone_from(&page.next_page_token);
            Some((Ok(page), Some(round)))
        }
        Err(status) => Some((Err(status), None)),
    }
}
