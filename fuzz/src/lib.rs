//! What each fuzz target does with the bytes it is given. The modules stand in a test as well, which gives them `corpus/`.

mod messages;
mod names;
mod policies;
mod replies;
mod roles;

/// Hands bytes to the target of this name. Panics if a parser does, or if it breaks what it promises.
pub fn judge(target: &str, bytes: &[u8]) {
    match target {
        "messages" => messages::judge(bytes),
        "names" => names::judge(bytes),
        "policies" => policies::judge(bytes),
        "replies" => replies::judge(bytes),
        "roles" => roles::judge(bytes),
        other => panic!("no target {other}"),
    }
}
