//! Looks that decide nothing by themselves.

use std::sync::atomic::Ordering::Relaxed;

use super::LocalAsk;
use crate::{
    decision::{Cost, Denied, DenyReason, Priority},
    holder::{
        segment::{Cells, RETRIES_OFF, UnitCell, UnitSlot, by_class, needed},
        word::{Missed, Tag},
    },
    ids::UnitId,
};

/// Refusals that do not depend on levels.
pub(super) fn final_refusal(ask: &LocalAsk<'_>, flags: u32, attempts: u32) -> Option<Denied> {
    if ask.attempt.is_retry() && flags & RETRIES_OFF != 0 {
        return Some(Denied::because(DenyReason::RetriesOff));
    }
    (ask.attempt.number > attempts).then(|| Denied { impossible: true, ..Denied::because(DenyReason::AttemptLimit) })
}

/// The cell of a unit, and its numbers.
pub(in crate::holder) fn find(cells: &Cells, odd: bool, unit: UnitId) -> Option<(&UnitCell, &UnitSlot)> {
    cells.iter().map(|cell| (cell, cell.slot(odd))).find(|(_, slot)| slot.id.load(Relaxed) == unit.raw())
}

/// A unit's bucket, its clock, burst and the level needed, if it covers the cost.
pub(super) fn look_at_unit<'a>(
    cells: &'a Cells,
    tag: Tag,
    elapsed_ns: i64,
    priority: Priority,
    cost: &Cost,
) -> Result<(&'a UnitCell, i64, i64, i64), Missed> {
    let (cell, slot) = find(cells, tag.is_odd(), cost.unit).ok_or(Missed::Short)?;
    let part = slot.read();
    let keep = by_class(priority, &part.keep_sheddable, &part.keep_default, &part.keep_critical);
    let (clock, needed) = (part.pace().at(elapsed_ns), needed(part.burst, cost.amount_micros, *keep));
    if cell.level.lacks(tag, clock, part.burst, needed) {
        return Err(Missed::Short);
    }
    Ok((cell, clock, part.burst, needed))
}
