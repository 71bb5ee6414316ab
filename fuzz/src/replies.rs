//! Replies of Redis: those of another script, version or server are refused, never believed or stumbled over.

use budget::{
    decision::{Attempt, Extend, Release, Reserve, Step},
    ids::{PolicyVersion, ReservationId},
    policy::{Policy, Spec},
};
use budgetd::store::redis::codec::{read_reply, read_view, split_reply};
use deadpool_redis::redis::parse_redis_value;

pub(crate) fn judge(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else { return };
    let Ok(reply) = parse_redis_value(bytes) else { return };
    let id = ReservationId([1; 16]);
    let all = [
        Step::Reserve(Reserve::new(id, Attempt::ORIGINAL)),
        Step::Release(Release::not_sent(id)),
        Step::Extend(Extend { id, permit_ttl_ms: 1_000 }),
    ];
    let numbers = Policy::new(Spec::default()).expect("the default").numbers(false, false);
    let steps = usize::from(how % 4);
    let version = PolicyVersion::default();
    drop(read_reply(reply.clone(), version, &numbers, all.iter().cycle().take(steps)));
    drop(read_view(reply.clone()));
    for part in split_reply(reply, steps) {
        drop(read_reply(part, version, &numbers, all.iter().take(1)));
    }
}
