//! Feeds the function of this name in `fuzz/src`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| budget_fuzz::judge("policies", bytes));
