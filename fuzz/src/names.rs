//! Names and quantities as people write them.

use budget::{
    ids::{DependencyId, OperationId, UnitId},
    units::{Rate, format_duration_ms, parse_decimal_ppm, parse_duration_ms},
};
use budgetd::config::Listen;

pub(crate) fn judge(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(name) = DependencyId::new(text) {
        assert_eq!(name.as_str(), text);
    }
    drop((
        OperationId::new(text),
        UnitId::of(text),
        Rate::parse(text),
        parse_decimal_ppm(text),
        text.parse::<Listen>(),
    ));
    if let Ok(ms) = parse_duration_ms(text) {
        assert_eq!(parse_duration_ms(&format_duration_ms(ms)), Ok(ms));
    }
}
