//! gRPC messages: whatever prost decodes is converted or refused, and what was converted can be answered.

use budget_proto::{
    convert::{
        AskName, Mode, Received, Reserved, dependency, holder, holder_id, lending, policy_version, session_call,
        session_reply, sync_asks, sync_replies,
    },
    pb,
};
use prost::Message;

pub(crate) fn judge(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 14 {
        0 => with(bytes, |message: pb::ReserveRequest| drop(Received::try_from(message))),
        1 => with(bytes, |message: pb::ReleaseRequest| drop(Received::try_from(message))),
        2 => with(bytes, |message: pb::ExtendRequest| drop(Received::try_from(message))),
        3 => with(bytes, |message| drop(session_call(message))),
        4 => with(bytes, |message| drop(sync_asks(message))),
        5 => with(bytes, |message: pb::ReserveResponse| drop(Reserved::try_from(message))),
        6 => with(bytes, |message: pb::ReleaseResponse| drop(budget_proto::convert::Released::try_from(message))),
        7 => with(bytes, |message: pb::ExtendResponse| drop(budget::decision::ExtendResult::try_from(message))),
        8 => with(bytes, |message| drop(session_reply(message))),
        9 => with(bytes, |message: pb::SyncResponse| {
            // As if these had been asked for.
            let mut request = pb::SyncRequest { holder_id: "h".into(), incarnation: vec![1; 16], ..Default::default() };
            request.asks = message
                .answers
                .iter()
                .map(|_| pb::SyncAsk { dependency: "a".into(), sequence: 1, nonce: 1, ..Default::default() })
                .collect();
            if let Ok(asks) = sync_asks(request) {
                let asked: Vec<_> = asks.iter().map(|(_, ask)| AskName::of(ask)).collect();
                drop(sync_replies(message, &asked));
            }
        }),
        10 => with(bytes, |message| drop(holder(message))),
        11 => with(bytes, |message| drop(lending(message))),
        12 => with(bytes, |message: pb::PolicyVersion| drop(policy_version("version", Some(message)))),
        _ => {
            if let Ok(text) = std::str::from_utf8(bytes) {
                drop((dependency("dependency", text), holder_id("holder_id", text), Mode::received("mode", 1)));
            }
        }
    }
}

fn with<M: Message + Default>(bytes: &[u8], convert: impl FnOnce(M)) {
    if let Ok(message) = M::decode(bytes) {
        convert(message);
    }
}
