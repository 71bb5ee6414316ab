//! Where cost units live from one segment to the next, and what becomes of their counters.

use std::sync::atomic::Ordering::Relaxed;

use super::{
    control::Control,
    segment::{Cells, UnitCell, UnitSegment},
};
use crate::ids::UnitId;

/// Units whose counters are remembered after a policy dropped them.
const GONE_MAX: usize = 64;

/// Which unit lives where in the next segment: those that stay keep their cell.
pub(super) fn homes(cells: &Cells, old_odd: bool, units: &[UnitId]) -> [Option<UnitId>; crate::policy::UNITS_MAX] {
    let lives = |cell: &UnitCell| {
        let id = cell.slot(old_odd).id.load(Relaxed);
        units.iter().copied().find(|unit| unit.raw() == id)
    };
    let mut homes = cells.each_ref().map(lives);
    for unit in units {
        if !homes.contains(&Some(*unit))
            && let Some(free) = homes.iter_mut().find(|home| home.is_none())
        {
            *free = Some(*unit);
        }
    }
    homes
}

/// A unit leaves its cell, another moves in: counters go with the unit.
pub(super) fn settle_in(control: &mut Control, cell: &UnitCell, was: &UnitSegment, next: &UnitSegment) {
    let asked = cell.asked.load(Relaxed);
    let gone = control.told.gone();
    if was.id != 0 && gone.len() < GONE_MAX {
        gone.push((UnitId::from_raw(was.id), asked));
    }
    let known = gone.iter().position(|(unit, _)| unit.raw() == next.id);
    let asked = known.map_or(0, |at| gone.swap_remove(at).1);
    cell.asked.store(asked, Relaxed);
}
