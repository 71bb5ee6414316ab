//! Files of roles and of settings: judged without a panic, and no secret in an error.

use budgetd::{
    config::{Config, Settings},
    security::Roles,
};

pub(crate) fn judge(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    drop(Roles::parse(text));
    if let Ok(settings) = Settings::parse(text) {
        drop(Config::judge(settings));
    }
}
