//! Single calls with everything a message can carry; for what the closed loops do not send.

use std::time::Duration;

use futures::{TryStreamExt, stream};
use tokio::time;
use tonic::transport::{Channel, Endpoint};

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

/// A dependency's state starts empty; its rate fills it within moments.
const ADMIT_ATTEMPTS: u32 = 100;
const ADMIT_PAUSE: Duration = Duration::from_millis(20);

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

/// A server that has just been started may refuse until it has reached its store.
const ANSWER_ATTEMPTS: u32 = 200;
const ANSWER_PAUSE: Duration = Duration::from_millis(50);

/// A connection for single calls.
#[derive(Clone)]
pub(crate) struct Caller {
    client: RetryBudgetClient<Channel>,
}

/// Waits until a server answers a call, which changes nothing.
pub(crate) async fn until_answered(address: &str) -> Result<(), Error> {
    let mut caller = Caller::connect(address).await?;
    for _ in 1..ANSWER_ATTEMPTS {
        if caller.nudge(name(ONE, 0), [0; 16]).await.is_ok() {
            return Ok(());
        }
        time::sleep(ANSWER_PAUSE).await;
    }
    caller.nudge(name(ONE, 0), [0; 16]).await
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

    async fn one(mut self, dependency: String, deed: Deed, id: [u8; 16]) -> Result<(), Error> {
        match deed {
            Deed::Open(kind) => self.admit(&dependency, kind, id).await,
            Deed::Whole(kind) => {
                self.admit(&dependency, kind, id).await?;
                self.finish(&dependency, kind, id).await
            }
            Deed::Nudge => self.nudge(dependency, id).await,
        }
    }

    async fn nudge(&mut self, dependency: String, id: [u8; 16]) -> Result<(), Error> {
        let request = pb::ExtendRequest { dependency, reservation_id: id.to_vec(), permit_ttl_ms: 1 };
        self.client.extend(request).await?;
        Ok(())
    }

    async fn admit(&mut self, dependency: &str, kind: Kind, id: [u8; 16]) -> Result<(), Error> {
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
        let mut refusal = None;
        for _ in 0..ADMIT_ATTEMPTS {
            // Refusals are not stored: the same reservation may be asked for again.
            let answer = self.client.reserve(ask.clone()).await?.into_inner();
            if Verdict::from(&answer) == Verdict::Admitted {
                return Ok(());
            }
            refusal = Some(answer);
            time::sleep(ADMIT_PAUSE).await;
        }
        Err(format!("{dependency} refuses: {refusal:?}").into())
    }

    async fn finish(&mut self, dependency: &str, kind: Kind, id: [u8; 16]) -> Result<(), Error> {
        let mut release = success(dependency, &id);
        if let (Kind::Tracked(number), Some(pb::release_request::Use::Sent(sent))) = (kind, &mut release.r#use) {
            sent.set_terminal_state(pb::TerminalState::Completed);
            sent.result_ref = Some(vec![0x2F; RESULT_REF_BYTES]);
            release.operation_id = Some(operation_id(number));
        }
        let answer = self.client.release(release).await?.into_inner();
        if Verdict::from(&answer) == Verdict::Released {
            Ok(())
        } else {
            Err(format!("{dependency} does not take a reservation back: {answer:?}").into())
        }
    }
}

fn operation_id(number: usize) -> String {
    format!("{number:0OPERATION_ID_BYTES$}")
}
