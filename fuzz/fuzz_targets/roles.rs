//! Files of roles and of settings: judged without a panic, and no secret in an error.
#![no_main]

use budgetd::{
    config::{Config, Settings},
    security::Roles,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    drop(Roles::parse(text));
    if let Ok(settings) = Settings::parse(text) {
        drop(Config::judge(settings));
    }
});
