//! Single calls with everything a message can carry; for what the closed loops do not send.

use std::{fmt, time::Duration};

use futures::{TryStreamExt, stream};
use tokio::time;
use tonic::{
    Code, Response, Status,
    transport::{Channel, Endpoint},
};

use budget_proto::pb;
use pb::retry_budget_client::RetryBudgetClient;

use crate::{
    Error,
    policies::{ONE, name},
    wire::{Ids, Verdict, original, success},
};

/// How long one call may take.
const CALL_PATIENCE: Duration = Duration::from_secs(5);

/// Calls unanswered at once.
const CONCURRENCY: usize = 64;

/// A server may not have reached its store yet, a dependency's state starts empty and fills within moments, and on a
/// machine that stalls an answer gets lost: a call is sent again so many times, after this pause.
const ATTEMPTS: u32 = 400;
const PAUSE: Duration = Duration::from_millis(25);

/// Bytes of a tracked operation's parts: the most for which its size is promised.
const OPERATION_ID_BYTES: usize = 32;
const FINGERPRINT_BYTES: usize = 32;
const RESULT_REF_BYTES: usize = 64;

/// What a reservation is made of besides its dependency.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Nothing else.
    Plain,
    /// An estimate in each of these units.
    WithCosts(&'static [&'static str]),
    /// A tracked operation with this number.
    Tracked(usize),
}

/// What is done at a dependency.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deed {
    /// Reserve, and leave it open.
    Open(Kind),
    /// Reserve and Release; a tracked operation is completed with a result reference.
    Whole(Kind),
    /// A call that changes nothing but lets the ledger drop what has ended.
    Nudge,
}

/// A connection for single calls.
#[derive(Clone)]
pub(crate) struct Caller {
    client: RetryBudgetClient<Channel>,
}

/// Waits until a server answers a call, which changes nothing.
pub(crate) async fn until_answered(address: &str) -> Result<(), Error> {
    Caller::connect(address).await?.nudge(name(ONE, 0), [0; 16]).await
}

/// Sends a call until `done` takes its answer. Every call carries its id, so none is done twice, and refusals are not
/// stored.
async fn insist<Answer: fmt::Debug, Sent>(send: impl Fn() -> Sent, done: impl Fn(&Answer) -> bool) -> Result<(), Error>
where
    Sent: Future<Output = Result<Response<Answer>, Status>>,
{
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        match send().await {
            Ok(answer) if done(answer.get_ref()) => return Ok(()),
            Ok(answer) => last = format!("{:?}", answer.get_ref()),
            Err(status) if status.code() == Code::Unavailable => last = status.to_string(),
            Err(status) => return Err(status.into()),
        }
        time::sleep(PAUSE).await;
    }
    Err(format!("asked {ATTEMPTS} times, answered {last}").into())
}

// === impl Caller ===

impl Caller {
    /// Connects.
    pub(crate) async fn connect(address: &str) -> Result<Self, Error> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?
            .tcp_nodelay(true)
            .connect_timeout(CALL_PATIENCE)
            .timeout(CALL_PATIENCE);
        Ok(Self { client: RetryBudgetClient::new(endpoint.connect().await?) })
    }

    /// Does all of it, many at a time, in about this order.
    pub(crate) async fn all(
        &self,
        ids: &mut Ids,
        deeds: impl IntoIterator<Item = (String, Deed)>,
    ) -> Result<(), Error> {
        let deeds = deeds.into_iter().map(|(dependency, deed)| Ok::<_, Error>((dependency, deed, ids.id())));
        stream::iter(deeds)
            .try_for_each_concurrent(CONCURRENCY, |(dependency, deed, id)| self.clone().one(dependency, deed, id))
            .await
    }

    async fn one(self, dependency: String, deed: Deed, id: [u8; 16]) -> Result<(), Error> {
        match deed {
            Deed::Open(kind) => self.admit(&dependency, kind, id).await,
            Deed::Whole(kind) => {
                self.admit(&dependency, kind, id).await?;
                self.finish(&dependency, kind, id).await
            }
            Deed::Nudge => self.nudge(dependency, id).await,
        }
    }

    async fn nudge(&self, dependency: String, id: [u8; 16]) -> Result<(), Error> {
        let request = pb::ExtendRequest { dependency, reservation_id: id.to_vec(), permit_ttl_ms: 1 };
        let send = || {
            let (mut client, request) = (self.client.clone(), request.clone());
            async move { client.extend(request).await }
        };
        insist(send, |_| true).await
    }

    async fn admit(&self, dependency: &str, kind: Kind, id: [u8; 16]) -> Result<(), Error> {
        let mut ask = original(dependency, &id);
        // May drain a bucket that is still filling.
        ask.priority = Some(pb::Priority::Critical.into());
        match kind {
            Kind::Plain => {}
            Kind::WithCosts(units) => {
                ask.costs =
                    units.iter().map(|unit| pb::Cost { unit: (*unit).to_owned(), amount_micros: 1_000_000 }).collect();
            }
            Kind::Tracked(number) => {
                ask.operation = Some(pb::Operation {
                    id: operation_id(number),
                    fingerprint: vec![0xF1; FINGERPRINT_BYTES],
                    expires_in_ms: None,
                    parent_id: None,
                });
            }
        }
        let send = || {
            let (mut client, ask) = (self.client.clone(), ask.clone());
            async move { client.reserve(ask).await }
        };
        insist(send, |answer| Verdict::from(answer) == Verdict::Admitted).await
    }

    async fn finish(&self, dependency: &str, kind: Kind, id: [u8; 16]) -> Result<(), Error> {
        let mut release = success(dependency, &id);
        if let (Kind::Tracked(number), Some(pb::release_request::Use::Sent(sent))) = (kind, &mut release.r#use) {
            sent.set_terminal_state(pb::TerminalState::Completed);
            sent.result_ref = Some(vec![0x2F; RESULT_REF_BYTES]);
            release.operation_id = Some(operation_id(number));
        }
        let send = || {
            let (mut client, release) = (self.client.clone(), release.clone());
            async move { client.release(release).await }
        };
        // Where an answer was lost, or came after the short life of its permit, the record is as good as released.
        insist(send, |answer| answer.result() != pb::ReleaseResult::Unknown).await
    }
}

fn operation_id(number: usize) -> String {
    format!("{number:0OPERATION_ID_BYTES$}")
}
