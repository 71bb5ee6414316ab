//! What is stored says in which format it is written: a newer one is left alone, and parts that this release does not know
//! are carried along.

use budget::{
    decision::{Answer, Extend, ExtendResult, Step},
    ids::ReservationId,
};
use budget_tests::redis_server::{Flavour, RedisServer};
use budgetd::{
    clock::Clock,
    store::{
        Store, StoreError,
        redis::{
            layout::{
                FORMAT_MARK, FORMAT_NEWEST,
                records::{HEAD, LEDGER_ROOM, RECORD, RECORD_ROOM},
            },
            metrics::ErrorKind,
        },
    },
};
use deadpool_redis::redis::{self, Commands, Connection};

use crate::redis_world::{Replica, dependency, fresh_id, original, patient, retry, soon, success};

const PARTS_AT: usize = 1;

fn connection(server: &RedisServer) -> Connection {
    redis::Client::open(server.admin_url()).unwrap().get_connection().unwrap()
}

/// Adds parts that no script of this release writes: their bits, and their bytes at a place.
fn with_room(stored: &[u8], bits: u8, at: usize, room: &[u8]) -> Vec<u8> {
    let mut stored = stored.to_vec();
    stored[PARTS_AT] += bits;
    stored.splice(at..at, room.iter().copied());
    stored
}

/// Seen to fail with a ledger of a newer format taken for a corrupt one, or overwritten.
#[tokio::test]
async fn a_newer_format_is_named_and_left_alone() {
    for flavour in Flavour::ALL {
        let server = RedisServer::start(flavour);
        let mut connection = connection(&server);
        let replica = Replica::connect(&server.url()).await;
        replica.put("leased", "lease.enabled = true").await;
        let id = fresh_id();
        for name in ["plain", "record", "sane"] {
            assert!(replica.admits(name, id).await);
        }
        let newer = FORMAT_MARK + FORMAT_NEWEST + 1;
        let mut left: Vec<(String, Vec<u8>)> = Vec::new();
        for name in ["plain", "leased"] {
            let key = format!("budgetd:{{{name}}}:s");
            let stored = [&[newer][..], &b"what this release cannot know".repeat(9)].concat();
            let () = connection.set(&key, &stored).unwrap();
            left.push((key, stored));
        }
        let () = connection.hset("budgetd:{record}:b", &id.0, &[newer, 1, 2, 3][..]).unwrap();
        let counted = |replica: &Replica| -> u64 {
            let errors = replica.metrics().errors();
            errors.filter(|(kind, _)| *kind == ErrorKind::Newer).map(|(_, count)| count).sum()
        };
        let before = counted(&replica);
        for (name, step) in [("plain", original(fresh_id())), ("leased", original(fresh_id())), ("record", success(id))]
        {
            let failed = replica.step(name, step).await;
            let Err(StoreError::Away(why)) = failed else { panic!("{name}: {failed:?}") };
            assert!(why.contains("of format 3") && why.contains("reads formats up to 2"), "{why}");
        }
        assert!(replica.store.view(&dependency("plain"), soon()).await.is_err());
        assert!(counted(&replica) >= before + 3);
        assert!(replica.admits("sane", fresh_id()).await, "only what is newer is affected");
        for (key, stored) in left {
            assert_eq!(connection.get::<_, Vec<u8>>(&key).unwrap(), stored, "{key}");
        }
        // What begins with no format of any release is corrupt.
        let () = connection.set("budgetd:{plain}:s", "\u{e9}".repeat(400)).unwrap();
        let failed = replica.step("plain", original(fresh_id())).await;
        assert!(matches!(failed, Err(StoreError::Corrupt(_))), "{failed:?}");
    }
}

/// Seen to fail with the room dropped where a ledger is written, and where a reservation is extended.
#[tokio::test]
async fn parts_that_are_not_known_are_carried_along() {
    for flavour in Flavour::ALL {
        let server = RedisServer::start(flavour);
        let mut connection = connection(&server);
        let (clock, hands) = Clock::manual(1_700_000_000_000);
        let replica = Replica::start(&patient(&server.url()), clock).await;
        replica
            .put(
                "d",
                "admission = { rate = \"10/s\", burst = 100 }\nretry.burst = 5\n[cost.usd]\nrate = \"1/s\"\nburst = 9",
            )
            .await;
        let ids: Vec<ReservationId> = (0..3).map(|_| fresh_id()).collect();
        for id in &ids {
            assert!(replica.admits("d", *id).await);
            hands.advance(1_000);
        }
        let (ledger_key, generation) = ("budgetd:{d}:s", "budgetd:{d}:b");
        let stored: Vec<u8> = connection.get(ledger_key).unwrap();
        assert_eq!(stored[0], FORMAT_MARK + FORMAT_NEWEST);
        let bits = LEDGER_ROOM.iter().fold(0, |bits, (_, part)| bits + part);
        let room = b"\0\x05jumps\0\x04room\0\x04hold\0\x07breaker";
        let () = connection.set(ledger_key, with_room(&stored, bits, stored.len(), room)).unwrap();
        let record: Vec<u8> = connection.hget(generation, &ids[0].0).unwrap();
        let record_bits = RECORD_ROOM.iter().fold(0, |bits, (_, part, _)| bits + part);
        let record_room: Vec<u8> = (0..).take(RECORD_ROOM.iter().map(|(.., bytes)| bytes).sum()).collect();
        let at = RECORD.bytes().unwrap();
        let () = connection.hset(generation, &ids[0].0, with_room(&record, record_bits, at, &record_room)).unwrap();

        // Steps of all kinds, alone and together, at once and later, with and without the queue.
        let extended = replica.answer("d", Step::Extend(Extend { id: ids[0], permit_ttl_ms: 3_000_000 })).await;
        assert_eq!(extended, Answer::Extended(ExtendResult::Extended(3_000_000)));
        hands.advance(1_000);
        assert!(replica.admits("d", fresh_id()).await);
        drop(replica.answer("d", retry(fresh_id())).await);
        replica.release("d", ids[1]).await;
        let queued: Vec<u8> = connection.hget("budgetd:{d}:l", &ids[0].0).unwrap();
        assert!(queued[PARTS_AT] & record_bits == record_bits && queued.ends_with(&record_room), "{queued:?}");
        let stored: Vec<u8> = connection.get(ledger_key).unwrap();
        assert!(stored[PARTS_AT] & bits == bits && stored.ends_with(room), "{stored:?}");
        replica.release("d", ids[0]).await;
        hands.advance(7_200_000);
        assert!(replica.admits("d", fresh_id()).await);
        let stored: Vec<u8> = connection.get(ledger_key).unwrap();
        assert!(stored.len() > HEAD.bytes().unwrap() && stored.ends_with(room), "{stored:?}");
        assert_eq!(replica.view("d").await.unwrap().counters.not_sent, 0);
    }
}
