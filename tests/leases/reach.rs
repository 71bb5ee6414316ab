//! A thousand holders at two replicas: what is changed or switched is told to each of them by its next sync, whichever
//! replica that reaches.

use budget::{
    decision::{Attempt, Reserve},
    ids::PolicyVersion,
    lease::{Epoch, HolderId, Incarnation, Rules, SyncAnswer, SyncAsk, Usage},
};
use budget_client::{
    Client, Coordinators, How, Mode, PolicyEdit,
    leasing::{Asked, Coordinator},
    reservation_id,
};
use budget_tests::{eventually::eventually, security};
use futures::{StreamExt, stream};

use super::setting::{BOUND, CALL, On, Setting, pay, policy_of};

const HOLDERS: usize = 1_000;
const REPLICAS: usize = 2;
const AT_ONCE: usize = 32;
const SENT_MAX: usize = 20;

/// Holders that sync when they are told to.
struct Holders {
    replicas: Vec<Coordinators>,
    epoch: Epoch,
    sequence: i64,
}

// === impl Holders ===

impl Holders {
    fn ask(&self, number: usize, epoch: Epoch) -> Asked {
        let ask = SyncAsk {
            holder: HolderId::new(&format!("holder{number}")).unwrap(),
            incarnation: Incarnation(u128::try_from(number).unwrap().to_be_bytes()),
            sequence: self.sequence,
            nonce: 1,
            epoch,
            lease: None,
            usage: Usage::default(),
            counted: Usage::default(),
            in_flight: 0,
            weight: 1,
            leave: false,
        };
        Asked { dependency: pay(), ask: Box::new(ask) }
    }

    /// All sync once, each at its replica; the rules that each was told. How many were granted a lease.
    async fn sync(&mut self) -> (Vec<Rules>, usize) {
        self.sequence += 1;
        let (epoch, this) = (self.epoch, &*self);
        let replies: Vec<_> = stream::iter(0..HOLDERS)
            .map(|number| async move {
                // The same message again, if a busy machine has lost the answer.
                for _ in 1..SENT_MAX {
                    let replies = this.replicas[number % REPLICAS].sync(&[this.ask(number, epoch)]).await;
                    if let Some(Ok(reply)) = replies.into_iter().next() {
                        return reply;
                    }
                }
                panic!("holder {number} hears nothing");
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        for reply in &replies {
            if let SyncAnswer::Epoch(epoch) = reply.answer {
                self.epoch = epoch;
            }
        }
        let granted = replies.iter().filter(|reply| matches!(reply.answer, SyncAnswer::Granted(_))).count();
        (replies.into_iter().map(|reply| reply.rules).collect(), granted)
    }
}

/// One direct call, which is decided by the policies of that replica.
async fn bring(client: &Client) {
    eventually(BOUND, "the store decides", async || {
        let ask = Reserve { no_release: true, ..Reserve::new(reservation_id().unwrap(), Attempt::ORIGINAL) };
        client.reserve(&pay(), &ask, CALL).await.is_ok_and(|reserved| reserved.mode == Mode::Exact)
    })
    .await;
}

/// Seen to fail with rules that do not tell of the switch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_reaches_a_thousand_holders_with_their_next_sync() {
    let policy = policy_of(100_000, 50_000, 50_000);
    let setting = Setting::with(On::Redis7, &policy, REPLICAS, &["--no-leases-out"]);
    let operators: Vec<_> = setting.endpoints().iter().map(|endpoint| security::client(endpoint)).collect();
    let coordinators = |endpoint| Coordinators::new(vec![endpoint], &security::caller(), CALL).unwrap();
    let replicas = setting.endpoints().into_iter().map(coordinators).collect();
    let mut holders = Holders { replicas, epoch: Epoch::default(), sequence: 0 };
    // They learn the epoch first.
    holders.sync().await;
    let (rules, granted) = holders.sync().await;
    assert_eq!((rules.len(), granted), (HOLDERS, HOLDERS));

    let told = |rules: &[Rules], version: PolicyVersion| rules.iter().filter(|rules| rules.version == version).count();
    let expected = operators[0].list_policies(None, CALL).await.unwrap().version;
    assert_eq!(told(&rules, expected), HOLDERS);
    let edit = PolicyEdit {
        name: "pay".to_owned(),
        source_toml: Some(policy_of(50_000, 25_000, 25_000)),
        expected,
        how: How::TakeOver,
        ..PolicyEdit::default()
    };
    let changed = operators[0].edit_policy(edit, CALL).await.unwrap();
    // A call of anybody brings it to the ledger; the other replica need not have looked at the policies since.
    bring(&operators[0]).await;
    let (rules, _) = holders.sync().await;
    assert_eq!(told(&rules, changed), HOLDERS, "of the change");

    let off = operators[1].set_retries("pay", false, "a test", CALL).await.unwrap();
    bring(&operators[1]).await;
    let (rules, _) = holders.sync().await;
    assert_eq!(told(&rules, off), HOLDERS, "of the switch");
    assert!(rules.iter().all(|rules| rules.retries_off));
}
