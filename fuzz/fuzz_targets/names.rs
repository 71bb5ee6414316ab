//! Names and quantities as people write them.
#![no_main]

use budget::{
    ids::{DependencyId, OperationId, UnitId},
    units::{Rate, format_duration_ms, parse_decimal_ppm, parse_duration_ms},
};
use budgetd::config::Listen;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(name) = DependencyId::new(text) {
        assert_eq!(name.as_str(), text);
    }
    drop((OperationId::new(text), UnitId::of(text), Rate::parse(text), parse_decimal_ppm(text), text.parse::<Listen>()));
    if let Ok(ms) = parse_duration_ms(text) {
        assert_eq!(parse_duration_ms(&format_duration_ms(ms)), Ok(ms));
    }
});
